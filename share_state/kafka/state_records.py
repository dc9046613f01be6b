"""Records of `__share_group_state` as columns: the compiled reader of both layouts that call themselves version 0.

`schemas/records/share_*.yaml` declare the layouts; tests hold this reader equal to the plain one of `wire/codec.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from share_state.jit.compile import inlined, kernel
from share_state.kafka.buffers import RecordRoom, SpareRooms
from share_state.kafka.primitives import int16_at, int32_at, int64_at, uvarint
from share_state.kafka.share_partition_keys import (
    KeyTable,
    ask_for_bytes,
    ask_for_key,
    ask_for_slot,
    hash_of,
    number_of_hashed,
)


class Kind(IntEnum):
    """What a record is. SKIPPED records carry no state: another type, or a key that cannot be read."""

    SNAPSHOT = 0
    UPDATE = 1
    TOMBSTONE = 2
    SKIPPED = 3


class Layout(IntEnum):
    """Which of the two layouts a value has; NONE for null and unreadable values."""

    NONE = 0
    EARLY = 1  # 4.0: SnapshotEpoch uint16, no timestamps
    CURRENT = 2  # 4.1 and later


class Fault(IntEnum):
    """Bits: what is wrong with one record."""

    KEY_MALFORMED = 1  # null, short, or of a negative length: no share-partition is known
    KEY_TRAILING = 2  # bytes behind the key, which Kafka ignores
    UNKNOWN_TYPE = 4
    VALUE_MALFORMED = 8
    VALUE_TRAILING = 16  # bytes behind the value, which Kafka ignores
    VALUE_VERSION = 32
    UPDATE_TOMBSTONE = 64
    INVERTED_RANGE = 128
    UNKNOWN_TAG = 256
    TAG_SIZE = 512  # tag 0 not of 4 bytes; Kafka reads 4 all the same
    OVER_LIMIT = 1024  # more batches or tags than the readers of 4.4 take


UNREADABLE = Fault.VALUE_MALFORMED | Fault.VALUE_VERSION | Fault.UPDATE_TOMBSTONE
"""Faults that keep a record of a known share-partition out of the fold: the broker could not load it either."""

LARGEST_OFFSET = 2**63 - 1
_MOST_BATCHES = 1_000_000
_MOST_TAGS = 10_000
_BLOCK = 64
"""Records whose keys are numbered together."""
_MANY_SLOTS = 1 << 16
"""A table of fewer slots is near the CPU anyway."""
_SMALLEST_BATCH = 20

STATE_RECORD = np.dtype(
    [
        ("offset", "i8"),
        ("timestamp", "i8"),
        ("start_offset", "i8"),
        ("create_time", "i8"),  # ms; 0 where not recorded
        ("write_time", "i8"),
        ("batches", "i8"),  # first row among STATE_BATCH rows
        ("reach", "i8"),  # the greatest offset that one of them holds, -1 at least
        ("key", "i4"),  # number in the KeyTable; -1 for SKIPPED
        ("snapshot_epoch", "i4"),
        ("state_epoch", "i4"),
        ("leader_epoch", "i4"),
        ("delivery_complete_count", "i4"),
        ("batch_count", "i4"),
        ("batch", "i4"),  # row of the record batch it came in
        ("type", "i2"),
        ("value_version", "i2"),
        ("fault", "i2"),
        ("kind", "i1"),
        ("layout", "i1"),
    ]
)
"""One row a record of `__share_group_state`."""

STATE_BATCH = np.dtype([("first", "i8"), ("last", "i8"), ("count", "i2"), ("state", "i1")], align=True)
"""One row a state batch: offsets first to last inclusive, delivery count, delivery state."""


@dataclass(slots=True)
class StateRecords:
    """Decoded records.

    Attributes:
        rows: STATE_RECORD, in log order.
        batches: STATE_BATCH rows that they point into.
        faults: every Fault that a row may have, so that nobody looks for another.
        layouts: the same of the layouts, bit n for Layout n.
    """

    rows: np.ndarray
    batches: np.ndarray
    faults: int = -1
    layouts: int = -1


def _record_room() -> RecordRoom:
    return RecordRoom(STATE_RECORD, STATE_BATCH)


SPARE = SpareRooms(_record_room)
"""Rooms for decoded records."""


def decode_state_records(
    data: np.ndarray, records: np.ndarray, keys: KeyTable, room: RecordRoom | None = None
) -> StateRecords:
    """Decode the records of a chunk.

    A value is read in the layout of 4.1 and later if that consumes it exactly, else in the layout of 4.0 if that does,
    else in the later layout with bytes left over, as Kafka would.

    Args:
        data: uint8 bytes of the chunk.
        records: RECORD rows of the chunk.
        keys: numbers of the share-partitions; new ones are added.
        room: where to put them, behind what is there; by default in a room of their own.
    Source: Kafka ShareCoordinatorRecordSerde, ShareSnapshotKey/Value, ShareUpdateKey/Value.
    """
    room, done, faults, layouts = room or _record_room(), 0, 0, 0
    rows, batches = room.more(len(records), _bytes_of_values(records) // _SMALLEST_BATCH)
    total = room.batch_count
    block = np.empty(_BLOCK, np.int32), np.empty(_BLOCK, np.uint64)
    while True:
        table = keys.slots, keys.hashes, keys.starts, keys.arena, keys.count
        done, total, some_faults, some_layouts = _decode(data, records, done, total, rows, batches, *table, *block)
        faults, layouts = faults | some_faults, layouts | some_layouts
        if done == len(records):
            break
        keys.grow(int(records[done]["key_size"]))
    room.batch_count = total
    return StateRecords(rows, room.batches, faults, layouts)


def note_told_faults(decoded: StateRecords, faults: Mapping[int, tuple[int, int]]) -> None:
    """Say of records without key and value what the form of the export tells of them.

    Args:
        decoded: of a chunk; its rows are changed in place.
        faults: offset -> (Fault, value version), as in `Chunk`.
    """
    for offset, (fault, version) in faults.items():
        of_it = (decoded.rows["offset"] == offset) & (decoded.rows["fault"] == Fault.KEY_MALFORMED)
        decoded.rows["fault"][of_it], decoded.rows["value_version"][of_it] = fault, version
        decoded.faults |= fault


@kernel
def _bytes_of_values(records):
    total = np.int64(0)
    for row in range(len(records)):
        total += max(records[row].value_size, 0)
    return total


@kernel
def _decode(data, records, done, total, rows, batches, slots, hashes, starts, arena, count, numbers, hashed):
    faults, layouts = np.int64(0), np.int64(0)
    while done < len(records):
        end = min(done + _BLOCK, len(records))
        numbered = _number_keys(data, records, done, end, numbers, hashed, slots, hashes, starts, arena, count)
        for number in range(done, numbered):
            record, row = records[number], rows[number]
            total, fault = _decode_one(data, record, row, numbers[number - done], batches, total)
            row.fault = np.int16(fault)
            faults |= fault
            layouts |= 1 << row.layout
        done = numbered
        if numbered < end:
            break
    return done, total, faults, layouts


@kernel
def _number_keys(data, records, begin, end, numbers, hashed, slots, hashes, starts, arena, count):
    """The numbers of records `begin` to `end`, -1 where there is no key; returns where the table was full, or `end`."""
    many = len(slots) >= _MANY_SLOTS
    for number in range(begin, end):
        named = _size_of_name(data, records[number].key_at, np.int64(records[number].key_size))
        hashed[number - begin] = hash_of(data, records[number].key_at + 2, named) if named >= 0 else np.uint64(0)
        if many:
            ask_for_slot(hashed[number - begin], slots)
    # Among many keys each step to a known one waits for memory: a block takes each step together.
    if many:
        for number in range(end - begin):
            ask_for_key(hashed[number], slots, hashes, starts)
        for number in range(end - begin):
            ask_for_bytes(hashed[number], slots, starts, arena)
    for number in range(begin, end):
        at, value = records[number].key_at, hashed[number - begin]
        named = _size_of_name(data, at, np.int64(records[number].key_size))
        numbers[number - begin] = -1
        if named >= 0:
            key = number_of_hashed(value, data, at + 2, named, slots, hashes, starts, arena, count)
            if key < 0:
                return number
            numbers[number - begin] = np.int32(key)
    return end


@inlined
def _size_of_name(data, at, size):
    """Bytes of a key that name its share-partition, behind its type: group, topic id, partition; -1 for no such key."""
    if size < 4 or not 0 <= int16_at(data, at) <= 1:
        return np.int64(-1)
    group = np.int64(int16_at(data, at + 2))
    return 22 + group if group >= 0 and size >= 24 + group else np.int64(-1)


@inlined
def _decode_one(data, record, row, key, batches, total):
    """Fill the row of a record whose key has a number, or none; returns (rows of `batches` in use, fault bits)."""
    row.offset = record.offset
    row.timestamp = record.timestamp
    row.batch = record.batch
    row.key = key
    row.kind = Kind.SKIPPED
    row.start_offset = -1
    row.delivery_complete_count = -1
    at, size = record.key_at, np.int64(record.key_size)
    if size < 2:
        return total, np.int64(Fault.KEY_MALFORMED)
    row.type = int16_at(data, at)
    if row.type != 0 and row.type != 1:
        return total, np.int64(Fault.UNKNOWN_TYPE)
    if key < 0:
        return total, np.int64(Fault.KEY_MALFORMED)
    fault = np.int64(Fault.KEY_TRAILING if size > 24 + np.int64(int16_at(data, at + 2)) else 0)
    snapshot = row.type == 0
    row.kind = np.int8(Kind.SNAPSHOT if snapshot else Kind.UPDATE)
    at, size = record.value_at, np.int64(record.value_size)
    if size < 0 and snapshot:
        row.kind = Kind.TOMBSTONE
    elif size < 0:
        fault |= Fault.UPDATE_TOMBSTONE
    elif size < 2:
        fault |= Fault.VALUE_MALFORMED
    else:
        row.value_version = int16_at(data, at)
        if row.value_version != 0:
            fault |= Fault.VALUE_VERSION
        else:
            fault |= _read_value(data, at + 2, at + size, snapshot, row, batches, total)
            if not fault & Fault.VALUE_MALFORMED:
                row.batches = total
                total += row.batch_count
    return total, fault


@kernel
def _read_value(data, at, end, snapshot, row, batches, filled):
    """Read one value into its row, its batches into rows `filled` on; returns the fault bits."""
    current = 36 if snapshot else 16
    early = 18 if snapshot else 14
    layout = Layout.CURRENT
    after, count, complete, fault = _walk(data, at + current, end, True, batches, filled)
    if after != end:
        early_after, early_count, early_complete, early_fault = _walk(data, at + early, end, False, batches, filled)
        if early_after == end:
            layout = Layout.EARLY
            count, complete, fault = early_count, early_complete, early_fault
        elif after < 0:
            return Fault.VALUE_MALFORMED
        else:
            _walk(data, at + current, end, True, batches, filled)  # The other try has overwritten the batches.
            fault |= Fault.VALUE_TRAILING
    if layout == Layout.CURRENT:
        row.snapshot_epoch = int32_at(data, at)
        at += 4
    else:
        row.snapshot_epoch = np.int32(np.uint16(int16_at(data, at)))
        at += 2
    if snapshot:
        row.state_epoch = int32_at(data, at)
        at += 4
    row.leader_epoch = int32_at(data, at)
    row.start_offset = int64_at(data, at + 4)
    at += 12
    if snapshot and layout == Layout.CURRENT:
        row.create_time = int64_at(data, at)
        row.write_time = int64_at(data, at + 8)
        at += 16
    row.layout = np.int8(layout)
    row.batch_count = np.int32(count)
    row.delivery_complete_count = complete
    reach = np.int64(-1)
    for number in range(filled, filled + count):
        reach = max(reach, batches[number].last)
    row.reach = reach
    return fault


@kernel
def _walk(data, at, end, counts, batches, filled):
    """Read the state batches and the tags that begin at `at`.

    Args:
        counts: whether tag 0 is the delivery complete count.
        batches: STATE_BATCH rows with room for as many 20-byte batches as all values could hold.
        filled: how many of them are in use.
    Returns:
        (position after them or -1, number of batches, delivery complete count, fault bits).
    """
    fault = 0
    complete = np.int32(-1)
    count, at = uvarint(data, at, end) if at < end else (np.int64(0), np.int64(-1))
    count -= 1
    if at < 0 or count < 0 or count > (end - at) // _SMALLEST_BATCH:
        return np.int64(-1), np.int64(0), complete, fault
    if count > _MOST_BATCHES:
        fault |= Fault.OVER_LIMIT
    for number in range(filled, filled + count):
        if end - at < _SMALLEST_BATCH:
            return np.int64(-1), np.int64(0), complete, fault
        batch = batches[number]
        batch.first = int64_at(data, at)
        batch.last = int64_at(data, at + 8)
        batch.state = np.int8(data[at + 16])
        batch.count = int16_at(data, at + 17)
        if batch.first > batch.last or batch.last == LARGEST_OFFSET:
            fault |= Fault.INVERTED_RANGE
        if data[at + 19] == 0:
            at += _SMALLEST_BATCH
            continue
        tags, at = uvarint(data, at + 19, end)
        if at < 0:
            return np.int64(-1), np.int64(0), complete, fault
        if tags > _MOST_TAGS:
            fault |= Fault.OVER_LIMIT
        for _tag in range(tags):
            at = _after_unknown_tag(data, at, end)
            if at < 0:
                return np.int64(-1), np.int64(0), complete, fault
        fault |= Fault.UNKNOWN_TAG
    tags, at = uvarint(data, at, end)
    if at < 0:
        return np.int64(-1), np.int64(0), complete, fault
    if tags > _MOST_TAGS:
        fault |= Fault.OVER_LIMIT
    for _ in range(tags):
        tag, after_tag = uvarint(data, at, end)
        if after_tag < 0:
            return np.int64(-1), np.int64(0), complete, fault
        if tag != 0 or not counts:
            fault |= Fault.UNKNOWN_TAG
            at = _after_unknown_tag(data, at, end)
        else:
            # Kafka reads an int32 whatever the size says, and goes on behind it.
            size, at = uvarint(data, after_tag, end)
            if at < 0 or end - at < 4:
                return np.int64(-1), np.int64(0), complete, fault
            if size != 4:
                fault |= Fault.TAG_SIZE
            complete = int32_at(data, at)
            at += 4
        if at < 0:
            return np.int64(-1), np.int64(0), complete, fault
    return at, count, complete, fault


@kernel
def _after_unknown_tag(data, at, end):
    _, at = uvarint(data, at, end)
    if at < 0:
        return np.int64(-1)
    size, at = uvarint(data, at, end)
    if at < 0 or size > end - at:
        return np.int64(-1)
    return at + size
