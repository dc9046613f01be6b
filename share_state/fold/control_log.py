"""Reads, decodes and folds the control records of the KIP-932 draft amid the user data of one topic-partition."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from share_state.errors import InputError
from share_state.fold.chains import NOWHERE
from share_state.fold.control_chains import ControlChains, fold_control, starts_in_log, superseded
from share_state.fold.cutoff import EarliestShareOffset, earliest_share_offset, subscriptions_among
from share_state.fold.log_stats import Folded, LogObservations, Losses, single_piece
from share_state.fold.options import MODES, STRICT, ControlOptions
from share_state.fold.states import CONTROL_RECORDS, control_in_flight, control_key_columns, control_state_table
from share_state.kafka.control_records import (
    CONTROL_RECORD,
    ControlKind,
    ControlRecords,
    GroupTable,
    concat_control_records,
    decode_control_records,
)
from share_state.kafka.record_batches import CHUNK_SIZE, CONTROL, BatchStatus, Chunk, locate_records
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.discovery import LogPartition
from share_state.sources.segments import read_chunks, read_into
from share_state.sources.share_snapshots import ShareSnapshotEntry
from share_state.sources.topics import Topics

_PENDING = 1 << 16

LINK = np.dtype(
    [
        ("offset", "i8"),
        ("back_offset", "i8"),  # -1 in a checkpoint
        ("group", "i4"),
        ("epoch", "i4"),
        ("fault", "i2"),
        ("kind", "i1"),
    ]
)
"""One row per checkpoint or delta whose group is known, in log order; input of the chain rules."""

CHECKPOINTS = pa.schema(
    [
        ("group_id", pa.string()),
        ("counts", pa.bool_()),  # has a subscription, so that its checkpoint limits the cutoff
        ("checkpoint_offset", pa.int64()),  # SCO; null without a checkpoint
        ("checkpoint_epoch", pa.int32()),
        ("last_control_offset", pa.int64()),
        ("record_count", pa.int64()),  # its control records in the log
        ("redundant_retained", pa.int64()),  # those at or after the cutoff that its own checkpoint makes redundant
    ]
)
"""One row per share group of the log."""

_INDEX_COLUMNS = ("group_id", "checkpoint_offset", "checkpoint_epoch", "last_control_offset")


@dataclass(slots=True, kw_only=True)
class FoldedControlLog(Folded):
    """A folded topic-partition; `numbers` are the groups with a checkpoint, `suspect` has one entry per group.

    Attributes:
        options: how it was folded.
        groups: ids of all groups of the log, row n for number n.
        chains: their states, row n for number n.
        records: the control records since the latest checkpoints; `chains.notes` has a row for each.
        links: LINK rows of every checkpoint and delta.
        faulty: CONTROL_RECORD rows with a fault.
        skipped: type of other control records (transaction markers) -> their number.
        earliest: the cutoff, and the groups that limit it.
        checkpoints: table CHECKPOINTS.
    """

    dialect: ClassVar[str] = CONTROL_RECORDS

    options: ControlOptions
    groups: pa.Array
    chains: ControlChains
    records: ControlRecords
    links: np.ndarray
    faulty: np.ndarray
    skipped: Mapping[int, int]
    earliest: EarliestShareOffset
    checkpoints: pa.Table

    def key_columns(self, numbers: np.ndarray, topics: Topics) -> dict[str, pa.Array]:
        """Key columns of groups, by their numbers; the topic is that of the log."""
        del topics
        return control_key_columns(self.groups, numbers, self.log)


def fold_control_log(
    log: LogPartition,
    window: Window | None = None,
    *,
    mode: str = STRICT,
    subscriptions: Mapping[str, Collection[str]] | None = None,
    ignore_uncheckpointed: bool = False,
    index: Sequence[ShareSnapshotEntry] | None = None,
    chunk: int = CHUNK_SIZE,
) -> FoldedControlLog:
    """Fold the control records of one topic-partition into the state that a new leader would load.

    Args:
        log: a log partition from `find_topic_logs`.
        window: which records count; all of them by default.
        mode, subscriptions, ignore_uncheckpointed, index: see ControlOptions.
        chunk: bytes of segments in memory at a time.
    Raises:
        InputError: if a segment cannot be read, or the topic is an internal one.
    Source: KIP-932 draft, recovery and log cleaning.
    """
    options = ControlOptions(mode, subscriptions, ignore_uncheckpointed, index)
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is unknown; use one of {', '.join(MODES)}")
    if log.topic.startswith("__"):
        raise InputError(
            f"{log.topic}: control records of Kafka's internal topics are not share-group state; leave it out"
        )
    fold = read_into(lambda: _ControlLogFold(log, window or Window()), log, chunk=chunk, only_control=True)
    return fold.finish(options)


def decode_control_log(
    log: LogPartition, window: Window, losses: Losses | None = None
) -> Iterator[tuple[ControlRecords, GroupTable]]:
    """The decoded control records of a topic-partition, chunk by chunk, with its groups so far.

    Args:
        losses: collects where control records are missing or differ between copies, before their chunk is returned.
    """
    fold = _ControlLogFold(log, window)
    fold.losses = losses or Losses()
    # A record that is returned cannot be taken back if segments overlap: merge from the start.
    for part in read_chunks(log, merge=True, only_control=True):
        yield fold.decode(part), fold.groups
    fold.note_open_damage()


class _ControlLogFold:
    """The fold of a topic-partition, chunk by chunk."""

    def __init__(self, log: LogPartition, window: Window) -> None:
        self.log, self.window = log, window
        self.groups, self.observations = GroupTable(), LogObservations()
        self.next_offset, self.losses = NOWHERE, Losses()
        self.damage_is_open, self.torn_is_open = False, False
        self.has_valid_batches = False
        self.pending: list[ControlRecords] = []
        self.links, self.faulty = [np.zeros(0, LINK)], [np.zeros(0, CONTROL_RECORD)]
        self.skipped: dict[int, int] = {}
        self.pending_rows, self.prune_at = 0, _PENDING

    def prepare(self, part: Chunk) -> Chunk:
        return part

    def take(self, part: Chunk) -> None:
        decoded = self.decode(part)
        self._note_records(decoded.rows)
        if not len(decoded.rows):
            return
        self.pending.append(decoded)
        self.pending_rows += len(decoded.rows)
        if self.pending_rows > self.prune_at:
            self._prune()
            self.prune_at = 2 * self.pending_rows + _PENDING

    def decode(self, part: Chunk) -> ControlRecords:
        """Decode the control records of a chunk that count."""
        self.observations.repeated_batches += part.repeated
        self.has_valid_batches |= bool((part.batches["status"] == BatchStatus.VALID).any())
        located = locate_records(part.data, part.batches, control=True)
        batches = part.batches
        whole = batches["status"] == BatchStatus.VALID
        inside = ~whole | (batches["last_offset"] >= self.log.log_start_offset)
        if self.window.until_offset is not None:
            inside &= batches["base_offset"] < self.window.until_offset
        if whole.all() and not (self.damage_is_open or self.torn_is_open):
            self._note_end(batches["last_offset"][inside])
        else:
            self._note_damage(part, inside, whole)
        counted = inside[located["batch"]] & self.window.counts(located)
        return decode_control_records(part.data, located[counted], self.groups)

    def _note_end(self, lasts: np.ndarray) -> None:
        """Note the end offset so far. Missing offsets alone mean nothing: user topics may be compacted."""
        if len(lasts):
            until = self.window.until_offset
            self.next_offset = int(lasts[-1]) + 1 if until is None else min(int(lasts[-1]) + 1, until)

    def _note_damage(self, part: Chunk, inside: np.ndarray, whole: np.ndarray) -> None:
        batches = part.batches
        bad, good = inside & ~whole, np.flatnonzero(inside & whole)
        conflict = bad & (batches["status"] == BatchStatus.CONFLICT)
        damaged = np.cumsum(bad & ~conflict & (batches["status"] != BatchStatus.UNREPLICATED))
        if bad.any():
            self.observations.reasons += [part.errors.get(int(row), "") for row in np.flatnonzero(bad)]
            self.observations.batches = np.concatenate((self.observations.batches, batches[bad]))
            conflicting = batches["base_offset"][conflict & (batches["attributes"] & CONTROL != 0)].tolist()
            self.losses.conflicting.update(conflicting)
            self.losses.offsets += [offset + 1 for offset in conflicting]
        if len(good):
            base, last = batches["base_offset"][good], batches["last_offset"][good]
            first_expected = self.next_offset if self.next_offset >= 0 else self.log.log_start_offset
            expected = np.concatenate(([first_expected], last[:-1] + 1))
            damage_before = np.diff(damaged[good], prepend=0) > 0
            damage_before[0] |= self.damage_is_open or self.torn_is_open
            # If the next batch follows without a gap, another copy of the log has the damaged records.
            self.losses.offsets += expected[damage_before & (base > expected)].tolist()
            self._note_end(last)
        if len(batches):
            # A crash leaves a truncated batch at the end of a file; no record is missing then.
            tail = slice(good[-1] + 1 if len(good) else 0, None)
            torn = (bad & (batches["status"] == BatchStatus.TRUNCATED))[tail]
            self.damage_is_open = bool(((bad & ~conflict)[tail] & ~torn).any()) or (
                self.damage_is_open and not len(good)
            )
            self.torn_is_open = bool(torn.any()) or (self.torn_is_open and not len(good))

    def note_open_damage(self) -> None:
        """Note a loss at the end of the log if no valid batch follows a damaged one."""
        if self.damage_is_open:
            self.losses.offsets.append(max(self.next_offset, 0))

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
        """Drop superseded records, so that a long log takes no more memory than its live chains."""
        records = concat_control_records(self.pending)
        records = records.select(~superseded(records, len(self.groups)))
        self.pending, self.pending_rows = [records], len(records.rows)
        return records

    def finish(self, options: ControlOptions) -> FoldedControlLog:
        self.note_open_damage()
        last_lost_offset = max(self.losses.offsets, default=NOWHERE)
        records, groups = self._prune(), self.groups.names()
        chains = fold_control(records, len(groups), strict=options.mode == STRICT)
        rows, links = chains.chains, np.concatenate(self.links)
        suspect = (rows["stopped_offset"] != NOWHERE) | (rows["doubt_offset"] != NOWHERE)
        # A delta names its predecessor, so damage before the newest record of a group shows as a broken link.
        suspect |= last_lost_offset > rows["newest_offset"]
        subscriptions = options.subscriptions
        subscribed = None if subscriptions is None else subscriptions.get(self.log.topic, ())
        earliest = earliest_share_offset(
            groups, rows["snapshot_offset"], subscribed, ignore_uncheckpointed=options.ignore_uncheckpointed
        )
        counts, _ = subscriptions_among(groups, subscribed)
        numbers = np.flatnonzero(rows["exists"])
        log_start, is_recorded = self.log.log_start_offset, self.log.start_is_recorded
        first = max(log_start, self.window.from_offset or 0)
        next_offset = max(self.next_offset, first)
        redundant = int(((links["offset"] >= first) & (links["offset"] < (earliest.offset or 0))).sum())
        key = control_key_columns(groups, numbers, self.log)
        starts = starts_in_log(rows, chains.ends, chains.batches, log_start, is_recorded)
        untrusted = int(suspect[counts & rows["exists"]].sum())
        reasons = []
        if earliest.offset is None and earliest.blocked_by:
            first_of_them, *others = earliest.blocked_by
            more = f" and {len(others)} more" if others else ""
            reasons.append(f"no checkpoint of group {first_of_them}{more}, so nothing may be cleaned")
        if untrusted:
            reasons.append(f"{untrusted} share-partitions cannot be trusted since their latest checkpoint")
        if last_lost_offset != NOWHERE:
            reasons.append(
                "batches are damaged, and with them maybe control records of groups that no other record names"
            )
        held_by = earliest.held_by or min(earliest.blocked_by, default=None)
        row = {
            "dialect": CONTROL_RECORDS,
            "topic": self.log.topic,
            "partition": self.log.partition,
            "cutoff_offset": earliest.offset,
            "log_start_offset": first,
            "log_end_offset": next_offset,
            "redundant_records": redundant,
            "live_share_partitions": len(numbers),
            "limited_by_group": held_by,
            "limited_by_partition": None if held_by is None else self.log.partition,
            "safe": not reasons,
            "reason": "; ".join(reasons) or None,
        }
        checkpoints = _checkpoints(groups, counts, rows, links, earliest.offset)
        known = checkpoints.filter(checkpoints["checkpoint_offset"].is_valid())
        return FoldedControlLog(
            log=self.log,
            options=options,
            groups=groups,
            chains=chains,
            numbers=numbers,
            suspect=suspect,
            records=records,
            links=links,
            faulty=np.concatenate(self.faulty),
            skipped=self.skipped,
            observations=self.observations,
            earliest=earliest,
            checkpoints=checkpoints,
            index_entries=[ShareSnapshotEntry(*(row[name] for name in _INDEX_COLUMNS)) for row in known.to_pylist()],
            record_count=len(links),
            redundant_records=redundant,
            first_offset=first,
            next_offset=next_offset,
            last_lost_offset=last_lost_offset,
            has_valid_batches=self.has_valid_batches,
            state_pieces=single_piece(
                "share_partition_state", control_state_table(chains, key, starts, suspect, next_offset)
            ),
            in_flight_pieces=control_in_flight(chains, key),
            cutoff=pa.Table.from_pylist([row], schema=table_schema("cutoff")),
        )


def _checkpoints(
    groups: pa.Array, counts: np.ndarray, rows: np.ndarray, links: np.ndarray, earliest: int | None
) -> pa.Table:
    own = rows["snapshot_offset"][links["group"]]
    retained = (links["offset"] < own) & (links["offset"] >= (np.iinfo(np.int64).max if earliest is None else earliest))
    return pa.table(
        {
            "group_id": groups,
            "counts": counts,
            "checkpoint_offset": pa.array(rows["snapshot_offset"].copy(), mask=~rows["exists"]),
            "checkpoint_epoch": pa.array(rows["epoch"].copy(), mask=~rows["exists"]),
            "last_control_offset": rows["newest_offset"].copy(),
            "record_count": np.bincount(links["group"], minlength=len(groups)),
            "redundant_retained": np.bincount(links["group"][retained], minlength=len(groups)),
        },
        schema=CHECKPOINTS,
    )
