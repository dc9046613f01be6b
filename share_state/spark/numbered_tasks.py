"""Tasks that differ in their number alone."""

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema


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
