"""Which record wrote each offset of a share group last: the ranges that control records leave behind.

The writer of an offset is found in a tree over the elementary ranges between all boundaries of a chain: a tuple marks
O(log n) nodes with its place in the log, and the greatest mark above an elementary range is its last writer.

Source: KIP-932 draft (SHARE_CHECKPOINT, SHARE_DELTA).
"""

import numpy as np

from share_state.fold.ranges import ACQUIRED, AVAILABLE, is_terminal
from share_state.wire.compiled import allocating_kernel, kernel
from share_state.wire.control_records import ControlKind, covers_nothing


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
