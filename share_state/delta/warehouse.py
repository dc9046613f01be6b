"""Where tables may be written: an empty folder or a warehouse, never on top of something else. No Spark is needed.

Delta tables opened by their place, a folder or an address in an object store.

The Delta tables of a warehouse: files that lie there become rows by a commit; the row of `runs` comes last.

One run at a time writes a warehouse; whoever comes second is told who holds it.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from share_state.delta.files import File, TableFiles, asking
from share_state.errors import InputError, WarehouseError
from share_state.schema.declarations import table_schema
from share_state.sources.object_stores import StorePath, delta_options

TABLES = ("findings", "in_flight", "share_partition_state", "cutoff", "runs")
"""What every run writes, in the order of writing; a reader believes the versions that the last row of `runs` names."""

OF_AUDITS = ("share_partition_history", "carried_share_partitions", "carried_logs")
"""What an audit writes beside them."""

ON_REQUEST = ("timeline",)
"""What a run writes where it is asked to."""

OF_GROUPS = ("share_groups", "share_group_members", "share_group_partitions")
"""What a run writes beside them where the input holds the group side."""

OF_CLAIMS = ("sticky_claim", "effective_previous_assignment")
"""What it writes of classic consumer groups, where members claim anything."""

EVERY = (*TABLES, *OF_AUDITS, *ON_REQUEST, *OF_GROUPS, *OF_CLAIMS)

LOCK = ".lock"
"""The file that a run holds while it writes."""


def missing_folders(root: str) -> list[Path]:
    """A folder and those above it that are not there, the deepest first; none of an address in an object store."""
    place = Path(root).absolute()
    return [] if "://" in root else [folder for folder in (place, *place.parents) if not folder.exists()]


def check_place(root: str, tables: Sequence[str] = EVERY) -> None:
    """Refuse a place that holds something else than a warehouse, before any work is done.

    Args:
        root: a folder, or an address in an object store.
        tables: what may be there.
    Raises:
        WarehouseError: if it is a file, cannot be written, or holds other things; if a store says no.
    """
    if "://" in root:
        _check_address(root, tables)
        return
    place = Path(root)
    try:
        if place.is_symlink() and not place.exists():
            raise WarehouseError(f"{root}: a link to nothing is here; give a folder for the tables")
        if place.exists() and not place.is_dir():
            raise WarehouseError(f"{root}: a file is here; give a folder for the tables")
        entries = [entry for entry in place.iterdir() if not entry.name.startswith(".")] if place.exists() else []
    except OSError as error:
        raise WarehouseError(f"{root}: cannot be read ({error.strerror}); give a folder for the tables") from None
    # A run that was killed may leave a table that was never committed, beside the lock that it held.
    ours = (place / LOCK).exists()
    known = {entry.name for entry in entries if entry.name in tables and (ours or next(entry.glob("**/*.json"), None))}
    # A Delta table may be replaced whole; its log says which of the files beside it are its own.
    strangers = [entry.name for entry in entries if entry.name not in known and "_delta_log" not in known]
    if strangers:
        raise _held_by(root, strangers[0])
    existing = next(parent for parent in (place, *place.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise WarehouseError(f"{root}: {existing} is a file; give a folder for the tables")


def _check_address(root: str, tables: Sequence[str]) -> None:
    try:
        place = StorePath.at(root)
        if place.is_file():
            raise WarehouseError(f"{root}: a file is here; give a folder for the tables")
        place.check_bucket()
        names = [name for name in place.names() if not name.startswith(".")]
    except InputError as error:
        raise WarehouseError(str(error)) from None
    strangers = [name for name in names if name not in tables and "_delta_log" not in {*names} & {*tables}]
    if strangers:
        raise _held_by(root, strangers[0])


def _held_by(root: str, name: str) -> WarehouseError:
    return WarehouseError(f"{root}: holds something else ({name}); give an empty folder or a warehouse")


def table_at(place: str, version: int | None = None) -> DeltaTable | None:
    """A Delta table; None where there is none.

    Args:
        place: path or address of its folder.
        version: as it was then; by default as it is.
    Raises:
        WarehouseError: if a store says no.
        DeltaError: if what is there cannot be read as one.
    """
    with asking(place), suppress(TableNotFoundError):
        return DeltaTable(place, version=version, storage_options=delta_options(place))


_SHORTEST_SWEEP = 7


class Warehouse:
    """The tables under one folder, for one attempt to write them; `with` it, and what is never committed goes.

    Attributes:
        files: writes rows into the tables' folders, in this process or in tasks.
    """

    def __init__(self, root: str, folders: Mapping[str, str] | None = None) -> None:
        """Name a warehouse.

        Args:
            root: folder, or address in an object store.
            folders: table -> its folder there, where that is not called as the table is; "" for the place itself.
        """
        self.files = TableFiles(root if "://" in root else str(Path(root).absolute()), folders=folders or {})
        self._missing = missing_folders(root)
        self._committed, self._runs = set[str](), self._version("runs")

    def __enter__(self) -> "Warehouse":
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        # Tasks that were tried again, or a run that failed, leave files that no commit names.
        with suppress(*((OSError, InputError) if failed else ())):
            self.files.discard(self.files.folders or EVERY, frozenset(self._committed))
        if failed:
            with suppress(OSError):
                for folder in self._missing:
                    folder.rmdir()

    def replace(self, table: str, files: Iterable[File]) -> dict[str, int]:
        """Let a table hold the rows of some files, and no others.

        Args:
            table: its name.
            files: of `self.files`.
        Returns:
            The Delta version that the table now has.
        Raises:
            WarehouseError: if a table there has other columns.
        """
        return self._commit(table, files, gone=None)

    def put(self, table: str, rows: pa.Table) -> dict[str, int]:
        """Let a table hold these rows, and no others.

        Raises:
            WarehouseError: if a table there has other columns.
        """
        return self.replace(table, self.files.write(table, rows.to_batches()))

    def add(self, table: str, files: Iterable[File], gone: Collection[str]) -> dict[str, int]:
        """Add rows to those that a table has.

        Args:
            table: its name; it has a column run_id.
            files: of `self.files`.
            gone: runs whose rows go.
        Returns:
            The Delta version that the table now has.
        Raises:
            WarehouseError: if a table there has other columns.
        """
        return self._commit(table, files, gone=gone)

    def runs_in(self, table: str) -> set[str]:
        """The runs of which a table has rows."""
        there = table_at(self.files.folder(table))
        if there is None:
            return set()
        known = pa.table(there.get_add_actions(flatten=True)).to_pylist()
        ends = {file.get(f"{end}.run_id") for file in known for end in ("min", "max")}
        if None not in ends and all(file["min.run_id"] == file["max.run_id"] for file in known):
            return ends
        return set(self.files.read(table, [file["path"] for file in known], ["run_id"])["run_id"].to_pylist())

    def sweep(self, days: int) -> None:
        """Delete files that no version of the last so many days holds: replaced rows, and what killed runs left.

        Args:
            days: a week at least, as Delta's own tools keep them for readers that are slow.
        """
        for table in EVERY:
            if (there := table_at(self.files.folder(table))) is not None:
                hours = 24 * max(days, _SHORTEST_SWEEP)
                there.vacuum(retention_hours=hours, dry_run=False, full=True)

    def _commit(self, table: str, files: Iterable[File], *, gone: Collection[str] | None) -> dict[str, int]:
        path, files = self.files.folder(table), list(files)
        if (table == "runs" or not self._committed) and self._version("runs") != self._runs:
            raise self._overtaken()
        try:
            with asking(path):
                return {table: self._committed_version(table, path, files, gone)}
        except CommitFailedError:
            raise self._overtaken() from None
        except DeltaError as error:
            raise _unusable(path, error) from None

    def _committed_version(self, table: str, path: str, files: list[File], gone: Collection[str] | None) -> int:
        schema, there = table_schema(table), table_at(path)
        if there is None:
            options = delta_options(path)
            create_table_with_add_actions(path, Schema.from_arrow(schema), _added(files), storage_options=options)
            return self._known(table, files, 0)
        self._check(table, there)
        if gone is None:
            actions, mode = _added(files), "overwrite"
        else:
            if gained := [field for field in _fields(schema) if field not in there.schema().fields]:
                there.alter.add_columns(gained)
                there.update_incremental()
            left, removed = self._without(table, there, gone)
            files, mode = [*files, *left], "append"
            actions = [*_added(files), *removed]
        before = there.version()
        there.create_write_transaction(actions, mode, schema)
        there.update_incremental()
        if table != "runs" and there.version() != before + 1:
            raise self._overtaken()
        return self._known(table, files, there.version())

    def _known(self, table: str, files: Iterable[File], version: int) -> int:
        self._committed |= {file["path"] for file in files}
        self._runs = version if table == "runs" else self._runs
        return version

    def _version(self, table: str) -> int | None:
        path = self.files.folder(table)
        try:
            there = table_at(path)
        except DeltaError as error:
            raise _unusable(path, error) from None
        return None if there is None else there.version()

    def _overtaken(self) -> WarehouseError:
        # An object store holds no lock against another run; what this one wrote goes, or is never believed.
        return WarehouseError(
            f"{self.files.root}: another run committed here meanwhile; this one did not, run it again"
        )

    def _without(self, table: str, there: DeltaTable, gone: Collection[str]) -> tuple[list[File], list[RemoveAction]]:
        """What takes the rows of some runs out: rows that stay but shared a file with them, and the files that go."""
        known = pa.table(there.get_add_actions(flatten=True)).to_pylist()
        stay, go = list[str](), list[RemoveAction]()
        for file in known:
            least, greatest = file.get("min.run_id"), file.get("max.run_id")
            if least is not None and least == greatest and least not in gone:
                continue
            go.append(RemoveAction(file["path"], True, int(time.time() * 1000), file["size_bytes"], {}))
            if least is None or least != greatest:
                stay.append(file["path"])
        if not stay:
            return [], go
        kept = self.files.read(table, stay).filter(~pc.field("run_id").isin(sorted(gone)))
        return self.files.write(table, kept.to_batches()), go

    def _check(self, table: str, there: DeltaTable) -> None:
        for field in there.schema().fields:
            if field not in _fields(table_schema(table)):
                why = f"its column {field.name} is not of ours"
                raise WarehouseError(f"{self.files.folder(table)}: another table is here ({why}); give an empty folder")


def _unusable(path: str, error: DeltaError) -> WarehouseError:
    why = str(error).strip().splitlines()[0]
    return WarehouseError(f"{path}: cannot be written as a Delta table ({why}); give an empty folder")


def _added(files: Iterable[File]) -> list[AddAction | RemoveAction]:
    now = int(time.time() * 1000)
    return [AddAction(file["path"], file["size"], {}, now, True, file["stats"]) for file in files]


def _fields(schema: pa.Schema) -> list[Field]:
    return Schema.from_arrow(schema).fields


_HOLDER = ".lock.holder.json"


@contextmanager
def locked(root: str, command: str) -> Iterator[None]:
    """Hold a warehouse while a command writes to it.

    The operating system lets go of the lock when the process ends, however it ends: a run that was killed bars nobody.

    An object store has no such lock: there `Warehouse` refuses to commit where another run has committed since.

    Args:
        root: the warehouse; made where it is not there.
        command: what holds it, for the other one's error.
    Raises:
        WarehouseError: if another run holds it, or it cannot be written.
    """
    if "://" in root:
        yield
        return
    place, made = Path(root), missing_folders(root)
    try:
        place.mkdir(parents=True, exist_ok=True)
        held = (place / LOCK).open("a", encoding="utf-8")
    except OSError as error:
        raise WarehouseError(f"{root}: cannot be written ({error.strerror}); give a folder for the tables") from None
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # One that failed before it wrote anything takes its lock away with it.
            is_there = os.path.samestat(os.fstat(held.fileno()), (place / LOCK).stat())
        except OSError:
            is_there = False
        if not is_there:
            raise WarehouseError(
                f"{root}: held by {_holder(place)}; wait until it is done, or give another warehouse"
            ) from None
        holder = {
            "command": command,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        (place / _HOLDER).write_text(json.dumps(holder), encoding="utf-8")
        try:
            yield
        finally:
            (place / _HOLDER).unlink(missing_ok=True)
            if [entry.name for entry in place.iterdir()] == [LOCK]:
                (place / LOCK).unlink()
                for folder in made:
                    folder.rmdir()


def _holder(place: Path) -> str:
    try:
        told = json.loads((place / _HOLDER).read_text(encoding="utf-8"))
        return f"`share-state {told['command']}`, process {told['pid']} on {told['host']} since {told['since']}"
    except (OSError, ValueError, KeyError):
        return "another run"
