"""Folds `__consumer_offsets` into share groups and their tables; collects classic groups for `sticky`."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.fold.groups.group_replay import (
    MEMBER_STATES,
    GroupFault,
    GroupReplay,
    ReplayedGroups,
    ShareGroup,
    StatePartitions,
    TopicPartitions,
)
from share_state.fold.log_stats import BATCH_FAULTS
from share_state.fold.states import to_datetime
from share_state.kafka.group_records import GroupRecordType, read_group_records, record_types
from share_state.kafka.primitives import partition_for
from share_state.kafka.record_batches import BatchStatus, Chunk
from share_state.kafka.state_records import Fault
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.log_partition import LogPartition
from share_state.sources.partition_count import infer_group_partition_count
from share_state.sources.pruned_logs import read_whole
from share_state.sources.segments import RecordIndex, index_records, read_chunks, read_into
from share_state.sources.topics import Topics


def add_topic_names(topics: Topics, names: Mapping[str, str]) -> Topics:
    """Add names (topic id -> name, from FoldedGroups) to topics; existing names win."""
    all_names = dict(names) | topic_names(topics)
    columns = [pa.array(list(texts), pa.string()) for texts in (all_names, all_names.values())]
    return replace(topics, names=pa.table(columns, names=["topic_id", "topic"]))


def topic_names(topics: Topics) -> dict[str, str]:
    """Topic id -> name."""
    return {row["topic_id"]: row["topic"] for row in topics.names.to_pylist()}


def partition_counts_by_id(topics: Topics) -> dict[str, int]:
    """Topic id -> number of partitions: the greater of the known count and the partitions with end offsets."""
    sizes = dict(topics.partition_counts)
    for row in topics.ends.to_pylist():
        sizes[row["topic_id"]] = max(sizes.get(row["topic_id"], 0), row["partition"] + 1)
    return sizes


def partition_counts_by_name(topics: Topics) -> dict[str, int]:
    """Topic name -> number of partitions; the largest if several topics share a name."""
    names, sizes = topic_names(topics), dict[str, int]()
    for topic_id, size in partition_counts_by_id(topics).items():
        if topic_id in names:
            sizes[names[topic_id]] = max(sizes.get(names[topic_id], 0), size)
    return sizes


def _topics_by_status(state_partitions: StatePartitions) -> Iterator[tuple[str, str, Sequence[int | None]]]:
    """Yield status, topic id and partitions; a topic that is being deleted has a single None."""
    for topic_id in sorted(state_partitions.deleting):
        yield "deleting", topic_id, (None,)
    for status, partitions in (
        ("initialized", state_partitions.initialized),
        ("initializing", state_partitions.initializing),
    ):
        for topic_id in sorted(partitions):
            yield status, topic_id, sorted({*partitions[topic_id]})


def _assignment_lists(assignments: Sequence[TopicPartitions], names: Mapping[str, str]) -> pa.ListArray:
    """Lists of (topic id, topic, partition), sorted by topic, topic id and partition."""
    lists = [
        [(topic_id, names.get(topic_id), sorted({*assignment[topic_id]})) for topic_id in assignment]
        for assignment in assignments
    ]
    for one in lists:
        one.sort(key=lambda topic: (topic[1] or "", topic[0]))
    topics = [*chain.from_iterable(lists)]
    ends = np.cumsum([0, *(sum(len(partitions) for _, _, partitions in one) for one in lists)])
    spread, partitions = _flatten([partitions for _, _, partitions in topics])
    ids, topic_names = (
        pa.array([topic[place] for topic in topics], pa.string()).take(spread) for place in (0, 1)
    )
    structs = pa.StructArray.from_arrays([ids, topic_names, partitions], ["topic_id", "topic", "partition"])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), structs)


def _flatten(lists: Sequence[Sequence[int | None]]) -> tuple[pa.Array, pa.Array]:
    """Flatten lists of partitions: the list number of each partition, and the partitions."""
    lengths = np.array([len(one) for one in lists], np.int64)
    return pa.array(np.repeat(np.arange(len(lists)), lengths)), pa.array(
        chain.from_iterable(lists), pa.int32()
    )


def set_column(rows: pa.Table, column: str, values: pa.Array) -> pa.Table:
    """A table with other values of one of its columns."""
    place = rows.schema.get_field_index(column)
    return rows.set_column(place, rows.schema.field(place), values.cast(rows.schema.field(place).type))


def _offset(offset: int) -> int | None:
    return offset if offset >= 0 else None


def rows_to_table(name: str, rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Build a declared table from its rows."""
    return pa.Table.from_pylist(list(rows), schema=table_schema(name))


@dataclass(slots=True)
class FoldedGroups(ReplayedGroups):
    """The groups in the partitions of `__consumer_offsets` that were read.

    If several partitions contain a share group, `groups` has it from the partition that it belongs to,
    otherwise from the partition with its newest record.

    Attributes:
        places: (group partition, group id) of every live group of any type, once per partition.
        partitions: numbers of the log partitions that were read.
        partition_count: number of partitions of the topic, None if unknown.
        has_given_count: whether the caller passed that number; otherwise it is inferred from the logs.
        record_counts: record type -> number of records, committed offsets included.
    """

    places: list[tuple[int | None, str]] = field(default_factory=list)
    partitions: tuple[int, ...] = ()
    partition_count: int | None = None
    has_given_count: bool = False
    record_counts: dict[int, int] = field(default_factory=dict)

    @property
    def live(self) -> dict[str, ShareGroup]:
        """Share groups that exist, by id."""
        return {group_id: group for group_id, group in self.groups.items() if group.is_live}

    @property
    def topics(self) -> Topics:
        """The names of topics in group records."""
        return add_topic_names(Topics(), self.names)

    @property
    def share_groups(self) -> pa.Table:
        """The table `share_groups`, by group id."""
        return rows_to_table("share_groups", (
            {
                "group_id": group_id,
                "group_partition": group.partition,
                "state": group.state,
                "members": len(group.members),
                "group_epoch": group.epoch,
                "assignment_epoch": group.assignment_epoch,
                "metadata_hash": group.metadata_hash,
                "group_epoch_time": to_datetime(group.epoch_time),
                "assignment_time": to_datetime(group.assignment_time),
                "last_offset": _offset(group.last_offset),
            }
            for group_id, group in sorted(self.groups.items())
        ))  # fmt: skip

    @property
    def share_group_members(self) -> pa.Table:
        """The table `share_group_members`, by group and member id."""
        members = [
            (group, member)
            for _, group in sorted(self.groups.items())
            for _, member in sorted(group.members.items())
        ]
        rows = rows_to_table("share_group_members", (
            {
                "group_id": group.group_id,
                "member_id": member.member_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "rack_id": member.rack_id,
                "subscribed_topics": sorted(member.subscribed_topics),
                "member_epoch": member.member_epoch,
                "previous_member_epoch": member.previous_member_epoch,
                "member_state": MEMBER_STATES.get(member.state, f"UNKNOWN({member.state})"),
            }
            for group, member in members
        ))  # fmt: skip
        rows = set_column(
            rows, "assigned", _assignment_lists([member.assigned for _, member in members], self.names)
        )
        target = [group.targets.get(member.member_id, {}) for group, member in members]
        return set_column(rows, "target", _assignment_lists(target, self.names))

    @property
    def share_group_partitions(self) -> pa.Table:
        """The table `share_group_partitions`, by group, status, topic id and partition."""
        topics = [
            (group_id, of_group, *of_topic)
            for group_id, of_group in sorted(self.state_partitions.items())
            for of_topic in _topics_by_status(of_group)
        ]
        rows = rows_to_table("share_group_partitions", (
            {
                "group_id": group_id,
                "topic_id": topic_id,
                "topic": of_group.names[topic_id],
                "status": status,
                "since": to_datetime(of_group.time),
                "offset": _offset(of_group.offset),
            }
            for group_id, of_group, status, topic_id, _ in topics
        ))  # fmt: skip
        spread, partitions = _flatten([partitions for *_, partitions in topics])
        return set_column(rows.take(spread), "partition", partitions)

    def covers(self, group_id: str) -> bool:
        """Whether the log partition of a group was read: only then is its absence meaningful."""
        return (
            self.partition_count is not None
            and partition_for(group_id, self.partition_count) in self.partitions
        )


def fold_groups(
    logs: Sequence[LogPartition], window: Window | None = None, *, partition_count: int | None = None
) -> FoldedGroups:
    """Replay partitions of `__consumer_offsets`.

    Args:
        logs: log partitions from `find_group_logs`; copies of one log partition are merged by offset.
        window: selects records of every log; all by default.
        partition_count: number of partitions of the topic; by default `infer_group_partition_count`.
    Raises:
        InputError: if a segment cannot be read.
    Source: Kafka CoordinatorLoaderImpl.doLoad, GroupMetadataManager.replay.
    """
    counts: dict[int, int] = {}
    replays = [read_whole(log, lambda part: _replay(part, window or Window(), counts)) for log in logs]
    places = [
        (replay.partition, group_id)
        for replay in replays
        for group_id in {group.group_id for group in replay.groups.values() if group.is_live}
        | replay.classic.keys()
        | replay.consumer_groups
    ]
    numbers = sorted({replay.partition for replay in replays if replay.partition is not None})
    topic_partition_count = partition_count or infer_group_partition_count(logs, places)
    places.sort(key=lambda place: (place[1], -1 if place[0] is None else place[0]))
    folded = FoldedGroups(
        places=places, partitions=tuple(numbers), partition_count=topic_partition_count, record_counts=counts
    )
    folded.has_given_count = partition_count is not None
    for replay in sorted(replays, key=lambda one: one.partition if one.partition is not None else -1):
        _add(folded, replay)
    return folded


_NAMING_TYPES = (GroupRecordType.SHARE_PARTITION_METADATA, GroupRecordType.SHARE_STATE_PARTITIONS)


def read_topic_names(log: LogPartition, window: Window | None = None) -> dict[str, str]:
    """The topic names in the records of share groups, by topic id; the latest name of each topic.

    Args:
        log: a log partition from `find_group_logs`.
        window: selects records; all by default.
    Raises:
        InputError: if a segment cannot be read.
    """
    return read_whole(log, lambda part: _read_names(part, window or Window()))


def _read_names(log: LogPartition, window: Window) -> dict[str, str]:
    replay = GroupReplay(partition=log.partition)
    for part in read_chunks(log, merge=True):
        records = index_records(part, log.log_start_offset, window).records
        types = record_types(part.data, records)
        naming = np.isin(types, _NAMING_TYPES) & ~np.isin(records["offset"], [*part.faults])
        for record in read_group_records(part.data, records[naming], types[naming]):
            replay.apply(record)
    return replay.names


def _add(folded: FoldedGroups, replay: GroupReplay) -> None:
    for group_id, group in replay.groups.items():
        existing = folded.groups.get(group_id)
        if existing is None or _rank(group, folded) > _rank(existing, folded):
            folded.groups[group_id] = group
            state_partitions = replay.state_partitions.get(group_id)
            if state_partitions:
                folded.state_partitions[group_id] = state_partitions
    for group_id, state_partitions in replay.state_partitions.items():
        folded.state_partitions.setdefault(group_id, state_partitions)
    folded.classic |= replay.classic
    folded.sticky += replay.sticky
    folded.consumer_groups |= replay.consumer_groups
    folded.names.update(replay.names)
    folded.faults += replay.faults
    folded.epoch_steps += replay.epoch_steps
    folded.newest_time = max(folded.newest_time, replay.newest_time)


def _rank(group: ShareGroup, folded: FoldedGroups) -> tuple[bool, bool, int]:
    count = folded.partition_count
    is_own_partition = count is not None and partition_for(group.group_id, count) == group.partition
    return group.is_live, is_own_partition, group.last_time


def _replay(log: LogPartition, window: Window, counts: dict[int, int]) -> GroupReplay:
    run = read_into(partial(GroupLogFold, log, window), log)
    run.replay.finish(has_offsets=log.has_offsets)
    for record_type, count in run.counts.items():
        counts[record_type] = counts.get(record_type, 0) + count
    return run.replay


class GroupLogFold:
    """The fold of a partition of `__consumer_offsets`, chunk by chunk."""

    def __init__(self, log: LogPartition, window: Window) -> None:
        self.log, self.window = log, window
        self.replay = GroupReplay(partition=log.partition)
        self.counts: dict[int, int] = {}

    def prepare(self, part: Chunk) -> RecordIndex:
        """Index the records of a chunk."""
        # The broker loads the whole batch that contains the log start offset, and no batch before it.
        return index_records(part, self.log.log_start_offset, self.window)

    def take(self, part: RecordIndex) -> None:
        """Replay a chunk; a later one may follow at any time."""
        records, chunk = part.records, part.part
        _note_batches(self.replay, self.log, chunk)
        if chunk.faults:
            _note_unread(self.replay, chunk)
            records = records[~np.isin(records["offset"], np.array([*chunk.faults], np.int64))]
        types = record_types(chunk.data, records)
        for record_type, count in zip(*np.unique(types, return_counts=True), strict=True):
            self.counts[int(record_type)] = self.counts.get(int(record_type), 0) + int(count)
        for record in read_group_records(chunk.data, records, types):
            self.replay.apply(record)


def _note_unread(replay: GroupReplay, part: Chunk) -> None:
    """Note the records that the tool that printed the log could not read."""
    codes = {Fault.KEY_MALFORMED: "KEY_MALFORMED", Fault.VALUE_VERSION: "VALUE_VERSION_UNKNOWN"}
    for offset, (fault, version) in part.faults.items():
        text = f"the tool that printed the log could not read this record{f' of version {version}' * bool(version)}"
        code = codes.get(Fault(fault), "VALUE_MALFORMED")
        replay.faults.append(GroupFault(code, replay.partition, offset, text))


def _note_batches(replay: GroupReplay, log: LogPartition, part: Chunk) -> None:
    for row in np.flatnonzero(part.batches["status"] != BatchStatus.VALID):
        batch = part.batches[row]
        code, text = BATCH_FAULTS[int(batch["status"])]
        where = f"{log.segments[batch['segment']].path}, position {batch['file_position']}"
        reason = f" ({part.errors[int(row)]})" if int(row) in part.errors else ""
        replay.faults.append(
            GroupFault(code, replay.partition, int(batch["base_offset"]), f"{where}: {text}{reason}",
                       is_harmless=code in ("TORN_TAIL", "UNREPLICATED_TAIL"))
        )  # fmt: skip


def members_per_partition(members: int, partitions: int) -> int:
    """Number of members per partition; 0 if there are none.

    Source: Kafka SimpleHomogeneousAssignmentBuilder; KIP-932, SimpleAssignor.
    """
    return (members + partitions - 1) // partitions if partitions else 0


def expected_assignment_sizes(members: int, partitions: int) -> list[int]:
    """Number of partitions per member, in the coordinator's order.

    Computed in doubles as Kafka does; rounding can give the last member one partition too many.

    Source: Kafka SimpleHomogeneousAssignmentBuilder.
    """
    if not members or not partitions:
        return [0] * members
    precise = members_per_partition(members, partitions) * float(partitions) / members
    return [math.ceil(precise * (place + 1)) - math.ceil(precise * place) for place in range(members)]
