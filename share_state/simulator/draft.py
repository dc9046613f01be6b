"""What the draft's control records hold of one share-partition, and what the next one must hold.

What the draft's control records leave durable: each group's state, one record after the other.

The draft's control records: every group's chain of checkpoints and deltas in the log of one topic-partition.

The logs of ordinary topics in the draft's dialect: user data, and amid it every group's control records.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from share_state.kafka.codec import encode
from share_state.schema.declarations import layout
from share_state.simulator.events import Outcome
from share_state.simulator.log_writer import LogWriter
from share_state.simulator.recorded_state import RecordedBatches, is_later
from share_state.simulator.share_partition import SharePartition
from share_state.simulator.state_records import Batches
from share_state.simulator.types import (
    NO_DELIVERY_COMPLETE_COUNT,
    CheckpointWrite,
    DeliveryState,
    DeltaWrite,
    StateBatch,
    StateRead,
)
from share_state.simulator.window import TERMINAL


class DraftRecord:
    """The recorded state of one share-partition in the draft's dialect; it begins with a checkpoint.

    Args:
        checkpoint: the first one.
    Source: KIP-932 draft, SHARE_CHECKPOINT and SHARE_DELTA.
    """

    __slots__ = ("_batches", "deltas", "end_offset", "start_offset")

    def __init__(self, checkpoint: CheckpointWrite):
        self.checkpointed(checkpoint)

    def delta(self, changes: tuple[StateBatch, ...], partition: SharePartition) -> DeltaWrite:
        """The delta of one operation, before it is recorded.

        Args:
            changes: what the operation changed, ascending.
            partition: after the change.
        Returns:
            The changes, and between the recorded end and the highest of them everything else.
        """
        batches = RecordedBatches()
        last = changes[-1].last_offset
        if self.end_offset <= last:
            for batch in partition.recorded(self.end_offset, last):
                batches.lay(batch, is_later)
        for change in changes:
            batches.lay(change, is_later)
        return DeltaWrite(batches.all())

    def checkpoint(self, partition: SharePartition) -> CheckpointWrite:
        """The whole recorded state as it is now, without trailing offsets that are as if never fetched."""
        start = partition.start_offset
        batches = list(partition.recorded(start, partition.end_offset - 1))
        if batches and batches[-1][2:] == (DeliveryState.AVAILABLE, 0):
            batches.pop()
        end = batches[-1].last_offset + 1 if batches else start
        return CheckpointWrite(start, end, tuple(batches))

    def checkpointed(self, checkpoint: CheckpointWrite) -> None:
        """Learn that a checkpoint was recorded."""
        self.start_offset, self.end_offset = checkpoint.start_offset, checkpoint.end_offset
        self._batches = RecordedBatches(checkpoint.batches)
        self._advance()
        self.deltas = 0
        """How many deltas were recorded since."""

    def written(self, delta: DeltaWrite) -> None:
        """Learn that a delta was recorded."""
        for batch in delta.batches:
            self._batches.lay(batch, is_later)
            self.end_offset = max(self.end_offset, batch.last_offset + 1)
        self._advance()
        self.deltas += 1

    def _advance(self) -> None:
        """A reader moves the start past what has ended, after every record."""
        self._batches.prune(self.start_offset)
        self.start_offset = self._batches.end_of_leading(self.start_offset, TERMINAL)
        self._batches.prune(self.start_offset)

    def read(self, state_epoch: int) -> StateRead:
        """What a new leader rebuilds from the records."""
        return StateRead(state_epoch, self.start_offset, NO_DELIVERY_COMPLETE_COUNT, self._batches.all())


_TERMINAL = (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)


@dataclass(frozen=True, slots=True)
class ControlState:
    """One group's durable state in a topic-partition.

    Attributes:
        start_offset: SPSO, past every leading terminal offset.
        end_offset: exclusive end (SPEO).
        batches: of [start_offset, end_offset), ascending, equal neighbours joined.
        checkpoint_epoch, checkpoint_offset: of the latest checkpoint.
        last_offset: of the latest control record, which the next delta names.
        deltas: since the checkpoint.
    Source: KIP-932 draft.
    """

    start_offset: int
    end_offset: int
    batches: Batches
    checkpoint_epoch: int
    checkpoint_offset: int
    last_offset: int
    deltas: int = 0


def after_checkpoint(write: CheckpointWrite, epoch: int, offset: int) -> ControlState:
    """The state that a checkpoint says, which replaces whatever was before."""
    start, batches = _from_start(write.start_offset, list(write.batches))
    return ControlState(start, max(write.end_offset, start), batches, epoch, offset, offset)


def after_delta(state: ControlState, write: DeltaWrite, offset: int) -> ControlState:
    """The state after a delta: what is told later wins, and the start moves past what is finished."""
    batches = list(state.batches)
    end = max([state.end_offset, *(batch.last_offset + 1 for batch in write.batches)])
    if end > state.end_offset:
        # What lies between the end so far and the new one, and is not told of, was never delivered.
        batches.append(StateBatch(state.end_offset, end - 1, DeliveryState.AVAILABLE, 0))
    for batch in write.batches:
        batches = _laid_over(batches, batch)
    start, kept = _from_start(state.start_offset, batches)
    moved = {"start_offset": start, "end_offset": max(end, start), "batches": kept}
    return replace(state, **moved, last_offset=offset, deltas=state.deltas + 1)


def _laid_over(batches: list[StateBatch], over: StateBatch) -> list[StateBatch]:
    out: list[StateBatch] = []
    for batch in batches:
        if batch.first_offset < over.first_offset:
            out.append(batch._replace(last_offset=min(batch.last_offset, over.first_offset - 1)))
        if batch.last_offset > over.last_offset:
            out.append(batch._replace(first_offset=max(batch.first_offset, over.last_offset + 1)))
    return sorted([*out, over])


def _from_start(start: int, batches: list[StateBatch]) -> tuple[int, Batches]:
    out: list[StateBatch] = []
    for batch in batches:
        kept = batch._replace(first_offset=max(batch.first_offset, start))
        if kept.first_offset > kept.last_offset:
            continue
        if not out and kept.first_offset == start and kept.delivery_state in _TERMINAL:
            start = kept.last_offset + 1
        elif out and out[-1].last_offset + 1 == kept.first_offset and out[-1][2:] == kept[2:]:
            out[-1] = out[-1]._replace(last_offset=kept.last_offset)
        else:
            out.append(kept)
    return start, tuple(out)


FIRST_EPOCH = 1
EPOCHS = 1 << 16
_VERSION_SIZE = 2


class ControlType(IntEnum):
    """The id in a control record's key."""

    CHECKPOINT = 5
    DELTA = 6


class DraftWriter:
    """Writes the control records of all groups of one topic-partition.

    Args:
        log: of the topic-partition, shared with its data.
        first_epoch: of a group's first checkpoint; epochs are 16 bits and start over behind 65535.
        version_prefix: whether a version 0 stands in front of each value, which the draft leaves open.
        observe: told of each record: its group, and the group's durable state behind it.
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
        self.log, self.first_epoch, self.version_prefix, self.observe = log, first_epoch, version_prefix, observe
        self.states: dict[str, ControlState] = {}

    def checkpoint(self, group_id: str, write: CheckpointWrite, now_ms: int) -> int:
        """Write a group's whole state; returns the record's offset."""
        state = self.states.get(group_id)
        epoch = self.first_epoch if state is None else (state.checkpoint_epoch + 1) % EPOCHS
        fields = {"start_offset": write.start_offset, "end_offset": write.end_offset}
        offset = self.append(ControlType.CHECKPOINT, group_id, epoch, fields, write.batches, now_ms)
        self._keep(group_id, after_checkpoint(write, epoch, offset))
        return offset

    def delta(self, group_id: str, write: DeltaWrite, now_ms: int) -> int:
        """Write what one operation changed; the group has a checkpoint already. Returns the record's offset."""
        state = self.states[group_id]
        fields = {"back_offset": state.last_offset}
        offset = self.append(ControlType.DELTA, group_id, state.checkpoint_epoch, fields, write.batches, now_ms)
        self._keep(group_id, after_delta(state, write, offset))
        return offset

    def append(
        self, kind: ControlType, group_id: str, epoch: int, fields: dict[str, int], batches: Batches, now_ms: int
    ) -> int:
        """Write a control record that says just this, right or wrong; no group's state follows it.

        Args:
            kind: of the record.
            group_id, epoch, batches: what both kinds say.
            fields: start_offset and end_offset of a checkpoint, back_offset of a delta.
            now_ms: the record's time.
        """
        record = "share_checkpoint_value" if kind is ControlType.CHECKPOINT else "share_delta_value"
        whole = {"group_id": group_id, "checkpoint_epoch": epoch, "states": [batch._asdict() for batch in batches]}
        value = encode(layout(record, "draft"), whole | fields)
        if not self.version_prefix:
            value = value[_VERSION_SIZE:]
        return self.log.append_control(now_ms, struct.pack(">hh", 0, kind), value)

    def _keep(self, group_id: str, state: ControlState) -> None:
        self.states[group_id] = state
        if self.observe:
            self.observe(group_id, state)


Observer = Callable[[str, int, str, ControlState], None]
"""Told of each control record: topic, partition, group, and the group's durable state behind it."""


class TopicLog:
    """One topic-partition: its log on disk, and where the control records in it are.

    Args:
        log: to be written.
        first_epoch, version_prefix: see DraftWriter.
        observe: told of each control record: its group, and the group's durable state behind it.
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
        self.writer = DraftWriter(log, first_epoch=first_epoch, version_prefix=version_prefix, observe=observe)
        self.control_offsets: list[int] = []

    @property
    def data_records(self) -> int:
        """How many records of user data it holds."""
        return self.log.next_offset - len(self.control_offsets)

    def fill(self, end_offset: int, now_ms: int) -> None:
        """Write user data until the log ends at `end_offset`; nothing where it is longer."""
        while self.log.next_offset < end_offset:
            number = self.data_records
            self.log.append(now_ms, f"key-{number % 1000}".encode(), f"record {number}".encode())

    def persist(self, outcome: Outcome) -> None:
        """Write what an event made durable."""
        if outcome.delta is not None:
            self.control_offsets.append(self.writer.delta(outcome.key.group, outcome.delta, outcome.ts_ms))
        if outcome.checkpoint is not None:
            self.control_offsets.append(self.writer.checkpoint(outcome.key.group, outcome.checkpoint, outcome.ts_ms))

    def control_among(self, first: int, last: int) -> list[int]:
        """Offsets of the control records in a range, both ends inclusive."""
        begin = bisect_left(self.control_offsets, first)
        return self.control_offsets[begin : bisect_right(self.control_offsets, last)]

    def next_data_offset(self, offset: int) -> int:
        """The first offset from here on that holds no control record; the log may end before it."""
        place = bisect_left(self.control_offsets, offset)
        while place < len(self.control_offsets) and self.control_offsets[place] == offset:
            place, offset = place + 1, offset + 1
        return offset


class TopicLogs:
    """The logs of all topic-partitions, made as they are first used.

    Args:
        folder: gets a folder `<topic>-<partition>` for each.
        codec, segment_bytes: see LogWriter.
        first_epoch, version_prefix: see DraftWriter.
        observe: told of each control record.
    """

    def __init__(
        self,
        folder: Path,
        *,
        codec: str,
        segment_bytes: int,
        first_epoch: int = FIRST_EPOCH,
        version_prefix: bool = False,
        observe: Observer | None = None,
    ) -> None:
        self.folder, self.codec, self.segment_bytes = folder, codec, segment_bytes
        self.first_epoch, self.version_prefix, self.observe = first_epoch, version_prefix, observe
        self.logs: dict[tuple[str, int], TopicLog] = {}

    def of(self, topic: str, partition: int) -> TopicLog:
        """The log of a topic-partition."""
        if (topic, partition) not in self.logs:
            path = self.folder / f"{topic}-{partition}"
            observe = self.observe
            self.logs[topic, partition] = TopicLog(
                LogWriter(path, codec=self.codec, segment_bytes=self.segment_bytes),
                first_epoch=self.first_epoch,
                version_prefix=self.version_prefix,
                observe=observe and (lambda group, state: observe(topic, partition, group, state)),
            )
        return self.logs[topic, partition]

    def writers(self) -> Iterator[tuple[str, int, DraftWriter]]:
        """Topic, partition and writer of each log."""
        return ((topic, partition, log.writer) for (topic, partition), log in self.logs.items())
