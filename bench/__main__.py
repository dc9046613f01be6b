"""`python -m bench`: the same log through Kafka's own classes and through share_state, and what cost depends on."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from share_state.cli.main.main import keep_memory

from bench import comparisons, costs
from bench.end_to_end import IN_SPARK
from bench.exports import Shape
from bench.report import Report
from share_state.errors import ShareStateError

_SIZES = (2_000_000, 20_000_000, 50_000_000)
_USUAL = Shape()


def bench(
    *,
    records: Annotated[int, typer.Option(help="Records of the compared log.")] = _USUAL.records,
    keys: Annotated[int, typer.Option(help="Share-partitions they are spread over.")] = _USUAL.keys,
    records_per_batch: Annotated[list[int] | None, typer.Option(help="Repeatable; 1 and 20 by default.")] = None,
    batches_per_update: Annotated[int, typer.Option(help="State batches one write acknowledges.")] = 4,
    ranges: Annotated[int, typer.Option(help="Ranges in flight a share-partition.")] = _USUAL.ranges,
    partitions: Annotated[int, typer.Option(help="Partitions of the state topic.")] = _USUAL.partitions,
    codec: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = _USUAL.codec,
    minus_one: Annotated[float, typer.Option(help="Share of writes that leave the start out.")] = 0.0,
    tombstones: Annotated[float, typer.Option(help="Share of records that delete a share-partition.")] = 0.0,
    warm_ups: Annotated[int, typer.Option(help="Passes of each side before the measured ones.")] = 2,
    runs: Annotated[int, typer.Option(min=1, help="Measured passes of each side, by turns.")] = 3,
    comparison: Annotated[bool | None, typer.Option(help="Compare decode + fold with Kafka's replay.")] = None,
    small_export: Annotated[bool | None, typer.Option(help="Time the command on a 10 MB export.")] = None,
    user_log: Annotated[bool | None, typer.Option(help="Read a 1 GB user log with control records.")] = None,
    nightly: Annotated[
        bool, typer.Option("--nightly", help="Nightly audits behind 1 and 10 times the history.")
    ] = False,
    table: Annotated[bool, typer.Option("--table", help="Fold the compared log as a Parquet table.")] = False,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Kafka's replay over ranges in flight, batch sizes and codecs.")
    ] = False,
    matrix_share: Annotated[float, typer.Option(help="Share of the matrix's records and keys.")] = 1.0,
    end_to_end: Annotated[
        bool, typer.Option("--end-to-end", help="The command on 2, 20 and 50 M records, its start-up taken apart.")
    ] = False,
    end_to_end_records: Annotated[list[int] | None, typer.Option(help="On so many instead; repeatable.")] = None,
    shape: Annotated[
        bool, typer.Option("--shape", help="The command on as many bytes of few or many keys, logs, segments.")
    ] = False,
    shape_megabytes: Annotated[int, typer.Option(min=8, max=2147, help="Of each export of --shape.")] = 1024,
    in_spark: Annotated[
        bool, typer.Option("--in-spark", help="--nightly and --shape in Spark, not where the command runs unasked.")
    ] = False,
    growth: Annotated[
        bool, typer.Option("--growth", help="The command on more and more bytes and share-partitions; a picture.")
    ] = False,
    growth_megabytes: Annotated[int, typer.Option(min=8, help="Of the smallest export of --growth.")] = 160,
    profile: Annotated[bool, typer.Option("--profile", help="Decode + fold of one log by stage.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every number here.")] = None,
) -> None:
    """Replay generated exports with Kafka 4.4.0's own classes and with this project; data stays in bench/data.

    Without naming a measurement: comparison, small export and user log.

    Example: python -m bench --records 500000 --records-per-batch 20 --comparison
    """
    log = Shape(
        records=records,
        keys=keys,
        batches_per_update=batches_per_update,
        ranges=ranges,
        partitions=partitions,
        codec=codec,
        minus_one=minus_one,
        tombstones=tombstones,
    )
    sizes = end_to_end_records or (_SIZES if end_to_end else ())
    named = bool(comparison or small_export or user_log or nightly or table or matrix or sizes or shape or growth)
    usual = not (named or profile)
    report, place = Report(), IN_SPARK if in_spark else ()
    if usual if comparison is None else comparison:
        for size in records_per_batch or [1, 20]:
            comparisons.compare(report, replace(log, records_per_batch=size), warm_ups, runs)
    if usual if small_export is None else small_export:
        comparisons.small_export(report)
    if usual if user_log is None else user_log:
        comparisons.user_log(report, runs)
    if nightly:
        comparisons.nightly(report, runs, place)
    if table:
        comparisons.table(report, log, runs)
    if matrix:
        costs.run_matrix(report, matrix_share, warm_ups, runs)
    if sizes:
        costs.run_sizes(report, log, sizes, warm_ups, runs)
    if shape:
        costs.run_shapes(report, shape_megabytes, runs, place)
    if growth:
        costs.run_growth(report, growth_megabytes, runs)
    if profile:
        for size in records_per_batch or [1, 20]:
            costs.run_stages(report, replace(log, records_per_batch=size), runs)
    if not report.close(json_file):
        raise typer.Exit(1)


def main() -> None:
    """Run the command; an unusable call or a failed side is one line on stderr and exit code 2."""
    keep_memory()
    try:
        typer.run(bench)
    except ShareStateError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
