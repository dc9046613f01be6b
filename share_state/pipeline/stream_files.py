"""Parquet files with Spark's Kafka columns, as a stream reads them; `GrowingFolder` finds those that are new."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from share_state.errors import InputError, pluralize
from share_state.kafka.primitives import LARGEST_INT64
from share_state.sources.encoded_text import NOT_ENCODED, NotEncodedError, in_bytes
from share_state.sources.export_files import data_files
from share_state.sources.log_partition import LARGEST_PARTITION, STATE_TOPIC
from share_state.sources.new_records import NewRecords, Read
from share_state.sources.record_tables import CONSUMED, known_span, timestamp_ms
from share_state.sources.resume_point import ResumePoint
from share_state.sources.table_plan import list_table_files
from share_state.stores.object_stores import StoreUnavailableError
from share_state.stores.paths import parquet_source, to_path

_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
_ROWS_A_PART = 1 << 16
"""Rows of a file that are read at once."""
_MOST_ROWS = 1 << 20
"""Rows of a micro-batch after which no further file is opened."""

READ_ERRORS = (InputError, pa.ArrowException, OSError, KeyError, ValueError, TypeError)


def rows_by_log(table: pa.Table, name: str) -> tuple[dict[int, pa.Table], list[str]]:
    """Rows of a table with Spark's Kafka columns, as columns of CONSUMED by log partition; and what is left out.

    Args:
        table: key, value, partition, offset, and optionally topic and timestamp; keys and values are bytes,
            or text in base64 or hexadecimal.
        name: of the table, for messages.
    Raises:
        InputError: if its times are not in ms.
        NotEncodedError: if a text is in neither encoding.
    """
    if "topic" in table.column_names:
        is_state = pc.fill_null(pc.equal(table["topic"].cast(pa.string()), STATE_TOPIC), False)
        table = table if pc.all(is_state).as_py() else table.filter(is_state)
    partition, offset = (table[name].cast(pa.int64()) for name in ("partition", "offset"))
    is_placed = pc.and_(_is_within(partition, LARGEST_PARTITION), _is_within(offset, LARGEST_INT64 - 1))
    problems = list[str]()
    if unplaced := len(table) - (pc.sum(is_placed).as_py() or 0):
        problems = [f"{unplaced} rows without a partition or an offset that a log can have are left out"]
    if "timestamp" in table.column_names:
        times = np.concatenate(
            [timestamp_ms(chunk) for chunk in table["timestamp"].chunks] or [np.zeros(0, np.int64)]
        )
        known_span(name, "timestamp", times)
    else:
        times = np.full(len(table), -1)
    key, value = (in_bytes(table[column].combine_chunks()) for column in ("key", "value"))
    rows = pa.table({"key": key, "value": value, "offset": offset, "timestamp": times})
    if problems:
        rows, partition = rows.filter(is_placed), partition.filter(is_placed)
    rows, numbers = rows.cast(CONSUMED), partition.to_numpy()
    if (np.diff(numbers) < 0).any():
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows.take(pa.array(order)), numbers[order]
    logs, begins = np.unique(numbers, return_index=True)
    ends = np.append(begins, len(numbers))[1:]
    return {
        int(log): rows.slice(begin, end - begin) for log, begin, end in zip(logs, begins, ends, strict=True)
    }, problems


def _is_within(numbers: pa.ChunkedArray, largest: int) -> pa.ChunkedArray:
    """bool, whether numbers are from 0 to the largest one."""
    is_within = pc.and_(pc.greater_equal(numbers, 0), pc.less_equal(numbers, largest))
    return pc.fill_null(is_within, False)


def read_file(path: str, root: str) -> Iterator[pa.Table]:
    """The rows of a Parquet file, with the columns that the folders between `root` and it name.

    Raises:
        Exception: one of READ_ERRORS if it cannot be read, such as for a missing column.
    """
    (found,) = list_table_files([to_path(path)], to_path(root))
    with pq.ParquetFile(parquet_source(path)) as file:
        names = [name for name in _COLUMNS if name in file.schema_arrow.names]
        for batch in file.iter_batches(_ROWS_A_PART, columns=names):
            table = pa.Table.from_batches([batch])
            for name in ("topic", "partition"):
                if name not in names and name in found.constants:
                    constant = pa.scalar(found.constants[name])
                    constant = constant.cast(pa.int64()) if name == "partition" else constant
                    table = table.append_column(name, pa.repeat(constant, len(table)))
            yield table


def unreadable(path: str, error: Exception) -> str:
    """The problem of a file that cannot be read."""
    reason = str(error) if isinstance(error, InputError) else f"{path}: cannot be read ({first_line(error)})"
    return f"{reason}; its records are left out"


def first_line(error: Exception) -> str:
    """The first line of an error."""
    if isinstance(error, NotEncodedError):
        return NOT_ENCODED
    return (str(error).splitlines() or [type(error).__name__])[0]


def check_readable(folder: str, root: str) -> None:
    """Refuse a local folder in which no Parquet file can be read; one without files may grow.

    Args:
        folder: the folder as the user wrote it.
        root: its path from the root of the file system.
    Raises:
        InputError: naming the first file.
    """
    problem, count = "", 0
    for path in sorted(map(str, Path(root).rglob("*.parquet"))):
        try:
            for table in read_file(path, root):
                rows_by_log(table, path)
                break
        except READ_ERRORS as error:
            reason = str(error) if isinstance(error, InputError) else f"{path}: {first_line(error)}"
            problem, count = problem or reason, count + 1
        else:
            return
    if problem:
        raise InputError(
            f"{folder}: none of its {pluralize(count, 'Parquet file')} can be read ({problem}); "
            "give a folder of Parquet files with Spark's Kafka columns"
        )


class GrowingFolder:
    """Reads new Parquet files of a folder, in order of modification time."""

    def __init__(self, folder: str, most_files: int) -> None:
        """Begin; nothing is read yet.

        Args:
            folder: path or address.
            most_files: maximum number of files to read at once.
        """
        self._folder, self._most_files = folder, most_files
        self._seen = set[str]()
        self._known: dict[int, int] | None = None

    def read(self, marks: Mapping[int, ResumePoint]) -> Read:
        """The rows of new files; of files that are there at first, those that hold records beyond the marks.

        Raises:
            InputError: if the folder cannot be listed.
        """
        new = self._new_files()
        if self._known is None:
            # What an earlier process has read.
            self._known = {number: mark.next_offset for number, mark in marks.items()}
        by_log = dict[int, list[pa.Table]]()
        problems = list[str]()
        count = 0
        taken = 0
        for path in new:
            if taken == self._most_files or count >= _MOST_ROWS:
                break
            taken += 1
            self._seen.add(path)
            try:
                if self._known and _is_read(path, self._folder, self._known):
                    continue
                found = [rows_by_log(table, path) for table in read_file(path, self._folder)]
            except (*READ_ERRORS, StoreUnavailableError) as error:
                problems.append(unreadable(path, error))
                continue
            for rows, left_out in found:
                problems += [f"{path}: {problem}" for problem in left_out]
                count += sum(map(len, rows.values()))
                for number, part in rows.items():
                    by_log.setdefault(number, []).append(part)
        parts = [NewRecords(number, pa.concat_tables(tables)) for number, tables in sorted(by_log.items())]
        return Read([*parts], problems, has_more=taken < len(new))

    def close(self) -> None:
        """Nothing to close."""

    def _new_files(self) -> list[str]:
        """The paths of files that were not read, the oldest first; a file without bytes may still be written."""
        found = list[tuple[float, str]]()
        for file in data_files(to_path(self._folder)):
            path = str(file)
            if path in self._seen or not path.endswith(".parquet"):
                continue
            stat = file.stat()
            if stat.st_size:
                found.append((stat.st_mtime, path))
        return [path for _, path in sorted(found)]


def _is_read(path: str, root: str, next_offsets: Mapping[int, int]) -> bool:
    """Whether the statistics of a file show that all of its records were read before."""
    (table_file,) = list_table_files([to_path(path)], to_path(root))
    with pq.ParquetFile(parquet_source(path)) as file:
        names = file.schema_arrow.names
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            spans = dict[str, tuple[Any, Any]]()
            for column in range(group.num_columns):
                chunk = group.column(column)
                values = chunk.statistics
                if (
                    chunk.path_in_schema in ("partition", "offset")
                    and values is not None
                    and values.has_min_max
                ):
                    if values.null_count:
                        return False
                    spans[chunk.path_in_schema] = (values.min, values.max)
            if "partition" not in names and "partition" in table_file.constants:
                constant = int(table_file.constants["partition"])
                spans["partition"] = (constant, constant)
            if spans.keys() != {"partition", "offset"} or spans["offset"][0] < 0:
                return False
            first, last = spans["partition"]
            known = (
                [next_offsets.get(log, 0) for log in range(first, last + 1)]
                if 0 <= last - first < 10_000
                else []
            )
            if not known or spans["offset"][1] >= min(known):
                return False
    return True
