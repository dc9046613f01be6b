"""Groups that live in a simulated cluster: consumers work, die, reject, release, stall; topics go, retention overtakes.

Each life keeps a memory of its own of what it produced, finished and lost, which no part of the audit shares. The
cluster's state machine (`share_state.simulator`) decides what the log shows of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from share_state.kafka.releases import LATEST
from share_state.simulator.acquisition import LogBatch
from share_state.simulator.cluster import ClusterSettings, SimulatedCluster
from share_state.simulator.events import Ack, Acquire, Advance, Init, LsoMove, MemberLeave, Open
from share_state.simulator.log_writer import StateTopicSettings
from share_state.simulator.settings import AckBatch, AckType, PlayerSettings
from share_state.simulator.types import ErrorCode, SharePartitionKey
from share_state.simulator.workload import Agent, Workload
from share_state.sources.topics import Topics, topics_of

SECOND, MINUTE = 1_000, 60_000
START_MS = 1_700_000_000_000
TICK = 20 * SECOND
LIMIT = 5
"""Deliveries, as Kafka's default."""
STATE_PARTITIONS = 3
RECORD_EVERY = 5 * SECOND
"""Producers write a record; a night's worth of them fits into the limit of records in flight."""
_MOST_IN_FLIGHT = 1_500

WORKS, IDLE, DIES, LEAVES = "works", "idle", "dies", "leaves"
REJECTS, RELEASES, STALLS, RESTARTS = "rejects", "releases", "stalls", "restarts"
OVERTAKEN, DELETED = "overtaken", "deleted"
WAYS = (WORKS, IDLE, DIES, LEAVES, REJECTS, RELEASES, STALLS, RESTARTS, OVERTAKEN, DELETED)
"""How a life spends some time."""
_ABSENT = (DIES, LEAVES, OVERTAKEN)

Phase = tuple[str, int]
"""A way, and for how many minutes."""


@dataclass
class Memory:
    """What a life knows of itself.

    Attributes:
        produced, produced_at: records in the topic at a time (ms).
        finished: offsets that are acknowledged or archived.
        deliveries: offset -> failed deliveries, of those that are not finished.
        start, moved_at: start offset of the leader, and since when.
        delivered_at: when a consumer first changed something after the start offset moved; None if not yet.
        active_at: when a consumer last changed something.
        log_start: first offset of the topic that retention has left.
        outcomes: since the last audit: (ms, acknowledged, rejected, given up).
        is_deleted: whether the topic is deleted.
    """

    produced: int = 0
    produced_at: int = START_MS
    finished: set[int] = field(default_factory=set)
    deliveries: dict[int, int] = field(default_factory=dict)
    start: int = 0
    moved_at: int = START_MS
    delivered_at: int | None = None
    active_at: int = START_MS
    log_start: int = 0
    outcomes: list[tuple[int, int, int, int]] = field(default_factory=list)
    is_deleted: bool = False


class Life:
    """One share-partition of a group of its own, and its only member."""

    def __init__(self, workload: Workload, number: int, phases: Sequence[Phase]) -> None:
        self.workload, self.phases, self.memory = workload, phases, Memory()
        self.key = SharePartitionKey(f"life-{number}", f"topic-{number}", 0)
        self._held: int | None = None
        self._leader_epoch, self._produces = 0, True

    def agent(self) -> Agent:
        """Live, phase by phase."""
        self.workload.apply(Init, self.key, state_epoch=1, start_offset=-1)
        yield SECOND
        self.workload.apply(Open, self.key, leader_epoch=0)
        yield TICK
        self._work(AckType.ACCEPT)
        until = START_MS
        for way, minutes in self.phases:
            until += minutes * MINUTE
            yield from self._spend(way, until)

    def _spend(self, way: str, until: int) -> Iterator[int]:
        if self.memory.is_deleted:
            return
        self._produce()
        self._produces = way != IDLE
        self._begin(way)
        while self.workload.now_ms < until - 2 * TICK:
            yield TICK
            self._act(way)
        if way == OVERTAKEN and self._unfinished():
            # Retention deletes half of what waits.
            self.memory.log_start = max(self.memory.log_start, (self.memory.start + self.produced()) // 2)

    def _begin(self, way: str) -> None:
        if way != STALLS and self._held is not None:
            self._acknowledge([(self._held, self._held, AckType.ACCEPT)])
            self._held = None
        if way == RESTARTS:
            self._leader_epoch += 1
            self.workload.apply(Open, self.key, leader_epoch=self._leader_epoch)
        if way == LEAVES:
            self.workload.apply(MemberLeave, self.key, member="member")
        if way == DELETED:
            self._produce()
            self.memory.is_deleted = True

    def _act(self, way: str) -> None:
        self._produce()
        if way in _ABSENT or way == DELETED:
            return
        leader = self.workload.cluster.player.leader(self.key)
        if leader is not None and leader.start_offset < self.memory.log_start:
            self.workload.apply(LsoMove, self.key, offset=self.memory.log_start)
        if way == STALLS:
            self._stall()
        elif way == REJECTS:
            self._work(AckType.REJECT)
        elif way == RELEASES:
            self._work(AckType.RELEASE)
        else:
            self._work(AckType.ACCEPT)

    def _stall(self) -> None:
        """Renew the lock of one record, and accept the others."""
        if self._held is not None:
            renewed = self._send([AckBatch(self._held, self._held, (AckType.RENEW,))], renews=True)
            if renewed is not ErrorCode.NONE:
                self._held = None
        acquired = self._fetch()
        if self._held is None and acquired:
            self._held = acquired[0][0]
        rest = [(first if first != self._held else first + 1, last) for first, last in acquired]
        self._acknowledge([(first, last, AckType.ACCEPT) for first, last in rest if first <= last])

    def _work(self, kind: AckType) -> None:
        """Fetch, and acknowledge what comes."""
        self._acknowledge([(first, last, kind) for first, last in self._fetch()])

    def _fetch(self) -> list[tuple[int, int]]:
        leader = self.workload.cluster.player.leader(self.key)
        self.workload.apply(Advance, self.key)
        if leader is None or leader.end_offset - leader.start_offset > _MOST_IN_FLIGHT:
            return []
        first = leader.next_fetch_offset()
        last = min(first + 200, self.produced()) - 1
        if last < first:
            return []
        batches = tuple(LogBatch(at, min(at + 9, last)) for at in range(first, last + 1, 10))
        result = self.workload.apply(Acquire, self.key, member="member", log_batches=batches, max_records=200)
        return [(one.first_offset, one.last_offset) for one in result.acquired]

    def _send(self, batches: Sequence[AckBatch], *, renews: bool = False) -> ErrorCode:
        return self.workload.apply(Ack, self.key, member="member", batches=tuple(batches), is_renew_ack=renews).error

    def _acknowledge(self, ranges: Sequence[tuple[int, int, AckType]]) -> None:
        if not ranges:
            return
        error = self._send([AckBatch(first, last, (kind,)) for first, last, kind in ranges])
        assert error is ErrorCode.NONE, error
        memory, now, counts = self.memory, self.workload.now_ms, [0, 0, 0]
        for first, last, kind in ranges:
            for offset in range(first, last + 1):
                failed = memory.deliveries.get(offset, 0) + 1
                if kind is AckType.RELEASE and failed < LIMIT:
                    memory.deliveries[offset] = failed
                    continue
                memory.deliveries.pop(offset, None)
                memory.finished.add(offset)
                # A rejection of the last delivery looks like a release of it.
                counts[0 if kind is AckType.ACCEPT else 1 if failed < LIMIT else 2] += 1
        if any(counts):
            memory.outcomes.append((now, counts[0], counts[1], counts[2]))
        memory.active_at = now
        memory.delivered_at = memory.delivered_at or now
        leader = self.workload.cluster.player.leader(self.key)
        if leader is not None and leader.start_offset != memory.start:
            memory.start, memory.moved_at, memory.delivered_at = leader.start_offset, now, None

    def produced(self) -> int:
        """Records in the topic now."""
        memory = self.memory
        passed = (self.workload.now_ms - memory.produced_at) // RECORD_EVERY if self._produces else 0
        return memory.produced + passed

    def _produce(self) -> None:
        new = self.produced() - self.memory.produced
        self.memory.produced += new
        self.memory.produced_at = (
            self.memory.produced_at + new * RECORD_EVERY if self._produces else self.workload.now_ms
        )

    def _unfinished(self) -> int:
        return self.produced() - len(self.memory.finished | {*range(self._gone())})

    def _gone(self) -> int:
        """Offsets below it are deleted, and consumers know it."""
        return self.memory.log_start if self.memory.start >= self.memory.log_start else 0

    def truth(self) -> "Truth":
        """What is true now, and may not be known from the log by a little."""
        memory, now = self.memory, self.workload.now_ms
        waiting = self._unfinished() > 0
        idle = now - memory.active_at if waiting else 0
        unmoved = 0
        if waiting and memory.delivered_at is not None:
            unmoved = now - memory.delivered_at
        lost = 0
        if memory.start < memory.log_start:
            lost = memory.log_start - len([offset for offset in memory.finished if offset < memory.log_start])
        accepted_at = max((at for at, accepted, *_ in memory.outcomes if accepted), default=0)
        failed = [at for at, _, rejected, given_up in memory.outcomes if at > accepted_at and rejected + given_up]
        given_up = sum(one[3] for one in memory.outcomes)
        at_risk = any(count >= LIMIT - 1 for count in memory.deliveries.values())
        return Truth(
            idle=idle,
            unmoved=unmoved,
            only_failing=failed[-1] - failed[0] if failed else 0,
            lost=lost,
            is_deleted=memory.is_deleted,
            may_be_poisoned=given_up > 0 or at_risk,
        )


@dataclass(frozen=True)
class Truth:
    """What is true of a life at the time of an audit.

    Attributes:
        idle: ms for which records wait and no consumer has changed anything.
        unmoved: ms for which records wait and the start offset has stayed since the first delivery after it moved.
        only_failing: ms between the first and the last record given up since the last acknowledgement.
        lost: unfinished records that retention has deleted, and that consumers have not passed.
        is_deleted: whether the topic is gone.
        may_be_poisoned: whether records were given up, or are one delivery from it.
    """

    idle: int
    unmoved: int
    only_failing: int
    lost: int
    is_deleted: bool
    may_be_poisoned: bool


class Cluster:
    """A cluster of lives, and one group that always works, so that the log goes on."""

    def __init__(self, folder: Path, lives: Sequence[Sequence[Phase]], seed: int = 0) -> None:
        topic = StateTopicSettings(
            release=LATEST, state_partitions=STATE_PARTITIONS, updates_per_snapshot=50, segment_bytes=1 << 20
        )
        folder.mkdir(parents=True)
        self.cluster = SimulatedCluster(folder, ClusterSettings(PlayerSettings(release=LATEST), topic, seed=seed))
        self.workload = Workload(self.cluster, seed, START_MS)
        always = [(WORKS, sum(minutes for _, minutes in lives[0]))]
        self.lives = [Life(self.workload, number, phases) for number, phases in enumerate([always, *lives])]
        for number, life in enumerate(self.lives):
            self.workload.add(life.agent(), number * SECOND)

    def run(self, minutes: int) -> None:
        """Let all live on, and flush the logs."""
        self.workload.run(self.workload.now_ms + minutes * MINUTE)
        for log in self.cluster.logs:
            log.flush()

    @property
    def topics(self) -> Topics:
        """Every topic that exists, with the first and the next offset of its partition."""
        there = {self.cluster.topic_id(life.key.topic): life for life in self.lives if not life.memory.is_deleted}
        bounds: Mapping[str, tuple[int, int]] = {
            topic_id: (life.memory.log_start, life.produced()) for topic_id, life in there.items()
        }
        return topics_of(
            {topic_id: life.key.topic for topic_id, life in there.items()},
            starts={(topic_id, 0): start for topic_id, (start, _) in bounds.items()},
            ends={(topic_id, 0): end for topic_id, (_, end) in bounds.items()},
            partition_counts=dict.fromkeys(there, 1),
            is_complete=True,
        )
