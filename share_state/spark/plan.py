"""The plan: log partitions spread over Spark's tasks, each folded and judged where it is read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.storagelevel import StorageLevel

from share_state.cores import shares
from share_state.kept_memory import keep_memory
from share_state.phases import Phases
from share_state.spark.sources.live import is_live, live_frame
from share_state.table_files import FILE, File, TableFiles
from share_state.task import CUTOFF, SUMMARY, Wanted, run_task, spread
from share_state.wire.log_folder import LogPartition
from share_state.work import Work

_FILES = pa.schema(list(FILE))


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


def over_logs(
    spark: SparkSession, work: Work, made: Callable[[LogPartition], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> DataFrame:
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

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_memory()
        for batch in batches:
            for number in batch["id"].to_pylist():
                for log in tasks[number]:
                    yield from made(log)

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, from_arrow_schema(schema))


@contextmanager
def collected(results: DataFrame, phases: Phases) -> Iterator[tuple[DataFrame, pa.Table]]:
    """Run the tasks once: what they sent stays with Spark while it is used, their summaries come here.

    Args:
        results: of `fold_all`.
        phases: told what is going on.
    Yields:
        The results, kept; those of their rows that have `cutoff` and `summary`.
    """
    kept = results.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with phases("read and fold"):
            summaries = kept.filter(f"{SUMMARY} IS NOT NULL").select(CUTOFF, SUMMARY).toArrow()
        yield kept, summaries
    finally:
        kept.unpersist()


def result_table(results: DataFrame, name: str) -> DataFrame:
    """One of the tables that `fold_all` sends."""
    return results.filter(f"{name} IS NOT NULL").select(f"{name}.*")


def write_rows(rows: DataFrame, files: TableFiles, table: str, finished: Callable[[pa.Table], pa.Table]) -> list[File]:
    """Write the rows of a frame into files of a table, in the tasks that hold them.

    Args:
        rows: as the tasks sent them.
        files: where to.
        table: its name.
        finished: the rows of the table from those of the frame.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ready = (one for batch in batches for one in finished(pa.Table.from_batches([batch])).to_batches())
        if written := files.write(table, ready):
            yield pa.RecordBatch.from_pylist(written, schema=_FILES)

    return rows.mapInArrow(write, from_arrow_schema(_FILES)).toArrow().to_pylist()
