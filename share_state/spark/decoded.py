"""Decoded records as a DataFrame or a Delta table."""

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from share_state.declarations import table_schema
from share_state.spark.plan import over_logs
from share_state.table_files import FILES, TableFiles
from share_state.task import ROWS_A_BATCH
from share_state.warehouse import Warehouse
from share_state.warehouse_place import check_place
from share_state.wire.log_folder import LogPartition
from share_state.work import Work

TABLE = "decoded_records"


def decode_all(spark: SparkSession, work: Work) -> DataFrame:
    """Every record of every log partition, one task a log partition.

    Returns:
        Columns of schemas/tables/decoded_records.yaml.
    """
    return over_logs(spark, work, partial(_decoded, work), table_schema(TABLE))


def write_decoded(spark: SparkSession, work: Work, folder: str) -> int:
    """Write the decoded records as one Delta table, in place of an earlier one.

    Returns:
        How many records there are.
    Raises:
        WarehouseError: if the folder holds something else.
    """
    check_place(folder, tables=("_delta_log",))
    with Warehouse(folder.rstrip("/"), {TABLE: ""}) as tables:
        written = over_logs(spark, work, partial(_written, work, tables.files), FILES).toArrow().to_pylist()
        tables.replace(TABLE, written)
    return sum(file["rows"] for file in written)


def _decoded(work: Work, log: LogPartition) -> Iterator[pa.RecordBatch]:
    for table in work.decode(log):
        yield from table.combine_chunks().to_batches(max_chunksize=ROWS_A_BATCH)


def _written(work: Work, files: TableFiles, log: LogPartition) -> Iterator[pa.RecordBatch]:
    if written := files.write(TABLE, _decoded(work, log)):
        yield pa.RecordBatch.from_pylist(written, schema=FILES)
