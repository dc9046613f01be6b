"""Records grouped by share-partition in Spark: one shuffle, and a call of the fold for thousands of records.

`groupBy(...).applyInArrow(fold_group)` calls Python once per share-partition, which costs more than the fold. Here a
task folds all share-partitions of its partition, in pieces of `_PIECE` records.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from share_state.errors import InputError
from share_state.fold.grouped_fold import SORTED_BY, TOPIC_KEY, GroupedFold, in_flight_of_states
from share_state.fold.states import CONTROL_RECORDS, in_large_pieces
from share_state.fold.timeline import decoded_tables
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.log_partition import STATE_TOPIC, LogPartition, Segment
from share_state.sources.record_tables import Columns
from share_state.spark.sorted_tables import WRONG, FrameRows, by_partition, normalized

_PIECE = 100_000
"""Records that are folded in one call; below that, a call costs as much as its records."""

_HASH = "share_partition_hash"
_SIGN_BIT = -(2**63)


def fold_frame(records: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Fold decoded records.

    Args:
        records: the columns of `decoded_records`, in any order.
    Returns:
        `share_partition_state` and `in_flight`, lazy; Spark folds once for both, and keeps the states on its disks.
    """
    folds = sql.col("kind").isNotNull() & (sql.col("kind") != "skipped") & sql.col("group_id").isNotNull()
    keyed = records.filter(folds).withColumn(TOPIC_KEY, sql.coalesce("topic_id", "topic"))
    keyed = keyed.withColumn(_HASH, _hash(*SORTED_BY[1:-1]))
    grouped = keyed.repartition("group_id", TOPIC_KEY, "partition").sortWithinPartitions(_HASH, *SORTED_BY)
    states = grouped.mapInArrow(_fold, from_arrow_schema(table_schema("share_partition_state")))
    states = states.persist(StorageLevel.DISK_ONLY)
    return states, states.mapInArrow(_in_flight, from_arrow_schema(table_schema("in_flight")))


def _hash(*names: str) -> Column:
    """A hash of columns, negative in control records. Spark compares the eight bytes before all columns that follow."""
    hashed = sql.xxhash64(*names)
    is_control = sql.col("dialect") == CONTROL_RECORDS
    return sql.when(is_control, hashed.bitwiseOR(_SIGN_BIT)).otherwise(hashed.bitwiseAND(~_SIGN_BIT))


def decode_frame(rows: DataFrame, columns: Columns) -> DataFrame:
    """Decode the records of the state topic, without a shuffle.

    Args:
        rows: the columns of Spark's Kafka source.
        columns: their names.
    Returns:
        The columns of `decoded_records`.
    Raises:
        InputError: if a column is missing or has the wrong type; when the rows are read, if one has no offset.
    """
    ours = normalized(rows, columns, "the DataFrame")
    if "topic" in ours.columns:
        ours = ours.filter(sql.col("topic") == STATE_TOPIC)
    return ours.mapInArrow(_decode, from_arrow_schema(table_schema("decoded_records")))


def _decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = table_schema("decoded_records")
    for batch in batches:
        if len(reasons := batch[WRONG].drop_null()):
            raise InputError(f"the DataFrame: {reasons[0].as_py()}")
        rows = pa.table(batch).sort_by([("partition", "ascending"), ("offset", "ascending")])
        for own in by_partition(rows.combine_chunks().to_batches()):
            for table in decoded_tables(_log_of(own), Window()):
                yield from table.cast(schema).to_batches()


def _log_of(rows: pa.RecordBatch) -> LogPartition:
    """Rows of one state partition as a log."""
    first, number = rows["offset"][0].as_py(), rows["partition"][0].as_py()
    source = FrameRows(None, lambda _: [rows], "timestamp" in rows.schema.names)
    segment = Segment("the DataFrame", first, rows.nbytes)
    return LogPartition(STATE_TOPIC, number, (segment,), first, source=source)


def _fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    fold = GroupedFold()
    for piece in in_large_pieces(map(pa.table, batches), _PIECE):
        yield from fold.take(piece).to_batches()
    yield from fold.finish().to_batches()


def _in_flight(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for states in batches:
        yield from in_flight_of_states(pa.table(states)).to_batches()
