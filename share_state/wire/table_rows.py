"""Reads a log partition from Parquet files with the columns of Spark's Kafka source: row group after row group."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from share_state.errors import InputError
from share_state.wire.chunk import Chunk
from share_state.wire.kafka_rows import NO_TIME, NotBase64Error, Rows, chunk_of, joined, rows_of
from share_state.wire.log_folder import LogPartition
from share_state.wire.places import parquet_source
from share_state.wire.share_group_state import LARGEST_OFFSET

_MOST_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Columns:
    """What the columns of a table are called; as Spark's Kafka source calls them by default."""

    key: str = "key"
    value: str = "value"
    topic: str = "topic"
    partition: str = "partition"
    offset: str = "offset"
    timestamp: str = "timestamp"

    @classmethod
    def named(cls, given: Mapping[str, str]) -> "Columns":
        """The columns, some under other names.

        Args:
            given: one of ours -> its name in the table.
        Raises:
            InputError: if there is no such column.
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise InputError(f"--column {name}={given[name]}: no such column; give one of {', '.join(known)}")
        return cls(**given)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Where rows of one log partition lie.

    Attributes:
        file: number among the log's segments.
        number: of the row group in its file.
        rows_before: rows of the file before it.
        first_offset, last_offset: at least and at most of the log's rows in it.
        alone: whether all of its rows are of this log partition.
    """

    file: int
    number: int
    rows_before: int
    first_offset: int
    last_offset: int
    alone: bool


@dataclass(frozen=True, slots=True)
class TableRows:
    """A log partition in Parquet files, as a Source.

    Attributes:
        columns: their names.
        groups: the row groups that hold its rows, by first offset.
        has_times: whether there is a column of timestamps.
    """

    columns: Columns
    groups: tuple[RowGroup, ...]
    has_times: bool
    form: str = "table"
    has_offsets: bool = True
    has_sizes: bool = False

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        """The chunks of a log partition in offset order, whatever the order of the rows.

        Rows wait until no row that is still unread can come before them, so what is in memory is bounded by how far
        the row groups' offsets overlap.

        Raises:
            InputError: if a file cannot be read, or a row has no offset, or a text that is not base64.
        """
        held: list[Rows] = []
        for rows, bound in self._read(log, chunk):
            held.append(rows)
            ready = sum(len(part.data) for part in held if _greatest(part) < bound)
            if ready < chunk:
                continue
            together = joined(held)
            goes = together.records["offset"] < bound
            yield chunk_of(together if goes.all() else together.take(goes))
            held = [] if goes.all() else [together.take(~goes).compact()]
        if held:
            yield chunk_of(joined(held))

    def _read(self, log: LogPartition, chunk: int) -> Iterator[tuple[Rows, int]]:
        """The rows as they lie, each stretch with the least offset that comes after it."""
        starts = [*(group.first_offset for group in self.groups[1:]), LARGEST_OFFSET]
        path, file = "", None
        for group, following in zip(self.groups, starts, strict=True):
            try:
                if file is None or log.segments[group.file].path != path:
                    path = log.segments[group.file].path
                    file = pq.ParquetFile(parquet_source(path))
                for rows, least in self._of_group(file, group, log, chunk):
                    yield rows, min(least, following)
            except NotBase64Error:
                raise InputError(
                    f"{path}: row group {group.number}: a key or value is text but not padded base64;"
                    f" give binary columns, or base64"
                ) from None
            except (pa.ArrowException, OSError) as error:
                said = str(error).splitlines()[0]
                raise InputError(f"{path}: row group {group.number}: cannot be read ({said})") from None

    def _of_group(
        self, file: pq.ParquetFile, group: RowGroup, log: LogPartition, chunk: int
    ) -> Iterator[tuple[Rows, int]]:
        names, columns = set(file.schema_arrow.names), self.columns
        placed = [name for name in (columns.offset, columns.partition, columns.topic) if name in names]
        where = file.read_row_group(group.number, columns=placed if not group.alone else [columns.offset])
        offsets = integers(where[columns.offset], columns.offset, log.segments[group.file].path, group.rows_before)
        mine = np.ones(len(offsets), bool)
        if not group.alone:
            mine = belongs(where, columns, log.topic, log.partition)
        # From the end back: the least offset of ours that comes after each row.
        least = np.minimum.accumulate(np.where(mine, offsets, LARGEST_OFFSET)[::-1])[::-1]
        held = file.metadata.row_group(group.number).total_byte_size
        step = int(np.clip(chunk * len(offsets) // max(held, 1), 1, _MOST_ROWS))
        wanted = [name for name in (columns.key, columns.value, columns.timestamp) if name in names]
        at = 0
        for batch in file.iter_batches(step, row_groups=[group.number], columns=wanted):
            end = at + batch.num_rows
            chosen = np.flatnonzero(mine[at:end])
            if len(chosen):
                part = batch if len(chosen) == batch.num_rows else batch.take(pa.array(chosen))
                has_times = columns.timestamp in names
                times = milliseconds(part[columns.timestamp]) if has_times else np.full(len(chosen), NO_TIME)
                place = at + chosen
                rows = rows_of(part[columns.key], part[columns.value], offsets[place], times, group.file,
                               place + group.rows_before)  # fmt: skip
                yield rows, int(least[end]) if end < len(least) else LARGEST_OFFSET
            at = end


def _greatest(rows: Rows) -> int:
    return int(rows.records["offset"].max())


def belongs(rows: pa.Table, columns: Columns, topic: str, partition: int | None) -> np.ndarray:
    """Which rows are of a topic and of one of its partitions; a column that is not there says nothing."""
    mine = np.ones(len(rows), bool)
    if columns.topic in rows.column_names:
        mine &= _true(pc.call_function("equal", [rows[columns.topic].cast(pa.string()), pa.scalar(topic)]))
    if columns.partition in rows.column_names:
        mine &= _true(pc.call_function("equal", [rows[columns.partition].cast(pa.int64()), pa.scalar(partition)]))
    return mine


def _true(answers: Any) -> np.ndarray:
    return (
        answers.fill_null(False).to_numpy(zero_copy_only=False)
        if isinstance(answers, pa.Array)
        else np.asarray(answers.fill_null(False).to_numpy())
    )


def integers(column: pa.ChunkedArray, name: str, path: str, rows_before: int) -> np.ndarray:
    """A column of whole numbers that must not be null or negative.

    Raises:
        InputError: if one is, with its row in the file.
    """
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null()))[0]) + rows_before
        raise InputError(f"{path}: row {row}: {name} is null; each record needs one")
    numbers = column.cast(pa.int64()).to_numpy()
    if len(numbers) and numbers.min() < 0:
        row = int(np.flatnonzero(numbers < 0)[0])
        raise InputError(f"{path}: row {row + rows_before}: {name} is {numbers[row]}; it begins at 0")
    return numbers


def milliseconds(column: pa.Array) -> np.ndarray:
    """Timestamps, or milliseconds as Kafka Connect keeps them, as int64; NO_TIME for null."""
    if pa.types.is_timestamp(column.type):
        # Sinks keep micro- or nanoseconds; Kafka's stamps are whole milliseconds.
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    return column.cast(pa.int64()).fill_null(NO_TIME).to_numpy(zero_copy_only=False)
