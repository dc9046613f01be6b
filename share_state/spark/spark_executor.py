"""Runs a plan in Spark's tasks: each log partition is folded by the task that reads it.

Nothing is shuffled.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import gcd

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from share_state.delta.committed import CommittedTables
from share_state.delta.reader import open_dataset, warehouse_errors
from share_state.delta.warehouse import Warehouse
from share_state.fold.timeline import TIMELINE
from share_state.pipeline.across_logs import extended_logs, judge_states
from share_state.pipeline.deltalake_sink import DeltalakeSink
from share_state.pipeline.driver_side import GroupSide
from share_state.pipeline.mixed_logs import settle_cutoffs
from share_state.pipeline.plan import FoldPlan, cores_per_log
from share_state.pipeline.result import keep_proven, summarize
from share_state.pipeline.sink import Sink
from share_state.pipeline.task import (
    CUTOFF,
    FINDINGS,
    IN_FLIGHT,
    LOG,
    RESULTS,
    STATE,
    SUMMARY,
    OutputSpec,
    PerLog,
    balance_tasks,
    returned_table,
    run_task,
    timeline_batches,
)
from share_state.rules.group_context import STATE_COLUMNS
from share_state.schema.declarations import table_schema
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.sources.log_partition import STATE_TOPIC, LogPartition, Segment
from share_state.spark.connections import cores_of_executor, described, local_address, parallelism
from share_state.spark.delta_writer import missing_support
from share_state.spark.sorted_tables import FrameRows, map_frame, run_tasks
from share_state.spark.spark_sink import SparkSink
from share_state.stores.paths import absolute_address

_LOG = logging.getLogger("share_state")

_SPLIT = "split"
_SPLIT_KEYS = pa.schema(
    [
        ("group_id", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("state_partition", pa.int32()),
        (LOG, pa.string()),
        ("is_misplaced", pa.bool_()),
        ("is_ambiguous", pa.bool_()),
    ]
)
"""A share-partition with state in several logs: whether another log is its own, and whether that is
unknown."""


@dataclass(frozen=True, slots=True)
class SparkExecutor:
    """Runs a plan in Spark's tasks.

    An Executor of share_state.pipeline.executor whose rows are lazy DataFrames.

    Attributes:
        spark: the session.
        schema: `catalog.schema` of the tables that it writes; None to name them by their paths.
    """

    spark: SparkSession
    schema: str | None = None

    def map_logs(self, plan: FoldPlan, per_log: PerLog, schema: pa.Schema) -> DataFrame:
        """Run a function over every log partition.

        A few tasks per core, the logs of a cluster one per task.
        """
        by_frame = dict[DataFrame | None, list[LogPartition]]()
        cores = parallelism(self.spark)
        for log in plan.logs:
            frame = log.source.frame if isinstance(log.source, FrameRows) else None
            by_frame.setdefault(frame, []).append(log)
        parts = [
            self._map_files(logs, per_log, schema)
            if frame is None
            else map_frame(frame, logs, cores, per_log, schema)
            for frame, logs in (by_frame or {None: []}).items()
        ]
        return reduce(DataFrame.unionAll, parts)

    def _map_files(self, logs: Sequence[LogPartition], per_log: PerLog, schema: pa.Schema) -> DataFrame:
        # Workers have another working directory.
        logs = [replace(log, segments=tuple(map(_absolute, log.segments))) for log in logs]
        tasks = balance_tasks(logs, parallelism(self.spark))
        if all(log.source is not None and log.source.form == KAFKA_FORM for log in logs):
            tasks = [[log] for log in logs]

        def run(number: int) -> Iterator[pa.RecordBatch]:
            for log in tasks[number]:
                yield from per_log(log)

        return run_tasks(self.spark, len(tasks), run, schema)

    def fold(self, plan: FoldPlan, output: OutputSpec) -> DataFrame:
        """Fold and judge every log partition, a large one with several cores."""
        cores = cores_per_log(plan.logs, parallelism(self.spark), cores_of_executor(self.spark))
        plan = replace(plan, cores=cores)
        if plan.resumed is not None:
            files = {name: tuple(map(absolute_address, one.files)) for name, one in plan.resumed.items()}
            plan = replace(plan, resumed={n: replace(one, files=files[n]) for n, one in plan.resumed.items()})
        return self.map_logs(plan, partial(run_task, plan, output), output.schema)

    def returned_tables(self, rows: DataFrame, tables: Sequence[str]) -> dict[str, DataFrame]:
        """Tables that `fold` returned, by name; Spark folds once for all of them and keeps the rows."""
        rows = rows.persist(StorageLevel.DISK_ONLY) if len(tables) > 1 else rows
        return {name: rows_of_table(rows, name) for name in tables}

    def result_tables(self, plan: FoldPlan, side: GroupSide | None = None) -> dict[str, DataFrame]:
        """Every table that `reconstruct` writes, by name.

        Spark folds once, when one of them is first used.
        """
        rows = self.fold(plan, OutputSpec(RESULTS, incomplete=(FINDINGS,)))
        tables = self.returned_tables(rows, (*RESULTS, CUTOFF))
        tables[FINDINGS] = completed_findings(rows, None if side is None else side.folded.newest_time)
        has_several = _has_several_logs(plan)
        if side is None and not has_several and plan.names_logs:
            return tables
        if has_several:
            tables[CUTOFF] = _settled_cutoffs(rows, plan)
        judged = _judge_states(rows, side, plan).cache()
        if has_several:
            tables |= {
                name: _settle(rows_of_table(rows, name, LOG), name, judged, LOG)
                for name in (STATE, IN_FLIGHT)
            }
        tables[FINDINGS] = tables[FINDINGS].unionByName(rows_of_table(judged, FINDINGS))
        of_groups = {} if side is None else side.tables()
        # Spark Connect infers no schema from an empty table.
        frames = {
            name: self.spark.createDataFrame(table, from_arrow_schema(table.schema))
            for name, table in of_groups.items()
        }
        return tables | frames

    def cutoffs(self, plan: FoldPlan) -> DataFrame:
        """The table `cutoff`, in which what all logs show together is considered."""
        return _settled_cutoffs(self.fold(plan, OutputSpec(())), plan)

    def timeline(self, plan: FoldPlan) -> DataFrame:
        """The states after every record of a plan.

        If it has several logs, their last states are folded, too.
        """
        rows = self.map_logs(plan, partial(timeline_batches, plan), table_schema(TIMELINE))
        if not _has_several_logs(plan):
            return rows
        states = self.fold(replace(plan, timeline=None), OutputSpec((STATE,)))
        return _settle(rows, TIMELINE, _judge_states(states, None, plan), "state_partition")

    def collect(self, rows: DataFrame) -> pa.Table:
        """Rows as an Arrow table in this process."""
        with described(self.spark, "share_state: read and fold log partitions"):
            return rows.toArrow()

    @contextmanager
    def open_sink(self, tables: Warehouse) -> Iterator[Sink]:
        """Spark's own Delta writer, if the session has one for the place; else that of deltalake."""
        if (missing := missing_support(self.spark, tables.root)) is not None:
            _LOG.info("%s: deltalake writes the tables, from rows that the tasks stage there", missing)
            sink = DeltalakeSink(tables, self)
        else:
            tables.check_readable()
            sink = SparkSink(tables, self, self.spark, self.schema)
        with closing(sink):
            yield sink


def _absolute(segment: Segment) -> Segment:
    return replace(segment, path=absolute_address(segment.path))


def rows_of_table(rows: DataFrame, name: str, *more: str) -> DataFrame:
    """The rows of one table, which is a column of structs."""
    return rows.where(sql.col(name).isNotNull()).select(f"{name}.*", *more)


def _has_several_logs(plan: FoldPlan) -> bool:
    """Whether a key may have state in several logs."""
    return sum(log.topic == STATE_TOPIC for log in plan.logs) > 1


def _judge_states(rows: DataFrame, side: GroupSide | None, plan: FoldPlan) -> DataFrame:
    """Apply the rules that need the states of all logs, in one task, when it is used.

    Args:
        rows: the result of `SparkExecutor.fold`.
        side, plan: as for `judge_states`.
    Returns:
        Two columns of structs: `_SPLIT` with the columns of `_SPLIT_KEYS`, and FINDINGS.
    """
    names, findings = [LOG, *STATE_COLUMNS], table_schema(FINDINGS)
    states = pa.schema([*table_schema(STATE), (LOG, pa.string())])
    empty = pa.schema([states.field(name) for name in names]).empty_table()
    schema = pa.schema([(_SPLIT, pa.struct(list(_SPLIT_KEYS))), (FINDINGS, pa.struct(list(findings)))])

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        states = [empty]
        newest = 0
        modulus = 0
        progress = dict[str, int | None]()
        for batch in batches:
            newest = max([newest, *batch["newest_time"].drop_null().to_pylist()])
            modulus = gcd(modulus, *batch["key_modulus"].drop_null().to_pylist())
            is_summary = batch["key_modulus"].is_valid()
            ends = (batch[name].filter(is_summary).to_pylist() for name in (LOG, "next_offset"))
            progress |= dict(zip(*ends, strict=True))
            own = pa.Table.from_batches([batch.filter(batch["dialect"].is_valid())])
            states.append(own.select(names).cast(empty.schema))
        split, found = judge_states(
            side, plan, pa.concat_tables(states), modulus, newest, extended_logs(plan, progress)
        )
        is_misplaced = pc.fill_null(pc.not_equal(split["owner"], split["state_partition"]), False)
        split = split.append_column("is_misplaced", is_misplaced).append_column(
            "is_ambiguous", split["owner"].is_null()
        )
        for name, table, columns in (
            (_SPLIT, split, _SPLIT_KEYS),
            *((FINDINGS, one, findings) for one in found),
        ):
            for batch in table.select(columns.names).cast(columns).to_batches():
                structs = {name: batch.to_struct_array()}
                arrays = [structs.get(field.name, pa.nulls(len(batch), field.type)) for field in schema]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    chosen = rows.where(sql.col(STATE).isNotNull() | sql.col(SUMMARY).isNotNull()).select(
        LOG,
        *(f"{STATE}.{name}" for name in STATE_COLUMNS),
        *(f"{SUMMARY}.{name}" for name in ("newest_time", "key_modulus", "next_offset")),
    )
    return chosen.repartition(1).mapInArrow(judge, from_arrow_schema(schema))


def completed_findings(rows: DataFrame, newest_of_groups: int | None) -> DataFrame:
    """The table `findings` of the tasks, complete, in one task: a finding may depend on what the other logs show.

    Args:
        rows: the result of `SparkExecutor.fold`, with incomplete findings.
        newest_of_groups: ms, timestamp of the newest record of the group side; None without one.
    """
    output = OutputSpec(RESULTS, incomplete=(FINDINGS,))
    columns = pa.schema([field for field in output.schema if field.name in (LOG, CUTOFF, SUMMARY, FINDINGS)])

    def complete(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = list(batches)
        if not given:
            return
        folded = pa.Table.from_batches(given).cast(columns)
        result = summarize(folded, (), {}, newest_of_others=newest_of_groups)
        findings = returned_table(folded, FINDINGS, output)
        yield from keep_proven(findings, result.archiving, result.log_time).to_batches()

    chosen = rows.where(sql.col(FINDINGS).isNotNull() | sql.col(SUMMARY).isNotNull()).select(*columns.names)
    return chosen.repartition(1).mapInArrow(complete, from_arrow_schema(table_schema(FINDINGS)))


def _settled_cutoffs(rows: DataFrame, plan: FoldPlan) -> DataFrame:
    """The table `cutoff` after `settle_cutoffs`, in one task.

    Args:
        rows: the result of `SparkExecutor.fold`.
        plan: what is folded.
    """
    schema = table_schema(CUTOFF)

    def settle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cutoffs = pa.Table.from_batches(batches)
        modulus = gcd(*cutoffs["key_modulus"].to_pylist())
        yield from settle_cutoffs(plan, cutoffs.select(schema.names).cast(schema), modulus).to_batches()

    chosen = rows.where(sql.col(SUMMARY).isNotNull()).select(f"{CUTOFF}.*", f"{SUMMARY}.key_modulus")
    return chosen.repartition(1).mapInArrow(settle, from_arrow_schema(schema))


def _settle(rows: DataFrame, table: str, judged: DataFrame, log: str) -> DataFrame:
    """Leave out states of keys that belong to another log, and mark those that may as suspect.

    Arguments as for `settle_tables`.

    Args:
        rows: rows of the table.
        table: its name.
        judged: the result of `_judge_states`.
        log: the column of the rows that tells logs apart.
    """
    key = ["group_id", "topic_id", "partition", log]
    split = sql.broadcast(rows_of_table(judged, _SPLIT).select(*key, "is_misplaced", "is_ambiguous"))
    rows = rows.join(split, key, "left").where("is_misplaced IS NOT TRUE")
    if "suspect" in rows.columns:
        rows = rows.withColumn("suspect", sql.expr("suspect OR is_ambiguous IS TRUE"))
    return rows.select(*table_schema(table).names)


def committed_frame(spark: SparkSession, tables: CommittedTables, name: str) -> DataFrame:
    """A committed table as Delta reads it.

    Tasks read the files of an object store, which Spark has no client for.

    Raises:
        WarehouseError: if the table is gone.
    """
    if "://" not in tables.root:
        read = spark.read.format("delta").option("versionAsOf", tables.versions[name])
        return read.load(f"{local_address(tables.root)}/{name}")
    paths = [file["path"] for file in tables.files(name)]

    def rows(number: int) -> Iterator[pa.RecordBatch]:
        with warehouse_errors(paths[number]):
            yield from open_dataset(name, [paths[number]]).to_batches()

    return run_tasks(spark, len(paths), rows, table_schema(name))
