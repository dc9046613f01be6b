"""Commands of Kafka's tools and of share-state as lines of bash, with the options that each release has.

Checked against the tools of 4.0.2, 4.1.2, 4.2.1, 4.3.1 and 4.4.0. Source: Kafka ShareGroupCommand,
ConsoleShareConsumer, ConfigCommand, LeaderElectionCommand, GroupConfig; KIP-932, Admin.alterShareGroupOffsets;
KIP-1323.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from share_state.kafka.releases import Release

BOOTSTRAP = "BOOTSTRAP"
DEAD_LETTER_TOPIC = "DLQ_TOPIC"
LIBRARIES = "KAFKA_LIBS"
REDRIVE_TOPIC = "REDRIVE_TOPIC"
"""Shell variables that the reader of a plan sets."""

_CHECK_START = """\
NF > 3 && $(NF-3) == ENVIRON["TOPIC"] && $(NF-2) == ENVIRON["PARTITION"] { start = $(NF-1) "" }
END {
    if (start == ENVIRON["START"] "") exit
    print "the start offset is " start ", not " ENVIRON["START"] > "/dev/stderr"
    exit 1
}"""
"""Compares a start offset with what `--describe --offsets` prints, in awk. A group id may contain spaces, so columns
are counted from the right."""

_CHECK_FILE = """\
NR == FNR {
    n = split($0, field, ",")
    place = field[n - 2] " " field[n - 1]
    own = substr($0, 1, length($0) - length(place) - length(field[n]) - 1)
    if (own == ENVIRON["OWN"]) wanted[place] = field[n] ""
    next
}
NF > 3 { start[$(NF-3) " " $(NF-2)] = $(NF-1) "" }
END {
    for (place in wanted)
        if (start[place] != wanted[place]) {
            print place ": the start offset is " start[place] ", not " wanted[place] > "/dev/stderr"
            failed = 1
        }
    exit failed
}"""
"""Compares the start offsets of a CSV file with what `--describe --offsets` prints, in awk."""

_COPY = """\
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;
settings.put("isolation.level", "read_committed");
settings.put("enable.auto.commit", "false");
settings.put("auto.offset.reset", "none");
int failed = 0;
try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
     var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
    consumer.assign(java.util.List.of(source));
    long begin = consumer.beginningOffsets(java.util.List.of(source)).get(source);
    long end = consumer.endOffsets(java.util.List.of(source)).get(source);
    long wanted = 0, copied = 0, empty = 0;
    for (long[] range : ranges) {
        wanted += range[1] - range[0] + 1;
        var sent = new java.util.ArrayList<java.util.concurrent.Future<RecordMetadata>>();
        consumer.seek(source, Math.max(range[0], begin));
        while (consumer.position(source) <= range[1] && consumer.position(source) < end)
            for (var one : consumer.poll(java.time.Duration.ofSeconds(1)))
                if (one.offset() <= range[1]) {
                    if (one.value() == null) empty++;
                    sent.add(producer.send(new ProducerRecord<>(
                        System.getenv("REDRIVE_TOPIC"), null, one.timestamp(), one.key(), one.value(), one.headers())));
                }
        for (var one : sent) one.get();
        copied += sent.size();
    }
    System.out.println(source + ": copied " + copied + " records of " + wanted + " offsets; "
        + (wanted - copied) + " offsets have no committed record any more, " + empty + " records have no value");
    if (copied == 0) failed = 1;
} catch (Exception error) { System.err.println(error); failed = 1; }
/exit failed"""
"""Copies records of one topic-partition as they are, for jshell: key, value, headers and timestamp."""

MOST_COPIED = 500
"""Ranges that one call of jshell copies: Java compiles no longer array."""


def quote(word: str) -> str:
    """A word for bash: what a terminal would not print is written as bytes in `$'...'`."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (
        one if one.isprintable() and one not in "'\\" else "".join(f"\\x{byte:02x}" for byte in one.encode())
        for one in word
    )
    return f"$'{''.join(escaped)}'"


@dataclass(frozen=True, slots=True)
class KafkaTools:
    """The command lines of Kafka's tools for one cluster.

    Attributes:
        bootstrap: host:port of its brokers; None for the shell variable BOOTSTRAP.
        properties: client properties for --command-config; None for none.
    """

    bootstrap: str | None = None
    properties: str | None = None

    def describe(self, group: str, what: str) -> str:
        """Show `offsets`, `members` or the `state` of a share group."""
        return self._groups("--describe", f"--group={group}", f"--{what}")

    def reset_to_latest(self, group: str, topic: str, partition: int) -> str:
        """Start at the end of the topic-partition, and show where that is; 4.2 and later."""
        place = (f"--group={group}", f"--topic={topic}:{partition}")
        reset = self._groups("--reset-offsets", "--to-latest", *place, "--execute")
        return f"{reset}\n{self.describe(group, 'offsets')}"

    def reset_to_offset(self, group: str, topic: str, partition: int, offset: int) -> str:
        """Set the start offset, and check that it is set; 4.4 and later.

        The tool exits with 0 whatever happens, and moves an offset that the topic-partition does not have to its
        nearest end. Source: Kafka GroupOffsetsResetter.checkOffsetsRange.
        """
        place = (f"--group={group}", f"--topic={topic}:{partition}")
        reset = self._groups("--reset-offsets", f"--to-offset={offset}", *place, "--execute")
        values = f"TOPIC={quote(topic)} PARTITION={partition} START={offset}"
        check = f"{self.describe(group, 'offsets')} | {values} awk '{_CHECK_START}'"
        return f"{reset}\n{check}"

    def reset_from_file(self, group: str, path: str, *, has_group: bool) -> str:
        """Set the start offsets of a group that a file holds, and check that they are set; 4.4 and later.

        Args:
            path: CSV with topic, partition and offset.
            has_group: whether the group is before them.
        Source: Kafka GroupOffsetsResetter.parseResetPlan, CsvUtils.
        """
        # awk takes a name with `=` for an assignment, and one that begins with `-` for an option.
        file = path if path.startswith("/") else f"./{path}"
        reset = self._groups("--reset-offsets", f"--from-file={path}", f"--group={group}", "--execute")
        quoted = f'"{group.replace(chr(34), chr(34) * 2)}"' if any(one in group for one in ',"') else group
        own = quote(f"{quoted},") if has_group else "''"
        check = f"{self.describe(group, 'offsets')} | OWN={own} awk '{_CHECK_FILE}' {quote(file)} -"
        return f"{reset}\n{check}"

    def delete_offsets(self, group: str, topic: str) -> str:
        """Delete the state of all share-partitions of a topic; 4.1 and later."""
        return self._groups("--delete-offsets", f"--group={group}", f"--topic={topic}")

    def delete_group(self, group: str) -> str:
        """Delete a share group and its state; 4.1 and later."""
        return self._groups("--delete", f"--group={group}")

    def recreate_group(self, group: str, topic: str) -> str:
        """Join a share group for some seconds, which creates it and initializes its share-partitions.

        4.1 and later.

        The member releases the records that it receives. All these releases understand `--consumer-config`.
        """
        options = (
            "--release",
            "--max-messages=1",
            "--timeout-ms=15000",
            f"--group={group}",
            f"--topic={topic}",
        )
        return f"{self._tool('kafka-console-share-consumer.sh', *options, config='consumer')} >/dev/null"

    def configure_group(self, group: str, config: str) -> str:
        """Set a config of a share group."""
        given = ("--alter", "--entity-type=groups", f"--entity-name={group}", f"--add-config={config}")
        return self._tool("kafka-configs.sh", *given)

    def describe_config(self, group: str) -> str:
        """Show the configs of a share group."""
        return self._tool("kafka-configs.sh", "--describe", "--entity-type=groups", f"--entity-name={group}")

    def describe_dead_letter_topic(self) -> str:
        """Show the leaders of the topic that the reader names."""
        return f'{self._tool("kafka-topics.sh", "--describe")} --topic="${DEAD_LETTER_TOPIC}"'

    def allow_dead_letters(self) -> str:
        """Let share groups write to the topic that the reader names."""
        tool = self._tool("kafka-configs.sh", "--alter", "--entity-type=topics")
        return f'{tool} --entity-name="${DEAD_LETTER_TOPIC}" --add-config=errors.deadletterqueue.group.enable=true'

    def move_start(self, group: str, topic: str, partition: int, offset: int) -> str:
        """Set the start offset; 4.1 and later.

        Before 4.4, no tool of Kafka sets an offset, so jshell calls the Admin client.
        """
        place = _topic_partition(topic, partition)
        return "\n".join((
            *self._jshell(),
            "int failed = 0;",
            "try (var admin = org.apache.kafka.clients.admin.Admin.create(settings)) {",
            f"    admin.alterShareGroupOffsets({_java(group)}, java.util.Map.of({place}, {offset}L)).all().get();",
            "} catch (Exception error) { System.err.println(error); failed = 1; }",
            "/exit failed",
            "END",
        ))  # fmt: skip

    def set_start(self, release: Release, group: str, topic: str, partition: int, offset: int) -> str:
        """Set the start offset with what the release offers."""
        set_start = self.reset_to_offset if release.resets_to_offset else self.move_start
        return set_start(group, topic, partition, offset)

    def copy_records(self, topic: str, partition: int, ranges: Sequence[tuple[int, int]]) -> str:
        """Copy committed records to the topic that the reader names, and say how many there were.

        Kafka's console tools pass on text only, and count records, not offsets; so jshell calls the clients.

        Args:
            ranges: first and last offsets, ascending.
        """
        commands = list[str]()
        for at in range(0, len(ranges), MOST_COPIED):
            pairs = ", ".join(f"{{{first}L, {last}L}}" for first, last in ranges[at : at + MOST_COPIED])
            place = _topic_partition(topic, partition)
            lines = (f"var source = {place};", f"long[][] ranges = {{{pairs}}};", _COPY, "END")
            commands.append("\n".join((*self._jshell(), *lines)))
        return "\n".join(commands)

    def _jshell(self) -> tuple[str, str, str]:
        """The first lines of a script for jshell, with the settings of a client."""
        settings = "new java.util.Properties()"
        if self.properties is not None:
            settings = f"org.apache.kafka.common.utils.Utils.loadProps({_java(self.properties)})"
        bootstrap = f'System.getenv("{BOOTSTRAP}")' if self.bootstrap is None else _java(self.bootstrap)
        return (
            f"jshell -s --class-path \"${LIBRARIES}/*\" - <<'END'",
            f"var settings = {settings};",
            f'settings.put("bootstrap.servers", {bootstrap});',
        )

    def _groups(self, *options: str) -> str:
        return self._tool("kafka-share-groups.sh", *options)

    def _tool(self, tool: str, *options: str, config: str = "command") -> str:
        server = f'"${BOOTSTRAP}"' if self.bootstrap is None else quote(self.bootstrap)
        given = "" if self.properties is None else f" --{config}-config {quote(self.properties)}"
        return f"{tool} --bootstrap-server {server}{given} {' '.join(map(quote, options))}"


def diff_command(inputs: Sequence[str], log: int, offset: int, group: str, topic: str, partition: int) -> str:
    """Compare the state when the plan was made with the end of a later export."""
    words = ["share-state", "diff", *inputs, f"--as-of-offset={log}={offset}"]
    words += [f"--group={group}", f"--topic={topic}", f"--partition={partition}"]
    return " ".join(map(quote, words))


def _topic_partition(topic: str, partition: int) -> str:
    return f"new org.apache.kafka.common.TopicPartition({_java(topic)}, {partition})"


def _java(text: str) -> str:
    """A string literal: the escapes of JSON are those of Java, and other characters are ASCII."""
    return json.dumps(text)
