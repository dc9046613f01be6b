"""Locks that end without an acknowledgement: they run out, or their member leaves."""

from collections.abc import Sequence

from share_state.partition.changes import Changed, Changes
from share_state.partition.in_flight import TERMINAL, InFlightBatch, Run
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
from share_state.partition.writes import DeliveryState, StateBatch


class Lapse:
    """Takes records back from members that did not say what became of them.

    Args:
        window: of the share-partition.
        changes: where the writes are made.
        settings: limits in force.
    Source: Kafka SharePartition.releaseAcquisitionLockOnTimeout, releaseAcquiredRecords.
    """

    __slots__ = ("_changes", "_settings", "_window")

    def __init__(self, window: Window, changes: Changes, settings: PartitionSettings):
        self._window = window
        self._changes = changes
        self._settings = settings

    def of_member(self, member: str, *, lowers_count: bool) -> Operation | None:
        """Take back everything a member holds, in one write.

        Args:
            member: who left.
            lowers_count: whether its deliveries do not count.
        """
        lowered = 1 if lowers_count else 0
        changed: Changed = []
        for batch in self._window.batches:
            held = [run for run in batch.runs if run.owner == member and run.is_held]
            for part in self._cut_at_start(batch, held):
                part.become_tentatively(self._state_of(part, part.count - lowered))
                if part.state is DeliveryState.AVAILABLE:
                    part.count -= lowered
                self._window.completes(part)
                changed.append((batch, part))
        return self._changes.tentative(Trigger.MEMBER_LEAVE, changed, [DeadLetterReason.EXHAUSTED] * len(changed))

    def of_locks(self, expired: Sequence[tuple[InFlightBatch, Run]]) -> Operation | None:
        """Take back runs whose lock ran out: one write a batch, or one an offset where it is tracked so.

        Args:
            expired: the runs in question, each with its batch, in the order that the writes come in.
        """
        changed: list[StateBatch] = []
        writes: list[PendingWrite] = []
        for batch, run in expired:
            by_offset = batch.by_offset
            parts = self._cut_at_start(batch, [run])
            for part in parts:
                part.become(self._state_of(part, part.count))
                if part.state is DeliveryState.AVAILABLE:
                    self._window.freed(part.first)
            writes += self._by_offset(parts) if by_offset else [self._at_once(batch, parts)]
            changed += _state_batches(parts)
        for batch, _ in expired:
            batch.join()
        return Operation(Trigger.LOCK_TIMEOUT, joined(sorted(changed)), tuple(writes)) if writes else None

    def _at_once(self, batch: InFlightBatch, parts: list[Run]) -> PendingWrite:
        for part in parts:
            self._window.completes(part)
        letters = dead_letters_of([(batch, part) for part in parts], [DeadLetterReason.EXHAUSTED] * len(parts))
        return self._changes.final(tuple(_state_batches(parts)), letters)

    def _by_offset(self, parts: list[Run]) -> list[PendingWrite]:
        writes = []
        for part in parts:
            for offset in range(part.first, part.last + 1):
                if part.state in TERMINAL and offset >= self._window.start_offset:
                    self._window.completed += 1
                letters = ()
                if part.state is DeliveryState.ARCHIVING:
                    letters = (DeadLetter(offset, offset, part.count, DeadLetterReason.EXHAUSTED),)
                writes.append(self._changes.final((StateBatch(offset, offset, part.state, part.count),), letters))
        return writes

    def _cut_at_start(self, batch: InFlightBatch, runs: list[Run]) -> list[Run]:
        """The runs, cut where the start lies within one: what is before it ends, whatever the rest may do."""
        start = self._window.start_offset
        parts: list[Run] = []
        for run in runs:
            first, last = run.first, run.last
            if first < start <= last:
                batch.by_offset = True
                parts += batch.carve(first, start - 1) + batch.carve(start, last)
            else:
                parts.append(run)
        return parts

    def _state_of(self, run: Run, count: int) -> DeliveryState:
        if run.last < self._window.start_offset:
            return DeliveryState.ARCHIVED
        return self._settings.state_after_release(count)


def _state_batches(runs: list[Run]) -> list[StateBatch]:
    return [StateBatch(run.first, run.last, run.state, run.count) for run in runs]
