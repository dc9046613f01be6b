"""The fold of any log against the classes of Kafka that replay it: 4.4.0 and, with its older combiner, 4.3.1."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from share_state.fold.state_log import fold_log
from share_state.kafka.record_batches import CHUNK_SIZE
from share_state.sources import jars
from share_state.sources.discovery import find_logs
from tests.kafka.batches import Record
from tests.kafka_classes import KafkaShard
from tests.log_writer import CODECS, Key, Range, batch, snapshot, tombstone, update, write_log_folder
from tests.present import present
from tests.profiles import by_profile
from tests.truth import runs, value_by_offset

# Enough to meet each odd pair of records; the nightly profile draws more.
EXAMPLES = 3 * settings().max_examples

TOPICS = ("AAAAAAAAAAEAAAAAAAAAAg", "5Y2VfE9xTOSVmSFbWg1sdQ")
KEYS = [(group, topic, partition) for group in ("g1", "gé:1", "😀") for topic in TOPICS for partition in (0, 3)]


@dataclass(frozen=True)
class Event:
    """One record of a history: its kind, whose it is, and what its value says."""

    kind: str
    key: Key
    batches: tuple[Range, ...] = ()
    fields: dict[str, int] = field(default_factory=dict)

    def record(self) -> Record:
        if self.kind == "tombstone":
            return tombstone(self.key)
        write: Callable[..., Record] = {"snapshot": snapshot, "update": update}[self.kind]
        return write(self.key, self.batches, **self.fields)


@dataclass(frozen=True)
class History:
    """A log partition: events in batches, each with its codec, and how it is cut into segments and read."""

    batches: tuple[tuple[str, tuple[Event, ...]], ...]
    base_offset: int = 0
    a_segment: int = 100
    chunk: int = CHUNK_SIZE

    def placed(self) -> list[tuple[int, Event]]:
        events = [event for _, events in self.batches for event in events]
        return list(enumerate(events, self.base_offset))

    def write(self, folder: Path, partition: int) -> None:
        batches = [batch([event.record() for event in events], codec=codec) for codec, events in self.batches]
        write_log_folder(folder, partition, batches, base_offset=self.base_offset, a_segment=self.a_segment)


@st.composite
def ranges(draw: st.DrawFn, base: int) -> Range:
    first = base + draw(st.integers(0, 30))
    count = draw(st.integers(0, 4) | st.sampled_from([-1, 2**15 - 1]))
    return first, first + draw(st.integers(0, 9)), draw(st.sampled_from([0, 2, 3, 4])), count


@st.composite
def events(draw: st.DrawFn, keys: list[Key], base: int) -> Event:
    """Any record that a broker can load, those that no broker would write among them."""
    kind = draw(st.sampled_from(["snapshot", *["update"] * 5, "tombstone"]))
    key = draw(st.sampled_from(keys))
    if kind == "tombstone":
        return Event(kind, key)
    epochs = st.integers(-1, 5)
    fields = {
        "snapshot_epoch": draw(st.integers(0, 5)),
        "leader_epoch": draw(epochs),
        # Back, forth, unchanged, and below every batch or above.
        "start_offset": draw(st.just(-1) | st.integers(0, 40).map(lambda start: base + start)),
        "delivery_complete_count": draw(st.integers(-1, 20)),
    }
    if kind == "snapshot":
        times = st.sampled_from([0, 1, 1_700_000_000_123])
        fields |= {"state_epoch": draw(epochs), "create_timestamp": draw(times), "write_timestamp": draw(times)}
    return Event(kind, key, tuple(draw(st.lists(ranges(base), max_size=5))), fields)


@st.composite
def histories(draw: st.DrawFn) -> History:
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True))
    one = events(keys, draw(st.sampled_from([0, 2**31 - 10, 2**62])))
    a_batch = st.tuples(st.sampled_from(["none", "none", *CODECS]), st.lists(one, min_size=1, max_size=5).map(tuple))
    return History(
        tuple(draw(st.lists(a_batch, min_size=1, max_size=8))),
        base_offset=draw(st.sampled_from([0, 1, 2**31 - 3, 2**40])),
        a_segment=draw(st.integers(1, 8)),
        # The smallest chunks cut a log at nearly every batch.
        chunk=draw(st.sampled_from([CHUNK_SIZE, 300, 1000])),
    )


def canonical(batches: list[Range]) -> list[Range]:
    """Batches sorted, disjoint, neighbours of equal state joined: offset by offset."""
    by_offset = sorted(value_by_offset([list(one) for one in batches]).items())
    return [(first, last, state, count) for first, last, (count, state) in runs(by_offset)]


def expected(placed: list[tuple[int, Event]], shard: KafkaShard, literal: bool) -> dict[Key, dict[str, Any]]:
    """What our row of each share-partition must say, by Kafka's own state.

    Args:
        placed: the records and their offsets.
        shard: has replayed them.
        literal: whether lists are Kafka's own, or brought into canonical form first.
    """
    rows = {}
    for key, state in shard.states().items():
        since, last_offset, joined = chain(placed, key)
        if not (literal and joined):
            state["state_batches"] = canonical(state["state_batches"])
        state["create_time"] = time_of(state.pop("create_timestamp"))
        state["write_time"] = time_of(state.pop("write_timestamp"))
        state["snapshot_offset"] = state.pop("last_snapshot_offset")
        # Kafka's count of updates depends on a setting of the broker.
        del state["snapshot_update_count"]
        rows[key] = state | {"updates_since_snapshot": since, "last_offset": last_offset}
    return rows


def chain(placed: list[tuple[int, Event]], key: Key) -> tuple[int, int, bool]:
    """Updates since the latest snapshot or tombstone, the last offset, and whether an update follows the base.

    Kafka keeps a base's list as it came until an update joins it.
    """
    own = [(offset, event.kind) for offset, event in placed if event.key == key]
    kinds = [kind for _, kind in own]
    bases = [place for place, kind in enumerate(kinds) if kind != "update"]
    since = len(own) - (bases[-1] + 1 if bases else 0)
    is_orphan = not bases or kinds[bases[-1]] == "tombstone"
    return since, own[-1][0], since > (1 if is_orphan else 0)


def time_of(milliseconds: int) -> datetime | None:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds) if milliseconds else None


def found(rows: list[dict[str, Any]], like: dict[Key, dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    """Our rows by key, with the columns that Kafka can tell."""
    columns = next(iter(like.values()), {}).keys()
    names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    by_key = {}
    for row in rows:
        row["state_batches"] = [tuple(one[name] for name in names) for one in row["state_batches"]]
        key = row["group_id"], row["topic_id"], row["partition"]
        assert key not in by_key
        by_key[key] = {name: row[name] for name in columns}
    return by_key


@pytest.fixture(scope="module")
def shard_of(spark):
    """A fresh shard of one release."""
    return lambda release: KafkaShard(spark._jvm, jars.jars(release))


def assert_kafka_holds_the_same(shard_of: Callable[[str], KafkaShard], drawn: list[History]) -> None:
    """Fold the histories as the state partitions of one broker, and replay them with both releases."""
    with tempfile.TemporaryDirectory() as folder:
        for partition, one in enumerate(drawn):
            one.write(Path(folder), partition)
        logs = {log.partition: log for log in find_logs([folder])}
        assert logs.keys() == set(range(len(drawn)))
        folded = [fold_log(logs[partition], chunk=one.chunk) for partition, one in enumerate(drawn)]
    for release, literal in ((jars.KAFKA, True), (jars.KAFKA_BEFORE_SWEEP, False)):
        for one, ours in zip(drawn, folded, strict=True):
            shard = shard_of(release)
            for offset, event in one.placed():
                record = event.record()
                shard.replay(offset, present(record.key), record.value)
            held = expected(one.placed(), shard, literal)
            assert found(ours.states.to_pylist(), held) == held
            (limit,) = ours.cutoff.to_pylist()
            assert limit["cutoff_offset"] == shard.redundant_offset()
            assert limit["live_share_partitions"] == len(held)


KEY = KEYS[0]
RELEASED, ACKED, ARCHIVED = 0, 2, 4


def history(*records: Event) -> list[History]:
    return [History((("none", records),))]


@settings(max_examples=EXAMPLES)
@given(st.lists(histories(), min_size=1, max_size=3))
@example(history(Event("tombstone", KEY)))
@example(history(Event("update", KEY, ((3, 5, ACKED, 1), (1, 4, ARCHIVED, 1)))))
# 4.3.1 leaves the two runs apart, 4.4.0 joins them.
@example(
    history(Event("snapshot", KEY, ((0, 4, ACKED, 1), (5, 9, RELEASED, 1))), Event("update", KEY, ((5, 9, ACKED, 1),)))
)
# What a start cuts off does not come back with a smaller one.
@example(
    history(
        Event("snapshot", KEY, ((1, 2, ACKED, 0),), {"start_offset": 0}),
        Event("update", KEY, ((1, 3, ARCHIVED, 1),), {"start_offset": 4}),
        Event("update", KEY, ((0, 1, ARCHIVED, 0),), {"start_offset": 0}),
    )
)
# An update after a tombstone brings the share-partition back, unknown to the offsets manager.
@example(
    history(
        Event("snapshot", KEYS[1]),
        Event("snapshot", KEY, ((0, 4, ACKED, 1),), {"state_epoch": 7, "leader_epoch": 9}),
        Event("tombstone", KEY),
        Event("update", KEY, ((2, 3, RELEASED, 1),), {"leader_epoch": -1}),
        Event("snapshot", KEYS[1]),
    )
)
def test_the_fold_is_what_kafka_holds(shard_of, drawn):
    assert_kafka_holds_the_same(shard_of, drawn)


def every_order(records: list[Event]) -> Iterator[tuple[Event, ...]]:
    """Every order of up to so many of the records, each as often as it likes."""
    for length in range(1, by_profile(2, 3) + 1):
        yield from product(records, repeat=length)


def test_every_short_history_is_what_kafka_holds(shard_of):
    records = [
        Event("snapshot", KEY, ((0, 2, ACKED, 1), (1, 4, RELEASED, 2)), {"start_offset": 1, "leader_epoch": 3}),
        Event("snapshot", KEY, (), {"start_offset": -1, "state_epoch": 2}),
        Event("update", KEY, ((2, 5, ARCHIVED, 1),), {"start_offset": 3, "delivery_complete_count": 2}),
        Event("update", KEY, ((0, 3, RELEASED, 3),), {"start_offset": -1, "leader_epoch": 1}),
        Event("update", KEY, (), {"start_offset": 0}),
        Event("tombstone", KEY),
        Event("snapshot", KEYS[1]),
    ]
    for records_in_order in every_order(records):
        assert_kafka_holds_the_same(shard_of, history(*records_in_order))
