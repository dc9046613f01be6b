"""The plan of a fold, plain data that travels to every task; `planning` makes it from an InputSpec."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.input_spec import JUDGE_ALL, JUDGE_NONE, JUDGE_STATE
from share_state.config.sections import HISTORY
from share_state.delta.reader import open_dataset, warehouse_errors
from share_state.errors import InputError
from share_state.fold.checkpoint import CHECKPOINT_TABLE, FoldCheckpoint, restore_checkpoint
from share_state.fold.continuity import fold_after
from share_state.fold.dialect import CutoffVerification, dialect_of, verify_cutoff
from share_state.fold.fold_options import FoldOptions, SharePartitionFilter
from share_state.fold.limits import GroupLimits
from share_state.fold.log_stats import Folded
from share_state.fold.offset_history import share_partitions
from share_state.fold.state_log import FoldedLog, fold_log
from share_state.fold.states import CONTROL_RECORDS
from share_state.fold.timeline import TIMELINE, decoded_tables, timeline_tables
from share_state.rules.cluster_settings import FactConflict
from share_state.rules.findings import RecordRules, judge
from share_state.rules.isolation_levels import explain_counts
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.cluster_facts import ClusterSettings
from share_state.sources.group_configs import GroupConfigs
from share_state.sources.log_partition import STATE_TOPIC, LogPartition
from share_state.sources.pruned_logs import copy_log, read_pieces, read_whole
from share_state.sources.resume_point import ResumeStatus
from share_state.sources.share_snapshots import ShareSnapshotEntry
from share_state.sources.topics import Topics

if TYPE_CHECKING:
    from share_state.sources.dead_letter_topics import DeadLetterSource
    from share_state.sources.kafka_source import KafkaSource


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
        files: Parquet files with its rows of `carried_share_partitions`, and maybe rows of other logs; for a
            log with control records, which is read from its start, files of `share_partition_state`.
        found: the log partition with all its segments; None if it has none or is missing.
        is_compared: whether share-partitions of the last audit must be in it.
        counted_to: as in FoldOptions.
        history: Parquet files with the rows that the last audit wrote to `share_partition_history`, and maybe
            rows of others; for a log with control records.
        run_id: the last audit.
        read_to: the offset up to which it read the log; 0 if it did not.
    """

    status: ResumeStatus
    checkpoint: str | None = None
    files: tuple[str, ...] = ()
    found: LogPartition | None = None
    is_compared: bool = False
    counted_to: int = 0
    history: tuple[str, ...] = ()
    run_id: str = ""
    read_to: int = 0

    def restore(self, log: LogPartition) -> Callable[[], FoldCheckpoint] | None:
        """A function that returns a new copy of a log's checkpoint at each call.

        None if there is no checkpoint.
        """
        return (
            None
            if self.checkpoint is None
            else partial(read_checkpoint, self.checkpoint, self.files, log.name)
        )

    def read_starts(self, log: LogPartition) -> pa.Table | None:
        """`ControlOptions.last_audit` of a log with control records."""
        if not self.files:
            return None
        where = (pc.field("dialect") == CONTROL_RECORDS) & (pc.field("topic") == log.topic)
        where &= pc.field("partition") == pa.scalar(log.partition, pa.int32())
        with warehouse_errors(self.files[0]):
            rows = open_dataset("share_partition_state", self.files, filtered=True)
            columns = ["group_id", "start_offset", "end_offset", "snapshot_offset"]
            return rows.to_table(columns, filter=where).combine_chunks()

    def with_times(self, starts: pa.Table, log: LogPartition) -> pa.Table:
        """The table of `read_starts` with moved_time and active_time of the last audit; null without a row."""
        where = (pc.field("dialect") == CONTROL_RECORDS) & (pc.field("topic") == log.topic)
        where &= pc.field("partition") == pa.scalar(log.partition, pa.int32())
        with warehouse_errors(self.history[0]):
            rows = open_dataset("share_partition_history", self.history, filtered=True).to_table(
                ["group_id", "moved_time", "active_time"], filter=where & (pc.field("run_id") == self.run_id)
            )
        return starts.join(rows, "group_id").combine_chunks()

    def read_from(self, earliest: int | None, index: Sequence[ShareSnapshotEntry] | None) -> int | None:
        """The offset from which on a log with control records is read; None for its start.

        Args:
            earliest: its earliest share offset, if the index has one: all groups had a checkpoint then.
            index: the entries of its share snapshot file.
        """
        if earliest is None or not index or not self.files or not self.history:
            return None
        offset = min(earliest, *(entry.checkpoint_offset for entry in index))
        # What was written between the last audit and the file would be in neither.
        return offset if offset <= self.read_to else None


def read_checkpoint(row: str, files: Sequence[str], log: str) -> FoldCheckpoint:
    """The checkpoint of a log: its row of `carried_logs`, and the files with rows of `carried_share_partitions`."""
    if not files:
        return restore_checkpoint(row, table_schema(CHECKPOINT_TABLE).empty_table())
    with warehouse_errors(files[0]):
        rows = open_dataset(CHECKPOINT_TABLE, files, filtered=True).to_table(filter=pc.field("log") == log)
        return restore_checkpoint(row, rows)


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """What to fold, and how.

    Size: plain data, one attribute per decision of `build_plan`, which tasks receive as a whole.

    Attributes:
        logs: the log partitions; `__share_group_state` holds state records, any other topic control records.
        windows: name of a log partition -> which of its records count.
        window: the window of the log partitions that `windows` does not name.
        options: how each log is folded; `fold_options` adds what differs from log to log.
        names_logs: whether the caller named single log partitions, so that no other is expected in the input.
        indexes: name of a log partition -> entries of its share snapshot file, to check against the log.
        earliest_offsets: name of a log partition with such a file -> its earliest share offset. An audit
            reads the log from there on, or from the earliest entry of the file.
        severities: rule -> severity or "off".
        judging: which rules apply: JUDGE_ALL, JUDGE_STATE or JUDGE_NONE.
        verify: prove each cutoff by folding again without the records before it.
        known_limits: names of the limits of the cluster that the call sets or the cluster shows; the others
            are Kafka's defaults.
        resumed: name of a log partition -> how an audit resumes it; None if this is not an audit.
        timeline: the share-partitions of the table `timeline`; None for no timeline.
        groups: the group side; None if there is none.
        cores: name of a log partition -> cores that fold it, 1 by default.
        dead_letters: the dead-letter topics; None if none are given.
        dead_letters_copied_last: whether the dead-letter topics were copied after the state logs.
        dead_letter_topics: group -> the dead-letter topic that it is configured with, as far as that is
            known.
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
    earliest_offsets: Mapping[str, int] = field(default_factory=dict)
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
        index = self.indexes.get(log.name)
        control = replace(self.options.control, index=index)
        if resumed is not None and log.topic != STATE_TOPIC:
            starts, offset = resumed.read_starts(log), None
            if starts is not None:
                offset = resumed.read_from(self.earliest_offsets.get(log.name), index)
                starts = starts if offset is None else resumed.with_times(starts, log)
            of_audit = {"last_audit": starts, "audited_to": resumed.read_to, "read_from": offset}
            control, resumed = replace(control, **of_audit), None
        return replace(
            self.options,
            topics=self._topics_of(log),
            cores=self.cores_of(log),
            control=control,
            restore=resumed and resumed.restore(log),
            resume_status=resumed and resumed.status,
            counted_to=resumed.counted_to if resumed else 0,
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
        found = judge(
            folded,
            self.severities,
            self.options.topics,
            folded.record_breaches,
            with_unproven=True,
            clock=self.options.judged_at,
            # The ends of topics were fetched before a log that is read beyond its planned end.
            compares_topics=isinstance(folded, FoldedLog)
            and not folded.is_cut
            and not getattr(folded.log.source, "is_extended", False),
        )
        return explain_counts(found, self.group_configs)

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
        tables = [
            table_schema(TIMELINE).empty_table().select(columns),
            *(table.select(columns) for table in keys),
        ]
        selection.check(pa.concat_tables(tables, promote_options="permissive"))

    def _share_partitions(self, log: LogPartition) -> pa.Table:
        return share_partitions(log, self.window_of(log), self.fold_options(log))

    def decode(self, log: LogPartition) -> Iterator[pa.Table]:
        """The decoded records of one of the logs, one table per chunk.

        Not those that the broker deletes meanwhile.
        """
        return read_pieces(
            log, lambda part: decoded_tables(part, self.window_of(part), self.fold_options(part))
        )
