"""The nightly audit: take in what is new, fold it onto what the last audit left, judge, write."""

import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.files import File, TableFiles
from share_state.delta.warehouse import OF_GROUPS, Warehouse
from share_state.fold.history import with_verdicts
from share_state.fold.states import SHARE_GROUP_STATE
from share_state.pipeline.executor import Tasks
from share_state.pipeline.groups import judged_groups, read_groups
from share_state.pipeline.plan import Work
from share_state.pipeline.progress import Phases
from share_state.pipeline.reconstruct import write_findings
from share_state.pipeline.result import Outcome, run_row, summarise
from share_state.pipeline.resume import COMMAND, LastAudit, continued, is_unchanged
from share_state.pipeline.task import CARRIED, FINDINGS, IN_FLIGHT, STATE, WATCHED, Wanted
from share_state.schema.declarations import table_schema
from share_state.sources.resume import ANEW

_LOG = logging.getLogger("share_state")

_WRITTEN = (IN_FLIGHT, STATE, CARRIED)
"""Tables that the tasks write where they fold."""

NOTHING_NEW = "nothing new since the last audit"
NO_GROUPS = "__consumer_offsets is not in the input any more; its tables, its rules and its topic names are left out"


def run_audit(
    open_tasks: Callable[[Work], AbstractContextManager[Tasks]],
    work: Work,
    warehouse: str,
    *,
    inputs: tuple[str, ...] = (),
    options: Mapping[str, str] | None = None,
    history_days: int = 90,
    by_wall_clock: bool = False,
    phases: Phases | None = None,
) -> Outcome:
    """Take in what is new since the last audit of a warehouse, and write its tables.

    Everything is computed from the table versions that the last audit committed, and the row of `runs` comes last: a
    run that is killed leaves nothing that the next one, or a reader, would believe.

    Args:
        open_tasks: gives the tasks for what is left to read; not called where nothing is new.
        work: the log partitions as they are found now, and how to fold them.
        warehouse: folder of the tables; the caller holds its lock.
        inputs: what the person named, for the `runs` row.
        options: what else shaped the result, for the `runs` row; where it changed, everything is judged again.
        history_days: how long rows of `runs`, `share_partition_history` and settled findings are kept.
        by_wall_clock: count "for so long" to the time of this audit instead of the newest record of the input.
        phases: told what is going on.
    Raises:
        InputError: if no batch of the input can be trusted.
        WarehouseError: if another table is in the way.
    """
    phases, started, told = phases or Phases(), datetime.now(UTC), dict(options or {})
    # Before the last audit is looked at: a run that commits from here on is noticed.
    tables = Warehouse(warehouse)
    last = LastAudit.of(warehouse)
    with phases("look for what is new"):
        work, notes = continued(work, last)
        if work.groups is not None:
            told |= work.groups.described()
        elif last is not None and OF_GROUPS[0] in last.tables.versions:
            notes = [*notes, NO_GROUPS]
    if last is not None and not by_wall_clock and is_unchanged(work) and _as_before(last, told, notes):
        outcome = _nothing_new(last, notes)
        with phases("commit"), tables:
            _record(tables, outcome, last.tables.versions, inputs, told, started, set())
        return outcome
    kept, expired = last.runs_since(started - timedelta(days=history_days)) if last else (set[str](), set[str]())
    with phases("read the groups"):
        side, work = read_groups(work)
    with open_tasks(work) as tasks, tables:
        wanted = Wanted(written=_WRITTEN, drafted=(FINDINGS, WATCHED), files=tables.files)
        previous = {"last_audit": last.tables.run["run_id"]} if last else {}
        with phases("read and fold"):
            outcome = summarise(tasks.fold(work, wanted), inputs, told | previous)
        outcome = replace(outcome, notes=tuple(notes))
        now = int(started.timestamp() * 1000) if by_wall_clock else outcome.log_time or 0
        outcome, of_groups = judged_groups(side, work, outcome, tables.files, now)
        _LOG.info("read %s new records of %s log partitions", f"{outcome.records:,}", f"{len(work.logs):,}")
        with phases("write findings and history"):
            findings = write_findings(tasks, outcome, tables.files, [of_groups])
            finished = partial(with_verdicts, now=now, run_id=outcome.run_id, limits=work.limits)
            history = tasks.finish(tables.files, outcome.files_of(WATCHED), finished)
        with phases("commit"):
            findings += _settled(work, last, kept, tables.files)
            versions = tables.replace(FINDINGS, findings)
            for name in _WRITTEN:
                versions |= tables.replace(name, outcome.files_of(name))
            versions |= tables.add(WATCHED, history, tables.runs_in(WATCHED) - kept | {outcome.run_id})
            versions |= tables.put("cutoff", outcome.cutoff)
            versions |= tables.put("carried_logs", _carried_logs(outcome))
            for name, rows in (side.tables() if side else {}).items():
                versions |= tables.put(name, rows)
            _LOG.info("wrote %s tables", len(versions))
            _record(tables, outcome, versions, inputs, told, started, expired)
            tables.sweep(history_days)
    return outcome


def _as_before(last: LastAudit, options: Mapping[str, str], notes: list[str]) -> bool:
    """True where the last audit was told the same and met the same."""
    before = last.tables.run
    return options == dict(before["options"]) and notes == [note for note in before["notes"] if note != NOTHING_NEW]


def _settled(work: Work, last: LastAudit | None, kept: set[str], files: TableFiles) -> list[File]:
    """Write again the findings of earlier audits about records that are not read again."""
    if last is None:
        return []
    # A log that is read anew is judged anew; control records and forms other than segments always are.
    gone_on = {log.partition for log in work.logs if work.audited and work.audited[log.name].fate not in ANEW}
    stays = pc.field("state_partition").isin(sorted(number for number in gone_on if number is not None))
    if None in gone_on:
        stays |= pc.field("state_partition").is_null()
    stays &= pc.field("settled") & pc.field("run_id").isin(sorted(kept)) & (pc.field("dialect") == SHARE_GROUP_STATE)
    rows = last.tables.batches(FINDINGS, where=stays)
    return files.write(FINDINGS, (batch for table in rows for batch in table.to_batches()))


def _carried_logs(outcome: Outcome) -> pa.Table:
    rows = [
        {"log": name, "next_offset": outcome.progress[name], "carried": row} for name, row in outcome.carried.items()
    ]
    return pa.Table.from_pylist(rows, schema=table_schema("carried_logs"))


def _nothing_new(last: LastAudit, notes: list[str]) -> Outcome:
    before, cutoff = last.tables.run, last.tables.read("cutoff")
    log_time = before["log_time"]
    return Outcome(
        run_id=hashlib.sha256(f"{before['run_id']} {NOTHING_NEW}".encode()).hexdigest()[:16],
        records=0,
        share_partitions=sum(cutoff["live_share_partitions"].to_pylist()),
        cutoff=cutoff.sort_by([("topic", "ascending"), ("partition", "ascending")]),
        findings={},
        progress=dict(before["progress"]),
        index={},
        log_time=None if log_time is None else int(log_time.timestamp() * 1000),
        notes=(NOTHING_NEW, *notes),
    )


def _record(
    tables: Warehouse,
    outcome: Outcome,
    versions: Mapping[str, int],
    inputs: tuple[str, ...],
    options: Mapping[str, str],
    started: datetime,
    expired: set[str],
) -> None:
    row = run_row(outcome, COMMAND, versions, inputs, options, started)
    tables.add("runs", tables.files.write("runs", row.to_batches()), {outcome.run_id, *expired})
