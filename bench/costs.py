"""What cost depends on, each measurement run, shown and judged: matrix, sizes, shapes, growth, stages."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from bench import (
    by_cores,
    claims,
    contestants,
    cost_claims,
    cost_tables,
    growth,
    growth_chart,
    matrix,
    shapes,
    sizes,
    stages,
)
from bench.comparisons import comparison_numbers, digest_difference, end_to_end_numbers
from bench.end_to_end import IN_SPARK
from bench.exports import Shape
from bench.report import Report
from bench.start_up import taken_apart

_WARM = 2_000_000


def run_matrix(report: Report, share: float, warm_ups: int, runs: int) -> None:
    """Decode + fold against Kafka over ranges, batch sizes and codecs."""
    exports = [report.made(shape) for shape in matrix.shapes(share)]
    cells = []
    with contestants.kafka() as kafka, contestants.ours() as ours:
        for cell in matrix.measured(kafka, ours, exports, warm_ups=warm_ups, runs=runs):
            cells.append(cell)
            report.compare(cell.comparison.difference)
            beside = {"crc_s": cell.crc_s, "from_disk": asdict(cell.from_disk)}
            report.note("matrix", comparison_numbers(cell.comparison) | beside)
    title = "decode + fold, CPU s (in brackets the mean of ranges that were in flight)"
    report.show(title, cost_tables.matrix_table(cells))
    report.show("the same beside reading and checksumming the same bytes, CPU s", cost_tables.floors_table(cells))
    report.claim([*cost_claims.per_core(cells), *cost_claims.near_crc(cells)])


def run_sizes(report: Report, shape: Shape, records: Sequence[int], warm_ups: int, runs: int) -> None:
    """The command from the shell over several sizes, and where its start-up goes."""
    exports = [report.made(replace(shape, records=count)) for count in records]
    warm = report.made(replace(shape, records=min(_WARM, *records)))
    with report.doing("replaying, then share-state reconstruct"):
        measured = sizes.measured(exports, warm, warm_ups)
    with report.doing("starting up"):
        nothing = growth.start_up_export(shape.partitions)
        start_ups = {"without Spark": taken_apart(nothing, runs), "in Spark": taken_apart(nothing, runs, *IN_SPARK)}
    report.show("share-state reconstruct, from the shell to committed tables", cost_tables.sizes_table(measured))
    for how, start_up in start_ups.items():
        title = f"share-state reconstruct over next to nothing, {how}, median of {runs}"
        report.show(title, cost_tables.start_up_table(start_up))
    for one in measured:
        start_up = start_ups["in Spark" if one.run.is_in_spark else "without Spark"]
        report.claim([*cost_claims.of_sizes(one, start_up), claims.half_the_cpu(one.run, one.kafka)])
        report.compare(digest_difference(one.run, one.kafka))
        report.note("end_to_end", end_to_end_numbers(one.run, one.kafka) | {"kernel": asdict(one.kernel)})
    report.claim([claims.worker_memory((one.run, one.run.peak_bytes) for one in measured)])
    report.note("start_up", {how: asdict(start_up) for how, start_up in start_ups.items()})


def run_shapes(report: Report, megabytes: int, runs: int, place: Sequence[str]) -> None:
    """The command over pairs of exports of equal bytes."""
    pairs = []
    for sides in shapes.pairs(megabytes):
        with report.doing(f"share-state reconstruct over {sides[0].name} and {sides[1].name}"):
            pairs.append(shapes.measured(sides, runs, place))
    report.show(f"share-state reconstruct, median of {runs} by turns", cost_tables.shapes_table(pairs))
    with report.doing("folding one hot log partition by one core and by all"):
        hot = by_cores.measured(pairs[1].sides[0].side.export, runs)
    report.show("decode + fold of one hot log partition", cost_tables.by_cores_table(hot))
    peaks = [(one.run, one.peak_bytes) for pair in pairs for one in pair.sides]
    report.claim([*map(cost_claims.same_whatever_shape, pairs), claims.worker_memory(peaks)])
    report.claim([cost_claims.scales(hot)])
    for pair in pairs:
        told = [{"name": one.side.name, "bytes": one.side.export.bytes, **asdict(one.run.usage)} for one in pair.sides]
        report.note("shapes", told)
    report.note("by_cores", {"cores": hot.cores, "seconds": hot.seconds, "each_s": hot.each_s, "same": hot.same})


def run_growth(report: Report, megabytes: int, runs: int) -> None:
    """The command over more and more bytes and share-partitions, and the picture of it."""
    with report.doing("stretching"):
        exports = growth.exports(megabytes)
    series = []
    for growing in exports:
        with report.doing(f"share-state reconstruct: {growing.name}"):
            series.append(growth.measured(growing, runs))
        report.show(f"growth with {growing.name}, median of {runs}", cost_tables.growth_table(series[-1]))
        report.claim(cost_claims.linear(series[-1]))
        points = [{"times": one.times, "bytes": one.export.bytes, **asdict(one.cost)} for one in series[-1].points]
        lines = {"cpu": asdict(series[-1].cpu), "wall": asdict(series[-1].wall)}
        report.note("growth", {"name": growing.name, "points": points, "lines": lines})
    growth_chart.drawn(series)


def run_stages(report: Report, shape: Shape, runs: int) -> None:
    """Where the time of decode + fold goes, over the largest log partition of the compared log."""
    export = report.made(shape)
    with report.doing("timing each stage"):
        measured = stages.measured(export, runs)
    size = f"{measured.records:,} records, {measured.log.size / 1e6:.1f} MB"
    report.show(
        f"decode + fold of {measured.log.name} by stage, median of {runs} passes: {size} of {export.title}",
        cost_tables.stages_table(measured),
    )
    report.note("stages", {"seconds": measured.seconds, "fold_log_s": measured.fold_log_s})
