"""What a notebook calls: read, reconstruct, timeline, explain, cutoff. Arrow tables, or Spark's with a session.

Every function takes paths as the commands do (log folders, .log files, globs, a broker's log directory; a list of them
is one export) and `as_of`, the moment that is meant. Without a session the logs are folded in this process, one after
the other; with one they are spread over its tasks, and what comes back is lazy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from share_state.as_of import AsOf, windows
from share_state.declarations import table_schema
from share_state.errors import InputError, ShareStateError
from share_state.fold.chosen import Chosen
from share_state.fold.topics import Topics
from share_state.inputs import AUTO, DIALECTS, logs_of, state_partitions_found
from share_state.task import RESULTS as FROM_TASKS
from share_state.task import Wanted
from share_state.topics_file import read_topics
from share_state.work import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

RESULTS = ("share_partition_state", "in_flight", "findings", "cutoff")


@dataclass(frozen=True, slots=True, repr=False)
class Tables:
    """What a fold gives: Arrow tables, or Spark DataFrames where a session was given.

    Attributes:
        share_partition_state: one row a live share-partition.
        in_flight: one row a range of offsets between SPSO and SPEO; they tile it.
        findings: one row a broken rule.
        cutoff: one row a log partition.
    """

    share_partition_state: Any
    in_flight: Any
    findings: Any
    cutoff: Any

    def __repr__(self) -> str:
        tables = {name: getattr(self, name) for name in RESULTS}
        sizes = (
            f"{name}: {len(t):,} rows" if isinstance(t, pa.Table) else f"{name}: {t}" for name, t in tables.items()
        )
        return f"Tables({', '.join(sizes)})"


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


def read(
    spark: "SparkSession",
    paths: Paths,
    *,
    as_of: AsOf | None = None,
    topics: "Topics | str | PathLike[str] | None" = None,
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

    return decode_all(spark, _work(paths, as_of, topics, dialect))


def reconstruct(
    paths: "Paths | DataFrame",
    *,
    spark: "SparkSession | None" = None,
    warehouse: str | PathLike[str] | None = None,
    as_of: AsOf | None = None,
    topics: "Topics | str | PathLike[str] | None" = None,
    dialect: str = AUTO,
    rules: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Tables:
    """What the share coordinator would hold after loading the logs, and what is wrong in them.

    Args:
        paths: what to read; or a DataFrame of records with the columns of Spark's Kafka source (key, value, partition,
            offset, maybe topic and timestamp), which wants a `warehouse`.
        spark: a session; without one the logs are folded here.
        warehouse: a folder for Delta tables, as `share-state reconstruct --out` writes them; wants a session with Delta
            (`share_state.session()`).
        as_of: a datetime, or log partition -> offset; later records are left out.
        topics: names and end offsets of topics: a JSON file as `--topics` takes it, or `Topics`.
        dialect: auto, share_group_state or control_records.
        rules: rule -> error, warning, info or off.
        columns: of a DataFrame: key, value, partition, offset, topic or timestamp -> what it is called there.
    Returns:
        Four tables with the columns of schemas/tables: offsets and counts in records, times in UTC. DataFrames are of
        one fold that Spark keeps (`spark.catalog.clearCache()` drops it), or of the Delta versions that this run wrote.
    Raises:
        InputError: if a path is missing, holds no such log, or nothing in it is a record batch (lazy DataFrames are
            then empty).
        WarehouseError: if the warehouse cannot be written.
        ShareStateError: if an argument cannot be used.
    Source: Kafka CoordinatorLoaderImpl, ShareCoordinatorShard.replay.
    """
    if hasattr(paths, "sparkSession"):
        return _of_frame(paths, warehouse, topics, rules, columns)
    work = _work(paths, as_of, topics, dialect, rules)
    if warehouse is not None:
        if spark is None:
            raise ShareStateError("reconstruct: a warehouse is written by Spark; give spark=share_state.session() too")
        return _written(spark, work, fspath(warehouse), _listed(paths), as_of, rules)
    if spark is not None:
        from share_state.spark.plan import fold_all, result_table  # noqa: PLC0415

        results = fold_all(spark, work, Wanted(sent=FROM_TASKS)).cache()
        return Tables(**{name: result_table(results, name) for name in RESULTS})
    folded = [work.fold(log) for log in work.logs]
    if not any(one.has_whole_batches or one.log.size == 0 for one in folded):
        raise InputError(f"{folded[0].log.name}: nothing in it is a record batch; give a folder of real segments")
    return Tables(
        share_partition_state=pa.concat_tables([one.states for one in folded]),
        in_flight=pa.concat_tables([one.in_flight for one in folded]),
        findings=pa.concat_tables([work.judge(one) for one in folded]),
        cutoff=_in_order([one.cutoff for one in folded]),
    )


def cutoff(
    paths: Paths, *, spark: "SparkSession | None" = None, as_of: AsOf | None = None, dialect: str = AUTO
) -> "pa.Table | DataFrame":
    """The offset of each log below which every record is redundant, and whether to trust it.

    Args:
        paths: what to read.
        spark: a session; without one the logs are folded here.
        as_of: a datetime, or log partition -> offset; later records are left out.
        dialect: auto, share_group_state or control_records.
    Returns:
        One row a log partition, columns of schemas/tables/cutoff.yaml: offsets and counts in records of the log, sizes
        in bytes. Clean only where `safe` is true; `share-state cutoff --verify` proves that the state stays the same.
    Raises:
        InputError: if a path is missing or holds no such log.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorOffsetsManager.lastRedundantOffset; KIP-932 draft, ESO.
    """
    if spark is not None:
        return reconstruct(paths, spark=spark, as_of=as_of, dialect=dialect).cutoff
    work = _work(paths, as_of, None, dialect)
    return _in_order([work.fold(log).cutoff for log in work.logs])


def timeline(
    paths: Paths,
    *,
    group: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    spark: "SparkSession | None" = None,
    as_of: AsOf | None = None,
    topics: "Topics | str | PathLike[str] | None" = None,
) -> "pa.Table | DataFrame":
    """The state of share-partitions after every record of theirs.

    Args:
        paths: what to read: logs of `__share_group_state`.
        group: only this share group.
        topic: only this topic, by name (where `topics` tells it) or id.
        partition: only this partition of the topic.
        spark: a session; without one the states are written out here: choose where the logs are large.
        as_of: a datetime, or log partition -> offset; later records are left out.
        topics: names and end offsets of topics: a JSON file as `--topics` takes it, or `Topics`.
    Returns:
        One row a record, columns of schemas/tables/timeline.yaml; offsets in records, times in UTC. An Arrow table has
        the rows of one share-partition in log order; sort a DataFrame by state_partition and offset.
    Raises:
        InputError: if a path is missing or holds no such log.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorShard.replay, after each record.
    """
    work = replace(_work(paths, as_of, topics, "share_group_state"), timeline=Chosen(group, topic, partition))
    if spark is not None:
        from share_state.spark.plan import fold_all, result_table  # noqa: PLC0415

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
    as_of: AsOf | None = None,
    topics: "Topics | str | PathLike[str] | None" = None,
    delivery_limit: int | None = None,
) -> Explained:
    """What became of one offset: every record that touched it, and how it stands in a sentence.

    Args:
        paths: what to read: logs of `__share_group_state`; logs of `__consumer_offsets` among them tell the members.
        group: the share group.
        topic: by name, where `topics` or the group logs tell it, or by id.
        partition: of the topic.
        offset: of the topic-partition, in records.
        as_of: a datetime, or log partition -> offset; later records are left out.
        topics: names and end offsets of topics: a JSON file as `--topics` takes it, or `Topics`.
        delivery_limit: deliveries after which the group archives a record; by default Kafka's own default.
    Returns:
        The sentence, and an Arrow table with a row a record.
    Raises:
        InputError: if no record of the share-partition is there.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorShard.replay; KIP-932, In-flight records.
    """
    from share_state.report.explain import explained  # noqa: PLC0415

    work = _work(paths, as_of, topics, "share_group_state")
    if delivery_limit is not None:
        work = replace(work, limits=replace(work.limits, delivery_count=delivery_limit))
    found = explained(work, _listed(paths), group, topic, partition, offset)
    return Explained(found["sentence"], pa.Table.from_pylist(found["records"], schema=_EXPLAINED), found)


def _in_order(limits: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(limits).sort_by([("topic", "ascending"), ("partition", "ascending")])


def _listed(paths: Paths) -> list[str]:
    named = [paths] if isinstance(paths, str | PathLike) else list(paths)
    return [fspath(path) for path in named]


def _work(
    paths: Paths,
    as_of: AsOf | None,
    topics: "Topics | str | PathLike[str] | None",
    dialect: str,
    rules: Mapping[str, str] | None = None,
) -> Work:
    if dialect not in DIALECTS:
        raise ShareStateError(f"dialect={dialect!r}: give one of {', '.join(DIALECTS)}")
    known = topics if isinstance(topics, Topics) else read_topics(None if topics is None else fspath(topics))
    logs = logs_of(_listed(paths), dialect)
    everywhere, own = windows(as_of, logs)
    return Work(
        logs=logs,
        windows=own,
        window=everywhere,
        topics=known,
        state_partitions=state_partitions_found(logs),
        severities=_severities(rules or {}),
    )


def _severities(rules: Mapping[str, str]) -> dict[str, str]:
    from share_state.rules import OFF, SEVERITIES, registered  # noqa: PLC0415

    for code, severity in rules.items():
        if code not in registered() or severity not in (*SEVERITIES, OFF):
            wanted = f"give one of {', '.join((*SEVERITIES, OFF))} to a rule that `share-state rules` lists"
            raise ShareStateError(f"rules={{{code!r}: {severity!r}}}: {wanted}")
    return dict(rules)


def _written(
    spark: "SparkSession",
    work: Work,
    warehouse: str,
    inputs: list[str],
    as_of: AsOf | None,
    rules: Mapping[str, str] | None,
) -> Tables:
    from share_state.spark.reconstruct import reconstruct as job  # noqa: PLC0415
    from share_state.warehouse_lock import locked  # noqa: PLC0415
    from share_state.warehouse_place import check_place  # noqa: PLC0415

    check_place(warehouse)
    options = {"as_of": str(as_of or ""), "rules": ",".join(f"{k}={v}" for k, v in (rules or {}).items())}
    with locked(warehouse, "reconstruct"):
        job(spark, work, warehouse, inputs=tuple(inputs), options=options)
    return _committed(spark, warehouse)


def _of_frame(
    rows: Any,
    warehouse: str | PathLike[str] | None,
    topics: Any,
    rules: Mapping[str, str] | None,
    columns: Mapping[str, str] | None,
) -> Tables:
    from share_state.notebook import reconstruct_frame  # noqa: PLC0415

    if warehouse is None:
        raise ShareStateError("reconstruct: a DataFrame is folded into a warehouse; give warehouse=FOLDER too")
    named = None if topics is None else fspath(topics)
    reconstruct_frame(rows, out=fspath(warehouse), columns=columns, topics=named, rules=rules)
    return _committed(rows.sparkSession, fspath(warehouse))


def _committed(spark: "SparkSession", warehouse: str) -> Tables:
    from share_state.committed import CommittedTables  # noqa: PLC0415

    versions = CommittedTables(warehouse).versions
    read = spark.read.format("delta")
    return Tables(**{name: read.option("versionAsOf", versions[name]).load(f"{warehouse}/{name}") for name in RESULTS})
