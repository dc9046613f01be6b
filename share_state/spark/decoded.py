"""Decoded records as a Delta table."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from share_state.declarations import table_schema
from share_state.spark.plan import ROWS_A_BATCH, spread
from share_state.spark.warehouse import Warehouse, replacing
from share_state.warehouse_place import check_place
from share_state.work import Work


def decode_all(spark: SparkSession, work: Work) -> DataFrame:
    """Every record of every log partition, one task a log partition.

    Returns:
        Columns of schemas/tables/decoded_records.yaml.
    """
    tasks = spread(work.logs, spark.sparkContext.defaultParallelism)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                for log in tasks[number]:
                    for table in work.decode(log):
                        yield from table.combine_chunks().to_batches(max_chunksize=ROWS_A_BATCH)

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, from_arrow_schema(table_schema("decoded_records")))


def write_decoded(spark: SparkSession, work: Work, folder: str) -> int:
    """Write the decoded records as one Delta table, in place of an earlier one.

    Returns:
        How many records there are.
    Raises:
        WarehouseError: if the folder holds something else.
    """
    path = Path(folder).absolute()
    check_place(str(path), tables=("_delta_log",))
    Warehouse(str(path.parent)).write({path.name: replacing(decode_all(spark, work))})
    return spark.read.format("delta").load(str(path)).count()
