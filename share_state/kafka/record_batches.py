"""Where record batches begin and end, and whether each can be trusted: headers and CRC-32C of format v2.

Records inside whole batches: where each key and value lies, its offset and time. What they mean is for others.

What is true of all batches of a chunk, looked up once: most chunks hold nothing but whole, plain batches.

A stretch of a log partition in memory: its bytes, and where the batches in them are.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from share_state.jit.compile import inlined, kernel
from share_state.kafka.primitives import crc32c, int16_at, int32_at, int64_at, varint, varlong

HEADER = 61
"""Bytes of a batch header; the records follow. Source: Kafka DefaultRecordBatch.RECORD_BATCH_OVERHEAD."""

_LOG_OVERHEAD = 12
_CRC_FROM = 21

_KNOWN_ATTRIBUTES = 0x7F
_PATIENCE = 16

CODEC_BITS = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class Trust(IntEnum):
    """What is wrong with a batch; WHOLE is nothing."""

    WHOLE = 0
    CRC_MISMATCH = 1
    MAGIC_UNSUPPORTED = 2
    MALFORMED = 3
    TORN = 4
    CONFLICT = 5  # whole, but another copy of the log holds other bytes under its offsets


class Stop(IntEnum):
    """Why framing ended: all bytes used, more of the file is needed, nothing after here can be framed, or enough."""

    DONE = 0
    NEED_MORE = 1
    ZEROS = 2
    BROKEN = 3
    ENOUGH = 4


BATCH = np.dtype(
    [
        ("at", "i8"),  # position of the header in the chunk's bytes
        ("size", "i8"),  # bytes, header included, as the header claims
        (
            "body",
            "i8",
        ),  # position of the records in the chunk's bytes (behind the raw bytes where they were compressed)
        ("body_end", "i8"),
        ("file_position", "i8"),
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("base_timestamp", "i8"),
        ("max_timestamp", "i8"),
        ("producer_id", "i8"),
        ("count", "i4"),
        ("leader_epoch", "i4"),
        ("crc", "u4"),
        ("segment", "i4"),
        ("attributes", "i2"),
        ("magic", "i1"),
        ("trust", "i1"),
    ]
)
"""One row a batch of a chunk."""


@kernel
def frame(data, start, end, at_file_end, file_position, segment, table, rows, enough):
    """Walk the batches of one stretch of one segment.

    Args:
        data: uint8 bytes of the chunk.
        start, end: the stretch, as positions in `data`.
        at_file_end: whether the file ends where the stretch ends.
        file_position: position in the file of `data[start]`.
        segment: number of the segment, copied into each row.
        table: BATCH rows to fill; a full one stops the walk as ENOUGH.
        rows: how many rows of `table` are in use.
        enough: position in `data`; where a batch ends there or behind it, but before `end`, the walk stops as ENOUGH.
    Returns:
        (rows in use, position where it stopped, Stop). On BROKEN the last row says what is wrong there; on ZEROS the
        rest of the stretch is zero bytes, as a preallocated file ends.
    Source: Kafka DefaultRecordBatch, ByteBufferLogInputStream, FileLogInputStream.
    """
    at = start
    while at < end:
        if rows == len(table) or at >= enough:
            return rows, at, Stop.ENOUGH
        left = end - at
        if left < _CRC_FROM:
            if not at_file_end:
                return rows, at, Stop.NEED_MORE
            if _all_zero(data, at, end):
                return rows, at, Stop.ZEROS
            _row(table, rows, data, at, left, file_position + at - start, segment, Trust.TORN)
            return rows + 1, at, Stop.BROKEN
        length = np.int64(int32_at(data, at + 8))
        magic = np.int8(data[at + 16])
        size = length + _LOG_OVERHEAD
        if length == 0 and int64_at(data, at) == 0 and _all_zero(data, at, end):
            return rows, at, Stop.ZEROS
        if length < HEADER - _LOG_OVERHEAD and (magic >= 2 or length < 14):
            _row(table, rows, data, at, left, file_position + at - start, segment, Trust.MALFORMED)
            return rows + 1, at, Stop.BROKEN
        if size > left:
            if not at_file_end:
                return rows, at, Stop.NEED_MORE
            _row(table, rows, data, at, left, file_position + at - start, segment, Trust.TORN)
            return rows + 1, at, Stop.BROKEN
        trust = Trust.WHOLE
        if magic != 2:
            trust = Trust.MAGIC_UNSUPPORTED
        elif crc32c(data[at + _CRC_FROM :].ctypes, size - _CRC_FROM) != np.uint32(int32_at(data, at + 17)):
            trust = Trust.CRC_MISMATCH
        elif _header_lies(data, at, size):
            trust = Trust.MALFORMED
        if trust == Trust.CRC_MISMATCH or trust == Trust.MAGIC_UNSUPPORTED:
            # The length is outside the CRC: believe it only if a batch (or the file's end) follows where it says.
            follows = at + size
            if end - follows < _CRC_FROM and not at_file_end:
                return rows, at, Stop.NEED_MORE
            if not _may_follow(data, follows, end, int64_at(data, at)):
                broken = trust if trust == Trust.MAGIC_UNSUPPORTED else Trust.MALFORMED
                _row(table, rows, data, at, left, file_position + at - start, segment, broken)
                return rows + 1, at, Stop.BROKEN
        _row(table, rows, data, at, size, file_position + at - start, segment, trust)
        rows += 1
        at += size
    return rows, at, Stop.DONE


@kernel
def _header_lies(data, at, size):
    count = np.int64(int32_at(data, at + 57))
    base_offset = int64_at(data, at)
    last_delta = np.int64(int32_at(data, at + 23))
    return base_offset < 0 or last_delta < 0 or base_offset > np.int64(2**63 - 2) - last_delta or count < 0


@kernel
def _may_follow(data, at, end, base_offset):
    if at == end:
        return True
    if end - at < _CRC_FROM or _all_zero(data, at, at + _CRC_FROM):
        return True
    length, magic = int32_at(data, at + 8), data[at + 16]
    # The rest of a header may be known or not; as far as it is, it must look like one.
    strange = magic == 2 and end - at >= _CRC_FROM + 2 and (data[at + 21] != 0 or data[at + 22] > _KNOWN_ATTRIBUTES)
    following = int64_at(data, at) - max(base_offset, 0)
    return magic <= 2 and length >= (49 if magic == 2 else 14) and 0 <= following <= 2**31 and not strange


@kernel
def _all_zero(data, at, end):
    while at < end:
        if data[at] != 0:
            return False
        at += 1
    return True


@inlined
def _row(table, row, data, at, size, file_position, segment, trust):
    batch = table[row]
    batch.at = at
    batch.size = size
    batch.file_position = file_position
    batch.segment = segment
    batch.trust = np.int8(trust)
    batch.body_end = at + size
    if size < HEADER:
        _cut_header(batch, data, at, size)
        return
    batch.body = at + HEADER
    batch.base_offset = int64_at(data, at)
    batch.leader_epoch = int32_at(data, at + 12)
    batch.magic = np.int8(data[at + 16])
    batch.crc = np.uint32(int32_at(data, at + 17))
    batch.attributes = int16_at(data, at + 21)
    batch.last_offset = batch.base_offset + np.int64(int32_at(data, at + 23))
    batch.base_timestamp = int64_at(data, at + 27)
    batch.max_timestamp = int64_at(data, at + 35)
    batch.producer_id = int64_at(data, at + 43)
    batch.count = int32_at(data, at + 57)


@kernel
def _cut_header(batch, data, at, size):
    """Fill a row as far as the bytes go."""
    batch.body = at + size
    batch.base_offset = batch.last_offset = int64_at(data, at) if size >= 8 else -1
    batch.leader_epoch = int32_at(data, at + 12) if size >= 16 else -1
    batch.magic = np.int8(data[at + 16]) if size > 16 else -1
    batch.crc = np.uint32(int32_at(data, at + 17)) if size >= 21 else 0
    batch.attributes = batch.count = 0
    batch.base_timestamp = batch.max_timestamp = batch.producer_id = -1


@kernel
def is_continuous(batches, expected):
    """True where every batch is WHOLE and begins where the one before it ended, the first at offset `expected`."""
    for row in range(len(batches)):
        if batches[row].trust != Trust.WHOLE or batches[row].base_offset != expected:
            return False
        expected = batches[row].last_offset + 1
    return True


@kernel
def next_whole_batch(data, start, end):
    """Position of the first batch in [start, end) with a right CRC, or -1.

    Used only behind bytes that cannot be framed: a length that lies hides the batches after it, and they still count.
    """
    patience = _PATIENCE * (end - start)
    for at in range(start, end - HEADER + 1):
        if data[at + 16] != 2 or data[at + 21] != 0 or data[at + 22] > _KNOWN_ATTRIBUTES:
            continue
        size = np.int64(int32_at(data, at + 8)) + _LOG_OVERHEAD
        if size < HEADER or size > end - at or _header_lies(data, at, size):
            continue
        if crc32c(data[at + _CRC_FROM :].ctypes, size - _CRC_FROM) == np.uint32(int32_at(data, at + 17)):
            return at
        # Bytes made to look like one header after the other must not cost a CRC of everything behind each.
        patience -= size
        if patience < 0:
            return -1
    return -1


SMALLEST_RECORD = 7
"""Bytes of a record whose every length is one byte."""

RECORD = np.dtype(
    [
        ("offset", "i8"),
        ("timestamp", "i8"),  # ms since the epoch; the append time where the topic says so
        ("key_at", "i8"),  # position in the chunk's bytes
        ("value_at", "i8"),
        ("key_size", "i4"),  # bytes; -1 is null
        ("value_size", "i4"),
        ("batch", "i4"),  # row of the batch
    ]
)
"""One row a record of a chunk, in log order."""


def locate_records(data: np.ndarray, batches: np.ndarray, *, control: bool = False) -> np.ndarray:
    """Find the records of every whole batch.

    A batch whose records do not fit its header exactly is marked MALFORMED as a whole, as the broker would refuse it.

    Args:
        data: uint8 bytes of a chunk.
        batches: BATCH rows; `trust` is lowered in place.
        control: the records of control batches instead of those of data batches.
    Returns:
        RECORD rows.
    Source: Kafka DefaultRecord.readFrom, DefaultRecordBatch.iterator.
    """
    return located_records(data, batches, control=control)[0]


def located_records(data: np.ndarray, batches: np.ndarray, *, control: bool = False) -> tuple[np.ndarray, bool]:
    """As `locate_records`, and whether the `trust` of any batch was lowered."""
    records = np.empty(_room(batches, control), RECORD)
    found, lowered = _locate(data, batches, control, records)
    return records[:found], lowered


@inlined
def _is_wanted(batch, control):
    return batch.trust == Trust.WHOLE and (batch.attributes & CONTROL != 0) == control


@kernel
def _room(batches, control):
    """No more records than this can be in the batches, whatever their headers claim."""
    room = np.int64(0)
    for row in range(len(batches)):
        batch = batches[row]
        if _is_wanted(batch, control):
            room += min(np.int64(batch.count), (batch.body_end - batch.body) // SMALLEST_RECORD)
    return room


@kernel
def _locate(data, batches, control, records):
    found, lowered = 0, False
    for row in range(len(batches)):
        batch = batches[row]
        if not _is_wanted(batch, control):
            continue
        located = _locate_in_batch(data, batch, row, records, found)
        if located < 0:
            batch.trust = np.int8(Trust.MALFORMED)
            lowered = True
        else:
            found = located
    return found, lowered


@kernel
def _locate_in_batch(data, batch, row, records, found):
    at, end = batch.body, batch.body_end
    if batch.count > (end - at) // SMALLEST_RECORD:
        return -1
    appended = batch.attributes & LOG_APPEND_TIME != 0
    earlier = np.int64(-1)
    for _ in range(batch.count):
        size, at = varint(data, at, end)
        if at < 0 or size < SMALLEST_RECORD - 1 or size > end - at:
            return -1
        stop = at + size
        time_delta, at = varlong(data, at + 1, stop)
        if at < 0:
            return -1
        offset_delta, at = varint(data, at, stop)
        if at < 0 or offset_delta <= earlier or offset_delta > batch.last_offset - batch.base_offset:
            return -1
        earlier = offset_delta
        record = records[found]
        record.offset = batch.base_offset + offset_delta
        record.timestamp = batch.max_timestamp if appended else batch.base_timestamp + time_delta
        record.batch = row
        size, at = varint(data, at, stop)
        if at < 0 or size < -1 or size > stop - at:
            return -1
        record.key_at, record.key_size = at, size
        at += max(size, 0)
        size, at = varint(data, at, stop)
        if at < 0 or size < -1 or size > stop - at:
            return -1
        record.value_at, record.value_size = at, size
        at = _after_headers(data, at + max(size, 0), stop)
        if at != stop:
            return -1
        found += 1
    return found if at == end else -1


@kernel
def _after_headers(data, at, stop):
    if at < stop and data[at] == 0:
        return at + 1
    headers, at = varint(data, at, stop)
    if at < 0 or headers < 0:
        return -1
    for _ in range(headers):
        size, at = varint(data, at, stop)
        if at < 0 or size < 0 or size > stop - at:
            return -1
        size, at = varint(data, at + size, stop)
        if at < 0 or size < -1 or size > stop - at:
            return -1
        at += max(size, 0)
    return at


class BatchFacts(NamedTuple):
    """About BATCH rows.

    Attributes:
        rows: how many there are.
        whole: those with trust WHOLE; what follows is told of them alone.
        last: the last of them, -1 for none.
        attributes: every bit that one of them has.
        least_last_offset, greatest_base_offset: over them, 2^63 - 1 and -1 for none.
        newest_time: ms, the latest of their latest stamps, -1 at least.
    """

    rows: int
    whole: int
    last: int
    attributes: int
    least_last_offset: int
    greatest_base_offset: int
    newest_time: int

    @property
    def all_whole(self) -> bool:
        """Whether there is no other row."""
        return self.whole == self.rows


def facts_of(batches: np.ndarray) -> BatchFacts:
    """The facts of BATCH rows."""
    return BatchFacts(len(batches), *_look_over(batches))


@kernel
def _look_over(batches):
    whole, last, attributes = np.int64(0), np.int64(-1), np.int16(0)
    least_last, greatest_base, newest = np.int64(2**63 - 1), np.int64(-1), np.int64(-1)
    for row in range(len(batches)):
        batch = batches[row]
        if batch.trust == Trust.WHOLE:
            whole += 1
            last = row
            attributes |= batch.attributes
            least_last = min(least_last, batch.last_offset)
            greatest_base = max(greatest_base, batch.base_offset)
            newest = max(newest, batch.max_timestamp)
    return whole, last, np.int64(attributes), least_last, greatest_base, newest


CHUNK = 4 << 20
"""Bytes of segments that are in memory at a time; a larger batch grows the chunk to its own size."""


@dataclass(slots=True)
class Chunk:
    """A stretch of a log partition; its arrays hold until the next chunk is asked for.

    Attributes:
        data: uint8; raw segment bytes, or the bodies of batches where any was compressed.
        batches: BATCH rows in offset order; only rows with trust WHOLE may be looked into.
        why: row of `batches` -> why it cannot be trusted, where the row alone does not say it.
        repeated: batches left out because another copy holds the same bytes; told once, by a chunk without batches.
        records: RECORD rows of the whole batches, where the form of the export has told them already.
        faults: offset -> (Fault, value version, 0 for none) of records whose key and value the form hides but whose
            flaw it tells; `records` holds them with neither.
    """

    data: npt.NDArray[np.uint8]
    batches: np.ndarray
    why: dict[int, str] = field(default_factory=dict)
    repeated: int = 0
    records: np.ndarray | None = None
    faults: dict[int, tuple[int, int]] = field(default_factory=dict)
