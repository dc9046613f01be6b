"""Operations of a share-partition that want to be persisted, and the dead letters that follow some of them.

Changes of a share-partition on their way to being durable: handed out as writes, then kept or taken back.

From recorded batches to a window, as a new leader builds it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from share_state.errors import ShareStateError
from share_state.simulator.settings import PartitionSettings
from share_state.simulator.types import NO_DELIVERY_COMPLETE_COUNT, DeliveryState, Release, StateBatch, StateWrite
from share_state.simulator.window import InFlightBatch, LoadGap, Run, Window


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


class UnloadableStateError(ShareStateError):
    """Raised when no share-partition can be built from what was recorded."""


def loaded_window(start_offset: int, batches: Iterable[StateBatch], release: Release) -> Window:
    """The window that recorded batches make.

    Args:
        start_offset: the start, known.
        batches: as recorded.
        release: of the broker that loads them.
    Returns:
        Start not yet moved past what has ended.
    Raises:
        UnloadableStateError: a batch before the start, inverted, across another, or in an unknown state.
    Source: Kafka SharePartition.maybeInitialize.
    """
    by_first = {}
    previous, gap = start_offset - 1, None
    for batch in batches:
        _check(batch, start_offset, release)
        if gap is None and batch.first_offset > previous + 1:
            gap = previous + 1
        previous = batch.last_offset
        by_first[batch.first_offset] = batch
    window = Window(start_offset)
    for first in sorted(by_first):
        _, last, state, count = by_first[first]
        if window.batches and window.batches[-1].last >= first:
            raise UnloadableStateError(
                f"recorded batch {first}-{last}: begins before the one ahead of it ends, at {window.batches[-1].last}; "
                "two states of one offset cannot be held"
            )
        run = Run(first, last, DeliveryState(state), count)
        window.insert(InFlightBatch([run]))
        window.completes(run)
    if window.batches:
        window.freed(start_offset)
        if gap is not None and release.fetches_load_gaps:
            window.load_gap = LoadGap(gap, window.end_offset)
    return window


def _check(batch: StateBatch, start_offset: int, release: Release) -> None:
    first, last, state, _ = batch
    if first < start_offset:
        raise UnloadableStateError(f"recorded batch {first}-{last}: begins before the start offset {start_offset}")
    if last < first and release.refuses_inverted_batches:
        raise UnloadableStateError(f"recorded batch {first}-{last}: ends before it begins")
    if state == DeliveryState.ARCHIVING and release.archiving == "refused":
        raise UnloadableStateError(f"recorded batch {first}-{last}: state 3, which {release.name} does not know")
    if state not in set(DeliveryState):
        raise UnloadableStateError(f"recorded batch {first}-{last}: state {state}, which nothing knows")


def unfinished(window: Window, delivery_count_limit: int) -> tuple[DeadLetter, ...]:
    """What was on its way to the dead letter queue when it was recorded.

    Args:
        window: as loaded.
        delivery_count_limit: in force; the reason is not recorded, so it is told from the count.
    """
    return tuple(
        DeadLetter(
            run.first,
            run.last,
            run.count,
            DeadLetterReason.EXHAUSTED if run.count >= delivery_count_limit else DeadLetterReason.REJECTED,
        )
        for run in window.tiles()
        if run.state is DeliveryState.ARCHIVING
    )
