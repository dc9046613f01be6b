"""Puts rows of any table or DataFrame in order, once: scratch Parquet files, a folder a log partition."""

import atexit
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, input_file_name, lit, try_to_binary, try_to_timestamp, unix_millis, when
from pyspark.sql.types import BinaryType, DataType, IntegralType, StringType, TimestampNTZType, TimestampType

from share_state.errors import InputError
from share_state.wire.log_folder import STATE_TOPIC, LogPartition
from share_state.wire.table_plan import nothing_of, plan, table_files
from share_state.wire.table_rows import Columns

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
