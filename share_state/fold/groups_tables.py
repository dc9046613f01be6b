"""Replayed share groups as the tables `share_groups`, `share_group_members` and `share_group_partitions`."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from share_state.declarations import table_schema
from share_state.fold.groups_state import MEMBER_STATES, ShareGroup, StatePartitions, TopicPartitions, pairs

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
    return _table("share_group_members", (
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
            "assigned": _named(member.assigned, names),
            "target": _named(group.targets.get(member.member_id, {}), names),
        }
        for group in sorted(groups, key=lambda one: one.group_id)
        for member in sorted(group.members.values(), key=lambda one: one.member_id)
    ))  # fmt: skip


def partitions_table(listed: Mapping[str, StatePartitions]) -> pa.Table:
    """The table `share_group_partitions`, by group, status, topic id and partition.

    Args:
        listed: by group id.
    """
    return _table("share_group_partitions", (
        {
            "group_id": group_id,
            "topic_id": topic_id,
            "topic": of_group.names[topic_id],
            "partition": partition,
            "status": status,
            "since": time(of_group.time),
            "offset": _offset(of_group.offset),
        }
        for group_id, of_group in sorted(listed.items())
        for status, topic_id, partition in _listed(of_group)
    ))  # fmt: skip


def _listed(of_group: StatePartitions) -> Iterator[tuple[str, str, int | None]]:
    for topic_id in sorted(of_group.deleting):
        yield "deleting", topic_id, None
    for topic_id, partition in sorted(pairs(of_group.initialized)):
        yield "initialized", topic_id, partition
    for topic_id, partition in sorted(pairs(of_group.initializing)):
        yield "initializing", topic_id, partition


def _named(partitions: TopicPartitions, names: Mapping[str, str]) -> list[dict[str, Any]]:
    rows = [
        {"topic_id": topic_id, "topic": names.get(topic_id), "partition": partition}
        for topic_id, partition in pairs(partitions)
    ]
    return sorted(rows, key=lambda row: (row["topic"] or "", row["topic_id"], row["partition"]))


def time(milliseconds: int) -> datetime | None:
    """Milliseconds since 1970 as a time; None for 0 and less and for what lies behind the year 9999."""
    return _EPOCH + timedelta(milliseconds=milliseconds) if 0 < milliseconds < _YEAR_10000 else None


def _offset(known: int) -> int | None:
    return known if known >= 0 else None


def _table(name: str, rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=table_schema(name))
