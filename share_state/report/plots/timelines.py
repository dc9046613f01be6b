"""Charts of one share-partition over time, from the table `timeline`: its in-flight window, its start and end offset.

`window` colours every offset at every time by its delivery state. It computes cells of (time, offset), at
most 400 by 400, and joins those of equal style into rectangles (`tiles`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from itertools import pairwise
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.patches import Patch, PathPatch

from share_state.errors import ShareStateError
from share_state.kafka.delivery_states import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    TERMINAL,
    state_name,
)
from share_state.report.plots.charts import (
    INK,
    OTHER_SHADES,
    OTHER_STYLE,
    SHADES,
    STATE_STYLES,
    Chart,
    escape_missing_glyphs,
    integer_ticks,
    rectangles,
    share_partition_name,
    styled,
    to_arrow,
    utc_time,
)
from share_state.report.share_partitions import NO_BEGINNING, lacks_beginning

KEY_COLUMNS = ("group_id", "topic_id", "topic", "partition")

MAX_TIMES, MAX_OFFSETS = 400, 400
"""Cells of a window."""

MAX_COUNT = 3
"""Delivery counts from this one up share a style."""

_COUNTS = MAX_COUNT + 1
_NOT_IN_FLIGHT, _UNCOVERED = -1, 0
_CODES = 1 << 20
"""More than there are codes of styles."""
_FINISHED_LAST = (ARCHIVED, ACKNOWLEDGED, ARCHIVING, ACQUIRED, AVAILABLE)
"""States from the most finished on; of others nothing is known."""
_MIN_SHARE = 1 / 160
"""The least share of the offset axis that unfinished offsets take, so that one of a million is seen."""
MAX_FACETS = 12
"""With more share-partitions a chart shows those with the most unfinished offsets, and its heading says so."""
_DAY = 86_400
_TAIL = 0.03
"""Share of the time axis after the last record, which shows the last state."""

# Labels by the unit that changes from tick to tick (years to seconds); the date appears once, at the end of
# the axis.
_TICK_FORMATS = ["%Y", "%Y-%m", "%m-%d", "%m-%d %H:%M", "%H:%M", "%H:%M:%S.%f"]
_DATE_FORMATS = ["", "%Y", "%Y", "%Y", "%Y-%m-%d", "%Y-%m-%d"]


CHOOSE_ONE = "give that of one: share_state.timeline(input, group, topic, partition)"
CHOOSE_GROUP = "give that of one group: share_state.timeline(input, group)"


@dataclass(frozen=True, slots=True)
class History:
    """The state of one share-partition after each of its records, in log order.

    Attributes:
        name: the name of the share-partition.
        times: float64, days since 1970 (UTC) of each record; never decreasing.
        newest: time of the log's newest record, in the same unit, or of the last row if that is not given.
        until: the end of the time axis.
        start, end: int64 SPSO and SPEO after each record; -1 if it has none.
        topic_end: end offset of the topic-partition; None if unknown.
        lacks_beginning: whether its first state rests on an update whose snapshot is not in the input.
        rows: the table.
    """

    name: str
    times: np.ndarray
    newest: float
    until: float
    start: np.ndarray
    end: np.ndarray
    topic_end: int | None
    lacks_beginning: bool
    rows: pa.Table

    def since(self, moment: datetime) -> "History":
        """The same from a moment on: it begins with the state that was there.

        Raises:
            ShareStateError: if the log ends before.
        """
        days = moment.timestamp() / _DAY
        if days >= self.newest:
            raise ShareStateError(f"since {moment:%Y-%m-%d %H:%M:%S} UTC: the log ends before")
        first = max(int(np.searchsorted(self.times, days, side="right")) - 1, 0)
        times = np.maximum(self.times[first:], days)
        return replace(
            self, times=times, start=self.start[first:], end=self.end[first:], rows=self.rows.slice(first)
        )

    @property
    def edges(self) -> np.ndarray:
        """Times of the records, then `until`: state n holds from edges[n] to edges[n + 1]."""
        return np.append(self.times, self.until)

    @property
    def doubt(self) -> str:
        """A sentence that says that the log's beginning is not in the input; empty if it is."""
        return f" {NO_BEGINNING[0].upper()}{NO_BEGINNING[1:]}." if self.lacks_beginning else ""

    @property
    def period(self) -> str:
        """The first and the last time in words."""
        first, last = (
            datetime.fromtimestamp(round(days * _DAY, 3), UTC) for days in (self.times[0], self.newest)
        )
        return f"From {first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC"


def read_history(timeline: Any, *more: str, until: datetime | None = None) -> History:
    """Read the table `timeline` of one share-partition, Arrow or Spark, with `more` columns.

    The log ends at `until`.

    Raises:
        ShareStateError: if it is not a timeline, is empty, or holds several share-partitions.
    """
    histories = read_histories(timeline, *more, until=until)
    if len(histories) != 1:
        said = f"{len(histories):,} share-partitions" if histories else "it has no rows"
        raise ShareStateError(f"timeline: {said}; {CHOOSE_ONE}")
    return histories[0]


def read_histories(timeline: Any, *more: str, until: datetime | None = None) -> list[History]:
    """Read the table `timeline`, Arrow or Spark, with `more` columns: share-partitions by name.

    The log ends at `until`.

    Raises:
        ShareStateError: if it is not a timeline.
    """
    columns = (*KEY_COLUMNS, "offset", "timestamp", "start_offset", "end_offset", "topic_end_offset",
               "snapshot_offset", "suspect", *more)  # fmt: skip
    rows = to_arrow(timeline, columns, "timeline").sort_by("offset")
    key_columns = rows.select(list(KEY_COLUMNS))
    keys = key_columns.group_by(list(KEY_COLUMNS), use_threads=False).aggregate([]).to_pylist()
    keys.sort(key=lambda key: [(value is None, value) for value in key.values()])
    return [_history(rows.filter(_is_of(key)), key, until) for key in keys]


def _is_of(key: Mapping[str, Any]) -> pc.Expression:
    """A filter for the rows of a share-partition."""
    columns = ((pc.field(name), value) for name, value in key.items())
    return reduce(and_, (one.is_null() if value is None else one == value for one, value in columns))


def _history(rows: pa.Table, key: dict[str, Any], until: datetime | None) -> History:
    """The history of one share-partition from its rows of `timeline`."""
    stamps = rows["timestamp"].cast(pa.int64()).fill_null(0).to_numpy() / (_DAY * 1e6)
    # A record without a timestamp takes the previous record's, or the first one that there is.
    times = np.maximum.accumulate(np.maximum(stamps, stamps[stamps > 0].min(initial=stamps.max())))
    newest = max(float(times[-1]), until.timestamp() / _DAY if until is not None else 0.0)
    tail = 1 / _DAY if newest == times[0] else _TAIL * (newest - times[0])
    start, end = (rows[name].fill_null(-1).to_numpy() for name in ("start_offset", "end_offset"))
    topic_ends = rows["topic_end_offset"].drop_null()
    return History(
        name=share_partition_name(key),
        times=times,
        newest=newest,
        until=float(newest + tail),
        start=start,
        end=np.where(start < 0, -1, end),
        topic_end=topic_ends[-1].as_py() if len(topic_ends) else None,
        lacks_beginning=lacks_beginning(rows)[0].as_py() is True,
        rows=rows,
    )


def _set_axes(axes: Axes, history: History, origin: int) -> None:
    """Offsets up, times across in UTC."""
    axes.set_ylabel("offset (records)")
    integer_ticks(axes.yaxis, origin)
    locator = AutoDateLocator(minticks=3, maxticks=7)
    axes.set_xlim(history.times[0], history.until)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(
        ConciseDateFormatter(
            locator, formats=_TICK_FORMATS, zero_formats=_TICK_FORMATS, offset_formats=_DATE_FORMATS
        )
    )
    axes.set_xlabel(
        f"time of the records (UTC){', to the end of the log' * bool(history.newest > history.times[-1])}"
    )


@dataclass(frozen=True, slots=True)
class Tile:
    """The cells of one style.

    Attributes:
        state: delivery state code; None where no batch covers the offsets.
        count: delivery count, at most MAX_COUNT.
        bounds: float64 (left, right, low, high) of shape (n, 4): days, and offsets minus the origin.
    """

    state: int | None
    count: int
    bounds: np.ndarray


def tiles(history: History, origin: int, end: int) -> Iterator[Tile]:
    """The styles that occur from offset `origin` to `end`, exclusive, each with its cells.

    With more than MAX_TIMES records or MAX_OFFSETS range borders, a cell covers several of them and shows, after
    the last record of its time, the least finished of its offsets. The history has the column state_batches.
    """
    records, times = _choose_records(history)
    states = history.rows["state_batches"].combine_chunks().take(pa.array(records))
    borders = _choose_borders(states, history, origin, end)
    cells = np.full((len(records), len(borders) - 1), _NOT_IN_FLIGHT, np.int64)
    for row, (record, batches) in enumerate(zip(records, _split_batches(states), strict=True)):
        start, end = int(history.start[record]), int(history.end[record])
        if start >= 0:
            cells[row] = _style_codes(batches, origin, borders, start - origin, end - origin)
    for code in np.unique(cells[cells != _NOT_IN_FLIGHT]).tolist():
        state, count = (None, 0) if code == _UNCOVERED else divmod(code - 1, _COUNTS)
        yield Tile(None if state is None else state - 128, count, _join_cells(cells == code, times, borders))


def _choose_records(history: History) -> tuple[np.ndarray, np.ndarray]:
    """The records that are shown, and the times between them."""
    # Of several records at one time only the last leaves a state that lasts.
    last = np.flatnonzero(np.append(np.diff(history.times) > 0, True))
    if len(last) > MAX_TIMES:
        cells = np.linspace(history.times[0], history.until, MAX_TIMES + 1)
        last = last[np.unique(np.searchsorted(history.times[last], cells[1:], side="left") - 1).clip(0)]
    return last, np.append(history.times[last], history.until)


def _choose_borders(states: pa.ListArray, history: History, origin: int, end: int) -> np.ndarray:
    """Borders of the offset cells minus the origin: the borders of all ranges if these are few enough."""
    flat = states.flatten()
    first, end_offset = flat.field("first_offset").to_numpy(), flat.field("last_offset").to_numpy() + 1
    borders = np.unique(np.concatenate((first, end_offset, history.start, history.end, [origin, end])))
    borders = borders[(borders >= origin) & (borders <= end)] - origin
    if len(borders) <= MAX_OFFSETS + 1:
        return borders
    return np.unique(np.linspace(0, end - origin, MAX_OFFSETS + 1).astype(np.int64))


def _split_batches(states: pa.ListArray) -> Iterator[np.ndarray]:
    flat = states.flatten()
    ends = np.concatenate(([0], np.cumsum(states.value_lengths().fill_null(0).to_numpy())))
    names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    columns = np.stack([flat.field(name).to_numpy().astype(np.int64) for name in names])
    for first, last in pairwise(ends):
        yield columns[:, first:last]


def _style_codes(batches: np.ndarray, origin: int, borders: np.ndarray, start: int, end: int) -> np.ndarray:
    """The style of each cell between borders: that of its least finished offset.

    Args:
        batches: first and last offset, state and delivery count, as rows; sorted and disjoint.
        borders: offsets minus the origin, as `start` and `end`.
    """
    size = len(borders) - 1
    best = np.full(size, _NOT_IN_FLIGHT, np.int64)
    first = np.maximum(batches[0] - origin, max(start, 0))
    last = np.minimum(batches[1] - origin + 1, borders[-1])
    is_shown = first < last
    first, last = first[is_shown], last[is_shown]
    state, count = batches[2][is_shown], batches[3][is_shown]
    covered = np.zeros(size, np.int64)
    if len(first):
        low = np.maximum(np.searchsorted(borders, first, side="right") - 1, 0)
        cells_of_batch = np.searchsorted(borders, last, side="left") - low
        batch = np.repeat(np.arange(len(low)), cells_of_batch)
        begins = np.cumsum(cells_of_batch) - cells_of_batch
        cell = np.arange(len(batch)) - begins[batch] + low[batch]
        overlap = np.minimum(last[batch], borders[cell + 1]) - np.maximum(first[batch], borders[cell])
        np.add.at(covered, cell, overlap)
        code = (state + 128) * _COUNTS + np.clip(count, 0, MAX_COUNT) + 1
        np.maximum.at(best, cell, (_unfinished_rank(state) * _CODES + code)[batch])
    in_window = np.minimum(borders[1:], end) - np.maximum(borders[:-1], start)
    is_gap = covered < np.maximum(in_window, 0)
    # A gap was never delivered, so nothing is less finished.
    return np.where(is_gap, _UNCOVERED, np.where(best < 0, best, best % _CODES))


def _unfinished_rank(state: np.ndarray) -> np.ndarray:
    """How far from finished a state is: the higher, the sooner a cell shows it."""
    return np.select(
        [state == one for one in _FINISHED_LAST], range(len(_FINISHED_LAST)), len(_FINISHED_LAST)
    )


def _join_cells(cells: np.ndarray, times: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """Join cells along time into runs, then runs with the same ends at neighbouring offsets into rectangles."""
    edges = np.diff(np.pad(cells, ((1, 1), (0, 0))).astype(np.int8), axis=0)
    began, offset = np.nonzero(edges.T == 1)[::-1]
    ended = np.nonzero(edges.T == -1)[1]
    order = np.lexsort((offset, ended, began))
    began = began[order]
    ended = ended[order]
    offset = offset[order]
    follows = (np.diff(began) == 0) & (np.diff(ended) == 0) & (np.diff(offset) == 1)
    first = np.flatnonzero(np.append(True, ~follows))
    last = np.flatnonzero(np.append(~follows, True))
    sides = (times[began[first]], times[ended[first]], borders[offset[first]], borders[offset[last] + 1])
    return np.stack(sides, axis=1)


@styled
def window(
    timeline: Any,
    *,
    until: datetime | None = None,
    since: datetime | None = None,
    offset_range: tuple[int, int] | None = None,
) -> Chart:
    """The in-flight window: offset by time, coloured by delivery state, darker and denser the more deliveries.

    Args:
        timeline: table `timeline` of any library; each share-partition has its own facet.
        until: when the export ends (`runs.log_time`), so that a stall is as long as it is; by default its last
            record.
        since: when the chart begins; by default with the first record.
        offset_range: first and last offset that are shown; by default all that were in flight.
    Returns:
        Time across (UTC), offsets up. A solid line is SPSO, a dashed one SPEO; white offsets were not in
        flight. Where offsets share a cell, it shows the least finished of them.
    Raises:
        ShareStateError: if there are no rows, or the log ends before `since`.
    Source: KIP-932, In-flight records; Kafka SharePartition.RecordState.
    """
    until, since = utc_time("until", until), utc_time("since", since)
    check_offset_range(offset_range)
    histories = read_histories(timeline, "state_batches", until=until)
    if not histories:
        raise ShareStateError(f"timeline: it has no rows; {CHOOSE_GROUP}")
    groups = {history.rows["group_id"][0].as_py() for history in histories}
    if len(groups) > 1:
        raise ShareStateError(
            f"timeline: {len(histories):,} share-partitions of {len(groups):,} groups; {CHOOSE_GROUP}"
        )
    if since is not None:
        histories = [
            history.since(since) for history in histories if history.newest * _DAY > since.timestamp()
        ]
        if not histories:
            raise ShareStateError(f"since {since:%Y-%m-%d %H:%M:%S} UTC: the log ends before")
    shown, some = _most_unfinished(histories)
    group = shown[0].rows["group_id"][0].as_py()
    name = shown[0].name if len(histories) == 1 else f"{group}: {len(histories):,} share-partitions{some}"
    chart = Chart(f"{name}: in flight, offset by time", height=0.9 + 3.7 * len(shown))
    handles, said = dict[str, Any](), list[str]()
    facets = chart.subplots(len(shown), squeeze=False)[:, 0].tolist()
    begin, end = min(history.times[0] for history in shown), max(history.until for history in shown)
    for axes, history in zip(facets, shown, strict=True):
        drawn, origin = _draw_window(chart, axes, history, offset_range, said)
        handles |= {handle.get_label(): handle for handle in drawn}
        if len(histories) > 1:
            axes.set_title(escape_missing_glyphs(history.name), fontsize=9, loc="left", wrap=True)
            axes.set_xlim(begin, end)
        if drawn:
            chart.name_plane(axes, origin, history.name if len(histories) > 1 else "", "not in flight")
    if handles:
        named = list(handles.values())
        chart.legend(handles=named, loc="outside right upper", frameon=False, fontsize=8, handleheight=1.4)
    if len(histories) > 1:
        said = [f"{one.name}: {text.rpartition('; ')[2]}" for one, text in zip(shown, said, strict=True)]
    chart.says = " ".join(said)
    return chart


def check_offset_range(offsets: Any) -> None:
    """Refuse a range of offsets that is none.

    Raises:
        ShareStateError: naming what to give.
    """
    if offsets is None:
        return
    is_pair = isinstance(offsets, tuple | list) and len(offsets) == 2
    if not is_pair or not all(isinstance(one, int) for one in offsets) or offsets[0] > offsets[1]:
        raise ShareStateError(f"offset_range={offsets!r}: give (first, last)")


def _most_unfinished(histories: Sequence[History]) -> tuple[list[History], str]:
    """At most MAX_FACETS share-partitions, in their order, and a note on those that are left out."""
    if len(histories) <= MAX_FACETS:
        return list(histories), ""
    width = [int(history.end[-1] - history.start[-1]) for history in histories]
    chosen = sorted(sorted(range(len(histories)), key=lambda number: -width[number])[:MAX_FACETS])
    return [histories[number] for number in chosen], f", the {MAX_FACETS} with the widest windows"


def _draw_window(
    chart: Chart, axes: Axes, history: History, offset_range: tuple[int, int] | None, said: list[str]
) -> tuple[list[Any], int]:
    """Draw the window of one share-partition, and add what it shows to `said`.

    Returns:
        What a legend names, and the offset at position 0.
    """
    known = history.start >= 0
    if not known.any() or history.end[known].max() <= history.start[known].min():
        nothing = "nothing in the input was in flight" if history.doubt else "nothing was ever in flight"
        axes.text(0.5, 0.5, nothing, ha="center", transform=axes.transAxes)
        said.append(f"{nothing.capitalize()}.{history.doubt}")
        return [], 0
    origin, end = int(history.start[known].min()), int(history.end[known].max())
    if offset_range is not None:
        origin, end = offset_range[0], offset_range[1] + 1
    shown, span = list(tiles(history, origin, end)), end - origin
    # Unfinished offsets are drawn over finished ones.
    for tile in sorted(shown, key=lambda tile: tile.state not in TERMINAL):
        patch = axes.add_patch(PathPatch(rectangles(*_visible(tile, span)), **_tile_style(tile)))
        chart.name_drawing(patch, shows=_tile_label(tile))
    handles = list[Any]()
    for tile in shown:
        style = {**_tile_style(tile), "linewidth": 0.5}
        handles.append(Patch(**style, label=_tile_label(tile)))
    for values, label, line in ((history.end, "SPEO", "dashed"), (history.start, "SPSO", "solid")):
        steps = _steps(values, origin)
        lines = axes.step(history.edges, steps, where="post", color=INK, ls=line, lw=1.8, label=label)
        chart.name_drawing(lines[0], shows=label)
        handles += lines
    axes.set_ylim(-0.02 * span, 1.03 * span)
    _set_axes(axes, history, origin)
    said.append(
        f"{history.period} offsets were {', '.join(map(_tile_label, shown)) or 'not in flight'}; at the end the window "
        f"is from {history.start[-1]:,} to {history.end[-1]:,}.{history.doubt}"
    )
    return handles, origin


def _visible(tile: Tile, span: int) -> np.ndarray:
    """The bounds of a tile as rows; those of unfinished offsets are at least _MIN_SHARE of the axis high."""
    left, right, low, high = tile.bounds.T
    if tile.state in TERMINAL:
        return tile.bounds.T
    missing = np.maximum(_MIN_SHARE * span - (high - low), 0) / 2
    return np.stack((left, right, low - missing, high + missing))


def _tile_style(tile: Tile) -> dict[str, Any]:
    if tile.state is None:
        return {"facecolor": "none", "edgecolor": INK, "linestyle": "dotted", "linewidth": 0.4}
    name = state_name(tile.state)
    _, hatch = STATE_STYLES.get(name, OTHER_STYLE)
    # Available records have no hatch; slashes show how often they were delivered before.
    marks = hatch[0] * max(1, tile.count) if hatch else "/" * tile.count
    colour = SHADES.get(name, OTHER_SHADES)[tile.count]
    return {"facecolor": colour, "hatch": marks, "edgecolor": INK, "linewidth": 0}


def _tile_label(tile: Tile) -> str:
    if tile.state is None:
        return "gap: no delivery recorded"
    name = state_name(tile.state).lower()
    return f"{name} ×{tile.count}{' or more' if tile.count == MAX_COUNT else ''}"


@styled
def offsets(timeline: Any, *, until: datetime | None = None) -> Chart:
    """SPSO and SPEO over time; the records between them are in flight.

    Args:
        timeline: table `timeline` of any library, rows of one share-partition.
        until: when the log ends (`runs.log_time`), so that a stall is as long as it is; by default its last
            record.
    Returns:
        Time across (UTC), offsets up: SPSO as a solid line, SPEO dashed, the topic's end offset dotted if
        known.
    Raises:
        ShareStateError: if there are no rows, or rows of several share-partitions.
    Source: KIP-932, Share-partition start and end offset.
    """
    history = read_history(timeline, until=utc_time("until", until))
    chart = Chart(f"{history.name}: start and end of the in-flight window", height=3.6)
    axes = chart.subplots()
    known = history.start >= 0
    if not known.any():
        nothing = f"the start offset {'in the input is not' if history.doubt else 'was never'} initialized"
        axes.text(0.5, 0.5, nothing, ha="center", transform=axes.transAxes)
        chart.says = f"{nothing.capitalize()}.{history.doubt}"
        return chart
    origin = int(history.start[known].min())
    start, end = _steps(history.start, origin), _steps(history.end, origin)
    fill = {"facecolor": "#56b4e9", "alpha": 0.35, "linewidth": 0}
    axes.fill_between(history.edges, start, end, step="post", label="in flight", **fill)
    axes.step(history.edges, end, where="post", color="#d55e00", ls="dashed", lw=1.6, label="SPEO (end)")
    axes.step(history.edges, start, where="post", color=INK, lw=1.6, label="SPSO (start)")
    if history.topic_end is not None:
        label = "end of the topic"
        axes.axhline(history.topic_end - origin, color=INK, linestyle="dotted", linewidth=1.2, label=label)
    axes.margins(y=0.08)
    _set_axes(axes, history, origin)
    chart.name_plane(axes, origin)
    chart.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    first = int(history.start[known][0])
    last = int(history.start[known][-1])
    end_offset = int(history.end[known][-1])
    moved = f"moved from {first:,} to {last:,}" if first != last else f"stayed at {last:,}"
    topic_end = f"; the topic ends at {history.topic_end:,}" if history.topic_end is not None else ""
    chart.says = (
        f"{history.period} the start offset {moved}, and {end_offset - last:,} offsets are in flight before the end at "
        f"{end_offset:,}{topic_end}.{history.doubt}"
    )
    return chart


def _steps(values: np.ndarray, origin: int) -> np.ndarray:
    """Values over the edges of time, minus the origin; NaN while there is no start offset."""
    steps = np.where(values < 0, np.nan, values - origin)
    return np.append(steps, steps[-1])
