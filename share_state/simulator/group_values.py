"""Records of share groups in `__consumer_offsets`, as Kafka 4.1 and later encode them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from share_state.kafka.codec import encode
from share_state.kafka.group_records import GroupRecordType
from share_state.schema.declarations import layout, record

Assigned = Mapping[str, Sequence[int]]
"""Topic id -> partitions."""


MEMBER_RECORDS = (
    GroupRecordType.SHARE_CURRENT_MEMBER,
    GroupRecordType.SHARE_TARGET_MEMBER,
    GroupRecordType.SHARE_MEMBER,
)
"""The records of a member, in the order in which they are deleted."""

GROUP_RECORDS = (
    GroupRecordType.SHARE_TARGET_EPOCH,
    GroupRecordType.SHARE_STATE_PARTITIONS,
    GroupRecordType.SHARE_GROUP,
)
"""The records of a group without members, in the order in which they are deleted."""


class GroupValue(NamedTuple):
    """A record without offset: its key and its value, None for a tombstone."""

    key: bytes
    value: bytes | None


def encode_key(record_type: GroupRecordType, group: str, member: str | None = None) -> bytes:
    """The key of a group's record."""
    fields = {"group_id": group} | ({} if member is None else {"member_id": member})
    name = f"{record_type.declared}_key"
    return encode(layout(name, record(name).layouts[0].releases), fields)


def encode_value(record_type: GroupRecordType, *, releases: str | None = None, **fields: Any) -> bytes:
    """The value of a group's record.

    Args:
        releases: of the declared layout; by default of the latest one.
        fields: by declared name.
    """
    name = f"{record_type.declared}_value"
    return encode(layout(name, releases or record(name).layouts[-1].releases), fields)


def group_record(
    record_type: GroupRecordType, group: str, member: str | None = None, **fields: Any
) -> GroupValue:
    """A group's record; without fields a tombstone."""
    value = encode_value(record_type, **fields) if fields else None
    return GroupValue(encode_key(record_type, group, member), value)


def member_metadata(group: str, member: str, topics: Sequence[str], client: str, host: str) -> GroupValue:
    """Type 10: a member and the names of the topics that it subscribes to."""
    return group_record(
        GroupRecordType.SHARE_MEMBER, group, member,
        rack_id=None, client_id=client, client_host=host, subscribed_topic_names=list(topics),
    )  # fmt: skip


def group_metadata(group: str, epoch: int, metadata_hash: int) -> GroupValue:
    """Type 11: the epoch of a group."""
    return group_record(GroupRecordType.SHARE_GROUP, group, epoch=epoch, metadata_hash=metadata_hash)


def target_epoch(group: str, epoch: int, time_ms: int = 0) -> GroupValue:
    """Type 12: the epoch for which the assignment was computed, and when; 0 for unknown."""
    return group_record(
        GroupRecordType.SHARE_TARGET_EPOCH, group, assignment_epoch=epoch, assignment_timestamp=time_ms
    )


def target(group: str, member: str, assigned: Assigned) -> GroupValue:
    """Type 13: what a member is to read."""
    return group_record(
        GroupRecordType.SHARE_TARGET_MEMBER, group, member, topic_partitions=_by_topic(assigned)
    )


def current(
    group: str, member: str, epoch: int, assigned: Assigned, previous_epoch: int | None = None
) -> GroupValue:
    """Type 14: what a member reads since it reached an epoch; the previous epoch is by default one less."""
    return group_record(
        GroupRecordType.SHARE_CURRENT_MEMBER, group, member,
        member_epoch=epoch, previous_member_epoch=epoch - 1 if previous_epoch is None else previous_epoch,
        state=0, assigned_partitions=_by_topic(assigned),
    )  # fmt: skip


def state_partitions(
    group: str,
    initialized: Assigned,
    initializing: Assigned,
    deleting: Iterable[str],
    names: Mapping[str, str],
) -> GroupValue:
    """Type 15: the share-partitions of a group; `names` are those of the topic ids."""
    return group_record(
        GroupRecordType.SHARE_STATE_PARTITIONS, group,
        initializing_topics=_named(initializing, names), initialized_topics=_named(initialized, names),
        deleting_topics=[{"topic_id": topic_id, "topic_name": names[topic_id]} for topic_id in deleting],
    )  # fmt: skip


def _by_topic(assigned: Assigned) -> list[dict[str, Any]]:
    return [{"topic_id": topic_id, "partitions": list(of_topic)} for topic_id, of_topic in assigned.items()]


def _named(assigned: Assigned, names: Mapping[str, str]) -> list[dict[str, Any]]:
    return [one | {"topic_name": names[one["topic_id"]]} for one in _by_topic(assigned)]
