"""The Python API: `reconstruct`, `cutoff`, `timeline`, `explain`, `repair` and `read`."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypedDict, TypeGuard, Unpack, cast

import pyarrow as pa

from share_state.api.tables import Tables, check_writable, executor_of, write_tables
from share_state.config.inputs import ARGUMENTS, JUDGE_ALL, JUDGE_NONE, input_spec
from share_state.errors import InputError, ShareStateError
from share_state.fold.options import SharePartitionFilter
from share_state.pipeline.across_logs import name_topics, read_groups, settle_timeline
from share_state.pipeline.executor import LocalExecutor
from share_state.pipeline.inputs import AUTO
from share_state.pipeline.plan import FoldPlan, build_plan
from share_state.pipeline.task import decoded_batches, timeline_batches
from share_state.schema.declarations import arrow_type, table_schema
from share_state.sources.as_of import AsOf
from share_state.sources.object_stores import normalize_address
from share_state.sources.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from share_state.report.repair.plan import RepairPlan


Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

TopicsGiven = Topics | str | PathLike[str] | None
"""Names and end offsets of topics: a JSON file as `--topics` takes it, or `Topics`."""


class ReadOptions(TypedDict, total=False):
    """Options of every call; `reconstruct` describes them."""

    as_of: AsOf | None
    topics: TopicsGiven
    groups: "Paths | DataFrame | None"
    group_partitions: int | None
    dialect: str
    format: str
    columns: Mapping[str, str] | None
    kafka_properties: str | PathLike[str] | None


_OPTION_NAMES = frozenset(ReadOptions.__annotations__)


def _check_names(call: str, options: Iterable[str], known: Collection[str] = _OPTION_NAMES) -> None:
    """Refuse unknown keyword arguments of a call, as Python does.

    Raises:
        TypeError: naming the call and the argument.
    """
    for name in options:
        if name not in known:
            raise TypeError(f"share_state.{call}() got an unexpected keyword argument {name!r}")


def reconstruct(
    input: "Paths | DataFrame",
    spark: "SparkSession | None" = None,
    warehouse: str | PathLike[str] | None = None,
    *,
    as_of: AsOf | None = None,
    topics: TopicsGiven = None,
    groups: "Paths | DataFrame | None" = None,
    group_partitions: int | None = None,
    dialect: str = AUTO,
    format: str = AUTO,
    columns: Mapping[str, str] | None = None,
    kafka_properties: str | PathLike[str] | None = None,
    rules: Mapping[str, str] | None = None,
    judge: str = JUDGE_ALL,
) -> Tables:
    """The state that the share coordinator would hold after loading the logs, and what is wrong in them.

    Args:
        input: segments, tables, texts, or `kafka://host:port`; or a DataFrame of records with the columns of Spark's
            Kafka source (key, value, partition, offset, optionally topic and timestamp).
        spark: a session; without one, or a DataFrame, the logs are folded in this process.
        warehouse: a folder for Delta tables, as `share-state reconstruct --out` writes them, or `catalog.schema` of a
            session; the session must then have Delta, as one from `share_state.session()` has.
        as_of: a datetime, text in one of share_state.sources.as_of.TIME_FORMS, or log partition -> offset; later
            records are ignored.
        topics: names and end offsets of topics: a JSON file as `--topics` takes it, or `Topics`.
        groups: exports of `__consumer_offsets` in any format, or a DataFrame of its records; by default those in the
            input or next to it; `()` for none.
        group_partitions: number of partitions of `__consumer_offsets`; by default inferred from the input.
        dialect: for segments: auto, share_group_state or control_records.
        format: the format of `input`: segments, table, dump-log, console-json or kafka; auto looks at the content.
        columns: for tables and DataFrames: key, value, partition, offset, topic or timestamp -> its name there.
        kafka_properties: for a cluster: the properties file that Kafka's own tools take with --command-config.
        rules: rule -> error, warning, info or off.
        judge: which rules apply: all, state (all but those over single records), or none.
    Returns:
        Tables with the columns of schemas/tables: counts in records, times in UTC; tables of groups if the
        input has a group side. DataFrames are lazy: Spark folds once and caches the rows
        (`spark.catalog.clearCache()` drops them); with a warehouse they read the Delta versions that this run wrote.
    Raises:
        InputError: if a path is missing, or holds no log or no valid batch (lazy DataFrames are then empty).
        WarehouseError: if the warehouse cannot be written.
        SetupError: if a warehouse is given and the session has no Delta.
        ShareStateError: if an argument cannot be used.
    Source: Kafka CoordinatorLoaderImpl, ShareCoordinatorShard.replay.
    """
    _check_types(warehouse=warehouse)
    spark = _session(input, spark)
    place, schema = "", None
    if warehouse is not None:
        place, schema = check_writable(spark, normalize_address(fspath(warehouse)))
    plan = _plan(
        input,
        spark=spark,
        as_of=as_of,
        topics=topics,
        groups=groups,
        group_partitions=group_partitions,
        dialect=dialect,
        format=format,
        columns=columns,
        kafka_properties=kafka_properties,
        rules=rules,
        judge=judge,
    )
    if warehouse is not None:
        inputs = ["DataFrame"] if _is_frame(input) else _listed(cast("Paths", input))
        return write_tables(spark, plan, place, inputs, as_of, rules, schema)
    side, plan = read_groups(plan)
    return Tables(**executor_of(spark).result_tables(plan, side))


def cutoff(
    input: "Paths | DataFrame", spark: "SparkSession | None" = None, **options: Unpack[ReadOptions]
) -> "pa.Table | DataFrame":
    """The offset of each log below which every record is redundant, and whether it is safe.

    Args:
        input, spark, options: as for `reconstruct`, but neither `topics` nor `groups`.
    Returns:
        One row per log partition, columns of schemas/tables/cutoff.yaml: offsets of the log, counts in records,
        sizes in bytes. Delete only if `safe` is true; `share-state cutoff --verify` proves that the state is kept.
    Raises:
        InputError: if a path is missing or holds no log.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorOffsetsManager.lastRedundantOffset; KIP-932 draft, ESO.
    """
    _check_names("cutoff", options, _OPTION_NAMES - {"topics", "groups", "group_partitions"})
    spark = _session(input, spark)
    plan = _plan(input, spark=spark, groups=(), **options)  # pyright: ignore[reportCallIssue]
    executor = executor_of(spark)
    limits = executor.cutoffs(plan)
    return limits if spark is not None else limits.sort_by([("topic", "ascending"), ("partition", "ascending")])


@dataclass(frozen=True, slots=True, repr=False)
class Explained:
    """What happened to one offset.

    Attributes:
        sentence: its state now, in plain words.
        records: one row per record that touched it, in log order: its `offset` in the log and `timestamp` (UTC), its
            content (`said`), the state of the offset after it (`standing`), `deliveries` so far, SPSO and SPEO.
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
        spark: a session; without one, this process computes the states, so select share-partitions of large logs.
        options: as for `reconstruct`.
    Returns:
        One row per record, columns of schemas/tables/timeline.yaml; times are in UTC. An Arrow table
        has the rows of one share-partition in log order; sort a DataFrame by state_partition and offset. A DataFrame
        is empty if no share-partition matches.
    Raises:
        InputError: if a path is missing or holds no log, or (without a session) no share-partition matches.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorShard.replay, after each record; KIP-932 draft, recovery.
    """
    _check_names("timeline", options)
    _check_types(group=group, topic=topic, partition=partition)
    spark = _session(input, spark)
    plan = name_topics(_plan(input, spark=spark, judge=JUDGE_NONE, names_only=True, **options))
    plan.check_time()
    plan = replace(plan, timeline=SharePartitionFilter(group, topic, partition))
    if spark is not None:
        from share_state.spark.executor import SparkExecutor  # noqa: PLC0415  imports Spark

        return SparkExecutor(spark).timeline(plan)
    rows = LocalExecutor().map_logs(plan, partial(timeline_batches, plan), table_schema("timeline"))
    if not len(rows):
        plan.check(SharePartitionFilter(group, topic, partition))
    return settle_timeline(rows, plan.state_partitions)


def explain(
    input: "Paths | DataFrame",
    group: str,
    topic: str,
    partition: int,
    offset: int,
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
        offset: the offset in this partition.
        spark: a session, to sort tables that need it.
        delivery_limit: deliveries after which the group archives a record; by default Kafka's default is assumed.
        options: as for `reconstruct`.
    Returns:
        The sentence, and an Arrow table with one row per record.
    Raises:
        InputError: if there is no record of the share-partition.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorShard.replay; KIP-932, In-flight records; its draft, recovery.
    """
    from share_state.report.explain import explain_offset  # noqa: PLC0415  only this call explains

    _check_names("explain", options)
    _check_types(group=group, topic=topic, partition=partition, offset=offset, delivery_limit=delivery_limit)
    plan = _plan(input, spark=spark, **options)
    found = explain_offset(plan, [], group, topic, partition, offset, delivery_limit)
    return Explained(found["sentence"], pa.Table.from_pylist(found["records"], pa.schema(list(_EXPLAINED))), found)


def repair(
    input: Paths,
    *,
    group: str | Sequence[str] = (),
    limits: Mapping[str, Any] | None = None,
    release: str | None = None,
    most: int = 50,
    **options: Unpack[ReadOptions],
) -> "RepairPlan":
    """A plan for share-partitions in trouble: what is wrong, and options in order of harm. It changes nothing.

    Args:
        input: as for `reconstruct`, but no DataFrame; or the folder of a warehouse.
        group: only this group, or these.
        limits: cluster limits, keyed as in the audit's configuration (`{"delivery_count": 3}`); not for a warehouse.
        release: the release that wrote the log, "4.0" to "4.4"; by default inferred.
        most: maximum number of share-partitions, the most severe first.
        options: as for `reconstruct`; not for a warehouse.
    Returns:
        The plan: `repairs`, one per share-partition, with `sentence`, `now` and `options`; it prints as Markdown.
    Raises:
        InputError: if a path is missing or holds no log, or a group is unknown.
        WarehouseError: if a table of the warehouse is gone.
        ShareStateError: if an argument cannot be used.
    Source: Kafka SharePartition, ShareCoordinatorShard; KIP-932, KIP-1191.
    """
    from share_state.report.repair.plan import check_release, make_plan  # noqa: PLC0415  imports the simulator
    from share_state.report.repair.status import audited, open_warehouse  # noqa: PLC0415

    _check_names("repair", options)
    check_release(release)
    if hasattr(input, "columns"):
        raise ShareStateError(
            f"input is a {type(input).__name__}: repair takes paths only; give an export, or the folder of a warehouse"
        )
    if not isinstance(group, Iterable):
        raise ShareStateError(f"group={group!r}: give text, or several")
    groups, named = [group] if isinstance(group, str) else group, _listed(input)
    if (tables := open_warehouse(named)) is not None:
        if limits or options:
            raise ShareStateError(f"{named[0]}: is a warehouse, which keeps the options of its run; leave out others")
        return make_plan(tables, groups, release=release, most=most)
    plan = _plan(input, **options)
    if limits is not None:
        own = input_spec(ARGUMENTS, limits=limits).limits.to_limits()
        # The plan of a live cluster holds the limits of its groups.
        plan = replace(plan, limits=replace(own, groups={**plan.limits.groups, **own.groups}))
    with audited(plan, named) as tables:
        return make_plan(tables, groups, limits=plan.limits, release=release, most=most)


def read(spark: "SparkSession", input: "Paths | DataFrame", **options: Unpack[ReadOptions]) -> "DataFrame":
    """The records of the logs, decoded and not yet folded.

    Args:
        spark: a session; the input must be readable from its workers.
        input: as for `reconstruct`.
        options: as for `reconstruct`.
    Returns:
        A lazy DataFrame, one row per record, columns of schemas/tables/decoded_records.yaml, times in UTC. One task per
        log partition, with its records in log order.
    Raises:
        InputError: if a path is missing or holds no log.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorRecordSerde; KIP-932, ShareSnapshotValue and ShareUpdateValue.
    """
    _check_names("read", options)
    plan = name_topics(_plan(input, spark=spark, judge=JUDGE_NONE, names_only=True, **options))
    return executor_of(spark).map_logs(plan, partial(decoded_batches, plan), table_schema("decoded_records"))


def _plan(
    paths: "Paths | DataFrame",
    *,
    spark: "SparkSession | None" = None,
    as_of: AsOf | None = None,
    topics: TopicsGiven = None,
    groups: "Paths | DataFrame | None" = None,
    group_partitions: int | None = None,
    dialect: str = AUTO,
    format: str = AUTO,
    columns: Mapping[str, str] | None = None,
    kafka_properties: str | PathLike[str] | None = None,
    rules: Mapping[str, str] | None = None,
    judge: str | None = None,
    names_only: bool = False,
) -> FoldPlan:
    """The plan of a call; its notes go to the logger."""
    _check_types(topics=topics, group_partitions=group_partitions)
    _check_types(columns=columns, kafka_properties=kafka_properties, rules=rules)
    if _is_frame(paths) and (format, dialect, kafka_properties) != (AUTO, AUTO, None):
        raise ShareStateError("a DataFrame has no format, dialect or kafka_properties; leave them out")
    source = {"format": format, "dialect": dialect, "columns": columns}
    if kafka_properties is not None:
        source["kafka_properties"] = fspath(kafka_properties)
    named = [] if _is_frame(paths) else _listed(cast("Paths", paths))
    group_paths = None if groups is None or _is_frame(groups) else _listed(cast("Paths", groups), "groups")
    group_side = {"paths": group_paths, "columns": columns, "partitions": group_partitions}
    is_by_log = isinstance(as_of, Mapping)
    spec = input_spec(
        ARGUMENTS,
        sources=[{"path": path} | source for path in named],
        frame=paths if _is_frame(paths) else None,
        columns=columns,
        as_of_offsets={str(log): offset for log, offset in as_of.items()} if is_by_log else None,
        as_of_time=None if is_by_log else as_of,
        topics=fspath(topics) if isinstance(topics, PathLike) else topics,
        groups=None if group_paths == [] else group_side,
        group_frame=groups if _is_frame(groups) else None,
        rules=rules,
        judge=judge,
        names_only=names_only,
    )
    sorter = None
    if (session := _session(groups, _session(paths, spark))) is not None:
        from share_state.spark.inputs import SparkSorter  # noqa: PLC0415  imports Spark

        sorter = SparkSorter(session)
    return build_plan(spec, ARGUMENTS, sorter)


def _session(given: object, spark: "SparkSession | None") -> "SparkSession | None":
    """The session of a DataFrame, which must not be streaming; for other input, the one that the caller gave."""
    _check_types(spark=spark)
    session = given.sparkSession if _is_frame(given) else spark
    _check_types(spark=session)
    if session is not None and session.sparkContext._jsc is None:
        raise ShareStateError("the Spark session is stopped; open another one")
    if _is_frame(given) and given.isStreaming:
        raise InputError("the DataFrame is streaming: give one of spark.read, or run `share-state stream`")
    return session


def _listed(paths: Paths, name: str = "input") -> list[str]:
    if hasattr(paths, "columns"):
        raise ShareStateError(f"{name} is a {type(paths).__name__}: pass spark.createDataFrame({name}), or a path")
    one_or_more = [paths] if isinstance(paths, str | PathLike) or not isinstance(paths, Iterable) else paths
    named = list(one_or_more)
    is_usable = all(isinstance(path, str | PathLike) and path != "" for path in named)
    if not is_usable or (not named and name == "input"):
        raise InputError(f"{name}={paths!r}: give a path, several paths, or a DataFrame")
    return [normalize_address(fspath(path)) for path in named]


_PATH, _NUMBER, _TEXT = ((str, PathLike), "a path"), (int, "a whole number"), (str, "text")
_TYPES: dict[str, tuple[Any, str]] = {
    "warehouse": _PATH,
    "kafka_properties": _PATH,
    "topics": ((str, PathLike, Topics), "the path of a JSON file, or Topics"),
    "columns": (Mapping, "a dictionary as in {'key': 'k'}"),
    "rules": (Mapping, "a dictionary as in {'CRC_MISMATCH': 'warning'}"),
    "group": _TEXT,
    "topic": _TEXT,
    **dict.fromkeys(("group_partitions", "partition", "offset", "delivery_limit"), _NUMBER),
}
"""Argument -> its types, and what to give, in words."""


def _check_types(**given: Any) -> None:
    """Refuse an argument of a wrong type; None is a default.

    Raises:
        ShareStateError: naming the argument, its value and what may be given.
    """
    for name, value in given.items():
        if name == "spark":
            is_right, fix = hasattr(value, "sparkContext"), "a SparkSession, not one of Spark Connect"
        else:
            types, fix = _TYPES[name]
            is_right = isinstance(value, types) and not isinstance(value, bool) and (value != "" or types is str)
        if value is not None and not is_right:
            raise ShareStateError(f"{name}={value!r}: give {fix}")


def _is_frame(given: object) -> "TypeGuard[DataFrame]":
    return hasattr(given, "sparkSession")
