"""Runs a plan in Spark's tasks: each log partition is folded by the task that reads it. Nothing is shuffled."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from share_state.delta.reader import CommittedTables, open_dataset, warehouse_errors
from share_state.delta.warehouse import Warehouse
from share_state.pipeline.across_logs import GroupSide
from share_state.pipeline.executor import DeltalakeSink
from share_state.pipeline.plan import FoldPlan, cores_per_log
from share_state.pipeline.sink import Sink
from share_state.pipeline.task import (
    CUTOFF,
    FINDINGS,
    RESULTS,
    STATE,
    SUMMARY,
    OutputSpec,
    PerLog,
    balance_tasks,
    run_task,
)
from share_state.rules.group_context import STATE_COLUMNS
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import LogPartition, Segment
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.spark.inputs import FrameRows, described, local_address, map_frame
from share_state.spark.sink import SparkSink, missing_support

_LOG = logging.getLogger("share_state")


@dataclass(frozen=True, slots=True)
class SparkExecutor:
    """Runs a plan in Spark's tasks; an Executor of share_state.pipeline.executor whose rows are lazy DataFrames.

    Attributes:
        spark: the session.
        schema: `catalog.schema` of the tables that it writes; None to name them by their paths.
    """

    spark: SparkSession
    schema: str | None = None

    def map_logs(self, plan: FoldPlan, per_log: PerLog, schema: pa.Schema) -> DataFrame:
        """Run a function over every log partition; a few tasks per core, the logs of a cluster one per task."""
        by_frame, cores = dict[DataFrame | None, list[LogPartition]](), self.spark.sparkContext.defaultParallelism
        for log in plan.logs:
            frame = log.source.frame if isinstance(log.source, FrameRows) else None
            by_frame.setdefault(frame, []).append(log)
        parts = [
            self._map_files(logs, per_log, schema) if frame is None else map_frame(frame, logs, cores, per_log, schema)
            for frame, logs in (by_frame or {None: []}).items()
        ]
        return reduce(DataFrame.unionAll, parts)

    def _map_files(self, logs: Sequence[LogPartition], per_log: PerLog, schema: pa.Schema) -> DataFrame:
        # Workers have another working directory.
        logs = [replace(log, segments=tuple(map(_absolute, log.segments))) for log in logs]
        tasks = balance_tasks(logs, self.spark.sparkContext.defaultParallelism)
        if all(log.source is not None and log.source.form == KAFKA_FORM for log in logs):
            tasks = [[log] for log in logs]

        def run(number: int) -> Iterator[pa.RecordBatch]:
            for log in tasks[number]:
                yield from per_log(log)

        return run_tasks(self.spark, len(tasks), run, schema)

    def fold(self, plan: FoldPlan, output: OutputSpec) -> DataFrame:
        """Fold and judge every log partition, a hot one with several cores."""
        context = self.spark.sparkContext
        # A task stays on one executor; if spark.executor.cores is not set, it sees the cores of its machine.
        of_executor = int(context.getConf().get("spark.executor.cores") or context.defaultParallelism)
        plan = replace(plan, cores=cores_per_log(plan.logs, context.defaultParallelism, of_executor))
        if plan.resumed is not None:
            files = {name: tuple(map(_absolute_path, one.files)) for name, one in plan.resumed.items()}
            plan = replace(plan, resumed={n: replace(one, files=files[n]) for n, one in plan.resumed.items()})
        return self.map_logs(plan, partial(run_task, plan, output), output.schema)

    def returned_tables(self, rows: DataFrame, tables: Sequence[str]) -> dict[str, DataFrame]:
        """Tables that `fold` returned, by name; Spark folds once for all of them and keeps the rows."""
        rows = rows.cache() if len(tables) > 1 else rows
        return {name: rows.filter(f"{name} IS NOT NULL").select(f"{name}.*") for name in tables}

    def result_tables(self, plan: FoldPlan, side: GroupSide | None = None) -> dict[str, DataFrame]:
        """Every table that `reconstruct` writes, by name; Spark folds once, when one of them is first used."""
        rows = self.fold(plan, OutputSpec(RESULTS))
        tables = self.returned_tables(rows, (*RESULTS, CUTOFF))
        if side is None:
            return tables
        findings = tables[FINDINGS].unionByName(_judge_groups(rows, side, plan))
        of_groups = {name: self.spark.createDataFrame(table) for name, table in side.tables().items()}
        return tables | {FINDINGS: findings} | of_groups

    def collect(self, rows: DataFrame) -> pa.Table:
        """Rows as an Arrow table in this process."""
        with described(self.spark, "share_state: read and fold log partitions"):
            return rows.toArrow()

    @contextmanager
    def open_sink(self, tables: Warehouse) -> Iterator[Sink]:
        """Spark's own Delta writer, if the session has one for the place; else that of deltalake."""
        if (missing := missing_support(self.spark, tables.root)) is not None:
            _LOG.info("%s: deltalake writes the tables, from rows that the tasks stage there", missing)
            sink = DeltalakeSink(tables, self)
        else:
            sink = SparkSink(tables, self, self.spark, self.schema)
        with closing(sink):
            yield sink


def _absolute_path(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def _absolute(segment: Segment) -> Segment:
    return replace(segment, path=_absolute_path(segment.path))


def _judge_groups(rows: DataFrame, side: GroupSide, plan: FoldPlan) -> DataFrame:
    """The findings of the group side, judged in one task when they are used; `rows` of `SparkExecutor.fold`."""
    findings, columns = table_schema(FINDINGS), table_schema(STATE)
    empty = pa.schema([columns.field(name) for name in STATE_COLUMNS]).empty_table()

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        states, newest = [empty], 0
        for batch in batches:
            newest = max([newest, *batch["newest_time"].drop_null().to_pylist()])
            own = pa.Table.from_struct_array(batch[STATE].drop_null())
            states.append(own.select(list(STATE_COLUMNS)).cast(empty.schema))
        yield from side.judge(pa.concat_tables(states), plan, newest).cast(findings).to_batches()

    chosen = rows.select(STATE, f"{SUMMARY}.newest_time")
    return chosen.coalesce(1).mapInArrow(judge, from_arrow_schema(findings))


def run_tasks(
    spark: SparkSession, count: int, task: Callable[[int], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> DataFrame:
    """Run `task(i)`, which yields batches of `schema`, in `count` Spark tasks."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from task(number)

    return spark.range(0, count, 1, max(count, 1)).mapInArrow(run, from_arrow_schema(schema))


def committed_frame(spark: SparkSession, tables: CommittedTables, name: str) -> DataFrame:
    """A committed table as Delta reads it; tasks read the files of an object store, which Spark has no client for.

    Raises:
        WarehouseError: if the table is gone.
    """
    if "://" not in tables.root:
        read = spark.read.format("delta").option("versionAsOf", tables.versions[name])
        return read.load(f"{local_address(tables.root)}/{name}")
    paths = [file["path"] for file in tables.files(name)]

    def rows(number: int) -> Iterator[pa.RecordBatch]:
        with warehouse_errors(paths[number]):
            yield from open_dataset(name, [paths[number]]).to_batches()

    return run_tasks(spark, len(paths), rows, table_schema(name))
