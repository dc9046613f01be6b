"""Plans how to read log partitions from Parquet files: which row groups hold which offsets of which partition."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from share_state.errors import InputError
from share_state.kafka.buffers import is_text
from share_state.kafka.primitives import parse_digits
from share_state.kafka.state_records import LARGEST_OFFSET
from share_state.sources.log_partition import LARGEST_PARTITION, STATE_TOPIC, LogPartition, Segment
from share_state.sources.record_tables import (
    Columns,
    RowGroup,
    TableRows,
    check_distinct,
    check_time_unit,
    int64_column,
    known_span,
    timestamp_ms,
)
from share_state.stores.object_stores import read_errors
from share_state.stores.paths import InputPath, parquet_source

MAX_OVERLAP = 256 << 20
"""Bytes of row groups with overlapping offsets that may be in memory at a time."""

_MIN_REREAD = 64 << 20
_MAX_SCANNED_ROWS = 4_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A Parquet file of a table.

    Attributes:
        path: path of the file.
        constants: column -> value, from the names of its folders (such as `partition=3`).
    """

    path: str
    constants: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class TablePlan:
    """How to read the log partitions of a table.

    Attributes:
        logs: the log partitions, by number.
        other_topics: names of other topics, as far as known.
        is_in_order: whether the logs can be read in offset order with little memory and few repeated reads.
    """

    logs: list[LogPartition]
    other_topics: set[str]
    is_in_order: bool


def plan_table(
    files: Sequence[TableFile], columns: Columns, topics: Sequence[str] = (STATE_TOPIC,)
) -> TablePlan:
    """Plan from the footers; scans the columns of offsets and partitions if the statistics are insufficient.

    Args:
        files: files of one table.
        columns: names of its columns.
        topics: topics to read; the first must occur. A table without topics belongs to it.
    Raises:
        InputError: if a file is not Parquet, a column is missing or of another type, or there is no record of
            the first topic.
    """
    row_groups: dict[tuple[str, int], list[RowGroup]] = {}
    other_topics = set[str]()
    total = 0
    to_read = 0
    scanned = 0
    has_times = True
    is_mixed = False
    times = list[tuple[int, int] | None]()
    for number, file in enumerate(files):
        with parquet_errors(file.path), pq.ParquetFile(parquet_source(file.path)) as parquet:
            check_columns(parquet.schema_arrow, columns, file.path, file.constants)
            has_times &= columns.timestamp in parquet.schema_arrow.names
            times.append(_check_times(parquet, file.path, columns.timestamp))
            rows_before = 0
            for group in range(parquet.num_row_groups):
                meta = parquet.metadata.row_group(group)
                total += meta.total_byte_size
                spans = _span_in_footer(meta, file, columns, topics[0])
                if spans is None:
                    scanned += meta.num_rows
                    if scanned > _MAX_SCANNED_ROWS:
                        is_mixed = True
                        break
                    spans = _scanned_spans(parquet, group, file, columns, rows_before, topics[0])
                for topic, partition, first, last, rows in spans:
                    if topic not in topics:
                        other_topics.add(topic)
                        continue
                    if not 0 <= partition <= LARGEST_PARTITION:
                        raise InputError(
                            f"{file.path}: partition {partition}; Kafka's are from 0 to {LARGEST_PARTITION}"
                        )
                    size, is_alone = meta.total_byte_size, rows == meta.num_rows
                    row_group = RowGroup(number, group, rows_before, first, last, size, is_alone)
                    row_groups.setdefault((topic, partition), []).append(row_group)
                    to_read += size
                rows_before += meta.num_rows
    if is_mixed:
        return TablePlan([], other_topics, is_in_order=False)
    present = {topic for topic, _ in row_groups}
    if topics[0] not in present:
        raise InputError(f"{files[0].path}: {missing_topic_message(topics[0], other_topics | present)}")
    spans = [span for span in times if span is not None]
    span = (
        (min(first for first, _ in spans), max(last for _, last in spans))
        if len(spans) == len(times)
        else None
    )
    logs = [
        _log(*identity, groups, files, columns, has_times, span) for identity, groups in row_groups.items()
    ]
    logs.sort(key=lambda log: (topics.index(log.topic), log.partition))
    rereads_little = to_read - total <= max(total // 2, _MIN_REREAD)
    return TablePlan(
        logs, other_topics, rereads_little and max(map(_max_overlap, row_groups.values())) <= MAX_OVERLAP
    )


def missing_topic_message(topic: str, other_topics: Collection[str]) -> str:
    """The message for a table that has no record of a topic."""
    reason = f"found rows of {', '.join(sorted(other_topics)[:3])}" if other_topics else "it has no rows"
    return f"no records of {topic} in this table ({reason})"


@contextmanager
def parquet_errors(path: str) -> Iterator[None]:
    """Convert the errors of pyarrow and Python for a damaged footer, or a value out of range, to InputError."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            with read_errors(path):
                raise
        raise InputError(f"{path}: not a complete Parquet file ({_first_line(error)})") from None
    except (pa.ArrowException, ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise InputError(
            f"{path}: not a complete Parquet file ({_first_line(error)}); write it again"
        ) from None


def parquet_batches(
    path: str, columns: Sequence[str], check: Callable[[str, Sequence[str]], None] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read columns of a Parquet file.

    Args:
        path: path or address.
        columns: names.
        check: called with the path and the names of all columns; raises if the file lacks one.
    Raises:
        InputError: if it cannot be read.
    """
    with parquet_errors(path), pq.ParquetFile(parquet_source(path)) as file:
        if check is not None:
            check(path, file.schema_arrow.names)
        yield from file.iter_batches(columns=list(columns))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def check_columns(
    schema: pa.Schema,
    columns: Columns,
    label: str,
    constants: Mapping[str, str] = MappingProxyType({}),
    *,
    fix: str = "--column {ours}=NAME",
) -> None:
    """Refuse a table that lacks a column or has a column of a wrong type.

    Args:
        schema: of the table.
        columns: names of its columns.
        label: how messages name the table.
        constants: column -> value, from the names of its folders.
        fix: how the caller names a column, with `{ours}` for our name of it.
    Raises:
        InputError: naming the column.
    """
    kinds = {
        "key": (columns.key, _is_bytes, "binary, or text in base64 or hexadecimal"),
        "value": (columns.value, _is_bytes, "binary, or text in base64 or hexadecimal"),
        "partition": (columns.partition, pa.types.is_integer, "an integer"),
        "offset": (columns.offset, pa.types.is_integer, "an integer"),
        "topic": (columns.topic, is_text, "text"),
        "timestamp": (columns.timestamp, _is_time, "a timestamp or milliseconds"),
    }
    number = constants.get(columns.partition, "0")
    if columns.partition not in schema.names and parse_digits(str(number), LARGEST_PARTITION) is None:
        raise InputError(f"{label}: {columns.partition}={number} is no partition number; rename the folder")
    for ours, (name, is_right, expected) in kinds.items():
        if name not in schema.names:
            if ours in ("topic", "timestamp") or name in constants:
                continue
            existing = ", ".join(schema.names)
            given = fix.format(ours=ours)
            raise InputError(f"{label}: no column {name} (columns: {existing}); give {given}")
        check_distinct(label, name, schema.names)
        if not is_right(schema.field(name).type):
            raise InputError(f"{label}: column {name} is {schema.field(name).type}, not {expected}")


def _check_times(parquet: pq.ParquetFile, path: str, name: str) -> tuple[int, int] | None:
    """Refuse times that are not in ms.

    Returns the first and the last time in ms, if the footer shows them.
    """
    if name not in parquet.schema_arrow.names:
        return None
    spans = [_time_span(parquet.metadata.row_group(group), name) for group in range(parquet.num_row_groups)]
    known = [span for span in spans if span is not None]
    if known:
        span = min(least for least, _ in known), max(greatest for _, greatest in known)
        check_time_unit(path, name, *span)
        return span if len(known) == len(spans) else None
    for group in range(parquet.num_row_groups):
        times = timestamp_ms(parquet.read_row_group(group, columns=[name])[name].combine_chunks())
        if known_span(path, name, times) is not None:
            break
    return None


def _time_span(meta: Any, name: str) -> tuple[int, int] | None:
    """The first and the last time of a row group in ms; None if its statistics do not show them."""
    columns = [meta.column(number) for number in range(meta.num_columns)]
    statistics = next((column.statistics for column in columns if column.path_in_schema == name), None)
    if statistics is None or not statistics.has_min_max:
        return None
    try:
        least, greatest = (
            (value.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
            if isinstance(value, datetime)
            else value
            for value in (statistics.min, statistics.max)
        )
    except (OverflowError, ValueError):
        return None
    return (least, greatest) if isinstance(least, int) and least > 0 else None


def _is_bytes(kind: pa.DataType) -> bool:
    binary = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
        pa.types.is_binary_view,
    )
    return is_text(kind) or any(check(kind) for check in binary)


def _is_time(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_integer(kind)


_Span = tuple[str, int, int, int, int]
"""(topic, partition, first offset, last offset, rows)"""


def _span_in_footer(meta: Any, file: TableFile, columns: Columns, default_topic: str) -> list[_Span] | None:
    """The span of a row group from its statistics; None if they do not show a single log partition."""
    if meta.num_rows == 0:
        return []
    statistics = {
        meta.column(number).path_in_schema: meta.column(number).statistics
        for number in range(meta.num_columns)
    }
    topic = _single_value(statistics, file, columns.topic, default_topic)
    partition = _single_value(statistics, file, columns.partition, None)
    offsets = statistics[columns.offset]
    if topic is None or partition is None or not _is_complete(offsets):
        return None
    if not 0 <= offsets.min <= offsets.max < LARGEST_OFFSET:
        return None
    topic = topic.decode() if isinstance(topic, bytes) else str(topic)
    return [(topic, int(partition), int(offsets.min), int(offsets.max), meta.num_rows)]


def _single_value(statistics: Mapping[str, Any], file: TableFile, name: str, default: Any) -> Any:
    """The value of a column in a row group; None if there may be several."""
    if name not in statistics:
        return file.constants.get(name, default)
    column = statistics[name]
    return column.min if _is_complete(column) and column.min == column.max else None


def _is_complete(statistics: Any) -> bool:
    return (
        statistics is not None
        and statistics.has_min_max
        and statistics.has_null_count
        and not statistics.null_count
    )


def _scanned_spans(
    parquet: pq.ParquetFile,
    group: int,
    file: TableFile,
    columns: Columns,
    rows_before: int,
    default_topic: str,
) -> Iterator[_Span]:
    """The spans of a row group from its rows, one per log partition."""
    names = [
        name
        for name in (columns.topic, columns.partition, columns.offset)
        if name in parquet.schema_arrow.names
    ]
    table = parquet.read_row_group(group, columns=names)
    if columns.topic in names:
        topic = table[columns.topic].cast(pa.string())
    else:
        topic = pa.repeat(str(file.constants.get(columns.topic, default_topic)), len(table))
    if columns.partition in names:
        partition = int64_column(table[columns.partition], columns.partition, file.path, rows_before)
    else:
        partition = np.full(len(table), int(file.constants[columns.partition]))
    offset = int64_column(table[columns.offset], columns.offset, file.path, rows_before)
    rows = pa.table({"topic": topic, "partition": partition, "offset": offset}).filter(
        pc.field("topic").is_valid()
    )
    grouped = rows.group_by(["topic", "partition"], use_threads=False)
    spans = grouped.aggregate([("offset", "min"), ("offset", "max"), ("offset", "count")])
    yield from zip(*(column.to_pylist() for column in spans.columns), strict=True)


def _log(
    topic: str,
    partition: int,
    groups: list[RowGroup],
    files: Sequence[TableFile],
    columns: Columns,
    has_times: bool,
    times: tuple[int, int] | None,
) -> LogPartition:
    groups.sort(key=lambda group: (group.first_offset, group.file, group.number))
    used = sorted({group.file for group in groups})
    groups_of_file = [[group for group in groups if group.file == file] for file in used]
    segments = tuple(
        Segment(files[file].path, file_groups[0].first_offset, sum(group.size for group in file_groups))
        for file, file_groups in zip(used, groups_of_file, strict=True)
    )
    own = tuple(replace(group, file=used.index(group.file)) for group in groups)
    source = TableRows(columns, own, has_times, times)
    return LogPartition(topic, partition, segments, groups[0].first_offset, source=source)


def _max_overlap(groups: Sequence[RowGroup]) -> int:
    """The most bytes of row groups that overlap at one offset; 0 if none overlap."""
    edges = [(group.first_offset, 1, group.size) for group in groups]
    edges += [(group.last_offset + 1, 0, -group.size) for group in groups]
    open_size = 0
    most = 0
    open_count = 0
    for _, opens, size in sorted(edges):
        open_size, open_count = open_size + size, open_count + (1 if opens else -1)
        most = max(most, open_size if open_count > 1 else 0)
    return most


def list_table_files(paths: Sequence[InputPath], root: InputPath) -> list[TableFile]:
    """Parquet files below a folder, with the column values in the folder names between (`topic=x/partition=3`)."""
    files = []
    for path in paths:
        folders = (
            (part.partition("=") for part in path.relative_to(str(root)).parts[:-1]) if path != root else ()
        )
        files.append(TableFile(str(path), {name: value for name, sign, value in folders if sign}))
    return files
