"""What every offset was at every time, as rectangles: no more cells than an eye can see."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from share_state.plots.history import History

NOT_IN_FLIGHT, UNCOVERED = -1, 0
"""Looks of cells below SPSO or at and beyond SPEO, and of those between that no batch covers."""

MOST_TIMES, MOST_OFFSETS = 400, 400

COUNTS_SHOWN = 3
"""Delivery counts from here on look alike."""

_COUNTS = COUNTS_SHOWN + 1


@dataclass(frozen=True, slots=True)
class Tile:
    """Cells of one look: rectangles (left, right, low, high), float64 of shape (n, 4); offsets less the origin.

    Attributes:
        state: delivery state code; None where no batch covers the offsets.
        count: delivery count, COUNTS_SHOWN or more as COUNTS_SHOWN.
        rectangles: where.
    """

    state: int | None
    count: int
    rectangles: np.ndarray


def tiles(drawn: History, origin: int, end: int) -> Iterator[Tile]:
    """The looks that occur, each with its rectangles.

    Where there are more records or range borders than MOST_TIMES or MOST_OFFSETS, a cell stands for several of them and
    shows the last record of its time and the offset at its middle.

    Args:
        drawn: states after records, with the column state_batches.
        origin: least offset of the picture.
        end: first offset above it.
    """
    points, times = _moments(drawn)
    states = drawn.rows["state_batches"].combine_chunks().take(pa.array(points))
    borders = _borders(states, drawn, origin, end)
    middles = origin + (borders[:-1] + borders[1:]) // 2
    looks = np.full((len(points), len(middles)), NOT_IN_FLIGHT, np.int64)
    for row, (point, batches) in enumerate(zip(points, _batches(states), strict=True)):
        looks[row] = _looks(batches, middles, int(drawn.start[point]), int(drawn.end[point]))
    for look in np.unique(looks[looks != NOT_IN_FLIGHT]).tolist():
        state, count = (None, 0) if look == UNCOVERED else divmod(look - 1, _COUNTS)
        yield Tile(None if state is None else state - 128, count, _rectangles(looks == look, times, borders))


def _moments(drawn: History) -> tuple[np.ndarray, np.ndarray]:
    """Which records are shown, and the times between them."""
    # Of records of one time only the last leaves a state that lasts.
    last = np.flatnonzero(np.append(np.diff(drawn.times) > 0, True))
    if len(last) > MOST_TIMES:
        cells = np.linspace(drawn.times[0], drawn.until, MOST_TIMES + 1)
        last = np.unique(np.searchsorted(drawn.times[last], cells[1:], side="left") - 1).clip(0)
        last = np.flatnonzero(np.append(np.diff(drawn.times) > 0, True))[last]
    return last, np.append(drawn.times[last], drawn.until)


def _borders(states: pa.ListArray, drawn: History, origin: int, end: int) -> np.ndarray:
    """Borders of offset cells, less the origin: those of the ranges where they are few enough."""
    flat = states.flatten()
    places = (flat.field("first_offset").to_numpy(), flat.field("last_offset").to_numpy() + 1, drawn.start, drawn.end)
    borders = np.unique(np.concatenate((*places, [origin, end])))
    borders = borders[(borders >= origin) & (borders <= end)] - origin
    if len(borders) <= MOST_OFFSETS + 1:
        return borders
    return np.unique(np.linspace(0, end - origin, MOST_OFFSETS + 1).astype(np.int64))


def _batches(states: pa.ListArray) -> Iterator[np.ndarray]:
    flat, ends = states.flatten(), np.concatenate(([0], np.cumsum(states.value_lengths().fill_null(0).to_numpy())))
    names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    columns = np.stack([flat.field(name).to_numpy().astype(np.int64) for name in names])
    for first, last in pairwise(ends):
        yield columns[:, first:last]


def _looks(batches: np.ndarray, middles: np.ndarray, start: int, end: int) -> np.ndarray:
    looks = np.full(len(middles), NOT_IN_FLIGHT, np.int64)
    if start < 0:
        return looks
    looks[(middles >= start) & (middles < end)] = UNCOVERED
    first, last, state, count = batches
    if len(first):
        place = np.searchsorted(first, middles, side="right") - 1
        covered = (place >= 0) & (middles <= last[place]) & (middles >= start)
        seen = (state + 128) * _COUNTS + np.clip(count, 0, COUNTS_SHOWN) + 1
        looks[covered] = seen[place[covered]]
    return looks


def _rectangles(cells: np.ndarray, times: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """Runs of cells along time, then runs that lie on each other with the same ends joined."""
    edges = np.diff(np.pad(cells, ((1, 1), (0, 0))).astype(np.int8), axis=0)
    began, offset = np.nonzero(edges.T == 1)[::-1]
    ended = np.nonzero(edges.T == -1)[1]
    order = np.lexsort((offset, ended, began))
    began, ended, offset = began[order], ended[order], offset[order]
    follows = (np.diff(began) == 0) & (np.diff(ended) == 0) & (np.diff(offset) == 1)
    first = np.flatnonzero(np.append(True, ~follows))
    last = np.flatnonzero(np.append(~follows, True))
    return np.stack(
        [times[began[first]], times[ended[first]], borders[offset[first]], borders[offset[last] + 1]], axis=1
    )
