"""The page that people open after a nightly audit: one HTML file with inline charts, which loads nothing else.

The charts of a share-partition show what is in flight, and its start offset and lag over the kept audits.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch

from share_state.delta.committed import CommittedTables
from share_state.fold.durations import duration_text
from share_state.report import console
from share_state.report.audit_data import AuditReport
from share_state.report.audit_text import (
    OUTCOMES,
    advice,
    audit_level,
    counted_where,
    headline,
    outcomes_text,
    why_command,
)
from share_state.report.flagged import FlaggedSharePartition
from share_state.report.plots.charts import (
    GAP,
    INK,
    OTHER_SHADES,
    OTHER_STYLE,
    SHADES,
    STATE_STYLES,
    TEMPLATES,
    inline_svg,
    integer_ticks,
    rectangles,
    styled,
)
from share_state.report.share_partitions import DELIVERY_STATES, ascending, descending
from share_state.rules.breaches import SEVERITIES

Rows = Sequence[Mapping[str, Any]]

MAX_SINGLE_BARS = 200
"""With more ranges a lane shows the share of the offsets that they cover: single bars would be too thin."""

_WIDTH = 5.6
_LEFT = 1.05
_RIGHT = 0.3
_CELLS, _LANE_HEIGHT = 160, 0.5
_MAX_LABELS, _LABEL_DISTANCE = 12, 0.06
_TIME_LABEL_WIDTH = 1.0

_UNFINISHED = ("AVAILABLE", "ACQUIRED", "ARCHIVING")
_MARKERS = {"OK": "o", "NO_MEMBERS": "^", "GIVING_UP": "P", "STALL": "s", "STOP": "X", "REWIND": "v"}

_FIRST_RANGES, _RANGES_NEAR_START = 8, 40
_MAX_CUTOFFS = 60
_MAX_RUNS = 30
_MAX_POISON = 20
_MAX_GROUPS = 30
_MAX_SUMMARIES = 200
_MAX_CHANGES = 12

_LETTERS, _LOST = "dead_letters", "lost_dead_letters"
_MOST_ROWS, _BINS = 20, 40
_BAR_STYLES = {"written": STATE_STYLES["ACKNOWLEDGED"], "lost": STATE_STYLES["ARCHIVED"]}


def write_page(path: str, report: AuditReport) -> None:
    """Write the page of an audit.

    Args:
        path: where to write the HTML file.
        report: from `read_report`.
    Raises:
        ReportError: if the file cannot be written; an existing file stays.
    """
    console.write_report(path, render_page(report))


def render_page(report: AuditReport) -> str:
    """The page of an audit as text."""
    return TEMPLATES.get_template("page.html").render(
        report=report,
        level=audit_level(report),
        headline=headline(report),
        advice=advice(report),
        cards=[_card(report, one, f"p{place}") for place, one in enumerate(report.flagged, 1)],
        trends=[trend_svg(group.history) for group in report.groups],
        summaries=[(one, trend_svg(one.history)) for one in report.summaries[:_MAX_SUMMARIES]],
        most_changes=_MAX_CHANGES,
        severities=SEVERITIES,
        cutoffs=report.cutoffs[:_MAX_CUTOFFS],
        poison=report.poison.worst[:_MAX_POISON],
        deliveries=[one for one in report.deliveries if one.total][:_MAX_GROUPS],
        counted_where=counted_where(report),
        totals=outcomes_text(
            {name: sum(getattr(one, name) for one in report.deliveries) for name in OUTCOMES}
        ),
        dead_letters=_summarize_dead_letters(report.tables),
        runs=report.runs[:_MAX_RUNS],
        span=console.format_duration,
        duration=duration_text,
    )


def trend_svg(audits: Rows) -> Markup | None:
    """Records behind over the audits of a group, as a line of text height; None for fewer than two audits.

    Args:
        audits: as in `GroupSummary.history`.
    """
    if len(audits) < 2:
        return None
    values = np.array([audit["behind"] or 0 for audit in audits], np.float64)
    across = np.linspace(2, 98, len(values))
    spread = float(np.ptp(values))
    up = 22 - 20 * (values - values.min()) / spread if spread else np.full(len(values), 12.0)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, up, strict=True))
    first, last = (audits[place]["behind"] or 0 for place in (0, -1))
    description = f"Over {len(audits)} audits from {first:,} to {last:,} records behind."
    return Markup(
        '<svg class="trend" viewBox="0 0 100 24" role="img" aria-label="{}"><polyline points="{}" fill="none" '
        'stroke="currentColor" stroke-width="1.5"/><circle cx="{:.1f}" cy="{:.1f}" r="2" fill="currentColor"/></svg>'
    ).format(description, points, across[-1], up[-1])


def _card(report: AuditReport, one: FlaggedSharePartition, name: str) -> dict[str, Any]:
    """The data that the page shows about a flagged share-partition."""
    ranges, now = one.ranges, one.now
    limit = report.limits.of_group("delivery_count", now["group_id"])
    is_dense = len(ranges) > MAX_SINGLE_BARS
    in_flight = {state.lower(): now[state.lower()] for state in DELIVERY_STATES}
    return {
        "about": one,
        "states": ", ".join(f"{count:,} {state}" for state, count in in_flight.items() if count),
        "window": window_svg(ranges, limit, f"{name}w") if ranges else None,
        "near_start": window_svg(ranges[:_RANGES_NEAR_START], limit, f"{name}n") if is_dense else None,
        "history": history_svg(one.history, f"{name}h"),
        "first_ranges": ranges[:_FIRST_RANGES],
        "command": why_command(report.warehouse, now),
    }


@styled
def window_svg(ranges: Rows, limit: int, name: str) -> Markup:
    """What is in flight: offsets across, one lane per delivery state.

    Args:
        ranges: first_offset, last_offset, state, delivery_count and gap, sorted, at least one.
        limit: the delivery count limit; unfinished ranges at or one below it are marked.
        name: unique in the page.
    Returns:
        An `svg` element.
    """
    origin, end = ranges[0]["first_offset"], ranges[-1]["last_offset"] + 1
    lanes: dict[str, list[Mapping[str, Any]]] = {state: [] for state in (*STATE_STYLES, *DELIVERY_STATES)}
    for one in ranges:
        lanes.setdefault(GAP if one["gap"] else one["state"], []).append(one)
    lanes = {lane: ranges for lane, ranges in lanes.items() if ranges}
    is_dense = len(ranges) > MAX_SINGLE_BARS
    figure, (axes,) = _figure(1, 0.38 * len(lanes), bottom=0.55, top=0.05)
    for row, (lane, in_lane) in enumerate(lanes.items()):
        _draw_lane(axes, row, lane, in_lane, (origin, end), limit, is_dense=is_dense)
    axes.set_xlim(0, end - origin)
    axes.set_ylim(len(lanes) - 0.5, -0.75)
    axes.set_yticks(range(len(lanes)), [lane.lower() for lane in lanes])
    axes.tick_params(axis="y", length=0)
    axes.spines["right"].set_visible(True)
    axes.set_xlabel("offset; height: share of the offsets" if is_dense else "offset; ×n: delivered n times")
    integer_ticks(axes.xaxis, origin)
    sizes = {lane: sum(one["last_offset"] - one["first_offset"] + 1 for one in lanes[lane]) for lane in lanes}
    counts = ", ".join(f"{size:,} {lane.lower()}" for lane, size in sizes.items())
    return inline_svg(figure, name, f"In flight from offset {origin:,} to {end - 1:,}: {counts}.")


def _figure(
    rows: int, height: float, *, bottom: float, top: float, left: float = _LEFT
) -> tuple[Figure, list[Axes]]:
    """Axes one below the other with fixed margins in inches, which saves measuring the labels."""
    whole = height + bottom + top
    figure = Figure(figsize=(_WIDTH, whole), facecolor="none")
    figure.subplots_adjust(left / _WIDTH, bottom / whole, 1 - _RIGHT / _WIDTH, 1 - top / whole, hspace=0.25)
    grid = list(figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])
    for axes in grid:
        axes.set_facecolor("none")
    return figure, grid


def _draw_lane(
    axes: Axes, row: int, lane: str, ranges: Rows, window: tuple[int, int], limit: int, *, is_dense: bool
) -> None:
    origin, length = window[0], window[1] - window[0]
    lefts = np.array([one["first_offset"] - origin for one in ranges], np.float64)
    right = np.array([one["last_offset"] + 1 - origin for one in ranges], np.float64)
    share = np.ones_like(lefts)
    if is_dense:
        lefts, right, share = _covered_shares(lefts, right, length)
    bottom = np.full_like(lefts, row + _LANE_HEIGHT / 2)
    colour, hatch = STATE_STYLES.get(lane, OTHER_STYLE)
    line = "dotted" if lane == GAP else "solid"
    width = 0 if is_dense and lane != GAP else 0.5
    style = {"hatch": hatch, "edgecolor": INK, "linewidth": width, "linestyle": line}
    if is_dense or lane == GAP:
        axes.add_patch(
            PathPatch(
                rectangles(lefts, right, bottom, bottom - _LANE_HEIGHT * share), facecolor=colour, **style
            )
        )
        return
    counts = np.array([one["delivery_count"] for one in ranges])
    shades = np.clip(counts, 0, len(OTHER_SHADES) - 1)
    for shade in np.unique(shades).tolist():
        of = shades == shade
        bars = rectangles(lefts[of], right[of], bottom[of], bottom[of] - _LANE_HEIGHT)
        axes.add_patch(PathPatch(bars, facecolor=SHADES.get(lane, OTHER_SHADES)[shade], **style))
    marked_from = max(1, limit - 1) if lane in _UNFINISHED else np.inf
    labels = [f"×{count}{'!' if count >= marked_from else ''}" for count in counts.tolist()]
    _draw_labels(axes, row, labels, (lefts, right), length)


def _draw_labels(
    axes: Axes, row: int, labels: list[str], at: tuple[np.ndarray, np.ndarray], length: int
) -> None:
    """Write delivery counts above the bars that are wide enough or marked, as long as they do not touch."""
    count, free = 0, -np.inf
    for label, left, right in zip(labels, *at, strict=True):
        is_marked, middle = label.endswith("!"), (left + right) / 2
        is_wide = right - left >= _LABEL_DISTANCE * length
        if (is_marked or is_wide) and middle >= free and count < _MAX_LABELS:
            weight = "bold" if is_marked else "normal"
            axes.text(middle, row - 0.26, label, size=7.5, ha="center", va="bottom", weight=weight)
            count, free = count + 1, middle + _LABEL_DISTANCE * length


def _covered_shares(
    left: np.ndarray, right: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The left and right edges of the cells that ranges cover, and the share of each that they cover."""
    edges = np.linspace(0, length, _CELLS + 1)
    covered = np.concatenate(([0], np.cumsum(right - left)))
    places = np.stack([left, right], axis=1).ravel()
    before = np.stack([covered[:-1], covered[1:]], axis=1).ravel()
    share = np.diff(np.interp(edges, places, before)) / (length / _CELLS)
    some = share > 0
    return edges[:-1][some], edges[1:][some], np.minimum(share[some], 1)


@styled
def history_svg(audits: Rows, name: str) -> Markup | None:
    """Start offset and lag over the audits.

    Args:
        audits: time, start_offset, lag and verdict of each audit, the oldest first.
        name: unique in the page.
    Returns:
        An `svg` element; None unless start offsets are known at two times.
    """
    known = [audit for audit in audits if audit["start_offset"] is not None and audit["start_offset"] >= 0]
    if len({audit["time"] for audit in known}) < 2:
        return None
    with_lag = [audit for audit in known if audit["lag"] is not None]
    lines = [("start offset", "start_offset", known)] + (
        [("lag (records)", "lag", with_lag)] if with_lag else []
    )
    begin = known[0]["time"]
    first = known[0]["start_offset"]
    last = known[-1]["start_offset"]
    longest = max(len(f"{audit[column]:,}") for _, column, rows in lines for audit in rows)
    left = max(_LEFT, 0.35 + 0.085 * longest)
    figure, grid = _figure(len(lines), 0.85 * len(lines), bottom=0.5, top=0.3, left=left)
    for axes, (title, column, rows) in zip(grid, lines, strict=True):
        _draw_line(axes, title, column, rows, begin)
    _set_time_ticks(grid[-1], [audit["time"] for audit in known], _WIDTH - left - _RIGHT)
    handles = [line for line in grid[0].get_lines() if not str(line.get_label()).startswith("_")]
    figure.legend(handles=handles, loc="upper right", ncols=5, frameon=False, fontsize=8)
    return inline_svg(
        figure, name, f"Over {len(known)} audits the start offset went from {first:,} to {last:,}."
    )


def _draw_line(axes: Axes, title: str, column: str, rows: Rows, begin: datetime) -> None:
    origin = min(row[column] for row in rows)
    across = np.array([(row["time"] - begin).total_seconds() for row in rows])
    up = np.array([row[column] - origin for row in rows], np.float64)
    axes.plot(across, up, color=INK, linewidth=0.8, drawstyle="steps-post")
    verdicts = np.array([row["verdict"] for row in rows])
    for verdict in dict.fromkeys(verdicts.tolist()):
        has_verdict = verdicts == verdict
        marker = _MARKERS.get(verdict, "D")
        colour, size = ("#009e73", 3) if verdict == "OK" else ("#d55e00", 6)
        axes.plot(
            across[has_verdict],
            up[has_verdict],
            marker,
            color=colour,
            ms=size,
            mec=INK,
            mew=0.4,
            label=verdict,
        )
    axes.set_ylabel(title, fontsize=8)
    axes.margins(y=0.18)
    integer_ticks(axes.yaxis, origin, most=3)


def _set_time_ticks(axes: Axes, times: Sequence[datetime], width: float) -> None:
    """Set ticks at the times of some audits, the first and the last among them."""
    distance = (times[-1] - times[0]).total_seconds() * _TIME_LABEL_WIDTH / width
    shown = [times[0]]
    for time in times:
        if (time - shown[-1]).total_seconds() >= distance:
            shown.append(time)
    if shown[-1] != times[-1]:
        shown[max(1, len(shown) - 1) :] = [times[-1]]
    axes.set_xticks(
        [(time - times[0]).total_seconds() for time in shown], [f"{time:%d %b %H:%M}" for time in shown]
    )
    axes.set_xlabel("time of the log (UTC); one mark per audit")


def _summarize_dead_letters(tables: CommittedTables) -> dict[str, Any] | None:
    """Summarize dead letters for the page; None if the audit had no dead-letter topics, or there are none.

    Returns:
        rows: by group_id and reason: letters, duplicates and lost; those with the most lost first, up to a
            limit.
        left_out: how many more rows there are.
        letters, lost: in total.
        chart: both over time; None if all have the same time.
    """
    if not tables.holds(_LETTERS):
        return None
    letters = tables.read(_LETTERS, columns=["group_id", "reason", "duplicate", "timestamp"])
    lost = tables.read(_LOST, columns=["group_id", "record_count", "archived_time", "archiving_time"])
    if not len(letters) + len(lost):
        return None
    written = letters.select(["group_id", "reason"])
    written = written.append_column("letters", pa.repeat(pa.scalar(1, pa.int64()), len(letters)))
    written = written.append_column("duplicates", letters["duplicate"].cast(pa.int64()))
    missing = pa.table({"group_id": lost["group_id"], "lost": lost["record_count"]})
    every = pa.concat_tables([written, missing], promote_options="default")
    zero_for_none = pc.ScalarAggregateOptions(min_count=0)
    sums = [(name, "sum", zero_for_none) for name in ("letters", "duplicates", "lost")]
    rows = every.group_by(["group_id", "reason"]).aggregate(sums).rename_columns(every.schema.names)
    rows = rows.sort_by([*descending("lost", "letters"), *ascending("group_id", "reason")])
    times = pc.call_function("coalesce", [lost["archived_time"], lost["archiving_time"]])
    return {
        "rows": rows.slice(0, _MOST_ROWS).to_pylist(),
        "left_out": max(0, len(rows) - _MOST_ROWS),
        "letters": len(letters),
        "lost": pc.sum(lost["record_count"]).as_py() or 0,
        "chart": _dead_letters_svg(
            {"written": (letters["timestamp"], None), "lost": (times, lost["record_count"])}
        ),
    }


@styled
def _dead_letters_svg(series: Mapping[str, tuple[pa.ChunkedArray, pa.ChunkedArray | None]]) -> Markup | None:
    """Records by time; a series has timestamps, and how many records each stands for (None for one each)."""
    seconds = {
        name: times.cast(pa.int64()).to_numpy(zero_copy_only=False) / 1e6
        for name, (times, _) in series.items()
    }
    known = np.concatenate(list(seconds.values()))
    known = known[~np.isnan(known)]
    if not len(known) or known.min() == known.max():
        return None
    edges, total = np.linspace(known.min(), known.max(), _BINS + 1), np.zeros(_BINS)
    figure = Figure(figsize=(_WIDTH, 1.7), facecolor="none", layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("none")
    for name, (_, counts) in series.items():
        weights = None if counts is None else counts.to_numpy()
        heights, _ = np.histogram(seconds[name], edges, weights=weights)
        colour, hatch = _BAR_STYLES[name]
        axes.bar(edges[:-1], heights, np.diff(edges), total, align="edge", label=name, facecolor=colour,
                 hatch=hatch, edgecolor=INK, linewidth=0.4)  # fmt: skip
        total += heights
    ends = (edges[0], edges[-1])
    axes.set_xticks(ends, [f"{datetime.fromtimestamp(end, UTC):%d %b %H:%M}" for end in ends])
    axes.set_xlim(*ends)
    axes.set_xlabel("time of the log (UTC)")
    axes.set_ylabel("records", fontsize=8)
    integer_ticks(axes.yaxis, 0, most=3)
    axes.legend(ncols=2, frameon=False, fontsize=8)
    return inline_svg(figure, "dead-letters", "Dead letters that were written and that were lost, over time.")
