"""What a run found: the tasks' summaries brought together, and the row of `runs` that commits it."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state import __version__
from share_state.delta.files import File
from share_state.errors import InputError
from share_state.kafka.share_snapshot_file import IndexEntry
from share_state.pipeline.task import CUTOFF, SUMMARY
from share_state.schema.declarations import table_schema


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
        files: what the tasks wrote into the tables' folders.
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
    files: Sequence[File] = field(default=(), compare=False, repr=False)

    @property
    def by_severity(self) -> dict[str, int]:
        """Severity -> number of findings."""
        counted = Counter[str]()
        for (severity, _), count in self.findings.items():
            counted[severity] += count
        return dict(counted)

    def plain(self) -> dict[str, Any]:
        """What a person or a script is told, as plain data."""
        told = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("index", "files")}
        findings = [
            {"severity": severity, "rule": rule, "count": count} for (severity, rule), count in self.findings.items()
        ]
        return told | {"cutoff": self.cutoff.to_pylist(), "findings": findings}

    def files_of(self, table: str) -> list[File]:
        """What the tasks wrote of a table."""
        return [file for file in self.files if file["table"] == table]


def summarise(results: pa.Table, inputs: tuple[str, ...], options: Mapping[str, str]) -> Outcome:
    """Bring together what the tasks told.

    Args:
        results: columns `cutoff` and `summary` of what they yield, at least the rows that have them.
        inputs: what the person named.
        options: what else shaped the result.
    Raises:
        InputError: if no batch of the input can be trusted.
    """
    rows = results.filter(pc.is_valid(results[SUMMARY]))
    summaries = rows[SUMMARY].to_pylist()
    if not any(summary["whole_batches"] for summary in summaries):
        raise InputError(f"{summaries[0]['log']}: nothing in it is a record batch; give a folder of real segments")
    limits = pa.Table.from_batches(_flattened(rows[CUTOFF]), schema=table_schema("cutoff"))
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
        files=[file for summary in summaries for file in summary["files"]],
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
