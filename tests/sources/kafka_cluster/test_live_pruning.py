"""A broker that prunes every second while it is read: no reader loses a share-partition, however slow it is."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import Row

from share_state.config.input_spec import OPTIONS, input_spec
from share_state.delta.committed import CommittedTables
from share_state.fold.checkpoint import FoldCheckpoint
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.state_log import fold_log
from share_state.pipeline.across_logs import EXTENDED
from share_state.pipeline.audit import run_audit
from share_state.pipeline.executor import Executor
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.planning import build_plan
from share_state.pipeline.reconstruct import run_reconstruct
from share_state.pipeline.stream_changes import UnwrittenChanges
from share_state.pipeline.stream_fold import StreamFold
from share_state.pipeline.task import STATE
from share_state.report.compare import SAME, compare
from share_state.report.explain import explain_offset
from share_state.sources.as_of import Window
from share_state.sources.dead_letter_topics import HEADER_PREFIX, ClusterLetters
from share_state.sources.discovery import find_logs
from share_state.sources.kafka_admin import DeadLetterTopics, fetch_broker_offsets
from share_state.sources.kafka_client import ClientProperties
from share_state.sources.kafka_cluster import Cluster
from share_state.sources.kafka_source import read_topics
from share_state.sources.log_partition import LogPartition
from share_state.spark.kafka_stream import _PackedReader
from share_state.spark.streaming import _unpacked
from tests.processes import die_with_parent
from tests.profiles import driver_alone, nightly
from tests.sources.kafka_cluster.broker import Broker, running
from tests.sources.kafka_cluster.workload import read_from_the_earliest, repeated

pytestmark = [pytest.mark.broker, nightly("a broker that prunes, and minutes of waiting")]

_GROUPS = ("first", "second")
"""Share groups, each with a topic of its name."""
_PARTITIONS = 24
_ROUNDS = 6
"""Writes of each share-partition after which it has a new snapshot."""
_PATIENCE = 60.0


@dataclass
class PruningBroker:
    """A broker whose coordinator prunes every second, and share groups that let it.

    Attributes:
        broker: the broker.
        kafka: settings of clients.
        consumers: share group -> its consumer.
    """

    broker: Broker
    kafka: dict[str, Any]
    consumers: dict[str, ShareConsumer] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where commands read it."""
        return f"kafka://{self.broker.address}"

    def write_snapshots(self, group: str) -> None:
        """Let each share-partition of a group advance by some records, so that it has a new snapshot."""
        producer, consumer = Producer(self.kafka), self.consumers[group]
        for _ in range(_ROUNDS):
            for number in range(_PARTITIONS):
                producer.produce(group, b"record", partition=number)
            assert producer.flush(_PATIENCE) == 0
            waiting, deadline = _PARTITIONS, time.monotonic() + _PATIENCE
            while waiting:
                assert time.monotonic() < deadline
                for message in consumer.poll(0.2):
                    if message.error() is None:
                        consumer.acknowledge(message)
                        waiting -= 1
                consumer.commit_sync(_PATIENCE)

    def starts(self) -> dict[int, int]:
        """State partition -> log start offset."""
        offsets = Cluster(self.address, ClientProperties()).fetch_state_offsets()
        assert offsets is not None
        return {log.partition: log.start_offset for log in offsets.logs}

    def await_pruning(self, starts: Mapping[int, int]) -> None:
        """Wait until the coordinator has deleted records of every state partition."""
        deadline = time.monotonic() + _PATIENCE
        while any(start <= starts[number] for number, start in self.starts().items()):
            assert time.monotonic() < deadline, (self.starts(), starts)
            time.sleep(0.1)

    def truth(self, until: Mapping[int, int] | None = None) -> pa.Table:
        """The states that the broker's own segments hold, maybe up to an offset of each state partition."""
        logs = find_logs([str(self.broker.logs)])
        windows = [Window(until_offset=(until or {}).get(log.partition or 0)) for log in logs]
        return ordered(pa.concat_tables(fold_log(*one).states for one in zip(logs, windows, strict=True)))


@contextmanager
def pruning_broker(folder: Path) -> Iterator[PruningBroker]:
    """Start such a broker; every share-partition has a snapshot."""
    with running(folder, share_coordinator_state_topic_prune_interval_ms=1000) as broker, ExitStack() as stack:
        kafka: dict[str, Any] = {"bootstrap.servers": broker.address, "log_level": 0}
        admin = AdminClient(kafka)
        for made in admin.create_topics([NewTopic(group, _PARTITIONS, 1) for group in _GROUPS]).values():
            made.result(_PATIENCE)
        read_from_the_earliest(admin, *_GROUPS)
        pruning = PruningBroker(broker, kafka)
        for group in _GROUPS:
            settings = kafka | {"group.id": group, "share.acknowledgement.mode": "explicit"}
            pruning.consumers[group] = consumer = ShareConsumer(settings)
            stack.callback(consumer.close)
            consumer.subscribe([group])
            pruning.write_snapshots(group)
        yield pruning


@pytest.fixture(scope="module")
def pruning(can_run_broker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PruningBroker]:
    """A broker that prunes every second, and rests between two tests."""
    del can_run_broker
    with pruning_broker(tmp_path_factory.mktemp("pruning")) as started:
        yield started


def plan_of(pruning: PruningBroker, **options: Any) -> FoldPlan:
    """A plan that holds the offsets of the logs as they are now."""
    spec = input_spec(OPTIONS, sources=[{"path": pruning.address}], **options)
    return build_plan(spec, OPTIONS)


def overtake(pruning: PruningBroker) -> None:
    """Let the broker prune before a slow reader begins: up to the snapshots of the first group, which it knows of.

    The only snapshots of the second group are then after the end that the reader planned to stop at.
    """
    starts = pruning.starts()
    pruning.write_snapshots("second")
    pruning.await_pruning(starts)


def overtaken_plan(pruning: PruningBroker, **options: Any) -> FoldPlan:
    """A plan whose logs the broker has pruned since it was made."""
    pruning.write_snapshots("first")
    plan = plan_of(pruning, **options)
    overtake(pruning)
    return plan


def ordered(states: pa.Table) -> pa.Table:
    """The columns of states that do not depend on deleted records, in a fixed order."""
    names = ["group_id", "topic_id", "partition", "start_offset", "end_offset", "last_offset", "suspect"]
    return states.select(names).sort_by([(name, "ascending") for name in names[:3]]).combine_chunks()


@driver_alone
def test_reconstruct_reads_on_to_the_snapshots_that_replace_what_was_pruned(
    pruning: PruningBroker, tasks: Executor[Any], tmp_path: Path
) -> None:
    result = run_reconstruct(tasks, overtaken_plan(pruning, judge="all", groups={}), str(tmp_path / "lake"))
    states = CommittedTables(str(tmp_path / "lake")).read(STATE)
    assert len(states) == len(_GROUPS) * _PARTITIONS
    assert ordered(states).equals(pruning.truth())
    assert not result.findings
    assert {note.partition(":")[2] for note in result.notes} == {EXTENDED.partition(":")[2]}
    # The ends of the topics are those at the later end of the state.
    assert states["topic_end_offset"].equals(states["effective_start_offset"])


def test_an_audit_reads_on_and_agrees_with_the_coordinator(pruning: PruningBroker, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    result = run_audit(lambda _: nullcontext(LocalExecutor()), overtaken_plan(pruning), lake, inputs=(pruning.address,))
    assert result.share_partitions == len(_GROUPS) * _PARTITIONS
    assert not result.findings
    verdicts = compare(CommittedTables(str(lake)), fetch_broker_offsets(pruning.address, None, _GROUPS))["verdicts"]
    assert {verdict: count for verdict, count in verdicts.items() if count} == {SAME: len(_GROUPS) * _PARTITIONS}


def test_a_log_that_is_read_twice_is_pruned_in_neither_pass(pruning: PruningBroker, tmp_path: Path) -> None:
    """The proof of a cutoff and a timeline read the log again, while the broker prunes."""
    selected = SharePartitionFilter("second", None, None)
    plan = replace(overtaken_plan(pruning), verify=True, timeline=selected)
    result = run_reconstruct(LocalExecutor(), plan, str(tmp_path / "lake"))
    assert (result.compared, result.differing) == (len(_GROUPS) * _PARTITIONS, ())
    timeline = CommittedTables(str(tmp_path / "lake")).read("timeline")
    assert {*timeline["group_id"].to_pylist()} == {"second"}
    assert len({*timeline["partition"].to_pylist()}) == _PARTITIONS


def test_an_offset_is_explained_from_what_is_left(pruning: PruningBroker) -> None:
    plan = overtaken_plan(pruning)
    (state,) = [one for one in pruning.truth().to_pylist() if (one["group_id"], one["partition"]) == ("second", 7)]
    found = explain_offset(plan, (pruning.address,), "second", "second", 7, state["start_offset"] - 1)
    assert found["records"]


def test_decode_prints_what_is_left(pruning: PruningBroker) -> None:
    plan = overtaken_plan(pruning)
    starts = pruning.starts()
    for log in plan.logs:
        (decoded,) = plan.decode(log)
        offsets = decoded["offset"].to_pylist()
        assert offsets[0] == starts[log.partition or 0]
        assert offsets == list(range(offsets[0], offsets[-1] + 1))


def test_an_as_of_offset_ends_a_log_that_is_read_on(pruning: PruningBroker, tmp_path: Path) -> None:
    pruning.write_snapshots("first")
    starts = pruning.starts()
    pruning.write_snapshots("second")
    until = {number: getattr(log.source, "end_offset", 0) for number, log in enumerate(plan_of(pruning).logs)}
    plan = plan_of(pruning, as_of_offsets={str(number): end for number, end in until.items()})
    pruning.await_pruning(starts)
    pruning.write_snapshots("first")
    result = run_reconstruct(LocalExecutor(), plan, str(tmp_path / "lake"))
    assert result.progress == {f"__share_group_state-{number}": end for number, end in until.items()}
    states, truth = (
        ordered(rows) for rows in (CommittedTables(str(tmp_path / "lake")).read(STATE), pruning.truth(until))
    )
    assert len(states)
    assert {*map(str, states.to_pylist())} <= {*map(str, truth.to_pylist())}


@pytest.mark.parametrize("begun_before", [False, True])
def test_a_stream_reads_on_beyond_its_micro_batch(pruning: PruningBroker, begun_before: bool) -> None:
    """The reader and the fold of the stream, as Spark calls them, with a pause between plan and read."""
    reader, fold = _PackedReader(pruning.address, ClientProperties()), StreamFold()
    states, position = dict[int, FoldCheckpoint](), reader.initialOffset()
    if begun_before:
        position = _read_batch(reader, fold, states, position, lambda: None)
    pruning.write_snapshots("first")
    position = _read_batch(reader, fold, states, position, lambda: overtake(pruning))
    assert _share_partitions(states) == len(_GROUPS) * _PARTITIONS
    # The next micro-batch begins with records that were read.
    pruning.write_snapshots("first")
    _read_batch(reader, fold, states, position, lambda: None)
    assert _share_partitions(states) == len(_GROUPS) * _PARTITIONS


class _SlowLetters(ClusterLetters):
    """Reads a topic as dead letters, after retention has deleted its first records."""

    def _find(self) -> tuple[list[LogPartition], DeadLetterTopics]:
        logs = read_topics(self.address, None, ["letters"])
        admin = AdminClient({"bootstrap.servers": self.address.removeprefix("kafka://"), "log_level": 0})
        for deleted in admin.delete_records([TopicPartition("letters", 0, 4)]).values():
            deleted.result(_PATIENCE)
        return logs, DeadLetterTopics({"letters": 1}, {}, {})


def test_dead_letters_that_retention_deletes_are_left_out_and_the_start_is_known(pruning: PruningBroker) -> None:
    admin, producer = AdminClient(pruning.kafka), Producer(pruning.kafka)
    admin.create_topics([NewTopic("letters", 1, 1)])["letters"].result(_PATIENCE)
    headers = {"topic": b"orders", "partition": b"0", "group": b"first", "delivery.count": b"1"}
    for number in range(10):
        named = [(f"{HEADER_PREFIX}{name}", value) for name, value in headers.items()]
        producer.produce("letters", f"{number}", headers=[*named, (f"{HEADER_PREFIX}offset", b"%d" % number)])
    assert producer.flush(_PATIENCE) == 0
    read = _SlowLetters(pruning.address, None).read({})
    assert read.starts == {("letters", 0): 4}
    assert len(read.rows) + read.others == 6
    assert _SlowLetters(pruning.address, None).read({("letters", 0): 8}).starts == {("letters", 0): 4}


@contextmanager
def _writing(pruning: PruningBroker) -> Iterator[None]:
    """Let both groups write without a pause, so that the coordinator can prune every second."""

    def write() -> None:
        for group in _GROUPS:
            pruning.write_snapshots(group)

    with repeated(write):
        yield


def _run_with_pauses(arguments: Sequence[str], folder: Path, has_begun: Callable[[], bool], most_pauses: int) -> int:
    """Run a command that is stopped for seconds again and again, with all its processes; returns its exit code."""
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "share_state", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509
        )
        while process.poll() is None and not has_begun():
            time.sleep(0.05)
        for _ in range(most_pauses):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGSTOP)
                time.sleep(4)
                os.killpg(process.pid, signal.SIGCONT)
                time.sleep(1)
        return process.wait(4 * _PATIENCE)


@pytest.mark.parametrize(("command", "most_pauses"), [("reconstruct", 8), ("audit", 8), ("stream", 1)])
def test_a_command_that_is_stopped_while_it_reads_loses_nothing(
    pruning: PruningBroker, command: str, most_pauses: int, tmp_path: Path
) -> None:
    lake, checkpoint = str(tmp_path / "lake"), tmp_path / "checkpoint"
    more = ["--once", "--checkpoint", str(checkpoint)] if command == "stream" else []

    def has_begun() -> bool:
        """Whether a stream has planned its micro-batch, of which it has read nothing yet; other commands at once."""
        return command != "stream" or any(checkpoint.glob("*/offsets/0"))

    before = _start_offsets(pruning.truth())
    with _writing(pruning):
        code = _run_with_pauses([command, pruning.address, "--out", lake, *more], tmp_path, has_begun, most_pauses)
    after = _start_offsets(pruning.truth())
    said = (tmp_path / "stderr").read_text()
    if code == 2 and said.endswith("the broker deleted records while they were read; run the command again\n"):
        # On a busy machine the broker may overtake every try; then nothing is written.
        assert not Path(lake, STATE).exists()
        return
    assert code == 0, said
    states = CommittedTables(lake).read(STATE)
    read = _start_offsets(states)
    assert read.keys() == before.keys() == after.keys()
    assert all(before[key] <= read[key] <= after[key] for key in read)
    assert not any(states["suspect"].to_pylist())
    assert not CommittedTables(lake).read("findings").to_pylist()


def _start_offsets(states: pa.Table) -> dict[tuple[str, str, int], int]:
    rows = states.select(["group_id", "topic_id", "partition", "start_offset"]).to_pylist()
    return {(row["group_id"], row["topic_id"], row["partition"]): row["start_offset"] for row in rows}


def _read_batch(
    reader: _PackedReader,
    fold: StreamFold,
    states: dict[int, FoldCheckpoint],
    position: dict[str, Any],
    pause: Callable[[], None],
) -> dict[str, Any]:
    """Plan a micro-batch, pause, and read and fold it; returns where the next begins."""
    end = reader.latestOffset(position, reader.getDefaultReadLimit())
    ranges = reader.partitions(position, end)
    pause()
    for one in ranges:
        rows = [row for batch in reader.read(one) for row in pa.Table.from_batches([batch]).to_pylist()]
        given, facts = _unpacked([Row(**row) for row in rows])
        state = states.get(one.value)
        step = fold.step(state, UnwrittenChanges(state), one.value, given, facts)
        if step is not None and step.after is not None:
            states[one.value] = step.after
    return end


def _share_partitions(states: Mapping[int, FoldCheckpoint]) -> int:
    assert all(state.last_lost_offset < 0 for state in states.values())
    return sum(int(state.chains.chains["exists"].sum()) for state in states.values())
