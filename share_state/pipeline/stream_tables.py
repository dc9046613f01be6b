"""The tables of a stream: each micro-batch merges what changed, then commits the versions that belong together.

`StreamTables` commits findings, in_flight, share_partition_state and cutoff, then `runs`, as every run does. A stream
has one row of `runs`, which each micro-batch replaces. Imports no Spark.
"""

import json
import logging
import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSelector

from share_state.delta.merge import GONE, merge_rows, merged_batch, replace_rows
from share_state.delta.reader import CommittedTables, open_filesystem, warehouse_errors
from share_state.delta.warehouse import CORE_TABLES, Warehouse
from share_state.errors import NothingCommittedError, WarehouseError
from share_state.fold.log_stats import FINDINGS_KEPT
from share_state.fold.states import SHARE_GROUP_STATE
from share_state.pipeline.result import RunResult, keep_proven, run_row
from share_state.pipeline.stream import KEYS, LogChanges
from share_state.pipeline.task import CUTOFF, FINDINGS, IN_FLIGHT, STATE
from share_state.rules.findings import count_findings
from share_state.rules.registry import FINDINGS as COUNTED
from share_state.rules.registry import OFF, registered
from share_state.schema.declarations import table_schema
from share_state.sources.topics import Topics

_LOG = logging.getLogger("share_state")

COMMAND = "stream"
_UNREADABLE = "LOG_UNREADABLE"
_QUERY_ID = "[0-9a-f]{16}"
_QUERY, _BATCH = "query", "batch"
"""Options of the row of `runs`: which stream wrote it, and its latest micro-batch."""


@dataclass(frozen=True, slots=True)
class StreamRun:
    """What a stream has committed so far.

    Attributes:
        query: id of the stream, Delta's txnAppId.
        batch: its latest micro-batch, -1 for none.
        records: data records read.
        progress: log partition -> next offset.
        archiving: as in RunResult.
        log_time: ms, timestamp of the newest record; None for none.
        share_partitions: log partition -> live share-partitions.
        notes, inputs: of its row of `runs`.
    """

    query: str
    batch: int = -1
    records: int = 0
    progress: Mapping[str, int] = field(default_factory=dict)
    archiving: tuple[str, int, int] | None = None
    log_time: int | None = None
    share_partitions: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()


def last_stream_run(warehouse: str) -> StreamRun | None:
    """What the stream whose tables are in a warehouse has committed; None if its latest run is no stream's.

    Raises:
        WarehouseError: if the warehouse cannot be read.
    """
    try:
        tables = CommittedTables(warehouse)
    except NothingCommittedError:
        return None
    run = tables.run
    options = dict(run["options"])
    if run["command"] != COMMAND or _QUERY not in options or tables.lack_files():
        return None
    progress, time = dict(run["progress"]), run["log_time"]
    cutoffs = tables.read(CUTOFF, columns=["topic", "partition", "live_share_partitions"]).to_pylist()
    return StreamRun(
        query=options[_QUERY],
        batch=int(options[_BATCH]),
        records=run["records"],
        progress=progress,
        archiving=tuple(json.loads(options["archiving"])) if options.get("archiving") else None,
        log_time=None if time is None else int(time.timestamp() * 1000),
        share_partitions={f"{row['topic']}-{row['partition']}": row["live_share_partitions"] for row in cutoffs},
        notes=tuple(run["notes"]),
        inputs=tuple(run["inputs"]),
    )


class StreamTables:
    """Merges micro-batches into the tables of a warehouse; a context manager.

    Attributes:
        run: what is committed.
        findings: the rows of that table.
    """

    def __init__(
        self,
        warehouse: str,
        run: StreamRun,
        *,
        options: Mapping[str, str] | None = None,
        topics: Callable[[], Topics] = Topics,
        severities: Mapping[str, str] | None = None,
        cluster: str | None = None,
    ) -> None:
        """Begin or resume a stream.

        Args:
            warehouse: folder of the tables; the caller holds its lock.
            run: what the stream has committed; with no batch, its first micro-batch replaces all tables.
            options, cluster: for the `runs` row.
            topics: the names and end offsets of topics that are known now.
            severities: rule -> severity or "off".
        """
        self.run, self._options, self._topics = run, dict(options or {}), topics
        self._severities = severities or {}
        self._cluster, self._started, self._root = cluster, datetime.now(UTC), warehouse
        self._warehouse = Warehouse(warehouse)
        self.findings = table_schema(FINDINGS).empty_table()

    def __enter__(self) -> "StreamTables":
        self._warehouse.__enter__()
        if self.run.batch < 0:
            for table in CORE_TABLES[:-1]:
                self._warehouse.replace(table, [])
            return self
        committed = CommittedTables(self._root)
        self._warehouse.versions |= committed.versions
        # A micro-batch that was killed may have committed this table alone; it is repeated.
        committed.versions[FINDINGS] = merged_batch(self._place(FINDINGS), self.run.query)[1]
        self.findings = committed.read(FINDINGS)
        return self

    def __exit__(self, *failed: Any) -> None:
        self._warehouse.__exit__(*failed)

    def write(self, batch: int, changes: Sequence[LogChanges]) -> None:
        """Merge a micro-batch and commit it; a batch that is committed already changes nothing.

        Raises:
            WarehouseError: if a table is gone or another run has written it.
        """
        if batch <= self.run.batch:
            return
        before = self.run
        found = [(one.log, *one.summary["archiving"]) for one in changes if one.summary.get("archiving")]
        seen = found if before.archiving is None else [before.archiving, *found]
        archiving = min(seen, key=itemgetter(2, 0), default=None)
        topics = self._topics()
        self._merge_findings(batch, changes, archiving, topics)
        for table in (IN_FLIGHT, STATE, CUTOFF):
            rows = [one.tables[table] for one in changes if table in one.tables]
            if rows:
                self._merge(table, batch, _named(pa.concat_tables(rows), topics))
        summaries = {one.log: one.summary for one in changes if one.summary}

        def latest(known: Mapping[str, int], name: str) -> dict[str, int]:
            return dict(sorted({**known, **{log: one[name] for log, one in summaries.items()}}.items()))

        times = [one["newest_time"] for one in summaries.values()]
        newest = max([-1 if before.log_time is None else before.log_time, *times])
        self.run = replace(
            before,
            batch=batch,
            records=before.records + sum(one["records"] for one in summaries.values()),
            progress=latest(before.progress, "next_offset"),
            archiving=archiving,
            log_time=None if newest < 0 else newest,
            share_partitions=latest(before.share_partitions, "share_partitions"),
        )
        self._commit_run()

    def _place(self, table: str) -> str:
        return self._warehouse.files.folder(table)

    def _merge(self, table: str, batch: int, rows: pa.Table) -> None:
        if GONE not in rows.column_names:
            rows = rows.append_column(GONE, pa.repeat(False, len(rows)))
        version = merge_rows(self._place(table), table, rows, KEYS[table], self.run.query, batch)
        self._warehouse.versions[table] = version

    def _merge_findings(
        self, batch: int, changes: Sequence[LogChanges], archiving: tuple[str, int, int] | None, topics: Topics
    ) -> None:
        """Keep the settled findings, and replace the others of the log partitions that a micro-batch read."""
        merged, version = merged_batch(self._place(FINDINGS), self.run.query)
        if merged >= batch:
            self._warehouse.versions[FINDINGS] = version
            return
        new = [keep_proven(one.tables[FINDINGS], archiving) for one in changes if FINDINGS in one.tables]
        new += [_unreadable(one.problems, self._severities) for one in changes if one.problems]
        if not new:
            return
        rows = _named(pa.concat_tables(new).cast(table_schema(FINDINGS)), topics)
        run_id = table_schema(FINDINGS).get_field_index("run_id")
        rows = rows.set_column(run_id, "run_id", pa.repeat(self.run.query, len(rows)))
        read = pa.array([one.summary["partition"] for one in changes if one.summary], pa.int32())
        # As after an audit: a log that is read from its start again is judged again.
        anew = [one.summary["partition"] for one in changes if one.summary and one.summary["is_read_anew"]]
        number = self.findings["state_partition"]
        settled = pc.and_(self.findings["settled"], pc.invert(pc.is_in(number, pa.array(anew, pa.int32()))))
        stays = pc.or_(settled, pc.invert(pc.is_in(number, read)))
        every = _capped(pa.concat_tables([self.findings.filter(stays), rows]).combine_chunks())
        if not every.equals(self.findings):
            self._warehouse.versions[FINDINGS] = replace_rows(self._place(FINDINGS), every, self.run.query, batch)
            self.findings = every

    def result(self) -> RunResult:
        """What is committed."""
        run = self.run
        counts = Counter[tuple[str, str]]()
        columns = self.findings["severity"], self.findings["rule"], count_findings(self.findings)
        for severity, rule, count in zip(*(column.to_pylist() for column in columns), strict=True):
            counts[severity, rule] += count
        return RunResult(
            run_id=run.query,
            records=run.records,
            share_partitions=sum(run.share_partitions.values()),
            cutoff=table_schema(CUTOFF).empty_table(),
            findings=counts,
            progress=run.progress,
            index={},
            log_time=run.log_time,
            notes=run.notes,
        )

    def _commit_run(self) -> None:
        run = self.run
        options = self._options | {_QUERY: run.query, _BATCH: str(run.batch)}
        options |= {"archiving": json.dumps(run.archiving)} if run.archiving else {}
        self._warehouse.commit_run(run_row(self.result(), COMMAND, run.inputs, options, self._started, self._cluster))


def _capped(rows: pa.Table) -> pa.Table:
    """The first FINDINGS_KEPT settled findings of each rule, severity and log partition; one more counts the others."""
    group = [rows[name].cast(pa.string()).fill_null("") for name in ("rule", "severity", "state_partition", "settled")]
    names = pc.call_function("binary_join_element_wise", [*group, pa.scalar(":")])
    sizes = names.value_counts()
    full = sizes.filter(pc.greater(sizes.field("counts"), FINDINGS_KEPT)).field("values").to_pylist()
    counts, left_out, merged = count_findings(rows).to_numpy(), np.zeros(len(rows), bool), dict[int, int]()
    for name in full:
        own = np.flatnonzero(pc.equal(names, name))
        single = own[counts[own] == 1][:FINDINGS_KEPT]
        others = np.setdiff1d(own, single)
        if len(others) > 1 or (counts[others] == 1).any():
            left_out[others[:-1]], merged[int(others[-1])] = True, int(counts[others].sum())
    if not merged:
        return rows
    parts, at = list[pa.Table](), 0
    for row, count in sorted(merged.items()):
        (last,) = rows.slice(row, 1).to_pylist()
        more = f" (and {count - 1:,} more before it)" if count > 1 else ""
        last["message"] = re.sub(r" \(and [\d,]+ more before it\)$", "", last["message"]) + more
        last["evidence"] = [pair for pair in last["evidence"] if pair[0] != COUNTED] + [(COUNTED, str(count))]
        parts += [
            rows.slice(at, row - at).filter(pa.array(~left_out[at:row])),
            pa.Table.from_pylist([last], rows.schema),
        ]
        at = row + 1
    return pa.concat_tables([*parts, rows.slice(at).filter(pa.array(~left_out[at:]))]).combine_chunks()


def _unreadable(problems: Sequence[str], severities: Mapping[str, str]) -> pa.Table:
    """Findings about what of the input cannot be read at all."""
    severity = severities.get(_UNREADABLE, registered()[_UNREADABLE].severity)
    about = {"rule": _UNREADABLE, "severity": severity, "dialect": SHARE_GROUP_STATE, "settled": True, "evidence": []}
    rows = [about | {"message": problem} for problem in problems if severity != OFF]
    return pa.Table.from_pylist(rows, table_schema(FINDINGS))


def open_stream(warehouse: str, checkpoint: str, inputs: tuple[str, ...]) -> tuple[StreamRun, str]:
    """Resume the stream of a warehouse and a checkpoint if both hold it; else begin a new one, and log why.

    Args:
        warehouse: folder of the tables.
        checkpoint: folder of the stream's checkpoints, each in a folder that is named by the query.
        inputs: of the stream.
    Returns:
        What it has committed, and the folder of its checkpoint.
    Raises:
        WarehouseError: if the checkpoint is of a stream of other inputs.
    """
    run = last_stream_run(warehouse)
    with warehouse_errors(checkpoint):
        filesystem, folder = open_filesystem(checkpoint)
        listed = filesystem.get_file_info(FileSelector(folder, allow_not_found=True))
        known = [info.base_name for info in listed if re.fullmatch(_QUERY_ID, info.base_name)]
        if strangers := [info.base_name for info in listed if info.base_name not in known]:
            raise WarehouseError(f"{checkpoint}: holds something else ({strangers[0]}); give an empty folder")
        if run is not None and run.query in known:
            if run.inputs != inputs:
                raise WarehouseError(
                    f"{checkpoint}: is of a stream of {' '.join(run.inputs)}; give another --checkpoint and --out"
                )
            return run, f"{checkpoint.rstrip('/')}/{run.query}"
        if run is not None:
            _LOG.info("%s: the checkpoint of the stream in %s is gone; it starts anew", checkpoint, warehouse)
        elif known:
            _LOG.info("%s: the tables of the stream in %s are gone; it starts anew", warehouse, checkpoint)
        for name in known:
            filesystem.delete_dir(f"{folder}/{name}")
    query = uuid.uuid4().hex[:16]
    return StreamRun(query, inputs=inputs), f"{checkpoint.rstrip('/')}/{query}"


def _named(rows: pa.Table, topics: Topics) -> pa.Table:
    """Rows with the names and the end offsets of their topics."""
    if "topic_id" not in rows.column_names:
        return rows
    ids, partitions = rows["topic_id"].combine_chunks(), rows["partition"].combine_chunks()
    for name, values in (("topic", topics.name_of(ids)), ("topic_end_offset", topics.end_of(ids, partitions))):
        if name in rows.column_names:
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(name), values)
    return rows
