"""The ranges of one share-partition, kept canonical in place while its records come in one by one: cut, raise, compare.

All of them live in one array of STATE_BATCH rows, the room: a third for the ranges held, a third for those of one
record, a third to merge them in. Lists in it are (first row, row behind the last), sorted, disjoint, and no two ranges
that touch have one value. One array, because each array handed to a compiled function costs as much as a few ranges.
"""

import numpy as np

from share_state.fold.interval_merge import (
    ACKNOWLEDGED,
    ARCHIVING,
    AVAILABLE,
    is_terminal,
    priority,
    range_columns,
    sweep,
)
from share_state.jit.compile import allocating_kernel, inlined, kernel
from share_state.kafka.buffers import move_rows
from share_state.kafka.state_records import LARGEST_OFFSET, STATE_BATCH

UNCOVERED = -(2**31)
"""In place of a priority: no range covers the offset. Less than any priority."""


_ROWS_A_RANGE = 6
"""Each third must take twice as many ranges as go in: a wide range may fill the gaps between all the others."""


@inlined
def fits(room, size, count):
    """Whether a room is large enough for `size` ranges and one record of `count` more."""
    return _ROWS_A_RANGE * (size + np.int64(count) + 1) <= len(room)


@allocating_kernel
def fitting(room, size, count):
    """A room for `size` ranges and one record of `count` more; the ranges held are kept.

    Args:
        room: the room so far.
        size: ranges held.
        count: state batches of the record.
    """
    if fits(room, size, count):
        return room
    larger = np.empty(2 * _ROWS_A_RANGE * (size + count + 1), STATE_BATCH)
    for row in range(size):
        larger[row] = room[row]
    return larger


@inlined
def take_in(batches, begin, end, cut, room):
    """Put the ranges of one record into the second third of the room, canonical.

    Args:
        batches: STATE_BATCH rows; those of the record are rows `begin` to `end`, in any order.
        cut: offset below which nothing counts; -1 for none.
    Returns:
        Row behind the last.
    """
    at = start = len(room) // 3
    for number in range(begin, end):
        first, last = batches[number].first, batches[number].last
        # An inverted range covers nothing; the broker hangs or fails on it, and a rule says so.
        if first > last or last == LARGEST_OFFSET or (cut != -1 and last < cut):
            continue
        if cut != -1:
            first = max(first, cut)
        if at > start and first <= room[at - 1].last:
            return _take_in_swept(batches, begin, end, cut, room)
        at = _append(room, start, at, first, last, batches[number].count, batches[number].state)
    return at


@allocating_kernel
def _take_in_swept(batches, begin, end, cut, room):
    """As `take_in`, where ranges overlap or are out of order, which no coordinator of a release writes."""
    first, last, packed = range_columns(end - begin)
    size = 0
    for number in range(begin, end):
        batch = batches[number]
        if batch.first > batch.last or batch.last == LARGEST_OFFSET or (cut != -1 and batch.last < cut):
            continue
        first[size] = max(batch.first, cut) if cut != -1 else batch.first
        last[size] = batch.last
        packed[size] = priority(batch.count, batch.state)
        size += 1
    return sweep(first, last, packed, size, *range_columns(end - begin), room, len(room) // 3)


@inlined
def hold(room, end):
    """Let the ranges taken in, up to row `end`, be the ranges held; returns how many there are."""
    begin = len(room) // 3
    move_rows(room, begin, room, 0, end - begin)
    return end - begin


@inlined
def cut_below(room, size, start, counted):
    """Drop what lies before `start` of the ranges held (negative: nothing).

    Args:
        counted: the offset from which on finished offsets were counted so far.
    Returns:
        (how many ranges are left, how many finished offsets from `counted` on went).
    """
    finished = np.int64(0)
    if start < 0 or size == 0 or room[0].first >= start:
        return size, finished
    dropped = 0
    while dropped < size and room[dropped].last < start:
        finished += _finished(room[dropped].first, room[dropped].last, room[dropped].state, counted)
        dropped += 1
    if dropped > 0:
        size -= dropped
        move_rows(room, dropped, room, 0, size)
    if size > 0 and room[0].first < start:
        finished += _finished(room[0].first, start - 1, room[0].state, counted)
        room[0].first = start
    return size, finished


@inlined
def raise_to(room, size, incoming_end, start):
    """Let each offset have the greater of its values as held and as taken in.

    Args:
        start: finished offsets count from here on.
    Returns:
        (how many ranges are held, how many finished offsets more, then as of `first_left`).
    """
    incoming, spare = len(room) // 3, 2 * (len(room) // 3)
    finished, row = np.int64(0), np.int64(0)
    left, left_from, left_to = np.int64(-1), np.int32(UNCOVERED), np.int32(UNCOVERED)
    # Only what overlaps or touches the incoming ranges can change: it is made anew in the last third.
    while incoming < incoming_end and row < size and room[row].last < room[incoming].first:
        row += 1
    begin = max(row - 1, 0)
    made = spare + row - begin
    move_rows(room, begin, room, spare, row - begin)
    for new in range(incoming, incoming_end):
        first, last = room[new].first, room[new].last
        count, state = room[new].count, room[new].state
        passed = row
        while row < size and room[row].last < first:
            row += 1
        if passed < row:
            made = _append(
                room, spare, made, room[passed].first, room[passed].last, room[passed].count, room[passed].state
            )
            move_rows(room, passed + 1, room, made, row - passed - 1)
            made += row - passed - 1
        if left < 0:
            left, left_from, left_to = _left(room, row, size, new)
        while row < size and room[row].first <= last:
            held_count, held_state = room[row].count, room[row].state
            if room[row].first < first:
                made = _append(room, spare, made, room[row].first, first - 1, held_count, held_state)
            elif first < room[row].first:
                finished += _finished(first, room[row].first - 1, state, start)
                made = _append(room, spare, made, first, room[row].first - 1, count, state)
                first = room[row].first
            end = min(room[row].last, last)
            if priority(held_count, held_state) < priority(count, state):
                finished += _finished(first, end, state, start) - _finished(first, end, held_state, start)
                made = _append(room, spare, made, first, end, count, state)
            else:
                made = _append(room, spare, made, first, end, held_count, held_state)
            first = end + 1
            if room[row].last > end:
                # The rest of it is for the next one.
                room[row].first = first
                break
            row += 1
        if first <= last:
            finished += _finished(first, last, state, start)
            made = _append(room, spare, made, first, last, count, state)
    if row < size and made > spare and _carries_on(room, made - 1, room[row].first, room[row].count, room[row].state):
        room[made - 1].last = room[row].last
        row += 1
    move_rows(room, row, room, begin + made - spare, size - row)
    move_rows(room, spare, room, begin, made - spare)
    return begin + made - spare + size - row, finished, left, left_from, left_to


@inlined
def _finished(first, last, state, start):
    """How many offsets from `start` on a range finishes: as acknowledged or archived."""
    # Without a branch: which ranges are terminal cannot be foretold.
    return max(last - max(first, start) + 1, 0) * is_terminal(state)


@inlined
def _first_ending_from(room, begin, end, offset):
    """The first row of a list that ends at or after `offset`."""
    while begin < end:
        middle = (begin + end) >> 1
        if room[middle].last < offset:
            begin = middle + 1
        else:
            end = middle
    return begin


@inlined
def _append(room, begin, made, first, last, count, state):
    """Write a range behind the ones made so far, joined to the last of them where it carries on."""
    if made > begin and _carries_on(room, made - 1, first, count, state):
        room[made - 1].last = last
        return made
    room[made].first, room[made].last, room[made].count, room[made].state = first, last, count, state
    return made + 1


@inlined
def _carries_on(room, row, first, count, state):
    return room[row].last == first - 1 and room[row].count == count and room[row].state == state


@inlined
def first_left(room, size, incoming_end):
    """Where the ranges taken in say that an offset leaves a state that nothing leaves.

    An acknowledged or archived offset comes back (to a higher count, or to ARCHIVING where it was acknowledged) or
    becomes the other of the two; an archiving offset becomes available or acknowledged.

    Returns:
        (first such offset or -1, its priority as held, the incoming priority).
    """
    row = 0
    for new in range(len(room) // 3, incoming_end):
        while row < size and room[row].last < room[new].first:
            row += 1
        found = _left(room, row, size, new)
        if found[0] >= 0:
            return found
    return np.int64(-1), np.int32(UNCOVERED), np.int32(UNCOVERED)


@inlined
def _left(room, row, size, new):
    """`first_left` for one range taken in; the first range held that ends in it or behind it is `row`."""
    while row < size and room[row].first <= room[new].last:
        if _leaves(room[row].state, room[row].count, room[new].state, room[new].count):
            return (
                max(room[row].first, room[new].first),
                priority(room[row].count, room[row].state),
                priority(room[new].count, room[new].state),
            )
        row += 1
    return np.int64(-1), np.int32(UNCOVERED), np.int32(UNCOVERED)


@inlined
def _leaves(old_state, old_count, new_state, new_count):
    if new_state == old_state or new_count < old_count:
        return False
    if old_state == ARCHIVING:
        return new_state == AVAILABLE or new_state == ACKNOWLEDGED
    if not is_terminal(old_state):
        return False
    if is_terminal(new_state):
        return True
    # AVAILABLE at the same count is an older write that comes late: it changes nothing.
    return new_count > old_count or (new_state == ARCHIVING and old_state == ACKNOWLEDGED)


@kernel
def first_difference(room, size, incoming_end):
    """The first offset that has another value in the ranges taken in than in those held.

    Returns:
        (that offset or -1, its priority as held, the incoming priority; UNCOVERED where no range covers it).
    """
    one, other = 0, len(room) // 3
    at = np.int64(-1)
    while one < size and other < incoming_end:
        if room[one].first != room[other].first:
            at = min(room[one].first, room[other].first)
            break
        if room[one].count != room[other].count or room[one].state != room[other].state:
            at = room[one].first
            break
        if room[one].last != room[other].last:
            at = min(room[one].last, room[other].last) + 1
            break
        one += 1
        other += 1
    else:
        if one == size and other == incoming_end:
            return np.int64(-1), np.int32(UNCOVERED), np.int32(UNCOVERED)
        at = room[one].first if one < size else room[other].first
    return at, _value_at(room, 0, size, at), _value_at(room, len(room) // 3, incoming_end, at)


@kernel
def first_lowered(room, size, incoming_end, start):
    """The first offset from `start` on whose value is lower as taken in; returned as by `first_difference`."""
    other = len(room) // 3
    for row in range(size):
        if room[row].last < start:
            continue
        here = priority(room[row].count, room[row].state)
        at = max(room[row].first, start)
        while at <= room[row].last:
            while other < incoming_end and room[other].last < at:
                other += 1
            if other == incoming_end or room[other].first > at:
                return at, here, np.int32(UNCOVERED)
            there = priority(room[other].count, room[other].state)
            if there < here:
                return at, here, there
            at = room[other].last + 1
    return np.int64(-1), np.int32(UNCOVERED), np.int32(UNCOVERED)


@kernel
def _value_at(room, begin, end, offset):
    row = _first_ending_from(room, begin, end, offset)
    if row < end and room[row].first <= offset:
        return priority(room[row].count, room[row].state)
    return np.int32(UNCOVERED)


@kernel
def first_archiving(room, size, start, end):
    """The first offset held in state ARCHIVING from `start` on and before `end`; -1 for none."""
    for row in range(size):
        if room[row].first >= end:
            break
        if room[row].state == ARCHIVING and room[row].last >= start:
            at = max(room[row].first, start)
            if at < end:
                return at
    return np.int64(-1)


@inlined
def finished_among(room, begin, end, start):
    """How many offsets from `start` on rows `begin` to `end` hold as acknowledged or archived."""
    total = np.int64(0)
    for row in range(begin, end):
        total += _finished(room[row].first, room[row].last, room[row].state, start)
    return total
