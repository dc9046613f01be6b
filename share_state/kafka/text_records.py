"""Records of `__share_group_state` as the stock tools print them, written back to the bytes they were printed from.

What the tools leave out cannot come back: tagged fields and trailing bytes that Kafka ignores.

Records of `__consumer_offsets` as the stock tools print them, written back to the bytes they were printed from.

What the tools leave out cannot come back: tagged fields that they do not know, and trailing bytes.
"""

import base64
import re
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from share_state.kafka.codec import CodecError, encode
from share_state.kafka.group_records import FOREIGN_TYPES, GroupRecordType, record_name
from share_state.kafka.record_batches import RECORD
from share_state.schema.declarations import WireField, layout, record

SNAPSHOT, UPDATE = 0, 1

MOST_TEXT = 4 << 20
"""Bytes of records that are gathered from a text at a time: as objects they take several times as much."""

_BATCH = struct.Struct(">qqbhb")
_HEADS = {
    (SNAPSHOT, False): struct.Struct(">hiiiqqq"),
    (SNAPSHOT, True): struct.Struct(">hHiiq"),
    (UPDATE, False): struct.Struct(">hiiq"),
    (UPDATE, True): struct.Struct(">hHiq"),
}
_FIELDS = {
    (SNAPSHOT, False): (
        "snapshotEpoch",
        "stateEpoch",
        "leaderEpoch",
        "startOffset",
        "createTimestamp",
        "writeTimestamp",
    ),
    (SNAPSHOT, True): ("snapshotEpoch", "stateEpoch", "leaderEpoch", "startOffset"),
    (UPDATE, False): ("snapshotEpoch", "leaderEpoch", "startOffset"),
    (UPDATE, True): ("snapshotEpoch", "leaderEpoch", "startOffset"),
}
_BATCH_FIELDS = ("firstOffset", "lastOffset", "deliveryState", "deliveryCount")
_NO_TAGS, _COUNT_TAG = b"\0", b"\1\0\4"
_UNKNOWN_COUNT = -1


class StateTextError(ValueError):
    """Raised when a printed record is none; says what of it is wrong."""


def key_bytes(kind: int, data: Any) -> bytes:
    """The bytes of a printed key.

    Args:
        kind: record type, 0 or 1.
        data: object with groupId, topicId and partition.
    Raises:
        StateTextError: if a field is missing or has a value that it cannot have.
    Source: Kafka ShareSnapshotKey, ShareUpdateKey and their JSON converters.
    """
    found = _object(data, "the key's data")
    group, topic, partition = (_field(found, name) for name in ("groupId", "topicId", "partition"))
    if not isinstance(group, str) or not isinstance(topic, str) or type(partition) is not int:
        raise StateTextError("groupId, topicId or partition of the key is of a wrong type")
    return _key(kind, group, topic, partition)


@lru_cache(maxsize=1 << 16)
def _key(kind: int, group: str, topic: str, partition: int) -> bytes:
    try:
        name, uuid = group.encode(), base64.b64decode(f"{topic}==", altchars=b"-_", validate=True)
        if len(uuid) != 16:
            raise ValueError(topic)
        return struct.pack(">hh", kind, len(name)) + name + uuid + struct.pack(">i", partition)
    except (ValueError, struct.error):
        raise StateTextError(f"the key {group[:40]!r}, {topic[:40]!r}, {partition} cannot be one") from None


def value_bytes(kind: int, data: Any, *, early: bool) -> bytes:
    """The bytes of a printed value of version 0.

    Args:
        kind: record type, 0 or 1.
        data: object with the fields of a ShareSnapshotValue or ShareUpdateValue.
        early: whether it was printed from the layout of 4.0.
    Raises:
        StateTextError: if a field is missing or has a value that it cannot have.
    Source: Kafka ShareSnapshotValue, ShareUpdateValue and their JSON converters.
    """
    found = _object(data, "the value's data")
    batches, complete = _field(found, "stateBatches"), found.get("deliveryCompleteCount", _UNKNOWN_COUNT)
    numbers = [_field(found, name) for name in _FIELDS[kind, early]]
    if not isinstance(batches, list):
        raise StateTextError("stateBatches is no list")
    try:
        ranges = [tuple([batch[name] for name in _BATCH_FIELDS]) for batch in batches]
        if not {type(number) for one in (numbers, [complete], *ranges) for number in one} <= {int}:
            raise StateTextError("a field of the value is no whole number")
        head = _HEADS[kind, early].pack(0, *numbers)
        body = b"".join([_BATCH.pack(*one, 0) for one in ranges])
        tags = _NO_TAGS if early or complete == _UNKNOWN_COUNT else _COUNT_TAG + struct.pack(">i", complete)
    except (KeyError, TypeError):
        raise StateTextError(f"a state batch lacks one of {', '.join(_BATCH_FIELDS)}") from None
    except struct.error as error:
        raise StateTextError(f"a number of the value does not fit its field ({error})") from None
    return head + _uvarint(len(batches) + 1) + body + tags


def record_kind(printed: Any, names: tuple[str, ...] = ("type", "version")) -> int:
    """The record type that a printed key names: a number, or a number as text; under `version` in 4.0.

    Raises:
        StateTextError: if it names none.
    """
    found = _object(printed, "the key")
    for name in names:
        if name in found:
            kind = found[name]
            if str(kind) in ("0", "1") and type(kind) is not bool:
                return int(kind)
            raise StateTextError(f"{name} {str(kind)[:40]} of the key is neither 0 nor 1")
    raise StateTextError("the key names no type")


def _object(printed: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(printed, dict):
        raise StateTextError(f"{what} is no object")
    return printed


def _field(found: Mapping[str, Any], name: str) -> Any:
    if name not in found:
        raise StateTextError(f"no field {name}")
    return found[name]


def _uvarint(number: int) -> bytes:
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


class Gathered:
    """Records one after the other, until there are enough for a chunk."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._rows: list[tuple[int, int, int, int, int, int, int]] = []
        self.size = 0

    def __len__(self) -> int:
        """How many records there are."""
        return len(self._rows)

    def add(self, offset: int, timestamp: int, key: bytes, value: bytes | None, batch: int) -> None:
        """One more record of the batch in row `batch`."""
        key_at, value_at = self.size, self.size + len(key)
        size = -1 if value is None else len(value)
        self._rows.append((offset, timestamp, key_at, value_at, len(key), size, batch))
        self._parts.append(key)
        if value is not None:
            self._parts.append(value)
        self.size = value_at + max(size, 0)

    def taken(self) -> tuple[np.ndarray, np.ndarray]:
        """The bytes and the RECORD rows so far; begins anew."""
        data, records = np.frombuffer(b"".join(self._parts), np.uint8), np.array(self._rows, RECORD)
        self._parts, self._rows, self.size = [], [], 0
        return data, records


_CAPITAL = re.compile(r"(?=[A-Z])")
_READ_TYPES = frozenset(GroupRecordType)
_OF_MEMBERS = {"subscription": "consumer_protocol_subscription", "assignment": "consumer_protocol_assignment"}


def record_bytes(key: Any, value: Any) -> tuple[bytes, bytes | None]:
    """The bytes of a printed record.

    Args:
        key: object with `type` (of 4.0: `version`) and `data`.
        value: object with `version` (of 4.0: `type`) and `data`; None for a tombstone.
    Returns:
        Key and value. Of a record about committed offsets, or inside a group that is known by id only, the type alone.
    Raises:
        StateTextError: if a field is missing, or has a value that it cannot have.
    Source: Kafka CoordinatorRecordJsonConverters, OffsetsMessageParser, ShareGroupMessageFormatter.
    """
    record_type = _number(key, ("type", "version"), "the key")
    if record_type in FOREIGN_TYPES or record_type not in _READ_TYPES:
        return record_type.to_bytes(2, "big", signed=True), None
    name = record_name(record_type)
    # Kafka calls the group of a classic group's key `group`, and that of every other key `groupId`.
    named = {"groupId" if called == "group" else called: told for called, told in _data(key, "the key").items()}
    written = _written(f"{name}_key", named)
    if value is None:
        return written, None
    version = _number(value, ("version", "type"), "the value")
    return written, _written(f"{name}_value", _data(value, "the value"), version)


def _number(printed: Any, names: Sequence[str], what: str) -> int:
    found = printed if isinstance(printed, dict) else {}
    text = str(next((found[name] for name in names if name in found), ""))
    if not re.fullmatch(r"-?\d{1,5}", text) or not -(2**15) <= int(text) < 2**15:
        raise StateTextError(f"{what} names no {names[0]}")
    return int(text)


def _data(printed: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    if not isinstance(printed.get("data"), dict):
        raise StateTextError(f"{what} has no data")
    return printed["data"]


def _written(name: str, data: Any, version: int | None = None) -> bytes:
    """The bytes of a printed struct, of a version that is told or of the latest one whose fields are all there."""
    if not isinstance(data, dict):
        raise StateTextError(f"{name} is no object")
    layouts = [one for one in record(name).layouts if version in (None, one.version)]
    if not layouts:
        raise StateTextError(f"{record(name).name}: version {version} is not known")
    shapes = [layout(name, one.releases) for one in reversed(layouts)]
    fitting = (shape for shape in shapes if _names(shape.fields) <= data.keys())
    shape = next(fitting, shapes[0])
    try:
        return encode(shape, _fields(shape.fields, data))
    except CodecError as error:
        raise StateTextError(str(error)) from None


def _fields(declared: Sequence[WireField], data: Any) -> dict[str, Any]:
    """Printed fields under the names and in the types that the codec takes."""
    if not isinstance(data, dict):
        raise StateTextError("a struct is no object")
    kinds = {field.name: field for field in declared}
    return {
        name: _value(kinds.get(name), printed)
        for name, printed in ((_snake(called), printed) for called, printed in data.items())
    }


def _value(field: WireField | None, printed: Any) -> Any:
    if field is None:
        return printed
    if field.is_array:
        if not isinstance(printed, list):
            raise StateTextError(f"{field.name} is no list")
        return [_fields(field.fields, one) if field.fields else one for one in printed]
    if "bytes" in field.type and printed is not None:
        return _bytes(field.name, printed)
    return printed


def _bytes(name: str, printed: Any) -> bytes:
    """Bytes, printed as base64; what a member of a classic group says is printed as the object that it is."""
    if isinstance(printed, dict) and name in _OF_MEMBERS:
        return _written(_OF_MEMBERS[name], printed)
    try:
        return base64.b64decode(str(printed), validate=True)
    except ValueError:
        raise StateTextError(f"{name} is not base64") from None


def _names(declared: Sequence[WireField]) -> set[str]:
    """What the tools print of a layout in any case: a tagged field is left out where it has its default."""
    words = (field.name.split("_") for field in declared if field.tag is None)
    return {first + "".join(word.capitalize() for word in more) for first, *more in words}


@lru_cache(maxsize=1 << 10)
def _snake(called: str) -> str:
    return _CAPITAL.sub("_", called).lower()
