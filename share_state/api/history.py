"""`share_state.timeline` and `share_state.explain`: what became of share-partitions, record by record."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from share_state.api.asked import Paths, Reading, TopicsGiven, grouped, work_of
from share_state.as_of import AsOf
from share_state.declarations import table_schema
from share_state.fold.chosen import Chosen
from share_state.formats import AUTO
from share_state.group_side import read_groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, repr=False)
class Explained:
    """What became of one offset.

    Attributes:
        sentence: how it stands, in plain words.
        records: one row a record that touched it, in log order: its `offset` in the log and `timestamp` (UTC), what it
            `said`, how the offset was `standing` before and after, `deliveries` so far, SPSO and SPEO after it.
        facts: all of that and where the offset stands, as plain data.
    """

    sentence: str
    records: pa.Table
    facts: Mapping[str, Any]

    def __repr__(self) -> str:
        return self.sentence


_EXPLAINED = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("kind", pa.string()),
        ("said", pa.string()),
        ("standing", pa.string()),
        ("changed", pa.bool_()),
        ("deliveries", pa.int64()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("snapshot_epoch", pa.int32()),
        ("state_epoch", pa.int32()),
        ("leader_epoch", pa.int32()),
        ("members", pa.list_(pa.string())),
    ]
)


def timeline(
    paths: Paths,
    *,
    group: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    spark: "SparkSession | None" = None,
    as_of: AsOf | None = None,
    topics: TopicsGiven = None,
    groups: "Paths | DataFrame | None" = None,
    dialect: str = AUTO,
    format: str = AUTO,
    columns: Mapping[str, str] | None = None,
    kafka_properties: str | PathLike[str] | None = None,
) -> "pa.Table | DataFrame":
    """The state of share-partitions after every record of theirs.

    Args:
        paths: what to read: segments, tables, texts, or `kafka://host:port`.
        group: only this share group.
        topic: only this topic, by name (where `topics` or the groups tell it) or id.
        partition: only this partition of the topic.
        spark: a session; without one the states are written out here: choose where the logs are large.
        as_of: a datetime, or log partition -> offset; later records are left out.
        topics: names and end offsets of topics: a JSON file as `--topics` takes it, or `Topics`.
        groups: exports of `__consumer_offsets` in any form, or a DataFrame of its records, which tell names of topics;
            by default what is in the input or beside it, with `()` none.
        dialect: of segments: auto, share_group_state or control_records.
        format: segments, table, dump-log, console-json or kafka: what `paths` are; auto looks at the content.
        columns: of tables: key, value, partition, offset, topic or timestamp -> what it is called there.
        kafka_properties: of a cluster: properties file, as Kafka's own tools take it with --command-config.
    Returns:
        One row a record, columns of schemas/tables/timeline.yaml; offsets in records, times in UTC. An Arrow table has
        the rows of one share-partition in log order; sort a DataFrame by state_partition and offset.
    Raises:
        InputError: if a path is missing or holds no such log.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorShard.replay, after each record; KIP-932 draft, recovery.
    """
    reading = Reading(as_of, topics, dialect, format, columns, kafka_properties, spark)
    _, work = read_groups(grouped(work_of(paths, reading), paths, groups, reading))
    work = replace(work, timeline=Chosen(group, topic, partition))
    if spark is not None:
        from share_state.spark.plan import fold_all, result_table  # noqa: PLC0415
        from share_state.task import Wanted  # noqa: PLC0415

        return result_table(fold_all(spark, work, Wanted(sent=("timeline",))), "timeline")
    parts = [part for log in work.logs for part in work.states_of(log)]
    return pa.concat_tables([table_schema("timeline").empty_table(), *parts])


def explain(
    paths: Paths,
    group: str,
    topic: str,
    partition: int,
    offset: int,
    *,
    spark: "SparkSession | None" = None,
    as_of: AsOf | None = None,
    topics: TopicsGiven = None,
    groups: "Paths | DataFrame | None" = None,
    dialect: str = AUTO,
    format: str = AUTO,
    columns: Mapping[str, str] | None = None,
    kafka_properties: str | PathLike[str] | None = None,
    delivery_limit: int | None = None,
) -> Explained:
    """What became of one offset: every record that touched it, and how it stands in a sentence.

    Args:
        paths: what to read: segments, tables, texts, or `kafka://host:port`.
        group: the share group.
        topic: by name, where `topics` or the groups tell it, or by id.
        partition: of the topic.
        offset: of the topic-partition, in records.
        spark: a session, only to put tables in order which need it.
        as_of: a datetime, or log partition -> offset; later records are left out.
        topics: names and end offsets of topics: a JSON file as `--topics` takes it, or `Topics`.
        groups: exports of `__consumer_offsets` in any form, or a DataFrame of its records, which tell names of topics
            and members; by default what is in the input or beside it, with `()` none.
        dialect: of segments: auto, share_group_state or control_records.
        format: segments, table, dump-log, console-json or kafka: what `paths` are; auto looks at the content.
        columns: of tables: key, value, partition, offset, topic or timestamp -> what it is called there.
        kafka_properties: of a cluster: properties file, as Kafka's own tools take it with --command-config.
        delivery_limit: deliveries after which the group archives a record; by default Kafka's own default.
    Returns:
        The sentence, and an Arrow table with a row a record.
    Raises:
        InputError: if no record of the share-partition is there.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorShard.replay; KIP-932, In-flight records; its draft, recovery.
    """
    from share_state.report.explain import explained  # noqa: PLC0415

    reading = Reading(as_of, topics, dialect, format, columns, kafka_properties, spark)
    work = grouped(work_of(paths, reading), paths, groups, reading)
    if delivery_limit is not None:
        work = replace(work, limits=replace(work.limits, delivery_count=delivery_limit))
    found = explained(work, [], group, topic, partition, offset)
    return Explained(found["sentence"], pa.Table.from_pylist(found["records"], schema=_EXPLAINED), found)
