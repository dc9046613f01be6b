"""Reads and writes share snapshot files of the KIP-932 draft, which list where each group's control records are.

They are only a hint: the log decides.

A folder holds one text file `<topic>-<partition>.share-snapshot` per topic-partition: the line `0` (version), the
number of entries, then one line per entry: `group checkpoint-offset checkpoint-epoch last-offset`. In a group id,
backslashes and line breaks are escaped as in Python.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from share_state.errors import InputError, WarehouseError
from share_state.sources.discovery import LogPartition
from share_state.sources.object_stores import InputPath, read_errors, regular_path, to_path

_VERSION = "0"
_UNESCAPED = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}
"""Escape in a file -> character that would break its lines."""
_ESCAPES = {ord(text): escaped for escaped, text in _UNESCAPED.items()}
_ESCAPED = re.compile(r"\\[\\nr]")


@dataclass(frozen=True, slots=True)
class ShareSnapshotEntry:
    """Where the control records of one share group are.

    Attributes:
        group: the share group.
        checkpoint_offset: offset of its latest checkpoint (SCO).
        checkpoint_epoch: epoch of that checkpoint.
        last_offset: offset of its last control record.
        is_contradicted: whether the log contradicts it, rather than having grown since.
    """

    group: str
    checkpoint_offset: int
    checkpoint_epoch: int
    last_offset: int
    is_contradicted: bool = False


def read_share_snapshots(folder: str, logs: Sequence[LogPartition]) -> dict[str, list[ShareSnapshotEntry]]:
    """The entries of each log that has a file in the folder.

    Raises:
        InputError: if a file cannot be read or has another format.
    """
    files = {log.name: _file(folder, log.name) for log in logs}
    return {name: read_share_snapshot_file(file) for name, file in files.items() if file.exists()}


def write_share_snapshots(
    folder: str, entries_of: Mapping[str, Sequence[ShareSnapshotEntry]], *, accept: bool = False
) -> None:
    """Write or replace the file of each log that has entries.

    Args:
        folder: folder of the files.
        entries_of: log name -> entries from the log, and entries from its file that the log contradicts.
        accept: drop the contradicted entries; otherwise they stay and replace the group's entry from the log.
    Raises:
        WarehouseError: if the folder cannot be written.
    """
    try:
        for name, candidates in entries_of.items():
            disputed = set() if accept else {entry.group for entry in candidates if entry.is_contradicted}
            entries = [entry for entry in candidates if entry.is_contradicted == (entry.group in disputed)]
            if entries:
                if isinstance(path := to_path(folder), Path):
                    path.mkdir(parents=True, exist_ok=True)
                write_share_snapshot_file(_file(folder, name), entries)
    except OSError as error:
        raise WarehouseError(f"{folder}: cannot be written ({error.strerror}); give a folder for --index") from None


def _file(folder: str, name: str) -> InputPath:
    return to_path(folder) / f"{name}.share-snapshot"


def write_share_snapshot_file(path: InputPath, entries: Iterable[ShareSnapshotEntry]) -> None:
    """Write the file, ordered by group.

    Source: KIP-932 draft, share snapshot file.
    """
    lines = [
        f"{entry.group.translate(_ESCAPES)} {entry.checkpoint_offset} {entry.checkpoint_epoch} {entry.last_offset}"
        for entry in sorted(entries, key=lambda entry: entry.group)
    ]
    path.write_text("\n".join([_VERSION, str(len(lines)), *lines]) + "\n", encoding="utf-8")


def read_share_snapshot_file(path: InputPath) -> list[ShareSnapshotEntry]:
    """The entries of the file.

    Raises:
        InputError: if the file cannot be read or has another format.
    """
    try:
        with read_errors(path):
            lines = regular_path(path).read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a share snapshot file (not UTF-8 text); leave it out") from None
    if lines[0] != _VERSION or len(lines) < 2 or not lines[1].isdecimal():
        raise InputError(f"{path}: not a share snapshot file (line 1 must be 0, line 2 a count); leave it out")
    entries = [line for line in lines[2:] if line]
    if len(entries) != int(lines[1]):
        raise InputError(f"{path}: {len(entries)} entries where line 2 says {lines[1]}; write it again or leave it out")
    return [_entry(path, number, line) for number, line in enumerate(entries, 3)]


def _entry(path: InputPath, number: int, line: str) -> ShareSnapshotEntry:
    # Group ids may contain spaces, so split from the right.
    parts = line.rsplit(" ", 3)
    if len(parts) != 4 or not parts[0] or not all(part.isdecimal() for part in parts[1:]):
        raise InputError(f"{path}, line {number}: not `group offset epoch offset`; write it again or leave it out")
    group = _ESCAPED.sub(lambda match: _UNESCAPED[match[0]], parts[0])
    return ShareSnapshotEntry(group, int(parts[1]), int(parts[2]), int(parts[3]))
