"""One hot log partition, read, decoded and folded by one core and by all, in this process, kernels warm.

Beside it what the machine gives at all: as many processes as there are cores fold the log at once, each for itself.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from statistics import median

from bench.exports import Export
from bench.seconds import seconds
from share_state.fold.log import fold_log
from share_state.pipeline.plan import cores_here
from share_state.sources.discovery import LogPartition, find_logs

_PATIENCE = 120.0
"""Seconds to wait for a process of ours."""


@dataclass(frozen=True, slots=True)
class ByCores:
    """Medians over the runs.

    Attributes:
        log: the log partition.
        cores: how many there are.
        seconds: wall time by one core, and by all.
        each_s: wall time of a process that folds the log by one core while one a core does so.
        same: whether one and all gave the same states.
    """

    log: LogPartition
    cores: int
    seconds: tuple[float, float]
    each_s: float
    same: bool

    @property
    def faster(self) -> float:
        """How many times as fast all cores are."""
        return self.seconds[0] / self.seconds[1]

    @property
    def given(self) -> float:
        """How many times as much as one process alone the processes get done that share nothing but the machine."""
        return self.cores * self.seconds[0] / self.each_s


def measured(export: Export, runs: int) -> ByCores:
    """Fold the largest log partition by turns, one turn first that is not counted."""
    log = max(find_logs([str(export.folder)]), key=lambda one: one.size)
    cores = cores_here()
    same = fold_log(log).states.equals(fold_log(log, cores=cores).states)
    spawned = multiprocessing.get_context("spawn")
    with spawned.Pool(cores, _meet, [spawned.Barrier(cores)]) as processes:

        def apart() -> float:
            return max(processes.map_async(_seconds_beside, [log] * cores, chunksize=1).get(_PATIENCE))

        sides: Sequence[Callable[[], float]] = (lambda: _seconds(log, 1), lambda: _seconds(log, cores), apart)
        apart()
        passes = [[side() for side in sides] for _ in range(runs)]
    alone, together, each = (median(one) for one in zip(*passes, strict=True))
    return ByCores(log, cores, (alone, together), each, same)


def _seconds(log: LogPartition, cores: int) -> float:
    return seconds(lambda: fold_log(log, cores=cores))


_met: Barrier


def _meet(barrier: Barrier) -> None:
    global _met  # noqa: PLW0603  a process of the pool has no other place for it
    _met = barrier


def _seconds_beside(log: LogPartition) -> float:
    # Each process takes one, and none begins before all are there.
    _met.wait(_PATIENCE)
    return _seconds(log, 1)
