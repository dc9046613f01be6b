"""The plan: log partitions spread over tasks, each folded and judged where it is read; only results travel."""

import hashlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from share_state.declarations import table_schema
from share_state.fold.carried import carried_log, carried_share_partitions
from share_state.fold.history import watched, watched_schema
from share_state.fold.log import FoldedLog
from share_state.fold.timeline import TABLE as TIMELINE
from share_state.spark.sources.live import is_live, live_frame
from share_state.wire.log_folder import LogPartition
from share_state.work import Work

RESULTS = ("share_partition_state", "in_flight", "findings")
"""Tables that the tasks fill."""

WATCHED, CARRIED = "share_partition_history", "carried_share_partitions"
AUDITED = (*RESULTS, WATCHED, CARRIED)
"""Those that they fill in an audit."""


def tables_of(work: Work) -> tuple[str, ...]:
    """The tables that the tasks of some work fill."""
    asked = (TIMELINE,) if work.timeline is not None else ()
    return (*(RESULTS if work.audited is None else AUDITED), *asked)


_SMALL_LOG = 16 << 20
ROWS_A_BATCH = 20_000

_INDEX_NUMBERS = ("checkpoint_offset", "checkpoint_epoch", "last_offset")

SUMMARY = pa.schema(
    [
        ("log", pa.string()),
        ("records", pa.int64()),
        ("next_offset", pa.int64()),
        ("whole_batches", pa.bool_()),
        ("findings", pa.list_(pa.struct([("severity", pa.string()), ("rule", pa.string()), ("count", pa.int64())]))),
        ("digest", pa.string()),
        ("index", pa.list_(pa.struct([("group", pa.string()), *((n, pa.int64()) for n in _INDEX_NUMBERS)]))),
        ("compared", pa.int64()),
        ("differing", pa.list_(pa.string())),
        ("newest_time", pa.int64()),
        ("carried", pa.string()),
    ]
)
"""What a task tells about a log partition beside its tables."""


def fold_all(spark: SparkSession, work: Work) -> DataFrame:
    """Fold and judge every log partition, one task each (small ones share a task).

    Returns:
        One column a result table (a struct of its columns) and the columns `cutoff` and `summary`; in each row exactly
        one of `tables_of(work)` is set, or `cutoff` and `summary` are.
    """
    schema = _result_schema(tables_of(work))
    if is_live(work.logs):
        return live_frame(spark, work.logs, partial(_results, work, schema=schema), from_arrow_schema(schema))
    tasks = spread(work.logs, spark.sparkContext.defaultParallelism)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                for log in tasks[number]:
                    yield from _results(work, log, schema)

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, from_arrow_schema(schema))


def result_table(results: DataFrame, name: str) -> DataFrame:
    """One of the tables that `fold_all` gives."""
    return results.filter(f"{name} IS NOT NULL").select(f"{name}.*")


def spread(logs: Sequence[LogPartition], cores: int) -> list[list[LogPartition]]:
    """Biggest first, each to the task that has least: as many tasks as logs, but few where the logs are small."""
    total = sum(log.size for log in logs)
    count = max(1, min(len(logs), max(cores, total // _SMALL_LOG)))
    tasks: list[list[LogPartition]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for log in sorted(logs, key=lambda log: -log.size):
        load, number = heapq.heappop(loads)
        tasks[number].append(log)
        heapq.heappush(loads, (load + log.size + 1, number))
    return tasks


def _results(work: Work, log: LogPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    folded = work.fold(log)
    findings = work.judge(folded)
    counted = (
        findings.group_by(["severity", "rule"]).aggregate([([], "count_all")]).rename_columns({"count_all": "count"})
    )
    proof = work.prove(folded) if work.verify else None
    summary = {
        "log": log.name,
        "records": folded.record_count,
        "next_offset": folded.next_offset if log.has_offsets else None,
        "whole_batches": folded.has_whole_batches or log.size == 0,
        "findings": counted.to_pylist(),
        "digest": digest_of(folded.states, folded.in_flight, folded.cutoff),
        "index": [asdict(entry) for entry in folded.index_entries],
        "compared": proof and proof.compared,
        "differing": proof and list(proof.differing),
    }
    tables = {"share_partition_state": folded.states, "in_flight": folded.in_flight, "findings": findings}
    if work.audited is not None and isinstance(folded, FoldedLog):
        tables[WATCHED] = watched(folded)
        if folded.carried is not None:
            tables[CARRIED] = carried_share_partitions(log.name, folded.carried)
            summary |= {"newest_time": folded.carried.mark.newest_time}
            summary |= {"carried": carried_log(log.name, folded.carried)["carried"]}
    for name, table in tables.items():
        for batch in table.combine_chunks().to_batches(max_chunksize=ROWS_A_BATCH):
            yield _only(schema, {name: batch.to_struct_array()})
    for table in work.states_of(log):
        for batch in table.combine_chunks().to_batches(max_chunksize=ROWS_A_BATCH):
            yield _only(schema, {TIMELINE: batch.to_struct_array()})
    limits = folded.cutoff.combine_chunks().to_batches()[0].to_struct_array()
    yield _only(schema, {"cutoff": limits, "summary": pa.array([summary], pa.struct(list(SUMMARY)))})


def digest_of(*tables: pa.Table) -> str:
    """A number that other contents would almost surely not give."""
    digest = hashlib.blake2b(digest_size=8)
    for table in tables:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        digest.update(sink.getvalue())
    return digest.hexdigest()


def _only(schema: pa.Schema, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _result_schema(results: Sequence[str]) -> pa.Schema:
    schemas = {name: watched_schema() if name == WATCHED else table_schema(name) for name in (*results, "cutoff")}
    tables = [pa.field(name, pa.struct(list(schema))) for name, schema in schemas.items()]
    return pa.schema([*tables, pa.field("summary", pa.struct(list(SUMMARY)))])
