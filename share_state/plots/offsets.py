"""Where a share-partition was over time: SPSO, SPEO, and the end of the topic where it is known."""

from typing import Any

import numpy as np
from matplotlib import rc_context

from share_state.plots.chart import Chart
from share_state.plots.history import History, clock, history, time_axis
from share_state.plots.looks import INK, STYLE, whole_numbers


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
    chart.says = _said(drawn)
    return chart


def _steps(values: np.ndarray, origin: int) -> np.ndarray:
    """Places over the edges of time; none where a share-partition had no start offset."""
    places = np.where(values < 0, np.nan, values - origin)
    return np.append(places, places[-1])


def _said(drawn: History) -> str:
    had = drawn.start >= 0
    first, last, end = (int(column[had][at]) for column, at in ((drawn.start, 0), (drawn.start, -1), (drawn.end, -1)))
    moved = f"moved from {first:,} to {last:,}" if first != last else f"stayed at {last:,}"
    lag = f"; the topic ends at {drawn.topic_end:,}" if drawn.topic_end is not None else ""
    return (
        f"From {clock(drawn.times[0])} to {clock(drawn.times[-1])} UTC the start offset {moved}, "
        f"and {end - last:,} offsets are in flight before the end at {end:,}{lag}."
    )
