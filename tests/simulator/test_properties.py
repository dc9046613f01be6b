"""Whatever happens to a share-partition: nothing is held twice, nothing goes back, what is written is kept."""

import random
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from share_state.kafka.delivery_states import DeliveryState
from share_state.simulator import events as ev
from share_state.simulator.acquisition import AcquireMode
from share_state.simulator.settings import AckType, PartitionSettings
from share_state.simulator.types import ErrorCode, StateBatch
from tests.profiles import by_profile, nightly
from tests.simulator.history import ACCEPT, GAP, REJECT, RELEASE, RENEW, History

TERMINAL = (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)
MEMBERS = ("M1", "M2", "M3")
LIMIT, LOCK_MS = 3, 1_000

member = st.sampled_from(MEMBERS)
ack_type = st.sampled_from([ACCEPT, ACCEPT, RELEASE, REJECT, RENEW, GAP])


def per_offset(history: Iterable[StateBatch]) -> dict[int, tuple[DeliveryState, int]]:
    return {offset: (state, count) for first, last, state, count in history for offset in range(first, last + 1)}


class AnyHistory(RuleBasedStateMachine):
    """Draws histories of one share-partition and holds a dictionary of its offsets against it."""

    @initialize(release=st.sampled_from(["4.1", "4.2", "4.3", "4.4"]), queue=st.booleans())
    def begin(self, release: str, queue: bool) -> None:
        limits = PartitionSettings(LIMIT, LOCK_MS, max_record_locks=24, has_dead_letter_queue=queue)
        self.history = History(0, release=release, settings=limits)
        self.lowers_counts = release == "4.1"
        self.leader_epoch = 0
        self.log_end = 0
        self.held_by: dict[int, str] = {}
        self.before: dict[int, tuple[DeliveryState, int]] = {}
        self.start_before = 0
        self.is_exact = True
        """Memory is what was recorded, apart from what members hold."""
        self.writes_fail = False
        self.reloaded = False

    # What happens

    @rule(who=member, size=st.integers(1, 6), cut=st.integers(1, 6), wanted=st.integers(1, 8), mode=st.integers(0, 1))
    def fetch(self, who: str, size: int, cut: int, wanted: int, mode: int) -> None:
        partition = self.history.partition
        free = {offset for offset, (state, _) in self.before.items() if state is DeliveryState.AVAILABLE}
        first = partition.next_fetch_offset()
        log = [f"{at}-{min(at + cut, first + size) - 1}" for at in range(first, first + size, cut)]
        end, may_acquire = partition.end_offset, partition.can_acquire()
        acquired = self.history.acquire(*log, member=who, max_records=wanted, mode=AcquireMode(mode), batch_size=cut)
        for low, high, count in acquired:
            for offset in range(low, high + 1):
                assert offset not in self.held_by, "held by a member already"
                # What was never in flight is new, or was lost with the last leader.
                assert offset in free or offset >= end or offset not in self.before
                assert count == self.before.get(offset, (DeliveryState.AVAILABLE, 0))[1] + 1
                self.held_by[offset] = who
        assert may_acquire or not acquired, "a full window hands out nothing new"

    @rule(who=member, at=st.integers(0, 30), types=st.lists(ack_type, min_size=1, max_size=6), each=st.booleans())
    def acknowledge(self, who: str, at: int, types: list[int], each: bool) -> None:
        held = [offset for offset, owner in sorted(self.held_by.items()) if owner == who]
        if not held:
            return
        first = held[at % len(held)]
        last = first
        while last + 1 in held and last - first + 1 < len(types):
            last += 1
        kinds = tuple(types[: last - first + 1]) if each else tuple(types[:1])
        code = self.history.ack(f"{first}-{last}", *kinds, member=who)
        renewing = RENEW in kinds and self.history.partition.release.name == "4.1"
        assert code in ([ErrorCode.INVALID_REQUEST] if renewing else [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]), (
            code
        )

    @rule(who=member, first=st.integers(0, 60), size=st.integers(1, 12), kind=ack_type)
    def acknowledge_anything(self, who: str, first: int, size: int, kind: int) -> None:
        memory = self.history.partition.in_flight_batches()
        code = self.history.ack(f"{first}-{first + size - 1}", kind, member=who)
        if code not in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR) and kind != RENEW:
            assert self.history.partition.in_flight_batches() == memory, "a refused request changes nothing"

    @rule(who=member, kind=st.sampled_from([ACCEPT, RELEASE, REJECT]))
    def acknowledge_all(self, who: str, kind: int) -> None:
        for first, last, state, _ in self.history.partition.in_flight_batches():
            if state is DeliveryState.ACQUIRED and all(self.held_by.get(at) == who for at in range(first, last + 1)):
                self.history.ack(f"{first}-{last}", kind, member=who)

    @rule(ms=st.sampled_from([1, 100, 600, 1_001]))
    def wait(self, ms: int) -> None:
        self.history.pass_ms(ms)

    @rule(who=member)
    def leave(self, who: str) -> None:
        self.history.leave(who)

    @rule(ahead=st.integers(0, 10), size=st.integers(1, 4), moves=st.booleans())
    def lose_log(self, ahead: int, size: int, moves: bool) -> None:
        first = self.history.start + ahead
        if moves and ahead < 6:
            self.history.apply(ev.LsoMove, offset=first)
            self.is_exact = False
        elif not moves:
            self.history.apply(ev.LogHole, first=first, last=first + size - 1)
            self.is_exact = False

    @rule(what=st.sampled_from([ev.FailWrites, ev.HoldWrites, ev.HoldDeadLetters]), chance=st.integers(0, 3))
    def disturb(self, what: type, chance: int) -> None:
        self.history.apply(what, on=chance == 0)
        if chance == 0 and what is not ev.HoldDeadLetters:
            self.is_exact = False
            self.writes_fail |= what is ev.FailWrites

    @rule(chance=st.integers(0, 5))
    def lose_memory(self, chance: int) -> None:
        if chance == 0:
            self.history.apply(ev.Crash)
            self.reloaded = True
        elif chance == 1:
            self.leader_epoch += 1
            self.history.apply(ev.Open, leader_epoch=self.leader_epoch)
            self.reloaded = True

    # What must hold

    @invariant()
    @precondition(lambda self: hasattr(self, "history"))
    def nothing_goes_back(self) -> None:
        partition = self.history.partition
        now = per_offset(partition.in_flight_batches())
        assert sum(last - first + 1 for first, last, _, _ in partition.in_flight_batches()) == len(now), (
            "batches are disjoint"
        )
        if not self.reloaded:
            assert partition.start_offset >= self.start_before
            for offset, (state, count) in now.items():
                was = self.before.get(offset)
                if was is not None:
                    assert count >= was[1] - self.lowers_counts
                    if was[0] in TERMINAL and not self.writes_fail:
                        assert state is was[0], "terminal states are never left"
        self.held_by = {
            offset: owner
            for offset, owner in self.held_by.items()
            if now.get(offset, (None,))[0] is DeliveryState.ACQUIRED
        }
        if self.reloaded:
            self.held_by = {}
        self.before, self.start_before, self.reloaded = now, partition.start_offset, False

    @invariant()
    @precondition(lambda self: hasattr(self, "history"))
    def terminal_offsets_are_counted(self) -> None:
        partition = self.history.partition
        terminal = [
            offset
            for offset, (state, _) in per_offset(partition.in_flight_batches()).items()
            if state in TERMINAL and offset >= partition.start_offset
        ]
        assert partition.delivery_complete_count == len(terminal)

    @invariant()
    @precondition(lambda self: hasattr(self, "history"))
    def no_lock_outlives_its_deadline(self) -> None:
        held = [run for run in self.history.partition._window.runs() if run.is_acquired and run.owner is not None]
        assert all(run.deadline is not None and run.deadline >= self.history.now_ms for run in held)

    @invariant()
    @precondition(lambda self: hasattr(self, "history"))
    def nothing_free_lies_before_the_fetch(self) -> None:
        partition = self.history.partition
        at = partition.next_fetch_offset()
        assert at >= partition.start_offset
        assert at <= partition.end_offset

    @invariant()
    @precondition(lambda self: hasattr(self, "history") and self.is_exact)
    def what_was_written_is_what_is_kept(self) -> None:
        partition, read = self.history.partition, self.history.recorded
        recorded = per_offset(read.batches)
        for offset, (state, count) in per_offset(partition.in_flight_batches()).items():
            if offset >= read.start_offset:
                is_acquired = state is DeliveryState.ACQUIRED
                kept = (DeliveryState.AVAILABLE, count - 1) if is_acquired else (state, count)
                assert recorded.pop(offset, (DeliveryState.AVAILABLE, 0)) == kept, offset
        assert all(offset < partition.start_offset for offset in recorded), "only what has ended was let go of"

    @invariant()
    @precondition(lambda self: hasattr(self, "history") and self.is_exact)
    def the_draft_keeps_the_same(self) -> None:
        draft = self.history.draft
        assert draft is not None
        partition = self.history.partition
        # After a load the leader's own start waits at the end of the last gap until it fetches past it.
        at, now = partition.start_offset, per_offset(partition.in_flight_batches())
        while now.get(at, (None,))[0] in TERMINAL:
            at += 1
        assert draft.start_offset == at
        kept = (
            per_offset(partition.durable_batches(draft.start_offset, draft.end_offset - 1)) if draft.end_offset else {}
        )
        assert per_offset(draft.batches) == kept


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=by_profile(30, 3000), stateful_step_count=40)


@nightly("long histories")
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=by_profile(10, 1000))
def test_long_histories_of_busy_members(seed: int):
    """The same, longer and mostly orderly: the drawn ones above seldom get far."""
    draw = random.Random(seed)
    history = AnyHistory()
    history.begin(draw.choice(["4.1", "4.2", "4.3", "4.4"]), draw.random() < 0.5)
    for _ in range(150):
        who, kind = draw.choice(MEMBERS), draw.choice([ACCEPT, ACCEPT, RELEASE, REJECT])
        match draw.choices(range(8), weights=[30, 20, 20, 15, 4, 1, 1, 2])[0]:
            case 0:
                history.fetch(who, draw.randint(1, 6), draw.randint(1, 6), draw.randint(1, 8), draw.randint(0, 1))
            case 1:
                history.acknowledge_all(who, kind)
            case 2:
                kinds = [draw.choice(list(AckType)) for _ in range(draw.randint(1, 6))]
                history.acknowledge(who, draw.randint(0, 30), kinds, draw.random() < 0.7)
            case 3:
                history.wait(draw.choice([1, 300, 700, 1_001]))
            case 4:
                history.leave(who)
            case 5:
                history.lose_log(draw.randint(0, 6), draw.randint(1, 4), draw.random() < 0.5)
            case 6:
                history.disturb(draw.choice([ev.FailWrites, ev.HoldWrites, ev.HoldDeadLetters]), draw.randint(0, 3))
            case _:
                history.lose_memory(draw.randint(0, 5))
        history.nothing_goes_back()
        history.terminal_offsets_are_counted()
        history.nothing_free_lies_before_the_fetch()
        history.no_lock_outlives_its_deadline()
        if history.is_exact:
            history.what_was_written_is_what_is_kept()
            history.the_draft_keeps_the_same()
