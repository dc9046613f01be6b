"""The share-partitions and share groups that the report of an audit shows one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.committed import CommittedTables
from share_state.fold.history import HISTORY_TABLE
from share_state.fold.limits import Limits
from share_state.fold.states import KEY, SHARE_GROUP_STATE
from share_state.kafka.delivery_states import DeliveryState
from share_state.report.broken_rules import MOST_SEVERE_FIRST
from share_state.report.share_partitions import (
    IDENTITY_COLUMNS,
    STATE,
    ascending,
    descending,
    joined,
    null_unknown,
    number_rows,
    rows_by_place,
    select_share_partitions,
)
from share_state.report.troubles import (
    LACKS_RECORDS,
    WaitsFor,
    cause,
    read_troubles,
    trouble_of_rule,
    troubles_of,
    waits_for,
    worst_trouble,
)
from share_state.schema.declarations import table_schema

SUSPECT = "suspect"
"""The status of a share-partition whose state cannot be trusted, and that has no error."""

_MAX_RANGES = 2000
_MAX_FINDINGS = 12
_MAX_AUDITS = 200
_RANGE = ("first_offset", "last_offset", "record_count", "state", "delivery_count", "gap")
_AUDIT = ("run_id", "time", "start_offset", "lag", "verdict")
_FINDING = ("rule", "severity", "count", "new", "open", "offset", "message")


@dataclass(frozen=True, slots=True)
class FlaggedSharePartition:
    """A share-partition that needs attention, with what the tables hold about it.

    Attributes:
        now: as the latest audit saw it; the columns of `_survey`.
        state: its row of share_partition_state without state_batches; None if it has none.
        ranges: in flight, from the start offset on, at most 2000; now["ranges"] is how many there are.
        findings: its findings by rule, the most severe first, at most 12: rule, severity, count, new, open;
            offset and message of the worst.
        history: its last 200 audits, the oldest first: run_id, time, start_offset, lag, verdict.
        troubles: code of TROUBLES -> message, the most severe first; without those that are acknowledged.
        waits_for: what SPSO waits for; None if nothing in flight is unfinished.
        limit: the delivery limit of its group.
    """

    now: dict[str, Any]
    state: dict[str, Any] | None
    ranges: tuple[dict[str, Any], ...]
    findings: tuple[dict[str, Any], ...]
    history: tuple[dict[str, Any], ...]
    troubles: Mapping[str, str]
    waits_for: WaitsFor | None
    limit: int

    @property
    def trouble(self) -> str | None:
        """The most severe trouble; None if it has none."""
        return next(iter(self.troubles), None)

    @property
    def status(self) -> str:
        """Its verdict, with "+error" if it also has an error; or error, suspect or warning."""
        return self.now["status"]

    @property
    def why(self) -> str:
        """Why it needs attention, in one line: the cause of its worst trouble, as `repair` and `why` name it.

        The verdict, which the status has already, and a rule that means no trouble are not named.
        """
        worst = worst_trouble(self.troubles, self.findings)
        if worst is None:
            return self.now["reason"] or LACKS_RECORDS
        code, message = worst
        text = cause(code, message, self.waits_for, self.limit)
        is_named = code not in self.troubles or self.status.startswith((code, SUSPECT))
        return text if is_named else f"{code}: {text}"


def read_flagged(
    tables: CommittedTables, worst: pa.Table, summary: pa.Table, limits: Limits
) -> tuple[FlaggedSharePartition, ...]:
    """Read what the tables hold about the share-partitions of `_survey`, in this order."""
    if not worst.num_rows:
        return ()
    selected = number_rows(worst)
    columns = [name for name in table_schema("share_partition_state").names if name != "state_batches"]
    tables = tables.of(selected)
    states = _read_first(tables, "share_partition_state", columns, selected, descending("last_offset"), 1)
    ranges = _read_first(tables, "in_flight", _RANGE, selected, ascending("first_offset"), _MAX_RANGES)
    audits = _read_first(tables, HISTORY_TABLE, _AUDIT, selected, descending("time"), _MAX_AUDITS)
    findings: dict[int, list[dict[str, Any]]] = {}
    if summary.num_rows:
        places = selected.select([*IDENTITY_COLUMNS, "place"])
        rows = joined(summary, places, IDENTITY_COLUMNS)
        findings = rows_by_place(_first_of_each(rows, MOST_SEVERE_FIRST, _MAX_FINDINGS), _FINDING)
    reported = _reported_troubles(tables, selected, limits)
    return tuple(
        _flagged(
            now,
            state=next(iter(states.get(place, ())), None),
            ranges=ranges.get(place, []),
            findings=findings.get(place, []),
            audits=audits.get(place, []),
            reported=reported.get(place, []),
            limits=limits,
        )
        for place, now in enumerate(worst.to_pylist())
    )


def _reported_troubles(
    tables: CommittedTables, selected: pa.Table, limits: Limits
) -> dict[int, list[dict[str, Any]]]:
    """The rows of `read_troubles` about each selected share-partition, by its place."""
    where = pc.field("dialect") == SHARE_GROUP_STATE
    states = tables.read(STATE, where, (*KEY, "snapshot_offset"))
    rows = read_troubles(tables, where, states, limits).drop_columns("topic_key")
    return rows_by_place(select_share_partitions(rows, selected), ("trouble", "message"))


def _flagged(
    now: dict[str, Any],
    *,
    state: dict[str, Any] | None,
    ranges: Sequence[dict[str, Any]],
    findings: Sequence[dict[str, Any]],
    audits: Sequence[dict[str, Any]],
    reported: Sequence[Mapping[str, Any]],
    limits: Limits,
) -> FlaggedSharePartition:
    is_open = dict[str | None, bool]()
    for row in findings:
        code = trouble_of_rule(row["rule"])
        is_open[code] = is_open.get(code, False) or row["open"] > 0
    # A verdict that is acknowledged is not in the status.
    judged = now if now["status"].startswith(now["verdict"]) else {**now, "verdict": None}
    troubles = troubles_of(reported, judged)
    with_state = ({**row, "delivery_state": _STATE_CODES.get(row["state"], -1)} for row in ranges)
    return FlaggedSharePartition(
        now=now,
        state=state,
        ranges=tuple(ranges),
        findings=tuple(findings),
        history=tuple(reversed(audits)),
        troubles={code: text for code, text in troubles.items() if is_open.get(code, True)},
        waits_for=waits_for(now["effective_start_offset"], with_state),
        limit=limits.of_group("delivery_count", now["group_id"]),
    )


_STATE_CODES = {state.name: int(state) for state in DeliveryState}


def _read_first(
    tables: CommittedTables,
    table: str,
    columns: Sequence[str],
    selected: pa.Table,
    order: Sequence[tuple[str, str]],
    most: int,
) -> dict[int, list[dict[str, Any]]]:
    """The first `most` rows, in an order, of each selected share-partition, by its place."""
    first = list[pa.Table]()
    for piece in tables.batches(table, list(dict.fromkeys((*KEY, *columns)))):
        rows = select_share_partitions(piece, selected)
        if rows.num_rows:
            first = [_first_of_each(pa.concat_tables([*first, null_unknown(rows)]), order, most)]
    return rows_by_place(first[0], columns) if first else {}


def _first_of_each(rows: pa.Table, order: Sequence[tuple[str, str]], most: int) -> pa.Table:
    """The first `most` rows of each place, in an order."""
    rows = rows.sort_by([*ascending("place"), *order])
    place = rows["place"].to_numpy()
    rank = np.arange(len(place)) - np.searchsorted(place, place)
    return rows.filter(pa.array(rank < most)).combine_chunks()


@dataclass(frozen=True, slots=True)
class FlaggedGroup:
    """A group with share-partitions that need attention.

    Attributes:
        group_id: the group.
        places: indexes of its share-partitions in `AuditReport.flagged`.
        history: as of `GroupSummary`.
    """

    group_id: str
    places: tuple[int, ...]
    history: tuple[dict[str, Any], ...]


def list_flagged_groups(
    flagged: Sequence[FlaggedSharePartition], histories: Mapping[str, tuple[dict[str, Any], ...]]
) -> tuple[FlaggedGroup, ...]:
    """The groups of flagged share-partitions, in the order of their worst one; with the history of each group."""
    places: dict[str, list[int]] = {}
    for place, one in enumerate(flagged):
        places.setdefault(one.now["group_id"], []).append(place)
    return tuple(FlaggedGroup(name, tuple(own), histories.get(name, ())) for name, own in places.items())
