"""Reads, decodes and folds one log partition of `__share_group_state`, in one task."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.checkpoint import FoldCheckpoint
from share_state.fold.cutoff import CutoffEvidence, count_uncommitted, cutoff, unsafe_reasons
from share_state.fold.dead_letters.archiving import ArchivingRanges
from share_state.fold.fold_options import FoldOptions
from share_state.fold.interval_merge import effective_starts
from share_state.fold.leader_epochs import LeaderEpochs
from share_state.fold.limits import Limits
from share_state.fold.log_stats import (
    NO_PREVIOUS_START,
    Folded,
    LogCounts,
    LogExtent,
    LogObservations,
    dictionary_encoded,
)
from share_state.fold.losses import Losses, LossTracker
from share_state.fold.outcomes import grown_outcomes
from share_state.fold.record_context import ContextFold
from share_state.fold.state_chains import NO_OFFSET, Chains
from share_state.fold.states import (
    SHARE_GROUP_STATE,
    compute_lags,
    existing_chains,
    in_flight_in_pieces,
    key_columns,
    state_table,
    table_in_pieces,
    to_timestamps,
)
from share_state.kafka.buffers import BackgroundWorker, RecordBuffer
from share_state.kafka.record_batches import CHUNK_SIZE, Chunk, missing_offsets
from share_state.kafka.share_partition_keys import KeyTable, key_hashes
from share_state.kafka.state_records import (
    RECORD_BUFFERS,
    UNREADABLE_FAULTS,
    Fault,
    StateRecords,
    decode_state_records,
    set_reported_faults,
)
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.discovery import LogPartition
from share_state.sources.resume_point import KEPT_STATE, READ_FROM_START, ResumePoint, ResumeStatus
from share_state.sources.segments import RecordIndex, index_records, read_chunks, read_into
from share_state.sources.topics import Topics

SLICES_PER_CHUNK = 2
"""A chunk is decoded in slices, so that the bytes are still in the CPU cache after framing."""

CHUNKS_PER_FOLD = 16
"""A fold starts when the decoded records reach this many times the chunk size, because each fold copies the state."""

_SIZES = ("redundant_bytes", "pinned_bytes")
_OFFSETS = ("cutoff_offset", "log_start_offset", "log_end_offset", "redundant_records", "next_cutoff_offset",
            "pinned_records", "limited_by_group", "limited_by_topic_id", "limited_by_partition",
            "limited_since")  # fmt: skip
"""Columns of `cutoff` that are null if the input has no sizes or no offsets."""


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
        complete_since: ms, every record since then is folded; 0 if the whole log is, None if records are missing or
            unreadable, or if the ranges were not requested.
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

    def key_columns(self, numbers: np.ndarray, topics: Topics) -> dict[str, pa.Array]:
        """Key columns of share-partitions by number."""
        return key_columns(self.keys, numbers, topics)

    def leader_starts(self) -> np.ndarray:
        """int64, one per chain: after the leading terminal ranges, which the recorded start may precede."""
        return effective_starts(self.chains.chains["start_offset"].copy(), self.chains.ends, self.chains.batches)

    def lags(self, states: pa.Table, finished: pa.Array) -> pa.Array:
        """Lag as Kafka computes it, from the recorded start and delivery complete count."""
        del finished
        return compute_lags(states["topic_end_offset"], states["start_offset"], states["delivery_complete_count"])


def fold_log(
    log: LogPartition, window: Window | None = None, options: FoldOptions | None = None, *, chunk: int = CHUNK_SIZE
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
        lambda: _LogFold(log, window or Window(), options, chunk),
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
    fold = _LogFold(log, window, FoldOptions())
    if losses is not None:
        fold.tracker.losses = losses
    # Yielded records cannot be withdrawn if segments turn out to overlap, so merge from the start.
    try:
        for part in read_chunks(log, merge=True):
            yield fold.decode(fold.prepare(part)), fold.keys
        fold.tracker.note_open_damage()
    finally:
        fold.release_buffers()


class _LogFold:
    """The fold of a log partition, chunk by chunk."""

    def __init__(self, log: LogPartition, window: Window, options: FoldOptions, chunk: int = CHUNK_SIZE) -> None:
        self.log, self.window, self.options = log, window, options
        self.previous = checkpoint = options.restore() if options.restore else None
        if options.resume_status in READ_FROM_START:
            checkpoint = None
        self.folding = BackgroundWorker(options.cores)
        self.mark = checkpoint.mark if checkpoint else None
        self.keys = checkpoint.keys if checkpoint else KeyTable()
        self.chains = checkpoint.chains if checkpoint else Chains()
        self.extent = checkpoint.extent if checkpoint else LogExtent()
        counts = checkpoint.counts if checkpoint else LogCounts()
        if counts.deliveries:
            self.options = options = replace(options, limits=options.limits.at_least(counts.deliveries))
        self.observations = LogObservations(counts=counts, resume_status=options.resume_status)
        self.last: np.void | None = None
        self.observations.read_before = self.mark.next_offset if self.mark else NO_OFFSET
        self.tracker = LossTracker(
            log.log_start_offset,
            window,
            next_offset=self.observations.read_before,
            last_lost_offset=checkpoint.last_lost_offset if checkpoint else NO_OFFSET,
        )
        self.leader_epochs = LeaderEpochs(log, self.mark.leader_epoch if self.mark else NO_OFFSET)
        self.newest_time = self.mark.newest_time if self.mark else NO_OFFSET
        self.folded_from = self.mark.folded_from if self.mark else self._first_offset()
        self.last_break = checkpoint.last_break if checkpoint else NO_OFFSET
        self.chains.begins_at_zero = self.folded_from == 0
        self.previous_starts = np.zeros(0, np.int64)
        if self.previous is not None:
            before = self.previous.chains.chains
            self.previous_starts = np.where(before["exists"], before["start_offset"], NO_PREVIOUS_START)
        self.archiving_ranges = None
        if options.archiving_groups is not None and log.partition is not None and log.has_offsets:
            self.archiving_ranges = ArchivingRanges(
                options.archiving_groups, self.chains, self.tracker.next_offset, is_whole=self.folded_from == 0
            )
        self.archiving = (NO_OFFSET, NO_OFFSET)
        if checkpoint:
            self.archiving = (checkpoint.archiving_since, checkpoint.archiving_time)
        self.context_fold = None
        if options.judge is not None:
            self.context_fold = ContextFold(
                options.judge.broken_rules,
                log_start_offset=self.folded_from if log.has_offsets else NO_OFFSET,
                limits=options.limits,
                archiving=self.archiving,
                count_from=self._count_from(),
            )
        self.record_count = 0
        self.has_valid_batches = checkpoint is not None
        self.record_breaches: list[Any] = []
        self.buffer = RECORD_BUFFERS.acquire()
        self.spare_buffer = self.buffer if options.cores == 1 else RECORD_BUFFERS.acquire()
        self.min_fold_size = chunk * CHUNKS_PER_FOLD
        self.fold_size = max(self.min_fold_size, self.chains.size)
        self.folded_losses = 0
        self.latest_folded_loss = list[int]()

    def _count_from(self) -> int:
        """Offset from which outcomes are counted: the end of what the last audit read of this log."""
        if self.previous is None or self.options.resume_status == ResumeStatus.RECREATED:
            return 0
        return self.previous.mark.next_offset

    def _outcomes(self, numbers: np.ndarray) -> np.ndarray | None:
        """`FoldedLog.outcomes`."""
        is_since_last = self.previous is None or self.log.has_offsets
        if self.context_fold is None or not is_since_last:
            return None
        # The share-partitions of a log without new records are not in the fold.
        return grown_outcomes(self.context_fold.outcomes, np.zeros(len(self.keys), np.int64))[:-1][numbers]

    def _first_offset(self) -> int:
        return max(self.log.log_start_offset, self.window.from_offset or 0)

    def prepare(self, part: Chunk) -> RecordIndex:
        return index_records(part, max(self.log.log_start_offset, self.observations.read_before), self.window)

    def take(self, part: RecordIndex) -> None:
        self.decode(part, self.buffer)
        if self.buffer.size >= self.fold_size:
            self._fold_decoded()

    def _fold_decoded(self) -> None:
        buffer, keys = self.buffer, len(self.keys)
        self.folding.wait()
        # A fold copies the state, so the next fold waits for as many bytes: the total cost stays linear for any number
        # of share-partitions. The size is read before this fold, so that findings do not depend on the core count.
        self.fold_size = max(self.min_fold_size, self.chains.size)
        if buffer.row_count:
            self.buffer, self.spare_buffer = self.spare_buffer, buffer
            # Copied here, because decoding adds keys and losses while the fold runs.
            lost, limit_rows = list[int](), None
            if self.context_fold is not None:
                noted = self.tracker.losses.offsets
                lost = self.latest_folded_loss + noted[self.folded_losses :]
                self.folded_losses = len(noted)
                self.latest_folded_loss = [max(lost)] if lost else []
                limits = self.options.limits
                limit_rows = limits.group_rows(self.keys.columns()[0]) if limits.groups else None
            if self.archiving_ranges is not None:
                self.archiving_ranges.note_keys(self.keys)
            self.folding.submit(lambda: self._fold(buffer, keys, limit_rows, lost))

    def _fold(self, buffer: RecordBuffer, keys: int, limit_rows: np.ndarray | None, lost: Sequence[int]) -> None:
        records = StateRecords(
            buffer.rows, buffer.batches, numbers=buffer.keys, last_snapshot_record=buffer.last_snapshot_record
        )
        # Reading and decoding keep one core busy.
        slices = max(1, self.options.cores - 1)
        if self.archiving_ranges is not None:
            self.archiving_ranges.take(records, self.chains)
        if self.options.judge is None or self.context_fold is None:
            self.chains.apply(records, keys, slices)
        else:
            chunk = self.context_fold.apply(records, self.chains, keys, slices, limit_rows, lost)
            self.record_breaches += self.options.judge(chunk)
            self.archiving = self.context_fold.archiving
        buffer.clear()

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
            self._note_missing(chunk.batches, part.located)
        self._note_last(part)
        decoded = decode_state_records(chunk.data, part.records, self.keys, buffer)
        set_reported_faults(decoded, chunk.faults)
        self.record_count += len(decoded.rows)
        self.extent.take(chunk.batches, decoded.rows["offset"])
        self.observations.counts.take(chunk.batches, summary, decoded)
        self.observations.note_records(decoded)
        losing = Fault.KEY_MALFORMED | UNREADABLE_FAULTS
        if decoded.faults & losing:
            rows = decoded.rows
            lost = np.concatenate(([False], (rows["key"] < 0) & (rows["fault"] & losing != 0), [False]))
            # Note only the first and last record of each run of lost records.
            self.tracker.note(rows["offset"][lost[1:-1] & ~(lost[:-2] & lost[2:])].tolist())
        if len(part.records):
            self.tracker.admit()
        return decoded

    def _note_missing(self, batches: np.ndarray, records: np.ndarray) -> None:
        """Note the offsets of the window that are missing inside batches."""
        until = self.window.until_offset
        until = self.tracker.next_offset if until is None else until
        missing = np.clip(missing_offsets(batches, records), self._first_offset(), until)
        missing = missing[missing[:, 0] < missing[:, 1]]
        self.observations.compacted.append(missing)
        self.tracker.note(missing[:, 0].tolist())

    def _note_last(self, part: RecordIndex) -> None:
        """Keep the last valid batch, after which a later audit resumes, and where the records of the window end."""
        if not part.summary.valid:
            return
        self.last = last = part.part.batches[part.summary.last].copy()
        if part.records is part.located:
            self.newest_time = int(last["max_timestamp"])
        elif len(part.records):
            of_last_batch = part.records["batch"] == part.records["batch"][-1]
            self.newest_time = int(part.records["timestamp"][of_last_batch].max())
            self.tracker.window_end = int(part.records["offset"][-1]) + 1

    def _mark(self) -> ResumePoint | None:
        """Where a later audit resumes; where this audit resumed if it found no valid batch."""
        suspect = self.chains.chains["suspect_offset"] != NO_OFFSET
        is_sound = self._last_lost_offset() == NO_OFFSET and not suspect.any()
        last, topic_id = self.last, self.log.topic_id or (self.mark.topic_id if self.mark else None)
        if last is None:
            start = self.log.log_start_offset
            point = self.mark
            if point is None:
                return None
            point = replace(point, log_start_offset=start, is_sound=is_sound, topic_id=topic_id)
            return replace(point, start_is_recorded=self._start_is_recorded(), committed_end=self._committed_end())
        if self.log.partition is None:
            return None
        is_segment = self.log.source is None
        return ResumePoint(
            segment=self.log.segments[last["segment"]].base_offset if is_segment else -1,
            position=int(last["file_position"]) if is_segment else -1,
            size=int(last["size"]) if is_segment else 0,
            base_offset=int(last["base_offset"]),
            leader_epoch=int(last["leader_epoch"]),
            crc=int(last["crc"]),
            next_offset=int(last["last_offset"]) + 1,
            folded_from=self.folded_from,
            log_start_offset=self.log.log_start_offset,
            newest_time=self.newest_time,
            is_sound=is_sound,
            topic_id=topic_id,
            start_is_recorded=self._start_is_recorded(),
            committed_end=self._committed_end(),
        )

    def _previous_starts_by_key(self) -> np.ndarray:
        """`previous_starts` of every share-partition by number."""
        starts = np.full(len(self.keys), NO_PREVIOUS_START)
        if self.mark is not None:
            starts[: len(self.previous_starts)] = self.previous_starts
        elif self.previous is not None:
            rows = pc.index_in(self.keys.binary(), self.previous.keys.binary())
            known = np.flatnonzero(rows.is_valid().to_numpy(zero_copy_only=False))
            starts[known] = self.previous_starts[rows.drop_null().to_numpy()]
        return starts

    def _complete_since(self) -> int | None:
        """`FoldedLog.complete_since`; a log whose start has moved may have lost records of an earlier time."""
        if self.archiving_ranges is None or self.tracker.losses.offsets or self.tracker.is_damaged:
            return None
        if self.folded_from == 0 == self.log.log_start_offset:
            return 0
        return self.mark.newest_time if self.mark is not None else self.archiving_ranges.first_time

    def release_buffers(self) -> None:
        RECORD_BUFFERS.release(self.buffer)
        if self.spare_buffer is not self.buffer:
            RECORD_BUFFERS.release(self.spare_buffer)

    def _last_lost_offset(self) -> int:
        """The latest offset after the log start from which records may be missing, -1 for none."""
        last = self.tracker.losses.last
        return last if last >= self._first_offset() else NO_OFFSET

    def _last_break(self) -> int:
        """The latest offset after the log start at which snapshot epochs do not follow, -1 for none."""
        last = max(self.last_break, self.chains.last_break)
        return last if last >= self._first_offset() else NO_OFFSET

    def _checkpoint(self) -> FoldCheckpoint | None:
        mark = self._mark()
        if mark is None:
            return None
        lost = self._last_lost_offset()
        return FoldCheckpoint(
            mark,
            self.keys,
            self.chains,
            self.extent,
            self.observations.counts,
            lost,
            self._last_break(),
            *self.archiving,
        )

    def finish(self) -> FoldedLog:
        self._fold_decoded()
        self.folding.wait()
        self.release_buffers()
        first = self._first_offset()
        end = self.tracker.end(first)
        self.observations.gaps = self.tracker.gaps_before(end)
        self.observations.compacted = [gaps[gaps[:, 0] <= end] for gaps in self.observations.compacted]
        self.tracker.admit()
        self.extent.forget_before(first)
        complete_since = self._complete_since()
        limits = self._observed_limits()
        checkpoint = self._checkpoint()
        # Not part of the checkpoint: a later audit reads these bytes again.
        self.tracker.note_open_damage()
        if self.log.partition is not None:
            count = self.options.partition_count
            self.observations.place_keys(key_hashes(self.keys), self.log.partition, count)
        chains = existing_chains(self.chains)
        numbers = np.flatnonzero(self.chains.chains["exists"])
        last_lost_offset = self._last_lost_offset()
        suspect = is_suspect(chains.chains, last_lost_offset, start_is_shown=self._start_is_shown())
        topics = self.options.topics
        key = key_columns(self.keys, numbers, topics)
        encoded = dictionary_encoded(key)
        topic_ends = topics.end_of(key["topic_id"], key["partition"])

        def build_states(piece: Chains, piece_key: dict[str, pa.Array], part: slice) -> pa.Table:
            lists = (suspect[part], topic_ends[part])
            return state_table(piece, piece_key, self.log.partition, *lists, has_offsets=self.log.has_offsets)

        row = self._cutoff_row(chains, key, suspect, (first, end))
        ranges = self.archiving_ranges
        return FoldedLog(
            log=self.log,
            keys=self.keys,
            all_chains=self.chains,
            chains=chains,
            numbers=numbers,
            last_lost_offset=last_lost_offset,
            suspect=suspect,
            observations=self.observations,
            record_count=self.record_count,
            redundant_records=row.pop("counted_redundant"),
            first_offset=first,
            next_offset=end,
            folded_from=self.folded_from,
            has_valid_batches=self.has_valid_batches,
            state_pieces=table_in_pieces("share_partition_state", chains, encoded, build_states),
            in_flight_pieces=in_flight_in_pieces(chains, encoded),
            cutoff=pa.Table.from_pylist([row], schema=table_schema("cutoff")),
            limits=limits,
            newest_time=self.newest_time,
            judged_at=max(self.newest_time, self.options.judged_at or NO_OFFSET),
            checkpoint=checkpoint,
            previous_starts=self._previous_starts_by_key()[numbers],
            archiving=self.archiving,
            first_lost_offset=self.tracker.losses.first,
            archiving_ranges=ranges and ranges.table(self.keys, topics, self.log.partition or 0),
            complete_since=complete_since,
            outcomes=self._outcomes(numbers),
            record_breaches=self.record_breaches,
        )

    def _observed_limits(self) -> Limits:
        """The limits with at least as many deliveries as the log shows for each group; noted for later audits.

        No broker delivers a record more often than its limit allows. Source: Kafka InFlightState.tryUpdateState.
        """
        limits, deliveries = self.options.limits, self.observations.counts.deliveries
        counts = self.chains.batches["count"]
        over = np.flatnonzero(counts > limits.values("delivery_count").min())
        found = [(np.searchsorted(self.chains.ends, over, "right") - 1, counts[over].astype(np.int64))]
        if self.options.judge is not None:
            found.append(self.options.judge.shown_deliveries(self.record_breaches))
        for keys, counts in found:
            if not len(keys):
                continue
            rows = pa.table({"group": self.keys.columns()[0].take(pa.array(keys)), "count": counts})
            for row in rows.group_by("group", use_threads=False).aggregate([("count", "max")]).to_pylist():
                group, count = row["group"], row["count_max"]
                if group is not None and count > max(
                    limits.of_group("delivery_count", group), deliveries.get(group, 0)
                ):
                    deliveries[group] = count
        return limits.at_least(deliveries) if deliveries else limits

    def _keeps_state(self) -> bool:
        """Whether the input shows nothing of the log that the last audit had not read."""
        return self.mark is not None and self.observations.resume_status in KEPT_STATE

    def _start_is_recorded(self) -> bool:
        return self.mark.start_is_recorded if self.mark and self._keeps_state() else self.log.start_is_recorded

    def _committed_end(self) -> int | None:
        return self.mark.committed_end if self.mark and self._keeps_state() else self.log.committed_end

    def _start_is_shown(self) -> bool:
        """Whether no record of the broker's own log, which it would load, precedes the input."""
        return self.log.has_offsets and (self.log.log_start_offset == 0 or self._start_is_recorded())

    def _cutoff_row(
        self, chains: Chains, key: dict[str, pa.Array], suspect: np.ndarray, extent: tuple[int, int]
    ) -> dict[str, Any]:
        """The row of `cutoff`, and `counted_redundant`: redundant records, also where the format has no offsets."""
        first, end = extent
        limit = cutoff(chains)
        # The whole batch that contains the log start offset is folded, but its records before that are not counted.
        current = max(limit.offset or 0, first)
        bounds = (first, current, current if limit.next_offset is None else limit.next_offset)
        redundant, pinned = np.diff([self.extent.records_before(offset) for offset in bounds]).tolist()
        redundant_bytes, pinned_bytes = np.diff([self.extent.bytes_before(offset) for offset in bounds]).tolist()
        limiting = slice(0, 0) if limit.limited_by is None else slice(limit.limited_by, limit.limited_by + 1)
        holder = {name: next(iter(column[limiting].to_pylist()), None) for name, column in key.items()}
        written = to_timestamps(chains.chains["write_time"][limiting]).to_pylist()
        reasons = unsafe_reasons(self._evidence(chains, suspect))
        row = {
            "dialect": SHARE_GROUP_STATE,
            "topic": self.log.topic,
            "partition": self.log.partition,
            "cutoff_offset": limit.offset,
            "log_start_offset": first,
            "log_end_offset": end,
            "redundant_records": redundant,
            "live_share_partitions": len(chains.chains),
            "limited_by_group": holder["group_id"],
            "limited_by_topic_id": holder["topic_id"],
            "limited_by_partition": holder["partition"],
            "limited_since": next(iter(written), None),
            "safe": not reasons,
            "reason": "; ".join(reasons) or None,
            "redundant_bytes": redundant_bytes,
            "next_cutoff_offset": limit.next_offset,
            "pinned_records": pinned,
            "pinned_bytes": pinned_bytes,
        }
        has_sizes = self.log.has_sizes and (self.mark is None or self.mark.position >= 0)
        unknown = (*(() if self.log.has_offsets else _OFFSETS), *(() if has_sizes else _SIZES))
        return row | dict.fromkeys(unknown) | {"counted_redundant": redundant}

    def _evidence(self, chains: Chains, suspect: np.ndarray) -> CutoffEvidence:
        has_base = chains.chains["snapshot_offset"] != NO_OFFSET
        all_chains = self.chains.chains
        # An unreadable record of a share-partition without a state may be its only one.
        hidden = all_chains["suspect_offset"][(all_chains["suspect_offset"] != NO_OFFSET) & ~all_chains["exists"]]
        lost = [offset for offset in (self._last_lost_offset(), *hidden[:1].tolist()) if offset != NO_OFFSET]
        return CutoffEvidence(
            log=self.log,
            base="snapshot",
            start_is_shown=self._start_is_shown(),
            suspects=int((suspect & has_base).sum()),
            without_base=int((~has_base).sum()),
            lost_offset=min(lost, default=NO_OFFSET),
            break_offset=self._last_break(),
            foreign_offset=self.observations.counts.foreign[0],
            misplaced=self.observations.misplaced_count,
            uncommitted=count_uncommitted(all_chains, self._committed_end()),
        )


def is_suspect(chains: np.ndarray, last_lost_offset: int | np.ndarray, *, start_is_shown: bool) -> np.ndarray:
    """Whether records that each state depends on are missing or unreadable.

    Args:
        chains: CHAIN rows of live share-partitions.
        last_lost_offset: the latest offset from which records may be missing, -1 for none; one for all, or per row.
        start_is_shown: whether no record of the broker's own log precedes the input; if not, the snapshot of a state
            that begins with an update may be there.
    Returns:
        bool, one per row.
    """
    suspect = (chains["suspect_offset"] != NO_OFFSET) | (last_lost_offset > chains["snapshot_offset"])
    return suspect if start_is_shown else suspect | (chains["snapshot_offset"] == NO_OFFSET) & ~chains["was_deleted"]
