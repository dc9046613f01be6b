"""Records in flight: runs of offsets alike, within the batches they were acquired in."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from share_state.partition.writes import DeliveryState

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
