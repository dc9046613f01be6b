"""One task: it folds and judges one log partition, and returns or stages the rows of each table.

Rows that need a value of the whole run (its run_id, its newest timestamp) are completed when it is known.
"""

import hashlib
import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.staging import STAGED_SCHEMA, StagedFile, Staging
from share_state.fold.checkpoint import (
    CHECKPOINT_TABLE,
    RowDigest,
    checkpoint_row,
    checkpoint_share_partitions,
    with_digest,
)
from share_state.fold.dead_letters.archiving import RANGES, RETURNED
from share_state.fold.draft.control_log import FoldedControlLog
from share_state.fold.history import HISTORY_TABLE, ONLY_FOR_VERDICTS, history_pieces
from share_state.fold.log_stats import Folded
from share_state.fold.state_log import FoldedLog
from share_state.fold.states import as_type
from share_state.fold.timeline import TIMELINE
from share_state.pipeline.plan import FoldPlan
from share_state.rules.breaches import ERROR, WARNING
from share_state.rules.findings import (
    CONDITIONS,
    DUE,
    UNTIL,
    WRITTEN,
    complete_durations,
    count_findings,
    drop_unproven,
    own_clock,
)
from share_state.schema.declarations import table_schema
from share_state.sources.log_partition import LogPartition

FinishRows = Callable[[pa.Table], pa.Table]
"""Completes incomplete rows of a table."""

STATE = "share_partition_state"
IN_FLIGHT = "in_flight"
FINDINGS = "findings"
RESULTS = (STATE, IN_FLIGHT, FINDINGS)
"""Tables that every fold fills."""

CUTOFF = "cutoff"
SUMMARY = "summary"
LOG = "log"

_SMALL_LOG = 16 << 20
_TASKS_A_CORE = 4
"""Few enough, as a task costs Spark 0.2 CPU s; enough that no core waits long for the last one."""

PerLog = Callable[[LogPartition], Iterator[pa.RecordBatch]]
"""Yields the rows that a task makes from one log partition."""

ROWS_A_BATCH = 20_000
_ROWS_STAGED_A_BATCH = 128 << 10

_INDEX = [
    ("group", pa.string()),
    ("checkpoint_offset", pa.int64()),
    ("checkpoint_epoch", pa.int64()),
    ("last_offset", pa.int64()),
    ("is_contradicted", pa.bool_()),
]

_COUNT = [("severity", pa.string()), ("rule", pa.string()), ("count", pa.int64())]

SUMMARIES = pa.schema(
    [
        ("log", pa.string()),
        ("records", pa.int64()),
        ("next_offset", pa.int64()),
        ("whole_batches", pa.bool_()),
        ("other_records", pa.int64()),
        ("is_resumed", pa.bool_()),
        ("is_cut", pa.bool_()),
        ("findings", pa.list_(pa.struct(_COUNT))),
        ("unproven", pa.list_(pa.struct([*_COUNT, ("second", pa.int64())]))),
        ("pending", pa.list_(pa.struct([*_COUNT, ("due", pa.int64()), ("until", pa.int64())]))),
        ("archiving", pa.list_(pa.int64())),
        ("key_modulus", pa.int64()),
        ("digest", pa.string()),
        ("index", pa.list_(pa.struct(_INDEX))),
        ("earliest_offset", pa.int64()),
        ("read_from", pa.int64()),
        ("bytes", pa.int64()),
        ("compared", pa.int64()),
        ("differing", pa.list_(pa.string())),
        ("newest_time", pa.int64()),
        ("last_snapshot_record", pa.int64()),
        ("complete_since", pa.int64()),
        ("carried", pa.string()),
        ("staged", pa.list_(pa.struct(list(STAGED_SCHEMA)))),
        ("returned", pa.list_(pa.struct([("table", pa.string()), ("rows", pa.int64())]))),
    ]
)
"""Schema of the summary of a log partition."""

_COLUMNS_TO_FINISH = {
    FINDINGS: [pa.field(name, pa.int64()) for name in CONDITIONS],
    HISTORY_TABLE: list(ONLY_FOR_VERDICTS),
    RANGES: [RETURNED],
}
"""Columns of incomplete rows besides those of their table."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Which tables a task makes, and where their rows go.

    Attributes:
        tables: their names.
        incomplete: those of them whose rows have the columns that finishing them needs.
        staging: where the task stages the rows; None to return them.
    """

    tables: tuple[str, ...]
    incomplete: tuple[str, ...] = ()
    staging: Staging | None = None

    @property
    def schema(self) -> pa.Schema:
        """What a task yields: one struct column per returned table, `cutoff` and `summary`, and the name of the log.

        Each row sets the name and either the column of one table, or `cutoff` and `summary`.
        """
        returned = self.tables if self.staging is None else ()
        schemas = {name: self.schema_of(name) for name in (*returned, CUTOFF)} | {SUMMARY: SUMMARIES}
        columns = [pa.field(name, pa.struct(list(columns))) for name, columns in schemas.items()]
        return pa.schema([pa.field(LOG, pa.string()), *columns])

    def schema_of(self, table: str) -> pa.Schema:
        """The columns of the rows of a table."""
        more = _COLUMNS_TO_FINISH.get(table, ()) if table in self.incomplete else ()
        return pa.schema([*table_schema(table), *more])


def run_task(plan: FoldPlan, output: OutputSpec, log: LogPartition) -> Iterator[pa.RecordBatch]:
    """Fold and judge one log partition.

    Args:
        plan: how to fold it.
        output: which tables to make.
        log: the log partition.
    Yields:
        Batches of `output.schema`; the row with the summary comes last.
    Raises:
        InputError: if a segment cannot be read.
    """
    log = plan.copied(log)
    yield from output_rows(plan, output, plan.fold(log))


def output_rows(plan: FoldPlan, output: OutputSpec, folded: Folded) -> Iterator[pa.RecordBatch]:
    """Judge a folded log partition and make its rows; arguments and result as for `run_task`."""
    schema, returned = output.schema, Counter[str]()
    log = folded.log
    findings, digest = plan.judge(folded), Digest()
    summary = _summary(plan, folded, findings)
    made: dict[str, Iterable[pa.Table]] = {
        STATE: digest.of_each(folded.state_pieces),
        IN_FLIGHT: folded.in_flight_pieces,
        FINDINGS: [findings if FINDINGS in output.incomplete else _complete(findings, folded)],
        TIMELINE: plan.states_of(log),
    }
    if isinstance(folded, FoldedLog) and folded.archiving_ranges is not None:
        made[RANGES] = [folded.archiving_ranges]
    if plan.resumed is not None or HISTORY_TABLE in output.tables:
        made[HISTORY_TABLE] = history_pieces(folded)
    checkpoint = folded.checkpoint if isinstance(folded, FoldedLog) else None
    carried_rows = RowDigest()
    if checkpoint is not None and CHECKPOINT_TABLE in output.tables:
        made[CHECKPOINT_TABLE] = carried_rows.of_each(checkpoint_share_partitions(log.name, checkpoint))
        summary |= {"carried": checkpoint_row(log.name, checkpoint)["carried"]}
    pieces = {name: made[name] for name in output.tables if name in made}
    staged = [] if output.staging is None else _stage(pieces, output.staging, plan.cores_of(log))
    for name, tables in ({} if output.staging else pieces).items():
        for batch in _to_batches(tables, ROWS_A_BATCH):
            returned[name] += batch.num_rows
            yield _row_of(schema, log.name, {name: batch.to_struct_array()})
    if CHECKPOINT_TABLE in pieces:
        summary["carried"] = with_digest(summary["carried"], carried_rows.text)
    if STATE not in pieces:
        deque(made[STATE], maxlen=0)
    digest.take(folded.cutoff)
    limits = folded.cutoff.combine_chunks().to_batches()[0].to_struct_array()
    summary |= {"digest": digest.text, "staged": staged}
    summary |= {"returned": [{"table": name, "rows": count} for name, count in returned.items()]}
    summaries = pa.array([summary], pa.struct(list(SUMMARIES)))
    yield _row_of(schema, log.name, {CUTOFF: limits, SUMMARY: summaries})


def _stage(pieces: Mapping[str, Iterable[pa.Table]], staging: Staging, cores: int) -> list[StagedFile]:
    """Stage tables, as many at a time as there are cores."""
    with ThreadPoolExecutor(cores) as threads:
        staged = [
            threads.submit(staging.write, name, _to_batches(tables, _ROWS_STAGED_A_BATCH))
            for name, tables in pieces.items()
        ]
        return [file for one in staged for file in one.result()]


def _to_batches(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.RecordBatch]:
    return (batch for table in tables for batch in table.combine_chunks().to_batches(max_chunksize=rows))


def returned_table(rows: pa.Table, table: str, output: OutputSpec | None = None) -> pa.Table:
    """One of the tables that tasks returned.

    Args:
        rows: rows of `OutputSpec.schema`.
        table: one of `OutputSpec.tables`, or CUTOFF.
        output: what the tasks made, if the rows of the table are incomplete.
    """
    schema = table_schema(table) if output is None else output.schema_of(table)
    structs = (chunk.drop_null() for chunk in rows[table].chunks)
    batches = [pa.RecordBatch.from_struct_array(chunk).cast(schema) for chunk in structs if len(chunk)]
    return pa.Table.from_batches(batches, schema=schema)


def timeline_batches(plan: FoldPlan, log: LogPartition) -> Iterator[pa.RecordBatch]:
    """The states after every record of one log partition: columns of schemas/tables/timeline.yaml."""
    return _to_batches(plan.states_of(log), ROWS_A_BATCH)


def decoded_batches(plan: FoldPlan, log: LogPartition) -> Iterator[pa.RecordBatch]:
    """Every record of one log partition: columns of schemas/tables/decoded_records.yaml."""
    return _to_batches(plan.decode(log), ROWS_A_BATCH)


def balance_tasks(logs: Sequence[LogPartition], cores: int) -> list[list[LogPartition]]:
    """Distribute logs over tasks: largest first, each to the task with the fewest bytes.

    Few tasks for small logs.
    """
    total = sum(log.size for log in logs)
    count = max(1, min(len(logs), max(cores, min(_TASKS_A_CORE * cores, total // _SMALL_LOG))))
    tasks: list[list[LogPartition]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for log in sorted(logs, key=lambda log: -log.size):
        load, number = heapq.heappop(loads)
        tasks[number].append(log)
        heapq.heappush(loads, (load + log.size + 1, number))
    return tasks


class Digest:
    """A hash of the contents of tables."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8)

    @property
    def text(self) -> str:
        """The hash so far."""
        return self._digest.hexdigest()

    def take(self, table: pa.Table) -> None:
        """Add a table."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        self._digest.update(sink.getvalue())

    def of_each(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Pass tables on, adding each."""
        for table in tables:
            self.take(table)
            yield table


def _certain(findings: pa.Table) -> pa.Table:
    """The findings that count whatever the other logs show."""
    for name in (WRITTEN, DUE, UNTIL):
        if name in findings.schema.names:
            findings = findings.filter(pc.field(name) < 0)
    return findings


def _complete(findings: pa.Table, folded: Folded) -> pa.Table:
    """The findings as far as this log shows that they count."""
    return drop_unproven(complete_durations(findings, own_clock(folded)))


def _summary(plan: FoldPlan, folded: Folded, findings: pa.Table) -> dict[str, Any]:
    unproven: list[dict[str, Any]] = []
    pending: list[dict[str, Any]] = []
    if WRITTEN in findings.schema.names:
        rows = findings.filter(pc.field(WRITTEN) >= 0)
        seconds = rows[WRITTEN].to_numpy() // 1000
        unproven = _counted(rows.append_column("second", pa.array(seconds)), ["severity", "rule", "second"])
    counts = folded.observations.counts
    if DUE in findings.schema.names:
        of_the_end = findings.filter((pc.field(DUE) >= 0) | (pc.field(UNTIL) >= 0))
        pending = _counted(of_the_end, ["severity", "rule", DUE, UNTIL])
    # Folding the input again shows nothing about records that are not in it.
    is_provable = folded.cutoff["safe"][0].as_py()
    proof = plan.prove(folded) if plan.verify and is_provable else None
    return {
        "log": folded.log.name,
        "records": folded.record_count,
        "next_offset": folded.next_offset if folded.log.has_offsets else None,
        "whole_batches": folded.has_valid_batches or folded.log.size == 0,
        "other_records": counts.other_records,
        "is_resumed": folded.observations.read_before >= 0,
        "is_cut": folded.is_cut,
        "findings": _counted(_certain(findings), ["severity", "rule"]),
        "unproven": unproven,
        "pending": pending,
        "key_modulus": folded.observations.key_modulus,
        "archiving": folded.archiving if isinstance(folded, FoldedLog) and folded.archiving[1] >= 0 else None,
        "index": [asdict(entry) for entry in folded.index_entries],
        "earliest_offset": _earliest_offset(folded, findings),
        "read_from": folded.read_from if isinstance(folded, FoldedControlLog) else None,
        "bytes": folded.log.size,
        "compared": proof and proof.compared,
        "differing": proof and list(proof.differing),
        "complete_since": folded.complete_since if isinstance(folded, FoldedLog) else None,
        "newest_time": folded.newest_time if folded.newest_time >= 0 else None,
        "last_snapshot_record": (
            folded.all_chains.last_snapshot_record if isinstance(folded, FoldedLog) else None
        ),
    }


def _earliest_offset(folded: Folded, findings: pa.Table) -> int | None:
    """The cutoff of control records if a later audit may read the log from there on; None if not.

    All groups have a checkpoint, and no finding about records before the cutoff would be missed.
    """
    if not isinstance(folded, FoldedControlLog) or not folded.all_chains.chains["exists"].all():
        return None
    (row,) = folded.cutoff.to_pylist()
    offset, is_contradicted = (
        row["cutoff_offset"],
        any(entry.is_contradicted for entry in folded.index_entries),
    )
    if offset is None or not row["safe"] or is_contradicted:
        return None
    is_missed = (pc.field("offset") < offset) & pc.field("severity").isin([ERROR, WARNING])
    return None if len(findings.filter(is_missed)) else offset


def _counted(findings: pa.Table, by: list[str]) -> list[dict[str, Any]]:
    if not len(findings):
        return []
    counted = findings.append_column("count", count_findings(findings))
    return (
        counted.group_by(by, use_threads=False)
        .aggregate([("count", "sum")])
        .rename_columns({"count_sum": "count"})
        .to_pylist()
    )


def _row_of(schema: pa.Schema, log: str, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    given = {LOG: pa.repeat(log, count), **columns}
    arrays = [
        as_type(given[field.name], field.type) if field.name in given else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
