"""Control records of the draft dialect: each group's checkpoints and deltas in the log of a topic-partition."""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

from share_state.kafka.codec import encode
from share_state.kafka.control_records import CHECKPOINT_TYPE, DELTA_TYPE, EPOCH_MODULUS
from share_state.kafka.delivery_states import TERMINAL, DeliveryState
from share_state.schema.declarations import layout
from share_state.simulator.events import EventResult
from share_state.simulator.log_writer import LogWriter
from share_state.simulator.share_partition import SharePartition
from share_state.simulator.state_values import Batches
from share_state.simulator.types import CheckpointWrite, DeltaWrite, StateBatch, merge_adjacent

NO_OFFSET = -1

_first, _last = attrgetter("first_offset"), attrgetter("last_offset")


class BatchMap:
    """Ascending, disjoint state batches with equal neighbours merged."""

    def __init__(self, batches: Iterable[StateBatch] = ()):
        self._batches = list(merge_adjacent(batches))

    def overlay(self, batch: StateBatch) -> None:
        """Add a batch, which replaces others where it overlaps them. Source: KIP-932 draft, recovery."""
        old = self._batches
        begin = bisect_left(old, batch.first_offset, key=_last)
        end = bisect_right(old, batch.last_offset, key=_first)
        overlaid = [batch]
        if begin < end and old[begin].first_offset < batch.first_offset:
            overlaid.insert(0, old[begin]._replace(last_offset=batch.first_offset - 1))
        if begin < end and old[end - 1].last_offset > batch.last_offset:
            overlaid.append(old[end - 1]._replace(first_offset=batch.last_offset + 1))
        # Including both neighbours, which may equal the new batches.
        around = [*old[max(begin - 1, 0) : begin], *overlaid, *old[end : end + 1]]
        old[max(begin - 1, 0) : end + 1] = merge_adjacent(around)

    def prune(self, start_offset: int) -> None:
        """Remove offsets before the start."""
        batches = self._batches
        keep = bisect_left(batches, start_offset, key=_last)
        del batches[:keep]
        if batches and batches[0].first_offset < start_offset:
            batches[0] = batches[0]._replace(first_offset=start_offset)

    def all(self) -> tuple[StateBatch, ...]:
        """Every batch, ascending, equal neighbours merged."""
        return tuple(self._batches)

    def advance(self, start_offset: int) -> int:
        """Move a start past leading terminal offsets, as readers do after every record.

        Remove offsets before it.
        """
        self.prune(start_offset)
        for batch in self._batches:
            if batch.first_offset > start_offset or batch.delivery_state not in TERMINAL:
                break
            start_offset = batch.last_offset + 1
        self.prune(start_offset)
        return start_offset


@dataclass(frozen=True, slots=True)
class ControlState:
    """A group's durable state in a topic-partition.

    Attributes:
        start_offset: SPSO, past leading terminal offsets.
        end_offset: SPEO, exclusive.
        batches: state of [start_offset, end_offset), ascending, equal neighbours merged.
        checkpoint_epoch, checkpoint_offset: epoch and offset of the latest checkpoint; NO_OFFSET before it is
            written.
        last_offset: offset of the latest control record, which is the back offset of the next delta.
        deltas: number of deltas since the checkpoint.
    Source: KIP-932 draft.
    """

    start_offset: int
    end_offset: int
    batches: Batches
    checkpoint_epoch: int = NO_OFFSET
    checkpoint_offset: int = NO_OFFSET
    last_offset: int = NO_OFFSET
    deltas: int = 0

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is in flight: SPSO = SPEO."""
        return self.start_offset == self.end_offset


def state_after_checkpoint(
    write: CheckpointWrite, epoch: int = NO_OFFSET, offset: int = NO_OFFSET
) -> ControlState:
    """The state that a checkpoint sets."""
    batches = BatchMap(write.batches)
    start = batches.advance(write.start_offset)
    return ControlState(start, max(write.end_offset, start), batches.all(), epoch, offset, offset)


def state_after_delta(state: ControlState, write: DeltaWrite, offset: int = NO_OFFSET) -> ControlState:
    """The state after a delta: newer batches win, and the start moves past terminal offsets."""
    batches = BatchMap(state.batches)
    end = max([state.end_offset, *(batch.last_offset + 1 for batch in write.batches)])
    if end > state.end_offset:
        # Offsets after the old end that the delta does not contain were never delivered.
        batches.overlay(StateBatch(state.end_offset, end - 1, DeliveryState.AVAILABLE, 0))
    for batch in write.batches:
        batches.overlay(batch)
    start = batches.advance(state.start_offset)
    changes = {"start_offset": start, "end_offset": max(end, start), "batches": batches.all()}
    return replace(state, **changes, last_offset=offset, deltas=state.deltas + 1)


def build_delta(state: ControlState, changes: Batches, partition: SharePartition) -> DeltaWrite:
    """The delta of an operation: its changes, and every offset between the persisted end and the changes.

    Args:
        state: the persisted state.
        changes: changes of the operation, ascending.
        partition: the share-partition after the change.
    """
    last = changes[-1].last_offset
    batches = BatchMap(partition.durable_batches(state.end_offset, last) if state.end_offset <= last else ())
    for change in changes:
        batches.overlay(change)
    return DeltaWrite(batches.all())


def build_checkpoint(partition: SharePartition) -> CheckpointWrite:
    """The current state from the first offset that is not finished, without trailing offsets that were never delivered.

    The leader's own start waits for the next write, for example after the log start moved.
    """
    start = partition.start_offset
    batch_map = BatchMap(partition.durable_batches(start, partition.end_offset - 1))
    start, batches = batch_map.advance(start), list(batch_map.all())
    if batches and batches[-1][2:] == (DeliveryState.AVAILABLE, 0):
        batches.pop()
    end = batches[-1].last_offset + 1 if batches else start
    return CheckpointWrite(start, end, tuple(batches))


FIRST_EPOCH = 1
_VERSION_SIZE = 2


class DraftWriter:
    """Writes the control records of all groups of one topic-partition, and the user data between them.

    Args:
        log: log of the topic-partition, shared with user data.
        first_epoch: epoch of a group's first checkpoint; epochs have 16 bits and wrap around.
        version_prefix: whether values start with a version, which the draft leaves open.
        observe: called with the group and its state after each record.
    Attributes:
        states: group -> its state.
        control_offsets: offsets of the control records, deleted ones included.
        deleted: number of control records that were deleted.
    Source: KIP-932 draft, ShareCheckpointValue, ShareDeltaValue.
    """

    def __init__(
        self,
        log: LogWriter,
        *,
        first_epoch: int = FIRST_EPOCH,
        version_prefix: bool = False,
        observe: Callable[[str, ControlState], None] | None = None,
    ) -> None:
        self.log = log
        self.first_epoch = first_epoch
        self.version_prefix = version_prefix
        self.observe = observe
        self.states: dict[str, ControlState] = {}
        self.control_offsets: list[int] = []
        self.deleted = 0

    def persist(self, result: EventResult) -> None:
        """Write the control records of a result."""
        if result.delta is not None:
            self.delta(result.key.group, result.delta, result.ts_ms)
        if result.checkpoint is not None:
            self.checkpoint(result.key.group, result.checkpoint, result.ts_ms)

    def checkpoint(self, group_id: str, write: CheckpointWrite, now_ms: int) -> int:
        """Write a checkpoint; returns its offset."""
        state = self.states.get(group_id)
        epoch = self.first_epoch if state is None else (state.checkpoint_epoch + 1) % EPOCH_MODULUS
        fields = {"start_offset": write.start_offset, "end_offset": write.end_offset}
        offset = self.append(CHECKPOINT_TYPE, group_id, epoch, fields, write.batches, now_ms)
        self._update(group_id, state_after_checkpoint(write, epoch, offset))
        return offset

    def delta(self, group_id: str, write: DeltaWrite, now_ms: int) -> int:
        """Write a delta of a group that has a checkpoint; returns its offset."""
        state = self.states[group_id]
        fields = {"back_offset": state.last_offset}
        offset = self.append(DELTA_TYPE, group_id, state.checkpoint_epoch, fields, write.batches, now_ms)
        self._update(group_id, state_after_delta(state, write, offset))
        return offset

    def append(
        self, kind: int, group_id: str, epoch: int, fields: dict[str, int], batches: Batches, now_ms: int
    ) -> int:
        """Write a control record, valid or not, without changing the state of a group.

        Args:
            kind: CHECKPOINT_TYPE or DELTA_TYPE.
            fields: start_offset and end_offset of a checkpoint, back_offset of a delta.
        """
        record = "share_checkpoint_value" if kind == CHECKPOINT_TYPE else "share_delta_value"
        values = {
            "group_id": group_id,
            "checkpoint_epoch": epoch,
            "states": [batch._asdict() for batch in batches],
        }
        value = encode(layout(record, "draft"), values | fields)
        if not self.version_prefix:
            value = value[_VERSION_SIZE:]
        self.control_offsets.append(self.log.append_control(now_ms, struct.pack(">hh", 0, kind), value))
        return self.control_offsets[-1]

    def prune(self) -> None:
        """Delete the control records before the earliest share offset: the smallest checkpoint offset over all groups.

        Source: KIP-932 draft, log cleaning (SCO, ESO).
        """
        earliest = min((state.checkpoint_offset for state in self.states.values()), default=NO_OFFSET)
        self.deleted = max(self.deleted, bisect_left(self.control_offsets, earliest))
        self.log.delete_control_before(earliest)

    def _update(self, group_id: str, state: ControlState) -> None:
        self.states[group_id] = state
        if self.observe:
            self.observe(group_id, state)

    @property
    def data_records(self) -> int:
        """Number of user records."""
        return self.log.next_offset - len(self.control_offsets)

    def fill(self, end_offset: int, now_ms: int) -> None:
        """Write user records until the log ends at `end_offset` or later."""
        while self.log.next_offset < end_offset:
            number = self.data_records
            self.log.append(now_ms, f"key-{number % 1000}".encode(), f"record {number}".encode())

    def control_offsets_between(self, first: int, last: int) -> list[int]:
        """Offsets of control records in [first, last]."""
        begin = bisect_left(self.control_offsets, first)
        return self.control_offsets[begin : bisect_right(self.control_offsets, last)]

    def next_data_offset(self, offset: int) -> int:
        """The first offset at or after `offset` without a control record; may be the log's end."""
        index = bisect_left(self.control_offsets, offset)
        while index < len(self.control_offsets) and self.control_offsets[index] == offset:
            index, offset = index + 1, offset + 1
        return offset
