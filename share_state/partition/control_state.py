"""What the draft's control records leave durable: each group's state, one record after the other."""

from dataclasses import dataclass, replace

from share_state.partition.combining import Batches
from share_state.partition.writes import CheckpointWrite, DeliveryState, DeltaWrite, StateBatch

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
