"""The in-flight window of a share-partition: what every offset was at every time."""

from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from share_state.fold.ranges import STATE_NAMES
from share_state.plots.chart import Chart
from share_state.plots.history import History, clock, history, time_axis
from share_state.plots.looks import GAP, INK, LOOKS, OTHER, OTHER_SHADES, SHADES, STYLE, whole_numbers
from share_state.plots.mosaic import COUNTS_SHOWN, Tile, tiles


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
