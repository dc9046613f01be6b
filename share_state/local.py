"""Folds on this machine without Spark, for commands whose result is small: in this process, or one a core."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import pyarrow as pa

from share_state.cores import cores_here, shares
from share_state.task import Wanted, run_task, spread
from share_state.wire.log_folder import LogPartition
from share_state.work import Work

_WORTH_PROCESSES = 64 << 20
"""Bytes of logs above which more processes are done sooner, though each takes a second to start."""


def fold_here(work: Work, wanted: Wanted | None = None) -> pa.Table:
    """Fold and judge every log partition of some work.

    Args:
        work: the log partitions, and how to fold them.
        wanted: what becomes of the tables; by default only the summaries are wanted.
    Returns:
        Rows of `wanted.schema`.
    Raises:
        InputError: if a segment cannot be read.
    """
    wanted = wanted or Wanted()
    cores = cores_here()
    tasks = spread(work.logs, cores)
    if len(tasks) == 1 or cores == 1 or sum(log.size for log in work.logs) < _WORTH_PROCESSES:
        return pa.concat_tables([_folded(work.alone(), wanted, task) for task in tasks])
    run = partial(_folded, replace(work, cores=shares(work.logs, cores)), wanted)
    # A forked process would share locks with threads that pyarrow has started here.
    with ProcessPoolExecutor(min(cores, len(tasks)), multiprocessing.get_context("spawn")) as pool:
        return pa.concat_tables(pool.map(run, tasks))


def _folded(work: Work, wanted: Wanted, logs: Sequence[LogPartition]) -> pa.Table:
    batches = [batch for log in logs for batch in run_task(work, wanted, log)]
    return pa.Table.from_batches(batches, schema=wanted.schema)
