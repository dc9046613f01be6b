"""Opens and reads Delta tables without Spark, also those of other writers; its errors name the place and the fix.

Importing this module loads neither deltalake nor pyarrow.dataset, which are slow to import.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem, FileType, LocalFileSystem

from share_state.errors import (
    InputError,
    ShareStateError,
    WarehouseError,
    disk_error,
    has_no_inodes,
    inodes_error,
)
from share_state.schema.declarations import table_schema
from share_state.stores.object_stores import (
    StoreUnavailableError,
    delta_storage_options,
    parse_address,
    refuse_credentials,
    store_error,
)

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from deltalake import DeltaTable


_SCANNED_FEATURES = {"columnMapping", "deletionVectors"}
"""Reader features at which `needs_scan` looks."""

_READ_FEATURES = {
    *_SCANNED_FEATURES,
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""Reader features that do not change how Parquet files are read, and _SCANNED_FEATURES. Arrow casts columns to the
types that are declared, whether others have widened them or not."""

_WRITES = (
    "WRITE",
    "CREATE TABLE",
    "CREATE OR REPLACE TABLE",
    "REPLACE TABLE",
    "RESTORE",
    "MERGE",
    "STREAMING UPDATE",
)

COMMITTED, REPORTED = "committed", "reported"
"""`runs.status` of an audit before and after its reports are written and its summary is printed."""

_TEXTS = pa.dictionary(pa.int32(), pa.string())
_SCAN = {"batch_readahead": 2, "fragment_readahead": 1, "batch_size": 32_768}
"""Keeps few rows in memory, whatever the size of a table."""


def open_filesystem(place: str) -> tuple[FileSystem, str]:
    """The file system that holds a path or an address, and the path within it.

    Raises:
        InputError: if an address cannot be opened.
    """
    if "://" not in place:
        return LocalFileSystem(), str(Path(place).absolute())
    store, rest = parse_address(place)
    return store.file_system, f"{store.root}{rest}"


def delete_folder(place: str) -> None:
    """Delete a folder and all that it holds, if it exists."""
    filesystem, path = open_filesystem(place)
    if filesystem.get_file_info(path).type == FileType.Directory:
        filesystem.delete_dir(path)


@contextmanager
def warehouse_errors(place: str) -> Iterator[None]:
    """Raise errors of an object store as WarehouseError with the address, and those of a full disk as DiskFullError."""
    try:
        yield
    except (OSError, StoreUnavailableError) as error:
        if "://" not in place:
            raise disk_error(place, error) from None
        raise WarehouseError(str(store_error(place, error))) from None


@contextmanager
def commit_errors(place: str, fix: str) -> Iterator[None]:
    """Raise what Delta raises at a commit as WarehouseError with the fix.

    Other errors as `warehouse_errors` does.
    """
    from deltalake.exceptions import DeltaError  # noqa: PLC0415  slow to import

    try:
        with warehouse_errors(place):
            yield
    except DeltaError as error:
        if has_no_inodes(place):
            raise inodes_error(place) from None
        raise WarehouseError(f"{place}: cannot be written as a Delta table {_refusal(error, fix)}") from None


@contextmanager
def table_read_errors(place: str, fix: str, kind: type[ShareStateError]) -> Iterator[None]:
    """Raise what Delta or a store raises when a table is read as one line with a fix."""
    from deltalake.exceptions import DeltaError  # noqa: PLC0415  slow to import

    try:
        yield
    except (OSError, StoreUnavailableError, pa.ArrowInvalid, DeltaError) as error:
        reason = _refusal(error, fix)
        if "://" in place and _LACKING not in reason:
            raise kind(str(store_error(place, error))) from None
        raise kind(f"{place}: cannot be read as a Delta table {reason}") from None


_LACKING = "it has the Delta features"
_FEATURES_LACKED = re.compile(r"features required: \[(.*)\]|Feature '(.*)' is not supported")
_UNKNOWN_FEATURE = re.compile(r'Unknown\("(.*?)"\)')
"""How delta-rs names a feature of writers that it does not know."""


def _refusal(error: Exception, fix: str) -> str:
    """Why a table is refused, and the fix; names the features that delta-rs lacks, if that is why."""
    reason = str(error).strip().splitlines()[0]
    if (found := _FEATURES_LACKED.search(reason)) is None:
        return f"({reason}); {fix}"
    features = _UNKNOWN_FEATURE.sub(r"\1", found[1] or found[2])
    return _lacking(sorted(features.split(", ")))


def _lacking(features: Sequence[str]) -> str:
    return f"({_LACKING} {', '.join(features)}); remove them in Spark with ALTER TABLE ... DROP FEATURE"


def refuse_link(place: str) -> None:
    """Refuse a symbolic link in place of the folder of a table: a run would write, vacuum and delete in its target.

    Raises:
        WarehouseError: if one is there.
    """
    if "://" not in place and Path(place).is_symlink():
        raise WarehouseError(
            f"{place}: a symbolic link is in place of the folder of a table; put the folder itself there"
        )


_UNUSABLE = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]\\^|\x00-\x1f\x7f]")


def check_delta_path(place: str, kind: type[ShareStateError] = WarehouseError) -> None:
    """Refuse a local path that deltalake cannot turn into a URL: it reads another folder, or panics.

    Raises:
        kind: naming the character.
    """
    refuse_credentials(place)
    if "://" not in place and (match := _UNUSABLE.search(str(Path(place).absolute()))) is not None:
        what = "an escape in URLs" if len(match[0]) > 1 else "which it cannot write in a URL"
        raise kind(f"{place}: deltalake cannot read {match[0]} in a path, {what}; give another folder")


def open_table(place: str) -> "DeltaTable | None":
    """Open the latest version of the Delta table in a folder, given by its path or address.

    None if there is none.

    Raises:
        WarehouseError: if an object store refuses.
        DeltaError: if the table cannot be read.
    """
    from deltalake import DeltaTable  # noqa: PLC0415  slow to import
    from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415

    check_delta_path(place)
    with warehouse_errors(place), suppress(TableNotFoundError):
        return DeltaTable(place, storage_options=delta_storage_options(place))
    return None


def version_to_read(table: "DeltaTable", committed: int) -> int:
    """The version of a table that readers use: the one that a run committed, with what others changed since.

    DELETE and OPTIMIZE are changes of others; a WRITE is by an uncommitted or a later run.
    """
    if table.version() == committed:
        return committed
    later = {one["version"]: one["operation"] for one in table.history() if one["version"] > committed}
    while later.get(committed + 1, "WRITE") not in _WRITES:
        committed += 1
    return committed


def has_entries(place: str, *versions: int) -> list[bool]:
    """Whether the log of a Delta table has the entry of each version.

    That of the latest version is never cleaned up.
    """
    filesystem, folder = open_filesystem(place)
    entries = [f"{folder}/_delta_log/{version:020}.json" for version in versions]
    return [entry.is_file for entry in filesystem.get_file_info(entries)]


def list_files(table: "DeltaTable") -> list[dict[str, Any]]:
    """The Parquet files of a table: path, size_bytes, and min.X, max.X of each column X that has statistics."""
    return pa.table(table.get_add_actions(flatten=True)).to_pylist()


def needs_scan(table: "DeltaTable") -> bool:
    """Whether only delta-rs reads a table correctly: its columns are mapped, or files have deletion vectors."""
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        return True
    features = table.protocol().reader_features or ()
    unknown = {*features} - _READ_FEATURES
    return bool(unknown) or (
        "deletionVectors" in features and any(b.num_rows for b in table.deletion_vectors())
    )


def check_readable(place: str, table: "DeltaTable") -> None:
    """Refuse a table that readers of this package cannot read, before a run writes to it.

    Args:
        place: path or address of its folder.
        table: its latest version.
    Raises:
        WarehouseError: naming the features.
    """
    features = {*(table.protocol().reader_features or ())}
    unknown = features - _READ_FEATURES
    if features & _SCANNED_FEATURES and needs_scan(table):
        # delta-rs reads it, and lacks these.
        unknown |= {name for name in features if name.startswith("typeWidening")}
    if unknown:
        raise WarehouseError(f"{place}: cannot be read as a Delta table {_lacking(sorted(unknown))}")


def scan(
    table: "DeltaTable", name: str, columns: Sequence[str], where: pc.Expression | None
) -> Iterator[pa.Table]:
    """Read a Delta table with delta-rs, which honours deletion vectors and column mapping and refuses what it cannot.

    Args:
        table: the table, in any version.
        name: the name of its declaration; declared columns that it lacks are null.
        columns: names.
        where: a filter on rows.
    Raises:
        DeltaError: naming a feature that delta-rs cannot read.
    """
    schema = table_schema(name)
    present = {field.name for field in table.schema().fields}
    for batch in table.scan():
        rows = pa.table(pa.record_batch(batch))
        whole = [
            rows[one.name].cast(one.type) if one.name in present else pa.nulls(len(rows), one.type)
            for one in schema
        ]
        rows = pa.Table.from_arrays(whole, schema=schema)
        yield (rows if where is None else rows.filter(where)).select(list(columns))


def damaged_files(place: str, table: "DeltaTable") -> list[str]:
    """The Parquet files of a table in a folder that are gone or have another size than the table says.

    Their names.
    """
    files = list_files(table)
    filesystem, folder = open_filesystem(place)
    found = filesystem.get_file_info([f"{folder}/{file['path']}" for file in files])
    return [file["path"] for file, info in zip(files, found, strict=True)
            if not info.is_file or info.size != file["size_bytes"]]  # fmt: skip


def list_foreign_files(place: str) -> list[str] | None:
    """The Parquet files of the latest version of any Delta table.

    Args:
        place: path or address of its folder.
    Returns:
        Paths relative to the folder; None if the table needs reader features, which only Spark supports.
    Raises:
        InputError: if it cannot be read.
    """
    with _opened_foreign(place) as table:
        if table.protocol().reader_features or table.protocol().min_reader_version > 1:
            return None
        # delta-rs escapes the address of the table as a URL, but not the names of files; local files have no
        # scheme.
        root = table.table_uri.removeprefix("file://").rstrip("/")
        return [file.removeprefix(root).lstrip("/") for file in table.file_uris()]


def foreign_schema(place: str) -> pa.Schema:
    """The columns of the latest version of any Delta table; as `scan_foreign`."""
    with _opened_foreign(place) as table:
        return pa.schema(table.schema())


def scan_foreign(
    place: str, columns: Sequence[str], check: Callable[[str, Sequence[str]], None] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read columns of the latest version of any Delta table, without the rows that deletion vectors mark.

    Args:
        place: path or address of its folder.
        columns: names.
        check: called with the place and the names of all columns; raises if the table lacks one.
    Raises:
        InputError: if it cannot be read, naming the features that delta-rs lacks.
    """
    with _opened_foreign(place) as table:
        if check is not None:
            check(place, [field.name for field in table.schema().fields])
        yield from map(pa.record_batch, table.scan(columns=list(columns)))


@contextmanager
def _opened_foreign(place: str) -> "Iterator[DeltaTable]":
    from deltalake import DeltaTable  # noqa: PLC0415  slow to import

    check_delta_path(place, InputError)
    with table_read_errors(place, "write it again", InputError):
        yield DeltaTable(place, storage_options=delta_storage_options(place))


def open_dataset(
    table: str, paths: Sequence[str], *, encoded: bool = False, filtered: bool = False
) -> "ds.Dataset":
    """Files of one table as a dataset.

    Args:
        table: its name.
        paths: paths or addresses of Parquet files, at least one, all in one file system.
        encoded: whether columns of text are read as dictionaries.
        filtered: whether rows are chosen by columns of text; the footers of all files are then read first.
    """
    import pyarrow.dataset as ds  # noqa: PLC0415  imports pandas, which takes longer than many commands

    filesystem = open_filesystem(paths[0])[0]
    files = [open_filesystem(path)[1] for path in paths]
    schema = table_schema(table)
    texts = [one.name for one in schema if pa.types.is_string(one.type)]
    if encoded:
        schema = pa.schema([one.with_type(_TEXTS) if one.name in texts else one for one in schema])
    form = ds.ParquetFileFormat(dictionary_columns=texts if encoded else ())
    dataset: ds.Dataset = ds.dataset(files, schema, form, filesystem)
    if filtered and not encoded and _has_views(dataset):
        form = ds.ParquetFileFormat(dictionary_columns=texts)
        return ds.dataset(files, schema, form, filesystem)
    return dataset


def _has_views(dataset: "ds.Dataset") -> bool:
    """Whether files hold views of texts, as delta-rs leaves them after DELETE, UPDATE and MERGE.

    Arrow does not compare these with the statistics of a file, but does so with dictionaries.
    """
    return any(
        pa.types.is_string_view(field.type)
        for fragment in dataset.get_fragments()
        for field in fragment.physical_schema
    )


def read_rows(
    place: str,
    opened: "DeltaTable",
    table: str,
    columns: Sequence[str],
    where: pc.Expression | None = None,
    files: Sequence[Mapping[str, Any]] | None = None,
) -> Iterator[pa.Table]:
    """Read rows of a table in the version that is opened, with Arrow if its files alone determine them.

    Args:
        place: path or address of its folder.
        opened: the table.
        table: name of its declaration.
        columns: names.
        where: a filter on rows; files whose statistics exclude it are not read.
        files: those of `list_files` to read; all by default.
    Yields:
        Tables of some ten thousand rows, none of them empty.
    """
    pieces: Iterator[pa.Table] = iter(())
    if needs_scan(opened):
        pieces = scan(opened, table, columns, where)
    elif paths := [f"{place}/{file['path']}" for file in (list_files(opened) if files is None else files)]:
        dataset = open_dataset(table, paths, filtered=where is not None)
        batches = dataset.to_batches(columns=list(columns), filter=where, **_SCAN)
        pieces = (pa.Table.from_batches([batch]) for batch in batches)
    yield from (rows for rows in pieces if rows.num_rows)


def run_ids(place: str, table: str, existing: "DeltaTable") -> set[str]:
    """The runs that have rows in a table; for a file that holds a single run, only the statistics are read.

    Args:
        place: path or address of its folder.
        table: its name; it has the column run_id.
        existing: the table in any version.
    """

    def is_of_one(file: Mapping[str, Any]) -> bool:
        return file.get("min.run_id") is not None and file["min.run_id"] == file["max.run_id"]

    files = list_files(existing)
    found = {file["min.run_id"] for file in files if is_of_one(file)}
    if others := [file for file in files if not is_of_one(file)]:
        for rows in read_rows(place, existing, table, ["run_id"], files=others):
            found |= {*rows["run_id"].unique().to_pylist()}
    return found
