"""Tasks that differ in their number alone.

The plan: log partitions spread over Spark's tasks, each folded and judged where it is read.

Tasks of a run that Spark's workers do.

A table of a warehouse as a DataFrame of the version that the last run committed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from share_state.delta.files import FILES, File, TableFiles, asking, rows_of
from share_state.delta.reader import CommittedTables
from share_state.pipeline.plan import Work, shares
from share_state.pipeline.task import Finished, Made, Wanted, finish_drafts, run_task, spread
from share_state.schema.declarations import table_schema
from share_state.spark.inputs import is_live, live_frame


def in_tasks(
    spark: SparkSession, count: int, made: Callable[[int], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> DataFrame:
    """What so many tasks make, each of its number.

    Args:
        spark: a session.
        count: of the tasks.
        made: yields batches of `schema` for a number from 0 on; travels to the tasks.
        schema: of the result.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from made(number)

    return spark.range(0, count, 1, max(count, 1)).mapInArrow(run, from_arrow_schema(schema))


def fold_all(spark: SparkSession, work: Work, wanted: Wanted) -> DataFrame:
    """Fold and judge every log partition in a few tasks a core, a hot one by several cores.

    Returns:
        Rows of `wanted.schema`.
    """
    context = spark.sparkContext
    # A task stays on one executor; where nobody said how many cores that has, it will see those of its machine.
    of_executor = int(context.getConf().get("spark.executor.cores") or context.defaultParallelism)
    work = replace(work, cores=shares(work.logs, context.defaultParallelism, of_executor))
    return over_logs(spark, work, partial(run_task, work, wanted), wanted.schema)


def over_logs(spark: SparkSession, work: Work, made: Made, schema: pa.Schema) -> DataFrame:
    """What is made of every log partition of some work, in tasks.

    Args:
        spark: a session.
        work: with the log partitions.
        made: yields batches of `schema` for one of them.
        schema: of the result.
    """
    if is_live(work.logs):
        return live_frame(spark, work.logs, made, from_arrow_schema(schema))
    tasks = spread(work.logs, spark.sparkContext.defaultParallelism)

    def run(number: int) -> Iterator[pa.RecordBatch]:
        for log in tasks[number]:
            yield from made(log)

    return in_tasks(spark, len(tasks), run, schema)


def result_table(results: DataFrame, name: str) -> DataFrame:
    """One of the tables that `fold_all` sends."""
    return results.filter(f"{name} IS NOT NULL").select(f"{name}.*")


FEW_ROWS = 128 << 10
"""Finished here, since starting tasks takes longer."""


@dataclass(frozen=True, slots=True)
class SparkTasks:
    """Runs what is asked of every log partition in Spark's tasks; as `share_state.runs.tasks.Tasks`.

    Attributes:
        spark: a session.
    """

    spark: SparkSession

    def fold(self, work: Work, wanted: Wanted) -> pa.Table:
        """Fold and judge every log partition: rows of `wanted.schema`."""
        return fold_all(self.spark, work, wanted).toArrow()

    def over_logs(self, work: Work, made: Made, schema: pa.Schema) -> pa.Table:
        """What is made of every log partition of some work: batches of `schema` for each."""
        return over_logs(self.spark, work, made, schema).toArrow()

    def finish(self, files: TableFiles, drafts: Sequence[File], finished: Finished) -> list[File]:
        """Write what tasks set aside as files of its table, in tasks again where there is much of it."""
        if sum(draft["rows"] for draft in drafts) <= FEW_ROWS:
            return finish_drafts(files, drafts, finished)
        count = min(len(drafts), self.spark.sparkContext.defaultParallelism)

        def run(number: int) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pylist(finish_drafts(files, drafts[number::count], finished), schema=FILES)

        return in_tasks(self.spark, count, run, FILES).toArrow().to_pylist()


def committed_frame(spark: SparkSession, tables: CommittedTables, name: str) -> DataFrame:
    """A table as Delta reads it; in an object store, which Spark has no client for, read by tasks file by file.

    Args:
        spark: a session, with Delta where the warehouse is a folder.
        tables: the warehouse.
        name: of a table that the run committed.
    Raises:
        WarehouseError: if the table is gone.
    """
    if "://" not in tables.root:
        read = spark.read.format("delta").option("versionAsOf", tables.versions[name])
        return read.load(f"{tables.root}/{name}")
    paths = [file["path"] for file in tables.files(name)]

    def rows(number: int) -> Iterator[pa.RecordBatch]:
        with asking(paths[number]):
            yield from rows_of(name, [paths[number]]).to_batches()

    return in_tasks(spark, len(paths), rows, table_schema(name))
