"""Decoded records as a DataFrame."""

from functools import partial

from pyspark.sql import DataFrame, SparkSession

from share_state.declarations import table_schema
from share_state.runs.decoded import TABLE, decoded
from share_state.spark.plan import over_logs
from share_state.work import Work


def decode_all(spark: SparkSession, work: Work) -> DataFrame:
    """Every record of every log partition, one task a log partition.

    Returns:
        Columns of schemas/tables/decoded_records.yaml.
    """
    return over_logs(spark, work, partial(decoded, work), table_schema(TABLE))
