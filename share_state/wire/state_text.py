"""Records of `__share_group_state` as the stock tools print them, written back to the bytes they were printed from.

What the tools leave out cannot come back: tagged fields and trailing bytes that Kafka ignores.
"""

import base64
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from share_state.wire.records import RECORD

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
