"""The result of a run: the summaries of its tasks combined, and the row of `runs` that commits it."""

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
from share_state.pipeline.task import CUTOFF, SUMMARY, returned_table
from share_state.sources.share_snapshots import ShareSnapshotEntry


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run.

    Attributes:
        run_id: a hash of input, options and version.
        records: data records read.
        share_partitions: live share-partitions.
        cutoff: the table `cutoff`.
        findings: (severity, rule) -> number.
        progress: log partition -> next offset to read; None if the format has no offsets.
        index: log partition -> entries of its share snapshot file (control records only).
        compared: share-partitions folded again without the records before the cutoff; None unless `verify` is set.
        differing: those of them whose state differs.
        carried: log partition -> its row of `carried_logs` (audits only).
        log_time: ms, timestamp of the newest record of the whole input (audits only).
        notes: what an audit noticed about the logs.
        files: files that the tasks wrote.
    """

    run_id: str
    records: int
    share_partitions: int
    cutoff: pa.Table
    findings: Mapping[tuple[str, str], int]
    progress: Mapping[str, int | None]
    index: Mapping[str, Sequence[ShareSnapshotEntry]]
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
        """The result as plain data, for printing."""
        names = [field.name for field in fields(self) if field.name not in ("index", "files")]
        shown = {name: getattr(self, name) for name in names}
        findings = [
            {"severity": severity, "rule": rule, "count": count} for (severity, rule), count in self.findings.items()
        ]
        return shown | {"cutoff": self.cutoff.to_pylist(), "findings": findings}

    def files_of(self, table: str) -> list[File]:
        """Files of one table."""
        return [file for file in self.files if file["table"] == table]


def summarize(results: pa.Table, inputs: tuple[str, ...], options: Mapping[str, str]) -> RunResult:
    """Combine the summaries of the tasks.

    Args:
        results: of `Executor.fold`.
        inputs: as given.
        options: what else shaped the result.
    Raises:
        InputError: if the input holds no valid batch.
    """
    rows = results.filter(pc.is_valid(results[SUMMARY]))
    summaries = rows[SUMMARY].to_pylist()
    _check_batches(summaries)
    limits = returned_table(rows, CUTOFF).sort_by([("topic", "ascending"), ("partition", "ascending")])
    findings, progress = Counter[tuple[str, str]](), dict[str, int | None]()
    for summary in summaries:
        findings.update({(found["severity"], found["rule"]): found["count"] for found in summary["findings"]})
        progress[summary["log"]] = summary["next_offset"]
    progress = dict(sorted(progress.items()))
    digests = sorted(summary["digest"] for summary in summaries)
    times = [summary["newest_time"] for summary in summaries if summary["newest_time"] is not None]
    identity = json.dumps([__version__, inputs, dict(options), progress, sorted(findings.items()), digests])
    return RunResult(
        run_id=hashlib.sha256(identity.encode()).hexdigest()[:16],
        records=sum(summary["records"] for summary in summaries),
        share_partitions=sum(limits["live_share_partitions"].to_pylist()),
        cutoff=limits,
        findings=dict(sorted(findings.items())),
        progress=progress,
        index={summary["log"]: [ShareSnapshotEntry(**entry) for entry in summary["index"]] for summary in summaries},
        compared=sum(proofs) if (proofs := [s["compared"] for s in summaries if s["compared"] is not None]) else None,
        differing=tuple(name for summary in summaries for name in summary["differing"] or ()),
        carried={summary["log"]: summary["carried"] for summary in summaries if summary["carried"] is not None},
        log_time=max(times, default=None),
        files=[file for summary in summaries for file in summary["files"]],
    )


def check_batches(results: pa.Table) -> None:
    """Refuse an input without any valid batch.

    Args:
        results: of `Executor.fold`.
    Raises:
        InputError: if there is none.
    """
    _check_batches(results[SUMMARY].drop_null().to_pylist())


def _check_batches(summaries: Sequence[Mapping[str, Any]]) -> None:
    if not any(summary["whole_batches"] for summary in summaries):
        raise InputError(f"{summaries[0]['log']}: nothing in it is a record batch; give a folder of real segments")


def run_row(
    result: RunResult,
    command: str,
    inputs: tuple[str, ...],
    options: Mapping[str, str],
    started: datetime,
    cluster: str | None = None,
) -> dict[str, Any]:
    """The row of `runs` of a run, for `Warehouse.commit_run`.

    Args:
        result: of the run.
        command: that ran.
        inputs: as given.
        options: what else shaped the result.
        started: time at which it began.
        cluster: that the input is of; None if unknown.
    """
    return {
        "run_id": result.run_id,
        "started": started,
        "command": command,
        "version": __version__,
        "inputs": list(inputs),
        "records": result.records,
        "state_partitions": len(result.progress),
        "progress": list(result.progress.items()),
        "findings": list(result.by_severity.items()),
        "status": "done",
        "options": list(options.items()),
        "log_time": None if result.log_time is None else datetime.fromtimestamp(result.log_time / 1000, UTC),
        "notes": list(result.notes),
        "cluster": cluster,
    }
