"""Merges lists of state batches as the coordinator does: per offset the greatest (delivery count, state) stays."""

import heapq
from collections.abc import Iterable, Sequence

from share_state.partition.writes import NO_START_OFFSET, DeliveryState, StateBatch

Batches = tuple[StateBatch, ...]

_STATES = tuple(DeliveryState)


def combine(recorded: Sequence[StateBatch], written: Iterable[StateBatch], start: int, *, joins: bool) -> Batches:
    """The union of two lists from a start on.

    Args:
        recorded: what is known so far.
        written: what comes on top.
        start: offsets below it are cut off; NO_START_OFFSET cuts nothing.
        joins: True for maximal runs (4.4), False for the lists of 4.0 to 4.3, which may leave equal neighbours apart.
    Returns:
        Batches by first offset, none over another; a single batch comes back as it is.
    Source: Kafka PersisterStateBatchCombiner.combineStateBatches.
    """
    union = [*recorded, *written]
    if start != NO_START_OFFSET:
        union = [
            batch if batch.first_offset >= start else batch._replace(first_offset=start)
            for batch in union
            if batch.last_offset >= start
        ]
    if len(union) < 2:
        return tuple(union)
    return _in_maximal_runs(union) if joins else _one_pair_at_a_time(union)


def _in_maximal_runs(union: list[StateBatch]) -> Batches:
    """Slices between all bounds, the greatest open batch in each, equal neighbours joined."""
    union.sort()
    out: list[StateBatch] = []
    open_batches: list[tuple[int, int, int]] = []
    at, place = union[0].first_offset, 0
    while place < len(union) or open_batches:
        if not open_batches:
            at = union[place].first_offset
        while place < len(union) and union[place].first_offset == at:
            _, last, state, count = union[place]
            heapq.heappush(open_batches, (-count, -state, last))
            place += 1
        count, state, last = open_batches[0]
        if place < len(union):
            last = min(last, union[place].first_offset - 1)
        _append(out, StateBatch(at, last, _STATES[-state], -count))
        at = last + 1
        while open_batches and open_batches[0][2] < at:
            heapq.heappop(open_batches)
    return tuple(out)


def _append(out: list[StateBatch], batch: StateBatch) -> None:
    if out and out[-1].last_offset + 1 == batch.first_offset and out[-1][2:] == batch[2:]:
        out[-1] = out[-1]._replace(last_offset=batch.last_offset)
    else:
        out.append(batch)


def _one_pair_at_a_time(union: list[StateBatch]) -> Batches:
    """The two foremost batches are joined, or the lesser gives way; what no other touches is never looked at again."""
    queue: list[tuple[int, int, int, int]] = [(first, last, count, state) for first, last, state, count in union]
    heapq.heapify(queue)
    out: list[tuple[int, int, int, int]] = []
    while queue:
        foremost = heapq.heappop(queue)
        if not queue:
            out.append(foremost)
            break
        first, last, value = *foremost[:2], foremost[2:]
        next_first, next_last, next_value = *queue[0][:2], queue[0][2:]
        touches = next_first == last + 1 and value == next_value
        if next_first > last and not touches:
            out.append(foremost)
            continue
        heapq.heappop(queue)
        if next_value == value:
            heapq.heappush(queue, (first, max(last, next_last), *value))
        elif next_value < value:
            heapq.heappush(queue, foremost)
            if next_last > last:
                heapq.heappush(queue, (last + 1, next_last, *next_value))
        else:
            if next_first > first:
                heapq.heappush(queue, (first, next_first - 1, *value))
            heapq.heappush(queue, (next_first, next_last, *next_value))
            if next_last < last:
                heapq.heappush(queue, (next_last + 1, last, *value))
    return tuple(StateBatch(first, last, _STATES[state], count) for first, last, count, state in out)
