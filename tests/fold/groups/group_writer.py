"""Records of `__consumer_offsets` as a group coordinator or a consumer would write them, for logs made up in tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from share_state.fold.groups.group_tables import FoldedGroups, fold_groups
from share_state.kafka.codec import encode
from share_state.kafka.group_records import GroupRecordType
from share_state.schema.declarations import layout
from share_state.simulator import group_values
from share_state.sources.discovery import find_group_logs
from share_state.sources.log_partition import GROUP_TOPIC
from tests.kafka.batches import NOW, Record, consecutive
from tests.log_writer import batch, write_segment

T = "AAAAAAAAAAAAAAAAAAAAKg"
"""Id of the topic T: 0x...2a."""

Assigned = Mapping[str, Sequence[int]]
"""Topic id, or name where consumers of the classic protocol are meant -> partitions."""


def key(record_type: int, group: str, member: str | None = None) -> bytes:
    """The key of a share group's record."""
    return group_values.encode_key(GroupRecordType(record_type), group, member)


def value(record_type: int, *, releases: str | None = None, **fields: Any) -> bytes:
    """The value of a share group's record, in the latest layout unless another is meant."""
    return group_values.encode_value(GroupRecordType(record_type), releases=releases, **fields)


def told(record_type: int, group: str, member: str | None = None, **fields: Any) -> Record:
    """A share group's record; without fields a tombstone."""
    return Record(*group_values.group_record(GroupRecordType(record_type), group, member, **fields))


def member_metadata(group: str, member: str, topics: Sequence[str] = ("T",), client: str = "c") -> Record:
    """Type 10."""
    return Record(*group_values.member_metadata(group, member, topics, client, "/h"))


def group_metadata(group: str, epoch: int, metadata_hash: int = 255) -> Record:
    """Type 11."""
    return Record(*group_values.group_metadata(group, epoch, metadata_hash))


def target_epoch(group: str, epoch: int) -> Record:
    """Type 12."""
    return Record(*group_values.target_epoch(group, epoch))


def target(group: str, member: str, assigned: Assigned) -> Record:
    """Type 13."""
    return Record(*group_values.target(group, member, assigned))


def current(group: str, member: str, epoch: int, assigned: Assigned) -> Record:
    """Type 14."""
    return Record(*group_values.current(group, member, epoch, assigned))


def state_partitions(
    group: str,
    initialized: Assigned,
    initializing: Assigned | None = None,
    deleting: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> Record:
    """Type 15."""
    called = {T: "T"} | dict(names or {})
    return Record(*group_values.state_partitions(group, initialized, initializing or {}, deleting, called))


def share_group(group: str, members: Mapping[str, Assigned], *, epoch: int = 3, ready: Assigned) -> list[Record]:
    """A quiet share group: every member at the group's epoch, holding what it is to hold."""
    records = [group_metadata(group, epoch), state_partitions(group, ready)]
    for member, assigned in members.items():
        records += [
            member_metadata(group, member),
            target(group, member, assigned),
            current(group, member, epoch, assigned),
        ]
    return [*records, target_epoch(group, epoch)]


def subscription(
    topics: Sequence[str],
    user_data: bytes | None = None,
    *,
    version: int = 3,
    generation: int = -1,
    owned: Assigned | None = None,
) -> bytes:
    """A ConsumerProtocolSubscription."""
    fields: dict[str, Any] = {"topics": list(topics), "user_data": user_data}
    if version >= 1:
        fields["owned_partitions"] = _by_name(owned or {})
    if version >= 2:
        fields["generation_id"] = generation
    if version >= 3:
        fields["rack_id"] = None
    return encode(layout("consumer_protocol_subscription", "v3+" if version == 3 else f"v{version}"), fields)


def assignment(assigned: Assigned) -> bytes:
    """A ConsumerProtocolAssignment."""
    fields = {"assigned_partitions": _by_name(assigned), "user_data": None}
    return encode(layout("consumer_protocol_assignment", "v3+"), fields)


def user_data(claims: Assigned, generation: int | None = None) -> bytes:
    """User data of the assignor "sticky": version 0 without a generation."""
    fields: dict[str, Any] = {"previous_assignment": _by_name(claims)}
    if generation is None:
        return encode(layout("sticky_assignor_user_data", "v0"), fields)
    return encode(layout("sticky_assignor_user_data", "v1"), fields | {"generation": generation})


def classic_member(member: str, subscribed: bytes, assigned: bytes = b"", instance: str | None = None) -> dict:
    """A member for `classic_group`."""
    return {
        "member_id": member,
        "group_instance_id": instance,
        "client_id": f"client-{member}",
        "client_host": "/h1",
        "rebalance_timeout": 300000,
        "session_timeout": 45000,
        "subscription": subscribed,
        "assignment": assigned,
    }


def classic_group(
    group: str, generation: int, members: Sequence[dict], protocol: str | None = "sticky", kind: str = "consumer"
) -> Record:
    """Type 2, version 3; without members an empty group."""
    fields = {
        "protocol_type": kind,
        "generation": generation,
        "protocol": protocol,
        "leader": members[0]["member_id"] if members else None,
        "current_state_timestamp": NOW,
        "members": list(members),
    }
    return Record(
        encode(layout("group_metadata_key", "any"), {"group_id": group}),
        encode(layout("group_metadata_value", "v3"), fields),
    )


def write_group_log(folder: Path, records: Sequence[Record], partition: int = 0, timestamp: int = NOW) -> Path:
    """Write a partition of `__consumer_offsets`, a record a batch, under a folder."""
    place = folder / f"{GROUP_TOPIC}-{partition}"
    place.mkdir(parents=True)
    write_segment(place, consecutive([batch([one], timestamp=timestamp) for one in records]))
    return place


def folded(folder: Path, records: Sequence[Record], partition_count: int | None = 1) -> FoldedGroups:
    """Records of one partition, written and folded."""
    write_group_log(folder, records)
    return fold_groups(find_group_logs([str(folder)]), partition_count=partition_count)


def _by_name(assigned: Assigned) -> list[dict[str, Any]]:
    return [{"topic": topic, "partitions": list(of_topic)} for topic, of_topic in assigned.items()]


QUIET = share_group("G1", {"m1": {T: [0]}, "m2": {T: [1]}}, ready={T: [0, 1]})
"""Two members of a group that have what they are to have, of a topic whose state is there."""
