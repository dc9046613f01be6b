"""State records of `__share_group_state`: values, merging, encoding and routing, as each Kafka release does it."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from share_state.kafka.codec import decode, encode
from share_state.kafka.delivery_states import DeliveryState
from share_state.kafka.primitives import partition_for
from share_state.kafka.releases import Release
from share_state.schema.declarations import layout
from share_state.simulator.types import (
    NO_DELIVERY_COMPLETE_COUNT,
    NO_EPOCH,
    NO_START_OFFSET,
    StateBatch,
    merge_adjacent,
)

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
        out.append(StateBatch(at, last, _STATES[-state], -count))
        at = last + 1
        while open_batches and open_batches[0][2] < at:
            heapq.heappop(open_batches)
    return merge_adjacent(out)


def _combine_pairwise(union: list[StateBatch]) -> Batches:
    """Combine the two first batches until none overlap, as 4.0 to 4.3 do."""
    queue: list[tuple[int, int, int, int]] = [
        (first, last, count, state) for first, last, state, count in union
    ]
    heapq.heapify(queue)
    out: list[tuple[int, int, int, int]] = []
    while queue:
        foremost = heapq.heappop(queue)
        if not queue:
            out.append(foremost)
            break
        first, last = foremost[:2]
        value = foremost[2:]
        next_first, next_last = queue[0][:2]
        next_value = queue[0][2:]
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


def merge_update(state: DurableState | None, update: UpdateValue, release: Release) -> DurableState:
    """The state after an update; without a state before it, the update becomes the state.

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


def encode_record(record: StateRecord, release: Release) -> tuple[bytes, bytes | None]:
    """Encode key and value of a record in the layout of a release; a tombstone's value is None.

    Raises:
        CodecError: if a number does not fit, such as a snapshot epoch above 65535 in the layout of 4.0.
    Source: Kafka ShareCoordinatorRecordHelpers, CoordinatorRecordSerde.
    """
    value, name = record.value, "share_update" if isinstance(record.value, UpdateValue) else "share_snapshot"
    key = _key(record.key, f"{name}_key", release.layout)
    if value is None:
        return key, None
    return key, encode(layout(f"{name}_value", release.layout), value_fields(value, release))


def value_fields(value: DurableState | UpdateValue, release: Release) -> dict[str, Any]:
    """The fields of a value as `encode` takes them, without those that a release does not write."""
    fields = {name: getattr(value, name) for name in value.__slots__}
    fields["state_batches"] = [batch._asdict() for batch in fields.pop("batches")]
    left_out = set() if release.counts_completed else {"delivery_complete_count"}
    left_out |= {"create_timestamp", "write_timestamp"} if not release.has_times else set()
    return {name: fields[name] for name in fields.keys() - left_out}


def decode_record(key: bytes, value: bytes | None, release: Release) -> StateRecord:
    """Decode key and value of a valid snapshot, update or tombstone."""
    is_snapshot = not int.from_bytes(key[:2], "big")
    name = "share_snapshot" if is_snapshot else "share_update"
    state_key = StateKey(**decode(layout(f"{name}_key", release.layout), key)[0])
    if value is None:
        return StateRecord(state_key, None)
    fields, _ = decode(layout(f"{name}_value", release.layout), value)
    batches = tuple(StateBatch(**batch) for batch in fields.pop("state_batches"))
    return StateRecord(state_key, (DurableState if is_snapshot else UpdateValue)(**fields, batches=batches))


@lru_cache(1 << 16)
def _key(key: StateKey, record: str, releases: str) -> bytes:
    return encode(layout(record, releases), key._asdict())


def state_partition_for(key: StateKey, state_partitions: int) -> int:
    """The partition of the state topic that a key's records are written to.

    Source: Kafka StateKey.asCoordinatorKey, Utils.abs, ShareCoordinatorService.partitionFor.
    """
    return partition_for(f"{key.group_id}:{key.topic_id}:{key.partition}", state_partitions)
