"""Records of `__consumer_offsets` that tell of groups; committed offsets, most of that topic, are never looked into."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from share_state.declarations import layout, record
from share_state.errors import InputError
from share_state.wire.codec import CodecError, decode


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
