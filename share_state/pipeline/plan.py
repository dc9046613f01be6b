"""The plan of a fold: `build_plan` turns an InputSpec into a FoldPlan, plain data that travels to every task."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.input_spec import JUDGE_ALL, JUDGE_NONE, JUDGE_STATE, FieldNames, InputSpec
from share_state.config.sections import HISTORY, GroupSettings, Source
from share_state.delta.reader import open_dataset, warehouse_errors
from share_state.errors import InputError, SetupError
from share_state.fold.checkpoint import CHECKPOINT_TABLE, FoldCheckpoint, restore_checkpoint
from share_state.fold.continuity import fold_after
from share_state.fold.dialect import CutoffVerification, dialect_of, verify_cutoff
from share_state.fold.fold_options import ControlOptions, FoldOptions, SharePartitionFilter
from share_state.fold.limits import GroupLimits
from share_state.fold.log_stats import Folded
from share_state.fold.offset_history import share_partitions
from share_state.fold.state_log import fold_log
from share_state.fold.states import CONTROL_RECORDS
from share_state.fold.timeline import TIMELINE, decoded_tables, timeline_tables
from share_state.pipeline.facts import (
    TopicSource,
    read_adjacent_topics,
    settle_facts,
    settle_group_configs,
    settle_live_limits,
)
from share_state.pipeline.inputs import (
    Export,
    ExportPaths,
    RowSorter,
    adjacent_group_logs,
    find_cluster_address,
    find_dead_letters,
    own_dead_letters,
    read_export,
    read_frame,
    read_group_export,
)
from share_state.rules.cluster_settings import FactConflict
from share_state.rules.findings import RecordRules, judge
from share_state.rules.registry import listed
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import LogTime, TimeSpan, Window, time_text
from share_state.sources.cluster_facts import ClusterFacts, ClusterSettings, read_cluster_facts
from share_state.sources.discovery import (
    GROUP_TOPIC,
    STATE_TOPIC,
    LogPartition,
    find_data_folders,
    names_log,
    segment_folders,
)
from share_state.sources.group_configs import GroupConfigs
from share_state.sources.log_times import time_span
from share_state.sources.partition_count import count_partitions, infer_partition_count
from share_state.sources.pruned_logs import copy_log, read_pieces, read_whole
from share_state.sources.record_tables import Columns
from share_state.sources.resume_point import ResumeStatus
from share_state.sources.share_snapshots import ShareSnapshotEntry, read_share_snapshots
from share_state.sources.topics import Topics, read_subscriptions, read_topics

if TYPE_CHECKING:
    from share_state.sources.dead_letter_topics import DeadLetterSource
    from share_state.sources.kafka_admin import ClusterLimits
    from share_state.sources.kafka_cluster import KafkaSource


_LOG = logging.getLogger("share_state")


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_per_log(logs: Sequence[LogPartition], cores: int, most: int | None = None) -> dict[str, int]:
    """Cores of each log that needs more than one, by name, in proportion to its bytes.

    Args:
        logs: all logs, which are read at the same time.
        cores: for all of them together.
        most: for one log; by default all.
    """
    total = max(1, sum(log.size for log in logs))
    shares = {log.name: min(round(cores * log.size / total), most or cores) for log in logs}
    return {name: count for name, count in shares.items() if count > 1}


@dataclass(frozen=True, slots=True)
class GroupInput:
    """The group side of a plan.

    Attributes:
        logs: partitions of `__consumer_offsets`.
        partitions: number of partitions of the topic; None to infer it from the logs.
        claims: HISTORY or LATEST.
        limits: the limits of share groups.
    """

    logs: tuple[LogPartition, ...]
    partitions: int | None = None
    claims: str = HISTORY
    limits: GroupLimits = field(default_factory=GroupLimits)


@dataclass(frozen=True, slots=True)
class ResumedLog:
    """How an audit resumes one log partition.

    Attributes:
        status: what happened to it since the last audit.
        checkpoint: its row of `carried_logs`; None if there is none.
        files: Parquet files with its rows of `carried_share_partitions`, and maybe rows of other logs; for a log with
            control records, which is read from its start, files of `share_partition_state`.
        found: the log partition with all its segments; None if it has none or is missing.
        is_compared: whether share-partitions of the last audit must be in it.
    """

    status: ResumeStatus
    checkpoint: str | None = None
    files: tuple[str, ...] = ()
    found: LogPartition | None = None
    is_compared: bool = False

    def restore(self, log: LogPartition) -> Callable[[], FoldCheckpoint] | None:
        """A function that returns a new copy of a log's checkpoint at each call; None if there is no checkpoint."""
        return None if self.checkpoint is None else partial(read_checkpoint, self.checkpoint, self.files, log.name)

    def read_starts(self, log: LogPartition) -> pa.Table | None:
        """`ControlOptions.last_audit` of a log with control records."""
        if not self.files:
            return None
        where = (pc.field("dialect") == CONTROL_RECORDS) & (pc.field("topic") == log.topic)
        where &= pc.field("partition") == pa.scalar(log.partition, pa.int32())
        with warehouse_errors(self.files[0]):
            rows = open_dataset("share_partition_state", self.files)
            return rows.to_table(["group_id", "start_offset", "snapshot_offset"], filter=where).combine_chunks()


def read_checkpoint(row: str, files: Sequence[str], log: str) -> FoldCheckpoint:
    """The checkpoint of a log: its row of `carried_logs`, and the files with rows of `carried_share_partitions`."""
    if not files:
        return restore_checkpoint(row, table_schema(CHECKPOINT_TABLE).empty_table())
    with warehouse_errors(files[0]):
        return restore_checkpoint(row, open_dataset(CHECKPOINT_TABLE, files).to_table(filter=pc.field("log") == log))


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """What to fold, and how.

    Attributes:
        logs: the log partitions; `__share_group_state` holds state records, any other topic control records.
        windows: name of a log partition -> which of its records count.
        window: the window of the log partitions that `windows` does not name.
        options: how each log is folded; `fold_options` adds what differs from log to log.
        names_logs: whether the caller named single log partitions, so that no other is expected in the input.
        indexes: name of a log partition -> entries of its share snapshot file, to check against the log.
        severities: rule -> severity or "off".
        judging: which rules apply: JUDGE_ALL, JUDGE_STATE or JUDGE_NONE.
        verify: prove each cutoff by folding again without the records before it.
        known_limits: names of the limits of the cluster that the call sets or the cluster shows; the others are Kafka's
            defaults.
        resumed: name of a log partition -> how an audit resumes it; None if this is not an audit.
        timeline: the share-partitions of the table `timeline`; None for no timeline.
        groups: the group side; None if there is none.
        cores: name of a log partition -> cores that fold it, 1 by default.
        dead_letters: the dead-letter topics; None if none are given.
        dead_letters_copied_last: whether the dead-letter topics were copied after the state logs.
        dead_letter_topics: group -> the dead-letter topic that it is configured with, as far as that is known.
        notes: facts about the input that the result depends on, one line each.
        lacks_groups: whether groups were to be read, but the input has none.
        topics_note: which topics file was found beside the logs; None for none.
        outside: why the as-of time is outside of the times of the input; None if it is not, or there is none.
        facts: facts about the cluster that its data folder holds, and where from, for the options of a run.
        fact_conflicts: facts about the cluster for which two sources disagree.
        cluster: settings of the cluster by its metadata log; None without one.
        data_folders: data folders of the brokers that hold the logs.
        group_configs: what is known of the configs of share groups.
    """

    logs: Sequence[LogPartition]
    windows: Mapping[str, Window] = field(default_factory=dict)
    window: Window = field(default_factory=Window)
    options: FoldOptions = field(default_factory=FoldOptions)
    names_logs: bool = False
    indexes: Mapping[str, Sequence[ShareSnapshotEntry]] = field(default_factory=dict)
    severities: Mapping[str, str] = field(default_factory=dict)
    judging: str = JUDGE_STATE
    verify: bool = False
    known_limits: frozenset[str] = frozenset()
    resumed: Mapping[str, ResumedLog] | None = None
    timeline: SharePartitionFilter | None = None
    groups: GroupInput | None = None
    cores: Mapping[str, int] = field(default_factory=dict)
    dead_letters: "DeadLetterSource | None" = None
    dead_letters_copied_last: bool = False
    dead_letter_topics: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    lacks_groups: bool = False
    topics_note: str | None = None
    outside: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    fact_conflicts: tuple[FactConflict, ...] = ()
    cluster: ClusterSettings | None = None
    data_folders: tuple[str, ...] = ()
    group_configs: GroupConfigs = field(default_factory=GroupConfigs)

    @property
    def state_partition_numbers(self) -> list[int]:
        """The numbers of the state partitions in the input, as far as they are known."""
        return [log.partition for log in self.logs if log.topic == STATE_TOPIC and log.partition is not None]

    @property
    def state_partitions(self) -> int | None:
        """Number of partitions of the state topic; None if unknown."""
        return self.options.partition_count.number

    def known_limit(self, limit: str, group: str | None) -> int | None:
        """A limit of a share group, or of the cluster without one; None if only Kafka's default is known."""
        limits = self.options.limits
        of_cluster = getattr(limits, limit) if limit in self.known_limits else None
        return of_cluster if group is None else limits.groups.get(group, {}).get(limit, of_cluster)

    def with_options(self, **changes: Any) -> "FoldPlan":
        """This plan with other options of the fold."""
        return replace(self, options=replace(self.options, **changes))

    def window_of(self, log: LogPartition) -> Window:
        """Which records of one of the logs count."""
        return self.windows.get(log.name, self.window)

    def fold(self, log: LogPartition) -> Folded:
        """Fold one of the logs; where the broker deletes records before they are read, up to a later end."""
        return self._fold(log) if log.source is None else read_whole(log, self._fold)

    def _fold(self, log: LogPartition) -> Folded:
        window, options = self.window_of(log), self.fold_options(log)
        if self.resumed is not None and self.resumed[log.name].is_compared and window == Window():
            return fold_after(lambda part, how: fold_log(part, window, how), log, options)
        return dialect_of(log).fold(log, window, options)

    def check_time(self) -> None:
        """Refuse an as-of time that is outside of the times of the input.

        Raises:
            InputError: naming the times of its first and newest record.
        """
        if self.outside is not None:
            raise InputError(self.outside)

    def copied(self, log: LogPartition) -> LogPartition:
        """One of the logs as `run_task` needs it: a copy if it is read several times, while the broker prunes."""
        return copy_log(log) if self.verify or self.timeline is not None else log

    def fold_options(self, log: LogPartition) -> FoldOptions:
        """How one of the logs is folded."""
        resumed = (self.resumed or {}).get(log.name)
        control = replace(self.options.control, index=self.indexes.get(log.name))
        if resumed is not None and log.topic != STATE_TOPIC:
            control, resumed = replace(control, last_audit=resumed.read_starts(log)), None
        return replace(
            self.options,
            topics=self._topics_of(log),
            cores=self.cores_of(log),
            control=control,
            restore=resumed and resumed.restore(log),
            resume_status=resumed and resumed.status,
            judge=RecordRules(self.severities) if self.judging == JUDGE_ALL else None,
        )

    def _topics_of(self, log: LogPartition) -> Topics:
        """The topics with ends that are not before the end of a log; otherwise a lag could be negative."""
        topics = self.options.topics
        if not (topics.are_live and getattr(log.source, "is_extended", False)):
            return topics
        return replace(topics, ends=cast("KafkaSource", log.source).fetch_topics().ends)

    def cores_of(self, log: LogPartition) -> int:
        """Cores that fold one of the logs on this machine."""
        return min(self.cores.get(log.name, 1), available_cores())

    def judge(self, folded: Folded) -> pa.Table:
        """The findings of a folded log, with the columns CONDITIONS if some may not count."""
        if self.judging == JUDGE_NONE:
            return table_schema("findings").empty_table()
        return judge(
            folded,
            self.severities,
            self.options.topics,
            folded.record_breaches,
            with_unproven=True,
            clock=self.options.judged_at,
            # The ends of topics were fetched before a log that is read beyond its planned end.
            compares_topics=self.window_of(folded.log) == Window()
            and not getattr(folded.log.source, "is_extended", False),
        )

    def prove(self, folded: Folded) -> CutoffVerification | None:
        """Fold again without the records before the cutoff, and compare."""
        return verify_cutoff(folded, self.window_of(folded.log), self.fold_options(folded.log))

    def states_of(self, log: LogPartition) -> Iterator[pa.Table]:
        """The table `timeline` of one of the logs, in pieces."""
        if self.timeline is not None:
            log = copy_log(log)
            yield from timeline_tables(log, self.window_of(log), self.timeline, self.fold_options(log))

    def check(self, selection: SharePartitionFilter) -> None:
        """Refuse a filter that matches no share-partition with a record in the logs.

        Raises:
            InputError: naming the nearest that have records.
        """
        keys = (read_whole(log, self._share_partitions) for log in self.logs)
        columns = ["group_id", "topic_id", "topic", "partition"]
        tables = [table_schema(TIMELINE).empty_table().select(columns), *(table.select(columns) for table in keys)]
        selection.check(pa.concat_tables(tables, promote_options="permissive"))

    def _share_partitions(self, log: LogPartition) -> pa.Table:
        return share_partitions(log, self.window_of(log), self.fold_options(log))

    def decode(self, log: LogPartition) -> Iterator[pa.Table]:
        """The decoded records of one of the logs, one table per chunk; not those that the broker deletes meanwhile."""
        return read_pieces(log, lambda part: decoded_tables(part, self.window_of(part), self.fold_options(part)))


def build_plan(spec: InputSpec, names: FieldNames, sorter: RowSorter | None = None) -> FoldPlan:
    """Find the logs that a spec describes, and plan how to fold them; notes on the input are logged.

    Args:
        spec: what to read, up to which record, and how to fold it.
        names: how error messages name the fields of the spec.
        sorter: sorts tables whose rows are in no order; None if Spark must not be started.
    Raises:
        InputError: if an input cannot be used, or sources of two formats hold the same log partition.
    """
    named_topics = _named_topics(spec)
    exports = _read_exports(spec, sorter)
    bounded = partial(replace, max_body_size=spec.limits.batch_bytes)
    logs = [bounded(log) for _, export in exports for log in export.logs]
    _check_distinct(logs, "copies need one format and dialect")
    _check_one_layout(logs)
    _check_as_of(spec, names, logs)
    index = spec.control_records.index
    notes = [f"{' '.join(paths)}: {note}" for paths, export in exports for note in export.notes]
    try:
        groups = None if spec.groups is None else _group_input(spec.groups, spec.group_frame, exports, sorter)
    except InputError as error:
        if not spec.names_only or (spec.groups and spec.groups.paths):
            raise
        groups = None
        notes.append(names_unknown(error))
    if groups is not None:
        groups = replace(groups, logs=tuple(map(bounded, groups.logs)))
    as_of_time, outside = _as_of_time(spec, names, exports, groups)
    windows = _windows(spec, names, logs, as_of_time)
    facts, data_folders = None, find_data_folders(segment_folders(logs))
    if data_folders:
        facts = read_cluster_facts(data_folders, as_of_time)
        notes += facts.notes
        groups = groups and replace(groups, partitions=groups.partitions or facts.group_partitions)
    live_topics = [
        TopicSource("live cluster", export.topics, " ".join(paths), is_authority=True)
        for paths, export in exports
        if export.topics is not None
    ]
    adjacent, found = None, list[str]()
    if not named_topics and not live_topics:
        adjacent, found = read_adjacent_topics([source.path for source in spec.sources], logs)
    notes += found
    if not spec.names_only and (warning := _partition_count_warning(groups, names)) is not None:
        notes.append(warning)
    limits = spec.limits.to_limits()
    asked = None if spec.judge == JUDGE_NONE else _cluster_limits_of(spec.sources, notes)
    addresses = [source.path for source in spec.sources]
    explicit_limits = frozenset(spec.limits.model_fields_set)
    settled = settle_live_limits(asked, limits, explicit_limits)
    properties = next((one.kafka_properties for one in spec.sources if one.kafka_properties), None)
    of_export = (export.state_partitions for _, export in exports if export.state_partitions is not None)
    stated_partitions = spec.state_partitions or next(of_export, None)
    for note in notes:
        _LOG.info("%s", note)
    plan = FoldPlan(
        logs=logs,
        windows=windows,
        window=Window(until_time_ms=as_of_time),
        options=FoldOptions(
            limits=settled.limits,
            partition_count=count_partitions(logs, stated_partitions),
            control=ControlOptions(
                mode=spec.control_records.mode,
                subscriptions=read_subscriptions(spec.control_records.subscriptions),
                ignore_uncheckpointed=spec.control_records.ignore_uncheckpointed,
            ),
        ),
        names_logs=any(names_log(source.path) for source in spec.sources),
        # A share snapshot file describes the log as it is now, not an earlier state.
        indexes={} if spec.has_as_of or index is None else read_share_snapshots(index, logs),
        severities=spec.rules,
        judging=spec.judge,
        known_limits=explicit_limits | settled.known,
        groups=groups,
        dead_letters=find_dead_letters(spec.dead_letters, properties) if spec.dead_letters else None,
        dead_letters_copied_last=spec.dead_letters_copied_last,
        notes=tuple(notes),
        lacks_groups=groups is None
        and spec.groups is not None
        and not spec.names_only
        and any(log.topic == STATE_TOPIC for log in logs),
        topics_note=adjacent.note if adjacent else None,
        outside=outside,
        facts=settled.origins,
        fact_conflicts=settled.conflicts,
        group_configs=settle_group_configs(facts, asked, addresses, spec.limits),
    )
    return _with_facts(plan, spec, facts or ClusterFacts(()), [*live_topics[:1], *named_topics], adjacent)


def _named_topics(spec: InputSpec) -> list[TopicSource]:
    """The topics that the call holds or names."""
    if spec.topics is not None:
        return [TopicSource("topics file", read_topics(spec.topics), spec.topics)]
    return [] if spec.known_topics is None else [TopicSource("call", spec.known_topics)]


def _with_facts(
    plan: FoldPlan,
    spec: InputSpec,
    facts: ClusterFacts,
    topics: Sequence[TopicSource],
    adjacent: TopicSource | None,
) -> FoldPlan:
    """A plan with the facts of the data folders that hold its logs, where no other source knows better."""
    settled = settle_facts(
        facts,
        topics=topics,
        adjacent=adjacent,
        limits=plan.options.limits,
        explicit_limits=plan.known_limits,
        state_partitions=plan.state_partitions,
        explicit_state_partitions=spec.state_partitions,
    )
    count = plan.options.partition_count
    if settled.state_partitions is not None and (not count.is_inferred or facts.state_partitions is not None):
        count = count_partitions(plan.logs, settled.state_partitions)
    settled_plan = plan.with_options(topics=settled.topics, limits=settled.limits, partition_count=count)
    return replace(
        settled_plan,
        known_limits=plan.known_limits | facts.limits.keys(),
        dead_letters=plan.dead_letters or own_dead_letters(facts),
        dead_letter_topics=facts.settings.dead_letter_topics if facts.settings else {},
        facts={**plan.facts, **settled.origins},
        fact_conflicts=(*plan.fact_conflicts, *settled.conflicts),
        cluster=facts.settings,
        data_folders=facts.folders,
    )


_Export = tuple[list[str], Export]
"""Paths that are read as one export, and what they hold."""


def _read_exports(spec: InputSpec, sorter: RowSorter | None) -> list[_Export]:
    """Read sources of one format and dialect together: several copies of a log partition are one log."""
    if spec.frame is not None:
        return [([], read_frame(spec.frame, spec.columns, _needed(sorter)))]
    alike: dict[tuple[object, ...], list[Source]] = {}
    for source in spec.sources:
        key = (source.format, source.dialect, source.kafka_properties, tuple(sorted(source.columns.items())))
        alike.setdefault(key, []).append(source)
    exports = list[_Export]()
    for first, *others in alike.values():
        paths = [first.path, *(source.path for source in others)]
        given = ExportPaths(paths, first.dialect, first.columns, sorter)
        exports.append((paths, read_export(given, first.format, first.kafka_properties)))
    return exports


def _cluster_limits_of(sources: Sequence[Source], notes: list[str]) -> "ClusterLimits | None":
    """The limits of a live cluster, which is read alone; notes get one if it denies access. None for files."""
    for source in sources:
        if (address := find_cluster_address([source.path], source.format)) is not None:
            limits, unknown = ask_limits(address, source.kafka_properties)
            notes += unknown
            return limits
    return None


def ask_limits(address: str, properties: str | None) -> tuple["ClusterLimits | None", list[str]]:
    """The limits of a live cluster and of its share groups; and notes, if it denies access to them."""
    try:
        from share_state.sources.kafka_admin import fetch_limits  # noqa: PLC0415  only a live cluster needs it

        limits = fetch_limits(address, properties)
        return limits, [*limits.notes]
    except (InputError, SetupError) as error:
        return None, [f"the limits of the brokers and of single groups are unknown, so Kafka's defaults apply: {error}"]


def _needed(sorter: RowSorter | None) -> RowSorter:
    if sorter is None:
        raise InputError("the rows of a DataFrame must be sorted by Spark; give spark=share_state.session()")
    return sorter


def names_unknown(error: InputError) -> str:
    """The note about a log of groups that is not read for the names of topics."""
    return f"{error}; without it, topics that only it names are shown by their ids"


def _group_input(
    given: GroupSettings, frame: Any, exports: Sequence[_Export], sorter: RowSorter | None
) -> GroupInput | None:
    """The group side that the settings name; by default the one in the exports, or in folders next to their logs."""
    counted = None
    if frame is not None:
        logs = tuple(_needed(sorter).sort_frame(frame, Columns(**given.columns), (GROUP_TOPIC,))[0])
    elif given.paths is not None:
        paths = ExportPaths(given.paths, columns=given.columns, sorter=sorter)
        logs = read_group_export(paths, given.format)
    else:
        found = [log for _, export in exports for log in export.groups]
        without = [(paths, export.logs) for paths, export in exports if not export.groups]
        # One search for all of them, since their folders may hold copies of a log partition.
        searched = [path for paths, _ in without for path in paths]
        found += adjacent_group_logs(searched, [log for _, own in without for log in own])
        _check_distinct(found, "name the one to read by groups.paths")
        logs = tuple(sorted(found, key=lambda log: -1 if log.partition is None else log.partition))
        counted = next((export.group_partitions for _, export in exports if export.group_partitions is not None), None)
    if not logs:
        return None
    return GroupInput(logs, given.partitions or counted, given.claims, given.to_limits())


def _partition_count_warning(groups: GroupInput | None, names: FieldNames) -> str | None:
    """A warning if the number of partitions of `__consumer_offsets` is unknown: some groups are then not reported."""
    if groups is None or groups.partitions is not None or infer_partition_count(groups.logs, GROUP_TOPIC) is not None:
        return None
    numbers = listed(log.partition for log in groups.logs if log.partition is not None)
    found = f"found partition {numbers}" if numbers else "found records"
    fix = names.name("groups.partitions", value="N")
    return f"{GROUP_TOPIC}: {found}, but not how many there are: groups without a record are not reported; give {fix}"


def _check_distinct(logs: Sequence[LogPartition], fix: str) -> None:
    for name, count in Counter(log.name for log in logs).items():
        if count > 1:
            raise InputError(f"sources: {name} is in two of them that differ in format or dialect; {fix}")


def _check_one_layout(logs: Sequence[LogPartition]) -> None:
    """Refuse a format without partition numbers together with one that has them."""
    unplaced = [log.name for log in logs if log.source is not None and not log.has_offsets]
    if unplaced and len(logs) > len(unplaced):
        raise InputError(f"sources: {unplaced[0]} does not show its partitions, and others do; give one format")


def _check_as_of(spec: InputSpec, names: FieldNames, logs: Sequence[LogPartition]) -> None:
    """Refuse an as-of point if the format does not hold what it refers to."""
    for log in logs:
        form = log.source.form if log.source else ""
        if spec.as_of_offsets and not log.has_offsets:
            text = names.name("as_of_offsets", *next(iter(spec.as_of_offsets.items())))
            raise InputError(f"{text}: {form} holds no offsets; give segments or a table")
        if spec.as_of_time is not None and not log.has_times:
            fix = "give segments or a table that has them"
            raise InputError(f"{names.label('as_of_time')}: this {form} holds no timestamps; {fix}")


def _as_of_time(
    spec: InputSpec, names: FieldNames, exports: Sequence[_Export], groups: GroupInput | None
) -> tuple[int | None, str | None]:
    """The as-of time in ms, and why it is outside of the times of the input, if it is.

    The logs of groups count in every command, so that one time means the same in all of them.
    """
    given = spec.as_of_time
    if given is None:
        return None, None
    logs = [log for _, export in exports for log in (*export.logs, *export.groups)]
    if groups is not None:
        logs += groups.logs
    else:
        with suppress(InputError):
            logs += [log for paths, export in exports for log in adjacent_group_logs(paths, export.logs)]
    span: TimeSpan | None = time_span(logs)
    if span is None:
        return (None, None) if isinstance(given, LogTime) else (given, None)
    time = given.at(span.last) if isinstance(given, LogTime) else given
    if (why := span.outside(time)) is not None:
        why = f"{names.name('as_of_time', value=time_text(time))}: {why}"
    return time, why


def _windows(
    spec: InputSpec, names: FieldNames, logs: Sequence[LogPartition], as_of_time: int | None
) -> dict[str, Window]:
    """Log partition -> its own window; a bare number in `as_of_offsets` names every log partition of that number."""
    windows = dict[str, Window]()
    for key, offset in spec.as_of_offsets.items():
        named = [log.name for log in logs if key in (log.name, str(log.partition))]
        if not named:
            raise InputError(f"{names.name('as_of_offsets', key, offset)}: log partition {key} is not in the input")
        windows |= dict.fromkeys(named, Window(until_offset=offset, until_time_ms=as_of_time))
    return windows
