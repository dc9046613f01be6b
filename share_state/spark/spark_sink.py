"""Writes the tables of a run with Spark: its own Delta writer brings the cluster's credentials and commit protocol.

The fold returns the rows of all tables as one cached DataFrame, so that the input is read once; each table is
a filter of it. Several tables are committed at a time, and `runs` last.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from share_state.delta.warehouse import Warehouse
from share_state.delta.warehouse_place import ALL_TABLES
from share_state.errors import WarehouseError
from share_state.pipeline.executor import Executor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.sink import LogRows
from share_state.pipeline.task import LOG, SUMMARY, FinishRows, OutputSpec
from share_state.schema.declarations import table_schema
from share_state.spark.connections import described
from share_state.spark.delta_writer import DeltaWriter, arrow_frame, in_files, spark_errors
from share_state.spark.jvm_errors import JvmError

_WRITERS = 4
"""Tables that are written at a time: most are small, and the driver plans and commits them."""


class SparkSink:
    """Keeps the rows of a run as a cached DataFrame, and commits them with Spark's Delta writer."""

    def __init__(
        self, tables: Warehouse, executor: Executor[DataFrame], spark: SparkSession, schema: str | None
    ) -> None:
        """Begin; the executor runs in the session, which has Delta.

        The schema, if any, is at the warehouse.
        """
        self.tables = tables
        self._executor = executor
        self._spark = spark
        self._writer = DeltaWriter(tables, spark, schema)
        self._output = OutputSpec(())
        self._rows = None
        self._counts = Counter[str]()
        self._changed = dict[str, DataFrame]()
        self._added = defaultdict[str, list[pa.Table]](list)
        self._threads, self._commits = ThreadPoolExecutor(_WRITERS), list[Future[None]]()

    def close(self) -> None:
        """Release the rows; commits that have not begun are dropped."""
        self._threads.shutdown(cancel_futures=True)
        if self._rows is not None:
            with suppress(JvmError):
                self._rows.unpersist()

    def fold(self, plan: FoldPlan, written: Sequence[str], staged: Sequence[str]) -> pa.Table:
        """Fold every log partition in one job, and keep its rows in Spark."""
        self._output = OutputSpec((*written, *staged), incomplete=tuple(staged))
        # In memory, the rows of a million share-partitions do not fit into Spark's default heap, even while they
        # are spilled.
        self._rows = self._executor.fold(plan, self._output).persist(StorageLevel.DISK_ONLY)
        with described(self._spark, "share_state: read and fold log partitions"):
            rows = self._rows.where(sql.col(SUMMARY).isNotNull()).toArrow()
        for summary in rows[SUMMARY].to_pylist():
            self._counts.update({one["table"]: one["rows"] for one in summary["returned"]})
        return rows

    def write(self, table: str, plan: FoldPlan, per_log: LogRows) -> int:
        """Replace a table by what a function makes of every log partition."""
        return self.put(table, self._executor.map_logs(plan, partial(per_log, plan), table_schema(table)))

    def put(self, table: str, rows: DataFrame) -> int:
        """Replace a table by rows, and return their number."""
        self._changed[table] = rows
        self._commit(table, None)
        with described(self._spark, f"share_state: count {table}"):
            return self._spark.table(self._writer.name(table)).count()

    def count(self, table: str) -> int:
        """The number of rows that the fold made for a table."""
        return self._counts[table]

    def read(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Collect rows of a table that the fold made."""
        schema = pa.schema([*table_schema(table), (LOG, pa.string())])
        chosen = pa.schema([schema.field(name) for name in columns or table_schema(table).names])
        with described(self._spark, f"share_state: collect {table}"):
            return self._made(table, *({LOG} & {*chosen.names})).select(*chosen.names).toArrow().cast(chosen)

    def take(self, table: str) -> pa.Table:
        """Collect the staged rows of a table, which are then dropped."""
        rows = self.read(table)
        self._counts[table] = 0
        return rows

    def settle(self, table: str, logs: Collection[str], change: FinishRows) -> None:
        """Change the rows of some log partitions."""
        if table in self._output.tables:
            given, made = pa.schema([*table_schema(table), (LOG, pa.string())]), self._made(table, LOG)
            changed = _mapped(made.where(sql.col(LOG).isin(sorted(logs))), given, change, given)
            self._changed[table] = made.where(~sql.col(LOG).isin(sorted(logs))).unionByName(changed)

    def finish(self, table: str, finish: FinishRows) -> None:
        """Complete the staged rows of a table."""
        self._changed[table] = _mapped(
            self._made(table), self._output.schema_of(table), finish, table_schema(table)
        )

    def add(self, table: str, rows: Iterable[pa.Table]) -> None:
        """Add rows that the driver made."""
        self._added[table] += (one.cast(table_schema(table)) for one in rows if len(one))

    def replace(self, table: str) -> None:
        """Begin to replace a table by its rows here."""
        self._commits.append(self._threads.submit(self._commit, table, None))

    def append(self, table: str, replaced_runs: Collection[str]) -> None:
        """Begin to append to a table its rows here, and to remove those of some runs."""
        self._commits.append(self._threads.submit(self._commit, table, replaced_runs))

    def commit_run(self, row: Mapping[str, Any], expired: Collection[str] = ()) -> None:
        """Wait for the other tables, and commit the run."""
        for one in self._commits:
            one.result()
        self.add("runs", [self.tables.run_rows(row)])
        self._commit("runs", {row["run_id"], *expired})

    def maintain(self, days: int) -> None:
        """As `Warehouse.maintain`; Spark vacuums tables with features that delta-rs lacks."""
        for table in ALL_TABLES:
            try:
                self.tables.maintain(days, [table])
            except WarehouseError:
                with spark_errors(self.tables.folder(table)):
                    self._writer.vacuum(table, 24 * days)

    def _made(self, table: str, *more: str) -> DataFrame:
        """The rows of a table that the fold made."""
        assert self._rows is not None
        return self._rows.where(sql.col(table).isNotNull()).select(f"{table}.*", *more)

    def _frame(self, table: str) -> DataFrame:
        """All rows of a table, in few files."""
        frames = list[DataFrame]()
        count = self._counts[table]
        schema = table_schema(table)
        if self._rows is None:
            return self._changed[table]
        if count:
            frames.append(self._changed.get(table, self._made(table)).select(*schema.names))
        if (added := self._added[table]) or not count:
            rows = pa.concat_tables([schema.empty_table(), *added])
            count += len(rows)
            frames.append(arrow_frame(self._spark, table, rows))
        return in_files(reduce(DataFrame.unionByName, frames), count)

    def _commit(self, table: str, replaced_runs: Collection[str] | None) -> None:
        with self.tables.commit(table, replaced_runs) as commit, spark_errors(commit.path):
            may_have_rows = self._rows is None or self._counts[table] or self._added[table]
            frame = self._frame(table) if commit.existing is not None or may_have_rows else None
            # Rows that are changed may be left out.
            self._writer.write(table, commit, frame, may_be_empty=table in self._changed)


def _mapped(frame: DataFrame, given: pa.Schema, change: FinishRows, made: pa.Schema) -> DataFrame:
    """Rows of one schema changed to rows of another in tasks."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from (
                change(pa.Table.from_batches([batch]).cast(given)).select(made.names).cast(made).to_batches()
            )

    return frame.mapInArrow(run, from_arrow_schema(made))
