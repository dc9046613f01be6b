"""Encodes records that Kafka's tools print as JSON back into the bytes that they were printed from.

Covers `__share_group_state` (`encode_state_record`) and `__consumer_offsets` (`encode_group_record`). What
the tools do not print is lost: tagged fields that they do not know, and trailing bytes.
"""

import base64
import re
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from share_state.kafka.codec import CodecError, encode, encode_uvarint
from share_state.kafka.group_records import IGNORED_TYPES, KNOWN_TYPES, GroupRecordType
from share_state.kafka.record_batches import RECORD
from share_state.schema.declarations import WireField, layout, record, snake_case

TEXT_CHUNK_SIZE = 4 << 20
"""Bytes of records per chunk of a text; as Python objects, the records take several times as much memory."""

_SNAPSHOT, _UPDATE = 0, 1
_HEADS = {
    (_SNAPSHOT, False): (
        struct.Struct(">hiiiqqq"),
        ("snapshotEpoch", "stateEpoch", "leaderEpoch", "startOffset", "createTimestamp", "writeTimestamp"),
    ),
    (_SNAPSHOT, True): (
        struct.Struct(">hHiiq"),
        ("snapshotEpoch", "stateEpoch", "leaderEpoch", "startOffset"),
    ),
    (_UPDATE, False): (struct.Struct(">hiiq"), ("snapshotEpoch", "leaderEpoch", "startOffset")),
    (_UPDATE, True): (struct.Struct(">hHiq"), ("snapshotEpoch", "leaderEpoch", "startOffset")),
}
"""(record type, whether in the layout of 4.0) -> struct and names of the fields in front of the state
batches."""

_BATCH = struct.Struct(">qqbhb")
_BATCH_FIELDS = ("firstOffset", "lastOffset", "deliveryState", "deliveryCount")
_NO_TAGS, _COUNT_TAG = b"\0", b"\1\0\4"
_UNKNOWN_COUNT = -1


class TextRecordError(ValueError):
    """Raised when a printed record cannot be encoded; the message is the reason."""


def encode_state_record(key: Any, value: Any) -> tuple[bytes, bytes | None]:
    """Encode a printed record of `__share_group_state`.

    Packs the bytes itself instead of calling the slower `codec`: a text may hold millions of records.

    Args:
        key: object with `type` (`version` in output of the console consumer of 4.0) and `data`.
        value: object with `version` (`type` in output of kafka-dump-log of 4.0) and `data`; None for a
            tombstone.
    Raises:
        TextRecordError: if a field is missing or invalid.
    Source: Kafka ShareSnapshotKey, ShareSnapshotValue, ShareUpdateValue and their JSON converters.
    """
    kind, fields = _number(key, ("type", "version"), "the key"), _data(key, "the key")
    if kind not in (_SNAPSHOT, _UPDATE):
        raise TextRecordError(f"type {kind} of the key is neither 0 nor 1")
    group, topic, partition = (_field(fields, name) for name in ("groupId", "topicId", "partition"))
    if not isinstance(group, str) or not isinstance(topic, str) or type(partition) is not int:
        raise TextRecordError("groupId, topicId or partition of the key has a wrong type")
    encoded_key = _state_key(kind, group, topic, partition)
    if value is None:
        return encoded_key, None
    if _number(value, ("version", "type"), "the value") != 0:
        raise TextRecordError("the value is not of version 0")
    # The tools of 4.0 print only the layout of 4.0.
    return encoded_key, _state_value(
        kind, _data(value, "the value"), early="version" in key or "version" not in value
    )


@lru_cache(maxsize=1 << 16)
def _state_key(kind: int, group: str, topic: str, partition: int) -> bytes:
    try:
        name, uuid = group.encode(), base64.b64decode(f"{topic}==", altchars=b"-_", validate=True)
        if len(uuid) != 16:
            raise ValueError(topic)
        return struct.pack(">hh", kind, len(name)) + name + uuid + struct.pack(">i", partition)
    except (ValueError, struct.error):
        raise TextRecordError(f"the key {group[:40]!r}, {topic[:40]!r}, {partition} is invalid") from None


def _state_value(kind: int, fields: Mapping[str, Any], *, early: bool) -> bytes:
    head, names = _HEADS[kind, early]
    numbers = [_field(fields, name) for name in names]
    batches, complete = _field(fields, "stateBatches"), fields.get("deliveryCompleteCount", _UNKNOWN_COUNT)
    if not isinstance(batches, list):
        raise TextRecordError("stateBatches is not a list")
    try:
        ranges = [tuple([batch[name] for name in _BATCH_FIELDS]) for batch in batches]
        if not {type(number) for one in (numbers, [complete], *ranges) for number in one} <= {int}:
            raise TextRecordError("a field of the value is not an integer")
        body = b"".join([_BATCH.pack(*one, 0) for one in ranges])
        tags = _NO_TAGS if early or complete == _UNKNOWN_COUNT else _COUNT_TAG + struct.pack(">i", complete)
        return head.pack(0, *numbers) + encode_uvarint(len(batches) + 1) + body + tags
    except (KeyError, TypeError):
        raise TextRecordError(f"a state batch lacks one of {', '.join(_BATCH_FIELDS)}") from None
    except struct.error as error:
        raise TextRecordError(f"a number of the value does not fit its field ({error})") from None


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise TextRecordError(f"no field {name}")
    return fields[name]


class RecordAccumulator:
    """Collects records into chunks."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._rows: list[tuple[int, int, int, int, int, int, int]] = []
        self.size = 0

    def __len__(self) -> int:
        """Number of records."""
        return len(self._rows)

    def add(self, offset: int, timestamp: int, key: bytes, value: bytes | None, batch: int) -> None:
        """Append a record of the batch in row `batch`."""
        key_at, value_at = self.size, self.size + len(key)
        size = -1 if value is None else len(value)
        self._rows.append((offset, timestamp, key_at, value_at, len(key), size, batch))
        self._parts.append(key)
        if value is not None:
            self._parts.append(value)
        self.size = value_at + max(size, 0)

    def flush(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes and RECORD rows so far, and start again."""
        data, records = np.frombuffer(bytearray().join(self._parts), np.uint8), np.array(self._rows, RECORD)
        self._parts = []
        self._rows = []
        self.size = 0
        return data, records


_INT16 = re.compile(r"-?\d{1,5}")
_MEMBER_DATA = {
    "subscription": "consumer_protocol_subscription",
    "assignment": "consumer_protocol_assignment",
}


def encode_group_record(key: Any, value: Any) -> tuple[bytes, bytes | None]:
    """Encode a printed record of `__consumer_offsets`; arguments as for `encode_state_record`.

    Returns:
        Key and value; for record types that are not decoded, the record type alone and None.
    Raises:
        TextRecordError: if a field is missing or invalid.
    Source: Kafka CoordinatorRecordJsonConverters, OffsetsMessageParser, ShareGroupMessageFormatter.
    """
    record_type = _number(key, ("type", "version"), "the key")
    if record_type in IGNORED_TYPES or record_type not in KNOWN_TYPES:
        return record_type.to_bytes(2, "big", signed=True), None
    name = GroupRecordType(record_type).declared
    # In the key of a classic group, the tools print `group` instead of `groupId`.
    fields = {"groupId" if field == "group" else field: data for field, data in _data(key, "the key").items()}
    encoded = _encode(f"{name}_key", fields)
    if value is None:
        return encoded, None
    version = _number(value, ("version", "type"), "the value")
    return encoded, _encode(f"{name}_value", _data(value, "the value"), version)


def _number(printed: Any, names: Sequence[str], what: str) -> int:
    name = next((name for name in names if name in printed), None) if isinstance(printed, dict) else None
    if name is None:
        raise TextRecordError(f"{what} has no {names[0]}")
    text = str(printed[name])
    if not _INT16.fullmatch(text) or not -(2**15) <= int(text) < 2**15:
        raise TextRecordError(f"{name} {text[:40]} of {what} is not a record type or version")
    return int(text)


def _data(printed: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    if not isinstance(printed.get("data"), dict):
        raise TextRecordError(f"{what} has no data")
    return printed["data"]


def _encode(name: str, data: Any, version: int | None = None) -> bytes:
    """Encode a printed struct, in the given version or in the latest one whose fields are all present."""
    if not isinstance(data, dict):
        raise TextRecordError(f"{name} is not an object")
    releases = [one.releases for one in record(name).layouts if version in (None, one.version)]
    if not releases:
        raise TextRecordError(f"{record(name).name}: version {version} is unknown")
    layouts = [layout(name, one) for one in reversed(releases)]
    complete = (one for one in layouts if _names(one.fields) <= data.keys())
    selected = next(complete, layouts[0])
    try:
        return encode(selected, _fields(selected.fields, data))
    except CodecError as error:
        raise TextRecordError(str(error)) from None


def _fields(declared: Sequence[WireField], data: Any) -> dict[str, Any]:
    """Convert printed fields to the names and types of the codec."""
    if not isinstance(data, dict):
        raise TextRecordError("a struct is not an object")
    declared_fields = {field.name: field for field in declared}
    return {
        name: _value(declared_fields.get(name), printed)
        for name, printed in ((snake_case(name), printed) for name, printed in data.items())
    }


def _value(field: WireField | None, printed: Any) -> Any:
    if field is None:
        return printed
    if field.is_array:
        if not isinstance(printed, list):
            raise TextRecordError(f"{field.name} is not a list")
        return [_fields(field.fields, one) if field.fields else one for one in printed]
    if "bytes" in field.type and printed is not None:
        return _bytes(field.name, printed)
    return printed


def _bytes(name: str, printed: Any) -> bytes:
    """The bytes of a field: printed as base64, or as an object for the data of a member of a classic group."""
    if isinstance(printed, dict) and name in _MEMBER_DATA:
        return _encode(_MEMBER_DATA[name], printed)
    try:
        return base64.b64decode(str(printed), validate=True)
    except ValueError:
        raise TextRecordError(f"{name} is not base64") from None


def _names(declared: Sequence[WireField]) -> set[str]:
    """The fields that the tools always print; they omit tagged fields at their default."""
    words = (field.name.split("_") for field in declared if field.tag is None)
    return {first + "".join(word.capitalize() for word in more) for first, *more in words}
