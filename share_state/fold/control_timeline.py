"""The state after every control record of chosen share groups: the draft's fold, one record further at a time.

The ranges of a record are laid over those held by its group so far, so it costs its own ranges and those it leaves,
never the records before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from share_state.declarations import table_schema
from share_state.fold.chains import NOWHERE
from share_state.fold.chosen import Chosen
from share_state.fold.control_chains import (
    CONTROL_CHAIN,
    FOLD_NOTE,
    FRESH_GROUP,
    ControlChains,
    follow,
    starts_in_log,
)
from share_state.fold.control_log import STRICT, decode_control_log
from share_state.fold.control_ranges import append, apply, boundaries, emit
from share_state.fold.control_states import control_key_columns, control_state_table
from share_state.fold.ranges import is_terminal
from share_state.fold.states import declared, times
from share_state.wire.compiled import allocating_kernel, kernel
from share_state.wire.control_records import CONTROL_RECORD, UNREADABLE, ControlKind, ControlRecords
from share_state.wire.log_folder import LogPartition, Window
from share_state.wire.plain_rows import copied
from share_state.wire.share_group_state import STATE_BATCH

TABLE = "timeline"

_KINDS = pa.array(["checkpoint", "delta"])
_POINTS, _RANGES = 1 << 16, 1 << 20


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
                place, made, self._previous[group], self._held[group] = _points(
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
            yield _table(points, names, log, told_twice)


def _table(points: ControlPoints, names: pa.Array, log: LogPartition, told_twice: set[int]) -> pa.Table:
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
        name: after[name].combine_chunks() for name in table_schema(TABLE).names if name in after.column_names
    }
    columns |= control_key_columns(names, rows["group"], log) | {
        "offset": pa.array(rows["offset"].copy()),
        "timestamp": times(rows["timestamp"]),
        "kind": _KINDS.take(pa.array(rows["kind"].copy())),
    }
    return declared(TABLE, columns)


@allocating_kernel
def _points(
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
        if row.fault & UNREADABLE == 0:
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
