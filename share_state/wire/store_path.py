"""A place in an object store that is used as a local path is: listed once, read by ranges."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from share_state.errors import InputError
from share_state.wire.stores import NotOpenedError, Store, parted, refusal

STREAM = 16 << 20
"""Bytes that a text is asked for at a time, as segments are."""


@contextmanager
def _asking(address: object) -> Iterator[None]:
    """Turns what the store says into an InputError with the address."""
    try:
        yield
    except (OSError, pa.ArrowException, NotOpenedError) as error:
        raise refusal(str(address), error) from None


class StorePath:
    """A file or folder of a store, with the methods of `pathlib.Path` that reading needs.

    What is found below a folder is remembered by the folder, so that looking into it again asks nobody: an instance is
    for one search. Every method that asks the store raises InputError where that says no.
    """

    __slots__ = ("_children", "_content", "_info", "_parent", "rest", "store")

    def __init__(
        self, store: Store, rest: str, parent: "StorePath | None" = None, info: pafs.FileInfo | None = None
    ) -> None:
        self.store, self.rest = store, rest
        self._parent, self._info = parent, info
        self._children: dict[str, StorePath] | None = None
        self._content: bytes | None = None

    @classmethod
    def at(cls, address: str) -> "StorePath":
        """The place of an address such as s3://bucket/folder.

        Raises:
            InputError: if it is none.
        """
        return cls(*parted(address))

    def __str__(self) -> str:
        return f"{self.store.prefix}{self.rest}"

    def __repr__(self) -> str:
        return f"StorePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: "StorePath") -> bool:
        return (self.store.prefix, self.rest.split("/")) < (other.store.prefix, other.rest.split("/"))

    def __truediv__(self, name: str) -> "StorePath":
        if self._children is None:
            return StorePath(self.store, f"{self.rest}/{name}", self)
        return self._children.get(name) or StorePath(self.store, f"{self.rest}/{name}", self, _nothing())

    @property
    def inner(self) -> str:
        """As its file system calls it."""
        return f"{self.store.root}{self.rest}" or "/"

    @property
    def name(self) -> str:
        """The last part."""
        return self.rest.rpartition("/")[2] or self.store.root

    @property
    def parent(self) -> "StorePath":
        """The folder around it; a bucket's is itself."""
        if self._parent is None:
            self._parent = StorePath(self.store, self.rest.rpartition("/")[0]) if self.rest else self
        return self._parent

    @property
    def parents(self) -> "list[StorePath]":
        """The folders around it, the innermost first."""
        above, here = list[StorePath](), self
        while here.rest:
            here = here.parent
            above.append(here)
        return above

    @property
    def size(self) -> int:
        """Bytes of a file."""
        return int(self._known().size or 0)

    def resolve(self) -> "StorePath":
        """Itself: a store has no links."""
        return self

    def exists(self) -> bool:
        """Whether anything is there."""
        return self._known().type != pafs.FileType.NotFound

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self._known().type == pafs.FileType.File

    def is_dir(self) -> bool:
        """Whether anything lies below it."""
        return self._known().type == pafs.FileType.Directory

    def iterdir(self) -> "Iterator[StorePath]":
        """What lies in a folder; everything below it is listed at once, for one listing costs as much as one folder."""
        if self._children is None:
            self._list(recursive=True)
        yield from (self._children or {}).values()

    def names(self) -> "list[str]":
        """What lies in a folder, by name; only this folder is listed."""
        return [child.name for child in self._next("*")]

    def glob(self, pattern: str) -> "Iterator[StorePath]":
        """What lies in a folder under a name that matches."""
        yield from (child for child in self.iterdir() if fnmatchcase(child.name, pattern))

    def rglob(self, pattern: str) -> "Iterator[StorePath]":
        """What lies anywhere below a folder under a name that matches."""
        for child in self.iterdir():
            if fnmatchcase(child.name, pattern):
                yield child
            if child.is_dir():
                yield from child.rglob(pattern)

    def matches(self) -> "list[StorePath]":
        """What an address with *, ?, [...] or ** names; folder by folder, as little as possible is listed."""
        level = [StorePath(self.store, "")]
        for part in PurePosixPath(self.rest).parts[1:]:
            if part == "**":
                level = [place for folder in level for place in (folder, *folder.rglob("*")) if place.is_dir()]
            elif has_magic(part):
                level = [child for folder in level for child in folder._next(part)]
            else:
                level = [folder / part for folder in level]
        return sorted({place for place in level if place.exists()})

    def check_bucket(self) -> None:
        """Refuse a bucket that is not there.

        Raises:
            InputError: if it is not.
        """
        if not StorePath(self.store, "").exists():
            raise InputError(f"{self}: no such bucket; check its name")

    def relative_to(self, folder: "StorePath | Path") -> PurePosixPath:
        """The path from a folder around it."""
        return PurePosixPath(str(self).removeprefix(str(folder)).lstrip("/"))

    def is_relative_to(self, address: str) -> bool:
        """Whether it is a place or lies below it."""
        return f"{self}/".startswith(f"{address.rstrip('/')}/")

    def match(self, address: str) -> bool:
        """Whether an address with *, ? or [...] names it."""
        own, theirs = str(self).split("/"), address.rstrip("/").split("/")
        return len(own) == len(theirs) and all(map(fnmatchcase, own, theirs))

    def open(self, mode: str = "rb", buffering: int = STREAM) -> Any:
        """A file to be read as bytes.

        Args:
            mode: "rb".
            buffering: bytes that are asked for at a time, however few are read; 0 to ask for just what is read.
        """
        if mode != "rb":
            raise ValueError(f"{mode}: a file of a store is read as bytes")
        raw = _Ranged(self)
        return io.BufferedReader(raw, min(buffering, max(self._size_or(buffering), 1))) if buffering else raw

    def head(self, size: int) -> bytes:
        """The first bytes of a file."""
        with self.open(buffering=0) as opened:
            return opened.read(size)

    def read_bytes(self) -> bytes:
        """All of a small file, asked for once."""
        if self._content is None:
            with self.open(buffering=0) as opened:
                self._content = bytes(opened.readall())
        return self._content

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """All of a small text."""
        return self.read_bytes().decode(encoding, errors)

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        """Write a small text in place of what is there."""
        with _asking(self), self.store.file_system.open_output_stream(self.inner) as opened:
            opened.write(text.encode(encoding))

    def source(self) -> pa.NativeFile:
        """The file as pyarrow's readers take it."""
        with _asking(self):
            return self.store.file_system.open_input_file(self.inner)

    def _size_or(self, otherwise: int) -> int:
        return otherwise if self._info is None else int(self._info.size or 0)

    def _known(self) -> pafs.FileInfo:
        if self._info is None:
            with _asking(self):
                self._info = self.store.file_system.get_file_info(self.inner)
        return self._info

    def _next(self, pattern: str) -> "list[StorePath]":
        """The children that a part of a pattern names; only this folder is listed."""
        if self._children is None:
            self._list(recursive=False)
        named = [child for child in (self._children or {}).values() if fnmatchcase(child.name, pattern)]
        return [child for child in named if not child.name.startswith(".") or pattern.startswith(".")]

    def _list(self, *, recursive: bool) -> None:
        selector = pafs.FileSelector(self.inner, recursive=recursive, allow_not_found=True)
        with _asking(self):
            listed = self.store.file_system.get_file_info(selector)
        self._children = {}
        for info in sorted(listed, key=lambda info: info.path):
            folder = self
            # Some file systems put a slash before a path that they were given without one.
            parts = info.path.strip("/")[len(self.inner.strip("/")) :].strip("/").split("/")
            for part in parts[:-1]:
                folder = folder._child(part, pafs.FileInfo("", pafs.FileType.Directory))
                folder._children = folder._children if folder._children is not None else {}
            child = folder._child(parts[-1], info)
            if recursive and info.type == pafs.FileType.Directory and child._children is None:
                child._children = {}

    def _child(self, name: str, info: pafs.FileInfo) -> "StorePath":
        if self._children is None:
            self._children = {}
        if name not in self._children:
            self._children[name] = StorePath(self.store, f"{self.rest}/{name}", self, info)
        return self._children[name]


class _Ranged(io.RawIOBase):
    """A file of a store; reads just the ranges that are asked for."""

    def __init__(self, place: StorePath) -> None:
        self._address, self._file = str(place), place.source()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        with _asking(self._address):
            return self._file.readinto(buffer)

    def readall(self) -> bytes:
        with _asking(self._address):
            return self._file.read()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        with _asking(self._address):
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _nothing() -> pafs.FileInfo:
    return pafs.FileInfo("", pafs.FileType.NotFound)
