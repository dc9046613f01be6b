"""Reads and writes share snapshot files of the KIP-932 draft, which list where each group's control records are.

They are only a hint: the log decides. `sources.sought` reads a log from the earliest of these offsets on.

A folder holds one text file `<topic>-<partition>.share-snapshot` per topic-partition: the line `0` (version),
the number of entries, then one line per entry: `group checkpoint-offset checkpoint-epoch last-offset`. In a
group id, backslashes and line breaks are escaped as in Python.

Beside them, `earliest-share-offset-checkpoint` has the earliest share offset (ESO) of each topic-partition, in
the format of a broker's checkpoint files. It is for the cleaner of control records: those before it can be
deleted. Only topic-partitions are in it whose groups all have a checkpoint, and whose records before the offset
break no rule.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from share_state.errors import InputError, WarehouseError, reason_of
from share_state.kafka.primitives import LARGEST_INT64, parse_digits
from share_state.sources.log_partition import LogPartition
from share_state.sources.topic_extents import read_checkpoint
from share_state.stores.object_stores import read_errors
from share_state.stores.paths import InputPath, regular_path, to_path
from share_state.terminal import elide

EARLIEST_OFFSETS = "earliest-share-offset-checkpoint"

_VERSION = "0"
_LARGEST_EPOCH = 2**16 - 1
"""schemas/records/share_checkpoint_value.yaml: uint16."""
_LONGEST_SHOWN = 60
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


def read_earliest_offsets(folder: str, logs: Sequence[LogPartition]) -> dict[str, int]:
    """The earliest share offset of each log that has one in the folder.

    Raises:
        InputError: if the file cannot be read.
    """
    with read_errors(path := to_path(folder) / EARLIEST_OFFSETS):
        offsets = read_checkpoint(path)
    found = {
        log.name: offsets.get((log.topic, -1 if log.partition is None else log.partition)) for log in logs
    }
    return {name: offset for name, offset in found.items() if offset is not None}


def write_share_snapshots(
    folder: str,
    entries_of: Mapping[str, Sequence[ShareSnapshotEntry]],
    earliest: Mapping[str, int | None],
    *,
    accept: bool = False,
) -> None:
    """Write or replace the file of each log that has entries, and the earliest share offsets.

    Args:
        folder: folder of the files.
        entries_of: log name -> entries from the log, and entries from its file that the log contradicts.
        earliest: log name -> earliest share offset; None for none. Other logs keep theirs.
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
        _write_earliest_offsets(folder, earliest)
    except OSError as error:
        raise WarehouseError(
            f"{folder}: cannot be written ({reason_of(folder, error)}); give a folder for --index"
        ) from None


def _write_earliest_offsets(folder: str, earliest: Mapping[str, int | None]) -> None:
    """Source: Kafka OffsetCheckpointFile: version, number of entries, and one entry per line."""
    path = to_path(folder) / EARLIEST_OFFSETS
    kept = read_checkpoint(path)
    for name, offset in earliest.items():
        topic, _, partition = name.rpartition("-")
        if not partition.isdecimal():
            continue
        place = topic, int(partition)
        if offset is None:
            kept.pop(place, None)
        else:
            kept[place] = offset
    if kept or path.exists():
        lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(kept.items())]
        text = "\n".join([_VERSION, str(len(lines)), *lines]) + "\n"
        if not isinstance(path, Path):
            path.write_text(text, encoding="utf-8")
            return
        # A cleaner may read it at any moment.
        new = path.with_name(f".{path.name}.new")
        new.write_text(text, encoding="utf-8")
        new.replace(path)


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
        raise InputError(
            f"{path}: not a share snapshot file (line 1 must be 0, line 2 a count); leave it out"
        )
    entries = [(number, line) for number, line in enumerate(lines[2:], 3) if line]
    if len(entries) != parse_digits(lines[1]):
        count = elide(lines[1], _LONGEST_SHOWN)
        raise InputError(f"{path}, line 2: says {count}, and {len(entries)} entries follow; {_FIX}")
    return [_entry(path, number, line) for number, line in entries]


_FIX = "write it again or leave it out"


def _entry(path: InputPath, number: int, line: str) -> ShareSnapshotEntry:
    # Group ids may contain spaces, so split from the right.
    parts = line.rsplit(" ", 3)
    if len(parts) != 4 or not parts[0] or not all(part.isdecimal() for part in parts[1:]):
        raise InputError(f"{path}, line {number}: not `group offset epoch offset`; {_FIX}")
    checkpoint_offset = parse_digits(parts[1])
    checkpoint_epoch = parse_digits(parts[2], _LARGEST_EPOCH)
    last_offset = parse_digits(parts[3])
    if checkpoint_offset is None or checkpoint_epoch is None or last_offset is None:
        largest = f"an offset is at most {LARGEST_INT64}, an epoch at most {_LARGEST_EPOCH}"
        raise InputError(f"{path}, line {number}: a number that no log holds ({largest}); {_FIX}")
    group = _ESCAPED.sub(lambda match: _UNESCAPED[match[0]], parts[0])
    return ShareSnapshotEntry(group, checkpoint_offset, checkpoint_epoch, last_offset)
