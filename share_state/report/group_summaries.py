"""All groups of a warehouse in one line each, and what has changed since the last reported audit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.committed import CommittedTables
from share_state.fold.history import HISTORY_TABLE, VERDICTS
from share_state.fold.states import KEY
from share_state.report.share_partitions import (
    IDENTITY_COLUMNS,
    add_topic_key,
    ascending,
    group_pieces,
    latest_audit_filter,
    latest_has_rows,
    left_join,
    with_unreported_verdicts,
)

_MAX_TREND = 30
_OK = VERDICTS[-1]


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group at the latest audit.

    Attributes:
        group_id: the group.
        verdict: the worst of its share-partitions.
        share_partitions: how many are live.
        lag: records, of the share-partitions whose lag is known; None if no lag is known.
        unknown_lags: of how many share-partitions the lag is not known.
        members: number of members; None if the input has no group side.
        rate: records acknowledged per second since the last audit; None if that is not known.
        oldest_unfinished: when the oldest record that the group has not finished was written; None if nothing is
            unfinished or no time is known.
        history: its last 30 audits, the oldest first: time; behind: records behind, or waiting if the lag is not
            known; troubled: share-partitions with a verdict other than OK.
    """

    group_id: str
    verdict: str
    share_partitions: int
    lag: int | None
    unknown_lags: int
    members: int | None
    rate: float | None
    oldest_unfinished: datetime | None
    history: tuple[dict[str, Any], ...]


def read_group_summaries(tables: CommittedTables) -> tuple[GroupSummary, ...]:
    """Every group of the latest audit, the worst first, then by lag.

    Raises:
        WarehouseError: if the latest run is no audit, or a table is gone.
    """
    columns = (*KEY, "run_id", "verdict", "lag", "oldest_unfinished_time", "acknowledged_records")
    pieces = tables.batches(HISTORY_TABLE, columns, latest_audit_filter(tables))
    summed = group_pieces(
        (_measured(with_unreported_verdicts(tables, piece)) for piece in pieces),
        ["group_id"],
        {"one": "sum", "rank": "min", "lag": "sum", "has_lag": "sum", "oldest_unfinished_time": "min",
         "acknowledged_records": "sum"},
    )  # fmt: skip
    if summed is None:
        return ()
    members = dict[str, int]()
    if tables.holds("share_groups"):
        rows = tables.read("share_groups", columns=["group_id", "members"])
        members = dict(zip(*(rows[name].to_pylist() for name in ("group_id", "members")), strict=True))
    histories, is_new = read_histories(tables), latest_has_rows(tables)
    summaries = list[GroupSummary]()
    for row in summed.to_pylist():
        history = histories.get(row["group_id"], ())
        summaries.append(
            GroupSummary(
                group_id=row["group_id"],
                verdict=VERDICTS[row["rank"]],
                share_partitions=row["one"],
                lag=row["lag"] if row["has_lag"] else None,
                unknown_lags=row["one"] - row["has_lag"],
                members=members.get(row["group_id"]),
                rate=_rate(row["acknowledged_records"], history) if is_new else None,
                oldest_unfinished=row["oldest_unfinished_time"],
                history=history,
            )
        )
    return tuple(
        sorted(summaries, key=lambda one: (VERDICTS.index(one.verdict), -(one.lag or 0), one.group_id))
    )


def _measured(rows: pa.Table) -> pa.Table:
    rank = pc.index_in(rows["verdict"], pa.array(VERDICTS))
    # A verdict of a later release ranks just before OK.
    return (
        rows.append_column("one", pa.repeat(pa.scalar(1, pa.int64()), len(rows)))
        .append_column("rank", pc.fill_null(rank, len(VERDICTS) - 2))
        .append_column("has_lag", pc.cast(pc.is_valid(rows["lag"]), pa.int64()))
    )


def _rate(acknowledged: int | None, history: Sequence[dict[str, Any]]) -> float | None:
    """Records acknowledged per second between the last two audits."""
    if acknowledged is None or len(history) < 2:
        return None
    seconds = (history[-1]["time"] - history[-2]["time"]).total_seconds()
    return acknowledged / seconds if seconds > 0 else None


def read_histories(tables: CommittedTables) -> dict[str, tuple[dict[str, Any], ...]]:
    """Group -> `GroupSummary.history`."""
    audits_run = tables.runs.filter(pc.field("command") == tables.run["command"])
    recent = audits_run["run_id"].to_pylist()[:_MAX_TREND]
    columns = ("group_id", "time", "verdict", "lag", "waiting_records", "archiving_records")

    def measured(rows: pa.Table) -> pa.Table:
        behind = pc.coalesce(rows["lag"], pc.add(rows["waiting_records"], rows["archiving_records"]))
        troubled = pc.cast(pc.not_equal(rows["verdict"], _OK), pa.int64())
        return rows.append_column("behind", behind).append_column("troubled", troubled)

    pieces = map(
        measured,
        tables.batches(HISTORY_TABLE, columns, pc.field("run_id").isin(pa.array(recent, pa.string()))),
    )
    summed = group_pieces(pieces, ["group_id", "time"], {"behind": "sum", "troubled": "sum"})
    audits = dict[str, list[dict[str, Any]]]()
    for row in summed.sort_by("time").to_pylist() if summed is not None else ():
        audits.setdefault(row["group_id"], []).append(row)
    return {name: tuple(rows[-_MAX_TREND:]) for name, rows in audits.items()}


@dataclass(frozen=True, slots=True)
class ChangedVerdict:
    """A share-partition whose trouble began or ended since the last reported audit.

    Attributes:
        row: its key columns.
        before, now: its verdict then and now; `before` is None if it was not there, `now` if it is gone.
    """

    row: dict[str, Any]
    before: str | None
    now: str | None


@dataclass(frozen=True, slots=True)
class SinceLastAudit:
    """What has changed since the last reported audit.

    Attributes:
        time: the end of the records that it read; None if they have no times.
        began: share-partitions that were OK, or not there, and are not OK now.
        healed: those that were not OK, and are OK now.
        gone: those that were not OK, and are no longer live.
        remain: how many are not OK, as before.
    """

    time: datetime | None
    began: tuple[ChangedVerdict, ...]
    healed: tuple[ChangedVerdict, ...]
    gone: tuple[ChangedVerdict, ...]
    remain: int


def read_since_last_audit(tables: CommittedTables) -> SinceLastAudit | None:
    """Compare the verdicts of the latest audit with those of the last reported one.

    None if it is the first, or if files of that one's tables are gone, as after a stream in the same warehouse.
    """
    _, reported = tables.unreported()
    if reported is None or not reported.holds(HISTORY_TABLE) or reported.lack_files():
        return None
    is_troubled = pc.field("verdict") != _OK
    columns = (*KEY, "run_id", "verdict")
    before = reported.read(HISTORY_TABLE, latest_audit_filter(reported) & is_troubled, columns)
    earlier = add_topic_key(before).rename_columns({"verdict": "before"})
    changed = list[pa.Table]()
    for piece in tables.batches(HISTORY_TABLE, columns, latest_audit_filter(tables)):
        rows = left_join(
            with_unreported_verdicts(tables, piece),
            earlier.select([*IDENTITY_COLUMNS, "before"]),
            {"before": pa.string()},
        )
        changed.append(rows.filter(is_troubled | pc.field("before").is_valid()))
    rows = pa.concat_tables(changed).sort_by(ascending(*KEY[1:])).to_pylist() if changed else []
    live = {tuple(row[name] for name in IDENTITY_COLUMNS) for row in rows}
    found = [ChangedVerdict(row, row["before"], row["verdict"]) for row in rows]
    return SinceLastAudit(
        time=reported.run["log_time"],
        began=tuple(one for one in found if one.before is None),
        healed=tuple(one for one in found if one.now == _OK),
        gone=tuple(
            ChangedVerdict(row, row["before"], None)
            for row in earlier.to_pylist()
            if tuple(row[name] for name in IDENTITY_COLUMNS) not in live
        ),
        remain=sum(one.before is not None and one.now != _OK for one in found),
    )
