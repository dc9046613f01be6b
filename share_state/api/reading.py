"""`share_state.read`: records, decoded."""

from collections.abc import Mapping
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING

from share_state.api.asked import Paths, Reading, TopicsGiven, grouped, work_of
from share_state.as_of import AsOf
from share_state.declarations import table_schema
from share_state.formats import AUTO
from share_state.group_side import read_groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(
    spark: "SparkSession",
    paths: Paths,
    *,
    as_of: AsOf | None = None,
    topics: TopicsGiven = None,
    groups: "Paths | DataFrame | None" = None,
    dialect: str = AUTO,
    format: str = AUTO,
    columns: Mapping[str, str] | None = None,
    kafka_properties: str | PathLike[str] | None = None,
) -> "DataFrame":
    """The records of the logs, decoded and not yet folded.

    Args:
        spark: a session; paths must be readable from its workers.
        paths: what to read: segments, tables, texts, or `kafka://host:port`.
        as_of: a datetime, or log partition -> offset; later records are left out.
        topics: names of topics: a JSON file as `--topics` takes it, or `Topics`.
        groups: exports of `__consumer_offsets` in any form, or a DataFrame of its records, which tell names of topics;
            by default what is in the input or beside it, with `()` none.
        dialect: of segments: auto, share_group_state or control_records.
        format: segments, table, dump-log, console-json or kafka: what `paths` are; auto looks at the content.
        columns: of tables: key, value, partition, offset, topic or timestamp -> what it is called there.
        kafka_properties: of a cluster: properties file, as Kafka's own tools take it with --command-config.
    Returns:
        A lazy DataFrame, one row a record, columns of schemas/tables/decoded_records.yaml: offsets in records of the
        log or of the topic, times in UTC. One task a log partition, its records in log order.
    Raises:
        InputError: if a path is missing or holds no such log.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorRecordSerde; KIP-932, ShareSnapshotValue and ShareUpdateValue.
    """
    from share_state.runs.decoded import TABLE, decoded  # noqa: PLC0415
    from share_state.spark.plan import over_logs  # noqa: PLC0415  Spark is imported only where it is used

    reading = Reading(as_of, topics, dialect, format, columns, kafka_properties, spark)
    _, work = read_groups(grouped(work_of(paths, reading), paths, groups, reading))
    return over_logs(spark, work, partial(decoded, work), table_schema(TABLE))
