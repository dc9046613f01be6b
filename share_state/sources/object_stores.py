"""Opens object stores by their address: one file system a process, and one clear line where a store says no.

A place in an object store that is used as a local path is: listed once, read by ranges.

Where inputs lie: a local path stays one, an address such as s3://bucket/folder is a place in a store.
"""

import glob
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import has_magic
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from share_state.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


SCHEMES = ("s3", "s3a", "gs", "abfs", "abfss", "hdfs")
"""What pyarrow opens itself; anything else goes to fsspec, where that is installed and knows it."""

CONNECT_SECONDS, ATTEMPTS, RETRY_SECONDS = 5, 3, 20
"""How long a store that does not answer is waited for, how often it is asked, and for how long in all."""

_REGION = "us-east-1"
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
_SECRET_IN_QUERY = re.compile(r"[?&](access_key|secret_key|session_token|sig|token)=")
_SETTINGS = re.compile(r"AWS_|AZURE_|GOOGLE_|HADOOP_|CLASSPATH")
_SECRET_NAME = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|SIGNATURE")

_S3_LETS_IN = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) of someone who is let in"
_LETS_IN = {
    "s3": _S3_LETS_IN,
    "s3a": _S3_LETS_IN,
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the key file of an account that is let in",
    "abfs": "set AZURE_STORAGE_ACCOUNT_KEY, or sign in as an account that is let in",
    "abfss": "set AZURE_STORAGE_ACCOUNT_KEY, or sign in as an account that is let in",
}
_SAID = (
    (re.compile(r"NO_SUCH_BUCKET|bucket does not exist|ContainerNotFound"), "no such bucket; check its name"),
    (
        re.compile(r"NO_SUCH_KEY|Path does not exist|RESOURCE_NOT_FOUND|BlobNotFound|No such file"),
        "no such file or folder; check its name",
    ),
    (
        re.compile(r"PermanentRedirect|HTTP status 301|AuthorizationHeaderMalformed|wrong region"),
        "the bucket lies in another region; set AWS_REGION to that",
    ),
    (
        re.compile(
            r"NETWORK_CONNECTION|curlCode|REQUEST_TIMEOUT|[Cc]ould ?n.?t connect|[Cc]ould not resolve|timed? ?out"
            r"|Connection (refused|reset)|error sending request|UNAVAILABLE"
        ),
        "the store cannot be reached, or cut the connection; check the network and the endpoint, and run it again",
    ),
    (
        re.compile(r"HTTP status 5\d\d|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE"),
        "the store fails to answer; run it again later",
    ),
)
_REFUSED = re.compile(
    r"ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY|InvalidAccessKeyId|SIGNATURE|Signature|HTTP status 40[13]"
    r"|INVALID_CLIENT_TOKEN|UNRECOGNIZED_CLIENT|PERMISSION_DENIED|UNAUTHENTICATED|[Cc]redential|Forbidden"
)


class NotOpenedError(Exception):
    """Raised when there is no file system for a store; its text is what follows the address in a message."""


@dataclass(frozen=True, slots=True)
class Store:
    """A bucket, container or cluster.

    Attributes:
        scheme: of its addresses.
        prefix: how an address begins, without the slash behind it: `s3://bucket`.
        root: how its file system calls that place: `bucket`.
    """

    scheme: str
    prefix: str
    root: str

    @property
    def file_system(self) -> pafs.FileSystem:
        """Opened once a process, and again where the environment says something else.

        Raises:
            NotOpenedError: if there is none.
        """
        return _opened(self, tuple(sorted(pair for pair in os.environ.items() if _SETTINGS.match(pair[0]))))


def parted(address: str) -> tuple[Store, str]:
    """The store of an address, and what lies behind it: "" or a path that begins with a slash.

    Raises:
        InputError: if it is no address of a store, or has credentials in it.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise InputError(f"{address}: not an address; give a path, or one as in s3://bucket/folder")
    scheme, authority, rest = found[1].lower(), found[2], found[3].rstrip("/")
    if ":" in authority.rpartition("@")[0] or _SECRET_IN_QUERY.search(rest):
        raise InputError(f"{scheme}://...: credentials do not belong into an address; leave them to the environment")
    if scheme in SCHEMES and not authority and scheme != "hdfs":
        raise InputError(f"{address}: names no bucket; give one as in {scheme}://bucket/folder")
    prefix = f"{scheme}://{authority}"
    return Store(scheme, prefix, _root(scheme, authority, prefix)), rest


def _root(scheme: str, authority: str, prefix: str) -> str:
    """How a file system calls the place that an address begins with."""
    if scheme in SCHEMES:
        return "" if scheme == "hdfs" else authority.partition("@")[0]
    try:
        return _fsspec().get_filesystem_class(scheme)._strip_protocol(f"{prefix}/x").removesuffix("/x")
    except (ImportError, ValueError):
        return authority


def delta_options(address: str) -> dict[str, str] | None:
    """What delta-rs is told beside the environment, so that both wait as long; None for a local table."""
    if "://" not in address:
        return None
    endpoint = _s3_endpoint()
    told = {
        "timeout": f"{RETRY_SECONDS}s",
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "max_retries": str(ATTEMPTS),
        "retry_timeout": f"{RETRY_SECONDS}s",
    }
    if address.startswith(("s3://", "s3a://")):
        told |= {"AWS_REGION": _s3_region()} | ({"AWS_ENDPOINT_URL": endpoint} if endpoint else {})
        told |= {"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else {}
    return told


def refusal(address: str, error: Exception) -> InputError:
    """What a person is told where a store does not give what is asked for; no credentials are in it.

    Args:
        address: what was asked for.
        error: of the file system.
    """
    said, scheme = str(error), address.partition("://")[0]
    if isinstance(error, NotOpenedError):
        return InputError(f"{address}: {said}")
    if isinstance(error, FileNotFoundError):
        return InputError(f"{address}: {_SAID[1][1]}")
    for pattern, told in _SAID:
        if pattern.search(said):
            return InputError(f"{address}: {told}")
    if _REFUSED.search(said):
        return InputError(f"{address}: the store refuses us; {_LETS_IN.get(scheme, 'check the credentials')}")
    return InputError(f"{address}: cannot be read ({_without_secrets(said)[:200]}); check the address")


def _without_secrets(said: str) -> str:
    first = said.strip().partition("\n")[0]
    for name, value in os.environ.items():
        if _SETTINGS.match(name) and _SECRET_NAME.search(name) and value:
            first = first.replace(value, "(hidden)")
    return first


@lru_cache(maxsize=16)
def _opened(store: Store, _environment: tuple[tuple[str, str], ...]) -> pafs.FileSystem:
    try:
        return _OPENERS.get(store.scheme, _by_fsspec)(store)
    except ImportError:
        told = f"this pyarrow cannot read {store.scheme}://; install one that can, or copy the files to a local disk"
        raise NotOpenedError(told) from None
    except (OSError, pa.ArrowException) as error:
        if "libhdfs" not in str(error) and "libjvm" not in str(error):
            raise
        told = (
            "Hadoop's client library is missing; set HADOOP_HOME, JAVA_HOME and CLASSPATH (`hadoop classpath --glob`)"
        )
        raise NotOpenedError(told) from None


def _s3(_store: Store) -> pafs.FileSystem:
    scheme, sign, host = _s3_endpoint().rstrip("/").rpartition("://")
    return pafs.S3FileSystem(
        region=_s3_region(),
        endpoint_override=host or None,
        scheme=scheme if sign else None,
        connect_timeout=CONNECT_SECONDS,
        request_timeout=RETRY_SECONDS,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    )


def _s3_endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _s3_region() -> str:
    # A region that is given keeps the libraries from asking the network for one.
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _REGION


def _gs(_store: Store) -> pafs.FileSystem:
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST", "")
    scheme, sign, host = endpoint.rstrip("/").rpartition("://")
    return pafs.GcsFileSystem(
        anonymous=bool(endpoint),
        endpoint_override=host or None,
        scheme=scheme if sign else None,
        retry_time_limit=timedelta(seconds=RETRY_SECONDS),
    )


def _abfs(store: Store) -> pafs.FileSystem:
    container, _, host = store.prefix.partition("://")[2].partition("@")
    if not container or not host:
        raise NotOpenedError(f"give {store.scheme}://CONTAINER@ACCOUNT.dfs.core.windows.net/folder")
    return pafs.AzureFileSystem(host.partition(".")[0], account_key=os.environ.get("AZURE_STORAGE_ACCOUNT_KEY"))


def _hdfs(store: Store) -> pafs.FileSystem:
    return pafs.FileSystem.from_uri(f"{store.prefix}/")[0]


def _by_fsspec(store: Store) -> pafs.FileSystem:
    try:
        return pafs.PyFileSystem(pafs.FSSpecHandler(_fsspec().core.url_to_fs(f"{store.prefix}/")[0]))
    except (ImportError, ValueError):
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        told = f"{store.scheme}:// cannot be read; give a path, {known}, or install fsspec with the package for it"
        raise NotOpenedError(told) from None


def _fsspec() -> Any:
    """Only for stores that pyarrow does not know, so it need not be installed."""
    import fsspec  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    return fsspec


_OPENERS: dict[str, Callable[[Store], pafs.FileSystem]] = {
    "s3": _s3,
    "s3a": _s3,
    "gs": _gs,
    "abfs": _abfs,
    "abfss": _abfs,
    "hdfs": _hdfs,
}


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
