"""The tables of what cost depends on: the matrix, sizes, start-up, shapes, growth, stages."""

from collections.abc import Sequence

from rich.table import Table

from bench.by_cores import ByCores
from bench.contestants import KAFKA, typical
from bench.growth import Series
from bench.matrix import Cell
from bench.shapes import Pair
from bench.sizes import SizeRun
from bench.stages import Stages
from bench.start_up import StartUp


def matrix_table(cells: Sequence[Cell]) -> Table:
    """One row a log; seconds are CPU time of the median pass."""
    table = _table("ranges", *("a batch", "codec", "records", "keys", "MB"))
    for column in (KAFKA, "share_state", "times Kafka"):
        table.add_column(column, justify="right")
    for cell in cells:
        shape = cell.export.shape
        table.add_row(
            f"{shape.ranges} ({cell.export.ranges_a_key:.0f})",
            f"{shape.records_per_batch}",
            shape.codec,
            f"{shape.records:,}",
            f"{shape.keys:,}",
            f"{cell.export.bytes / 1e6:.0f}",
            f"{typical(cell.comparison.kafka).cpu_s:.2f}",
            f"{typical(cell.comparison.ours).cpu_s:.3f}",
            f"{cell.ratio:.1f}",
        )
    return table


def floors_table(cells: Sequence[Cell]) -> Table:
    """One row a log: decode + fold beside reading and checksumming, CPU seconds in the page cache and from the disk."""
    ways = ("read + CRC", "times", "both from disk, wall s", "times")
    table = _table("ranges", *("a batch", "codec", "share_state", *ways))
    for cell in cells:
        shape, disk = cell.export.shape, cell.from_disk
        table.add_row(
            f"{shape.ranges}",
            f"{shape.records_per_batch}",
            shape.codec,
            f"{typical(cell.comparison.ours).cpu_s:.3f}",
            f"{cell.crc_s:.3f}",
            f"{cell.over_crc:.1f}",
            f"{disk.ours_s:.3f} / {disk.crc_s:.3f}",
            f"{disk.over_crc:.1f}",
        )
    return table


def sizes_table(runs: Sequence[SizeRun]) -> Table:
    """One column a size."""
    table = _table("", *(f"{one.run.export.shape.records:,} records" for one in runs))
    table.add_row("MB of segments", *(f"{one.run.export.bytes / 1e6:,.0f}" for one in runs))
    for phase in dict.fromkeys(phase for one in runs for phase in one.run.phases):
        table.add_row(f"  {phase}, s", *(f"{one.run.phases.get(phase, 0.0):.1f}" for one in runs))
    table.add_row("shell to printed result, s", *(f"{one.run.usage.wall_s:.1f}" for one in runs))
    table.add_row(f"{KAFKA}'s replay, warm, s", *(f"{one.kafka.wall_s:.1f}" for one in runs))
    table.add_row("  times shorter", *(f"{one.kafka.wall_s / one.run.usage.wall_s:.2f}" for one in runs))
    table.add_row("CPU s of all its processes", *(f"{one.run.usage.cpu_s:.1f}" for one in runs))
    table.add_row("CPU s of decode + fold alone, warm", *(f"{one.kernel.cpu_s:.1f}" for one in runs))
    table.add_row(f"CPU s of {KAFKA}'s replay, warm", *(f"{one.kafka.cpu_s:.1f}" for one in runs))
    for kind in ("command", "jvm", "worker"):
        peaks = [one.run.usage.peak_bytes.get(kind, 0) for one in runs]
        table.add_row(f"peak memory, largest {kind}, MB", *(f"{peak / 1e6:.0f}" for peak in peaks))
    table.add_row("largest log partition, MB", *(f"{one.run.export.largest_partition_bytes / 1e6:.0f}" for one in runs))
    return table


def start_up_table(start_up: StartUp) -> Table:
    """One row a step, in the order in which they happen."""
    table = _table("start-up, over next to nothing", "s")
    for step, seconds in start_up.lines.items():
        table.add_row(f"  {step}", f"{seconds:.2f}")
    table.add_row("shell to printed result", f"{start_up.wall_s:.2f}")
    table.add_row("CPU s of all its processes", f"{start_up.cpu_s:.2f}")
    return table


def shapes_table(pairs: Sequence[Pair]) -> Table:
    """Two rows a pair."""
    table = _table(
        "export", *("MB", "records", "share-partitions", "CPU s", "wall s", "MB of what folds", "live state MB")
    )
    for pair in pairs:
        for one in pair.sides:
            export, usage = one.side.export, one.run.usage
            table.add_row(
                one.side.name,
                f"{export.bytes / 1e6:,.1f}",
                f"{export.shape.records:,}",
                f"{one.run.digest['share_partitions']:,}",
                f"{usage.cpu_s:.1f}",
                f"{usage.wall_s:.1f}",
                f"{one.peak_bytes / 1e6:.0f}",
                f"{one.run.live_bytes / 1e6:.1f}",
            )
        table.add_section()
    return table


def by_cores_table(hot: ByCores) -> Table:
    """A row for one core, one for all, and one for as many processes that fold the log each for itself."""
    table = _table("cores", *("MB", "wall s", "MB/s"))
    rows = ("1", 1, hot.seconds[0]), (f"{hot.cores}", 1, hot.seconds[1]), ("1 each, at once", hot.cores, hot.each_s)
    for cores, logs, seconds in rows:
        size = logs * hot.log.size
        table.add_row(cores, f"{size / 1e6:,.1f}", f"{seconds:.2f}", f"{size / seconds / 1e6:,.0f}")
    return table


def growth_table(series: Series) -> Table:
    """One row a size, and the straight lines nearest to them."""
    table = _table("times", *("MB", "share-partitions", "CPU s", "wall s"))
    for point in series.points:
        table.add_row(
            f"{point.times or ''}",
            f"{point.export.bytes / 1e6:,.1f}",
            f"{point.export.shape.keys:,}",
            *(f"{seconds:.2f}" for seconds in (point.cost.cpu_s, point.cost.wall_s)),
        )
    lines = (series.cpu, series.wall)
    table.add_row("line: s at no bytes", "", "", *(f"{line.fixed:.2f}" for line in lines))
    table.add_row("line: s a GB", "", "", *(f"{1e9 * line.rate:.2f}" for line in lines))
    table.add_row("farthest from it", "", "", *(f"{line.off:.1%}" for line in lines))
    return table


def stages_table(stages: Stages) -> Table:
    """One row a stage, and the whole of which they are parts."""
    table = _table("stage", *("CPU s", "share of fold_log", "ns a record", "MB/s"))
    rows = stages.seconds | {"rest of fold_log: gaps, faults, cutoff": stages.rest_s}
    for stage, seconds in {**rows, "fold_log": stages.fold_log_s}.items():
        table.add_row(
            stage,
            f"{seconds:.3f}",
            f"{seconds / stages.fold_log_s:.0%}",
            f"{1e9 * seconds / stages.records:,.0f}",
            f"{stages.log.size / seconds / 1e6:,.0f}" if seconds > 0 else "",
        )
    return table


def _table(first: str, *columns: str) -> Table:
    table = Table()
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table
