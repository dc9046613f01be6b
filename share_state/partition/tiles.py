"""A window told as batches: what deliveries see, and what would be recorded of it."""

from share_state.partition.operations import joined
from share_state.partition.window import Window
from share_state.partition.writes import DeliveryState, StateBatch


def in_memory(window: Window) -> tuple[StateBatch, ...]:
    """What is in flight as deliveries see it, changes under way included: ascending, equal neighbours joined."""
    return joined([StateBatch(run.first, run.last, run.state, run.count) for run in window.tiles()])


def as_recorded(window: Window, first: int, last: int) -> tuple[StateBatch, ...]:
    """A range as the draft records it: a delivery that may still be lost does not count.

    Args:
        window: of the share-partition.
        first: first offset.
        last: last offset, inclusive.
    Returns:
        Tiles of the whole range, ascending, equal neighbours joined: what is acquired with count n is available with
        n - 1, what was never fetched is available, what was let go of before the start has ended.
    Source: KIP-932 draft, in-flight state of a share-partition.
    """
    tiles: list[StateBatch] = []
    at = first
    for _, run in window.overlapping(first, last):
        low, high = max(run.first, first), min(run.last, last)
        tiles += _uncovered(window, at, low - 1)
        if run.before is not None:
            tiles.append(StateBatch(low, high, DeliveryState.AVAILABLE, run.before.delivery_count - 1))
        elif run.state is DeliveryState.ACQUIRED:
            tiles.append(StateBatch(low, high, DeliveryState.AVAILABLE, run.count - 1))
        else:
            tiles.append(StateBatch(low, high, run.state, run.count))
        at = high + 1
    tiles += _uncovered(window, at, last)
    return joined(tiles)


def _uncovered(window: Window, first: int, last: int) -> list[StateBatch]:
    start, tiles = window.start_offset, []
    if first <= min(last, start - 1):
        tiles.append(StateBatch(first, min(last, start - 1), DeliveryState.ARCHIVED, 0))
    if max(first, start) <= last:
        tiles.append(StateBatch(max(first, start), last, DeliveryState.AVAILABLE, 0))
    return tiles
