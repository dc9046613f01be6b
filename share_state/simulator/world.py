"""A simulated cluster in motion: a clock, agents that act on it, and logs that producers fill.

How simulated share groups behave: a table, one row a kind of group that operators know.

What is done to a simulated share group from outside: it is made, moved, altered, deleted, overtaken.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

from share_state.simulator.acquisition import AcquiredRecords, LogBatch
from share_state.simulator.events import (
    Acquire,
    ColdSnapshot,
    Config,
    Delete,
    Event,
    FailWrites,
    Init,
    LsoMove,
    Open,
    Outcome,
    Prune,
)
from share_state.simulator.recorded_state import SharePartitionKey
from share_state.simulator.stage import Stage
from share_state.simulator.types import NO_START_OFFSET

Agent = Iterator[int]
"""Acts whenever it is resumed, and yields how many ms later it wants to be resumed."""

_PRODUCED_AT_ONCE = 10
_WINDOW = 1_800
"""Members stop asking for new records a little before the lock limit of 2000 does."""


class World:
    """Time, and what is in it.

    Args:
        stage: where events are played.
        seed: every random choice follows from it.
        start_ms: the time at the beginning.
    """

    def __init__(self, stage: Stage, seed: int, start_ms: int) -> None:
        self.stage, self.seed, self.start_ms = stage, seed, start_ms
        self.now_ms = start_ms
        self._agents: list[tuple[int, int, Agent]] = []
        self._turns = count()
        self._rates: dict[tuple[str, int], float] = {}

    def rng(self, *names: object) -> random.Random:
        """A source of chance for one purpose, the same for the same seed and names."""
        return random.Random(" ".join(map(str, (self.seed, *names))))

    def add(self, agent: Agent, after_ms: int = 0) -> None:
        """Let an agent act from now on."""
        heappush(self._agents, (self.now_ms + after_ms, next(self._turns), agent))

    def run(self, until_ms: int) -> None:
        """Let time pass until `until_ms`, every agent acting when its time has come."""
        while self._agents and self._agents[0][0] <= until_ms:
            self.now_ms, _, agent = heappop(self._agents)
            pause = next(agent, None)
            if pause is not None:
                self.add(agent, max(pause, 1))
        self.now_ms = until_ms

    def tell(self, kind: Callable[..., Event], key: SharePartitionKey, **fields: Any) -> list[Outcome]:
        """Let something happen to a share-partition now; returns what came of it."""
        event = kind(
            seq=self.stage.events,
            ts_ms=self.now_ms,
            group=key.group,
            topic=key.topic,
            partition=key.partition,
            **fields,
        )
        return self.stage.apply(event)

    def produce(self, topic: str, partition: int, records_a_second: float) -> None:
        """Let producers write to a topic-partition at an even pace."""
        self._rates[topic, partition] = records_a_second

    def produced(self, topic: str, partition: int) -> int:
        """How many records producers have written by now."""
        return int(self._rates[topic, partition] * (self.now_ms - self.start_ms) / 1000)

    def fetch(self, key: SharePartitionKey, member: str, wanted: int) -> tuple[AcquiredRecords, ...]:
        """Let a member fetch; returns what it acquired, nothing where there is nothing new or no leader."""
        leader = self.stage.leader(key)
        if leader is None or not leader.can_acquire() or leader.end_offset - leader.start_offset > _WINDOW:
            return ()
        first = leader.next_fetch_offset()
        last = self._last_to_fetch(key, first, wanted)
        if last < first:
            return ()
        batches = tuple(
            LogBatch(at, min(at + _PRODUCED_AT_ONCE - 1, last)) for at in range(first, last + 1, _PRODUCED_AT_ONCE)
        )
        outcomes = self.tell(Acquire, key, member=member, log_batches=batches, max_records=wanted)
        return next(outcome.acquired for outcome in outcomes if outcome.cause == "acquire")

    def control_among(self, key: SharePartitionKey, first: int, last: int) -> list[int]:
        """Offsets in a range that hold control records, which are no records to a consumer."""
        logs = self.stage.topic_logs
        return logs.of(key.topic, key.partition).control_among(first, last) if logs else []

    def _last_to_fetch(self, key: SharePartitionKey, first: int, wanted: int) -> int:
        produced = self.produced(key.topic, key.partition)
        if self.stage.topic_logs is None:
            self.stage.reach(key.topic, key.partition, produced)
            return min(first + wanted, produced) - 1
        log = self.stage.topic_logs.of(key.topic, key.partition)
        end = log.log.next_offset + max(0, produced - log.data_records)
        # Control records alone are not worth a fetch: acknowledging them would write another one.
        data = log.next_data_offset(first)
        return min(max(first + wanted, data + 1), end) - 1 if data < end else first - 1


_SECOND, _MINUTE = 1_000, 60_000

Span = tuple[int, int]
"""The least and the greatest of something that is drawn, both inclusive."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the members of a group do, and what is done to the group. Times in ms; 0 is never.

    Attributes:
        name: of the behaviour.
        says: what to see of it, in a sentence.
        members: of each topic-partition.
        poll_ms: between two fetches of a member.
        work_ms: between a fetch and its acknowledgement.
        fetch_records: wanted of a fetch.
        released, rejected: shares of the records that are released and rejected.
        poison_every: every so many offsets holds a record that nobody can process, so that it is always released.
        drops_every_ms: how often a member's session ends while it holds records.
        renews_for_ms: how long a member holds on to its first record before it accepts it.
        leader_moves_every_ms: how often another broker becomes leader.
        writes_fail_every_ms: how often writes fail for a while.
        deleted_every_ms: how often the share-partitions are deleted and, a while later, made again.
        altered_every_ms: how often somebody sets the offsets back.
        log_start_moves_every_ms: how often retention passes the start.
        dead_letters: whether what cannot be processed goes to a dead letter queue (from 4.4 on).
    """

    name: str
    says: str
    members: int = 1
    poll_ms: Span = (200, 900)
    work_ms: Span = (50, 800)
    fetch_records: Span = (5, 40)
    released: float = 0.01
    rejected: float = 0.002
    poison_every: int = 0
    drops_every_ms: int = 0
    renews_for_ms: int = 0
    leader_moves_every_ms: int = 7 * _MINUTE
    writes_fail_every_ms: int = 0
    deleted_every_ms: int = 0
    altered_every_ms: int = 0
    log_start_moves_every_ms: int = 0
    dead_letters: bool = False


BEHAVIOURS = (
    Behaviour("steady", "two members that accept nearly everything at once", members=2),
    Behaviour("slow", "a member that often works longer than its locks last, so that records come again",
              poll_ms=(2 * _SECOND, 9 * _SECOND), work_ms=(5 * _SECOND, 36 * _SECOND), fetch_records=(20, 120)),
    Behaviour("poison", "records that nobody can process: released until the delivery limit archives them",
              poison_every=53, released=0.05, rejected=0.02),
    Behaviour("crashing", "members that lose their session with records in hand, leaders that move, writes that fail",
              members=2, drops_every_ms=8 * _SECOND, leader_moves_every_ms=50 * _SECOND,
              writes_fail_every_ms=40 * _SECOND, work_ms=(500, 4 * _SECOND)),
    Behaviour("stalled", "a member that renews the lock of one record for minutes while others go on",
              members=2, renews_for_ms=6 * _MINUTE, leader_moves_every_ms=0),
    Behaviour("recreated", "a group that is deleted and made again", deleted_every_ms=3 * _MINUTE),
    Behaviour("altered", "a group whose offsets are set back, and that retention overtakes",
              altered_every_ms=2 * _MINUTE, log_start_moves_every_ms=90 * _SECOND),
    Behaviour("dead-letters", "a group whose hopeless records go to a dead letter queue",
              poison_every=41, rejected=0.03, dead_letters=True),
)  # fmt: skip
"""Groups take turns: group n behaves as row n, over and over."""


_GONE_FOR_MS, _FAILING_FOR_MS = 20_000, 3_000
_JOB_EVERY_MS = 300_000
_SET_BACK = 200
_QUEUE = "errors.deadletterqueue.topic.name"


class Administration:
    """The fate of one share-partition.

    Args:
        world: it lives in.
        key: the share-partition.
        behaviour: of its group.
    """

    def __init__(self, world: World, key: SharePartitionKey, behaviour: Behaviour) -> None:
        self.world, self.key, self.behaviour = world, key, behaviour
        self.rng = world.rng("administration", *key)
        self.state_epoch, self.leader_epoch = 1, 0

    def agents(self) -> Sequence[Agent]:
        """The first makes the share-partition; each of the others does one thing to it now and then."""
        every = self.behaviour
        return [self._begin()] + [
            self._now_and_then(pause, act)
            for pause, act in (
                (every.leader_moves_every_ms, self._move_leader),
                (every.writes_fail_every_ms, self._fail_writes),
                (every.deleted_every_ms, self._make_anew),
                (every.altered_every_ms, self._alter),
                (every.log_start_moves_every_ms, self._move_log_start),
            )
            if pause
        ]

    def _now_and_then(self, every_ms: int, act: Callable[[], Agent]) -> Agent:
        yield self.rng.randint(every_ms // 4, every_ms)
        while True:
            yield from act()
            yield self.rng.randint(every_ms // 2, every_ms + every_ms // 2)

    def _begin(self) -> Agent:
        if self.behaviour.dead_letters:
            self.world.tell(Config, self.key, name=_QUEUE, value="dlq.hopeless")
        self._initialize(NO_START_OFFSET)
        yield 1
        self._open()

    def _initialize(self, start_offset: int) -> None:
        self.world.tell(Init, self.key, state_epoch=self.state_epoch, start_offset=start_offset)

    def _open(self) -> None:
        self.world.tell(Open, self.key, leader_epoch=self.leader_epoch)

    def _move_leader(self) -> Agent:
        if self.world.stage.leader(self.key) is not None:
            self.leader_epoch += 1
            self._open()
        return iter(())

    def _fail_writes(self) -> Agent:
        self.world.tell(FailWrites, self.key, on=True)
        yield _FAILING_FOR_MS
        self.world.tell(FailWrites, self.key, on=False)

    def _make_anew(self) -> Agent:
        self.world.tell(Delete, self.key)
        yield _GONE_FOR_MS
        self.state_epoch += 1
        self._initialize(NO_START_OFFSET)
        yield 1
        self._open()

    def _alter(self) -> Agent:
        leader = self.world.stage.leader(self.key)
        if leader is not None:
            self.state_epoch += 1
            self._initialize(max(0, leader.start_offset - self.rng.randint(1, _SET_BACK)))
            self.leader_epoch += 1
            self._open()
        return iter(())

    def _move_log_start(self) -> Agent:
        leader = self.world.stage.leader(self.key)
        if leader is not None:
            self.world.tell(LsoMove, self.key, offset=leader.start_offset + self.rng.randint(1, 30))
        return iter(())


def cold_job(world: World, keys: Iterable[SharePartitionKey]) -> Agent:
    """What the share coordinators do now and then: repeat states that nobody has written for long.

    Source: Kafka ShareCoordinatorService, share.coordinator.cold.partition.snapshot.interval.ms.
    """
    topic = world.stage.state_topic
    known = {world.stage.state_key(key): key for key in keys}
    while topic:
        yield _JOB_EVERY_MS
        for coordinator in topic.coordinators:
            for key in coordinator.cold_keys(world.now_ms):
                world.tell(ColdSnapshot, known[key])


def prune_job(world: World, key: SharePartitionKey) -> Agent:
    """What the share coordinators do now and then: delete records that are redundant.

    Args:
        world: they live in.
        key: any; all state partitions are pruned.
    Source: Kafka ShareCoordinatorService.performRecordPruning.
    """
    while True:
        yield _JOB_EVERY_MS
        world.tell(Prune, key)
