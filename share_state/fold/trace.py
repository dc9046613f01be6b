"""What was true before and after each record: the facts that rules about single records look at.

The fold of `chains` needs no state between two records; the audit does, so it folds each share-partition's records one
by one, with the same scalars (`chains.step`) and its ranges kept canonical in place (`held_ranges`), to the same state.
"""

from functools import partial

import numpy as np

from share_state.fold.chains import AHEAD, NOWHERE, REPLACED, Chains, ask_for_batches, is_cold, step
from share_state.fold.columns import Columns
from share_state.fold.held_ranges import (
    UNCOVERED,
    cut_below,
    finished_among,
    first_archiving,
    first_difference,
    first_left,
    first_lowered,
    fits,
    fitting,
    hold,
    raise_to,
    take_in,
)
from share_state.fold.limits import Limits
from share_state.fold.ranges import ARCHIVING
from share_state.fold.remarkable import expected, is_remarkable
from share_state.fold.traced import FACT, Traced, only
from share_state.wire.compiled import inlined, kernel
from share_state.wire.move_rows import move_rows
from share_state.wire.plain_rows import copied, joined
from share_state.wire.prefetch import prefetch
from share_state.wire.share_group_state import STATE_BATCH, UNREADABLE, Kind, Layout, StateRecords

_BLANK = np.zeros(1, FACT)
for _name in ("start_before", "start_after", "end_after", "timestamp_before", "left_offset", "contradicted_offset",
              "archiving_passed_offset"):  # fmt: skip
    _BLANK[_name] = NOWHERE
for _name in ("left_from", "left_to", "contradicted_from", "contradicted_to"):
    _BLANK[_name] = UNCOVERED

_AT_ONCE = 1024
"""Remarkable records that there is room for before they are put aside."""


class Tracer:
    """Carries from chunk to chunk what the folded chains do not hold."""

    def __init__(
        self,
        *,
        folded_from: int = 0,
        limits: Limits = Limits(),  # noqa: B008  frozen
        every: bool = False,
    ) -> None:
        """Begin a log partition.

        Args:
            folded_from: the log start when this log was read for the first time.
            limits: what the rules hold it against.
            every: show the rules every record of a share-partition, remarkable or not.
        """
        self.folded_from = folded_from
        self.limits = limits
        self.every = every
        self.archiving_since = NOWHERE

    def take(self, records: StateRecords, chains: Chains, keys: int, slices: int = 1) -> Traced:
        """Fold a chunk of records, one after the other.

        Args:
            records: decoded records in log order.
            chains: the state before them, brought to the state behind them.
            keys: how many share-partitions have numbers by now.
            slices: how many parts of them are folded side by side.
        """
        if self.archiving_since == NOWHERE:
            self.archiving_since = _archiving_since(records)
        usual = expected(self.limits, self.archiving_since, every=self.every)
        found: list[tuple[np.ndarray, np.ndarray]] = [(np.zeros(0, np.int64), np.zeros(0, FACT))]
        chains.apply(records, keys, slices, partial(_follow, usual, found))
        numbers, facts = (joined(parts) for parts in zip(*found, strict=True))
        rows, batches, facts = only(records, numbers, facts)
        limits, since = self.limits, self.archiving_since
        return Traced(Columns(rows), Columns(batches), Columns(facts), self.folded_from, since, limits)


def _archiving_since(records: StateRecords) -> int:
    archiving = np.flatnonzero(records.batches["state"] == ARCHIVING)
    if not len(archiving):
        return NOWHERE
    ends = np.cumsum(records.rows["batch_count"])
    return int(records.rows["offset"][np.searchsorted(ends, archiving[0], side="right")])


def _follow(
    usual: np.ndarray, found: list[tuple[np.ndarray, np.ndarray]], from_key: int, to_key: int, *folded: np.ndarray
) -> None:
    """Fold a stretch of share-partitions one record after the other; as `chains._fold`.

    Args:
        usual: of `expected` (fold/remarkable.py).
        found: takes the numbers of remarkable records and their FACT rows.
    """
    place, room = np.array([from_key, -1, 0, 0, 0, 0, 0]), np.empty(1024, STATE_BATCH)
    numbers, facts = np.empty(_AT_ONCE, np.int64), np.empty(_AT_ONCE, FACT)
    goes_on = True
    while goes_on:
        # Where an array may be made, references are counted, which took a quarter of the time.
        goes_on = _trace(to_key, *folded, usual, _BLANK, numbers, facts, place, room)
        filled, room = place[6], fitting(room, place[2], place[3])
        found.append((numbers[:filled].copy(), copied(facts[:filled])))


@kernel
def _trace(to_key, rows, batches, order, starts, chains, carried, carried_batches, out, ends, usual, blank, numbers,
           facts, place, room):  # fmt: skip
    """Go on until all records are traced, until enough are remarkable, or until a larger room is needed.

    Args:
        to_key, rows, batches, order, starts, chains, carried, carried_batches, out, ends: as of `chains._fold`.
        usual: of `expected` (fold/remarkable.py).
        blank: FACT, what one is before it is filled.
        numbers, facts: take the numbers of the remarkable records, and the FACT row of each; as long as each other.
        place: int64, where to go on, moved: share-partition, place in `order` (-1 at its beginning), its ranges held,
            how many are to come, rows of `out` in use, offsets that its ranges finish; and how many are remarkable.
        room: holds the ranges of the share-partition (fold/held_ranges.py).
    Returns:
        Whether there is more to do.
    """
    key, number, size, at, finished = place[0], place[1], place[2], place[4], place[5]
    filled = np.int64(0)
    while key < to_key:
        begin, end = carried[key], carried[key + 1]
        if starts[key] == starts[key + 1]:
            move_rows(carried_batches, begin, out, at, end - begin)
            at += end - begin
            key += 1
            ends[key] = at
            continue
        if number < 0:
            if not fits(room, 0, end - begin):
                _note(place, key, number, np.int64(0), end - begin, at, finished, filled)
                return True
            move_rows(carried_batches, begin, room, 0, end - begin)
            number, size = starts[key], end - begin
            finished = finished_among(room, 0, size, chains[key].start_offset)
        while number < starts[key + 1]:
            if number + AHEAD < len(order):
                prefetch(rows, order[number + AHEAD])
            if number + AHEAD // 2 < len(order):
                ask_for_batches(batches, rows[order[number + AHEAD // 2]])
            row = rows[order[number]]
            count = np.int64(row.batch_count)
            if filled == len(facts) or not fits(room, size, count):
                _note(place, key, number, size, count, at, finished, filled)
                return True
            move_rows(blank, 0, facts, filled, 1)
            fact = facts[filled]
            size, finished = advance(row, batches, chains[key], room, size, finished, fact)
            if is_remarkable(row, fact, batches, usual):
                numbers[filled] = order[number]
                filled += 1
            number += 1
        move_rows(room, 0, out, at, size)
        at += size
        key += 1
        ends[key] = at
        number = np.int64(-1)
    _note(place, key, number, np.int64(0), np.int64(0), at, finished, filled)
    return False


@inlined
def _note(place, key, number, size, coming, at, finished, filled):
    place[0], place[1], place[2], place[3], place[4], place[5] = key, number, size, coming, at, finished
    place[6] = filled


@inlined
def advance(row, batches, chain, room, size, finished, fact):
    """Take one record of a share-partition.

    Args:
        row: STATE_RECORD.
        batches: STATE_BATCH rows that it points into.
        chain: its CHAIN row, brought to the state after the record.
        room: holds its ranges, brought to the state after the record (fold/held_ranges.py); fitting.
        size: how many of them there are.
        finished: how many offsets from the start on they hold as acknowledged or archived.
        fact: FACT row to fill, blank so far.
    Returns:
        (how many ranges there are after the record, how many offsets they hold as acknowledged or archived).
    """
    _note_before(chain, fact)
    known = chain.exists
    if row.fault & UNREADABLE:
        step(row, chain)
        return size, finished
    fact.folded = True
    fact.cold = known and is_cold(row)
    fact.initial = row.kind == Kind.SNAPSHOT and (not known or _initialises(row))
    before = chain.start_offset
    replaces = step(row, chain) == REPLACED
    if not chain.exists:
        return np.int64(0), np.int64(0)
    start = chain.start_offset
    cut = np.int64(-1) if replaces else max(np.int64(-1), start)
    end = take_in(batches, row.batches, row.batches + row.batch_count, cut, room)
    if known and not fact.initial and start > before:
        fact.archiving_passed_offset = first_archiving(room, size, before, start)
    if replaces:
        if known and not fact.initial:
            _compare(row.start_offset, room, size, end, fact)
        size = hold(room, end)
        finished = finished_among(room, 0, size, start)
    else:
        size, gone = cut_below(room, size, cut, before)
        # Where the start goes back, offsets may count that did not.
        finished = finished - gone if start >= max(before, 0) else finished_among(room, 0, size, start)
        size, more, fact.left_offset, fact.left_from, fact.left_to = raise_to(room, size, end, start)
        finished += more
    fact.start_after = start
    if start >= 0:
        fact.end_after = max(start, room[size - 1].last + 1) if size > 0 else start
    fact.terminal_after = finished
    return size, finished


@inlined
def _note_before(chain, fact):
    fact.timestamp_before = chain.last_timestamp
    fact.known = chain.exists
    fact.was_deleted = chain.was_deleted and not chain.exists
    if not chain.exists:
        return
    fact.start_before = chain.start_offset
    fact.create_time_before = chain.create_time
    fact.write_time_before = chain.write_time
    fact.snapshot_epoch_before = chain.snapshot_epoch
    fact.state_epoch_before = chain.state_epoch
    fact.leader_epoch_before = chain.leader_epoch
    fact.complete_before = chain.delivery_complete_count
    fact.rests_on_snapshot = chain.snapshot_offset != NOWHERE
    fact.suspect = chain.suspect_offset != NOWHERE


@inlined
def _initialises(row):
    """True for a snapshot with the content that an initialize request gives it; releases before 4.1 know none.

    Source: Kafka ShareCoordinatorShard.initializeState: leader epoch 0, no batches, one time, no offset complete.
    """
    return (
        row.layout == Layout.CURRENT
        and row.leader_epoch == 0
        and row.batch_count == 0
        and row.create_time == row.write_time
        and (row.delivery_complete_count == -1 or (row.delivery_complete_count == 0 and row.start_offset != -1))
    )


@kernel
def _compare(start, room, size, end, fact):
    """Hold a snapshot's ranges, taken into the room up to row `end`, against what was folded before it."""
    if fact.cold:
        at, old, new = first_difference(room, size, end)
    else:
        fact.left_offset, fact.left_from, fact.left_to = first_left(room, size, end)
        at, old, new = first_lowered(room, size, end, start)
        below = room[len(room) // 3].first
        if end > len(room) // 3 and below < start and (at == -1 or below < at):
            at, old, new = below, np.int32(UNCOVERED), np.int32(UNCOVERED)
    fact.contradicted_offset, fact.contradicted_from, fact.contradicted_to = at, old, new
