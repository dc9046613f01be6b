"""Plays events on the leaders of share-partitions, and persists what they change."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import singledispatchmethod
from heapq import heappop, heappush

from share_state.errors import ShareStateError
from share_state.simulator import events as ev
from share_state.simulator.acquisition import Fetch
from share_state.simulator.draft import DraftRecord
from share_state.simulator.durability import DeadLetter, Operation, PendingWrite, UnloadableStateError
from share_state.simulator.events import EventResult
from share_state.simulator.recorded_state import MemoryPersister, Persister, SharePartitionKey
from share_state.simulator.settings import (
    BrokerConfigs,
    DraftConfigs,
    PartitionSettings,
    PlayerSettings,
    with_config,
)
from share_state.simulator.share_partition import SharePartition
from share_state.simulator.types import FENCED, CheckpointWrite, ErrorCode, StateRead


@dataclass(slots=True)
class SharePartitionSlot:
    """One share-partition of a player.

    Args:
        leaders: by leader epoch; earlier ones do not know yet that they are fenced.
        leader: the current one.
        draft: persisted control records, or None.
        fail_writes: writes fail.
        hold_writes: writes get no response.
        held_operations: operations without a response, in order.
        hold_dead_letters: the dead letter queue does not respond.
        dead_letters: sent to the queue, without a response.
        timer_deadline: the deadline that the player has scheduled.
    """

    key: SharePartitionKey
    leaders: dict[int, SharePartition] = field(default_factory=dict)
    leader: SharePartition | None = None
    draft: DraftRecord | None = None
    state_epoch: int = 0
    fail_writes: bool = False
    hold_writes: bool = False
    held_operations: list[tuple[SharePartition, Operation]] = field(default_factory=list)
    hold_dead_letters: bool = False
    dead_letters: list[tuple[SharePartition, DeadLetter]] = field(default_factory=list)
    timer_deadline: int | None = None


class WriteDispatcher:
    """Persists operations and reports the results to their share-partition.

    Args:
        persister: of the state dialect, or None.
        checkpoint_every: deltas before a checkpoint in the draft dialect; None for never.
    Source: Kafka SharePartition.writeShareGroupState.
    """

    def __init__(self, persister: Persister | None, checkpoint_every: int | None):
        self._persister = persister
        self._checkpoint_every = checkpoint_every

    def persist(
        self,
        slot: SharePartitionSlot,
        partition: SharePartition,
        operation: Operation,
        result: EventResult,
        now_ms: int,
    ) -> ErrorCode:
        """Persist an operation, or hold it; returns the coordinator's error, NONE while it is held.

        Args:
            partition: the leader that made the operation.
            result: gets what was persisted.
        """
        if slot.hold_writes:
            slot.held_operations.append((partition, operation))
            return ErrorCode.NONE
        # Built while the transition is pending: the response may move the start or restore locks.
        delta = slot.draft.build_delta(operation.changes, partition) if slot.draft is not None else None
        worst = ErrorCode.NONE
        for pending in operation.writes:
            code = self._write(slot, partition, pending, result, now_ms)
            worst = worst if code is ErrorCode.NONE else code
        if delta is not None and slot.draft is not None and worst is ErrorCode.NONE:
            slot.draft.apply_delta(delta)
            result.delta = delta
            if self._checkpoint_every is not None and slot.draft.deltas >= self._checkpoint_every:
                self.checkpoint(slot, result)
        return worst

    def _write(
        self,
        slot: SharePartitionSlot,
        partition: SharePartition,
        pending: PendingWrite,
        result: EventResult,
        now_ms: int,
    ) -> ErrorCode:
        if slot.fail_writes:
            code = ErrorCode.KAFKA_STORAGE_ERROR
        elif self._persister is not None:
            code = self._persister.write(slot.key, pending.write, now_ms)
        else:
            code = ErrorCode.NONE if partition is slot.leader else ErrorCode.FENCED_LEADER_EPOCH
        if code is ErrorCode.NONE:
            result.writes.append(pending.write)
            dead_letters = partition.write_succeeded(pending)
        else:
            result.refused.append((pending.write, code))
            dead_letters = partition.write_failed(pending, now_ms, code)
        slot.dead_letters += [(partition, dead_letter) for dead_letter in dead_letters]
        return code

    def checkpoint(self, slot: SharePartitionSlot, result: EventResult) -> None:
        """Write a checkpoint of the current leader's state, if the draft dialect is written."""
        if slot.draft is not None and slot.leader is not None:
            checkpoint = slot.draft.build_checkpoint(slot.leader)
            slot.draft.apply_checkpoint(checkpoint)
            result.checkpoint = checkpoint


def client_error(code: ErrorCode) -> ErrorCode:
    """The error that clients get for a failed write. Source: SharePartition.fetchPersisterError."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in FENCED else code


class EventHandlers:
    """Applies each event to one share-partition."""

    def __init__(self, persister: Persister | None, dispatcher: WriteDispatcher, settings: PlayerSettings):
        self._persister = persister
        self._dispatcher = dispatcher
        self._player_settings = settings
        self.slots: dict[SharePartitionKey, SharePartitionSlot] = {}
        self._settings: dict[str, PartitionSettings] = {}
        self._default_settings = settings.settings or settings.configs.settings()
        self._groups: set[str] = set()

    def apply(self, event: ev.Event, slot: SharePartitionSlot, result: EventResult) -> None:
        """Apply an event and set its result."""
        if not self._is_refused(event, result):
            self._on(event, slot, result)

    def _is_refused(self, event: ev.Event, result: EventResult) -> bool:
        """True if brokers of the draft refuse the event."""
        configs = self._player_settings.configs
        if not isinstance(configs, DraftConfigs):
            return False
        if not configs.enable:
            result.error, result.message = ErrorCode.UNSUPPORTED_VERSION, "group.share.enable is false"
            return True
        self._groups.add(event.group)
        if len(self._groups) > configs.max_groups:
            self._groups.discard(event.group)
            result.error = ErrorCode.GROUP_MAX_SIZE_REACHED
            result.message = f"{configs.max_groups} share groups are there already (group.share.max.groups)"
            return True
        return False

    def _leader(
        self, slot: SharePartitionSlot, result: EventResult, leader_epoch: int | None = None
    ) -> SharePartition | None:
        leader = slot.leader if leader_epoch is None else slot.leaders.get(leader_epoch)
        if leader is None:
            result.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            result.message = "no leader has loaded the share-partition"
        return leader

    @singledispatchmethod
    def _on(self, event: ev.Event, slot: SharePartitionSlot, result: EventResult) -> None:
        raise NotImplementedError(event.event)

    @_on.register
    def _(self, event: ev.Init, slot: SharePartitionSlot, result: EventResult) -> None:
        if self._persister is not None:
            result.error = self._persister.initialize(slot.key, event.state_epoch, event.start_offset, event.ts_ms)
            if result.error is not ErrorCode.NONE:
                return
        slot.state_epoch = event.state_epoch
        if self._player_settings.dialect != "share_group_state":
            start = max(event.start_offset, 0)
            result.checkpoint = CheckpointWrite(start, start, ())
            slot.draft = DraftRecord(result.checkpoint)

    @_on.register
    def _(self, event: ev.Open, slot: SharePartitionSlot, result: EventResult) -> None:
        self._load(slot, event.leader_epoch, event.reset_offset, result)

    @_on.register
    def _(self, event: ev.Crash, slot: SharePartitionSlot, result: EventResult) -> None:
        leader = self._leader(slot, result)
        if leader is not None:
            slot.held_operations.clear()
            self._load(slot, leader.leader_epoch, leader.start_offset, result)

    def _load(self, slot: SharePartitionSlot, leader_epoch: int, reset_offset: int, result: EventResult) -> None:
        read = self._read(slot, leader_epoch, result.ts_ms)
        if isinstance(read, ErrorCode):
            result.error, result.message = read, "the share coordinator gives no state to load"
            return
        settings = self._settings.get(slot.key.group, self._default_settings)
        leader = slot.leaders[leader_epoch] = SharePartition(leader_epoch, settings, self._player_settings.release)
        try:
            dead_letters = leader.load(read, reset_offset)
        except UnloadableStateError as error:
            result.error, result.message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
            dead_letters = ()
        slot.leader = leader
        slot.dead_letters += [(leader, dead_letter) for dead_letter in dead_letters]

    def _read(self, slot: SharePartitionSlot, leader_epoch: int, now_ms: int) -> StateRead | ErrorCode:
        if self._persister is not None:
            return self._persister.read(slot.key, leader_epoch, now_ms)
        return ErrorCode.INVALID_REQUEST if slot.draft is None else slot.draft.read(slot.state_epoch)

    @_on.register
    def _(self, event: ev.Acquire, slot: SharePartitionSlot, result: EventResult) -> None:
        leader = self._leader(slot, result)
        if leader is None:
            return
        fetch_offset = event.log_batches[0].first_offset if event.fetch_offset is None else event.fetch_offset
        fetch = Fetch(event.member, event.log_batches, fetch_offset, event.max_records, event.batch_size, event.mode)
        result.acquired = leader.acquire(fetch, event.ts_ms)
        result.lock_timeout_ms = leader.settings.record_lock_duration_ms

    @_on.register
    def _(self, event: ev.Ack, slot: SharePartitionSlot, result: EventResult) -> None:
        leader = self._leader(slot, result, event.leader_epoch)
        if leader is None:
            return
        if limits := _limits_of_renewal(event):
            result.error = ErrorCode.INVALID_REQUEST
            result.message = f"a fetch that renews must have 0 for {', '.join(limits)}"
            return
        answer = leader.acknowledge(
            event.member, event.batches, event.ts_ms, is_renew_ack=event.is_renew_ack, version=event.version
        )
        result.error, result.message = answer.error, answer.message
        result.lock_timeout_ms = answer.lock_timeout_ms
        if answer.operation is not None:
            code = self._dispatcher.persist(slot, leader, answer.operation, result, event.ts_ms)
            result.error = client_error(code)

    @_on.register
    def _(self, event: ev.MemberLeave, slot: SharePartitionSlot, result: EventResult) -> None:
        leader = self._leader(slot, result)
        if leader is not None and (operation := leader.release_member(event.member)) is not None:
            result.error = client_error(self._dispatcher.persist(slot, leader, operation, result, event.ts_ms))

    @_on.register
    def _(self, event: ev.LsoMove, slot: SharePartitionSlot, result: EventResult) -> None:
        if (leader := self._leader(slot, result)) is not None:
            leader.move_log_start(event.offset)

    @_on.register
    def _(self, event: ev.LogHole, slot: SharePartitionSlot, result: EventResult) -> None:
        if (leader := self._leader(slot, result)) is not None:
            leader.archive_hole(event.first, event.last)

    @_on.register
    def _(self, event: ev.Aborted, slot: SharePartitionSlot, result: EventResult) -> None:
        if (leader := self._leader(slot, result)) is not None:
            leader.archive_aborted(event.first, event.last)

    @_on.register
    def _(self, event: ev.Checkpoint, slot: SharePartitionSlot, result: EventResult) -> None:
        if self._leader(slot, result) is not None:
            self._dispatcher.checkpoint(slot, result)

    @_on.register
    def _(self, event: ev.Config, slot: SharePartitionSlot, result: EventResult) -> None:
        group = slot.key.group
        configs = self._player_settings.configs
        bounds = configs if isinstance(configs, BrokerConfigs) else None
        settings = with_config(self._settings.get(group, self._default_settings), event.name, event.value, bounds)
        self._settings[group] = settings
        for other in self.slots.values():
            if other.key.group == group and other.leader is not None:
                other.leader.configure(settings)

    @_on.register
    def _(self, event: ev.FailWrites, slot: SharePartitionSlot, result: EventResult) -> None:
        slot.fail_writes = event.on

    @_on.register
    def _(self, event: ev.HoldWrites, slot: SharePartitionSlot, result: EventResult) -> None:
        slot.hold_writes = event.on

    @_on.register
    def _(self, event: ev.HoldDeadLetters, slot: SharePartitionSlot, result: EventResult) -> None:
        slot.hold_dead_letters = event.on

    @_on.register
    def _(self, event: ev.ColdSnapshot, slot: SharePartitionSlot, result: EventResult) -> None:
        if self._persister is not None:
            self._persister.cold_snapshot(slot.key, event.ts_ms)

    @_on.register
    def _(self, event: ev.Delete, slot: SharePartitionSlot, result: EventResult) -> None:
        if self._persister is not None:
            result.error = self._persister.delete(slot.key, event.ts_ms)
        self.slots[slot.key] = SharePartitionSlot(slot.key)
        slot.leader = None

    @_on.register
    def _(self, event: ev.Prune, slot: SharePartitionSlot, result: EventResult) -> None:
        if self._persister is not None:
            self._persister.prune(event.ts_ms)

    @_on.register
    def _(self, event: ev.Advance, slot: SharePartitionSlot, result: EventResult) -> None:
        """Time has passed already."""


def _limits_of_renewal(event: ev.Ack) -> list[str]:
    """The nonzero limits of a renewing fetch. Source: KIP-1222, ShareFetch."""
    if event.route != "fetch" or not event.is_renew_ack:
        return []
    names = ("max_wait_ms", "min_bytes", "max_bytes", "max_records")
    return [name for name in names if getattr(event, name)]


class HistoryError(ShareStateError):
    """Raised when events are not in time order."""


class EventPlayer:
    """Plays events in time order.

    Args:
        persister: in memory if None; unused if only control records are written.
    """

    def __init__(self, persister: Persister | None = None, settings: PlayerSettings | None = None):
        self._settings = settings or PlayerSettings()
        self._persister = (persister or MemoryPersister()) if self._settings.dialect != "control_records" else None
        self._dispatcher = WriteDispatcher(self._persister, self._settings.checkpoint_every)
        self._handlers = EventHandlers(self._persister, self._dispatcher, self._settings)
        self._slots = self._handlers.slots
        self._deadlines: list[tuple[int, SharePartitionKey]] = []
        self._now_ms = -1

    def apply(self, event: ev.Event) -> Iterator[EventResult]:
        """Advance the time to an event and apply it.

        Returns:
            Results of lock timeouts until then, of the event, and of what followed from it.
        Raises:
            HistoryError: the event is in the past.
        """
        if event.ts_ms < self._now_ms:
            raise HistoryError(f"event {event.seq}: at {event.ts_ms} ms, but it is {self._now_ms} ms already")
        yield from self._expire(event.seq, event.ts_ms)
        self._now_ms = event.ts_ms
        slot = self._slots.get(event.key)
        if slot is None:
            slot = self._slots[event.key] = SharePartitionSlot(event.key)
        result = EventResult(event.seq, event.ts_ms, event.key, event.event)
        self._handlers.apply(event, slot, result)
        self._schedule_expiry(slot)
        yield self._with_offsets(slot, result)
        if isinstance(event, ev.HoldWrites) and not event.on:
            yield from self._release_held_writes(slot, event.seq)
        yield from self._dead_letters(slot, event.seq)

    def leader(self, key: SharePartitionKey) -> SharePartition | None:
        """The current leader of a share-partition, or None."""
        slot = self._slots.get(key)
        return None if slot is None else slot.leader

    def draft(self, key: SharePartitionKey) -> DraftRecord | None:
        """The persisted control records of a share-partition, or None."""
        slot = self._slots.get(key)
        return None if slot is None else slot.draft

    def _expire(self, seq: int, until_ms: int) -> Iterator[EventResult]:
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] < until_ms:
            deadline, key = heappop(deadlines)
            slot = self._slots[key]
            if slot.timer_deadline == deadline:
                slot.timer_deadline = None
            if slot.leader is None:
                continue
            # A lock expires in the first ms after its deadline.
            self._now_ms = max(self._now_ms, deadline + 1)
            while operation := slot.leader.expire_locks(deadline + 1):
                yield self._persist(slot, slot.leader, operation, seq, deadline + 1)[0]
                yield from self._dead_letters(slot, seq)
            self._schedule_expiry(slot)

    def _dead_letters(self, slot: SharePartitionSlot, seq: int) -> Iterator[EventResult]:
        while slot.dead_letters and not slot.hold_dead_letters:
            partition, dead_letter = slot.dead_letters.pop(0)
            operation = partition.dead_letter_answered(dead_letter) if partition is slot.leader else None
            if operation is not None:
                yield self._persist(slot, partition, operation, seq, self._now_ms)[0]

    def _release_held_writes(self, slot: SharePartitionSlot, seq: int) -> Iterator[EventResult]:
        while slot.held_operations and not slot.hold_writes:
            partition, operation = slot.held_operations.pop(0)
            result, code = self._persist(slot, partition, operation, seq, self._now_ms)
            result.error = client_error(code)
            yield result

    def _persist(
        self, slot: SharePartitionSlot, partition: SharePartition, operation: Operation, seq: int, ts_ms: int
    ) -> tuple[EventResult, ErrorCode]:
        result = EventResult(seq, ts_ms, slot.key, operation.trigger)
        code = self._dispatcher.persist(slot, partition, operation, result, self._now_ms)
        return self._with_offsets(slot, result), code

    def _with_offsets(self, slot: SharePartitionSlot, result: EventResult) -> EventResult:
        if slot.leader is not None:
            result.start_offset, result.end_offset = slot.leader.start_offset, slot.leader.end_offset
            if self._settings.traces:
                result.memory = slot.leader.in_flight_batches()
        return result

    def _schedule_expiry(self, slot: SharePartitionSlot) -> None:
        deadline = None if slot.leader is None else slot.leader.next_deadline
        if deadline is not None and (slot.timer_deadline is None or deadline < slot.timer_deadline):
            slot.timer_deadline = deadline
            heappush(self._deadlines, (deadline, slot.key))


def play(
    events: Iterable[ev.Event], persister: Persister | None = None, settings: PlayerSettings | None = None
) -> Iterator[EventResult]:
    """Play events in time order; yields at least one result per event.

    Args:
        persister: in memory if None.
    Raises:
        HistoryError: an event is in the past.
    """
    player = EventPlayer(persister, settings)
    for event in events:
        yield from player.apply(event)
