"""The picture of growth: cost over size, both beyond a small run, on logarithmic axes, beside a line of slope 1."""

from collections.abc import Sequence
from pathlib import Path

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
    sizes = [size / 1e6 for size in series.bytes_beyond]
    lines = {
        "CPU time": ([point.beyond.cpu_s for point in series.points], series.cpu_slope),
        "wall time": ([point.beyond.wall_s for point in series.points], series.wall_slope),
    }
    for name, (seconds, slope) in lines.items():
        marker, style, grey = _LOOKS[name]
        axes.plot(sizes, seconds, marker=marker, linestyle=style, color=grey, label=f"{name}, slope {slope:.2f}")
    # Through the largest size: what varies from run to run weighs least there.
    last = lines["CPU time"][0][-1]
    linear = [last * size / sizes[-1] for size in sizes]
    axes.plot(sizes, linear, linestyle=":", color="0.6", label="linear (slope 1)")
    axes.set_xscale("log", base=2 if len(sizes) > 3 else 10)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [_size(series, number) for number in range(len(sizes))])
    axes.minorticks_off()
    axes.set_xlabel("size of the export")
    axes.set_ylabel("seconds beyond the origin")
    origin = (
        f"{series.growing.origin.bytes / 1e6:,.0f} MB: {series.origin.cpu_s:.1f} CPU s, {series.origin.wall_s:.1f} s"
    )
    axes.set_title(f"{series.growing.name}\n(origin, {origin})", size=10)
    axes.grid(axis="y", color="0.9")
    axes.legend(frameon=False)


def _size(series: Series, number: int) -> str:
    export = series.points[number].export
    return f"{export.bytes / 1e6:,.0f} MB\n{export.shape.keys:,} keys"
