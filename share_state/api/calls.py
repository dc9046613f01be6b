"""The calls that return tables of logs: `reconstruct`, `cutoff`, `timeline`, `decode` and `read`."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Unpack, cast

import pyarrow as pa

from share_state.api.arguments import (
    ArrowFrame,
    JudgedOptions,
    ReadOptions,
    Records,
    check_types,
    is_frame,
    named_inputs,
    plan_of,
    rows_of,
    session_of,
    takes_options,
    texts_of,
)
from share_state.api.tables import Tables, check_writable, executor_of, write_tables
from share_state.config.input_spec import JUDGE_ALL, JUDGE_NONE
from share_state.config.sections import COLUMNS
from share_state.errors import InputError, ShareStateError
from share_state.fold.fold_options import SharePartitionFilter
from share_state.pipeline.across_logs import settle_timeline
from share_state.pipeline.driver_side import name_topics, read_groups
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.task import decoded_batches, timeline_batches
from share_state.schema.declarations import table_schema
from share_state.sources.record_tables import Columns
from share_state.stores.paths import normalize_address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@takes_options
def reconstruct(
    input: "Records | DataFrame",
    spark: "SparkSession | None" = None,
    warehouse: str | PathLike[str] | None = None,
    **options: Unpack[JudgedOptions],
) -> Tables:
    """The state that the share coordinator would hold after loading the logs, and what is wrong in them.

    Args:
        input: segments, tables, texts, or `kafka://host:port`; or the records themselves: an Arrow table or a
            DataFrame of pandas, polars or Spark, with the columns of Spark's Kafka source (key, value,
            partition, offset, optionally topic and timestamp).
        spark: a session; without one, or a DataFrame of Spark, the logs are folded in this process.
        warehouse: a folder for Delta tables, as `share-state reconstruct --out` writes them, or
            `catalog.schema` of a session; the session must then have Delta, as one from
            `share_state.session()` has.
        options: what to read, up to which record, how to fold it, limits and rules; `groups=()` reads no
            groups:
    Returns:
        Tables with the columns of schemas/tables: counts in records, times in UTC; tables of groups if the
        input has a group side. DataFrames are lazy: Spark folds once and caches the rows
        (`spark.catalog.clearCache()` drops them); with a warehouse they read the Delta versions that this run
        wrote.
    Raises:
        InputError: if a path is missing, or holds no log or no valid batch (lazy DataFrames are then empty).
        WarehouseError: if the warehouse cannot be written.
        SetupError: if a warehouse is given and the session has no Delta.
        ShareStateError: if an argument cannot be used.
    Source: Kafka CoordinatorLoaderImpl, ShareCoordinatorShard.replay.
    """
    check_types(warehouse=warehouse)
    spark = session_of(input, spark)
    place, schema = "", None
    if warehouse is not None:
        place, schema = check_writable(spark, normalize_address(fspath(warehouse)))
    plan = plan_of(input, options, spark=spark, judge=options.get("judge") or JUDGE_ALL)
    if warehouse is not None:
        return write_tables(spark, plan, place, named_inputs(input), texts_of(options), schema)
    if plan.dead_letters is not None:
        if spark is not None:
            raise ShareStateError(
                "dead_letters: a session writes their tables to a warehouse; give warehouse=, too"
            )
        # They are matched with what a run has committed.
        with TemporaryDirectory(prefix="share-state-") as folder:
            return write_tables(None, plan, f"{folder}/warehouse", [])
    side, plan = read_groups(plan)
    return Tables(**executor_of(spark).result_tables(plan, side))


def fold_records(
    records: "ArrowFrame | DataFrame",
    spark: "SparkSession | None" = None,
    *,
    columns: Mapping[str, str] | None = None,
) -> Tables:
    """Group records by (group, topic, partition), and fold each share-partition in the order of its offsets.

    For records of any source: no log is read whole, and nothing but the records is known.

    Args:
        records: decoded records, with the columns of schemas/tables/decoded_records.yaml as `read` returns
            them; or those of the topic with the columns of Spark's Kafka source. An Arrow table, or a
            DataFrame of pandas, polars or Spark, in any order.
        spark: a session, which then folds rows in memory; a DataFrame of Spark brings its own.
        columns: column -> its name, for records of the topic: key, value, partition, offset, topic,
            timestamp.
    Returns:
        Tables `share_partition_state`, `in_flight`, `findings` and `cutoff`; those of groups are None.
        DataFrames are lazy, and Spark folds once for all of them; of records of the topic, it first looks for
        one. What only a log shows is unknown:
        `topic_end_offset`, `redundant_retained` and `unfinished_offsets` are null, and in `cutoff` the log
        start and every count and size; no cutoff is `safe`. A state without a snapshot is `suspect`; another
        record that is not there makes no state suspect. Rules over whole logs, such as OFFSET_GAP, are not
        judged. A share-partition with records in several state partitions has a row for each.
    Raises:
        InputError: if the columns are neither those of decoded records nor of records of the topic, there is no
            record of the topic, or times are in another unit than ms.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorShard.replay; KIP-932 draft, recovery.
    """
    from share_state.fold.decoded_fold import check_decoded  # noqa: PLC0415  calls of logs do not need it
    from share_state.pipeline.given_records import fold_decoded_table, fold_topic_table  # noqa: PLC0415

    spark = session_of(records, spark)
    rows = rows_of(records, spark, "records")
    if rows is None:
        raise ShareStateError(
            "records is a path: give its rows, such as share_state.read(path), or use reconstruct"
        )
    names: list[str] = rows.schema.names
    is_decoded = "kind" in names and columns is None
    named = Columns(**{name: column for name, column in (columns or {}).items() if name in COLUMNS})
    if unknown := {*(columns or {})} - {*COLUMNS}:
        raise ShareStateError(f"columns: no {min(unknown)}; name {', '.join(COLUMNS)}")
    if is_decoded:
        check_decoded("fold_records", names)
    elif named.key not in names or named.value not in names:
        raise InputError(
            "fold_records: the columns are neither those of decoded records, as share_state.read returns them, nor "
            f"those of Spark's Kafka source ({', '.join(COLUMNS)}); columns= maps other names"
        )
    if is_frame(rows):
        from share_state.spark import grouped_records  # noqa: PLC0415  imports Spark

        fold_decoded, fold_topic = grouped_records.fold_decoded_frame, grouped_records.fold_topic_frame
        return Tables(**(fold_decoded(rows) if is_decoded else fold_topic(rows, named)))
    return Tables(**(fold_decoded_table(rows) if is_decoded else fold_topic_table(rows, named)))


@takes_options
def cutoff(
    input: "Records | DataFrame", spark: "SparkSession | None" = None, **options: Unpack[ReadOptions]
) -> "pa.Table | DataFrame":
    """The offset of each log below which every record is redundant, and whether it is safe.

    Args:
        input, spark: as for `reconstruct`; or a warehouse: the logs of its last run.
        options: as for `reconstruct`, but neither names of topics nor groups:
    Returns:
        One row per log partition, columns of schemas/tables/cutoff.yaml: offsets of the log, counts in
        records, sizes in bytes. Delete only if `safe` is true; `share-state cutoff --verify` proves that the
        state is kept.
    Raises:
        InputError: if a path is missing or holds no log.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorOffsetsManager.lastRedundantOffset; KIP-932 draft, ESO.
    """
    spark = session_of(input, spark)
    plan = plan_of(input, options, spark=spark, reads_groups=False, takes_warehouse=True)
    plan.check_time()
    executor = executor_of(spark)
    limits = executor.cutoffs(plan)
    return (
        limits if spark is not None else limits.sort_by([("topic", "ascending"), ("partition", "ascending")])
    )


@takes_options
def timeline(
    input: "Records | DataFrame",
    group: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    spark: "SparkSession | None" = None,
    **options: Unpack[ReadOptions],
) -> "pa.Table | DataFrame":
    """The state of share-partitions after each of their records.

    Args:
        input: as for `reconstruct`; or a warehouse: the logs of its last run.
        group: only this share group.
        topic: only this topic, by name (if `topics` or the groups hold it) or id.
        partition: only this partition of the topic.
        spark: a session; without one, this process computes the states, so select share-partitions of large
            logs.
        options: as for `reconstruct`:
    Returns:
        One row per record, columns of schemas/tables/timeline.yaml; times are in UTC. An Arrow table
        has the rows of one share-partition in log order; sort a DataFrame by state_partition and offset. A
        DataFrame is empty if no share-partition matches.
    Raises:
        InputError: if a path is missing or holds no log, or (without a session) no share-partition matches.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorShard.replay, after each record; KIP-932 draft, recovery.
    """
    check_types(group=group, topic=topic, partition=partition)
    spark = session_of(input, spark)
    plan = name_topics(
        plan_of(input, options, spark=spark, judge=JUDGE_NONE, names_only=True, takes_warehouse=True)
    )
    plan.check_time()
    plan = replace(plan, timeline=SharePartitionFilter(group, topic, partition))
    if spark is not None:
        from share_state.spark.spark_executor import SparkExecutor  # noqa: PLC0415  imports Spark

        return SparkExecutor(spark).timeline(plan)
    rows = LocalExecutor().map_logs(plan, partial(timeline_batches, plan), table_schema("timeline"))
    if not len(rows):
        plan.check(SharePartitionFilter(group, topic, partition))
    return settle_timeline(rows, plan.state_partitions)


@takes_options
def decode(
    input: "Records | DataFrame",
    group: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    *,
    most: int | None = None,
    spark: "SparkSession | None" = None,
    **options: Unpack[ReadOptions],
) -> pa.Table:
    """The records of the logs as `share-state decode` prints them, for a person; `read` is for a fold.

    Args:
        input: as for `reconstruct`; or a warehouse: the logs of its last run.
        group, topic, partition: as for `timeline`.
        most: maximum number of records.
        spark: a session, to sort tables that need it; the result is an Arrow table, too.
        options: as for `reconstruct`:
    Returns:
        One row per record, columns of schemas/tables/decoded_records.yaml, with the name of each delivery
        state and, for segments, `batch`: segment, position, size, codec and leader epoch of its record batch.
    Raises:
        InputError: if a path is missing or holds no log, or no share-partition matches.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorRecordSerde; KIP-932, ShareSnapshotValue and ShareUpdateValue.
    """
    from share_state.report.decoded import described_records  # noqa: PLC0415  only this call describes records

    check_types(group=group, topic=topic, partition=partition, most=most)
    if most is not None and most < 1:
        raise ShareStateError(f"most={most}: give a number from 1 on")
    plan = plan_of(input, options, spark=spark, judge=JUDGE_NONE, names_only=True, takes_warehouse=True)
    plan.check_time()
    selection = SharePartitionFilter(group, topic, partition)
    rows = list(described_records(name_topics(plan), selection, most))
    nothing = table_schema("decoded_records").empty_table()
    return pa.concat_tables(rows, promote_options="default") if rows else nothing


@takes_options
def read(
    input: "Records | DataFrame", spark: "SparkSession | None" = None, **options: Unpack[ReadOptions]
) -> "pa.Table | DataFrame":
    """The records of the logs, decoded and not yet folded.

    Args:
        input: as for `reconstruct`; or a warehouse: the logs of its last run.
        spark: a session; the input must be readable from its workers. The older form `read(spark, input)`
            works, too.
        options: as for `reconstruct`:
    Returns:
        One row per record, columns of schemas/tables/decoded_records.yaml, times in UTC, each log partition
        in log order. An Arrow table; with a session, a lazy DataFrame with one task per log partition.
    Raises:
        InputError: if a path is missing or holds no log.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorRecordSerde; KIP-932, ShareSnapshotValue and ShareUpdateValue.
    """
    if hasattr(input, "createDataFrame"):
        input, spark = cast("Records", spark), cast("SparkSession", input)
    spark = session_of(input, spark)
    plan = name_topics(
        plan_of(input, options, spark=spark, judge=JUDGE_NONE, names_only=True, takes_warehouse=True)
    )
    plan.check_time()
    return executor_of(spark).map_logs(plan, partial(decoded_batches, plan), table_schema("decoded_records"))
