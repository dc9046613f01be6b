"""The sink of runs in this process: tasks stage rows, and this process writes them to the tables."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, reduce
from itertools import chain
from typing import Any

import pyarrow as pa

from share_state.delta.staging import STAGED_SCHEMA, StagedFile, Staging
from share_state.delta.warehouse import Warehouse
from share_state.pipeline.executor import Executor
from share_state.pipeline.plan import FoldPlan, available_cores
from share_state.pipeline.sink import LogRows
from share_state.pipeline.task import (
    LOG,
    SUMMARY,
    FinishRows,
    OutputSpec,
    PerLog,
)
from share_state.schema.declarations import table_schema
from share_state.sources.log_partition import LogPartition


class DeltalakeSink:
    """Tasks stage their rows below the output of the run.

    This process writes them to Parquet, and commits the files with deltalake.
    """

    def __init__(self, tables: Warehouse, executor: Executor[Any]) -> None:
        """Begin; the executor's tasks stage."""
        self.tables, self._executor = tables, executor
        self._staged = defaultdict[str, list[StagedFile]](list)
        self._changes = defaultdict[str, list[tuple[Collection[str] | None, FinishRows]]](list)
        self._added = defaultdict[str, list[Iterable[pa.Table]]](list)
        # A table is encoded in one thread.
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
        names = [*(columns or table_schema(table).names)]
        schema = pa.schema([*table_schema(table), (LOG, pa.string())])
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
        self._commits.append(
            self._threads.submit(self.tables.append, table, self._rows(table), replaced_runs)
        )

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
