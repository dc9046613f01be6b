"""The place of a warehouse: the names of its tables, whether it can be written, and the lock of a run."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from share_state.delta.reader import (
    check_delta_path,
    delete_folder,
    refuse_link,
    warehouse_errors,
)
from share_state.delta.staging import STAGING_PREFIX
from share_state.errors import InputError, WarehouseError, reason_of
from share_state.stores.object_stores import StorePath

if TYPE_CHECKING:
    pass


CORE_TABLES = ("findings", "in_flight", "share_partition_state", "cutoff", "runs")
"""The tables of every run; `runs` is committed last."""


AUDIT_TABLES = ("share_partition_history", "carried_share_partitions", "carried_logs", "group_outcomes")
"""The further tables of an audit."""


OPTIONAL_TABLES = ("timeline",)
"""The tables of a run that asks for them."""


GROUP_TABLES = ("share_groups", "share_group_members", "share_group_partitions")
"""The tables of a run whose input holds the group side."""


CLAIM_TABLES = ("sticky_claim", "effective_previous_assignment")
"""The tables about classic consumer groups, if any member claims a partition."""


DEAD_LETTER_TABLES = ("archiving_ranges", "dead_letters", "lost_dead_letters")
"""The tables of a run with dead-letter topics."""


ALL_TABLES = (
    *CORE_TABLES,
    *AUDIT_TABLES,
    *OPTIONAL_TABLES,
    *GROUP_TABLES,
    *CLAIM_TABLES,
    *DEAD_LETTER_TABLES,
)


EMPTY_FOLDER_HINT = "give an empty folder"
_LOCK = ".lock"
_LOCK_HOLDER = ".lock.holder.json"


def missing_folders(root: str) -> list[Path]:
    """The folder and its parents that do not exist, the deepest first.

    None for an address in an object store.
    """
    path = Path(root).absolute()
    return [] if "://" in root else [folder for folder in (path, *path.parents) if not folder.exists()]


def check_warehouse_path(root: str, tables: Sequence[str] = ALL_TABLES) -> None:
    """Refuse a place that holds anything but a warehouse.

    Args:
        root: a folder or an address in an object store.
        tables: the tables that may be there.
    Raises:
        WarehouseError: if it is a file, cannot be read, or holds other things; if an object store refuses.
    """
    if "://" in root:
        _check_address(root, tables)
        return
    check_delta_path(root)
    path = Path(root)
    try:
        if path.is_symlink() and not path.exists():
            raise WarehouseError(f"{root}: a dangling symbolic link is here; give a folder for the tables")
        if path.exists() and not path.is_dir():
            raise WarehouseError(f"{root}: a file is here; give a folder for the tables")
        entries = (
            [entry for entry in path.iterdir() if not entry.name.startswith(".")] if path.exists() else []
        )
    except OSError as error:
        raise WarehouseError(
            f"{root}: cannot be read ({error.strerror}); give a folder for the tables"
        ) from None
    for entry in entries:
        if entry.name in tables:
            refuse_link(str(entry))
    # A killed run leaves its lock file, and may leave a table that has no commit yet.
    was_locked = (path / _LOCK).exists()
    known = {
        entry.name
        for entry in entries
        if entry.name in tables and (was_locked or next(entry.glob("**/*.json"), None))
    }
    # A Delta table at the place itself (`decode --out`) is replaced whole; its log names the files that are
    # its own.
    foreign = [entry.name for entry in entries if entry.name not in known and "_delta_log" not in known]
    if foreign:
        raise _occupied(root, foreign[0])
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise WarehouseError(f"{root}: {existing} is a file; give a folder for the tables")


def _check_address(root: str, tables: Sequence[str]) -> None:
    try:
        path = StorePath.at(root)
        if path.is_file():
            raise WarehouseError(f"{root}: a file is here; give a folder for the tables")
        path.check_bucket()
        names = [name for name in path.names() if not name.startswith(".")]
    except InputError as error:
        raise WarehouseError(str(error)) from None
    foreign = [name for name in names if name not in tables and "_delta_log" not in {*names} & {*tables}]
    if foreign:
        raise _occupied(root, foreign[0])


def _occupied(root: str, name: str) -> WarehouseError:
    return WarehouseError(f"{root}: holds something else ({name}); give an empty folder or a warehouse")


@contextmanager
def warehouse_lock(root: str, command: str) -> Iterator[None]:
    """Lock a warehouse while a command writes to it; an address in an object store is not locked.

    The operating system releases the lock when the process ends, so a killed run blocks nobody.

    Args:
        root: the warehouse; its folder is created if it does not exist.
        command: the command that writes, for the error of another one.
    Raises:
        WarehouseError: if another run holds the lock, or the folder cannot be written.
    """
    if "://" in root:
        yield
        return
    path, made = Path(root), missing_folders(root)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / _LOCK).open("a", encoding="utf-8")
    except OSError as error:
        raise WarehouseError(
            f"{root}: cannot be written ({reason_of(root, error)}); give a folder for the tables"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A run that failed before it wrote anything has deleted its lock file.
            is_current = os.path.samestat(os.fstat(lock.fileno()), (path / _LOCK).stat())
        except OSError:
            is_current = False
        if not is_current:
            raise WarehouseError(
                f"{root}: locked by {_lock_holder(path)}; wait until it is done, or give another warehouse"
            ) from None
        holder = {
            "command": command,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        try:
            with warehouse_errors(root):
                (path / _LOCK_HOLDER).write_text(json.dumps(holder), encoding="utf-8")
                for staged in path.glob(f"{STAGING_PREFIX}*"):
                    delete_folder(str(staged))  # of a run that was killed
            yield
        finally:
            (path / _LOCK_HOLDER).unlink(missing_ok=True)
            if [entry.name for entry in path.iterdir()] == [_LOCK]:
                (path / _LOCK).unlink()
                for folder in made:
                    folder.rmdir()


def _lock_holder(path: Path) -> str:
    try:
        holder = json.loads((path / _LOCK_HOLDER).read_text(encoding="utf-8"))
        return f"`share-state {holder['command']}`, process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError):
        return "another run"
