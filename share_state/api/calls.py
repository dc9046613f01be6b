"""`share_state.reconstruct` and `share_state.cutoff`: logs, folded.

`share_state.timeline` and `share_state.explain`: what became of share-partitions, record by record.

`share_state.read`: records, decoded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from share_state.api.inputs import Paths, Reading, TopicsGiven, grouped, is_frame, listed, work_of
from share_state.api.tables import RESULTS, Tables, check_writable, written
from share_state.errors import InputError, ShareStateError
from share_state.fold.options import Chosen
from share_state.pipeline.groups import GroupSide, read_groups
from share_state.pipeline.inputs import AUTO
from share_state.pipeline.plan import Work
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import AsOf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def reconstruct(
    paths: "Paths | DataFrame",
    *,
    spark: "SparkSession | None" = None,
    warehouse: str | PathLike[str] | None = None,
    as_of: AsOf | None = None,
    topics: TopicsGiven = None,
    groups: "Paths | DataFrame | None" = None,
    group_partitions: int | None = None,
    dialect: str = AUTO,
    format: str = AUTO,
    columns: Mapping[str, str] | None = None,
    kafka_properties: str | PathLike[str] | None = None,
    rules: Mapping[str, str] | None = None,
) -> Tables:
    """What the share coordinator would hold after loading the logs, and what is wrong in them.

    Args:
        paths: what to read: segments, tables, texts, or `kafka://host:port`; or a DataFrame of records with the columns
            of Spark's Kafka source (key, value, partition, offset, maybe topic and timestamp), which wants a
            `warehouse`.
        spark: a session; without one the logs are folded here.
        warehouse: a folder for Delta tables, as `share-state reconstruct --out` writes them; a session that is given
            must know Delta, as that of `share_state.session()` does.
        as_of: a datetime, or log partition -> offset; later records are left out.
        topics: names and end offsets of topics: a JSON file as `--topics` takes it, or `Topics`.
        groups: exports of `__consumer_offsets` in any form, or a DataFrame of its records; by default what is in the
            input or beside it, with `()` none.
        group_partitions: how many partitions `__consumer_offsets` has; by default as many as the input shows.
        dialect: of segments: auto, share_group_state or control_records.
        format: segments, table, dump-log, console-json or kafka: what `paths` are; auto looks at the content.
        columns: of tables and DataFrames: key, value, partition, offset, topic or timestamp -> what it is called there.
        kafka_properties: of a cluster: properties file, as Kafka's own tools take it with --command-config.
        rules: rule -> error, warning, info or off.
    Returns:
        Tables with the columns of schemas/tables: offsets and counts in records, times in UTC; those of groups where
        there is a group side. DataFrames are of one fold that Spark keeps (`spark.catalog.clearCache()` drops it), or
        of the Delta versions that this run wrote.
    Raises:
        InputError: if a path is missing, holds no such log, or nothing in it is a record batch (lazy DataFrames are
            then empty).
        WarehouseError: if the warehouse cannot be written.
        SetupError: if a session is given that knows no Delta and a warehouse is wanted.
        ShareStateError: if an argument cannot be used.
    Source: Kafka CoordinatorLoaderImpl, ShareCoordinatorShard.replay.
    """
    if is_frame(paths):
        if warehouse is None:
            raise ShareStateError("reconstruct: a DataFrame is folded into a warehouse; give warehouse=FOLDER too")
        spark = paths.sparkSession
    if warehouse is not None:
        check_writable(spark, fspath(warehouse))
    reading = Reading(as_of, topics, dialect, format, columns, kafka_properties, spark)
    work = grouped(work_of(paths, reading, rules), paths, groups, reading, group_partitions)
    if warehouse is not None:
        inputs = ["DataFrame"] if is_frame(paths) else listed(cast("Paths", paths))
        return written(spark, work, fspath(warehouse), inputs, as_of, rules)
    side, work = read_groups(work)
    return _folded_here(work, side) if spark is None else _folded_by(spark, work, side)


def _folded_here(work: Work, side: GroupSide | None) -> Tables:
    folded = list(work.each())
    if not any(one.has_whole_batches or one.log.size == 0 for one in folded):
        raise InputError(f"{folded[0].log.name}: nothing in it is a record batch; give a folder of real segments")
    states = pa.concat_tables([one.states for one in folded])
    findings = [work.judge(one) for one in folded]
    return Tables(
        share_partition_state=states,
        in_flight=pa.concat_tables([one.in_flight for one in folded]),
        findings=pa.concat_tables([*findings, *([side.judge(states, work)] if side else [])]),
        cutoff=_in_order([one.cutoff for one in folded]),
        **(side.tables() if side else {}),
    )


def _folded_by(spark: "SparkSession", work: Work, side: GroupSide | None) -> Tables:
    """Folded in the tasks of a session, once and not before a table is asked for."""
    from share_state.api.tables import group_findings  # noqa: PLC0415
    from share_state.pipeline.task import RESULTS as FROM_TASKS  # noqa: PLC0415
    from share_state.pipeline.task import Wanted  # noqa: PLC0415
    from share_state.spark.executor import fold_all, result_table  # noqa: PLC0415

    results = fold_all(spark, work, Wanted(sent=FROM_TASKS)).cache()
    tables = {name: result_table(results, name) for name in RESULTS}
    if side is not None:
        tables["findings"] = tables["findings"].unionByName(group_findings(tables["share_partition_state"], side, work))
        tables |= {name: spark.createDataFrame(table) for name, table in side.tables().items()}
    return Tables(**tables)


def cutoff(
    paths: Paths,
    *,
    spark: "SparkSession | None" = None,
    as_of: AsOf | None = None,
    dialect: str = AUTO,
    format: str = AUTO,
    columns: Mapping[str, str] | None = None,
    kafka_properties: str | PathLike[str] | None = None,
) -> "pa.Table | DataFrame":
    """The offset of each log below which every record is redundant, and whether to trust it.

    Args:
        paths: what to read: segments, tables, texts, or `kafka://host:port`.
        spark: a session; without one the logs are folded here.
        as_of: a datetime, or log partition -> offset; later records are left out.
        dialect: of segments: auto, share_group_state or control_records.
        format: segments, table, dump-log, console-json or kafka: what `paths` are; auto looks at the content.
        columns: of tables: key, value, partition, offset, topic or timestamp -> what it is called there.
        kafka_properties: of a cluster: properties file, as Kafka's own tools take it with --command-config.
    Returns:
        One row a log partition, columns of schemas/tables/cutoff.yaml: offsets and counts in records of the log, sizes
        in bytes. Clean only where `safe` is true; `share-state cutoff --verify` proves that the state stays the same.
    Raises:
        InputError: if a path is missing or holds no such log.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorOffsetsManager.lastRedundantOffset; KIP-932 draft, ESO.
    """
    work = replace(work_of(paths, Reading(as_of, None, dialect, format, columns, kafka_properties, spark)), groups=None)
    if spark is not None:
        return _folded_by(spark, work, None).cutoff
    return _in_order([one.cutoff for one in work.each()])


def _in_order(limits: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(limits).sort_by([("topic", "ascending"), ("partition", "ascending")])


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
        from share_state.pipeline.task import Wanted  # noqa: PLC0415
        from share_state.spark.executor import fold_all, result_table  # noqa: PLC0415

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
    from share_state.pipeline.reconstruct import TABLE, decoded  # noqa: PLC0415
    from share_state.spark.executor import over_logs  # noqa: PLC0415  Spark is imported only where it is used

    reading = Reading(as_of, topics, dialect, format, columns, kafka_properties, spark)
    _, work = read_groups(grouped(work_of(paths, reading), paths, groups, reading))
    return over_logs(spark, work, partial(decoded, work), table_schema(TABLE))
