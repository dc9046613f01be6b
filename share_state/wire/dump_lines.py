"""The lines that kafka-dump-log prints with --share-group-state-decoder or --offsets-decoder, one by one."""

import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from share_state.wire.framing import BATCH, CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, Trust
from share_state.wire.share_group_state import Fault
from share_state.wire.state_text import StateTextError, key_bytes, record_kind, value_bytes

_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_APPENDED = "LogAppendTime:"
_STAMPS = (_APPENDED, "CreateTime:", "NoTimestampType:")
_NUMBERS = {"base_offset": "baseOffset:", "last_offset": "lastOffset:", "count": "count:", "producer_id": "producerId:",
            "leader_epoch": "partitionLeaderEpoch:", "file_position": "position:", "size": "size:", "magic": "magic:",
            "crc": "crc:"}  # fmt: skip
_FLAGS = ("isTransactional:", "isControl:", "isvalid:")
_FITTING = struct.Struct("<" + "".join(BATCH[name].char for name in (*_NUMBERS, "max_timestamp")).replace("l", "q"))
_STAMP = struct.Struct("<q")
"""Both refuse a number that its field cannot hold."""
_KEY_FOLLOWS, _PAYLOAD, _DELETE = "] key: ", " payload: ", "<DELETE>"
_UNKNOWN_TYPE = re.compile(r"Unknown record type (-?\d+) at offset \d+, skipping\.")
_ERROR = re.compile(r"Error at offset \d+, skipping\. ?(.*)", re.DOTALL)
_UNKNOWN_VERSION = re.compile(r"unknown record version (-?\d+) for -?\d+ type")
_INT16 = range(-(2**15), 2**15)

ReadRecord = Callable[[Any, Any], tuple[bytes, bytes | None]]
"""Key and value of a record as they are printed -> their bytes; raises StateTextError."""

_DECODE = json.JSONDecoder().raw_decode


class DumpedRecord(NamedTuple):
    """A record line.

    Attributes:
        offset, timestamp: of the record; the stamp in ms.
        key: its bytes; none where the tool could not read the key or the value.
        value: its bytes, None for null.
        fault: (Fault, value version) where the tool says what it could not read.
    """

    offset: int
    timestamp: int
    key: bytes = b""
    value: bytes | None = None
    fault: tuple[int, int] | None = None


@dataclass(slots=True)
class DumpedBatch:
    """A batch line, its fields called as in BATCH; its place in bytes is that in the dumped segment."""

    segment: int
    trust: int
    file_position: int
    size: int
    base_offset: int = -1
    last_offset: int = -1
    max_timestamp: int = 0
    producer_id: int = 0
    count: int = 0
    leader_epoch: int = 0
    crc: int = 0
    magic: int = -1
    attributes: int = 0

    @property
    def holds_data(self) -> bool:
        """Whether its records count, as it can be trusted and is no control batch."""
        return self.trust == Trust.WHOLE and not self.attributes & CONTROL


def batch_rows(batches: Sequence[DumpedBatch]) -> np.ndarray:
    """BATCH rows of batch lines."""
    rows = np.zeros(len(batches), BATCH)
    for field in fields(DumpedBatch):
        rows[field.name] = [getattr(batch, field.name) for batch in batches]
    rows["base_timestamp"] = rows["max_timestamp"]
    return rows


def dumped_batch(line: str, segment: int) -> DumpedBatch:
    """What a header line says.

    Args:
        line: begins with `baseOffset: `.
        segment: number of the file.
    Raises:
        StateTextError: if something is missing or no number that its field can hold.
    Source: Kafka DumpLogSegments.printBatchLevel.
    """
    words = line.split(" ")
    told = dict(zip(words[::2], words[1::2], strict=False))
    stamp = next((name for name in _STAMPS if name in told), _STAMPS[0])
    try:
        numbers = {ours: int(told[name]) for ours, name in _NUMBERS.items()} | {"max_timestamp": int(told[stamp])}
        _FITTING.pack(*numbers.values())
        codec = _CODECS[told["compresscodec:"].lower()]
        transactional, control, is_valid = (told[name] == "true" for name in _FLAGS)
    except (KeyError, ValueError, struct.error) as error:
        what = str(error.args[0]).removesuffix(":") if error.args else "field"
        raise StateTextError(f"a batch line without a right {what}") from None
    appended = stamp == _APPENDED
    return DumpedBatch(
        segment=segment,
        trust=(Trust.WHOLE if is_valid else Trust.CRC_MISMATCH) if numbers["magic"] == 2 else Trust.MAGIC_UNSUPPORTED,
        attributes=codec | transactional * TRANSACTIONAL | control * CONTROL | appended * LOG_APPEND_TIME,
        **numbers,
    )


def dumped_record(line: str, read: ReadRecord) -> DumpedRecord:
    """What a record line of a data batch says.

    A group id may hold ` payload: `, so the key is read as JSON before the value is looked for.

    Args:
        line: begins with `| offset: `.
        read: makes bytes of the printed key and payload, which is null for a tombstone.
    Raises:
        StateTextError: if something is missing or cannot be.
    Source: Kafka DumpLogSegments.dumpLog, CoordinatorRecordMessageParser.
    """
    front, key_follows, rest = line.partition(_KEY_FOLLOWS)
    words = front.split(" ")
    try:
        told = dict(zip(words[1:9:2], (int(word) for word in words[2:10:2]), strict=True))
        offset = told["offset:"]
        stamp = next(told[name] for name in _STAMPS if name in told)
        _STAMP.pack(stamp)
    except (KeyError, ValueError, StopIteration, struct.error):
        raise StateTextError("a record line without offset, time or sizes") from None
    if not key_follows:
        raise StateTextError("a record line without key; dump with --share-group-state-decoder or --offsets-decoder")
    if not rest.startswith("{"):
        return _told_unreadable(rest, offset, stamp)
    key, end = _json(rest, 0)
    if not rest.startswith(_PAYLOAD, end):
        raise StateTextError("no payload after the key")
    at = end + len(_PAYLOAD)
    if rest[at:] == _DELETE:
        return DumpedRecord(offset, stamp, *read(key, None))
    value, end = _json(rest, at)
    if end != len(rest) or not isinstance(value, dict):
        raise StateTextError("the payload is no JSON object")
    return DumpedRecord(offset, stamp, *read(key, value))


def state_record(key: Any, value: Any) -> tuple[bytes, bytes | None]:
    """The bytes of a printed record of the state topic: a `ReadRecord`."""
    kind = record_kind(key)
    written = key_bytes(kind, key.get("data"))
    if value is None:
        return written, None
    # The tool of 4.0 calls the version of a value its type, and reads its own layout only.
    early = "version" not in value
    if str(value.get("type" if early else "version")) != "0":
        raise StateTextError("the payload is not of version 0")
    return written, value_bytes(kind, value.get("data"), early=early)


def _told_unreadable(said: str, offset: int, stamp: int) -> DumpedRecord:
    """A record that the tool could not read: a newer type keeps its number, of others only the flaw is known."""
    if (unknown := _UNKNOWN_TYPE.match(said)) and int(unknown[1]) in _INT16:
        return DumpedRecord(offset, stamp, int(unknown[1]).to_bytes(2, "big", signed=True))
    failed = _ERROR.match(said)
    if failed is None:
        raise StateTextError("the key is neither JSON nor one of the tool's messages")
    if version := _UNKNOWN_VERSION.search(failed[1]):
        return DumpedRecord(offset, stamp, fault=(Fault.VALUE_VERSION, int(version[1])))
    of_key = "key's buffer" in failed[1]
    return DumpedRecord(offset, stamp, fault=(Fault.KEY_MALFORMED if of_key else Fault.VALUE_MALFORMED, 0))


def _json(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODE(text, at)
    except (ValueError, RecursionError):
        raise StateTextError("not JSON; the line may be cut") from None
