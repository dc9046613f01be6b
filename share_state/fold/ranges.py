"""What a leader makes of folded ranges: the start it moves to, the end, the in-flight window without holes."""

import numpy as np

from share_state.wire.compiled import allocating_kernel, inlined, kernel

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = 0, 1, 2, 3, 4

STATE_NAMES = {0: "AVAILABLE", 1: "ACQUIRED", 2: "ACKNOWLEDGED", 3: "ARCHIVING", 4: "ARCHIVED"}

TILE = np.dtype([("first", "i8"), ("last", "i8"), ("count", "i2"), ("state", "i1"), ("gap", "?")], align=True)
"""One row an in-flight range."""


@inlined
def is_terminal(state):
    """True for a state that nothing leaves and that lets the start pass: acknowledged or archived."""
    return state == ACKNOWLEDGED or state == ARCHIVED


@allocating_kernel
def effective_starts(start_offsets, ends, batches):
    """Where a leader that loads each state starts: behind the leading run of terminal ranges that touches the start.

    Args:
        start_offsets: int64, one a share-partition; -1 not initialised.
        ends: int64, batches of number n are rows ends[n] to ends[n + 1].
        batches: canonical STATE_BATCH rows.
    Returns:
        int64, one a share-partition; start_offsets[n] where nothing leads, or where a range begins below the start
        (the broker refuses to load such a state).
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
def finish_behind(start_offsets, ends, batches):
    """True for each share-partition of which a terminal range begins behind the start."""
    finished = np.zeros(len(start_offsets), np.bool_)
    for number in range(len(start_offsets)):
        for row in range(ends[number], ends[number + 1]):
            if is_terminal(batches[row].state) and batches[row].first > start_offsets[number]:
                finished[number] = True
                break
    return finished


@allocating_kernel
def end_offsets(start_offsets, ends, batches):
    """The first offset behind the last range of each share-partition (its start where there is none); -1 like start."""
    past = start_offsets.copy()
    for number in range(len(start_offsets)):
        if start_offsets[number] < 0:
            past[number] = -1
        elif ends[number + 1] > ends[number]:
            past[number] = max(start_offsets[number], batches[ends[number + 1] - 1].last + 1)
    return past


@allocating_kernel
def tiles(start_offsets, ends, batches):
    """Cut [start, end) of each share-partition into ranges without a hole; what no batch covers is a gap.

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
