"""Inputs that need Spark: rows of tables and DataFrames, sorted into scratch files."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import ENOENT
from functools import reduce
from pathlib import Path

from pyarrow.fs import LocalFileSystem, copy_files
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, input_file_name, lit, try_to_binary, try_to_timestamp, unix_millis, when
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from share_state.errors import InputError
from share_state.pipeline.inputs import SortedLogs
from share_state.sources.object_stores import READ_SIZE, StorePath, read_error
from share_state.sources.table_plan import list_table_files, missing_topic_message, plan_table
from share_state.sources.tables import Columns

_ROW_GROUP = 8 << 20
"""Bytes of a row group of the scratch files; only one at a time is in memory, since they do not overlap."""

_OURS = ("key", "value", "topic", "partition", "offset", "timestamp")
_OPTIONAL = ("topic", "timestamp")
_FILE, _WRONG = "__file", "__wrong"


class SparkSorter:
    """Sorts rows of tables and DataFrames into log partitions; a RowSorter of share_state.pipeline.inputs.

    Its methods write the rows of some topics, by log partition and in offset order, to a scratch folder that is deleted
    at exit. They raise InputError if a table cannot be read, a column is missing or has the wrong type, a row has no
    offset, or there is no record of the first topic.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def sort_tables(
        self, tables: Sequence[tuple[str, str]], columns: Columns, name: str, topics: Sequence[str]
    ) -> SortedLogs:
        """Sort tables as one, given by format (parquet, delta or json) and path."""
        copies, frames = _LocalCopies(), list[DataFrame]()
        with copies.original_addresses():
            for form, path in [(form, copies.local(path)) for form, path in tables]:
                try:
                    frames.append(_normalised(self._session.read.format(form).load(path), columns, path))
                except AnalysisException as error:
                    reason = str(error).splitlines()[0]
                    raise InputError(f"{path}: cannot be read as {form} ({reason})") from None
            frame = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
            return _sorted_logs(frame, name, topics)

    def sort_frame(self, frame: DataFrame, columns: Columns, topics: Sequence[str]) -> SortedLogs:
        """Sort the rows of a DataFrame."""
        return _sorted_logs(_normalised(frame, columns, "the DataFrame"), "the DataFrame", topics)


def _sorted_logs(ours: DataFrame, name: str, topics: Sequence[str]) -> SortedLogs:
    """The log partitions of normalised rows, and the topics whose rows are skipped."""
    others = set[str]()
    if "topic" in ours.columns:
        others = {row.topic for row in ours.filter(~col("topic").isin(*topics)).select("topic").distinct().collect()}
        ours = ours.filter(col("topic").isin(*topics))
    else:
        ours = ours.withColumn("topic", lit(topics[0]))
    for row in ours.filter(col(_WRONG).isNotNull()).select(_WRONG, "partition", "offset", _FILE).head(1):
        where = row[_FILE].removeprefix("file://") or name
        raise InputError(f"{where}: partition {row['partition']}, offset {row['offset']}: {row[_WRONG]}")
    scratch = _scratch_folder("rows")
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
    return plan_table(list_table_files(files, scratch / "rows"), Columns(), topics).logs, others


def _scratch_folder(purpose: str) -> Path:
    """A new folder that is deleted at exit."""
    folder = Path(tempfile.mkdtemp(prefix=f"share-state-{purpose}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _normalised(frame: DataFrame, columns: Columns, label: str) -> DataFrame:
    """The columns under our names, in the types that the fold takes; _WRONG says what is wrong with a row, if any."""
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
            is_wrong = given.isNotNull() & chosen[ours].isNull()
            wrong = when(is_wrong, f"{name} is text but not {expected}").otherwise(wrong)
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
        is_time = isinstance(kind, TimestampType | TimestampNTZType)
        right, expected = is_time or isinstance(kind, IntegralType), "a timestamp or milliseconds"
        if isinstance(kind, StringType):
            # JSON has no type for times: Spark writes them as ISO 8601.
            return unix_millis(try_to_timestamp(given))
        if is_time:
            given = unix_millis(given.cast("timestamp"))
    if not right:
        raise InputError(f"{label}: column {name} is {kind.simpleString()}, not {expected}")
    return given


class _LocalCopies:
    """Copies files of object stores, for which Spark has no client, to a scratch folder that is deleted at exit."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}

    def local(self, address: str) -> str:
        """The path of a copy of a file, or of a folder and all below it; a local path is returned unchanged."""
        if "://" not in address:
            return address
        root = StorePath.at(address)
        target = _scratch_folder("copy") / root.name
        self._addresses[str(target)] = address
        try:
            copy_files(root.inner, str(target), root.store.file_system, LocalFileSystem(), chunk_size=READ_SIZE)
        except OSError as error:
            if error.errno in (None, ENOENT):
                raise read_error(address, error) from None
            place = f"{target.parent} ({error.strerror}); set TMPDIR to a disk with more space"
            raise InputError(f"{address}: cannot be copied to {place}") from None
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
