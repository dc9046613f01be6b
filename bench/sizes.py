"""The command over exports of several sizes, beside Kafka's replay and this project's kernels over the same logs."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench import contestants
from bench.contestants import Contestant, Pass
from bench.end_to_end import EndToEnd, reconstructed
from bench.exports import Export


@dataclass(frozen=True, slots=True)
class SizeRun:
    """One size: the command from the shell, the median of three, and a warm pass each of Kafka's and of ours."""

    run: EndToEnd
    kafka: Pass
    kernel: Pass


def measured(exports: Sequence[Export], warm: Export, warm_ups: int) -> list[SizeRun]:
    """Replay each export with both sides, then run the command over it.

    Args:
        exports: one a size.
        warm: what both sides replay first.
        warm_ups: how many times.
    """
    with contestants.kafka() as kafka:
        of_kafka = _passes(kafka, exports, warm, warm_ups)
    with contestants.ours() as ours:
        of_kernel = _passes(ours, exports, warm, warm_ups)
    # The command's own children alone may run while its process tree is accounted for.
    runs = [_median_run(export) for export in exports]
    return [SizeRun(*one) for one in zip(runs, of_kafka, of_kernel, strict=True)]


def _median_run(export: Export) -> EndToEnd:
    """By wall time, of three: memory that another process has just given back costs the first one up to a second."""
    return sorted((reconstructed(export) for _ in range(3)), key=lambda run: run.usage.wall_s)[1]


def _passes(side: Contestant, exports: Sequence[Export], warm: Export, warm_ups: int) -> list[Pass]:
    for _ in range(warm_ups):
        side.replay(warm.folder)
    return [side.replay(export.folder) for export in exports]
