"""`python -m bench`: the same log through Kafka's own classes and through share_state."""

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench import claims, contestants, forms
from bench.comparison import Comparison, compared
from bench.contestants import Pass
from bench.end_to_end import EndToEnd, reconstructed
from bench.exports import Export, Shape, made
from bench.nightly import audited
from bench.tables import comparison_table, end_to_end_table
from bench.user_log import measured
from share_state.errors import ShareStateError

_BIG = 20_000_000
# About 10 MB over as many state partitions as a broker has by default.
_SMALL = Shape(records=53_000, keys=2_000, partitions=50)
_USUAL = Shape()
_USER_LOG = 1 << 30
_SHORT = 400_000


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
    comparison: Annotated[bool, typer.Option(help="Compare decode + fold with Kafka's replay.")] = True,
    small_export: Annotated[bool, typer.Option(help="Time the command on a 10 MB export.")] = True,
    user_log: Annotated[bool, typer.Option(help="Read a 1 GB user log with control records.")] = True,
    nightly: Annotated[
        bool, typer.Option("--nightly", help="Also nightly audits behind 1 and 10 times the history.")
    ] = False,
    table: Annotated[bool, typer.Option("--table", help="Also fold the compared log as a Parquet table.")] = False,
    end_to_end: Annotated[bool, typer.Option("--end-to-end", help=f"Also the command on {_BIG:,} records.")] = False,
    end_to_end_records: Annotated[int | None, typer.Option(help="Also the command on so many records.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every number here.")] = None,
) -> None:
    """Replay generated exports with Kafka 4.4.0's own classes and with this project; data stays in bench/data.

    Example: python -m bench --records 500000 --records-per-batch 20 --no-small-export
    """
    shape = Shape(
        records=records,
        keys=keys,
        batches_per_update=batches_per_update,
        ranges=ranges,
        partitions=partitions,
        codec=codec,
        minus_one=minus_one,
        tombstones=tombstones,
    )
    report = _Report()
    if comparison:
        for size in records_per_batch or [1, 20]:
            report.compare(replace(shape, records_per_batch=size), warm_ups, runs)
    if small_export:
        report.small_export()
    if user_log:
        report.user_log(runs)
    if nightly:
        report.nightly()
    if table:
        report.table(shape, runs)
    if end_to_end or end_to_end_records:
        report.end_to_end(replace(shape, records=end_to_end_records or _BIG), warm_ups)
    report.close(json_file)


class _Report:
    """Runs the measurements one by one, prints each as it is done, and keeps what the closing lines say."""

    def __init__(self) -> None:
        self._console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
        self._progress = Console(stderr=True, quiet=not sys.stderr.isatty())
        self._claims: list[claims.Claim] = []
        self._differences: list[str] = []
        self._numbers: dict[str, Any] = {"cpus": os.cpu_count(), "comparisons": [], "end_to_end": []}

    def compare(self, shape: Shape, warm_ups: int, runs: int) -> None:
        export = self._made(shape)
        with self._progress.status("replaying by turns …"), contestants.kafka() as kafka, contestants.ours() as ours:
            comparison = compared(kafka, ours, export, warm_ups=warm_ups, runs=runs)
        self._print(f"decode + fold: {export.title}", comparison_table(comparison))
        self._claims.append(claims.faster_per_core(comparison))
        if comparison.difference is not None:
            self._differences.append(comparison.difference)
        self._numbers["comparisons"].append(_comparison_numbers(comparison))

    def small_export(self) -> None:
        run = self._reconstructed(self._made(_SMALL))
        with contestants.kafka() as kafka:
            replayed = kafka.replay(run.export.folder)
        self._add(run, None, replayed)
        self._claims.append(claims.small_export(run))

    def user_log(self, runs: int) -> None:
        with self._progress.status("reading a user log …"):
            run = measured(_USER_LOG, runs)
        self._claims.append(claims.user_log(run))
        self._numbers["user_log"] = asdict(run)

    def nightly(self) -> None:
        nights = []
        for records in (_SHORT, 10 * _SHORT):
            export = self._made(replace(_USUAL, records=records))
            with self._progress.status(f"auditing behind {records:,} records …"):
                nights.append(audited(export))
        run = self._reconstructed(export)
        self._claims += [claims.cost_of_history(*nights), claims.cost_of_rules(nights[-1], run)]
        self._numbers["nightly"] = [asdict(night) for night in nights]

    def table(self, shape: Shape, runs: int) -> None:
        export = self._made(shape)
        with self._progress.status("folding a table …"):
            run = forms.measured(export, runs)
        self._claims.append(claims.table_speed(run))
        if not run.is_equal:
            self._differences.append(f"{export.folder.name}: the table and the segments fold to different states")
        self._numbers["table"] = asdict(run)

    def end_to_end(self, shape: Shape, warm_ups: int) -> None:
        export = self._made(shape)
        warm = self._made(replace(shape, records=min(shape.records, _USUAL.records)))
        with self._progress.status("Kafka replays …"), contestants.kafka() as kafka:
            for _ in range(warm_ups):
                kafka.replay(warm.folder)
            replayed = kafka.replay(export.folder)
        run = self._reconstructed(export)
        self._add(run, replayed, replayed)
        self._claims += [claims.half_the_cpu(run, replayed), claims.worker_memory(run)]

    def close(self, json_file: Path | None) -> None:
        """Print the closing lines; the exit code is 1 where the two sides disagree."""
        for claim in self._claims:
            self._console.print(
                f"{'holds ' if claim.holds else 'MISSED'} {claim.statement}: {claim.measured}", soft_wrap=True
            )
        for difference in self._differences:
            self._console.print(f"DIFFER {difference}", soft_wrap=True, markup=False)
        if not self._differences:
            self._console.print("Both sides hold the same state after every export.")
        if json_file is not None:
            self._numbers["claims"] = [asdict(claim) for claim in self._claims]
            json_file.write_text(json.dumps(self._numbers, indent=1) + "\n")
        if self._differences:
            raise typer.Exit(1)

    def _print(self, title: str, table: Table) -> None:
        self._console.print(title, soft_wrap=True)
        self._console.print(table)

    def _made(self, shape: Shape) -> Export:
        with self._progress.status("generating …"):
            return made(shape)

    def _reconstructed(self, export: Export) -> EndToEnd:
        with self._progress.status("share-state reconstruct …"):
            return reconstructed(export)

    def _add(self, run: EndToEnd, shown: Pass | None, replayed: Pass) -> None:
        self._print(f"share-state reconstruct: {run.export.title}", end_to_end_table(run, shown))
        if run.digest != replayed.digest:
            self._differences.append(f"{run.export.folder.name}: the tables hold {run.digest}, Kafka {replayed.digest}")
        self._numbers["end_to_end"].append(
            {
                "shape": asdict(run.export.shape),
                "bytes": run.export.bytes,
                "largest_partition_bytes": run.export.largest_partition_bytes,
                **asdict(run.usage),
                "phases": run.phases,
                "kafka": asdict(replayed),
                "digest": run.digest,
            }
        )


def _comparison_numbers(comparison: Comparison) -> dict[str, Any]:
    return {
        "shape": asdict(comparison.export.shape),
        "bytes": comparison.export.bytes,
        "ranges_a_key": comparison.export.ranges_a_key,
        "kafka": [asdict(one) for one in comparison.kafka],
        "ours": [asdict(one) for one in comparison.ours],
        "ratio_per_core": contestants.median_ratio(comparison.kafka, comparison.ours),
        "difference": comparison.difference,
    }


def main() -> None:
    """Run the command; an unusable call or a failed side is one line on stderr and exit code 2."""
    try:
        typer.run(bench)
    except ShareStateError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
