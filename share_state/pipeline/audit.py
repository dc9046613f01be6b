"""The nightly audit: read what is new, fold it onto the checkpoint of the last audit, check the rules, write."""

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.warehouse import Warehouse
from share_state.delta.warehouse_place import GROUP_TABLES
from share_state.errors import WarehouseError, pluralize
from share_state.fold.checkpoint import CHECKPOINT_TABLE, sealed, with_input
from share_state.fold.dead_letters.archiving import RANGES
from share_state.fold.history import (
    GROUP_OUTCOMES,
    HISTORY_TABLE,
    OUTCOME_COLUMNS,
    add_group_outcomes,
    add_verdicts,
    without_misplaced,
)
from share_state.fold.states import KEY, SHARE_GROUP_STATE
from share_state.pipeline.across_logs import extended_logs, judge_across_logs, judge_export_age
from share_state.pipeline.driver_side import DriverSide, read_driver_side
from share_state.pipeline.executor import Executor
from share_state.pipeline.facts import limits_of_groups, without_origins
from share_state.pipeline.oldest_records import judge_oldest_records
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.progress import Progress
from share_state.pipeline.pruning import judge_pruning
from share_state.pipeline.reconstruct import finish_findings, replace_tables
from share_state.pipeline.result import KEPT_NOTES, RunResult, run_row, summarize
from share_state.pipeline.resume import COMMAND, LastRun, is_unchanged, resume_plan, without_changed
from share_state.pipeline.sink import Sink
from share_state.pipeline.stream_run import last_stream_run
from share_state.pipeline.task import FINDINGS, IN_FLIGHT, STATE
from share_state.rules.breaches import OFF
from share_state.rules.coverage import EXPORT_STALE
from share_state.schema.declarations import table_schema
from share_state.sources.resume_point import READ_FROM_START, digest_of_logs

_LOG = logging.getLogger("share_state")

_NOTED_FROM = "dead_letters.noted_from"
"""Option of the `runs` row, as DriverSide.noted_from: later audits must know it."""

_WRITTEN = (IN_FLIGHT, STATE, CHECKPOINT_TABLE)
"""Tables that the tasks write."""

NOTHING_NEW = "nothing new since the last audit"
OTHER_RULES = (
    "limits or rules have changed: findings about records that were read before stay as they were judged then; "
    "--afresh judges all records"
)
OF_STREAM = (
    "the tables were those of a stream, which judges less than an audit; all logs are read from their start"
)
NO_GROUPS = "__consumer_offsets is no longer in the input; its tables, rules and topic names are left out"


def run_audit(
    open_executor: Callable[[FoldPlan], AbstractContextManager[Executor[Any]]],
    plan: FoldPlan,
    warehouse: str,
    *,
    inputs: tuple[str, ...] = (),
    options: Mapping[str, str] | None = None,
    history_days: int = 90,
    replaced_files_days: int = 7,
    by_wall_clock: bool = False,
    afresh: Collection[str] = (),
    full_read_every: int = 7,
    cluster: str = "",
    progress: Progress | None = None,
) -> RunResult:
    """Read what is new since the last audit of a warehouse, and write its tables.

    Everything is computed from the table versions that the last audit committed, and the row of `runs` is
    written last, so neither readers nor the next audit see anything of a run that is killed.

    Args:
        open_executor: opens the executor for what is left to read; not called if nothing is new.
        plan: the log partitions as they are found now, and how to fold them.
        warehouse: folder of the tables; the caller holds its lock.
        inputs: as given, for the `runs` row.
        options: the other settings that shape the result, for the `runs` row; a change makes it judge
            everything again.
        history_days: days that rows of `runs`, `share_partition_history` and settled findings are kept.
        replaced_files_days: days that files of replaced rows are kept.
        by_wall_clock: measure durations up to the time of this audit instead of the last record of each log.
        afresh: names of log partitions to read from their start, or ALL_LOGS.
        full_read_every: every so many audits reads all of each topic-partition with control records.
        cluster: name of the cluster; the warehouse keeps the first one that it is given.
        progress: shows the phases.
    Raises:
        InputError: if the input holds no valid batch, or `afresh` names a log partition that is not in it.
        WarehouseError: if another table is in the way, or the warehouse is of another cluster.
    """
    progress = progress or Progress()
    started = datetime.now(UTC)
    fingerprint = {**(options or {}), **plan.facts, **limits_of_groups(plan.options.limits)}
    clock = int(started.timestamp() * 1000)
    # Opened before the last audit is read, so that a run that commits meanwhile is noticed.
    tables = Warehouse(warehouse)
    lost = tables.repair_history()
    last = LastRun.of(warehouse)
    cluster = _cluster_of(warehouse, last, cluster)
    with progress("look for what is new"):
        plan, notes = resume_plan(plan, last, afresh, full_read_every)
        notes += lost
        fingerprint |= _digests(plan, last)
        notes = [*notes, *_notes_since(plan, last, fingerprint, warehouse)]
    may_be_same = last is not None and not by_wall_clock and is_unchanged(plan)
    if last and may_be_same and _has_same_options(last, fingerprint, notes) and _is_as_old(plan, last, clock):
        result = _nothing_new(last, notes)
        row = run_row(result, COMMAND, inputs, fingerprint, started, cluster or None)
        with progress("commit"):
            _commit_unchanged(tables, last, row)
        return result
    if last is not None:
        plan, changed = without_changed(plan, last)
        notes += changed
    earliest = started - timedelta(days=history_days)
    kept, expired = last.runs_since(earliest) if last else (set[str](), set[str]())
    with progress("read the groups"):
        side, plan = read_driver_side(plan, last and last.tables, int(fingerprint.get(_NOTED_FROM, 0)))
    plan = plan.with_options(judged_at=clock) if by_wall_clock else plan
    with open_executor(plan) as executor, tables, executor.open_sink(tables) as sink:
        options_of_run = fingerprint | ({"last_audit": last.tables.run["run_id"]} if last else {})
        with progress("read and fold"):
            folded = sink.fold(plan, _WRITTEN, (FINDINGS, HISTORY_TABLE, *side.staged))
            result = summarize(folded, inputs, options_of_run, newest_of_others=side.newest_time)
        now = clock if by_wall_clock else min(result.log_time or 0, clock)
        result = replace(result, notes=(*notes, *result.notes))
        result, rows = judge_across_logs(side, plan, result, sink, now)
        with progress("read the times of the oldest unfinished records"):
            oldest = judge_oldest_records(plan, sink, now)
        result = replace(result, notes=(*result.notes, *oldest.notes))
        audits = {"last_audit": last and last.tables, "now_ms": clock if by_wall_clock else None}
        pruning = judge_pruning(executor, plan, result, **audits)
        added = _findings_of_input(plan, result, clock, pruning, oldest.findings)
        result = result.with_driver_rows(added) if added else result
        records, logs = pluralize(result.records, "new record"), pluralize(len(plan.logs), "log partition")
        _LOG.info("read %s of %s", records, logs)
        outcomes = add_group_outcomes(_outcomes_before(last), _read_outcomes(sink, result))
        with progress("write findings and history"):
            finish_findings(sink, result, [*rows.findings, *added])
            sink.add(FINDINGS, _settled(plan, last, kept))
            about_run = _about_run(side, plan, result, now) | {"record_times": oldest.times}
            sink.finish(HISTORY_TABLE, partial(add_verdicts, limits=plan.options.limits, **about_run))
        with progress("commit"):
            made = {"cutoff": result.cutoff, "carried_logs": _carried_logs(result, plan), **rows.tables}
            replace_tables(sink, (FINDINGS, *_WRITTEN), {**made, GROUP_OUTCOMES: outcomes})
            sink.append(HISTORY_TABLE, tables.run_ids(HISTORY_TABLE) - kept | {result.run_id})
            sink.commit_run(run_row(result, COMMAND, inputs, fingerprint, started, cluster or None), expired)
            _LOG.info("wrote %s tables", len(tables.versions))
            sink.maintain(replaced_files_days)
    return result


def _carried_logs(result: RunResult, plan: FoldPlan) -> pa.Table:
    """The table `carried_logs` of a run that folded a plan."""
    rows = []
    for name, row in result.carried.items():
        found = plan.resumed[name].found if plan.resumed else None
        carried = row if found is None else with_input(row, partial(digest_of_logs, [found]))
        rows.append({"log": name, "next_offset": result.progress[name], "carried": sealed(name, carried)})
    return pa.Table.from_pylist(rows, schema=table_schema("carried_logs"))


def _commit_unchanged(tables: Warehouse, last: LastRun, row: Mapping[str, Any]) -> None:
    """Commit a run that changes no table but `runs`."""
    with tables:
        tables.versions |= last.tables.versions
        tables.commit_run(row)
        tables.compact_runs()


def _findings_of_input(plan: FoldPlan, result: RunResult, clock: int, *others: pa.Table) -> list[pa.Table]:
    """Tables of findings that are not empty: those about the age of the export, and others."""
    return [table for table in (judge_export_age(plan, result.log_time, clock), *others) if len(table)]


def _about_run(side: DriverSide, plan: FoldPlan, result: RunResult, now: int) -> dict[str, Any]:
    """What `add_verdicts` takes of a run."""
    empty_groups = side.empty_groups(extended_logs(plan, result.progress))
    return {"time": now, "run_id": result.run_id, "misplaced": result.misplaced, "empty_groups": empty_groups}


def _cluster_of(warehouse: str, last: LastRun | None, cluster: str) -> str:
    """The name of the cluster of a warehouse, "" for none.

    The warehouse keeps the first one that it is given.
    """
    known = last and last.cluster
    if known and cluster and known != cluster:
        raise WarehouseError(
            f"{warehouse}: holds cluster {known}, not {cluster}; give each cluster its own warehouse"
        )
    return cluster or known or ""


def _digests(plan: FoldPlan, last: LastRun | None) -> dict[str, str]:
    """What identifies the group side and the dead letters of an audit, as options of its run."""
    digests = {}
    if plan.groups is not None:
        digests["groups.digest"] = digest_of_logs(plan.groups.logs)
    if plan.dead_letters is not None:
        digests["dead_letters.digest"] = plan.dead_letters.digest()
        if noted_from := _noted_from(plan, last):
            digests[_NOTED_FROM] = str(noted_from)
    return digests


def _notes_since(
    plan: FoldPlan, last: LastRun | None, fingerprint: Mapping[str, str], warehouse: str
) -> list[str]:
    """Notes on what has changed since the last audit besides the logs; of the first one, that a stream was here."""
    if last is None:
        return [] if last_stream_run(warehouse) is None else [OF_STREAM]
    lacks_groups = plan.groups is None and GROUP_TABLES[0] in last.tables.versions
    has_other_rules = _has_other_rules(last, fingerprint) and _resumed_partitions(plan)
    return [*[NO_GROUPS] * lacks_groups, *([OTHER_RULES] if has_other_rules else [])]


def _is_as_old(plan: FoldPlan, last: LastRun, clock: int) -> bool:
    """Whether unchanged input is older than `limits.export_age` only if the last audit has found that."""
    found = last.tables.read(FINDINGS, pc.field("rule") == EXPORT_STALE, ["rule"])
    return len(found) == len(judge_export_age(plan, last.tables.log_time, clock))


def _read_outcomes(sink: Sink, result: RunResult) -> pa.Table:
    """The columns of the history that `add_group_outcomes` sums up."""
    identity = (*KEY, "state_partition") if result.misplaced else ("group_id",)
    rows = sink.read(HISTORY_TABLE, [*identity, *OUTCOME_COLUMNS])
    return without_misplaced(rows, result.misplaced)


def _outcomes_before(last: LastRun | None) -> pa.Table:
    """The table `group_outcomes` of the last audit.

    If it is lost or from before the table, the sums of its history.
    """
    totals = table_schema(GROUP_OUTCOMES).empty_table()
    if last is None:
        return totals
    if last.tables.holds(GROUP_OUTCOMES):
        with suppress(WarehouseError):
            return last.tables.read(GROUP_OUTCOMES)
    with suppress(WarehouseError):
        for rows in last.tables.batches(HISTORY_TABLE, ("group_id", *OUTCOME_COLUMNS)):
            totals = add_group_outcomes(totals, rows)
    return totals


def _noted_from(plan: FoldPlan, last: LastRun | None) -> int:
    """`DriverSide.noted_from`: audits without dead letters, and those from before the table, note no ranges."""
    if last is None or not _resumed_partitions(plan):
        return 0
    if last.tables.holds(RANGES):
        return int(dict(last.tables.run["options"]).get(_NOTED_FROM, 0))
    return last.tables.log_time or 0


def _has_same_options(last: LastRun, options: Mapping[str, str], notes: list[str]) -> bool:
    """Whether the last audit had the same options and notes."""
    before = last.tables.run
    own = [note for note in before["notes"] if note != NOTHING_NEW and not note.startswith(KEPT_NOTES)]
    return without_origins(options) == without_origins(dict(before["options"])) and notes == own


def _has_other_rules(last: LastRun, options: Mapping[str, str]) -> bool:
    """Whether limits or severities differ from those of the last audit."""
    before, now = ({key: value for key, value in one.items() if key.startswith(("limits", "rules"))}
                   for one in (dict(last.tables.run["options"]), options))  # fmt: skip
    return before != now


def _resumed_partitions(plan: FoldPlan) -> set[int | None]:
    """Numbers of the log partitions that are not read from their start."""
    points = plan.resumed or {}
    return {log.partition for log in plan.logs if points and points[log.name].status not in READ_FROM_START}


def _settled(plan: FoldPlan, last: LastRun | None, kept: set[str]) -> Iterable[pa.Table]:
    """The findings of earlier audits about records that are not read again."""
    if last is None:
        return []
    # A log that is read from its start is judged again; control records and formats other than segments
    # always are.
    resumed = _resumed_partitions(plan)
    if not resumed:
        return []
    stays = pc.field("state_partition").isin(sorted(number for number in resumed if number is not None))
    stays &= (
        pc.field("settled")
        & pc.field("run_id").isin(sorted(kept))
        & (pc.field("dialect") == SHARE_GROUP_STATE)
    )
    off = [rule for rule, severity in plan.severities.items() if severity == OFF]
    stays &= ~pc.field("rule").isin(pa.array(off, pa.string()))
    return last.tables.batches(FINDINGS, where=stays)


def _nothing_new(last: LastRun, notes: list[str]) -> RunResult:
    before, cutoff = last.tables.run, last.tables.read("cutoff")
    return RunResult(
        run_id=hashlib.sha256(f"{before['run_id']} {NOTHING_NEW}".encode()).hexdigest()[:16],
        records=0,
        share_partitions=sum(cutoff["live_share_partitions"].to_pylist()),
        cutoff=cutoff.sort_by([("topic", "ascending"), ("partition", "ascending")]),
        findings={},
        progress=dict(before["progress"]),
        log_time=last.tables.log_time,
        notes=(NOTHING_NEW, *notes, *(note for note in before["notes"] if note.startswith(KEPT_NOTES))),
    )
