"""Decodes records of `__share_group_state` into columns, with compiled kernels.

Both layouts are numbered version 0.

`schemas/records/share_*.yaml` declare the layouts; tests compare this reader with the generic one of
`kafka.codec`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from share_state.jit.compile import inlined, kernel
from share_state.jit.intrinsics import copy_rows
from share_state.kafka.buffers import RecordBuffer, RecordBufferPool
from share_state.kafka.primitives import byte_at, int16_at, int32_at, int64_at, uvarint
from share_state.kafka.share_partition_keys import (
    KeyTable,
    hash_of,
    number_of_hashed,
    prefetch_key,
    prefetch_key_bytes,
    prefetch_slot,
)


class Kind(IntEnum):
    """Kind of a record; SKIPPED records have an unknown type or an unreadable key."""

    SNAPSHOT = 0
    UPDATE = 1
    TOMBSTONE = 2
    SKIPPED = 3


class Layout(IntEnum):
    """Layout of a value; NONE for null and unreadable values."""

    NONE = 0
    EARLY = 1  # 4.0: SnapshotEpoch uint16, no timestamps
    CURRENT = 2  # 4.1 and later


class Fault(IntEnum):
    """Bits: the faults of one record."""

    KEY_MALFORMED = 1  # null, short, or of a negative length: the share-partition is unknown
    KEY_TRAILING = 2  # bytes after the key, which Kafka ignores
    UNKNOWN_TYPE = 4
    VALUE_MALFORMED = 8
    VALUE_TRAILING = 16  # bytes after the value, which Kafka ignores
    VALUE_VERSION = 32
    UPDATE_TOMBSTONE = 64
    INVERTED_RANGE = 128
    UNKNOWN_TAG = 256
    TAG_SIZE = 512  # tag 0 with a size other than 4; Kafka reads 4 bytes anyway
    OVER_LIMIT = 1024  # more batches or tags than Kafka 4.4 accepts


UNREADABLE_FAULTS = Fault.VALUE_MALFORMED | Fault.VALUE_VERSION | Fault.UPDATE_TOMBSTONE
"""Faults of records that are not folded: a broker could not load them either."""

LARGEST_OFFSET = 2**63 - 1
_MAX_BATCHES = 1_000_000
_MAX_TAGS = 10_000
_BLOCK = 64
"""Records whose keys are looked up together."""
_PREFETCH_FROM_SLOTS = 1 << 13
"""Smaller key tables fit into the CPU's cache."""
_MIN_BATCH_SIZE = 20

STATE_RECORD = np.dtype(
    [
        ("offset", "i8"),
        ("timestamp", "i8"),
        ("start_offset", "i8"),
        ("batches", "i8"),  # first row among STATE_BATCH rows
        ("max_offset", "i8"),  # greatest last offset of its batches, at least -1
        ("batch_count", "i4"),
        ("snapshot_epoch", "i4"),
        ("leader_epoch", "i4"),
        ("delivery_complete_count", "i4"),
        ("fault", "i2"),
        ("kind", "i1"),
        ("layout", "i1"),
        # The fold of an update reads only what precedes: it fits into one line of the CPU's cache.
        ("key", "i4"),  # number in the KeyTable; -1 for SKIPPED
        ("state_epoch", "i4"),
        ("create_time", "i8"),  # ms; 0 if not recorded
        ("write_time", "i8"),
        ("batch", "i4"),  # row of its record batch
        ("type", "i2"),
        ("value_version", "i2"),
    ]
)
"""One row per record of `__share_group_state`."""


@inlined
def initializes(row):
    """Whether a snapshot has the content that an initialize request writes (4.1 and later).

    Of a row of STATE_RECORD, in kernels; `initializes.py_func` takes a recarray of them. The state epoch does not
    tell: that of a reset in 4.4 may be the one before.

    Source: Kafka ShareCoordinatorShard.initializeState: leader epoch 0, no batches, one time, no offset
    complete.
    """
    has_no_count = (row.delivery_complete_count == -1) | (
        (row.delivery_complete_count == 0) & (row.start_offset != -1)
    )
    is_blank = (row.leader_epoch == 0) & (row.batch_count == 0) & (row.create_time == row.write_time)
    return (row.layout == Layout.CURRENT) & is_blank & has_no_count


_BLANK = np.zeros(1, STATE_RECORD)
_BLANK["start_offset"] = _BLANK["delivery_complete_count"] = -1
_BLANK["kind"] = Kind.SKIPPED

STATE_BATCH = np.dtype([("first", "i8"), ("last", "i8"), ("count", "i2"), ("state", "i1")], align=True)
"""One row per state batch: offsets first to last inclusive, delivery count, delivery state."""


@dataclass(slots=True)
class StateRecords:
    """Decoded records.

    Attributes:
        rows: STATE_RECORD, in log order.
        batches: STATE_BATCH rows that they refer to.
        faults: all Fault bits that occur in the rows, possibly more.
        layouts: all layouts that occur, possibly more; bit n for Layout n.
        numbers: int32, the field `key` of each row; None if only the rows have it.
        last_snapshot_record: offset of the last readable snapshot or tombstone, -1 for none; valid with
            `numbers`.
    """

    rows: np.ndarray
    batches: np.ndarray
    faults: int = -1
    layouts: int = -1
    # Rows are spread over ten times as many lines of the CPU's cache.
    numbers: np.ndarray | None = None
    last_snapshot_record: int = -1

    def grouping(self) -> tuple[np.ndarray, int]:
        """`numbers` and `last_snapshot_record`, from the rows where they are not known."""
        if self.numbers is not None:
            return self.numbers, self.last_snapshot_record
        rows = self.rows
        is_one = (rows["key"] >= 0) & (rows["kind"] != Kind.UPDATE) & (rows["fault"] & UNREADABLE_FAULTS == 0)
        return rows["key"].copy(), int(rows["offset"][is_one].max(initial=-1))


def _new_buffer() -> RecordBuffer:
    return RecordBuffer(STATE_RECORD, STATE_BATCH)


RECORD_BUFFERS = RecordBufferPool(_new_buffer)
"""Buffers for decoded records."""


def decode_state_records(
    data: np.ndarray, records: np.ndarray, keys: KeyTable, buffer: RecordBuffer | None = None
) -> StateRecords:
    """Decode the records of a chunk.

    A value is read in the layout of 4.1 and later if that consumes it exactly; otherwise in the layout of 4.0
    if that does; otherwise in the later layout, with trailing bytes ignored as Kafka does.

    Args:
        data: uint8 bytes of the chunk.
        records: RECORD rows of the chunk.
        keys: table of the share-partitions; new ones are added.
        buffer: where to append the rows; default: a new buffer.
    Source: Kafka ShareCoordinatorRecordSerde, ShareSnapshotKey/Value, ShareUpdateKey/Value.
    """
    buffer = buffer or _new_buffer()
    done = 0
    faults = 0
    layouts = 0
    rows, batches = buffer.extend(len(records), _bytes_of_values(records) // _MIN_BATCH_SIZE)
    total, numbers = buffer.batch_count, buffer.keys[buffer.row_count - len(records) :]
    block = np.empty(_BLOCK, np.int32), np.empty(_BLOCK, np.uint64)
    while True:
        table = keys.slots, keys.hashes, keys.starts, keys.arena, keys.count
        done, total, some_faults, some_layouts, last_snapshot_record = _decode(
            data, records, done, total, rows, numbers, batches, _BLANK, *table, *block
        )
        buffer.last_snapshot_record = max(buffer.last_snapshot_record, last_snapshot_record)
        faults, layouts = faults | some_faults, layouts | some_layouts
        if done == len(records):
            break
        keys.grow(int(records[done]["key_size"]))
    buffer.batch_count = total
    keys.merge_malformed(numbers)
    if keys.malformed:
        rows["key"] = numbers
    return StateRecords(rows, buffer.batches, faults, layouts, numbers, buffer.last_snapshot_record)


def set_reported_faults(decoded: StateRecords, faults: Mapping[int, tuple[int, int]]) -> None:
    """Set the faults that the input reports in place of keys and values.

    Args:
        decoded: records of a chunk; changed in place.
        faults: offset -> (Fault, value version), as in `Chunk`.
    """
    for offset, (fault, version) in faults.items():
        selected = (decoded.rows["offset"] == offset) & (decoded.rows["fault"] == Fault.KEY_MALFORMED)
        decoded.rows["fault"][selected], decoded.rows["value_version"][selected] = fault, version
        decoded.faults |= fault


@kernel
def _bytes_of_values(records):
    total = np.int64(0)
    for row in range(len(records)):
        total += max(records[row].value_size, 0)
    return total


@kernel
def _decode(
    data,
    records,
    done,
    total,
    rows,
    keys,
    batches,
    blank,
    slots,
    hashes,
    starts,
    arena,
    count,
    numbers,
    hashed,
):
    faults = np.int64(0)
    layouts = np.int64(0)
    last_snapshot_record = np.int64(-1)
    while done < len(records):
        end = min(done + _BLOCK, len(records))
        numbered = _number_keys(
            data, records, done, end, numbers, hashed, slots, hashes, starts, arena, count
        )
        for number in range(np.uint64(done), np.uint64(numbered)):
            record = records[number]
            row = rows[number]
            key = numbers[number - np.uint64(done)]
            keys[number] = key
            copy_rows(blank, 0, rows, number, 1)
            total, fault = _decode_one(data, record, row, key, batches, total)
            row.fault = np.int16(fault)
            faults |= fault
            layouts |= 1 << row.layout
            if key >= 0 and row.kind != Kind.UPDATE and not fault & UNREADABLE_FAULTS:
                last_snapshot_record = row.offset
        done = numbered
        if numbered < end:
            break
    return done, total, faults, layouts, last_snapshot_record


@kernel
def _number_keys(data, records, begin, end, numbers, hashed, slots, hashes, starts, arena, count):
    """Look up the keys of records [begin, end), -1 for none; returns where the key table was full, or `end`."""
    is_large = len(slots) >= _PREFETCH_FROM_SLOTS
    for number in range(end - begin):
        record = records[begin + number]
        named = _key_name_size(data, record.key_at, np.int64(record.key_size))
        numbers[number] = named
        hashed[number] = hash_of(data, record.key_at + 2, named) if named >= 0 else np.uint64(0)
        if is_large:
            prefetch_slot(hashed[number], slots)
    # In a large table each step of a lookup waits for memory, so each step is done for a whole block.
    if is_large:
        for number in range(end - begin):
            prefetch_key(hashed[number], slots, hashes, starts)
        for number in range(end - begin):
            prefetch_key_bytes(hashed[number], slots, starts, arena)
    for number in range(end - begin):
        named = np.int64(numbers[number])
        if named >= 0:
            at = records[begin + number].key_at + 2
            key = number_of_hashed(hashed[number], data, at, named, slots, hashes, starts, arena, count)
            if key < 0:
                return begin + number
            numbers[number] = np.int32(key)
    return end


@inlined
def _key_name_size(data, at, size):
    """Bytes of group, topic id and partition behind the type of a key.

    -1 if it is not a share-partition key.
    """
    if size < 4 or not 0 <= int16_at(data, at) <= 1:
        return np.int64(-1)
    group = np.int64(int16_at(data, at + 2))
    return 22 + group if group >= 0 and size >= 24 + group else np.int64(-1)


@inlined
def _decode_one(data, record, row, key, batches, total):
    """Fill the blank row of a record; returns (rows of `batches` in use, fault bits)."""
    row.offset = record.offset
    row.timestamp = record.timestamp
    row.batch = record.batch
    row.key = key
    position, size = record.key_at, np.int64(record.key_size)
    if size < 2:
        return total, np.int64(Fault.KEY_MALFORMED)
    row.type = int16_at(data, position)
    if row.type != 0 and row.type != 1:
        return total, np.int64(Fault.UNKNOWN_TYPE)
    if key < 0:
        return total, np.int64(Fault.KEY_MALFORMED)
    fault = np.int64(Fault.KEY_TRAILING if size > 24 + np.int64(int16_at(data, position + 2)) else 0)
    snapshot = row.type == 0
    row.kind = np.int8(Kind.SNAPSHOT if snapshot else Kind.UPDATE)
    position, size = record.value_at, np.int64(record.value_size)
    if size < 0 and snapshot:
        row.kind = Kind.TOMBSTONE
    elif size < 0:
        fault |= Fault.UPDATE_TOMBSTONE
    elif size < 2:
        fault |= Fault.VALUE_MALFORMED
    else:
        row.value_version = int16_at(data, position)
        if row.value_version != 0:
            fault |= Fault.VALUE_VERSION
        else:
            fault |= _read_value(data, position + 2, position + size, snapshot, row, batches, total)
            if not fault & Fault.VALUE_MALFORMED:
                row.batches = total
                total += row.batch_count
    return total, fault


@inlined
def _read_value(data, position, end, snapshot, row, batches, filled):
    """Read one value into its row and its batches into batches[filled:]; returns the fault bits."""
    attempt, is_readable = 0, True
    while True:
        # After the early layout the current one is read again, as the batches are overwritten.
        layout = Layout.EARLY if attempt == 1 else Layout.CURRENT
        size = (36 if snapshot else 16) if layout == Layout.CURRENT else (18 if snapshot else 14)
        after, count, max_offset, complete, fault = _read_batches(
            data, position + size, end, layout == Layout.CURRENT, batches, filled
        )
        if after == end:
            break
        if attempt == 0:
            is_readable = after >= 0
        elif not is_readable:
            return np.int64(Fault.VALUE_MALFORMED)
        elif attempt == 2:
            fault |= Fault.VALUE_TRAILING
            break
        attempt += 1
    if layout == Layout.CURRENT:
        row.snapshot_epoch = int32_at(data, position)
        position += 4
    else:
        row.snapshot_epoch = np.int32(np.uint16(int16_at(data, position)))
        position += 2
    if snapshot:
        row.state_epoch = int32_at(data, position)
        position += 4
    row.leader_epoch = int32_at(data, position)
    row.start_offset = int64_at(data, position + 4)
    position += 12
    if snapshot and layout == Layout.CURRENT:
        row.create_time = int64_at(data, position)
        row.write_time = int64_at(data, position + 8)
        position += 16
    row.layout = np.int8(layout)
    row.batch_count = np.int32(count)
    row.delivery_complete_count = complete
    row.max_offset = max_offset
    return fault


@inlined
def _read_batches(data, position, end, counts, batches, filled):
    """Read the state batches and the tags that begin at `position`.

    Args:
        counts: whether tag 0 is the delivery complete count.
        batches: STATE_BATCH rows, enough for all values of the chunk.
        filled: how many of them are in use.
    Returns:
        (position after them or -1, number of batches, greatest last offset, delivery complete count, fault
        bits).
    """
    fault = np.int64(0)
    complete = np.int32(-1)
    max_offset = np.int64(-1)
    count, position = uvarint(data, position, end) if position < end else (np.int64(0), np.int64(-1))
    count -= 1
    if position < 0 or count < 0 or count * _MIN_BATCH_SIZE > end - position:
        return np.int64(-1), np.int64(0), max_offset, complete, fault
    if count > _MAX_BATCHES:
        fault |= Fault.OVER_LIMIT
    for number in range(np.uint64(filled), np.uint64(filled + count)):
        if end - position < _MIN_BATCH_SIZE:
            return np.int64(-1), np.int64(0), max_offset, complete, fault
        batch = batches[number]
        first = int64_at(data, position)
        last = int64_at(data, position + 8)
        batch.first, batch.last = first, last
        batch.state = np.int8(byte_at(data, position + 16))
        batch.count = int16_at(data, position + 17)
        if first > last or last == LARGEST_OFFSET:
            fault |= Fault.INVERTED_RANGE
        max_offset = max(max_offset, last)
        if byte_at(data, position + 19) == 0:
            position += _MIN_BATCH_SIZE
            continue
        tags, position = uvarint(data, position + 19, end)
        if position < 0:
            return np.int64(-1), np.int64(0), max_offset, complete, fault
        if tags > _MAX_TAGS:
            fault |= Fault.OVER_LIMIT
        for _tag in range(tags):
            position = _after_unknown_tag(data, position, end)
            if position < 0:
                return np.int64(-1), np.int64(0), max_offset, complete, fault
        fault |= Fault.UNKNOWN_TAG
    tags, position = uvarint(data, position, end)
    if position < 0:
        return np.int64(-1), np.int64(0), max_offset, complete, fault
    if tags > _MAX_TAGS:
        fault |= Fault.OVER_LIMIT
    for _ in range(tags):
        tag, after_tag = uvarint(data, position, end)
        if after_tag < 0:
            return np.int64(-1), np.int64(0), max_offset, complete, fault
        if tag != 0 or not counts:
            fault |= Fault.UNKNOWN_TAG
            position = _after_unknown_tag(data, position, end)
        else:
            # Kafka ignores the size, reads an int32 and continues after it.
            size, position = uvarint(data, after_tag, end)
            if position < 0 or end - position < 4:
                return np.int64(-1), np.int64(0), max_offset, complete, fault
            if size != 4:
                fault |= Fault.TAG_SIZE
            complete = int32_at(data, position)
            position += 4
        if position < 0:
            return np.int64(-1), np.int64(0), max_offset, complete, fault
    return position, count, max_offset, complete, fault


@kernel
def _after_unknown_tag(data, at, end):
    _, at = uvarint(data, at, end)
    if at < 0:
        return np.int64(-1)
    size, at = uvarint(data, at, end)
    if at < 0 or size > end - at:
        return np.int64(-1)
    return at + size
