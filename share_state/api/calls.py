"""The Python API: `reconstruct`, `cutoff`, `timeline`, `explain`, `repair` and `read`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, fspath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack, cast

import pyarrow as pa

from share_state.api.arguments import (
    JudgedOptions,
    Paths,
    ReadOptions,
    check_types,
    is_frame,
    listed_paths,
    plan_of,
    session_of,
    takes_options,
    texts_of,
)
from share_state.api.tables import Tables, check_writable, executor_of, write_tables
from share_state.config.input_spec import JUDGE_ALL, JUDGE_NONE
from share_state.errors import ShareStateError
from share_state.fold.fold_options import SharePartitionFilter
from share_state.pipeline.across_logs import settle_timeline
from share_state.pipeline.driver_side import name_topics, read_groups
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.task import decoded_batches, timeline_batches
from share_state.schema.declarations import arrow_type, table_schema
from share_state.stores.paths import normalize_address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from share_state.repairs.repair_plan import RepairPlan


@takes_options
def reconstruct(
    input: "Paths | DataFrame",
    spark: "SparkSession | None" = None,
    warehouse: str | PathLike[str] | None = None,
    **options: Unpack[JudgedOptions],
) -> Tables:
    """The state that the share coordinator would hold after loading the logs, and what is wrong in them.

    Args:
        input: segments, tables, texts, or `kafka://host:port`; or a DataFrame of records with the columns of
            Spark's Kafka source (key, value, partition, offset, optionally topic and timestamp).
        spark: a session; without one, or a DataFrame, the logs are folded in this process.
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
        inputs = ["DataFrame"] if is_frame(input) else listed_paths(cast("Paths", input))
        return write_tables(spark, plan, place, inputs, texts_of(options), schema)
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


@takes_options
def cutoff(
    input: "Paths | DataFrame", spark: "SparkSession | None" = None, **options: Unpack[ReadOptions]
) -> "pa.Table | DataFrame":
    """The offset of each log below which every record is redundant, and whether it is safe.

    Args:
        input, spark: as for `reconstruct`.
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
    plan = plan_of(input, options, spark=spark, reads_groups=False)
    plan.check_time()
    executor = executor_of(spark)
    limits = executor.cutoffs(plan)
    return (
        limits if spark is not None else limits.sort_by([("topic", "ascending"), ("partition", "ascending")])
    )


@dataclass(frozen=True, slots=True, repr=False)
class Explained:
    """What happened to one offset.

    Attributes:
        sentence: its state now, in plain words.
        records: one row per record that touched it, in log order: its `offset` in the log and `timestamp`
            (UTC), its content (`said`), the state of the offset after it (`standing`), `deliveries` so far,
            SPSO and SPEO.
        facts: all of that and the state of the offset, as plain data.
    """

    sentence: str
    records: pa.Table
    facts: Mapping[str, Any]

    def __repr__(self) -> str:
        return self.sentence


_EXPLAINED = arrow_type(
    "struct<offset bigint, timestamp timestamp, kind string, said string, standing string, changed boolean, "
    "deliveries bigint, start_offset bigint, end_offset bigint, snapshot_epoch int, state_epoch int, leader_epoch int, "
    "members array<string>>"
)
"""A row of `Explained.records`."""


@takes_options
def timeline(
    input: "Paths | DataFrame",
    group: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    spark: "SparkSession | None" = None,
    **options: Unpack[ReadOptions],
) -> "pa.Table | DataFrame":
    """The state of share-partitions after each of their records.

    Args:
        input: as for `reconstruct`.
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
    plan = name_topics(plan_of(input, options, spark=spark, judge=JUDGE_NONE, names_only=True))
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
def explain(
    input: "Paths | DataFrame",
    group: str,
    topic: str,
    partition: int,
    offset: int | None = None,
    *,
    spark: "SparkSession | None" = None,
    delivery_limit: int | None = None,
    **options: Unpack[ReadOptions],
) -> Explained:
    """What happened to one offset: every record that touched it, and its state now in a sentence.

    Args:
        group: the share group.
        topic: by name, if `topics` or the groups hold it, or by id.
        partition: the partition of the topic.
        offset: the offset in this partition; by default the first unfinished one, which SPSO waits for.
        spark: a session, to sort tables that need it.
        delivery_limit: the older form of `limits={"groups": {group: {"delivery_count": ...}}}`.
        options: as for `reconstruct`:
    Returns:
        The sentence, and an Arrow table with one row per record.
    Raises:
        InputError: if there is no record of the share-partition.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorShard.replay; KIP-932, In-flight records; its draft, recovery.
    """
    from share_state.report.explain import explain_offset  # noqa: PLC0415  only this call explains

    check_types(group=group, topic=topic, partition=partition, delivery_limit=delivery_limit)
    if offset is not None:
        check_types(offset=offset)
    if delivery_limit is not None:
        limits = options.get("limits") or {}
        of_group = {"delivery_count": delivery_limit, **limits.get("groups", {}).get(group, {})}
        options["limits"] = {**limits, "groups": {**limits.get("groups", {}), group: of_group}}
    plan = plan_of(input, options, spark=spark)
    found = explain_offset(plan, [], group, topic, partition, offset)
    return Explained(
        found["sentence"], pa.Table.from_pylist(found["records"], pa.schema(list(_EXPLAINED))), found
    )


@takes_options
def repair(
    input: Paths,
    *,
    group: str | Sequence[str] = (),
    release: str | None = None,
    most: int = 50,
    clock: str = "log",
    **options: Unpack[ReadOptions],
) -> "RepairPlan":
    """A plan for share-partitions in trouble: what is wrong, and options in order of harm.

    It changes nothing.

    Args:
        input: as for `reconstruct`, but no DataFrame; or the folder of a warehouse.
        group: only this group, or these.
        release: the release that wrote the log, "4.0" to "4.4"; by default inferred.
        most: maximum number of share-partitions, the most severe first.
        clock: end of measured durations: "log", the last record of each log, or "wall", now.
        options: as for `reconstruct`; not for a warehouse:
    Returns:
        The plan: `repairs`, one per share-partition, with `sentence`, `now` and `options`; it prints as
        Markdown.
    Raises:
        InputError: if a path is missing or holds no log, or a group is unknown.
        WarehouseError: if a table of the warehouse is gone.
        ShareStateError: if an argument cannot be used.
    Source: Kafka SharePartition, ShareCoordinatorShard; KIP-932, KIP-1191.
    """
    from share_state.repairs.repair_plan import check_release, is_by_wall_clock, make_plan  # noqa: PLC0415  imports the simulator
    from share_state.repairs.status import audited, open_warehouse  # noqa: PLC0415

    check_release(release)
    by_wall_clock = is_by_wall_clock(clock, is_live=False)
    if hasattr(input, "columns"):
        raise ShareStateError(
            f"input is a {type(input).__name__}: repair takes paths only; give an export, or the folder of a warehouse"
        )
    if not isinstance(group, Iterable):
        raise ShareStateError(f"group={group!r}: give text, or several")
    groups, named = [group] if isinstance(group, str) else group, listed_paths(input)
    if (tables := open_warehouse(named)) is not None:
        if options or by_wall_clock:
            raise ShareStateError(
                f"{named[0]}: is a warehouse, which keeps the options of its run; leave out others"
            )
        return make_plan(tables, groups, release=release, most=most)
    plan = plan_of(input, options)
    plan.check_time()
    with audited(plan, named, is_live=by_wall_clock) as tables:
        return make_plan(tables, groups, limits=plan.options.limits, release=release, most=most)


@takes_options
def read(spark: "SparkSession", input: "Paths | DataFrame", **options: Unpack[ReadOptions]) -> "DataFrame":
    """The records of the logs, decoded and not yet folded.

    Args:
        spark: a session; the input must be readable from its workers.
        input: as for `reconstruct`.
        options: as for `reconstruct`:
    Returns:
        A lazy DataFrame, one row per record, columns of schemas/tables/decoded_records.yaml, times in UTC.
        One task per log partition, with its records in log order.
    Raises:
        InputError: if a path is missing or holds no log.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorRecordSerde; KIP-932, ShareSnapshotValue and ShareUpdateValue.
    """
    plan = name_topics(plan_of(input, options, spark=spark, judge=JUDGE_NONE, names_only=True))
    plan.check_time()
    return executor_of(spark).map_logs(plan, partial(decoded_batches, plan), table_schema("decoded_records"))
