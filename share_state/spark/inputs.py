"""Inputs that need Spark: rows of tables and DataFrames sorted into scratch files, and a cluster as a data source."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.sources.object_stores import READ_SIZE, StorePath
from share_state.sources.table_plan import list_table_files, missing_topic_message, plan_table
from share_state.sources.tables import Columns

_ROW_GROUP = 8 << 20
"""Bytes of a row group of the scratch files; only one at a time is in memory, since they do not overlap."""

_OURS = ("key", "value", "topic", "partition", "offset", "timestamp")
_OPTIONAL = ("topic", "timestamp")
_FILE, _WRONG = "__file", "__wrong"


def read_tables(spark: SparkSession, tables: Sequence[tuple[str, str]], columns: Columns) -> DataFrame:
    """Several tables as one DataFrame, for `ordered_logs`.

    Args:
        spark: a session with Delta.
        tables: format (parquet, delta or json) and path of each.
        columns: names of their columns.
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
    frame: DataFrame, columns: Columns, name: str, topics: Sequence[str] = (STATE_TOPIC,)
) -> tuple[list[LogPartition], set[str]]:
    """Write the rows of some topics by log partition, in offset order, to a scratch folder that is deleted at exit.

    Args:
        frame: with the columns of Spark's Kafka source, or the result of `read_tables`.
        columns: names of its columns.
        name: of the input in messages.
        topics: those to find; the first must be there. A table without topics is of the first.
    Returns:
        The log partitions, and the topics whose rows are skipped.
    Raises:
        InputError: if a column is missing or has the wrong type, a row has no offset, or there is no record of the
            first topic.
    """
    ours = frame if _WRONG in frame.columns else _normalised(frame, columns, name)
    others = set[str]()
    if "topic" in ours.columns:
        others = {row.topic for row in ours.filter(~col("topic").isin(*topics)).select("topic").distinct().collect()}
        ours = ours.filter(col("topic").isin(*topics))
    else:
        ours = ours.withColumn("topic", lit(topics[0]))
    _check_rows(ours, name)
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
        raise InputError(f"{name}: {missing_topic_message(topics[0], others | there)}")
    found = plan_table(list_table_files(files, scratch / "rows"), Columns(), topics)
    return found.logs, others


def _check_rows(ours: DataFrame, label: str) -> None:
    """Refuse rows that cannot be placed in a log.

    Raises:
        InputError: with the file and the place of one of them.
    """
    for row in ours.filter(col(_WRONG).isNotNull()).select(_WRONG, "partition", "offset", _FILE).head(1):
        where = row[_FILE].removeprefix("file://") or label
        raise InputError(f"{where}: partition {row['partition']}, offset {row['offset']}: {row[_WRONG]}")


def _normalised(frame: DataFrame, columns: Columns, label: str) -> DataFrame:
    """The columns under our names, in the types that the fold takes; _WRONG says what is wrong with a row, if anything.

    Raises:
        InputError: if one is missing, or of another type.
    """
    types = {field.name: field.dataType for field in frame.schema.fields}
    chosen, wrong = dict[str, Column](), lit(None).cast("string")
    for ours in _OURS:
        name = getattr(columns, ours)
        if name not in types:
            if ours in _OPTIONAL:
                continue
            raise InputError(f"{label}: no column {name} (there are {', '.join(types)}); give --column {ours}=NAME")
        given = col(f"`{name}`")
        chosen[ours] = _in_our_type(ours, name, given, types, label)
        if ours in ("partition", "offset"):
            wrong = when(given.isNull() | (given < 0), f"{name} is null or negative").otherwise(wrong)
        elif isinstance(types[name], StringType) and ours != "topic":
            expected = "a time in ISO 8601" if ours == "timestamp" else "padded base64"
            wrong = when(given.isNotNull() & chosen[ours].isNull(), f"{name} is text but not {expected}").otherwise(
                wrong
            )
    renamed = [column.alias(ours) for ours, column in chosen.items()]
    return frame.select(*renamed, wrong.alias(_WRONG), input_file_name().alias(_FILE))


def _in_our_type(ours: str, name: str, given: Column, types: Mapping[str, DataType], label: str) -> Column:
    kind = types[name]
    if ours in ("key", "value"):
        if isinstance(kind, StringType):
            return try_to_binary(given, lit("base64"))
        right, expected = isinstance(kind, BinaryType), "binary or base64 text"
    elif ours in ("partition", "offset"):
        right, expected, given = isinstance(kind, IntegralType), "an integer", given.cast("bigint")
    elif ours == "topic":
        right, expected = isinstance(kind, StringType), "text"
    else:
        right, expected = (
            isinstance(kind, TimestampType | TimestampNTZType | IntegralType),
            "a timestamp or milliseconds",
        )
        if isinstance(kind, StringType):
            # JSON has no type for times: Spark writes them as ISO 8601.
            return unix_millis(try_to_timestamp(given))
        if right and not isinstance(kind, IntegralType):
            given = unix_millis(given.cast("timestamp"))
    if not right:
        raise InputError(f"{label}: column {name} is {kind.simpleString()}, not {expected}")
    return given


class SparkSorter:
    """Sorts rows of tables and DataFrames into log partitions; a RowSorter of share_state.pipeline.inputs."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def sort_tables(
        self, tables: Sequence[tuple[str, str]], columns: Columns, name: str, topics: Sequence[str]
    ) -> tuple[list[LogPartition], set[str]]:
        """Sort tables as one, given by format and path."""
        copies = _LocalCopies()
        with copies.original_addresses():
            local = [(form, copies.local(path)) for form, path in tables]
            return ordered_logs(read_tables(self._session, local, columns), Columns(), name, topics)

    def sort_frame(
        self, frame: DataFrame, columns: Columns, topics: Sequence[str]
    ) -> tuple[list[LogPartition], set[str]]:
        """Sort the rows of a DataFrame."""
        return ordered_logs(frame, columns, "the DataFrame", topics)


_COPY_THREADS = 4


class _LocalCopies:
    """Copies files of object stores, for which Spark has no client, to a scratch folder that is deleted at exit."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._scratch: Path | None = None

    def local(self, address: str) -> str:
        """The path of a copy of a file, or of a folder and all below it; a local path is returned unchanged.

        Raises:
            InputError: if the object store refuses, or the scratch folder has no space left.
        """
        if "://" not in address:
            return address
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="share-state-copy-"))
            atexit.register(shutil.rmtree, self._scratch, ignore_errors=True)
        root = StorePath.at(address)
        target = self._scratch / str(len(self._addresses)) / root.name
        files = [(root, target)]
        if not root.is_file():
            below = [file for file in root.rglob("*") if file.is_file()]
            files = [(file, target / file.relative_to(root)) for file in below]
        with ThreadPoolExecutor(_COPY_THREADS) as pool:
            list(pool.map(_copy_file, *zip(*files, strict=True)))
        self._addresses[str(target)] = address
        return str(target)

    @contextmanager
    def original_addresses(self) -> Iterator[None]:
        """Let error messages name what was copied instead of the copies."""
        try:
            yield
        except InputError as error:
            message = str(error)
            for path, address in self._addresses.items():
                message = message.replace(path, address)
            raise InputError(message) from None


def _copy_file(file: StorePath, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with file.open("rb") as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, READ_SIZE)
    except OSError as error:
        raise InputError(
            f"{file}: cannot be copied to {target.parent} ({error.strerror}); set TMPDIR to a disk with more space"
        ) from None


NAME = "share_state_kafka"

Fold = Callable[[LogPartition], Iterator[pa.RecordBatch]]
"""What a task makes of one log partition."""


@dataclass
class _OneLog(InputPartition):
    log: LogPartition


def is_live(logs: Sequence[LogPartition]) -> bool:
    """Whether these are the log partitions of a running cluster."""
    return bool(logs) and all(log.source is not None and log.source.form == KAFKA_FORM for log in logs)


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
