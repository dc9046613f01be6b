"""What this project says of its own speed, each with the number that was just measured."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.comparison import Comparison
from bench.contestants import Pass, median_ratio
from bench.end_to_end import EndToEnd
from bench.exports import Export
from bench.forms import FormsRun
from bench.nightly import Night
from bench.process_tree import TreeUsage
from bench.user_log import UserLogRun

PER_CORE = 8.0
END_TO_END_CPU = 0.5
WORKER_MEMORY = 576_000_000
"""Bytes of a process that holds no state: interpreter and libraries (about 290 MB), chunks, records, what is kept."""
SMALL_EXPORT_S = 20.0
USER_LOG_SPEED = 0.5
HISTORY = 1.2
AUDIT = 2.0
TABLE_SPEED = 1 / 3


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement with a bound, and what was measured against it."""

    statement: str
    measured: str
    holds: bool


def faster_per_core(comparison: Comparison) -> Claim:
    """Decode and fold, CPU time against CPU time."""
    ratio = median_ratio(comparison.kafka, comparison.ours)
    shape = comparison.export.shape
    return Claim(
        f"decode + fold is at least {PER_CORE:.0f} times Kafka's replay per core"
        f" ({shape.records:,} records, {shape.records_per_batch} a batch)",
        f"{ratio:.1f} times",
        ratio >= PER_CORE,
    )


def half_the_cpu(run: EndToEnd, kafka: Pass) -> Claim:
    """The whole command, start-up and Delta tables counted, against a warm replay that writes nothing."""
    share = run.usage.cpu_s / kafka.cpu_s
    return Claim(
        f"end to end takes at most half the CPU time of Kafka's replay ({run.export.shape.records:,} records)",
        f"{run.usage.cpu_s:.1f} CPU s against {kafka.cpu_s:.1f}: {share:.2f}",
        share <= END_TO_END_CPU,
    )


def worker_memory(runs: Iterable[tuple[EndToEnd, int]]) -> Claim:
    """The largest process that folds less the live state; the input is larger than the bound, or this says little.

    Args:
        runs: of the command, each beside the largest peak memory of its like, in bytes.
    """
    run, peak = max(runs, key=lambda one: one[1] - one[0].live_bytes)
    beyond = peak - run.live_bytes
    return Claim(
        f"the peak memory of what folds is at most {WORKER_MEMORY / 1e6:.0f} MB plus the live state, whatever is read",
        f"{beyond / 1e6:,.0f} MB beyond a live state of {run.live_bytes / 1e6:,.0f} MB at"
        f" {run.export.bytes / 1e6:,.0f} MB of input, the worst",
        peak > 0 and beyond <= WORKER_MEMORY,
    )


def small_export(run: EndToEnd) -> Claim:
    """The usual nightly export, where start-up is most of the time."""
    return Claim(
        f"{run.export.bytes / 1e6:.0f} MB from shell to printed result in under {SMALL_EXPORT_S:.0f} s",
        f"{run.usage.wall_s:.1f} s",
        run.usage.wall_s < SMALL_EXPORT_S,
    )


def user_log(run: UserLogRun) -> Claim:
    """User data is stepped over at framing speed; its CRC is checked all the same."""
    share = run.fold / run.crc_pass
    return Claim(
        f"a user log of {run.bytes / 1e9:.1f} GB, 1 % of it control records ({run.control_records:,}), is read"
        " at no less than half the speed of a plain CRC pass",
        f"{run.fold / 1e6:,.0f} MB/s against {run.crc_pass / 1e6:,.0f} MB/s: {share:.2f} times",
        share >= USER_LOG_SPEED,
    )


def cost_of_history(nights: Sequence[tuple[Night, Night]]) -> Claim:
    """A nightly audit pays for what is new, not for what it has read before: behind little, and behind much."""
    share = median(long.beyond_start_up / short.beyond_start_up for short, long in nights)
    short, long = nights[0]
    taken = [median(night.beyond_start_up for night in side) for side in zip(*nights, strict=True)]
    return Claim(
        f"an audit that takes in {long.new_bytes / 1e6:.0f} MB behind {long.old_bytes / 1e6:,.0f} MB of history takes"
        f" at most {HISTORY - 1:.0%} longer, start-up aside, than behind {short.old_bytes / 1e6:,.0f} MB",
        f"{taken[1]:.1f} s against {taken[0]:.1f} s: {share:.2f}",
        share <= HISTORY,
    )


def cost_of_rules(export: Export, pairs: Sequence[tuple[TreeUsage, TreeUsage]]) -> Claim:
    """The first audit of an export reads all of it and judges every record; beside each the same by reconstruct."""
    audits, plain_ones = zip(*pairs, strict=True)
    share = median_ratio(audits, plain_ones)
    audit, plain = (median(run.cpu_s for run in side) for side in (audits, plain_ones))
    return Claim(
        f"an audit of everything, all rules on, takes at most {AUDIT:.0f} times the CPU time of reconstruct"
        f" ({export.shape.keys:,} share-partitions)",
        f"{audit:.1f} CPU s against {plain:.1f}: {share:.2f}",
        share <= AUDIT,
    )


def table_speed(run: FormsRun) -> Claim:
    """The same records from Parquet, one file a log partition, and from segments; the files are in the page cache."""
    sizes = f"{run.table_bytes / 1e6:.0f} MB of Parquet, {run.segment_bytes / 1e6:.0f} MB as segments"
    speeds = f"{run.records / run.table_s:,.0f} records/s against {run.records / run.segments_s:,.0f}"
    return Claim(
        f"a table of {run.records:,} records ({sizes}) is folded at no less than a third of the segments' speed",
        f"{speeds}: {run.share:.2f} times",
        run.share >= TABLE_SPEED,
    )
