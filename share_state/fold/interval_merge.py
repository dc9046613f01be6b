"""Merges overlapping ranges: each offset has the greatest (delivery count, delivery state) of the ranges that cover it.

The second half derives from merged ranges what a leader that loads them uses: start, end and in-flight
window.

Source: Kafka PersisterStateBatchCombiner of 4.4 (a sweep line); earlier releases give the same value for each
offset.
"""

import numpy as np

from share_state.jit.compile import allocating_kernel, inlined, kernel
from share_state.kafka.delivery_states import AVAILABLE, is_terminal
from share_state.kafka.state_records import LARGEST_OFFSET

_FEW = 128
"""Runs of this many ranges are sorted by insertion and then merged."""


@inlined
def priority(count, state):
    """(delivery count, delivery state), both signed, as one integer of the same order."""
    return (np.int32(count) << np.int32(8)) + np.int32(state)


@inlined
def count_of(packed):
    """The delivery count in a priority."""
    return np.int16((packed + np.int32(128)) >> np.int32(8))


@inlined
def state_of(packed):
    """The delivery state in a priority."""
    return np.int8(packed - (((packed + np.int32(128)) >> np.int32(8)) << np.int32(8)))


@inlined
def range_columns(size):
    """Empty columns for `size` ranges: first offsets, last offsets, priorities."""
    return np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int32)


@kernel
def sweep(first, last, packed, size, spare_first, spare_last, spare_packed, out, filled):
    """Merge `size` ranges into canonical ranges, written to `out` from row `filled` on.

    Args:
        first, last: int64 offsets, inclusive, first <= last < 2^63 - 1; any order, overlaps allowed.
        packed: int32 priorities.
        spare_first, spare_last, spare_packed: scratch space of the same types, `size` entries each.
        out: STATE_BATCH rows with space for 2 * size more.
    Returns:
        Row of `out` after the last one written. The rows are sorted and disjoint, and adjacent ones differ in
        value.
    """
    if size == 0:
        return filled
    if _is_sorted(first, last, size):
        return _join(first, last, packed, size, out, filled)
    _sort(first, last, packed, size, spare_first, spare_last, spare_packed)
    heap_packed, heap_last = spare_packed, spare_last
    start = filled
    heaped = 0
    taken = 0
    x = first[0]
    while taken < size or heaped > 0:
        if heaped == 0:
            x = first[taken]
            if taken + 1 == size or first[taken + 1] > last[taken]:
                filled = append_range(
                    out, start, filled, x, last[taken], state_of(packed[taken]), count_of(packed[taken])
                )
                taken += 1
                continue
        while taken < size and first[taken] <= x:
            heaped = _push(heap_packed, heap_last, heaped, packed[taken], last[taken])
            taken += 1
        while heaped > 0 and heap_last[0] < x:
            heaped = _pop(heap_packed, heap_last, heaped)
        if heaped == 0:
            continue
        top, end = heap_packed[0], heap_last[0]
        # A range that starts inside the top range with a lower priority is hidden until the top range ends.
        while taken < size and first[taken] <= end:
            if packed[taken] > top:
                end = first[taken] - 1
                break
            if last[taken] > end:
                heaped = _push(heap_packed, heap_last, heaped, packed[taken], last[taken])
            taken += 1
        filled = append_range(out, start, filled, x, end, state_of(top), count_of(top))
        x = end + 1
    return filled


@kernel
def _sort(first, last, packed, size, spare_first, spare_last, spare_packed):
    """Sort by first offset, in place: most inputs are a long sorted run and a few others."""
    for begin in range(0, size, _FEW):
        _insert(first, last, packed, begin, min(begin + _FEW, size))
    width, swapped = _FEW, False
    while width < size:
        for begin in range(0, size, 2 * width):
            middle, end = min(begin + width, size), min(begin + 2 * width, size)
            if swapped:
                _merge(spare_first, spare_last, spare_packed, begin, middle, end, first, last, packed)
            else:
                _merge(first, last, packed, begin, middle, end, spare_first, spare_last, spare_packed)
        width, swapped = 2 * width, not swapped
    if swapped:
        for row in range(size):
            first[row] = spare_first[row]
            last[row] = spare_last[row]
            packed[row] = spare_packed[row]


@kernel
def _insert(first, last, packed, begin, end):
    for row in range(begin + 1, end):
        moved_first = first[row]
        if moved_first >= first[row - 1]:
            continue
        moved_last, moved_packed = last[row], packed[row]
        free = row
        while free > begin and first[free - 1] > moved_first:
            first[free] = first[free - 1]
            last[free] = last[free - 1]
            packed[free] = packed[free - 1]
            free -= 1
        first[free] = moved_first
        last[free] = moved_last
        packed[free] = moved_packed


@kernel
def _merge(first, last, packed, begin, middle, end, to_first, to_last, to_packed):
    """Merge the runs [begin, middle) and [middle, end) into the same rows of `to_...`."""
    one, other = begin, middle
    for to in range(begin, end):
        if other == end or (one < middle and first[one] <= first[other]):
            taken = one
            one += 1
        else:
            taken = other
            other += 1
        to_first[to] = first[taken]
        to_last[to] = last[taken]
        to_packed[to] = packed[taken]


@kernel
def _is_sorted(first, last, size):
    for row in range(1, size):
        if first[row] <= last[row - 1]:
            return False
    return True


@kernel
def _join(first, last, packed, size, out, at):
    start = at
    for row in range(size):
        at = append_range(out, start, at, first[row], last[row], state_of(packed[row]), count_of(packed[row]))
    return at


@kernel
def append_range(out, begin, at, first, last, state, count):
    """Append a range to rows `begin` to `at`, joined to the last if it continues it; returns their end."""
    if (
        at > begin
        and out[at - 1].last == first - 1
        and out[at - 1].count == count
        and out[at - 1].state == state
    ):
        out[at - 1].last = last
        return at
    out[at].first = first
    out[at].last = last
    out[at].count = count
    out[at].state = state
    return at + 1


@kernel
def _push(heap_packed, heap_last, size, packed, last):
    """Push to a max-heap ordered by priority, then last offset."""
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if heap_packed[parent] > packed or (heap_packed[parent] == packed and heap_last[parent] >= last):
            break
        heap_packed[child], heap_last[child] = heap_packed[parent], heap_last[parent]
        child = parent
    heap_packed[child], heap_last[child] = packed, last
    return size + 1


@kernel
def _pop(heap_packed, heap_last, size):
    size -= 1
    packed, last = heap_packed[size], heap_last[size]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            heap_packed[right] > heap_packed[child]
            or (heap_packed[right] == heap_packed[child] and heap_last[right] > heap_last[child])
        ):
            child = right
        if packed > heap_packed[child] or (packed == heap_packed[child] and last >= heap_last[child]):
            break
        heap_packed[parent], heap_last[parent] = heap_packed[child], heap_last[child]
        parent = child
    if size > 0:
        heap_packed[parent], heap_last[parent] = packed, last
    return size


TILE = np.dtype([("first", "i8"), ("last", "i8"), ("count", "i2"), ("state", "i1"), ("gap", "?")], align=True)
"""One row per in-flight range."""


@allocating_kernel
def effective_starts(start_offsets, ends, batches):
    """Where a leader that loads each state starts: after the terminal ranges that begin at the start offset.

    Args:
        start_offsets: int64, one per share-partition; -1 if not initialized.
        ends: int64, batches of number n are rows ends[n] to ends[n + 1].
        batches: canonical STATE_BATCH rows.
    Returns:
        int64, one per share-partition; start_offsets[n] if there are no such ranges, or if a range begins
        before the start (the broker refuses to load such a state).
    Source: Kafka SharePartition.maybeInitialize.
    """
    effective = start_offsets.copy()
    for number in range(len(start_offsets)):
        begin, end = ends[number], ends[number + 1]
        if start_offsets[number] < 0 or begin == end or batches[begin].first < start_offsets[number]:
            continue
        for row in range(begin, end):
            if batches[row].first != effective[number] or not is_terminal(batches[row].state):
                break
            effective[number] = batches[row].last + 1
    return effective


@allocating_kernel
def has_terminal_after_start(start_offsets, ends, batches):
    """bool, one per share-partition: whether it has a terminal range after the start offset."""
    finished = np.zeros(len(start_offsets), np.bool_)
    for number in range(len(start_offsets)):
        for row in range(ends[number], ends[number + 1]):
            if is_terminal(batches[row].state) and batches[row].first > start_offsets[number]:
                finished[number] = True
                break
    return finished


@allocating_kernel
def end_offsets(start_offsets, ends, batches):
    """SPEO of each share-partition: the offset after its last range, else its start.

    -1 if not initialized.
    """
    result = start_offsets.copy()
    for number in range(len(start_offsets)):
        if start_offsets[number] < 0:
            result[number] = -1
        elif ends[number + 1] > ends[number]:
            result[number] = max(start_offsets[number], batches[ends[number + 1] - 1].last + 1)
    return result


@allocating_kernel
def tiles(start_offsets, ends, batches):
    """Split [start, end) of each share-partition into adjacent ranges; offsets that no batch covers are gaps.

    Returns:
        (int64 tile_ends, TILE rows): the tiles of number n are rows tile_ends[n] to tile_ends[n + 1].
    """
    out = np.empty(2 * len(batches), TILE)
    tile_ends = np.zeros(len(start_offsets) + 1, np.int64)
    at = 0
    for number in range(len(start_offsets)):
        expected = start_offsets[number]
        for row in range(ends[number], ends[number + 1]):
            batch = batches[row]
            if start_offsets[number] < 0 or batch.last < expected:
                continue
            if batch.first > expected:
                at = _tile(out, at, expected, batch.first - 1, AVAILABLE, 0, True)
            at = _tile(out, at, max(batch.first, expected), batch.last, batch.state, batch.count, False)
            expected = batch.last + 1
        tile_ends[number + 1] = at
    return tile_ends, out[:at]


@kernel
def _tile(out, at, first, last, state, count, gap):
    out[at].first = first
    out[at].last = last
    out[at].state = state
    out[at].count = count
    out[at].gap = gap
    return at + 1


@kernel
def clip_ranges(batches, start, end, cut, first, last, packed, size):
    """Append the parts of ranges at or after `cut` (-1 for all) without inverted ranges, which cover no offset."""
    for number in range(start, end):
        batch = batches[number]
        if batch.first > batch.last or batch.last == LARGEST_OFFSET or (cut != -1 and batch.last < cut):
            continue
        first[size] = max(batch.first, cut) if cut != -1 else batch.first
        last[size] = batch.last
        packed[size] = priority(batch.count, batch.state)
        size += 1
    return size
