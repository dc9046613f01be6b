"""Control records that no sound leader writes, each crafted from a group's chain so that one rule is broken."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from share_state.partition.control_state import ControlState
from share_state.partition.draft_writer import EPOCHS, ControlType, DraftWriter
from share_state.partition.writes import CheckpointWrite, DeliveryState, DeltaWrite, StateBatch

STRANGER = "stranger"


@dataclass(frozen=True, slots=True)
class ControlVictim:
    """A group whose chain a fault may befall.

    Attributes:
        writer: of the topic-partition's control records.
        group_id: the group.
        now_ms: time of the log's latest record.
    """

    writer: DraftWriter
    group_id: str
    now_ms: int

    @property
    def state(self) -> ControlState:
        """Its durable state."""
        return self.writer.states[self.group_id]

    @property
    def others(self) -> list[ControlState]:
        """Of the other groups in this log."""
        return [state for group, state in self.writer.states.items() if group != self.group_id]

    @property
    def next_batch(self) -> StateBatch:
        """An offset behind the end, delivered once and released."""
        return StateBatch(self.state.end_offset, self.state.end_offset, DeliveryState.AVAILABLE, 1)

    def delta(self, *batches: StateBatch, back: int | None = None, step: int = 0, group_id: str | None = None) -> int:
        """A delta that names `back`, `step` epochs on; by default the one that would come next."""
        named = self.state.last_offset if back is None else back
        epoch = (self.state.checkpoint_epoch + step) % EPOCHS
        told = batches or (self.next_batch,)
        group = group_id or self.group_id
        return self.writer.append(ControlType.DELTA, group, epoch, {"back_offset": named}, told, self.now_ms)

    def checkpoint(self, *, step: int) -> int:
        """A checkpoint `step` epochs on."""
        state = self.state
        epoch = (state.checkpoint_epoch + step) % EPOCHS
        bounds = {"start_offset": state.start_offset, "end_offset": state.end_offset}
        return self.writer.append(ControlType.CHECKPOINT, self.group_id, epoch, bounds, state.batches, self.now_ms)


class ControlFault(NamedTuple):
    """One way to break a chain of control records.

    Attributes:
        finding: code of the rule that it breaks.
        what: in words.
        craft: writes the records; returns the offset of the one at fault.
        suits: whether a group can be its victim.
    """

    finding: str
    what: str
    craft: Callable[[ControlVictim], int]
    suits: Callable[[ControlVictim], bool] = lambda victim: True


def _names_no_record(victim: ControlVictim) -> int:
    return victim.delta(back=victim.writer.log.append(victim.now_ms, None, b"user data"))


def _names_an_older_epoch(victim: ControlVictim) -> int:
    state = victim.state
    whole = CheckpointWrite(state.start_offset, state.end_offset, state.batches)
    victim.writer.checkpoint(victim.group_id, whole, victim.now_ms)
    return victim.delta(back=state.last_offset)


def _names_one_that_is_taken(victim: ControlVictim) -> int:
    taken = victim.state.last_offset
    victim.writer.delta(victim.group_id, DeltaWrite((victim.next_batch,)), victim.now_ms)
    return victim.delta(back=taken)


def _batch(first: int, last: int, state: DeliveryState = DeliveryState.AVAILABLE, count: int = 1) -> StateBatch:
    return StateBatch(first, last, state, count)


CONTROL_FAULTS = (
    ControlFault("BROKEN_CHAIN", "a delta that names user data as its predecessor", _names_no_record),
    ControlFault("FORWARD_BACK_OFFSET", "a delta that names an offset yet to come",
                 lambda v: v.delta(back=v.writer.log.next_offset + 10)),
    ControlFault("CROSS_GROUP", "a delta that names another group's record",
                 lambda v: v.delta(back=v.others[0].last_offset), lambda v: bool(v.others)),
    ControlFault("CROSS_EPOCH", "a delta that names a record before its checkpoint", _names_an_older_epoch),
    ControlFault("FORK", "a second delta that names the same predecessor", _names_one_that_is_taken),
    ControlFault("STALE_EPOCH", "a delta of the checkpoint before", lambda v: v.delta(step=-1)),
    ControlFault("FUTURE_EPOCH", "a delta of a checkpoint that is missing", lambda v: v.delta(step=1)),
    ControlFault("EPOCH_GAP", "a checkpoint epoch left out", lambda v: v.checkpoint(step=2)),
    ControlFault("EPOCH_REPEAT", "a checkpoint epoch used twice", lambda v: v.checkpoint(step=0)),
    ControlFault("ORPHAN_DELTA", "a delta of a group without a checkpoint",
                 lambda v: v.delta(group_id=STRANGER), lambda v: STRANGER not in v.writer.states),
    ControlFault("BELOW_START", "a delta that tells of an offset below the start",
                 lambda v: v.delta(_batch(v.state.start_offset - 1, v.state.start_offset - 1)),
                 lambda v: v.state.start_offset > 0),
    ControlFault("UNCOVERED_GAP", "a delta that jumps beyond the end",
                 lambda v: v.delta(_batch(v.state.end_offset + 3, v.state.end_offset + 4))),
    ControlFault("OVERLAP_IN_DELTA", "a delta with two batches over each other",
                 lambda v: v.delta(_batch(v.state.end_offset, v.state.end_offset + 4),
                                   _batch(v.state.end_offset + 2, v.state.end_offset + 2, count=2))),
    ControlFault("PERSISTED_ACQUIRED", "a delta that tells of an acquired record",
                 lambda v: v.delta(_batch(v.state.end_offset, v.state.end_offset, DeliveryState.ACQUIRED))),
)  # fmt: skip
