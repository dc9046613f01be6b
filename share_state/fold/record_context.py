"""What rules about single records are shown: records beside what was true before and after each (fold/trace.py).

Which records are remarkable: those that a coordinator going on from the state before them might not have written.

Nearly none is. So each is looked at once, where it is followed (fold/trace.py), and the rules over traced records say
of the few that are shown to them what is wrong and in which words. A condition here may hold for more records than a
rule finds, never for fewer: what no condition tells is seen by no such rule.

What was true before and after each record: the facts that rules about single records look at.

The fold of `chains` needs no state between two records; the audit does, so it folds each share-partition's records one
by one, with the same scalars (`chains.step`) and its ranges kept canonical in place (`held_ranges`), to the same state.
"""

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from share_state.fold.chains import AHEAD, NOWHERE, REPLACED, Chains, Columns, ask_for_batches, is_cold, step
from share_state.fold.interval_map import (
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
from share_state.fold.interval_merge import ACKNOWLEDGED, ARCHIVED, ARCHIVING, AVAILABLE
from share_state.fold.options import Limits
from share_state.jit.compile import inlined, kernel, prefetch
from share_state.kafka.buffers import copied, joined, move_rows, taken
from share_state.kafka.state_records import LARGEST_OFFSET, STATE_BATCH, UNREADABLE, Kind, Layout, StateRecords

FACT = np.dtype(
    [
        ("start_before", "i8"),  # -1: none
        ("start_after", "i8"),
        ("end_after", "i8"),  # behind the last range; -1 without a start
        ("create_time_before", "i8"),
        ("write_time_before", "i8"),
        ("timestamp_before", "i8"),  # of the share-partition's last record, a tombstone too; -1 for the first
        ("terminal_after", "i8"),  # offsets at or after the start, acknowledged or archived
        ("left_offset", "i8"),  # first to leave a state that nothing leaves; -1 none
        ("contradicted_offset", "i8"),  # first where a snapshot cannot follow from what was folded; -1 none
        ("archiving_passed_offset", "i8"),  # first in state ARCHIVING that the start passed; -1 none
        ("snapshot_epoch_before", "i4"),
        ("state_epoch_before", "i4"),
        ("leader_epoch_before", "i4"),
        ("complete_before", "i4"),
        ("left_from", "i4"),  # priorities (fold/sweep.py) at left_offset, before and in the record
        ("left_to", "i4"),
        ("contradicted_from", "i4"),  # priorities at contradicted_offset, folded and in the snapshot
        ("contradicted_to", "i4"),
        ("folded", "?"),  # the fold took the record; the others are of no share-partition or unreadable
        ("known", "?"),  # a state existed before
        ("rests_on_snapshot", "?"),  # and a snapshot of the log begins it
        ("suspect", "?"),  # and a record behind that snapshot could not be read
        ("was_deleted", "?"),  # a tombstone came before, and nothing since
        ("initial", "?"),  # the snapshot begins the state anew
        ("cold", "?"),  # the snapshot repeats the state
    ]
)
"""One row a record. What is `before` is meaningless where `known` is false, timestamp_before apart."""


@dataclass(frozen=True)
class Traced:
    """Records of a chunk beside what was true before and after each.

    Attributes:
        rows: STATE_RECORD, in log order; those of a share-partition that are remarkable (fold/remarkable.py).
        batches: STATE_BATCH rows of all of them, in the same order.
        facts: FACT; row n is about rows[n].
        folded_from: the log start when this log was read for the first time.
        archiving_since: offset of the first record with a range in state ARCHIVING, to the end of the chunk; -1 none.
        limits: what the rules hold it against.
    """

    rows: Columns
    batches: Columns
    facts: Columns
    folded_from: int
    archiving_since: int
    limits: Limits

    @cached_property
    def snapshots(self) -> np.ndarray:
        """int64, the numbers of the records that are snapshots and were folded; there are few."""
        return self._folded(Kind.SNAPSHOT)

    @cached_property
    def tombstones(self) -> np.ndarray:
        """int64, the numbers of the records that are tombstones and were folded."""
        return self._folded(Kind.TOMBSTONE)

    @cached_property
    def updates(self) -> np.ndarray:
        """bool, one a record: an update that was folded."""
        return self.facts["folded"] & (self.rows["kind"] == Kind.UPDATE)

    @cached_property
    def begins(self) -> np.ndarray:
        """int64, one a record and the end: the number of its first batch, or where that would be."""
        return np.concatenate(([0], np.cumsum(self.rows["batch_count"], dtype=np.int64)))

    def _folded(self, kind: Kind) -> np.ndarray:
        return np.flatnonzero(self.facts["folded"] & (self.rows["kind"] == kind))


def only(records: StateRecords, numbers: np.ndarray, facts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Some of the records, in log order.

    Args:
        records: decoded records.
        numbers: int64, which of them, in any order.
        facts: FACT rows, one a number.
    Returns:
        (STATE_RECORD rows, STATE_BATCH rows that they point into, the FACT row of each).
    """
    order = np.argsort(numbers)
    rows = taken(records.rows, numbers[order])
    begins = np.cumsum(rows["batch_count"], dtype=np.int64) - rows["batch_count"]
    moved = np.repeat(rows["batches"] - begins, rows["batch_count"])
    rows["batches"] = begins
    return rows, taken(records.batches, moved + np.arange(len(moved))), taken(facts, order)


_LIMIT, _ARCHIVES, _LOWERS, _SINCE_4_4, _EVERY = range(5)
"""Places in what `expected` returns: deliveries that no range exceeds, whether ARCHIVING is written, whether the
writer is known to lower delivery counts of what is released (4.1 alone does), the offset behind which 4.4 made every
record, whether all are taken."""


def written_states(limits: Limits) -> tuple[int, ...]:
    """The states that a writer persists: ARCHIVING from 4.4 on, and where the writer is not known."""
    older = (AVAILABLE, ACKNOWLEDGED, ARCHIVED)
    return (*older, ARCHIVING) if limits.writer_version in (None, "4.4") else older


def expected(limits: Limits, archiving_since: int, *, every: bool = False) -> np.ndarray:
    """What `is_remarkable` is to hold records against, as an array.

    Args:
        limits: of the cluster.
        archiving_since: offset of the first record with a range in state ARCHIVING, -1 for none.
        every: let every record be remarkable.
    """
    made = np.empty(5, np.int64)
    made[_LIMIT], made[_ARCHIVES], made[_EVERY] = limits.delivery_count, ARCHIVING in written_states(limits), every
    made[_LOWERS] = limits.writer_version == "4.1"
    since = limits.since_4_4(archiving_since)
    made[_SINCE_4_4] = LARGEST_OFFSET if since is None else since
    return made


@inlined
def is_remarkable(row, fact, batches, expected):
    """Whether a record is to be shown to the rules.

    Args:
        row: STATE_RECORD.
        fact: its FACT row (fold/traced.py).
        batches: STATE_BATCH rows that `row` points into.
        expected: of the function of that name.
    """
    return (
        expected[_EVERY] != 0
        or _steps_back(row, fact)
        or _miscounts(row, fact, expected[_SINCE_4_4])
        or _contradicts(row, fact, expected[_SINCE_4_4])
        or _is_odd(batches, row, expected)
    )


@inlined
def _steps_back(row, fact):
    """Clocks, epochs and the start offset: rules/timestamps.py, epochs.py, starts.py."""
    if row.timestamp < fact.timestamp_before or row.start_offset < -1:
        return True
    if row.kind == Kind.SNAPSHOT:
        follows = fact.snapshot_epoch_before + 1 if fact.known else 0
        if row.snapshot_epoch != follows or row.create_time > row.write_time:
            return True
        if fact.known and (
            row.write_time < fact.write_time_before
            or row.state_epoch < fact.state_epoch_before
            or row.leader_epoch < fact.leader_epoch_before
            or row.start_offset < fact.start_before
        ):
            return True
    # An update that says -1 leaves leader epoch and start offset as they are.
    return (
        fact.known
        and row.kind == Kind.UPDATE
        and (
            row.snapshot_epoch != fact.snapshot_epoch_before
            or (row.leader_epoch < fact.leader_epoch_before and row.leader_epoch != -1)
            or (row.start_offset < fact.start_before and row.start_offset != -1)
        )
    )


@inlined
def _miscounts(row, fact, since):
    """The delivery complete count: rules/counts.py, writers_4_4.py."""
    found, before = row.delivery_complete_count, fact.complete_before
    if found != fact.terminal_after and (found != -1 or before >= 0):
        return True
    return found < before and row.offset > since


@inlined
def _contradicts(row, fact, since):
    """Deletions and what was folded before: rules/deletions.py, snapshots.py, writers_4_4.py."""
    if (
        fact.was_deleted
        or (row.kind == Kind.TOMBSTONE and not fact.known)
        or fact.left_offset >= 0
        or fact.contradicted_offset >= 0
        or fact.archiving_passed_offset >= 0
    ):
        return True
    if fact.cold and (
        row.start_offset != fact.start_before
        or row.state_epoch != fact.state_epoch_before
        or row.leader_epoch != fact.leader_epoch_before
        or row.delivery_complete_count != fact.complete_before
        or row.create_time != fact.create_time_before
    ):
        return True
    return row.offset > since and row.kind == Kind.UPDATE and row.start_offset == -1 and fact.start_before >= 0


@inlined
def _is_odd(batches, row, expected):
    """State batches by themselves: rules/batch_contents.py, writers_4_4.py."""
    limit, archives, lowers = expected[_LIMIT], expected[_ARCHIVES], expected[_LOWERS]
    by_4_4 = row.offset > expected[_SINCE_4_4]
    before, value = np.int64(-(2**63)), np.int32(-1)
    for number in range(row.batches, row.batches + row.batch_count):
        batch = batches[number]
        state, count = batch.state, batch.count
        if state != AVAILABLE and state != ACKNOWLEDGED and state != ARCHIVED and not (archives and state == ARCHIVING):
            return True
        if count > limit or count < 0 or (count == 0 and state != ARCHIVED and not (lowers and state == AVAILABLE)):
            return True
        if batch.first <= before or batch.first < row.start_offset:
            return True
        if by_4_4 and batch.first == before + 1 and value == (np.int32(count) << 8) + state:
            return True
        before, value = batch.last, (np.int32(count) << 8) + state
    return False


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
