"""What cost may depend on and how far: claims over the matrix, shapes, sizes and growth."""

from collections.abc import Callable, Iterator, Sequence

from bench.by_cores import ByCores
from bench.claims import Claim
from bench.growth import Series
from bench.matrix import Cell
from bench.shapes import Pair
from bench.sizes import SizeRun
from bench.start_up import StartUp

PER_CORE = {1: 5.0, 30: 15.0, 200: 30.0}
"""Ranges in flight -> how many times Kafka's replay a core."""
OVER_CRC = 3.0
OVER_KERNEL = 2.0
WALL = 5.0
APART = 2.0
OFF_LINE = 0.1
SCALING = 0.8


def per_core(cells: Sequence[Cell]) -> list[Claim]:
    """One claim for each number of ranges in flight, by its worst batch size, and one for each codec."""
    found = []
    for ranges, bound in PER_CORE.items():
        plain = [cell for cell in cells if cell.export.shape.ranges == ranges and not _is_packed(cell)]
        if plain:
            worst = min(plain, key=lambda cell: cell.ratio)
            found.append(
                Claim(
                    f"decode + fold is at least {bound:.0f} times Kafka's replay per core at {ranges} ranges in flight,"
                    " whatever the batch size",
                    f"{worst.ratio:.1f} times at {worst.export.shape.records_per_batch} a batch, the worst",
                    worst.ratio >= bound,
                )
            )
    for cell in filter(_is_packed, cells):
        shape = cell.export.shape
        bound = PER_CORE[shape.ranges]
        found.append(
            Claim(
                f"the same with {shape.codec} at {shape.ranges} ranges, {shape.records_per_batch} a batch: {bound:.0f}",
                f"{cell.ratio:.1f} times",
                cell.ratio >= bound,
            )
        )
    return found


def near_crc(cells: Sequence[Cell]) -> Iterator[Claim]:
    """What is compressed is checksummed as few bytes, so it is shown in the table and not judged."""
    ways: dict[str, Callable[[Cell], float]] = {
        "in the page cache, by CPU time": lambda cell: cell.over_crc,
        "from the disk, by wall time": lambda cell: cell.from_disk.over_crc,
    }
    for way, over in ways.items():
        worst = max((cell for cell in cells if not _is_packed(cell)), key=over)
        shape = worst.export.shape
        yield Claim(
            f"decode + fold of what is not compressed takes at most {OVER_CRC:.0f} times as long as reading and"
            f" checksumming the same bytes, {way}",
            f"{over(worst):.1f} times at {shape.ranges} ranges, {shape.records_per_batch} a batch, the worst",
            over(worst) <= OVER_CRC,
        )


def of_sizes(one: SizeRun, start_up: StartUp) -> list[Claim]:
    """CPU time against the kernels' and start-up, wall time against Kafka's one thread."""
    records = f"{one.run.export.shape.records:,} records"
    spent, bound = one.run.usage.cpu_s, OVER_KERNEL * one.kernel.cpu_s + start_up.cpu_s
    shorter = one.kafka.wall_s / one.run.usage.wall_s
    return [
        Claim(
            f"end to end takes at most {OVER_KERNEL:.0f} times the kernels' CPU time plus start-up ({records})",
            f"{spent:.1f} CPU s against {one.kernel.cpu_s:.1f} x {OVER_KERNEL:.0f} + {start_up.cpu_s:.1f}",
            spent <= bound,
        ),
        Claim(
            f"end to end is at least {WALL:.0f} times shorter than Kafka's replay, which runs one thread ({records})",
            f"{one.run.usage.wall_s:.1f} s against {one.kafka.wall_s:.1f}: {shorter:.1f} times",
            shorter >= WALL,
        ),
    ]


def same_whatever_shape(pair: Pair) -> Claim:
    """CPU time a byte of two exports that differ in one thing."""
    first, second = pair.sides
    return Claim(
        f"{first.side.name} or {second.side.name}, as many bytes: CPU time within {APART:.0f} times of each other",
        f"{first.run.usage.cpu_s:.1f} CPU s against {second.run.usage.cpu_s:.1f}: {pair.apart:.2f} times",
        pair.apart <= APART,
    )


def scales(hot: ByCores) -> Claim:
    """One log partition by all cores, by wall time; the states must be those of one core."""
    return Claim(
        f"one hot log partition gains by {hot.cores} cores {SCALING:.0%} of what processes gain that fold one each",
        f"{hot.faster:.2f} times as fast, {hot.given:.2f} by the processes" + ("" if hot.same else "; states differ"),
        hot.same and hot.faster >= SCALING * hot.given,
    )


def linear(series: Series) -> list[Claim]:
    """Both clocks; start-up is the line's height at no bytes."""
    return [
        Claim(
            f"{clock} time grows with {series.growing.name}, along a straight line: no size is {OFF_LINE:.0%} off it",
            f"{line.off:.1%} off {line.fixed:.1f} s + {1e9 * line.rate:.2f} s a GB",
            line.off <= OFF_LINE and line.rate > 0,
        )
        for clock, line in {"CPU": series.cpu, "wall": series.wall}.items()
    ]


def _is_packed(cell: Cell) -> bool:
    return cell.export.shape.codec != "none"
