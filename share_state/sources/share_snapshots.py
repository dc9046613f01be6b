"""A folder of share snapshot files: one `<topic>-<partition>.share-snapshot` a topic-partition."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from share_state.errors import WarehouseError
from share_state.kafka.share_snapshot_file import IndexEntry, read_share_snapshot_file, write_share_snapshot_file
from share_state.sources.discovery import LogPartition
from share_state.sources.object_stores import Place, place


def read_indexes(folder: str | None, logs: Sequence[LogPartition]) -> dict[str, list[IndexEntry]]:
    """What the files say of these logs; a log without a file is left out.

    Raises:
        InputError: if a file is none of these.
    """
    files = {log.name: _file(folder, log.name) for log in logs} if folder is not None else {}
    return {name: read_share_snapshot_file(file) for name, file in files.items() if file.exists()}


def write_indexes(folder: str, indexes: Mapping[str, Sequence[IndexEntry]]) -> None:
    """Write a file for every log with checkpoints, in place of an earlier one.

    Raises:
        WarehouseError: if the folder cannot be written.
    """
    try:
        for name, entries in indexes.items():
            if entries:
                if isinstance(made := place(folder), Path):
                    made.mkdir(parents=True, exist_ok=True)
                write_share_snapshot_file(_file(folder, name), entries)
    except OSError as error:
        raise WarehouseError(f"{folder}: cannot be written ({error.strerror}); give a folder for --index") from None


def _file(folder: str, name: str) -> Place:
    return place(folder) / f"{name}.share-snapshot"
