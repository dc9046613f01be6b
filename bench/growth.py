"""How the cost of `share-state reconstruct` grows with bytes and with share-partitions, and how close to a line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.inputs import Export, generate, generate_bytes, repeat
from bench.report import Bound, Item, Table
from bench.runner import IN_SPARK, Settings, run_on_export

_BYTES_PER_KEY, _FEWEST_RECORDS_PER_KEY = 20_500, 5
_PARTITIONS = 2  # as many tasks at every size: each costs Spark as much, whatever it reads
_STYLES = {"CPU": ("o", "-", "0.0"), "wall": ("s", "--", "0.45")}


@dataclass(frozen=True, slots=True)
class Line:
    """The line nearest to some points: seconds at no bytes, seconds per byte, and the largest relative error."""

    fixed: float
    rate: float
    error: float


def fit_line(sizes: Sequence[float], seconds: Sequence[float]) -> Line:
    """Least squares over relative errors."""
    size, took = np.array(sizes, float), np.array(seconds, float)
    (fixed, rate), *_ = np.linalg.lstsq(np.column_stack((1 / took, size / took)), np.ones(len(took)))
    return Line(float(fixed), float(rate), float(np.abs(1 - (fixed + rate * size) / took).max()))


def growth(settings: Settings, off_line: Bound) -> Iterator[Item]:
    """Run `reconstruct` in Spark on growing exports, and draw bench/growth.png."""
    figure = Figure(figsize=(10.4, 4.2), layout="constrained")
    for place, (name, exports) in enumerate(_exports(settings.growth_megabytes * 1_000_000).items(), 1):
        run_on_export("reconstruct", exports[0], *IN_SPARK)  # fills the page cache
        runs = [
            [run_on_export("reconstruct", one, *IN_SPARK) for _ in range(settings.runs)] for one in exports
        ]
        seconds = {
            "CPU": [median(run.cpu_s for run in of_size) for of_size in runs],
            "wall": [median(run.wall_s for run in of_size) for of_size in runs],
        }
        lines = {clock: fit_line([one.bytes for one in exports], took) for clock, took in seconds.items()}
        sized = zip(exports, *seconds.values(), strict=True)
        rows: list[tuple[float | str, ...]] = [
            (one.bytes / 1e6, one.shape.keys, *took) for one, *took in sized
        ]
        rows.append(("line: s at no bytes", "", *(line.fixed for line in lines.values())))
        rows.append(("line: s per GB", "", *(1e9 * line.rate for line in lines.values())))
        rows.append(("farthest from it", "", *(f"{line.error:.1%}" for line in lines.values())))
        columns = ("MB|,.1f", "share-partitions|,", "CPU s|.2f", "wall s|.2f")
        yield Table(f"growth with {name}, median of {settings.runs}", columns, rows, runs)
        for clock, line in lines.items():
            yield off_line.check(
                line.error if line.rate > 0 else 1.0, f"{line.error:.1%}", clock=clock, name=name
            )
        _draw(figure.add_subplot(1, 2, place, title=name), exports, seconds, lines)
    figure.savefig(Path(__file__).parent / "growth.png", dpi=120)


def _exports(size: int) -> dict[str, list[Export]]:
    few, one = (
        generate_bytes(part, keys=part // _BYTES_PER_KEY, partitions=_PARTITIONS)
        for part in (size, size // 8)
    )
    return {
        "bytes, the same share-partitions": [
            generate(replace(few.shape, records=_FEWEST_RECORDS_PER_KEY * few.shape.keys)),
            *(repeat(few, times * few.bytes, new_keys=False) for times in (1, 2, 4, 8)),
        ],
        "share-partitions, the same bytes each": [
            generate_bytes(size // 80, keys=size // 80 // _BYTES_PER_KEY, partitions=_PARTITIONS),
            *(repeat(one, times * one.bytes, new_keys=True) for times in (1, 10, 100)),
        ],
    }


def _draw(
    axes: Axes, exports: Sequence[Export], seconds: dict[str, list[float]], lines: dict[str, Line]
) -> None:
    sizes = [export.bytes / 1e9 for export in exports]
    for clock, line in lines.items():
        marker, style, grey = _STYLES[clock]
        axes.plot(sizes, seconds[clock], marker=marker, linestyle="", color=grey, label=f"{clock} time")
        label = f"{line.fixed:.1f} s + {1e9 * line.rate:.1f} s per GB; largest error {line.error:.0%}"
        ends = np.array([0, sizes[-1]])
        axes.plot(ends, line.fixed + 1e9 * line.rate * ends, linestyle=style, color=grey, label=label)
    keys = " to ".join(dict.fromkeys(f"{exports[place].shape.keys:,}" for place in (0, -1)))
    axes.set(xlabel=f"GB ({keys} share-partitions)", ylabel="seconds, from the shell")
    axes.set(xlim=(0, None), ylim=(0, None))
    axes.grid(axis="y", color="0.9")
    axes.legend(frameon=False, fontsize=8)
