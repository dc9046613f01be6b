"""Resumes from the last run of a warehouse: an audit reads what is new in the logs, a stream begins with its state."""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from share_state.config.input_spec import JUDGE_ALL
from share_state.delta.committed import CommittedTables
from share_state.errors import InputError, NothingCommittedError
from share_state.fold.checkpoint import (
    CHECKPOINT_TABLE,
    DamagedCheckpointError,
    RowDigest,
    digest_of_rows,
    is_as_written,
    resume_point_of,
)
from share_state.fold.history import HISTORY_TABLE
from share_state.pipeline.plan import FoldPlan, ResumedLog
from share_state.pipeline.result import SOUGHT_NOTE
from share_state.pipeline.task import STATE
from share_state.sources.log_partition import STATE_TOPIC, LogPartition, Segment
from share_state.sources.partition_count import count_partitions
from share_state.sources.resume_point import ResumePoint, ResumeStatus, digest_of_logs, resume

COMMAND = "audit"

_NOTES = {
    ResumeStatus.BEHIND: "ends before what the last audit read (a replica that lags); nothing was removed",
    ResumeStatus.UNREADABLE: "holds no batch where the last audit stopped; its tables stay as that audit left them",
    ResumeStatus.MISSING: "is not in the input; its tables stay as the last audit left them",
    ResumeStatus.RECREATED: "was recreated together with its topic",
    ResumeStatus.DIVERGED: "holds different bytes where the last audit stopped; read from its start",
    ResumeStatus.CLEANED: "was deleted beyond the offset that the last audit had read; read from its start",
    ResumeStatus.LONGER: "starts at an earlier offset than before; read from its start",
    ResumeStatus.CHANGED: "is read from its start: what the last audit left was changed (RESUME_STATE_CHANGED)",
    ResumeStatus.REREAD: "is read from its start again: records were missing, copies differ, or --afresh names it",
}

DAMAGED = "is read from its start: its row of carried_logs is damaged"
VACUUMED = (
    "files of the last audit's tables are gone or truncated, as by VACUUM; all logs are read from their start"
)
ALL_LOGS = "all"
"""Stands for all log partitions where names of those to read from their start are given."""

_NAME = re.compile(rf"{STATE_TOPIC}-(\d+)")

_LOG = logging.getLogger("share_state")


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last audit that a warehouse committed, or the last run of another command.

    Attributes:
        tables: its tables.
        checkpoints: name of a log partition -> its row of `carried_logs`.
        logs: name of each log partition that it read -> next offset.
        is_vacuumed: whether files of its tables are gone or truncated.
        damaged, changed: names of the logs whose row of `carried_logs` is not what a run writes, or not what
            it wrote.
    """

    tables: CommittedTables
    checkpoints: Mapping[str, str]
    logs: Mapping[str, int]
    is_vacuumed: bool = False
    damaged: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, warehouse: str, command: str | None = COMMAND) -> "LastRun | None":
        """The last run of a command, by default of `audit`, None for any; None if there is none.

        Raises:
            WarehouseError: if the warehouse cannot be read.
        """
        try:
            tables = CommittedTables(warehouse, command)
        except NothingCommittedError:
            return None
        if tables.lack_files():
            return cls(tables, {}, {}, is_vacuumed=True)
        # Earlier releases named logs without a number by the path of their folder.
        rows = {row["log"]: row["carried"] for row in tables.read("carried_logs").to_pylist()}
        logs = {
            name: offset for name, offset in dict(tables.run["progress"]).items() if _NAME.fullmatch(name)
        }
        checkpoints = dict[str, str]()
        damaged = set[str]()
        changed = set[str]()
        for name in logs.keys() & rows.keys():
            try:
                is_known = resume_point_of(rows[name]) is not None
            except DamagedCheckpointError:
                damaged.add(name)
                continue
            if not is_as_written(name, rows[name]):
                changed.add(name)
            elif is_known:
                checkpoints[name] = rows[name]
        return cls(tables, checkpoints, logs, damaged=frozenset(damaged), changed=frozenset(changed))

    def changed_share_partitions(self, names: Collection[str]) -> set[str]:
        """Those of some logs whose rows of `carried_share_partitions` are not those that the last run wrote."""
        expected = {name: digest_of_rows(self.checkpoints[name]) for name in names}
        digests = {name: RowDigest() for name, digest in expected.items() if digest is not None}
        if not digests:
            return set()
        for rows in self.tables.batches(CHECKPOINT_TABLE):
            logs = rows["log"].unique().drop_null().to_pylist()
            for name in digests.keys() & {*logs}:
                digests[name].take(rows if len(logs) == 1 else rows.filter(pc.field("log") == name))
        return {name for name, digest in digests.items() if digest.text != expected[name]}

    @property
    def cluster(self) -> str | None:
        """The cluster name of the latest audit that has one."""
        return next(iter(self.tables.runs["cluster"].drop_null().to_pylist()), None)

    def runs_since(self, earliest: datetime) -> tuple[set[str], set[str]]:
        """The run ids of audits that finished at or after a time, and of the earlier ones.

        The last audit is kept.
        """
        recent = self.tables.runs.filter(pc.field("finished") >= earliest)["run_id"].to_pylist()
        kept = {*recent, self.tables.run["run_id"]}
        return kept, set(self.tables.runs["run_id"].to_pylist()) - kept


def resume_plan(
    plan: FoldPlan, last: LastRun | None, afresh: Collection[str] = (), full_read_every: int = 1
) -> tuple[FoldPlan, list[str]]:
    """Plan how to read what the last audit has not read.

    Args:
        plan: the log partitions as they are found now.
        last: the last audit.
        afresh: names of log partitions to read from their start, or ALL_LOGS.
        full_read_every: every so many audits reads all of each topic-partition with control records.
    Returns:
        The plan, which applies every rule to the rest of each log partition, and has an empty log for each
        that is missing; and a note for each log partition that did more than grow.
    Raises:
        InputError: if a segment cannot be read, or `afresh` names a missing log partition.
    """
    points = {name: resume_point_of(row) for name, row in last.checkpoints.items()} if last else {}
    if points and any(log.source is not None and log.partition is None for log in plan.logs):
        raise InputError(
            f"{plan.logs[0].name}: has no partition numbers, but the warehouse resumes from logs that have them; "
            "give the segments, or another warehouse"
        )
    present = plan.logs
    by_name = {log.name: log for log in present}
    if unknown := sorted({*afresh} - by_name.keys() - {ALL_LOGS}):
        raise InputError(f"--afresh: {unknown[0]} is not in the input; found {', '.join(sorted(by_name))}")
    logs, statuses = list[LogPartition](), dict[str, ResumeStatus]()
    for log in present:
        left, status = log, ResumeStatus.CHANGED if last and log.name in last.changed else ResumeStatus.NEW
        if (point := points.get(log.name)) is not None and _is_resumable(log, point):
            is_named = log.name in afresh or ALL_LOGS in afresh
            # Missing records stay missing while no byte of the input changes.
            is_sound = point.is_sound or (not is_named and point.input == digest_of_logs([log]))
            left, status = (
                (log, ResumeStatus.REREAD) if is_named else resume(log, replace(point, is_sound=is_sound))
            )
        logs.append(left)
        statuses[log.name] = status
    for name in _missing(present, statuses, points, last):
        logs.append(_empty_log(name, points.get(name), (last.logs[name] if last else None) or 0))
        # What was kept of it is not to be believed.
        is_lost = last is not None and name in last.changed | last.damaged
        statuses[name] = ResumeStatus.CHANGED if is_lost else ResumeStatus.MISSING
    stated_partitions = None if plan.options.partition_count.is_inferred else plan.state_partitions
    plan = plan.with_options(partition_count=count_partitions(logs, stated_partitions))
    files = last.tables.files(CHECKPOINT_TABLE) if points and last else []
    control = _LastControlRecords.of(last, logs, full_read_every)
    resumed = dict[str, ResumedLog]()
    # What is left of an audit whose tables lack files: how far it has read.
    counted = dict(last.tables.run["progress"]) if last is not None and last.is_vacuumed else {}
    for log in logs:
        row = last.checkpoints.get(log.name) if last else None
        is_state = log.topic == STATE_TOPIC
        own = [one for one in files if row and _may_hold(one, log.name)] if is_state else control.states
        whole = by_name.get(log.name) if log.source is None else None
        is_compared = is_state and not {log.name, ALL_LOGS} & {*afresh}
        paths = tuple(one["path"] for one in own)
        resumed[log.name] = ResumedLog(
            statuses[log.name],
            row,
            paths,
            whole,
            is_compared=is_compared,
            counted_to=counted.get(log.name, 0),
        )
        if not is_state:
            resumed[log.name] = control.added_to(resumed[log.name], log, afresh)
    notes = [f"{name} {_NOTES[status]}" for name, status in sorted(statuses.items()) if status in _NOTES]
    if last is not None and last.is_vacuumed:
        notes.append(VACUUMED)
    notes += [f"{name} {DAMAGED}" for name in sorted(last.damaged & by_name.keys() if last else ())]
    seen = dict(last.tables.run["progress"]) if last else {}
    notes += [
        f"{name} is not in the input any more; its rows are left out" for name in sorted({*seen} - {*resumed})
    ]
    return replace(plan, logs=logs, resumed=resumed, judging=JUDGE_ALL), notes


def without_changed(plan: FoldPlan, last: LastRun) -> tuple[FoldPlan, list[str]]:
    """The plan of `resume_plan` without the states that another program changed since the last run wrote them.

    Returns:
        The plan, which reads their logs from the start; and a note for each of them.
    """
    resumed = dict(plan.resumed or {})
    resumable = [
        log.name for log in plan.logs if log.topic == STATE_TOPIC and resumed[log.name].checkpoint is not None
    ]
    changed = last.changed_share_partitions(resumable)
    for name in changed:
        resumed[name] = ResumedLog(ResumeStatus.CHANGED, found=resumed[name].found)
    logs = [(log.name in changed and resumed[log.name].found) or log for log in plan.logs]
    notes = [f"{name} {_NOTES[ResumeStatus.CHANGED]}" for name in sorted(changed)]
    return replace(plan, logs=logs, resumed=resumed), notes


def is_unchanged(plan: FoldPlan) -> bool:
    """Whether the last audit has read everything that the log partitions hold."""
    statuses = {one.status for one in (plan.resumed or {}).values()}
    known = {ResumeStatus.UNCHANGED, ResumeStatus.BEHIND, ResumeStatus.UNREADABLE, ResumeStatus.MISSING}
    return statuses <= known and all(log.topic == STATE_TOPIC for log in plan.logs)


def _may_hold(file: dict[str, Any], name: str) -> bool:
    least, greatest = file.get("min.log"), file.get("max.log")
    return least is None or greatest is None or least <= name <= greatest


@dataclass(frozen=True, slots=True)
class _LastControlRecords:
    """What the last audit knew of control records; empty without one.

    Attributes:
        states, history: its files of `share_partition_state` and `share_partition_history`; no history if all
            of each topic-partition is to be read.
        run_id: its run.
        read_to: log partition -> the offset up to which it read.
    """

    states: Sequence[dict[str, Any]] = ()
    history: tuple[str, ...] = ()
    run_id: str = ""
    read_to: Mapping[str, int | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls, last: LastRun | None, logs: Sequence[LogPartition], full_read_every: int
    ) -> "_LastControlRecords":
        """What an audit left that is the last one of some logs."""
        if last is None or last.is_vacuumed or all(log.topic == STATE_TOPIC for log in logs):
            return cls()
        tables, run_id = last.tables, last.tables.run["run_id"]
        latest = tables.runs["notes"].to_pylist()[: full_read_every - 1]
        sought = [any(SOUGHT_NOTE in note for note in notes or ()) for notes in latest]
        is_due = len(sought) == full_read_every - 1 and all(sought)
        history = [] if is_due else [one for one in tables.files(HISTORY_TABLE) if _may_be_of(one, run_id)]
        paths = tuple(one["path"] for one in history)
        return cls(tables.files(STATE), paths, run_id, dict(tables.run["progress"]))

    def added_to(self, resumed: ResumedLog, log: LogPartition, afresh: Collection[str]) -> ResumedLog:
        """How a log is resumed, with what lets it be read from an offset on unless `afresh` names it."""
        if {log.name, ALL_LOGS} & {*afresh}:
            return resumed
        read_to = self.read_to.get(log.name) or 0
        return replace(resumed, history=self.history, run_id=self.run_id, read_to=read_to)


def _may_be_of(file: dict[str, Any], run_id: str) -> bool:
    least, greatest = file.get("min.run_id"), file.get("max.run_id")
    return least is None or greatest is None or least <= run_id <= greatest


def _is_resumable(log: LogPartition, point: ResumePoint) -> bool:
    """Whether reading can resume where an audit stopped: only in segments of state records."""
    return log.topic == STATE_TOPIC and log.source is None and point.position >= 0


def _missing(
    found: Sequence[LogPartition],
    statuses: Mapping[str, ResumeStatus],
    points: Mapping[str, ResumePoint | None],
    last: LastRun | None,
) -> list[str]:
    """The log partitions that the last audit read and that are missing now, unless they belong to an earlier topic."""
    gone = sorted((last.logs if last else {}).keys() - {log.name for log in found})
    now = {log.topic_id for log in found if log.topic_id is not None}
    before = {name: point.topic_id for name, point in points.items() if point is not None}
    is_other_topic = now and any(topic_id is not None and topic_id not in now for topic_id in before.values())
    if is_other_topic or ResumeStatus.RECREATED in statuses.values():
        return [name for name in gone if before.get(name) in now]
    return gone


def _empty_log(name: str, point: ResumePoint | None, next_offset: int) -> LogPartition:
    """An empty log partition in place of one that is missing now."""
    start = point.log_start_offset if point is not None else next_offset
    number = int(name.rpartition("-")[2])
    return LogPartition(STATE_TOPIC, number, (Segment(f"{name}/gone", start, 0),), start)
