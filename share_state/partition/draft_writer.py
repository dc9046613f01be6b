"""The draft's control records: every group's chain of checkpoints and deltas in the log of one topic-partition."""

import struct
from collections.abc import Callable
from enum import IntEnum

from share_state.declarations import layout
from share_state.partition.combining import Batches
from share_state.partition.control_state import ControlState, after_checkpoint, after_delta
from share_state.partition.segments import LogWriter
from share_state.partition.writes import CheckpointWrite, DeltaWrite
from share_state.wire.codec import encode

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
