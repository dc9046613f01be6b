"""Decodes the records of `__cluster_metadata`, KRaft's log of everything that its controllers know.

A record has no key; its value begins with a frame of three unsigned varints: the version of the frame, the
record type and the version of the message. `decode_metadata` locates what cluster facts need in all records
of a chunk, as rows; `read_message` decodes one record whole, by its declared layout.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

import numpy as np

from share_state.errors import InputError
from share_state.jit.compile import inlined, kernel
from share_state.kafka.codec import CodecError, decode
from share_state.kafka.primitives import byte_at, int32_at, int64_at, uvarint
from share_state.schema.declarations import layout, record

METADATA_TOPIC = "__cluster_metadata"
FRAME_VERSION = 1

NO_LEADER_CHANGE = -2
"""The leader of a partition change that leaves it as it is. Source: Kafka
LeaderConstants.NO_LEADER_CHANGE."""


class MetadataRecordType(IntEnum):
    """The record types that are decoded; `declared` is the name of their declaration in schemas/records."""

    declared: str

    def __new__(cls, number: int) -> Self:
        """Create a member with this number."""
        member = int.__new__(cls, number)
        member._value_ = number
        return member

    def __init__(self, _number: int) -> None:
        self.declared = f"{self.name.lower()}_record"

    REGISTER_BROKER = 0
    UNREGISTER_BROKER = 1
    TOPIC = 2
    PARTITION = 3
    CONFIG = 4
    PARTITION_CHANGE = 5
    FENCE_BROKER = 7
    UNFENCE_BROKER = 8
    REMOVE_TOPIC = 9
    FEATURE_LEVEL = 12
    BROKER_REGISTRATION_CHANGE = 17
    BEGIN_TRANSACTION = 23
    END_TRANSACTION = 24
    ABORT_TRANSACTION = 25


_DECODED_TYPES = frozenset(MetadataRecordType)

IGNORED_TYPES = (10, 11, 14, 15, 18, 19, 20, 21, 22, 26, 27, 28, 29)
"""Types up to 4.4 that hold no facts about share groups: ACLs, quotas, passwords, producer ids, controllers
and others. Source: Kafka MetadataRecordType."""


class ResourceType(IntEnum):
    """The resources whose configs are kept. Source: Kafka ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class RowStatus(IntEnum):
    """Whether a record is decoded, and if not, why."""

    DECODED = 0
    UNKNOWN_TYPE = 1
    UNKNOWN_VERSION = 2
    MALFORMED = 3


METADATA_ROW = np.dtype(
    [
        ("offset", "i8"),
        ("timestamp", "i8"),  # ms
        ("topic_high", "u8"),  # topic id: the first and the last eight bytes
        ("topic_low", "u8"),
        ("value_at", "i8"),  # position of the whole record's value in the chunk
        ("name_at", "i8"),  # position of the name of a topic, a feature, or the resource of a config
        ("key_at", "i8"),  # position of a config key
        ("text_at", "i8"),  # position of a config value
        ("value_size", "i4"),
        ("name_size", "i4"),
        ("key_size", "i4"),
        ("text_size", "i4"),  # -1 for null
        ("number", "i4"),  # partition, broker id or level of a feature
        (
            "leader",
            "i4",
        ),  # of a partition; of a broker 1 if it is fenced, -1 if it is unfenced, 0 if unchanged
        ("leader_epoch", "i4"),
        ("in_sync", "i4"),  # number of in-sync replicas of a partition; -1 if unchanged
        ("type", "i4"),
        ("version", "i4"),
        ("resource_type", "i1"),
        ("status", "i1"),
    ]
)
"""One row per record of a decoded type, or of one that cannot be decoded."""

_HIGHEST_TYPE = 29
_IGNORED = -1
_UNKNOWN = -2


def _newest_versions() -> np.ndarray:
    """Record type -> newest declared version; _IGNORED or _UNKNOWN for types that are not decoded."""
    versions = np.full(_HIGHEST_TYPE + 1, _UNKNOWN, np.int64)
    versions[list(IGNORED_TYPES)] = _IGNORED
    for record_type in MetadataRecordType:
        versions[record_type] = max(one.version or 0 for one in record(record_type.declared).layouts)
    return versions


def decode_metadata(data: np.ndarray, records: np.ndarray) -> np.ndarray:
    """Locate the facts in the records of a chunk.

    Args:
        data: uint8 bytes of the chunk.
        records: RECORD rows located in it.
    Returns:
        METADATA_ROW rows in the order of the log, without records of IGNORED_TYPES. Positions are those in
        `data`.
    Source: Kafka AbstractApiMessageSerde, MetadataRecordSerde and the classes that it reads.
    """
    rows = np.zeros(len(records), METADATA_ROW)
    return rows[: _decode(data, records, _newest_versions(), rows)]


@kernel
def _decode(data, records, newest_versions, rows):
    count = 0
    for number in range(len(records)):
        record = records[number]
        position = np.int64(record.value_at)
        end = position + max(np.int64(record.value_size), 0)
        row = rows[np.uint64(count)]
        row.offset, row.timestamp = record.offset, record.timestamp
        row.value_at, row.value_size = position, record.value_size
        row.status = np.int8(RowStatus.DECODED)
        frame, position = uvarint(data, position, end)
        record_type, position = _uvarint_after(data, position, end)
        version, position = _uvarint_after(data, position, end)
        row.type = record_type if record_type <= 0x7FFF else -1
        row.version = version if version <= 0x7FFF else -1
        if position < 0:
            row.status = np.int8(RowStatus.MALFORMED)
        elif (
            frame != FRAME_VERSION or record_type > _HIGHEST_TYPE or newest_versions[record_type] == _UNKNOWN
        ):
            row.status = np.int8(RowStatus.UNKNOWN_TYPE)
        elif newest_versions[record_type] == _IGNORED:
            continue
        elif version > newest_versions[record_type]:
            row.status = np.int8(RowStatus.UNKNOWN_VERSION)
        elif _read_message(data, position, end, row) < 0:
            row.status = np.int8(RowStatus.MALFORMED)
        count += 1
    return count


@kernel
def _read_message(data, position, end, row):
    """Read a message of a decoded type into its row.

    Returns the position after it, or -1 if it is malformed.
    """
    record_type = row.type
    if record_type == MetadataRecordType.PARTITION:
        return _read_partition(data, position, end, row)
    if record_type == MetadataRecordType.PARTITION_CHANGE:
        return _read_partition_change(data, position, end, row)
    if record_type == MetadataRecordType.CONFIG:
        return _read_config(data, position, end, row)
    if record_type == MetadataRecordType.TOPIC:
        row.name_at, row.name_size, position = _text(data, position, end)
        return _after_tags(data, _topic_id(data, position, end, row), end)
    if record_type == MetadataRecordType.REMOVE_TOPIC:
        return _after_tags(data, _topic_id(data, position, end, row), end)
    if record_type == MetadataRecordType.FEATURE_LEVEL:
        row.name_at, row.name_size, position = _text(data, position, end)
        if position < 0 or end - position < 2:
            return -1
        row.number = np.int16(np.int64(byte_at(data, position)) << 8 | np.int64(byte_at(data, position + 1)))
        return _after_tags(data, position + 2, end)
    if record_type >= MetadataRecordType.BEGIN_TRANSACTION:
        return _after_tags(data, position, end)
    return _read_broker(data, position, end, row)


@kernel
def _read_broker(data, position, end, row):
    """A registration, fencing or removal of a broker."""
    if end - position < 4:
        return -1
    row.number = int32_at(data, position)
    if row.type == MetadataRecordType.REGISTER_BROKER:
        return _read_registration(data, position + 4, end, row)
    if end - position < 12:
        return -1
    position += 12
    if row.type != MetadataRecordType.BROKER_REGISTRATION_CHANGE:
        if row.type == MetadataRecordType.FENCE_BROKER:
            row.leader = 1
        elif row.type == MetadataRecordType.UNFENCE_BROKER:
            row.leader = -1
        return _after_tags(data, position, end)
    fenced_at, position = _find_tag(data, position, end, 0, 1)
    if fenced_at >= 0:
        row.leader = np.int32(np.int8(byte_at(data, fenced_at)))
    return position


@kernel
def _read_registration(data, at, end, row):
    """A registration after the id: snapshots hold in it whether the broker is fenced."""
    at += 24 + (row.version >= 2)
    if at > end:
        return -1
    at = _after_texts(data, at, end, 2, 4)
    at = _after_texts(data, at, end, 1, 4)
    size, at = _uvarint_after(data, at, end)
    at += max(size - 1, 0)
    if at < 0 or size > _MAX_TEXT or end - at < 1 + (row.version >= 1):
        return -1
    row.leader = 1 if byte_at(data, at) else -1
    return _after_tags(data, at + 1 + (row.version >= 1), end)


@kernel
def _read_partition(data, at, end, row):
    if end - at < 4:
        return -1
    row.number = int32_at(data, at)
    in_sync_at = _after_array(data, _topic_id(data, at + 4, end, row), end, 4)
    row.in_sync = _uvarint_after(data, in_sync_at, end)[0] - 1
    at = _after_array(data, in_sync_at, end, 4)
    for _ in range(2):
        at = _after_array(data, at, end, 4)
    if at < 0 or end - at < 12:
        return -1
    row.leader, row.leader_epoch = int32_at(data, at), int32_at(data, at + 4)
    at += 12
    if row.version >= 1:
        at = _after_array(data, at, end, 16)
    return _after_tags(data, at, end)


@kernel
def _read_partition_change(data, at, end, row):
    if end - at < 4:
        return -1
    row.number = int32_at(data, at)
    tags_at = _topic_id(data, at + 4, end, row)
    in_sync_at, _ = _find_tag(data, tags_at, end, 0, 1)
    row.in_sync = _uvarint_after(data, in_sync_at, end)[0] - 1
    leader_at, at = _find_tag(data, tags_at, end, 1, 4)
    row.leader = int32_at(data, leader_at) if leader_at >= 0 else NO_LEADER_CHANGE
    return at


@kernel
def _read_config(data, at, end, row):
    if end - at < 1:
        return -1
    row.resource_type = np.int8(byte_at(data, at))
    row.name_at, row.name_size, at = _text(data, at + 1, end)
    row.key_at, row.key_size, at = _text(data, at, end)
    size, at = _uvarint_after(data, at, end)
    if at < 0 or size - 1 > end - at or size > _MAX_TEXT + 1:
        return -1
    row.text_at, row.text_size = at, size - 1
    return _after_tags(data, at + max(size - 1, 0), end)


_MAX_TEXT = 0x7FFF


@inlined
def _uvarint_after(data, at, end):
    """An unsigned varint at a position that may be -1; the position after it, or -1."""
    if at < 0:
        return np.int64(0), np.int64(-1)
    return uvarint(data, at, end)


@kernel
def _text(data, at, end):
    """(position, size, position after it or -1) of a text that is not null."""
    size, at = _uvarint_after(data, at, end)
    size -= 1
    if at < 0 or size < 0 or size > min(end - at, _MAX_TEXT):
        return np.int64(0), np.int64(0), np.int64(-1)
    return at, size, at + size


@kernel
def _topic_id(data, at, end, row):
    if at < 0 or end - at < 16:
        return np.int64(-1)
    row.topic_high, row.topic_low = np.uint64(int64_at(data, at)), np.uint64(int64_at(data, at + 8))
    return at + 16


@kernel
def _after_array(data, at, end, width):
    """The position after an array of elements of `width` bytes; -1 if it is null or passes the end."""
    count, at = _uvarint_after(data, at, end)
    if at < 0 or count < 1 or (count - 1) * width > end - at:
        return np.int64(-1)
    return at + (count - 1) * width


@kernel
def _after_texts(data, position, end, texts, width):
    """The position after structures of some texts, `width` bytes and tagged fields; or -1."""
    count, position = _uvarint_after(data, position, end)
    # Each element takes more than a byte.
    if position < 0 or count < 1 or count - 1 > end - position:
        return np.int64(-1)
    for _ in range(count - 1):
        for _ in range(texts):
            position = _text(data, position, end)[2]
        if position < 0 or width > end - position:
            return np.int64(-1)
        position = _after_tags(data, position + width, end)
        if position < 0:
            return np.int64(-1)
    return position


@kernel
def _after_tags(data, at, end):
    return _find_tag(data, at, end, -1, 0)[1]


@kernel
def _find_tag(data, at, end, wanted, width):
    """(position of a tagged field of `width` bytes or -1, position after all tagged fields or -1)."""
    found = np.int64(-1)
    count, at = _uvarint_after(data, at, end)
    # Each tagged field takes two bytes.
    if at < 0 or count > (end - at) // 2:
        return found, np.int64(-1)
    for _ in range(count):
        tag, at = uvarint(data, at, end)
        size, at = _uvarint_after(data, at, end)
        if at < 0 or size > end - at or (tag == wanted and size < width):
            return found, np.int64(-1)
        if tag == wanted:
            found = at
        at += size
    return found, at


class MetadataRecordError(InputError):
    """Raised when a metadata record cannot be decoded."""


@dataclass(frozen=True, slots=True)
class Message:
    """A decoded metadata record: its type, its version and its fields by name."""

    type: MetadataRecordType
    version: int
    fields: dict[str, Any]


def read_message(value: bytes) -> Message:
    """Decode one metadata record of a known type and version.

    Raises:
        MetadataRecordError: if the type or version is unknown, or the bytes do not fit the layout.
    Source: Kafka AbstractApiMessageSerde.read.
    """
    data = np.frombuffer(value, np.uint8)
    frame, at = uvarint(data, 0, len(data))
    record_type, at = _uvarint_after(data, at, len(data))
    version, at = _uvarint_after(data, at, len(data))
    if at < 0 or frame != FRAME_VERSION:
        raise MetadataRecordError(
            f"{METADATA_TOPIC}: a record with frame version {frame}, or too short for a frame"
        )
    if record_type not in _DECODED_TYPES:
        raise MetadataRecordError(f"{METADATA_TOPIC}: record type {record_type} is not decoded")
    name = MetadataRecordType(record_type).declared
    versions = {one.version: one.releases for one in record(name).layouts}
    if version not in versions:
        raise MetadataRecordError(f"{record(name).name}: version {version} is not known")
    try:
        fields, _ = decode(layout(name, versions[version]), value[at:])
    except CodecError as error:
        raise MetadataRecordError(str(error)) from None
    return Message(MetadataRecordType(record_type), int(version or 0), fields)
