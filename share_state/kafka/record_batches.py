"""Record batches of format v2: their headers and checksums, and the positions of the records inside them.

`frame_batches` splits segment bytes into BATCH rows and checks each batch; `locate_records` finds the key and
the value of each record. A `Chunk` is a part of a log partition in memory.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from share_state.jit.compile import inlined, kernel
from share_state.kafka.primitives import byte_at, crc32c, int16_at, int32_at, int64_at, varint, varlong

HEADER_SIZE = 61
"""Bytes of a batch header. Source: Kafka DefaultRecordBatch.RECORD_BATCH_OVERHEAD."""

_LOG_OVERHEAD = 12
_CRC_FROM = 21

_KNOWN_ATTRIBUTES = 0x7F
_MAX_CHECKSUM_RATIO = 16
"""Bytes checksummed per byte searched before `find_valid_batch` gives up."""

CODEC_BITS = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class BatchStatus(IntEnum):
    """Whether a batch is valid, and if not, why."""

    VALID = 0
    CRC_MISMATCH = 1
    MAGIC_UNSUPPORTED = 2
    MALFORMED = 3
    TRUNCATED = 4
    CONFLICT = 5  # valid, but another replica has different bytes at the same offsets
    UNREADABLE = 7  # no batch where one must be: at the start of a segment, or where an earlier run stopped
    UNREPLICATED = (
        6  # valid, but above the high watermark of one replica and replaced in a later leader epoch
    )


class Stop(IntEnum):
    """Why `frame_batches` stopped."""

    DONE = 0  # at the end of the bytes
    NEED_MORE = 1  # the last batch continues after the bytes
    ZEROS = 2  # only zero bytes follow, as at the end of a preallocated file
    BROKEN = 3  # the bytes are not a batch header
    ENOUGH = 4  # the table is full or enough bytes are framed


BATCH = np.dtype(
    [
        ("at", "i8"),  # position of the header in the chunk's bytes
        ("size", "i8"),  # bytes including the header, from the length field
        ("body", "i8"),  # position of the records in the chunk's bytes
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
        (("status", "i1")),
    ]
)
"""One row per batch of a chunk."""


@kernel
def frame_batches(data, start, end, at_file_end, file_position, segment, table, rows, enough):
    """Split bytes of one segment into batches and check each of them.

    Args:
        data: uint8 bytes of the chunk.
        start, end: positions in `data` of the bytes to split.
        at_file_end: whether the file ends at `end`.
        file_position: position in the file of `data[start]`.
        segment: number of the segment, copied into each row.
        table: BATCH rows to fill.
        rows: how many rows of `table` are in use.
        enough: position in `data`; stop after the first batch that ends at or after it, but before `end`.
    Returns:
        (rows in use, position where it stopped, Stop). With BROKEN, the status of the last row is the reason.
    Source: Kafka DefaultRecordBatch, ByteBufferLogInputStream, FileLogInputStream.
    """
    position = start
    while position < end:
        if rows == len(table) or position >= enough:
            return rows, position, Stop.ENOUGH
        remaining = end - position
        in_file = file_position + position - start
        if remaining < _CRC_FROM:
            if not at_file_end:
                return rows, position, Stop.NEED_MORE
            # In a batch, too, the bytes before its length may all be zero.
            if remaining >= _LOG_OVERHEAD and _all_zero(data, position, end):
                return rows, position, Stop.ZEROS
            _broken_row(table, rows, data, position, remaining, in_file, segment, BatchStatus.TRUNCATED)
            return rows + 1, position, Stop.BROKEN
        length = np.int64(int32_at(data, position + 8))
        magic = np.int8(byte_at(data, position + 16))
        size = length + _LOG_OVERHEAD
        if length == 0 and int64_at(data, position) == 0 and _all_zero(data, position, end):
            return rows, position, Stop.ZEROS
        if length < HEADER_SIZE - _LOG_OVERHEAD and (magic >= 2 or length < 14):
            _broken_row(table, rows, data, position, remaining, in_file, segment, BatchStatus.MALFORMED)
            return rows + 1, position, Stop.BROKEN
        if size > remaining:
            if not at_file_end:
                return rows, position, Stop.NEED_MORE
            _broken_row(table, rows, data, position, remaining, in_file, segment, BatchStatus.TRUNCATED)
            return rows + 1, position, Stop.BROKEN
        status = BatchStatus.VALID
        if magic != 2:
            status = BatchStatus.MAGIC_UNSUPPORTED
        elif crc32c(data[position + _CRC_FROM :].ctypes, size - _CRC_FROM) != np.uint32(
            int32_at(data, position + 17)
        ):
            status = BatchStatus.CRC_MISMATCH
        elif _is_inconsistent(data, position, size):
            status = BatchStatus.MALFORMED
        if status == BatchStatus.CRC_MISMATCH or status == BatchStatus.MAGIC_UNSUPPORTED:
            # The CRC does not cover the length: accept it only if a batch or the end of the file follows.
            follows = position + size
            if end - follows < _CRC_FROM and not at_file_end:
                return rows, position, Stop.NEED_MORE
            if not _may_follow(data, follows, end, int64_at(data, position)):
                broken = status if status == BatchStatus.MAGIC_UNSUPPORTED else BatchStatus.MALFORMED
                _broken_row(table, rows, data, position, remaining, in_file, segment, broken)
                return rows + 1, position, Stop.BROKEN
        _row(table, rows, data, position, size, in_file, segment, status)
        rows += 1
        position += size
    return rows, position, Stop.DONE


@kernel
def _is_inconsistent(data, at, size):
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
    # The bytes may end inside the next header.
    unlikely = (
        magic == 2 and end - at >= _CRC_FROM + 2 and (data[at + 21] != 0 or data[at + 22] > _KNOWN_ATTRIBUTES)
    )
    following = int64_at(data, at) - max(base_offset, 0)
    return magic <= 2 and length >= (49 if magic == 2 else 14) and 0 <= following <= 2**31 and not unlikely


@kernel
def _all_zero(data, at, end):
    while at < end:
        if data[at] != 0:
            return False
        at += 1
    return True


@kernel
def _broken_row(table, row, data, position, size, file_position, segment, status):
    """`_row` for the last row of a segment: inlined in each place, it would double the time to compile."""
    _row(table, row, data, position, size, file_position, segment, status)


@inlined
def _row(table, row, data, position, size, file_position, segment, status):
    batch = table[np.uint64(row)]
    batch.at = position
    batch.size = size
    batch.file_position = file_position
    batch.segment = segment
    batch.status = np.int8(status)
    batch.body_end = position + size
    if size < HEADER_SIZE:
        _fill_partial_header(batch, data, position, size)
        return
    batch.body = position + HEADER_SIZE
    base_offset = int64_at(data, position)
    batch.base_offset = base_offset
    batch.leader_epoch = int32_at(data, position + 12)
    batch.magic = np.int8(byte_at(data, position + 16))
    batch.crc = np.uint32(int32_at(data, position + 17))
    batch.attributes = int16_at(data, position + 21)
    batch.last_offset = base_offset + np.int64(int32_at(data, position + 23))
    batch.base_timestamp = int64_at(data, position + 27)
    batch.max_timestamp = int64_at(data, position + 35)
    batch.producer_id = int64_at(data, position + 43)
    batch.count = int32_at(data, position + 57)


@kernel
def _fill_partial_header(batch, data, at, size):
    """Fill a row from a header that is cut off."""
    batch.body = at + size
    batch.base_offset = batch.last_offset = int64_at(data, at) if size >= 8 else -1
    batch.leader_epoch = int32_at(data, at + 12) if size >= 16 else -1
    batch.magic = np.int8(data[at + 16]) if size > 16 else -1
    batch.crc = np.uint32(int32_at(data, at + 17)) if size >= 21 else 0
    batch.attributes = batch.count = 0
    batch.base_timestamp = -1
    batch.max_timestamp = -1
    batch.producer_id = -1


@kernel
def find_valid_batch(data, start, end):
    """Position of the first batch in [start, end) with a correct CRC, or -1.

    Used after bytes that cannot be framed: batches after a wrong length still count.
    """
    budget = _MAX_CHECKSUM_RATIO * (end - start)
    for at in range(start, end - HEADER_SIZE + 1):
        if data[at + 16] != 2 or data[at + 21] != 0 or data[at + 22] > _KNOWN_ATTRIBUTES:
            continue
        size = np.int64(int32_at(data, at + 8)) + _LOG_OVERHEAD
        if size < HEADER_SIZE or size > end - at or _is_inconsistent(data, at, size):
            continue
        if crc32c(data[at + _CRC_FROM :].ctypes, size - _CRC_FROM) == np.uint32(int32_at(data, at + 17)):
            return at
        # Bytes that look like many headers must not cost a long checksum each.
        budget -= size
        if budget < 0:
            return -1
    return -1


_MIN_RECORD_SIZE = 7
"""Bytes of a record without key, value and headers."""

RECORD = np.dtype(
    [
        ("offset", "i8"),
        ("timestamp", "i8"),  # ms since 1970; the append time if the topic uses LogAppendTime
        ("key_at", "i8"),  # position in the chunk's bytes
        ("value_at", "i8"),
        ("key_size", "i4"),  # bytes; -1 is null
        ("value_size", "i4"),
        ("batch", "i4"),  # row of the batch
    ]
)
"""One row per record of a chunk, in log order."""


def locate_records(data: np.ndarray, batches: np.ndarray, *, control: bool = False) -> np.ndarray:
    """The positions of the records in all valid batches.

    A batch whose records do not fit its header exactly becomes MALFORMED: a broker rejects it too.

    Args:
        data: uint8 bytes of a chunk.
        batches: BATCH rows; `status` is updated in place.
        control: locate the records of control batches instead of those of data batches.
    Returns:
        RECORD rows.
    Source: Kafka DefaultRecord.readFrom, DefaultRecordBatch.iterator.
    """
    return locate_and_check_records(data, batches, control=control)[0]


def locate_and_check_records(
    data: np.ndarray, batches: np.ndarray, *, control: bool = False
) -> tuple[np.ndarray, bool]:
    """Like `locate_records`; also returns whether any batch became MALFORMED."""
    records = np.empty(_max_records(batches, control), RECORD)
    count, any_malformed = _locate(data, batches, control, records)
    return records[:count], any_malformed


@inlined
def _is_selected(batch, control):
    return batch.status == BatchStatus.VALID and (batch.attributes & CONTROL != 0) == control


@kernel
def _max_records(batches, control):
    """An upper limit for the number of records, whatever the headers claim."""
    most = np.int64(0)
    for row in range(len(batches)):
        batch = batches[row]
        if _is_selected(batch, control):
            most += min(np.int64(batch.count), (batch.body_end - batch.body) // _MIN_RECORD_SIZE)
    return most


@kernel
def _locate(data, batches, control, records):
    count, any_malformed = 0, False
    for row in range(len(batches)):
        batch = batches[row]
        if not _is_selected(batch, control):
            continue
        located = _locate_in_batch(data, batch, row, records, count)
        if located < 0:
            batch.status = np.int8(BatchStatus.MALFORMED)
            any_malformed = True
        else:
            count = located
    return count, any_malformed


@inlined
def _locate_in_batch(data, batch, row, records, count):
    position, end = batch.body, batch.body_end
    if np.int64(batch.count) * _MIN_RECORD_SIZE > end - position:
        return -1
    base_offset, last_delta = batch.base_offset, batch.last_offset - batch.base_offset
    log_append_time = batch.attributes & LOG_APPEND_TIME != 0
    previous_delta = np.int64(-1)
    for _ in range(batch.count):
        size, position = varint(data, position, end)
        if position < 0 or size < _MIN_RECORD_SIZE - 1 or size > end - position:
            return -1
        stop = position + size
        time_delta, position = varlong(data, position + 1, stop)
        if position < 0:
            return -1
        offset_delta, position = varint(data, position, stop)
        if position < 0 or offset_delta <= previous_delta or offset_delta > last_delta:
            return -1
        previous_delta = offset_delta
        record = records[np.uint64(count)]
        record.offset = base_offset + offset_delta
        record.timestamp = batch.max_timestamp if log_append_time else batch.base_timestamp + time_delta
        record.batch = row
        size, position = varint(data, position, stop)
        if position < 0 or size < -1 or size > stop - position:
            return -1
        record.key_at, record.key_size = position, size
        position += max(size, 0)
        size, position = varint(data, position, stop)
        if position < 0 or size < -1 or size > stop - position:
            return -1
        record.value_at, record.value_size = position, size
        position += max(size, 0)
        position = (
            position + 1
            if position < stop and byte_at(data, position) == 0
            else _after_headers(data, position, stop)
        )
        if position != stop:
            return -1
        count += 1
    return count if position == end else -1


@kernel
def _after_headers(data, at, stop):
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


class BatchSummary(NamedTuple):
    """A summary of BATCH rows; most chunks hold only valid, uncompressed batches and need no further checks.

    Attributes:
        rows: number of rows.
        valid: number of valid batches; the fields below cover only these.
        last: row of the last one, -1 for none.
        attributes: all attribute bits that occur.
        least_last_offset, greatest_base_offset: 2^63 - 1 and -1 for none.
        newest_time: ms, the latest max_timestamp, at least -1.
        is_continuous: whether all rows are valid and each starts at the offset after the previous one.
        is_complete: whether each valid batch has as many records as offsets.
    """

    rows: int
    valid: int
    last: int
    attributes: int
    least_last_offset: int
    greatest_base_offset: int
    newest_time: int
    is_continuous: bool
    is_complete: bool

    @property
    def all_valid(self) -> bool:
        """Whether all rows are valid."""
        return self.valid == self.rows


def summarize_batches(batches: np.ndarray) -> BatchSummary:
    """Summarize BATCH rows."""
    return BatchSummary(len(batches), *_summarize(batches))


@kernel
def _summarize(batches):
    valid = np.int64(0)
    last = np.int64(-1)
    attributes = np.int16(0)
    least_last = np.int64(2**63 - 1)
    greatest_base = np.int64(-1)
    newest = np.int64(-1)
    previous = np.int64(-1)
    gaps = 0
    incomplete = 0
    for row in range(len(batches)):
        batch = batches[row]
        if batch.status == BatchStatus.VALID:
            valid += 1
            last = row
            attributes |= batch.attributes
            least_last = min(least_last, batch.last_offset)
            greatest_base = max(greatest_base, batch.base_offset)
            newest = max(newest, batch.max_timestamp)
            gaps += row > 0 and batch.base_offset != previous + 1
            previous = batch.last_offset
            incomplete += batch.count != batch.last_offset - batch.base_offset + 1
    is_continuous = gaps == 0 and valid == len(batches)
    return (
        valid,
        last,
        np.int64(attributes),
        least_last,
        greatest_base,
        newest,
        is_continuous,
        incomplete == 0,
    )


def missing_offsets(batches: np.ndarray, records: np.ndarray) -> np.ndarray:
    """Offsets inside valid batches that have no record: log compaction removes single records.

    Args:
        batches: BATCH rows.
        records: RECORD rows of all valid batches.
    Returns:
        int64, one row (first offset, offset after the last) per gap, in offset order.
    """
    spans = batches["last_offset"] - batches["base_offset"] + 1
    rows = np.flatnonzero((batches["status"] == BatchStatus.VALID) & (batches["count"] != spans))
    inside = records[np.isin(records["batch"], rows)]
    owner = np.concatenate((rows, inside["batch"], rows))
    bounds = batches["base_offset"][rows] - 1, inside["offset"], batches["last_offset"][rows] + 1
    offsets = np.concatenate(bounds)
    order = np.lexsort((offsets, owner))
    before, after = offsets[order][:-1], offsets[order][1:]
    is_gap = (np.diff(owner[order]) == 0) & (after > before + 1)
    return np.stack((before[is_gap] + 1, after[is_gap]), axis=1)


CHUNK_SIZE = 4 << 20
"""Bytes of segments in memory at a time; the chunk grows if a batch is larger."""


@dataclass(slots=True)
class Chunk:
    """A part of a log partition; its arrays stay valid until the next chunk is read.

    Attributes:
        data: uint8; raw segment bytes, or the decompressed bodies of batches.
        batches: BATCH rows in offset order; only rows of status VALID have records.
        errors: row of `batches` -> why it is MALFORMED, if the row alone does not show it.
        repeated: number of batches skipped because another replica holds the same bytes; set in a chunk
            without batches.
        records: RECORD rows of the valid batches, if the source has located them.
        faults: offset -> (Fault, value version or 0) of records for which the input reports a fault in place
            of key and value; `records` holds them without key and value.
        summary: summary of `batches`, if computed.
        markers: MARKER rows of its control records, if the source has read them.
        transactions: `Transactions` of the log, which needs this module; None if it has none up to this chunk.
    """

    data: npt.NDArray[np.uint8]
    batches: np.ndarray
    errors: dict[int, str] = field(default_factory=dict)
    repeated: int = 0
    records: np.ndarray | None = None
    faults: dict[int, tuple[int, int]] = field(default_factory=dict)
    summary: BatchSummary | None = None
    markers: np.ndarray | None = None
    transactions: Any = None
