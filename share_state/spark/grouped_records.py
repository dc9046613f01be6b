"""Records grouped by share-partition in Spark: one shuffle, and a call of the fold for thousands of records.

`groupBy(...).applyInArrow(fold_group)` calls Python once per share-partition, which costs more than the fold.
Here a task folds all share-partitions of its partition, log by log in the order of their offsets. Records of
the topic are shuffled as bytes, and decoded by the task that folds them.
"""

from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import groupby

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from share_state.delta.reader import CommittedTables
from share_state.delta.warehouse import Warehouse
from share_state.errors import InputError, NothingCommittedError, SetupError, WarehouseError
from share_state.fold.decoded_fold import LABEL
from share_state.fold.states import CONTROL_RECORDS, in_large_pieces
from share_state.pipeline.given_records import (
    LAST_SNAPSHOT,
    OUTPUT,
    fold_tables,
    join_cutoffs,
    records_plan,
)
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.task import CUTOFF, FINDINGS, RESULTS, SUMMARY, decoded_batches, run_task
from share_state.schema.declarations import table_schema
from share_state.sources.log_partition import STATE_TOPIC, LogPartition, Segment
from share_state.sources.record_tables import Columns
from share_state.spark.sorted_tables import WRONG, FrameRows, by_partition, normalized, refuse_without_record
from share_state.spark.spark_executor import SparkExecutor, completed_findings, rows_of_table
from share_state.spark.spark_sink import SparkSink, missing_support

_PIECE = 100_000
"""Decoded records that are taken at a time; below that, a call costs as much as its records."""

_TOPIC_KEY, _LOG = "topic_key", "log_hash"
_SIGN_BIT = -(2**63)
_TYPE_BYTES = 2
"""Bytes of a key before those of the share-partition: snapshots and updates have different types."""


def fold_decoded_frame(records: DataFrame, plan: FoldPlan | None = None) -> dict[str, DataFrame]:
    """Fold decoded records.

    Args:
        records: the columns of `decoded_records`, in any order.
        plan: from `records_plan`.
    Returns:
        The tables `share_partition_state`, `in_flight`, `findings` and `cutoff`, lazy; Spark folds once for all of
        them, and keeps the rows on its disks.
    """
    is_control = sql.col("dialect") == CONTROL_RECORDS
    # Spark compares eight bytes before all columns that follow.
    of_topic = sql.xxhash64("topic", "partition").bitwiseOR(sql.lit(_SIGN_BIT))
    log = sql.when(is_control, of_topic).otherwise(sql.col("state_partition").cast("bigint"))
    keyed = records.withColumns({_TOPIC_KEY: sql.coalesce("topic_id", "topic"), _LOG: log})
    grouped = keyed.repartition("group_id", _TOPIC_KEY, "partition")
    by_log = sql.when(is_control, sql.struct("topic", "partition"))
    ordered = grouped.sortWithinPartitions(_LOG, by_log, "offset").drop(_TOPIC_KEY, _LOG)

    def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return fold_tables(in_large_pieces(map(pa.table, batches), _PIECE), plan)

    return _tables(ordered.mapInArrow(fold, from_arrow_schema(OUTPUT.schema)))


def fold_topic_frame(rows: DataFrame, columns: Columns) -> dict[str, DataFrame]:
    """Fold records of the state topic.

    Args:
        rows: the columns of Spark's Kafka source.
        columns: their names.
    Returns:
        As for `fold_decoded_frame`.
    Raises:
        InputError: if a column is missing or has the wrong type, or there is no record of the topic; when the
            rows are read, if one has no offset.
    """
    ours = normalized(rows, columns, LABEL)
    refuse_without_record(ours, STATE_TOPIC, LABEL)
    if "topic" in ours.columns:
        ours = ours.filter(sql.col("topic") == STATE_TOPIC).drop("topic")
    grouped = ours.repartition(sql.expr(f"substring(key, {_TYPE_BYTES + 1})"))
    ordered = grouped.sortWithinPartitions("partition", "offset")
    return _tables(ordered.mapInArrow(_fold_topic, from_arrow_schema(OUTPUT.schema)))


def write_grouped(
    executor: SparkExecutor, plan: FoldPlan, place: str
) -> tuple[dict[str, int], dict[str, int]]:
    """Write the tables of records that Spark groups by share-partition, with Spark's Delta writer.

    Nothing is known of the logs but their records, so there is no row of `runs`.

    Args:
        executor, plan: the session, and the log partitions.
        place: a folder or an address.
    Returns:
        Number of rows by table; number of findings by severity.
    Raises:
        SetupError: if the session has no Delta.
        WarehouseError: if the tables of a run are there, or they cannot be written.
    """
    spark = executor.spark
    if (missing := missing_support(spark, place)) is not None:
        raise SetupError(f"--grouped: {missing}")
    with suppress(NothingCommittedError):
        run = CommittedTables(place).run["run_id"]
        raise WarehouseError(
            f"{place}: run {run} has its tables here, and --grouped makes no run; give another place"
        )
    decoded = executor.map_logs(plan, partial(decoded_batches, plan), table_schema("decoded_records"))
    tables = fold_decoded_frame(decoded, records_plan(plan))
    with (
        Warehouse(place) as warehouse,
        closing(SparkSink(warehouse, executor, spark, executor.schema)) as sink,
    ):
        counts = {name: sink.put(name, frame) for name, frame in tables.items()}
    by_severity = tables[FINDINGS].groupBy("severity").count().collect()
    return counts, {row["severity"]: row["count"] for row in by_severity}


def _tables(rows: DataFrame) -> dict[str, DataFrame]:
    rows = rows.persist(StorageLevel.DISK_ONLY)
    tables = {name: rows_of_table(rows, name) for name in RESULTS}
    return tables | {FINDINGS: completed_findings(rows, None), CUTOFF: _joined_cutoffs(rows)}


def _joined_cutoffs(rows: DataFrame) -> DataFrame:
    """The table `cutoff` of all parts of the logs, in one task."""
    schema = table_schema(CUTOFF)
    parts = schema.append(pa.field(LAST_SNAPSHOT, pa.int64()))

    def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [pa.table(batch).cast(parts) for batch in batches]
        yield from join_cutoffs(pa.concat_tables([parts.empty_table(), *found])).to_batches()

    chosen = rows.where(sql.col(SUMMARY).isNotNull()).select(f"{CUTOFF}.*", f"{SUMMARY}.{LAST_SNAPSHOT}")
    return chosen.repartition(1).mapInArrow(join, from_arrow_schema(schema))


def _fold_topic(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    pieces = by_partition(map(_without_wrong, batches))
    for number, rows in groupby(pieces, lambda rows: rows["partition"][0].as_py()):
        plan = records_plan(logs=[_log_of(number, rows)])
        yield from run_task(plan, OUTPUT, plan.logs[0])


def _without_wrong(batch: pa.RecordBatch) -> pa.RecordBatch:
    if len(reasons := batch[WRONG].drop_null()):
        raise InputError(f"{LABEL}: {reasons[0].as_py()}")
    return batch


def _log_of(number: int, rows: Iterator[pa.RecordBatch]) -> LogPartition:
    """Rows of one state partition as a log, which is read once."""
    first = next(rows)

    def read(_: LogPartition) -> Iterator[pa.RecordBatch]:
        yield first
        yield from rows

    source = FrameRows(None, read, "timestamp" in first.schema.names)
    return LogPartition(STATE_TOPIC, number, (Segment(LABEL, 0, 0),), 0, source=source)
