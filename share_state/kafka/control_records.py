"""Decodes SHARE_CHECKPOINT and SHARE_DELTA control records of the KIP-932 draft into columns, with compiled kernels.

`schemas/records/share_checkpoint_*.yaml` and `share_delta_*.yaml` declare the layouts.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pyarrow as pa

from share_state.jit.compile import allocating_kernel, inlined, kernel
from share_state.kafka.buffers import range_rows
from share_state.kafka.primitives import int16_at, int32_at, int64_at
from share_state.kafka.record_batches import CODEC_BITS, CONTROL, BatchStatus
from share_state.kafka.share_partition_keys import KeyTable, binary_texts, escaped_texts, number_of
from share_state.kafka.state_records import LARGEST_OFFSET, STATE_BATCH

CHECKPOINT_TYPE = 5
DELTA_TYPE = 6
"""Ids in the draft. Released Kafka uses them for KRAFT_VERSION and KRAFT_VOTERS, only in
`__cluster_metadata`."""

EPOCH_MODULUS = 65536
"""Checkpoint epochs wrap around at this number."""

_KEY_SIZE = 4
_TUPLE_SIZE = 19


class ControlKind(IntEnum):
    """Kind of a control record; SKIPPED records have another type or an unreadable key."""

    CHECKPOINT = 0
    DELTA = 1
    SKIPPED = 2


class ControlFault(IntEnum):
    """Bits: the faults of one control record."""

    KEY_MALFORMED = 1  # null, shorter than 4 bytes, or of a negative version
    VALUE_MALFORMED = 2
    VALUE_TRAILING = 4  # bytes after the value, such as the tagged fields of a flexible writer
    INVERTED_RANGE = 8
    PERSISTED_ACQUIRED = 16
    UNKNOWN_STATE = 32
    NEGATIVE_COUNT = 64
    OVERLAP = 128  # two tuples of one record cover the same offset
    WINDOW_INVALID = 256  # a checkpoint with a start that is negative or after its end


UNREADABLE_CONTROL_FAULTS = ControlFault.VALUE_MALFORMED | ControlFault.VALUE_TRAILING
"""Faults of records that are not folded."""

SUSPECT_CONTROL_FAULTS = (
    ControlFault.INVERTED_RANGE
    | ControlFault.PERSISTED_ACQUIRED
    | ControlFault.UNKNOWN_STATE
    | ControlFault.WINDOW_INVALID
)
"""Faults of records that are folded but mark their chain as suspect."""

CONTROL_RECORD = np.dtype(
    [
        ("offset", "i8"),
        ("timestamp", "i8"),
        ("start_offset", "i8"),  # of a checkpoint; -1 in a delta
        ("end_offset", "i8"),  # of a checkpoint, exclusive; -1 in a delta
        ("back_offset", "i8"),  # of a delta; -1 in a checkpoint
        ("tuples", "i8"),  # first row among STATE_BATCH rows
        ("group", "i4"),  # number in the GroupTable; -1 if the group cannot be read
        ("tuple_count", "i4"),
        ("epoch", "i4"),  # 0 to 65535
        ("batch", "i4"),  # row of its record batch
        ("fault", "i2"),
        ("type", "i2"),  # control record type as written
        ("kind", "i1"),
        ("prefixed", "?"),  # the value begins with an int16 version
    ]
)
"""One row per control record."""


class GroupTable(KeyTable):
    """A hash table from share groups to numbers, in order of first occurrence."""

    def names(self) -> pa.Array:
        """The group ids, row n for number n; distinct ids have distinct texts."""
        return escaped_texts(binary_texts(self.starts[: len(self) + 1].copy(), self.arena))


@dataclass(slots=True)
class ControlRecords:
    """Decoded control records: CONTROL_RECORD rows in log order, and their STATE_BATCH rows in the same order."""

    rows: np.ndarray
    tuples: np.ndarray

    def take(self, numbers: np.ndarray) -> "ControlRecords":
        """The records with these row numbers, and their tuples."""
        rows = self.rows[numbers].copy()
        counts = rows["tuple_count"]
        starts = np.cumsum(counts, dtype=np.int64) - counts
        tuples = self.tuples[range_rows(rows["tuples"], counts)]
        rows["tuples"] = starts
        return ControlRecords(rows, tuples)


def concat_control_records(parts: list[ControlRecords]) -> ControlRecords:
    """Concatenate the records of consecutive parts of a log."""
    if not parts:
        return ControlRecords(np.zeros(0, CONTROL_RECORD), np.zeros(0, STATE_BATCH))
    rows = np.concatenate([part.rows for part in parts])
    rows["tuples"] = np.cumsum(rows["tuple_count"], dtype=np.int64) - rows["tuple_count"]
    return ControlRecords(rows, np.concatenate([part.tuples for part in parts]))


@inlined
def is_empty_range(batch):
    """Whether a range holds no offset of a log; the fold ignores it."""
    return batch.first > batch.last or batch.first < 0 or batch.last == LARGEST_OFFSET


def decode_control_records(data: np.ndarray, records: np.ndarray, groups: GroupTable) -> ControlRecords:
    """Decode the records of control batches.

    A value may start with an int16 version. Group ids are not empty, so a first int16 of 0 is the version;
    any other is the length of the group id. A value must be consumed exactly.

    Args:
        data: uint8 bytes of the chunk.
        records: RECORD rows of its control batches.
        groups: table of the share groups; new ones are added.
    Source: KIP-932 draft, SHARE_CHECKPOINT and SHARE_DELTA; Kafka ControlRecordType.parse.
    """
    rows = np.zeros(len(records), CONTROL_RECORD)
    done = 0
    total = 0
    positions = np.empty(len(records), np.int64)
    while True:
        done, total = _decode(
            data, records, done, total, rows, positions,
            groups.slots, groups.hashes, groups.starts, groups.arena, groups.count,
        )  # fmt: skip
        if done == len(records):
            break
        groups.grow(int(records[done]["value_size"]))
    tuples = np.empty(total, STATE_BATCH)
    _fill_tuples(data, rows, positions, tuples)
    return ControlRecords(rows, tuples)


@kernel
def count_unflagged(data, batches):
    """Count the records of uncompressed data batches whose first key is that of a checkpoint or delta."""
    count = np.int64(0)
    for row in range(len(batches)):
        batch = batches[row]
        if batch.status != BatchStatus.VALID or batch.attributes & (CONTROL | CODEC_BITS):
            continue
        at = batch.body
        # A record begins with length, attributes, timestamp delta, offset delta, key length.
        for field in range(3):
            while at < batch.body_end and data[at] & 0x80:
                at += 1
            at += 2 if field == 0 else 1
        if at + 1 + _KEY_SIZE > batch.body_end or data[at] != 2 * _KEY_SIZE or int16_at(data, at + 1) != 0:
            continue
        kind = int16_at(data, at + 3)
        if kind == CHECKPOINT_TYPE or kind == DELTA_TYPE:
            count += batch.count
    return count


@kernel
def _decode(data, records, done, total, rows, positions, slots, hashes, starts, arena, count):
    for number in range(done, len(records)):
        record, row = records[number], rows[number]
        row.offset = record.offset
        row.timestamp = record.timestamp
        row.batch = record.batch
        row.start_offset = -1
        row.end_offset = -1
        row.back_offset = -1
        row.group = row.type = -1
        row.kind = ControlKind.SKIPPED
        row.tuples = total
        positions[number] = -1
        if record.key_size < _KEY_SIZE or int16_at(data, record.key_at) < 0:
            row.fault = ControlFault.KEY_MALFORMED
            continue
        row.type = int16_at(data, record.key_at + 2)
        if row.type != CHECKPOINT_TYPE and row.type != DELTA_TYPE:
            continue
        row.kind = ControlKind.CHECKPOINT if row.type == CHECKPOINT_TYPE else ControlKind.DELTA
        at, end = record.value_at, record.value_at + np.int64(record.value_size)
        size = np.int64(int16_at(data, at)) if end - at >= 2 else np.int64(-1)
        if size == 0 and end - at >= 4:
            row.prefixed = True
            at += 2
            size = np.int64(int16_at(data, at))
        if size <= 0 or size > end - at - 2:
            row.fault = ControlFault.VALUE_MALFORMED
            continue
        group = number_of(data, at + 2, size, slots, hashes, starts, arena, count)
        if group < 0:
            return number, total
        row.group = np.int32(group)
        row.fault = _read_value(data, at + 2 + size, end, row, positions, number)
        total += row.tuple_count
    return len(records), total


@kernel
def _read_value(data, position, end, row, positions, number):
    """Read the fields after the group id into the row; returns the fault bits."""
    checkpoint = row.kind == ControlKind.CHECKPOINT
    fixed = 22 if checkpoint else 14
    if end - position < fixed:
        return np.int16(ControlFault.VALUE_MALFORMED)
    row.epoch = np.int32(np.uint16(int16_at(data, position)))
    if checkpoint:
        row.start_offset, row.end_offset = int64_at(data, position + 2), int64_at(data, position + 10)
    else:
        row.back_offset = int64_at(data, position + 2)
    position += fixed
    count = np.int64(int32_at(data, position - 4))
    if count < 0 or count > (end - position) // _TUPLE_SIZE:
        return np.int16(ControlFault.VALUE_MALFORMED)
    if position + count * _TUPLE_SIZE != end:
        return np.int16(ControlFault.VALUE_TRAILING)
    row.tuple_count = np.int32(count)
    positions[number] = position
    if checkpoint and (row.start_offset < 0 or row.end_offset < row.start_offset):
        return np.int16(ControlFault.WINDOW_INVALID)
    return np.int16(0)


@kernel
def _fill_tuples(data, rows, positions, tuples):
    """Copy and check the tuples of all readable rows; `_read_value` has checked their number."""
    for number in range(len(rows)):
        row = rows[number]
        at, begin = positions[number], row.tuples
        if at < 0:
            continue
        fault = 0
        ascending = True
        for place in range(begin, begin + row.tuple_count):
            batch = tuples[place]
            batch.first, batch.last = int64_at(data, at), int64_at(data, at + 8)
            batch.state, batch.count = np.int8(data[at + 16]), int16_at(data, at + 17)
            at += _TUPLE_SIZE
            if is_empty_range(batch):
                fault |= ControlFault.INVERTED_RANGE
            if batch.state == 1:
                fault |= ControlFault.PERSISTED_ACQUIRED
            elif batch.state != 0 and batch.state != 2 and batch.state != 4:
                fault |= ControlFault.UNKNOWN_STATE
            if batch.count < 0:
                fault |= ControlFault.NEGATIVE_COUNT
            ascending &= place == begin or batch.first > tuples[place - 1].last
        if not ascending and _overlap(tuples[begin : begin + row.tuple_count]):
            fault |= ControlFault.OVERLAP
        row.fault |= np.int16(fault)


@allocating_kernel
def _overlap(tuples):
    order = np.argsort(tuples["first"].copy(), kind="mergesort")
    last_covered = np.int64(-1)
    for place in order:
        if is_empty_range(tuples[place]):
            continue
        if tuples[place].first <= last_covered:
            return True
        last_covered = max(last_covered, tuples[place].last)
    return False
