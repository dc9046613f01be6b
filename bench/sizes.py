"""The command over exports of several sizes, beside Kafka's replay and this project's kernels over the same logs."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench import contestants
from bench.contestants import Contestant, Pass
from bench.end_to_end import EndToEnd, reconstructed, typical_run
from bench.exports import Export

_RUNS = 3
"""Of the command."""


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
    # Memory that another process has just given back costs the first run up to a second.
    runs = [typical_run([reconstructed(export) for _ in range(_RUNS)]) for export in exports]
    return [SizeRun(*one) for one in zip(runs, of_kafka, of_kernel, strict=True)]


def _passes(side: Contestant, exports: Sequence[Export], warm: Export, warm_ups: int) -> list[Pass]:
    for _ in range(warm_ups):
        side.replay(warm.folder)
    return [side.replay(export.folder) for export in exports]
