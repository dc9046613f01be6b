"""How the cost of `share-state reconstruct` grows with bytes and with share-partitions, from a small run on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import linear_regression, median

from bench.end_to_end import reconstructed
from bench.exports import Export, Shape, made, records_in
from bench.stretched import stretched

_RECORDS_A_KEY, _FEW_RECORDS_A_KEY = 100, 5
_PARTITIONS = 8
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
        origin: a small one, which costs what every run costs whatever its size: start-up, the first row of each table.
        sizes: how many times the smallest, the export.
    """

    name: str
    origin: Export
    sizes: tuple[tuple[int, Export], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One size: how many times the smallest, the export, the median cost, and that beyond the origin's."""

    times: int
    export: Export
    cost: Cost
    beyond: Cost


@dataclass(frozen=True, slots=True)
class Series:
    """Growing exports, measured.

    Attributes:
        growing: what was measured.
        origin: the median cost of its origin.
        points: smallest first.
    """

    growing: Growing
    origin: Cost
    points: tuple[Point, ...]

    @property
    def bytes_beyond(self) -> list[int]:
        """Of each point, beyond those of the origin."""
        return [point.export.bytes - self.growing.origin.bytes for point in self.points]

    @property
    def cpu_slope(self) -> float:
        """Of CPU time against bytes, both beyond the origin's; 1 is linear."""
        return slope(self.bytes_beyond, [point.beyond.cpu_s for point in self.points])

    @property
    def wall_slope(self) -> float:
        """Of wall time against bytes, both beyond the origin's."""
        return slope(self.bytes_beyond, [point.beyond.wall_s for point in self.points])


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The least-squares slope of log(seconds) over log(sizes); NaN where a size took no time that can be told."""
    if min(seconds) <= 0:
        return math.nan
    return linear_regression([math.log(one) for one in sizes], [math.log(one) for one in seconds]).slope


def start_up_export(partitions: int = _PARTITIONS) -> Export:
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
            made(replace(few.shape, records=_FEW_RECORDS_A_KEY * few.shape.keys)),
            tuple((times, stretched(few, times * few.bytes, new_keys=False)) for times in _TIMES_BYTES),
        ),
        Growing(
            "share-partitions, the same bytes each",
            _base(size // _SHARE_OF_BYTES // _SHARE_OF_KEYS),
            tuple((times, stretched(one, times * one.bytes, new_keys=True)) for times in _TIMES_KEYS),
        ),
    )


def measured(growing: Growing, runs: int) -> Series:
    """Run the command over every size.

    Args:
        growing: of `exports`.
        runs: of each size; the median counts. One more of the origin, not counted, fills the page cache.
    """
    reconstructed(growing.origin)
    origin, points = _cost(growing.origin, runs), []
    for times, export in growing.sizes:
        cost = _cost(export, runs)
        points.append(Point(times, export, cost, Cost(cost.cpu_s - origin.cpu_s, cost.wall_s - origin.wall_s)))
    return Series(growing, origin, tuple(points))


def _cost(export: Export, runs: int) -> Cost:
    usages = [reconstructed(export).usage for _ in range(runs)]
    return Cost(median(one.cpu_s for one in usages), median(one.wall_s for one in usages))


def _base(size: int) -> Export:
    records = records_in(size)
    return made(Shape(records=records, keys=max(1, records // _RECORDS_A_KEY), partitions=_PARTITIONS))
