"""Where a plan runs: the `Executor` protocol, threads of this process and their sink, and the progress of a command.

Also which masters Spark knows, as commands need it before Spark is imported.
"""

import json
import logging
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from numba.core import event
from rich.console import Console
from rich.status import Status

from share_state.delta.staging import STAGED_SCHEMA, StagedFile, Staging
from share_state.delta.warehouse import Warehouse
from share_state.pipeline.across_logs import GroupSide, modulus_of, settle_cutoffs, settle_tables
from share_state.pipeline.plan import FoldPlan, available_cores, cores_per_log
from share_state.pipeline.result import check_records, logs_of_other_records, mark_unsafe
from share_state.pipeline.sink import LogRows, Sink
from share_state.pipeline.task import (
    CUTOFF,
    FINDINGS,
    LOG,
    RESULTS,
    SUMMARY,
    FinishRows,
    OutputSpec,
    PerLog,
    returned_table,
    run_task,
)
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import LogPartition
from share_state.terminal import styled

_LOG = logging.getLogger("share_state")

LOCAL_MASTER = "local[*]"
"""The Spark master if Spark is needed and none is given."""

_MASTERS = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")

# Set by spark-submit, whose JVM already has the master, jars and memory that it was given.
_UNDER_SPARK_SUBMIT = "PYSPARK_GATEWAY_PORT"

Rows = TypeVar("Rows")
"""What an executor returns: an Arrow table, or in Spark a lazy DataFrame."""


class Executor(Protocol[Rows]):
    """Runs a plan over its log partitions. Only `explain` and charts over time read one share-partition without it."""

    def map_logs(self, plan: FoldPlan, per_log: PerLog, schema: pa.Schema) -> Rows:
        """Run a function over every log partition.

        Args:
            plan: has the log partitions.
            per_log: yields batches of `schema` for one of them; travels to the tasks.
            schema: the schema of the result.
        """
        ...

    def fold(self, plan: FoldPlan, output: OutputSpec) -> Rows:
        """Fold and judge every log partition.

        Returns:
            Rows of `output.schema`.
        Raises:
            InputError: if a segment cannot be read.
        """
        ...

    def returned_tables(self, rows: Rows, tables: Sequence[str]) -> dict[str, Rows]:
        """Tables that `fold` returned, by name."""
        ...

    def result_tables(self, plan: FoldPlan, side: GroupSide | None = None) -> dict[str, Rows]:
        """Every table that `reconstruct` writes, by name; findings include those of the group side."""
        ...

    def cutoffs(self, plan: FoldPlan) -> Rows:
        """The table `cutoff`, in which what all logs show together is considered."""
        ...

    def collect(self, rows: Rows) -> pa.Table:
        """Rows as an Arrow table in this process."""
        ...

    def open_sink(self, tables: Warehouse) -> AbstractContextManager[Sink]:
        """Open the sink for the rows of a run that this executor folds; they are released on exit."""
        ...


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
        """Fold and judge every log partition."""
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
        cutoffs = mark_unsafe(returned_table(rows, CUTOFF), logs_of_other_records(rows))
        return settle_cutoffs(plan, cutoffs, modulus_of(rows))

    def collect(self, rows: pa.Table) -> pa.Table:
        """The same table."""
        return rows

    def open_sink(self, tables: Warehouse) -> AbstractContextManager[Sink]:
        """The writer of deltalake."""
        return closing(DeltalakeSink(tables, self))


class DeltalakeSink:
    """Tasks stage their rows below the output of the run; this process writes them to the tables with deltalake."""

    def __init__(self, tables: Warehouse, executor: Executor[Any]) -> None:
        """Begin; the executor's tasks stage."""
        self.tables, self._executor = tables, executor
        self._staged = defaultdict[str, list[StagedFile]](list)
        self._changes = defaultdict[str, list[tuple[Collection[str] | None, FinishRows]]](list)
        self._added = defaultdict[str, list[Iterable[pa.Table]]](list)
        # delta-rs encodes a table in one thread.
        self._threads, self._commits = ThreadPoolExecutor(available_cores()), list[Future[None]]()

    def close(self) -> None:
        """Wait for commits that have begun, and drop the others."""
        self._threads.shutdown(cancel_futures=True)

    def fold(self, plan: FoldPlan, written: Sequence[str], staged: Sequence[str]) -> pa.Table:
        """Fold every log partition."""
        output = OutputSpec((*written, *staged), incomplete=tuple(staged), staging=self.tables.staging)
        rows = self._executor.collect(self._executor.fold(plan, output))
        for summary in rows[SUMMARY].drop_null().to_pylist():
            for file in summary["staged"]:
                self._staged[file["table"]].append(file | {LOG: summary["log"]})
        return rows

    def write(self, table: str, plan: FoldPlan, per_log: LogRows) -> int:
        """Replace a table by what a function makes of every log partition."""
        stage = partial(_stage_log, self.tables.staging, table, partial(per_log, plan))
        files = self._executor.collect(self._executor.map_logs(plan, stage, STAGED_SCHEMA)).to_pylist()
        self.tables.replace(table, chain.from_iterable(map(self.tables.staging.read, files)))
        return sum(file["rows"] for file in files)

    def count(self, table: str) -> int:
        """The number of rows that the fold made for a table."""
        return sum(file["rows"] for file in self._staged[table])

    def read(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows of a table that the fold made."""
        names, schema = [*(columns or table_schema(table).names)], pa.schema([*table_schema(table), (LOG, pa.string())])
        schema = pa.schema([schema.field(name) for name in names])
        pieces = (
            rows.append_column(LOG, pa.repeat(file[LOG], len(rows))).select(names).cast(schema)
            for file in self._staged[table]
            for rows in self.tables.staging.read(file, [name for name in names if name != LOG])
        )
        return pa.concat_tables([schema.empty_table(), *pieces])

    def take(self, table: str) -> pa.Table:
        """Read the staged rows of a table; their files are deleted with the attempt."""
        rows = self.read(table)
        del self._staged[table]
        return rows

    def settle(self, table: str, logs: Collection[str], change: FinishRows) -> None:
        """Change the rows of some log partitions when they are written."""
        self._changes[table].append((logs, change))

    def finish(self, table: str, finish: FinishRows) -> None:
        """Complete the rows of a table when they are written."""
        self._changes[table].append((None, finish))

    def add(self, table: str, rows: Iterable[pa.Table]) -> None:
        """Add rows that the driver makes; they are read when they are written."""
        self._added[table].append(rows)

    def replace(self, table: str) -> None:
        """Begin to replace a table by its rows here."""
        self._commits.append(self._threads.submit(self.tables.replace, table, self._rows(table)))

    def append(self, table: str, replaced_runs: Collection[str]) -> None:
        """Begin to append to a table its rows here, and to remove those of some runs."""
        self._commits.append(self._threads.submit(self.tables.append, table, self._rows(table), replaced_runs))

    def _rows(self, table: str) -> Iterator[pa.Table]:
        for file in self._staged[table]:
            changes = [change for logs, change in self._changes[table] if logs is None or file[LOG] in logs]
            for rows in self.tables.staging.read(file):
                with_log = rows.append_column(LOG, pa.repeat(file[LOG], len(rows))) if changes else rows
                yield reduce(lambda made, change: change(made), changes, with_log)
        yield from chain.from_iterable(self._added[table])

    def commit_run(self, row: Mapping[str, Any], expired: Collection[str] = ()) -> None:
        """Wait for the other tables, and commit the run."""
        for one in self._commits:
            one.result()
        self.tables.commit_run(row, expired)

    def maintain(self, days: int) -> None:
        """Compact and vacuum the tables."""
        self.tables.maintain(days)


def _stage_log(staging: Staging, table: str, per_log: PerLog, log: LogPartition) -> Iterator[pa.RecordBatch]:
    if staged := staging.write(table, per_log(log)):
        yield pa.RecordBatch.from_pylist(staged, schema=STAGED_SCHEMA)


_SHOWN_AFTER_SECONDS = 2.0


class _CompilingStatus(event.Listener):
    """Shows how many kernels numba has begun to compile in a phase. Compiling one compiles those that it calls."""

    def __init__(self, status: Status, phase: str) -> None:
        self._status, self._phase, self._begun, self._depth = status, phase, 0, 0
        self.seconds, self._since = 0.0, 0.0

    def on_start(self, event: event.Event) -> None:
        del event
        if self._depth == 0:
            self._since = time.monotonic()
        self._begun, self._depth = self._begun + 1, self._depth + 1
        self._status.update(f"{self._phase}: compiling kernels ({self._begun}), later commands start at once …")

    def on_end(self, event: event.Event) -> None:
        del event
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.monotonic() - self._since
            self._status.update(f"{self._phase} …")


class Progress:
    """Times the phases of a command; `with progress("fold"):` around each.

    If stderr is a terminal and `quiet` is off, a line shows the running phase, and whether it is compiling kernels. A
    note says for how long a phase compiled. The environment variable SHARE_STATE_PHASES names a file that receives the
    seconds of each phase as JSON.
    """

    def __init__(self, *, quiet: bool = True) -> None:
        self.seconds: dict[str, float] = {}
        self._begun = time.monotonic()
        self._console = Console(file=styled(sys.stderr), quiet=quiet or not sys.stderr.isatty())

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time one phase."""
        begun = time.monotonic()
        with self._console.status(f"{phase} …") as status:
            listener = _CompilingStatus(status, phase)
            event.register("numba:compile", listener)
            try:
                yield
            finally:
                event.unregister("numba:compile", listener)
        if listener.seconds > _SHOWN_AFTER_SECONDS:
            _LOG.info("%s: compiled kernels for %.0f s", phase, listener.seconds)
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + time.monotonic() - begun, 3)

    def close(self) -> None:
        """Print the seconds of all phases, and write them to SHARE_STATE_PHASES."""
        target = os.environ.get("SHARE_STATE_PHASES")
        if target:
            Path(target).write_text(json.dumps(self.seconds), encoding="utf-8")
        total = time.monotonic() - self._begun
        if total > _SHOWN_AFTER_SECONDS:
            phases = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())
            self._console.print(f"[dim]{total:.1f} s: {phases}[/dim]")


def is_master(given: str) -> bool:
    """Whether Spark accepts a master of this form."""
    return _MASTERS.fullmatch(given) is not None


def is_local(master: str) -> bool:
    """Whether tasks run in the JVM that this process starts."""
    return master.partition("[")[0] == "local"


def is_under_spark_submit() -> bool:
    """Whether spark-submit has started this process."""
    return _UNDER_SPARK_SUBMIT in os.environ
