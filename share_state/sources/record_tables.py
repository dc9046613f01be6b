"""Reads log partitions from Parquet files with the columns of Spark's Kafka source, row group by row group.

`arrow_rows` converts Arrow columns to bytes and RECORD rows, `rows_to_chunk` sorts them and removes repeated
offsets, and `TableRows` reads the row groups that `table_plan` selected.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from share_state.errors import InputError
from share_state.jit.compile import allocating_kernel, kernel
from share_state.kafka.buffers import column_bytes, is_text, without_views
from share_state.kafka.record_batches import BATCH, RECORD, BatchStatus, Chunk
from share_state.kafka.state_records import LARGEST_OFFSET
from share_state.sources.encoded_text import NOT_ENCODED, NotEncodedError, decode_texts
from share_state.sources.log_partition import LogPartition
from share_state.stores.paths import parquet_source

NO_TIME = -1
"""A missing timestamp. Source: Kafka RecordBatch.NO_TIMESTAMP."""

CONSUMED = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64()), ("timestamp", pa.int64())]
)
"""Columns of the records of a log partition that a consumer returns; timestamps are in ms."""


@dataclass(slots=True)
class Rows:
    """Rows of one log partition.

    Attributes:
        data: uint8, the bytes of keys and values.
        records: RECORD rows with positions in `data`; `batch` is not set.
        file: int32, number of the file of each row.
        position: int64, number of each row in its file, from 0.
    """

    data: np.ndarray
    records: np.ndarray
    file: np.ndarray
    position: np.ndarray

    def take(self, selection: np.ndarray) -> "Rows":
        """The rows selected by a mask or an index; shares the bytes."""
        return Rows(self.data, self.records[selection], self.file[selection], self.position[selection])

    def compact(self) -> "Rows":
        """Copy the rows with their own bytes only, so that other bytes can be freed."""
        sizes = np.maximum(self.records["key_size"], 0).astype(np.int64) + np.maximum(
            self.records["value_size"], 0
        )
        data, records = np.empty(int(sizes.sum()), np.uint8), self.records.copy()
        _copy(self.data, records, data)
        return Rows(data, records, self.file, self.position)


def concat_table_rows(parts: list[Rows]) -> Rows:
    """Concatenate rows."""
    if len(parts) == 1:
        return parts[0]
    shifts = np.cumsum([0, *(len(part.data) for part in parts[:-1])])
    records = np.concatenate([part.records for part in parts])
    shift = np.repeat(shifts, [len(part.records) for part in parts])
    records["key_at"] += shift
    records["value_at"] += shift
    return Rows(
        np.concatenate([part.data for part in parts]),
        records,
        np.concatenate([part.file for part in parts]),
        np.concatenate([part.position for part in parts]),
    )


def arrow_rows(
    key: pa.Array, value: pa.Array, offset: np.ndarray, timestamp: np.ndarray, file: int, position: np.ndarray
) -> Rows:
    """Convert the columns of an Arrow batch to rows; copies the bytes of keys and values.

    Args:
        key, value: binary, or text in base64 or hexadecimal; null for null.
        offset: int64.
        timestamp: int64, ms; NO_TIME if unknown.
        file: number of the file.
        position: int64, number of each row in the file.
    Raises:
        NotEncodedError: if a text is neither.
    """
    records = np.zeros(len(offset), RECORD)
    key_bytes, records["key_at"], records["key_size"] = _spans(key)
    value_bytes, at, records["value_size"] = _spans(value)
    records["value_at"] = at + len(key_bytes)
    records["offset"], records["timestamp"] = offset, timestamp
    return Rows(
        np.concatenate((key_bytes, value_bytes)), records, np.full(len(offset), file, np.int32), position
    )


def rows_of_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Rows, int]]:
    """Convert batches of one log partition in offset order, each to its rows and its last offset, which may repeat.

    Args:
        batches: key, value, offset (int64) and, if the log has times, timestamp.
    """
    at = 0
    for batch in batches:
        if not (count := batch.num_rows):
            continue
        offsets = batch["offset"].to_numpy()
        times = (
            timestamp_ms(batch["timestamp"]) if "timestamp" in batch.schema.names else np.full(count, NO_TIME)
        )
        yield (
            arrow_rows(batch["key"], batch["value"], offsets, times, 0, np.arange(at, at + count)),
            int(offsets[-1]),
        )
        at += count


def _spans(column: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bytes of a column, and the start and size of each row (size -1 for null)."""
    data, ends = column_bytes(column)
    at = ends[:-1]
    sizes = np.diff(ends)
    present = np.asarray(column.is_valid())
    if is_text(column.type) and len(data):
        data, at, sizes = decode_texts(data, at, np.where(present, sizes, 0))
    return data, at, np.where(present, sizes, -1)


def rows_to_chunk(rows: Rows, *, holds_all: bool = True) -> Chunk:
    """Convert rows of a log partition to a chunk in offset order, each offset once.

    Rows that repeat an offset with the same key and value are dropped and counted. If the contents of one
    offset differ, the row with the latest timestamp is kept (for equal timestamps, the one with the greater
    bytes, so that the order of files does not matter); the others become batches of status CONFLICT.

    Args:
        rows: all rows of the offsets that they contain.
        holds_all: as in LogPartition.
    """
    offsets = rows.records["offset"]
    if (np.diff(offsets) < 0).any():
        rows = rows.take(np.argsort(offsets, kind="stable"))
        offsets = rows.records["offset"]
    repeated_at = np.flatnonzero(np.diff(offsets) == 0)
    if not len(repeated_at):
        batches, records = _split_runs(rows, holds_all)
        return Chunk(rows.data, batches, records=records)
    is_equal = _same_bytes(rows.data, rows.records, repeated_at)
    left_out = np.zeros(len(offsets), bool)
    left_out[repeated_at[is_equal] + 1] = True
    conflicting = np.unique(offsets[repeated_at[~is_equal]])
    timestamps, conflicting_rows = rows.records["timestamp"], list[int]()
    for offset in conflicting.tolist():
        first, end = np.searchsorted(offsets, offset), np.searchsorted(offsets, offset, side="right")
        candidates = sorted((timestamps[row], *_content(rows, row), row) for row in range(first, end))
        distinct = {(key, value): row for _, key, value, row in candidates}
        kept = distinct.pop(candidates[-1][1:3])
        left_out[first:end], left_out[kept] = True, False
        conflicting_rows += distinct.values()
    batches, records = _split_runs(rows.take(~left_out), holds_all)
    conflicts = rows.take(np.array(conflicting_rows, np.int64))
    # As in logs of segments, conflicting batches come before the one that is kept.
    at = np.searchsorted(batches["base_offset"], conflicts.records["offset"], side="right")
    batches = np.insert(batches, at, _conflict_batches(conflicts))
    records["batch"] += np.searchsorted(at, records["batch"], side="right").astype(np.int32)
    return Chunk(rows.data, batches, repeated=int(left_out.sum()) - len(conflicting_rows), records=records)


def rows_in_chunks(
    parts: Iterable[tuple[Rows, int]], chunk: int, *, holds_all: bool = True
) -> Iterator[Chunk]:
    """Convert rows of a log partition to chunks in offset order; rows wait until all lower offsets are read.

    Args:
        parts: rows in any order, and with each part the lowest offset that may follow.
        chunk: bytes of keys and values in a chunk.
        holds_all: as in LogPartition.
    """
    waiting: list[Rows] = []
    for rows, bound in parts:
        waiting.append(rows)
        ready = sum(len(part.data) for part in waiting if part.records["offset"].max() < bound)
        if ready < chunk:
            continue
        merged = concat_table_rows(waiting)
        is_ready = merged.records["offset"] < bound
        yield rows_to_chunk(merged if is_ready.all() else merged.take(is_ready), holds_all=holds_all)
        waiting = [] if is_ready.all() else [merged.take(~is_ready).compact()]
    if waiting:
        yield rows_to_chunk(concat_table_rows(waiting), holds_all=holds_all)


def _content(rows: Rows, row: int) -> tuple[tuple[bool, bytes], tuple[bool, bytes]]:
    """Key and value of a row, each with whether it is present."""
    record = rows.records[row]
    spans = ((record[f"{part}_at"], record[f"{part}_size"]) for part in ("key", "value"))
    key, value = ((size >= 0, rows.data[at : at + max(size, 0)].tobytes()) for at, size in spans)
    return key, value


def _conflict_batches(rows: Rows) -> np.ndarray:
    """A BATCH row of status CONFLICT for each row."""
    batches = np.zeros(len(rows.records), BATCH)
    batches["base_offset"] = batches["last_offset"] = rows.records["offset"]
    batches["status"], batches["segment"] = BatchStatus.CONFLICT, rows.file
    batches["file_position"] = rows.position
    batches["count"] = 1
    batches["magic"] = -1
    return batches


def _split_runs(rows: Rows, holds_all: bool) -> tuple[np.ndarray, np.ndarray]:
    """One BATCH row for each run of consecutive offsets, and the records, each with the row of its run.

    Where records of the log are elsewhere, a missing offset says nothing, and the rows are one run.
    """
    records = rows.records
    steps = np.diff(records["offset"], prepend=records["offset"][:1] - 2)
    starts = np.flatnonzero(steps != 1) if holds_all else np.flatnonzero(steps[:1])
    runs, ends = np.zeros(len(starts), BATCH), np.append(starts[1:], len(records))
    runs["base_offset"], runs["last_offset"] = records["offset"][starts], records["offset"][ends - 1]
    runs["count"] = ends - starts
    runs["magic"] = 2
    runs["status"] = BatchStatus.VALID
    runs["segment"], runs["file_position"] = rows.file[starts], rows.position[starts]
    runs["max_timestamp"] = np.maximum.reduceat(records["timestamp"], starts) if len(starts) else NO_TIME
    records["batch"] = np.repeat(np.arange(len(starts)), ends - starts)
    return runs, records


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


_MAX_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Columns:
    """The column names of a table; by default those of Spark's Kafka source."""

    key: str = "key"
    value: str = "value"
    topic: str = "topic"
    partition: str = "partition"
    offset: str = "offset"
    timestamp: str = "timestamp"


def check_distinct(path: str, name: str, names: Sequence[str]) -> None:
    """Refuse a table with two columns of a name that is read: which of them holds the records is unknown.

    Raises:
        InputError: naming the column.
    """
    if (count := list(names).count(name)) > 1:
        raise InputError(f"{path}: has {count} columns {name}; write it with one, or rename the others")


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group with rows of a log partition.

    Attributes:
        file: number among the log's segments.
        number: number of the row group in its file.
        rows_before: rows of the file before it.
        first_offset, last_offset: lowest and highest offset of the log in it.
        size: bytes of all its rows.
        alone: whether all its rows belong to this log partition.
    """

    file: int
    number: int
    rows_before: int
    first_offset: int
    last_offset: int
    size: int
    alone: bool


@dataclass(frozen=True, slots=True)
class TableRows:
    """A log partition in Parquet files; a `RecordSource`.

    Attributes:
        columns: column names.
        groups: row groups with its rows, by first offset.
        has_times: whether there is a timestamp column.
        times: the first and the last timestamp (ms) of the files; None if their footers do not show them.
    """

    columns: Columns
    groups: tuple[RowGroup, ...]
    has_times: bool
    times: tuple[int, int] | None = None
    form: str = "table"
    has_offsets: bool = True
    has_sizes: bool = False

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        """The chunks of a log partition in offset order; the rows may be in any order.

        Rows wait until all rows with lower offsets are read, so memory depends on how much row groups
        overlap.

        Raises:
            InputError: if a file cannot be read, an offset is missing, or a text is neither base64 nor
                hexadecimal.
        """
        yield from rows_in_chunks(self._read(log, chunk), chunk)

    def _read(self, log: LogPartition, chunk: int) -> Iterator[tuple[Rows, int]]:
        """The rows in the order of the files, and with each part the lowest offset that follows."""
        starts = [*(group.first_offset for group in self.groups[1:]), LARGEST_OFFSET]
        path, file = "", None
        for group, following in zip(self.groups, starts, strict=True):
            try:
                if file is None or log.segments[group.file].path != path:
                    path = log.segments[group.file].path
                    file = pq.ParquetFile(parquet_source(path))
                for rows, least in self._read_group(file, group, log, chunk):
                    yield rows, min(least, following)
            except NotEncodedError:
                raise InputError(
                    f"{path}: row group {group.number}: {NOT_ENCODED}; give binary columns, or one of these"
                ) from None
            except (pa.ArrowException, OSError) as error:
                reason = str(error).splitlines()[0]
                raise InputError(f"{path}: row group {group.number}: cannot be read ({reason})") from None

    def _read_group(
        self, file: pq.ParquetFile, group: RowGroup, log: LogPartition, chunk: int
    ) -> Iterator[tuple[Rows, int]]:
        names, columns = set(file.schema_arrow.names), self.columns
        identity = [name for name in (columns.offset, columns.partition, columns.topic) if name in names]
        identities = file.read_row_group(
            group.number, columns=identity if not group.alone else [columns.offset]
        )
        offsets = int64_column(
            identities[columns.offset], columns.offset, log.segments[group.file].path, group.rows_before
        )
        is_of_log = (
            np.ones(len(offsets), bool)
            if group.alone
            else _is_of_log(identities, columns, log.topic, log.partition)
        )
        # The lowest offset of this log from each row to the end.
        least = np.minimum.accumulate(np.where(is_of_log, offsets, LARGEST_OFFSET)[::-1])[::-1]
        step = int(np.clip(chunk * len(offsets) // max(group.size, 1), 1, _MAX_ROWS))
        names_to_read = [name for name in (columns.key, columns.value, columns.timestamp) if name in names]
        at = 0
        batches = file.iter_batches(step, row_groups=[group.number], columns=names_to_read)
        for batch in map(without_views, batches):
            end = at + batch.num_rows
            selected = np.flatnonzero(is_of_log[at:end])
            if len(selected):
                part = batch if len(selected) == batch.num_rows else batch.take(pa.array(selected))
                has_times = columns.timestamp in names
                times = (
                    timestamp_ms(part[columns.timestamp]) if has_times else np.full(len(selected), NO_TIME)
                )
                numbers = at + selected
                rows = arrow_rows(part[columns.key], part[columns.value], offsets[numbers], times, group.file,
                               numbers + group.rows_before)  # fmt: skip
                yield rows, int(least[end]) if end < len(least) else LARGEST_OFFSET
            at = end


def _is_of_log(rows: pa.Table, columns: Columns, topic: str, partition: int | None) -> np.ndarray:
    """Mask of the rows of a topic and partition; missing columns are ignored."""
    mask = np.ones(len(rows), bool)
    for name, kind, value in (
        (columns.topic, pa.string(), topic),
        (columns.partition, pa.int64(), partition),
    ):
        if name in rows.column_names:
            mask &= np.asarray(pc.fill_null(pc.equal(rows[name].cast(kind), pa.scalar(value, kind)), False))
    return mask


def int64_column(column: pa.ChunkedArray, name: str, path: str, rows_before: int) -> np.ndarray:
    """Convert a column of integers.

    Refuses null, negative numbers, and 2^63 - 1, which no record has as its offset.

    Raises:
        InputError: if a value is refused; the message has its row in the file.
    """
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null()))[0]) + rows_before
        raise InputError(f"{path}: row {row}: {name} is null; each record needs a value")
    numbers = column.cast(pa.int64()).to_numpy()
    if len(numbers) and (numbers.min() < 0 or numbers.max() == LARGEST_OFFSET):
        row = int(np.flatnonzero((numbers < 0) | (numbers == LARGEST_OFFSET))[0])
        raise InputError(f"{path}: row {row + rows_before}: {name} is {numbers[row]}, not from 0 to 2^63 - 2")
    return numbers


_PLAUSIBLE_MS = (1_420_070_400_000, 4_102_444_800_000)
"""From 2015 to 2100; the times of these years in another unit are far outside."""

_UNITS = {"seconds": 1_000, "microseconds": 1e-3, "nanoseconds": 1e-6}
"""Unit -> ms in it."""


def check_time_unit(path: str, name: str, least: int, greatest: int) -> None:
    """Refuse times that are in another unit than ms: durations and the order in time would be wrong.

    Args:
        path, name: of the table, and of its column.
        least, greatest: the earliest and the latest time, as if they were ms.
    Raises:
        InputError: if both are plausible in seconds, micro- or nanoseconds only.
    """
    first, end = _PLAUSIBLE_MS
    for unit, factor in _UNITS.items():
        if first <= least * factor and greatest * factor < end:
            raise InputError(
                f"{path}: column {name} holds {unit} since 1970 ({least} to {greatest}), not milliseconds;"
                " write it in milliseconds, or as a timestamp"
            )


def known_span(path: str, name: str, times: np.ndarray) -> tuple[int, int] | None:
    """The first and the last known time (ms); None if none is known.

    Args:
        path, name: of the table, and of its column.
        times: int64, as of `timestamp_ms`.
    Raises:
        InputError: as `check_time_unit`.
    """
    if not len(known := times[times > 0]):
        return None
    span = int(known.min()), int(known.max())
    check_time_unit(path, name, *span)
    return span


def timestamp_ms(column: pa.Array) -> np.ndarray:
    """Convert timestamps, or integer milliseconds as Kafka Connect writes them, to int64; NO_TIME for null."""
    if pa.types.is_timestamp(column.type):
        # Kafka's timestamps are milliseconds; sinks may write micro- or nanoseconds.
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    return column.cast(pa.int64()).fill_null(NO_TIME).to_numpy(zero_copy_only=False)
