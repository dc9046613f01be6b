"""Deletes files of replaced rows once no reader needs them, and entries of Delta's log that no run names.

delta-rs' own vacuum reads each version that is kept, and adds two versions to each table.
"""

import time
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyarrow.fs import FileSelector

from share_state.delta.reader import list_files, open_filesystem

if TYPE_CHECKING:
    from deltalake import DeltaTable

_LOG_MINUTES = 12
"""Readers have ten minutes: the files of replaced rows are then deleted."""
SHORT_LOG = {
    "delta.logRetentionDuration": f"interval {_LOG_MINUTES} minutes",
    "delta.deletedFileRetentionDuration": f"interval {_LOG_MINUTES} minutes",
    # A commit would delete the version that `runs` still names, of a table that was idle for longer.
    "delta.enableExpiredLogCleanup": "false",
}
"""Properties of a table to which a stream adds a version per micro-batch: the longer its log, the slower a commit."""


class ReplacedFiles:
    """The files that this process has replaced."""

    def __init__(self) -> None:
        self._files, self._places = deque[tuple[float, str]](), set[str]()
        self._left = dict[str, set[str]]()

    def add(self, place: str, paths: Iterable[str]) -> None:
        """Note files that are replaced now.

        Args:
            place: the folder of their table.
            paths: their paths in it.
        """
        now, places = time.monotonic(), [f"{place}/{path}" for path in paths]
        self._files.extend((now, one) for one in places)
        self._places.update(places)

    def delete_older(self, seconds: float) -> None:
        """Delete those that were replaced longer ago."""
        before = time.monotonic() - seconds
        while self._files and self._files[0][0] <= before:
            _, place = self._files.popleft()
            self._places.discard(place)
            _delete(place)

    def delete_left(self, place: str, table: "DeltaTable") -> None:
        """Delete files that neither this process has replaced nor a version names, as at the last call.

        Earlier processes have replaced them, or were killed before they committed; or OPTIMIZE has replaced them.

        Args:
            place: folder of a table.
            table: its latest version.
        """
        known = {f"{place}/{file['path']}" for file in list_files(table)}
        filesystem, folder = open_filesystem(place)
        found = {
            f"{place}/{one.base_name}"
            for one in filesystem.get_file_info(FileSelector(folder))
            if one.is_file
        }
        left = {one for one in found - known - self._places if one.endswith(".parquet")}
        # Readers may still need those that are new here.
        for one in left & self._left.get(place, set()):
            _delete(one)
        self._left[place] = left


def shorten_log(place: str, table: "DeltaTable", kept: Collection[int]) -> None:
    """Delete entries of a table's log older than _LOG_MINUTES, unless one of these versions may be among them."""
    filesystem, folder = open_filesystem(place)
    entry = filesystem.get_file_info(f"{folder}/_delta_log/{min(kept):020}.json")
    if entry.is_file and entry.mtime > datetime.now(UTC) - timedelta(minutes=_LOG_MINUTES - 1):
        table.cleanup_metadata()


def _delete(place: str) -> None:
    filesystem, path = open_filesystem(place)
    with suppress(FileNotFoundError):
        filesystem.delete_file(path)
