"""`share_state.read`: records, decoded."""

from typing import TYPE_CHECKING

from share_state.api.asked import Paths, TopicsGiven, work_of
from share_state.as_of import AsOf
from share_state.inputs import AUTO

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(
    spark: "SparkSession",
    paths: Paths,
    *,
    as_of: AsOf | None = None,
    topics: TopicsGiven = None,
    dialect: str = AUTO,
) -> "DataFrame":
    """The records of the logs, decoded and not yet folded.

    Args:
        spark: a session; paths must be readable from its workers.
        paths: what to read.
        as_of: a datetime, or log partition -> offset; later records are left out.
        topics: names of topics: a JSON file as `--topics` takes it, or `Topics`.
        dialect: auto, share_group_state or control_records.
    Returns:
        A lazy DataFrame, one row a record, columns of schemas/tables/decoded_records.yaml: offsets in records of the
        log or of the topic, times in UTC. One task a log partition, its records in log order.
    Raises:
        InputError: if a path is missing or holds no such log.
        ShareStateError: if as_of or dialect cannot be used.
    Source: Kafka ShareCoordinatorRecordSerde; KIP-932, ShareSnapshotValue and ShareUpdateValue.
    """
    from share_state.spark.decoded import decode_all  # noqa: PLC0415  Spark is imported only where it is used

    return decode_all(spark, work_of(paths, as_of, topics, dialect))
