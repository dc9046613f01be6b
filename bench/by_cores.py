"""One hot log partition, read, decoded and folded by one core and by all, in this process, kernels warm."""

import time
from dataclasses import dataclass
from statistics import median

from bench.exports import Export
from share_state.cores import cores_here
from share_state.fold.log import fold_log
from share_state.wire.log_folder import LogPartition, find_logs


@dataclass(frozen=True, slots=True)
class ByCores:
    """Medians over the runs.

    Attributes:
        log: the log partition.
        cores: how many there are.
        seconds: wall time by one core, and by all.
        same: whether both gave the same states.
    """

    log: LogPartition
    cores: int
    seconds: tuple[float, float]
    same: bool

    @property
    def faster(self) -> float:
        """How many times as fast all cores are."""
        return self.seconds[0] / self.seconds[1]


def measured(export: Export, runs: int) -> ByCores:
    """Fold the largest log partition by turns, one turn first that is not counted."""
    log = max(find_logs([str(export.folder)]), key=lambda one: one.size)
    sides = (1, cores_here())
    same = fold_log(log, cores=sides[0]).states.equals(fold_log(log, cores=sides[1]).states)
    passes = [[_seconds(log, cores) for cores in sides] for _ in range(runs)]
    alone, together = (median(one) for one in zip(*passes, strict=True))
    return ByCores(log, sides[1], (alone, together), same)


def _seconds(log: LogPartition, cores: int) -> float:
    begun = time.perf_counter()
    fold_log(log, cores=cores)
    return time.perf_counter() - begun
