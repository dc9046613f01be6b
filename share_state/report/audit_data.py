"""The latest audit of a warehouse as plain data: page, metrics and console show an `AuditReport`.

`read_report` reads the tables of the latest audit in four steps: findings by share-partition and rule, a
survey of all live share-partitions that picks those which need attention, the details of these, and the
remaining tables.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.model import Acknowledged
from share_state.delta.committed import CommittedTables
from share_state.errors import pluralize
from share_state.fold.history import HISTORY_TABLE, NO_MEMBERS, OK, OUTCOME_COLUMNS, VERDICTS
from share_state.fold.limits import Limits
from share_state.fold.states import KEY
from share_state.pipeline.resume import COMMAND
from share_state.report.broken_rules import (
    _COUNTS,
    BrokenRule,
    count_findings_by_key,
    list_broken_rules,
    summarize_findings,
)
from share_state.report.cutoff_text import name_holders
from share_state.report.flagged import (
    SUSPECT,
    FlaggedGroup,
    FlaggedSharePartition,
    list_flagged_groups,
    read_flagged,
)
from share_state.report.group_summaries import (
    GroupSummary,
    SinceLastAudit,
    read_group_summaries,
    read_since_last_audit,
)
from share_state.report.share_partitions import (
    JUST_WORSE_THAN_OK,
    PoisonRecords,
    acknowledged_verdicts,
    add_topic_key,
    ascending,
    descending,
    find_poison_records,
    first_rows,
    group_pieces,
    in_million_rows,
    latest_audit_filter,
    latest_has_rows,
    latest_share_partitions,
    left_join,
    plain_run,
    verdict_rank,
    with_open_verdicts,
    with_unreported_verdicts,
)
from share_state.report.troubles import shown_limits
from share_state.rules.breaches import ERROR, SEVERITIES, WARNING, at_or_above
from share_state.sources.topics import Topics

_MOST_AFFECTED_FIRST = descending("errors", "poison_records", "waiting_records", "warnings")
_WORST_FIRST = [*ascending("rank"), *_MOST_AFFECTED_FIRST, *ascending(*KEY)]


def _survey(
    tables: CommittedTables, summary: pa.Table, most: int, acknowledged: Sequence[Acknowledged]
) -> tuple[pa.Table, dict[str, Any]]:
    """Survey all live share-partitions.

    Returns:
        The worst `most` of those that need attention: columns of `latest_share_partitions`, suspect
        (boolean), errors and warnings (numbers of findings), status; and live, verdicts, open_verdicts,
        statuses and flagged_left_out of `AuditReport`.
    """
    suspects = add_topic_key(tables.read("share_partition_state", pc.field("suspect"), [*KEY, "suspect"]))
    counts, latest = count_findings_by_key(summary), latest_audit_filter(tables)
    verdicts = Counter[str]()
    statuses = Counter[tuple[float, str]]()
    flagged = 0
    worst = list[pa.Table]()
    settled = Counter[str]()
    columns = (*KEY, "verdict", "poison_records", "waiting_records")
    for piece in in_million_rows(tables.batches(HISTORY_TABLE, columns, latest)):
        rows = with_unreported_verdicts(tables, piece)
        verdicts.update({row["values"]: row["counts"] for row in rows["verdict"].value_counts().to_pylist()})
        is_settled = acknowledged_verdicts(rows, acknowledged, tables.run["started"])
        settled.update(
            {
                row["values"]: row["counts"]
                for row in rows["verdict"].filter(is_settled).value_counts().to_pylist()
            }
        )
        rows = _maybe_needing_attention(with_open_verdicts(rows, is_settled), suspects, counts)
        rows = left_join(left_join(rows, suspects, {"suspect": pa.bool_()}), counts, _COUNTS)
        found = _needing_attention(rows)
        flagged += found.num_rows
        for row in (
            found.group_by(["rank", "status"], use_threads=False).aggregate([([], "count_all")]).to_pylist()
        ):
            statuses[row["rank"], row["status"]] += row["count_all"]
        worst = [first_rows(pa.concat_tables([*worst, found]), _WORST_FIRST, most)]
    by_verdict = dict.fromkeys(VERDICTS, 0) | dict(sorted(verdicts.items()))
    details = pa.table({})
    if flagged:
        details = latest_share_partitions(tables, latest, worst[0])
        details = left_join(details, worst[0], {"suspect": pa.bool_(), **_COUNTS, "status": pa.string()})
        details = details.sort_by("place").drop_columns("place")
    live = sum(verdicts.values())
    by_status = {status: statuses[rank, status] for rank, status in sorted(statuses)} | {
        VERDICTS[-1]: live - flagged
    }
    still_open = {verdict: count - settled[verdict] for verdict, count in by_verdict.items()}
    still_open[OK] = by_verdict[OK] + settled.total()
    counts = {
        "live": live,
        "verdicts": by_verdict,
        "open_verdicts": still_open,
        "statuses": by_status,
        "flagged_left_out": max(0, flagged - most),
    }
    return details, counts


def _maybe_needing_attention(rows: pa.Table, *others: pa.Table | None) -> pa.Table:
    """The rows with a verdict other than OK, and at least those of share-partitions of other tables.

    A join of all rows would cost more than all else here.
    """
    is_meant = pc.not_equal(rows["verdict"], OK)
    for other in others:
        if other is None:
            continue
        of_group, of_partition = (
            pc.is_in(rows[name], other[name].combine_chunks()) for name in ("group_id", "partition")
        )
        is_meant = pc.or_(is_meant, pc.and_(of_group, of_partition))
    return rows.filter(is_meant)


def _needing_attention(rows: pa.Table) -> pa.Table:
    """The rows with a verdict other than OK, an error or a warning, or a suspect state.

    They have status and its rank.
    """
    for name, unknown in (("suspect", False), ("errors", 0), ("warnings", 0)):
        rows = rows.set_column(rows.column_names.index(name), name, pc.fill_null(rows[name], unknown))
    is_healthy = pc.equal(rows["verdict"], OK)
    has_findings = pc.greater(pc.add(rows["errors"], rows["warnings"]), 0)
    rows = rows.filter(pc.or_(pc.or_(pc.invert(is_healthy), has_findings), rows["suspect"]))
    has_error = pc.greater(rows["errors"], 0)
    has_findings = pc.or_(pc.greater(pc.add(rows["errors"], rows["warnings"]), 0), rows["suspect"])
    is_batch_job = pc.equal(rows["verdict"], NO_MEMBERS)
    # Many groups without members are batch jobs, so that anything else about them comes first.
    is_ok = pc.or_(pc.equal(rows["verdict"], OK), pc.and_(is_batch_job, has_findings))
    other = pc.if_else(has_error, ERROR, pc.if_else(rows["suspect"], SUSPECT, WARNING))
    verdict = pc.binary_join_element_wise(
        rows["verdict"].cast(pa.string()), pc.if_else(has_error, f"+{ERROR}", ""), ""
    )
    # An error and a suspect state rank before STALL; the ranks of verdicts are whole numbers.
    stall = VERDICTS.index("STALL")
    own = pc.if_else(pc.equal(other, SUSPECT), stall - 0.4, JUST_WORSE_THAN_OK + 0.2)
    mildest = pc.if_else(is_batch_job, JUST_WORSE_THAN_OK + 0.3, verdict_rank(rows))
    rank = pc.if_else(is_ok, own, mildest)
    rank = pc.if_else(has_error, pc.min_element_wise(rank, stall - 0.5), rank)
    return rows.append_column("status", pc.if_else(is_ok, other, verdict)).append_column("rank", rank)


@dataclass(frozen=True, slots=True)
class GroupDeliveries:
    """What became of the deliveries of a group since the last audit; fields as the columns of the history.

    Attributes:
        group_id: the group.
        acknowledged, given_up, rejected, dead_lettered: records.
        released: deliveries.
    """

    group_id: str
    acknowledged: int
    given_up: int
    rejected: int
    released: int
    dead_lettered: int

    @property
    def failed(self) -> int:
        """Deliveries that failed."""
        return self.given_up + self.rejected + self.released

    @property
    def total(self) -> int:
        """Deliveries that ended."""
        return self.acknowledged + self.failed


def read_deliveries(tables: CommittedTables) -> tuple[GroupDeliveries, ...]:
    """`AuditReport.deliveries` of the latest audit of a warehouse; none if it had nothing new to read."""
    if not latest_has_rows(tables):
        return ()
    columns, latest = ("group_id", *OUTCOME_COLUMNS), latest_audit_filter(tables)
    pieces = map(_without_nulls, tables.batches(HISTORY_TABLE, columns, latest))
    found = group_pieces(pieces, ["group_id"], dict.fromkeys(OUTCOME_COLUMNS, "sum"))
    rows = [] if found is None else found.to_pylist()
    groups = [
        GroupDeliveries(row["group_id"], **{name: row[one] for one, name in OUTCOME_COLUMNS.items()})
        for row in rows
    ]
    return tuple(sorted(groups, key=lambda one: (-one.given_up - one.rejected, -one.released, one.group_id)))


def _without_nulls(rows: pa.Table) -> pa.Table:
    # To drop none copies all rows.
    return rows.drop_null() if any(column.null_count for column in rows.columns) else rows


@dataclass(frozen=True, repr=False)
class AuditReport:
    """The latest audit of a warehouse.

    Attributes:
        cluster: its name; empty if it has none.
        warehouse: the folder that was read.
        run: the latest row of `runs`, its maps as dictionaries.
        runs: all kept runs up to it, the newest first.
        limits: the limits of the audit's configuration.
        tables: the tables that it was read from.
        live: number of live share-partitions.
        verdicts: verdict -> number of share-partitions, the worst first; known verdicts are there even with
            0.
        open_verdicts: the same, but those that are acknowledged count as OK.
        statuses: status of `FlaggedSharePartition`, or OK -> number of share-partitions, the worst first.
        flagged: the share-partitions that need attention, the worst first, up to a limit.
        flagged_left_out: how many more there are.
        deliveries: what became of deliveries since the last audit by group, those that gave up most first;
            groups of which the log does not show it are left out.
        acknowledged: findings and verdicts that a person has acknowledged.
        findings: by rule and severity, the most severe first.
        cutoffs: rows of the table `cutoff` with limited_by_topic, the name if it is known: unsafe ones first,
            then by the records that they hold back.
        in_flight: from `in_flight_counts`.
        most: maximum number of share-partitions in detail, and of poison ranges to list.
        fail_on: the lowest severity of findings that makes the exit code 1.
        fail_on_verdict: the mildest verdict of a share-partition that also makes it 1; or "none".
    """

    cluster: str
    warehouse: str
    run: Mapping[str, Any]
    runs: tuple[Mapping[str, Any], ...]
    limits: Limits
    tables: CommittedTables
    live: int
    verdicts: Mapping[str, int]
    open_verdicts: Mapping[str, int]
    statuses: Mapping[str, int]
    flagged: tuple[FlaggedSharePartition, ...]
    flagged_left_out: int
    deliveries: tuple[GroupDeliveries, ...]
    acknowledged: tuple[Acknowledged, ...]
    findings: tuple[BrokenRule, ...]
    cutoffs: tuple[Mapping[str, Any], ...]
    in_flight: pa.Table
    most: int
    fail_on: str
    fail_on_verdict: str

    def __repr__(self) -> str:
        statuses = ", ".join(f"{count:,} {status}" for status, count in self.statuses.items() if count)
        found = ", ".join(f"{count:,} {severity}" for severity, count in self.by_severity.items() if count)
        live = pluralize(self.live, "share-partition")
        return f"AuditReport({self.warehouse}: {live}: {statuses or 'none'}; findings: {found or 'none'})"

    @cached_property
    def summaries(self) -> tuple[GroupSummary, ...]:
        """All groups, the worst first. The page alone shows them: they are read from the history of 30 audits."""
        return read_group_summaries(self.tables)

    @cached_property
    def poison(self) -> PoisonRecords:
        """Offsets on which all deliveries fail; metrics do not need to read all ranges for them."""
        return find_poison_records(self.tables, self.limits, self.most)

    @cached_property
    def groups(self) -> tuple[FlaggedGroup, ...]:
        """The groups of the flagged share-partitions."""
        return list_flagged_groups(self.flagged, {one.group_id: one.history for one in self.summaries})

    @cached_property
    def since_last(self) -> SinceLastAudit | None:
        """What has changed since the last reported audit; None if this is the first."""
        return read_since_last_audit(self.tables)

    @property
    def log_time(self) -> datetime | None:
        """Timestamp of the newest record of the input; durations in a report end here."""
        return self.run["log_time"]

    @property
    def by_severity(self) -> dict[str, int]:
        """Severity -> number of open findings, the most severe first; all are there even with 0."""
        return {one: sum(rule.open for rule in self.findings if rule.severity == one) for one in SEVERITIES}

    @property
    def failing(self) -> int:
        """The number of findings at or above `fail_on` that make the exit code 1."""
        return sum(rule.failing for rule in self.findings if rule.severity in at_or_above(self.fail_on))

    @property
    def failing_verdicts(self) -> int:
        """The number of share-partitions whose verdict is `fail_on_verdict` or a worse one, and not acknowledged."""
        worse = (
            VERDICTS[: VERDICTS.index(self.fail_on_verdict) + 1]
            if self.fail_on_verdict in VERDICTS[:-1]
            else ()
        )
        return sum(self.open_verdicts[verdict] for verdict in worse)

    @property
    def export_age(self) -> int | None:
        """Ms, age of the newest record when the audit began.

        None if no record has a timestamp, or for a stream.
        """
        if self.log_time is None or self.run["command"] != COMMAND:
            return None
        return max(0, round((self.run["started"] - self.log_time).total_seconds() * 1000))

    @property
    def is_healthy(self) -> bool:
        """Whether no share-partition needs attention, there is no error or warning, and all cutoffs are safe."""
        has_findings = self.by_severity[ERROR] or self.by_severity[WARNING]
        return not self.flagged and not has_findings and all(row["safe"] for row in self.cutoffs)


def read_report(
    warehouse: str,
    cluster: str = "",
    limits: Limits | None = None,
    most: int = 50,
    fail_on: str = ERROR,
    fail_on_verdict: str = "none",
    acknowledged: Sequence[Acknowledged] = (),
) -> AuditReport:
    """Read what the latest audit of a warehouse found, without Spark and never with all in-flight ranges in memory.

    Args:
        warehouse: folder of the tables.
        cluster: its name.
        limits: those of the audit's configuration; Kafka's defaults if None.
        most: maximum number of share-partitions to read in detail, and of poison ranges to list.
        fail_on, fail_on_verdict, acknowledged: as in the audit's configuration.
    Raises:
        WarehouseError: if no audit was committed there, or a table is gone.
    """
    return report_of(
        CommittedTables(warehouse),
        cluster,
        limits,
        most,
        fail_on,
        fail_on_verdict,
        acknowledged,
        warehouse=warehouse,
    )


def report_of(
    tables: CommittedTables,
    cluster: str = "",
    limits: Limits | None = None,
    most: int = 50,
    fail_on: str = ERROR,
    fail_on_verdict: str = "none",
    acknowledged: Sequence[Acknowledged] = (),
    *,
    warehouse: str = "",
) -> AuditReport:
    """The report of tables that are open; arguments and errors as for `read_report`."""
    in_flight = tables.in_flight_counts()
    limits, _ = shown_limits(tables, in_flight, limits or Limits())
    summary = summarize_findings(tables, acknowledged)
    worst, counts = _survey(tables, summary, most, acknowledged)
    cutoffs = _name_topics(tables, tables.read("cutoff")).to_pylist()
    cutoffs.sort(key=lambda row: (bool(row["safe"]), -(row["pinned_records"] or 0), row["partition"]))
    flagged = read_flagged(tables, worst, summary, limits)
    return AuditReport(
        cluster=cluster,
        warehouse=warehouse,
        run=plain_run(tables.run),
        runs=tuple(plain_run(run) for run in tables.runs.to_pylist()),
        limits=limits,
        tables=tables,
        flagged=flagged,
        **counts,
        deliveries=read_deliveries(tables),
        acknowledged=tuple(acknowledged),
        findings=list_broken_rules(summary),
        cutoffs=tuple(cutoffs),
        in_flight=in_flight,
        most=most,
        fail_on=fail_on,
        fail_on_verdict=fail_on_verdict,
    )


def _name_topics(tables: CommittedTables, cutoffs: pa.Table) -> pa.Table:
    """Append limited_by_topic where the tables show the name."""
    where = pc.field("topic_id").isin(cutoffs["limited_by_topic_id"].unique()) & pc.field("topic").is_valid()
    return name_holders(cutoffs, Topics(tables.read("share_partition_state", where, ["topic_id", "topic"])))
