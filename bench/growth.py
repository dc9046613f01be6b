"""How the cost of `share-state reconstruct` grows with bytes and with share-partitions, start-up taken off."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression, median

from bench.end_to_end import reconstructed
from bench.exports import Export, Shape, made, records_in
from bench.stretched import stretched

_RECORDS_A_KEY = 100
_PARTITIONS = 8
_TIMES_BYTES = (1, 2, 4, 8)
_TIMES_KEYS = (1, 10, 100)
_SHARE_OF_BYTES = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of the process tree and wall time from the shell, in seconds."""

    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Point:
    """One size: how many times the smallest, the export, the median cost, and that beyond start-up."""

    times: int
    export: Export
    cost: Cost
    beyond: Cost


@dataclass(frozen=True, slots=True)
class Series:
    """One way to grow.

    Attributes:
        name: what grows.
        start_up: median cost of the command over next to nothing in as many log partitions.
        points: smallest first.
    """

    name: str
    start_up: Cost
    points: tuple[Point, ...]

    @property
    def cpu_slope(self) -> float:
        """Of CPU time beyond start-up against size; 1 is linear."""
        return slope([point.times for point in self.points], [point.beyond.cpu_s for point in self.points])

    @property
    def wall_slope(self) -> float:
        """Of wall time beyond start-up against size."""
        return slope([point.times for point in self.points], [point.beyond.wall_s for point in self.points])


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The least-squares slope of log(seconds) over log(sizes); NaN where a size took no time that can be told."""
    if min(seconds) <= 0:
        return math.nan
    return linear_regression([math.log(one) for one in sizes], [math.log(one) for one in seconds]).slope


def start_up_export(partitions: int = _PARTITIONS) -> Export:
    """Next to nothing, so that what is left is start-up: a few records in every log partition."""
    return made(Shape(records=20 * partitions, keys=10 * partitions, partitions=partitions))


def exports(megabytes: int) -> dict[str, list[tuple[int, Export]]]:
    """What is to be measured: name of what grows -> (how many times the smallest, export).

    Args:
        megabytes: of 10^6 bytes, the smallest export of the series of bytes; that of share-partitions begins with a
            quarter.
    """
    size = megabytes * 1_000_000
    few, small = _base(size), size // _SHARE_OF_BYTES
    of_one = _base(small)
    return {
        "bytes, the same share-partitions": [
            (times, stretched(few, times * few.bytes, new_keys=False)) for times in _TIMES_BYTES
        ],
        "share-partitions, the same bytes each": [
            (times, stretched(of_one, times * of_one.bytes, new_keys=True)) for times in _TIMES_KEYS
        ],
    }


def start_up(runs: int) -> Cost:
    """The median cost of the command over next to nothing; one more run, not counted, fills the page cache."""
    export = start_up_export()
    reconstructed(export)
    return _cost(export, runs)


def measured(name: str, sizes: Sequence[tuple[int, Export]], before: Cost, runs: int) -> Series:
    """Run the command over every size.

    Args:
        name: what grows.
        sizes: of `exports`.
        before: of `start_up`; taken off each.
        runs: of each size; the median counts.
    """
    points = []
    for times, export in sizes:
        cost = _cost(export, runs)
        points.append(Point(times, export, cost, Cost(cost.cpu_s - before.cpu_s, cost.wall_s - before.wall_s)))
    return Series(name, before, tuple(points))


def _cost(export: Export, runs: int) -> Cost:
    usages = [reconstructed(export).usage for _ in range(runs)]
    return Cost(median(one.cpu_s for one in usages), median(one.wall_s for one in usages))


def _base(size: int) -> Export:
    records = records_in(size)
    return made(Shape(records=records, keys=max(1, records // _RECORDS_A_KEY), partitions=_PARTITIONS))
