"""How the cost of `share-state reconstruct` grows with bytes and with share-partitions: how near to a straight line."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from bench.end_to_end import IN_SPARK, reconstructed
from bench.exports import Export, Shape, made, records_in
from bench.stretched import stretched

_RECORDS_A_KEY, _FEW_RECORDS_A_KEY = 100, 5
_PARTITIONS = 2
"""Of the state topic: one a core, so that every size has as many tasks; each costs Spark as much, whatever it reads."""
_TIMES_BYTES = (1, 2, 4, 8)
_TIMES_KEYS = (1, 10, 100)
_SHARE_OF_BYTES, _SHARE_OF_KEYS = 8, 10


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of the process tree and wall time from the shell, in seconds."""

    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Growing:
    """Exports of one kind.

    Attributes:
        name: what grows.
        sizes: how many times the smallest, the export; first of all one that is hardly more than start-up, 0 times.
    """

    name: str
    sizes: tuple[tuple[int, Export], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One size: how many times the smallest, the export, the median cost."""

    times: int
    export: Export
    cost: Cost


@dataclass(frozen=True, slots=True)
class Line:
    """The straight line that is nearest to some points, each weighed by its own seconds.

    Attributes:
        fixed: seconds at no bytes: start-up, and what a first run of everything costs.
        rate: seconds a byte.
        off: how far the farthest point is from the line, as a share of its seconds.
    """

    fixed: float
    rate: float
    off: float


@dataclass(frozen=True, slots=True)
class Series:
    """Growing exports, measured; points smallest first."""

    growing: Growing
    points: tuple[Point, ...]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each point."""
        return [point.export.bytes for point in self.points]

    @property
    def cpu(self) -> Line:
        """Of CPU time."""
        return nearest(self.sizes, [point.cost.cpu_s for point in self.points])

    @property
    def wall(self) -> Line:
        """Of wall time."""
        return nearest(self.sizes, [point.cost.wall_s for point in self.points])


def nearest(sizes: Sequence[float], seconds: Sequence[float]) -> Line:
    """The line of least squares over relative errors."""
    size, took = np.array(sizes, float), np.array(seconds, float)
    (fixed, rate), *_ = np.linalg.lstsq(np.column_stack((1 / took, size / took)), np.ones(len(took)))
    off = np.abs(1 - (fixed + rate * size) / took).max()
    return Line(float(fixed), float(rate), float(off))


def start_up_export(partitions: int) -> Export:
    """Next to nothing, so that what is left is start-up: a few records in every log partition."""
    return made(Shape(records=20 * partitions, keys=10 * partitions, partitions=partitions))


def exports(megabytes: int) -> tuple[Growing, ...]:
    """What is to be measured.

    Args:
        megabytes: of 10^6 bytes, the smallest export of the series of bytes; that of share-partitions begins with an
            eighth.
    """
    size = megabytes * 1_000_000
    few, one = _base(size), _base(size // _SHARE_OF_BYTES)
    return (
        Growing(
            "bytes, the same share-partitions",
            (
                (0, made(replace(few.shape, records=_FEW_RECORDS_A_KEY * few.shape.keys))),
                *((times, stretched(few, times * few.bytes, new_keys=False)) for times in _TIMES_BYTES),
            ),
        ),
        Growing(
            "share-partitions, the same bytes each",
            (
                (0, _base(size // _SHARE_OF_BYTES // _SHARE_OF_KEYS)),
                *((times, stretched(one, times * one.bytes, new_keys=True)) for times in _TIMES_KEYS),
            ),
        ),
    )


def measured(growing: Growing, runs: int) -> Series:
    """Run the command over every size.

    Args:
        growing: of `exports`.
        runs: of each size; the median counts. One more of the smallest, not counted, fills the page cache.
    """
    reconstructed(growing.sizes[0][1], *IN_SPARK)
    return Series(growing, tuple(Point(times, export, _cost(export, runs)) for times, export in growing.sizes))


def _cost(export: Export, runs: int) -> Cost:
    usages = [reconstructed(export, *IN_SPARK).usage for _ in range(runs)]
    return Cost(median(one.cpu_s for one in usages), median(one.wall_s for one in usages))


def _base(size: int) -> Export:
    records = records_in(size)
    return made(Shape(records=records, keys=max(1, records // _RECORDS_A_KEY), partitions=_PARTITIONS))
