"""Records of `__consumer_offsets` that tell of groups; committed offsets, most of that topic, are never looked into.

What consumers of the classic protocol tell the group coordinator: subscriptions, and assignments made of them.

User data of the sticky assignors (KIP-341): what a member claims to have had, and since which generation.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from share_state.errors import InputError
from share_state.kafka.codec import CodecError, decode
from share_state.schema.declarations import layout, record


class GroupRecordType(IntEnum):
    """The int16 that the keys begin with, for the types that are read.

    Source: Kafka GroupCoordinatorRecordSerde, CoordinatorRecordType.
    """

    CLASSIC_GROUP = 2
    CONSUMER_GROUP = 3
    SHARE_PARTITION_METADATA = 9
    SHARE_MEMBER = 10
    SHARE_GROUP = 11
    SHARE_TARGET_EPOCH = 12
    SHARE_TARGET_MEMBER = 13
    SHARE_CURRENT_MEMBER = 14
    SHARE_STATE_PARTITIONS = 15


FOREIGN_TYPES = frozenset((0, 1, 4, 5, 6, 7, 8, *range(16, 24)))
"""Committed offsets, the insides of consumer and streams groups: known to Kafka, and of no use here."""

_RECORDS = {
    GroupRecordType.CLASSIC_GROUP: "group_metadata",
    GroupRecordType.CONSUMER_GROUP: "consumer_group_metadata",
    GroupRecordType.SHARE_PARTITION_METADATA: "share_group_partition_metadata",
    GroupRecordType.SHARE_MEMBER: "share_group_member_metadata",
    GroupRecordType.SHARE_GROUP: "share_group_metadata",
    GroupRecordType.SHARE_TARGET_EPOCH: "share_group_target_assignment_metadata",
    GroupRecordType.SHARE_TARGET_MEMBER: "share_group_target_assignment_member",
    GroupRecordType.SHARE_CURRENT_MEMBER: "share_group_current_member_assignment",
    GroupRecordType.SHARE_STATE_PARTITIONS: "share_group_state_partition_metadata",
}
_EARLIEST = "4.0"


class GroupRecordError(InputError):
    """Raised when a record of a known type cannot be read; `code` is the rule that it breaks."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One record about a group, its key and value still bytes.

    Attributes:
        type: the int16 at the front of the key, -1 where the key is null or shorter.
        offset: in its log partition.
        timestamp: ms since 1970.
        key: the bytes of the key, None where it is null.
        value: the bytes of the value, None for a tombstone.
    """

    type: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Whom a record is about: the group, and its member where the record is about one ("" else)."""

    group_id: str
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A decoded value.

    Attributes:
        fields: by name, as the declaration of the layout has them.
        is_early: whether only the layout of 4.0 reads it.
        trailing: bytes behind it, which Kafka ignores.
    """

    fields: dict[str, Any]
    is_early: bool
    trailing: int


def record_name(record_type: int) -> str:
    """How the declarations of a type's key and value begin, of one of GroupRecordType."""
    return _RECORDS[GroupRecordType(record_type)]


def record_types(data: np.ndarray, records: np.ndarray) -> np.ndarray:
    """The int16 that each key begins with.

    Args:
        data: uint8 bytes of a chunk.
        records: RECORD rows of it.
    Returns:
        int16, one a record; -1 where the key is null or shorter than that.
    """
    types = np.full(len(records), -1, np.int16)
    rows = np.flatnonzero(records["key_size"] >= 2)
    at = records["key_at"][rows]
    types[rows] = (data[at].astype(np.uint16) << 8 | data[at + 1]).view(np.int16)
    return types


def told_records(data: np.ndarray, records: np.ndarray, types: np.ndarray) -> Iterator[GroupRecord]:
    """The records of a chunk that are about groups or that nothing is known of, in log order.

    Args:
        data: uint8 bytes of the chunk.
        records: RECORD rows of it.
        types: of `record_types`.
    """
    told = np.flatnonzero(~np.isin(types, np.array(sorted(FOREIGN_TYPES), np.int16)))
    for row, record_type in zip(records[told], types[told].tolist(), strict=True):
        key_at, key_size = int(row["key_at"]), int(row["key_size"])
        value_at, value_size = int(row["value_at"]), int(row["value_size"])
        yield GroupRecord(
            record_type,
            int(row["offset"]),
            int(row["timestamp"]),
            None if key_size < 0 else data[key_at : key_at + key_size].tobytes(),
            None if value_size < 0 else data[value_at : value_at + value_size].tobytes(),
        )


def read_key(told: GroupRecord) -> GroupKey | None:
    """Whom a record is about; None for a type that is not known.

    Raises:
        GroupRecordError: if the key is null, short, or no text.
    Source: Kafka GroupCoordinatorRecordSerde.
    """
    if told.key is None or (told.type == -1 and len(told.key) < 2):
        raise GroupRecordError("KEY_MALFORMED", "a key that is null or shorter than its type")
    if told.type not in _RECORDS:
        return None
    name = f"{_RECORDS[GroupRecordType(told.type)]}_key"
    try:
        fields, _ = decode(layout(name, record(name).layouts[0].releases), told.key)
    except CodecError as error:
        raise GroupRecordError("KEY_MALFORMED", str(error)) from None
    return GroupKey(fields["group_id"], fields.get("member_id", ""))


def read_value(record_type: int, value: bytes) -> GroupValue:
    """Decode the value of a record.

    Of two layouts that call themselves the same version, the later one is taken if it consumes the value exactly,
    else the one of 4.0 if that does, else the later one with bytes left over, as Kafka would.

    Args:
        record_type: one of GroupRecordType whose values are declared.
        value: the bytes, version included.
    Raises:
        GroupRecordError: if its version is not known, or no layout reads it.
    Source: Kafka GroupCoordinatorRecordSerde, MessageUtil.
    """
    name = f"{_RECORDS[GroupRecordType(record_type)]}_value"
    if len(value) < 2:
        raise GroupRecordError("VALUE_MALFORMED", f"{record(name).name}: shorter than its version")
    version = int.from_bytes(value[:2], "big", signed=True)
    layouts = [layout(name, one.releases) for one in reversed(record(name).layouts) if one.version == version]
    if not layouts:
        raise GroupRecordError("VALUE_VERSION_UNKNOWN", f"{record(name).name}: version {version} is not known")
    read: GroupValue | None = None
    failure: CodecError | None = None
    for number, one in enumerate(layouts):
        try:
            fields, consumed = decode(one, value)
        except CodecError as error:
            failure = failure or error
            continue
        if consumed == len(value):
            return GroupValue(fields, one.releases == _EARLIEST, 0)
        if number == 0:
            read = GroupValue(fields, one.releases == _EARLIEST, len(value) - consumed)
    if read is None:
        raise GroupRecordError("VALUE_MALFORMED", str(failure))
    return read


TopicPartition = tuple[str, int]
"""(topic, partition)"""

ABSENT = -1
"""A generation that is not there."""


class SubscriptionError(Exception):
    """Raised when bytes are no subscription or assignment; the message says which field and where."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants, and what it says of itself.

    Attributes:
        version: as written, which may be later than the layout it was read in.
        topics: names of the topics that it wants.
        user_data: what its assignor adds, None where it adds nothing.
        owned_partitions: what it keeps while it rejoins, in the order of the bytes.
        generation: in which it got them, None where absent (-1 on the wire).
        rack_id: rack of the client.
    """

    version: int
    topics: tuple[str, ...]
    user_data: bytes | None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation: int | None = None
    rack_id: str | None = None


def read_subscription(data: bytes) -> Subscription:
    """Read a ConsumerProtocolSubscription; a version that is too new is read as the newest known, its tail ignored.

    Raises:
        SubscriptionError: if the version is negative, or its layout does not fit the bytes.
    Source: Kafka ConsumerProtocol.deserializeSubscription.
    """
    version, fields = _read("consumer_protocol_subscription", data)
    generation = fields.get("generation_id", ABSENT)
    return Subscription(
        version,
        tuple(fields["topics"]),
        fields["user_data"],
        flat(fields.get("owned_partitions", ())),
        generation if generation >= 0 else None,
        fields.get("rack_id"),
    )


def read_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """What a member got, in the order of the bytes; nothing where there are no bytes, as for members of no assignment.

    Raises:
        SubscriptionError: if the version is negative, or its layout does not fit the bytes.
    Source: Kafka ConsumerProtocol.deserializeAssignment.
    """
    return flat(_read("consumer_protocol_assignment", data)[1]["assigned_partitions"]) if data else ()


def flat(topics: Iterable[Mapping[str, Any]]) -> tuple[TopicPartition, ...]:
    """Decoded ConsumerProtocolTopicPartition structs as topic-partitions, in order."""
    return tuple((one["topic"], partition) for one in topics for partition in one["partitions"])


def _read(name: str, data: bytes) -> tuple[int, dict[str, Any]]:
    if len(data) < 2:
        raise SubscriptionError(f"{record(name).name}: shorter than its version")
    version = int.from_bytes(data[:2], "big", signed=True)
    layouts = record(name).layouts
    if version < 0:
        raise SubscriptionError(f"{record(name).name}: version {version}")
    newest = layouts[-1].version or 0
    chosen = layout(name, layouts[min(version, newest)].releases)
    try:
        return version, decode(chosen, min(version, newest).to_bytes(2, "big") + data[2:])[0]
    except CodecError as error:
        raise SubscriptionError(str(error)) from None


@dataclass(frozen=True, slots=True)
class StickyUserData:
    """What a member claims.

    Attributes:
        version: 0 or 1, None where there is no user data or it cannot be read.
        claims: in the order of the bytes.
        generation: in which it had them; None where absent (no user data, or version 0), -1 where it cannot be read.
        trailing: bytes behind it, which Kafka ignores.
        flaw: why it cannot be read, "" where it can.
    """

    version: int | None
    claims: tuple[TopicPartition, ...]
    generation: int | None
    trailing: int = 0
    flaw: str = ""


NO_USER_DATA = StickyUserData(None, (), None)


def read_sticky_user_data(data: bytes | None) -> StickyUserData:
    """Read the user data of the assignor "sticky": the later layout if it fits, else the earlier one.

    No version is written, so version 0 with four or more bytes behind it is taken for version 1.

    Source: Kafka StickyAssignor.deserializeTopicPartitionAssignment; KIP-341.
    """
    if not data:
        return NO_USER_DATA
    failure = ""
    for version in (1, 0):
        try:
            fields, consumed = decode(layout("sticky_assignor_user_data", f"v{version}"), data)
        except CodecError as error:
            failure = str(error)
            continue
        return StickyUserData(
            version, flat(fields["previous_assignment"]), fields.get("generation"), len(data) - consumed
        )
    return StickyUserData(None, (), ABSENT, flaw=failure)


def read_cooperative_generation(data: bytes | None) -> int | None:
    """The generation in the user data of the assignor "cooperative-sticky", for clients whose subscription has none.

    Returns:
        None where there is no user data, -1 where it cannot be read.
    Source: Kafka CooperativeStickyAssignor.memberData.
    """
    if data is None:
        return None
    try:
        return decode(layout("cooperative_sticky_assignor_user_data", "v0"), data)[0]["generation"]
    except CodecError:
        return ABSENT
