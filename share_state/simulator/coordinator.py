"""What a request is recorded as: which record, and what it says.

The share coordinator of one state partition: answers requests, and writes a record where one changes something.

State records read back from disk, one by one, and a coordinator that loads them.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from share_state.kafka.codec import decode
from share_state.kafka.record_batches import locate_records
from share_state.schema.declarations import layout
from share_state.simulator.state_records import (
    LATEST,
    NO_TIME,
    DurableState,
    StateKey,
    StateRecord,
    UpdateValue,
    WriterRelease,
    combine,
    merged,
)
from share_state.simulator.types import (
    NO_DELIVERY_COMPLETE_COUNT,
    NO_EPOCH,
    NO_START_OFFSET,
    ErrorCode,
    StateBatch,
    StateRead,
    StateWrite,
)
from share_state.sources.discovery import find_logs
from share_state.sources.segments import read_chunks


def initial_snapshot(
    state: DurableState | None, state_epoch: int, start_offset: int, now_ms: int, release: WriterRelease
) -> DurableState:
    """The snapshot that makes a share-partition, or sets it to another start.

    Args:
        state: what is known of it; None where it is new.
        state_epoch: the group's epoch.
        start_offset: NO_START_OFFSET where the leader is to decide.
        now_ms: the time.
        release: that writes.
    Source: Kafka ShareCoordinatorShard.generateInitializeStateRecord.
    """
    is_unknown = start_offset == NO_START_OFFSET or not release.tells_complete_count
    return DurableState(
        snapshot_epoch=state.snapshot_epoch + 1 if state else 0,
        state_epoch=state_epoch,
        leader_epoch=0,
        start_offset=start_offset,
        delivery_complete_count=NO_DELIVERY_COMPLETE_COUNT if is_unknown else 0,
        create_timestamp=now_ms,
        write_timestamp=now_ms,
    )


def value_written(
    state: DurableState | None,
    request: StateWrite,
    now_ms: int,
    release: WriterRelease,
    *,
    is_due: bool,
    changes_leader: bool,
) -> DurableState | UpdateValue:
    """The record of a write, or of a read with a new leader epoch.

    Args:
        state: what is known; None only where reads and writes make the state (4.0).
        request: what is written.
        now_ms: the time.
        release: that writes.
        is_due: whether it is time for a snapshot.
        changes_leader: whether the request's leader epoch is to be recorded.
    Source: Kafka ShareCoordinatorShard.generateShareStateRecord.
    """
    joins = release.joins_neighbours
    if state is None:
        batches = combine((), request.batches, request.start_offset, joins=joins)
        return DurableState(0, request.state_epoch, request.leader_epoch, request.start_offset, batches=batches)
    start, count = _start_and_count(state, request, release)
    leader_epoch = request.leader_epoch if changes_leader or release.takes_epochs_of_request else state.leader_epoch
    renews = release.snapshots_higher_state_epoch and request.state_epoch > state.state_epoch
    if not (is_due or renews):
        batches = combine((), request.batches, start, joins=joins)
        return UpdateValue(state.snapshot_epoch, leader_epoch, start, count, batches)
    start = state.start_offset if start == NO_START_OFFSET else start
    state_epoch = request.state_epoch if release.takes_epochs_of_request else NO_EPOCH
    time = NO_TIME if release.layout == "4.0" else now_ms
    return DurableState(
        snapshot_epoch=state.snapshot_epoch + 1,
        state_epoch=state.state_epoch if state_epoch == NO_EPOCH else state_epoch,
        leader_epoch=state.leader_epoch if leader_epoch == NO_EPOCH else leader_epoch,
        start_offset=start,
        delivery_complete_count=count,
        batches=combine(state.batches, request.batches, start, joins=joins),
        create_timestamp=time,
        write_timestamp=time,
    )


def _start_and_count(state: DurableState, request: StateWrite, release: WriterRelease) -> tuple[int, int]:
    """What a write records as start and delivery complete count."""
    start, count = request.start_offset, request.delivery_complete_count
    if not release.tells_complete_count:
        return start, NO_DELIVERY_COMPLETE_COUNT
    if not release.carries_start or start > state.start_offset:
        return start, count
    if start == state.start_offset:
        return start, max(count, state.delivery_complete_count)
    return state.start_offset, state.delivery_complete_count


UPDATES_PER_SNAPSHOT = 500
COLD_AFTER_MS = 300_000


class RecordLog(Protocol):
    """Where the records of a state partition go."""

    def append(self, record: StateRecord, now_ms: int) -> int:
        """Write a record stamped `now_ms`; returns its offset."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request.

    Attributes:
        error: NONE where it was done.
        offset: of the record that it wrote, None where it wrote none.
        state: what a read returns.
    """

    error: ErrorCode = ErrorCode.NONE
    offset: int | None = None
    state: StateRead | None = None


@dataclass(slots=True)
class Held:
    """What the coordinator keeps of one live share-partition.

    Attributes:
        state: the folded state.
        max_leader_epoch, max_state_epoch: what requests are fenced by; no state epoch is known of an orphan update.
        updates: since the counter was last set back; None before the first.
        snapshot_offset: of its latest snapshot, None for an orphan update.
        last_offset: of its latest record.
    """

    state: DurableState
    max_leader_epoch: int
    last_offset: int
    max_state_epoch: int | None = None
    updates: int | None = None
    snapshot_offset: int | None = None


class ShareCoordinator:
    """The coordinator of one partition of `__share_group_state`.

    Every method takes the time, in ms, that its record is stamped with. A request that is refused writes nothing.

    Args:
        log: where records go; each is replayed as soon as it has an offset.
        release: how it writes.
        updates_per_snapshot: after how many updates of a share-partition the next write is a snapshot.
        cold_after_ms: how old a snapshot is when the cold job repeats it.
        topic_ids: the topics that exist; every topic does where None.
        observe: told of each record once it is replayed: its offset, its time, itself, what is then held of its
            share-partition.
    Source: Kafka ShareCoordinatorShard.
    """

    def __init__(
        self,
        log: RecordLog,
        release: WriterRelease = LATEST,
        *,
        updates_per_snapshot: int = UPDATES_PER_SNAPSHOT,
        cold_after_ms: int = COLD_AFTER_MS,
        topic_ids: Collection[str] | None = None,
        observe: Callable[[int, int, StateRecord, Held | None], None] | None = None,
    ) -> None:
        self.log, self.release, self.observe = log, release, observe
        self.updates_per_snapshot, self.cold_after_ms, self.topic_ids = updates_per_snapshot, cold_after_ms, topic_ids
        self.held: dict[StateKey, Held] = {}
        self._last_snapshot_offset = -1

    def initialize(self, key: StateKey, state_epoch: int, start_offset: int, now_ms: int) -> Answer:
        """Make a share-partition, or set it to another start: nothing of its old state is kept.

        Args:
            key: of the share-partition.
            state_epoch: the group's epoch.
            start_offset: NO_START_OFFSET the first time, an offset where somebody altered it.
            now_ms: the time.
        Source: Kafka ShareCoordinatorShard.initializeState.
        """
        if not self.release.has_initialize:
            return Answer(ErrorCode.UNSUPPORTED_VERSION)
        error = self._error(key, state_epoch=state_epoch)
        if error:
            return Answer(error)
        held = self.held.get(key)
        snapshot = initial_snapshot(held.state if held else None, state_epoch, start_offset, now_ms, self.release)
        return Answer(offset=self._write(key, snapshot, now_ms))

    def write(self, key: StateKey, request: StateWrite, now_ms: int) -> Answer:
        """Record what one operation changed: an update, or a snapshot of everything when it is time for one.

        Source: Kafka ShareCoordinatorShard.writeState, generateShareStateRecord.
        """
        error = self._error(key, request.leader_epoch, request.state_epoch, needs_state=self.release.has_initialize)
        if error:
            return Answer(error)
        return Answer(offset=self._write(key, self._value(key, request, now_ms), now_ms))

    def read(self, key: StateKey, leader_epoch: int, now_ms: int) -> Answer:
        """What a new partition leader loads; its leader epoch is recorded where it is another than the known one.

        Source: Kafka ShareCoordinatorShard.readStateAndMaybeUpdateLeaderEpoch.
        """
        error = self._error(key, leader_epoch, needs_state=self.release.has_initialize, is_read=True)
        if error:
            return Answer(error)
        held = self.held.get(key)
        state = held.state if held else DurableState(0, 0, NO_EPOCH, NO_START_OFFSET)
        answer = StateRead(state.state_epoch, state.start_offset, state.delivery_complete_count, state.batches)
        if leader_epoch == NO_EPOCH or (held and held.max_leader_epoch == leader_epoch):
            return Answer(state=answer)
        own = StateWrite(leader_epoch, state.state_epoch, state.start_offset, state.delivery_complete_count, ())
        value = self._value(key, own, now_ms, changes_leader=True)
        return Answer(offset=self._write(key, value, now_ms), state=answer)

    def delete(self, key: StateKey, now_ms: int) -> Answer:
        """Forget a share-partition; one that is not known needs no record.

        Source: Kafka ShareCoordinatorShard.deleteState.
        """
        if not self.release.has_initialize:
            return Answer(ErrorCode.UNSUPPORTED_VERSION)
        error = self._error(key)
        if error or key not in self.held:
            return Answer(error)
        return Answer(offset=self._write(key, None, now_ms))

    def delete_topic(self, topic_id: str, now_ms: int) -> list[int]:
        """Forget every share-partition of a topic that is gone; returns the offsets of the tombstones.

        Source: Kafka ShareCoordinatorShard.maybeCleanupShareState.
        """
        gone = [key for key in self.held if key.topic_id == topic_id] if self.release.has_initialize else []
        return [self._write(key, None, now_ms) for key in gone]

    def snapshot_cold(self, now_ms: int) -> list[int]:
        """Repeat the states of share-partitions without a recent snapshot, so that older records may go.

        Returns:
            Offsets of the snapshots; none where every state is a cold one already.
        Source: Kafka ShareCoordinatorShard.snapshotColdPartitions.
        """
        return [self.repeat(key, now_ms) for key in self.cold_keys(now_ms)]

    def cold_keys(self, now_ms: int) -> list[StateKey]:
        """Share-partitions that the cold job would repeat now; none before 4.1, or where every state is cold."""
        if not self.release.has_initialize or all(held.state.is_cold for held in self.held.values()):
            return []
        return [key for key, held in self.held.items() if now_ms - held.state.write_timestamp >= self.cold_after_ms]

    def repeat(self, key: StateKey, now_ms: int) -> int:
        """Write the cold snapshot of one known share-partition; returns its offset."""
        state = self.held[key].state
        cold = replace(state, snapshot_epoch=state.snapshot_epoch + 1, write_timestamp=now_ms)
        return self._write(key, cold, now_ms)

    def replay(self, offset: int, record: StateRecord) -> None:
        """Take in a record of the log, as at a load; nothing is checked.

        Source: Kafka ShareCoordinatorShard.replay.
        """
        key, value = record.key, record.value
        held = self.held.get(key)
        if not isinstance(value, UpdateValue):
            self._last_snapshot_offset = offset
        if value is None:
            self.held.pop(key, None)
        elif isinstance(value, UpdateValue):
            state = merged(held.state if held else None, value, self.release)
            held = self._hold(key, state, value.leader_epoch, offset)
            first = 1 if self.release.counts_first_update else 0
            held.updates = first if held.updates is None else held.updates + 1
        else:
            held = self._hold(key, value, value.leader_epoch, offset)
            known = held.max_state_epoch
            held.max_state_epoch = value.state_epoch if known is None else max(known, value.state_epoch)
            held.snapshot_offset = offset
            if held.updates is not None and held.updates >= self.updates_per_snapshot:
                held.updates = 0

    def _hold(self, key: StateKey, state: DurableState, leader_epoch: int, offset: int) -> Held:
        held = self.held.get(key)
        if held is None:
            held = self.held[key] = Held(state, leader_epoch, offset)
        held.state, held.last_offset = state, offset
        held.max_leader_epoch = max(held.max_leader_epoch, leader_epoch)
        return held

    def unload(self) -> None:
        """Forget everything, as a broker does that gives the state partition away."""
        self.held.clear()
        self._last_snapshot_offset = -1

    def last_redundant_offset(self) -> int | None:
        """The offset before which every record may be deleted, None where none may.

        Source: Kafka ShareCoordinatorOffsetsManager.lastRedundantOffset.
        """
        known = list(self._snapshot_offsets())
        offset = min(known) if known else self._last_snapshot_offset
        return offset if offset > 0 else None

    def _snapshot_offsets(self) -> Iterator[int]:
        return (held.snapshot_offset for held in self.held.values() if held.snapshot_offset is not None)

    def _error(
        self,
        key: StateKey,
        leader_epoch: int | None = None,
        state_epoch: int | None = None,
        *,
        needs_state: bool = False,
        is_read: bool = False,
    ) -> ErrorCode:
        """The first check that a request fails, in Kafka's order; an epoch that it does not have is None."""
        held, release = self.held.get(key), self.release
        negative = any(epoch is not None and epoch < 0 for epoch in (leader_epoch, state_epoch))
        if key.partition < 0 or (release.refuses_negative_epochs and negative) or (needs_state and not held):
            return ErrorCode.INVALID_REQUEST
        is_fenced = leader_epoch is not None and held is not None and leader_epoch < held.max_leader_epoch
        if is_fenced and (leader_epoch != NO_EPOCH or (is_read and not release.exempts_reads_without_epoch)):
            return ErrorCode.FENCED_LEADER_EPOCH
        known = held.max_state_epoch if held else None
        if known is not None and state_epoch is not None and NO_EPOCH != state_epoch < known:
            return ErrorCode.FENCED_STATE_EPOCH
        if self.topic_ids is not None and key.topic_id not in self.topic_ids:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def _value(
        self, key: StateKey, request: StateWrite, now_ms: int, *, changes_leader: bool = False
    ) -> DurableState | UpdateValue:
        held = self.held.get(key)
        is_due = held is not None and (held.updates or 0) >= self.updates_per_snapshot
        state = held.state if held else None
        return value_written(state, request, now_ms, self.release, is_due=is_due, changes_leader=changes_leader)

    def _write(self, key: StateKey, value: DurableState | UpdateValue | None, now_ms: int) -> int:
        record = StateRecord(key, value)
        offset = self.log.append(record, now_ms)
        self.replay(offset, record)
        if self.observe:
            self.observe(offset, now_ms, record, self.held.get(key))
        return offset


_SNAPSHOT = 0


def stored_records(folder: Path, log_start_offset: int, release: WriterRelease) -> Iterator[tuple[int, StateRecord]]:
    """The records that a broker would load from a sound log.

    Args:
        folder: of the log partition.
        log_start_offset: the batch that holds it is loaded as a whole.
        release: that wrote the log.
    Returns:
        Offset and record, in log order.
    Source: Kafka CoordinatorLoaderImpl.doLoad, ShareCoordinatorRecordSerde.
    """
    (log,) = find_logs([str(folder)])
    for chunk in read_chunks(log):
        data = chunk.data.data
        ends = chunk.batches["last_offset"].tolist()
        for row in locate_records(chunk.data, chunk.batches).tolist():
            offset, _, key_at, value_at, key_size, value_size, batch = row
            if ends[batch] >= log_start_offset:
                value = None if value_size < 0 else bytes(data[value_at : value_at + value_size])
                yield offset, _record(bytes(data[key_at : key_at + key_size]), value, release)


def loaded(coordinator: ShareCoordinator, folder: Path, log_start_offset: int) -> Iterator[tuple[int, StateRecord]]:
    """Load a log into a coordinator that holds nothing else; yields each record once it is replayed."""
    coordinator.unload()
    for offset, record in stored_records(folder, log_start_offset, coordinator.release):
        coordinator.replay(offset, record)
        yield offset, record


def _record(key: bytes, value: bytes | None, release: WriterRelease) -> StateRecord:
    is_snapshot = int.from_bytes(key[:2], "big") == _SNAPSHOT
    name = "share_snapshot" if is_snapshot else "share_update"
    fields, _ = decode(layout(f"{name}_key", release.layout), key)
    if value is None:
        return StateRecord(StateKey(**fields), None)
    told, _ = decode(layout(f"{name}_value", release.layout), value)
    batches = tuple(StateBatch(**batch) for batch in told.pop("state_batches"))
    made = DurableState if is_snapshot else UpdateValue
    return StateRecord(StateKey(**fields), made(**told, batches=batches))
