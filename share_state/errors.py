"""The one exception tree. A message is the whole line that the person who typed the command reads."""

from typing import Any


def printable(name: str | int) -> str:
    """A name as it can stand in a message, which is one line whatever the name is made of."""
    return str(name) if str(name).isprintable() else repr(name)


class ShareStateError(Exception):
    """Raised when the call, the configuration or the input is unusable: exit code 2, nothing written."""


class InputError(ShareStateError):
    """Raised when an input cannot be read as an export of share-group state."""


class PrunedError(InputError):
    """Raised when a broker deletes records of a log while they are read; `log` is the log partition without them."""

    def __init__(self, message: str, log: Any = None) -> None:
        super().__init__(message)
        self.log = log


class WarehouseError(ShareStateError):
    """Raised when the place for the tables cannot be used, or holds something else."""


class NothingCommittedError(WarehouseError):
    """Raised when no run was ever committed in the place that is read."""


class SetupError(ShareStateError):
    """Raised when something that `share-state setup` provides is missing and cannot be fetched."""


class DeclarationError(ShareStateError):
    """Raised when a file under schemas/ does not say what a table or a record is."""


class DiskFullError(ShareStateError):
    """Raised when the disk, or the quota, of a place to write to is full."""


_DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large")


def disk_error(place: str, error: Exception) -> Exception:
    """A DiskFullError with the place if that is what an OSError says; else the same error."""
    # Errors of deltalake and pyarrow hold the reason as text only.
    reason = next((reason for reason in _DISK_FULL if reason in str(error)), None)
    return (
        error
        if reason is None
        else DiskFullError(f"{place}: cannot be written ({reason}); free space, or give another place")
    )
