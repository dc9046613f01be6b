"""How the coordinators of each Kafka release write, as one table.

Merges lists of state batches as the coordinator does: per offset the greatest (delivery count, state) stays.

The records of `__share_group_state` as plain values, and what a coordinator makes of each.

The bytes of state records, in the layout of the release that writes them.

Which partition of `__share_group_state` keeps a share-partition, for one key at a time.
"""

import heapq
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from share_state.kafka.codec import encode
from share_state.schema.declarations import layout
from share_state.simulator.types import (
    NO_DELIVERY_COMPLETE_COUNT,
    NO_EPOCH,
    NO_START_OFFSET,
    DeliveryState,
    SimulationError,
    StateBatch,
)


@dataclass(frozen=True, slots=True)
class WriterRelease:
    """What one release does differently from the others when it turns requests into records.

    Attributes:
        name: as typed: 4.0 to 4.4.
        layout: of its values, as schemas/records declares it.
        tells_complete_count: whether values carry the delivery complete count (tag 0).
        has_initialize: whether share-partitions are initialized, deleted and snapshotted when cold; where not, the
            first read or write makes the state.
        counts_first_update: whether the first update after the creation counts towards the next snapshot.
        takes_epochs_of_request: whether a write records the epochs of its request, not those of the state.
        snapshots_higher_state_epoch: whether a write with a higher state epoch becomes a snapshot.
        exempts_reads_without_epoch: whether a read with leader epoch -1 passes the fence.
        refuses_negative_epochs: whether requests with epochs below 0 are invalid.
        carries_start: whether updates carry the greater start, and the count that belongs to it.
        joins_neighbours: whether merged lists come out in maximal runs (the sweep line).
    Source: Kafka ShareCoordinatorShard of 4.0.2, 4.1.2, 4.2.1, 4.3.1 and 4.4.0.
    """

    name: str
    layout: str = "4.1+"
    tells_complete_count: bool = True
    has_initialize: bool = True
    counts_first_update: bool = True
    takes_epochs_of_request: bool = False
    snapshots_higher_state_epoch: bool = False
    exempts_reads_without_epoch: bool = True
    refuses_negative_epochs: bool = False
    carries_start: bool = False
    joins_neighbours: bool = False


_BEFORE_4_2 = WriterRelease(
    "",
    tells_complete_count=False,
    counts_first_update=False,
    takes_epochs_of_request=True,
    exempts_reads_without_epoch=False,
)

RELEASES = {
    release.name: release
    for release in (
        replace(_BEFORE_4_2, name="4.0", layout="4.0", has_initialize=False),
        replace(_BEFORE_4_2, name="4.1", snapshots_higher_state_epoch=True),
        WriterRelease("4.2", exempts_reads_without_epoch=False),
        WriterRelease("4.3"),
        WriterRelease("4.4", refuses_negative_epochs=True, carries_start=True, joins_neighbours=True),
    )
}
"""Name -> release."""

LATEST = RELEASES["4.4"]


def writer_release(name: str) -> WriterRelease:
    """The release of a name.

    Raises:
        SimulationError: if there is none.
    """
    if name not in RELEASES:
        raise SimulationError(f"release {name!r} is not known; use one of {', '.join(RELEASES)}")
    return RELEASES[name]


Batches = tuple[StateBatch, ...]

_STATES = tuple(DeliveryState)


def combine(recorded: Sequence[StateBatch], written: Iterable[StateBatch], start: int, *, joins: bool) -> Batches:
    """The union of two lists from a start on.

    Args:
        recorded: what is known so far.
        written: what comes on top.
        start: offsets below it are cut off; NO_START_OFFSET cuts nothing.
        joins: True for maximal runs (4.4), False for the lists of 4.0 to 4.3, which may leave equal neighbours apart.
    Returns:
        Batches by first offset, none over another; a single batch comes back as it is.
    Source: Kafka PersisterStateBatchCombiner.combineStateBatches.
    """
    union = [*recorded, *written]
    if start != NO_START_OFFSET:
        union = [
            batch if batch.first_offset >= start else batch._replace(first_offset=start)
            for batch in union
            if batch.last_offset >= start
        ]
    if len(union) < 2:
        return tuple(union)
    return _in_maximal_runs(union) if joins else _one_pair_at_a_time(union)


def _in_maximal_runs(union: list[StateBatch]) -> Batches:
    """Slices between all bounds, the greatest open batch in each, equal neighbours joined."""
    union.sort()
    out: list[StateBatch] = []
    open_batches: list[tuple[int, int, int]] = []
    at, place = union[0].first_offset, 0
    while place < len(union) or open_batches:
        if not open_batches:
            at = union[place].first_offset
        while place < len(union) and union[place].first_offset == at:
            _, last, state, count = union[place]
            heapq.heappush(open_batches, (-count, -state, last))
            place += 1
        count, state, last = open_batches[0]
        if place < len(union):
            last = min(last, union[place].first_offset - 1)
        _append(out, StateBatch(at, last, _STATES[-state], -count))
        at = last + 1
        while open_batches and open_batches[0][2] < at:
            heapq.heappop(open_batches)
    return tuple(out)


def _append(out: list[StateBatch], batch: StateBatch) -> None:
    if out and out[-1].last_offset + 1 == batch.first_offset and out[-1][2:] == batch[2:]:
        out[-1] = out[-1]._replace(last_offset=batch.last_offset)
    else:
        out.append(batch)


def _one_pair_at_a_time(union: list[StateBatch]) -> Batches:
    """The two foremost batches are joined, or the lesser gives way; what no other touches is never looked at again."""
    queue: list[tuple[int, int, int, int]] = [(first, last, count, state) for first, last, state, count in union]
    heapq.heapify(queue)
    out: list[tuple[int, int, int, int]] = []
    while queue:
        foremost = heapq.heappop(queue)
        if not queue:
            out.append(foremost)
            break
        first, last, value = *foremost[:2], foremost[2:]
        next_first, next_last, next_value = *queue[0][:2], queue[0][2:]
        touches = next_first == last + 1 and value == next_value
        if next_first > last and not touches:
            out.append(foremost)
            continue
        heapq.heappop(queue)
        if next_value == value:
            heapq.heappush(queue, (first, max(last, next_last), *value))
        elif next_value < value:
            heapq.heappush(queue, foremost)
            if next_last > last:
                heapq.heappush(queue, (last + 1, next_last, *next_value))
        else:
            if next_first > first:
                heapq.heappush(queue, (first, next_first - 1, *value))
            heapq.heappush(queue, (next_first, next_last, *next_value))
            if next_last < last:
                heapq.heappush(queue, (next_last + 1, last, *value))
    return tuple(StateBatch(first, last, _STATES[state], count) for first, last, count, state in out)


NO_TIME = 0


class StateKey(NamedTuple):
    """A share-partition as records name it: the topic by Kafka's text of its id."""

    group_id: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class DurableState:
    """The state of a share-partition as the coordinator holds it, and as a snapshot says it.

    Attributes:
        create_timestamp, write_timestamp: ms since 1970; NO_TIME in 4.0 and where an update made the state.
        batches: as recorded.
    Source: Kafka ShareGroupOffset, ShareSnapshotValue.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = NO_DELIVERY_COMPLETE_COUNT
    batches: Batches = ()
    create_timestamp: int = NO_TIME
    write_timestamp: int = NO_TIME

    @property
    def is_cold(self) -> bool:
        """True for a snapshot that only repeats an idle share-partition's state."""
        return self.create_timestamp != self.write_timestamp


@dataclass(frozen=True, slots=True)
class UpdateValue:
    """What an update says. Source: Kafka ShareUpdateValue."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = NO_DELIVERY_COMPLETE_COUNT
    batches: Batches = ()


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A record of the log: a snapshot, an update, or a tombstone, whose value is None."""

    key: StateKey
    value: DurableState | UpdateValue | None

    @property
    def kind(self) -> str:
        """In a word: snapshot, update or tombstone."""
        if self.value is None:
            return "tombstone"
        return "snapshot" if isinstance(self.value, DurableState) else "update"


def merged(state: DurableState | None, update: UpdateValue, release: WriterRelease) -> DurableState:
    """The state after an update is replayed, which checks nothing.

    Args:
        state: before it; None where no snapshot precedes the update, so that the update itself becomes the state.
        update: of the log.
        release: whose coordinator replays.
    Source: Kafka ShareCoordinatorShard.handleShareUpdate, merge.
    """
    if state is None:
        return DurableState(
            snapshot_epoch=update.snapshot_epoch,
            state_epoch=0 if release.has_initialize else NO_EPOCH,
            leader_epoch=update.leader_epoch,
            start_offset=update.start_offset,
            delivery_complete_count=update.delivery_complete_count,
            batches=update.batches,
        )
    start = state.start_offset if update.start_offset == NO_START_OFFSET else update.start_offset
    return replace(
        state,
        leader_epoch=state.leader_epoch if update.leader_epoch == NO_EPOCH else update.leader_epoch,
        start_offset=start,
        delivery_complete_count=update.delivery_complete_count,
        batches=combine(state.batches, update.batches, start, joins=release.joins_neighbours),
    )


def bytes_of(record: StateRecord, release: WriterRelease) -> tuple[bytes, bytes | None]:
    """Key and value of a record.

    Args:
        record: what it says.
        release: whose layout is written.
    Returns:
        (key, value); the value of a tombstone is None.
    Raises:
        CodecError: if a number does not fit, as a snapshot epoch beyond 65535 in the layout of 4.0.
    Source: Kafka ShareCoordinatorRecordHelpers, CoordinatorRecordSerde.
    """
    value, releases = record.value, release.layout
    if value is None:
        return _key(record.key, "share_snapshot_key", releases), None
    fields = {
        "snapshot_epoch": value.snapshot_epoch,
        "leader_epoch": value.leader_epoch,
        "start_offset": value.start_offset,
        "state_batches": _structs(value.batches),
    }
    if release.tells_complete_count:
        fields["delivery_complete_count"] = value.delivery_complete_count
    if not isinstance(value, DurableState):
        return _key(record.key, "share_update_key", releases), encode(layout("share_update_value", releases), fields)
    fields["state_epoch"] = value.state_epoch
    if releases != "4.0":
        fields |= {"create_timestamp": value.create_timestamp, "write_timestamp": value.write_timestamp}
    return _key(record.key, "share_snapshot_key", releases), encode(layout("share_snapshot_value", releases), fields)


@lru_cache(1 << 16)
def _key(key: StateKey, record: str, releases: str) -> bytes:
    return encode(layout(record, releases), key._asdict())


def _structs(batches: Batches) -> list[dict[str, int]]:
    return [batch._asdict() for batch in batches]


def state_partition_of(key: StateKey, state_partitions: int) -> int:
    """The partition of the state topic that the records of a key go to.

    Args:
        key: of the share-partition.
        state_partitions: how many partitions the state topic has.
    Source: Kafka StateKey.asCoordinatorKey, Utils.abs, ShareCoordinatorService.partitionFor.
    """
    code = java_hash(f"{key.group_id}:{key.topic_id}:{key.partition}")
    return (0 if code == -(2**31) else abs(code)) % state_partitions


def java_hash(text: str) -> int:
    """Java's String.hashCode: an int32 over the UTF-16 units."""
    data = text.encode("utf-16-be")
    code = 0
    for unit in struct.unpack(f">{len(data) // 2}H", data):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code
