"""Plays events to share-partitions, in order, and tells what became of each."""

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush

from share_state.errors import ShareStateError
from share_state.partition import events as ev
from share_state.partition.conditions import Dialect, Rules
from share_state.partition.draft import DraftRecord
from share_state.partition.handlers import Handlers
from share_state.partition.leaders import Desk, Seat, told_client
from share_state.partition.outcomes import Outcome
from share_state.partition.recorded import MemoryPersister, Persister, SharePartitionKey
from share_state.partition.share_partition import SharePartition

__all__ = ["Dialect", "HistoryError", "Player", "Rules", "play"]


class HistoryError(ShareStateError):
    """Raised when events cannot be played in the order they come in."""


class Player:
    """Plays events one at a time.

    Args:
        persister: who keeps the states; in memory if not given, unused where only control records are written.
        rules: under what conditions.
    """

    def __init__(self, persister: Persister | None = None, rules: Rules | None = None):
        self._rules = rules or Rules()
        self._persister = (persister or MemoryPersister()) if self._rules.dialect != "control_records" else None
        self._desk = Desk(self._persister, self._rules.checkpoint_every)
        self._handlers = Handlers(self._persister, self._desk, self._rules)
        self._seats = self._handlers.seats
        self._deadlines: list[tuple[int, SharePartitionKey]] = []
        self._now_ms = -1

    def apply(self, event: ev.Event) -> Iterator[Outcome]:
        """Let time pass until an event and apply it.

        Args:
            event: not before the ones applied already.
        Returns:
            What came about by itself until then, then what became of the event, then what followed from it.
        Raises:
            HistoryError: the event lies in the past.
        """
        if event.ts_ms < self._now_ms:
            raise HistoryError(f"event {event.seq}: at {event.ts_ms} ms, but it is {self._now_ms} ms already")
        yield from self._expire(event.seq, event.ts_ms)
        self._now_ms = event.ts_ms
        seat = self._seats.get(event.key)
        if seat is None:
            seat = self._seats[event.key] = Seat(event.key)
        outcome = Outcome(event.seq, event.ts_ms, event.key, event.event)
        self._handlers.apply(event, seat, outcome)
        self._watch(seat)
        yield self._finished(seat, outcome)
        if isinstance(event, ev.HoldWrites) and not event.on:
            yield from self._answer_held(seat, event.seq)
        yield from self._dead_letters(seat, event.seq)

    @property
    def acknowledged(self) -> Mapping[str, int]:
        """Records acknowledged so far, by type. Source: KIP-1222, RecordAcknowledgementsPerSec."""
        return self._handlers.acknowledged

    def leader(self, key: SharePartitionKey) -> SharePartition | None:
        """The current leader of a share-partition, None where none has loaded it."""
        seat = self._seats.get(key)
        return None if seat is None else seat.leader

    def draft(self, key: SharePartitionKey) -> DraftRecord | None:
        """What control records hold of a share-partition, None where none were written."""
        seat = self._seats.get(key)
        return None if seat is None else seat.draft

    # By itself

    def _expire(self, seq: int, until_ms: int) -> Iterator[Outcome]:
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] < until_ms:
            deadline, key = heappop(deadlines)
            seat = self._seats[key]
            if seat.watched == deadline:
                seat.watched = None
            if seat.leader is None:
                continue
            # A lock runs out in the first millisecond after its deadline.
            self._now_ms = max(self._now_ms, deadline + 1)
            while operation := seat.leader.expire(deadline + 1):
                outcome = Outcome(seq, deadline + 1, key, operation.trigger)
                self._desk.persist(seat, seat.leader, operation, outcome, self._now_ms)
                yield self._finished(seat, outcome)
                yield from self._dead_letters(seat, seq)
            self._watch(seat)

    def _dead_letters(self, seat: Seat, seq: int) -> Iterator[Outcome]:
        while seat.letters and not seat.holds_letters:
            partition, letter = seat.letters.pop(0)
            operation = partition.dead_lettered(letter) if partition is seat.leader else None
            if operation is not None:
                outcome = Outcome(seq, self._now_ms, seat.key, operation.trigger)
                self._desk.persist(seat, partition, operation, outcome, self._now_ms)
                yield self._finished(seat, outcome)

    def _answer_held(self, seat: Seat, seq: int) -> Iterator[Outcome]:
        while seat.held and not seat.holds:
            partition, operation = seat.held.pop(0)
            outcome = Outcome(seq, self._now_ms, seat.key, operation.trigger)
            code = self._desk.persist(seat, partition, operation, outcome, self._now_ms)
            outcome.error = told_client(code)
            yield self._finished(seat, outcome)

    def _finished(self, seat: Seat, outcome: Outcome) -> Outcome:
        if seat.leader is not None:
            outcome.start_offset, outcome.end_offset = seat.leader.start_offset, seat.leader.end_offset
            if self._rules.traces:
                outcome.memory = seat.leader.memory()
        return outcome

    def _watch(self, seat: Seat) -> None:
        deadline = None if seat.leader is None else seat.leader.next_deadline
        if deadline is not None and (seat.watched is None or deadline < seat.watched):
            seat.watched = deadline
            heappush(self._deadlines, (deadline, seat.key))


def play(
    events: Iterable[ev.Event], persister: Persister | None = None, rules: Rules | None = None
) -> Iterator[Outcome]:
    """Play events in order.

    Args:
        events: times never fall.
        persister: who keeps the states; in memory if not given.
        rules: under what conditions.
    Returns:
        Outcomes, lazily; at least one an event.
    Raises:
        HistoryError: an event lies in the past.
    """
    player = Player(persister, rules)
    for event in events:
        yield from player.apply(event)
