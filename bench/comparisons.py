"""The usual measurements, each run, shown and judged: the comparison, a small export, a user log, nights, a table."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench import claims, contestants, forms
from bench.comparison import Comparison, compared
from bench.end_to_end import EndToEnd, reconstructed
from bench.exports import Shape
from bench.nightly import nights_of, spent
from bench.report import Report
from bench.shapes import many_keys
from bench.tables import comparison_table, end_to_end_table
from bench.user_log import measured

# About 10 MB over as many state partitions as a broker has by default.
_SMALL = Shape(records=53_000, keys=2_000, partitions=50)
_USER_LOG = 1 << 30
_SHORT = 400_000
_MANY_KEYS_MB = 1024


def compare(report: Report, shape: Shape, warm_ups: int, runs: int) -> None:
    """Decode + fold against Kafka's replay."""
    export = report.made(shape)
    with report.doing("replaying by turns"), contestants.kafka() as kafka, contestants.ours() as ours:
        comparison = compared(kafka, ours, export, warm_ups=warm_ups, runs=runs)
    report.show(f"decode + fold: {export.title}", comparison_table(comparison))
    report.claim([claims.faster_per_core(comparison)])
    report.compare(comparison.difference)
    report.note("comparisons", comparison_numbers(comparison))


def small_export(report: Report) -> None:
    """The command over about 10 MB."""
    export = report.made(_SMALL)
    with report.doing("share-state reconstruct"):
        run = reconstructed(export)
    with contestants.kafka() as kafka:
        replayed = kafka.replay(export.folder)
    report.show(f"share-state reconstruct: {export.title}", end_to_end_table(run, None))
    report.claim([claims.small_export(run)])
    report.compare(digest_difference(run, replayed))
    report.note("end_to_end", end_to_end_numbers(run, replayed))


def user_log(report: Report, runs: int) -> None:
    """A user log with control records against a plain CRC pass."""
    with report.doing("reading a user log"):
        run = measured(_USER_LOG, runs)
    report.claim([claims.user_log(run)])
    report.note("user_log", asdict(run))


def nightly(report: Report, runs: int, place: Sequence[str]) -> None:
    """Audits behind a short and a long history, by turns; of few and of many share-partitions, against reconstruct."""
    short, long = (report.made(Shape(records=records)) for records in (_SHORT, 10 * _SHORT))
    with report.doing("auditing two nights"):
        nights = [(nights_of(short, place), nights_of(long, place)) for _ in range(runs)]
    report.claim([claims.cost_of_history(nights)])
    with report.doing("stretching"):
        many = many_keys(_MANY_KEYS_MB)
    beside = {}
    for export in (long, many):
        with report.doing(f"auditing and reconstructing {export.shape.keys:,} share-partitions"):
            pairs = [(spent("audit", export, place), spent("reconstruct", export, place)) for _ in range(runs)]
        report.claim([claims.cost_of_rules(export, pairs)])
        beside[export.folder.name] = [[asdict(one) for one in pair] for pair in pairs]
    report.note("nightly", {"nights": [[asdict(one) for one in pair] for pair in nights], "audit, reconstruct": beside})


def table(report: Report, shape: Shape, runs: int) -> None:
    """The same records as Parquet and as segments."""
    export = report.made(shape)
    with report.doing("folding a table"):
        run = forms.measured(export, runs)
    report.claim([claims.table_speed(run)])
    differs = f"{export.folder.name}: the table and the segments fold to different states"
    report.compare(None if run.is_equal else differs)
    report.note("table", asdict(run))


def digest_difference(run: EndToEnd, replayed: contestants.Pass) -> str | None:
    """How the tables' content differs from what Kafka replayed; None where it does not."""
    if run.digest == replayed.digest:
        return None
    return f"{run.export.folder.name}: the tables hold {run.digest}, Kafka {replayed.digest}"


def end_to_end_numbers(run: EndToEnd, replayed: contestants.Pass) -> dict[str, Any]:
    """Every number of one run of the command."""
    return {
        "shape": asdict(run.export.shape),
        "bytes": run.export.bytes,
        "largest_partition_bytes": run.export.largest_partition_bytes,
        **asdict(run.usage),
        "phases": run.phases,
        "kafka": asdict(replayed),
        "digest": run.digest,
    }


def comparison_numbers(comparison: Comparison) -> dict[str, Any]:
    """Every number of both sides' passes."""
    return {
        "shape": asdict(comparison.export.shape),
        "bytes": comparison.export.bytes,
        "ranges_a_key": comparison.export.ranges_a_key,
        "kafka": [asdict(one) for one in comparison.kafka],
        "ours": [asdict(one) for one in comparison.ours],
        "ratio_per_core": contestants.median_ratio(comparison.kafka, comparison.ours),
        "difference": comparison.difference,
    }
