"""The result of a run: the summaries of its tasks combined, and the row of `runs` that commits it."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from math import gcd
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.reader import COMMITTED
from share_state.errors import InputError, pluralize
from share_state.fold.state_chains import NO_OFFSET
from share_state.fold.states import to_datetime
from share_state.kafka.releases import ARCHIVING_SINCE
from share_state.pipeline.task import CUTOFF, SUMMARY, Digest, returned_table
from share_state.rules.findings import complete_durations, count_findings, counts_at_end, drop_unproven
from share_state.sources.log_partition import STATE_TOPIC
from share_state.sources.share_snapshots import ShareSnapshotEntry
from share_state.version import __version__


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
        earliest_offsets: log partition -> earliest share offset from which on a later audit may read it; None
            if it has to read it from its start (control records only).
        compared: share-partitions of logs with a safe cutoff that are folded again without the records before
            it; None unless `verify` is set.
        differing: those of them whose state differs.
        carried: log partition -> its row of `carried_logs`, if a later run may continue from it.
        log_time: ms, timestamp of the newest record of the whole export: durations end there.
        archiving: log partition, offset and timestamp (ms) of the first record that only 4.4 or later writes;
            None if there is none, or rules over records were not evaluated.
        complete_times: log partition -> (complete_since of FoldedLog, timestamp of its newest record), ms.
        notes: what an audit noticed about the logs.
        key_modulus: as LogObservations.key_modulus, of all logs.
        misplaced: share-partitions whose state in another state partition counts: `key_texts` with the state
            partition.
        cut: log partitions of which an as-of point leaves out later records.
    """

    run_id: str
    records: int
    share_partitions: int
    cutoff: pa.Table
    findings: Mapping[tuple[str, str], int]
    progress: Mapping[str, int | None]
    index: Mapping[str, Sequence[ShareSnapshotEntry]] = field(default_factory=dict)
    earliest_offsets: Mapping[str, int | None] = field(default_factory=dict)
    compared: int | None = None
    differing: tuple[str, ...] = ()
    carried: Mapping[str, str] = field(default_factory=dict)
    log_time: int | None = None
    archiving: tuple[str, int, int] | None = None
    complete_times: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    key_modulus: int = 0
    misplaced: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()

    @property
    def by_severity(self) -> dict[str, int]:
        """Severity -> number of findings."""
        counted = Counter[str]()
        for (severity, _), count in self.findings.items():
            counted[severity] += count
        return dict(counted)

    def with_driver_rows(
        self, found: Sequence[pa.Table], tables: Mapping[str, pa.Table] | None = None
    ) -> "RunResult":
        """The result with the rows that the driver made.

        Args:
            found: rows of the table `findings`, which are counted.
            tables: by name; None if the driver made none, so that run_id stays.
        """
        run_id, own = self.run_id, Counter[tuple[str, str]]()
        if tables is not None:
            digest = Digest()
            for table in (*tables.values(), *found):
                digest.take(table.combine_chunks())
            run_id = hashlib.sha256(f"{run_id} {digest.text}".encode()).hexdigest()[:16]
        for rows in found:
            columns = rows["severity"], rows["rule"], count_findings(rows)
            for severity, rule, count in zip(*(column.to_pylist() for column in columns), strict=True):
                own[severity, rule] += count
        return replace(self, run_id=run_id, findings=dict(sorted((Counter(self.findings) + own).items())))

    def plain(self) -> dict[str, Any]:
        """The result as plain data, for printing."""
        names = [
            field.name
            for field in fields(self)
            if field.name not in ("index", "archiving", "complete_times", "key_modulus", "misplaced", "cut")
        ]
        shown = {name: getattr(self, name) for name in names}
        findings = [
            {"severity": severity, "rule": rule, "count": count}
            for (severity, rule), count in self.findings.items()
        ]
        return shown | {"cutoff": self.cutoff.to_pylist(), "findings": findings}


def summarize(
    results: pa.Table,
    inputs: tuple[str, ...],
    options: Mapping[str, str],
    *,
    newest_of_others: int | None = None,
) -> RunResult:
    """Combine the summaries of the tasks.

    Args:
        results: the result of `Executor.fold`.
        inputs: as given.
        options: the other settings that shape the result.
        newest_of_others: ms, timestamp of the newest record of the logs of groups and of the dead letters.
    Raises:
        InputError: if the input holds no valid batch, or no state record.
    """
    rows = results.filter(pc.is_valid(results[SUMMARY]))
    check_records(rows)
    summaries = rows[SUMMARY].to_pylist()
    limits = returned_table(rows, CUTOFF).sort_by([("topic", "ascending"), ("partition", "ascending")])
    changing = {row["log"]: _changes(row["differing"]) for row in summaries if row["differing"]}
    findings, progress = Counter[tuple[str, str]](), dict[str, int | None]()
    archiving = [
        (summary["log"], *summary["archiving"]) for summary in summaries if summary["archiving"] is not None
    ]
    first = min(archiving, key=itemgetter(2, 0), default=None)
    # A timestamp that no table can hold says nothing about when the log was written.
    times = [time for row in summaries if (time := row["newest_time"]) is not None and to_datetime(time)]
    times += [] if newest_of_others is None else [newest_of_others]
    clock: int | None = max(times, default=None)
    end = NO_OFFSET if clock is None else clock
    for summary in summaries:
        findings.update({(found["severity"], found["rule"]): found["count"] for found in summary["findings"]})
        for found in summary["unproven"]:
            if first is not None and found["second"] > first[2] // 1000:
                findings[found["severity"], found["rule"]] += found["count"]
        for found in summary["pending"]:
            if counts_at_end(found["due"], found["until"], end):
                findings[found["severity"], found["rule"]] += found["count"]
        progress[summary["log"]] = summary["next_offset"]
    progress = dict(sorted(progress.items()))
    digests = sorted(summary["digest"] for summary in summaries)
    identity = json.dumps([__version__, inputs, dict(options), progress, sorted(findings.items()), digests])
    return RunResult(
        run_id=hashlib.sha256(identity.encode()).hexdigest()[:16],
        records=sum(summary["records"] for summary in summaries),
        share_partitions=sum(limits["live_share_partitions"].to_pylist()),
        cutoff=mark_unsafe(limits, changing),
        findings=dict(sorted(findings.items())),
        progress=progress,
        index={
            summary["log"]: [ShareSnapshotEntry(**entry) for entry in summary["index"]]
            for summary in summaries
        },
        earliest_offsets={
            summary["log"]: summary["earliest_offset"]
            for summary in summaries
            if not summary["log"].startswith(f"{STATE_TOPIC}-")
        },
        compared=sum(proofs)
        if (proofs := [s["compared"] for s in summaries if s["compared"] is not None])
        else None,
        differing=tuple(name for summary in summaries for name in summary["differing"] or ()),
        carried={
            summary["log"]: summary["carried"] for summary in summaries if summary["carried"] is not None
        },
        log_time=clock,
        archiving=first,
        complete_times={row["log"]: (row["complete_since"], row["newest_time"] or 0) for row in summaries},
        notes=(*(() if first is None else (_writer_note(*first),)), *_sought_notes(summaries)),
        key_modulus=gcd(*(summary["key_modulus"] for summary in summaries)),
        cut=tuple(sorted(summary["log"] for summary in summaries if summary["is_cut"])),
    )


def _sought_notes(summaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Which logs were not read from their start."""
    for summary in summaries:
        if (offset := summary["read_from"]) is not None:
            size = summary["bytes"]
            yield f"{summary['log']}: read from offset {offset} on, {size:,} bytes, {SOUGHT_NOTE}"


def _changes(differing: Sequence[str]) -> str:
    return f"folding without the records before it changes {pluralize(len(differing), 'share-partition')}"


def mark_unsafe(cutoffs: pa.Table, reasons: Mapping[str, str]) -> pa.Table:
    """The table `cutoff` with more reasons why cutoffs are not safe, by name of the log partition.

    The name of a log whose partition is not known is a path, which `cutoff` lacks: its reason holds for all
    such logs.
    """
    if not reasons:
        return cutoffs
    rows = cutoffs.to_pylist()
    numbered = {f"{row['topic']}-{row['partition']}" for row in rows if row["partition"] is not None}
    of_unnumbered = next((reason for name, reason in reasons.items() if name not in numbered), None)
    for row in rows:
        name = f"{row['topic']}-{row['partition']}"
        if (reason := of_unnumbered if row["partition"] is None else reasons.get(name)) is not None:
            row["safe"] = False
            known = row["reason"].split("; ") if row["reason"] else []
            row["reason"] = "; ".join(known if reason in known else [*known, reason])
    return pa.Table.from_pylist(rows, schema=cutoffs.schema)


def keep_proven(
    findings: pa.Table, archiving: tuple[str, int, int] | None, clock: int | None = None
) -> pa.Table:
    """Findings of a task, complete, without those that do not count.

    Args:
        findings: findings that a task staged.
        archiving: as in RunResult. The feature that writes it needs 4.4 or later on every broker.
        clock: ms, up to which durations are measured; None if no record has a timestamp.
    """
    findings = complete_durations(findings, NO_OFFSET if clock is None else clock)
    if archiving is None:
        return drop_unproven(findings)
    log, offset, time = archiving
    why = f" (the writer must be {ARCHIVING_SINCE} or later: ARCHIVING is in {log} since offset {offset})"
    return drop_unproven(findings, time // 1000, why)


WRITER = f"writer of {STATE_TOPIC}"
"""Begins the note on which release wrote the logs."""

DEAD_LETTERS_NOTE = "dead letters"
"""Begins the notes on dead letters."""

TAIL_NOTE = "tail of "
"""Begins the notes on copies that end before their high watermark."""

START_NOTE = "start of "
"""Begins the notes on logs whose beginning is not in the input."""

ABSENT_NOTE = "partitions of "
"""Begins the notes on topics of which not all partitions are in the input."""

PAST_NOTE = "state of an earlier time: "
"""Begins the note on an as-of point of logs whose first records the broker has deleted."""

TIME_NOTE = "time of the state: "
"""Begins the note on an as-of time that is outside of the times of the input."""

GROUPS_NOTE = "groups are not checked: "
"""Begins the note on an input without logs of groups."""

AGES_NOTE = "ages of records: "
"""How the note begins that says why the oldest unfinished records could not be read."""

TOPICS_NOTE = "topics: "
"""Begins the note on a topics file that was found beside the logs."""

SOUGHT_NOTE = "by its share snapshot file"
"""Ends the notes on logs that were not read from their start."""

EXTENT_NOTES = (TAIL_NOTE, START_NOTE, ABSENT_NOTE, PAST_NOTE, TIME_NOTE, GROUPS_NOTE)
"""How notes begin that say what is not in the input."""

KEPT_NOTES = (TOPICS_NOTE, WRITER, DEAD_LETTERS_NOTE, AGES_NOTE, *EXTENT_NOTES)
"""Notes that stay while nothing is new."""


def _writer_note(log: str, offset: int, ms: int) -> str:
    time = to_datetime(ms)
    since = f" since {time:%Y-%m-%d %H:%M:%S} UTC" if time else ""
    writer = f"{WRITER}: Kafka {ARCHIVING_SINCE} or later"
    return f"{writer}{since}, inferred from state ARCHIVING in {log} at offset {offset}"


def check_records(results: pa.Table) -> None:
    """Refuse an input without any valid batch, and one whose records are all something else than state records.

    Args:
        results: the result of `Executor.fold`.
    Raises:
        InputError: if it is one of these.
    """
    summaries = results[SUMMARY].drop_null().to_pylist()
    if not any(summary["whole_batches"] for summary in summaries):
        raise InputError(
            f"{summaries[0]['log']}: nothing in it is a record batch; give a folder of real segments"
        )
    records = sum(summary["records"] for summary in summaries)
    is_new = not any(summary["is_resumed"] for summary in summaries)
    if records and is_new and sum(summary["other_records"] for summary in summaries) == records:
        name = next(summary["log"] for summary in summaries if summary["records"])
        raise InputError(
            f"{name}: none of its {pluralize(records, 'record')} is a state record: the log of another topic, or"
            f" an unknown encoding of keys and values; give {STATE_TOPIC}"
        )


def run_row(
    result: RunResult,
    command: str,
    inputs: tuple[str, ...],
    options: Mapping[str, str],
    started: datetime,
    cluster: str | None = None,
) -> dict[str, Any]:
    """The row of `runs` for a run, as `Warehouse.commit_run` takes it.

    Args:
        result: the result of the run.
        command: the command that ran.
        inputs: as given.
        options: the other settings that shape the result.
        started: time at which it began.
        cluster: the cluster of the input; None if unknown.
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
        "status": COMMITTED if command == "audit" else "done",
        "options": list(options.items()),
        "log_time": None if result.log_time is None else to_datetime(result.log_time),
        "notes": list(result.notes),
        "cluster": cluster,
    }
