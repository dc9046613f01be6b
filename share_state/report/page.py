"""Pictures of one share-partition: what is in flight, and how its start and lag went from audit to audit.

The page that people open after a nightly audit: one HTML file that needs nothing but itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from share_state.report import console
from share_state.report.audit_data import AuditReport, TroubledSharePartition
from share_state.report.audit_text import advice, counted, headline, level, show_command
from share_state.report.console import write_whole
from share_state.report.plots.charts import GAP, INK, LOOKS, OTHER, STYLE, inline_svg, whole_numbers
from share_state.report.share_partitions import STATES
from share_state.rules.registry import SEVERITIES

Rows = Sequence[Mapping[str, Any]]

DRAWN_ONE_BY_ONE = 200
"""With more ranges than this a lane shows shares of the offsets: no eye tells them apart."""

_WIDTH, _LEFT, _RIGHT = 5.6, 1.05, 0.3
_CELLS, _LANE = 160, 0.5
_LABELS, _APART = 12, 0.06
_TIME_LABEL = 1.0

_MAY_COME_AGAIN = ("AVAILABLE", "ACQUIRED", "ARCHIVING")
_MARKERS = {"OK": "o", "STALL": "s", "STOP": "X", "REWIND": "v"}


def window_picture(ranges: Rows, limit: int, name: str) -> Markup:
    """What is in flight: offsets across, one lane a delivery state.

    Args:
        ranges: first_offset, last_offset, state, delivery_count and gap, sorted, at least one.
        limit: the delivery count limit; ranges at or one below it that are not finished are marked.
        name: unique in the page.
    Returns:
        An `svg` element.
    """
    origin, end = ranges[0]["first_offset"], ranges[-1]["last_offset"] + 1
    lanes: dict[str, list[Mapping[str, Any]]] = {state: [] for state in (*LOOKS, *STATES)}
    for one in ranges:
        lanes.setdefault(GAP if one["gap"] else one["state"], []).append(one)
    present = [lane for lane in lanes if lanes[lane]]
    dense = len(ranges) > DRAWN_ONE_BY_ONE
    with rc_context(STYLE):
        figure, (axes,) = _figure(1, 0.38 * len(present), bottom=0.55, top=0.05)
        for row, lane in enumerate(present):
            _draw_lane(axes, row, lane, lanes[lane], (origin, end), limit, dense=dense)
        axes.set_xlim(0, end - origin)
        axes.set_ylim(len(present) - 0.5, -0.75)
        axes.set_yticks(range(len(present)), [lane.lower() for lane in present])
        axes.tick_params(axis="y", length=0)
        axes.spines["right"].set_visible(True)
        axes.set_xlabel("offset; height: share of the offsets" if dense else "offset; ×n: delivered n times")
        whole_numbers(axes.xaxis, origin)
    said = ", ".join(f"{sum(_size(one) for one in lanes[lane]):,} {lane.lower()}" for lane in present)
    return inline_svg(figure, name, f"In flight from offset {origin:,} to {end - 1:,}: {said}.")


def _figure(rows: int, height: float, *, bottom: float, top: float, left: float = _LEFT) -> tuple[Figure, list[Axes]]:
    """Axes below each other, margins in inches: the longest label is known, so nothing needs measuring."""
    whole = height + bottom + top
    figure = Figure(figsize=(_WIDTH, whole), facecolor="none")
    figure.subplots_adjust(left / _WIDTH, bottom / whole, 1 - _RIGHT / _WIDTH, 1 - top / whole, hspace=0.25)
    grid = list(figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])
    for axes in grid:
        axes.set_facecolor("none")
    return figure, grid


def _draw_lane(
    axes: Axes, row: int, lane: str, ranges: Rows, window: tuple[int, int], limit: int, *, dense: bool
) -> None:
    origin, span = window[0], window[1] - window[0]
    first = np.array([one["first_offset"] - origin for one in ranges], np.float64)
    behind = np.array([one["last_offset"] + 1 - origin for one in ranges], np.float64)
    colour, hatch = LOOKS.get(lane, OTHER)
    bars = _bars(*_shares(first, behind, span), row) if dense else _bars(first, behind, np.ones_like(first), row)
    lines = "dotted" if lane == GAP else "solid"
    width = 0 if dense and lane != GAP else 0.5
    axes.add_patch(PathPatch(bars, facecolor=colour, hatch=hatch, edgecolor=INK, linewidth=width, linestyle=lines))
    if not dense and lane != GAP:
        _label(axes, row, [_count(one, lane, limit) for one in ranges], (first, behind), span)


def _count(one: Mapping[str, Any], lane: str, limit: int) -> str:
    poison = lane in _MAY_COME_AGAIN and one["delivery_count"] >= max(1, limit - 1)
    return f"×{one['delivery_count']}{'!' if poison else ''}"


def _label(axes: Axes, row: int, counts: list[str], at: tuple[np.ndarray, np.ndarray], span: int) -> None:
    """Delivery counts over the bars that are wide enough, and over all that are marked unless they would touch."""
    labelled, free = 0, -np.inf
    for count, left, right in zip(counts, *at, strict=True):
        marked, middle = count.endswith("!"), (left + right) / 2
        if (marked or right - left >= _APART * span) and middle >= free and labelled < _LABELS:
            weight = "bold" if marked else "normal"
            axes.text(middle, row - 0.26, count, size=7.5, ha="center", va="bottom", weight=weight)
            labelled, free = labelled + 1, middle + _APART * span


def _shares(first: np.ndarray, behind: np.ndarray, span: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cells of the window, and which share of the offsets of each the ranges cover."""
    edges = np.linspace(0, span, _CELLS + 1)
    covered = np.concatenate(([0], np.cumsum(behind - first)))
    places = np.stack([first, behind], axis=1).ravel()
    before = np.stack([covered[:-1], covered[1:]], axis=1).ravel()
    share = np.diff(np.interp(edges, places, before)) / (span / _CELLS)
    some = share > 0
    return edges[:-1][some], edges[1:][some], np.minimum(share[some], 1)


def _bars(left: np.ndarray, right: np.ndarray, share: np.ndarray, row: int) -> Path:
    """All bars of a lane as one path: a page of many pictures stays small."""
    low = np.full_like(left, row + _LANE / 2)
    high = low - _LANE * share
    corners = np.stack([left, low, right, low, right, high, left, high, left, low], axis=1)
    one = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    return Path(corners.reshape(-1, 2), np.tile(one, len(left)))


def history_picture(nights: Rows, name: str) -> Markup | None:
    """How start offset and lag went from audit to audit.

    Args:
        nights: time, start_offset, lag and verdict of each audit, the oldest first.
        name: unique in the page.
    Returns:
        An `svg` element; None where there are not two times with a start offset.
    """
    known = [night for night in nights if night["start_offset"] is not None and night["start_offset"] >= 0]
    if len({night["time"] for night in known}) < 2:
        return None
    with_lag = [night for night in known if night["lag"] is not None]
    drawn = [("start offset", "start_offset", known)] + ([("lag (records)", "lag", with_lag)] if with_lag else [])
    begin, first, last = known[0]["time"], known[0]["start_offset"], known[-1]["start_offset"]
    longest = max(len(f"{night[column]:,}") for _, column, rows in drawn for night in rows)
    with rc_context(STYLE):
        left = max(_LEFT, 0.35 + 0.085 * longest)
        figure, grid = _figure(len(drawn), 0.85 * len(drawn), bottom=0.5, top=0.3, left=left)
        for axes, (title, column, rows) in zip(grid, drawn, strict=True):
            _draw_line(axes, title, column, rows, begin)
        _time_axis(grid[-1], [night["time"] for night in known], _WIDTH - left - _RIGHT)
        handles = [line for line in grid[0].get_lines() if not str(line.get_label()).startswith("_")]
        figure.legend(handles=handles, loc="upper right", ncols=5, frameon=False, fontsize=8)
    return inline_svg(figure, name, f"Over {len(known)} audits the start offset went from {first:,} to {last:,}.")


def _draw_line(axes: Axes, title: str, column: str, rows: Rows, begin: datetime) -> None:
    origin = min(row[column] for row in rows)
    across = np.array([(row["time"] - begin).total_seconds() for row in rows])
    up = np.array([row[column] - origin for row in rows], np.float64)
    axes.plot(across, up, color=INK, linewidth=0.8, drawstyle="steps-post")
    verdicts = np.array([row["verdict"] for row in rows])
    for verdict in dict.fromkeys(verdicts.tolist()):
        of_verdict = verdicts == verdict
        marker, (colour, size) = _MARKERS.get(verdict, "D"), ("#009e73", 3) if verdict == "OK" else ("#d55e00", 6)
        axes.plot(across[of_verdict], up[of_verdict], marker, color=colour, ms=size, mec=INK, mew=0.4, label=verdict)
    axes.set_ylabel(title, fontsize=8)
    axes.margins(y=0.18)
    whole_numbers(axes.yaxis, origin, most=3)


def _time_axis(axes: Axes, times: Sequence[datetime], width: float) -> None:
    """Ticks at some of the audits, so that each label is a time that an audit saw; the last is among them."""
    apart = (times[-1] - times[0]).total_seconds() * _TIME_LABEL / width
    shown = [times[0]]
    for time in times:
        if (time - shown[-1]).total_seconds() >= apart:
            shown.append(time)
    if shown[-1] != times[-1]:
        shown[max(1, len(shown) - 1) :] = [times[-1]]
    axes.set_xticks([(time - times[0]).total_seconds() for time in shown], [f"{time:%d %b %H:%M}" for time in shown])
    axes.set_xlabel("time of the log (UTC); a mark an audit")


def _size(one: Mapping[str, Any]) -> int:
    return one["last_offset"] - one["first_offset"] + 1


_FIRST_RANGES = 8
_NEAR_THE_START = 40
_CUTOFFS = 60
_RUNS = 30
_POISON = 20


@dataclass(frozen=True, slots=True)
class _Card:
    """A troubled share-partition, ready for the page."""

    about: TroubledSharePartition
    states: str
    window: Markup | None
    near_start: Markup | None
    history: Markup | None
    first_ranges: tuple[Mapping[str, Any], ...]
    command: str | None


def write_page(path: str, report: AuditReport) -> None:
    """Write the page of an audit.

    Args:
        path: of the HTML file; it refers to nothing outside itself.
        report: what `read_report` returned.
    Raises:
        ReportError: if the file cannot be written; what was there before stays.
    """
    write_whole(path, page(report))


def page(report: AuditReport) -> str:
    """The page of an audit as text."""
    environment = Environment(
        loader=PackageLoader("share_state.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    told = (console.number, console.moment, console.size, console.name, counted)
    environment.filters.update({one.__name__: one for one in told})
    return environment.get_template("page.html").render(
        report=report,
        level=level(report),
        headline=headline(report),
        advice=advice(report),
        cards=[_card(report, one, f"p{place}") for place, one in enumerate(report.troubled, 1)],
        severities=SEVERITIES,
        cutoffs=report.cutoffs[:_CUTOFFS],
        poison=report.poison.worst[:_POISON],
        runs=report.runs[:_RUNS],
        span=console.span,
    )


def _card(report: AuditReport, one: TroubledSharePartition, name: str) -> _Card:
    ranges, limit = one.ranges, report.limits.delivery_count
    return _Card(
        about=one,
        states=_states(one.now),
        window=window_picture(ranges, limit, f"{name}w") if ranges else None,
        near_start=window_picture(ranges[:_NEAR_THE_START], limit, f"{name}n") if _are_many(one) else None,
        history=history_picture(one.history, f"{name}h"),
        first_ranges=ranges[:_FIRST_RANGES],
        command=show_command(report.warehouse, one.now),
    )


def _are_many(one: TroubledSharePartition) -> bool:
    return len(one.ranges) > DRAWN_ONE_BY_ONE


def _states(now: Mapping[str, Any]) -> str:
    """Records in flight by state; what waits or is stuck first."""
    return ", ".join(f"{now[state.lower()]:,} {state.lower()}" for state in STATES if now[state.lower()])
