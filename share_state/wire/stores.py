"""Opens object stores by their address: one file system a process, and one clear line where a store says no."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from share_state.errors import InputError

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
