"""Writes rows as the Parquet files of Delta tables: tasks write files, a later commit adds them to the table."""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType, LocalFileSystem

from share_state.delta.reader import open_dataset, open_filesystem, warehouse_errors
from share_state.schema.declarations import stored_schema, table_schema

FILE_TYPE = pa.struct(
    [
        ("table", pa.string()),
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("stats", pa.string()),
    ]
)
"""A written file: its table, path within the table, bytes, rows, and Delta's statistics as JSON."""

FILE_SCHEMA = pa.schema(list(FILE_TYPE))

File = Mapping[str, Any]
"""The fields of FILE_TYPE."""

ROW_GROUP_SIZE = 128 << 10
"""Rows of a row group; batches of this size fill whole ones."""

_ROWS_PER_FILE = 4_000_000
_LONGEST_STATISTIC = 256
_SMALL_FILE, _MERGED_BYTES = 8 << 20, 64 << 20
_WRITE_BATCH_SIZE = 1 << 15
"""Values that pyarrow encodes at a time; its default of 1024 writes a sixth slower."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Writes files into the folders of a warehouse's tables; readers see them once a commit names them.

    Attributes:
        root: the warehouse, a folder or an address.
        attempt: a part of every file's name, so that `discard` recognises the files of a failed attempt.
        folders: table -> its folder below the root if it differs from the table's name; "" is the root itself.
    """

    root: str
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    folders: Mapping[str, str] = field(default_factory=dict)

    def folder(self, table: str) -> str:
        """The path or address of a table's folder."""
        name = self.folders.get(table, table)
        return f"{self.root}/{name}" if name else self.root

    def write(self, table: str, batches: Iterable[pa.RecordBatch]) -> list[File]:
        """Write rows.

        Args:
            table: its name; schemas/tables declares its columns.
            batches: rows with these columns; all batches must encode text alike (plain or by dictionary).
        Returns:
            The files written; none if there are no rows.
        Raises:
            WarehouseError: if an object store refuses.
        """
        schema, written = table_schema(table), list[File]()
        open_file: _OpenFile | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            if open_file is None:
                open_file = _OpenFile(self, table, _keep_dictionaries(schema, batch.schema))
            open_file.write(batch)
            if open_file.rows >= _ROWS_PER_FILE:
                written.append(open_file.close())
                open_file = None
        if open_file is not None:
            written.append(open_file.close())
        return written

    def new_file(self, table: str, suffix: str) -> tuple[str, pa.NativeFile]:
        """Open a new file in a table's folder: its name and the stream to write to.

        Raises:
            WarehouseError: if an object store refuses.
        """
        name, folder = f"part-{self.attempt}-{uuid.uuid4().hex}.{suffix}", self.folder(table)
        with warehouse_errors(folder):
            filesystem, path = open_filesystem(folder)
            if isinstance(filesystem, LocalFileSystem):
                filesystem.create_dir(path, recursive=True)
            return name, filesystem.open_output_stream(f"{path}/{name}")

    def read(self, table: str, names: Iterable[str], columns: Sequence[str] | None = None) -> pa.Table:
        """Read files of a table, given by their names within its folder; by default all columns."""
        chosen = None if columns is None else list(columns)
        paths = [f"{self.folder(table)}/{name}" for name in names]
        if not paths:
            return table_schema(table).empty_table().select(chosen or table_schema(table).names)
        return open_dataset(table, paths).to_table(columns=chosen)

    def merge(self, table: str, files: Sequence[File]) -> list[File]:
        """Rewrite small files of a table, each of a log partition, as one; at most 64 MB, as one thread writes them."""
        small, size = list[File](), 0
        for file in sorted(files, key=lambda file: file["size"]):
            size += file["size"]
            if file["size"] > _SMALL_FILE or size > _MERGED_BYTES:
                break
            small.append(file)
        if len(small) < 2:
            return list(files)
        names = {file["path"] for file in small}
        rows = open_dataset(table, [f"{self.folder(table)}/{file['path']}" for file in small]).to_batches()
        return [file for file in files if file["path"] not in names] + self.write(table, rows)

    def clear(self, table: str) -> None:
        """Delete what a run left in the folder of a table that has no commit yet."""
        filesystem, folder = open_filesystem(self.folder(table))
        if filesystem.get_file_info(folder).type == FileType.Directory:
            filesystem.delete_dir(folder)

    def discard(self, tables: Iterable[str], kept: frozenset[str]) -> None:
        """Delete the files of this attempt that no commit names.

        Args:
            tables: those that it may have written.
            kept: paths, within their tables, of committed files.
        """
        for table in tables:
            filesystem, folder = open_filesystem(self.folder(table))
            listed = filesystem.get_file_info(FileSelector(folder, allow_not_found=True))
            ours = [info for info in listed if self.attempt in info.base_name and info.base_name not in kept]
            for info in ours:
                filesystem.delete_file(info.path)
            if ours and len(ours) == len(listed):
                filesystem.delete_dir(folder)


def _keep_dictionaries(declared: pa.Schema, given: pa.Schema) -> pa.Schema:
    """The declared columns, dictionary-encoded where the given ones are; Parquet stores the same text either way."""
    return pa.schema(
        [own if pa.types.is_dictionary(own.type) else wanted for own, wanted in zip(given, declared, strict=True)]
    )


def _repeating_leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """The leaves of a column that deserve a dictionary: offsets and times rarely repeat."""
    if pa.types.is_list(kind):
        yield from _repeating_leaves(f"{path}.list.element", kind.value_type)
    elif pa.types.is_struct(kind):
        for one in kind:
            yield from _repeating_leaves(f"{path}.{one.name}", one.type)
    elif not (pa.types.is_int64(kind) or pa.types.is_timestamp(kind) or pa.types.is_boolean(kind)):
        yield path


class _OpenFile:
    def __init__(self, files: TableFiles, table: str, schema: pa.Schema) -> None:
        self._table, self._schema, self._metadata = table, schema, []
        self._folder, self.rows = files.folder(table), 0
        self._name, self._sink = files.new_file(table, "parquet")
        leaves: Any = [leaf for one in schema for leaf in _repeating_leaves(one.name, one.type)]
        with warehouse_errors(self._folder):
            self._writer = pq.ParquetWriter(
                self._sink,
                schema,
                write_batch_size=_WRITE_BATCH_SIZE,
                use_dictionary=leaves,
                metadata_collector=self._metadata,
                store_schema=False,
            )

    def write(self, batch: pa.RecordBatch) -> None:
        with warehouse_errors(self._folder):
            self._writer.write_batch(batch.cast(self._schema), row_group_size=ROW_GROUP_SIZE)
        self.rows += batch.num_rows

    def close(self) -> File:
        with warehouse_errors(self._folder):
            self._writer.close()
            size = self._sink.tell()
            self._sink.close()
        found = _statistics(self._metadata[0])
        for one in stored_schema(self._table):
            if not one.nullable and found["nullCount"].get(one.name):
                raise ValueError(f"{self._folder}: the column {one.name} is declared NOT NULL and has a null")
        stats = json.dumps(found, ensure_ascii=False)
        return {"table": self._table, "path": self._name, "size": size, "rows": self.rows, "stats": stats}


def _statistics(written: pq.FileMetaData) -> dict[str, Any]:
    """Minimum, maximum and null count of the columns whose values JSON can hold unchanged.

    Source: Delta protocol, Per-file Statistics.
    """
    least, greatest, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for number in range(written.num_columns):
        columns = [written.row_group(group).column(number) for group in range(written.num_row_groups)]
        name, statistics = columns[0].path_in_schema, [column.statistics for column in columns]
        if "." in name or any(one is None or not one.has_null_count for one in statistics):
            continue
        nulls[name] = sum(one.null_count for one in statistics)
        ranges = [(one.min, one.max) for one in statistics if one.has_min_max]
        is_complete = all(one.has_min_max or one.num_values == 0 for one in statistics)
        if ranges and is_complete and all(_fits_json(value) for pair in ranges for value in pair):
            lowest, highest = min(low for low, _ in ranges), max(high for _, high in ranges)
            # Readers expect milliseconds: the maximum is rounded up.
            least[name], greatest[name] = _to_json(lowest), _to_json(highest, timedelta(microseconds=999))
    return {"numRecords": written.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}


def _fits_json(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_STATISTIC
    return isinstance(value, (int, datetime)) and not isinstance(value, bool)


def _to_json(value: Any, rounded: timedelta = timedelta()) -> Any:
    if not isinstance(value, datetime):
        return value
    return (value + rounded).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
