"""The plan: log partitions spread over Spark's tasks, each folded and judged where it is read."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from share_state.cores import shares
from share_state.kept_memory import keep_memory
from share_state.spark.numbered_tasks import in_tasks
from share_state.spark.sources.live import is_live, live_frame
from share_state.task import Made, Wanted, run_task, spread
from share_state.work import Work


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
        keep_memory()
        for log in tasks[number]:
            yield from made(log)

    return in_tasks(spark, len(tasks), run, schema)


def result_table(results: DataFrame, name: str) -> DataFrame:
    """One of the tables that `fold_all` sends."""
    return results.filter(f"{name} IS NOT NULL").select(f"{name}.*")
