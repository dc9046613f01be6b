"""The in-flight window of a share-partition: start offset (SPSO), end offset (SPEO) and the batches between."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from share_state.kafka.delivery_states import TERMINAL, DeliveryState
from share_state.simulator.types import StateBatch

_first = attrgetter("first")


class RollbackState(NamedTuple):
    """The lock that a run had before a pending state transition. Source: InFlightState.rollbackState."""

    delivery_count: int
    owner: str
    deadline: int
    lock_seq: int


@dataclass(slots=True, eq=False)
class OffsetRun:
    """Adjacent offsets with the same delivery state, delivery count and lock; offsets are inclusive.

    Args:
        state: in memory, including a transition that is not durable yet.
        count: delivery count.
        owner: member that holds the acquisition lock, or None.
        deadline: last ms at which the lock is valid, or None.
        lock_seq: order of acquisition; locks with the same deadline expire in this order.
        rollback_state: the lock to restore if a pending write fails, or None.
    Source: Kafka InFlightState.
    """

    first: int
    last: int
    state: DeliveryState
    count: int
    owner: str | None = None
    deadline: int | None = None
    lock_seq: int = 0
    rollback_state: RollbackState | None = None

    @property
    def batch(self) -> StateBatch:
        """The run's offsets, state and delivery count."""
        return StateBatch(self.first, self.last, self.state, self.count)

    @property
    def is_terminal(self) -> bool:
        """True if the run is terminal and no write is pending."""
        return self.rollback_state is None and self.state in TERMINAL

    @property
    def is_available(self) -> bool:
        """True if the run can be acquired."""
        return self.state is DeliveryState.AVAILABLE and self.rollback_state is None

    @property
    def is_acquired(self) -> bool:
        """True if a member holds the run and no write is pending."""
        return self.state is DeliveryState.ACQUIRED and self.rollback_state is None

    def lock(self, owner: str, deadline: int, lock_seq: int) -> None:
        """Acquire the run for a member."""
        self.lock_seq = lock_seq
        self.state = DeliveryState.ACQUIRED
        self.count += 1
        self.owner = owner
        self.deadline = deadline

    def transition_to(self, state: DeliveryState) -> None:
        """Change the state and release the lock."""
        self.state = state
        self.owner = None
        self.deadline = None
        self.lock_seq = 0

    def start_transition(self, state: DeliveryState) -> None:
        """Change the state, keeping the lock for a rollback. Source: InFlightState.startStateTransition."""
        assert self.owner is not None and self.deadline is not None
        self.rollback_state = RollbackState(self.count, self.owner, self.deadline, self.lock_seq)
        self.transition_to(state)


class InFlightBatch:
    """Offsets that were acquired together.

    Args:
        runs: ascending, without gaps.
        per_offset: True if each offset has its own lock, so that a lock timeout makes one write per offset.
    Source: Kafka InFlightBatch.
    """

    __slots__ = ("first", "last", "per_offset", "runs", "timer_deadline")

    def __init__(self, runs: list[OffsetRun], *, per_offset: bool = False):
        self.first = runs[0].first
        self.last = runs[-1].last
        self.runs = runs
        self.per_offset = per_offset
        self.timer_deadline: int | None = None

    def track_per_offset(self, lock_seq: int) -> None:
        """Give each offset its own lock. Source: InFlightBatch.maybeInitializeOffsetStateUpdate."""
        if not self.per_offset:
            self.per_offset = True
            for run in self.runs:
                if run.is_acquired:
                    run.lock_seq = lock_seq

    def split_out(self, first: int, last: int) -> list[OffsetRun]:
        """Return the runs that cover exactly [first, last], splitting runs at both ends."""
        runs = self.runs
        begin = self._split_at(first) if first > self.first else 0
        end = self._split_at(last + 1) if last < self.last else len(runs)
        return runs[begin:end]

    def overlapping(self, first: int, last: int) -> Iterator[OffsetRun]:
        """Yield the runs that overlap [first, last]."""
        runs = self.runs
        for i in range(max(bisect_right(runs, first, key=_first) - 1, 0), len(runs)):
            if runs[i].first > last:
                return
            yield runs[i]

    def merge_runs(self) -> None:
        """Merge adjacent runs that are equal."""
        if len(self.runs) == 1:
            return
        last = self.runs[0]
        merged = [last]
        for run in islice(self.runs, 1, None):
            # Equal but for the offsets, and neither has a pending write.
            if (
                (run.state, run.count, run.owner, run.deadline, run.lock_seq)
                == (last.state, last.count, last.owner, last.deadline, last.lock_seq)
                and run.rollback_state is None
                and last.rollback_state is None
            ):
                last.last = run.last
            else:
                merged.append(run)
                last = run
        self.runs = merged

    def _split_at(self, offset: int) -> int:
        """Split the run that contains the offset; return the index of the run that starts there."""
        runs = self.runs
        i = bisect_right(runs, offset, key=_first) - 1
        left = runs[i]
        if left.first == offset:
            return i
        assert left.rollback_state is None, "a run with a pending write is never split"
        runs.insert(i + 1, replace(left, first=offset))
        left.last = offset - 1
        return i + 1


@dataclass(slots=True)
class LoadGap:
    """Offsets that no loaded batch covers; they are fetched again.

    Args:
        start_offset: first offset of the gap that was not fetched yet.
        end_offset: end of the window at load; the gap is closed once the window's end moves.
    Source: Kafka SharePartition.GapWindow.
    """

    start_offset: int
    end_offset: int


class Window:
    """Start, end and in-flight batches of one share-partition.

    Source: Kafka SharePartition: cachedState, startOffset, endOffset, deliveryCompleteCount,
    findNextFetchOffset.
    """

    __slots__ = (
        "_available_from",
        "_firsts",
        "batches",
        "delivery_complete_count",
        "end_offset",
        "load_gap",
        "start_offset",
    )

    def __init__(self, start_offset: int):
        self.start_offset = start_offset
        self.end_offset = start_offset
        """The last fetched offset, inclusive; the start offset while nothing is in flight."""
        self.batches: list[InFlightBatch] = []
        self.delivery_complete_count = 0
        """Terminal offsets at or after the start, pending writes included."""
        self.load_gap: LoadGap | None = None
        self._firsts: list[int] = []
        self._available_from: int | None = None

    @property
    def gap_start(self) -> int | None:
        """Start of the open load gap, or None."""
        gap = self.load_gap
        return gap.start_offset if gap is not None and gap.end_offset == self.end_offset else None

    @property
    def has_no_batch_after_start(self) -> bool:
        """Whether all batches end before the start offset."""
        return not self.batches or self.start_offset > self.batches[-1].last

    @property
    def in_flight_count(self) -> int:
        """Offsets from start to end, gaps included. Source: SharePartition.numInFlightRecords."""
        return self.end_offset - self.start_offset + 1 if self.batches else 0

    @property
    def next_new_offset(self) -> int:
        """The first offset that was never fetched."""
        return self.end_offset if self.has_no_batch_after_start else self.end_offset + 1

    def floor_index(self, offset: int) -> int:
        """Index of the last batch that starts at or before the offset, or -1."""
        return bisect_right(self._firsts, offset) - 1

    def between(self, first: int, last: int) -> list[InFlightBatch]:
        """Batches that start within [first, last]."""
        return self.batches[bisect_left(self._firsts, first) : bisect_right(self._firsts, last)]

    def overlapping(self, first: int, last: int) -> Iterator[tuple[InFlightBatch, OffsetRun]]:
        """Yield (batch, run) for each run that overlaps [first, last]."""
        for batch in self.batches[max(self.floor_index(first), 0) : bisect_right(self._firsts, last)]:
            if batch.last >= first:
                for run in batch.overlapping(first, last):
                    yield batch, run

    def next_fetch_offset(self) -> int:
        """The offset to fetch from. Source: Kafka SharePartition.nextFetchOffset."""
        if self._available_from is None or self.has_no_batch_after_start:
            self._available_from = None
            return self.next_new_offset
        gap = self.gap_start
        # No offset before `_available_from` is available, but a load gap may be open there.
        begin = 0 if gap is not None else max(self.floor_index(self._available_from), 0)
        for batch in islice(self.batches, begin, None):
            if gap is not None:
                if batch.first > gap:
                    return gap
                gap = max(batch.last + 1, gap)
            for run in batch.runs:
                if run.is_available:
                    self._available_from = run.first
                    return run.first
        self._available_from = None
        return self.next_new_offset

    def mark_available_from(self, offset: int) -> None:
        """Note that an offset at or after `offset` is available."""
        self._available_from = offset if self._available_from is None else min(self._available_from, offset)

    def update_load_gap(self, next_offset: int) -> None:
        """Move the load gap's start after an acquisition.

        Source: Kafka SharePartition.maybeUpdatePersisterGapWindowStartOffset.
        """
        gap = self.load_gap
        if gap is not None and self.gap_start is not None and next_offset <= gap.end_offset:
            gap.start_offset = next_offset
        else:
            self.load_gap = None

    def insert(self, batch: InFlightBatch) -> None:
        """Add a batch and extend the end offset."""
        i = self.floor_index(batch.first) + 1
        self.batches.insert(i, batch)
        self._firsts.insert(i, batch.first)
        self.end_offset = max(self.end_offset, batch.last)

    def count_terminal(self, run: OffsetRun, sign: int = 1) -> None:
        """Add a run that became terminal to the delivery complete count; sign -1 undoes it."""
        if run.state in TERMINAL:
            self.delivery_complete_count += sign * max(run.last - max(run.first, self.start_offset) + 1, 0)

    def move_start(self, offset: int) -> None:
        """Move the start forward; terminal offsets before it leave the delivery complete count."""
        if offset <= self.start_offset:
            return
        for batch in self.batches:
            if batch.first >= offset:
                break
            if batch.last >= self.start_offset:
                for run in batch.runs:
                    if run.state in TERMINAL:
                        overlap = min(run.last + 1, offset) - max(run.first, self.start_offset)
                        self.delivery_complete_count -= max(overlap, 0)
        self.start_offset = offset
        self.end_offset = max(self.end_offset, offset)

    def advance_start(self) -> None:
        """Move the start past leading terminal offsets and drop the batches before it.

        Source: Kafka SharePartition.maybeUpdateCachedStateAndOffsets, findLastOffsetAcknowledged.
        """
        if not self._can_advance():
            return
        last_terminal = self._last_leading_terminal()
        if last_terminal is None:
            return
        if last_terminal == self.batches[-1].last:
            self.move_start(last_terminal + 1)
            self.end_offset = self.start_offset
            self._remove_first(len(self.batches))
            return
        i = self.floor_index(last_terminal)
        if last_terminal == self.batches[i].last:
            gap = self.gap_start
            next_first = self.batches[i + 1].first
            self.move_start(next_first if gap is None else min(gap, next_first))
            self._remove_first(i + 1)
        else:
            self.move_start(last_terminal + 1)
            self._remove_first(i)

    def _can_advance(self) -> bool:
        i = self.floor_index(self.start_offset)
        if i < 0:
            # The start offset was not fetched yet.
            return False
        batch = self.batches[i]
        if batch.per_offset and batch.last < self.start_offset:
            # The log start passed a batch tracked per offset: Kafka's lookup of the start fails as well.
            return False
        at = min(self.start_offset, batch.last)
        return next(batch.overlapping(at, at)).is_terminal

    def _last_leading_terminal(self) -> int | None:
        last_terminal, gap = None, self.gap_start
        for batch in self.batches:
            if gap is not None and batch.last >= gap:
                return last_terminal
            for run in batch.runs:
                if not run.is_terminal:
                    return last_terminal
                last_terminal = run.last
        return last_terminal

    def _remove_first(self, count: int) -> None:
        del self.batches[:count]
        del self._firsts[:count]

    def archive(self, first: int, last: int, state: DeliveryState, lock_seq: int = 0) -> bool:
        """Archive offsets of [first, last] that have the given state and no pending write.

        Args:
            lock_seq: sequence number for the locks of a batch that becomes tracked per offset.
        Returns:
            Whether an offset was archived.
        Source: Kafka SharePartition.archiveRecords.
        """
        archived = [
            (batch, run)
            for batch, run in self.overlapping(first, last)
            if run.state is state and run.rollback_state is None
        ]
        for batch, run in archived:
            low, high = max(first, run.first), min(last, run.last)
            if low > batch.first or high < batch.last:
                batch.track_per_offset(lock_seq)
            for part in batch.split_out(low, high):
                part.transition_to(DeliveryState.ARCHIVED)
                self.count_terminal(part)
        for batch, _ in archived:
            batch.merge_runs()
        return bool(archived)

    def runs(self) -> Iterator[OffsetRun]:
        """Yield every in-flight run, ascending."""
        for batch in self.batches:
            yield from batch.runs
