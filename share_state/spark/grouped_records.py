"""Records grouped by share-partition in Spark: one shuffle, and a call of the fold for thousands of records.

`groupBy(...).applyInArrow(fold_group)` calls Python once per share-partition, which costs more than the fold.
Here a task folds all share-partitions of its partition, log by log in the order of their offsets. Records are
shuffled in packed batches; those of the topic are decoded by the task that folds them.
"""

from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse import Warehouse
from share_state.errors import InputError, NothingCommittedError, SetupError, WarehouseError
from share_state.fold.decoded_fold import LABEL, declared_records
from share_state.fold.states import CONTROL_RECORDS, in_flight_of
from share_state.pipeline.given_records import (
    LAST_SNAPSHOT,
    fold_tables,
    join_cutoffs,
    records_plan,
)
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.task import (
    CUTOFF,
    FINDINGS,
    IN_FLIGHT,
    STATE,
    SUMMARY,
    OutputSpec,
    decoded_batches,
    run_task,
)
from share_state.schema.declarations import table_schema
from share_state.sources.log_partition import STATE_TOPIC, LogPartition, Segment
from share_state.sources.record_tables import Columns
from share_state.spark.connections import changed_settings
from share_state.spark.delta_writer import missing_support
from share_state.spark.packed_rows import (
    Placed,
    hashes_of,
    joined_hashes,
    packed,
    shuffled,
    unpacked,
)
from share_state.spark.sorted_tables import WRONG, FrameRows, check_first_record, normalized, record_schema
from share_state.spark.spark_executor import SparkExecutor, completed_findings
from share_state.spark.spark_sink import SparkSink

_OTHERS = "others"
"""Rows that are kept but no table as they are."""
_JOINS_KEPT = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"
_FOLDED = OutputSpec((STATE, FINDINGS), incomplete=(FINDINGS,))
"""What a task makes; Spark makes `in_flight` of the states where it is read, as most of the rows are its."""
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
    schema = table_schema("decoded_records")

    def fold(tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        return map(_packed, fold_tables(tables, plan, _FOLDED))

    return _tables(shuffled(records.select(*schema.names), _place_decoded, schema, fold))


def fold_topic_frame(rows: DataFrame, columns: Columns) -> dict[str, DataFrame]:
    """Fold records of the state topic.

    Args:
        rows: the columns of Spark's Kafka source.
        columns: their names.
    Returns:
        As for `fold_decoded_frame`.
    Raises:
        InputError: if a column is missing or has the wrong type, there is no record of the topic, or the first
            has a time in another unit than ms; when the rows are read, if one has no offset.
    """
    ours = normalized(rows, columns, LABEL)
    check_first_record(ours, STATE_TOPIC, LABEL)
    if "topic" in ours.columns:
        ours = ours.filter(sql.col("topic") == STATE_TOPIC)
    schema = record_schema(ours.columns)
    return _tables(shuffled(ours.select(*schema.names, WRONG), _place_bytes, schema, _fold_topic))


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


def _tables(folded: DataFrame) -> dict[str, DataFrame]:
    folded = _kept(folded)
    schema = table_schema(STATE)
    tables = {
        STATE: unpacked(folded, STATE, schema),
        IN_FLIGHT: unpacked(folded, STATE, schema, in_flight_of, table_schema(IN_FLIGHT)),
    }
    rows = unpacked(folded, _OTHERS, _FOLDED.schema)
    return tables | {FINDINGS: completed_findings(rows, None), CUTOFF: _joined_cutoffs(rows)}


def _kept(rows: DataFrame) -> DataFrame:
    """Keep rows on Spark's disks; small tasks of their shuffle are joined, unlike by default."""
    with changed_settings(rows.sparkSession, {_JOINS_KEPT: "true"}):
        return rows.persist(StorageLevel.DISK_ONLY)


def _joined_cutoffs(rows: DataFrame) -> DataFrame:
    """The table `cutoff` of all parts of the logs, in one task."""
    schema = table_schema(CUTOFF)
    parts = schema.append(pa.field(LAST_SNAPSHOT, pa.int64()))

    def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [pa.table(batch).cast(parts) for batch in batches]
        yield from join_cutoffs(pa.concat_tables([parts.empty_table(), *found])).to_batches()

    chosen = rows.where(sql.col(SUMMARY).isNotNull()).select(f"{CUTOFF}.*", f"{SUMMARY}.{LAST_SNAPSHOT}")
    return chosen.repartition(1).mapInArrow(join, from_arrow_schema(schema))


def _place_decoded(records: pa.Table) -> Placed:
    rows = declared_records(records)
    is_control = pc.equal(rows["dialect"], CONTROL_RECORDS)
    # A control record belongs to the log of its topic-partition.
    number = pc.if_else(is_control, rows["partition"], rows["state_partition"])
    topic = pc.if_else(is_control, rows["topic"], pa.scalar(STATE_TOPIC))
    names = (pc.fill_null(pc.cast(part, pa.string()), "") for part in (topic, number))
    texts = (rows["group_id"], pc.coalesce(rows["topic_id"], rows["topic"]))
    keys = [hashes_of(pc.fill_null(text, "")) for text in texts]
    keys.append(pc.fill_null(rows["partition"], -1).to_numpy())
    logs = pc.binary_join_element_wise(*names, "-")
    return Placed(rows, joined_hashes(keys), logs.combine_chunks())


def _place_bytes(records: pa.Table) -> Placed:
    if len(reasons := records[WRONG].drop_null()):
        raise InputError(f"{LABEL}: {reasons[0].as_py()}")
    schema = record_schema(records.column_names)
    rows = records.select(schema.names).cast(schema)
    hashes = hashes_of(pc.fill_null(rows["key"], b""), _TYPE_BYTES)
    return Placed(rows, hashes, rows["partition"].cast(pa.string()).combine_chunks())


def _packed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a task, of which each batch has those of one table."""
    if batch[STATE].null_count:
        return packed(_OTHERS, batch)
    return packed(STATE, pa.RecordBatch.from_struct_array(batch[STATE]))


def _fold_topic(tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
    pieces = (batch for table in tables for batch in table.to_batches())
    for number, rows in groupby(pieces, lambda rows: rows["partition"][0].as_py()):
        plan = records_plan(logs=[_log_of(number, rows)])
        yield from map(_packed, run_task(plan, _FOLDED, plan.logs[0]))


def _log_of(number: int, rows: Iterator[pa.RecordBatch]) -> LogPartition:
    """Rows of one state partition as a log, which is read once."""
    first = next(rows)

    def read(_: LogPartition) -> Iterator[pa.RecordBatch]:
        yield first
        yield from rows

    source = FrameRows(None, read, "timestamp" in first.schema.names)
    return LogPartition(STATE_TOPIC, number, (Segment(LABEL, 0, 0),), 0, source=source)
