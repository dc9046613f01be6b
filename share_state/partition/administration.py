"""What is done to a simulated share group from outside: it is made, moved, altered, deleted, overtaken."""

from collections.abc import Callable, Iterable, Sequence

from share_state.partition.behaviours import Behaviour
from share_state.partition.events import ColdSnapshot, Config, Delete, FailWrites, Init, LsoMove, Open, Prune
from share_state.partition.recorded import SharePartitionKey
from share_state.partition.world import Agent, World
from share_state.partition.writes import NO_START_OFFSET

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
