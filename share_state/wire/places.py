"""Where inputs lie: a local path stays one, an address such as s3://bucket/folder is a place in a store."""

import glob
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from share_state.errors import InputError
from share_state.wire.store_path import StorePath
from share_state.wire.stores import refusal

if TYPE_CHECKING:
    import pyarrow as pa

Place = Path | StorePath
"""A file or a folder; what travels to the tasks is its text."""

_LOCAL = "file://"


def place(given: str) -> Place:
    """The place that a text names.

    Raises:
        InputError: if it looks like an address and is none that can be read.
    """
    if "://" not in given:
        return Path(given)
    return Path(unquote(given.removeprefix(_LOCAL))) if given.startswith(_LOCAL) else StorePath.at(given)


def places(given: str) -> list[Place]:
    """What is there under a name, or what a pattern names, in order; nothing where nothing is there.

    Raises:
        OSError: if a local folder may not be looked into.
        InputError: if a store says no.
    """
    named = place(given)
    if named.exists():
        return [named]
    if isinstance(named, StorePath):
        named.check_bucket()
    if not glob.has_magic(given):
        return []
    if isinstance(named, StorePath):
        return list(named.matches())
    return [Path(match) for match in sorted(glob.glob(str(named), recursive=True))]  # noqa: PTH207  may be absolute


def size_of(file: Place) -> int:
    """Bytes of a file.

    Raises:
        OSError: if a local file may not be looked at.
        InputError: if a store says no.
    """
    return file.size if isinstance(file, StorePath) else file.stat().st_size


def head_of(file: Place, size: int) -> bytes:
    """The first bytes of a file.

    Raises:
        OSError: if a local file cannot be read.
        InputError: if a store says no.
    """
    if isinstance(file, StorePath):
        return file.head(size)
    with file.open("rb") as opened:
        return opened.read(size)


def names_below(found: Place, folder: Place) -> tuple[str, ...]:
    """The names from a folder, left out, down to what was found in it."""
    if isinstance(found, StorePath):
        return found.relative_to(folder).parts
    return found.relative_to(str(folder)).parts


def parquet_source(path: str) -> "str | pa.NativeFile":
    """A file as pyarrow's Parquet reader takes it.

    Raises:
        InputError: if a store says no.
    """
    found = place(path)
    return found.source() if isinstance(found, StorePath) else str(found)


def unreadable(path: str, error: OSError) -> InputError:
    """What a person is told of a file that cannot be read."""
    if "://" in path and not path.startswith(_LOCAL):
        return refusal(path, error)
    return InputError(f"{path}: cannot be read ({error.strerror or error}); check its permissions")
