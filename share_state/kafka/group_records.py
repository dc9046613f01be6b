"""Decodes the records of `__consumer_offsets` about groups, and the client data inside them.

Three layers: the group coordinator's records (`read_key`, `read_value`), the subscriptions and assignments of
members of the classic protocol (`read_subscription`, `read_assignment`), and the user data of the sticky
assignors (KIP-341). Committed offsets, most of the topic, are skipped.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

import numpy as np

from share_state.errors import InputError
from share_state.kafka.codec import CodecError, decode
from share_state.schema.declarations import layout, record


class GroupRecordType(IntEnum):
    """The record types that are decoded; `declared` is the prefix of their declarations in schemas/records.

    The value is the int16 at the start of the key.
    Source: Kafka GroupCoordinatorRecordSerde, CoordinatorRecordType.
    """

    declared: str

    def __new__(cls, number: int, declared: str) -> Self:
        """Create a member with this number."""
        member = int.__new__(cls, number)
        member._value_, member.declared = number, declared
        return member

    CLASSIC_GROUP = 2, "group_metadata"
    CONSUMER_GROUP = 3, "consumer_group_metadata"
    SHARE_PARTITION_METADATA = 9, "share_group_partition_metadata"
    SHARE_MEMBER = 10, "share_group_member_metadata"
    SHARE_GROUP = 11, "share_group_metadata"
    SHARE_TARGET_EPOCH = 12, "share_group_target_assignment_metadata"
    SHARE_TARGET_MEMBER = 13, "share_group_target_assignment_member"
    SHARE_CURRENT_MEMBER = 14, "share_group_current_member_assignment"
    SHARE_STATE_PARTITIONS = 15, "share_group_state_partition_metadata"


KNOWN_TYPES = frozenset(GroupRecordType)
IGNORED_TYPES = frozenset((0, 1, 4, 5, 6, 7, 8, *range(16, 24)))
"""Types of committed offsets and of members of consumer and streams groups: valid, but not needed."""

_FIRST_RELEASE = "4.0"


class GroupRecordError(InputError):
    """Raised when a record of a known type cannot be read; `code` is the rule that it violates."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One undecoded record about a group.

    Attributes:
        type: the int16 at the start of the key; -1 if the key is null or shorter.
        offset: offset in its log partition.
        timestamp: ms since 1970.
        key: bytes, None for null.
        value: bytes, None for a tombstone.
    """

    type: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Group id and member id of a record; the member id is "" if the record is about the whole group."""

    group_id: str
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A decoded value.

    Attributes:
        fields: by name, as in the declared layout.
        is_early: whether only the layout of 4.0 can read it.
        trailing: number of bytes after the value, which Kafka ignores.
    """

    fields: dict[str, Any]
    is_early: bool
    trailing: int


def record_types(data: np.ndarray, records: np.ndarray) -> np.ndarray:
    """The record type (int16) of each RECORD row of a chunk; -1 if the key is null or shorter than a type."""
    types = np.full(len(records), -1, np.int16)
    rows = np.flatnonzero(records["key_size"] >= 2)
    at = records["key_at"][rows]
    types[rows] = (data[at].astype(np.uint16) << 8 | data[at + 1]).view(np.int16)
    return types


def read_group_records(data: np.ndarray, records: np.ndarray, types: np.ndarray) -> Iterator[GroupRecord]:
    """The records of a chunk in log order, without those of IGNORED_TYPES; `types` is from `record_types`."""
    selected = np.flatnonzero(~np.isin(types, np.array(sorted(IGNORED_TYPES), np.int16)))
    for row, record_type in zip(records[selected], types[selected].tolist(), strict=True):
        key_at, key_size = int(row["key_at"]), int(row["key_size"])
        value_at, value_size = int(row["value_at"]), int(row["value_size"])
        yield GroupRecord(
            record_type,
            int(row["offset"]),
            int(row["timestamp"]),
            None if key_size < 0 else data[key_at : key_at + key_size].tobytes(),
            None if value_size < 0 else data[value_at : value_at + value_size].tobytes(),
        )


def read_key(group_record: GroupRecord) -> GroupKey | None:
    """The group and member of a record; None for an unknown type.

    Raises:
        GroupRecordError: if the key is null, too short, or not UTF-8.
    Source: Kafka GroupCoordinatorRecordSerde.
    """
    if group_record.key is None or (group_record.type == -1 and len(group_record.key) < 2):
        raise GroupRecordError("KEY_MALFORMED", "the key is null or shorter than its type")
    if group_record.type not in KNOWN_TYPES:
        return None
    name = f"{GroupRecordType(group_record.type).declared}_key"
    try:
        fields, _ = decode(layout(name, record(name).layouts[0].releases), group_record.key)
    except CodecError as error:
        raise GroupRecordError("KEY_MALFORMED", str(error)) from None
    return GroupKey(fields["group_id"], fields.get("member_id", ""))


def read_value(record_type: int, value: bytes) -> GroupValue:
    """Decode the value of a record, including the version in front.

    If two layouts share a version number, the later one is used if it consumes the value exactly; otherwise
    the layout of 4.0 if it does; otherwise the later one, with trailing bytes ignored as Kafka does.

    Raises:
        GroupRecordError: if the version is unknown or no layout can read the value.
    Source: Kafka GroupCoordinatorRecordSerde, MessageUtil.
    """
    name = f"{GroupRecordType(record_type).declared}_value"
    if len(value) < 2:
        raise GroupRecordError("VALUE_MALFORMED", f"{record(name).name}: shorter than its version")
    version = int.from_bytes(value[:2], "big", signed=True)
    layouts = [layout(name, one.releases) for one in reversed(record(name).layouts) if one.version == version]
    if not layouts:
        raise GroupRecordError(
            "VALUE_VERSION_UNKNOWN", f"{record(name).name}: version {version} is not known"
        )
    partly_read: GroupValue | None = None
    failure: CodecError | None = None
    for number, one in enumerate(layouts):
        try:
            fields, consumed = decode(one, value)
        except CodecError as error:
            failure = failure or error
            continue
        if consumed == len(value):
            return GroupValue(fields, one.releases == _FIRST_RELEASE, 0)
        if number == 0:
            partly_read = GroupValue(fields, one.releases == _FIRST_RELEASE, len(value) - consumed)
    if partly_read is None:
        raise GroupRecordError("VALUE_MALFORMED", str(failure))
    return partly_read


TopicPartition = tuple[str, int]
"""(topic, partition)"""

NO_GENERATION = -1
"""A missing generation."""


class SubscriptionError(Exception):
    """Raised when a subscription or assignment cannot be read; the message has the field and its position."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of a member of the classic protocol.

    Attributes:
        version: version in the bytes; may be later than the layout used to read them.
        topics: names of the subscribed topics.
        user_data: bytes that the assignor adds, if any.
        owned_partitions: partitions that the member owned when it rejoined, in the order of the bytes.
        generation: generation that assigned them, None if absent (-1 in the bytes).
        rack_id: rack of the client.
    """

    version: int
    topics: tuple[str, ...]
    user_data: bytes | None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation: int | None = None
    rack_id: str | None = None


def read_subscription(data: bytes) -> Subscription:
    """Decode a ConsumerProtocolSubscription.

    A newer version is read as the newest known one without its tail.

    Raises:
        SubscriptionError: if the version is negative or the bytes do not fit the layout.
    Source: Kafka ConsumerProtocol.deserializeSubscription.
    """
    version, fields = _read("consumer_protocol_subscription", data)
    generation = fields.get("generation_id", NO_GENERATION)
    return Subscription(
        version,
        tuple(fields["topics"]),
        fields["user_data"],
        topic_partitions(fields.get("owned_partitions", ())),
        generation if generation >= 0 else None,
        fields.get("rack_id"),
    )


def read_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The assigned partitions in the order of the bytes; none for empty bytes.

    Raises:
        SubscriptionError: if the version is negative or the bytes do not fit the layout.
    Source: Kafka ConsumerProtocol.deserializeAssignment.
    """
    return (
        topic_partitions(_read("consumer_protocol_assignment", data)[1]["assigned_partitions"])
        if data
        else ()
    )


def topic_partitions(topics: Iterable[Mapping[str, Any]]) -> tuple[TopicPartition, ...]:
    """The topic-partitions of decoded ConsumerProtocolTopicPartition structs, in order."""
    return tuple((one["topic"], partition) for one in topics for partition in one["partitions"])


def _read(name: str, data: bytes) -> tuple[int, dict[str, Any]]:
    if len(data) < 2:
        raise SubscriptionError(f"{record(name).name}: shorter than its version")
    version = int.from_bytes(data[:2], "big", signed=True)
    layouts = record(name).layouts
    if version < 0:
        raise SubscriptionError(f"{record(name).name}: version {version}")
    newest = layouts[-1].version or 0
    selected = layout(name, layouts[min(version, newest)].releases)
    try:
        return version, decode(selected, min(version, newest).to_bytes(2, "big") + data[2:])[0]
    except CodecError as error:
        raise SubscriptionError(str(error)) from None
