"""Reads, decodes and folds the control records of the KIP-932 draft in the log of one topic-partition."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import InputError
from share_state.fold.cutoff import (
    CutoffEvidence,
    EarliestShareOffset,
    count_uncommitted,
    earliest_share_offset,
)
from share_state.fold.draft.checkpoints import LINK, checkpoints_table, index_entries
from share_state.fold.draft.control_chains import (
    CONTROL_CHAIN,
    INITIAL_CONTROL_CHAIN,
    MISMATCH,
    ControlChains,
    find_mismatches,
    fold_control,
    is_superseded,
    is_suspect,
    starts_in_log,
)
from share_state.fold.draft.control_cutoff import control_cutoff_row
from share_state.fold.draft.sought_chains import complete_times
from share_state.fold.fold_options import MODES, STRICT, ControlOptions, FoldOptions
from share_state.fold.leader_epochs import LeaderEpochs
from share_state.fold.limits import Limits
from share_state.fold.log_stats import NO_PREVIOUS_START, Folded, LogObservations, Pieces, dictionary_encoded
from share_state.fold.losses import Losses, LossTracker
from share_state.fold.state_chains import NO_OFFSET, Chains
from share_state.fold.states import (
    CONTROL_RECORDS,
    control_key_columns,
    control_state_table,
    existing_chains,
    in_flight_in_pieces,
    table_in_pieces,
)
from share_state.kafka.control_records import (
    CONTROL_RECORD,
    UNREADABLE_CONTROL_FAULTS,
    ControlFault,
    ControlKind,
    ControlRecords,
    GroupTable,
    concat_control_records,
    count_unflagged,
    decode_control_records,
)
from share_state.kafka.delivery_states import are_terminal
from share_state.kafka.record_batches import CHUNK_SIZE, CONTROL, BatchStatus, Chunk, locate_records
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.log_partition import LogPartition
from share_state.sources.segments import read_chunks, read_into
from share_state.sources.sought import read_from
from share_state.sources.topics import Topics

_PENDING = 1 << 16


@dataclass(slots=True, kw_only=True)
class FoldedControlLog(Folded):
    """A folded topic-partition.

    `numbers` are the groups with a checkpoint, `suspect` has one entry per group.

    Attributes:
        options: how it was folded.
        given_limits: the limits that the caller gives; `limits` has a greater delivery limit for groups whose
            records show more deliveries.
        groups: ids of all groups of the log, row n for number n.
        all_chains: their states, row n for number n.
        records: the control records since the latest checkpoints; `all_chains.notes` has a row for each.
        links: LINK rows of every checkpoint and delta.
        faulty: CONTROL_RECORD rows with a fault.
        mismatches: MISMATCH rows of checkpoints.
        skipped: type of other control records (such as transaction markers) -> number of records.
        data_end: offset after the last record of user data, -1 for none.
        starts: int64, one per row of `chains`: where a leader that loads the state starts.
        earliest: the cutoff, and the groups that limit it.
        checkpoints: table CHECKPOINTS.
        read_from: the offset from which on the log was read, by its share snapshot file; None for its start.
    """

    dialect: ClassVar[str] = CONTROL_RECORDS

    options: ControlOptions
    given_limits: Limits
    groups: pa.Array
    all_chains: ControlChains
    records: ControlRecords
    links: np.ndarray
    faulty: np.ndarray
    mismatches: np.ndarray
    skipped: Mapping[int, int]
    data_end: int
    starts: np.ndarray
    earliest: EarliestShareOffset
    checkpoints: pa.Table
    read_from: int | None = None

    def key_columns(self, numbers: np.ndarray, topics: Topics) -> dict[str, pa.Array]:
        """Key columns of groups by number; the topic is the log's."""
        del topics
        return control_key_columns(self.groups, numbers, self.log)

    def leader_starts(self) -> np.ndarray:
        """int64, one per chain: at or after the log start, past terminal offsets there."""
        return self.starts

    def lags(self, states: pa.Table, finished: pa.Array) -> pa.Array:
        """Number of unfinished offsets up to the last record of user data."""
        del finished
        return states["unfinished_offsets"].combine_chunks()


def fold_control_log(
    log: LogPartition,
    window: Window | None = None,
    options: FoldOptions | None = None,
    *,
    chunk: int = CHUNK_SIZE,
) -> FoldedControlLog:
    """Fold the control records of one topic-partition into the state that a new leader would load.

    Args:
        log: a log partition from `find_topic_logs`.
        window: selects records; all by default.
        options: how to fold it; only `control` and `limits` matter.
        chunk: bytes of segments in memory at a time.
    Raises:
        InputError: if a segment cannot be read, or the topic is internal.
    Source: KIP-932 draft, recovery and log cleaning.
    """
    options = options or FoldOptions()
    if options.control.mode not in MODES:
        raise InputError(f"mode {options.control.mode!r} is unknown; use one of {', '.join(MODES)}")
    if log.topic.startswith("__"):
        raise InputError(
            f"{log.topic}: control records of Kafka's internal topics are not share-group state; leave it out"
        )
    window = window or Window()
    if (offset := options.control.read_from) is not None and window == Window():
        sought = read_from(log, offset)
        if sought.size < log.size:
            fold = read_into(lambda: ControlLogFold(sought, window), sought, chunk=chunk, only_control=True)
            if _stands_for_whole(folded := fold.finish(options.control, options.limits)):
                return replace(folded, read_from=offset)
    fold = read_into(lambda: ControlLogFold(log, window), log, chunk=chunk, only_control=True)
    return fold.finish(options.control, options.limits)


def _stands_for_whole(folded: FoldedControlLog) -> bool:
    """Whether a fold from the earliest checkpoint on equals that of the whole log; completes its times."""
    options, observations = folded.options, folded.observations
    if options.index is None or options.last_audit is None:
        return False
    is_damaged = len(observations.batches) or observations.gaps or folded.last_lost_offset != NO_OFFSET
    is_contradicted = any(entry.is_contradicted for entry in folded.index_entries)
    # Without user data in the part that was read, their end is not known.
    if is_damaged or is_contradicted or len(folded.faulty) or folded.data_end <= 0:
        return False
    chains = folded.all_chains.chains
    groups, known = folded.groups.to_pylist(), (options.index, options.last_audit, options.audited_to)
    if not complete_times(groups, chains, folded.links, *known):
        return False
    for name in ("start_advanced_at", "last_consumed_at"):
        folded.chains.chains[name] = chains[name][folded.numbers]
    return True


def decode_control_log(
    log: LogPartition, window: Window, losses: Losses | None = None
) -> Iterator[tuple[ControlRecords, GroupTable]]:
    """The decoded control records of a topic-partition, chunk by chunk, with its groups so far.

    Args:
        losses: collects where control records are missing or differ between copies, before their chunk is
            yielded.
    """
    fold = ControlLogFold(log, window)
    if losses is not None:
        fold.tracker.losses = losses
    # Yielded records cannot be withdrawn if segments turn out to overlap, so merge from the start.
    for part in read_chunks(log, merge=True, only_control=True):
        yield fold.decode(part), fold.groups
    fold.tracker.note_open_damage()


class ControlLogFold:
    """The fold of a topic-partition, chunk by chunk."""

    def __init__(self, log: LogPartition, window: Window) -> None:
        self.log, self.window = log, window
        self.groups, self.observations = GroupTable(), LogObservations()
        # User topics may be compacted.
        self.tracker = LossTracker(
            log.log_start_offset, window, is_compacted=True, is_sparse=not log.holds_all
        )
        self.leader_epochs = LeaderEpochs(log)
        self.has_valid_batches = False
        self.pending: list[ControlRecords] = []
        self.links, self.faulty = [np.zeros(0, LINK)], [np.zeros(0, CONTROL_RECORD)]
        self.mismatches, self.times = [np.zeros(0, MISMATCH)], np.zeros(0, CONTROL_CHAIN)
        self.skipped: dict[int, int] = {}
        self.deliveries = np.zeros(0, np.int64)
        self.unflagged = 0
        self.is_cut = False
        self.newest_time = NO_OFFSET
        self.data_end = NO_OFFSET
        self.pending_rows, self.prune_at = 0, _PENDING

    def prepare(self, part: Chunk) -> Chunk:
        """The chunk as it is."""
        self.is_cut = self.is_cut or self.window.ends_before(part.batches)
        return part

    def take(self, part: Chunk) -> None:
        """Fold the records of a chunk."""
        decoded = self.decode(part)
        self.unflagged += count_unflagged(part.data, part.batches)
        self._take(decoded)

    def take_decoded(self, decoded: ControlRecords) -> None:
        """Fold records that came without batches; at least one, in log order."""
        self.has_valid_batches = True
        self.tracker.follow(int(decoded.rows["offset"][-1]) + 1)
        self.newest_time = max(self.newest_time, int(decoded.rows["timestamp"].max()))
        self._take(decoded)

    def _take(self, decoded: ControlRecords) -> None:
        self._note_records(decoded.rows)
        if not len(decoded.rows):
            return
        self.pending.append(decoded)
        self.pending_rows += len(decoded.rows)
        if self.pending_rows > self.prune_at:
            self._prune()
            self.prune_at = 2 * self.pending_rows + _PENDING

    def decode(self, part: Chunk) -> ControlRecords:
        """Decode the control records of a chunk inside the window."""
        self.observations.repeated_batches += part.repeated
        self.has_valid_batches |= bool((part.batches["status"] == BatchStatus.VALID).any())
        records = locate_records(part.data, part.batches, control=True)
        batches = part.batches
        is_valid = batches["status"] == BatchStatus.VALID
        in_window = ~is_valid | (batches["last_offset"] >= self.log.log_start_offset)
        if self.window.until_offset is not None:
            in_window &= batches["base_offset"] < self.window.until_offset
        counted = in_window & is_valid
        if (until := self.window.until_time_ms) is not None:
            counted &= batches["base_timestamp"] <= until
        last_offset = int(batches["last_offset"][counted].max(initial=NO_OFFSET - 1))
        self.tracker.window_end = max(self.tracker.window_end, last_offset + 1)
        self.tracker.take(batches[in_window])
        self.observations.counts.note_foreign(self.leader_epochs.take(batches[in_window]))
        self._note_bad_batches(part, in_window & ~is_valid)
        times = batches["max_timestamp"][counted]
        times = times if until is None else np.minimum(times, until)
        self.newest_time = max(self.newest_time, int(times.max(initial=NO_OFFSET)))
        data = counted & (batches["attributes"] & CONTROL == 0)
        self.data_end = max(self.data_end, int(batches["last_offset"][data].max(initial=NO_OFFSET - 1)) + 1)
        selected = in_window[records["batch"]] & self.window.mask(records)
        decoded = decode_control_records(part.data, records[selected], self.groups)
        # A record without a readable group may be the newest record of any group.
        rows = decoded.rows
        is_lost = (rows["group"] < 0) & (
            rows["fault"] & (UNREADABLE_CONTROL_FAULTS | ControlFault.KEY_MALFORMED) != 0
        )
        self.tracker.note_unreadable(rows["offset"], is_lost)
        self.tracker.admit()
        return decoded

    def _note_bad_batches(self, part: Chunk, is_bad: np.ndarray) -> None:
        """Keep the invalid batches of a chunk that are inside the window."""
        rows = np.flatnonzero(is_bad)
        if len(rows):
            self.observations.reasons += [part.errors.get(int(row), "") for row in rows]
            self.observations.batches = np.concatenate((self.observations.batches, part.batches[rows]))

    def _note_records(self, rows: np.ndarray) -> None:
        skipped = rows[(rows["kind"] == ControlKind.SKIPPED) & (rows["fault"] == 0)]
        for kind, count in zip(*np.unique(skipped["type"], return_counts=True), strict=True):
            self.skipped[int(kind)] = self.skipped.get(int(kind), 0) + int(count)
        if (rows["fault"] != 0).any():
            self.faulty.append(rows[rows["fault"] != 0])
        of_group = rows[rows["group"] >= 0]
        links = np.empty(len(of_group), LINK)
        for name in LINK.names or ():
            links[name] = of_group[name]
        self.links.append(links)

    def _prune(self) -> ControlRecords:
        """Drop superseded records, so that memory depends on the live chains and not on the length of the log."""
        records = concat_control_records(self.pending)
        new = np.full(len(self.groups) - len(self.times), INITIAL_CONTROL_CHAIN, CONTROL_CHAIN)
        self.times = np.concatenate((self.times, new))
        self._note_deliveries(records)
        self.mismatches.append(find_mismatches(records, self.times))
        records = records.take(np.flatnonzero(~is_superseded(records, len(self.groups))))
        self.pending, self.pending_rows = [records], len(records.rows)
        return records

    def _note_deliveries(self, records: ControlRecords) -> None:
        """Note the greatest delivery count of each group: no broker delivers more often than its limit allows.

        Source: Kafka InFlightState.tryUpdateState.
        """
        new = np.zeros(len(self.groups) - len(self.deliveries), np.int64)
        self.deliveries = np.concatenate((self.deliveries, new))
        owner = np.repeat(records.rows["group"], records.rows["tuple_count"])
        of_group = owner >= 0
        np.maximum.at(self.deliveries, owner[of_group], records.tuples["count"][of_group])

    def _shown_deliveries(self, groups: pa.Array) -> dict[str, int]:
        """The greatest delivery count of each group that has a name."""
        counted = np.flatnonzero(self.deliveries)
        names = groups.take(pa.array(counted)).to_pylist()
        counts = self.deliveries[counted].tolist()
        return {name: count for name, count in zip(names, counts, strict=True) if name is not None}

    def finish(self, options: ControlOptions, limits: Limits) -> FoldedControlLog:
        """The folded log; nothing can be folded any more."""
        self.tracker.note_open_damage()
        last_lost_offset = self.tracker.losses.last
        records, groups = self._prune(), self.groups.names()
        links = np.concatenate(self.links)
        folded = fold_control(records, len(groups), strict=options.mode == STRICT, times=self.times)
        rows = folded.chains
        suspect = is_suspect(rows, last_lost_offset)
        earliest = self._earliest(options, groups, rows)
        numbers = np.flatnonzero(rows["exists"])
        first, next_offset = self.tracker.first_offset, self.tracker.end
        self.observations.gaps = self._gaps_before(next_offset)
        starts = starts_in_log(rows, folded.ends, folded.batches, self.log.log_start_offset)[numbers]
        checkpoints = checkpoints_table(groups, earliest.subscribes, rows, links, earliest.offset)
        with_checkpoint = checkpoints.filter(checkpoints["checkpoint_offset"].is_valid())
        chains = existing_chains(Chains(rows, folded.ends, folded.batches))
        key = control_key_columns(groups, numbers, self.log)
        evidence = self._evidence(earliest, int(suspect[earliest.subscribes & rows["exists"]].sum()), rows)
        row = control_cutoff_row(evidence, earliest, groups, rows, links, first) | {
            "log_start_offset": first,
            "log_end_offset": next_offset,
            "live_share_partitions": len(numbers),
            "skipped_records": sum(self.skipped.values()),
            "unflagged_records": self.unflagged,
        }
        retained = with_checkpoint["redundant_retained"].combine_chunks()
        return FoldedControlLog(
            log=self.log,
            options=options,
            limits=limits.at_least(self._shown_deliveries(groups)),
            given_limits=limits,
            groups=groups,
            all_chains=folded,
            chains=chains,
            starts=starts,
            previous_starts=_previous_starts(options.last_audit, with_checkpoint["group_id"]),
            newest_time=self.newest_time,
            judged_at=self.newest_time,
            numbers=numbers,
            suspect=suspect,
            records=records,
            links=links,
            faulty=np.concatenate(self.faulty),
            mismatches=np.concatenate(self.mismatches),
            skipped=self.skipped,
            data_end=self.data_end,
            observations=self.observations,
            earliest=earliest,
            checkpoints=checkpoints,
            index_entries=index_entries(with_checkpoint, options.index or (), groups, rows, links),
            record_count=len(links),
            redundant_records=row["redundant_records"],
            first_offset=first,
            next_offset=next_offset,
            last_lost_offset=last_lost_offset,
            has_valid_batches=self.has_valid_batches,
            state_pieces=_states(chains, key, starts, suspect[numbers], retained, self._log_ends),
            in_flight_pieces=in_flight_in_pieces(chains, cache(lambda: dictionary_encoded(key))),
            cutoff=pa.Table.from_pylist([row], schema=table_schema("cutoff")),
            is_cut=self.is_cut,
        )

    def _gaps_before(self, end: int) -> list[tuple[int, int, bool]]:
        """Compaction leaves gaps, but a segment that was not copied may hold the only checkpoint of a group."""
        return [(*gap, False) for gap in self.tracker.segment_gaps if gap[0] <= end]

    @property
    def _log_ends(self) -> tuple[int, int] | None:
        """The offsets after the last record of the log and of its user data; None if records are elsewhere."""
        return (self.tracker.end, self.data_end) if self.log.holds_all else None

    def _earliest(self, options: ControlOptions, groups: pa.Array, rows: np.ndarray) -> EarliestShareOffset:
        """The cutoff; a group without a subscription has no consumers, so it gets no STALL or STOP."""
        subscriptions = options.subscriptions
        earliest = earliest_share_offset(
            groups,
            rows,
            None if subscriptions is None else subscriptions.get(self.log.topic, ()),
            ignore_uncheckpointed=options.ignore_uncheckpointed,
        )
        for name in ("last_consumed_at", "first_delivery_at"):
            rows[name][~earliest.subscribes] = 0
        return earliest

    def _evidence(self, earliest: EarliestShareOffset, suspects: int, chains: np.ndarray) -> CutoffEvidence:
        missing = [start for start, *_ in self.observations.gaps]
        return CutoffEvidence(
            log=self.log,
            base="checkpoint",
            start_is_shown=self.log.shows_its_start,
            suspects=suspects,
            without_base=0,
            lost_offset=min([*missing, *self.tracker.losses.offsets], default=NO_OFFSET),
            foreign_offset=self.observations.counts.foreign[0],
            uncommitted=count_uncommitted(chains, self.log.committed_end),
            blocked_by=earliest.blocked_by if earliest.offset is None else (),
        )


def _previous_starts(last_audit: pa.Table | None, groups: pa.ChunkedArray) -> np.ndarray:
    """`Folded.previous_starts` of the groups with a checkpoint."""
    if last_audit is None:
        return np.full(len(groups), NO_PREVIOUS_START)
    rows = pc.call_function("index_in", [groups], pc.SetLookupOptions(last_audit["group_id"]))
    return last_audit["start_offset"].take(rows).fill_null(NO_PREVIOUS_START).to_numpy()


def _states(
    chains: Chains,
    key: dict[str, pa.Array],
    starts: np.ndarray,
    suspect: np.ndarray,
    retained: pa.Array,
    log_ends: tuple[int, int] | None,
) -> Pieces:
    """The table `share_partition_state`.

    Args:
        log_ends: the offsets after the last record of the log and of its user data; None if they are unknown.
    """

    def build_states(piece: Chains, piece_key: dict[str, pa.Array], part: slice) -> pa.Table:
        if log_ends is None:
            topic_ends = pa.nulls(len(piece.chains), pa.int64())
            return control_state_table(piece, piece_key, starts[part], suspect[part], topic_ends)
        end_offset, data_end = log_ends
        ends = pa.array(np.full(len(piece.chains), end_offset))
        unfinished = _unfinished(piece, starts[part], data_end)
        return control_state_table(
            piece, piece_key, starts[part], suspect[part], ends, retained[part], unfinished
        )

    return table_in_pieces("share_partition_state", chains, lambda: key, build_states)


def _unfinished(chains: Chains, starts: np.ndarray, data_end: int) -> pa.Array:
    """The column unfinished_offsets: control records after the last record of user data do not count."""
    rows, ranges = chains.chains, chains.batches
    of_ranges = np.repeat(starts, np.diff(chains.ends))
    left = np.clip(ranges["last"] - np.maximum(ranges["first"], of_ranges) + 1, 0, None)
    sums = np.concatenate(([0], np.cumsum(np.where(are_terminal(ranges["state"]), left, 0))))
    finished = np.diff(sums[chains.ends])
    behind = np.maximum(rows["end_offset"], data_end) - starts - finished
    return pa.array(np.maximum(behind, 0), mask=rows["start_offset"] < 0)
