"""Every way to fold records in a Spark session gives the tables of this process.

`python -m tests.spark.shapes FOLDER` holds them equal on a session of Spark Connect, fixture by fixture.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from share_state.jit.portable import compile_for_every_cpu

compile_for_every_cpu()

import pyarrow as pa  # noqa: E402  numba reads its settings when it is imported
from chispa import assert_df_equality  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql import functions as sql  # noqa: E402
from pyspark.sql.pandas.types import from_arrow_schema  # noqa: E402

import share_state  # noqa: E402
from share_state.schema.declarations import table_schema  # noqa: E402
from share_state.sources.discovery import find_logs  # noqa: E402
from tests.fold.test_decoded_fold import compare  # noqa: E402
from tests.sources.formats.tables import table_of, write  # noqa: E402
from tests.spark.connect_session import connect, say  # noqa: E402
from tests.truth import logs_alone, scenarios  # noqa: E402

TABLES = ("share_partition_state", "in_flight", "findings", "cutoff")
WHOLE = ("path", "warehouse", "frame")
"""Shapes that see whole logs."""
GROUPED = ("records of the topic", "decoded records")
"""Shapes of `fold_records`."""


def check_shapes(spark: SparkSession, scenario: Path, folder: Path) -> Iterator[str]:
    """Hold the tables of each shape equal to those of this process; yields the shape."""
    source = logs_alone(scenario)
    exported = write(table_of(find_logs([str(source)])), folder / "records.parquet")
    expected = share_state.reconstruct(exported, groups=())
    assert len(expected.share_partition_state)
    records = spark.read.parquet(str(exported))
    whole = (
        share_state.reconstruct(exported, spark=spark, groups=()),
        share_state.reconstruct(exported, spark=spark, groups=(), warehouse=folder / "lake"),
        share_state.reconstruct(records),
    )
    for shape, tables in zip(WHOLE, whole, strict=True):
        for name in TABLES:
            in_spark = spark.createDataFrame(getattr(expected, name), from_arrow_schema(table_schema(name)))
            assert_df_equality(texts(getattr(tables, name), name), texts(in_spark, name), ignore_row_order=True)
        yield shape
    grouped = (share_state.fold_records(records), share_state.fold_records(share_state.read(exported, spark)))
    for shape, tables in zip(GROUPED, grouped, strict=True):
        in_arrow = (getattr(tables, name).toArrow().cast(table_schema(name)) for name in TABLES)
        compare(share_state.Tables(**dict[str, pa.Table](zip(TABLES, in_arrow, strict=True))), expected)
        yield shape


def texts(frame: DataFrame, name: str) -> DataFrame:
    """The rows as JSON; rows with a map have no order."""
    columns = [column for column in table_schema(name).names if column != "run_id"]
    return frame.select(sql.to_json(sql.struct(*columns)).alias("text"))


if __name__ == "__main__":
    session = connect()
    for number, one in enumerate(scenarios()):
        for kind in check_shapes(session, one, Path(sys.argv[1], str(number))):
            say(f"{one.parent.name}/{one.name}: {kind}")
    session.stop()
