"""The latest audit of a warehouse as plain data: page, metrics and console show an `AuditReport`.

`read_report` reads the tables of the latest audit in four steps: findings by share-partition and rule, a survey of all
live share-partitions that picks those which need attention, the details of these, and the remaining tables.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.model import Acknowledged
from share_state.delta.reader import CommittedTables
from share_state.errors import WarehouseError
from share_state.fold.history import HISTORY_TABLE, NO_MEMBERS, OK, OUTCOME_COLUMNS, VERDICTS
from share_state.fold.limits import Limits
from share_state.fold.states import KEY, row_texts
from share_state.pipeline.resume import COMMAND
from share_state.report.cutoff_text import name_holders
from share_state.report.share_partitions import (
    IDENTITY_COLUMNS,
    JUST_WORSE_THAN_OK,
    PoisonRecords,
    acknowledged_verdicts,
    add_topic_key,
    ascending,
    descending,
    find_poison_records,
    group_pieces,
    group_rows,
    in_large_pieces,
    is_acknowledged,
    latest_audit_filter,
    latest_has_rows,
    latest_share_partitions,
    left_join,
    null_unknown,
    number_rows,
    plain_run,
    prefilter,
    rows_by_place,
    select_share_partitions,
    verdict_rank,
    with_shown_deliveries,
    with_unreported_verdicts,
)
from share_state.rules.findings import count_findings
from share_state.rules.registry import ERROR, SEVERITIES, WARNING, at_or_above, registered
from share_state.schema.declarations import table_schema
from share_state.sources.topics import Topics

SUSPECT = "suspect"
"""The status of a share-partition whose state cannot be trusted, and that has no error."""

_MAX_EXAMPLES = 3
_MAX_RANGES = 2000
_MAX_FINDINGS = 12
_MAX_AUDITS = 200
_MAX_TREND = 30
_FINDING_COLUMNS = (
    *KEY, "rule", "severity", "state_partition", "offset", "message", "evidence", "run_id", "settled",
)  # fmt: skip
_NUMBERS = ("new", "open", "failing")
_SIZES = (
    "offsets", "in_flight", "milliseconds", "updates", "pinned_records", "missing", "records", "age_ms", "difference",
)  # fmt: skip
"""Evidence that shows how bad a finding is compared with others of its rule."""
_RANGE = ("first_offset", "last_offset", "record_count", "state", "delivery_count", "gap")
_AUDIT = ("run_id", "time", "start_offset", "lag", "verdict")
_FINDING = ("rule", "severity", "count", "new", "open", "offset", "message")
_COUNTS = {"errors": pa.int64(), "warnings": pa.int64()}
_MOST_AFFECTED_FIRST = descending("errors", "poison_records", "waiting_records", "warnings")
_WORST_FIRST = [*ascending("rank"), *_MOST_AFFECTED_FIRST, *ascending(*KEY)]
_MOST_SEVERE_FIRST = [*ascending("severity_rank"), *descending("new", "open", "count"), *ascending("rule")]


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """The findings of one rule and severity.

    Attributes:
        rule: its code.
        severity: error, warning or info.
        count: number of findings.
        new: open findings that the last reported run did not have.
        open: findings that are neither acknowledged nor superseded.
        failing: open findings that are newer than the last reported run or that every run evaluates again; the exit
            code counts these.
        statement: what should hold; empty if this version does not know the rule.
        examples: a few findings, each about another share-partition, open ones first, then new ones, then the worst.
    """

    rule: str
    severity: str
    count: int
    new: int
    open: int
    failing: int
    statement: str
    examples: tuple[dict[str, Any], ...]


def _summarize_findings(tables: CommittedTables, acknowledged: Sequence[Acknowledged]) -> pa.Table:
    """Count the findings of each share-partition, rule and severity; the most severe and newest first.

    Returns:
        IDENTITY_COLUMNS, rule, severity; topic_id, topic, state_partition, offset and message of the worst finding;
        count, new, open and failing (bigint); severity_rank (0 for an error).
    """
    by = [*IDENTITY_COLUMNS, "rule", "severity"]
    worst = dict.fromkeys(("topic_id", "topic", "state_partition", "offset", "message"), "first")
    sums = dict.fromkeys(("count", *_NUMBERS), "sum")
    found = group_pieces(_finding_pieces(tables, acknowledged), by, worst | sums | {"size": "max"})
    if found is None:
        return pa.schema([(name, pa.string()) for name in by]).empty_table()
    severity_rank = pc.index_in(found["severity"], pa.array(SEVERITIES))
    order = [*_MOST_SEVERE_FIRST, *descending("size"), *ascending(*IDENTITY_COLUMNS)]
    return found.append_column("severity_rank", severity_rank).sort_by(order).drop_columns("size")


def _finding_pieces(tables: CommittedTables, acknowledged: Sequence[Acknowledged]) -> Iterator[pa.Table]:
    skipped, before = tables.unreported()
    known_before = _identities(before)
    unreported = pa.array([one.run["run_id"] for one in (tables, *skipped)])
    for piece in _findings_since(tables, skipped):
        rows = piece
        is_of_run = pc.is_in(rows["run_id"], unreported)
        is_new = pc.and_(is_of_run, pc.invert(pc.is_in(_identity(rows), known_before)))
        # What every audit evaluates again counts even if this one found nothing new to evaluate.
        counts = pc.or_(is_of_run, pc.invert(rows["settled"]))
        is_open = pc.invert(
            pc.or_(_acknowledged(rows, acknowledged, tables.run["started"]), _superseded(tables, rows, is_of_run))
        )
        columns = {"new": pc.and_(is_new, is_open), "open": is_open, "failing": pc.and_(is_open, counts)}
        count = count_findings(rows)
        for name, is_counted in columns.items():
            rows = rows.append_column(name, pc.multiply(pc.cast(is_counted, pa.int64()), count))
        rows = rows.append_column("count", count)
        yield rows.append_column("size", _sizes(rows["evidence"])).sort_by(descending("size"))


def _findings_since(tables: CommittedTables, skipped: Sequence[CommittedTables]) -> Iterator[pa.Table]:
    """The findings of a run, then those that it lacks and that earlier runs committed but did not report."""
    yield from map(add_topic_key, tables.batches("findings", _FINDING_COLUMNS))
    later = tables
    for earlier in skipped:
        if earlier.versions.get("findings") != later.versions.get("findings"):
            known = pa.concat_arrays([_identities(one) for one in (tables, *skipped[: skipped.index(earlier)])])
            with suppress(WarehouseError):
                for rows in map(add_topic_key, earlier.batches("findings", _FINDING_COLUMNS)):
                    is_own = pc.equal(rows["run_id"], earlier.run["run_id"])
                    yield rows.filter(pc.and_(is_own, pc.invert(pc.is_in(_identity(rows), known))))
        later = earlier


def _identities(tables: CommittedTables | None) -> pa.Array:
    """What the findings of a run are about; nothing if there is no run, or its files are deleted."""
    try:
        pieces = tables.batches("findings", _FINDING_COLUMNS) if tables else ()
        return pa.chunked_array([_identity(add_topic_key(piece)) for piece in pieces], pa.string()).combine_chunks()
    except WarehouseError:
        return pa.array([], pa.string())


def _identity(rows: pa.Table) -> pa.Array:
    """What findings are about, as text: rule and share-partition; and the offset, if it is the same in every audit."""
    is_stable = pc.or_(rows["settled"], pc.is_null(rows["group_id"]))
    place = pc.if_else(is_stable, rows["offset"], pa.scalar(None, pa.int64()))
    return row_texts([rows[name] for name in (*IDENTITY_COLUMNS, "rule", "state_partition")] + [place])


def _acknowledged(rows: pa.Table, acknowledged: Sequence[Acknowledged], at: datetime) -> pa.Array:
    of_rules = [one for one in acknowledged if one.rule is not None]
    return is_acknowledged(rows, of_rules, at, {"rule": "rule", "state_partition": "state_partition"})


def _superseded(tables: CommittedTables, rows: pa.Table, is_of_run: pa.ChunkedArray) -> pa.Array:
    """Whether findings of earlier runs are about records before the present snapshot of their share-partition.

    Without a share-partition: about records before the cutoff of their log partition, which no state rests on.
    """
    settled = pc.and_(rows["settled"], pc.invert(is_of_run))
    if not pc.any(settled).as_py():
        return pa.array(np.zeros(len(rows), bool))
    old = rows.filter(settled)
    columns = [*KEY, "snapshot_offset", "suspect"]
    states = add_topic_key(tables.read("share_partition_state", prefilter(old), columns))
    trusted = states.filter(pc.and_(pc.invert(states["suspect"]), pc.is_valid(states["snapshot_offset"])))
    keys, live, known = (row_texts(table.select(IDENTITY_COLUMNS).columns) for table in (rows, states, trusted))
    is_live, at = pc.is_in(keys, live), pc.index_in(keys, known)
    snapshot = trusted["snapshot_offset"].combine_chunks().take(at)
    limits = tables.read("cutoff", pc.field("safe"), ["partition", "cutoff_offset"])
    place = pc.index_in(rows["state_partition"], limits["partition"].combine_chunks())
    of_log = limits["cutoff_offset"].combine_chunks().take(place.combine_chunks())
    until = pc.if_else(pc.is_valid(rows["group_id"]), pc.if_else(is_live, snapshot, pc.add(rows["offset"], 1)), of_log)
    return pc.and_(settled, pc.fill_null(pc.less(rows["offset"], until), False)).combine_chunks()


def _sizes(evidence: pa.ChunkedArray) -> pa.ChunkedArray:
    """The first number of _SIZES that each map has; null if it has none."""
    found = pc.coalesce(*(pc.map_lookup(evidence, pa.scalar(name), "first") for name in _SIZES))
    return pc.if_else(pc.utf8_is_digit(found), found, pa.scalar(None, pa.string())).cast(pa.int64())


def _list_broken_rules(summary: pa.Table) -> tuple[BrokenRule, ...]:
    """The findings by rule: the most severe first, then the newest, then the most frequent."""
    if not summary.num_rows:
        return ()
    known = registered()
    sums = dict.fromkeys(("count", *_NUMBERS), "sum")
    rules = group_rows(summary, ["rule", "severity"], sums | {"severity_rank": "min"})
    broken = []
    for row in rules.sort_by(_MOST_SEVERE_FIRST).to_pylist():
        code, severity = row["rule"], row["severity"]
        of_rule = summary.filter((pc.field("rule") == code) & (pc.field("severity") == severity))
        examples = of_rule.slice(0, _MAX_EXAMPLES).drop_columns(["severity_rank", "topic_key"]).to_pylist()
        statement = known[code].statement if code in known else ""
        numbers = {name: row[name] for name in ("count", *_NUMBERS)}
        broken.append(BrokenRule(code, severity, statement=statement, examples=tuple(examples), **numbers))
    return tuple(broken)


def _count_findings(summary: pa.Table) -> pa.Table | None:
    """The number of open errors and warnings by share-partition: IDENTITY_COLUMNS, errors, warnings; None if no row."""
    if not summary.num_rows:
        return None
    counted = summary
    for name, severity in (("errors", ERROR), ("warnings", WARNING)):
        count = pc.if_else(pc.equal(summary["severity"], severity), summary["open"], pa.scalar(0, pa.int64()))
        counted = counted.append_column(name, count)
    return group_rows(counted, IDENTITY_COLUMNS, dict.fromkeys(_COUNTS, "sum"))


def _survey(
    tables: CommittedTables, summary: pa.Table, most: int, acknowledged: Sequence[Acknowledged]
) -> tuple[pa.Table, dict[str, Any]]:
    """Survey all live share-partitions.

    Returns:
        The worst `most` of those that need attention: columns of `latest_share_partitions`, suspect (boolean), errors
        and warnings (numbers of findings), status; and live, verdicts, open_verdicts, statuses and flagged_left_out of
        `AuditReport`.
    """
    suspects = add_topic_key(tables.read("share_partition_state", pc.field("suspect"), [*KEY, "suspect"]))
    counts, latest = _count_findings(summary), latest_audit_filter(tables)
    verdicts, statuses, flagged, worst = Counter[str](), Counter[tuple[float, str]](), 0, list[pa.Table]()
    settled = Counter[str]()
    columns = (*KEY, "verdict", "poison_records", "waiting_records")
    for piece in in_large_pieces(tables.batches(HISTORY_TABLE, columns, latest)):
        rows = with_unreported_verdicts(tables, piece)
        verdicts.update({row["values"]: row["counts"] for row in rows["verdict"].value_counts().to_pylist()})
        is_settled = acknowledged_verdicts(rows, acknowledged, tables.run["started"])
        settled.update(
            {row["values"]: row["counts"] for row in rows["verdict"].filter(is_settled).value_counts().to_pylist()}
        )
        # An acknowledged verdict needs no attention.
        open_verdict = pc.if_else(is_settled, OK, rows["verdict"].cast(pa.string()))
        rows = rows.set_column(rows.column_names.index("verdict"), "verdict", open_verdict)
        rows = left_join(left_join(rows, suspects, {"suspect": pa.bool_()}), counts, _COUNTS)
        found = _needing_attention(rows)
        flagged += found.num_rows
        for row in found.group_by(["rank", "status"]).aggregate([([], "count_all")]).to_pylist():
            statuses[row["rank"], row["status"]] += row["count_all"]
        worst = [pa.concat_tables([*worst, found]).sort_by(_WORST_FIRST).slice(0, most)]
    by_verdict = dict.fromkeys(VERDICTS, 0) | dict(sorted(verdicts.items()))
    details = pa.table({})
    if flagged:
        details = latest_share_partitions(tables, latest, worst[0])
        details = left_join(details, worst[0], {"suspect": pa.bool_(), **_COUNTS, "status": pa.string()})
        details = details.sort_by("place").drop_columns("place")
    live = sum(verdicts.values())
    by_status = {status: statuses[rank, status] for rank, status in sorted(statuses)} | {VERDICTS[-1]: live - flagged}
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


def _needing_attention(rows: pa.Table) -> pa.Table:
    """The rows with a verdict other than OK, an error or a warning, or a suspect state; with status and its rank."""
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
    verdict = pc.binary_join_element_wise(rows["verdict"].cast(pa.string()), pc.if_else(has_error, f"+{ERROR}", ""), "")
    # An error and a suspect state rank before STALL; the ranks of verdicts are whole numbers.
    stall = VERDICTS.index("STALL")
    own = pc.if_else(pc.equal(other, SUSPECT), stall - 0.4, JUST_WORSE_THAN_OK + 0.2)
    mildest = pc.if_else(is_batch_job, JUST_WORSE_THAN_OK + 0.3, verdict_rank(rows))
    rank = pc.if_else(is_ok, own, mildest)
    rank = pc.if_else(has_error, pc.min_element_wise(rank, stall - 0.5), rank)
    return rows.append_column("status", pc.if_else(is_ok, other, verdict)).append_column("rank", rank)


@dataclass(frozen=True, slots=True)
class FlaggedSharePartition:
    """A share-partition that needs attention, with what the tables hold about it.

    Attributes:
        now: as the latest audit saw it; the columns of `_survey`.
        state: its row of share_partition_state without state_batches; None if it has none.
        ranges: in flight, from the start offset on, at most 2000; now["ranges"] is how many there are.
        findings: its findings by rule, the most severe first, at most 12: rule, severity, count, new, open; offset and
            message of the worst.
        history: its last 200 audits, the oldest first: run_id, time, start_offset, lag, verdict.
    """

    now: dict[str, Any]
    state: dict[str, Any] | None
    ranges: tuple[dict[str, Any], ...]
    findings: tuple[dict[str, Any], ...]
    history: tuple[dict[str, Any], ...]

    @property
    def status(self) -> str:
        """Its verdict, with "+error" if it also has an error; or error, suspect or warning, if that is the reason."""
        return self.now["status"]

    @property
    def why(self) -> str:
        """Why it needs attention, in one line that begins with a number where there is one."""
        if self.now["reason"] and self.status.startswith(self.now["verdict"]):
            return self.now["reason"]
        for one in self.findings:
            if one["open"]:
                has_number = one["open"] == 1 or one["message"][:1].isdigit()
                return one["message"] if has_number else f"{one['open']:,} findings, the worst: {one['message']}"
        return "records since its latest snapshot are missing or unreadable"


def _read_flagged(tables: CommittedTables, worst: pa.Table, summary: pa.Table) -> tuple[FlaggedSharePartition, ...]:
    """Read what the tables hold about the share-partitions of `_survey`, in this order."""
    if not worst.num_rows:
        return ()
    selected = number_rows(worst)
    columns = [name for name in table_schema("share_partition_state").names if name != "state_batches"]
    states = _read_first(tables, "share_partition_state", columns, selected, descending("last_offset"), 1)
    ranges = _read_first(tables, "in_flight", _RANGE, selected, ascending("first_offset"), _MAX_RANGES)
    audits = _read_first(tables, HISTORY_TABLE, _AUDIT, selected, descending("time"), _MAX_AUDITS)
    findings: dict[int, list[dict[str, Any]]] = {}
    if summary.num_rows:
        places = selected.select([*IDENTITY_COLUMNS, "place"])
        rows = summary.join(places, keys=list(IDENTITY_COLUMNS), join_type="inner")
        findings = rows_by_place(_first_of_each(rows, _MOST_SEVERE_FIRST, _MAX_FINDINGS), _FINDING)
    return tuple(
        FlaggedSharePartition(
            now=now,
            state=next(iter(states.get(place, ())), None),
            ranges=tuple(ranges.get(place, ())),
            findings=tuple(findings.get(place, ())),
            history=tuple(reversed(audits.get(place, ()))),
        )
        for place, now in enumerate(worst.to_pylist())
    )


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
    for piece in tables.batches(table, list(dict.fromkeys((*KEY, *columns))), prefilter(selected)):
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
        history: its last 30 audits, the oldest first: time; behind: records behind, or waiting if the lag is not known;
            troubled: share-partitions with a verdict other than OK.
    """

    group_id: str
    places: tuple[int, ...]
    history: tuple[dict[str, Any], ...]


def _read_groups(tables: CommittedTables, flagged: Sequence[FlaggedSharePartition]) -> tuple[FlaggedGroup, ...]:
    """The groups of flagged share-partitions, in the order of their worst one."""
    places: dict[str, list[int]] = {}
    for place, one in enumerate(flagged):
        places.setdefault(one.now["group_id"], []).append(place)
    columns = ("group_id", "time", "verdict", "lag", "waiting_records", "archiving_records")
    where = pc.field("group_id").isin(list(places))

    def measured(rows: pa.Table) -> pa.Table:
        behind = pc.coalesce(rows["lag"], pc.add(rows["waiting_records"], rows["archiving_records"]))
        troubled = pc.cast(pc.not_equal(rows["verdict"], VERDICTS[-1]), pa.int64())
        return rows.append_column("behind", behind).append_column("troubled", troubled)

    pieces = map(measured, tables.batches(HISTORY_TABLE, columns, where)) if places else ()
    summed = group_pieces(pieces, ["group_id", "time"], {"behind": "sum", "troubled": "sum"})
    audits: dict[str, list[dict[str, Any]]] = {name: [] for name in places}
    for row in summed.sort_by("time").to_pylist() if summed is not None else ():
        audits[row["group_id"]].append(row)
    return tuple(FlaggedGroup(name, tuple(places[name]), tuple(audits[name][-_MAX_TREND:])) for name in places)


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
    columns, latest = ("group_id", *OUTCOME_COLUMNS), pc.field("run_id") == tables.run["run_id"]
    pieces = (rows.drop_null() for rows in tables.batches(HISTORY_TABLE, columns, latest))
    found = group_pieces(pieces, ["group_id"], dict.fromkeys(OUTCOME_COLUMNS, "sum"))
    rows = [] if found is None else found.to_pylist()
    groups = [
        GroupDeliveries(row["group_id"], **{name: row[one] for one, name in OUTCOME_COLUMNS.items()}) for row in rows
    ]
    return tuple(sorted(groups, key=lambda one: (-one.given_up - one.rejected, -one.released, one.group_id)))


@dataclass(frozen=True, slots=True)
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
        verdicts: verdict -> number of share-partitions, the worst first; known verdicts are there even with 0.
        open_verdicts: the same, but those that are acknowledged count as OK.
        statuses: status of `FlaggedSharePartition`, or OK -> number of share-partitions, the worst first.
        flagged: the share-partitions that need attention, the worst first, up to a limit.
        flagged_left_out: how many more there are.
        groups: the groups of the flagged share-partitions.
        deliveries: what became of deliveries since the last audit by group, those that gave up most first; groups of
            which the log does not show it are left out.
        acknowledged: findings and verdicts that a person has acknowledged.
        findings: by rule and severity, the most severe first.
        cutoffs: rows of the table `cutoff` with limited_by_topic, the name if it is known: unsafe ones first, then by
            the records that they hold back.
        poison: offsets on which all deliveries fail.
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
    groups: tuple[FlaggedGroup, ...]
    deliveries: tuple[GroupDeliveries, ...]
    acknowledged: tuple[Acknowledged, ...]
    findings: tuple[BrokenRule, ...]
    cutoffs: tuple[Mapping[str, Any], ...]
    poison: PoisonRecords
    fail_on: str
    fail_on_verdict: str

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
        worse = VERDICTS[: VERDICTS.index(self.fail_on_verdict) + 1] if self.fail_on_verdict in VERDICTS[:-1] else ()
        return sum(self.open_verdicts[verdict] for verdict in worse)

    @property
    def export_age(self) -> int | None:
        """Ms, age of the newest record when the audit began; None if no record has a timestamp, or for a stream."""
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
    tables = CommittedTables(warehouse)
    limits = with_shown_deliveries(tables, limits or Limits())
    summary = _summarize_findings(tables, acknowledged)
    worst, counts = _survey(tables, summary, most, acknowledged)
    cutoffs = _name_topics(tables, tables.read("cutoff")).to_pylist()
    cutoffs.sort(key=lambda row: (bool(row["safe"]), -(row["pinned_records"] or 0), row["partition"]))
    flagged = _read_flagged(tables, worst, summary)
    return AuditReport(
        cluster=cluster,
        warehouse=warehouse,
        run=plain_run(tables.run),
        runs=tuple(plain_run(run) for run in tables.runs.to_pylist()),
        limits=limits,
        tables=tables,
        flagged=flagged,
        **counts,
        groups=_read_groups(tables, flagged),
        deliveries=read_deliveries(tables),
        acknowledged=tuple(acknowledged),
        findings=_list_broken_rules(summary),
        cutoffs=tuple(cutoffs),
        poison=find_poison_records(tables, limits, most),
        fail_on=fail_on,
        fail_on_verdict=fail_on_verdict,
    )


def _name_topics(tables: CommittedTables, cutoffs: pa.Table) -> pa.Table:
    """Append limited_by_topic where the tables show the name."""
    where = pc.field("topic_id").isin(cutoffs["limited_by_topic_id"].unique()) & pc.field("topic").is_valid()
    return name_holders(cutoffs, Topics(tables.read("share_partition_state", where, ["topic_id", "topic"])))
