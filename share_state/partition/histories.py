"""Whole histories of simulated share groups: topics, groups with a behaviour each, and everything they do."""

from dataclasses import replace

from share_state.partition.administration import Administration, cold_job, prune_job
from share_state.partition.behaviours import BEHAVIOURS, Behaviour
from share_state.partition.members import Member
from share_state.partition.recorded import SharePartitionKey
from share_state.partition.stage import Stage
from share_state.partition.world import World

START_MS = 1_700_000_000_000
_GROUPS_A_TOPIC = 3
_PARTITIONS = (1, 3)
_RECORDS_A_SECOND = (5, 40)


def play_history(stage: Stage, *, seed: int, groups: int, minutes: int, prunes: bool = False) -> None:
    """Let share groups live for a while.

    Args:
        stage: where their history is played.
        seed: everything random follows from it.
        groups: how many; group n behaves as row n of BEHAVIOURS, over and over.
        minutes: of simulated time.
        prunes: whether redundant records are deleted as time passes.
    """
    world = World(stage, seed, START_MS)
    rng = world.rng("topics")
    partitions = [rng.randint(*_PARTITIONS) for _ in range(-(-groups // _GROUPS_A_TOPIC))]
    for topic, count in enumerate(partitions):
        for partition in range(count):
            world.produce(_topic(topic), partition, rng.uniform(*_RECORDS_A_SECOND))
    members = []
    for number in range(groups):
        behaviour = BEHAVIOURS[number % len(BEHAVIOURS)]
        if behaviour.dead_letters and not _has_dead_letters(stage):
            behaviour = replace(behaviour, dead_letters=False)
        topic = number % len(partitions)
        for partition in range(partitions[topic]):
            key = SharePartitionKey(f"{behaviour.name}-{number}", _topic(topic), partition)
            members.append(key)
            _let_live(world, key, behaviour)
    if members:
        world.add(cold_job(world, members))
        if prunes:
            world.add(prune_job(world, members[0]))
    world.run(START_MS + minutes * 60_000)


def _topic(number: int) -> str:
    return f"topic-{number}"


def _has_dead_letters(stage: Stage) -> bool:
    """The draft has no state for a record on its way to a dead letter queue."""
    return stage.settings.dialect == "share_group_state" and stage.settings.rules.release.dead_letters


def _let_live(world: World, key: SharePartitionKey, behaviour: Behaviour) -> None:
    after_ms = world.rng("birth", *key).randint(0, 5_000)
    for agent in Administration(world, key, behaviour).agents():
        world.add(agent, after_ms)
    for number in range(behaviour.members):
        world.add(Member(world, key, number, behaviour).agent(), after_ms + 1_000)
