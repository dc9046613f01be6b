"""Folds the checkpoints and deltas of many share groups of one topic-partition at once.

Per group, the base is the latest checkpoint by offset (epochs wrap around). The deltas after it apply in log
order, and the later tuple of an offset wins. After each record the start moves past terminal offsets, and
offsets below the start are dropped. Offsets between the end and a tuple beyond it were never recorded: they
become available with delivery count 0. Records that a later checkpoint supersedes can be dropped before the
fold, after `find_mismatches` has compared the checkpoint with the chain before it.

A tree over the elementary ranges between all boundaries of a chain finds the last writer of each offset: a
tuple marks O(log n) nodes with its place in the log, and the greatest mark above an elementary range is its
last writer.

Source: KIP-932 draft (SHARE_CHECKPOINT, SHARE_DELTA, recovery).
"""

from dataclasses import dataclass

import numpy as np

from share_state.fold.interval_merge import append_range
from share_state.fold.state_chains import NO_OFFSET
from share_state.jit.compile import allocating_kernel, inlined, kernel
from share_state.kafka.control_records import (
    EPOCH_MODULUS,
    SUSPECT_CONTROL_FAULTS,
    UNREADABLE_CONTROL_FAULTS,
    ControlKind,
    ControlRecords,
    is_empty_range,
)
from share_state.kafka.delivery_states import ACQUIRED, AVAILABLE, is_terminal
from share_state.kafka.state_records import STATE_BATCH


@allocating_kernel
def boundaries(rows, tuples, order, begin, end, applied):
    """Sorted distinct offsets where ranges of one group begin or end; at least one."""
    capacity = np.int64(0)
    for place in range(begin, end):
        if applied[order[place]]:
            capacity += 2 * rows[order[place]].tuple_count + 2
    points = np.empty(capacity, np.int64)
    count = 0
    for place in range(begin, end):
        row = rows[order[place]]
        if not applied[order[place]]:
            continue
        if row.kind == ControlKind.CHECKPOINT:
            points[count], points[count + 1] = row.start_offset, max(row.start_offset, row.end_offset)
            count += 2
        for number in range(row.tuples, row.tuples + row.tuple_count):
            if not is_empty_range(tuples[number]):
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
def fold_record(row, tuples, points, ranges, writers, start, chain, note):
    """Fold one record; `start` and the result are the index of the chain's start in `points`."""
    if row.kind == ControlKind.CHECKPOINT:
        chain.start_offset, chain.end_offset = row.start_offset, max(row.start_offset, row.end_offset)
        start = np.searchsorted(points, chain.start_offset)
    old_end = new_end = chain.end_offset
    for number in range(row.tuples, row.tuples + row.tuple_count):
        if not is_empty_range(tuples[number]):
            new_end = max(new_end, tuples[number].last + 1)
    # A mark is even for a tuple and odd for the offsets that its record skips; it grows with the place in the
    # log.
    filling = 2 * row.tuples + 1
    from_place, to_place = np.searchsorted(points, old_end), np.searchsorted(points, new_end)
    if row.kind == ControlKind.DELTA and new_end > old_end:
        _mark(writers, ranges, from_place, to_place, filling)
    for number in range(row.tuples, row.tuples + row.tuple_count):
        batch = tuples[number]
        if is_empty_range(batch):
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
def emit_ranges(tuples, points, ranges, writers, start, chain, out, filled):
    """Write the ranges from start to end, and join adjacent equal ranges.

    Offsets without a writer stay gaps.
    """
    begin = filled
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
                # No broker writes ACQUIRED; use the state that a broker would have recorded.
                state, count = np.int8(AVAILABLE), np.int16(max(0, np.int64(count) - 1))
        filled = append_range(out, begin, filled, points[place], points[place + 1] - 1, state, count)
    return filled


@kernel
def _mark(writers, ranges, first, end, mark):
    """Mark the elementary ranges first to end (exclusive); marks grow from call to call."""
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
    """The greatest mark above an elementary range, 0 for none."""
    node = place + ranges
    mark = np.int64(0)
    while node >= 1:
        mark = max(mark, writers[node])
        node >>= 1
    return mark


CONTROL_CHAIN = np.dtype(
    [
        ("start_offset", "i8"),  # SPSO, after terminal offsets
        ("end_offset", "i8"),  # SPEO, exclusive
        ("snapshot_offset", "i8"),  # SCO: offset of the latest checkpoint
        ("last_offset", "i8"),  # offset of the last folded record
        ("newest_offset", "i8"),  # offset of the last record of the group, folded or not
        ("orphan_offset", "i8"),  # offset of the first delta, if there is no checkpoint
        ("stopped_offset", "i8"),  # offset of the first delta whose link to its predecessor is broken
        ("suspect_offset", "i8"),  # offset of an unreadable or invalid record since the checkpoint
        ("start_advanced_at", "i8"),  # ms, timestamp of the record that set the current start offset
        ("first_delivery_at", "i8"),  # ms, timestamp of the first record since then with a tuple; -1 for none
        (
            "last_consumed_at",
            "i8",
        ),  # ms, timestamp of the last delta; of the first checkpoint if there is none
        ("deltas", "i8"),  # number of folded deltas
        ("delivered", "i8"),  # number of offsets with a delivery in these deltas
        ("followers", "i8"),  # number of records of the group since its checkpoint, folded or not
        ("epoch", "i4"),  # epoch of the checkpoint
        ("exists", "?"),  # whether there is a checkpoint
    ]
)
"""One row per share group of the topic-partition."""

_TIMES = ("start_advanced_at", "first_delivery_at", "last_consumed_at")

INITIAL_CONTROL_CHAIN = np.zeros(1, CONTROL_CHAIN)[0]
"""The row of a share group before its first record."""
for _name in CONTROL_CHAIN.names or ():
    if _name.endswith(("_offset", "_at")):
        INITIAL_CONTROL_CHAIN[_name] = NO_OFFSET

FOLD_NOTE = np.dtype(
    [
        ("below_start", "i8"),  # number of offsets of its tuples before the start
        ("hole_first", "i8"),  # first and last offset after the end so far that no tuple covers
        ("hole_last", "i8"),
        ("hole_offsets", "i8"),  # number of such offsets
    ]
)
"""One row per record: irregularities found while folding it."""


@dataclass(slots=True)
class ControlChains:
    """The folded state of a topic-partition.

    Attributes:
        chains: CONTROL_CHAIN rows, row n for group number n.
        ends: int64; the ranges of number n are rows ends[n] to ends[n + 1] of `batches`.
        batches: STATE_BATCH rows, sorted, disjoint and joined within each group.
        notes: FOLD_NOTE, one row per folded record.
    """

    chains: np.ndarray
    ends: np.ndarray
    batches: np.ndarray
    notes: np.ndarray


def is_suspect(chains: np.ndarray, last_lost_offset: int = NO_OFFSET) -> np.ndarray:
    """Whether records that the state of each group depends on are missing, unreadable or invalid.

    A delta names its predecessor, so damage before the newest record of a group shows as a broken link.

    Args:
        chains: CONTROL_CHAIN rows.
        last_lost_offset: the latest offset from which records may be missing, -1 for none.
    Returns:
        bool, one per row.
    """
    is_broken = (chains["stopped_offset"] != NO_OFFSET) | (chains["suspect_offset"] != NO_OFFSET)
    return is_broken | (last_lost_offset > chains["newest_offset"])


def is_superseded(records: ControlRecords, groups: int) -> np.ndarray:
    """Bool per record: it belongs to no known group, or the latest readable checkpoint of its group supersedes it."""
    rows = records.rows
    of_group = rows["group"] >= 0
    checkpoint = (
        of_group & (rows["kind"] == ControlKind.CHECKPOINT) & (rows["fault"] & UNREADABLE_CONTROL_FAULTS == 0)
    )
    # The extra row is for records of no known group. Rows are in log order, so the last checkpoint of a group
    # wins.
    latest = np.full(groups + 1, NO_OFFSET, np.int64)
    latest[rows["group"][checkpoint]] = rows["offset"][checkpoint]
    return ~of_group | (rows["offset"] < latest[rows["group"]])


def fold_control(
    records: ControlRecords, groups: int, *, strict: bool = True, times: np.ndarray | None = None
) -> ControlChains:
    """Fold control records in log order per group; superseded records may be missing.

    Args:
        times: result of `find_mismatches`; without it, the chains hold no times.
        strict: stop at the first delta that does not name the record before it. If False, walk back from the
            newest delta as the draft's reader does: at a fork, fold the branch of the newest delta; where a
            predecessor is missing, continue with the record before it. Deltas of an older epoch are never
            folded.
    """
    rows = records.rows
    order = np.argsort(rows["group"], kind="stable")
    starts = np.searchsorted(rows["group"][order], np.arange(groups + 1))
    chains, notes = np.full(groups, INITIAL_CONTROL_CHAIN, CONTROL_CHAIN), np.zeros(len(rows), FOLD_NOTE)
    out = np.empty(2 * len(records.tuples) + 2 * groups, STATE_BATCH)
    ends = np.zeros(groups + 1, np.int64)
    applied = np.zeros(len(rows), np.bool_)
    if times is not None:
        for name in _TIMES:
            chains[name] = times[name]
    _follow(rows, order, starts, strict, chains, applied)
    _fold(rows, records.tuples, order, starts, applied, chains, notes, out, ends)
    return ControlChains(chains, ends, out[: ends[-1]].copy(), notes)


@allocating_kernel
def starts_in_log(chains, ends, batches, log_start):
    """Where a leader that loads each state starts: at or after the log start offset, past terminal offsets there.

    Returns:
        int64, one per group; its start_offset if the log contains that offset.
    """
    starts = chains["start_offset"].copy()
    for group in range(len(starts)):
        if starts[group] < 0 or starts[group] >= log_start:
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
    """Choose the records of each group to fold, and update its chain except for the ranges."""
    for group in range(len(chains)):
        base, previous = starts[group], np.int64(NO_OFFSET)
        for place in range(starts[group], starts[group + 1]):
            row = rows[order[place]]
            applied[order[place]], previous = follow_link(row, chains[group], previous, strict)
            if applied[order[place]] and row.kind == ControlKind.CHECKPOINT:
                base = place
        for place in range(starts[group], base):
            applied[order[place]] = False
        for place in range(base + 1, starts[group + 1]):
            row = rows[order[place]]
            if row.fault & UNREADABLE_CONTROL_FAULTS == 0:
                chains[group].last_consumed_at = row.timestamp
        if not strict and chains[group].stopped_offset != NO_OFFSET:
            _skip_other_branches(rows, order, base, starts[group + 1], applied, chains[group])


@kernel
def _skip_other_branches(rows, order, base, end, applied, chain):
    """Walk back from the newest delta to the checkpoint at `base`, and skip the records that are not on that path."""
    place = end - 1
    while place > base:
        row = rows[order[place]]
        first, stop = base, place
        while first < stop:
            middle = (first + stop) // 2
            if rows[order[middle]].offset < row.back_offset:
                first = middle + 1
            else:
                stop = middle
        is_found = first < place and rows[order[first]].offset == row.back_offset and applied[order[first]]
        if applied[order[place]] and is_found:
            for skipped in range(first + 1, place):
                applied[order[skipped]] = False
            place = first
        else:
            place -= 1
    chain.deltas = 0
    for place in range(base + 1, end):
        chain.deltas += applied[order[place]]


@inlined
def is_stale(row, chain):
    """Whether the epoch of a delta is before that of its chain."""
    return (row.epoch - chain.epoch) % EPOCH_MODULUS >= EPOCH_MODULUS // 2


@kernel
def follow_link(row, chain, previous, strict):
    """Update a chain by one record, except for its ranges.

    Args:
        row: CONTROL_RECORD; records come in log order.
        chain: CONTROL_CHAIN, updated.
        previous: offset that a delta must name: the last record that is not of an older epoch.
        strict: as for `fold_control`.
    Returns:
        (whether the record is folded, the offset that the next delta must name).
    """
    chain.newest_offset = row.offset
    is_readable = row.fault & UNREADABLE_CONTROL_FAULTS == 0
    if is_readable and row.kind == ControlKind.CHECKPOINT:
        chain.exists = True
        chain.orphan_offset = chain.stopped_offset = NO_OFFSET
        chain.epoch = row.epoch
        chain.snapshot_offset = chain.last_offset = row.offset
        chain.deltas = chain.followers = 0
        chain.suspect_offset = row.offset if row.fault & SUSPECT_CONTROL_FAULTS else NO_OFFSET
        return True, row.offset
    if not chain.exists:
        if is_readable and chain.orphan_offset == NO_OFFSET:
            chain.orphan_offset = row.offset
        return False, previous
    chain.followers += 1
    if not is_readable:
        chain.suspect_offset = row.offset
        return False, previous
    if is_stale(row, chain):
        return False, previous
    if chain.stopped_offset == NO_OFFSET and (row.epoch != chain.epoch or row.back_offset != previous):
        chain.stopped_offset = row.offset
    if strict and chain.stopped_offset != NO_OFFSET:
        return False, row.offset
    chain.last_offset = row.offset
    chain.deltas += 1
    if row.fault & SUSPECT_CONTROL_FAULTS:
        chain.suspect_offset = row.offset
    return True, row.offset


@allocating_kernel
def _fold(rows, tuples, order, starts, applied, chains, notes, out, ends):
    filled = np.int64(0)
    for group in range(len(chains)):
        chain = chains[group]
        if chain.exists:
            points = boundaries(rows, tuples, order, starts[group], starts[group + 1], applied)
            ranges = len(points) - 1
            writers = np.zeros(2 * ranges + 2, np.int64)
            start = first_delta_tuple = np.int64(0)
            for place in range(starts[group], starts[group + 1]):
                number = order[place]
                if applied[number]:
                    before = chain.start_offset
                    start = fold_record(
                        rows[number], tuples, points, ranges, writers, start, chain, notes[number]
                    )
                    if rows[number].kind == ControlKind.DELTA:
                        _note_progress(rows[number], chain, before)
                    else:
                        first_delta_tuple = rows[number].tuples + np.int64(rows[number].tuple_count)
            for place in range(ranges):
                writer = _writer(writers, ranges, place)
                if (
                    writer >= 2 * first_delta_tuple + 2
                    and writer & 1 == 0
                    and tuples[(writer - 2) // 2].count > 0
                ):
                    chain.delivered += points[place + 1] - points[place]
            filled = emit_ranges(tuples, points, ranges, writers, start, chain, out, filled)
        ends[group + 1] = filled


@kernel
def _note_progress(row, chain, before):
    if chain.start_offset != before:
        chain.start_advanced_at = row.timestamp
        chain.first_delivery_at = row.timestamp if chain.end_offset > chain.start_offset else NO_OFFSET
    elif chain.first_delivery_at == NO_OFFSET and row.tuple_count > 0:
        chain.first_delivery_at = row.timestamp


MISMATCH = np.dtype(
    [
        ("offset", "i8"),  # offset of the checkpoint
        ("start_before", "i8"),  # start offset of the chain before it
        ("start_offset", "i8"),  # start offset in the checkpoint
        ("first_forgotten", "i8"),
        ("forgotten", "i8"),  # number of offsets that are terminal in the chain, but not in the checkpoint
        ("group", "i4"),
    ]
)
"""One row per checkpoint that contradicts the chain before it."""


def find_mismatches(records: ControlRecords, times: np.ndarray) -> np.ndarray:
    """Find checkpoints that contradict the intact chain of their group before them: MISMATCH rows.

    Args:
        records: new records, and those of earlier calls that are not superseded.
        times: CONTROL_CHAIN, one row per group; the times and `snapshot_offset` of its latest checkpoint,
            updated.
    """
    rows = records.rows
    order = np.argsort(rows["group"], kind="stable")
    starts = np.searchsorted(rows["group"][order], np.arange(len(times) + 1))
    mismatches = np.zeros(int((rows["kind"] == ControlKind.CHECKPOINT).sum()), MISMATCH)
    initial = np.full(1, INITIAL_CONTROL_CHAIN)
    return mismatches[: _find_mismatches(rows, records.tuples, order, starts, initial, times, mismatches)]


@allocating_kernel
def _find_mismatches(rows, tuples, order, starts, initial, times, mismatches):
    count = 0
    applied = np.zeros(len(rows), np.bool_)
    pair = np.empty(2, CONTROL_CHAIN)
    for group in range(len(times)):
        pair[0] = initial[0]
        previous = np.int64(NO_OFFSET)
        base = np.int64(NO_OFFSET)
        for place in range(starts[group], starts[group + 1]):
            row, chain = rows[order[place]], pair[0]
            if row.fault & UNREADABLE_CONTROL_FAULTS == 0 and row.kind == ControlKind.CHECKPOINT:
                if row.offset == times[group].snapshot_offset:
                    _copy_times(times[group], chain)
                else:
                    pair[1], applied[order[place]] = initial[0], True
                    checkpoint_ranges = _state_of(rows, tuples, order, place, place + 1, applied, pair[1])
                    is_intact = (
                        base >= 0 and chain.stopped_offset == NO_OFFSET and chain.suspect_offset == NO_OFFSET
                    )
                    if base >= 0:
                        chain_ranges = _state_of(rows, tuples, order, base, place, applied, chain)
                        _compare(
                            chain_ranges,
                            chain.start_offset,
                            checkpoint_ranges,
                            pair[1].start_offset,
                            mismatches[count],
                        )
                    if is_intact and mismatches[count].forgotten:
                        mismatches[count].offset, mismatches[count].group = row.offset, row.group
                        mismatches[count].start_before = chain.start_offset
                        mismatches[count].start_offset = pair[1].start_offset
                        count += 1
                    elif base >= 0:
                        mismatches[count].forgotten = 0
                    if base < 0 or chain.start_offset != pair[1].start_offset:
                        chain.start_advanced_at, chain.first_delivery_at = row.timestamp, NO_OFFSET
                    if chain.first_delivery_at == NO_OFFSET and row.tuple_count > 0:
                        chain.first_delivery_at = row.timestamp
                    if chain.last_consumed_at == NO_OFFSET:
                        chain.last_consumed_at = row.timestamp
                    _copy_times(chain, times[group])
                    times[group].snapshot_offset = row.offset
                base = place
            elif row.fault & UNREADABLE_CONTROL_FAULTS == 0:
                chain.last_consumed_at = row.timestamp
            applied[order[place]], previous = follow_link(row, chain, previous, True)
    return count


@inlined
def _copy_times(source, target):
    target.start_advanced_at, target.first_delivery_at = source.start_advanced_at, source.first_delivery_at
    target.last_consumed_at = source.last_consumed_at


@allocating_kernel
def _state_of(rows, tuples, order, begin, end, applied, chain):
    """The ranges after a checkpoint and its applied deltas; updates start, end and times of the chain."""
    points = boundaries(rows, tuples, order, begin, end, applied)
    ranges = len(points) - 1
    start = np.int64(0)
    note = np.zeros(1, FOLD_NOTE)
    writers = np.zeros(2 * ranges + 2, np.int64)
    for place in range(begin, end):
        if applied[order[place]]:
            before = chain.start_offset
            start = fold_record(rows[order[place]], tuples, points, ranges, writers, start, chain, note[0])
            if place > begin:
                _note_progress(rows[order[place]], chain, before)
    out = np.empty(ranges + 1, STATE_BATCH)
    return out[: emit_ranges(tuples, points, ranges, writers, start, chain, out, 0)]


@kernel
def _compare(chain_ranges, start_before, checkpoint_ranges, start, mismatch):
    """Count the offsets at or after `start` that are terminal in `chain_ranges`, but not in `checkpoint_ranges`."""
    for number in range(-1, len(chain_ranges)):
        first, last = start, start_before - 1
        if number >= 0:
            if not is_terminal(chain_ranges[number].state):
                continue
            first, last = max(start, chain_ranges[number].first), chain_ranges[number].last
        row = 0
        while first <= last:
            while row < len(checkpoint_ranges) and (
                checkpoint_ranges[row].last < first or not is_terminal(checkpoint_ranges[row].state)
            ):
                row += 1
            end = min(last, checkpoint_ranges[row].first - 1) if row < len(checkpoint_ranges) else last
            if first <= end:
                if mismatch.forgotten == 0:
                    mismatch.first_forgotten = first
                mismatch.forgotten += end - first + 1
            first = checkpoint_ranges[row].last + 1 if row < len(checkpoint_ranges) else last + 1
