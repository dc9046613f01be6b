"""Paths of inputs: `pathlib.Path` for local files, `StorePath` for addresses of object stores."""

import glob
import re
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from share_state.errors import InputError
from share_state.stores.object_stores import LOCAL_SCHEME, StorePath, read_errors

InputPath = Path | StorePath
"""A file or folder; tasks receive its string."""


def regular_path(path: InputPath) -> InputPath:
    """Return the path, unless it is a pipe or a device, which may block or never end.

    Raises:
        InputError: if it is a pipe or a device, or its name is not UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{str(path)!r}: the name is not UTF-8, so no table can hold it; rename it"
        ) from None
    if isinstance(path, Path) and not path.is_file() and not path.is_dir() and path.exists():
        raise InputError(f"{path}: a pipe or a device; give a file")
    return path


def to_path(text: str) -> InputPath:
    """Convert a path or address.

    Raises:
        InputError: if it is an invalid address.
    """
    path = normalize_address(text)
    if "\0" in path:
        raise InputError(f"{text}: a path holds no NUL character; remove it")
    return Path(path) if "://" not in path else StorePath.at(path)


def normalize_address(text: str) -> str:
    """A path or address as the commands use it: the scheme in lower case, a file:// address as a path."""
    text = re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*://", lambda scheme: scheme[0].lower(), text)
    return unquote(text.removeprefix(LOCAL_SCHEME)) if text.startswith(LOCAL_SCHEME) else text


def absolute_address(text: str) -> str:
    """A path from the root of the file system, without `..`.

    An address as it is, without a slash at its end.
    """
    if "://" in text:
        return text.rstrip("/")
    path = Path(text).absolute()
    if ".." not in path.parts:
        return str(path)
    # After a symbolic link, `..` is the parent of its target; links after the last `..` keep their names.
    rest = len(path.parts) - path.parts[::-1].index("..")
    return str(Path(*path.parts[:rest]).resolve().joinpath(*path.parts[rest:]))


def expand_paths(text: str) -> list[InputPath]:
    """The existing file or folder of this name, or else all paths that match it as a pattern, sorted.

    Raises:
        OSError: if a local folder cannot be read.
        InputError: if a store fails or denies access.
    """
    path = to_path(text)
    if path.exists():
        return [regular_path(path)]
    if isinstance(path, StorePath):
        path.check_bucket()
    if not glob.has_magic(text):
        return []
    if isinstance(path, StorePath):
        return list(path.expand())
    return [regular_path(Path(match)) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207  may be absolute


def read_head(file: InputPath, size: int) -> bytes:
    """The first bytes of a file.

    Raises:
        OSError: if a local file cannot be read.
        InputError: if it is a pipe or a device, or a store fails or denies access.
    """
    regular_path(file)
    with (
        file.open("rb", buffering=0) as opened,
        read_errors(file) if isinstance(file, StorePath) else nullcontext(),
    ):
        return opened.read(size)


def parquet_source(text: str) -> "str | pa.NativeFile":
    """A file for pyarrow's Parquet reader.

    Raises:
        InputError: if a store fails or denies access.
    """
    path = to_path(text)
    return path.source() if isinstance(path, StorePath) else str(path)
