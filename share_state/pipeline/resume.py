"""Resumes from the last audit of a warehouse: what is left to read of each log partition, and what changed."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.inputs import JUDGE_ALL
from share_state.delta.reader import CommittedTables
from share_state.errors import InputError, NothingCommittedError
from share_state.fold.checkpoint import resume_point_of
from share_state.pipeline.plan import FoldPlan, ResumedLog
from share_state.sources.discovery import STATE_TOPIC, LogPartition, Segment
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.sources.object_stores import Store, StorePath, StoreUnavailableError, read_error, store_error, to_path
from share_state.sources.resume import READ_FROM_START, ResumeStatus, resume

if TYPE_CHECKING:
    from share_state.sources.kafka_cluster import KafkaSource

COMMAND = "audit"

_NOTES = {
    ResumeStatus.BEHIND: "ends before what the last audit read (a replica that lags); nothing was removed",
    ResumeStatus.MISSING: "is not in the input; its tables stay as the last audit left them",
    ResumeStatus.RECREATED: "was recreated together with its topic",
    ResumeStatus.DIVERGED: "holds different bytes where the last audit stopped; read from its start",
    ResumeStatus.CLEANED: "was deleted beyond the offset that the last audit had read; read from its start",
    ResumeStatus.LONGER: "starts at an earlier offset than before; read from its start",
}


@dataclass(frozen=True, slots=True)
class LastAudit:
    """The last audit that a warehouse committed.

    Attributes:
        tables: its tables.
        checkpoints: name of a log partition -> its row of `carried_logs`.
    """

    tables: CommittedTables
    checkpoints: dict[str, str]

    @classmethod
    def of(cls, warehouse: str) -> "LastAudit | None":
        """The last audit of a warehouse; None if there is none.

        Raises:
            WarehouseError: if the warehouse cannot be read.
        """
        try:
            tables = CommittedTables(warehouse, COMMAND)
        except NothingCommittedError:
            return None
        return cls(tables, {row["log"]: row["carried"] for row in tables.read("carried_logs").to_pylist()})

    @property
    def cluster(self) -> str | None:
        """The cluster that the latest audit with a name names."""
        return next(iter(self.tables.runs["cluster"].drop_null().to_pylist()), None)

    def runs_since(self, earliest: datetime) -> tuple[set[str], set[str]]:
        """The run ids of audits that finished at or after a time, and of the earlier ones; the last audit is kept."""
        recent = self.tables.runs.filter(pc.field("finished") >= earliest)["run_id"].to_pylist()
        kept = {*recent, self.tables.run["run_id"]}
        return kept, set(self.tables.runs["run_id"].to_pylist()) - kept


def resume_plan(plan: FoldPlan, last: LastAudit | None) -> tuple[FoldPlan, list[str]]:
    """The plan of what the last audit has not read.

    Args:
        plan: the log partitions as they are found now.
        last: the last audit.
    Returns:
        The plan, with every rule, of what is left of each log partition, including those that are missing now; a
        sentence for each log partition that did more than grow.
    Raises:
        InputError: if a segment cannot be read, or the input has no partition numbers but the last audit had.
    """
    checkpoints = last.checkpoints if last else {}
    if checkpoints and any(log.source is not None and log.partition is None for log in plan.logs):
        raise InputError(
            f"{plan.logs[0].name}: has no partition numbers, but the warehouse resumes from logs that have them; "
            "give the segments, or another warehouse"
        )
    files = last.tables.files("carried_share_partitions") if last else []
    states = tuple(file["path"] for file in last.tables.files("share_partition_state")) if last else ()
    logs, resumed = list[LogPartition](), dict[str, ResumedLog]()
    for log in (*plan.logs, *_missing(plan.logs, checkpoints)):
        row = checkpoints.get(log.name)
        mark = resume_point_of(row) if row else None
        left, status = (log, ResumeStatus.NEW) if mark is None or not _is_resumable(log) else resume(log, mark)
        status = ResumeStatus.MISSING if _is_gone(log) else status
        of_log = tuple(file["path"] for file in files if _may_hold(file, log.name))
        logs.append(left)
        if log.topic != STATE_TOPIC:
            resumed[log.name] = ResumedLog(status, files=states)
            continue
        resumed[log.name] = ResumedLog(status) if status in READ_FROM_START else ResumedLog(status, row, of_log)
    notes = [f"{name} {_NOTES[known.status]}" for name, known in sorted(resumed.items()) if known.status in _NOTES]
    return replace(plan, logs=logs, resumed=resumed, judging=JUDGE_ALL), notes


def is_unchanged(plan: FoldPlan) -> bool:
    """Whether the last audit has read everything that the log partitions hold."""
    statuses = {one.status for one in (plan.resumed or {}).values()}
    known = {ResumeStatus.UNCHANGED, ResumeStatus.BEHIND, ResumeStatus.MISSING}
    return statuses <= known and all(log.topic == STATE_TOPIC for log in plan.logs)


def _may_hold(file: dict[str, Any], name: str) -> bool:
    least, greatest = file.get("min.log"), file.get("max.log")
    return least is None or greatest is None or least <= name <= greatest


def _is_resumable(log: LogPartition) -> bool:
    """Whether reading can resume where an audit stopped: only in segments of state records."""
    return log.topic == STATE_TOPIC and log.source is None


def _missing(logs: Sequence[LogPartition], checkpoints: dict[str, str]) -> list[LogPartition]:
    found = {log.name for log in logs}
    gone = {name: row for name, row in sorted(checkpoints.items()) if name not in found and resume_point_of(row)}
    return [_empty_log(name, json.loads(row)) for name, row in gone.items()]


def _empty_log(name: str, checkpoint: dict[str, Any]) -> LogPartition:
    """An empty log partition in place of one that is missing now."""
    topic, _, number = name.rpartition("-")
    cells = checkpoint["cells"]
    start = max(checkpoint["mark"]["log_start_offset"], cells[0][1] if cells else 0)
    named = topic == STATE_TOPIC and number.isdecimal()
    return LogPartition(STATE_TOPIC, int(number) if named else None, (Segment(f"{name}/gone", 0, 0),), start)


def _is_gone(log: LogPartition) -> bool:
    return len(log.segments) == 1 and log.segments[0].path.endswith("/gone")


def digest_of_logs(logs: Sequence[LogPartition]) -> str:
    """A hash that changes if the logs change.

    It covers the bytes of local files, size and modification time of files in an object store (which would have to be
    downloaded), and the end offsets of a cluster's log partitions.

    Args:
        logs: log partitions, in the order in which they were found.
    Raises:
        InputError: if a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=8)
    contents = _contents(segment.path for log in logs for segment in log.segments)
    for log in logs:
        digest.update(f"{log.topic} {log.partition}\n".encode())
        if log.source is not None and log.source.form == KAFKA_FORM:
            end = cast("KafkaSource", log.source).end_offset
            digest.update(f"{log.topic_id} {log.log_start_offset} {end}\n".encode())
        for one in log.segments:
            # Several log partitions may share a file, each with its own slice.
            digest.update(f"{one.base_offset} {one.begin} {one.size} {contents[one.path]}\n".encode())
    return digest.hexdigest()


def _contents(paths: Iterable[str]) -> dict[str, str]:
    """Path -> text that identifies its content, for each distinct path."""
    found, stored = dict[str, str](), dict[Store, list[tuple[str, StorePath]]]()
    for path in dict.fromkeys(paths):
        place = to_path(path)
        if isinstance(place, StorePath):
            stored.setdefault(place.store, []).append((path, place))
        else:
            found[path] = _file_hash(path)
    for store, files in stored.items():
        found |= _last_written(store, files)
    return found


def _last_written(store: Store, files: Sequence[tuple[str, StorePath]]) -> dict[str, str]:
    """Size and modification time of files of an object store; a hash of the bytes if it has no modification times."""
    try:
        infos = store.file_system.get_file_info([found.inner for _, found in files])
    except (OSError, pa.ArrowException, StoreUnavailableError) as error:
        raise store_error(files[0][0], error) from None
    found = {}
    for (path, _), info in zip(files, infos, strict=True):
        if not info.is_file:
            raise store_error(path, FileNotFoundError())
        found[path] = _file_hash(path) if info.mtime_ns is None else f"{info.size} {info.mtime_ns}"
    return found


def _file_hash(path: str) -> str:
    try:
        with to_path(path).open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise read_error(path, error) from None
