"""Inputs that need Spark: rows of tables and DataFrames, which a shuffle brings to the task of their log partition."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, partial, reduce
from io import BufferedReader, TextIOWrapper
from itertools import chain, groupby, islice
from operator import itemgetter
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from share_state.config.sections import COLUMNS
from share_state.delta.reader import foreign_schema, scan_foreign
from share_state.errors import InputError
from share_state.kafka.buffers import is_text
from share_state.kafka.primitives import parse_digits
from share_state.kafka.record_batches import Chunk
from share_state.kafka.state_records import LARGEST_OFFSET
from share_state.pipeline.task import PerLog, balance_tasks
from share_state.sources.export_files import data_files
from share_state.sources.formats import SortedLogs
from share_state.sources.log_partition import GROUP_TOPIC, LARGEST_PARTITION, LogPartition, Segment
from share_state.sources.record_tables import Columns, check_time_unit, rows_in_chunks, rows_of_batches
from share_state.sources.table_plan import (
    list_table_files,
    missing_topic_message,
    parquet_batches,
    parquet_errors,
)
from share_state.spark.connections import described, local_address, missing_client
from share_state.spark.jvm_errors import SPARK_ERRORS, reason
from share_state.spark.local_copies import scratch_folder
from share_state.spark.packed_rows import Placed, shuffled
from share_state.stores.object_stores import READ_SIZE, SCHEMES, StorePath, read_errors
from share_state.stores.paths import parquet_source

_OPTIONAL = ("topic", "timestamp")
_FRAME = "the DataFrame"
_CONNECTOR_HINT = (
    "; Spark's Kafka connector leaves out internal topics without"
    " spark.sql.streaming.kafka.useDeprecatedOffsetFetching=true, and a stream of it stops where the broker has pruned"
    " records without the option failOnDataLoss=false"
)
"""What a person does if a DataFrame of the state topic has no rows."""
_MOST_TOPICS = 3
"""Other topics that a message names."""
_FILE = "__file"
WRONG = "__wrong"
"""The column of `normalized` that says what is wrong with a row; null if nothing is."""
_CORRUPT = "__corrupt"
_KEEP_CORRUPT = {"columnNameOfCorruptRecord": _CORRUPT}
_UNION = partial(DataFrame.unionByName, allowMissingColumns=True)
_RECORD = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int64()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
    ]
)
"""Columns of `normalized` that a record has, but the topic."""
_LARGEST = {"partition": LARGEST_PARTITION, "offset": LARGEST_OFFSET - 1}


class SparkSorter:
    """Sorts rows of tables and DataFrames into log partitions; a RowSorter of share_state.sources.formats.

    A RowSorter of share_state.sources.input_detection.

    One job counts the rows of each log partition; they are sorted when a plan is executed, by `map_frame`.
    Its methods raise InputError if a table cannot be read, a column is missing or has the wrong type, a row
    has no offset, or there is no record of the first topic.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def sort_tables(
        self, tables: Sequence[tuple[str, str]], columns: Columns, name: str, topics: Sequence[str]
    ) -> SortedLogs:
        """Sort tables as one, given by format (parquet, delta or json) and path."""
        frames = list[DataFrame]()
        for form, path in tables:
            try:
                frames.append(normalized(_read(self._session, form, path, columns), columns, path))
            except SPARK_ERRORS as error:
                raise InputError(f"{path}: cannot be read as {form} ({reason(error)})") from None
        return _sorted_logs(reduce(_UNION, frames), name, topics)

    def sort_frame(self, frame: DataFrame, columns: Columns, topics: Sequence[str]) -> SortedLogs:
        """Sort the rows of a DataFrame."""
        return _sorted_logs(normalized(frame, columns, _FRAME), _FRAME, topics)


@dataclass(frozen=True, slots=True, eq=False)
class FrameRows:
    """A log partition among the rows of a DataFrame; a `RecordSource`.

    Attributes:
        frame: rows of one topic: key, value, partition, offset, and timestamp if they have times; None in a
            task.
        read: yields the rows of a log partition in offset order; None while it travels to a task.
        has_times: whether there are timestamps.
        content: a hash of the rows in any order.
        times: the first and the last timestamp (ms); None if none is known.
    """

    frame: DataFrame | None
    read: Callable[[LogPartition], Iterable[pa.RecordBatch]] | None
    has_times: bool
    content: str = ""
    times: tuple[int, int] | None = None
    form: str = "table"
    has_offsets: bool = True
    has_sizes: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return FrameRows, (None, None, self.has_times)

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        """The chunks of a log partition; outside of tasks its rows are collected on the driver."""
        del merge
        if self.read is not None:
            yield from rows_in_chunks(rows_of_batches(self.read(log)), chunk, holds_all=log.holds_all)


def map_frame(
    frame: DataFrame, logs: Sequence[LogPartition], cores: int, per_log: PerLog, schema: pa.Schema
) -> DataFrame:
    """Run a function over log partitions of a DataFrame: one shuffle brings each to a task, in offset order.

    Args:
        frame: as in `FrameRows`.
        logs: its log partitions.
        cores: for all tasks together.
        per_log: yields batches of `schema` for one log partition.
        schema: the schema of the result.
    """
    tasks, own = balance_tasks(logs, cores), {log.partition: log for log in logs}
    by_number = {log.partition or 0: number for number, task in enumerate(tasks) for log in task}
    numbers = np.array(sorted(by_number))
    task_of = np.array([by_number[number] for number in numbers.tolist()], np.uint64)
    records = record_schema(frame.columns)

    def place(rows: pa.Table) -> Placed:
        rows = rows.select(records.names).cast(records)
        is_asked_for = np.isin(rows["partition"].to_numpy(), numbers)
        rows = rows if is_asked_for.all() else rows.filter(pa.array(is_asked_for))
        hashes = task_of[np.searchsorted(numbers, rows["partition"].to_numpy())]
        return Placed(rows, hashes, rows["partition"].cast(pa.string()).combine_chunks())

    def run(tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        for partition, rows in groupby(tables, lambda table: table["partition"][0].as_py()):
            log = own[partition]
            # A fold may read its log twice; the file is where Spark spills what it sorts.
            with NamedTemporaryFile(dir=scratch_folder(), suffix=".arrows") as spool:
                with pa.ipc.new_stream(spool, records) as stream:
                    for table in rows:
                        stream.write_table(table)
                spool.flush()
                source = FrameRows(None, partial(_read_spool, spool.name), "timestamp" in records.names)
                yield from per_log(replace(log, source=source))

    return shuffled(frame, place, records, run, schema, len(tasks))


def record_schema(columns: Iterable[str]) -> pa.Schema:
    """The types of the columns of records that `normalized` has made."""
    return pa.schema([field for field in _RECORD if field.name in {*columns}])


def _read_spool(path: str, log: LogPartition) -> Iterator[pa.RecordBatch]:
    del log
    with pa.memory_map(path) as file, pa.ipc.open_stream(file) as stream:
        yield from stream


def _collect(frame: DataFrame, log: LogPartition) -> list[pa.RecordBatch]:
    with described(frame.sparkSession, f"share_state: collect {log.name}"):
        return frame.filter(sql.col("partition") == log.partition).sort("offset").toArrow().to_batches()


def _collected_once(frame: DataFrame) -> Callable[[LogPartition], list[pa.RecordBatch]]:
    """Reads log partitions of a topic that the driver folds, all of them by one job."""
    collect = cache(lambda: frame.sort("partition", "offset").toArrow())
    return lambda log: collect().filter(pc.field("partition") == log.partition).to_batches()


def _sorted_logs(ours: DataFrame, name: str, topics: Sequence[str]) -> SortedLogs:
    """The log partitions of normalized rows, and the topics whose rows are skipped."""
    if "topic" not in ours.columns:
        ours = ours.withColumn("topic", sql.lit(topics[0]))
    wrong = sql.when(
        sql.col(WRONG).isNotNull(),
        sql.struct(sql.col(WRONG).alias("what"), "offset", sql.col(_FILE).alias("file")),
    )
    size = sql.coalesce(sql.length("key"), sql.lit(0)) + sql.coalesce(sql.length("value"), sql.lit(0))
    content = [column for column in ours.columns if column not in (_FILE, WRONG)]
    time = sql.col("timestamp") if "timestamp" in ours.columns else sql.lit(None).cast("bigint")
    found = ours.groupBy("topic", "partition").agg(
        sql.min("offset").alias("first"),
        sql.sum(size).alias("size"),
        sql.min(sql.when(time > 0, time)).alias("oldest"),
        sql.max(time).alias("newest"),
        sql.first(wrong, ignorenulls=True).alias("wrong"),
        sql.concat_ws(" ", sql.count("*"), sql.bit_xor(sql.xxhash64(*content))).alias("content"),
    )
    with described(ours.sparkSession, f"share_state: find the log partitions of {name}"):
        try:
            collected = found.collect()
        except PySparkException as error:
            # The message of a task about its file.
            if (said := re.search(r"share_state\.errors\.InputError: (.*)", str(error))) is None:
                raise
            raise InputError(said[1]) from None
    rows = [row for row in collected if row.topic is not None]
    of_topics = {topic: [row for row in rows if row.topic == topic] for topic in topics}
    # A row without topic, partition and offset comes from a truncated line.
    for row in chain(*of_topics.values(), (row for row in collected if row.topic is row.partition is None)):
        if row.wrong is not None:
            where = re.sub("^file:/+", "/", row.wrong.file) or name
            at = "" if row.partition is None else f"partition {row.partition}, offset {row.wrong.offset}: "
            raise InputError(f"{where}: {at}{row.wrong.what}")
        if row.oldest is not None:
            check_time_unit(name, "timestamp", row.oldest, row.newest)
    others = {row.topic for row in rows} - {*topics}
    if not of_topics[topics[0]]:
        raise _without_topic(name, topics[0], {row.topic for row in rows}, is_frame=name == _FRAME)
    logs, has_times = list[LogPartition](), "timestamp" in ours.columns
    for topic, of_topic in of_topics.items():
        frame = ours.filter(sql.col("topic") == topic).drop("topic", WRONG, _FILE)
        read = _collected_once(frame) if topic == GROUP_TOPIC else partial(_collect, frame)
        for row in sorted(of_topic, key=lambda row: row.partition):
            times = None if row.oldest is None else (row.oldest, row.newest)
            source = FrameRows(frame, read, has_times, row.content, times)
            segment = Segment(name, row["first"], row["size"])
            logs.append(LogPartition(topic, row["partition"], (segment,), row["first"], source=source))
    return logs, others


def check_first_record(ours: DataFrame, topic: str, name: str) -> None:
    """Refuse rows without a record of a topic, or with times in another unit than ms: reads the first one.

    Args:
        ours: rows of a DataFrame as `normalized` returns them; without a column of topics they are of this one.
        topic: its name.
        name: of the DataFrame, for messages.
    Raises:
        InputError: if there is none, or its time shows another unit.
    """
    has_topics = "topic" in ours.columns
    of_topic = ours.filter(sql.col("topic") == topic) if has_topics else ours
    times = ["timestamp"] if "timestamp" in ours.columns else []
    if (first := of_topic.select(*times).head()) is not None:
        if times and first[0] is not None and first[0] > 0:
            check_time_unit(name, "timestamp", first[0], first[0])
        return
    others = ours.select("topic").distinct().limit(_MOST_TOPICS).collect() if has_topics else ()
    raise _without_topic(name, topic, {row.topic for row in others if row.topic is not None}, is_frame=True)


def _without_topic(name: str, topic: str, others: set[str], *, is_frame: bool) -> InputError:
    hint = _CONNECTOR_HINT if is_frame and not others else ""
    return InputError(f"{name}: {missing_topic_message(topic, others)}{hint}")


def normalized(frame: DataFrame, columns: Columns, label: str) -> DataFrame:
    """The columns under our names, in the types that the fold takes.

    The column WRONG is beside them, and the file of each row.
    """
    types = {field.name: field.dataType for field in frame.schema.fields}
    chosen, wrong = dict[str, Column](), sql.lit(None).cast("string")
    for ours in COLUMNS:
        name = getattr(columns, ours)
        if name not in types:
            if ours in _OPTIONAL:
                continue
            fix = f"give --column {ours}=NAME" if label != _FRAME else f"give columns={{{ours!r}: NAME}}"
            raise InputError(f"{label}: no column {name} (there are {', '.join(types)}); {fix}")
        given = sql.col(f"`{name}`")
        chosen[ours] = _in_our_type(ours, name, given, types, label)
        if ours in _LARGEST:
            wrong = sql.when(given > _LARGEST[ours], f"{name} is above {_LARGEST[ours]}").otherwise(wrong)
            wrong = sql.when(given.isNull() | (given < 0), f"{name} is null or negative").otherwise(wrong)
        elif isinstance(types[name], StringType) and ours != "topic":
            expected = "a time in ISO 8601" if ours == "timestamp" else "base64 or hexadecimal"
            is_wrong = given.isNotNull() & chosen[ours].isNull()
            wrong = sql.when(is_wrong, f"{name} is text but not {expected}").otherwise(wrong)
    if _CORRUPT in types:
        what = sql.concat(
            sql.lit("a line is not complete JSON ("),
            sql.substring(_CORRUPT, 1, 40),
            sql.lit("…); export it again, or delete the line"),
        )
        wrong = sql.when(sql.col(_CORRUPT).isNotNull(), what).otherwise(wrong)
    renamed = [column.alias(ours) for ours, column in chosen.items()]
    file = sql.col(_FILE) if _FILE in types else sql.input_file_name()
    return frame.select(*renamed, wrong.alias(WRONG), file.alias(_FILE))


_HEX = r"^(0x|\\x)?0[0-9A-Fa-f]([0-9A-Fa-f]{2})*$"
"""As `sources.encoded_text`: hexadecimal digits that begin with 0, since keys and values of state records
do."""


def _decoded(given: Column) -> Column:
    """Bytes of text in hexadecimal or base64; null if it is neither."""
    digits = sql.regexp_replace(given, r"^(0x|\\x)", "")
    text = sql.regexp_replace(given, r"[\r\n]|=+$", "")
    padded = sql.concat(text, sql.repeat(sql.lit("="), sql.pmod(-sql.length(text), sql.lit(4))))
    in_base64 = sql.try_to_binary(sql.translate(padded, "-_", "+/"), sql.lit("base64"))
    return sql.when(given.rlike(_HEX), sql.try_to_binary(digits, sql.lit("hex"))).otherwise(in_base64)


def _in_our_type(ours: str, name: str, column: Column, types: Mapping[str, DataType], label: str) -> Column:
    kind = types[name]
    if ours in ("key", "value"):
        if isinstance(kind, StringType):
            return _decoded(column)
        right, expected = isinstance(kind, BinaryType), "binary, or text in base64 or hexadecimal"
    elif ours in ("partition", "offset"):
        right = isinstance(kind, IntegralType)
        expected = "an integer"
        column = column.cast("bigint")
    elif ours == "topic":
        right, expected = isinstance(kind, StringType), "text"
    else:
        is_time = isinstance(kind, TimestampType | TimestampNTZType)
        right, expected = is_time or isinstance(kind, IntegralType), "a timestamp or milliseconds"
        if isinstance(kind, StringType | TimestampNTZType):
            # JSON has no type for times: Spark writes them as ISO 8601. Without a zone they are in UTC.
            column = column.cast("string")
            return sql.unix_millis(
                sql.coalesce(
                    sql.try_to_timestamp(sql.concat(column, sql.lit("Z"))), sql.try_to_timestamp(column)
                )
            )
        if is_time:
            column = sql.unix_millis(column)
    if not right:
        raise InputError(f"{label}: column {name} is {kind.simpleString()}, not {expected}")
    return column


def _read(session: SparkSession, form: str, path: str, columns: Columns) -> DataFrame:
    """A table; where Spark has no client for its object store, tasks read it with Arrow."""
    reader = session.read.format(form).options(**_KEEP_CORRUPT if form == "json" else {})
    if "://" not in path:
        return reader.load(local_address(path))
    root, names = StorePath.at(path), astuple(columns)
    if root.store.scheme in SCHEMES and missing_client(session, path) is None:
        return reader.load(path)
    if form in ("delta", "parquet"):
        if form == "delta":
            found, read = foreign_schema(path), scan_foreign
        else:
            with parquet_errors(path):
                found, read = pq.read_schema(parquet_source(path)), parquet_batches
        kept = pa.schema([_plain(one) for one in found if one.name in names])
        return _read_in_tasks(session, [path], partial(read, columns=kept.names), kept)
    frames = list[DataFrame]()
    files = [(file, {name: file.constants[name] for name in names if name in file.constants})
             for file in list_table_files(data_files(root), root)]  # fmt: skip
    for constants, group in groupby(sorted(files, key=lambda one: sorted(one[1].items())), itemgetter(1)):
        addresses = [file.path for file, _ in group]
        lines = _read_in_tasks(session, addresses, _lines, pa.schema([("line", pa.string())]))
        kinds = reader.json(lines.select("line").rdd.map(itemgetter(0))).schema
        rows = lines.select(sql.from_json("line", kinds, _KEEP_CORRUPT).alias("row"), _FILE).select(
            "row.*", _FILE
        )
        of_folders = {
            name: sql.lit(value if (number := parse_digits(value)) is None else number)
            for name, value in constants.items()
        }
        frames.append(rows.withColumns(of_folders) if of_folders else rows)
    return reduce(_UNION, frames)


def _plain(field: pa.Field) -> pa.Field:
    """A column in the Arrow type that Spark takes for it."""
    kind: Any = field.type
    if pa.types.is_integer(kind):
        kind = pa.int64()
    elif pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", "UTC")
    elif is_text(kind):
        kind = pa.string()
    elif (
        pa.types.is_fixed_size_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    ):
        kind = pa.binary()
    return pa.field(field.name, kind)


def _read_in_tasks(
    session: SparkSession,
    addresses: Sequence[str],
    read: Callable[[str], Iterable[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """The rows of files, a task for each, with the address of the file."""
    with_file = schema.append(pa.field(_FILE, pa.string()))

    def read_file(number: int) -> Iterator[pa.RecordBatch]:
        for rows in read(addresses[number]):
            columns = [rows[one.name].cast(one.type) for one in schema]
            yield pa.RecordBatch.from_arrays(
                [*columns, pa.repeat(addresses[number], len(rows))], schema=with_file
            )

    return run_tasks(session, len(addresses), read_file, with_file)


def run_tasks(
    spark: SparkSession, count: int, task: Callable[[int], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> DataFrame:
    """Run `task(i)`, which yields batches of `schema`, in `count` Spark tasks."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from task(number)

    return spark.range(0, count, 1, max(count, 1)).mapInArrow(run, from_arrow_schema(schema))


def _lines(address: str) -> Iterator[pa.RecordBatch]:
    path = StorePath.at(address)
    # Arrow decompresses by the ending of the name, as Spark does.
    with read_errors(address), path.store.file_system.open_input_stream(path.inner) as stream:
        text = TextIOWrapper(BufferedReader(stream, READ_SIZE), "utf-8", errors="replace")  # pyright: ignore[reportArgumentType]
        while lines := list(islice(text, 4096)):
            yield pa.record_batch({"line": [line for line in lines if not line.isspace()]})
