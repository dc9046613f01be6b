"""Files that other programs pick up: there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from share_state.errors import ShareStateError


class ReportError(ShareStateError):
    """Raised when a report cannot be written where it was asked for."""


def check_report_place(path: str) -> None:
    """Refuse a place where no report can be written, before any work is done.

    Raises:
        ReportError: if it is a folder, its folder is not there, or that cannot be written to.
    """
    place = Path(path)
    folder = place.parent
    if place.is_dir():
        raise ReportError(f"{path}: a folder is here; give the name of a file")
    if not folder.is_dir():
        raise ReportError(f"{path}: the folder {folder} is not there; make it, or give another file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ReportError(f"{path}: the folder {folder} cannot be written to; allow it, or give another file")


def write_whole(path: str, text: str) -> None:
    """Write a file under a temporary name beside its place, then rename it: readers see the old one or the new one.

    Raises:
        ReportError: if it cannot be written; what was there before stays.
    """
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    with written_to(path):
        try:
            temporary.write_text(text, encoding="utf-8", newline="\n")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def written_to(path: str) -> Iterator[None]:
    """Say in one line why writing this file failed."""
    check_report_place(path)
    try:
        yield
    except OSError as error:
        raise ReportError(f"{path}: cannot be written ({error.strerror}); the report before it stays") from None
