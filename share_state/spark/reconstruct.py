"""The main job: fold an export, write the tables. Commands, jobs and notebooks call this."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.storagelevel import StorageLevel

from share_state import __version__
from share_state.declarations import table_schema
from share_state.errors import InputError
from share_state.group_side import read_groups
from share_state.phases import Phases
from share_state.spark.group_findings import judged_groups, with_findings
from share_state.spark.plan import fold_all, result_table, tables_of
from share_state.spark.warehouse import Warehouse, replacing
from share_state.wire.share_snapshot_file import IndexEntry
from share_state.work import Work


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found.

    Attributes:
        run_id: the same for the same input, options and version.
        records: data records read.
        share_partitions: live share-partitions.
        cutoff: the table `cutoff`.
        findings: (severity, rule) -> number.
        progress: log partition -> offset to go on from; None where the form of the export holds no offsets.
        index: log partition -> entries of its share snapshot file (control records only).
        compared: share-partitions folded again without what lies before the cutoff; None where no proof was asked for.
        differing: those of them whose state was not the same.
        carried: log partition -> its row of `carried_logs` (audits only).
        log_time: ms, stamp of the newest record of the whole input (audits only).
        notes: what an audit met.
    """

    run_id: str
    records: int
    share_partitions: int
    cutoff: pa.Table
    findings: Mapping[tuple[str, str], int]
    progress: Mapping[str, int | None]
    index: Mapping[str, Sequence[IndexEntry]]
    compared: int | None = None
    differing: tuple[str, ...] = ()
    carried: Mapping[str, str] = field(default_factory=dict)
    log_time: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def by_severity(self) -> dict[str, int]:
        """Severity -> number of findings."""
        counted = Counter[str]()
        for (severity, _), count in self.findings.items():
            counted[severity] += count
        return dict(counted)


def reconstruct(
    spark: SparkSession,
    work: Work,
    warehouse: str,
    *,
    inputs: tuple[str, ...] = (),
    options: Mapping[str, str] | None = None,
    phases: Phases | None = None,
) -> Outcome:
    """Fold every log partition and write the tables of a warehouse.

    Nothing is written before everything has been read and folded. Findings, in_flight, share_partition_state (and the
    timeline where `work` asks for it) come first, then cutoff, then the row of `runs` that names their versions: the
    commit point.

    Args:
        spark: a session with Delta.
        work: the log partitions and how to fold them.
        warehouse: folder of the tables.
        inputs: what the person named, for the `runs` row.
        options: what else shaped the result, for the `runs` row.
        phases: told what is going on.
    Raises:
        InputError: if no batch of the input can be trusted.
        WarehouseError: if another table is in the way.
    """
    phases, started = phases or Phases(), datetime.now(UTC)
    with phases("read the groups"):
        side, work = read_groups(work)
    results = fold_all(spark, work).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with phases("read and fold"):
            outcome = summarise(results, inputs, options or {})
            outcome, of_groups = judged_groups(results, side, work, outcome)
        tables = Warehouse(warehouse)
        with phases("write tables"):
            frames = {name: result_table(results, name) for name in tables_of(work)}
            frames["findings"] = with_findings(frames["findings"], of_groups).withColumn("run_id", lit(outcome.run_id))
            versions = tables.write({name: replacing(frame) for name, frame in frames.items()})
        with phases("commit"):
            versions |= tables.put("cutoff", outcome.cutoff)
            for name, rows in (side.tables() if side else {}).items():
                versions |= tables.put(name, rows)
            row = run_row(outcome, "reconstruct", versions, inputs, options or {}, started)
            tables.put("runs", row, where=f"run_id = '{outcome.run_id}'")
    finally:
        results.unpersist()
    return outcome


def fold_only(
    spark: SparkSession, work: Work, *, inputs: tuple[str, ...] = (), phases: Phases | None = None
) -> Outcome:
    """Fold every log partition and write nothing."""
    with (phases or Phases())("read and fold"):
        return summarise(fold_all(spark, work), inputs, {})


def summarise(results: DataFrame, inputs: tuple[str, ...], options: Mapping[str, str]) -> Outcome:
    """Run the plan and bring home one row a log partition.

    Raises:
        InputError: if no batch of the input can be trusted.
    """
    rows = results.filter("summary IS NOT NULL").select("cutoff", "summary").toArrow()
    summaries = rows["summary"].to_pylist()
    if not any(summary["whole_batches"] for summary in summaries):
        raise InputError(f"{summaries[0]['log']}: nothing in it is a record batch; give a folder of real segments")
    limits = pa.Table.from_batches(_flattened(rows["cutoff"]), schema=table_schema("cutoff"))
    limits = limits.sort_by([("topic", "ascending"), ("partition", "ascending")])
    findings, progress = Counter[tuple[str, str]](), dict[str, int | None]()
    for summary in summaries:
        findings.update({(found["severity"], found["rule"]): found["count"] for found in summary["findings"]})
        progress[summary["log"]] = summary["next_offset"]
    progress = dict(sorted(progress.items()))
    digests = sorted(summary["digest"] for summary in summaries)
    times = [summary["newest_time"] for summary in summaries if summary["newest_time"] is not None]
    identity = json.dumps([__version__, inputs, dict(options), progress, sorted(findings.items()), digests])
    return Outcome(
        run_id=hashlib.sha256(identity.encode()).hexdigest()[:16],
        records=sum(summary["records"] for summary in summaries),
        share_partitions=sum(limits["live_share_partitions"].to_pylist()),
        cutoff=limits,
        findings=dict(sorted(findings.items())),
        progress=progress,
        index={summary["log"]: [IndexEntry(**entry) for entry in summary["index"]] for summary in summaries},
        compared=sum(proofs) if (proofs := [s["compared"] for s in summaries if s["compared"] is not None]) else None,
        differing=tuple(name for summary in summaries for name in summary["differing"] or ()),
        carried={summary["log"]: summary["carried"] for summary in summaries if summary["carried"] is not None},
        log_time=max(times, default=None),
    )


def _flattened(structs: pa.ChunkedArray) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_struct_array(chunk).cast(table_schema("cutoff")) for chunk in structs.chunks]


def run_row(
    outcome: Outcome,
    command: str,
    versions: Mapping[str, int],
    inputs: tuple[str, ...],
    options: Mapping[str, str],
    started: datetime,
) -> pa.Table:
    """The row of `runs` that commits a run.

    Args:
        outcome: what it found.
        command: what ran.
        versions: Delta version of each table that belongs to it.
        inputs: what the person named.
        options: what else shaped the result.
        started: when it began.
    """
    row = {
        "run_id": outcome.run_id,
        "started": started,
        "finished": datetime.now(UTC),
        "command": command,
        "version": __version__,
        "inputs": list(inputs),
        "records": outcome.records,
        "state_partitions": len(outcome.progress),
        "progress": list(outcome.progress.items()),
        "findings": list(outcome.by_severity.items()),
        "status": "done",
        "table_versions": list(versions.items()),
        "options": list(options.items()),
        "log_time": None if outcome.log_time is None else datetime.fromtimestamp(outcome.log_time / 1000, UTC),
        "notes": list(outcome.notes),
    }
    return pa.Table.from_pylist([row], schema=table_schema("runs"))
