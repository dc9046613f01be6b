"""The workload of a simulated cluster: a clock, group behaviours, and agents that act on share-partitions."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

from share_state.simulator.acquisition import AcquiredRecords, LogBatch
from share_state.simulator.cluster import SimulatedCluster
from share_state.simulator.events import (
    Ack,
    Acquire,
    ColdSnapshot,
    Config,
    Delete,
    Event,
    EventResult,
    FailWrites,
    GroupEvent,
    Init,
    LeaveGroup,
    LsoMove,
    MemberLeave,
    Open,
    Prune,
    Subscribe,
)
from share_state.simulator.settings import AckBatch, AckType
from share_state.simulator.types import NO_START_OFFSET, ErrorCode, SharePartitionKey

Agent = Iterator[int]
"""Acts when resumed, and yields the ms until it is resumed again."""

_PRODUCED_BATCH_SIZE = 10
_MAX_WINDOW = 1_800
"""In-flight offsets at which members stop fetching, slightly below the limit of 2000 locks."""


class Workload:
    """A simulated clock, agents that act on it, and producers.

    Args:
        cluster: plays the events.
        seed: seed of every random choice.
        start_ms: time at the start.
    """

    def __init__(self, cluster: SimulatedCluster, seed: int, start_ms: int) -> None:
        self.cluster = cluster
        self.seed = seed
        self.start_ms = start_ms
        self.now_ms = start_ms
        self._agents: list[tuple[int, int, Agent]] = []
        self._turns = count()
        self._rates: dict[tuple[str, int], float] = {}

    def rng(self, *names: object) -> random.Random:
        """A random generator for one purpose, the same for the same seed and names."""
        return random.Random(" ".join(map(str, (self.seed, *names))))

    def add(self, agent: Agent, after_ms: int = 0) -> None:
        """Add an agent that first acts after `after_ms`."""
        heappush(self._agents, (self.now_ms + after_ms, next(self._turns), agent))

    def run(self, until_ms: int) -> None:
        """Advance the time to `until_ms`, resuming each agent when it is due."""
        while self._agents and self._agents[0][0] <= until_ms:
            self.now_ms, _, agent = heappop(self._agents)
            pause = next(agent, None)
            if pause is not None:
                self.add(agent, max(pause, 1))
        self.now_ms = until_ms

    def apply(self, kind: Callable[..., Event], key: SharePartitionKey, **fields: Any) -> EventResult:
        """Apply an event to a share-partition now; returns its own result."""
        return self.cluster.play(kind, key, self.now_ms, **fields)

    def produce(self, topic: str, partition: int, records_a_second: float) -> None:
        """Set the rate at which producers write to a topic-partition."""
        self._rates[topic, partition] = records_a_second

    def partitions(self, topic: str) -> int:
        """Number of partitions of a topic, as far as producers write to them."""
        return sum(one == topic for one, _ in self._rates)

    def fetch(self, key: SharePartitionKey, member: str, max_records: int) -> tuple[AcquiredRecords, ...]:
        """Fetch for a member; returns the acquired records, none without new records or a leader."""
        leader = self.cluster.player.leader(key)
        if (
            leader is None
            or not leader.can_acquire()
            or leader.end_offset - leader.start_offset > _MAX_WINDOW
        ):
            return ()
        first = leader.next_fetch_offset()
        last = self._last_to_fetch(key, first, max_records)
        if last < first:
            return ()
        batches = tuple(
            LogBatch(at, min(at + _PRODUCED_BATCH_SIZE - 1, last))
            for at in range(first, last + 1, _PRODUCED_BATCH_SIZE)
        )
        return self.apply(Acquire, key, member=member, log_batches=batches, max_records=max_records).acquired

    def _last_to_fetch(self, key: SharePartitionKey, first: int, max_records: int) -> int:
        produced = int(self._rates[key.topic, key.partition] * (self.now_ms - self.start_ms) / 1000)
        if not self.cluster.has_control_records:
            self.cluster.note_end_offset(key.topic, key.partition, produced)
            return min(first + max_records, produced) - 1
        log = self.cluster.topic_log(key.topic, key.partition)
        end = log.log.next_offset + max(0, produced - log.data_records)
        # A fetch of control records alone would never end: acknowledging them writes another one.
        data = log.next_data_offset(first)
        return min(max(first + max_records, data + 1), end) - 1 if data < end else first - 1


_SECOND, _MINUTE = 1_000, 60_000

Range = tuple[int, int]
"""Least and greatest random value, both inclusive."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The behaviour of a group's members, and events of the group. Times are in ms; 0 means never.

    Attributes:
        members: number of members per topic-partition.
        poll_ms: time between two fetches of a member.
        work_ms: time between a fetch and its acknowledgement.
        fetch_records: maximum records of a fetch.
        released, rejected: ratios of records that are released and rejected.
        poison_every: one in this many offsets cannot be processed and is always released.
        disconnects_every_ms: how often a member's session ends while it holds records.
        renews_for_ms: how long a member keeps renewing its first record before it accepts it.
        offsets_reset_every_ms: how often an administrator resets the offsets.
        dead_letters: whether the group has a dead letter queue (4.4 and later).
        has_second_topic: whether half of the members subscribe to a second topic, if groups are simulated.
    """

    name: str
    description: str
    members: int = 1
    poll_ms: Range = (200, 900)
    work_ms: Range = (50, 800)
    fetch_records: Range = (5, 40)
    released: float = 0.01
    rejected: float = 0.002
    poison_every: int = 0
    disconnects_every_ms: int = 0
    renews_for_ms: int = 0
    leader_moves_every_ms: int = 7 * _MINUTE
    writes_fail_every_ms: int = 0
    deleted_every_ms: int = 0
    offsets_reset_every_ms: int = 0
    log_start_moves_every_ms: int = 0
    dead_letters: bool = False
    has_second_topic: bool = False


BEHAVIOURS = (
    Behaviour("steady", "two members that accept nearly everything at once", members=2,
              has_second_topic=True),
    Behaviour("slow", "a member that often works longer than its locks last, so that records are redelivered",
              poll_ms=(2 * _SECOND, 9 * _SECOND), work_ms=(5 * _SECOND, 36 * _SECOND), fetch_records=(20, 120)),
    Behaviour("poison", "records that nobody can process: released until the delivery limit archives them",
              poison_every=53, released=0.05, rejected=0.02),
    Behaviour("crashing", "members that lose their session while they hold records, leaders that move, failed writes",
              members=2, disconnects_every_ms=8 * _SECOND, leader_moves_every_ms=50 * _SECOND,
              writes_fail_every_ms=40 * _SECOND, work_ms=(500, 4 * _SECOND)),
    Behaviour("stalled", "a member that renews the lock of one record for minutes while others go on",
              members=2, renews_for_ms=6 * _MINUTE, leader_moves_every_ms=0),
    Behaviour("recreated", "a group that is deleted and created again", deleted_every_ms=3 * _MINUTE),
    Behaviour("altered", "a group whose offsets are reset to lower ones, and whose unread records retention deletes",
              offsets_reset_every_ms=2 * _MINUTE, log_start_moves_every_ms=90 * _SECOND),
    Behaviour("dead-letters", "a group whose failing records go to a dead letter queue",

              poison_every=41, rejected=0.03, dead_letters=True),
)  # fmt: skip
"""Group n has behaviour n, repeating."""


class Roster:
    """The members of a group whose `__consumer_offsets` is simulated; which of them reads what is assigned.

    Args:
        subscriptions: the topics of each member.
    """

    def __init__(self, workload: Workload, group: str, subscriptions: Sequence[tuple[str, ...]]) -> None:
        self._workload, self._group = workload, group
        self._subscriptions = subscriptions
        self._members: dict[str, tuple[str, ...]] = {}
        self._joined = count()

    def join(self) -> Agent:
        """All members join, unless they are in the group."""
        for topics in () if self._members else self._subscriptions:
            self._add(topics)
        return iter(())

    def leave(self) -> None:
        """All members leave."""
        for member in list(self._members):
            self._remove(member)

    def restart(self, member: str) -> None:
        """A member leaves, and its consumer joins again as a new one; nothing if the member has left."""
        topics = self._members.get(member)
        if topics:
            self._remove(member)
            self._add(topics)

    def reader(self, key: SharePartitionKey, number: int) -> str | None:
        """The name of a share-partition's reader number n; None if it has fewer."""
        assert self._workload.cluster.group_side
        names = self._workload.cluster.group_side.coordinator.readers(*key)
        return names[number] if number < len(names) else None

    def _add(self, topics: tuple[str, ...]) -> None:
        member = f"member-{next(self._joined)}"
        self._members[member] = topics
        self._play(Subscribe, member=member, topics=topics)

    def _remove(self, member: str) -> None:
        del self._members[member]
        self._play(LeaveGroup, member=member)

    def _play(self, kind: Callable[..., GroupEvent], **fields: Any) -> None:
        self._workload.cluster.play_group(kind, self._workload.now_ms, group=self._group, **fields)


_RENEW_EVERY_MS = 20_000


class Member:
    """One member of a group that consumes one share-partition.

    Args:
        number: of the share-partition's members.
        roster: the group's members, which say who reads the share-partition; None if groups are not simulated.
    """

    def __init__(
        self,
        workload: Workload,
        key: SharePartitionKey,
        number: int,
        behaviour: Behaviour,
        roster: Roster | None = None,
    ) -> None:
        self.workload = workload
        self.key = key
        self.number = number
        self.behaviour = behaviour
        self.roster = roster
        self.name = f"member-{number}"
        self.rng = workload.rng("member", *key, number)
        # In a stalled group, one member keeps a record locked while the others go on.
        self.renews_lock = behaviour.renews_for_ms > 0 and number == 0
        self.next_disconnect_ms = self._next_disconnect()

    def agent(self) -> Agent:
        """Fetch, process and acknowledge until the simulation ends."""
        yield self.rng.randint(*self.behaviour.poll_ms)
        while True:
            acquired = self._fetch()
            if acquired and self.next_disconnect_ms and self.workload.now_ms >= self.next_disconnect_ms:
                yield self.rng.randint(*self.behaviour.work_ms)
                self.workload.apply(MemberLeave, self.key, member=self.name)
                if self.roster:
                    self.roster.restart(self.name)
                self.next_disconnect_ms = self._next_disconnect()
            elif acquired and self.renews_lock:
                yield from self._hold_and_renew(acquired)
            elif acquired:
                yield self.rng.randint(*self.behaviour.work_ms)
                self._acknowledge([self._ack_batch(*records[:2]) for records in acquired])
            yield self.rng.randint(*self.behaviour.poll_ms)

    def _fetch(self) -> tuple[AcquiredRecords, ...]:
        """Fetch as the member that is assigned; nothing if none is."""
        most = self.rng.randint(*self.behaviour.fetch_records)
        if self.roster:
            reader = self.roster.reader(self.key, self.number)
            if reader is None:
                return ()
            self.name = reader
        return self.workload.fetch(self.key, self.name, most)

    def _next_disconnect(self) -> int:
        every = self.behaviour.disconnects_every_ms
        return self.workload.now_ms + self.rng.randint(every // 2, every + every // 2) if every else 0

    def _hold_and_renew(self, acquired: tuple[AcquiredRecords, ...]) -> Iterator[int]:
        """Accept all records but the first, renew its lock for a while, then accept it too."""
        first = acquired[0].first_offset
        rest = [(max(records.first_offset, first + 1), records.last_offset) for records in acquired]
        self._acknowledge([self._ack_batch(low, high) for low, high in rest if low <= high])
        until = self.workload.now_ms + self.behaviour.renews_for_ms
        while self.workload.now_ms < until:
            yield min(_RENEW_EVERY_MS, until - self.workload.now_ms)
            if (
                self._acknowledge([AckBatch(first, first, (AckType.RENEW,))], renews=True)
                is not ErrorCode.NONE
            ):
                return
        self._acknowledge([AckBatch(first, first, (AckType.ACCEPT,))])

    def _acknowledge(self, batches: list[AckBatch], *, renews: bool = False) -> ErrorCode:
        if not batches:
            return ErrorCode.NONE
        return self.workload.apply(
            Ack, self.key, member=self.name, batches=tuple(batches), is_renew_ack=renews
        ).error

    def _ack_batch(self, first: int, last: int) -> AckBatch:
        """Acknowledge [first, last] as the behaviour demands, with one type if all are equal."""
        types = [self._type(offset, self.rng) for offset in range(first, last + 1)]
        return AckBatch(first, last, (types[0],) if len(set(types)) == 1 else tuple(types))

    def _type(self, offset: int, rng: random.Random) -> AckType:
        behaviour = self.behaviour
        if behaviour.poison_every and offset % behaviour.poison_every == behaviour.poison_every - 1:
            return AckType.RELEASE
        chance = rng.random()
        if chance < behaviour.released:
            return AckType.RELEASE
        return AckType.REJECT if chance < behaviour.released + behaviour.rejected else AckType.ACCEPT


_GONE_FOR_MS, _FAILING_FOR_MS = 20_000, 3_000
_JOB_EVERY_MS = 300_000
_SET_BACK = 200
_QUEUE = "errors.deadletterqueue.topic.name"


class GroupAdmin:
    """Administrative operations and failures of one share-partition.

    Args:
        roster: the group's members, who leave before what needs an empty group; None if groups are not simulated.
    """

    def __init__(
        self,
        workload: Workload,
        key: SharePartitionKey,
        behaviour: Behaviour,
        roster: Roster | None = None,
    ) -> None:
        self.roster = roster
        self.workload = workload
        self.key = key
        self.behaviour = behaviour
        self.rng = workload.rng("administration", *key)
        self.state_epoch, self.leader_epoch = 1, 0

    def agents(self) -> Sequence[Agent]:
        """One agent that creates the share-partition, and one per recurring operation."""
        behaviour = self.behaviour
        return [self._start()] + [
            self._repeat(pause, act)
            for pause, act in (
                (behaviour.leader_moves_every_ms, self._move_leader),
                (behaviour.writes_fail_every_ms, self._fail_writes),
                (behaviour.deleted_every_ms, self._recreate),
                (behaviour.offsets_reset_every_ms, self._reset_offsets),
                (behaviour.log_start_moves_every_ms, self._move_log_start),
            )
            if pause
        ]

    def _repeat(self, every_ms: int, act: Callable[[], Agent]) -> Agent:
        yield self.rng.randint(every_ms // 4, every_ms)
        while True:
            yield from act()
            yield self.rng.randint(every_ms // 2, every_ms + every_ms // 2)

    def _start(self) -> Agent:
        if self.behaviour.dead_letters:
            self.workload.apply(Config, self.key, name=_QUEUE, value="dlq.hopeless")
        yield from self._create()

    def _create(self) -> Agent:
        self._initialize(NO_START_OFFSET)
        yield 1
        self._open()

    def _initialize(self, start_offset: int) -> None:
        groups = self.workload.cluster.group_side
        if groups:
            self.state_epoch = groups.coordinator.epoch(self.key.group)
        self.workload.apply(Init, self.key, state_epoch=self.state_epoch, start_offset=start_offset)

    def _open(self) -> None:
        self.workload.apply(Open, self.key, leader_epoch=self.leader_epoch)

    def _move_leader(self) -> Agent:
        if self.workload.cluster.player.leader(self.key) is not None:
            self.leader_epoch += 1
            self._open()
        return iter(())

    def _fail_writes(self) -> Agent:
        self.workload.apply(FailWrites, self.key, on=True)
        yield _FAILING_FOR_MS
        self.workload.apply(FailWrites, self.key, on=False)

    def _recreate(self) -> Agent:
        if self.roster:
            self.roster.leave()
        self.workload.apply(Delete, self.key)
        yield _GONE_FOR_MS
        self.state_epoch += 1
        if self.roster:
            yield from self.roster.join()
        yield from self._create()

    def _reset_offsets(self) -> Agent:
        leader = self.workload.cluster.player.leader(self.key)
        if leader is not None:
            # The members leave, which raises the group epoch; the administrator then needs two attempts.
            self.state_epoch += 1
            if self.roster:
                self.roster.leave()
            for _ in range(2):
                self.state_epoch += self.workload.cluster.settings.player.release.reset_raises_epoch
                self._initialize(max(0, leader.start_offset - self.rng.randint(1, _SET_BACK)))
            self.leader_epoch += 1
            self._open()
            if self.roster:
                yield from self.roster.join()

    def _move_log_start(self) -> Agent:
        leader = self.workload.cluster.player.leader(self.key)
        if leader is not None:
            self.workload.apply(LsoMove, self.key, offset=leader.start_offset + self.rng.randint(1, 30))
        return iter(())


def run_cold_snapshots(workload: Workload, keys: Iterable[SharePartitionKey]) -> Agent:
    """Write the cold snapshots of all share coordinators at intervals.

    Source: Kafka ShareCoordinatorService, share.coordinator.cold.partition.snapshot.interval.ms.
    """
    topic = workload.cluster.state_topic
    keys_by_state_key = {workload.cluster.state_key(key): key for key in keys}
    while topic:
        yield _JOB_EVERY_MS
        for coordinator in topic.coordinators:
            for key in coordinator.cold_keys(workload.now_ms):
                workload.apply(ColdSnapshot, keys_by_state_key[key])


def run_pruning(workload: Workload, key: SharePartitionKey) -> Agent:
    """Delete redundant records of all state partitions at intervals; `key` may be any share-partition.

    Source: Kafka ShareCoordinatorService.performRecordPruning.
    """
    while True:
        yield _JOB_EVERY_MS
        workload.apply(Prune, key)
