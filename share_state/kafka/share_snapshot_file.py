"""The draft's share snapshot file: where the control records of each share group of a topic-partition lie. A hint only.

Text, one file a topic-partition: the line `0` (version), the number of entries, then a line an entry:
`group checkpoint-offset checkpoint-epoch last-offset`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from share_state.errors import InputError
from share_state.sources.object_stores import Place, unreadable

VERSION = "0"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """Where one share group's control records lie.

    Attributes:
        group: the share group.
        checkpoint_offset: offset of its latest checkpoint (SCO).
        checkpoint_epoch: epoch of that checkpoint.
        last_offset: offset of its last control record.
    """

    group: str
    checkpoint_offset: int
    checkpoint_epoch: int
    last_offset: int


def write_share_snapshot_file(path: Place, entries: Iterable[IndexEntry]) -> None:
    """Write the file, entries by group; a group id with a line break has no place in it and is left out.

    Args:
        path: file to write or replace.
        entries: at most one a group.
    Source: KIP-932 draft, share snapshot file; spec D-37.
    """
    fit = sorted((entry for entry in entries if not {*entry.group} & {*"\r\n"}), key=lambda entry: entry.group)
    lines = [f"{e.group} {e.checkpoint_offset} {e.checkpoint_epoch} {e.last_offset}" for e in fit]
    path.write_text("\n".join([VERSION, str(len(lines)), *lines]) + "\n", encoding="utf-8")


def read_share_snapshot_file(path: Place) -> list[IndexEntry]:
    """The entries of the file.

    Raises:
        InputError: if the file cannot be read or is none of these.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise unreadable(str(path), error) from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a share snapshot file (not UTF-8 text); leave it out") from None
    if lines[0] != VERSION or len(lines) < 2 or not lines[1].isdecimal():
        raise InputError(f"{path}: not a share snapshot file (line 1 is no version 0, line 2 no count); leave it out")
    entries = [line for line in lines[2:] if line]
    if len(entries) != int(lines[1]):
        raise InputError(f"{path}: {len(entries)} entries where line 2 says {lines[1]}; write it anew or leave it out")
    return [_entry(path, number, line) for number, line in enumerate(entries, 3)]


def _entry(path: Place, number: int, line: str) -> IndexEntry:
    # A group id may hold spaces, so the numbers are taken from the right.
    parts = line.rsplit(" ", 3)
    if len(parts) != 4 or not parts[0] or not all(part.isdecimal() for part in parts[1:]):
        raise InputError(f"{path}, line {number}: not `group offset epoch offset`; write it anew or leave it out")
    return IndexEntry(parts[0], *map(int, parts[1:]))
