"""State records of `__share_group_state`: values, merging, encoding and routing, as each Kafka release does it."""

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
    """How the share coordinator of one release turns requests into records.

    Attributes:
        name: 4.0 to 4.4.
        layout: of its values, as in schemas/records.
        writes_complete_count: values have the delivery complete count (tag 0).
        has_initialize: share-partitions are initialized, deleted and snapshotted when cold; otherwise the first read
            or write creates the state.
        counts_first_update: the first update counts towards the next snapshot.
        uses_request_epochs: a write records the request's epochs instead of the state's.
        snapshots_higher_state_epoch: a write with a higher state epoch becomes a snapshot.
        exempts_reads_without_epoch: a read with leader epoch -1 is not fenced.
        refuses_negative_epochs: requests with negative epochs are invalid.
        keeps_greater_start: updates keep the greater start and its delivery complete count.
        merges_neighbours: merged batches are maximal runs (the sweep-line combiner).
    Source: Kafka ShareCoordinatorShard of 4.0.2, 4.1.2, 4.2.1, 4.3.1 and 4.4.0.
    """

    name: str
    layout: str = "4.1+"
    writes_complete_count: bool = True
    has_initialize: bool = True
    counts_first_update: bool = True
    uses_request_epochs: bool = False
    snapshots_higher_state_epoch: bool = False
    exempts_reads_without_epoch: bool = True
    refuses_negative_epochs: bool = False
    keeps_greater_start: bool = False
    merges_neighbours: bool = False


_BEFORE_4_2 = WriterRelease(
    "",
    writes_complete_count=False,
    counts_first_update=False,
    uses_request_epochs=True,
    exempts_reads_without_epoch=False,
)

RELEASES = {
    release.name: release
    for release in (
        replace(_BEFORE_4_2, name="4.0", layout="4.0", has_initialize=False),
        replace(_BEFORE_4_2, name="4.1", snapshots_higher_state_epoch=True),
        WriterRelease("4.2", exempts_reads_without_epoch=False),
        WriterRelease("4.3"),
        WriterRelease("4.4", refuses_negative_epochs=True, keeps_greater_start=True, merges_neighbours=True),
    )
}
"""Name -> release."""

LATEST = RELEASES["4.4"]


def writer_release(name: str) -> WriterRelease:
    """The release with a name.

    Raises:
        SimulationError: if there is none.
    """
    if name not in RELEASES:
        raise SimulationError(f"release {name!r} is not known; use one of {', '.join(RELEASES)}")
    return RELEASES[name]


Batches = tuple[StateBatch, ...]

_STATES = tuple(DeliveryState)


def combine_state_batches(
    recorded: Sequence[StateBatch], written: Iterable[StateBatch], start: int, *, merges: bool
) -> Batches:
    """Merge two lists of batches; per offset the greatest (delivery count, state) wins.

    Args:
        start: offsets before it are removed, unless it is NO_START_OFFSET.
        merges: True for maximal runs (4.4); 4.0 to 4.3 may leave equal neighbours apart.
    Returns:
        Ascending, disjoint batches; a single batch is returned unchanged.
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
    return _combine_by_sweep(union) if merges else _combine_pairwise(union)


def _combine_by_sweep(union: list[StateBatch]) -> Batches:
    """Sweep over all bounds: in each slice the greatest open batch wins, equal neighbours are merged."""
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


def _combine_pairwise(union: list[StateBatch]) -> Batches:
    """Combine the two first batches until none overlap, as 4.0 to 4.3 do."""
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
    """The key of a share-partition's records; the topic id is in Kafka's text form."""

    group_id: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class DurableState:
    """The state of a share-partition, as the coordinator keeps it and a snapshot stores it.

    Attributes:
        create_timestamp, write_timestamp: ms since 1970; NO_TIME in 4.0 and if an update created the state.
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
        """True for a snapshot that repeats an idle share-partition's state."""
        return self.create_timestamp != self.write_timestamp


@dataclass(frozen=True, slots=True)
class UpdateValue:
    """The value of an update. Source: Kafka ShareUpdateValue."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = NO_DELIVERY_COMPLETE_COUNT
    batches: Batches = ()


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A snapshot, an update, or a tombstone (value None)."""

    key: StateKey
    value: DurableState | UpdateValue | None

    @property
    def kind(self) -> str:
        """The kind of record: snapshot, update or tombstone."""
        if self.value is None:
            return "tombstone"
        return "snapshot" if isinstance(self.value, DurableState) else "update"


def merge_update(state: DurableState | None, update: UpdateValue, release: WriterRelease) -> DurableState:
    """The state after an update; None before it makes the update itself the state.

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
        batches=combine_state_batches(state.batches, update.batches, start, merges=release.merges_neighbours),
    )


def encode_record(record: StateRecord, release: WriterRelease) -> tuple[bytes, bytes | None]:
    """Encode key and value of a record in the layout of a release; a tombstone's value is None.

    Raises:
        CodecError: if a number does not fit, such as a snapshot epoch above 65535 in the layout of 4.0.
    Source: Kafka ShareCoordinatorRecordHelpers, CoordinatorRecordSerde.
    """
    value, releases = record.value, release.layout
    if value is None:
        return _key(record.key, "share_snapshot_key", releases), None
    fields = {
        "snapshot_epoch": value.snapshot_epoch,
        "leader_epoch": value.leader_epoch,
        "start_offset": value.start_offset,
        "state_batches": [batch._asdict() for batch in value.batches],
    }
    if release.writes_complete_count:
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


def state_partition_for(key: StateKey, state_partitions: int) -> int:
    """The partition of the state topic that a key's records are written to.

    Source: Kafka StateKey.asCoordinatorKey, Utils.abs, ShareCoordinatorService.partitionFor.
    """
    code = java_hash(f"{key.group_id}:{key.topic_id}:{key.partition}")
    return (0 if code == -(2**31) else abs(code)) % state_partitions


def java_hash(text: str) -> int:
    """Java's String.hashCode."""
    data = text.encode("utf-16-be")
    code = 0
    for unit in struct.unpack(f">{len(data) // 2}H", data):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code
