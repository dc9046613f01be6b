"""The leaders of many share-partitions, each with what it persists and where.

What each event does to the leaders of share-partitions.

Plays events to share-partitions, in order, and tells what became of each.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import singledispatchmethod
from heapq import heappop, heappush

from share_state.errors import ShareStateError
from share_state.simulator import events as ev
from share_state.simulator.acquisition import Fetch
from share_state.simulator.draft import DraftRecord
from share_state.simulator.durability import DeadLetter, Operation, PendingWrite, UnloadableStateError
from share_state.simulator.events import Outcome
from share_state.simulator.recorded_state import MemoryPersister, Persister, SharePartitionKey
from share_state.simulator.settings import (
    AckBatch,
    AckType,
    BrokerConfigs,
    DraftConfigs,
    PartitionSettings,
    Rules,
    with_config,
)
from share_state.simulator.share_partition import SharePartition
from share_state.simulator.types import FENCED, CheckpointWrite, ErrorCode, StateRead


@dataclass(slots=True)
class Seat:
    """One share-partition as the simulation holds it.

    Args:
        key: which one.
        leaders: every leader there was, by leader epoch; an old one does not know yet that it is.
        leader: the current one.
        draft: what control records hold, None where the draft's dialect is not written or nothing was initialized.
        fails: writes fail.
        holds: writes stay unanswered.
        held: unanswered operations, in order.
        holds_letters: the dead letter queue is silent.
        letters: on their way to it.
        watched: the deadline that the player waits for.
    """

    key: SharePartitionKey
    leaders: dict[int, SharePartition] = field(default_factory=dict)
    leader: SharePartition | None = None
    draft: DraftRecord | None = None
    state_epoch: int = 0
    fails: bool = False
    holds: bool = False
    held: list[tuple[SharePartition, Operation]] = field(default_factory=list)
    holds_letters: bool = False
    letters: list[tuple[SharePartition, DeadLetter]] = field(default_factory=list)
    watched: int | None = None


class Desk:
    """Has operations persisted and tells their share-partition how it went.

    Args:
        persister: the state dialect's, None where only the draft's is written.
        checkpoint_every: how many deltas make a checkpoint due in the draft's dialect, None for never.
    Source: Kafka SharePartition.writeShareGroupState.
    """

    def __init__(self, persister: Persister | None, checkpoint_every: int | None):
        self._persister = persister
        self._checkpoint_every = checkpoint_every

    def persist(
        self, seat: Seat, partition: SharePartition, operation: Operation, outcome: Outcome, now_ms: int
    ) -> ErrorCode:
        """Persist one operation, or hold it back.

        Args:
            seat: where the share-partition sits.
            partition: which of its leaders made it.
            operation: what is to be persisted.
            outcome: what was persisted is told there.
            now_ms: the time.
        Returns:
            What the share coordinator answered; NONE while it is silent.
        """
        if seat.holds:
            seat.held.append((partition, operation))
            return ErrorCode.NONE
        # The delta is made while the change is under way, before a start moves or a lock is given back.
        delta = seat.draft.delta(operation.changes, partition) if seat.draft is not None else None
        worst = ErrorCode.NONE
        for pending in operation.writes:
            code = self._answer(seat, partition, pending, outcome, now_ms)
            worst = worst if code is ErrorCode.NONE else code
        if delta is not None and seat.draft is not None and worst is ErrorCode.NONE:
            seat.draft.written(delta)
            outcome.delta = delta
            if self._checkpoint_every is not None and seat.draft.deltas >= self._checkpoint_every:
                self.checkpoint(seat, outcome)
        return worst

    def _answer(
        self, seat: Seat, partition: SharePartition, pending: PendingWrite, outcome: Outcome, now_ms: int
    ) -> ErrorCode:
        if seat.fails:
            code = ErrorCode.KAFKA_STORAGE_ERROR
        elif self._persister is not None:
            code = self._persister.write(seat.key, pending.write, now_ms)
        else:
            code = ErrorCode.NONE if partition is seat.leader else ErrorCode.FENCED_LEADER_EPOCH
        if code is ErrorCode.NONE:
            outcome.writes.append(pending.write)
            letters = partition.written(pending)
        else:
            outcome.refused.append((pending.write, code))
            letters = partition.failed(pending, now_ms, code)
        seat.letters += [(partition, letter) for letter in letters]
        return code

    def checkpoint(self, seat: Seat, outcome: Outcome) -> None:
        """Write a checkpoint of the current leader's state, where the draft's dialect is written."""
        if seat.draft is not None and seat.leader is not None:
            checkpoint = seat.draft.checkpoint(seat.leader)
            seat.draft.checkpointed(checkpoint)
            outcome.checkpoint = checkpoint


def told_client(code: ErrorCode) -> ErrorCode:
    """What a client hears of a failed write: a fenced leader is none. Source: SharePartition.fetchPersisterError."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in FENCED else code


COUNTED: dict[int, str] = {
    AckType.ACCEPT: "Accept",
    AckType.RELEASE: "Release",
    AckType.REJECT: "Reject",
    AckType.RENEW: "Renew",
}
"""Tag ackType of RecordAcknowledgementsPerSec; gaps are not counted. Source: KIP-1222."""


class Handlers:
    """Applies events, each to one share-partition, at the event's own time.

    Args:
        persister: who keeps the states, None where only control records are written.
        desk: has operations persisted.
        rules: under what conditions.
    """

    def __init__(self, persister: Persister | None, desk: Desk, rules: Rules):
        self._persister = persister
        self._desk = desk
        self._rules = rules
        self.seats: dict[SharePartitionKey, Seat] = {}
        self._settings: dict[str, PartitionSettings] = {}
        self._default_settings = rules.settings or rules.configs.settings()
        self._groups: set[str] = set()
        self.acknowledged: Counter[str] = Counter()
        """Records acknowledged so far, by type."""

    def apply(self, event: ev.Event, seat: Seat, outcome: Outcome) -> None:
        """Apply an event.

        Args:
            event: what happens.
            seat: where its share-partition sits.
            outcome: what became of it is told there.
        """
        if not self._is_refused(event, outcome):
            self._on(event, seat, outcome)

    def _is_refused(self, event: ev.Event, outcome: Outcome) -> bool:
        """Whether the draft's brokers would not have the event at all."""
        configs = self._rules.configs
        if not isinstance(configs, DraftConfigs):
            return False
        if not configs.enable:
            outcome.error, outcome.message = ErrorCode.UNSUPPORTED_VERSION, "group.share.enable is false"
            return True
        self._groups.add(event.group)
        if len(self._groups) > configs.max_groups:
            self._groups.discard(event.group)
            outcome.error = ErrorCode.GROUP_MAX_SIZE_REACHED
            outcome.message = f"{configs.max_groups} share groups are there already (group.share.max.groups)"
            return True
        return False

    def _leader(self, seat: Seat, outcome: Outcome, leader_epoch: int | None = None) -> SharePartition | None:
        leader = seat.leader if leader_epoch is None else seat.leaders.get(leader_epoch)
        if leader is None:
            outcome.error, outcome.message = (
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "no leader has loaded the share-partition",
            )
        return leader

    @singledispatchmethod
    def _on(self, event: ev.Event, seat: Seat, outcome: Outcome) -> None:
        raise NotImplementedError(event.event)

    @_on.register
    def _(self, event: ev.Init, seat: Seat, outcome: Outcome) -> None:
        if self._persister is not None:
            outcome.error = self._persister.initialize(seat.key, event.state_epoch, event.start_offset, event.ts_ms)
            if outcome.error is not ErrorCode.NONE:
                return
        seat.state_epoch = event.state_epoch
        if self._rules.dialect != "share_group_state":
            start = max(event.start_offset, 0)
            outcome.checkpoint = CheckpointWrite(start, start, ())
            seat.draft = DraftRecord(outcome.checkpoint)

    @_on.register
    def _(self, event: ev.Open, seat: Seat, outcome: Outcome) -> None:
        self._load(seat, event.leader_epoch, event.reset_offset, outcome)

    @_on.register
    def _(self, event: ev.Crash, seat: Seat, outcome: Outcome) -> None:
        leader = self._leader(seat, outcome)
        if leader is not None:
            seat.held.clear()
            self._load(seat, leader.leader_epoch, leader.start_offset, outcome)

    def _load(self, seat: Seat, leader_epoch: int, reset_offset: int, outcome: Outcome) -> None:
        read = self._read(seat, leader_epoch, outcome.ts_ms)
        if isinstance(read, ErrorCode):
            outcome.error, outcome.message = read, "the share coordinator gives no state to load"
            return
        settings = self._settings.get(seat.key.group, self._default_settings)
        leader = seat.leaders[leader_epoch] = SharePartition(leader_epoch, settings, self._rules.release)
        try:
            letters = leader.load(read, reset_offset)
        except UnloadableStateError as error:
            outcome.error, outcome.message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
            letters = ()
        seat.leader = leader
        seat.letters += [(leader, letter) for letter in letters]

    def _read(self, seat: Seat, leader_epoch: int, now_ms: int) -> StateRead | ErrorCode:
        if self._persister is not None:
            return self._persister.read(seat.key, leader_epoch, now_ms)
        return ErrorCode.INVALID_REQUEST if seat.draft is None else seat.draft.read(seat.state_epoch)

    @_on.register
    def _(self, event: ev.Acquire, seat: Seat, outcome: Outcome) -> None:
        leader = self._leader(seat, outcome)
        if leader is None:
            return
        fetch_offset = event.log_batches[0].first_offset if event.fetch_offset is None else event.fetch_offset
        fetch = Fetch(event.member, event.log_batches, fetch_offset, event.max_records, event.batch_size, event.mode)
        outcome.acquired = leader.acquire(fetch, event.ts_ms)
        outcome.lock_timeout_ms = leader.settings.record_lock_duration_ms

    @_on.register
    def _(self, event: ev.Ack, seat: Seat, outcome: Outcome) -> None:
        leader = self._leader(seat, outcome, event.leader_epoch)
        if leader is None:
            return
        if limits := _limits_of_renewal(event):
            outcome.error = ErrorCode.INVALID_REQUEST
            outcome.message = f"a fetch that renews must have 0 for {', '.join(limits)}"
            return
        answer = leader.acknowledge(
            event.member, event.batches, event.ts_ms, is_renew_ack=event.is_renew_ack, version=event.version
        )
        outcome.error, outcome.message = answer.error, answer.message
        outcome.lock_timeout_ms = answer.lock_timeout_ms
        if answer.error is ErrorCode.NONE:
            self._count(event.batches)
        if answer.operation is not None:
            code = self._desk.persist(seat, leader, answer.operation, outcome, event.ts_ms)
            outcome.error = told_client(code)

    def _count(self, batches: Iterable[AckBatch]) -> None:
        for first, last, types in batches:
            for kind, count in Counter(types).items():
                if kind in COUNTED:
                    self.acknowledged[COUNTED[kind]] += count if len(types) > 1 else last - first + 1

    @_on.register
    def _(self, event: ev.MemberLeave, seat: Seat, outcome: Outcome) -> None:
        leader = self._leader(seat, outcome)
        if leader is not None and (operation := leader.release_member(event.member)) is not None:
            outcome.error = told_client(self._desk.persist(seat, leader, operation, outcome, event.ts_ms))

    @_on.register
    def _(self, event: ev.LsoMove, seat: Seat, outcome: Outcome) -> None:
        if (leader := self._leader(seat, outcome)) is not None:
            leader.move_log_start(event.offset)

    @_on.register
    def _(self, event: ev.LogHole, seat: Seat, outcome: Outcome) -> None:
        if (leader := self._leader(seat, outcome)) is not None:
            leader.archive_hole(event.first, event.last)

    @_on.register
    def _(self, event: ev.Aborted, seat: Seat, outcome: Outcome) -> None:
        if (leader := self._leader(seat, outcome)) is not None:
            leader.archive_aborted(event.first, event.last)

    @_on.register
    def _(self, event: ev.Checkpoint, seat: Seat, outcome: Outcome) -> None:
        if self._leader(seat, outcome) is not None:
            self._desk.checkpoint(seat, outcome)

    @_on.register
    def _(self, event: ev.Config, seat: Seat, outcome: Outcome) -> None:
        group = seat.key.group
        configs = self._rules.configs
        bounds = configs if isinstance(configs, BrokerConfigs) else None
        settings = with_config(self._settings.get(group, self._default_settings), event.name, event.value, bounds)
        self._settings[group] = settings
        for other in self.seats.values():
            if other.key.group == group and other.leader is not None:
                other.leader.configure(settings)

    @_on.register
    def _(self, event: ev.FailWrites, seat: Seat, outcome: Outcome) -> None:
        seat.fails = event.on

    @_on.register
    def _(self, event: ev.HoldWrites, seat: Seat, outcome: Outcome) -> None:
        seat.holds = event.on

    @_on.register
    def _(self, event: ev.HoldDeadLetters, seat: Seat, outcome: Outcome) -> None:
        seat.holds_letters = event.on

    @_on.register
    def _(self, event: ev.ColdSnapshot, seat: Seat, outcome: Outcome) -> None:
        if self._persister is not None:
            self._persister.cold_snapshot(seat.key, event.ts_ms)

    @_on.register
    def _(self, event: ev.Delete, seat: Seat, outcome: Outcome) -> None:
        if self._persister is not None:
            outcome.error = self._persister.delete(seat.key, event.ts_ms)
        self.seats[seat.key] = Seat(seat.key)
        seat.leader = None

    @_on.register
    def _(self, event: ev.Prune, seat: Seat, outcome: Outcome) -> None:
        if self._persister is not None:
            self._persister.prune(event.ts_ms)

    @_on.register
    def _(self, event: ev.Advance, seat: Seat, outcome: Outcome) -> None:
        """Time has passed already."""


def _limits_of_renewal(event: ev.Ack) -> list[str]:
    """The limits of a renewing fetch that are not 0. Source: KIP-1222, ShareFetch."""
    if event.route != "fetch" or not event.is_renew_ack:
        return []
    names = ("max_wait_ms", "min_bytes", "max_bytes", "max_records")
    return [name for name in names if getattr(event, name)]


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
