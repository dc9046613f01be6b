"""Plays events on the leaders of share-partitions, and persists their changes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from share_state.kafka.releases import Release
from share_state.simulator import events as ev
from share_state.simulator.acquisition import Fetch
from share_state.simulator.clients import Clients, OffsetLookup
from share_state.simulator.control_record_writer import (
    ControlState,
    build_checkpoint,
    build_delta,
    state_after_checkpoint,
    state_after_delta,
)
from share_state.simulator.coordinator import ShareCoordinator
from share_state.simulator.durability import DeadLetter, Operation, PendingWrite, UnloadableStateError
from share_state.simulator.events import EventError, EventResult
from share_state.simulator.settings import (
    AckBatch,
    AckType,
    BrokerConfigs,
    DraftConfigs,
    PartitionSettings,
    PlayerSettings,
    with_config,
)
from share_state.simulator.share_partition import SharePartition
from share_state.simulator.state_values import StateKey
from share_state.simulator.types import (
    FENCED,
    NO_DELIVERY_COMPLETE_COUNT,
    CheckpointWrite,
    ErrorCode,
    SharePartitionKey,
    StateRead,
)


@dataclass(slots=True)
class SharePartitionSlot:
    """One share-partition of a player.

    Args:
        leaders: leaders by leader epoch; earlier leaders do not know yet that they are fenced.
        leader: the current leader.
        draft: state in the persisted control records, or None.
        fail_writes: whether writes fail.
        hold_writes: whether writes get no response.
        held_operations: operations without a response, in order.
        hold_dead_letters: whether the dead letter queue does not respond.
        dead_letters: dead letters that were sent to the queue, without a response.
        timer_deadline: the deadline that the player has scheduled.
    """

    key: SharePartitionKey
    leaders: dict[int, SharePartition] = field(default_factory=dict)
    leader: SharePartition | None = None
    draft: ControlState | None = None
    state_epoch: int = 0
    fail_writes: bool = False
    hold_writes: bool = False
    held_operations: list[tuple[SharePartition, Operation]] = field(default_factory=list)
    hold_dead_letters: bool = False
    dead_letters: list[tuple[SharePartition, DeadLetter]] = field(default_factory=list)
    timer_deadline: int | None = None


CoordinatorLookup = Callable[[SharePartitionKey], tuple[ShareCoordinator, StateKey]]
"""The share coordinator of a share-partition, and the share-partition's key there."""


COUNTED_TYPES = (AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.RENEW)
"""Acknowledgement types that brokers count. Source: Kafka ShareGroupMetrics; KIP-1222."""


def _count_records(batches: Sequence[AckBatch], counts: dict[AckType, int]) -> None:
    """Count records by acknowledgement type, without gaps. Source: Kafka ShareGroupMetrics."""
    for first, last, types in batches:
        for ack_type in map(AckType, types):
            if ack_type in counts:
                counts[ack_type] += last - first + 1 if len(types) == 1 else 1


def _memory_coordinator(release: Release) -> CoordinatorLookup:
    """One coordinator without a log."""
    offsets = count()
    coordinator = ShareCoordinator(lambda record, now_ms: next(offsets), release)
    return lambda key: (coordinator, StateKey(*key))


class EventPlayer:
    """Plays events in time order.

    Args:
        coordinator_of: where state is persisted; in memory if None; unused if only control records are
            written.
        control_offsets: the offsets that hold control records, which no fetch acquires; None for none.
        gaps: the offsets that a fetch acquires and the client acknowledges as gaps; None for none.

    Attributes:
        acknowledgements: type -> records that requests acknowledged, as in the metric
            RecordAcknowledgementsPerSec.
    """

    def __init__(
        self,
        settings: PlayerSettings | None = None,
        coordinator_of: CoordinatorLookup | None = None,
        control_offsets: OffsetLookup | None = None,
        gaps: OffsetLookup | None = None,
    ):
        self._control_offsets = control_offsets
        self.acknowledgements: dict[AckType, int] = dict.fromkeys(COUNTED_TYPES, 0)
        self._player_settings = settings = settings or PlayerSettings()
        has_coordinators = settings.dialect != "control_records"
        self._coordinator_of = (
            (coordinator_of or _memory_coordinator(settings.release)) if has_coordinators else None
        )
        self._default_settings = settings.initial_settings
        self._settings: dict[str, PartitionSettings] = {}
        self._groups: set[str] = set()
        self._slots: dict[SharePartitionKey, SharePartitionSlot] = {}
        self._clients = Clients(settings, gaps)
        self._deadlines: list[tuple[int, SharePartitionKey]] = []
        self._now_ms = -1

    def apply(self, event: ev.SharePartitionEvent) -> Iterator[EventResult]:
        """Advance the time to an event and apply it.

        Returns:
            Results of lock timeouts until then, of the event, and of what followed from it.
        Raises:
            EventError: the event is in the past.
        """
        if event.ts_ms < self._now_ms:
            raise EventError(
                f"event {event.seq}: at {event.ts_ms} ms, but the time is already {self._now_ms} ms"
            )
        yield from self._end_memberships(event.seq, event.ts_ms)
        yield from self._expire(event.seq, event.ts_ms)
        self._now_ms = event.ts_ms
        slot = self._slots.setdefault(event.key, SharePartitionSlot(event.key))
        result = EventResult(event.seq, event.ts_ms, event.key, event.event)
        if not self._is_refused(event, result):
            self._apply(event, slot, result)
        self._schedule_expiry(slot)
        yield self._with_offsets(slot, result)
        if isinstance(event, ev.HoldWrites) and not event.on:
            while slot.held_operations and not slot.hold_writes:
                held_result, code = self._follow_up(
                    slot, *slot.held_operations.pop(0), event.seq, self._now_ms
                )
                held_result.error = code
                yield held_result
        yield from self._dead_letters(slot, event.seq)

    def leader(self, key: SharePartitionKey) -> SharePartition | None:
        """The current leader of a share-partition, or None."""
        slot = self._slots.get(key)
        return None if slot is None else slot.leader

    def _is_refused(self, event: ev.SharePartitionEvent, result: EventResult) -> bool:
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
            result.message = f"there are already {configs.max_groups} share groups (group.share.max.groups)"
            return True
        return False

    def _apply(self, event: ev.SharePartitionEvent, slot: SharePartitionSlot, result: EventResult) -> None:
        match event:
            case ev.Init():
                self._initialize(event, slot, result)
            case ev.Open():
                self._load(slot, event.leader_epoch, event.reset_offset, result)
            case ev.Config():
                self._configure(event)
            case ev.FailWrites():
                slot.fail_writes = event.on
            case ev.HoldWrites():
                slot.hold_writes = event.on
            case ev.HoldDeadLetters():
                slot.hold_dead_letters = event.on
            case ev.ColdSnapshot():
                if self._coordinator_of:
                    coordinator, key = self._coordinator_of(slot.key)
                    if key in coordinator.entries:
                        coordinator.write_cold_snapshot(key, event.ts_ms)
            case ev.Delete():
                if self._coordinator_of:
                    coordinator, key = self._coordinator_of(slot.key)
                    result.error = coordinator.delete(key, event.ts_ms).error
                self._slots[slot.key] = SharePartitionSlot(slot.key)
                slot.leader = None
            case ev.Join() | ev.Poll() | ev.Acknowledge() | ev.Commit() | ev.Heartbeat():
                self._clients.apply(event, result, lambda request: self._apply(request, slot, result))
            case ev.Advance() | ev.Prune():
                """Time has already passed; the owner of the logs prunes them."""
            case _:
                epoch = event.leader_epoch if isinstance(event, ev.Ack) else None
                leader = slot.leader if epoch is None else slot.leaders.get(epoch)
                if leader is None:
                    result.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
                    result.message = "no leader has loaded the share-partition"
                else:
                    self._apply_to_leader(event, slot, leader, result)

    def _apply_to_leader(
        self,
        event: ev.SharePartitionEvent,
        slot: SharePartitionSlot,
        leader: SharePartition,
        result: EventResult,
    ) -> None:
        match event:
            case ev.Acquire():
                offset = (
                    event.log_batches[0].first_offset if event.fetch_offset is None else event.fetch_offset
                )
                limits = event.max_records, event.batch_size, event.mode
                fetch = Fetch(event.member, event.log_batches, offset, *limits)
                result.acquired = leader.acquire(fetch, event.ts_ms)
                if self._control_offsets and result.acquired:
                    bounds = result.acquired[0].first_offset, result.acquired[-1].last_offset
                    withheld = self._control_offsets(slot.key, *bounds)
                    result.acquired = leader.withhold(result.acquired, withheld)
                result.lock_timeout_ms = leader.settings.record_lock_duration_ms
            case ev.Ack():
                self._acknowledge(event, slot, leader, result)
            case ev.MemberLeave():
                self._clients.forget(slot.key, event.member)
                if operation := leader.release_member(event.member):
                    result.error = self._persist(slot, leader, operation, result)
            case ev.LsoMove():
                leader.move_log_start(event.offset)
            case ev.LogHole():
                leader.archive_hole(event.first, event.last)
            case ev.Aborted():
                leader.archive_aborted(event.first, event.last)
            case ev.Checkpoint():
                self._checkpoint(slot, result)
            case ev.Crash():
                slot.held_operations.clear()
                self._load(slot, leader.leader_epoch, leader.start_offset, result)

    def _initialize(self, event: ev.Init, slot: SharePartitionSlot, result: EventResult) -> None:
        if self._coordinator_of:
            coordinator, key = self._coordinator_of(slot.key)
            result.error = coordinator.initialize(
                key, event.state_epoch, event.start_offset, event.ts_ms
            ).error
            if result.error is not ErrorCode.NONE:
                return
        slot.state_epoch = event.state_epoch
        if self._player_settings.dialect != "share_group_state":
            start = max(event.start_offset, 0)
            result.checkpoint = CheckpointWrite(start, start, ())
            slot.draft = state_after_checkpoint(result.checkpoint)

    def _load(
        self, slot: SharePartitionSlot, leader_epoch: int, reset_offset: int, result: EventResult
    ) -> None:
        read = self._read(slot, leader_epoch, result.ts_ms)
        if isinstance(read, ErrorCode):
            result.error, result.message = read, "the share coordinator returns no state to load"
            return
        settings = self._settings.get(slot.key.group, self._default_settings)
        leader = slot.leaders[leader_epoch] = SharePartition(
            leader_epoch, settings, self._player_settings.release
        )
        try:
            dead_letters = leader.load(read, reset_offset)
        except UnloadableStateError as error:
            result.error, result.message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
            dead_letters = ()
        slot.leader = leader
        slot.dead_letters += [(leader, dead_letter) for dead_letter in dead_letters]

    def _read(self, slot: SharePartitionSlot, leader_epoch: int, now_ms: int) -> StateRead | ErrorCode:
        if self._coordinator_of:
            coordinator, key = self._coordinator_of(slot.key)
            response = coordinator.read(key, leader_epoch, now_ms)
            return response.state or response.error
        if slot.draft is None:
            return ErrorCode.INVALID_REQUEST
        return StateRead(
            slot.state_epoch, slot.draft.start_offset, NO_DELIVERY_COMPLETE_COUNT, slot.draft.batches
        )

    def _configure(self, event: ev.Config) -> None:
        configs = self._player_settings.configs
        bounds = configs if isinstance(configs, BrokerConfigs) else None
        settings = self._settings.get(event.group, self._default_settings)
        self._settings[event.group] = settings = with_config(settings, event.name, event.value, bounds)
        for slot in self._slots.values():
            if slot.key.group == event.group and slot.leader is not None:
                slot.leader.configure(settings)

    def _acknowledge(
        self, event: ev.Ack, slot: SharePartitionSlot, leader: SharePartition, result: EventResult
    ) -> None:
        names = ("max_wait_ms", "min_bytes", "max_bytes", "max_records")
        limits = [name for name in names if getattr(event, name)]
        if limits and event.route == "fetch" and event.is_renew_ack:
            # KIP-1222, ShareFetch
            result.error = ErrorCode.INVALID_REQUEST
            result.message = f"a fetch that renews must have 0 for {', '.join(limits)}"
            return
        answer = leader.acknowledge(
            event.member, event.batches, event.ts_ms, is_renew_ack=event.is_renew_ack, version=event.version
        )
        result.error, result.message = answer.error, answer.message
        if answer.error not in {ErrorCode.INVALID_REQUEST, ErrorCode.NOT_LEADER_OR_FOLLOWER}:
            _count_records(event.batches, self.acknowledgements)
        result.lock_timeout_ms = leader.settings.record_lock_duration_ms
        if answer.operation is not None:
            result.error = self._persist(slot, leader, answer.operation, result)

    def _end_memberships(self, seq: int, until_ms: int) -> Iterator[EventResult]:
        """The ends of memberships before a time, in order: a consumer did not poll, or its session expired."""
        while (due := self._clients.first_due(until_ms)) is not None:
            yield from self._expire(seq, due.deadline_ms)
            self._now_ms = max(self._now_ms, due.deadline_ms + 1)
            slot = self._slots[due.key]
            result = EventResult(
                seq, self._now_ms, due.key, ev.MEMBER_LEAVE, message=due.reason, member=due.member
            )
            self._clients.forget(due.key, due.member)
            if slot.leader is not None and (operation := slot.leader.release_member(due.member)):
                result.error = self._persist(slot, slot.leader, operation, result)
            self._schedule_expiry(slot)
            yield self._with_offsets(slot, result)
            yield from self._dead_letters(slot, seq)

    def _persist(
        self, slot: SharePartitionSlot, leader: SharePartition, operation: Operation, result: EventResult
    ) -> ErrorCode:
        """Persist a leader's operation, or hold it; returns the client's error, NONE while it is held.

        Source: Kafka SharePartition.writeShareGroupState, fetchPersisterError.
        """
        if slot.hold_writes:
            slot.held_operations.append((leader, operation))
            return ErrorCode.NONE
        # Built while the transition is pending: the response may move the start or restore locks.
        delta = build_delta(slot.draft, operation.changes, leader) if slot.draft is not None else None
        error = ErrorCode.NONE
        for pending in operation.writes:
            code = self._write(slot, leader, pending, result)
            error = error if code is ErrorCode.NONE else code
        if delta is not None and slot.draft is not None and error is ErrorCode.NONE:
            slot.draft = state_after_delta(slot.draft, delta)
            result.delta = delta
            if self._player_settings.is_checkpoint_due(slot.draft.deltas, is_at_end=slot.draft.is_at_end):
                self._checkpoint(slot, result)
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if error in FENCED else error

    def _write(
        self, slot: SharePartitionSlot, leader: SharePartition, pending: PendingWrite, result: EventResult
    ) -> ErrorCode:
        if slot.fail_writes:
            code = ErrorCode.KAFKA_STORAGE_ERROR
        elif self._coordinator_of:
            coordinator, key = self._coordinator_of(slot.key)
            code = coordinator.write(key, pending.write, self._now_ms).error
        else:
            code = ErrorCode.NONE if leader is slot.leader else ErrorCode.FENCED_LEADER_EPOCH
        if code is ErrorCode.NONE:
            result.writes.append(pending.write)
            dead_letters = leader.write_succeeded(pending)
        else:
            result.refused.append((pending.write, code))
            dead_letters = leader.write_failed(pending, self._now_ms, code)
        slot.dead_letters += [(leader, dead_letter) for dead_letter in dead_letters]
        return code

    def _checkpoint(self, slot: SharePartitionSlot, result: EventResult) -> None:
        if slot.draft is not None and slot.leader is not None:
            result.checkpoint = build_checkpoint(slot.leader)
            slot.draft = state_after_checkpoint(result.checkpoint)

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
                yield self._follow_up(slot, slot.leader, operation, seq, deadline + 1)[0]
                yield from self._dead_letters(slot, seq)
            self._schedule_expiry(slot)

    def _dead_letters(self, slot: SharePartitionSlot, seq: int) -> Iterator[EventResult]:
        while slot.dead_letters and not slot.hold_dead_letters:
            leader, dead_letter = slot.dead_letters.pop(0)
            operation = leader.dead_letter_answered(dead_letter) if leader is slot.leader else None
            if operation is not None:
                yield self._follow_up(slot, leader, operation, seq, self._now_ms)[0]

    def _follow_up(
        self, slot: SharePartitionSlot, leader: SharePartition, operation: Operation, seq: int, ts_ms: int
    ) -> tuple[EventResult, ErrorCode]:
        result = EventResult(seq, ts_ms, slot.key, operation.trigger)
        code = self._persist(slot, leader, operation, result)
        return self._with_offsets(slot, result), code

    def _with_offsets(self, slot: SharePartitionSlot, result: EventResult) -> EventResult:
        if slot.leader is not None:
            result.start_offset, result.end_offset = slot.leader.start_offset, slot.leader.end_offset
            if self._player_settings.traces:
                result.memory = slot.leader.in_flight_batches()
        return result

    def _schedule_expiry(self, slot: SharePartitionSlot) -> None:
        deadline = None if slot.leader is None else slot.leader.next_deadline
        if deadline is not None and (slot.timer_deadline is None or deadline < slot.timer_deadline):
            slot.timer_deadline = deadline
            heappush(self._deadlines, (deadline, slot.key))
