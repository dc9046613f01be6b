"""Reads Delta tables without Spark: a warehouse in the versions of its last run, and tables of other writers.

`CommittedTables` reads a warehouse; the functions above it also serve the writer and tasks. Importing this
module loads neither deltalake nor pyarrow.dataset, which are slow to import.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem, FileType, LocalFileSystem

from share_state.errors import (
    InputError,
    NothingCommittedError,
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

IN_FLIGHT_COUNTS = ["group_id", "delivery_state", "state", "delivery_count"]
"""Columns of `in_flight` by which `in_flight_counts` counts records."""

EVERY_ROW = pc.scalar(True)
"""A filter that keeps all rows."""

_OF_SHARE_PARTITIONS = ("group_id", "partition")
"""Columns of the tables whose rows are about share-partitions."""

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
def _read_errors(place: str, fix: str, kind: type[ShareStateError]) -> Iterator[None]:
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
    with _read_errors(place, "write it again", InputError):
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


def sum_records(rows: pa.Table) -> pa.Table:
    """The sums of record_count by IN_FLIGHT_COUNTS."""
    sums = rows.group_by(IN_FLIGHT_COUNTS, use_threads=False).aggregate([("record_count", "sum")])
    return sums.rename_columns([*IN_FLIGHT_COUNTS, "record_count"])


class CommittedTables:
    """The tables of a warehouse in the versions that the latest row of `runs` names.

    Attributes:
        root: folder or address of the warehouse.
        runs: the table `runs` up to the run, latest first.
        run: its first row.
        versions: Delta version of each table that the run wrote or left unchanged.
    """

    _selected: pc.Expression | None = None

    def __init__(self, warehouse: str, command: str | None = None) -> None:
        """Open a warehouse.

        Args:
            warehouse: folder of the tables.
            command: read what the latest run of this command committed; by default the latest run of any
                command.
        Raises:
            NothingCommittedError: if no run (of that command) has committed there.
            WarehouseError: if it cannot be read.
        """
        self.root = warehouse.rstrip("/") if "://" in warehouse else str(Path(warehouse))
        self._fix = f"run {command or 'reconstruct'} again"
        self.versions: dict[str, int] = {}
        self._opened: dict[tuple[str, int | None], DeltaTable | None] = {}
        self._listed: dict[tuple[str, int], list[dict[str, Any]]] = {}
        if self._open("runs") is None:
            # Tables do not go into a folder that holds something else, such as the logs.
            is_taken = "://" not in warehouse and Path(warehouse).is_dir() and any(Path(warehouse).iterdir())
            made_by = f"{warehouse} --out WAREHOUSE" if is_taken else f"INPUT --out {warehouse}"
            raise NothingCommittedError(
                f"{warehouse}: no warehouse here; make one with `share-state reconstruct {made_by}`"
            )
        where = None if command is None else pc.field("command") == command
        # Not by the clock alone, which may have been wrong; rows of earlier releases have no sequence.
        self.runs = self.read("runs", where).sort_by([("sequence", "descending"), ("finished", "descending")])
        if not len(self.runs):
            raise NothingCommittedError(f"{warehouse}: no {command or 'run'} was ever committed here")
        self.run: dict[str, Any] = self.runs.slice(0, 1).to_pylist()[0]
        self._fix = f"run {'the audit' if self.run['command'] == 'audit' else self.run['command']} again"
        self.versions = dict(self.run["table_versions"])

    def unreported(self) -> "tuple[list[CommittedTables], CommittedTables | None]":
        """The tables as earlier runs of the same command committed them, the latest first.

        Returns:
            Those since the last run that was reported; that run's, None if there is none.
        """
        skipped = list[CommittedTables]()
        for found in self._earlier_runs():
            if found.run["status"] != COMMITTED:
                return skipped, found
            skipped.append(found)
        return skipped, None

    @property
    def previous(self) -> "CommittedTables | None":
        """The tables as the run before committed them, of the same command; None if it was the first."""
        return next(self._earlier_runs(), None)

    def _earlier_runs(self) -> "Iterator[CommittedTables]":
        """The tables as earlier runs of the same command committed them, the latest first."""
        ids = self.runs["run_id"].to_pylist()
        for run in self.runs.filter(pc.field("command") == self.run["command"]).slice(1).to_pylist():
            found = copy(self)
            found.runs = self.runs.slice(ids.index(run["run_id"]))
            found.run, found.versions = run, dict(run["table_versions"])
            yield found

    def of(self, share_partitions: pa.Table) -> Self:
        """The same tables with at least the rows of some share-partitions, where rows are about these.

        Args:
            share_partitions: IDENTITY_COLUMNS of `share_state.report.share_partitions`.
        """
        groups, partitions = (share_partitions[name].unique() for name in _OF_SHARE_PARTITIONS)
        chosen = copy(self)
        chosen._selected = pc.field("group_id").isin(groups) & pc.field("partition").isin(partitions)
        return chosen

    def in_flight_counts(self, where: pc.Expression | None = None) -> pa.Table:
        """How many records are in flight: IN_FLIGHT_COUNTS and record_count.

        Args:
            where: a filter on rows of `in_flight`.
        """
        pieces = self.batches("in_flight", [*IN_FLIGHT_COUNTS, "record_count"], where)
        empty = table_schema("in_flight").empty_table().select([*IN_FLIGHT_COUNTS, "record_count"])
        return sum_records(pa.concat_tables([empty, *map(sum_records, pieces)]))

    def as_of(self, time_ms: int) -> "CommittedTables | None":
        """The tables as the latest run of the same command committed them that read no record after a time (ms)."""
        for found in (self, *self._earlier_runs()):
            if found.log_time is not None and found.log_time <= time_ms:
                return found
        return None

    @property
    def log_time(self) -> int | None:
        """Timestamp (ms) of the newest record that the run read; None for none."""
        time = self.run["log_time"]
        return None if time is None else int(time.timestamp() * 1000)

    def holds(self, table: str) -> bool:
        """Whether the run committed a version of a table."""
        return table in self.versions

    def read(
        self, table: str, where: pc.Expression | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Read the committed rows of a table at once.

        Args:
            table: its name.
            where: a filter on rows.
            columns: by default all that schemas/tables declares.
        Returns:
            The rows; none if the run has no such table.
        Raises:
            WarehouseError: if the table is gone or was vacuumed.
        """
        schema = table_schema(table)
        empty = pa.schema([schema.field(name) for name in columns or schema.names]).empty_table()
        return pa.concat_tables([empty, *self.batches(table, columns, where)])

    def batches(
        self, table: str, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> Iterator[pa.Table]:
        """Read the committed rows of a table piece by piece, in the order of its files.

        Args:
            table: its name.
            columns: by default all that schemas/tables declares.
            where: a filter on rows; files whose statistics exclude it are not read.
        Yields:
            Tables of some ten thousand rows; none if the run has no such table.
        Raises:
            WarehouseError: if the table is gone or was vacuumed.
        """
        if (opened := self._version_of(table)) is None:
            return
        chosen = table_schema(table).names if columns is None else list(columns)
        where, place = self._with_selected(table, where), f"{self.root}/{table}"
        with _read_errors(place, self._fix, WarehouseError):
            yield from read_rows(place, opened, table, chosen, where, self._list(table, opened))

    def _with_selected(self, table: str, where: pc.Expression | None) -> pc.Expression | None:
        """A filter for the rows of a table that `of` has left."""
        if self._selected is None or not {*_OF_SHARE_PARTITIONS} <= {*table_schema(table).names}:
            return where
        return self._selected if where is None else self._selected & where

    def files(self, table: str) -> list[dict[str, Any]]:
        """The Parquet files of a committed table as `list_files` describes them, with their full paths.

        Raises:
            WarehouseError: if the table is gone, or its files alone do not determine its rows.
        """
        if (opened := self._version_of(table)) is None:
            return []
        if needs_scan(opened):
            raise WarehouseError(
                f"{self.root}/{table}: has deletion vectors or column mapping, from which audits cannot resume; "
                f"run ALTER TABLE ... DROP FEATURE or REORG TABLE ... APPLY (PURGE) in Spark"
            )
        return [file | {"path": f"{self.root}/{table}/{file['path']}"} for file in self._list(table, opened)]

    def run_ids(self, table: str) -> set[str]:
        """The runs that have rows in a committed table; as `run_ids`."""
        opened = self._version_of(table)
        return set() if opened is None else run_ids(f"{self.root}/{table}", table, opened)

    def _list(self, table: str, opened: "DeltaTable") -> list[dict[str, Any]]:
        """`list_files` of a table, whose version stays: a report reads it several times."""
        version = table, opened.version()
        if version not in self._listed:
            self._listed[version] = list_files(opened)
        return self._listed[version]

    def _version_of(self, table: str) -> "DeltaTable | None":
        # `runs` names the versions of the other tables and is itself read in its latest version.
        if table != "runs" and table not in self.versions:
            return None
        if (found := self._open(table)) is None:
            raise WarehouseError(f"{self.root}/{table}: cannot be read (it is gone); {self._fix}")
        return found

    def lack_files(self) -> bool:
        """Whether files of the tables are gone or truncated."""
        try:
            opened = [(table, self._version_of(table)) for table in self.versions]
        except WarehouseError:
            return True
        return any(damaged_files(f"{self.root}/{table}", one) for table, one in opened if one is not None)

    def _open(self, table: str) -> "DeltaTable | None":
        wanted = self.versions.get(table)
        if (table, wanted) not in self._opened:
            self._opened[table, wanted] = self._open_version(table, wanted)
        return self._opened[table, wanted]

    def _open_version(self, table: str, wanted: int | None) -> "DeltaTable | None":
        refuse_link(place := f"{self.root}/{table}")
        with _read_errors(place, self._fix, WarehouseError):
            opened = open_table(place)
            if opened is not None and wanted is not None and opened.version() != wanted:
                opened.load_as_version(version_to_read(opened, wanted))
            return opened
