"""Records inside whole batches: where each key and value lies, its offset and time. What they mean is for others."""

import numpy as np

from share_state.wire.bigendian import varint, varlong
from share_state.wire.compiled import inlined, kernel
from share_state.wire.framing import CONTROL, LOG_APPEND_TIME, Trust

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
