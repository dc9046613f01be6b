"""The files of an export that is no folder of segments: which they are, and how they begin."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import pyarrow as pa

from share_state.errors import InputError
from share_state.stores.paths import InputPath, expand_paths, read_head, regular_path

HEAD_SIZE = 1 << 20
"""Bytes of a file that are enough to recognize its format."""

PARQUET_MAGIC = b"PAR1"

_NOT_DATA = ("_", ".")

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
"""Ending of a file name -> how the file is compressed, for Arrow and Spark alike."""


def data_files(path: InputPath) -> list[InputPath]:
    """The data files of a table; Spark ignores names that begin with a dot or an underscore.

    Source: Spark InMemoryFileIndex.
    """
    if path.is_file():
        return [path]

    def is_data(file: InputPath) -> bool:
        return not any(
            part.startswith(_NOT_DATA) and "=" not in part for part in file.relative_to(str(path)).parts
        )

    return [regular_path(file) for file in sorted(path.rglob("*")) if file.is_file() and is_data(file)]


def first_content(files: Sequence[InputPath]) -> tuple[InputPath, bytes]:
    """The first file that is not empty, and how it begins; an empty file named as Parquet counts as Parquet."""
    for file in files:
        if head := _read_content(file):
            return file, head
    parquet = next((file for file in files if file.name.endswith(".parquet")), None)
    return (files[0], b"") if parquet is None else (parquet, PARQUET_MAGIC)


def _read_content(file: InputPath) -> bytes:
    """The first bytes of a file; of one whose name says that it is compressed, those of its content."""
    head, codec = read_head(file, HEAD_SIZE), codec_of(file)
    if codec is None:
        return head
    content, stream = list[bytes](), pa.CompressedInputStream(pa.BufferReader(head), codec)
    with suppress(OSError):  # the head ends inside a block
        content += (stream.read(HEAD_SIZE // 16) for _ in range(16))
    return b"".join(content)


def codec_of(file: InputPath) -> str | None:
    """How a file is compressed, according to its name; None if it is not."""
    return next((codec for ending, codec in _CODECS.items() if file.name.endswith(ending)), None)


def text_files(paths: Sequence[str], matches: Callable[[bytes], bool]) -> list[InputPath]:
    """The files that paths name, and those of this format in folders.

    Raises:
        InputError: if there are none.
    """
    found = []
    for given in paths:
        named = existing_paths(given)
        if not named:
            raise InputError(f"{given}: no such file or folder; give a text, or a folder of texts")
        for path in named:
            is_file = path.is_file()
            found += (
                [path] if is_file else [one for one in data_files(path) if matches(read_head(one, HEAD_SIZE))]
            )
    if not found:
        raise InputError(f"{paths[0]}: no text of this format in this folder; give the files")
    return found


def existing_paths(given: str) -> list[InputPath]:
    """The files and folders that a path or glob names; none if it cannot be listed."""
    try:
        return expand_paths(given)
    except OSError:
        return []
