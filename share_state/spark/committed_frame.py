"""A table of a warehouse as a DataFrame of the version that the last run committed."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from share_state.committed import CommittedTables
from share_state.declarations import table_schema
from share_state.spark.numbered_tasks import in_tasks
from share_state.table_files import asking, rows_of


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
