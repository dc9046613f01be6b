"""One log partition, start to end: read, decode, fold; what one Spark task does, and what a notebook may call."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from share_state.declarations import table_schema
from share_state.fold.chains import NOWHERE, Chains
from share_state.fold.cutoff import cutoff
from share_state.fold.states import DIALECT, in_flight_table, key_columns, live, state_table
from share_state.fold.topics import Topics
from share_state.wire.framing import BATCH, CONTROL, TRANSACTIONAL, Trust, is_continuous
from share_state.wire.keys import KeyTable, state_partitions_of
from share_state.wire.log import CHUNK, Chunk, RepeatedOffsetsError, read_chunks
from share_state.wire.log_folder import LogPartition, Window
from share_state.wire.records import locate_records
from share_state.wire.share_group_state import STATE_RECORD, Layout, StateRecords, decode_state_records
from share_state.wire.share_snapshot_file import IndexEntry


@dataclass(slots=True)
class Observed:
    """What was noticed on the way, for the rules to judge.

    Attributes:
        batches: BATCH rows that are not WHOLE, those without a known fate last.
        why: beside each of `batches`, what the row alone does not say ("" for nothing).
        gaps: (first missing offset, first offset behind the gap, whether a bad batch lies in it).
        records: STATE_RECORD rows with a fault.
        layouts: Layout -> offset of the first value in it.
        repeated_batches: batches that several copies hold with the same bytes, each beyond the first.
        transactional: offsets of the first batch and number of batches with the transactional flag.
        misplaced: numbers of share-partitions that belong to another state partition, and which.
    """

    batches: np.ndarray = field(default_factory=lambda: np.zeros(0, BATCH))
    why: list[str] = field(default_factory=list)
    gaps: list[tuple[int, int, bool]] = field(default_factory=list)
    records: np.ndarray = field(default_factory=lambda: np.zeros(0, STATE_RECORD))
    layouts: dict[int, int] = field(default_factory=dict)
    repeated_batches: int = 0
    transactional: tuple[int, int] = (NOWHERE, 0)
    misplaced: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(slots=True)
class FoldedLog:
    """A log partition folded.

    Attributes:
        log: where it was read from.
        keys: every share-partition that was seen.
        all_chains: what is known of each of them, row n for number n.
        chains: the live ones, in the same order.
        numbers: int64, the number of each live one.
        lost_at: offset from which records are missing or unreadable for any share-partition, -1 for none.
        suspect: bool, one a chain: records were lost or could not be read since its latest snapshot.
        observed: what the rules judge.
        record_count: data records that were folded or skipped.
        redundant_records: those of them before the cutoff.
        first_offset, next_offset: the log start, and the offset behind the last record.
        has_whole_batches: whether any batch could be trusted, in the window or not.
        states, in_flight, cutoff: the tables of those names.
    """

    log: LogPartition
    keys: KeyTable
    all_chains: Chains
    chains: Chains
    numbers: np.ndarray
    lost_at: int
    suspect: np.ndarray
    observed: Observed
    record_count: int
    redundant_records: int
    first_offset: int
    next_offset: int
    has_whole_batches: bool
    states: pa.Table
    in_flight: pa.Table
    cutoff: pa.Table

    @property
    def index_entries(self) -> list[IndexEntry]:
        """None: the share snapshot file indexes control records."""
        return []


def fold_log(
    log: LogPartition,
    window: Window | None = None,
    *,
    topics: Topics | None = None,
    state_partitions: int | None = None,
    chunk: int = CHUNK,
) -> FoldedLog:
    """Fold one log partition into what the coordinator would hold after loading it.

    Args:
        log: a log partition from `find_logs`.
        window: which records count; all of them by default.
        topics: names and end offsets that are known.
        state_partitions: how many partitions the state topic has, where known, to find records in the wrong one.
        chunk: bytes of segments in memory at a time.
    Raises:
        InputError: if a segment cannot be read.
    Source: Kafka CoordinatorLoaderImpl.doLoad, ShareCoordinatorShard.replay.
    """
    window = window or Window()
    try:
        run = _Run(log, window)
        for part in read_chunks(log, merge=log.has_copies, chunk=chunk):
            run.take(part)
    except RepeatedOffsetsError:
        run = _Run(log, window)
        for part in read_chunks(log, merge=True, chunk=chunk):
            run.take(part)
    return run.finish(topics or Topics(), state_partitions)


def decode_log(log: LogPartition, window: Window) -> Iterator[tuple[StateRecords, KeyTable]]:
    """The decoded records of a log partition, chunk by chunk, with the numbers of its share-partitions so far."""
    run = _Run(log, window)
    # What has been handed out cannot be taken back where segments turn out to overlap.
    for part in read_chunks(log, merge=True):
        yield run.decode(part), run.keys


class _Run:
    """Carries a log partition from chunk to chunk."""

    def __init__(self, log: LogPartition, window: Window) -> None:
        self.log, self.window = log, window
        self.keys, self.chains, self.observed = KeyTable(), Chains(), Observed()
        self.next_offset, self.lost_at, self.broken_since = NOWHERE, NOWHERE, False
        self.record_count, self.has_whole_batches = 0, False
        self.runs: list[np.ndarray] = []

    def take(self, part: Chunk) -> None:
        self.chains.apply(self.decode(part), len(self.keys))

    def decode(self, part: Chunk) -> StateRecords:
        """The records of a chunk that count."""
        self.observed.repeated_batches += part.repeated
        self.has_whole_batches |= bool((part.batches["trust"] == Trust.WHOLE).any())
        part = self._within(part)
        located = locate_records(part.data, part.batches)
        self._note_batches(part)
        if self.window != Window():
            located = located[self._counted(located)]
        decoded = decode_state_records(part.data, located, self.keys)
        self._note_records(decoded.rows)
        return decoded

    def _within(self, part: Chunk) -> Chunk:
        """Without batches that end before the log start (the one that holds it is loaded whole) or begin too late."""
        batches, whole = part.batches, part.batches["trust"] == Trust.WHOLE
        outside = whole & (batches["last_offset"] < self.log.log_start_offset)
        if self.window.until_offset is not None:
            outside |= batches["base_offset"] >= self.window.until_offset
        if not outside.any():
            return part
        places = np.cumsum(~outside) - 1
        why = {int(places[row]): reason for row, reason in part.why.items() if not outside[row]}
        return Chunk(part.data, batches[~outside], why)

    def _counted(self, located: np.ndarray) -> np.ndarray:
        counted = np.ones(len(located), bool)
        if self.window.from_offset is not None:
            counted &= located["offset"] >= self.window.from_offset
        if self.window.until_offset is not None:
            counted &= located["offset"] < self.window.until_offset
        if self.window.until_time_ms is not None:
            counted &= located["timestamp"] <= self.window.until_time_ms
        return counted

    def _note_batches(self, part: Chunk) -> None:
        batches, observed = part.batches, self.observed
        bad = batches["trust"] != Trust.WHOLE
        if bad.any():
            observed.why += [part.why.get(int(row), "") for row in np.flatnonzero(bad)]
            observed.batches = np.concatenate((observed.batches, batches[bad]))
        transactional = ~bad & (batches["attributes"] & (TRANSACTIONAL | CONTROL) != 0)
        if transactional.any():
            first, count = observed.transactional
            first = first if count else int(batches["base_offset"][transactional][0])
            observed.transactional = (first, count + int(transactional.sum()))
        self._note_gaps(batches, bad)

    def _note_gaps(self, batches: np.ndarray, bad: np.ndarray) -> None:
        until = self.window.until_offset
        if len(batches) and not self.broken_since and is_continuous(batches, self._expected(batches[0])):
            end = int(batches[-1]["last_offset"]) + 1
            self.next_offset = end if until is None else min(end, until)
            return
        good = np.flatnonzero(~bad)
        # A torn tail is what a crash leaves: recovery cuts it off, so nothing that counts is missing there.
        harmful = np.cumsum(bad & (batches["trust"] != Trust.TORN) & (batches["trust"] != Trust.CONFLICT))
        if len(good):
            base, last = batches["base_offset"][good], batches["last_offset"][good]
            expected = np.concatenate(([self._expected(batches[good[0]])], last[:-1] + 1))
            broken_before = np.concatenate(([0], harmful[good[:-1]])) != harmful[good]
            broken_before[0] |= self.broken_since
            for row in np.flatnonzero(base > expected):
                self.observed.gaps.append((int(expected[row]), int(base[row]), bool(broken_before[row])))
                self.lost_at = max(self.lost_at, int(expected[row]))
            if broken_before[0] and self.next_offset < 0:
                # Nothing before the first good batch can be believed to be complete.
                self.lost_at = max(self.lost_at, int(base[0]) - 1)
            self.next_offset = int(last[-1]) + 1 if until is None else min(int(last[-1]) + 1, until)
            self.broken_since = bool(harmful[-1] > harmful[good[-1]])
        else:
            self.broken_since |= bool(len(harmful) and harmful[-1])
        if (batches["trust"] == Trust.CONFLICT).any():
            self.lost_at = max(self.lost_at, int(batches["base_offset"][batches["trust"] == Trust.CONFLICT].max()))

    def _expected(self, batch: np.ndarray) -> int:
        """The offset at which a batch must begin; the first may hold the log start anywhere."""
        return self.next_offset if self.next_offset >= 0 else min(int(batch["base_offset"]), self.log.log_start_offset)

    def _note_records(self, rows: np.ndarray) -> None:
        if len(rows) == 0:
            return
        self.record_count += len(rows)
        faulty = rows["fault"] != 0
        if faulty.any():
            self.observed.records = np.concatenate((self.observed.records, rows[faulty]))
            keyless = rows["offset"][rows["fault"] & 1 != 0]
            self.lost_at = max(self.lost_at, int(keyless.max())) if len(keyless) else self.lost_at
        for layout in (Layout.EARLY, Layout.CURRENT):
            if layout not in self.observed.layouts:
                of_layout = rows["offset"][rows["layout"] == layout]
                if len(of_layout):
                    self.observed.layouts[int(layout)] = int(of_layout[0])
        # Offsets as runs without a gap: enough to count those below any offset.
        starts = np.flatnonzero(np.diff(rows["offset"], prepend=rows["offset"][0] - 2) != 1)
        self.runs.append(np.stack((rows["offset"][starts], np.diff(np.append(starts, len(rows))))))

    def finish(self, topics: Topics, state_partitions: int | None) -> FoldedLog:
        if self.broken_since:
            self.lost_at = max(self.lost_at, self.next_offset, 0)
        if state_partitions and self.log.partition is not None:
            belongs = state_partitions_of(self.keys, state_partitions)
            stray = np.flatnonzero(belongs != self.log.partition)
            self.observed.misplaced = (stray, belongs[stray])
        chains, numbers = live(self.chains), np.flatnonzero(self.chains.chains["exists"])
        suspect = (chains.chains["suspect_offset"] != NOWHERE) | (self.lost_at > chains.chains["snapshot_offset"])
        key = key_columns(self.keys, numbers, topics)
        first = self.log.log_start_offset
        if self.window.from_offset is not None:
            first = max(first, self.window.from_offset)
        unreadable = self.chains.chains["suspect_offset"] != NOWHERE
        hidden = self.lost_at != NOWHERE or bool((unreadable & ~self.chains.chains["exists"]).any())
        limit = cutoff(chains, suspect, hidden=hidden)
        # The batch that holds the log start is folded whole, but what it has before the start is gone already.
        redundant = self._records_before(limit.offset) - self._records_before(first) if limit.offset else 0
        held = {name: key[name][limit.held_by] if limit.held_by is not None else None for name in key}
        row = {
            "dialect": DIALECT,
            "topic": self.log.topic,
            "partition": self.log.partition,
            "cutoff_offset": limit.offset,
            "log_start_offset": first,
            "log_end_offset": max(self.next_offset, first),
            "redundant_records": redundant,
            "live_share_partitions": len(numbers),
            "limited_by_group": held["group_id"],
            "limited_by_topic_id": held["topic_id"],
            "limited_by_partition": held["partition"],
            "safe": not limit.unsafe_because,
            "reason": limit.unsafe_because or None,
        }
        plain = {name: value.as_py() if isinstance(value, pa.Scalar) else value for name, value in row.items()}
        return FoldedLog(
            log=self.log,
            keys=self.keys,
            all_chains=self.chains,
            chains=chains,
            numbers=numbers,
            lost_at=self.lost_at,
            suspect=suspect,
            observed=self.observed,
            record_count=self.record_count,
            redundant_records=redundant,
            first_offset=first,
            next_offset=max(self.next_offset, first),
            has_whole_batches=self.has_whole_batches,
            states=state_table(chains, key, self.log.partition, suspect, topics),
            in_flight=in_flight_table(chains, key),
            cutoff=pa.Table.from_pylist([plain], schema=table_schema("cutoff")),
        )

    def _records_before(self, offset: int) -> int:
        if not self.runs:
            return 0
        firsts, sizes = np.concatenate(self.runs, axis=1)
        return int(np.clip(offset - firsts, 0, sizes).sum())
