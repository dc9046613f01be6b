"""Simulates share groups and writes the logs of their brokers, the expected state, and planted faults."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from share_state.errors import disk_error, reason_of
from share_state.kafka.releases import LATEST, Release, releases_with
from share_state.simulator.cluster import ClusterSettings, SimulatedCluster
from share_state.simulator.coordinator import UPDATES_PER_SNAPSHOT
from share_state.simulator.events import CreatePartitions, EventError, read_events
from share_state.simulator.faults import PlantedFault, check_names, plant_faults
from share_state.simulator.group_side import GROUP_PARTITIONS
from share_state.simulator.log_writer import CODECS, SEGMENT_BYTES, STATE_PARTITIONS, StateTopicSettings
from share_state.simulator.requests import OutcomeMismatch, RequestReplay, read_requests
from share_state.simulator.settings import (
    WIDEST,
    BrokerConfigs,
    ConfigError,
    DraftConfigs,
    PlayerSettings,
    with_config,
)
from share_state.simulator.types import SharePartitionKey, SimulationError, find_release
from share_state.simulator.workload import (
    BEHAVIOURS,
    Behaviour,
    GroupAdmin,
    Member,
    Roster,
    Workload,
    run_cold_snapshots,
    run_pruning,
)
from share_state.stores.paths import regular_path

START_MS = 1_700_000_000_000
_GROUPS_A_TOPIC = 3
_PARTITIONS = (1, 3)
_RECORDS_A_SECOND = (5, 40)


def run_workload(
    cluster: SimulatedCluster, *, seed: int, groups: int, minutes: int, prunes: bool = False
) -> None:
    """Run share groups with a behaviour each; group n has behaviour n of BEHAVIOURS, repeating.

    Args:
        minutes: minutes of simulated time.
        prunes: whether redundant records are deleted as time passes.
    """
    workload = Workload(cluster, seed, START_MS)
    rng = workload.rng("topics")
    partitions = [rng.randint(*_PARTITIONS) for _ in range(-(-groups // _GROUPS_A_TOPIC))]
    for topic, count in enumerate(partitions):
        for partition in range(count):
            workload.produce(_topic(topic), partition, rng.uniform(*_RECORDS_A_SECOND))
    player = cluster.settings.player
    has_dead_letters = player.dialect == "share_group_state" and player.release.dead_letters
    if cluster.group_side:
        for topic, count in enumerate(partitions):
            cluster.play_group(CreatePartitions, START_MS, topic=_topic(topic), partitions=count)
    keys: list[SharePartitionKey] = []
    for number in range(groups):
        behaviour = BEHAVIOURS[number % len(BEHAVIOURS)]
        if behaviour.dead_letters and not has_dead_letters:
            behaviour = replace(behaviour, dead_letters=False)
        first = number % len(partitions)
        topics = (_topic(first),)
        if cluster.group_side and behaviour.has_second_topic and len(partitions) > 1:
            topics += (_topic((first + 1) % len(partitions)),)
        keys += _add_group(workload, behaviour, number, topics)
    workload.add(run_cold_snapshots(workload, keys))
    if prunes:
        workload.add(run_pruning(workload, keys[0]))
    workload.run(START_MS + minutes * 60_000)


def _add_group(
    workload: Workload, behaviour: Behaviour, number: int, topics: tuple[str, ...]
) -> Iterator[SharePartitionKey]:
    """Add the agents of a group; yields its share-partitions.

    Args:
        topics: what the group reads: every member the first, half of them the others, too.
    """
    group = f"{behaviour.name}-{number}"
    roster = None
    if workload.cluster.group_side:
        members = behaviour.members * workload.partitions(topics[0])
        roster = Roster(workload, group, [topics[: 1 + member % len(topics)] for member in range(members)])
        workload.add(roster.join())
    for topic in topics:
        for partition in range(workload.partitions(topic)):
            key = SharePartitionKey(group, topic, partition)
            yield key
            after_ms = workload.rng("birth", *key).randint(0, 5_000)
            for agent in GroupAdmin(workload, key, behaviour, roster).agents():
                workload.add(agent, after_ms)
            for member in range(behaviour.members):
                workload.add(Member(workload, key, member, behaviour, roster).agent(), after_ms + 1_000)


def _topic(number: int) -> str:
    return f"topic-{number}"


FAULTS_FILE = "faults.jsonl"
CONTROL_RECORDS = "control_records"
DIALECTS = ("share_group_state", CONTROL_RECORDS, "both")
CHECKPOINT_EVERY = 10
_DRAFT_GROUPS = 100
_DRAFT_CONFIGS = {"group.share.enable": True, "group.share.max.groups": _DRAFT_GROUPS}


@dataclass(frozen=True, slots=True)
class Simulation:
    """Result of a simulation.

    Attributes:
        folder: contains the log folders, events.jsonl, topics.json, the expected state, and faults.jsonl.
        events: number of events.
        records: state records, group records and control records written, without faults.
        share_partitions: number with durable state at the end, counted per dialect.
        mismatches: logged outcomes of replayed requests that the state machine contradicts.
        acknowledgements: acknowledgement type -> records that requests acknowledged.
    """

    folder: Path
    events: int
    records: int
    share_partitions: int
    planted: tuple[PlantedFault, ...]
    mismatches: tuple[OutcomeMismatch, ...] = ()
    acknowledgements: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        cluster: SimulatedCluster,
        planted: Sequence[PlantedFault],
        mismatches: Sequence[OutcomeMismatch],
        counts: tuple[int, int],
    ) -> "Simulation":
        """The result of a cluster's events.

        Args:
            counts: the cluster's `counts` before faults were planted.
        """
        ends = tuple(planted), tuple(mismatches), cluster.acknowledgements
        return cls(cluster.folder, cluster.events, *counts, *ends)


def simulate(
    out: Path,
    *,
    events: Path | None = None,
    requests: Path | None = None,
    group_configs: Mapping[str, str] | None = None,
    seed: int = 0,
    groups: int = 8,
    minutes: int = 10,
    dialect: str = "share_group_state",
    faults: Sequence[str] = (),
    release: str = LATEST.name,
    state_partitions: int = STATE_PARTITIONS,
    updates_per_snapshot: int = UPDATES_PER_SNAPSHOT,
    checkpoint_every: int = CHECKPOINT_EVERY,
    checkpoints_at_end: bool = False,
    codec: str = CODECS[0],
    segment_bytes: int = SEGMENT_BYTES,
    version_prefix: bool = False,
    control_offsets_as_gaps: bool = False,
    prunes: bool = False,
    traces: bool = False,
    consumer_offsets: bool = False,
    group_partitions: int = GROUP_PARTITIONS,
) -> Simulation:
    """Simulate share groups and write the logs that their brokers would write.

    Runs are deterministic: the same arguments yield the same bytes. The folder also gets events.jsonl (which
    can be played again), topics.json, and the durable state at the end, before any fault: truth.jsonl,
    redundant.json and deleted-keys.jsonl of the state topic, control-truth.jsonl of control records.
    faults.jsonl lists planted faults.

    Args:
        out: a new or empty folder.
        events: JSON lines to play; None generates a workload.
        requests: a broker's request log whose ShareFetch and ShareAcknowledge requests are played instead;
            topics are named by their ids.
        group_configs: configs of every group, for example {"share.delivery.count.limit": "10"}.
        seed: seed of topic ids, workload and faults.
        groups: number of share groups.
        minutes: minutes of simulated time.
        dialect: one of DIALECTS.
        faults: names of faults.FAULTS, or ALL.
        release: release of the brokers, one of RELEASES.
        state_partitions: partitions of `__share_group_state`.
        updates_per_snapshot: updates after which the next write of a share-partition is a snapshot.
        checkpoint_every: deltas before a checkpoint in the draft dialect.
        checkpoints_at_end: whether a checkpoint also follows a delta that leaves nothing in flight
            (SPSO = SPEO).
        codec: codec of data batches: none, gzip, snappy, lz4 or zstd.
        segment_bytes: maximum segment size.
        version_prefix: whether the draft's values start with a version.
        control_offsets_as_gaps: see ClusterSettings; always true with dialect "both".
        prunes: whether redundant records are deleted as time passes.
        traces: also write results.jsonl (one result per line) and the state after every record
            (history.jsonl, control-history.jsonl).
        consumer_offsets: also write `__consumer_offsets`, with the members of the groups, and their state at the
            end (group-truth.jsonl).
        group_partitions: partitions of `__consumer_offsets`.
    Raises:
        ShareStateError: if an argument, an event or the folder cannot be used.
    """
    if dialect not in DIALECTS:
        raise SimulationError(f"--dialect {dialect}: give one of {', '.join(DIALECTS)}")
    configs = DraftConfigs.of(_DRAFT_CONFIGS) if dialect == CONTROL_RECORDS else BrokerConfigs()
    if requests is not None:
        configs = WIDEST  # its brokers may allow more than the defaults
    brokers = find_release(release)
    defaults = configs.settings()
    for key, value in (group_configs or {}).items():
        defaults = with_config(defaults, key, value, WIDEST)
    player = PlayerSettings(brokers, configs, defaults, dialect, checkpoint_every, traces, checkpoints_at_end)
    topic = StateTopicSettings(brokers, state_partitions, updates_per_snapshot, codec, segment_bytes)
    if events is not None and requests is not None:
        raise SimulationError("--events and --requests: give one of them")
    if requests is not None and dialect != DIALECTS[0]:
        raise SimulationError(
            f"--dialect {dialect}: its control records would use the offsets of logged requests"
        )
    if codec not in CODECS:
        raise SimulationError(f"--codec {codec}: give one of {', '.join(CODECS)}")
    check_names(faults)
    _check_numbers(
        groups=groups,
        minutes=minutes,
        state_partitions=state_partitions,
        segment_bytes=segment_bytes,
        checkpoint_every=checkpoint_every,
        group_partitions=group_partitions,
    )
    if dialect == CONTROL_RECORDS and groups > _DRAFT_GROUPS:
        raise SimulationError(
            f"--groups {groups}: the draft allows at most {_DRAFT_GROUPS} (group.share.max.groups)"
        )
    if consumer_offsets:
        _check_groups_are_simulated(dialect, brokers, requests)
    settings = ClusterSettings(
        player,
        topic,
        version_prefix=version_prefix,
        control_offsets_as_gaps=control_offsets_as_gaps or dialect == "both",
        seed=seed if requests is None else None,
        group_partitions=group_partitions if consumer_offsets else None,
    )
    with _remove_on_failure(out), closing(SimulatedCluster(out, settings)) as cluster:
        mismatches: list[OutcomeMismatch] = []
        if requests is not None:
            mismatches = _replay_file(cluster, requests)
        elif events is None:
            run_workload(cluster, seed=seed, groups=groups, minutes=minutes, prunes=prunes)
        else:
            for event in read_events(_lines_of(events, "a file of JSON lines")):
                cluster.apply(event)
        cluster.finish()
        counts = cluster.counts
        planted = plant_faults(faults, cluster, seed) if faults else []
        if faults:
            _write_faults(out, planted)
    return Simulation.of(cluster, planted, mismatches, counts)


def _check_numbers(**options: int) -> None:
    """Refuse numbers below 1."""
    for name, value in options.items():
        if value < 1:
            raise SimulationError(f"--{name.replace('_', '-')} {value}: give at least 1")


def _write_faults(out: Path, planted: Sequence[PlantedFault]) -> None:
    """Write faults.jsonl."""
    lines = [f"{one.to_json()}\n" for one in planted]
    (out / FAULTS_FILE).write_text("".join(lines), encoding="utf-8")


def _check_groups_are_simulated(dialect: str, brokers: Release, requests: Path | None) -> None:
    """Refuse a group side of the draft, of a request log, and of releases whose assignor is not simulated."""
    if requests is not None:
        raise SimulationError(
            "--consumer-offsets and --requests: a request log has no heartbeats; give one of them"
        )
    if dialect == CONTROL_RECORDS:
        raise SimulationError("--consumer-offsets: the groups of the draft are not simulated")
    if not brokers.assigns_evenly:
        names = ", ".join(sorted(one.name for one in releases_with(lambda one: one.assigns_evenly)))
        raise SimulationError(
            f"--consumer-offsets with --release {brokers.name}: its assignor is not simulated; give one of {names}"
        )


@contextmanager
def _remove_on_failure(out: Path) -> Iterator[None]:
    """Create the folder, or check that it is empty; remove its content if the simulation fails."""
    existed = out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        is_empty = not any(out.iterdir())
    except OSError as error:
        raise SimulationError(
            f"{out}: cannot be written ({reason_of(str(out), error)}); give another folder"
        ) from None
    if not is_empty:
        raise SimulationError(f"{out}: is not empty; give a new or empty folder")
    try:
        try:
            yield
        except OSError as error:
            raise disk_error(str(out), error) from None
    except BaseException:
        shutil.rmtree(out)
        if existed:
            out.mkdir()
        raise


def _lines_of(path: Path, what: str) -> Iterator[bytes]:
    try:
        with regular_path(path).open("rb") as lines:
            yield from lines
    except OSError as error:
        raise SimulationError(f"{path}: cannot be read ({error.strerror}); give {what}") from None


def _replay_file(cluster: SimulatedCluster, requests: Path) -> list[OutcomeMismatch]:
    replay = RequestReplay(cluster)
    try:
        for line, ts_ms, request in read_requests(_lines_of(requests, "a broker's request log")):
            replay.play(line, ts_ms, request)
    except (EventError, ConfigError) as error:
        raise SimulationError(f"{requests}: {error}") from None
    if not cluster.events:
        raise SimulationError(
            f"{requests}: has no ShareFetch or ShareAcknowledge request that acquires or acknowledges records; "
            "brokers log requests with kafka.request.logger at DEBUG"
        )
    return replay.mismatches
