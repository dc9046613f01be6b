"""Rows of Kafka's key and value as columns: Arrow buffers become the bytes and RECORD rows that the decoder takes."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from share_state.wire.chunk import Chunk
from share_state.wire.column_bytes import column_bytes, is_text
from share_state.wire.compiled import allocating_kernel, kernel
from share_state.wire.framing import BATCH, Trust
from share_state.wire.records import RECORD

NO_TIME = -1
"""In place of a stamp: the table has none. Source: Kafka RecordBatch.NO_TIMESTAMP."""

_PADDING, _NOT_BASE64 = 64, 255
_ALPHABETS = (b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
              b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")  # fmt: skip
_SIX_BITS = np.full(256, _NOT_BASE64, np.uint8)
for _letters in _ALPHABETS:
    _SIX_BITS[np.frombuffer(_letters, np.uint8)] = np.arange(64)
_SIX_BITS[ord("=")] = _PADDING


class NotBase64Error(ValueError):
    """Raised when a text column holds something else than padded base64."""


@dataclass(slots=True)
class Rows:
    """Some rows of one log partition.

    Attributes:
        data: uint8, the bytes of keys and values.
        records: RECORD rows that point into them; `batch` is not set.
        file: int32, one a row: number of the file that holds it.
        position: int64, one a row: its row in that file, from 0.
    """

    data: np.ndarray
    records: np.ndarray
    file: np.ndarray
    position: np.ndarray

    @classmethod
    def none(cls) -> Self:
        """No rows."""
        return cls(np.zeros(0, np.uint8), np.zeros(0, RECORD), np.zeros(0, np.int32), np.zeros(0, np.int64))

    def take(self, chosen: np.ndarray) -> "Rows":
        """Some of them, over the same bytes."""
        return Rows(self.data, self.records[chosen], self.file[chosen], self.position[chosen])

    def compact(self) -> "Rows":
        """The same over bytes of their own, so that the others can be let go."""
        sizes = np.maximum(self.records["key_size"], 0).astype(np.int64) + np.maximum(self.records["value_size"], 0)
        data, records = np.empty(int(sizes.sum()), np.uint8), self.records.copy()
        _copy(self.data, records, data)
        return Rows(data, records, self.file, self.position)


def joined(parts: list[Rows]) -> Rows:
    """Several, one after the other."""
    if len(parts) == 1:
        return parts[0]
    shifts = np.cumsum([0, *(len(part.data) for part in parts[:-1])])
    records = np.concatenate([part.records for part in parts])
    moved = np.repeat(shifts, [len(part.records) for part in parts])
    records["key_at"] += moved
    records["value_at"] += moved
    return Rows(
        np.concatenate([part.data for part in parts]),
        records,
        np.concatenate([part.file for part in parts]),
        np.concatenate([part.position for part in parts]),
    )


def rows_of(
    key: pa.Array, value: pa.Array, offset: np.ndarray, timestamp: np.ndarray, file: int, position: np.ndarray
) -> Rows:
    """Columns of one Arrow batch as rows; keys and values are copied once, as they lie, with no work a row.

    Args:
        key, value: binary, or text in padded base64, nulls where Kafka has null.
        offset: int64.
        timestamp: int64, ms; NO_TIME where unknown.
        file: number of the file they come from.
        position: int64, row of each in the file.
    Raises:
        NotBase64Error: if a text is not base64.
    """
    records = np.zeros(len(offset), RECORD)
    key_bytes, records["key_at"], records["key_size"] = _spans(key)
    value_bytes, at, records["value_size"] = _spans(value)
    records["value_at"] = at + len(key_bytes)
    records["offset"], records["timestamp"] = offset, timestamp
    return Rows(np.concatenate((key_bytes, value_bytes)), records, np.full(len(offset), file, np.int32), position)


def _spans(column: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bytes of a column, and where each row begins and how long it is (-1 for null)."""
    data, ends = column_bytes(column)
    at, sizes, present = ends[:-1], np.diff(ends), np.asarray(column.is_valid())
    if is_text(column) and len(data):
        data, at, sizes = _from_base64(data, at, np.where(present, sizes, 0))
    return data, at, np.where(present, sizes, -1)


def _from_base64(data: np.ndarray, at: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts of padded base64, each a multiple of four letters, all at once."""
    codes = _SIX_BITS[data]
    if (codes == _NOT_BASE64).any() or (sizes % 4).any() or len(data) != sizes.sum():
        raise NotBase64Error("not base64")
    last = at + sizes - 1
    padding = np.zeros(len(at), np.int64)
    some = sizes > 0
    padding[some] = (codes[last[some]] == _PADDING).astype(np.int64) + (codes[last[some] - 1] == _PADDING)
    if (codes == _PADDING).sum() != padding.sum():
        raise NotBase64Error("not base64")
    four = (codes & 63).reshape(-1, 4).astype(np.uint32)
    word = four[:, 0] << 18 | four[:, 1] << 12 | four[:, 2] << 6 | four[:, 3]
    plain = np.stack((word >> 16, word >> 8, word), axis=1).astype(np.uint8).reshape(-1)
    return plain, at // 4 * 3, sizes // 4 * 3 - padding


def chunk_of(rows: Rows) -> Chunk:
    """Rows of a log partition as a chunk in offset order, each offset once.

    Rows that repeat an offset with the same key and value are dropped and counted. Where one offset has two contents,
    the row of the latest stamp is kept (of equal stamps the one of the greater bytes, so that the order of the files
    does not matter), and the others become rows of trust CONFLICT.

    Args:
        rows: every row there is of the offsets that they hold.
    """
    offsets = rows.records["offset"]
    if (np.diff(offsets) < 0).any():
        rows = rows.take(np.argsort(offsets, kind="stable"))
        offsets = rows.records["offset"]
    again = np.flatnonzero(np.diff(offsets) == 0)
    if not len(again):
        return Chunk(rows.data, _runs(rows), records=_in_runs(rows))
    same = _same_bytes(rows.data, rows.records, again)
    left_out = np.zeros(len(offsets), bool)
    left_out[again[same] + 1] = True
    conflicting = np.unique(offsets[again[~same]])
    conflicts = np.zeros(0, BATCH)
    for offset in conflicting.tolist():
        first, end = np.searchsorted(offsets, offset), np.searchsorted(offsets, offset, side="right")
        candidates = sorted(range(first, end), key=lambda row: _rank(rows, row))
        distinct = {_content(rows, row): row for row in candidates}
        kept = distinct.pop(_content(rows, candidates[-1]))
        left_out[first:end], left_out[kept] = True, False
        conflicts = np.concatenate((conflicts, *(_conflict(rows, row) for row in distinct.values())))
    chosen = rows.take(~left_out)
    batches, records = _runs(chosen), _in_runs(chosen)
    repeated = int(left_out.sum()) - len(conflicts)
    if not len(conflicts):
        return Chunk(rows.data, batches, repeated=repeated, records=records)
    # Rows in conflict stand before the one that was kept, as batches that were left out do.
    place = np.searchsorted(batches["base_offset"], conflicts["base_offset"], side="right")
    batches = np.insert(batches, place, conflicts)
    return Chunk(rows.data, batches, repeated=repeated, records=_moved(records, place))


def _content(rows: Rows, row: int) -> tuple[bytes | None, bytes | None]:
    record = rows.records[row]
    return tuple(
        None
        if record[f"{part}_size"] < 0
        else rows.data[record[f"{part}_at"] : record[f"{part}_at"] + record[f"{part}_size"]].tobytes()
        for part in ("key", "value")
    )  # pyright: ignore[reportReturnType]


def _rank(rows: Rows, row: int) -> tuple[int, list[bytes]]:
    return int(rows.records[row]["timestamp"]), [part or b"" for part in _content(rows, row)]


def _conflict(rows: Rows, row: int) -> np.ndarray:
    left_out = np.zeros(1, BATCH)
    left_out["base_offset"] = left_out["last_offset"] = rows.records[row]["offset"]
    left_out["trust"], left_out["segment"] = Trust.CONFLICT, rows.file[row]
    left_out["file_position"], left_out["count"], left_out["magic"] = rows.position[row], 1, -1
    return left_out


def _starts(records: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.diff(records["offset"], prepend=records["offset"][:1] - 2) != 1)


def _runs(rows: Rows) -> np.ndarray:
    """In place of batches: a BATCH row for every run of offsets without a hole."""
    records = rows.records
    starts = _starts(records)
    runs, ends = np.zeros(len(starts), BATCH), np.append(starts[1:], len(records))
    runs["base_offset"], runs["last_offset"] = records["offset"][starts], records["offset"][ends - 1]
    runs["count"], runs["magic"], runs["trust"] = ends - starts, 2, Trust.WHOLE
    runs["segment"], runs["file_position"] = rows.file[starts], rows.position[starts]
    runs["max_timestamp"] = np.maximum.reduceat(records["timestamp"], starts) if len(starts) else NO_TIME
    return runs


def _in_runs(rows: Rows) -> np.ndarray:
    """The records, each with the row of its run."""
    records, starts = rows.records, _starts(rows.records)
    records["batch"] = np.searchsorted(starts, np.arange(len(records)), side="right") - 1
    return records


def _moved(records: np.ndarray, inserted: np.ndarray) -> np.ndarray:
    records["batch"] += np.searchsorted(inserted, records["batch"], side="right").astype(np.int32)
    return records


@allocating_kernel
def _same_bytes(data, records, first):
    """For each row number in `first`: whether the row and the one after it have the same key and value."""
    same = np.zeros(len(first), np.bool_)
    for number in range(len(first)):
        one, other = records[first[number]], records[first[number] + 1]
        same[number] = _equal(data, one.key_at, one.key_size, other.key_at, other.key_size) and _equal(
            data, one.value_at, one.value_size, other.value_at, other.value_size
        )
    return same


@kernel
def _equal(data, at, size, other_at, other_size):
    if size != other_size:
        return False
    for byte in range(size):
        if data[at + byte] != data[other_at + byte]:
            return False
    return True


@kernel
def _copy(data, records, out):
    at = np.int64(0)
    for number in range(len(records)):
        record = records[number]
        for byte in range(record.key_size):
            out[at + byte] = data[record.key_at + byte]
        record.key_at = at
        at += max(record.key_size, 0)
        for byte in range(record.value_size):
            out[at + byte] = data[record.value_at + byte]
        record.value_at = at
        at += max(record.value_size, 0)
