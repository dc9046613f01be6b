"""Room for the decoded records of chunk after chunk, used again: fresh memory costs as much as what is put there."""

from collections.abc import Callable

import numpy as np

from share_state.wire.plain_rows import put

_LARGE = 256 << 20
"""Bytes; a room that can take more is let go."""


class RecordRoom:
    """Two growing arrays: rows of records, zero when they are handed out, and rows that those point into."""

    def __init__(self, record: np.dtype, batch: np.dtype) -> None:
        self._rows, self._batches = np.empty(0, record), np.empty(0, batch)
        self.row_count = self.batch_count = 0

    @property
    def rows(self) -> np.ndarray:
        """The rows in use."""
        return self._rows[: self.row_count]

    @property
    def batches(self) -> np.ndarray:
        """The rows in use that those point into."""
        return self._batches[: self.batch_count]

    @property
    def size(self) -> int:
        """Bytes in use."""
        return self.rows.nbytes + self.batches.nbytes

    @property
    def capacity(self) -> int:
        """Bytes that it can take before it grows."""
        return self._rows.nbytes + self._batches.nbytes

    def more(self, rows: int, batches: int) -> tuple[np.ndarray, np.ndarray]:
        """So many rows more, all zero, and every row that they may point into: those in use and as many more.

        Whoever fills them sets `batch_count`.
        """
        begin, self.row_count = self.row_count, self.row_count + rows
        self._rows = _with_room(self._rows, begin, self.row_count)
        self._batches = _with_room(self._batches, self.batch_count, self.batch_count + batches)
        added = self._rows[begin : self.row_count]
        added.view(np.uint8)[:] = 0
        return added, self._batches

    def clear(self) -> None:
        """Nothing is in use any more."""
        self.row_count = self.batch_count = 0


class SpareRooms:
    """Rooms that a log needs no more are for the next one, unless they have grown large."""

    def __init__(self, make: Callable[[], RecordRoom]) -> None:
        self._make, self._spare = make, list[RecordRoom]()

    def room(self) -> RecordRoom:
        """One that nobody uses; it is empty."""
        try:
            return self._spare.pop()
        except IndexError:
            return self._make()

    def take_back(self, room: RecordRoom) -> None:
        """Nobody looks at what is in a room any more."""
        room.clear()
        if room.capacity <= _LARGE:
            self._spare.append(room)


def _with_room(array: np.ndarray, used: int, wanted: int) -> np.ndarray:
    if wanted <= len(array):
        return array
    larger = np.empty(max(wanted, 2 * len(array)), array.dtype)
    put(array[:used], larger)
    return larger
