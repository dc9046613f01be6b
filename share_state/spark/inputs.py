"""Puts rows of any table or DataFrame in order, once: scratch Parquet files, a folder a log partition.

A running cluster as a Python data source: one partition of the state topic a task, folded where it is read.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.functions import col, input_file_name, lit, try_to_binary, try_to_timestamp, unix_millis, when
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from share_state.errors import InputError
from share_state.sources.discovery import STATE_TOPIC, LogPartition
from share_state.sources.kafka_client import FORM
from share_state.sources.table_plan import nothing_of, plan, table_files
from share_state.sources.tables import Columns

_ROW_GROUP = 8 << 20
"""Bytes of a row group of the scratch files: they do not overlap, so little need be in memory at a time."""

_OURS = ("key", "value", "topic", "partition", "offset", "timestamp")
_NEED_NOT_BE = ("topic", "timestamp")
_FILE, _WRONG = "__file", "__wrong"


def read_tables(spark: SparkSession, tables: Sequence[tuple[str, str]], columns: Columns) -> DataFrame:
    """Several tables as one, their columns as `ordered_logs` takes them.

    Args:
        spark: a session with Delta.
        tables: format (parquet, delta or json) and path of each.
        columns: what their columns are called.
    Raises:
        InputError: if one cannot be read, or lacks a column.
    """
    frames = []
    for form, path in tables:
        try:
            frame = spark.read.format(form).load(path)
        except AnalysisException as error:
            raise InputError(f"{path}: cannot be read as {form} ({str(error).splitlines()[0]})") from None
        frames.append(_normalised(frame, columns, path))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def ordered_logs(
    frame: DataFrame, columns: Columns, called: str, topics: Sequence[str] = (STATE_TOPIC,)
) -> tuple[list[LogPartition], set[str]]:
    """Write the rows of some topics by log partition, in offset order, and find the logs there.

    The scratch folder goes when the process ends.

    Args:
        frame: with the columns of Spark's Kafka source, or what `read_tables` gives.
        columns: what they are called.
        called: how messages name the input.
        topics: those that are wanted, first the one that must be there; a table without topics is of it.
    Returns:
        The log partitions, and the topics whose rows are passed over.
    Raises:
        InputError: if a column is missing or has another type, a row lacks what it needs, or there is no record of the
            first topic.
    """
    ours = frame if _WRONG in frame.columns else _normalised(frame, columns, called)
    others = set[str]()
    if "topic" in ours.columns:
        others = {row.topic for row in ours.filter(~col("topic").isin(*topics)).select("topic").distinct().collect()}
        ours = ours.filter(col("topic").isin(*topics))
    else:
        ours = ours.withColumn("topic", lit(topics[0]))
    _check_rows(ours, called)
    scratch = Path(tempfile.mkdtemp(prefix="share-state-rows-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    (
        ours.drop(_WRONG, _FILE)
        .repartition("topic", "partition")
        .sortWithinPartitions("topic", "partition", "offset")
        .write.option("parquet.block.size", str(_ROW_GROUP))
        .option("compression", "uncompressed")
        .partitionBy("topic", "partition")
        .parquet(str(scratch / "rows"))
    )
    files = sorted((scratch / "rows").rglob("*.parquet"))
    there = {topic for topic in topics if (scratch / "rows" / f"topic={topic}").exists()}
    if topics[0] not in there:
        raise InputError(f"{called}: {nothing_of(topics[0], others | there)}")
    found = plan(table_files(files, scratch / "rows"), Columns(), topics)
    return found.logs, others


def _check_rows(ours: DataFrame, called: str) -> None:
    """Refuse rows that cannot be placed in a log.

    Raises:
        InputError: with the file and the place of one of them.
    """
    for row in ours.filter(col(_WRONG).isNotNull()).select(_WRONG, "partition", "offset", _FILE).head(1):
        where = row[_FILE].removeprefix("file://") or called
        raise InputError(f"{where}: partition {row['partition']}, offset {row['offset']}: {row[_WRONG]}")


def _normalised(frame: DataFrame, columns: Columns, called: str) -> DataFrame:
    """The columns under our names, in the types that the fold takes; _WRONG says what is wrong with a row, if anything.

    Raises:
        InputError: if one is missing, or of another type.
    """
    types = {field.name: field.dataType for field in frame.schema.fields}
    chosen, wrong = dict[str, Column](), lit(None).cast("string")
    for ours in _OURS:
        name = getattr(columns, ours)
        if name not in types:
            if ours in _NEED_NOT_BE:
                continue
            raise InputError(f"{called}: no column {name} (there are {', '.join(types)}); say --column {ours}=NAME")
        given = col(f"`{name}`")
        chosen[ours] = _in_our_type(ours, name, given, types, called)
        if ours in ("partition", "offset"):
            wrong = when(given.isNull() | (given < 0), f"{name} is null or negative").otherwise(wrong)
        elif isinstance(types[name], StringType) and ours != "topic":
            wanted = "a time in ISO 8601" if ours == "timestamp" else "padded base64"
            wrong = when(given.isNotNull() & chosen[ours].isNull(), f"{name} is text but not {wanted}").otherwise(wrong)
    renamed = [column.alias(ours) for ours, column in chosen.items()]
    return frame.select(*renamed, wrong.alias(_WRONG), input_file_name().alias(_FILE))


def _in_our_type(ours: str, name: str, given: Column, types: Mapping[str, DataType], called: str) -> Column:
    kind = types[name]
    if ours in ("key", "value"):
        if isinstance(kind, StringType):
            return try_to_binary(given, lit("base64"))
        right, wanted = isinstance(kind, BinaryType), "binary or base64 text"
    elif ours in ("partition", "offset"):
        right, wanted, given = isinstance(kind, IntegralType), "a whole number", given.cast("bigint")
    elif ours == "topic":
        right, wanted = isinstance(kind, StringType), "text"
    else:
        right, wanted = isinstance(kind, TimestampType | TimestampNTZType | IntegralType), "a timestamp or milliseconds"
        if isinstance(kind, StringType):
            # JSON has no type for times: Spark writes them as ISO 8601.
            return unix_millis(try_to_timestamp(given))
        if right and not isinstance(kind, IntegralType):
            given = unix_millis(given.cast("timestamp"))
    if not right:
        raise InputError(f"{called}: column {name} is {kind.simpleString()}, not {wanted}")
    return given


NAME = "share_state_kafka"

Fold = Callable[[LogPartition], Iterator[pa.RecordBatch]]
"""What a task makes of one log partition."""


@dataclass
class _OneLog(InputPartition):
    log: LogPartition


def is_live(logs: Sequence[LogPartition]) -> bool:
    """Whether these are the log partitions of a running cluster."""
    return bool(logs) and all(log.source is not None and log.source.form == FORM for log in logs)


def live_frame(spark: SparkSession, logs: Sequence[LogPartition], fold: Fold, schema: StructType) -> DataFrame:
    """What the tasks make of the partitions of a running cluster, each read by a task of its own.

    The settings of the cluster travel inside the data source, not as its options: Spark shows options in its plans.

    Args:
        spark: a session.
        logs: of `share_state.live.logs.live_logs`.
        fold: reads a log partition and yields batches of `schema`.
        schema: of the result.
    """

    class LiveLogs(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> StructType:
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return reader

    reader = _Reader(logs, fold)
    spark.dataSource.register(LiveLogs)
    return spark.read.format(NAME).load()


class _Reader(DataSourceReader):
    def __init__(self, logs: Sequence[LogPartition], fold: Fold) -> None:
        self.logs, self.fold = logs, fold

    def partitions(self) -> Sequence[InputPartition]:
        return [_OneLog(log) for log in self.logs]

    def read(self, partition: _OneLog) -> Iterator[pa.RecordBatch]:  # type: ignore[override]  one of its own
        return self.fold(partition.log)
