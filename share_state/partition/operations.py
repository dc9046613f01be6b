"""Operations of a share-partition that want to be persisted, and the dead letters that follow some of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from share_state.partition.in_flight import InFlightBatch, Run
from share_state.partition.writes import DeliveryState, StateBatch, StateWrite


class Trigger(StrEnum):
    """What made a share-partition change durably."""

    ACKNOWLEDGE = "acknowledge"
    LOCK_TIMEOUT = "lock_timeout"
    MEMBER_LEAVE = "member_leave"
    DEAD_LETTER = "dead_letter"


class DeadLetterReason(StrEnum):
    """Why a record goes to the dead letter queue. Source: KIP-1191, header __dlq.errors.message."""

    REJECTED = "Offset rejected by client."
    EXHAUSTED = "Offset delivery count exceeded the threshold."


class DeadLetter(NamedTuple):
    """Offsets on their way to the dead letter queue; they stay in state ARCHIVING until it has answered."""

    first_offset: int
    last_offset: int
    delivery_count: int
    reason: DeadLetterReason


@dataclass(slots=True, eq=False)
class PendingWrite:
    """A write that was not answered yet.

    Args:
        write: what is to be persisted.
        is_final: memory keeps the change even if the write fails (lock timeouts, dead letters).
        runs: what changes, each with the batch it is in.
        dead_letters: to be sent once the write is answered.
    """

    write: StateWrite
    is_final: bool
    runs: list[tuple[InFlightBatch, Run]]
    dead_letters: tuple[DeadLetter, ...] = ()
    is_answered: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of the share-partition: one SHARE_DELTA of the draft, one or more writes to the share coordinator.

    Args:
        trigger: what made it.
        changes: what changed, ascending, equal neighbours joined.
        writes: to be persisted in this order; only per-offset lock timeouts make more than one.
    """

    trigger: Trigger
    changes: tuple[StateBatch, ...]
    writes: tuple[PendingWrite, ...]


def joined(batches: list[StateBatch]) -> tuple[StateBatch, ...]:
    """The batches with equal neighbours made one.

    Args:
        batches: ascending, disjoint.
    """
    out: list[StateBatch] = []
    for batch in batches:
        if out:
            last = out[-1]
            if last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
                out[-1] = StateBatch(last.first_offset, batch.last_offset, last.delivery_state, last.delivery_count)
                continue
        out.append(batch)
    return tuple(out)


def dead_letters_of(
    runs: Sequence[tuple[InFlightBatch, Run]], reasons: Sequence[DeadLetterReason]
) -> tuple[DeadLetter, ...]:
    """What goes to the dead letter queue: one entry a batch in flight, or one an offset where it is tracked so.

    Args:
        runs: what changed.
        reasons: one a run; it counts for those that are ARCHIVING now.
    """
    letters = []
    for (batch, run), reason in zip(runs, reasons, strict=True):
        if run.state is DeliveryState.ARCHIVING:
            if batch.by_offset:
                letters += [DeadLetter(offset, offset, run.count, reason) for offset in range(run.first, run.last + 1)]
            else:
                letters.append(DeadLetter(run.first, run.last, run.count, reason))
    return tuple(letters)
