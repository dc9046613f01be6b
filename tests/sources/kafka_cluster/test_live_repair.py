"""A group is brought into trouble, a plan is made, an option is carried out: the group advances as foretold."""

import json
import shlex
import struct
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

import share_state
from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.kafka.delivery_states import DeliveryState
from share_state.repairs.commands import DEAD_LETTER_TOPIC, KafkaTools
from share_state.simulator.state_values import DurableState, StateKey, StateRecord, encode_record
from share_state.simulator.types import StateBatch, find_release
from share_state.sources import jars
from tests.present import present
from tests.profiles import nightly
from tests.sources.kafka_cluster.broker import Broker, carry_out, properties_of, running, skip_without_broker
from tests.warehouses import arrow

pytestmark = pytest.mark.broker

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
_PATIENCE = 30.0


@dataclass(frozen=True)
class Cluster:
    """A broker of its own: other tests expect that nobody but them uses theirs.

    Attributes:
        address: host:port.
        broker: the broker.
        environment: of a shell that finds Kafka's tools.
    """

    address: str
    broker: Broker
    environment: Mapping[str, str]


@pytest.fixture(scope="module")
def cluster(tools_of_4_3: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Of 4.3.1: its plans set start offsets by the Admin client, as no tool of that release does."""
    skip_without_broker(release := jars.BROKER_BEFORE_DEAD_LETTERS)
    with running(
        tmp_path_factory.mktemp("broker"),
        release=release,
        transaction_state_log_replication_factor=1,
        transaction_state_log_min_isr=1,
        transaction_state_log_num_partitions=1,
    ) as broker:
        yield Cluster(broker.address, broker, {**tools_of_4_3, "BOOTSTRAP": broker.address})


@dataclass(frozen=True)
class Group:
    """A share group with a topic of one partition; each record is a batch of its own."""

    cluster: Cluster
    name: str
    topic: str
    records: int

    def create(self, **configs: int) -> None:
        """Create the topic with its records, and configure the group."""
        kafka = {"bootstrap.servers": self.cluster.address, "log_level": 0}
        admin, named = AdminClient(kafka), {name.replace("_", "."): str(value) for name, value in configs.items()}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in {"share.auto.offset.reset": "earliest", **named}.items()
        ]
        group = ConfigResource(ConfigResource.Type.GROUP, self.name, incremental_configs=entries)
        for asked in (admin.create_topics([NewTopic(self.topic, 1, 1)]), admin.incremental_alter_configs([group])):
            for future in asked.values():
                future.result(_PATIENCE)
        self.produce(self.records)

    def produce(self, records: int) -> None:
        """Append records to the topic."""
        kafka = {"bootstrap.servers": self.cluster.address, "log_level": 0}
        producer = Producer(kafka | {"batch.num.messages": 1})
        for number in range(records):
            producer.produce(self.topic, f"{number}", partition=0)
        assert producer.flush(_PATIENCE) == 0

    @property
    def end(self) -> int:
        """The end of the topic."""
        reader = Consumer({"bootstrap.servers": self.cluster.address, "group.id": "reader", "log_level": 0})
        _, end = reader.get_watermark_offsets(TopicPartition(self.topic, 0))
        reader.close()
        return end

    def consume(self, releases: int | None, is_done: Callable[[list[int]], bool]) -> None:
        """Accept all records but one, which is released, until what was acknowledged suffices."""
        kafka = {"bootstrap.servers": self.cluster.address, "log_level": 0, "group.id": self.name}
        consumer = ShareConsumer(kafka | {"share.acknowledgement.mode": "explicit"})
        consumer.subscribe([self.topic])
        end, seen = time.monotonic() + _PATIENCE, list[int]()
        while not is_done(seen):
            assert time.monotonic() < end, f"{self.name}: only {seen} after {_PATIENCE} s"
            for one in consumer.poll(0.5):
                assert one.error() is None
                offset = one.offset()
                assert offset is not None
                consumer.acknowledge(one, RELEASE if offset == releases else ACCEPT)
                seen.append(offset)
            consumer.commit_sync(_PATIENCE)
        consumer.close()

    def state(self) -> tuple[dict[str, Any] | None, dict[str, int], int | None]:
        """Its row of share_partition_state, offsets in flight by state from a leader's start on, and the cutoff."""
        tables = share_state.reconstruct(f"kafka://{self.cluster.address}")
        rows = [row for row in tables.share_partition_state.to_pylist() if row["group_id"] == self.name]
        if not rows:
            return None, {}, None
        in_flight, start = dict[str, int](), rows[0]["effective_start_offset"]
        for row in tables.in_flight.to_pylist():
            if row["group_id"] == self.name and row["last_offset"] >= start:
                count = row["last_offset"] - max(row["first_offset"], start) + 1
                in_flight[row["state"]] = in_flight.get(row["state"], 0) + count
        cutoffs = {row["partition"]: row["cutoff_offset"] for row in tables.cutoff.to_pylist()}
        return rows[0], in_flight, cutoffs[rows[0]["state_partition"]]


def fail_record(offset: int, times: int) -> Callable[[Group], None]:
    """Everything is accepted but one record, which is released some times."""
    return lambda group: group.consume(
        offset, lambda seen: seen.count(offset) == times and len(set(seen)) == group.records
    )


def _accept(group: Group) -> None:
    group.consume(None, bool)


def _nothing(_: Group) -> None:
    pass


@dataclass(frozen=True)
class Case:
    """A kind of trouble, and one way out of it.

    Attributes:
        trouble: code that the plan must have.
        action: of the option that is carried out.
        bring: brings the group into trouble.
        then: what consumers do after that.
        records, configs: of the topic and the group.
        limits: given to the plan.
        compares_in_flight: whether `then` leaves exactly the foretold states.
        is_secured: whether the plan and its command use the listener with TLS and a login.
        reads_segments: whether the plan is made from the broker's state files alone, whose clock stops with the last
            record, and which do not show that the group is empty.
    """

    trouble: str
    action: str
    bring: Callable[[Group], None]
    then: Callable[[Group], None]
    records: int = 20
    configs: Mapping[str, int] | None = None
    limits: tuple[str, ...] = ()
    compares_in_flight: bool = True
    is_secured: bool = False
    reads_segments: bool = False


def _poison(action: str, then: Callable[[Group], None], *, is_secured: bool = False) -> Case:
    limit = {"share_delivery_count_limit": 3}
    return Case("POISON_RECORDS", action, fail_record(5, 2), then, configs=limit, is_secured=is_secured)


def _fill_window(group: Group) -> None:
    """The first record is released, and the others fill the window."""
    group.consume(0, lambda seen: len(set(seen)) >= 100)


def _use_larger_window(group: Group) -> None:
    group.consume(0, lambda seen: max(seen, default=0) == group.records - 1)


def _release_once(offset: int) -> Callable[[Group], None]:
    return lambda group: group.consume(offset, lambda seen: offset in seen)


def _fail_for_long(group: Group) -> None:
    """A record fails again and again: the first write after SPSO has reached it starts the clock."""
    fail_record(3, 1)(group)
    for _ in range(2):
        _release_once(3)(group)
        time.sleep(0.1)


_IDLE = ("limits.stall_minutes=0.001",)
CASES = [
    _poison("RAISE_DELIVERY_COUNT_LIMIT", _release_once(5)),
    _poison("MOVE_START", _nothing, is_secured=True),
    _poison("START_CONSUMERS", _release_once(5)),
    _poison("RESET_TO_LATEST", _nothing, is_secured=True),
    Case("IN_FLIGHT_LIMIT", "RAISE_PARTITION_MAX_RECORD_LOCKS", _fill_window, _use_larger_window, 150,
         {"share_partition_max_record_locks": 100}, compares_in_flight=False),
    Case("STALL", "RESTART_CONSUMERS", _fail_for_long, _release_once(3), limits=_IDLE, reads_segments=True),
    Case("STALL", "FORBID_RENEWALS", _fail_for_long, _release_once(3), limits=_IDLE, reads_segments=True),
    Case("STOP", "START_CONSUMERS", fail_record(3, 1), _accept, limits=_IDLE),
]  # fmt: skip


@nightly("a group and a repair for each")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.trouble}-{case.action}")
def test_a_group_advances_as_foretold(cluster: Cluster, tmp_path: Path, case: Case) -> None:
    number = CASES.index(case)
    group = Group(cluster, f'-it\'s "g" {number} \té', f"topic.{number}", case.records)
    group.create(**case.configs or {})
    case.bring(group)
    source = [f"kafka://{cluster.address}"]
    if case.reads_segments:
        topics = str(tmp_path / "topics.json")
        assert run(["topics", *source, "--out", topics]) == 0
        for folder in cluster.broker.logs.glob("__share_group_state-*"):
            copytree(folder, tmp_path / "export" / folder.name)
        source = [str(tmp_path / "export"), "--topics", topics]
    if case.is_secured:
        properties = properties_of(cluster.broker, "auditor", tmp_path)
        source = [f"kafka://{cluster.broker.secured}", "--kafka-properties", properties]
    limits = [word for limit in case.limits for word in ("--set", limit)]
    for name in ("plan.json", "plan.sh"):
        out = str(tmp_path / name)
        assert run(["repair", *source, f"--group={group.name}", "--out", out, "--quiet", *limits]) == 0
    (found,) = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))["share_partitions"]
    assert case.trouble in (found["trouble"], *found["also"]), found
    place, option = next((i, o) for i, o in enumerate(found["options"], 1) if o["action"] == case.action)
    if option["command"]:
        carry_out(cluster.environment, tmp_path / "plan.sh", f"1.{place}")
    case.then(group)
    state, in_flight, cutoff = group.state()
    effect = option["effect"]
    assert (state and state["effective_start_offset"]) == effect["start_offset"]
    if state is not None:
        assert state["end_offset"] == max(effect["end_offset"], state["start_offset"])
        assert (cutoff or 0) >= (effect["cutoff"] or 0)
        if case.compares_in_flight:
            assert in_flight == effect["in_flight"]


@nightly("needs the groups of the other cases")
def test_the_cutoff_advances_as_foretold_without_an_unused_group(cluster: Cluster, tmp_path: Path) -> None:
    source, limits = f"kafka://{cluster.address}", ("--set", "limits.pinned_records=1")
    for name in ("plan.json", "plan.sh"):
        assert run(["repair", source, "--out", str(tmp_path / name), "--quiet", *limits]) == 0
    found = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))["share_partitions"]
    number, one = next((n, one) for n, one in enumerate(found, 1) if one["trouble"] == "CUTOFF_PINNED")
    place, option = next((n, one) for n, one in enumerate(one["options"], 1) if one["action"] == "DELETE_OFFSETS")
    carry_out(cluster.environment, tmp_path / "plan.sh", f"{number}.{place}")
    group = Group(cluster, one["group_id"], one["topic"], 0)
    assert group.state()[0] is None
    cutoffs = arrow(share_state.cutoff(source)).to_pylist()
    (cutoff,) = (row["cutoff_offset"] for row in cutoffs if row["partition"] == one["state_partition"])
    assert (one["now"]["cutoff"] or 0) < cutoff == option["effect"]["cutoff"]


@nightly("two audits and two jshells")
def test_a_group_that_was_rewound_returns_to_where_it_was(cluster: Cluster, tmp_path: Path) -> None:
    group, lake = Group(cluster, "rewound", "topic.rewound", 20), str(tmp_path / "lake")
    group.create()
    fail_record(10, 1)(group)
    _accept(group)
    audit = ["audit", str(cluster.broker.logs), "--out", lake, "--quiet", "--fail-on", "off"]
    assert run(audit) == 0
    (before,) = (row for row in CommittedTables(lake).read("share_partition_state").to_pylist()
                 if row["group_id"] == group.name)  # fmt: skip
    back = KafkaTools(cluster.address).move_start(group.name, group.topic, 0, 4)
    (tmp_path / "back.sh").write_text(back, encoding="utf-8")
    carry_out(cluster.environment, tmp_path / "back.sh", "")
    assert run(audit) == 0
    plan = share_state.repair(lake, group=group.name)
    (found,) = plan.repairs
    assert (found.trouble, found.now and found.now.start_offset) == ("REWIND", 4)
    assert f"from {before['start_offset']} to 4" in found.sentence
    place, option = next((n, one) for n, one in enumerate(found.options, 1) if one.action == "MOVE_START")
    plan.write(str(tmp_path / "plan.sh"))
    carry_out(cluster.environment, tmp_path / "plan.sh", f"1.{place}")
    state, _, _ = group.state()
    assert option.effect is not None
    assert state is not None
    assert state["effective_start_offset"] == option.effect.start_offset == before["effective_start_offset"] == 20
    check = shlex.split(found.check)
    assert run([*check[1:], "--json"]) == 0


@nightly("a group, an audit and two jshells")
def test_records_that_were_given_up_are_copied_as_they_are(cluster: Cluster, tmp_path: Path) -> None:
    """Rejected ones of a group, without the aborted record between them; keys, values and headers are any bytes."""
    group, target = Group(cluster, "redriven", "topic.redriven", 5), "topic.again"
    group.create()
    kafka = {"bootstrap.servers": cluster.address, "log_level": 0}
    admin = AdminClient(kafka)
    for future in admin.create_topics([NewTopic(target, 1, 1)]).values():
        future.result(_PATIENCE)
    headers = [("a", b"\xff\n"), ("a", None)]
    producer = Producer(kafka | {"transactional.id": "redriven"})
    producer.init_transactions(_PATIENCE)
    for number in range(4):
        producer.begin_transaction()
        producer.produce(group.topic, b"\0\n%d" % number, b"k\xfe", 0, headers=headers, timestamp=1_700_000_000_000)
        assert producer.flush(_PATIENCE) == 0
        producer.abort_transaction(_PATIENCE) if number == 1 else producer.commit_transaction(_PATIENCE)
    # Offsets 5 to 12: a record and its marker, the second record is aborted.
    consumer = ShareConsumer(kafka | {"group.id": group.name, "share.acknowledgement.mode": "explicit"})
    consumer.subscribe([group.topic])
    end, seen = time.monotonic() + _PATIENCE, set[int]()
    while not {0, 1, 2, 3, 4, 5, 7, 9, 11} <= seen:
        assert time.monotonic() < end, seen
        for one in consumer.poll(0.5):
            offset = present(one.offset())
            consumer.acknowledge(one, AcknowledgeType.REJECT if offset in (3, 5, 7, 9) else ACCEPT)
            seen.add(offset)
        consumer.commit_sync(_PATIENCE)
    consumer.close()
    plan = share_state.repair(f"kafka://{cluster.address}", group=group.name, redrive=True)
    (found,) = plan.redrives
    assert {3, 5, 7, 9} <= {o for one in found.unprocessed.ranges for o in range(one.first_offset, one.last_offset + 1)}
    assert found.options[0].action == "COPY_ALL"
    plan.write(str(tmp_path / "plan.sh"))
    carry_out({**cluster.environment, "REDRIVE_TOPIC": target}, tmp_path / "plan.sh", "1.1")
    reader = Consumer(kafka | {"group.id": "reader", "enable.partition.eof": True})
    reader.assign([TopicPartition(target, 0, 0)])
    copies = list[tuple[Any, ...]]()
    while (record := present(reader.poll(_PATIENCE))).error() is None:
        copies.append((record.key(), record.value(), record.headers(), record.timestamp()[1]))
    reader.close()
    assert copies[0][:3] == (None, b"3", None)
    sent = (headers, 1_700_000_000_000)
    assert copies[1:] == [(b"k\xfe", b"\0\n0", *sent), (b"k\xfe", b"\0\n2", *sent)]


@nightly("five start-ups of Java")
def test_commands_without_trouble_run_too(cluster: Cluster, tmp_path: Path) -> None:
    """Those of plans that need a state or a release that this broker cannot be brought to."""
    group, tools, script = Group(cluster, "o'k", "topic.ok", 5), KafkaTools(cluster.address), tmp_path / "one.sh"
    group.create()
    group.consume(None, bool)
    commands = [tools.describe(group.name, "offsets"), tools.describe_config(group.name)]
    commands += [
        f"{DEAD_LETTER_TOPIC}={group.topic}\n{tools.describe_dead_letter_topic()}",
        tools.delete_group(group.name),
    ]
    for command in commands:
        script.write_text(command, encoding="utf-8")
        carry_out(cluster.environment, script, "")
    assert group.state()[0] is None


def _write_as_broker(
    address: str, topic: str, partition: int, records: Sequence[tuple[bytes, bytes | None, int]]
) -> None:
    """Write key, value and time (ms) to a topic of the broker's own, which brokers let their admin client do."""
    producer = Producer({"bootstrap.servers": address, "client.id": "__admin_client", "log_level": 0})
    for key, value, time_ms in records:
        producer.produce(topic, value, key, partition, timestamp=time_ms)
    assert producer.flush(_PATIENCE) == 0


def _tombstones(address: str, group: str) -> list[tuple[bytes, None, int]]:
    """Of all records of an empty group, in the order in which brokers delete it: its own last."""
    consumer, keys = Consumer({"bootstrap.servers": address, "group.id": "reader", "log_level": 0}), dict[bytes, bool]()
    consumer.assign([TopicPartition("__consumer_offsets", 0, 0)])
    _, end = consumer.get_watermark_offsets(TopicPartition("__consumer_offsets", 0))
    while (record := consumer.poll(_PATIENCE)) is not None:
        key = record.key()
        if isinstance(key, bytes) and group.encode() in key:
            keys[key] = record.value() is not None
        if record.offset() == end - 1:
            break
    consumer.close()
    now = int(time.time() * 1000)
    live = [key for key, is_live in keys.items() if is_live]
    return [(key, None, now) for key in sorted(live, key=lambda key: (key[:2] == b"\0\x0b", key))]


@nightly("two starts of a broker, six of Java")
def test_state_that_its_group_has_lost_or_left_and_state_that_no_leader_loads(
    tools_of_4_3: Mapping[str, str], tmp_path: Path
) -> None:
    """No client can bring a group there, so the records that say so are written to the broker's own topics."""
    names = ("orphan", "deleting", "unloadable")
    release = jars.BROKER_BEFORE_DEAD_LETTERS
    with running(tmp_path, release=release) as broker:
        cluster = Cluster(broker.address, broker, {**tools_of_4_3, "BOOTSTRAP": broker.address})
        groups = {name: Group(cluster, name, f"topic.{name}", 20) for name in names}
        for group in groups.values():
            group.create()
            fail_record(5, 1)(group)
        rows = {name: present(group.state()[0]) for name, group in groups.items()}
        _write_as_broker(broker.address, "__consumer_offsets", 0, _tombstones(broker.address, "orphan"))
        topic, an_hour_ago = b"topic.deleting", int(time.time() * 1000) - 3_600_000
        topic_id = urlsafe_b64decode(f"{rows['deleting']['topic_id']}==")
        key = struct.pack(">hh8s", 15, 8, b"deleting")
        value = b"\0\0\1\1\2" + topic_id + bytes([1 + len(topic)]) + topic + b"\0\0"
        _write_as_broker(broker.address, "__consumer_offsets", 0, [(key, value, an_hour_ago)])
        row, now = rows["unloadable"], int(time.time() * 1000)
        batches = (StateBatch(5, 5, 7, 1), StateBatch(6, 19, DeliveryState.ACKNOWLEDGED, 1))  # type: ignore[arg-type]
        state = DurableState(
            row["snapshot_epoch"] + 1, row["state_epoch"], row["leader_epoch"], 5, 14, batches, now, now
        )
        record = StateRecord(StateKey("unloadable", row["topic_id"], 0), state)
        key, value = encode_record(record, find_release("4.3"))
        _write_as_broker(broker.address, "__share_group_state", row["state_partition"], [(key, value, now)])
    with running(tmp_path, broker, release=release):
        troubles = ("ORPHAN_SHARE_STATE", "DELETE_INCOMPLETE", "UNLOADABLE")
        actions = ("RECREATE_GROUP", "DELETE_OFFSETS", "FORGET_BATCHES")
        for name, trouble, action in zip(names, troubles, actions, strict=True):
            plan = share_state.repair(f"kafka://{broker.address}", group=name)
            (found,) = plan.repairs
            assert found.trouble == trouble, found.sentence
            plan.write(str(tmp_path / f"{name}.sh"))
            place, option = next((n, one) for n, one in enumerate(found.options, 1) if one.action == action)
            carry_out(cluster.environment, tmp_path / f"{name}.sh", f"1.{place}")
            state, in_flight, _ = groups[name].state()
            assert option.effect is not None
            assert (state and state["effective_start_offset"], in_flight) == (option.effect.start_offset, {}), name
        assert present(option.effect).delivered_again == ((6, 19),)
        groups["unloadable"].consume(None, lambda seen: set(seen) == set(range(5, 20)))
