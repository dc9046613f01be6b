"""Runs a plan in threads of this process."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from share_state.delta.warehouse import Warehouse
from share_state.pipeline.across_logs import modulus_of, settle_tables
from share_state.pipeline.deltalake_sink import DeltalakeSink
from share_state.pipeline.driver_side import GroupSide
from share_state.pipeline.memory import memory_note
from share_state.pipeline.mixed_logs import settle_cutoffs
from share_state.pipeline.plan import FoldPlan, available_cores, cores_per_log
from share_state.pipeline.result import check_records
from share_state.pipeline.sink import Sink
from share_state.pipeline.task import (
    CUTOFF,
    FINDINGS,
    RESULTS,
    OutputSpec,
    PerLog,
    returned_table,
    run_task,
)
from share_state.sources.log_partition import LogPartition

_LOG = logging.getLogger("share_state")


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Runs a plan in threads of this process: kernels and Arrow release Python's lock."""

    def map_logs(self, plan: FoldPlan, per_log: PerLog, schema: pa.Schema) -> pa.Table:
        """Run a function over every log partition; the result is in the order of the logs."""

        def table_of(log: LogPartition) -> pa.Table:
            return pa.Table.from_batches(list(per_log(log)), schema=schema)

        with ThreadPoolExecutor(available_cores()) as threads:
            # Largest first, so that no core waits long for the last one.
            logs = sorted(plan.logs, key=lambda log: -log.size)
            tables = {log.name: threads.submit(table_of, log) for log in logs}
            return pa.concat_tables([schema.empty_table(), *(tables[log.name].result() for log in plan.logs)])

    def fold(self, plan: FoldPlan, output: OutputSpec) -> pa.Table:
        """Fold and judge every log partition; a warning first if their state will not fit into memory."""
        if (note := memory_note(plan.logs)) is not None:
            _LOG.warning("%s", note)
        plan = replace(plan, cores=cores_per_log(plan.logs, available_cores()))
        return self.map_logs(plan, partial(run_task, plan, output), output.schema)

    def returned_tables(self, rows: pa.Table, tables: Sequence[str]) -> dict[str, pa.Table]:
        """Tables that `fold` returned, by name."""
        return {name: returned_table(rows, name) for name in tables}

    def result_tables(self, plan: FoldPlan, side: GroupSide | None = None) -> dict[str, pa.Table]:
        """Every table that `reconstruct` writes, by name.

        Raises:
            InputError: if a segment cannot be read, or the input holds no valid batch or no state record.
        """
        output = OutputSpec(RESULTS, incomplete=(FINDINGS,))
        rows = self.fold(plan, output)
        check_records(rows)
        tables = {name: returned_table(rows, name, output) for name in (*RESULTS, CUTOFF)}
        return settle_tables(side, plan, rows, tables)

    def cutoffs(self, plan: FoldPlan) -> pa.Table:
        """The table `cutoff`, in which what all logs show together is considered."""
        rows = self.fold(plan, OutputSpec(()))
        return settle_cutoffs(plan, returned_table(rows, CUTOFF), modulus_of(rows))

    def collect(self, rows: pa.Table) -> pa.Table:
        """The same table."""
        return rows

    def open_sink(self, tables: Warehouse) -> AbstractContextManager[Sink]:
        """The writer of deltalake."""
        return closing(DeltalakeSink(tables, self))
