"""Finds the log partitions in the footers of Parquet files: which row groups hold which offsets of which of them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from share_state.errors import InputError
from share_state.sources.discovery import STATE_TOPIC, LogPartition, Segment
from share_state.sources.object_stores import Place, names_below, parquet_source, unreadable
from share_state.sources.tables import Columns, RowGroup, TableRows, integers

MOST_WAITING = 256 << 20
"""Bytes of row groups that may have to be in memory at once because their offsets overlap."""

_SMALL = 64 << 20
_ROWS_LOOKED_AT = 4_000_000


@dataclass(frozen=True, slots=True)
class TableFile:
    """A Parquet file of a table.

    Attributes:
        path: of the file.
        constants: column -> value, as the names of its folders tell (`partition=3`).
    """

    path: str
    constants: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class TablePlan:
    """What the footers say.

    Attributes:
        logs: the log partitions, by number.
        other_topics: names of topics whose rows are passed over, as far as the footers tell.
        is_in_order: whether the logs can be read as they are with little memory and no row group read much too often.
    """

    logs: list[LogPartition]
    other_topics: set[str]
    is_in_order: bool


@dataclass(slots=True)
class _Found:
    """The row groups of one log partition."""

    groups: list[RowGroup] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


def plan(files: Sequence[TableFile], columns: Columns, topics: Sequence[str] = (STATE_TOPIC,)) -> TablePlan:
    """Look into the footers, and into the columns of offsets and partitions where a footer does not tell enough.

    Args:
        files: of one table.
        columns: what its columns are called.
        topics: those that are wanted, first the one that must be there; a table without topics is of it.
    Raises:
        InputError: if a file is not Parquet, lacks a column or has one of another type, or holds no record of the first
            topic.
    """
    found: dict[tuple[str, int | None], _Found] = {}
    others, total, amplified, looked_at, has_times, mixed = set[str](), 0, 0, 0, True, False
    for number, file in enumerate(files):
        with _opened(file.path) as parquet:
            check_columns(parquet.schema_arrow, columns, file)
            has_times &= columns.timestamp in parquet.schema_arrow.names
            rows_before = 0
            for group in range(parquet.num_row_groups):
                meta = parquet.metadata.row_group(group)
                total += meta.total_byte_size
                spans = _told(meta, file, columns, topics[0])
                if spans is None:
                    looked_at += meta.num_rows
                    if looked_at > _ROWS_LOOKED_AT:
                        mixed = True
                        break
                    spans = _looked(parquet, group, file, columns, rows_before, topics)
                for topic, partition, first, last, rows in spans:
                    if topic not in topics:
                        others.add(topic)
                        continue
                    of_log = found.setdefault((topic, partition), _Found())
                    alone = rows == meta.num_rows
                    of_log.groups.append(RowGroup(number, group, rows_before, first, last, alone))
                    of_log.sizes.append(meta.total_byte_size)
                    amplified += meta.total_byte_size
                rows_before += meta.num_rows
    if mixed:
        return TablePlan([], others, is_in_order=False)
    there = {topic for topic, _ in found}
    if topics[0] not in there:
        raise InputError(f"{files[0].path}: {nothing_of(topics[0], others | there)}")
    logs = [_log(*place, one, files, columns, has_times) for place, one in found.items()]
    logs.sort(key=lambda log: (topics.index(log.topic), -1 if log.partition is None else log.partition))
    light = amplified - total <= max(total // 2, _SMALL)
    return TablePlan(logs, others, light and max(map(_most_waiting, found.values())) <= MOST_WAITING)


def nothing_of(topic: str, others: Collection[str]) -> str:
    """What is wrong with a table that holds no record of a topic."""
    told = f"found rows of {', '.join(sorted(others)[:3])}" if others else "it has no rows"
    return f"no records of {topic} in this table ({told})"


def _opened(path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(parquet_source(path))
    except OSError as error:
        raise unreadable(path, error) from None
    except pa.ArrowException as error:
        raise InputError(f"{path}: not a whole Parquet file ({str(error).splitlines()[0]})") from None


def check_columns(schema: pa.Schema, columns: Columns, file: TableFile) -> None:
    """Refuse a table without the columns that a fold needs, or with others under their names.

    Raises:
        InputError: with the column, what it is and what it should be.
    """
    kinds = {
        "key": (columns.key, _is_bytes, "binary or base64 text"),
        "value": (columns.value, _is_bytes, "binary or base64 text"),
        "partition": (columns.partition, pa.types.is_integer, "a whole number"),
        "offset": (columns.offset, pa.types.is_integer, "a whole number"),
        "topic": (columns.topic, _is_text, "text"),
        "timestamp": (columns.timestamp, _is_time, "a timestamp or milliseconds"),
    }
    for ours, (name, is_right, wanted) in kinds.items():
        if name not in schema.names:
            if ours in ("topic", "timestamp") or name in file.constants:
                continue
            there = ", ".join(schema.names)
            raise InputError(f"{file.path}: no column {name} (there are {there}); say --column {ours}=NAME")
        if not is_right(schema.field(name).type):
            raise InputError(f"{file.path}: column {name} is {schema.field(name).type}, not {wanted}")


def _is_bytes(kind: pa.DataType) -> bool:
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return _is_text(kind) or any(check(kind) for check in binary)


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_time(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_integer(kind)


_Span = tuple[str, int | None, int, int, int]
"""(topic, partition, first offset, last offset, rows)"""


def _told(meta: Any, file: TableFile, columns: Columns, otherwise: str) -> list[_Span] | None:
    """The one log partition of a row group, where its footer tells that it is one."""
    if meta.num_rows == 0:
        return []
    told = {meta.column(number).path_in_schema: meta.column(number).statistics for number in range(meta.num_columns)}
    topic = _one(told, file, columns.topic, otherwise)
    partition = _one(told, file, columns.partition, None)
    offsets = told[columns.offset]
    if topic is None or partition is None or not _is_whole(offsets) or offsets.min < 0:
        return None
    topic = topic.decode() if isinstance(topic, bytes) else str(topic)
    return [(topic, int(partition), int(offsets.min), int(offsets.max), meta.num_rows)]


def _one(told: Mapping[str, Any], file: TableFile, name: str, otherwise: Any) -> Any:
    """The one value of a column of a row group; None where it is not known to be one."""
    if name not in told:
        return file.constants.get(name, otherwise)
    return told[name].min if _is_whole(told[name]) and told[name].min == told[name].max else None


def _is_whole(statistics: Any) -> bool:
    return statistics is not None and statistics.has_min_max and statistics.has_null_count and not statistics.null_count


def _looked(
    parquet: pq.ParquetFile, group: int, file: TableFile, columns: Columns, rows_before: int, wanted: Sequence[str]
) -> Iterator[_Span]:
    """The log partitions of a row group, by its rows."""
    names = [name for name in (columns.topic, columns.partition, columns.offset) if name in parquet.schema_arrow.names]
    table = parquet.read_row_group(group, columns=names)
    count = len(table)
    if columns.topic in names:
        encoded = table[columns.topic].combine_chunks().cast(pa.string()).dictionary_encode()
        topic_names, topic_of = encoded.dictionary.to_pylist(), encoded.indices.fill_null(-1).to_numpy(False)
    else:
        topic_names, topic_of = [file.constants.get(columns.topic, wanted[0])], np.zeros(count, np.int64)
    for name, rows in zip(topic_names, np.bincount(topic_of[topic_of >= 0], minlength=len(topic_names)), strict=True):
        if name not in wanted:
            yield name, None, 0, 0, int(rows)
    ours = np.isin(topic_of, [number for number, name in enumerate(topic_names) if name in wanted])
    topic_of = topic_of[ours]
    offsets = integers(table[columns.offset], columns.offset, file.path, rows_before)[ours]
    if columns.partition in names:
        partitions = integers(table[columns.partition], columns.partition, file.path, rows_before)[ours]
    else:
        partitions = np.full(len(offsets), int(file.constants[columns.partition]))
    for number, partition in np.unique(np.stack((topic_of, partitions)), axis=1).T.tolist():
        of_it = offsets[(topic_of == number) & (partitions == partition)]
        yield topic_names[number], partition, int(of_it.min()), int(of_it.max()), len(of_it)


def _log(
    topic: str, partition: int | None, found: _Found, files: Sequence[TableFile], columns: Columns, has_times: bool
) -> LogPartition:
    used = sorted({group.file for group in found.groups})
    sizes = dict.fromkeys(used, 0)
    for group, size in zip(found.groups, found.sizes, strict=True):
        sizes[group.file] += size
    firsts = {file: min(group.first_offset for group in found.groups if group.file == file) for file in used}
    segments = tuple(Segment(files[file].path, firsts[file], sizes[file]) for file in used)
    groups = sorted(found.groups, key=lambda group: (group.first_offset, group.file, group.number))
    renumbered = tuple(
        RowGroup(used.index(one.file), one.number, one.rows_before, one.first_offset, one.last_offset, one.alone)
        for one in groups
    )
    source = TableRows(columns, renumbered, has_times)
    return LogPartition(topic, partition, segments, groups[0].first_offset, source=source)


def _most_waiting(found: _Found) -> int:
    """The most bytes of row groups whose offsets overlap at any one offset, those that stand alone not counted."""
    edges = []
    for group, size in zip(found.groups, found.sizes, strict=True):
        edges += [(group.first_offset, 1, size), (group.last_offset + 1, 0, -size)]
    waiting = most = count = 0
    for _, opens, size in sorted(edges):
        waiting, count = waiting + size, count + (1 if opens else -1)
        most = max(most, waiting if count > 1 else 0)
    return most


def table_files(paths: Sequence[Place], root: Place) -> list[TableFile]:
    """Parquet files below a folder, each with what the folders between are called (`topic=x/partition=3`)."""
    found = []
    for path in paths:
        named = (part.partition("=") for part in names_below(path, root)[:-1]) if path != root else ()
        found.append(TableFile(str(path), {name: value for name, sign, value in named if sign}))
    return found
