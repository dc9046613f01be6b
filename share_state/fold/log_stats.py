"""Statistics of a log partition, collected while it is read: faults for the rules, losses, and its extent.

`Folded` is the result of folding a log. `Pieces` builds a large table piece by piece, so that the whole table
is never in memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from share_state.fold.limits import Limits
from share_state.fold.state_chains import NO_OFFSET, Chains
from share_state.jit.compile import kernel
from share_state.kafka.buffers import concat_rows
from share_state.kafka.record_batches import BATCH, CONTROL, TRANSACTIONAL, BatchStatus, BatchSummary, Chunk
from share_state.kafka.state_records import STATE_RECORD, Fault, Layout, StateRecords
from share_state.schema.declarations import table_schema
from share_state.sources.log_partition import LogPartition
from share_state.sources.partition_count import PartitionCount, key_modulus
from share_state.sources.resume_point import ResumeStatus
from share_state.sources.share_snapshots import ShareSnapshotEntry
from share_state.sources.topics import Topics

NO_PREVIOUS_START = -2
"""Previous start offset of a share-partition without state at the last audit."""

FINDINGS_KEPT = 1000
"""Findings of one rule, severity and log partition that are kept individually; one more finding counts the
others."""

BATCH_FAULTS: dict[int, tuple[str, str]] = {
    BatchStatus.CRC_MISMATCH: (
        "CRC_MISMATCH",
        "the CRC does not match; the batch was left out, take another copy",
    ),
    BatchStatus.MAGIC_UNSUPPORTED: ("MAGIC_UNSUPPORTED", "not a batch of format version 2; it was left out"),
    BatchStatus.MALFORMED: (
        "BATCH_MALFORMED",
        "the batch's lengths and counts do not fit its bytes; it was left out",
    ),
    BatchStatus.TRUNCATED: ("TORN_TAIL", "the file ends inside a batch; the batches before it were read"),
    BatchStatus.UNREADABLE: ("LOG_UNREADABLE", "no batch where one is expected; take another copy"),
    BatchStatus.CONFLICT: (
        "DUPLICATE_OFFSET_CONFLICT",
        "another copy has other bytes at these offsets, or a later leader epoch before them; it was left out",
    ),
    BatchStatus.UNREPLICATED: (
        "UNREPLICATED_TAIL",
        "above the high watermark of this copy, and another copy replaces it in a later leader epoch; it was left out",
    ),
}
"""Status of an invalid batch -> the rule that reports it, and what it means."""

_COUNTED = Fault.UNKNOWN_TYPE | Fault.UNKNOWN_TAG

_OTHER = Fault.UNKNOWN_TYPE | Fault.KEY_MALFORMED | Fault.VALUE_MALFORMED
"""Faults of records that are no state records, such as those of another topic."""


@dataclass(slots=True)
class LogCounts:
    """Irregularities that rules report once per log partition; part of its checkpoint.

    Attributes:
        layouts: Layout -> offset of the first value in it.
        transactional: offset of the first batch with the transactional or control flag, and number of such
            batches.
        unknown_types: unknown record type -> offset of the first such record, and number of such records.
        unknown_tags: offset of the first record with an unknown tagged field, and number of such records.
        records: number of records that were decoded.
        other_records: number of those that are no state records.
        foreign: offset of the first batch whose leader epoch is not that of the log, and number of such
            batches.
        deliveries: share group -> deliveries that its delivery limit allows at least, where they exceed the
            limit that was known.
        aborted: offset of the first record of an aborted transaction, and number of such records.
    """

    layouts: dict[int, int] = field(default_factory=dict)
    transactional: tuple[int, int] = (NO_OFFSET, 0)
    unknown_types: dict[int, tuple[int, int]] = field(default_factory=dict)
    unknown_tags: tuple[int, int] = (NO_OFFSET, 0)
    records: int = 0
    other_records: int = 0
    foreign: tuple[int, int] = (NO_OFFSET, 0)
    deliveries: dict[str, int] = field(default_factory=dict)
    aborted: tuple[int, int] = (NO_OFFSET, 0)

    @property
    def holds_other_records(self) -> bool:
        """Whether most records are no state records: those of another topic, or in another encoding."""
        return 2 * self.other_records > self.records

    def note_foreign(self, offsets: np.ndarray) -> None:
        """Count batches by their base offsets."""
        self.foreign = _add_occurrences(self.foreign, offsets)

    def note_aborted(self, offsets: np.ndarray) -> None:
        """Count records of aborted transactions by their offsets."""
        self.aborted = _add_occurrences(self.aborted, offsets)

    def take(self, batches: np.ndarray, summary: BatchSummary, records: StateRecords) -> None:
        """Count the irregularities of a chunk.

        Args:
            batches, summary: its BATCH rows and their summary.
            records: its records.
        """
        if summary.attributes & (TRANSACTIONAL | CONTROL):
            flagged = batches["attributes"] & (TRANSACTIONAL | CONTROL) != 0
            flagged &= batches["status"] == BatchStatus.VALID
            self.transactional = _add_occurrences(self.transactional, batches["base_offset"][flagged])
        rows = records.rows
        self.records += len(rows)
        if records.faults & _OTHER:
            self.other_records += int(np.count_nonzero(rows["fault"] & np.int16(_OTHER)))
        for layout in (Layout.EARLY, Layout.CURRENT):
            if layout not in self.layouts and records.layouts & 1 << layout:
                of_layout = rows["offset"][rows["layout"] == layout]
                if len(of_layout):
                    self.layouts[int(layout)] = int(of_layout[0])
        if not records.faults & _COUNTED:
            return
        counted = rows[rows["fault"] & _COUNTED != 0]
        if len(counted):
            self.unknown_tags = _add_occurrences(
                self.unknown_tags, counted["offset"][counted["fault"] & Fault.UNKNOWN_TAG != 0]
            )
            untyped = counted[counted["fault"] & Fault.UNKNOWN_TYPE != 0]
            for kind in np.unique(untyped["type"]).tolist():
                seen = self.unknown_types.get(kind, (NO_OFFSET, 0))
                self.unknown_types[kind] = _add_occurrences(seen, untyped["offset"][untyped["type"] == kind])


@dataclass(slots=True)
class LogObservations:
    """Irregularities of a log, for the rules over logs.

    Attributes:
        batches: BATCH rows that are not VALID, in log order.
        reasons: for each of `batches`, details that its row lacks ("" for none).
        followed: how many of `batches` precede the last valid batch; a later audit does not read those again.
        gaps: (first missing offset, first offset after the gap, whether the gap contains an invalid batch).
        compacted: per chunk, int64 rows (first missing offset, first offset after the gap) of gaps in valid
            batches.
        records: STATE_RECORD rows with a fault that is not only counted. Their field `batches` is the number
            of records with the same fault that the row represents: 1 in the first FINDINGS_KEPT rows, all
            others in the last row.
        counts: irregularities that are reported once.
        repeated_batches: number of batches with the same bytes as an earlier copy.
        misplaced: numbers of share-partitions that belong to another state partition, and that state
            partition.
        fits_no_count: whether the keys are in their state partition with no possible number of state
            partitions.
        vanished: numbers of share-partitions that had a state at the last audit, and no record since, nor a
            tombstone.
        key_modulus: the greatest number of state partitions with which no share-partition is misplaced; 0 if
            any number is possible.
        count: how many state partitions there are; None if the log has no number.
        resume_status: how the log has changed since the last audit; None if there was none.
        read_before: the offset at which the last audit stopped.
        open_records: offset of the first record of an open transaction, the last stable offset, and number of
            such records.
        unknown_markers: control records that are not known: offset, producer id and what is not known of each.
    """

    batches: np.ndarray = field(default_factory=lambda: np.zeros(0, BATCH))
    reasons: list[str] = field(default_factory=list)
    followed: int = 0
    gaps: list[tuple[int, int, bool]] = field(default_factory=list)
    compacted: list[np.ndarray] = field(default_factory=list)
    records: np.ndarray = field(default_factory=lambda: np.zeros(0, STATE_RECORD))
    counts: LogCounts = field(default_factory=LogCounts)
    repeated_batches: int = 0
    misplaced: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    fits_no_count: bool = False
    vanished: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    key_modulus: int = 0
    count: PartitionCount | None = None
    resume_status: ResumeStatus | None = None
    read_before: int = NO_OFFSET
    open_records: tuple[int, int] = (NO_OFFSET, 0)
    unknown_markers: list[tuple[int, int, str]] = field(default_factory=list)

    def note_open(self, offsets: np.ndarray) -> None:
        """Count records of open transactions by their offsets."""
        self.open_records = _add_occurrences(self.open_records, offsets)

    def place_keys(self, hashes: np.ndarray, partition: int, count: PartitionCount) -> None:
        """Find the share-partitions that belong to another state partition; `hashes` is from `key_hashes`."""
        self.key_modulus = key_modulus(hashes, partition)
        self.count = replace(count, least=max(count.least, partition + 1))
        self.fits_no_count = 0 < self.key_modulus < self.count.least
        if count.number is not None and not count.is_contradicted(self.key_modulus, len(hashes)):
            belongs = hashes % count.number
            keys = np.flatnonzero(belongs != partition)
            self.misplaced = (keys, belongs[keys])

    @property
    def left_out(self) -> np.ndarray:
        """Numbers of the share-partitions whose state does not count: it belongs to another state partition.

        None where the number of state partitions is inferred: the input may lack some.
        """
        is_inferred = self.count is not None and self.count.is_inferred
        return self.misplaced[0][:0] if is_inferred else self.misplaced[0]

    @property
    def rests_on_input(self) -> bool:
        """Whether `misplaced` supposes that the input lacks no state partition."""
        return self.count is not None and self.count.is_inferred and not self.fits_no_count

    @property
    def misplaced_count(self) -> int:
        """Number of share-partitions that are known to belong elsewhere.

        At least 1 if the keys fit no count.
        """
        return max(len(self.misplaced[0]), int(self.fits_no_count))

    def note_batches(self, part: Chunk, summary: BatchSummary) -> None:
        """Keep the invalid batches of a chunk."""
        if summary.all_valid:
            self.followed = len(self.batches) if summary.rows else self.followed
            return
        bad = part.batches["status"] != BatchStatus.VALID
        good = np.flatnonzero(~bad)
        if len(good):
            self.followed = len(self.batches) + int(bad[: good[-1]].sum())
        self.reasons += [part.errors.get(int(row), "") for row in np.flatnonzero(bad)]
        self.batches = np.concatenate((self.batches, part.batches[bad]))

    def note_records(self, records: StateRecords) -> None:
        """Keep the records of a chunk that have a fault."""
        if records.faults & ~_COUNTED:
            faulty = records.rows[records.rows["fault"] & ~np.int16(_COUNTED) != 0]
            faulty["batches"] = 1
            rows = np.concatenate((self.records, faulty))
            parts = [rows[rows["fault"] == fault] for fault in np.unique(rows["fault"])]
            for part in parts:
                if len(part) > FINDINGS_KEPT:
                    part[-1]["batches"] = part["batches"][FINDINGS_KEPT:].sum()
            kept = [
                part[[*range(FINDINGS_KEPT), -1]] if len(part) > FINDINGS_KEPT else part for part in parts
            ]
            self.records = np.concatenate(kept)
            self.records.sort(order="offset", kind="stable")


def _add_occurrences(occurrences: tuple[int, int], offsets: np.ndarray) -> tuple[int, int]:
    if not len(offsets):
        return occurrences
    first, count = occurrences
    return (first if count else int(offsets[0]), count + len(offsets))


CELL = 4096
"""Number of offsets whose bytes are counted together."""

_NONE = np.int64(-(2**63))
"""Not an offset and not the number of a cell."""

_RUN = np.dtype([("first", "i8"), ("count", "i8")])
_BYTES = np.dtype([("cell", "i8"), ("first", "i8"), ("end", "i8"), ("bytes", "i8")])


@dataclass(slots=True)
class LogExtent:
    """Offsets of the records read, as runs of consecutive offsets, and bytes of their batches per CELL offsets.

    Attributes:
        runs: first offset and number of records of each run.
        cells: number of the cell (offset // CELL), first offset, offset after the last, bytes of its batches.
    """

    runs: np.ndarray = field(default_factory=lambda: np.zeros(0, _RUN))
    cells: np.ndarray = field(default_factory=lambda: np.zeros(0, _BYTES))

    def take(self, batches: np.ndarray, offsets: np.ndarray) -> None:
        """Add the BATCH rows of a chunk and the offsets of its records; both ascend from chunk to chunk."""
        runs, cells = np.empty(len(offsets), _RUN), np.empty(len(batches), _BYTES)
        # Most chunks continue the last run.
        if new := _runs_of(offsets, self.runs, runs):
            self.runs = concat_rows((self.runs, runs[:new]))
        if new := _cells_of(batches, self.cells, cells):
            self.cells = concat_rows((self.cells, cells[:new]))

    def forget_before(self, offset: int) -> None:
        """Drop runs and cells that end at or before an offset, the new log start offset."""
        self.runs = self.runs[self.runs["first"] + self.runs["count"] > offset]
        self.cells = self.cells[self.cells["end"] > offset]

    def records_before(self, offset: int) -> int:
        """Number of records below an offset."""
        return int(np.clip(offset - self.runs["first"], 0, self.runs["count"]).sum())

    def bytes_before(self, offset: int) -> int:
        """Bytes of batches below an offset, interpolated within the cell that contains it."""
        width = np.maximum(self.cells["end"] - self.cells["first"], 1)
        return int((np.clip(offset - self.cells["first"], 0, width) / width * self.cells["bytes"]).sum())


@kernel
def _runs_of(offsets, last_runs, runs):
    """Extend the last run of `last_runs`; write new runs to `runs` and return their number."""
    count = 0
    row = 0
    end = last_runs[-1].first + last_runs[-1].count if len(last_runs) else _NONE
    while row < len(offsets):
        if offsets[row] != end:
            end = offsets[row]
            runs[count].first, runs[count].count = end, 0
            count += 1
        begin, left = row, len(offsets) - row
        if offsets[-1] - end == left - 1:
            # The offsets ascend, so none is missing.
            row, end = len(offsets), end + left
        while row < len(offsets) and offsets[row] == end:
            row, end = row + 1, end + 1
        run = runs[count - 1] if count else last_runs[-1]
        run.count += row - begin
    return count


@kernel
def _cells_of(batches, last_cells, cells):
    """Extend the last cell of `last_cells`; write new cells to `cells` and return their number."""
    count, last = 0, last_cells[-1].cell if len(last_cells) else _NONE
    for batch in batches:
        if batch.status != BatchStatus.VALID:
            continue
        number = batch.base_offset // CELL
        if number != last:
            cells[count].cell, cells[count].first = number, batch.base_offset
            cells[count].end, cells[count].bytes = 0, 0
            count += 1
            last = number
        cell = cells[count - 1] if count else last_cells[-1]
        cell.end = max(cell.end, batch.last_offset + 1)
        cell.bytes += batch.size
    return count


_ROWS_PER_PIECE = 128 << 10


@dataclass(frozen=True, slots=True)
class Pieces:
    """A declared table in pieces.

    Attributes:
        table: name of the table.
        size: int64; approximate number of rows and ranges before each share-partition, and at the end in
            total.
        build: returns the rows of share-partitions [begin, end); repeated texts may be dictionary-encoded.
    """

    table: str
    size: np.ndarray
    build: Callable[[int, int], pa.Table]

    def __iter__(self) -> Iterator[pa.Table]:
        """Pieces of similar size; at least one, which may be empty."""
        return (self.build(begin, end) for begin, end in piece_bounds(self.size))

    def whole(self) -> pa.Table:
        """The whole table, as declared."""
        schema = table_schema(self.table)
        return pa.concat_tables([piece.cast(schema) for piece in self])


@dataclass(slots=True, kw_only=True)
class Folded:
    """A folded log of either dialect.

    Size: the whole result of a fold, one attribute per fact that rules and tables take from it.

    Attributes:
        log: the log partition.
        numbers: int64, numbers of the share-partitions that have a state.
        chains: their states, in the same order.
        previous_starts: int64, one per chain: start offset at the last audit, or NO_PREVIOUS_START.
        limits: limits that rules check the log against.
        newest_time: ms, latest timestamp of the last valid batch, possibly read by an earlier audit (control
            records: of any batch); -1 if unknown.
        judged_at: ms, up to which rules measure durations: `newest_time` or, if it is later, that of
            FoldOptions.
        suspect: bool, whether records that the state depends on are missing or unreadable.
        observations: irregularities, for the rules over logs.
        record_count, redundant_records: number of folded records, and of folded records before the cutoff.
        first_offset, next_offset: the log start offset, and the offset after the last record.
        last_lost_offset: latest offset from which records may be missing, -1 for none.
        has_valid_batches: whether any batch is valid, in the window or not.
        state_pieces, in_flight_pieces: the tables `share_partition_state` and `in_flight`.
        cutoff: the table `cutoff`.
        record_breaches: breaches of the rules over single records, by rule code.
        index_entries: entries of a share snapshot file of this log.
        outcomes: OUTCOMES rows, one per chain: what became of deliveries, as the records since the last audit
            show; None for control records, without rules over records, or if the format does not show which
            are new.
        outcomes_since: offset from which they are counted; 0 without an earlier audit.
        is_cut: whether the window leaves out later records of the log.
    """

    dialect: ClassVar[str]

    log: LogPartition
    numbers: np.ndarray
    chains: Chains
    previous_starts: np.ndarray
    limits: Limits
    newest_time: int
    judged_at: int
    suspect: np.ndarray
    observations: LogObservations
    record_count: int
    redundant_records: int
    first_offset: int
    next_offset: int
    last_lost_offset: int
    has_valid_batches: bool
    state_pieces: Pieces
    in_flight_pieces: Pieces
    cutoff: pa.Table
    record_breaches: list[Any] = field(default_factory=list)
    index_entries: list[ShareSnapshotEntry] = field(default_factory=list)
    outcomes: np.ndarray | None = None
    outcomes_since: int = 0
    is_cut: bool = False

    @property
    def states(self) -> pa.Table:
        """The table `share_partition_state`, built at each call."""
        return self.state_pieces.whole()

    @property
    def in_flight(self) -> pa.Table:
        """The table `in_flight`, built at each call."""
        return self.in_flight_pieces.whole()

    def limits_of(self, limit: str) -> np.ndarray:
        """The value of one of GROUP_LIMITS for each live share-partition, int64."""
        if not self.limits.groups:
            return np.full(len(self.numbers), getattr(self.limits, limit), np.int64)
        return self.limits.of_groups(limit, self.key_columns(self.numbers, Topics())["group_id"])

    def key_columns(self, numbers: np.ndarray, topics: Topics) -> dict[str, pa.Array]:
        """Key columns of share-partitions by number."""
        raise NotImplementedError

    def leader_starts(self) -> np.ndarray:
        """int64, one per chain: where a leader that loads the state starts."""
        raise NotImplementedError

    def lags(self, states: pa.Table, finished: pa.Array) -> pa.Array:
        """Lag of rows of `share_partition_state`.

        `finished` is the number of terminal offsets after the start.
        """
        raise NotImplementedError


def piece_bounds(size: np.ndarray) -> Iterator[tuple[int, int]]:
    """Bounds [begin, end) of the share-partitions of each piece; `size` as in Pieces."""
    count, begin = len(size) - 1, 0
    while begin < count or begin == 0:
        last = np.searchsorted(size, size[begin] + _ROWS_PER_PIECE, side="right") - 1
        end = min(max(int(last), begin + 1), count)
        yield begin, end
        begin = end or 1


def dictionary_encoded(key: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Dictionary-encode the text columns, so that tables built from them store each text once."""
    return {name: dictionary_encoded_column(column) for name, column in key.items()}


def dictionary_encoded_column(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Dictionary-encode a column if it is text."""
    return column.dictionary_encode() if pa.types.is_string(column.type) else column
