"""Exceptions of the package. A message is the one line that a command prints."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def printable(name: str | int) -> str:
    """Format a name for a one-line message: its `repr` if it has unprintable characters."""
    return str(name) if str(name).isprintable() else repr(name)


def pluralize(count: int, noun: str, plural: str | None = None) -> str:
    """A count and its noun."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


class ShareStateError(Exception):
    """Raised when the call, the configuration or the input is unusable: exit code 2, nothing written."""


class InputError(ShareStateError):
    """Raised when an input cannot be read as an export of share-group state."""


class PrunedError(InputError):
    """Raised when a broker deletes records of a log while they are read.

    `log` is the log partition without them.
    """

    def __init__(self, message: str, log: Any = None) -> None:
        super().__init__(message)
        self.log = log


class WarehouseError(ShareStateError):
    """Raised when the folder or address of the tables cannot be used, or holds something else."""


class NothingCommittedError(WarehouseError):
    """Raised when a warehouse has no committed run."""


class SetupError(ShareStateError):
    """Raised when an optional package or something that `share-state setup` provides is missing."""


class DeclarationError(ShareStateError):
    """Raised when the declaration of a table, a record or a rule is invalid."""


class SparkEndedError(Exception):
    """Raised when Spark's JVM ends, or is out of memory, while a command needs it: exit code 3."""


class DiskFullError(ShareStateError):
    """Raised when a disk is full or a quota is exceeded."""


_NO_SPACE, _NO_INODES = "No space left on device", "no inodes left: the disk can hold no more files"
_FEW_INODES = 16
_DISK_FULL = (_NO_SPACE, "Disk quota exceeded", "File too large")


def disk_error(place: str, error: Exception) -> Exception:
    """Convert an error to DiskFullError if it reports a full disk; other errors are returned unchanged."""
    # Errors of deltalake and pyarrow hold the reason as text only, and not always.
    reason = next((reason for reason in _DISK_FULL if reason in str(error)), None)
    if reason == _NO_SPACE and has_no_inodes(str(getattr(error, "filename", None) or place)):
        return inodes_error(place)
    return (
        error
        if reason is None
        else DiskFullError(f"{place}: cannot be written ({reason}); free space, or use another location")
    )


def inodes_error(place: str) -> DiskFullError:
    """The error for a disk that can hold no more files, although it has room."""
    return DiskFullError(f"{place}: cannot be written ({_NO_INODES}); delete files, or use another location")


def has_no_inodes(place: str) -> bool:
    """Whether the disk of a local path can hold no more files.

    The system says "no space left" of that, too.
    """
    path = Path(place).absolute()
    existing = next((folder for folder in (path, *path.parents) if folder.exists()), None)
    if "://" in place or existing is None or not hasattr(os, "statvfs"):
        return False
    disk = os.statvfs(existing)
    # File systems without a limit on files say 0 of 0; other threads may just have deleted some.
    return disk.f_files > 0 and disk.f_favail < _FEW_INODES and disk.f_bavail > 0


def reason_of(place: str, error: OSError) -> str:
    """Why a place cannot be written, in the words of the system."""
    is_out_of_inodes = error.strerror == _NO_SPACE and has_no_inodes(place)
    return _NO_INODES if is_out_of_inodes else str(error.strerror or error)


EXTRAS = {
    "pyspark": ("spark", "pyspark>=4.2,<4.3"),
    "pandas": ("spark", "pandas>=2.2,<3"),
    "google.protobuf": ("spark", "protobuf>=6.33.5,<7"),
    "matplotlib": ("plots", "matplotlib>=3.9,<4"),
    "confluent_kafka": ("kafka", "confluent-kafka>=2.16,<3"),
    "py4j": ("kafka", "py4j>=0.10.9.7,<0.11"),
}
"""Modules that only some commands need -> the extra of share-state that installs them, and the requirement in
it."""


def require(*modules: str) -> None:
    """Refuse to begin what needs a module of an extra that is not installed.

    Args:
        modules: keys of EXTRAS.
    Raises:
        SetupError: naming the first that is missing, and the command that installs it.
    """
    for module in modules:
        try:
            # The parent of a module in a package is imported first; without it this raises.
            spec = find_spec(module)
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            raise SetupError(_describe_missing(module))


def missing_module(error: ImportError) -> Exception:
    """Convert the failed import of a module of an extra to SetupError.

    Other errors are returned unchanged.
    """
    name = error.name or ""
    module = next((module for module in EXTRAS if f"{name}.".startswith(f"{module}.")), None)
    if module is None:
        return error
    if isinstance(error, ModuleNotFoundError) and name == module:
        return SetupError(_describe_missing(module))
    extra, requirement = EXTRAS[module]
    lacking = str(error).partition(" (")[0]
    return SetupError(f"the installed {module} does not fit ({lacking}): {extra} needs {requirement}")


def _describe_missing(module: str) -> str:
    """A cluster's own pyspark stays as it is: beside it, only what is missing is installed."""
    extra, requirement = EXTRAS[module]
    try:
        has_cluster_spark = extra == "spark" and module != "pyspark" and find_spec("pyspark") is not None
    except ModuleNotFoundError:
        has_cluster_spark = False
    package = requirement if has_cluster_spark else f"share-state[{extra}]"
    return f"{module} is not installed: run `pip install '{package}'`"
