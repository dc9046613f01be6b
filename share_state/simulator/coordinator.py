"""The share coordinator of one state partition: validates requests, writes records and replays them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from share_state.kafka.record_batches import locate_records
from share_state.kafka.releases import LATEST, Release
from share_state.simulator.state_values import (
    NO_TIME,
    DurableState,
    StateKey,
    StateRecord,
    UpdateValue,
    combine_state_batches,
    decode_record,
    merge_update,
)
from share_state.simulator.types import (
    NO_DELIVERY_COMPLETE_COUNT,
    NO_EPOCH,
    NO_START_OFFSET,
    ErrorCode,
    StateRead,
    StateWrite,
)
from share_state.sources.discovery import find_logs
from share_state.sources.segments import read_chunks

UPDATES_PER_SNAPSHOT = 500
COLD_AFTER_MS = 300_000
"""Age of a snapshot at which the cold job repeats it."""


@dataclass(frozen=True, slots=True)
class CoordinatorResponse:
    """A response of the coordinator.

    Attributes:
        offset: offset of the record that the request wrote, or None.
        state: result of a read.
    """

    error: ErrorCode = ErrorCode.NONE
    offset: int | None = None
    state: StateRead | None = None


@dataclass(slots=True)
class CoordinatorEntry:
    """The coordinator's entry for one live share-partition.

    Attributes:
        state: the merged state.
        max_leader_epoch, max_state_epoch: lower epochs are fenced; None if there were only updates.
        updates: snapshotUpdateCount; None before the first update.
        snapshot_offset: offset of the latest snapshot, or None.
        last_offset: offset of the latest record.
    """

    state: DurableState
    max_leader_epoch: int
    last_offset: int
    max_state_epoch: int | None = None
    updates: int | None = None
    snapshot_offset: int | None = None


class ShareCoordinator:
    """The coordinator of one partition of `__share_group_state`; rejected requests write nothing.

    Args:
        append: appends a record at a time in ms and returns its offset; each record is replayed at once.
        updates_per_snapshot: updates of a share-partition after which the next write is a snapshot.
        observe: called after each replay with offset, timestamp, record and the share-partition's entry.
    Source: Kafka ShareCoordinatorShard.
    """

    def __init__(
        self,
        append: Callable[[StateRecord, int], int],
        release: Release = LATEST,
        *,
        updates_per_snapshot: int = UPDATES_PER_SNAPSHOT,
        observe: Callable[[int, int, StateRecord, CoordinatorEntry | None], None] | None = None,
    ) -> None:
        self._append = append
        self.release = release
        self.observe = observe
        self.updates_per_snapshot = updates_per_snapshot
        self.entries: dict[StateKey, CoordinatorEntry] = {}
        self._last_snapshot_offset = -1

    def initialize(
        self, key: StateKey, state_epoch: int, start_offset: int, now_ms: int
    ) -> CoordinatorResponse:
        """Initialize or re-initialize a share-partition; earlier state is discarded.

        Args:
            start_offset: NO_START_OFFSET leaves the start to the leader.
        Source: Kafka ShareCoordinatorShard.initializeState, generateInitializeStateRecord.
        """
        if not self.release.has_initialize:
            return CoordinatorResponse(ErrorCode.UNSUPPORTED_VERSION)
        error = self._validate(key, state_epoch=state_epoch)
        if error:
            return CoordinatorResponse(error)
        entry = self.entries.get(key)
        is_equal = entry is not None and (entry.state.state_epoch, entry.state.start_offset) == (
            state_epoch,
            start_offset,
        )
        if is_equal and self.release.skips_equal_initialize:
            return CoordinatorResponse()
        is_unknown = start_offset == NO_START_OFFSET or not self.release.counts_completed
        snapshot = DurableState(
            snapshot_epoch=entry.state.snapshot_epoch + 1 if entry else 0,
            state_epoch=state_epoch,
            leader_epoch=0,
            start_offset=start_offset,
            delivery_complete_count=NO_DELIVERY_COMPLETE_COUNT if is_unknown else 0,
            create_timestamp=now_ms,
            write_timestamp=now_ms,
        )
        return CoordinatorResponse(offset=self._write(key, snapshot, now_ms))

    def write(self, key: StateKey, request: StateWrite, now_ms: int) -> CoordinatorResponse:
        """Record an operation as an update, or as a snapshot after `updates_per_snapshot` updates.

        Source: Kafka ShareCoordinatorShard.writeState, generateShareStateRecord.
        """
        error = self._validate(
            key, request.leader_epoch, request.state_epoch, needs_state=self.release.has_initialize
        )
        if error:
            return CoordinatorResponse(error)
        return CoordinatorResponse(offset=self._write(key, self._value(key, request, now_ms), now_ms))

    def read(self, key: StateKey, leader_epoch: int, now_ms: int) -> CoordinatorResponse:
        """Read the state for a partition leader; a new leader epoch is recorded.

        Source: Kafka ShareCoordinatorShard.readStateAndMaybeUpdateLeaderEpoch.
        """
        error = self._validate(key, leader_epoch, needs_state=self.release.has_initialize, is_read=True)
        if error:
            return CoordinatorResponse(error)
        entry = self.entries.get(key)
        state = entry.state if entry else DurableState(0, 0, NO_EPOCH, NO_START_OFFSET)
        response = StateRead(
            state.state_epoch, state.start_offset, state.delivery_complete_count, state.batches
        )
        if leader_epoch == NO_EPOCH or (entry and entry.max_leader_epoch == leader_epoch):
            return CoordinatorResponse(state=response)
        request = StateWrite(
            leader_epoch, state.state_epoch, state.start_offset, state.delivery_complete_count, ()
        )
        value = self._value(key, request, now_ms, changes_leader=True)
        return CoordinatorResponse(offset=self._write(key, value, now_ms), state=response)

    def delete(self, key: StateKey, now_ms: int) -> CoordinatorResponse:
        """Write a tombstone, unless the share-partition is unknown.

        Source: Kafka ShareCoordinatorShard.deleteState.
        """
        if not self.release.has_initialize:
            return CoordinatorResponse(ErrorCode.UNSUPPORTED_VERSION)
        error = self._validate(key)
        if error or key not in self.entries:
            return CoordinatorResponse(error)
        return CoordinatorResponse(offset=self._write(key, None, now_ms))

    def cold_keys(self, now_ms: int) -> list[StateKey]:
        """Share-partitions that need a cold snapshot; none before 4.1, or if all snapshots are cold.

        Source: Kafka ShareCoordinatorShard.snapshotColdPartitions.
        """
        if not self.release.takes_snapshots_when_cold or all(
            entry.state.is_cold for entry in self.entries.values()
        ):
            return []
        return [
            key
            for key, entry in self.entries.items()
            if now_ms - entry.state.write_timestamp >= COLD_AFTER_MS
        ]

    def write_cold_snapshot(self, key: StateKey, now_ms: int) -> int:
        """Write the cold snapshot of a share-partition; returns its offset."""
        state = self.entries[key].state
        cold = replace(state, snapshot_epoch=state.snapshot_epoch + 1, write_timestamp=now_ms)
        return self._write(key, cold, now_ms)

    def replay(self, offset: int, record: StateRecord) -> None:
        """Apply a record of the log, without checks. Source: Kafka ShareCoordinatorShard.replay."""
        key, value = record.key, record.value
        entry = self.entries.get(key)
        if not isinstance(value, UpdateValue):
            self._last_snapshot_offset = offset
        if value is None:
            self.entries.pop(key, None)
        elif isinstance(value, UpdateValue):
            state = merge_update(entry.state if entry else None, value, self.release)
            entry = self._update_entry(key, state, value.leader_epoch, offset)
            first = 1 if self.release.counts_first_update else 0
            entry.updates = first if entry.updates is None else entry.updates + 1
        else:
            entry = self._update_entry(key, value, value.leader_epoch, offset)
            max_state_epoch = entry.max_state_epoch
            entry.max_state_epoch = (
                value.state_epoch if max_state_epoch is None else max(max_state_epoch, value.state_epoch)
            )
            entry.snapshot_offset = offset
            if entry.updates is not None and entry.updates >= self.updates_per_snapshot:
                entry.updates = 0

    def _update_entry(
        self, key: StateKey, state: DurableState, leader_epoch: int, offset: int
    ) -> CoordinatorEntry:
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = CoordinatorEntry(state, leader_epoch, offset)
        entry.state, entry.last_offset = state, offset
        entry.max_leader_epoch = max(entry.max_leader_epoch, leader_epoch)
        return entry

    def load(self, folder: Path, log_start_offset: int) -> Iterator[tuple[int, StateRecord]]:
        """Replace the state with that of a valid log, read from the batch that contains the log start offset.

        Returns:
            Each record after its replay, with its offset.
        Source: Kafka CoordinatorLoaderImpl.doLoad, ShareCoordinatorRecordSerde.
        """
        self.entries.clear()
        self._last_snapshot_offset = -1
        (log,) = find_logs([str(folder)])
        for chunk in read_chunks(log):
            data, ends = chunk.data.data, chunk.batches["last_offset"].tolist()
            for row in locate_records(chunk.data, chunk.batches).tolist():
                offset, _, key_at, value_at, key_size, value_size, batch = row
                if ends[batch] >= log_start_offset:
                    value = None if value_size < 0 else bytes(data[value_at : value_at + value_size])
                    record = decode_record(bytes(data[key_at : key_at + key_size]), value, self.release)
                    self.replay(offset, record)
                    yield offset, record

    def last_redundant_offset(self) -> int | None:
        """The offset before which every record is redundant, or None.

        Source: Kafka ShareCoordinatorOffsetsManager.lastRedundantOffset.
        """
        snapshot_offsets = [
            entry.snapshot_offset for entry in self.entries.values() if entry.snapshot_offset is not None
        ]
        offset = min(snapshot_offsets) if snapshot_offsets else self._last_snapshot_offset
        return offset if offset > 0 else None

    def _validate(
        self,
        key: StateKey,
        leader_epoch: int | None = None,
        state_epoch: int | None = None,
        *,
        needs_state: bool = False,
        is_read: bool = False,
    ) -> ErrorCode:
        """The first check that a request fails, in Kafka's order; absent epochs are None."""
        entry, release = self.entries.get(key), self.release
        negative = any(epoch is not None and epoch < 0 for epoch in (leader_epoch, state_epoch))
        if key.partition < 0 or (release.refuses_negative_epochs and negative) or (needs_state and not entry):
            return ErrorCode.INVALID_REQUEST
        is_fenced = leader_epoch is not None and entry is not None and leader_epoch < entry.max_leader_epoch
        if is_fenced and (leader_epoch != NO_EPOCH or (is_read and not release.exempts_reads_without_epoch)):
            return ErrorCode.FENCED_LEADER_EPOCH
        max_state_epoch = entry.max_state_epoch if entry else None
        if (
            max_state_epoch is not None
            and state_epoch is not None
            and NO_EPOCH != state_epoch < max_state_epoch
        ):
            return ErrorCode.FENCED_STATE_EPOCH
        return ErrorCode.NONE

    def _value(
        self, key: StateKey, request: StateWrite, now_ms: int, *, changes_leader: bool = False
    ) -> DurableState | UpdateValue:
        """The record value for a write, or for a read with a new leader epoch.

        Source: generateShareStateRecord.
        """
        release = self.release
        merges = self.release.merges_neighbours
        entry = self.entries.get(key)
        if entry is None:
            # Only in 4.0, where reads and writes create the state.
            batches = combine_state_batches((), request.batches, request.start_offset, merges=merges)
            return DurableState(
                0, request.state_epoch, request.leader_epoch, request.start_offset, batches=batches
            )
        state = entry.state
        start, count = self._start_and_count(state, request)
        leader_epoch = (
            request.leader_epoch if changes_leader or release.uses_request_epochs else state.leader_epoch
        )
        renews = release.snapshots_higher_state_epoch and request.state_epoch > state.state_epoch
        if not renews and (entry.updates or 0) < self.updates_per_snapshot:
            batches = combine_state_batches((), request.batches, start, merges=merges)
            return UpdateValue(state.snapshot_epoch, leader_epoch, start, count, batches)
        start = state.start_offset if start == NO_START_OFFSET else start
        state_epoch = request.state_epoch if release.uses_request_epochs else NO_EPOCH
        time = now_ms if release.has_times else NO_TIME
        return DurableState(
            snapshot_epoch=state.snapshot_epoch + 1,
            state_epoch=state.state_epoch if state_epoch == NO_EPOCH else state_epoch,
            leader_epoch=state.leader_epoch if leader_epoch == NO_EPOCH else leader_epoch,
            start_offset=start,
            delivery_complete_count=count,
            batches=combine_state_batches(state.batches, request.batches, start, merges=merges),
            create_timestamp=time,
            write_timestamp=time,
        )

    def _start_and_count(self, state: DurableState, request: StateWrite) -> tuple[int, int]:
        """The start offset and delivery complete count that a write records."""
        start, count = request.start_offset, request.delivery_complete_count
        if not self.release.counts_completed:
            return start, NO_DELIVERY_COMPLETE_COUNT
        if not self.release.keeps_greater_start or start > state.start_offset:
            return start, count
        if start == state.start_offset:
            return start, max(count, state.delivery_complete_count)
        return state.start_offset, state.delivery_complete_count

    def _write(self, key: StateKey, value: DurableState | UpdateValue | None, now_ms: int) -> int:
        record = StateRecord(key, value)
        offset = self._append(record, now_ms)
        self.replay(offset, record)
        if self.observe:
            self.observe(offset, now_ms, record, self.entries.get(key))
        return offset
