"""Whole histories of simulated share groups: topics, groups with a behaviour each, and everything they do.

One call: a history simulated, written as logs with the truth beside them, and broken where that is wanted.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from share_state.simulator.consumer import Member
from share_state.simulator.coordinator import UPDATES_PER_SNAPSHOT
from share_state.simulator.events import read_events
from share_state.simulator.faults import Logs, Planted, check_names, plant
from share_state.simulator.log_writer import CODECS, SEGMENT_BYTES, STATE_PARTITIONS, TopicSettings
from share_state.simulator.recorded_state import SharePartitionKey
from share_state.simulator.settings import BrokerConfigs, DraftConfigs, Rules
from share_state.simulator.stage import Stage, StageSettings
from share_state.simulator.state_records import LATEST, writer_release
from share_state.simulator.types import SimulationError, release_of
from share_state.simulator.world import BEHAVIOURS, Administration, Behaviour, World, cold_job, prune_job

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


FAULTS_FILE = "faults.jsonl"
CONTROL_RECORDS = "control_records"
DIALECTS = ("share_group_state", CONTROL_RECORDS, "both")
CHECKPOINT_EVERY = 10
_DRAFT_GROUPS = 100
_DRAFT_CONFIGS = {"group.share.enable": True, "group.share.max.groups": _DRAFT_GROUPS}


@dataclass(frozen=True, slots=True)
class Simulation:
    """What was simulated.

    Attributes:
        folder: holds the log folders, events.jsonl, topics.json, the truth, and faults.jsonl where there are any.
        events: how many events were played.
        records: state records and control records written, faults left out.
        share_partitions: that have a durable state at the end, one for each dialect.
        planted: faults.
    """

    folder: Path
    events: int
    records: int
    share_partitions: int
    planted: tuple[Planted, ...]


def simulate(
    out: Path,
    *,
    events: Path | None = None,
    seed: int = 0,
    groups: int = 8,
    minutes: int = 10,
    dialect: str = "share_group_state",
    faults: Sequence[str] = (),
    release: str = LATEST.name,
    state_partitions: int = STATE_PARTITIONS,
    updates_per_snapshot: int = UPDATES_PER_SNAPSHOT,
    checkpoint_every: int = CHECKPOINT_EVERY,
    codec: str = CODECS[0],
    segment_bytes: int = SEGMENT_BYTES,
    version_prefix: bool = False,
    prunes: bool = False,
    traces: bool = False,
) -> Simulation:
    """Simulate share groups and write what their brokers would have written.

    The same arguments give the same bytes. Beside the logs stand events.jsonl (what happened; it can be played
    again), topics.json, and the durable state at the end, before any fault: truth.jsonl, redundant.json and
    deleted-keys.jsonl of the state topic, control-truth.jsonl of control records. faults.jsonl says what was broken.

    Args:
        out: a folder that is new or empty.
        events: JSON lines to play; None lets the groups live by themselves.
        seed: everything random follows from it: topic ids, histories, faults.
        groups: how many share groups live, each with one of the stated behaviours.
        minutes: of simulated time.
        dialect: one of DIALECTS.
        faults: names of share_state.partition.faults.FAULTS, or ALL.
        release: of the brokers, 4.0 to 4.4.
        state_partitions: of the topic `__share_group_state`.
        updates_per_snapshot: after which the next write of a share-partition is a snapshot.
        checkpoint_every: how many deltas the draft's leaders write before a checkpoint.
        codec: of data batches: none, gzip, snappy, lz4 or zstd.
        segment_bytes: at which segments roll.
        version_prefix: whether the draft's values begin with a version.
        prunes: whether redundant records are deleted as time passes.
        traces: also write results.jsonl (an outcome a line) and the state behind every record (history.jsonl,
            control-history.jsonl).
    Returns:
        Where everything is, and how much of it.
    Raises:
        ShareStateError: if an argument, an event or the folder cannot be used.
    """
    if dialect not in DIALECTS:
        raise SimulationError(f"dialect {dialect!r} is not known; use one of {', '.join(DIALECTS)}")
    configs = DraftConfigs.of(_DRAFT_CONFIGS) if dialect == CONTROL_RECORDS else BrokerConfigs()
    rules = Rules(release_of(release), configs, dialect=dialect, checkpoint_every=checkpoint_every, traces=traces)
    topic = TopicSettings(
        writer_release(release),
        state_partitions,
        updates_per_snapshot=updates_per_snapshot,
        codec=codec,
        segment_bytes=segment_bytes,
    )
    if codec not in CODECS:
        raise SimulationError(f"codec {codec!r} is not known; use one of {', '.join(CODECS)}")
    check_names(faults)
    least = {"groups": groups, "minutes": minutes, "state_partitions": state_partitions, "segment_bytes": segment_bytes}
    for name, value in (least | {"checkpoint_every": checkpoint_every}).items():
        if value < 1:
            raise SimulationError(f"{name}: {value}: must be 1 or more")
    if dialect == CONTROL_RECORDS and groups > _DRAFT_GROUPS:
        raise SimulationError(f"groups: {groups}: the draft knows at most {_DRAFT_GROUPS} (group.share.max.groups)")
    settings = StageSettings(rules, topic, version_prefix=version_prefix, traces=traces, seed=seed)
    with _whole_or_not_at_all(out), closing(Stage(out, settings)) as stage:
        if events is None:
            play_history(stage, seed=seed, groups=groups, minutes=minutes, prunes=prunes)
        else:
            _play_file(stage, events)
        stage.finish()
        records, share_partitions = stage.size
        planted = _plant(faults, stage, seed) if faults else []
    return Simulation(out, stage.events, records, share_partitions, tuple(planted))


def _plant(faults: Sequence[str], stage: Stage, seed: int) -> list[Planted]:
    limit = stage.settings.rules.configs.settings().delivery_count_limit
    control = list(stage.topic_logs.writers()) if stage.topic_logs else []
    planted = plant(faults, Logs(stage.state_topic, control, stage.logs, stage.folder, stage.now_ms, limit), seed)
    lines = "".join(f"{one.to_json()}\n" for one in planted)
    (stage.folder / FAULTS_FILE).write_text(lines, encoding="utf-8")
    return planted


@contextmanager
def _whole_or_not_at_all(out: Path) -> Iterator[None]:
    """The folder, new or empty; what was written to it goes again if something stops the simulation."""
    existed = out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        is_empty = not any(out.iterdir())
    except OSError as error:
        raise SimulationError(f"{out}: cannot be written ({error.strerror}); give another folder") from None
    if not is_empty:
        raise SimulationError(f"{out}: holds something already; give a folder that is new or empty")
    try:
        yield
    except BaseException:
        shutil.rmtree(out)
        if existed:
            out.mkdir()
        raise


def _play_file(stage: Stage, events: Path) -> None:
    try:
        with events.open("rb") as lines:
            for event in read_events(lines):
                stage.apply(event)
    except OSError as error:
        raise SimulationError(f"{events}: cannot be read ({error.strerror}); give a file of JSON lines") from None
