"""What the last audit of a warehouse left, and how each log partition goes on from there."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from share_state.delta.reader import CommittedTables
from share_state.errors import InputError, NothingCommittedError
from share_state.fold.checkpoint import mark_of
from share_state.pipeline.plan import Resumed, Work
from share_state.sources.discovery import STATE_TOPIC, LogPartition, Segment
from share_state.sources.resume import ANEW, Fate, resume

COMMAND = "audit"

_TOLD = {
    Fate.BEHIND: "ends before what the last audit read (a replica that lags); nothing was taken back",
    Fate.MISSING: "is not in the input; it stands as the last audit left it",
    Fate.BEGUN_AGAIN: "began again: the topic was made anew",
    Fate.DIVERGED: "holds other bytes where the last audit stopped; read anew",
    Fate.CLEANED: "was cleaned past what the last audit had read; read anew",
    Fate.LONGER: "reaches further back than before; read anew",
}


@dataclass(frozen=True, slots=True)
class LastAudit:
    """The last audit that a warehouse committed.

    Attributes:
        tables: its tables.
        carried: name of a log partition -> its row of `carried_logs`.
    """

    tables: CommittedTables
    carried: dict[str, str]

    @classmethod
    def of(cls, warehouse: str) -> "LastAudit | None":
        """The last audit of a warehouse, None where there was none.

        Raises:
            WarehouseError: if a warehouse is there and cannot be read.
        """
        try:
            tables = CommittedTables(warehouse, COMMAND)
        except NothingCommittedError:
            return None
        return cls(tables, {row["log"]: row["carried"] for row in tables.read("carried_logs").to_pylist()})

    def runs_since(self, earliest: datetime) -> tuple[set[str], set[str]]:
        """The audits that finished at or after a time, the last one in any case, and those before."""
        recent = self.tables.runs.filter(pc.field("finished") >= earliest)["run_id"].to_pylist()
        kept = {*recent, self.tables.run["run_id"]}
        return kept, set(self.tables.runs["run_id"].to_pylist()) - kept


def continued(work: Work, last: LastAudit | None) -> tuple[Work, list[str]]:
    """The work that is left, and what is worth a note.

    Args:
        work: the log partitions as they are found now.
        last: the last audit.
    Returns:
        The work with what is left of each log partition, those that are missing now included; a sentence for each log
        partition that did more than grow.
    Raises:
        InputError: if a segment cannot be read, or a text tells no partition where the last audit knew them.
    """
    carried = last.carried if last else {}
    if carried and any(log.source is not None and log.partition is None for log in work.logs):
        raise InputError(
            f"{work.logs[0].name}: tells no partition, and the warehouse goes on from logs that do; "
            "give the segments, or another warehouse"
        )
    files = last.tables.files("carried_share_partitions") if last else []
    logs, audited = list[LogPartition](), dict[str, Resumed]()
    for log in (*work.logs, *_missing(work.logs, carried)):
        row = carried.get(log.name)
        mark = mark_of(row) if row else None
        left, fate = (log, Fate.NEW) if mark is None or not _goes_on(log) else resume(log, mark)
        fate = Fate.MISSING if _is_gone(log) else fate
        of_log = tuple(file["path"] for file in files if _may_hold(file, log.name))
        logs.append(left)
        audited[log.name] = Resumed(fate) if fate in ANEW else Resumed(fate, row, of_log)
    notes = [f"{name} {_TOLD[known.fate]}" for name, known in sorted(audited.items()) if known.fate in _TOLD]
    return replace(work, logs=logs, audited=audited), notes


def is_unchanged(work: Work) -> bool:
    """True where no log partition has anything to be read that the last audit did not read."""
    fates = {resumed.fate for resumed in (work.audited or {}).values()}
    known = {Fate.UNCHANGED, Fate.BEHIND, Fate.MISSING}
    return fates <= known and all(log.topic == STATE_TOPIC for log in work.logs)


def _may_hold(file: dict[str, Any], name: str) -> bool:
    least, greatest = file.get("min.log"), file.get("max.log")
    return least is None or greatest is None or least <= name <= greatest


def _goes_on(log: LogPartition) -> bool:
    """Whether reading can go on where an audit stopped: only segments of state records hold such a place."""
    return log.topic == STATE_TOPIC and log.source is None


def _missing(logs: Sequence[LogPartition], carried: dict[str, str]) -> list[LogPartition]:
    found = {log.name for log in logs}
    return [_gone(name, json.loads(row)) for name, row in sorted(carried.items()) if name not in found and mark_of(row)]


def _gone(name: str, carried: dict[str, Any]) -> LogPartition:
    """A log partition without a byte, as far as the last audit knew it."""
    topic, _, number = name.rpartition("-")
    cells = carried["cells"]
    start = max(carried["mark"]["log_start_offset"], cells[0][1] if cells else 0)
    named = topic == STATE_TOPIC and number.isdecimal()
    return LogPartition(STATE_TOPIC, int(number) if named else None, (Segment(f"{name}/gone", 0, 0),), start)


def _is_gone(log: LogPartition) -> bool:
    return len(log.segments) == 1 and log.segments[0].path.endswith("/gone")
