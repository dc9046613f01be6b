"""The ranges of one share-partition, kept canonical in place while its records are folded one by one.

The buffer, one array of STATE_BATCH rows, has three parts: the current ranges, the incoming ranges of a
record, and scratch space for the merge. The ranges of a list are sorted and disjoint, and adjacent ranges
differ in value. It is one array because each array argument of a compiled function costs as much as a few
ranges.
"""

import numpy as np

from share_state.fold.interval_merge import clip_ranges, priority, range_columns, sweep
from share_state.fold.outcomes import count_outcome
from share_state.jit.compile import allocating_kernel, inlined, kernel
from share_state.jit.intrinsics import copy_rows
from share_state.kafka.delivery_states import ARCHIVING, AVAILABLE, is_illegal_transition, is_terminal
from share_state.kafka.state_records import LARGEST_OFFSET, STATE_BATCH

UNCOVERED = -(2**31)
"""Priority of an offset that no range covers: less than any other priority."""


_ROWS_PER_RANGE = 6
"""Each third must hold twice as many ranges as the input: a wide range may fill the gaps between all
others."""


@inlined
def has_capacity(buffer, size, count):
    """Whether a buffer is large enough for `size` ranges and a record of `count` ranges."""
    return _ROWS_PER_RANGE * (size + np.int64(count) + 1) <= len(buffer)


@allocating_kernel
def ensure_capacity(buffer, size, count):
    """A buffer for `size` ranges and a record of `count` ranges; the current ranges are copied."""
    if has_capacity(buffer, size, count):
        return buffer
    larger = np.empty(2 * _ROWS_PER_RANGE * (size + count + 1), STATE_BATCH)
    for row in range(size):
        larger[row] = buffer[row]
    return larger


@inlined
def load_incoming(batches, begin, end, cut, buffer):
    """Write the ranges of a record to the second third of the buffer, in canonical form.

    Args:
        batches: STATE_BATCH rows; the record has rows `begin` to `end`, in any order.
        cut: offsets below it are dropped; -1 for none.
    Returns:
        Row after the last one written.
    """
    at = start = len(buffer) // 3
    for number in range(begin, end):
        first, last = batches[number].first, batches[number].last
        # An inverted range covers no offset. The broker hangs or fails on it, and a rule reports it.
        if first > last or last == LARGEST_OFFSET or (cut != -1 and last < cut):
            continue
        if cut != -1:
            first = max(first, cut)
        if at > start and first <= buffer[at - 1].last:
            return _load_swept(batches, begin, end, cut, buffer)
        at = _append(buffer, start, at, first, last, batches[number].count, batches[number].state)
    return at


@allocating_kernel
def _load_swept(batches, begin, end, cut, buffer):
    """Like `load_incoming`, for ranges that overlap or are out of order.

    No released coordinator writes them.
    """
    first, last, packed = range_columns(end - begin)
    size = clip_ranges(batches, begin, end, cut, first, last, packed, np.int64(0))
    return sweep(first, last, packed, size, *range_columns(end - begin), buffer, len(buffer) // 3)


@inlined
def replace_with_incoming(buffer, end):
    """Replace the current ranges by the incoming ranges, up to row `end`; returns their number."""
    begin = len(buffer) // 3
    copy_rows(buffer, begin, buffer, 0, end - begin)
    return end - begin


@inlined
def drop_below(buffer, size, start, counted):
    """Drop the offsets before `start` from the current ranges; none if it is negative.

    Args:
        counted: first offset of the terminal offsets that are counted so far.
    Returns:
        (number of ranges left, number of dropped terminal offsets at or after `counted`).
    """
    terminal = np.int64(0)
    if start < 0 or size == 0 or buffer[0].first >= start:
        return size, terminal
    dropped = 0
    while dropped < size and buffer[dropped].last < start:
        terminal += _terminal_in(buffer[dropped].first, buffer[dropped].last, buffer[dropped].state, counted)
        dropped += 1
    if dropped > 0:
        size -= dropped
        copy_rows(buffer, dropped, buffer, 0, size)
    if size > 0 and buffer[0].first < start:
        terminal += _terminal_in(buffer[0].first, start - 1, buffer[0].state, counted)
        buffer[0].first = start
    return size, terminal


@inlined
def merge_incoming(buffer, size, incoming_end, start, outcome):
    """Set each offset to the greater of its current and incoming value.

    Args:
        start: terminal offsets are counted from this offset on.
        outcome: OUTCOMES row (`outcomes`); the offsets whose state changes are counted in it.
    Returns:
        (number of ranges, number of additional terminal offsets, then the result of
        `first_illegal_transition`).
    """
    incoming, spare = len(buffer) // 3, 2 * (len(buffer) // 3)
    terminal, row = np.int64(0), np.int64(0)
    illegal = np.int64(-1)
    illegal_from = np.int32(UNCOVERED)
    illegal_to = np.int32(UNCOVERED)
    # Only ranges that overlap or touch the incoming ones can change: they are rebuilt in the last third.
    while incoming < incoming_end and row < size and buffer[row].last < buffer[incoming].first:
        row += 1
    begin = max(row - 1, 0)
    filled = spare + row - begin
    copy_rows(buffer, begin, buffer, spare, row - begin)
    for new in range(incoming, incoming_end):
        first, last = buffer[new].first, buffer[new].last
        count, state = buffer[new].count, buffer[new].state
        passed = row
        while row < size and buffer[row].last < first:
            row += 1
        if passed < row:
            filled = _append(
                buffer,
                spare,
                filled,
                buffer[passed].first,
                buffer[passed].last,
                buffer[passed].count,
                buffer[passed].state,
            )
            copy_rows(buffer, passed + 1, buffer, filled, row - passed - 1)
            filled += row - passed - 1
        if illegal < 0:
            illegal, illegal_from, illegal_to = _illegal_transition(buffer, row, size, new)
        while row < size and buffer[row].first <= last:
            held_count, held_state = buffer[row].count, buffer[row].state
            if buffer[row].first < first:
                filled = _append(buffer, spare, filled, buffer[row].first, first - 1, held_count, held_state)
            elif first < buffer[row].first:
                terminal += _terminal_in(first, buffer[row].first - 1, state, start)
                count_outcome(outcome, first, buffer[row].first - 1, 0, AVAILABLE, count, state)
                filled = _append(buffer, spare, filled, first, buffer[row].first - 1, count, state)
                first = buffer[row].first
            end = min(buffer[row].last, last)
            if priority(held_count, held_state) < priority(count, state):
                terminal += _terminal_in(first, end, state, start) - _terminal_in(
                    first, end, held_state, start
                )
                count_outcome(outcome, first, end, held_count, held_state, count, state)
                filled = _append(buffer, spare, filled, first, end, count, state)
            else:
                filled = _append(buffer, spare, filled, first, end, held_count, held_state)
            first = end + 1
            if buffer[row].last > end:
                # The next incoming range may overlap the rest of this range.
                buffer[row].first = first
                break
            row += 1
        if first <= last:
            terminal += _terminal_in(first, last, state, start)
            count_outcome(outcome, first, last, 0, AVAILABLE, count, state)
            filled = _append(buffer, spare, filled, first, last, count, state)
    if (
        row < size
        and filled > spare
        and _continues(buffer, filled - 1, buffer[row].first, buffer[row].count, buffer[row].state)
    ):
        buffer[filled - 1].last = buffer[row].last
        row += 1
    copy_rows(buffer, row, buffer, begin + filled - spare, size - row)
    copy_rows(buffer, spare, buffer, begin, filled - spare)
    return begin + filled - spare + size - row, terminal, illegal, illegal_from, illegal_to


@inlined
def _terminal_in(first, last, state, start):
    """Number of terminal offsets of a range from `start` on."""
    # Without a branch: which ranges are terminal is unpredictable.
    return max(last - max(first, start) + 1, 0) * is_terminal(state)


@inlined
def _first_ending_from(buffer, begin, end, offset):
    """The first row of a list whose range ends at or after `offset`."""
    while begin < end:
        middle = (begin + end) >> 1
        if buffer[middle].last < offset:
            begin = middle + 1
        else:
            end = middle
    return begin


@inlined
def _append(buffer, begin, filled, first, last, count, state):
    """Append a range, joined to the last one if it continues it."""
    if filled > begin and _continues(buffer, filled - 1, first, count, state):
        buffer[filled - 1].last = last
        return filled
    buffer[filled].first = first
    buffer[filled].last = last
    buffer[filled].count = count
    buffer[filled].state = state
    return filled + 1


@inlined
def _continues(buffer, row, first, count, state):
    return buffer[row].last == first - 1 and buffer[row].count == count and buffer[row].state == state


@inlined
def first_illegal_transition(buffer, size, incoming_end):
    """The first offset that the incoming ranges move out of a state that it cannot leave.

    Returns:
        (first such offset or -1, its current priority, its incoming priority).
    """
    row = 0
    for new in range(len(buffer) // 3, incoming_end):
        while row < size and buffer[row].last < buffer[new].first:
            row += 1
        transition = _illegal_transition(buffer, row, size, new)
        if transition[0] >= 0:
            return transition
    return np.int64(-1), np.int32(UNCOVERED), np.int32(UNCOVERED)


@inlined
def _illegal_transition(buffer, row, size, new):
    """`first_illegal_transition` for one incoming range.

    `row` is the first current range that ends in or after it.
    """
    while row < size and buffer[row].first <= buffer[new].last:
        if is_illegal_transition(buffer[row].state, buffer[row].count, buffer[new].state, buffer[new].count):
            return (
                max(buffer[row].first, buffer[new].first),
                priority(buffer[row].count, buffer[row].state),
                priority(buffer[new].count, buffer[new].state),
            )
        row += 1
    return np.int64(-1), np.int32(UNCOVERED), np.int32(UNCOVERED)


@kernel
def first_difference(buffer, size, incoming_end):
    """The first offset whose value differs between the current and the incoming ranges.

    Returns:
        (that offset or -1, its current priority, its incoming priority); UNCOVERED if no range covers it.
    """
    row, incoming = 0, len(buffer) // 3
    difference = np.int64(-1)
    while row < size and incoming < incoming_end:
        if buffer[row].first != buffer[incoming].first:
            difference = min(buffer[row].first, buffer[incoming].first)
            break
        if buffer[row].count != buffer[incoming].count or buffer[row].state != buffer[incoming].state:
            difference = buffer[row].first
            break
        if buffer[row].last != buffer[incoming].last:
            difference = min(buffer[row].last, buffer[incoming].last) + 1
            break
        row += 1
        incoming += 1
    else:
        if row == size and incoming == incoming_end:
            return np.int64(-1), np.int32(UNCOVERED), np.int32(UNCOVERED)
        difference = buffer[row].first if row < size else buffer[incoming].first
    return (
        difference,
        _value_at(buffer, 0, size, difference),
        _value_at(buffer, len(buffer) // 3, incoming_end, difference),
    )


@kernel
def first_lowered(buffer, size, incoming_end, start):
    """The first offset from `start` on whose incoming value is lower; result as for `first_difference`."""
    incoming = len(buffer) // 3
    for row in range(size):
        if buffer[row].last < start:
            continue
        value = priority(buffer[row].count, buffer[row].state)
        at = max(buffer[row].first, start)
        while at <= buffer[row].last:
            while incoming < incoming_end and buffer[incoming].last < at:
                incoming += 1
            if incoming == incoming_end or buffer[incoming].first > at:
                return at, value, np.int32(UNCOVERED)
            incoming_value = priority(buffer[incoming].count, buffer[incoming].state)
            if incoming_value < value:
                return at, value, incoming_value
            at = buffer[incoming].last + 1
    return np.int64(-1), np.int32(UNCOVERED), np.int32(UNCOVERED)


@kernel
def _value_at(buffer, begin, end, offset):
    row = _first_ending_from(buffer, begin, end, offset)
    if row < end and buffer[row].first <= offset:
        return priority(buffer[row].count, buffer[row].state)
    return np.int32(UNCOVERED)


@kernel
def first_archiving(buffer, size, start, end):
    """The first offset in [start, end) whose current state is ARCHIVING; -1 for none."""
    for row in range(size):
        if buffer[row].first >= end:
            break
        if buffer[row].state == ARCHIVING and buffer[row].last >= start:
            at = max(buffer[row].first, start)
            if at < end:
                return at
    return np.int64(-1)


@kernel
def first_unfinished(buffer, size, start):
    """The first offset from `start` on that is not terminal: where a leader starts that loads these ranges."""
    offset = start
    for row in range(size):
        if buffer[row].last < offset:
            continue
        if buffer[row].first > offset or not is_terminal(buffer[row].state):
            break
        offset = buffer[row].last + 1
    return offset


@inlined
def count_terminal(buffer, begin, end, start):
    """Number of terminal offsets from `start` on in rows `begin` to `end`."""
    total = np.int64(0)
    for row in range(begin, end):
        total += _terminal_in(buffer[row].first, buffer[row].last, buffer[row].state, start)
    return total


@inlined
def count_covered(buffer, size, start):
    """Number of offsets from `start` on in the first `size` rows."""
    total = np.int64(0)
    for row in range(size):
        total += max(np.int64(0), buffer[row].last - max(buffer[row].first, start) + 1)
    return total
