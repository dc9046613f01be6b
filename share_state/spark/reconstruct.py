"""The main job: fold an export, write the tables. Commands, jobs and notebooks call this."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.storagelevel import StorageLevel

from share_state import __version__
from share_state.declarations import table_schema
from share_state.errors import InputError
from share_state.phases import Phases
from share_state.spark.plan import RESULTS, Work, fold_all
from share_state.spark.warehouse import Warehouse
from share_state.wire.share_snapshot_file import IndexEntry


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found.

    Attributes:
        run_id: the same for the same input, options and version.
        records: data records read.
        share_partitions: live share-partitions.
        cutoff: the table `cutoff`.
        findings: (severity, rule) -> number.
        progress: log partition -> offset to go on from.
        index: log partition -> entries of its share snapshot file (control records only).
        compared: share-partitions folded again without what lies before the cutoff; None where no proof was asked for.
        differing: those of them whose state was not the same.
    """

    run_id: str
    records: int
    share_partitions: int
    cutoff: pa.Table
    findings: Mapping[tuple[str, str], int]
    progress: Mapping[str, int]
    index: Mapping[str, Sequence[IndexEntry]]
    compared: int | None = None
    differing: tuple[str, ...] = ()

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

    Nothing is written before everything has been read and folded. Findings, in_flight and share_partition_state come
    first, then cutoff, then the row of `runs` that names their versions: the commit point.

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
    results = fold_all(spark, work).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with phases("read and fold"):
            outcome = summarise(results, inputs, options or {})
        tables = Warehouse(spark, warehouse)
        with phases("write tables"):
            frames = {name: _table(results, name) for name in RESULTS}
            frames["findings"] = frames["findings"].drop("run_id").selectExpr("*", f"'{outcome.run_id}' AS run_id")
            versions = tables.replace(frames)
        with phases("commit"):
            versions |= tables.replace({"cutoff": spark.createDataFrame(outcome.cutoff).coalesce(1)})
            tables.record_run(_run_row(outcome, versions, inputs, options or {}, started))
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
    findings, progress = Counter[tuple[str, str]](), dict[str, int]()
    for summary in summaries:
        findings.update({(found["severity"], found["rule"]): found["count"] for found in summary["findings"]})
        progress[summary["log"]] = summary["next_offset"]
    progress = dict(sorted(progress.items()))
    digests = sorted(summary["digest"] for summary in summaries)
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
    )


def _flattened(structs: pa.ChunkedArray) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_struct_array(chunk).cast(table_schema("cutoff")) for chunk in structs.chunks]


def _table(results: DataFrame, name: str) -> DataFrame:
    return results.filter(f"{name} IS NOT NULL").select(f"{name}.*")


def _run_row(
    outcome: Outcome,
    versions: Mapping[str, int],
    inputs: tuple[str, ...],
    options: Mapping[str, str],
    started: datetime,
) -> pa.Table:
    row = {
        "run_id": outcome.run_id,
        "started": started,
        "finished": datetime.now(UTC),
        "command": "reconstruct",
        "version": __version__,
        "inputs": list(inputs),
        "records": outcome.records,
        "state_partitions": len(outcome.progress),
        "progress": list(outcome.progress.items()),
        "findings": list(outcome.by_severity.items()),
        "status": "done",
        "table_versions": list(versions.items()),
        "options": list(options.items()),
    }
    return pa.Table.from_pylist([row], schema=table_schema("runs"))
