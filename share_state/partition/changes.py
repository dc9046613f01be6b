"""Changes of a share-partition on their way to being durable: handed out as writes, then kept or taken back."""

from collections.abc import Sequence

from share_state.partition.in_flight import InFlightBatch, Run
from share_state.partition.operations import (
    DeadLetter,
    DeadLetterReason,
    Operation,
    PendingWrite,
    Trigger,
    dead_letters_of,
    joined,
)
from share_state.partition.settings import PartitionSettings
from share_state.partition.window import Window
from share_state.partition.writes import NO_DELIVERY_COMPLETE_COUNT, DeliveryState, StateBatch, StateWrite

Changed = list[tuple[InFlightBatch, Run]]
"""Runs that changed, ascending, each with its batch."""


class Changes:
    """Makes the writes of one share-partition, and settles them once they are answered.

    Args:
        window: of the share-partition.
        leader_epoch: what writes are fenced by.
        state_epoch: what writes are fenced by.
        counts_completed: whether writes carry the delivery complete count.
    Source: Kafka SharePartition.writeShareGroupState, rollbackOrProcessStateUpdates.
    """

    __slots__ = ("_counts_completed", "_leader_epoch", "_state_epoch", "_window")

    def __init__(self, window: Window, leader_epoch: int, state_epoch: int, *, counts_completed: bool):
        self._window = window
        self._leader_epoch = leader_epoch
        self._state_epoch = state_epoch
        self._counts_completed = counts_completed

    def tentative(self, trigger: Trigger, runs: Changed, reasons: Sequence[DeadLetterReason]) -> Operation | None:
        """One write for changes that are taken back if it fails.

        Args:
            trigger: what made them.
            runs: what changed, already counted; nothing makes no operation.
            reasons: one a run, for those that go to the dead letter queue.
        """
        if not runs:
            return None
        changes = joined([StateBatch(run.first, run.last, run.state, run.count) for _, run in runs])
        letters = dead_letters_of(runs, reasons)
        return Operation(trigger, changes, (PendingWrite(self._write(changes), False, runs, letters),))

    def final(self, changes: tuple[StateBatch, ...], letters: tuple[DeadLetter, ...] = ()) -> PendingWrite:
        """A write for changes that stand in memory whatever becomes of it.

        Args:
            changes: already made and counted.
            letters: to be sent once the write is answered.
        """
        return PendingWrite(self._write(changes), True, [], letters)

    def keep(self, pending: PendingWrite) -> None:
        """The write is durable: what it holds may be delivered, or be let go of."""
        self._answer(pending)
        for _, run in pending.runs:
            run.before = None
            self._settle(run)
        _join(pending.runs)
        self._window.advance()

    def drop(self, pending: PendingWrite, settings: PartitionSettings, now_ms: int) -> None:
        """The write failed: what it holds never happened, unless it stands anyway."""
        self._answer(pending)
        self.take_back(pending.runs, settings, now_ms)
        _join(pending.runs)
        if pending.is_final:
            self._window.advance()

    def take_back(self, runs: Changed, settings: PartitionSettings, now_ms: int) -> None:
        """Give back the locks that tentative changes ended, unless they have run out since. Counts stay as they are.

        Source: Kafka InFlightState.completeStateTransition.
        """
        for _, run in runs:
            before = run.before
            assert before is not None
            self._window.reopens(run)
            run.before = None
            if now_ms <= before.deadline:
                run.state = DeliveryState.ACQUIRED
                run.owner, run.deadline, run.turn = before.owner, before.deadline, before.turn
            else:
                # Not to the dead letter queue: nothing was recorded that it could be resumed from.
                exhausted = before.delivery_count >= settings.delivery_count_limit
                run.state = DeliveryState.ARCHIVED if exhausted else DeliveryState.AVAILABLE
                self._window.completes(run)
                self._settle(run)

    def _write(self, changes: tuple[StateBatch, ...]) -> StateWrite:
        completed = self._window.completed if self._counts_completed else NO_DELIVERY_COMPLETE_COUNT
        return StateWrite(self._leader_epoch, self._state_epoch, self._window.start_offset, completed, changes)

    def _answer(self, pending: PendingWrite) -> None:
        assert not pending.is_answered, "a write is answered once"
        pending.is_answered = True

    def _settle(self, run: Run) -> None:
        """Make a run that became free deliverable, but for what the log start has passed meanwhile."""
        if run.state is DeliveryState.AVAILABLE:
            self._window.freed(run.first)
            if run.first < self._window.start_offset:
                self._window.archive(run.first, self._window.start_offset - 1, DeliveryState.AVAILABLE)


def _join(runs: Changed) -> None:
    for batch in {id(batch): batch for batch, _ in runs}.values():
        batch.join()
