"""The picture of growth: cost over size, and the straight lines nearest to it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.growth import Series

PICTURE = Path(__file__).parent / "growth.png"

_LOOKS = {"CPU time": ("o", "-", "0.0"), "wall time": ("s", "--", "0.45")}


def drawn(series: Sequence[Series], place: Path = PICTURE) -> Path:
    """Draw the series side by side.

    Args:
        series: measured.
        place: a .png file; what is there is replaced.
    Returns:
        The place.
    """
    figure = Figure(figsize=(5.2 * len(series), 4.2), layout="constrained")
    for number, one in enumerate(series):
        _draw(figure.add_subplot(1, len(series), number + 1), one)
    figure.savefig(place, dpi=120)
    return place


def _draw(axes: Axes, series: Series) -> None:
    sizes = np.array(series.sizes)
    told = {
        "CPU time": ([point.cost.cpu_s for point in series.points], series.cpu),
        "wall time": ([point.cost.wall_s for point in series.points], series.wall),
    }
    for name, (seconds, line) in told.items():
        marker, style, grey = _LOOKS[name]
        axes.plot(sizes / 1e9, seconds, marker=marker, linestyle="", color=grey, label=name)
        label = f"{line.fixed:.1f} s + {1e9 * line.rate:.1f} s a GB; a point is {line.off:.0%} off at most"
        ends = np.array([0, sizes[-1]])
        axes.plot(ends / 1e9, line.fixed + line.rate * ends, linestyle=style, color=grey, label=label)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    few, many = (f"{point.export.shape.keys:,}" for point in (series.points[0], series.points[-1]))
    axes.set_xlabel(f"GB ({few} share-partitions)" if few == many else f"GB ({few} to {many} share-partitions)")
    axes.set_ylabel("seconds, from the shell")
    axes.set_title(series.growing.name, size=10)
    axes.grid(axis="y", color="0.9")
    axes.legend(frameon=False, fontsize=8)
