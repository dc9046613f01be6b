"""Writes the Delta tables of a warehouse: checks the place, locks it, and commits rows as new table versions.

A run commits its tables, several at a time, and `runs` last: its row there names the table versions that
belong together, and readers use no others. A run locks the folder that it writes to. Object stores have no
lock: there a run refuses to commit if another run has committed since it began.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSelector

from share_state.delta import commits
from share_state.delta.merge import (
    DELETED,
    keep_short_log,
    lost_table,
    merge_errors,
    merged_rows,
    overtaken_stream,
    restore_version,
    transaction,
    without_deleted,
)
from share_state.delta.parquet_files import write_files
from share_state.delta.reader import (
    COMMITTED,
    REPORTED,
    check_readable,
    commit_errors,
    damaged_files,
    delete_folder,
    has_entries,
    list_files,
    needs_scan,
    open_filesystem,
    open_table,
    refuse_link,
    run_ids,
    version_to_read,
)
from share_state.delta.replaced_files import ReplacedFiles, shorten_log
from share_state.delta.staging import STAGING_PREFIX, Staging
from share_state.delta.table_files import TableFiles, is_plain
from share_state.errors import InputError, WarehouseError
from share_state.schema import declarations
from share_state.schema.declarations import stored_schema, table_schema
from share_state.stores.object_stores import delta_storage_options
from share_state.stores.paths import absolute_address

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
from share_state.delta.table_columns import RowStream, missing_columns
from share_state.delta.warehouse_place import ALL_TABLES, EMPTY_FOLDER_HINT, missing_folders

PROPERTIES = {"delta.checkpointInterval": "10"}
"""Of every table: opening one reads a checkpoint of its log and at most 9 entries; by delta-rs' default, up
to 99."""


_HISTORY_TABLES = ("share_partition_history", "runs")
_MOST_SMALL_FILES, _COMPACTED_BYTES = 16, 16 << 20
"""Small files of many nights become one; such a file is cheap to rewrite when its oldest night expires."""


@dataclass(slots=True)
class Commit:
    """A commit to one table.

    Attributes:
        path: path or address of the table.
        existing: None if the table does not exist.
        replaces_all: whether all rows of the table are replaced.
        replaced_runs: ids of the runs whose rows are replaced; empty to append only.
        version: the version of the table before the commit of rows; -1 if it does not exist.
        missing: declared columns that an earlier release did not write.
    """

    path: str
    existing: "DeltaTable | None"
    replaces_all: bool
    replaced_runs: list[str]
    version: int = -1
    missing: list[str] = field(default_factory=list)


class Warehouse:
    """Writes the tables of one run.

    A context manager that deletes on exit what the run staged, and what failed.

    Size: one method per operation on the tables of a run; all share what the run has opened and committed.

    Attributes:
        root: path or address.
        staging: for rows that tasks make before all are known.
        versions: table -> the Delta version that this run committed.
        replaced: files whose rows it has replaced; None unless it deletes them itself.
        files_at_once: how many files of a table a merge writes side by side.
    """

    def __init__(
        self, root: str, folders: Mapping[str, str] | None = None, *, deletes_replaced: bool = False
    ) -> None:
        """Begin a run.

        Args:
            root: folder, or address in an object store.
            folders: table -> its folder there if it differs from the table's name; "" is the root itself.
            deletes_replaced: whether it calls `delete_replaced` and `clean`, as a stream does.
        """
        self.root, self._folders = absolute_address(root), folders or {}
        self.staging = Staging(self.root)
        self.versions: dict[str, int] = {}
        self._missing, self._is_begun = missing_folders(root), False
        self._opened: dict[str, DeltaTable] = {}
        self._files: dict[str, TableFiles] = {}
        # table -> the version that this run committed and that has every declared column.
        self._whole: dict[str, int] = {}
        self.replaced = ReplacedFiles() if deletes_replaced else None
        self.files_at_once = 1
        self._new, self._runs_version = set[str](), self._version("runs")
        self._commits, self._is_committed = f"{root} is written", False

    def __enter__(self) -> "Warehouse":
        return self

    def __exit__(self, failed: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        with suppress(*((OSError, InputError, WarehouseError) if failed else ())):
            delete_folder(self.staging.folder)
            if failed and not self._is_committed and self._version("runs") == self._runs_version:
                # No reader has seen tables that begin with this run.
                for table in self._new:
                    # In an object store, which has no lock, another run may have written it.
                    if "://" not in self.root or self._version(table) == self.versions.get(table):
                        delete_folder(self.folder(table))
        if error and self._is_committed:
            error.add_note(commits.standing.get(self.root, self._commits))
        if failed:
            with suppress(OSError):
                for folder in self._missing:
                    folder.rmdir()

    def folder(self, table: str) -> str:
        """Path or address of a table."""
        name = self._folders.get(table, table)
        return f"{self.root}/{name}" if name else self.root

    def replace(self, table: str, rows: Iterable[pa.Table]) -> None:
        """Replace all rows of a table.

        Args:
            table: its name.
            rows: read piece by piece while they are written.
        Raises:
            WarehouseError: if the table has other columns, or another run has committed meanwhile.
        """
        self._write(table, rows, None)

    def merge(self, table: str, rows: pa.Table, key: Sequence[str], application: str, batch: int) -> None:
        """Replace the rows whose key occurs in `rows` with those of `rows` that are not DELETED; as `replace`.

        The whole table is written again.

        Args:
            table: its name; the table exists.
            rows: its columns and DELETED.
            key: columns; empty to replace all rows.
            application, batch: Delta's txnAppId and txnVersion.
        Raises:
            WarehouseError: as for `replace`, or if another run has written the table since this one began.
        """
        place = self.folder(table)
        with merge_errors(place):
            if (existing := self._table(table)) is None:
                raise lost_table(place)
            version = existing.version()
            if version_to_read(existing, self.versions.get(table, version)) != version:
                raise overtaken_stream(place)
            self.versions[table] = version
            if key and not len(rows):
                return
            properties = transaction(application, batch)
            if self._takes_files(existing):
                with self.commit(table, None) as commit:
                    assert commit.existing is not None
                    self._merge_files(table, commit.existing, rows, key, properties)
                return
        self._merge_otherwise(table, existing, rows, key, properties)

    def _merge_files(
        self,
        table: str,
        existing: "DeltaTable",
        rows: pa.Table,
        key: Sequence[str],
        properties: "CommitProperties",
    ) -> None:
        """Commit changed rows in files that are added as they are; arguments as for `merge`."""
        place = self.folder(table)
        files = self._files.setdefault(table, TableFiles(table, place))
        replaced = files.merge(existing, rows, key, properties, self.files_at_once)
        if self.replaced is not None:
            self.replaced.add(place, replaced)

    def _takes_files(self, existing: "DeltaTable") -> bool:
        """Whether a merge may add files to a table as they are."""
        return is_plain(existing)

    def _merge_otherwise(
        self,
        table: str,
        existing: "DeltaTable",
        rows: pa.Table,
        key: Sequence[str],
        properties: "CommitProperties",
    ) -> None:
        """Merge changed rows into a table that is not plain; arguments as for `merge`."""
        with merge_errors(self.folder(table)):
            merged = merged_rows(existing, table, rows, key)
        self._write(table, merged, None, properties)

    def restore(self, table: str, version: int) -> None:
        """Restore the rows that a version of a table had, and go on from there; as `restore_version`."""
        self.versions[table] = restore_version(self.folder(table), version)

    def append(self, table: str, rows: Iterable[pa.Table], replaced_runs: Collection[str]) -> None:
        """Add rows to a table, and remove those of some runs.

        Args:
            table: one with the column run_id.
            rows: as for `replace`.
            replaced_runs: ids of the runs whose rows are removed; if any, they include those of the new rows.
        Raises:
            WarehouseError: if the table has other columns, or another run has committed meanwhile.
        """
        self._write(table, rows, replaced_runs)

    def run_rows(self, row: Mapping[str, Any]) -> pa.Table:
        """The row of `runs` that commits the run, with the time and the versions of the committed tables.

        Args:
            row: the other columns.
        """
        sequence = 0 if self._runs_version is None else self._runs_version + 1
        self._commits = f"run {row['run_id']} is committed"
        if row.get("status") == COMMITTED:
            self._commits += ", and the next audit reports it"
        versions = list(self.versions.items())
        of_now = {"finished": datetime.now(UTC), "table_versions": versions, "sequence": sequence}
        return pa.Table.from_pylist([{**row, **of_now}], schema=table_schema("runs"))

    def commit_run(self, row: Mapping[str, Any], expired: Collection[str] = ()) -> None:
        """Commit the run: append its row to `runs`; as `append`.

        Args:
            row: as for `run_rows`.
            expired: ids of runs whose rows are removed.
        """
        self.append("runs", [self.run_rows(row)], {row["run_id"], *expired})

    def mark_reported(self, runs: pa.Table) -> None:
        """Set the status of all audits to reported: their reports are written and their summary is printed.

        Args:
            runs: the rows of `runs`.
        """
        runs = runs.filter((pc.field("command") == "audit") & (pc.field("status") == COMMITTED))
        status = pa.repeat(REPORTED, len(runs))
        rows = runs.set_column(runs.schema.get_field_index("status"), runs.schema.field("status"), status)
        if len(runs):
            self._commits = f"run {runs['run_id'][0]} is committed and reported"
        self.append("runs", [rows], set(rows["run_id"].to_pylist()))

    def run_ids(self, table: str) -> set[str]:
        """The runs that have rows in a table."""
        with commit_errors(self.folder(table), EMPTY_FOLDER_HINT):
            existing = self._table(table)
            return set() if existing is None else run_ids(self.folder(table), table, existing)

    def check_readable(self) -> None:
        """Refuse tables that a writer with more features than delta-rs writes, but readers cannot read.

        Raises:
            WarehouseError: naming the table and the features.
        """
        for table in ALL_TABLES:
            with commit_errors(self.folder(table), EMPTY_FOLDER_HINT):
                existing = self._table(table)
            if existing is not None:
                check_readable(self.folder(table), existing)

    def repair_history(self) -> list[str]:
        """Remove files that are gone or truncated from the tables that runs append to.

        All others are rewritten.

        Returns:
            A note for each table that lost rows.
        Raises:
            WarehouseError: if a table cannot be read.
        """
        notes = []
        for table in _HISTORY_TABLES:
            place = self.folder(table)
            with commit_errors(place, EMPTY_FOLDER_HINT):
                if (existing := self._table(table)) is None or not (
                    damaged := damaged_files(place, existing)
                ):
                    continue
                filesystem, folder = open_filesystem(place)
                for name in damaged:
                    if filesystem.get_file_info(f"{folder}/{name}").is_file:
                        filesystem.delete_file(f"{folder}/{name}")
                existing.repair()
            if table == "runs":
                self._runs_version = self._version(table)
            notes.append(f"{table} lost rows: {len(damaged)} of its files were removed or truncated")
        return notes

    def maintain(self, days: int, tables: Iterable[str] = ALL_TABLES) -> None:
        """Compact small files of the history, and delete files that no table version of the last `days` days names.

        These hold replaced rows, or are left from killed runs. A table that this run has begun has none.
        """
        filesystem, root = open_filesystem(self.root)
        for found in filesystem.get_file_info(FileSelector(root, allow_not_found=True)):
            if found.base_name.startswith(STAGING_PREFIX):
                times = [file.mtime for file in filesystem.get_file_info(FileSelector(found.path))]
                if all(time < datetime.now(UTC) - timedelta(days=days) for time in times):
                    filesystem.delete_dir(found.path)
        for table in tables:
            if table in self._new:
                continue
            with commit_errors(self.folder(table), EMPTY_FOLDER_HINT):
                if (existing := self._table(table)) is None:
                    continue
                if table in _HISTORY_TABLES:
                    _compact(existing)
                existing.vacuum(
                    retention_hours=24 * days, dry_run=False, full=True, enforce_retention_duration=False
                )

    def compact_runs(self) -> None:
        """Compact small files of `runs`, which every run reads, after a run that writes no other table."""
        with commit_errors(self.folder("runs"), EMPTY_FOLDER_HINT):
            if (existing := self._table("runs")) is not None:
                _compact(existing)

    def delete_replaced(self, seconds: float) -> None:
        """Delete files whose rows this run has replaced longer ago."""
        assert self.replaced is not None
        self.replaced.delete_older(seconds)

    def clean(self, table: str, kept: Collection[int], *, is_log_alone: bool = False) -> None:
        """Delete what earlier runs have left in the folder of a table, and entries of its log that are old.

        Args:
            table: its name.
            kept: versions that readers may need.
            is_log_alone: delete entries of its log alone.
        Raises:
            WarehouseError: if another run has committed meanwhile.
        """
        place = self.folder(table)
        if table == "runs" and self._version(table) != self._runs_version:
            raise self._overtaken()
        with merge_errors(place):
            self._tidy(table, kept, is_log_alone=is_log_alone)
        if table == "runs":
            self._runs_version = self._version(table)

    def _tidy(self, table: str, kept: Collection[int], *, is_log_alone: bool) -> None:
        """Delete files and entries of the log of a table; arguments as for `clean`."""
        place = self.folder(table)
        if (existing := self._table(table)) is None:
            raise lost_table(place)
        keep_short_log(existing)
        assert self.replaced is not None
        if not is_log_alone:
            self.replaced.delete_left(place, existing)
        shorten_log(place, existing, kept)

    @contextmanager
    def commit(self, table: str, replaced_runs: Collection[str] | None) -> "Iterator[Commit]":
        """Check a table before a commit to it, and record its version afterwards.

        The last table, which is `runs` or the only one, commits the run.

        Args:
            table: its name.
            replaced_runs: as for `append`; None to replace all rows.
        Raises:
            WarehouseError: if the table has other columns, or another run has committed meanwhile.
        """
        if table != "runs" and self.folder(table) != self.root:
            with self._checked_commit(table, replaced_runs) as one:
                yield one
            return
        one = None
        with commits.held_signals():
            try:
                with self._checked_commit(table, replaced_runs) as one:
                    yield one
            except BaseException:
                if one is not None and self._has_grown(table, one.version):
                    self._note_commit()
                raise
            self._note_commit()

    def _note_commit(self) -> None:
        self._is_committed = True
        commits.standing[self.root] = self._commits

    def _has_grown(self, table: str, version: int) -> bool:
        """Whether a commit was made before it failed, as when Spark ends; only a locked folder shows that."""
        with suppress(OSError, WarehouseError):
            latest = None if "://" in self.root else self._version(table)
            return latest is not None and latest > version
        return False

    @contextmanager
    def _checked_commit(self, table: str, replaced_runs: Collection[str] | None) -> "Iterator[Commit]":
        path = self.folder(table)
        if table != "runs" and not self._is_begun and self._version("runs") != self._runs_version:
            raise self._overtaken()
        self._is_begun = True
        with commit_errors(path, EMPTY_FOLDER_HINT):
            existing = self._table(table)
            if table == "runs" and (None if existing is None else existing.version()) != self._runs_version:
                raise self._overtaken()
            if existing is None:
                self._new.add(table)
            replaced = replaced_runs and existing and run_ids(path, table, existing) & {*replaced_runs}
            one = Commit(path, existing, replaced_runs is None, sorted((replaced and replaced_runs) or ()))
            if existing is not None:
                one.version = existing.version()
                if self._whole.get(table) != one.version:
                    one.missing = missing_columns(table, path, existing)
            yield one
            version = one.version + 1 if existing is None and one.version < 0 else self._version(table)
        if version is None or (table != "runs" and version != one.version + 1):
            raise self._overtaken()
        self.versions[table] = version
        if not one.missing:
            self._whole[table] = version
        self._runs_version = version if table == "runs" else self._runs_version

    def _write(
        self,
        table: str,
        rows: Iterable[pa.Table],
        replaced_runs: Collection[str] | None,
        properties: "CommitProperties | None" = None,
    ) -> None:
        from deltalake import CommitProperties, Schema  # noqa: PLC0415  slow to import
        from deltalake.exceptions import CommitFailedError, DeltaError  # noqa: PLC0415
        from deltalake.schema import Field  # noqa: PLC0415

        with self.commit(table, replaced_runs) as commit:
            existing = commit.existing
            schema = stored_schema(table)
            if existing is not None:
                if commit.missing:
                    added = (
                        field for field in Schema.from_arrow(schema).fields if field.name in commit.missing
                    )
                    existing.alter.add_columns([Field(f.name, f.type, metadata=f.metadata) for f in added])
                if not PROPERTIES.keys() <= existing.metadata().configuration.keys():
                    existing.alter.set_table_properties(PROPERTIES)
                commit.version = existing.version()
                schema = pa.schema(existing.schema())
            # With retries, delta-rs would append to a table that another run has created meanwhile.
            properties = properties or CommitProperties(max_commit_retries=0)
            stream = RowStream(rows, schema)
            try:
                if table == "runs" and existing is not None and commit.replaced_runs and is_plain(existing):
                    changed = _changed_runs(stream.tables(), commit.replaced_runs)
                    self._merge_files(table, existing, changed, ("run_id",), properties)
                else:
                    before = set[str]() if self.replaced is None else _paths(existing)
                    _commit_rows(table, commit, stream, properties)
                    if self.replaced is not None:
                        self.replaced.add(commit.path, before - _paths(self._table(table)))
            except DeltaError as error:
                is_created = existing is None and stream.error is None and "already exists" in str(error)
                is_refused = "Unsupported table features" in str(error) or "append-only" in str(error)
                if is_created or (isinstance(error, CommitFailedError) and not is_refused):
                    self._new.discard(table)
                    raise self._overtaken() from None
                # delta-rs reports an error of the rows as one of its own.
                raise stream.error or error from None

    def _version(self, table: str) -> int | None:
        with commit_errors(self.folder(table), EMPTY_FOLDER_HINT):
            existing = self._table(table)
        return None if existing is None else existing.version()

    def _table(self, table: str) -> "DeltaTable | None":
        """The latest version of a table; None if there is none. Callers convert the errors.

        Opening a table reads its whole log, so it stays open, and only later entries are read.
        """
        place, known = self.folder(table), self._opened.pop(table, None)
        is_there, has_grown = (
            (False, False) if known is None else has_entries(place, known.version(), known.version() + 1)
        )
        if known is not None and is_there:
            # To look for entries that are not there costs delta-rs a listing of the log.
            if has_grown:
                known.update_incremental()
        else:
            if place != self.root:
                refuse_link(place)
            known = open_table(place)
        if known is not None:
            self._opened[table] = known
        return known

    def _overtaken(self) -> WarehouseError:
        return WarehouseError(
            f"{self.root}: another run committed here meanwhile, and this one did not; run it again"
        )


def _commit_rows(table: str, commit: Commit, rows: RowStream, properties: "CommitProperties") -> None:
    """Write rows to new files, and commit them; as delta-rs would, which is slower."""
    from deltalake import Schema, write_deltalake  # noqa: PLC0415  slow to import
    from deltalake.transaction import create_table_with_add_actions  # noqa: PLC0415

    existing, replaced = commit.existing, commit.replaced_runs
    mode: Literal["overwrite", "append"] = "overwrite" if commit.replaces_all else "append"
    if existing is not None and (replaced or not is_plain(existing)):
        options: dict[str, Any] = {}
        if replaced:
            names = ", ".join(f"'{name}'" for name in replaced)
            options["predicate"] = f"run_id IN ({names})"
            mode = "overwrite"
        write_deltalake(existing, rows.reader, mode=mode, commit_properties=properties, **options)
        return
    actions = write_files(commit.path, rows.tables(), rows.schema)
    if existing is not None:
        existing.create_write_transaction(actions, mode, existing.schema(), commit_properties=properties)
        return
    create_table_with_add_actions(
        commit.path,
        Schema.from_arrow(stored_schema(table)),
        actions,
        description=declarations.table(table)[0],
        configuration=PROPERTIES,
        storage_options=delta_storage_options(commit.path),
        commit_properties=properties,
    )


def _changed_runs(rows: Iterable[pa.Table], replaced: Collection[str]) -> pa.Table:
    """Rows of `runs`, and one that is DELETED for each replaced run without any."""
    new = pa.concat_tables(rows)
    without_rows = pa.array(sorted({*replaced} - {*new["run_id"].to_pylist()}), pa.string())
    gone = pa.table({"run_id": without_rows, DELETED: pa.repeat(True, len(without_rows))})
    return pa.concat_tables([without_deleted(new), gone], promote_options="default")


def _paths(existing: "DeltaTable | None") -> set[str]:
    """The paths of the files of a table; none if it does not exist."""
    return set() if existing is None else {file["path"] for file in list_files(existing)}


def _compact(existing: "DeltaTable") -> None:
    """Make one file of many small ones; delta-rs cannot if columns are mapped."""
    small = [file for file in list_files(existing) if file["size_bytes"] < _COMPACTED_BYTES // 2]
    if len(small) > _MOST_SMALL_FILES and not needs_scan(existing):
        existing.optimize.compact(target_size=_COMPACTED_BYTES)
