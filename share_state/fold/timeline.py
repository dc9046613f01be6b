"""The state after every record of chosen share-partitions: the incremental core of the audit, written down as it goes.

A share-partition's ranges are kept canonical in place (`held_ranges`) and copied out after each of its records, so a
record costs its own ranges and those it leaves, never the records before it.

The state after every control record of chosen share groups: the draft's fold, one record further at a time.

The ranges of a record are laid over those held by its group so far, so it costs its own ranges and those it leaves,
never the records before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.chains import CHAIN, NOWHERE, Chains, by_key
from share_state.fold.control_chains import (
    CONTROL_CHAIN,
    FOLD_NOTE,
    FRESH_GROUP,
    ControlChains,
    append,
    apply,
    boundaries,
    emit,
    follow,
    starts_in_log,
)
from share_state.fold.control_log import STRICT, decode_control_log
from share_state.fold.interval_map import finished_among, fits, fitting
from share_state.fold.interval_merge import is_terminal
from share_state.fold.log import decode_log
from share_state.fold.options import Chosen
from share_state.fold.record_context import FACT, advance
from share_state.fold.states import control_key_columns, control_state_table, declared, key_columns, state_table, times
from share_state.jit.compile import allocating_kernel, kernel
from share_state.kafka.buffers import copied, move_rows
from share_state.kafka.control_records import CONTROL_RECORD, UNREADABLE_CONTROL_RECORD, ControlKind, ControlRecords
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import STATE_BATCH, UNREADABLE, StateRecords
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import AsOfPoint, as_of_window
from share_state.sources.discovery import LogPartition, Window
from share_state.sources.topics import Topics

TIMELINE = "timeline"

_KINDS = pa.array(["snapshot", "update", "tombstone"])
_POINTS, _RANGES = 1 << 16, 1 << 20


@dataclass(frozen=True, slots=True)
class Points:
    """States of share-partitions, each after one record.

    Attributes:
        rows: STATE_RECORD, the record of each; those of one share-partition follow each other, in log order.
        chains: CHAIN after it; `exists` is false after a tombstone.
        ends: int64; the ranges of point n are rows ends[n] to ends[n + 1] of `batches`.
        batches: STATE_BATCH rows, canonical within each point.
    """

    rows: np.ndarray
    chains: np.ndarray
    ends: np.ndarray
    batches: np.ndarray


class Timeline:
    """Carries chosen share-partitions of one log partition from chunk to chunk."""

    def __init__(self, *, points: int = _POINTS, ranges: int = _RANGES) -> None:
        """Begin a log partition.

        Args:
            points: at most so many at a time.
            ranges: room for the ranges of all points at a time; grows only where one point alone needs more.
        """
        self.chains = Chains()
        self._chains, self._at = np.empty(points, CHAIN), np.empty(points, np.int64)
        self._ends, self._batches = np.zeros(points + 1, np.int64), np.empty(ranges, STATE_BATCH)

    def take(self, records: StateRecords, chosen: np.ndarray) -> Iterator[Points]:
        """The states after the records of a chunk, to be read to the end before the next chunk.

        Args:
            records: decoded records in log order, later than all before.
            chosen: bool, entry n for share-partition number n; the others are left out.
        """
        # One more entry: number -1 is a record of no share-partition.
        rows = records.rows[np.append(chosen, False)[records.rows["key"]]]
        keys = len(chosen)
        order, starts = by_key(rows, keys)
        chains, carried = self.chains.grown(keys)
        place, room = np.array([0, -1, 0, 0]), np.empty(1024, STATE_BATCH)
        while True:
            made, room = _points(
                rows, records.batches, order, starts, chains, carried, self.chains.batches, place, room,
                self._chains, self._at, self._ends, self._batches,
            )  # fmt: skip
            if made:
                ends = self._ends[: made + 1].copy()
                yield Points(
                    rows[self._at[:made]], copied(self._chains[:made]), ends, copied(self._batches[: ends[-1]])
                )
            elif place[0] < keys:
                self._batches = np.empty(2 * len(self._batches), STATE_BATCH)
            if place[0] == keys:
                break
        self.chains.apply(StateRecords(rows, records.batches), keys)


def points_of(
    log: LogPartition, window: Window, chosen: Chosen, topics: Topics, losses: list[int] | None = None
) -> Iterator[tuple[Points, KeyTable]]:
    """The state after every record of chosen share-partitions of a log partition.

    Args:
        log: a log partition from `find_logs`.
        window: which records count.
        chosen: the share-partitions.
        topics: the names that are known.
        losses: takes the offsets from which records were found to be missing or unreadable, as they are met.
    Returns:
        Points, with the numbers of the share-partitions so far.
    """
    timeline, known, mask = Timeline(), 0, np.zeros(0, bool)
    for records, keys in decode_log(log, window, losses):
        if len(keys) > known:
            known, mask = len(keys), chosen.of(keys, topics)
        for points in timeline.take(records, mask):
            yield points, keys


def timeline_tables(
    log: LogPartition,
    window: Window | None = None,
    chosen: Chosen | None = None,
    topics: Topics | None = None,
    *,
    as_of: AsOfPoint | None = None,
) -> Iterator[pa.Table]:
    """The table `timeline` of a log partition, piece by piece.

    Args:
        log: a log partition from `find_logs`.
        window: which records count; all of them by default.
        chosen: the share-partitions; all of them by default.
        topics: names and end offsets that are known.
        as_of: in place of a window: an offset, a moment or its ISO 8601 text; nothing later counts.
    Returns:
        Columns of schemas/tables/timeline.yaml. The rows of one share-partition come in log order.
    Raises:
        InputError: if a segment cannot be read.
    """
    losses: list[int] = []
    topics = topics or Topics()
    for points, keys in points_of(log, window or as_of_window(as_of), chosen or Chosen(), topics, losses):
        yield _table(points, keys, log.partition, topics, losses)


def suspects(points: Points, losses: list[int]) -> np.ndarray:
    """Whether records since each point's snapshot are missing or unreadable, as far as the log tells by then.

    Args:
        points: states after records.
        losses: offsets from which records are missing.
    Returns:
        bool, one a point.
    """
    lost = np.array([NOWHERE, *sorted(losses)])
    lost_by_then = lost[np.searchsorted(lost, points.rows["offset"], side="right") - 1]
    return (points.chains["suspect_offset"] != NOWHERE) | (lost_by_then > points.chains["snapshot_offset"])


def _table(points: Points, keys: KeyTable, partition: int | None, topics: Topics, losses: list[int]) -> pa.Table:
    key = key_columns(keys, points.rows["key"], topics)
    chains, topic_ends = (
        Chains(points.chains, points.ends, points.batches),
        topics.end_of(key["topic_id"], key["partition"]),
    )
    after = state_table(chains, key, partition, suspects(points, losses), topic_ends)
    exists = pa.array(points.chains["exists"])
    record = {"state_partition", "offset", "timestamp", "kind", *key}
    columns: dict[str, pa.Array] = {
        name: pc.call_function("if_else", [exists, after[name].combine_chunks(), pa.scalar(None, after[name].type)])
        for name in table_schema(TIMELINE).names
        if name not in record
    }
    columns |= key | {
        "state_partition": after["state_partition"].combine_chunks(),
        "offset": pa.array(points.rows["offset"].copy()),
        "timestamp": times(points.rows["timestamp"]),
        "kind": _KINDS.take(pa.array(points.rows["kind"].copy())),
    }
    return declared(TIMELINE, columns)


@allocating_kernel
def _points(
    rows, batches, order, starts, chains, carried, carried_batches, place, room, out_chains, out_at, out_ends, out
):
    """Go on with the records of a chunk until the room for points is full.

    Args:
        place: int64, where to go on, moved: share-partition, place in `order` (-1 at its beginning), its ranges held,
            offsets that they finish.
        room: holds the ranges of the share-partition (fold/held_ranges.py).
        out_chains, out_at, out_ends, out: take the points: CHAIN, row of the record, ends, STATE_BATCH.
    Returns:
        (how many points were made, the room).
    """
    fact = np.empty(1, FACT)
    key, number, size, finished = place[0], place[1], place[2], place[3]
    made, at = np.int64(0), np.int64(0)
    is_full = False
    while key < len(chains) and not is_full:
        if number < 0:
            number = starts[key]
            size = carried[key + 1] - carried[key]
            if starts[key] < starts[key + 1]:
                room = fitting(room, 0, size)
                move_rows(carried_batches, carried[key], room, 0, size)
                finished = finished_among(room, 0, size, chains[key].start_offset)
        while number < starts[key + 1]:
            row = rows[order[number]]
            count = np.int64(row.batch_count)
            # A wide range may fill the gaps between all the others.
            if made == len(out_chains) or at + 2 * (size + count + 1) > len(out):
                is_full = True
                break
            if not fits(room, size, count):
                room = fitting(room, size, count)
            size, finished = advance(row, batches, chains[key], room, size, finished, fact[0])
            if not row.fault & UNREADABLE:
                out_chains[made] = chains[key]
                out_at[made] = order[number]
                move_rows(room, 0, out, at, size)
                at += size
                made += 1
                out_ends[made] = at
            number += 1
        if not is_full:
            key += 1
            number = np.int64(-1)
    place[0], place[1], place[2], place[3] = key, number, size, finished
    return made, room


CONTROL_TIMELINE = "timeline"

_CONTROL_KINDS = pa.array(["checkpoint", "delta"])


@dataclass(frozen=True, slots=True)
class ControlPoints:
    """States of share groups, each after one record.

    Attributes:
        rows: CONTROL_RECORD, the record of each; those of one group come in log order.
        chains: CONTROL_CHAIN after it; `exists` is false before the group's first checkpoint.
        ends: int64; the ranges of point n are rows ends[n] to ends[n + 1] of `batches`.
        batches: STATE_BATCH rows, canonical within each point.
    """

    rows: np.ndarray
    chains: np.ndarray
    ends: np.ndarray
    batches: np.ndarray


class ControlTimeline:
    """Carries chosen share groups of one topic-partition from chunk to chunk."""

    def __init__(self, *, strict: bool = True, points: int = _POINTS, ranges: int = _RANGES) -> None:
        """Begin a topic-partition.

        Args:
            strict: as in `fold_control`.
            points: at most so many at a time.
            ranges: room for the ranges of all points at a time; grows only where one point alone needs more.
        """
        self._strict = strict
        self._groups = np.zeros(0, CONTROL_CHAIN)
        self._previous = np.zeros(0, np.int64)
        self._held: list[np.ndarray] = []
        self._chains, self._at = np.empty(points, CONTROL_CHAIN), np.empty(points, np.int64)
        self._ends, self._batches = np.zeros(points + 1, np.int64), np.empty(ranges, STATE_BATCH)

    def take(self, records: ControlRecords, chosen: np.ndarray) -> Iterator[ControlPoints]:
        """The states after the records of a chunk, to be read to the end before the next chunk.

        Args:
            records: decoded records in log order, later than all before.
            chosen: bool, entry n for group number n; the others are left out.
        """
        new = len(chosen) - len(self._groups)
        self._groups = np.concatenate((self._groups, np.full(new, FRESH_GROUP, CONTROL_CHAIN)))
        self._previous = np.concatenate((self._previous, np.full(new, NOWHERE)))
        self._held += [np.zeros(0, STATE_BATCH)] * new
        rows, made = records.rows, 0
        # One more entry: number -1 is a record of no group.
        wanted = np.flatnonzero(np.append(chosen, False)[rows["group"]])
        wanted = wanted[np.argsort(rows["group"][wanted], kind="stable")]
        groups, begins = np.unique(rows["group"][wanted], return_index=True)
        for group, own in zip(groups.tolist(), np.split(wanted, begins[1:]), strict=False):
            chain, place = self._groups[group : group + 1], 0
            while place < len(own):
                place, made, self._previous[group], self._held[group] = _control_points(
                    rows, records.tuples, own, place, self._strict, chain, self._previous[group], self._held[group],
                    self._chains, self._at, self._ends, self._batches, made,
                )  # fmt: skip
                if place < len(own):
                    if made:
                        yield self._points_of(rows, made)
                    else:
                        self._batches = np.empty(2 * len(self._batches), STATE_BATCH)
                    made = 0
        if made:
            yield self._points_of(rows, made)

    def _points_of(self, rows: np.ndarray, made: int) -> ControlPoints:
        ends = self._ends[: made + 1].copy()
        return ControlPoints(
            rows[self._at[:made]], copied(self._chains[:made]), ends, copied(self._batches[: ends[-1]])
        )  # fmt: skip


def control_timeline_tables(
    log: LogPartition, window: Window | None = None, chosen: Chosen | None = None, mode: str = STRICT
) -> Iterator[pa.Table]:
    """The table `timeline` of one topic-partition's control records, piece by piece.

    Args:
        log: a log partition from `find_topic_logs`.
        window: which records count; all of them by default.
        chosen: the share-partitions; all of them by default.
        mode: as in ControlOptions.
    Returns:
        Columns of schemas/tables/timeline.yaml, `kind` being checkpoint or delta: one row a record that can be read,
        folded in or not; no state before the group's first checkpoint. The rows of one group come in log order.
    Raises:
        InputError: if a segment cannot be read.
    Source: KIP-932 draft, recovery; spec D-01 to D-47.
    """
    chosen = chosen or Chosen()
    if chosen.topic not in (None, log.topic) or chosen.partition not in (None, log.partition):
        return
    timeline = ControlTimeline(strict=mode == STRICT)
    told_twice: set[int] = set()
    for records, groups in decode_control_log(log, window or Window(), told_twice):
        names = groups.names()
        wanted = np.array([chosen.group_id in (None, name) for name in names.to_pylist()], bool)
        for points in timeline.take(records, wanted):
            yield _control_table(points, names, log, told_twice)


def _control_table(points: ControlPoints, names: pa.Array, log: LogPartition, told_twice: set[int]) -> pa.Table:
    rows, chains = points.rows, ControlChains(points.chains, points.ends, points.batches, np.zeros(0, FOLD_NOTE))
    suspect = (points.chains["stopped_offset"] != NOWHERE) | (points.chains["doubt_offset"] != NOWHERE)
    suspect |= np.isin(rows["offset"], list(told_twice))
    starts = starts_in_log(points.chains, points.ends, points.batches, log.log_start_offset, log.start_is_noted)
    exists = points.chains["exists"]
    live = control_key_columns(names, rows["group"][exists], log)
    states = control_state_table(chains, live, starts, suspect, rows["offset"][exists] + 1)
    # A row of nulls for each record before its group's first checkpoint.
    after = states.take(pa.array(np.cumsum(exists) - 1, mask=~exists))
    columns: dict[str, pa.Array] = {
        name: after[name].combine_chunks()
        for name in table_schema(CONTROL_TIMELINE).names
        if name in after.column_names
    }
    columns |= control_key_columns(names, rows["group"], log) | {
        "offset": pa.array(rows["offset"].copy()),
        "timestamp": times(rows["timestamp"]),
        "kind": _CONTROL_KINDS.take(pa.array(rows["kind"].copy())),
    }
    return declared(CONTROL_TIMELINE, columns)


@allocating_kernel
def _control_points(
    rows, tuples, own, place, strict, chains, previous, held, out_chains, out_at, out_ends, out, made
):  # fmt: skip
    """Go on with the records of one group in a chunk until the room for points is full.

    Args:
        own: int64, the rows of the group's records; `place` is where among them to go on.
        chains: its CONTROL_CHAIN, one row, moved on.
        previous: offset that its next delta must name.
        held: its STATE_BATCH rows so far, canonical.
        out_chains, out_at, out_ends, out: take the points: CHAIN, row of the record, ends, STATE_BATCH.
        made: how many points they hold.
    Returns:
        (place, made, previous, held), moved on.
    """
    chain = chains[0]
    while place < len(own):
        row = rows[own[place]]
        at = out_ends[made]
        if made == len(out_chains) or at + len(held) + 4 * (np.int64(row.tuple_count) + 1) > len(out):
            break
        is_in, previous = follow(row, chain, previous, strict)
        if is_in:
            held = _folded_on(row, tuples, chain, held)
        if row.fault & UNREADABLE_CONTROL_RECORD == 0:
            out_chains[made] = chain
            out_at[made] = own[place]
            for number in range(len(held)):
                out[at + number] = held[number]
            made += 1
            out_ends[made] = at + len(held)
        place += 1
    return place, made, previous, held


@allocating_kernel
def _folded_on(row, tuples, chain, held):
    """The ranges of a group after one more record, which moves the start and end of its chain."""
    record = np.zeros(2, CONTROL_RECORD)
    record[0].kind = ControlKind.CHECKPOINT
    record[0].start_offset, record[0].end_offset = chain.start_offset, chain.end_offset
    record[1] = row
    # A checkpoint stands for itself; a delta is folded onto a checkpoint without ranges, and laid over those held.
    first, size = np.int64(1), np.int64(0)
    if row.kind == ControlKind.DELTA:
        first, size = np.int64(0), len(held)
    points = boundaries(record, tuples, np.arange(2), first, 2, np.ones(2, np.bool_))
    ranges, start, note = len(points) - 1, np.int64(0), np.zeros(1, FOLD_NOTE)
    writers = np.zeros(2 * ranges + 2, np.int64)
    for number in range(first, 2):
        start = apply(record[number], tuples, points, ranges, writers, start, chain, note[0])
    own = np.empty(ranges + 1, STATE_BATCH)
    own = own[: emit(tuples, points, ranges, writers, start, chain, own, 0)]
    out = np.empty(size + 2 * len(own), STATE_BATCH)
    end = _laid_over(held[:size], own, chain.start_offset, out)
    begin = 0
    while begin < end and out[begin].first == chain.start_offset and is_terminal(out[begin].state):
        chain.start_offset = out[begin].last + 1
        begin += 1
    return out[begin:end].copy()


@kernel
def _laid_over(held, own, start, out):
    """Write the ranges held from `start` on, with a record's own in their place where both are; returns the end."""
    at, other = np.int64(0), 0
    for number in range(len(held)):
        first, last = max(held[number].first, start), held[number].last
        while first <= last:
            while other < len(own) and own[other].last < first:
                at = append(out, 0, at, own[other].first, own[other].last, own[other].state, own[other].count)
                other += 1
            end = min(last, own[other].first - 1) if other < len(own) else last
            if first <= end:
                at = append(out, 0, at, first, end, held[number].state, held[number].count)
            first = own[other].last + 1 if end < last else last + 1
    for number in range(other, len(own)):
        at = append(out, 0, at, own[number].first, own[number].last, own[number].state, own[number].count)
    return at
