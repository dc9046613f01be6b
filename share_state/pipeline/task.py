"""Rows that lack what only a whole run can tell: set aside where they are made, finished once it is known.

What one task does with a log partition: fold, judge, prove; what becomes of each table it makes is the caller's.
"""

import hashlib
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from share_state.delta.files import FILE, ROWS_A_GROUP, File, TableFiles, asking, filesystem_of
from share_state.fold.checkpoint import carried_log, carried_share_partitions
from share_state.fold.control_log import FoldedControlLog
from share_state.fold.history import watched
from share_state.fold.log import FoldedLog
from share_state.fold.timeline import TIMELINE
from share_state.pipeline.plan import Work
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import LogPartition

Finished = Callable[[pa.Table], pa.Table]
"""The rows of a table from those of a draft."""


def write_draft(files: TableFiles, table: str, batches: Iterable[pa.RecordBatch]) -> list[File]:
    """Set rows aside in the folder of their table; no commit names them, so they go with the attempt.

    Args:
        files: of the attempt.
        table: its name.
        batches: of the rows, all of one schema, which need not be the table's.
    Returns:
        What was written; no file where there is no row.
    Raises:
        WarehouseError: if a store says no.
    """
    rows = (batch for batch in batches if batch.num_rows)
    first, count = next(rows, None), 0
    if first is None:
        return []
    name, sink = files.new_file(table, "arrows")
    with asking(files.folder(table)), sink:
        with pa.ipc.new_stream(sink, first.schema) as stream:
            for batch in chain((first,), rows):
                stream.write_batch(batch)
                count += batch.num_rows
        size = sink.tell()
    return [{"table": table, "path": name, "size": size, "rows": count, "stats": None}]


def finish_drafts(files: TableFiles, drafts: Sequence[File], finished: Finished) -> list[File]:
    """Write the rows of drafts of one table as files of that table.

    Args:
        files: of the attempt that wrote them.
        drafts: of `write_draft`.
        finished: what becomes of their rows, some thousand at a time.
    Raises:
        WarehouseError: if a store says no.
    """
    if not drafts:
        return []
    ready = (finished(rows) for draft in drafts for rows in _rows(files, draft))
    return files.write(drafts[0]["table"], (batch for table in ready for batch in table.to_batches()))


def _rows(files: TableFiles, draft: File) -> Iterator[pa.Table]:
    place = f"{files.folder(draft['table'])}/{draft['path']}"
    with asking(place):
        filesystem, path = filesystem_of(place)
        with filesystem.open_input_stream(path) as source, pa.ipc.open_stream(source) as stream:
            for batch in stream:
                yield pa.Table.from_batches([batch])


STATE, IN_FLIGHT, FINDINGS = "share_partition_state", "in_flight", "findings"
RESULTS = (STATE, IN_FLIGHT, FINDINGS)
"""Tables that every fold fills."""

WATCHED, CARRIED = "share_partition_history", "carried_share_partitions"
"""What an audit fills beside them; WATCHED is made without time and verdict, which need every log."""

CUTOFF, SUMMARY = "cutoff", "summary"

_SMALL_LOG = 16 << 20
_TASKS_A_CORE = 4
"""So that no core waits long for the last task; each of them costs Spark 0.2 CPU s."""

Made = Callable[[LogPartition], Iterator[pa.RecordBatch]]
"""What a task makes of one log partition."""

ROWS_A_BATCH = 20_000

_INDEX_NUMBERS = ("checkpoint_offset", "checkpoint_epoch", "last_offset")

SUMMARIES = pa.schema(
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
        ("files", pa.list_(FILE)),
    ]
)
"""What a task tells about a log partition beside its tables."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What becomes of the tables that a task makes.

    Attributes:
        sent: tables whose rows the task sends back.
        written: tables whose rows it writes where it runs.
        drafted: tables whose rows it sets aside there, as they lack what the whole run tells.
        files: where it writes them.
    """

    sent: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    drafted: tuple[str, ...] = ()
    files: TableFiles | None = None

    @property
    def schema(self) -> pa.Schema:
        """What a task yields: a column a table that is sent, a struct of its columns, and `cutoff` and `summary`.

        In each row exactly one table's column is set, or `cutoff` and `summary` are.
        """
        schemas = {name: table_schema(name) for name in (*self.sent, CUTOFF)} | {SUMMARY: SUMMARIES}
        return pa.schema([pa.field(name, pa.struct(list(columns))) for name, columns in schemas.items()])


def run_task(work: Work, wanted: Wanted, log: LogPartition) -> Iterator[pa.RecordBatch]:
    """Fold and judge one log partition.

    Args:
        work: how.
        wanted: what becomes of the tables.
        log: the log partition.
    Yields:
        Batches of `wanted.schema`; the row with the summary comes last.
    Raises:
        InputError: if a segment cannot be read.
    """
    schema = wanted.schema
    folded = work.fold(log)
    findings, digest = work.judge(folded), Digest()
    summary = _summary(work, folded, findings)
    made: dict[str, Iterable[pa.Table]] = {
        STATE: digest.of_each(folded.state_pieces),
        IN_FLIGHT: folded.in_flight_pieces,
        FINDINGS: [findings],
        TIMELINE: work.states_of(log),
    }
    if work.audited is not None and isinstance(folded, FoldedLog):
        made[WATCHED] = watched(folded)
        summary |= {"newest_time": folded.newest_time if folded.newest_time >= 0 else None}
        if folded.carried is not None:
            made[CARRIED] = carried_share_partitions(log.name, folded.carried)
            summary |= {"carried": carried_log(log.name, folded.carried)["carried"]}
    for name in wanted.sent:
        for batch in _batches(made.pop(name, ()), ROWS_A_BATCH):
            yield _only(schema, {name: batch.to_struct_array()})
    files = _written(made, wanted, work.cores_of(log))
    deque(made.get(STATE, ()), maxlen=0)
    digest.take(folded.cutoff)
    limits = folded.cutoff.combine_chunks().to_batches()[0].to_struct_array()
    told = pa.array([summary | {"digest": digest.text, "files": files}], pa.struct(list(SUMMARIES)))
    yield _only(schema, {CUTOFF: limits, SUMMARY: told})


def _written(made: dict[str, Iterable[pa.Table]], wanted: Wanted, cores: int) -> list[File]:
    """Write tables, as many at a time as there are cores, and take them out of those that were made."""
    if wanted.files is None:
        return []
    ways = dict.fromkeys(wanted.written, TableFiles.write) | dict.fromkeys(wanted.drafted, write_draft)
    with ThreadPoolExecutor(cores) as threads:
        written = [
            threads.submit(write, wanted.files, name, _batches(made.pop(name), ROWS_A_GROUP))
            for name, write in ways.items()
            if name in made
        ]
        return [file for one in written for file in one.result()]


def _batches(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.RecordBatch]:
    return (batch for table in tables for batch in table.combine_chunks().to_batches(max_chunksize=rows))


def spread(logs: Sequence[LogPartition], cores: int) -> list[list[LogPartition]]:
    """Biggest first, each to the task that has least: a few tasks a core, fewer where the logs are small."""
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
    """A number that other contents would almost surely not give."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8)

    @property
    def text(self) -> str:
        """The number so far."""
        return self._digest.hexdigest()

    def take(self, table: pa.Table) -> None:
        """Take the contents of one table more."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        self._digest.update(sink.getvalue())

    def of_each(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The tables, taken on their way."""
        for table in tables:
            self.take(table)
            yield table


def _summary(work: Work, folded: FoldedLog | FoldedControlLog, findings: pa.Table) -> dict[str, Any]:
    counted = (
        findings.group_by(["severity", "rule"]).aggregate([([], "count_all")]).rename_columns({"count_all": "count"})
    )
    proof = work.prove(folded) if work.verify else None
    return {
        "log": folded.log.name,
        "records": folded.record_count,
        "next_offset": folded.next_offset if folded.log.has_offsets else None,
        "whole_batches": folded.has_whole_batches or folded.log.size == 0,
        "findings": counted.to_pylist(),
        "index": [asdict(entry) for entry in folded.index_entries],
        "compared": proof and proof.compared,
        "differing": proof and list(proof.differing),
    }


def _only(schema: pa.Schema, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
