"""What an input holds: `read_input` finds its logs and all that is known of them, in one call.

A request names files, clusters and DataFrames; the answer is what a plan of a fold is made from. Nothing here decides
which of two sources is right: `pipeline.facts` does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from share_state.errors import InputError, SetupError
from share_state.kafka.compression import MAX_BODY_SIZE
from share_state.sources.as_of import LogTime, TimeSpan
from share_state.sources.cluster_facts import ClusterFacts, read_cluster_facts
from share_state.sources.discovery import find_data_folders, segment_folders
from share_state.sources.formats import AUTO, ExportPaths, RowSorter, split_topics
from share_state.sources.input_detection import (
    adjacent_group_logs,
    find_cluster_address,
    find_dead_letters,
    own_dead_letters,
    read_export,
    read_group_export,
)
from share_state.sources.log_partition import GROUP_TOPIC, STATE_TOPIC, Export, LogPartition
from share_state.sources.log_times import time_span
from share_state.sources.memory_table import find_memory_logs
from share_state.sources.partition_count import PartitionCount, count_partitions
from share_state.sources.record_tables import Columns
from share_state.sources.share_snapshots import (
    ShareSnapshotEntry,
    read_earliest_offsets,
    read_share_snapshots,
)
from share_state.sources.topics import Topics, TopicSource, read_subscriptions, read_topics
from share_state.sources.topics_file import read_adjacent_topics

if TYPE_CHECKING:
    from share_state.sources.dead_letter_topics import DeadLetterSource
    from share_state.sources.group_configs import ClusterLimits


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Records that are read as one export: paths of one format and dialect, a cluster, or a DataFrame.

    Attributes:
        paths: what to read; only its columns and its sorter count for a DataFrame.
        format: as for `read_export`.
        kafka_properties: as for `read_export`.
        frame: a DataFrame of Spark or an Arrow table of records, in place of the paths.
    """

    paths: ExportPaths
    format: str = AUTO
    kafka_properties: str | None = None
    frame: Any = None

    @property
    def label(self) -> str:
        """How messages name the export."""
        return " ".join(self.paths.paths)

    def find(self) -> Export:
        """Find the log partitions."""
        if self.frame is not None:
            return split_topics(self._frame_logs((STATE_TOPIC, GROUP_TOPIC)))
        return read_export(self.paths, self.format, self.kafka_properties)

    def find_groups(self) -> tuple[LogPartition, ...]:
        """Find the partitions of `__consumer_offsets` of an export that is named as the group side."""
        if self.frame is None:
            return read_group_export(self.paths, self.format)
        return tuple(self._frame_logs((GROUP_TOPIC,)))

    def _frame_logs(self, topics: Sequence[str]) -> list[LogPartition]:
        """The log partitions of a frame: of one in memory here, of Spark's by Spark."""
        columns = Columns(**self.paths.columns)
        if isinstance(self.frame, pa.Table):
            return find_memory_logs(self.frame, columns, topics)[0]
        return _needed(self.paths.sorter).sort_frame(self.frame, columns, topics)[0]


@dataclass(frozen=True, slots=True)
class InputRequest:
    """What to read.

    Attributes:
        exports: the exports of the state logs.
        addresses: paths and addresses of all exports, as the call names them.
        groups: the group side that the call names; None for the one in the exports or beside them.
        reads_groups: whether to read a group side.
        names_only: whether groups are read only for the names of topics; then a log of theirs that cannot be
            read is only noted.
        as_of_time: ms, or a time that depends on the logs; None for no such point.
        max_body_size: as in LogPartition.
        state_partitions: number of partitions of the state topic that the call states.
        topics_file, known_topics: the topics file that the call names, or the topics that it holds.
        index: folder of the share snapshot files.
        subscriptions: file of the subscriptions.
        dead_letters: exports of the dead-letter topics; empty for those in the data folders.
        asks_limits: whether to ask a live cluster for its limits.
    """

    exports: Sequence[ExportRequest]
    addresses: Sequence[str] = ()
    groups: ExportRequest | None = None
    reads_groups: bool = True
    names_only: bool = False
    as_of_time: int | LogTime | None = None
    max_body_size: int = MAX_BODY_SIZE
    state_partitions: int | None = None
    topics_file: str | None = None
    known_topics: Topics | None = None
    index: str | None = None
    subscriptions: str | None = None
    dead_letters: Sequence[str] = ()
    asks_limits: bool = True


@dataclass(frozen=True, slots=True)
class InputContents:
    """What an input holds.

    Attributes:
        logs: partitions of the state topic, or of the topics of control records.
        groups: partitions of `__consumer_offsets`; None if no group side was found.
        group_partitions: number of partitions of `__consumer_offsets`; None if the input does not show it.
        partition_count: how many partitions the state topic has, without the facts.
        as_of_time: the time asked for, in ms; None for no such point.
        outside: why that time is outside of the times of the input; None if it is not.
        facts: what the data folders say that hold the logs; None without data folders.
        topics: topics by a live cluster and by the call, in this order.
        adjacent_topics: topics by the file beside the logs; None if there is none, or others are known.
        cluster_limits: limits of a live cluster; None for files, and if access to them is denied.
        index: name of a log partition -> entries of its share snapshot file.
        earliest_offsets: name of a log partition -> its earliest share offset, as far as the index has one.
        subscriptions: topic -> groups that subscribe to it; None without such a file.
        dead_letters: the dead-letter topics; None for none.
        notes: facts that the result depends on, one line each.
        limit_notes: those about the limits of a live cluster.
    """

    logs: list[LogPartition]
    groups: tuple[LogPartition, ...] | None
    group_partitions: int | None
    partition_count: PartitionCount
    as_of_time: int | None
    outside: str | None
    facts: ClusterFacts | None
    topics: list[TopicSource]
    adjacent_topics: TopicSource | None
    cluster_limits: "ClusterLimits | None"
    index: Mapping[str, Sequence[ShareSnapshotEntry]]
    earliest_offsets: Mapping[str, int]
    subscriptions: dict[str, list[str]] | None
    dead_letters: "DeadLetterSource | None"
    notes: tuple[str, ...] = ()
    limit_notes: tuple[str, ...] = ()


def read_input(request: InputRequest) -> InputContents:
    """Find the logs of an input, and read what lies beside them; the logs themselves are read by the fold.

    Raises:
        InputError: if an input cannot be used, or sources of two formats hold the same log partition.
    """
    named_topics = _named_topics(request)
    found = [(export, export.find()) for export in request.exports]
    logs = [_bounded(log, request) for _, export in found for log in export.logs]
    _check_distinct(logs, "copies need one format and dialect")
    _check_one_layout(logs)
    notes = [f"{asked.label}: {note}" for asked, export in found for note in export.notes]
    groups, group_partitions = _find_groups(request, found, notes)
    as_of_time, outside = _as_of_time(request.as_of_time, found, groups)
    facts, data_folders = None, find_data_folders(segment_folders(logs))
    if data_folders:
        facts = read_cluster_facts(data_folders, as_of_time)
        notes += facts.notes
    topics = [*_live_topics(found)[:1], *named_topics]
    adjacent, topic_notes = (None, []) if topics else read_adjacent_topics(request.addresses, logs)
    limits, limit_notes = _cluster_limits(request) if request.asks_limits else (None, [])
    counts = (export.state_partitions for _, export in found if export.state_partitions is not None)
    return InputContents(
        logs=logs,
        groups=groups,
        group_partitions=group_partitions or (facts.group_partitions if facts else None),
        partition_count=count_partitions(logs, request.state_partitions or next(counts, None)),
        as_of_time=as_of_time,
        outside=outside,
        facts=facts,
        topics=topics,
        adjacent_topics=adjacent,
        cluster_limits=limits,
        index={} if request.index is None else read_share_snapshots(request.index, logs),
        earliest_offsets={} if request.index is None else read_earliest_offsets(request.index, logs),
        subscriptions=read_subscriptions(request.subscriptions),
        dead_letters=_dead_letters(request, facts),
        notes=(*notes, *topic_notes),
        limit_notes=tuple(limit_notes),
    )


_Found = Sequence[tuple[ExportRequest, Export]]


def _bounded(log: LogPartition, request: InputRequest) -> LogPartition:
    return replace(log, max_body_size=request.max_body_size)


def _needed(sorter: RowSorter | None) -> RowSorter:
    if sorter is None:
        raise InputError("the rows of a DataFrame must be sorted by Spark; give spark=share_state.session()")
    return sorter


def _named_topics(request: InputRequest) -> list[TopicSource]:
    """The topics that the call holds or names."""
    if request.topics_file is not None:
        return [TopicSource("topics file", read_topics(request.topics_file), request.topics_file)]
    return [] if request.known_topics is None else [TopicSource("call", request.known_topics)]


def _live_topics(found: _Found) -> list[TopicSource]:
    """The topics that live clusters among the exports name."""
    return [
        TopicSource("live cluster", export.topics, asked.label, is_authority=True)
        for asked, export in found
        if export.topics is not None
    ]


def _cluster_limits(request: InputRequest) -> tuple["ClusterLimits | None", list[str]]:
    """The limits of a live cluster, which is read alone, and notes if it denies access; none for files."""
    for export in request.exports:
        if (address := find_cluster_address(export.paths.paths[:1], export.format)) is not None:
            return ask_limits(address, export.kafka_properties)
    return None, []


def _dead_letters(request: InputRequest, facts: ClusterFacts | None) -> "DeadLetterSource | None":
    """The dead-letter topics that the call names; otherwise those in the data folders."""
    if request.dead_letters:
        properties = (export.kafka_properties for export in request.exports if export.kafka_properties)
        return find_dead_letters(request.dead_letters, next(properties, None))
    return own_dead_letters(facts) if facts else None


def ask_limits(address: str, properties: str | None) -> tuple["ClusterLimits | None", list[str]]:
    """The limits of a live cluster and of its share groups; and notes, if it denies access to them."""
    try:
        from share_state.sources.kafka_admin import fetch_limits  # noqa: PLC0415  only a live cluster needs it

        limits = fetch_limits(address, properties)
        return limits, [*limits.notes]
    except (InputError, SetupError) as error:
        return None, [
            f"the limits of the brokers and of single groups are unknown, so Kafka's defaults apply: {error}"
        ]


def names_unknown(error: InputError) -> str:
    """The note about a log of groups that is not read for the names of topics."""
    return f"{error}; without it, topics that only it names are shown by their ids"


def _find_groups(
    request: InputRequest, found: _Found, notes: list[str]
) -> tuple[tuple[LogPartition, ...] | None, int | None]:
    """The group side, and its number of partitions; notes get one if it only names topics and cannot be read."""
    try:
        logs, count = _group_logs(request, found) if request.reads_groups else ((), None)
    except InputError as error:
        if not request.names_only or (request.groups and request.groups.paths.paths):
            raise
        notes.append(names_unknown(error))
        return None, None
    return tuple(_bounded(log, request) for log in logs) or None, count


def _group_logs(request: InputRequest, found: _Found) -> tuple[tuple[LogPartition, ...], int | None]:
    """The partitions of `__consumer_offsets` that the request names, and their number.

    By default those in the exports, or in folders next to their logs.
    """
    if request.groups is not None:
        return request.groups.find_groups(), None
    logs = [log for _, export in found for log in export.groups]
    without = [(asked.paths.paths, export.logs) for asked, export in found if not export.groups]
    # One search for all of them, since their folders may hold copies of a log partition.
    searched = [path for paths, _ in without for path in paths]
    logs += adjacent_group_logs(searched, [log for _, own in without for log in own])
    _check_distinct(logs, "name the one to read by groups.paths")
    counts = (export.group_partitions for _, export in found if export.group_partitions is not None)
    by_number = sorted(logs, key=lambda log: -1 if log.partition is None else log.partition)
    return tuple(by_number), next(counts, None)


def _as_of_time(
    moment: int | LogTime | None, found: _Found, groups: Sequence[LogPartition] | None
) -> tuple[int | None, str | None]:
    """The as-of time in ms, and why it is outside of the times of the input, if it is.

    The logs of groups count in every command, so that one time means the same in all of them.
    """
    if moment is None:
        return None, None
    logs = [log for _, export in found for log in (*export.logs, *export.groups)]
    if groups is not None:
        logs += groups
    else:
        with suppress(InputError):
            logs += [
                log for asked, export in found for log in adjacent_group_logs(asked.paths.paths, export.logs)
            ]
    span: TimeSpan | None = time_span(logs)
    if span is None:
        return (None, None) if isinstance(moment, LogTime) else (moment, None)
    time = moment.at(span.last) if isinstance(moment, LogTime) else moment
    return time, span.outside(time)


def _check_distinct(logs: Sequence[LogPartition], fix: str) -> None:
    for name, count in Counter(log.name for log in logs).items():
        if count > 1:
            raise InputError(f"sources: {name} is in two of them that differ in format or dialect; {fix}")


def _check_one_layout(logs: Sequence[LogPartition]) -> None:
    """Refuse a format without partition numbers together with one that has them."""
    unplaced = [log.name for log in logs if log.source is not None and not log.has_offsets]
    if unplaced and len(logs) > len(unplaced):
        raise InputError(
            f"sources: {unplaced[0]} does not show its partitions, and others do; give one format"
        )
