"""One log partition, start to end: read, decode, fold; what one Spark task does, and what a notebook may call."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.fold.chains import NOWHERE, Chains
from share_state.fold.checkpoint import Carried
from share_state.fold.cutoff import cutoff
from share_state.fold.log_stats import Counts, Extent, Observed, Pieces, packed
from share_state.fold.options import Limits
from share_state.fold.record_context import Traced, Tracer
from share_state.fold.states import SHARE_GROUP_STATE, in_flight_in_pieces, key_columns, live, states_in_pieces
from share_state.kafka.buffers import Behind, RecordRoom
from share_state.kafka.record_batches import CHUNK, BatchFacts, Chunk, Trust, is_continuous
from share_state.kafka.share_partition_keys import KeyTable, state_partitions_of
from share_state.kafka.share_snapshot_file import IndexEntry
from share_state.kafka.state_records import (
    SPARE,
    UNREADABLE,
    Fault,
    StateRecords,
    decode_state_records,
    note_told_faults,
)
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import AsOfPoint, as_of_window
from share_state.sources.discovery import LogPartition, Window
from share_state.sources.resume import Fate, Mark
from share_state.sources.segments import Located, located, read_chunks, read_into
from share_state.sources.topics import Topics

UNKNOWN_BEFORE = -2
"""In place of a start offset: the share-partition had none at the last audit."""

STRETCHES = 2
"""Parts of a chunk: what is framed and found in one of them is in the CPU's own memory when it is decoded."""

CHUNKS_A_FOLD = 16
"""So many bytes of decoded records as chunks have are folded at once, at least, as each fold copies what is live."""

_SIZES = ("redundant_bytes", "pinned_bytes")
_OFFSETS = ("cutoff_offset", "log_start_offset", "log_end_offset", "redundant_records", "next_cutoff_offset",
            "pinned_records", "limited_by_group", "limited_by_topic_id", "limited_by_partition")  # fmt: skip
"""Columns of `cutoff` that a form without sizes or offsets cannot tell."""


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
        folded_from: the log start when its first record was folded, maybe by an earlier audit.
        has_whole_batches: whether any batch could be trusted, in the window or not.
        limits: what the rules hold it against.
        newest_time: ms, the latest stamp of any batch so far, earlier audits' included; -1 where none is known.
        carried: what a later audit goes on from; None where there was no whole batch to go on from.
        starts_before: int64, one a live chain: its start offset at the last audit, UNKNOWN_BEFORE where it had none.
        judged: what rules over traced records found on the way.
        state_pieces, in_flight_pieces: the tables `share_partition_state` and `in_flight`.
        cutoff: the table of that name.
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
    folded_from: int
    has_whole_batches: bool
    state_pieces: Pieces
    in_flight_pieces: Pieces
    cutoff: pa.Table
    limits: Limits
    newest_time: int
    carried: Carried | None
    starts_before: np.ndarray
    judged: list[Any]

    @property
    def states(self) -> pa.Table:
        """The table `share_partition_state`, made whole at each call."""
        return self.state_pieces.whole()

    @property
    def in_flight(self) -> pa.Table:
        """The table of that name, made whole at each call."""
        return self.in_flight_pieces.whole()

    @property
    def index_entries(self) -> list[IndexEntry]:
        """None: the share snapshot file indexes control records."""
        return []


def fold_log(
    log: LogPartition,
    window: Window | None = None,
    *,
    as_of: AsOfPoint | None = None,
    topics: Topics | None = None,
    state_partitions: int | None = None,
    chunk: int = CHUNK,
    limits: Limits | None = None,
    restore: Callable[[], Carried] | None = None,
    fate: Fate | None = None,
    judge: Callable[[Traced], Sequence[Any]] | None = None,
    cores: int = 1,
) -> FoldedLog:
    """Fold one log partition into what the coordinator would hold after loading it.

    Args:
        log: a log partition from `find_logs`.
        window: which records count; all of them by default.
        as_of: in place of a window: an offset, a moment or its ISO 8601 text; nothing later counts.
        topics: names and end offsets that are known.
        state_partitions: how many partitions the state topic has, where known, to find records in the wrong one.
        chunk: bytes of segments in memory at a time.
        limits: what rules are to hold it against.
        restore: where an earlier fold of this log stopped, a new one at each call; `log` is then what `resume` left.
        fate: what became of the log since then.
        judge: is shown every chunk of records, traced; what it returns is gathered in `judged`.
        cores: with more than one, chunks are read, decoded and folded side by side, slices of share-partitions too.
    Raises:
        InputError: if a segment cannot be read.
    Source: Kafka CoordinatorLoaderImpl.doLoad, ShareCoordinatorShard.replay.
    """

    def begin() -> _Run:
        carried = restore() if restore else None
        return _Run(log, window or as_of_window(as_of), limits or Limits(), carried, fate, judge, cores, chunk)

    run = read_into(begin, log, chunk=chunk, stretches=STRETCHES, cores=cores)
    return run.finish(topics or Topics(), state_partitions)


def decode_log(
    log: LogPartition, window: Window, losses: list[int] | None = None
) -> Iterator[tuple[StateRecords, KeyTable]]:
    """The decoded records of a log partition, chunk by chunk, with the numbers of its share-partitions so far.

    Args:
        log: a log partition from `find_logs`.
        window: which records count.
        losses: takes the offsets from which records are found to be missing or unreadable, before their chunk.
    """
    run = _Run(log, window, Limits())
    run.losses = losses
    # What has been handed out cannot be taken back where segments turn out to overlap.
    try:
        for part in read_chunks(log, merge=True):
            yield run.decode(run.prepared(part)), run.keys
    finally:
        run.give_back_rooms()


class _Run:
    """Carries a log partition from chunk to chunk."""

    def __init__(
        self,
        log: LogPartition,
        window: Window,
        limits: Limits,
        carried: Carried | None = None,
        fate: Fate | None = None,
        judge: Callable[[Traced], Sequence[Any]] | None = None,
        cores: int = 1,
        chunk: int = CHUNK,
    ) -> None:
        self.log, self.window, self.limits, self.judge = log, window, limits, judge
        self.cores, self.folding = cores, Behind(cores)
        self.mark = carried.mark if carried else None
        self.keys = carried.keys if carried else KeyTable()
        self.chains = carried.chains if carried else Chains()
        self.extent = carried.extent if carried else Extent()
        self.lost_at = carried.lost_at if carried else NOWHERE
        self.observed = Observed(counts=carried.counts if carried else Counts(), fate=fate)
        self.last: np.void | None = None
        self.next_offset = self.observed.read_before = self.mark.next_offset if self.mark else NOWHERE
        self.newest_time = self.mark.newest_time if self.mark else NOWHERE
        self.folded_from = self.mark.log_start_offset if self.mark else self._first_offset()
        self.starts_before = np.where(self.chains.chains["exists"], self.chains.chains["start_offset"], UNKNOWN_BEFORE)
        self.tracer = Tracer(folded_from=self.folded_from, limits=limits)
        self.tracer.archiving_since = carried.archiving_since if carried else NOWHERE
        self.broken_since, self.record_count, self.has_whole_batches = False, 0, carried is not None
        self.judged: list[Any] = []
        self.room = SPARE.room()
        self.other_room = self.room if cores == 1 else SPARE.room()
        self.least = chunk * CHUNKS_A_FOLD
        self.enough = max(self.least, self.chains.size)
        self.losses: list[int] | None = None

    def _first_offset(self) -> int:
        return max(self.log.log_start_offset, self.window.from_offset or 0)

    def prepared(self, part: Chunk) -> Located:
        return located(part, max(self.log.log_start_offset, self.observed.read_before), self.window)

    def take(self, part: Located) -> None:
        self.decode(part, self.room)
        if self.room.size >= self.enough:
            self._fold_decoded()

    def _fold_decoded(self) -> None:
        room, keys = self.room, len(self.keys)
        self.folding.wait()
        # Folding copies the state, so the next one waits for as much again: cost stays linear however many
        # share-partitions live. What is there before this one is the same by any number of cores, and so the findings.
        self.enough = max(self.least, self.chains.size)
        if room.row_count:
            self.room, self.other_room = self.other_room, room
            self.folding.do(lambda: self._fold(room, keys))

    def _fold(self, room: RecordRoom, keys: int) -> None:
        records = StateRecords(room.rows, room.batches)
        # Reading and decoding keep a core busy.
        slices = max(1, self.cores - 1)
        if self.judge is None:
            self.chains.apply(records, keys, slices)
        else:
            self.judged += self.judge(self.tracer.take(records, self.chains, keys, slices))
        room.clear()

    def decode(self, part: Located, room: RecordRoom | None = None) -> StateRecords:
        """The records of a chunk that count, in the room that is given, or in their own."""
        chunk, facts = part.part, part.facts
        self.observed.repeated_batches += chunk.repeated
        self.has_whole_batches |= part.had_whole
        self.observed.note_batches(chunk, facts)
        self._note_gaps(chunk.batches, facts)
        self._note_last(chunk.batches, facts)
        decoded = decode_state_records(chunk.data, part.records, self.keys, room)
        note_told_faults(decoded, chunk.faults)
        self.record_count += len(decoded.rows)
        self.extent.take(chunk.batches, decoded.rows["offset"])
        self.observed.counts.take(chunk.batches, facts, decoded)
        self.observed.note_records(decoded)
        if decoded.faults & (Fault.KEY_MALFORMED | UNREADABLE):
            unkeyed = (decoded.rows["key"] < 0) & (decoded.rows["fault"] & (Fault.KEY_MALFORMED | UNREADABLE) != 0)
            self._lose(decoded.rows["offset"][unkeyed])
        return decoded

    def _lose(self, offsets: np.ndarray | Sequence[int]) -> None:
        """Note offsets from which records are missing or unreadable."""
        if len(offsets):
            self.lost_at = max(self.lost_at, int(np.max(offsets)))
            if self.losses is not None:
                self.losses += np.asarray(offsets).tolist()

    def _note_gaps(self, batches: np.ndarray, facts: BatchFacts) -> None:
        until = self.window.until_offset
        if facts.rows and not self.broken_since and is_continuous(batches, self._expected(batches[0])):
            end = int(batches[-1]["last_offset"]) + 1
            self.next_offset = end if until is None else min(end, until)
            return
        bad = batches["trust"] != Trust.WHOLE
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
                self._lose([int(expected[row])])
            if broken_before[0] and self.next_offset < 0:
                # Nothing before the first good batch can be believed to be complete.
                self._lose([int(base[0]) - 1])
            self.next_offset = int(last[-1]) + 1 if until is None else min(int(last[-1]) + 1, until)
            self.broken_since = bool(harmful[-1] > harmful[good[-1]])
        else:
            self.broken_since |= bool(len(harmful) and harmful[-1])
        self._lose(batches["base_offset"][batches["trust"] == Trust.CONFLICT])

    def _expected(self, batch: np.ndarray) -> int:
        """The offset at which a batch must begin; the first may hold the log start anywhere."""
        return self.next_offset if self.next_offset >= 0 else min(int(batch["base_offset"]), self.log.log_start_offset)

    def _note_last(self, batches: np.ndarray, facts: BatchFacts) -> None:
        """Remember the last whole batch: a later audit goes on behind it. Only segments can be gone on with."""
        if not facts.whole:
            return
        self.newest_time = max(self.newest_time, facts.newest_time)
        if self.log.source is not None:
            return
        self.last = batches[facts.last].copy()

    def _mark(self) -> Mark | None:
        """Where a later audit goes on; where this one began if it met no whole batch."""
        if self.last is None:
            return self.mark
        return Mark(
            segment=self.log.segments[self.last["segment"]].base_offset,
            position=int(self.last["file_position"]),
            size=int(self.last["size"]),
            base_offset=int(self.last["base_offset"]),
            crc=int(self.last["crc"]),
            next_offset=int(self.last["last_offset"]) + 1,
            log_start_offset=self.folded_from,
            newest_time=self.newest_time,
            topic_id=self.log.topic_id,
        )

    def give_back_rooms(self) -> None:
        SPARE.take_back(self.room)
        if self.other_room is not self.room:
            SPARE.take_back(self.other_room)

    def finish(self, topics: Topics, state_partitions: int | None) -> FoldedLog:
        self._fold_decoded()
        self.folding.wait()
        self.give_back_rooms()
        first = self._first_offset()
        self.extent.forget_before(first)
        carried = None
        if (mark := self._mark()) is not None:
            since = self.tracer.archiving_since
            counts = self.observed.counts
            carried = Carried(mark, self.keys, self.chains, self.extent, counts, self.lost_at, since)
        if self.broken_since:
            # What a later audit carries does not know of these bytes: it reads them again.
            self.lost_at = max(self.lost_at, self.next_offset, 0)
        if state_partitions and self.log.partition is not None:
            belongs = state_partitions_of(self.keys, state_partitions)
            stray = np.flatnonzero(belongs != self.log.partition)
            self.observed.misplaced = (stray, belongs[stray])
        chains, numbers = live(self.chains), np.flatnonzero(self.chains.chains["exists"])
        suspect = (chains.chains["suspect_offset"] != NOWHERE) | (self.lost_at > chains.chains["snapshot_offset"])
        key = key_columns(self.keys, numbers, topics)
        topic_ends, repeated = topics.end_of(key["topic_id"], key["partition"]), packed(key)
        unreadable = self.chains.chains["suspect_offset"] != NOWHERE
        hidden = self.lost_at != NOWHERE or bool((unreadable & ~self.chains.chains["exists"]).any())
        limit = cutoff(chains, suspect, hidden=hidden)
        # The batch that holds the log start is folded whole, but what it has before the start is gone already.
        redundant = self.extent.records_before(limit.offset) - self.extent.records_before(first) if limit.offset else 0
        freed = self.extent.bytes_before(limit.offset) - self.extent.bytes_before(first) if limit.offset else 0
        reached = max(limit.offset or 0, first)
        following = limit.next_offset if limit.next_offset is not None else reached
        held = {name: key[name][limit.held_by] if limit.held_by is not None else None for name in key}
        unsafe_because = limit.unsafe_because if self.log.has_offsets else "this form holds no offsets"
        row = {
            "dialect": SHARE_GROUP_STATE,
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
            "safe": not unsafe_because,
            "reason": unsafe_because or None,
            "redundant_bytes": freed,
            "next_cutoff_offset": limit.next_offset,
            "pinned_records": self.extent.records_before(following) - self.extent.records_before(reached),
            "pinned_bytes": self.extent.bytes_before(following) - self.extent.bytes_before(reached),
        }
        untold = (*(() if self.log.has_offsets else _OFFSETS), *(() if self.log.has_sizes else _SIZES))
        before = np.full(len(self.chains.chains), UNKNOWN_BEFORE)
        before[: len(self.starts_before)] = self.starts_before
        plain = {name: value.as_py() if isinstance(value, pa.Scalar) else value for name, value in row.items()}
        plain |= dict.fromkeys(untold)
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
            folded_from=self.folded_from,
            has_whole_batches=self.has_whole_batches,
            state_pieces=states_in_pieces(
                chains, repeated, self.log.partition, suspect, topic_ends, placed=self.log.has_offsets
            ),
            in_flight_pieces=in_flight_in_pieces(chains, repeated),
            cutoff=pa.Table.from_pylist([plain], schema=table_schema("cutoff")),
            limits=self.limits,
            newest_time=self.newest_time,
            carried=carried,
            starts_before=before[numbers],
            judged=self.judged,
        )
