"""What is noticed while a log partition is read, for the rules to judge.

What of a log partition was read: how many records and bytes lie before an offset.

Rows of a table about many share-partitions, made a piece at a time, so that the whole is never in memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from share_state.fold.chains import NOWHERE
from share_state.jit.compile import kernel
from share_state.kafka.buffers import joined
from share_state.kafka.record_batches import BATCH, CONTROL, TRANSACTIONAL, BatchFacts, Chunk, Trust
from share_state.kafka.state_records import STATE_RECORD, Fault, Layout, StateRecords
from share_state.schema.declarations import table_schema
from share_state.sources.resume import Fate

_COUNTED = Fault.UNKNOWN_TYPE | Fault.UNKNOWN_TAG


@dataclass(slots=True)
class Counts:
    """What is told once a log partition, however often it is met; an audit carries it to the next.

    Attributes:
        layouts: Layout -> offset of the first value in it.
        transactional: offset of the first batch with the transactional or control flag, and their number.
        unknown_types: record type that no release knows -> offset of the first such record, and their number.
        unknown_tags: the same for records with a tagged field that is not known.
    """

    layouts: dict[int, int] = field(default_factory=dict)
    transactional: tuple[int, int] = (NOWHERE, 0)
    unknown_types: dict[int, tuple[int, int]] = field(default_factory=dict)
    unknown_tags: tuple[int, int] = (NOWHERE, 0)

    def take(self, batches: np.ndarray, facts: BatchFacts, records: StateRecords) -> None:
        """Count a chunk: its BATCH rows, what is true of them all, and its records."""
        if facts.attributes & (TRANSACTIONAL | CONTROL):
            flagged = (batches["trust"] == Trust.WHOLE) & (batches["attributes"] & (TRANSACTIONAL | CONTROL) != 0)
            self.transactional = _more(self.transactional, batches["base_offset"][flagged])
        rows = records.rows
        for layout in (Layout.EARLY, Layout.CURRENT):
            if layout not in self.layouts and records.layouts & 1 << layout:
                of_layout = rows["offset"][rows["layout"] == layout]
                if len(of_layout):
                    self.layouts[int(layout)] = int(of_layout[0])
        if not records.faults & _COUNTED:
            return
        strange = rows[rows["fault"] & _COUNTED != 0]
        if len(strange):
            self.unknown_tags = _more(self.unknown_tags, strange["offset"][strange["fault"] & Fault.UNKNOWN_TAG != 0])
            untyped = strange[strange["fault"] & Fault.UNKNOWN_TYPE != 0]
            for kind in np.unique(untyped["type"]).tolist():
                seen = self.unknown_types.get(kind, (NOWHERE, 0))
                self.unknown_types[kind] = _more(seen, untyped["offset"][untyped["type"] == kind])


@dataclass(slots=True)
class Observed:
    """What was noticed on the way.

    Attributes:
        batches: BATCH rows that are not WHOLE, in the order in which they were met.
        why: beside each of `batches`, what the row alone does not say ("" for nothing).
        followed: how many of `batches` come before the last whole batch; an audit does not read those again.
        gaps: (first missing offset, first offset behind the gap, whether a bad batch lies in it).
        records: STATE_RECORD rows with a fault other than those that are only counted.
        counts: what is told once.
        repeated_batches: batches that several copies hold with the same bytes, each beyond the first.
        misplaced: numbers of share-partitions that belong to another state partition, and which.
        fate: what became of the log since the last audit; None where there was none.
        read_before: the offset up to which the last audit had read.
    """

    batches: np.ndarray = field(default_factory=lambda: np.zeros(0, BATCH))
    why: list[str] = field(default_factory=list)
    followed: int = 0
    gaps: list[tuple[int, int, bool]] = field(default_factory=list)
    records: np.ndarray = field(default_factory=lambda: np.zeros(0, STATE_RECORD))
    counts: Counts = field(default_factory=Counts)
    repeated_batches: int = 0
    misplaced: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    fate: Fate | None = None
    read_before: int = NOWHERE

    def note_batches(self, part: Chunk, facts: BatchFacts) -> None:
        """Keep the batches of a chunk that cannot be trusted."""
        if facts.all_whole:
            self.followed = len(self.batches) if facts.rows else self.followed
            return
        bad = part.batches["trust"] != Trust.WHOLE
        good = np.flatnonzero(~bad)
        if len(good):
            self.followed = len(self.batches) + int(bad[: good[-1]].sum())
        self.why += [part.why.get(int(row), "") for row in np.flatnonzero(bad)]
        self.batches = np.concatenate((self.batches, part.batches[bad]))

    def note_records(self, records: StateRecords) -> None:
        """Keep the records of a chunk that are flawed."""
        if records.faults & ~_COUNTED:
            flawed = records.rows["fault"] & ~np.int16(_COUNTED) != 0
            self.records = np.concatenate((self.records, records.rows[flawed]))


def _more(seen: tuple[int, int], offsets: np.ndarray) -> tuple[int, int]:
    if not len(offsets):
        return seen
    first, count = seen
    return (first if count else int(offsets[0]), count + len(offsets))


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


_ROWS_A_PIECE = 128 << 10


@dataclass(frozen=True, slots=True)
class Pieces:
    """A declared table in pieces.

    Attributes:
        table: its name.
        size: int64; about how many rows and ranges there are before each share-partition, and in all.
        made: the rows of share-partitions [begin, end); texts that repeat may be dictionary-encoded.
    """

    table: str
    size: np.ndarray
    made: Callable[[int, int], pa.Table]

    def __iter__(self) -> Iterator[pa.Table]:
        """Pieces of about as many rows; at least one, maybe empty."""
        return (self.made(begin, end) for begin, end in stretches(self.size))

    def whole(self) -> pa.Table:
        """All of it, as declared."""
        schema = table_schema(self.table)
        return pa.concat_tables([piece.cast(schema) for piece in self])


def stretches(size: np.ndarray) -> Iterator[tuple[int, int]]:
    """Share-partitions [begin, end) that together make a piece; `size` as in Pieces. At least one, maybe empty."""
    count, begin = len(size) - 1, 0
    while begin < count or begin == 0:
        reach = np.searchsorted(size, size[begin] + _ROWS_A_PIECE, side="right") - 1
        end = min(max(int(reach), begin + 1), count)
        yield begin, end
        begin = end or 1


def in_one_piece(name: str, table: pa.Table) -> Pieces:
    """A table that is there already."""
    return Pieces(name, np.arange(2), lambda *_: table)


def packed(key: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Columns, texts dictionary-encoded: in what is made of them each text is there once."""
    return {name: packed_column(column) for name, column in key.items()}


def packed_column(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """One column, dictionary-encoded where it is text."""
    return column.dictionary_encode() if pa.types.is_string(column.type) else column
