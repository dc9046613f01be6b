"""What of a log partition was read: how many records and bytes lie before an offset."""

from dataclasses import dataclass, field

import numpy as np

from share_state.wire.compiled import kernel
from share_state.wire.framing import Trust
from share_state.wire.plain_rows import joined

CELL = 4096
"""Offsets whose bytes are counted together."""

_NONE = np.int64(-(2**63))
"""Neither an offset nor a cell."""

_RUN = np.dtype([("first", "i8"), ("count", "i8")])
_BYTES = np.dtype([("cell", "i8"), ("first", "i8"), ("end", "i8"), ("bytes", "i8")])


@dataclass(slots=True)
class Extent:
    """Offsets of the records that were read, as runs without a hole, and the bytes of their batches by CELL offsets.

    Attributes:
        runs: first offset and number of records of each run.
        cells: number of the cell (offset // CELL), first offset, offset behind the last, bytes of its batches.
    """

    runs: np.ndarray = field(default_factory=lambda: np.zeros(0, _RUN))
    cells: np.ndarray = field(default_factory=lambda: np.zeros(0, _BYTES))

    def take(self, batches: np.ndarray, offsets: np.ndarray) -> None:
        """Count a chunk, later in the log than all before.

        Args:
            batches: BATCH rows.
            offsets: int64, of the chunk's records that count.
        """
        runs, cells = np.empty(len(offsets), _RUN), np.empty(len(batches), _BYTES)
        # Most chunks go on where the one before ended.
        if new := _runs_of(offsets, self.runs, runs):
            self.runs = joined((self.runs, runs[:new]))
        if new := _cells_of(batches, self.cells, cells):
            self.cells = joined((self.cells, cells[:new]))

    def forget_before(self, offset: int) -> None:
        """Drop what ends at or before an offset: the log has been cut there."""
        self.runs = self.runs[self.runs["first"] + self.runs["count"] > offset]
        self.cells = self.cells[self.cells["end"] > offset]

    def records_before(self, offset: int) -> int:
        """Records below an offset."""
        return int(np.clip(offset - self.runs["first"], 0, self.runs["count"]).sum())

    def bytes_before(self, offset: int) -> int:
        """Bytes of batches below an offset, evenly shared out within the cell that holds it."""
        width = np.maximum(self.cells["end"] - self.cells["first"], 1)
        return int((np.clip(offset - self.cells["first"], 0, width) / width * self.cells["bytes"]).sum())


@kernel
def _runs_of(offsets, known, runs):
    """Let the last known run go on; those behind it become rows of `runs`, as many as it returns."""
    found, end = 0, known[-1].first + known[-1].count if len(known) else _NONE
    for offset in offsets:
        if offset != end:
            runs[found].first, runs[found].count = offset, 0
            found += 1
        run = runs[found - 1] if found else known[-1]
        run.count += 1
        end = offset + 1
    return found


@kernel
def _cells_of(batches, known, cells):
    """Let the last known cell go on; those behind it become rows of `cells`, as many as it returns."""
    found, last = 0, known[-1].cell if len(known) else _NONE
    for batch in batches:
        if batch.trust != Trust.WHOLE:
            continue
        number = batch.base_offset // CELL
        if number != last:
            cells[found].cell, cells[found].first = number, batch.base_offset
            cells[found].end, cells[found].bytes = 0, 0
            found += 1
            last = number
        cell = cells[found - 1] if found else known[-1]
        cell.end = max(cell.end, batch.last_offset + 1)
        cell.bytes += batch.size
    return found
