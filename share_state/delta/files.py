"""Rows of a table as Parquet files that no commit names yet: whoever holds rows writes them, a commit comes later.

Tables of a store that only Spark can put in order: copied to a scratch folder, as Spark has no client for stores.
"""

import atexit
import json
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem

from share_state.errors import InputError, WarehouseError
from share_state.schema.declarations import table_schema
from share_state.sources.object_stores import STREAM, NotOpenedError, StorePath, parted, refusal

if TYPE_CHECKING:
    import pyarrow.dataset as ds


FILE = pa.struct(
    [
        ("table", pa.string()),
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("stats", pa.string()),
    ]
)
"""A written file as it travels: path within its table, bytes, rows, and what Delta keeps of it."""

FILES = pa.schema(list(FILE))
"""Rows that are files each."""

File = Mapping[str, Any]
"""The fields of FILE."""

_ROWS_A_FILE = 4_000_000
ROWS_A_GROUP = 128 << 10
"""Rows of a row group; batches of so many make whole ones."""
_LONGEST_STATISTIC = 256
_VALUES_AT_A_TIME = 1 << 15
"""Of a column, while it is encoded; with pyarrow's 1024 writing takes a sixth longer."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Writes files into the folders of a warehouse's tables; readers do not see them before a commit names them.

    Attributes:
        root: the warehouse, a folder or a URI.
        attempt: a part of every file's name: what a failed attempt left can be told from all else.
        folders: table -> its folder below the root, where that is not called as the table is; "" for the root itself.
    """

    root: str
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    folders: Mapping[str, str] = field(default_factory=dict)

    def folder(self, table: str) -> str:
        """The folder of a table, a path or an address."""
        name = self.folders.get(table, table)
        return f"{self.root}/{name}" if name else self.root

    def write(self, table: str, batches: Iterable[pa.RecordBatch]) -> list[File]:
        """Write rows.

        Args:
            table: its name; the columns are those that schemas/tables declares.
            batches: of the rows, in that order of columns; texts may be dictionary-encoded, in all batches the same.
        Returns:
            What was written; no file where there is no row.
        Raises:
            WarehouseError: if a store says no.
        """
        schema, written = table_schema(table), list[File]()
        open_file: _OpenFile | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            if open_file is None:
                open_file = _OpenFile(self, table, _as_given(schema, batch.schema))
            open_file.write(batch)
            if open_file.rows >= _ROWS_A_FILE:
                written.append(open_file.close())
                open_file = None
        if open_file is not None:
            written.append(open_file.close())
        return written

    def new_file(self, table: str, suffix: str) -> tuple[str, pa.NativeFile]:
        """Begin a file in the folder of a table, which is made where folders are made: its name, and what it takes.

        Raises:
            WarehouseError: if a store says no.
        """
        name, folder = f"part-{self.attempt}-{uuid.uuid4().hex}.{suffix}", self.folder(table)
        with asking(folder):
            filesystem, place = filesystem_of(folder)
            if isinstance(filesystem, LocalFileSystem):
                filesystem.create_dir(place, recursive=True)
            return name, filesystem.open_output_stream(f"{place}/{name}")

    def read(self, table: str, names: Iterable[str], columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of some files of a table.

        Args:
            table: its name.
            names: of the files, within its folder.
            columns: only these.
        """
        found = rows_of(table, [f"{self.folder(table)}/{name}" for name in names])
        return found.to_table(columns=None if columns is None else list(columns))

    def discard(self, tables: Iterable[str], kept: frozenset[str]) -> None:
        """Delete what this attempt wrote and nobody committed.

        Args:
            tables: names of the tables that it may have written.
            kept: paths within their tables of the files that a commit names.
        """
        for table in tables:
            filesystem, folder = filesystem_of(self.folder(table))
            listed = filesystem.get_file_info(FileSelector(folder, allow_not_found=True))
            ours = [info for info in listed if self.attempt in info.base_name and info.base_name not in kept]
            for info in ours:
                filesystem.delete_file(info.path)
            if ours and len(ours) == len(listed):
                filesystem.delete_dir(folder)


def rows_of(table: str, paths: Sequence[str]) -> "ds.Dataset":
    """The rows of some files of one table, not read yet.

    Args:
        table: its name.
        paths: or addresses, all of one warehouse; at least one.
    """
    # It imports pandas, which takes as long as many a command.
    import pyarrow.dataset as ds  # noqa: PLC0415

    filesystem = filesystem_of(paths[0])[0]
    return ds.dataset([filesystem_of(path)[1] for path in paths], table_schema(table), "parquet", filesystem)


def filesystem_of(place: str) -> tuple[FileSystem, str]:
    """Where a path or an address lies, and what it is called there.

    Raises:
        InputError: if it is an address that cannot be opened.
    """
    if "://" not in place:
        return LocalFileSystem(), str(Path(place).absolute())
    store, rest = parted(place)
    return store.file_system, f"{store.root}{rest}"


@contextmanager
def asking(place: str) -> Iterator[None]:
    """Turns what an object store says into a WarehouseError with the address; local errors stay what they are.

    Args:
        place: what is asked for, a path or an address.
    """
    try:
        yield
    except (OSError, NotOpenedError) as error:
        if "://" not in place:
            raise
        raise WarehouseError(str(refusal(place, error))) from None


def _as_given(declared: pa.Schema, given: pa.Schema) -> pa.Schema:
    """The declared columns, those that are given dictionary-encoded left so: a file holds the same texts either way."""
    return pa.schema(
        [own if pa.types.is_dictionary(own.type) else wanted for own, wanted in zip(given, declared, strict=True)]
    )


def _repeating(path: str, kind: pa.DataType) -> Iterator[str]:
    """The leaves of a column whose values are worth a dictionary: offsets and times hardly ever come twice."""
    if pa.types.is_list(kind):
        yield from _repeating(f"{path}.list.element", kind.value_type)
    elif pa.types.is_struct(kind):
        for one in kind:
            yield from _repeating(f"{path}.{one.name}", one.type)
    elif not (pa.types.is_int64(kind) or pa.types.is_timestamp(kind) or pa.types.is_boolean(kind)):
        yield path


class _OpenFile:
    def __init__(self, files: TableFiles, table: str, schema: pa.Schema) -> None:
        self._table, self._schema, self._metadata = table, schema, []
        self._folder, self.rows = files.folder(table), 0
        self._name, self._sink = files.new_file(table, "parquet")
        with asking(self._folder):
            self._writer = pq.ParquetWriter(
                self._sink,
                schema,
                write_batch_size=_VALUES_AT_A_TIME,
                use_dictionary=[leaf for one in schema for leaf in _repeating(one.name, one.type)],
                metadata_collector=self._metadata,
                store_schema=False,
            )

    def write(self, batch: pa.RecordBatch) -> None:
        with asking(self._folder):
            self._writer.write_batch(batch.cast(self._schema), row_group_size=ROWS_A_GROUP)
        self.rows += batch.num_rows

    def close(self) -> File:
        with asking(self._folder):
            self._writer.close()
            size = self._sink.tell()
            self._sink.close()
        stats = json.dumps(_statistics(self._metadata[0]), ensure_ascii=False)
        return {"table": self._table, "path": self._name, "size": size, "rows": self.rows, "stats": stats}


def _statistics(written: pq.FileMetaData) -> dict[str, Any]:
    """Least and greatest value and number of nulls of the columns whose values JSON holds as they are.

    Source: Delta protocol, Per-file Statistics.
    """
    least, greatest, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for number in range(written.num_columns):
        columns = [written.row_group(group).column(number) for group in range(written.num_row_groups)]
        name, told = columns[0].path_in_schema, [column.statistics for column in columns]
        if "." in name or any(one is None or not one.has_null_count for one in told):
            continue
        nulls[name] = sum(one.null_count for one in told)
        ranges = [(one.min, one.max) for one in told if one.has_min_max]
        held = sum(one.has_min_max or one.num_values == 0 for one in told)
        plain = all(isinstance(value, str | int) and not isinstance(value, bool) for pair in ranges for value in pair)
        short = all(len(value) <= _LONGEST_STATISTIC for pair in ranges for value in pair if isinstance(value, str))
        if ranges and held == len(told) and plain and short:
            least[name], greatest[name] = min(low for low, _ in ranges), max(high for _, high in ranges)
    return {"numRecords": written.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}


_AT_ONCE = 4


class TableCopies:
    """Copies of what lies in stores, in a scratch folder that goes when the process ends; local paths stay."""

    def __init__(self) -> None:
        self._copied: dict[str, str] = {}
        self._scratch: Path | None = None

    def local(self, address: str) -> str:
        """The path of a copy of a file, or of a folder with everything below it.

        Raises:
            InputError: if the store says no, or the scratch folder cannot take it.
        """
        if "://" not in address:
            return address
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="share-state-copy-"))
            atexit.register(shutil.rmtree, self._scratch, ignore_errors=True)
        root = StorePath.at(address)
        target = self._scratch / str(len(self._copied)) / root.name
        files = [(root, target)]
        if not root.is_file():
            below = [file for file in root.rglob("*") if file.is_file()]
            files = [(file, target / file.relative_to(root)) for file in below]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(_copy, *zip(*files, strict=True)))
        self._copied[str(target)] = address
        return str(target)

    @contextmanager
    def told_by_address(self) -> Iterator[None]:
        """Lets messages name what was copied, not the copies."""
        try:
            yield
        except InputError as error:
            said = str(error)
            for path, address in self._copied.items():
                said = said.replace(path, address)
            raise InputError(said) from None


def _copy(file: StorePath, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with file.open("rb") as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, STREAM)
    except OSError as error:
        raise InputError(
            f"{file}: cannot be copied to {target.parent} ({error.strerror}); set TMPDIR to a disk with room for it"
        ) from None
