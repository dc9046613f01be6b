"""The stream: Structured Streaming over records of `__share_group_state`, folded by `transformWithState`.

Tasks read the records of a micro-batch and pack those of a log partition into one row. The state operator is
keyed by log partition (`StoredLog`), and one compiled fold takes all records of a micro-batch. The driver merges
the rows that changed into the tables.
"""

import json
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from share_state.errors import SetupError, ShareStateError
from share_state.pipeline.stream_changes import LogChanges
from share_state.pipeline.stream_files import READ_ERRORS, read_file, rows_by_log, unreadable
from share_state.pipeline.stream_fold import PACKED, StreamFold, packed_batch
from share_state.pipeline.stream_resume import kept_tasks
from share_state.pipeline.stream_run import StreamProgress, log_starts
from share_state.pipeline.stream_state import from_ipc
from share_state.pipeline.stream_tables import RESTS_WHILE_BEHIND, StreamTables
from share_state.sources.kafka_client import SCHEME
from share_state.sources.new_records import EMPTY_ROWS, LogFacts
from share_state.spark.connections import described, local_address, quiet_java, s3_client, task_property
from share_state.spark.jvm_errors import SPARK_ERRORS, JvmError, reason
from share_state.spark.kafka_stream import PACKED_FORMAT, PackedSource
from share_state.spark.packed_rows import SHUFFLE_TASKS, shuffle_tasks
from share_state.spark.stored_log import StoredLog

_CHANGES = "state_partition int, changes binary"
_FILES = "path string, modificationTime timestamp, length long, content binary"
_STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_JUDGED_EVERY_MS = 60_000
"""How often a log partition is judged by the clock."""
_TURNS = 12
"""Groups of log partitions that are judged at different times, so that no micro-batch judges all."""
_PATIENCE = 1
"""Seconds."""
_PLACES_A_TASK = 16
"""Places that are tried for a log partition; of 10 million, one fits none, and goes to any task."""
_PACKED_AT_ONCE = 2
"""Parts of a file that are packed while another is read: one task often reads all that is new."""
_ROWS, _LATER = "share_state.rows", "later"
"""Property of a micro-batch's tasks, and its value if they make no rows of the tables."""


def pack_rows(table: pa.Table, name: str) -> Iterator[pa.RecordBatch]:
    """Rows of a named table with Spark's Kafka columns as rows of PACKED, one per log partition."""
    by_log, problems = rows_by_log(table, name)
    yield from map(_problem, problems)
    for number, rows in by_log.items():
        yield packed_batch(number, LogFacts(), rows)


def _problem(text: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"state_partition": -1, "problem": text}], schema=PACKED)


def read_files(root: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read and pack the Parquet files of a micro-batch.

    A file that cannot be read is a problem, not a failure.
    """
    paths = (_local_path(address) for batch in batches for address in batch["path"].to_pylist())
    with ThreadPoolExecutor(_PACKED_AT_ONCE) as threads:
        for path in paths:
            try:
                # All of a file, or nothing: a later part of it may be unreadable.
                packed = _packed_file(path, root, threads)
            except READ_ERRORS as error:
                packed = [_problem(unreadable(path, error))]
            yield from packed


def _local_path(address: str) -> str:
    """The path of a file of this machine; another address as it is."""
    path = address.removeprefix("file://") if address.startswith("file:///") else address
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path


def _packed_file(path: str, root: str, threads: ThreadPoolExecutor) -> list[pa.RecordBatch]:
    """The rows of a file as rows of PACKED; while a part is read, those before it are packed."""
    packed, waiting = list[pa.RecordBatch](), deque[Future[list[pa.RecordBatch]]]()
    for table in read_file(path, root):
        waiting.append(threads.submit(list, pack_rows(table, path)))
        if len(waiting) > _PACKED_AT_ONCE:
            packed += waiting.popleft().result()
    for one in waiting:
        packed += one.result()
    return packed


class LogProcessor(StatefulProcessor):
    """Folds the log partitions of a micro-batch; each of them is a key of Spark's state.

    The driver decides for each micro-batch whether the rows of what has changed are made (`_MicroBatches`).
    """

    def __init__(self, fold: StreamFold, *, by_clock: bool) -> None:
        self._fold, self._by_clock = fold, by_clock

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle, self._state = handle, StoredLog(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        """Fold what a micro-batch holds of a log partition."""
        (partition, _), given = key, list(rows)
        changes: LogChanges | None = None
        if partition < 0:
            changes = LogChanges("", problems=[row.problem for row in given])
        else:
            are_rows_made, (records, facts) = _makes_rows(), _unpacked(given)
            log = self._state.get(partition, self._fold.initial, makes_rows=are_rows_made)
            unwritten = log.changes(self._fold.state_partitions)
            step = self._fold.step(log.state, unwritten, partition, records, facts)
            if step is not None:
                self._state.update(partition, step, facts.state_partitions, are_rows_made=are_rows_made)
                changes = step.unwritten.rows() if are_rows_made else None
            self._set_timers(
                partition, timerValues.getCurrentProcessingTimeInMs(), are_rows_made=are_rows_made
            )
        if changes is not None:
            yield Row(state_partition=partition, changes=changes.to_bytes())

    def _set_timers(self, partition: int, now: int, *, are_rows_made: bool) -> None:
        """Let a log partition be judged by the clock in turn, or have the rows that are left made."""
        if not are_rows_made:
            self._handle.registerTimer(now + 1)
        elif self._by_clock and next(self._handle.listTimers(), None) is None:
            wait = _JUDGED_EVERY_MS * (1 + partition % _TURNS) // _TURNS
            self._handle.registerTimer(now + wait)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Judge a log partition by the clock, and make the rows that micro-batches have left."""
        del expiredTimerInfo
        (partition, _), now = key, timerValues.getCurrentProcessingTimeInMs()
        if not _makes_rows():
            self._handle.registerTimer(now + 1)
            return
        is_judged_later = any(expiry > now for expiry in self._handle.listTimers())
        if not is_judged_later:
            self._handle.registerTimer(now + _JUDGED_EVERY_MS)
        log = self._state.get(partition)
        if log.state is None or (is_judged_later and log.unwritten is None):
            return
        changes = log.changes(self._fold.state_partitions).copy()
        by_clock = self._by_clock and not is_judged_later
        judged = self._fold.judged(log.state, partition, log.count, now if by_clock else None)
        if by_clock or log.unwritten is None:
            changes.judged = judged
        else:
            changes.add(judged)
        if log.unwritten is not None:
            self._state.note_rows_made(partition)
        yield Row(state_partition=partition, changes=changes.rows().to_bytes())

    def close(self) -> None:
        """Nothing to close."""


def _makes_rows() -> bool:
    """Whether the driver wants rows of the tables of this micro-batch."""
    context = TaskContext.get()
    return context is None or context.getLocalProperty(_ROWS) != _LATER


def _unpacked(rows: Sequence[Row]) -> tuple[pa.Table, LogFacts]:
    tables = [EMPTY_ROWS, *(from_ipc(bytes(row.rows)) for row in rows if row.rows is not None)]
    starts = [row.log_start_offset for row in rows if row.log_start_offset is not None]
    facts = LogFacts(max(starts, default=None), rows[-1].topic_id, rows[-1].state_partitions)
    return pa.concat_tables(tables, promote_options="permissive"), facts


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream, as the command describes it.

    Attributes:
        source: a folder, or `kafka://host:port`.
        checkpoint: folder of Spark's checkpoint.
        fold: how records are folded.
        once: end when what is there now is read.
        trigger: time between the starts of micro-batches, as Spark writes it.
        kafka_properties: path of a properties file for the cluster.
        starting: topic id and next offset of each log partition from which a new stream reads a cluster.
        most_records: maximum number of records of a cluster in a micro-batch; None for no limit.
        files_per_trigger: maximum number of files in a micro-batch.
        verbose: let the JVM write to stderr what its Python workers write.
    """

    source: str
    checkpoint: str
    fold: StreamFold
    once: bool = False
    trigger: str = "10s"
    kafka_properties: str | None = None
    starting: str | None = None
    most_records: int | None = None
    files_per_trigger: int = 1000
    verbose: bool = False


def run_stream(
    spark: SparkSession,
    spec: StreamSpec,
    tables: StreamTables,
    seen: Callable[[StreamProgress], None] | None = None,
) -> None:
    """Run a stream until it has read what is there (`once`), or until it is interrupted.

    Args:
        spark: a session.
        spec: what to read.
        tables: where changes go.
        seen: is called with the progress, about once a second.
    Raises:
        ShareStateError: if the stream must stop.
    """
    # It logs tracebacks of what `_MicroBatches` raises, which is raised again here.
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    if not spec.verbose:
        # The worker that declares the state prints ten lines of notes.
        quiet_java(spark)
    batches, is_said = _MicroBatches(spark, spec, tables), False
    try:
        batches.query = query = _start(batches)
        try:
            # A signal is handled between two calls.
            while not query.awaitTermination(_PATIENCE):
                if seen is not None and (latest := query.lastProgress) is not None:
                    seen(_progress(latest))
                if not (spec.once or is_said) and tables.run.unshown_starts:
                    is_said = True
                    log_starts(tables.run)
        finally:
            query.stop()
        if spec.once:
            log_starts(tables.run)
    except SPARK_ERRORS as error:
        first = batches.failures[0] if batches.failures else error
        is_of_spark = isinstance(first, SPARK_ERRORS)
        raise (_stopped(spark, spec, first) if is_of_spark else first) from None


class _MicroBatches:
    """Writes micro-batches to the tables, or lets tasks keep what they change.

    While there is more to read, tables are written a fifth of the time: fewer rows are made twice.

    Attributes:
        failures: what ended the query.
        query: the query, once it has started.
    """

    def __init__(self, spark: SparkSession, spec: StreamSpec, tables: StreamTables) -> None:
        self.spark, self.spec = spark, spec
        self.failures = list[Exception]()
        self.query: StreamingQuery | None = None
        self._tables = tables
        self._due = 0.0

    def write(self, frame: DataFrame, batch: int) -> None:
        """Fold a micro-batch, and write what it has changed if its rows are made."""
        # Rows of a micro-batch that is repeated are not made again later.
        is_due = batch <= self._tables.run.batch or not self._is_behind() or time.monotonic() >= self._due
        started = time.monotonic()
        try:
            with (
                described(self.spark, f"share_state: fold micro-batch {batch}"),
                task_property(self.spark, _ROWS, None if is_due else _LATER),
            ):
                rows = frame.toArrow()["changes"]
            self._tables.write(batch, [LogChanges.of(row.as_buffer()) for row in rows])
            if is_due:
                ended = time.monotonic()
                self._due = ended + RESTS_WHILE_BEHIND * (ended - started)
        except Exception as error:
            self.failures.append(error)
            raise

    def _is_behind(self) -> bool:
        """Whether the last micro-batch was as large as it may be, so that there is more to read."""
        query = None if self.spec.once else self.query
        latest = None if query is None else query.lastProgress
        # Without new data, this is a micro-batch of timers alone.
        if query is None or latest is None or not query.status["isDataAvailable"]:
            return False
        if self.spec.source.startswith(SCHEME):
            most, behind = self.spec.most_records, _progress(latest).behind
            return most is not None and behind is not None and behind >= most
        return latest["numInputRows"] >= self.spec.files_per_trigger


def _progress(latest: Any) -> StreamProgress:
    (source,), seconds = latest["sources"], latest["durationMs"].get("triggerExecution", 0) / 1000
    try:
        # For a cluster; Spark knows no end of a folder.
        end, newest = (json.loads(source[name])["next"] for name in ("endOffset", "latestOffset"))
        behind = sum(max(0, offset - end.get(log, 0)) for log, offset in newest.items())
    except (TypeError, ValueError, KeyError):
        behind = None
    return StreamProgress(seconds, behind)


def _stopped(spark: SparkSession, spec: StreamSpec, error: PySparkException | JvmError) -> Exception:
    """Why Spark ended a query, in one line; an error of our own tasks stays as it is."""
    text = str(error).strip()
    if any(name in text for name in ("PythonException", "PYTHON_EXCEPTION", "the Python worker")):
        return error
    why = reason(error)
    if re.search(
        r"No FileSystem for scheme|Class org\.apache\.hadoop\.fs.* not found|CANNOT_LOAD_CHECKPOINT_FILE_MANAGER",
        why,
    ):
        return SetupError(
            f"{spec.source}: Spark lacks Hadoop's client for the address of INPUT or --checkpoint ({why}); "
            f"for S3, write s3a:// and give --spark-conf spark.jars.packages={s3_client(spark)}"
        )
    return ShareStateError(f"{spec.source}: the stream stopped ({why}); the checkpoint is {spec.checkpoint}")


def _start(batches: _MicroBatches) -> StreamingQuery:
    spark, spec = batches.spark, batches.spec
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _STATE_STORE)
    # Else a micro-batch ends with a snapshot of RocksDB's files, which takes longer than its changes.
    # A query that ends before Spark's maintenance makes one would leave its changes to every later query.
    spark.conf.set(_CHANGELOG, not spec.once)
    if "://" not in spec.checkpoint:
        # By default Hadoop starts 80 processes per micro-batch (`readlink`) to rename local files.
        spark.conf.set("spark.sql.streaming.checkpointFileManagerClass", _CHECKPOINT_FILES)
    # Timers need micro-batches without records, which would never let a query end that reads what is there.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", not spec.once)
    packed = _cluster_frame(spark, spec) if spec.source.startswith(SCHEME) else _folder_frame(spark, spec)
    # With `once`, records are judged by the time of the last one, as a reconstruct judges them.
    processor = LogProcessor(spec.fold, by_clock=not spec.once)
    tasks = kept_tasks(spec.checkpoint, shuffle_tasks(spark))
    spark.conf.set(SHUFFLE_TASKS, tasks)
    placed = packed.withColumn("place", place_of(tasks))
    changed = placed.groupBy("state_partition", "place").transformWithState(
        processor, outputStructType=_CHANGES, outputMode="Update", timeMode="ProcessingTime"
    )
    writer = changed.writeStream.foreachBatch(batches.write).outputMode("update")
    writer = writer.option("checkpointLocation", local_address(spec.checkpoint)).queryName(
        "share_state stream"
    )
    return (
        writer.trigger(availableNow=True) if spec.once else writer.trigger(processingTime=spec.trigger)
    ).start()


def place_of(tasks: int) -> Column:
    """A second column of the key, so that log partition n goes to task n modulo `tasks`.

    By the hash of the number alone, of 8 log partitions one of two tasks folds 5.
    """
    number, places = sql.col("state_partition"), sql.sequence(sql.lit(0), sql.lit(_PLACES_A_TASK * tasks))
    task = sql.pmod(number, sql.lit(tasks))
    fitting = sql.filter(places, lambda place: sql.pmod(sql.hash(number, place), sql.lit(tasks)) == task)
    return sql.coalesce(sql.get(fitting, sql.lit(0)), sql.lit(0))


def _cluster_frame(spark: SparkSession, spec: StreamSpec) -> DataFrame:
    """The packed records of a running cluster."""
    spark.dataSource.register(PackedSource)
    options = {
        "kafka_properties": spec.kafka_properties,
        "max_records": spec.most_records,
        "starting": spec.starting,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return spark.readStream.format(PACKED_FORMAT).options(**given).load(spec.source)


def _folder_frame(spark: SparkSession, spec: StreamSpec) -> DataFrame:
    """The packed records of a growing folder of Parquet files, which tasks read with Arrow."""
    files = spark.readStream.format("binaryFile").schema(_FILES).option("recursiveFileLookup", "true")
    files = files.option("pathGlobFilter", "*.parquet").option("maxFilesPerTrigger", spec.files_per_trigger)
    root = spec.source

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return read_files(root, batches)

    return files.load(local_address(root)).select("path").mapInArrow(read, from_arrow_schema(PACKED))
