"""A table `timeline` as arrays: what charts over time draw.

What every offset was at every time, as rectangles: no more cells than an eye can see.

The in-flight window of a share-partition: what every offset was at every time.

Where a share-partition was over time: SPSO, SPEO, and the end of the topic where it is known.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from share_state.errors import ShareStateError
from share_state.fold.interval_merge import STATE_NAMES
from share_state.report.plots.charts import (
    GAP,
    INK,
    LOOKS,
    OTHER,
    OTHER_SHADES,
    SHADES,
    STYLE,
    Chart,
    arrow,
    share_partition_name,
    whole_numbers,
)

KEY = ("group_id", "topic_id", "topic", "partition")
_TAIL = 0.03
"""Share of the time after the last record, so that the last state can be seen."""


# By what changes from tick to tick: years, months, days, hours, minutes, seconds; the date stands at the end once.
_TICKS = ["%Y", "%Y-%m", "%m-%d", "%m-%d %H:%M", "%H:%M", "%H:%M:%S.%f"]
_DAY = ["", "%Y", "%Y", "%Y", "%Y-%m-%d", "%Y-%m-%d"]


@dataclass(frozen=True, slots=True)
class History:
    """The states of one share-partition after each of its records, in log order.

    Attributes:
        name: of the share-partition.
        times: float64, days since 1970 (UTC) of each record; never going back.
        until: the same, where the picture ends.
        start, end: int64 SPSO and SPEO after each record; -1 where it has none.
        topic_end: the topic's end offset, None where unknown.
        rows: the table.
    """

    name: str
    times: np.ndarray
    until: float
    start: np.ndarray
    end: np.ndarray
    topic_end: int | None
    rows: pa.Table

    @property
    def edges(self) -> np.ndarray:
        """Times of the records and the end of the picture: state n holds from edges[n] to edges[n + 1]."""
        return np.append(self.times, self.until)


def history(timeline: Any, *more: str) -> History:
    """The timeline of one share-partition.

    Args:
        timeline: table `timeline`, Arrow or Spark, rows of one share-partition.
        more: columns that are needed besides times and offsets.
    Raises:
        ShareStateError: if it is no timeline, is empty, or holds several share-partitions.
    """
    wanted = (*KEY, "offset", "timestamp", "start_offset", "end_offset", "topic_end_offset", *more)
    rows = arrow(timeline, wanted, "timeline").sort_by("offset")
    names = rows.select(list(KEY)).group_by(list(KEY), use_threads=False).aggregate([]).to_pylist()
    if len(names) != 1:
        found = f"{len(names):,} share-partitions are in it" if names else "it has no rows"
        raise ShareStateError(f"timeline: {found}; choose one by group, topic and partition")
    stamps = rows["timestamp"].cast(pa.int64()).fill_null(0).to_numpy() / 86_400e6
    # A record without a stamp stands where its predecessor does, at the beginning where the first stamped one does.
    times = np.maximum.accumulate(np.maximum(stamps, stamps[stamps > 0].min(initial=stamps.max())))
    second = 1 / 86_400
    until = times[-1] + max(second if times[-1] == times[0] else 0, _TAIL * (times[-1] - times[0]))
    start, end = (rows[name].fill_null(-1).to_numpy() for name in ("start_offset", "end_offset"))
    ends = rows["topic_end_offset"].drop_null()
    return History(
        name=share_partition_name(names[0]),
        times=times,
        until=float(until),
        start=start,
        end=np.where(start < 0, -1, end),
        topic_end=ends[-1].as_py() if len(ends) else None,
        rows=rows,
    )


def time_axis(axes: Axes, drawn: History) -> None:
    """Times across, in UTC, with the date said once."""
    locator = AutoDateLocator(minticks=3, maxticks=7)
    written = ConciseDateFormatter(locator, formats=_TICKS, zero_formats=_TICKS, offset_formats=_DAY)
    axes.set_xlim(drawn.times[0], drawn.until)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(written)
    axes.set_xlabel("time of the records (UTC)")


def clock(days: float) -> str:
    """Days since 1970 as a time of day that a person reads."""
    return f"{datetime.fromtimestamp(round(days * 86_400, 3), UTC):%Y-%m-%d %H:%M:%S}"


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


def window(timeline: Any) -> Chart:
    """What was in flight: offset by time, coloured by delivery state, darker and closer hatched the more deliveries.

    Args:
        timeline: table `timeline`, Arrow or Spark, rows of one share-partition.
    Returns:
        Time across (UTC), offsets up. A solid line is SPSO, a dashed one SPEO; what is left white was not in flight.
    Raises:
        ShareStateError: if there are no such rows, or those of several share-partitions.
    Source: KIP-932, In-flight records; Kafka SharePartition.RecordState.
    """
    drawn = history(timeline, "state_batches")
    chart = Chart(f"{drawn.name}: in flight, offset by time", height=4.6)
    with rc_context(STYLE):
        axes = chart.subplots()
        known = drawn.start >= 0
        if not known.any() or drawn.end[known].max() <= drawn.start[known].min():
            axes.text(0.5, 0.5, "nothing was ever in flight", ha="center", transform=axes.transAxes)
            chart.says = "Nothing was ever in flight."
            return chart
        origin, end = int(drawn.start[known].min()), int(drawn.end[known].max())
        shown = sorted(
            tiles(drawn, origin, end), key=lambda tile: (-1 if tile.state is None else tile.state, tile.count)
        )
        handles = []
        for tile in shown:
            look = _look(tile)
            axes.add_patch(PathPatch(_path(tile.rectangles), **look))
            handles.append(Patch(**(look | {"linewidth": 0.5}), label=_label(tile)))
        for values, name, style in ((drawn.end, "SPEO", "dashed"), (drawn.start, "SPSO", "solid")):
            places = np.where(known, values - origin, np.nan)
            handles += axes.step(
                drawn.edges, np.append(places, places[-1]), where="post", color=INK, ls=style, lw=1.8, label=name
            )
        axes.set_ylim(-0.02 * (end - origin), 1.03 * (end - origin))
        axes.set_ylabel("offset (records)")
        whole_numbers(axes.yaxis, origin)
        time_axis(axes, drawn)
        chart.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=8, handleheight=1.4)
    chart.says = _said(drawn, shown)
    return chart


def _look(tile: Tile) -> dict[str, Any]:
    name = GAP if tile.state is None else STATE_NAMES.get(tile.state, "")
    _, hatch = LOOKS.get(name, OTHER)
    if name == GAP:
        return {"facecolor": "none", "edgecolor": INK, "linestyle": "dotted", "linewidth": 0.4}
    # An available record has no hatch of its own: slashes say how often it was delivered before.
    marks = hatch[0] * max(1, tile.count) if hatch else "/" * tile.count
    colour = SHADES.get(name, OTHER_SHADES)[tile.count]
    return {"facecolor": colour, "hatch": marks, "edgecolor": INK, "linewidth": 0}


def _label(tile: Tile) -> str:
    if tile.state is None:
        return "gap: never delivered"
    name = STATE_NAMES.get(tile.state, f"state {tile.state}").lower()
    return f"{name} ×{tile.count}{' or more' if tile.count == COUNTS_SHOWN else ''}"


def _path(rectangles: np.ndarray) -> Path:
    """All rectangles of a look as one path: one element, however many they are."""
    left, right, low, high = rectangles.T
    corners = np.stack([left, low, right, low, right, high, left, high, left, low], axis=1)
    one = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    return Path(corners.reshape(-1, 2), np.tile(one, len(left)))


def _said(drawn: History, shown: list[Tile]) -> str:
    looks = ", ".join(_label(tile) for tile in shown)
    last_start, last_end = int(drawn.start[-1]), int(drawn.end[-1])
    return (
        f"From {clock(drawn.times[0])} to {clock(drawn.times[-1])} UTC offsets were {looks}; "
        f"at the end the window reaches from {last_start:,} to {last_end:,}."
    )


def offsets(timeline: Any) -> Chart:
    """SPSO and SPEO over time; what lies between them is in flight.

    Args:
        timeline: table `timeline`, Arrow or Spark, rows of one share-partition.
    Returns:
        Time across (UTC), offsets up: SPSO as a solid line, SPEO as a dashed one, the topic's end dotted where known.
    Raises:
        ShareStateError: if there are no such rows, or those of several share-partitions.
    Source: KIP-932, Share-partition start and end offset.
    """
    drawn = history(timeline)
    chart = Chart(f"{drawn.name}: start and end of the in-flight window", height=3.6)
    with rc_context(STYLE):
        axes = chart.subplots()
        origin = int(drawn.start[drawn.start >= 0].min(initial=np.iinfo(np.int64).max))
        if not (drawn.start >= 0).any():
            axes.text(0.5, 0.5, "the start offset was never initialised", ha="center", transform=axes.transAxes)
            chart.says = "The start offset was never initialised."
            return chart
        start, end = _steps(drawn.start, origin), _steps(drawn.end, origin)
        between = {"facecolor": "#56b4e9", "alpha": 0.35, "linewidth": 0}
        axes.fill_between(drawn.edges, start, end, step="post", label="in flight", **between)
        axes.step(
            drawn.edges, end, where="post", color="#d55e00", linestyle="dashed", linewidth=1.6, label="SPEO (end)"
        )
        axes.step(drawn.edges, start, where="post", color=INK, linewidth=1.6, label="SPSO (start)")
        if drawn.topic_end is not None:
            label = "end of the topic, as told"
            axes.axhline(drawn.topic_end - origin, color=INK, linestyle="dotted", linewidth=1.2, label=label)
        axes.set_ylabel("offset (records)")
        axes.margins(y=0.08)
        whole_numbers(axes.yaxis, origin)
        time_axis(axes, drawn)
        chart.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    chart.says = _offsets_text(drawn)
    return chart


def _steps(values: np.ndarray, origin: int) -> np.ndarray:
    """Places over the edges of time; none where a share-partition had no start offset."""
    places = np.where(values < 0, np.nan, values - origin)
    return np.append(places, places[-1])


def _offsets_text(drawn: History) -> str:
    had = drawn.start >= 0
    first, last, end = (int(column[had][at]) for column, at in ((drawn.start, 0), (drawn.start, -1), (drawn.end, -1)))
    moved = f"moved from {first:,} to {last:,}" if first != last else f"stayed at {last:,}"
    lag = f"; the topic ends at {drawn.topic_end:,}" if drawn.topic_end is not None else ""
    return (
        f"From {clock(drawn.times[0])} to {clock(drawn.times[-1])} UTC the start offset {moved}, "
        f"and {end - last:,} offsets are in flight before the end at {end:,}{lag}."
    )
