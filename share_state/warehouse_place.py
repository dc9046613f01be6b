"""Where tables may be written: an empty folder or a warehouse, never on top of something else. No Spark is needed."""

from collections.abc import Sequence
from pathlib import Path

from share_state.errors import InputError, WarehouseError
from share_state.wire.store_path import StorePath

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
