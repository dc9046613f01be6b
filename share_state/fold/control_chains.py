"""Which record wrote each offset of a share group last: the ranges that control records leave behind.

The writer of an offset is found in a tree over the elementary ranges between all boundaries of a chain: a tuple marks
O(log n) nodes with its place in the log, and the greatest mark above an elementary range is its last writer.

Source: KIP-932 draft (SHARE_CHECKPOINT, SHARE_DELTA).

Folds the draft's checkpoints and deltas of many share groups of one topic-partition at once.

Per group: the base is the latest checkpoint by offset (epochs wrap, so they cannot tell). The deltas behind it apply in
log order, and the later tuple of an offset wins; after every record the start moves past what is terminal, and nothing
below the start counts any more. Offsets between the end so far and a tuple beyond it were never recorded: they become
available, delivery count 0. Nothing before the base needs decoding twice, so a log is folded from what is left after
the latest checkpoints: `fold(a then b) == fold(superseded records of a dropped, then b)`.

Source: KIP-932 draft (SHARE_CHECKPOINT, SHARE_DELTA, recovery).
"""

from dataclasses import dataclass

import numpy as np

from share_state.fold.chains import NOWHERE
from share_state.fold.interval_merge import ACQUIRED, AVAILABLE, is_terminal
from share_state.jit.compile import allocating_kernel, kernel
from share_state.kafka.control_records import (
    DOUBTFUL,
    EPOCHS,
    UNREADABLE_CONTROL_RECORD,
    ControlKind,
    ControlRecords,
    covers_nothing,
)
from share_state.kafka.state_records import STATE_BATCH


@allocating_kernel
def boundaries(rows, tuples, order, begin, end, applied):
    """Where ranges of one group begin or end, each once, in order; at least one offset."""
    room = np.int64(0)
    for place in range(begin, end):
        if applied[order[place]]:
            room += 2 * rows[order[place]].tuple_count + 2
    points = np.empty(room, np.int64)
    count = 0
    for place in range(begin, end):
        row = rows[order[place]]
        if not applied[order[place]]:
            continue
        if row.kind == ControlKind.CHECKPOINT:
            points[count], points[count + 1] = row.start_offset, max(row.start_offset, row.end_offset)
            count += 2
        for number in range(row.tuples, row.tuples + row.tuple_count):
            if not covers_nothing(tuples[number]):
                points[count], points[count + 1] = tuples[number].first, tuples[number].last + 1
                count += 2
    points = np.sort(points[:count])
    unique = 1
    for place in range(1, count):
        if points[place] != points[unique - 1]:
            points[unique] = points[place]
            unique += 1
    return points[:unique]


@kernel
def apply(row, tuples, points, ranges, writers, start, chain, note):
    """Fold one record in; `start` and the result are the place of the chain's start among `points`."""
    if row.kind == ControlKind.CHECKPOINT:
        chain.start_offset, chain.end_offset = row.start_offset, max(row.start_offset, row.end_offset)
        start = np.searchsorted(points, chain.start_offset)
    old_end = new_end = chain.end_offset
    for number in range(row.tuples, row.tuples + row.tuple_count):
        if not covers_nothing(tuples[number]):
            new_end = max(new_end, tuples[number].last + 1)
    # A mark is even for a tuple and odd for the filling of its record; it grows with the place in the log.
    filling = 2 * row.tuples + 1
    from_place, to_place = np.searchsorted(points, old_end), np.searchsorted(points, new_end)
    if row.kind == ControlKind.DELTA and new_end > old_end:
        _mark(writers, ranges, from_place, to_place, filling)
    for number in range(row.tuples, row.tuples + row.tuple_count):
        batch = tuples[number]
        if covers_nothing(batch):
            continue
        first = np.searchsorted(points, batch.first)
        if first < start:
            note.below_start += min(batch.last + 1, chain.start_offset) - batch.first
            first = start
        _mark(writers, ranges, first, np.searchsorted(points, batch.last + 1), 2 * number + 2)
    chain.end_offset = new_end
    if row.kind == ControlKind.DELTA:
        for place in range(from_place, to_place):
            if _writer(writers, ranges, place) == filling:
                if note.hole_offsets == 0:
                    note.hole_first = points[place]
                note.hole_last = points[place + 1] - 1
                note.hole_offsets += points[place + 1] - points[place]
    while start < ranges and points[start] < new_end:
        writer = _writer(writers, ranges, start)
        if writer == 0 or writer & 1 or not is_terminal(tuples[(writer - 2) // 2].state):
            break
        start += 1
    chain.start_offset = points[start]
    return start


@kernel
def emit(tuples, points, ranges, writers, start, chain, out, at):
    """Write the ranges from the start to the end, neighbours of one value joined; what nobody wrote stays a gap."""
    begin = at
    for place in range(start, ranges):
        if points[place] >= chain.end_offset:
            break
        writer = _writer(writers, ranges, place)
        if writer == 0:
            continue
        state, count = np.int8(AVAILABLE), np.int16(0)
        if writer & 1 == 0:
            batch = tuples[(writer - 2) // 2]
            state, count = batch.state, batch.count
            if state == ACQUIRED:
                # Never to be written; the offset is what it would have been recorded as.
                state, count = np.int8(AVAILABLE), np.int16(max(0, np.int64(count) - 1))
        at = append(out, begin, at, points[place], points[place + 1] - 1, state, count)
    return at


@kernel
def append(out, begin, at, first, last, state, count):
    """Write a range behind rows `begin` to `at`, joined to the last of them where it carries on; returns their end."""
    if at > begin and out[at - 1].last == first - 1 and out[at - 1].state == state and out[at - 1].count == count:
        out[at - 1].last = last
        return at
    out[at].first, out[at].last = first, last
    out[at].state, out[at].count = state, count
    return at + 1


@kernel
def _mark(writers, ranges, first, end, mark):
    """Mark the elementary ranges first to end (exclusive); `mark` is greater than every one before."""
    left, right = first + ranges, end + ranges
    while left < right:
        if left & 1:
            writers[left] = mark
            left += 1
        if right & 1:
            right -= 1
            writers[right] = mark
        left >>= 1
        right >>= 1


@kernel
def _writer(writers, ranges, place):
    """The greatest mark over an elementary range, 0 where nobody wrote it."""
    node = place + ranges
    mark = np.int64(0)
    while node >= 1:
        mark = max(mark, writers[node])
        node >>= 1
    return mark


CONTROL_CHAIN = np.dtype(
    [
        ("start_offset", "i8"),  # SPSO, past what is terminal
        ("end_offset", "i8"),  # SPEO, exclusive
        ("snapshot_offset", "i8"),  # SCO: of the latest checkpoint
        ("last_offset", "i8"),  # of the last record folded in
        ("newest_offset", "i8"),  # of the last record of the group, folded in or not
        ("orphan_offset", "i8"),  # of the first delta, where there is no checkpoint
        ("stopped_offset", "i8"),  # of the first delta whose link to its predecessor does not hold
        ("doubt_offset", "i8"),  # of a record behind the checkpoint that cannot be read, or says what it must not
        ("deltas", "i8"),  # folded in
        ("followers", "i8"),  # records of the group behind its checkpoint, folded in or not
        ("epoch", "i4"),  # of the checkpoint
        ("exists", "?"),  # there is a checkpoint
    ]
)
"""One row a share group of the topic-partition."""

FRESH_GROUP = np.zeros(1, CONTROL_CHAIN)[0]
"""The row of a share group before its first record."""
for _name in CONTROL_CHAIN.names or ():
    if _name.endswith("_offset"):
        FRESH_GROUP[_name] = NOWHERE

FOLD_NOTE = np.dtype(
    [
        ("below_start", "i8"),  # offsets of its tuples that lie before the start
        ("hole_first", "i8"),  # first and last offset behind the end so far that no tuple tells of
        ("hole_last", "i8"),
        ("hole_offsets", "i8"),  # how many such offsets
    ]
)
"""One row a record: what folding it met."""


@dataclass(slots=True)
class ControlChains:
    """The folded state of a topic-partition.

    Attributes:
        chains: CONTROL_CHAIN rows, row n for group number n.
        ends: int64; the ranges of number n are rows ends[n] to ends[n + 1] of `batches`.
        batches: STATE_BATCH rows, sorted, disjoint and joined within each group.
        notes: FOLD_NOTE rows beside the records that were folded.
    """

    chains: np.ndarray
    ends: np.ndarray
    batches: np.ndarray
    notes: np.ndarray


def superseded(records: ControlRecords, groups: int) -> np.ndarray:
    """A mask of the records that the latest readable checkpoint of their group makes redundant, and of strangers."""
    rows = records.rows
    of_group = rows["group"] >= 0
    checkpoint = of_group & (rows["kind"] == ControlKind.CHECKPOINT) & (rows["fault"] & UNREADABLE_CONTROL_RECORD == 0)
    # One more row, for records of no known group; in log order, so that a group's last checkpoint stays.
    latest = np.full(groups + 1, NOWHERE, np.int64)
    latest[rows["group"][checkpoint]] = rows["offset"][checkpoint]
    return ~of_group | (rows["offset"] < latest[rows["group"]])


def fold_control(records: ControlRecords, groups: int, *, strict: bool = True) -> ControlChains:
    """Fold control records, each group for itself.

    Args:
        records: in log order; may lack records that a later checkpoint of their group supersedes.
        groups: how many groups have numbers.
        strict: stop at the first delta that does not follow its predecessor, as a walk back from the newest delta would
            not get past it; else fold in every delta that is not of an older epoch.
    """
    rows = records.rows
    order = np.argsort(rows["group"], kind="stable")
    starts = np.searchsorted(rows["group"][order], np.arange(groups + 1))
    chains, notes = np.full(groups, FRESH_GROUP, CONTROL_CHAIN), np.zeros(len(rows), FOLD_NOTE)
    out = np.empty(2 * len(records.tuples) + 2 * groups, STATE_BATCH)
    ends = np.zeros(groups + 1, np.int64)
    applied = np.zeros(len(rows), np.bool_)
    _follow(rows, order, starts, strict, chains, applied)
    _fold(rows, records.tuples, order, starts, applied, chains, notes, out, ends)
    return ControlChains(chains, ends, out[: ends[-1]].copy(), notes)


@allocating_kernel
def starts_in_log(chains, ends, batches, log_start, is_noted):
    """Where a leader that loads each state starts: not before the log does, and past what is terminal there.

    Args:
        chains, ends, batches: as in ControlChains.
        log_start: offsets of the topic-partition before this one are gone.
        is_noted: the broker says so. Where only a segment's name does, a log start behind a whole window is taken for
            the beginning of an export that was cut out of a log.
    Returns:
        int64, one a group; its start_offset where the log reaches back to that.
    """
    starts = chains["start_offset"].copy()
    for group in range(len(starts)):
        if starts[group] < 0 or starts[group] >= log_start or not (is_noted or log_start <= chains[group].end_offset):
            continue
        starts[group] = log_start
        for row in range(ends[group], ends[group + 1]):
            if batches[row].last < starts[group]:
                continue
            if batches[row].first > starts[group] or not is_terminal(batches[row].state):
                break
            starts[group] = batches[row].last + 1
    return starts


@kernel
def _follow(rows, order, starts, strict, chains, applied):
    """Choose the records of each group that are folded in, and note what is known of its chain without its tuples."""
    for group in range(len(chains)):
        base, previous = starts[group], np.int64(NOWHERE)
        for place in range(starts[group], starts[group + 1]):
            row = rows[order[place]]
            applied[order[place]], previous = follow(row, chains[group], previous, strict)
            if applied[order[place]] and row.kind == ControlKind.CHECKPOINT:
                base = place
        for place in range(starts[group], base):
            applied[order[place]] = False


@kernel
def follow(row, chain, previous, strict):
    """Note what one more record of a group tells of its chain, without its tuples.

    Args:
        row: CONTROL_RECORD, later than all before.
        chain: CONTROL_CHAIN so far, moved on.
        previous: offset that a delta must name: of the record before it that is not of an older epoch.
        strict: as in `fold_control`.
    Returns:
        (whether the record is folded in, the offset that the next delta must name).
    """
    chain.newest_offset = row.offset
    is_readable = row.fault & UNREADABLE_CONTROL_RECORD == 0
    if is_readable and row.kind == ControlKind.CHECKPOINT:
        chain.exists = True
        chain.orphan_offset = chain.stopped_offset = NOWHERE
        chain.epoch = row.epoch
        chain.snapshot_offset = chain.last_offset = row.offset
        chain.deltas = chain.followers = 0
        chain.doubt_offset = row.offset if row.fault & DOUBTFUL else NOWHERE
        return True, row.offset
    if not chain.exists:
        if is_readable and chain.orphan_offset == NOWHERE:
            chain.orphan_offset = row.offset
        return False, previous
    chain.followers += 1
    if not is_readable:
        chain.doubt_offset = row.offset
        return False, previous
    ahead = (row.epoch - chain.epoch) % EPOCHS
    if ahead >= EPOCHS // 2:
        return False, previous
    if chain.stopped_offset == NOWHERE and (ahead != 0 or row.back_offset != previous):
        chain.stopped_offset = row.offset
    if strict and chain.stopped_offset != NOWHERE:
        return False, row.offset
    chain.last_offset = row.offset
    chain.deltas += 1
    if row.fault & DOUBTFUL:
        chain.doubt_offset = row.offset
    return True, row.offset


@allocating_kernel
def _fold(rows, tuples, order, starts, applied, chains, notes, out, ends):
    at = np.int64(0)
    for group in range(len(chains)):
        chain = chains[group]
        if chain.exists:
            points = boundaries(rows, tuples, order, starts[group], starts[group + 1], applied)
            ranges = len(points) - 1
            writers = np.zeros(2 * ranges + 2, np.int64)
            start = np.int64(0)
            for place in range(starts[group], starts[group + 1]):
                number = order[place]
                if applied[number]:
                    start = apply(rows[number], tuples, points, ranges, writers, start, chain, notes[number])
            at = emit(tuples, points, ranges, writers, start, chain, out, at)
        ends[group + 1] = at
