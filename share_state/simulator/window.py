"""Records in flight: runs of offsets alike, within the batches they were acquired in.

The window of a share-partition between its start (SPSO) and its end (SPEO), and the batches in flight in it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from share_state.simulator.types import DeliveryState

TERMINAL = frozenset({DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED})

_first = attrgetter("first")


class Held(NamedTuple):
    """How a member held a run before a change that is not durable yet, to go back to."""

    delivery_count: int
    owner: str
    deadline: int
    turn: int


class Run:
    """Neighbouring offsets that are alike in everything.

    Args:
        first: first offset.
        last: last offset, inclusive.
        state: as deliveries see it, even before a change is durable.
        count: how often delivered.
        owner: the member that holds the lock, None where no lock is held.
        deadline: milliseconds after which the lock is lost, None where no lock is held.
        turn: when the lock was set up, counted; locks of one deadline run out in this order.
    Source: Kafka InFlightState, for all the offsets that share one.
    """

    __slots__ = ("before", "count", "deadline", "first", "last", "owner", "state", "turn")

    def __init__(
        self,
        first: int,
        last: int,
        state: DeliveryState,
        count: int,
        owner: str | None = None,
        deadline: int | None = None,
        turn: int = 0,
    ):
        self.first = first
        self.last = last
        self.state = state
        self.count = count
        self.owner = owner
        self.deadline = deadline
        self.turn = turn
        self.before: Held | None = None

    @property
    def is_settled_terminal(self) -> bool:
        """The run has ended for good, and durably so as far as it ever will be."""
        return self.before is None and self.state in TERMINAL

    @property
    def is_free(self) -> bool:
        """The run may be delivered."""
        return self.state is DeliveryState.AVAILABLE and self.before is None

    @property
    def is_held(self) -> bool:
        """A member holds the run, and no change to it is under way."""
        return self.state is DeliveryState.ACQUIRED and self.before is None

    def lock(self, owner: str, deadline: int, turn: int) -> None:
        """Deliver the run once more."""
        self.turn = turn
        self.state = DeliveryState.ACQUIRED
        self.count += 1
        self.owner = owner
        self.deadline = deadline

    def become(self, state: DeliveryState) -> None:
        """End the lock for good, in another state."""
        self.state = state
        self.owner = None
        self.deadline = None
        self.turn = 0

    def become_tentatively(self, state: DeliveryState) -> None:
        """End the lock until the change is durable or has failed. Source: Kafka InFlightState.startStateTransition."""
        assert self.owner is not None and self.deadline is not None
        self.before = Held(self.count, self.owner, self.deadline, self.turn)
        self.become(state)

    def is_like(self, other: "Run") -> bool:
        """Whether two runs of one state and count are held alike, and no change to them is under way."""
        return (
            self.owner == other.owner
            and self.deadline == other.deadline
            and self.turn == other.turn
            and self.before is None
            and other.before is None
        )


class InFlightBatch:
    """Offsets acquired together: alike throughout, or tracked offset by offset once they no longer are.

    Args:
        runs: tiling the batch, ascending.
        by_offset: whether each offset has a lock of its own; this decides how many writes a lock timeout makes.
    Source: Kafka InFlightBatch.
    """

    __slots__ = ("by_offset", "first", "last", "runs", "watched")

    def __init__(self, runs: list[Run], *, by_offset: bool = False):
        self.first = runs[0].first
        self.last = runs[-1].last
        self.runs = runs
        self.by_offset = by_offset
        self.watched: int | None = None

    def split(self, turn: int) -> None:
        """Track offset by offset from now on: every lock is set up anew, to run out when it did.

        Args:
            turn: of the new locks.
        Source: Kafka InFlightBatch.maybeInitializeOffsetStateUpdate.
        """
        if not self.by_offset:
            self.by_offset = True
            for run in self.runs:
                if run.is_held:
                    run.turn = turn

    def carve(self, first: int, last: int) -> list[Run]:
        """The runs that cover exactly these offsets of the batch; runs across the edges are cut.

        Args:
            first: first offset, within the batch.
            last: last offset, within the batch.
        Returns:
            Runs of the batch, ascending.
        """
        runs = self.runs
        begin = self._cut(first) if first > self.first else 0
        end = self._cut(last + 1) if last < self.last else len(runs)
        return runs[begin:end]

    def overlapping(self, first: int, last: int) -> Iterator[Run]:
        """The runs that share an offset with the range, uncut."""
        runs = self.runs
        for i in range(max(bisect_right(runs, first, key=_first) - 1, 0), len(runs)):
            if runs[i].first > last:
                return
            yield runs[i]

    def join(self) -> None:
        """Make one run of neighbours that are alike."""
        if len(self.runs) == 1:
            return
        last = self.runs[0]
        joined = [last]
        for run in islice(self.runs, 1, None):
            if run.state is last.state and run.count == last.count and run.is_like(last):
                last.last = run.last
            else:
                joined.append(run)
                last = run
        self.runs = joined

    def _cut(self, offset: int) -> int:
        """Have a run begin at the offset; its index."""
        runs = self.runs
        i = bisect_right(runs, offset, key=_first) - 1
        left = runs[i]
        if left.first == offset:
            return i
        assert left.before is None, "a change under way is never cut"
        runs.insert(i + 1, Run(offset, left.last, left.state, left.count, left.owner, left.deadline, left.turn))
        left.last = offset - 1
        return i + 1


@dataclass(slots=True)
class LoadGap:
    """Offsets that no recorded batch covered when the share-partition was loaded; they are fetched again.

    Args:
        start_offset: the first such offset that was not fetched since.
        end_offset: the end of the window at the load; the gap counts only while that has not moved.
    Source: Kafka SharePartition.GapWindow.
    """

    start_offset: int
    end_offset: int


class Window:
    """Start, end and batches of one share-partition, kept consistent through every move.

    Args:
        start_offset: the start.
    Source: Kafka SharePartition: cachedState, startOffset, endOffset, deliveryCompleteCount, findNextFetchOffset.
    """

    __slots__ = ("_firsts", "_free_from", "batches", "completed", "end_offset", "load_gap", "start_offset")

    def __init__(self, start_offset: int):
        self.start_offset = start_offset
        self.end_offset = start_offset
        """The last offset ever fetched; equal to the start while nothing is in flight."""
        self.batches: list[InFlightBatch] = []
        self.completed = 0
        """Terminal offsets at or after the start, changes under way included."""
        self.load_gap: LoadGap | None = None
        self._firsts: list[int] = []
        self._free_from: int | None = None

    # Looking

    @property
    def gap_start(self) -> int | None:
        """Where the open load gap begins, None where there is none."""
        gap = self.load_gap
        return gap.start_offset if gap is not None and gap.end_offset == self.end_offset else None

    @property
    def is_past_batches(self) -> bool:
        """Nothing at or after the start is in flight."""
        return not self.batches or self.start_offset > self.batches[-1].last

    @property
    def in_flight(self) -> int:
        """Offsets from start to end, gaps and terminal ones included. Source: SharePartition.numInFlightRecords."""
        return self.end_offset - self.start_offset + 1 if self.batches else 0

    @property
    def next_end(self) -> int:
        """The first offset that was never fetched."""
        return self.end_offset if self.is_past_batches else self.end_offset + 1

    def floor(self, offset: int) -> int:
        """Index of the last batch that begins at or before the offset, -1 where none does."""
        return bisect_right(self._firsts, offset) - 1

    def between(self, first: int, last: int) -> list[InFlightBatch]:
        """Batches that begin within the range, ascending."""
        return self.batches[bisect_left(self._firsts, first) : bisect_right(self._firsts, last)]

    def overlapping(self, first: int, last: int) -> Iterator[tuple[InFlightBatch, Run]]:
        """Runs that share an offset with the range, ascending, each with its batch."""
        for batch in self.batches[max(self.floor(first), 0) : bisect_right(self._firsts, last)]:
            if batch.last >= first:
                for run in batch.overlapping(first, last):
                    yield batch, run

    # Fetching

    def next_fetch_offset(self) -> int:
        """The offset to read the log from. Source: Kafka SharePartition.nextFetchOffset."""
        if self._free_from is None or self.is_past_batches:
            self._free_from = None
            return self.next_end
        gap = self.gap_start
        # Before `_free_from` all is held or has ended, but a load gap may be open there, or filled up to there.
        begin = 0 if gap is not None else max(self.floor(self._free_from), 0)
        for batch in islice(self.batches, begin, None):
            if gap is not None:
                if batch.first > gap:
                    return gap
                gap = max(batch.last + 1, gap)
            for run in batch.runs:
                if run.is_free:
                    self._free_from = run.first
                    return run.first
        self._free_from = None
        return self.next_end

    def freed(self, offset: int) -> None:
        """Tell that something may be fetched again, at or after the offset."""
        self._free_from = offset if self._free_from is None else min(self._free_from, offset)

    def fetched_up_to(self, next_offset: int) -> None:
        """Tell the load gap which offset follows what was handed out last, be that before the gap or behind.

        Source: Kafka SharePartition.maybeUpdatePersisterGapWindowStartOffset.
        """
        gap = self.load_gap
        if gap is not None and self.gap_start is not None and next_offset <= gap.end_offset:
            gap.start_offset = next_offset
        else:
            self.load_gap = None

    def insert(self, batch: InFlightBatch) -> None:
        """Put a batch in flight where there is none; the end follows it."""
        i = self.floor(batch.first) + 1
        self.batches.insert(i, batch)
        self._firsts.insert(i, batch.first)
        self.end_offset = max(self.end_offset, batch.last)

    # Moving the start

    def completes(self, run: Run) -> None:
        """Count a run that became terminal."""
        if run.state in TERMINAL:
            self.completed += max(run.last - max(run.first, self.start_offset) + 1, 0)

    def reopens(self, run: Run) -> None:
        """Take back `completes`, while the run still is terminal."""
        if run.state in TERMINAL:
            self.completed -= max(run.last - max(run.first, self.start_offset) + 1, 0)

    def move_start(self, offset: int) -> None:
        """Move the start forward; terminal offsets that fall behind it are no longer counted."""
        if offset <= self.start_offset:
            return
        for batch in self.batches:
            if batch.first >= offset:
                break
            if batch.last >= self.start_offset:
                for run in batch.runs:
                    if run.state in TERMINAL:
                        overlap = min(run.last + 1, offset) - max(run.first, self.start_offset)
                        self.completed -= max(overlap, 0)
        self.start_offset = offset
        self.end_offset = max(self.end_offset, offset)

    def advance(self) -> None:
        """Move the start past what has ended at the front, and let go of the batches that lie wholly before it.

        Source: Kafka SharePartition.maybeUpdateCachedStateAndOffsets, findLastOffsetAcknowledged.
        """
        if not self._may_advance():
            return
        ended = self._last_leading_ended()
        if ended is None:
            return
        if ended == self.batches[-1].last:
            self.move_start(ended + 1)
            self.end_offset = self.start_offset
            self._drop(len(self.batches))
            return
        i = self.floor(ended)
        if ended == self.batches[i].last:
            gap = self.gap_start
            follower = self.batches[i + 1].first
            self.move_start(follower if gap is None else min(gap, follower))
            self._drop(i + 1)
        else:
            self.move_start(ended + 1)
            self._drop(i)

    def _may_advance(self) -> bool:
        i = self.floor(self.start_offset)
        if i < 0:
            # Nothing was fetched at the start yet: a gap there holds it.
            return False
        batch = self.batches[i]
        if batch.by_offset and batch.last < self.start_offset:
            # The log start went past a batch tracked by offset: Kafka looks the start up in it, and fails.
            return False
        at = min(self.start_offset, batch.last)
        return next(batch.overlapping(at, at)).is_settled_terminal

    def _last_leading_ended(self) -> int | None:
        ended, gap = None, self.gap_start
        for batch in self.batches:
            if gap is not None and batch.last >= gap:
                return ended
            for run in batch.runs:
                if not run.is_settled_terminal:
                    return ended
                ended = run.last
        return ended

    def _drop(self, count: int) -> None:
        del self.batches[:count]
        del self._firsts[:count]

    def archive(self, first: int, last: int, state: DeliveryState, turn: int = 0) -> bool:
        """Archive what is in a state within a range; changes under way are left alone.

        Args:
            first: first offset.
            last: last offset, inclusive.
            state: what is archived.
            turn: of the locks that are set up anew where a batch is split by this.
        Returns:
            Whether anything was.
        Source: Kafka SharePartition.archiveRecords.
        """
        touched = [
            (batch, run) for batch, run in self.overlapping(first, last) if run.state is state and run.before is None
        ]
        for batch, run in touched:
            low, high = max(first, run.first), min(last, run.last)
            if low > batch.first or high < batch.last:
                batch.split(turn)
            for part in batch.carve(low, high):
                part.become(DeliveryState.ARCHIVED)
                self.completes(part)
        for batch, _ in touched:
            batch.join()
        return bool(touched)

    def tiles(self) -> Iterator[Run]:
        """Every run in flight, ascending."""
        for batch in self.batches:
            yield from batch.runs
