"""What a run needs of the place where its tasks are: this process, or Spark's workers.

Tasks in this process: a thread a core, since kernels and Arrow hold no lock of Python's.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from share_state.delta.files import File, TableFiles
from share_state.pipeline.plan import Work, cores_here, shares
from share_state.pipeline.task import Finished, Made, Wanted, finish_drafts, run_task
from share_state.sources.discovery import LogPartition


class Tasks(Protocol):
    """Runs what is asked of every log partition."""

    def fold(self, work: Work, wanted: Wanted) -> pa.Table:
        """Fold and judge every log partition.

        Returns:
            Rows of `wanted.schema`.
        Raises:
            InputError: if a segment cannot be read.
        """
        ...

    def over_logs(self, work: Work, made: Made, schema: pa.Schema) -> pa.Table:
        """What is made of every log partition of some work: batches of `schema` for each."""
        ...

    def finish(self, files: TableFiles, drafts: Sequence[File], finished: Finished) -> list[File]:
        """Write what tasks set aside as files of its table, as `share_state.drafts.finish_drafts`."""
        ...


@dataclass(frozen=True, slots=True)
class TasksHere:
    """Runs what is asked of every log partition without Spark; as `share_state.runs.tasks.Tasks`."""

    def fold(self, work: Work, wanted: Wanted) -> pa.Table:
        """Fold and judge every log partition: rows of `wanted.schema`.

        Raises:
            InputError: if a segment cannot be read.
        """
        work = replace(work, cores=shares(work.logs, cores_here()))
        return self.over_logs(work, partial(run_task, work, wanted), wanted.schema)

    def over_logs(self, work: Work, made: Made, schema: pa.Schema) -> pa.Table:
        """What is made of every log partition of some work: batches of `schema` for each."""

        def table_of(log: LogPartition) -> pa.Table:
            return pa.Table.from_batches(list(made(log)), schema=schema)

        # Biggest first, so that no core waits long for the last one.
        logs = sorted(work.logs, key=lambda log: -log.size)
        with ThreadPoolExecutor(cores_here()) as threads:
            return pa.concat_tables(threads.map(table_of, logs))

    def finish(self, files: TableFiles, drafts: Sequence[File], finished: Finished) -> list[File]:
        """Write what tasks set aside as files of its table."""
        return finish_drafts(files, drafts, finished)
