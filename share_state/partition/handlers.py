"""What each event does to the leaders of share-partitions."""

from collections import Counter
from collections.abc import Iterable
from functools import singledispatchmethod

from share_state.partition import events as ev
from share_state.partition.acknowledgements import AckBatch, AckType
from share_state.partition.acquisition import Fetch
from share_state.partition.conditions import Rules
from share_state.partition.draft import DraftRecord
from share_state.partition.error_codes import ErrorCode
from share_state.partition.group_configs import BrokerConfigs, DraftConfigs, with_config
from share_state.partition.leaders import Desk, Seat, told_client
from share_state.partition.loading import UnloadableStateError
from share_state.partition.outcomes import Outcome
from share_state.partition.recorded import Persister, SharePartitionKey
from share_state.partition.settings import PartitionSettings
from share_state.partition.share_partition import SharePartition
from share_state.partition.writes import CheckpointWrite, StateRead

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
