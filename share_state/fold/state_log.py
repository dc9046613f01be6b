"""Reads, decodes and folds one log partition of `__share_group_state`, in one task."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.chain_fold import CHUNKS_PER_FOLD, ChainFold, FoldStart
from share_state.fold.checkpoint import FoldCheckpoint, copy_of
from share_state.fold.cutoff import CutoffEvidence, count_uncommitted
from share_state.fold.cutoff_row import cutoff_row
from share_state.fold.dead_letters.archiving import ArchivingRanges
from share_state.fold.fold_options import FoldOptions
from share_state.fold.interval_merge import effective_starts
from share_state.fold.leader_epochs import LeaderEpochs
from share_state.fold.log_mark import LogMark
from share_state.fold.log_stats import (
    NO_PREVIOUS_START,
    Folded,
    LogCounts,
    LogExtent,
    LogObservations,
    Pieces,
    dictionary_encoded,
)
from share_state.fold.losses import Losses, LossTracker, is_suspect
from share_state.fold.state_chains import NO_OFFSET, Chains
from share_state.fold.states import (
    SHARE_GROUP_STATE,
    compute_lags,
    existing_chains,
    in_flight_in_pieces,
    key_columns,
    state_table,
    table_in_pieces,
)
from share_state.kafka.buffers import RecordBuffer, rows_at
from share_state.kafka.record_batches import CHUNK_SIZE, Chunk
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import (
    UNREADABLE_FAULTS,
    Fault,
    StateRecords,
    decode_state_records,
    set_reported_faults,
)
from share_state.kafka.transactions import Fate, describe_unknown
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.log_partition import LogPartition
from share_state.sources.resume_point import READ_FROM_START, ResumeStatus
from share_state.sources.segments import RecordIndex, index_records, read_chunks, read_into
from share_state.sources.topics import Topics

SLICES_PER_CHUNK = 2
"""A chunk is decoded in slices, so that the bytes are still in the CPU cache after framing."""

_LOSING = Fault.KEY_MALFORMED | UNREADABLE_FAULTS
"""Faults of a record that may be the newest of any share-partition, unless its key is readable."""


@dataclass(slots=True, kw_only=True)
class FoldedLog(Folded):
    """A folded log partition; `numbers` and `suspect` have one entry per live share-partition.

    Attributes:
        keys: every share-partition of the log.
        all_chains: their states, row n for number n.
        folded_from: log start offset of the first fold, which may be an earlier audit.
        checkpoint: where a later audit resumes; None if the log has no valid batch or no number.
        archiving: offset and timestamp (ms) of the first record with a range in state ARCHIVING; -1 for none.
        first_lost_offset: earliest known offset from which records may be missing, -1 for none.
        archiving_ranges: the table `archiving_ranges`; None unless requested.
        complete_since: ms, every record since then is folded; 0 if the whole log is, None if records are
            missing or unreadable, or if the ranges were not requested.
        all_outcomes: `outcomes` of every share-partition of `keys`.
    """

    dialect: ClassVar[str] = SHARE_GROUP_STATE

    keys: KeyTable
    all_chains: Chains
    folded_from: int
    checkpoint: FoldCheckpoint | None
    archiving: tuple[int, int]
    first_lost_offset: int
    archiving_ranges: pa.Table | None
    complete_since: int | None
    all_outcomes: np.ndarray | None = None

    def key_columns(self, numbers: np.ndarray, topics: Topics) -> dict[str, pa.Array]:
        """Key columns of share-partitions by number."""
        return key_columns(self.keys, numbers, topics)

    def leader_starts(self) -> np.ndarray:
        """int64, one per chain: after the leading terminal ranges, which the recorded start may precede."""
        return effective_starts(
            self.chains.chains["start_offset"].copy(), self.chains.ends, self.chains.batches
        )

    def lags(self, states: pa.Table, finished: pa.Array) -> pa.Array:
        """Lag as Kafka computes it, from the recorded start and delivery complete count."""
        del finished
        return compute_lags(
            states["topic_end_offset"], states["start_offset"], states["delivery_complete_count"]
        )


def fold_log(
    log: LogPartition,
    window: Window | None = None,
    options: FoldOptions | None = None,
    *,
    chunk: int = CHUNK_SIZE,
) -> FoldedLog:
    """Fold one log partition into the state that a coordinator has after loading it.

    Args:
        log: a log partition from `find_logs`; with `options.restore`, the result of `resume`.
        window: selects records; all by default.
        options: how to fold it; `control` is for control records.
        chunk: bytes of segments in memory at a time.
    Raises:
        InputError: if a segment cannot be read.
    Source: Kafka CoordinatorLoaderImpl.doLoad, ShareCoordinatorShard.replay.
    """
    options = options or FoldOptions()
    fold = read_into(
        lambda: LogFold(log, window or Window(), options, chunk),
        log,
        chunk=chunk,
        slices=SLICES_PER_CHUNK,
        cores=options.cores,
    )
    return fold.finish()


def decode_log(
    log: LogPartition, window: Window, losses: Losses | None = None
) -> Iterator[tuple[StateRecords, KeyTable]]:
    """The decoded records of a log partition, chunk by chunk, with its share-partitions so far.

    Args:
        losses: collects where records are missing or unreadable, before their chunk is yielded.
    """
    fold = LogFold(log, window, FoldOptions())
    if losses is not None:
        fold.tracker.losses = losses
    # Yielded records cannot be withdrawn if segments turn out to overlap, so merge from the start.
    try:
        for part in read_chunks(log, merge=True):
            yield fold.decode(fold.prepare(part)), fold.chain_fold.keys
        fold.tracker.note_open_damage()
    finally:
        fold.chain_fold.release_buffers()


class LogFold:
    """Reads the chunks of a log partition: what `chain_fold` does not hold is known before its records are folded."""

    def __init__(
        self, log: LogPartition, window: Window, options: FoldOptions, chunk: int = CHUNK_SIZE
    ) -> None:
        self.log = log
        self.window = window
        self.previous = options.restore() if options.restore else None
        checkpoint = None if options.resume_status in READ_FROM_START else self.previous
        counts = checkpoint.counts if checkpoint else LogCounts()
        if counts.deliveries:
            options = replace(options, limits=options.limits.at_least(counts.deliveries))
        self.options = options
        before = checkpoint.mark if checkpoint else None
        self.tracker = LossTracker(
            log.log_start_offset,
            window,
            is_sparse=not log.holds_all,
            next_offset=before.next_offset if before else NO_OFFSET,
            last_lost_offset=checkpoint.last_lost_offset if checkpoint else NO_OFFSET,
        )
        first_offset = self.tracker.first_offset if log.holds_all else NO_OFFSET
        self.mark = LogMark(log, before, options.resume_status, first_offset)
        self.observations = LogObservations(
            counts=counts, resume_status=options.resume_status, read_before=self.mark.next_offset
        )
        self.leader_epochs = LeaderEpochs(log, before.leader_epoch if before else NO_OFFSET)
        self.extent = checkpoint.extent if checkpoint else LogExtent()
        self.last_break = checkpoint.last_break if checkpoint else NO_OFFSET
        self.has_valid_batches = checkpoint is not None
        self.record_count = 0
        self.has_open_transaction = self.is_stopped = False
        self.is_cut = False
        self.stable_checkpoint: FoldCheckpoint | None = None
        # Before the fold changes the states of the checkpoint.
        self.previous_starts = np.zeros(0, np.int64)
        if self.previous is not None:
            states = self.previous.chains.chains
            self.previous_starts = np.where(states["exists"], states["start_offset"], NO_PREVIOUS_START)
        self.chain_fold = self._begin_fold(checkpoint, chunk * CHUNKS_PER_FOLD)

    def _begin_fold(self, checkpoint: FoldCheckpoint | None, min_fold_size: int) -> ChainFold:
        chains = checkpoint.chains if checkpoint else Chains()
        chains.begins_at_zero = self.mark.folded_from == 0
        ranges = None
        if (
            self.options.archiving_groups is not None
            and self.log.partition is not None
            and self.log.has_offsets
        ):
            ranges = ArchivingRanges(
                self.options.archiving_groups,
                chains,
                self.tracker.next_offset,
                is_whole=chains.begins_at_zero,
                marks_returned=self.options.marks_returned,
            )
        archiving = (
            (checkpoint.archiving_since, checkpoint.archiving_time) if checkpoint else (NO_OFFSET, NO_OFFSET)
        )
        start = FoldStart(
            keys=checkpoint.keys if checkpoint else KeyTable(),
            chains=chains,
            archiving=archiving,
            begins_at=self.mark.folded_from if self.log.has_offsets else NO_OFFSET,
            count_from=self._outcomes_since(),
        )
        return ChainFold(self.options, start, ranges, min_fold_size)

    def _outcomes_since(self) -> int:
        """`Folded.outcomes_since`."""
        if self.options.resume_status == ResumeStatus.RECREATED:
            return 0
        return self.options.counted_to if self.previous is None else self.previous.mark.counted_to

    def prepare(self, part: Chunk) -> RecordIndex:
        """Find the records of a chunk that count."""
        self.is_cut = self.is_cut or self.window.ends_before(part.batches)
        return index_records(part, max(self.log.log_start_offset, self.mark.next_offset), self.window)

    def take(self, part: RecordIndex) -> None:
        """Decode and fold the records of a chunk, until an open transaction if only stable ones count."""
        if self.is_stopped:
            return
        if not self.has_open_transaction and (row := part.first_open_row) is not None:
            before, part = part.split(row)
            self._take(before)
            self._note_open_transaction(part)
            if self.is_stopped:
                return
        self._take(part)

    def _take(self, part: RecordIndex) -> None:
        self.decode(part, self.chain_fold.buffer)
        if self.chain_fold.is_due:
            self.chain_fold.fold(self.tracker.losses)

    def take_decoded(self, decoded: StateRecords) -> None:
        """Fold records that came without batches, and are in the buffer; at least one, in log order."""
        rows = decoded.rows
        self.has_valid_batches = True
        self.record_count += len(rows)
        self.tracker.follow(int(rows["offset"][-1]) + 1)
        self.mark.note_time(int(rows["timestamp"].max()))
        self._note_decoded(decoded)
        if self.chain_fold.is_due:
            self.chain_fold.fold(self.tracker.losses)

    def _note_decoded(self, decoded: StateRecords) -> None:
        self.observations.note_records(decoded)
        if decoded.faults & _LOSING:
            rows = decoded.rows
            self.tracker.note_unreadable(rows["offset"], (rows["key"] < 0) & (rows["fault"] & _LOSING != 0))

    def _note_open_transaction(self, part: RecordIndex) -> None:
        """Keep the state at the last stable offset: the next audit knows whether the transaction counts."""
        self.has_open_transaction = True
        self.is_stopped = self.options.only_stable
        if self.is_stopped:
            self.observations.note_open(part.offsets_of(Fate.OPEN))
        else:
            self.chain_fold.settle(self.tracker.losses)
            self.extent.forget_before(self.tracker.first_offset)
            checkpoint = self._checkpoint()
            self.stable_checkpoint = None if checkpoint is None else copy_of(checkpoint)

    def _note_transactions(self, part: RecordIndex) -> None:
        """Count the records that do not count, and note control records that are not known."""
        counts, transactions = self.observations.counts, part.part.transactions
        counts.note_aborted(part.offsets_of(Fate.ABORTED))
        self.observations.note_open(part.offsets_of(Fate.OPEN))
        if transactions is None:
            return
        unknown = transactions.until(self.window.until_offset, self.window.until_time_ms).unknown_in(
            part.part.batches
        )
        self.observations.unknown_markers += [
            (int(marker["offset"]), int(marker["producer_id"]), describe_unknown(marker))
            for marker in unknown
        ]
        self.tracker.note(unknown["offset"].tolist())

    def decode(self, part: RecordIndex, buffer: RecordBuffer | None = None) -> StateRecords:
        """Decode the indexed records of a chunk, into `buffer` if it is not None."""
        chunk, summary = part.part, part.summary
        self.observations.repeated_batches += chunk.repeated
        self.has_valid_batches |= part.had_valid
        self.observations.note_batches(chunk, summary)
        is_whole = summary.rows and summary.is_continuous
        if not (is_whole and self.tracker.take_whole(chunk.batches)):
            self.tracker.take(chunk.batches)
        self.observations.counts.note_foreign(self.leader_epochs.take(chunk.batches))
        if not summary.is_complete:
            self.observations.compacted.append(self.tracker.note_missing(chunk.batches, part.located))
        if summary.valid:
            self.mark.take(part)
            if part.records is not part.located and len(part.records):
                self.tracker.window_end = int(part.records["offset"][-1]) + 1
        decoded = decode_state_records(chunk.data, part.records, self.chain_fold.keys, buffer)
        set_reported_faults(decoded, chunk.faults)
        self.record_count += len(decoded.rows)
        if self.log.holds_all:
            self.extent.take(chunk.batches, decoded.rows["offset"])
        self.observations.counts.take(chunk.batches, summary, decoded)
        if part.fates is not None:
            self._note_transactions(part)
        self._note_decoded(decoded)
        if len(part.records):
            self.tracker.admit()
        return decoded

    def _previous_starts_by_key(self) -> np.ndarray:
        """`previous_starts` of every share-partition by number."""
        keys = self.chain_fold.keys
        starts = np.full(len(keys), NO_PREVIOUS_START)
        if self.mark.before is not None:
            starts[: len(self.previous_starts)] = self.previous_starts
        elif self.previous is not None:
            rows = pc.index_in(keys.binary(), self.previous.keys.binary())
            known = np.flatnonzero(rows.is_valid().to_numpy(zero_copy_only=False))
            starts[known] = self.previous_starts[rows.drop_null().to_numpy()]
        return starts

    def _complete_since(self) -> int | None:
        """`FoldedLog.complete_since`.

        A log whose start has moved may have lost records of an earlier time.
        """
        ranges = self.chain_fold.archiving_ranges
        if ranges is None or self.tracker.has_lost_records:
            return None
        if self.mark.folded_from == 0 == self.log.log_start_offset:
            return 0
        return self.mark.newest_time if self.mark.before is not None else ranges.first_time

    def _last_break(self) -> int:
        """The latest offset after the log start at which snapshot epochs do not follow, -1 for none."""
        last = max(self.last_break, self.chain_fold.chains.last_break)
        return last if last >= self.tracker.first_offset else NO_OFFSET

    def _checkpoint(self) -> FoldCheckpoint | None:
        folded, lost = self.chain_fold, self.tracker.last_lost_offset
        is_suspect_anywhere = (folded.chains.chains["suspect_offset"] != NO_OFFSET).any()
        point = self.mark.point(is_sound=lost == NO_OFFSET and not is_suspect_anywhere)
        if point is None:
            return None
        counts = self.observations.counts
        breaks = self._last_break()
        return FoldCheckpoint(
            point, folded.keys, folded.chains, self.extent, counts, lost, breaks, *folded.archiving
        )

    def _stable_or_last_checkpoint(self, end: int) -> FoldCheckpoint | None:
        """The state from which the next audit resumes: before the first open transaction, if there is one."""
        if not self.has_open_transaction or self.is_stopped:
            return self._checkpoint()
        stable = self.stable_checkpoint
        if stable is None:
            return None
        stable.counts.deliveries |= self.observations.counts.deliveries
        return replace(stable, mark=replace(stable.mark, read_to=end))

    def _place_keys(self) -> None:
        if self.log.partition is not None:
            hashes = self.chain_fold.keys.coordinator_hashes()
            self.observations.place_keys(hashes, self.log.partition, self.options.partition_count)

    def finish(self) -> FoldedLog:
        """The folded log; nothing can be folded any more."""
        folded, tracker = self.chain_fold, self.tracker
        folded.finish(tracker.losses)
        first, end = tracker.first_offset, tracker.end
        self.observations.gaps = tracker.gaps_before(end)
        self.observations.compacted = [gaps[gaps[:, 0] <= end] for gaps in self.observations.compacted]
        tracker.admit()
        self.extent.forget_before(first)
        complete_since = self._complete_since()
        checkpoint = self._stable_or_last_checkpoint(end)
        # Not part of the checkpoint: a later audit reads these bytes again.
        tracker.note_open_damage()
        self._place_keys()
        chains = existing_chains(folded.chains)
        numbers = np.flatnonzero(folded.chains.chains["exists"])
        suspect = is_suspect(chains.chains, tracker.last_lost_offset, start_is_shown=self.mark.start_is_shown)
        topics = self.options.topics
        key = key_columns(folded.keys, numbers, topics)
        has_sizes, evidence = self.mark.has_sizes, self._evidence(chains, suspect)
        # The last snapshot of the whole log may be among the records that are elsewhere.
        own = chains if self.log.holds_all else replace(chains, last_snapshot_record=NO_OFFSET)
        row, redundant = cutoff_row(own, key, evidence, self.extent, (first, end), has_sizes=has_sizes)
        ranges = folded.archiving_ranges
        outcomes = folded.outcomes() if self.previous is None or self.log.has_offsets else None
        encoded = cache(lambda: dictionary_encoded(key))
        return FoldedLog(
            log=self.log,
            keys=folded.keys,
            all_chains=folded.chains,
            chains=chains,
            numbers=numbers,
            last_lost_offset=tracker.last_lost_offset,
            suspect=suspect,
            observations=self.observations,
            record_count=self.record_count,
            redundant_records=redundant,
            first_offset=first,
            next_offset=end,
            folded_from=self.mark.folded_from,
            has_valid_batches=self.has_valid_batches,
            state_pieces=self._state_pieces(
                chains, encoded, suspect, topics.end_of(key["topic_id"], key["partition"])
            ),
            in_flight_pieces=in_flight_in_pieces(chains, encoded),
            cutoff=pa.Table.from_pylist([row], schema=table_schema("cutoff")),
            limits=folded.observed_limits(self.observations.counts.deliveries),
            newest_time=self.mark.newest_time,
            judged_at=max(self.mark.newest_time, self.options.judged_at or NO_OFFSET),
            checkpoint=checkpoint,
            previous_starts=self._previous_starts_by_key()[numbers],
            archiving=folded.archiving,
            first_lost_offset=tracker.losses.first,
            archiving_ranges=ranges and ranges.table(folded.keys, topics, self.log.partition or 0),
            complete_since=complete_since,
            outcomes=None if outcomes is None else rows_at(outcomes, numbers),
            outcomes_since=self._outcomes_since(),
            all_outcomes=outcomes,
            record_breaches=folded.record_breaches,
            is_cut=self.is_cut,
        )

    def _state_pieces(
        self,
        chains: Chains,
        key: Callable[[], Mapping[str, pa.Array]],
        suspect: np.ndarray,
        topic_ends: pa.Array,
    ) -> Pieces:
        """The table `share_partition_state`."""
        log = self.log

        def build_states(piece: Chains, piece_key: dict[str, pa.Array], part: slice) -> pa.Table:
            lists = (suspect[part], topic_ends[part])
            return state_table(piece, piece_key, log.partition, *lists, has_offsets=log.has_offsets)

        return table_in_pieces("share_partition_state", chains, key, build_states)

    def _evidence(self, chains: Chains, suspect: np.ndarray) -> CutoffEvidence:
        has_base = chains.chains["snapshot_offset"] != NO_OFFSET
        all_chains = self.chain_fold.chains.chains
        # An unreadable record of a share-partition without a state may be its only one.
        hidden = all_chains["suspect_offset"][
            (all_chains["suspect_offset"] != NO_OFFSET) & ~all_chains["exists"]
        ]
        lost = [
            offset for offset in (self.tracker.last_lost_offset, *hidden[:1].tolist()) if offset != NO_OFFSET
        ]
        return CutoffEvidence(
            log=self.log,
            base="snapshot",
            start_is_shown=self.mark.start_is_shown,
            suspects=int((suspect & has_base).sum()),
            without_base=int((~has_base).sum()),
            lost_offset=min(lost, default=NO_OFFSET),
            break_offset=self._last_break(),
            foreign_offset=self.observations.counts.foreign[0],
            misplaced=self.observations.misplaced_count,
            may_lack_partitions=self.observations.rests_on_input,
            holds_other_records=self.observations.counts.holds_other_records,
            uncommitted=count_uncommitted(all_chains, self.mark.committed_end),
            stable_end=self.observations.open_records[0],
        )
