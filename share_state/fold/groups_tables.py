"""Replayed share groups as the tables `share_groups`, `share_group_members` and `share_group_partitions`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.declarations import table_schema
from share_state.fold.groups_state import MEMBER_STATES, ShareGroup, StatePartitions, TopicPartitions

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_10000 = 253_402_300_800_000


def groups_table(groups: Iterable[ShareGroup]) -> pa.Table:
    """The table `share_groups`, by group id."""
    return _table("share_groups", (
        {
            "group_id": group.group_id,
            "group_partition": group.partition,
            "state": group.state,
            "members": len(group.members),
            "group_epoch": group.epoch,
            "assignment_epoch": group.assignment_epoch,
            "metadata_hash": group.metadata_hash,
            "group_epoch_time": time(group.epoch_time),
            "assignment_time": time(group.assignment_time),
            "last_offset": _offset(group.last_offset),
        }
        for group in sorted(groups, key=lambda one: one.group_id)
    ))  # fmt: skip


def members_table(groups: Iterable[ShareGroup], names: Mapping[str, str]) -> pa.Table:
    """The table `share_group_members`, by group and member id.

    Args:
        groups: with their members.
        names: topic id -> name.
    """
    members = [
        (group, member)
        for group in sorted(groups, key=lambda one: one.group_id)
        for member in sorted(group.members.values(), key=lambda one: one.member_id)
    ]
    rows = _table("share_group_members", (
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
    assigned = [member.assigned for _, member in members]
    target = [group.targets.get(member.member_id, {}) for group, member in members]
    return _with(_with(rows, "assigned", _named(assigned, names)), "target", _named(target, names))


def partitions_table(listed: Mapping[str, StatePartitions]) -> pa.Table:
    """The table `share_group_partitions`, by group, status, topic id and partition.

    Args:
        listed: by group id.
    """
    topics = [
        (group_id, of_group, *of_topic)
        for group_id, of_group in sorted(listed.items())
        for of_topic in _listed(of_group)
    ]
    rows = _table("share_group_partitions", (
        {
            "group_id": group_id,
            "topic_id": topic_id,
            "topic": of_group.names[topic_id],
            "status": status,
            "since": time(of_group.time),
            "offset": _offset(of_group.offset),
        }
        for group_id, of_group, status, topic_id, _ in topics
    ))  # fmt: skip
    spread, partitions = _spread([partitions for *_, partitions in topics])
    return _with(rows.take(spread), "partition", partitions)


def _listed(of_group: StatePartitions) -> Iterator[tuple[str, str, Sequence[int | None]]]:
    """Status, topic id and partitions; a topic that is being deleted is one row without a partition."""
    for topic_id in sorted(of_group.deleting):
        yield "deleting", topic_id, (None,)
    for status, partitions in (("initialized", of_group.initialized), ("initializing", of_group.initializing)):
        for topic_id in sorted(partitions):
            yield status, topic_id, sorted({*partitions[topic_id]})


def _named(every: Sequence[TopicPartitions], names: Mapping[str, str]) -> pa.ListArray:
    """For each a list of topic id, topic and partition, by topic, topic id and partition."""
    lists = [
        [(topic_id, names.get(topic_id), sorted({*of_member[topic_id]})) for topic_id in of_member]
        for of_member in every
    ]
    for one in lists:
        one.sort(key=lambda topic: (topic[1] or "", topic[0]))
    topics = [*chain.from_iterable(lists)]
    ends = np.cumsum([0, *(sum(len(partitions) for _, _, partitions in one) for one in lists)])
    spread, partitions = _spread([partitions for _, _, partitions in topics])
    ids, called = (pa.array([topic[place] for topic in topics], pa.string()).take(spread) for place in (0, 1))
    of_each = pa.StructArray.from_arrays([ids, called, partitions], ["topic_id", "topic", "partition"])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), of_each)


def _spread(lists: Sequence[Sequence[int | None]]) -> tuple[pa.Array, pa.Array]:
    """For each partition the number of its list; the partitions."""
    lengths = np.array([len(one) for one in lists], np.int64)
    return pa.array(np.repeat(np.arange(len(lists)), lengths)), pa.array(chain.from_iterable(lists), pa.int32())


def _with(rows: pa.Table, column: str, values: pa.Array) -> pa.Table:
    place = rows.schema.get_field_index(column)
    return rows.set_column(place, rows.schema.field(place), values.cast(rows.schema.field(place).type))


def time(milliseconds: int) -> datetime | None:
    """Milliseconds since 1970 as a time; None for 0 and less and for what lies behind the year 9999."""
    return _EPOCH + timedelta(milliseconds=milliseconds) if 0 < milliseconds < _YEAR_10000 else None


def _offset(known: int) -> int | None:
    return known if known >= 0 else None


def _table(name: str, rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=table_schema(name))
