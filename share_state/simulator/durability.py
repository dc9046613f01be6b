"""Pending state writes of a share-partition, dead letters, and loading of persisted state."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from share_state.errors import ShareStateError
from share_state.kafka.delivery_states import DeliveryState
from share_state.kafka.releases import Release
from share_state.simulator.settings import PartitionSettings
from share_state.simulator.types import NO_DELIVERY_COMPLETE_COUNT, StateBatch, StateWrite, merge_adjacent
from share_state.simulator.window import InFlightBatch, LoadGap, OffsetRun, Window


class Trigger(StrEnum):
    """What caused a state change that must be persisted."""

    ACKNOWLEDGE = "acknowledge"
    LOCK_TIMEOUT = "lock_timeout"
    MEMBER_LEAVE = "member_leave"
    DEAD_LETTER = "dead_letter"


class DeadLetterReason(StrEnum):
    """Why a record goes to the dead letter queue. Source: KIP-1191, header __dlq.errors.message."""

    REJECTED = "Offset rejected by client."
    EXHAUSTED = "Offset delivery count exceeded the threshold."


class DeadLetter(NamedTuple):
    """Offsets in state ARCHIVING that are sent to the dead letter queue."""

    first_offset: int
    last_offset: int
    delivery_count: int
    reason: DeadLetterReason


@dataclass(slots=True, eq=False)
class PendingWrite:
    """A state write without a response yet.

    Args:
        write: the request.
        is_final: True if a failure does not undo the change in memory (lock timeouts, dead letters).
        runs: changed runs, each with its batch.
        dead_letters: sent after the response.
    """

    write: StateWrite
    is_final: bool
    runs: list[tuple[InFlightBatch, OffsetRun]]
    dead_letters: tuple[DeadLetter, ...] = ()
    is_answered: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True)
class Operation:
    """One state change: one SHARE_DELTA of the draft, or one or more writes to the share coordinator.

    Args:
        changes: ascending, equal neighbours merged.
        writes: in order; only lock timeouts of batches tracked per offset make more than one.
    """

    trigger: Trigger
    changes: tuple[StateBatch, ...]
    writes: tuple[PendingWrite, ...]


def build_dead_letters(
    runs: Sequence[tuple[InFlightBatch, OffsetRun]], reasons: Sequence[DeadLetterReason]
) -> tuple[DeadLetter, ...]:
    """Dead letters of the changed runs that are ARCHIVING; `reasons` has one entry per run."""
    dead_letters = []
    for (batch, run), reason in zip(runs, reasons, strict=True):
        if run.state is DeliveryState.ARCHIVING:
            ranges = [(run.first, run.last)]
            if batch.per_offset:
                ranges = [(offset, offset) for offset in range(run.first, run.last + 1)]
            dead_letters += [DeadLetter(first, last, run.count, reason) for first, last in ranges]
    return tuple(dead_letters)


ChangedRuns = list[tuple[InFlightBatch, OffsetRun]]
"""Changed runs, ascending, each with its batch."""


class StateTransitions:
    """Creates the state writes of one share-partition and completes or rolls back their transitions.

    Args:
        counts_completed: whether writes carry the delivery complete count.
    Source: Kafka SharePartition.writeShareGroupState, rollbackOrProcessStateUpdates.
    """

    def __init__(self, window: Window, leader_epoch: int, state_epoch: int, *, counts_completed: bool):
        self._window = window
        self._leader_epoch = leader_epoch
        self._state_epoch = state_epoch
        self._counts_completed = counts_completed

    def build_operation(
        self, trigger: Trigger, runs: ChangedRuns, reasons: Sequence[DeadLetterReason]
    ) -> Operation | None:
        """One write for changes that are rolled back if it fails; None without changes."""
        if not runs:
            return None
        changes = merge_adjacent(run.batch for _, run in runs)
        dead_letters = build_dead_letters(runs, reasons)
        return Operation(trigger, changes, (PendingWrite(self._write(changes), False, runs, dead_letters),))

    def build_final_write(
        self, changes: tuple[StateBatch, ...], dead_letters: tuple[DeadLetter, ...] = ()
    ) -> PendingWrite:
        """A write for changes that stay in memory even if it fails."""
        return PendingWrite(self._write(changes), True, [], dead_letters)

    def commit(self, pending: PendingWrite) -> None:
        """Complete the transitions of a write that succeeded."""
        self._mark_answered(pending)
        for _, run in pending.runs:
            run.rollback_state = None
            self._make_available(run)
        _merge_runs(pending.runs)
        self._window.advance_start()

    def roll_back(self, pending: PendingWrite, settings: PartitionSettings, now_ms: int) -> None:
        """Roll back the transitions of a write that failed, unless they are final."""
        self._mark_answered(pending)
        self.revert(pending.runs, settings, now_ms)
        _merge_runs(pending.runs)
        if pending.is_final:
            self._window.advance_start()

    def revert(self, runs: ChangedRuns, settings: PartitionSettings, now_ms: int) -> None:
        """Restore locks that have not expired since; delivery counts stay.

        Source: Kafka InFlightState.completeStateTransition.
        """
        for _, run in runs:
            previous = run.rollback_state
            assert previous is not None
            self._window.count_terminal(run, -1)
            run.rollback_state = None
            if now_ms <= previous.deadline:
                run.state = DeliveryState.ACQUIRED
                run.owner = previous.owner
                run.deadline = previous.deadline
                run.lock_seq = previous.lock_seq
            else:
                # Not ARCHIVING: without persisted state, a new leader could not resume the dead letter.
                exhausted = previous.delivery_count >= settings.delivery_count_limit
                run.state = DeliveryState.ARCHIVED if exhausted else DeliveryState.AVAILABLE
                self._window.count_terminal(run)
                self._make_available(run)

    def _write(self, changes: tuple[StateBatch, ...]) -> StateWrite:
        completed = (
            self._window.delivery_complete_count if self._counts_completed else NO_DELIVERY_COMPLETE_COUNT
        )
        return StateWrite(
            self._leader_epoch, self._state_epoch, self._window.start_offset, completed, changes
        )

    def _mark_answered(self, pending: PendingWrite) -> None:
        assert not pending.is_answered, "a write gets one response"
        pending.is_answered = True

    def _make_available(self, run: OffsetRun) -> None:
        """Make a run available; archive the part that is before the start offset."""
        if run.state is DeliveryState.AVAILABLE:
            self._window.mark_available_from(run.first)
            if run.first < self._window.start_offset:
                self._window.archive(run.first, self._window.start_offset - 1, DeliveryState.AVAILABLE)


def _merge_runs(runs: ChangedRuns) -> None:
    for batch in {id(batch): batch for batch, _ in runs}.values():
        batch.merge_runs()


class UnloadableStateError(ShareStateError):
    """Raised when persisted state cannot be loaded."""


def load_window(start_offset: int, batches: Iterable[StateBatch], release: Release) -> Window:
    """Build the window from persisted batches; the start is not advanced yet.

    Args:
        start_offset: persisted SPSO.
        batches: persisted batches.
        release: release of the broker that loads them.
    Raises:
        UnloadableStateError: a batch is before the start, inverted, overlapping, or in an unknown state.
    Source: Kafka SharePartition.maybeInitialize.
    """
    by_first = {}
    last, gap = start_offset - 1, None
    for batch in batches:
        _check(batch, start_offset, release)
        if gap is None and batch.first_offset > last + 1:
            gap = last + 1
        last = batch.last_offset
        by_first[batch.first_offset] = batch
    window = Window(start_offset)
    for first in sorted(by_first):
        _, last, state, count = by_first[first]
        if window.batches and window.batches[-1].last >= first:
            raise UnloadableStateError(
                f"persisted batch {first}-{last}: overlaps the previous batch, which ends at {window.batches[-1].last}"
            )
        run = OffsetRun(first, last, DeliveryState(state), count)
        window.insert(InFlightBatch([run]))
        window.count_terminal(run)
    if window.batches:
        window.mark_available_from(start_offset)
        if gap is not None and release.fetches_load_gaps:
            window.load_gap = LoadGap(gap, window.end_offset)
    return window


def _check(batch: StateBatch, start_offset: int, release: Release) -> None:
    first, last, state, _ = batch
    if first < start_offset:
        raise UnloadableStateError(
            f"persisted batch {first}-{last}: starts before the start offset {start_offset}"
        )
    if last < first and release.refuses_inverted_batches:
        raise UnloadableStateError(f"persisted batch {first}-{last}: ends before it starts")
    if state == DeliveryState.ARCHIVING and release.archiving == "refused":
        raise UnloadableStateError(f"persisted batch {first}-{last}: {release.name} does not support state 3")
    if state not in set(DeliveryState):
        raise UnloadableStateError(f"persisted batch {first}-{last}: unknown state {state}")


def pending_dead_letters(window: Window, delivery_count_limit: int) -> tuple[DeadLetter, ...]:
    """Dead letters that were pending when the state was persisted.

    The delivery count indicates the reason.
    """
    return tuple(
        DeadLetter(
            run.first,
            run.last,
            run.count,
            DeadLetterReason.EXHAUSTED if run.count >= delivery_count_limit else DeadLetterReason.REJECTED,
        )
        for run in window.runs()
        if run.state is DeliveryState.ARCHIVING
    )
