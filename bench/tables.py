"""The tables that `make bench` prints."""

from collections.abc import Sequence

from rich.table import Table

from bench.comparison import Comparison
from bench.contestants import KAFKA, OURS, Pass, median_ratio, spread, typical
from bench.end_to_end import EndToEnd

_COLUMNS = (
    "records/s",
    "MB/s",
    "records per CPU s",
    "CPU s",
    "of the thread",
    "spread",
    "peak memory",
    "ratio per core",
)


def comparison_table(comparison: Comparison) -> Table:
    """One row a side: the pass of median CPU time, and the ratio over all pairs of passes."""
    table = Table()
    table.add_column("side")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    ratio = median_ratio(comparison.kafka, comparison.ours)
    table.add_row(*_side(KAFKA, comparison.kafka), "1")
    table.add_row(*_side(OURS, comparison.ours), f"{ratio:.1f}")
    return table


def _side(name: str, passes: Sequence[Pass]) -> list[str]:
    shown = typical(passes)
    return [
        name,
        f"{shown.records / shown.wall_s:,.0f}",
        f"{shown.bytes / shown.wall_s / 1e6:,.0f}",
        f"{shown.records / shown.cpu_s:,.0f}",
        f"{shown.cpu_s:.2f}",
        f"{shown.thread_cpu_s:.2f}",
        f"{spread(passes):.2f}",
        f"{passes[-1].peak_bytes / 1e6:.0f} MB",
    ]


def end_to_end_table(run: EndToEnd, kafka: Pass | None) -> Table:
    """The command's wall time taken apart, its CPU time and memory, and Kafka's replay of the same log beside it."""
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for phase, seconds in run.phases.items():
        table.add_row(f"  {phase}", f"{seconds:.1f} s")
    table.add_row("shell to printed result", f"{run.usage.wall_s:.1f} s")
    table.add_row("CPU time of all its processes", f"{run.usage.cpu_s:.1f} s")
    if kafka is not None:
        table.add_row(f"CPU time of {KAFKA}'s replay, warm", f"{kafka.cpu_s:.1f} s")
        table.add_row(f"wall time of {KAFKA}'s replay, warm", f"{kafka.wall_s:.1f} s")
    for kind in ("command", "jvm", "worker"):
        if kind in run.usage.peak_bytes:
            table.add_row(f"peak memory, largest {kind}", f"{run.usage.peak_bytes[kind] / 1e6:.0f} MB")
    table.add_row("bytes of the largest log partition", f"{run.export.largest_partition_bytes / 1e6:.1f} MB")
    return table
