"""Object stores: `StorePath` is the path of an address such as s3://bucket/folder.

`paths` has paths of either kind.

`StorePath` has the methods of `pathlib.Path` that reading needs, over pyarrow's file systems. fsspec and
universal-pathlib would not replace it: over pyarrow they list folder by folder without a cache (7 requests
instead of 1 for test_s3_segments), and their own S3 client needs s3fs with other credentials, time limits and
error texts.
"""

import glob
import io
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs

from share_state.errors import InputError

SCHEMES = ("s3", "s3a", "gs", "abfs", "abfss", "hdfs")
"""Schemes that pyarrow supports; others need fsspec with the package for the scheme."""


_CONNECT_SECONDS = 5
_ATTEMPTS = 3
_RETRY_SECONDS = 20
"""Time limit of a connection, number of attempts, and time limit of all of them."""


_REGION = "us-east-1"
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
_SECRET_IN_QUERY = re.compile(r"[?&](access_key|secret_key|session_token|sig|token)=")
_SETTINGS = re.compile(r"AWS_|AZURE_|GOOGLE_|HADOOP_|CLASSPATH")
_SECRET_NAME = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|SIGNATURE")


_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) of a user with access",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the key file of an account with access",
    "abfs": "set AZURE_STORAGE_ACCOUNT_KEY, or sign in as an account with access",
}
"""How to get access, by scheme; s3a and abfss are other names of the same stores."""


_NOT_FOUND_TEXT = "no such file or folder; check its name"


_ERROR_TEXTS = {
    r"NO_SUCH_BUCKET|bucket does not exist|ContainerNotFound": "no such bucket; check its name",
    r"NO_SUCH_KEY|Path does not exist|RESOURCE_NOT_FOUND|BlobNotFound|No such file": _NOT_FOUND_TEXT,
    r"PermanentRedirect|HTTP status 301|AuthorizationHeaderMalformed|wrong region": (
        "the bucket is in another region; set AWS_REGION to it"
    ),
    r"NETWORK_CONNECTION|curlCode|REQUEST_TIMEOUT|[Cc]ould ?n.?t connect|[Cc]ould not resolve|timed? ?out"
    r"|Connection (refused|reset)|error sending request|UNAVAILABLE": (
        "the store cannot be reached, or closed the connection; check the network and the endpoint, then retry"
    ),
    r"HTTP status 5\d\d|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE": (
        "the store does not respond; retry later"
    ),
}
"""Pattern of a store's message -> reason and fix; the first match is used."""


_ACCESS_DENIED = re.compile(
    r"ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY|InvalidAccessKeyId|SIGNATURE|Signature|HTTP status 40[13]"
    r"|INVALID_CLIENT_TOKEN|UNRECOGNIZED_CLIENT|PERMISSION_DENIED|UNAUTHENTICATED|[Cc]redential|Forbidden"
)


class StoreUnavailableError(Exception):
    """Raised when the file system of a store cannot be opened.

    Messages put the address in front of its text.
    """


@dataclass(frozen=True, slots=True)
class Store:
    """A bucket, container or cluster.

    Attributes:
        scheme: scheme of its addresses.
        prefix: start of its addresses, without the slash: `s3://bucket`.
        root: its path in its file system: `bucket`.
    """

    scheme: str
    prefix: str
    root: str

    @property
    def file_system(self) -> pafs.FileSystem:
        """The file system, opened once per process and set of environment variables.

        Raises:
            StoreUnavailableError: if it cannot be opened.
        """
        return _opened(self, tuple(sorted(pair for pair in os.environ.items() if _SETTINGS.match(pair[0]))))


def parse_address(address: str) -> tuple[Store, str]:
    """The store of an address, and the rest of it: "" or a path that starts with a slash.

    Raises:
        InputError: if it is not the address of a store, or contains credentials.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise InputError(f"{address}: not an address; give a path, or an address such as s3://bucket/folder")
    refuse_credentials(address)
    scheme = match[1].lower()
    authority = match[2]
    rest = match[3].rstrip("/")
    if scheme in SCHEMES and not authority and scheme != "hdfs":
        raise InputError(f"{address}: no bucket; give an address such as {scheme}://bucket/folder")
    prefix = f"{scheme}://{authority}"
    return Store(scheme, prefix, _root(scheme, authority, prefix)), rest


def refuse_credentials(address: str) -> None:
    """Refuse an address with a password or a key, before a message can name it; a path has none.

    Raises:
        InputError: without the address.
    """
    match = _ADDRESS.fullmatch(address)
    if match is not None and (":" in match[2].rpartition("@")[0] or _SECRET_IN_QUERY.search(match[3])):
        raise InputError(
            f"{match[1].lower()}://...: an address must not contain credentials; use environment variables"
        )


def _root(scheme: str, authority: str, prefix: str) -> str:
    """The start of an address in its file system."""
    if scheme in SCHEMES:
        return "" if scheme == "hdfs" else authority.partition("@")[0]
    try:
        return _fsspec().get_filesystem_class(scheme)._strip_protocol(f"{prefix}/x").removesuffix("/x")
    except (ImportError, ValueError):
        return authority


def delta_storage_options(address: str) -> dict[str, str] | None:
    """Storage options for delta-rs, with the same endpoint and time limits; None for a local table."""
    if "://" not in address:
        return None
    endpoint = _s3_endpoint()
    options = {
        "timeout": f"{_RETRY_SECONDS}s",
        "connect_timeout": f"{_CONNECT_SECONDS}s",
        "max_retries": str(_ATTEMPTS),
        "retry_timeout": f"{_RETRY_SECONDS}s",
    }
    if address.startswith(("s3://", "s3a://")):
        options |= {"AWS_REGION": _s3_region()} | ({"AWS_ENDPOINT_URL": endpoint} if endpoint else {})
        options |= {"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else {}
    return options


def store_error(address: str, error: Exception) -> InputError:
    """Convert an error of a store's file system to a one-line error without credentials."""
    text, scheme = str(error), address.partition("://")[0]
    if isinstance(error, StoreUnavailableError):
        return InputError(f"{address}: {text}")
    if isinstance(error, FileNotFoundError):
        return InputError(f"{address}: {_NOT_FOUND_TEXT}")
    for pattern, reason in _ERROR_TEXTS.items():
        if re.search(pattern, text):
            return InputError(f"{address}: {reason}")
    if _ACCESS_DENIED.search(text):
        fixes = (fix for name, fix in _CREDENTIALS.items() if scheme.startswith(name))
        return InputError(f"{address}: the store denies access; {next(fixes, 'check the credentials')}")
    return InputError(f"{address}: cannot be read ({_without_secrets(text)[:200]}); check the address")


def _without_secrets(text: str) -> str:
    first = text.strip().partition("\n")[0]
    for name, value in os.environ.items():
        if _SETTINGS.match(name) and _SECRET_NAME.search(name) and value:
            first = first.replace(value, "(hidden)")
    return first


@lru_cache(maxsize=16)
def _opened(store: Store, _environment: tuple[tuple[str, str], ...]) -> pafs.FileSystem:
    try:
        return _OPENERS.get(store.scheme, _by_fsspec)(store)
    except ImportError:
        raise StoreUnavailableError(
            f"this pyarrow cannot read {store.scheme}://; install one that can, or copy the files to a local disk"
        ) from None
    except (OSError, pa.ArrowException) as error:
        if "libhdfs" not in str(error) and "libjvm" not in str(error):
            raise
        raise StoreUnavailableError(
            "Hadoop's client library is missing; set HADOOP_HOME, JAVA_HOME and CLASSPATH (`hadoop classpath --glob`)"
        ) from None


def _s3(_store: Store) -> pafs.FileSystem:
    return pafs.S3FileSystem(
        region=_s3_region(),
        **_overriding(_s3_endpoint()),
        connect_timeout=_CONNECT_SECONDS,
        request_timeout=_RETRY_SECONDS,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        # A small file is written with one request instead of the three of a multipart upload.
        allow_delayed_open=True,
    )


def _s3_endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _s3_region() -> str:
    # Without a region, the libraries would look it up over the network.
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _REGION


def _gs(_store: Store) -> pafs.FileSystem:
    endpoint, limit = os.environ.get("STORAGE_EMULATOR_HOST", ""), timedelta(seconds=_RETRY_SECONDS)
    return pafs.GcsFileSystem(anonymous=bool(endpoint), retry_time_limit=limit, **_overriding(endpoint))


def _overriding(endpoint: str) -> dict[str, Any]:
    """The arguments for a store at another endpoint, such as http://localhost:9000; "" for the store's own."""
    scheme, _, host = endpoint.rstrip("/").rpartition("://")
    return {"endpoint_override": host or None, "scheme": scheme or None}


def _abfs(store: Store) -> pafs.FileSystem:
    container, _, host = store.prefix.partition("://")[2].partition("@")
    if not container or not host:
        raise StoreUnavailableError(f"give {store.scheme}://CONTAINER@ACCOUNT.dfs.core.windows.net/folder")
    return pafs.AzureFileSystem(
        host.partition(".")[0], account_key=os.environ.get("AZURE_STORAGE_ACCOUNT_KEY")
    )


def _hdfs(store: Store) -> pafs.FileSystem:
    return pafs.FileSystem.from_uri(f"{store.prefix}/")[0]


def _by_fsspec(store: Store) -> pafs.FileSystem:
    try:
        return pafs.PyFileSystem(pafs.FSSpecHandler(_fsspec().core.url_to_fs(f"{store.prefix}/")[0]))
    except (ImportError, ValueError):
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise StoreUnavailableError(
            f"{store.scheme}:// cannot be read; give a path, {known}, or install fsspec with the package for it"
        ) from None


def _fsspec() -> Any:
    """Import fsspec, an optional dependency for schemes that pyarrow does not support."""
    import fsspec  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    return fsspec


_OPENERS = {"s3": _s3, "s3a": _s3, "gs": _gs, "abfs": _abfs, "abfss": _abfs, "hdfs": _hdfs}
READ_SIZE = 16 << 20
"""Bytes per request to a store."""


@contextmanager
def read_errors(path: object, fix: str = "check its permissions") -> Iterator[None]:
    """Convert the errors of a file that cannot be read, or of its store, to one-line errors.

    Args:
        path: path or address.
        fix: for a local file.
    """
    try:
        yield
    except (OSError, pa.ArrowException, StoreUnavailableError) as error:
        address = str(path)
        if "://" in address and not address.startswith(LOCAL_SCHEME):
            raise store_error(address, error) from None
        if not isinstance(error, OSError):
            raise
        where, why = error.filename or address, error.strerror or error
        raise InputError(f"{where}: cannot be read ({why}); {fix}") from None


class FileStat(NamedTuple):
    """Size of a file in bytes, and its modification time, under the names that `os.stat_result` has."""

    st_size: int
    st_mtime: float


class StorePath:
    """A file or folder of a store.

    Size: one method per method of `pathlib.Path` that reading needs.

    A folder caches its listing, so use an instance for one search only. Methods raise InputError if an
    address is invalid, or the store fails or denies access.
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
        """The path of an address such as s3://bucket/folder."""
        return cls(*parse_address(address))

    def __str__(self) -> str:
        return f"{self.store.prefix}{self.rest}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: "StorePath") -> bool:
        return (self.store.prefix, self.rest.split("/")) < (other.store.prefix, other.rest.split("/"))

    def __truediv__(self, name: str) -> "StorePath":
        if self._children is None:
            return StorePath(self.store, f"{self.rest}/{name}", self)
        return self._children.get(name) or StorePath(self.store, f"{self.rest}/{name}", self, _NOT_FOUND)

    @property
    def inner(self) -> str:
        """The path in its file system."""
        return f"{self.store.root}{self.rest}" or "/"

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.rest.rpartition("/")[2] or self.store.root

    @property
    def parent(self) -> "StorePath":
        """The folder that contains it; a bucket is its own parent."""
        if self._parent is None:
            self._parent = StorePath(self.store, self.rest.rpartition("/")[0]) if self.rest else self
        return self._parent

    @property
    def parents(self) -> "list[StorePath]":
        """The folders that contain it, the innermost first."""
        return [self.parent, *self.parent.parents] if self.rest else []

    def resolve(self) -> "StorePath":
        """Itself: stores have no links."""
        return self

    def stat(self) -> FileStat:
        """The size and the modification time of a file; 0 where the store does not tell."""
        info = self._known_info()
        return FileStat(int(info.size or 0), (info.mtime_ns or 0) / 1e9)

    def exists(self) -> bool:
        """Whether it is a file or folder."""
        return self._known_info().type != pafs.FileType.NotFound

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self._known_info().type == pafs.FileType.File

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self._known_info().type == pafs.FileType.Directory

    def iterdir(self) -> "Iterator[StorePath]":
        """The contents of a folder.

        Lists all levels below it, which costs no more requests than one level.
        """
        yield from self._listed(recursive=True)

    def names(self) -> "list[str]":
        """The names in a folder; lists this folder only."""
        return [child.name for child in self._matching_children("*")]

    def glob(self, pattern: str) -> "Iterator[StorePath]":
        """The contents of a folder whose names match."""
        yield from (child for child in self.iterdir() if fnmatchcase(child.name, pattern))

    def rglob(self, pattern: str) -> "Iterator[StorePath]":
        """The contents of a folder and all folders below it whose names match."""
        for child in self.iterdir():
            if fnmatchcase(child.name, pattern):
                yield child
            if child.is_dir():
                yield from child.rglob(pattern)

    def expand(self) -> "list[StorePath]":
        """The paths that match an address with *, ?, [...] or **; lists as few folders as possible."""
        level = [StorePath(self.store, "")]
        for part in PurePosixPath(self.rest).parts[1:]:
            if part == "**":
                level = [path for folder in level for path in (folder, *folder.rglob("*")) if path.is_dir()]
            elif glob.has_magic(part):
                level = [child for folder in level for child in folder._matching_children(part)]
            else:
                level = [folder / part for folder in level]
        return sorted({path for path in level if path.exists()})

    def check_bucket(self) -> None:
        """Refuse a path in a bucket that does not exist."""
        if not StorePath(self.store, "").exists():
            raise InputError(f"{self}: no such bucket; check its name")

    def relative_to(self, folder: "str | StorePath") -> PurePosixPath:
        """The path relative to a folder that contains it."""
        return PurePosixPath(str(self).removeprefix(str(folder)).lstrip("/"))

    def is_relative_to(self, address: str) -> bool:
        """Whether it is this address or below it."""
        return f"{self}/".startswith(f"{address.rstrip('/')}/")

    def match(self, address: str) -> bool:
        """Whether it matches an address with *, ? or [...]."""
        parts, pattern = str(self).split("/"), address.rstrip("/").split("/")
        return len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern))

    def open(self, mode: str = "rb", buffering: int = READ_SIZE) -> Any:
        """Open a file for reading bytes; reads raise OSError, which `read_errors` converts.

        Args:
            mode: "rb".
            buffering: bytes per request; 0 to request only the bytes of each read.
        """
        if mode != "rb":
            raise ValueError(f"{mode}: files of a store can only be opened with 'rb'")
        raw: Any = self.source()
        known_size = buffering if self._info is None else int(self._info.size or 0)
        return io.BufferedReader(raw, min(buffering, max(known_size, 1))) if buffering else raw

    def read_bytes(self) -> bytes:
        """The bytes of a small file; cached."""
        if self._content is None:
            with self.source() as opened, read_errors(self):
                self._content = opened.read()
        return self._content or b""

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The text of a small file."""
        return self.read_bytes().decode(encoding, errors)

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        """Write or replace a small file."""
        with read_errors(self), self.store.file_system.open_output_stream(self.inner) as opened:
            opened.write(text.encode(encoding))

    def source(self) -> pa.NativeFile:
        """Open the file for pyarrow's readers."""
        with read_errors(self):
            return self.store.file_system.open_input_file(self.inner)

    def _known_info(self) -> pafs.FileInfo:
        if self._info is None:
            with read_errors(self):
                self._info = self.store.file_system.get_file_info(self.inner)
        return self._info

    def _matching_children(self, pattern: str) -> "list[StorePath]":
        """The children whose names match; lists this folder only."""
        named = [child for child in self._listed(recursive=False) if fnmatchcase(child.name, pattern)]
        return [child for child in named if not child.name.startswith(".") or pattern.startswith(".")]

    def _listed(self, *, recursive: bool) -> "Collection[StorePath]":
        """The children; unless they are known, they are listed, and all levels below them if `recursive`."""
        if self._children is not None:
            return self._children.values()
        selector = pafs.FileSelector(self.inner, recursive=recursive, allow_not_found=True)
        with read_errors(self):
            listed = self.store.file_system.get_file_info(selector)
        children = self._children = {}
        for info in sorted(listed, key=lambda info: info.path):
            folder = self
            # Some file systems return paths with a leading slash.
            parts = info.path.strip("/")[len(self.inner.strip("/")) :].strip("/").split("/")
            for part in parts[:-1]:
                folder = folder._child(part, pafs.FileInfo("", pafs.FileType.Directory))
            child = folder._child(parts[-1], info)
            if recursive and info.type == pafs.FileType.Directory and child._children is None:
                child._children = {}
        return children.values()

    def _child(self, name: str, info: pafs.FileInfo) -> "StorePath":
        if self._children is None:
            self._children = {}
        if name not in self._children:
            self._children[name] = StorePath(self.store, f"{self.rest}/{name}", self, info)
        return self._children[name]


_NOT_FOUND = pafs.FileInfo("", pafs.FileType.NotFound)
LOCAL_SCHEME = "file://"
