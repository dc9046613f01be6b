"""The findings of an audit, summed up: by rule for everybody, by share-partition for whoever looks closer.

The share-partitions that need a look, each with everything that the tables say of it.

All live share-partitions looked over for those that need a look, some columns of a million at a time.

What an audit left in a warehouse, as plain data: the page, the metrics and the terminal all show this.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.reader import CommittedTables
from share_state.fold.options import Limits
from share_state.report.share_partitions import (
    HISTORY,
    IDENTITY,
    KEY,
    PoisonRecords,
    among,
    grouped,
    identified,
    looked_up,
    may_be_among,
    of_latest_night,
    placed,
    poison_records,
    share_partitions_now,
)
from share_state.rules.registry import ERROR, OFF, SEVERITIES, WARNING, registered
from share_state.schema.declarations import table_schema

_COLUMNS = ("rule", "severity", *KEY, "state_partition", "offset", "message", "run_id")
_FIRST = ("topic_id", "topic", "state_partition", "offset", "message")
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule that the log breaks.

    Attributes:
        rule: its code.
        severity: error, warning or info; a rule that is milder in some cases is there once a severity.
        count: findings.
        new: those of them that the latest run was the first to see.
        statement: what should hold; empty where this version does not know the rule.
        examples: a few findings, each about another share-partition, new ones first.
    """

    rule: str
    severity: str
    count: int
    new: int
    statement: str
    examples: tuple[dict[str, Any], ...]


def findings_digest(tables: CommittedTables) -> pa.Table:
    """One row a share-partition, rule and severity; the first finding stands for all of them.

    Args:
        tables: of the warehouse, its findings possibly many: they are read in pieces.
    Returns:
        Columns of IDENTITY, rule, severity, topic_id, topic, state_partition, offset, message of the first finding,
        count and new (bigint), gravest and newest first.
    """
    by = [*IDENTITY, "rule", "severity"]
    found = grouped(_pieces(tables), by, dict.fromkeys(_FIRST, "first") | {"count": "sum", "new": "sum"})
    if found is None:
        return pa.schema([(name, pa.string()) for name in by]).empty_table()
    gravity = pc.index_in(found["severity"], pa.array(SEVERITIES))
    order = [("gravity", "ascending"), ("new", "descending"), ("count", "descending"), ("rule", "ascending")]
    return found.append_column("gravity", gravity).sort_by([*order, *((name, "ascending") for name in IDENTITY)])


def _pieces(tables: CommittedTables) -> Iterator[pa.Table]:
    run_id = tables.run["run_id"]
    for piece in tables.batches("findings", _COLUMNS):
        new = pc.cast(pc.fill_null(pc.equal(piece["run_id"], run_id), False), pa.int64())
        counted = piece.append_column("count", pa.repeat(pa.scalar(1, pa.int64()), piece.num_rows))
        yield identified(counted.append_column("new", new))


def broken_rules(digest: pa.Table) -> tuple[BrokenRule, ...]:
    """What `findings_digest` found, by rule: the gravest first, then the newest, then the most frequent."""
    if not digest.num_rows:
        return ()
    known = registered()
    summed = digest.group_by(["rule", "severity"]).aggregate([("count", "sum"), ("new", "sum"), ("gravity", "min")])
    order = [("gravity_min", "ascending"), ("new_sum", "descending"), ("count_sum", "descending")]
    broken = []
    for row in summed.sort_by([*order, ("rule", "ascending")]).to_pylist():
        code, severity = row["rule"], row["severity"]
        of_rule = digest.filter((pc.field("rule") == code) & (pc.field("severity") == severity))
        examples = of_rule.slice(0, _EXAMPLES).drop_columns(["gravity", "topic_key"]).to_pylist()
        statement = known[code].statement if code in known else ""
        broken.append(BrokenRule(code, severity, row["count_sum"], row["new_sum"], statement, tuple(examples)))
    return tuple(broken)


def own_findings(digest: pa.Table) -> pa.Table | None:
    """Number of errors and warnings of each share-partition that has any.

    Returns:
        Columns of IDENTITY, errors and warnings (bigint); None where there is no finding.
    """
    if not digest.num_rows:
        return None
    counted = digest
    for name, severity in (("errors", ERROR), ("warnings", WARNING)):
        of_severity = pc.if_else(pc.equal(digest["severity"], severity), digest["count"], pa.scalar(0, pa.int64()))
        counted = counted.append_column(name, of_severity)
    summed = counted.group_by(list(IDENTITY)).aggregate([("errors", "sum"), ("warnings", "sum")])
    return summed.select([*IDENTITY, "errors_sum", "warnings_sum"]).rename_columns([*IDENTITY, "errors", "warnings"])


_RANGES = 2000
_FINDINGS = 12
_NIGHTS = 200
_RANGE = ("first_offset", "last_offset", "record_count", "state", "delivery_count", "gap")
_NIGHT = ("run_id", "time", "start_offset", "lag", "verdict")
_FINDING = ("rule", "severity", "count", "new", "offset", "message")


@dataclass(frozen=True, slots=True)
class TroubledSharePartition:
    """One share-partition.

    Attributes:
        now: as the audit saw it; the columns of `Overview.worst`.
        state: its row of share_partition_state, without state_batches; None where it has none.
        ranges: in flight, from the start on, at most 2000; now["ranges"] says how many there are.
        findings: of its own, summed up by rule, the gravest first, at most 12: rule, severity, count, new,
            offset and message of the first.
        history: over the kept runs, the oldest first, at most the last 200: run_id, time, start_offset, lag, verdict.
    """

    now: dict[str, Any]
    state: dict[str, Any] | None
    ranges: tuple[dict[str, Any], ...]
    findings: tuple[dict[str, Any], ...]
    history: tuple[dict[str, Any], ...]


def troubled_share_partitions(
    tables: CommittedTables, chosen: pa.Table, digest: pa.Table
) -> tuple[TroubledSharePartition, ...]:
    """Read what the tables say of a few share-partitions.

    Args:
        tables: of the warehouse.
        chosen: of `Overview.worst`, some dozens.
        digest: what `findings_digest` found.
    Returns:
        One a row, in their order.
    Raises:
        WarehouseError: if a table is gone.
    """
    if not chosen.num_rows:
        return ()
    wanted = placed(chosen)
    columns = [name for name in table_schema("share_partition_state").names if name != "state_batches"]
    states = _kept(tables, "share_partition_state", columns, wanted, [("last_offset", "descending")], 1)
    ranges = _kept(tables, "in_flight", [*KEY, *_RANGE], wanted, [("first_offset", "ascending")], _RANGES)
    nights = _kept(tables, "share_partition_history", [*KEY, *_NIGHT], wanted, [("time", "descending")], _NIGHTS)
    findings = _own(digest, wanted)
    return tuple(
        TroubledSharePartition(
            now=now,
            state=next((_only(row, columns) for row in states.get(place, ())), None),
            ranges=tuple(_only(row, _RANGE) for row in ranges.get(place, ())),
            findings=tuple(_only(row, _FINDING) for row in findings.get(place, ())),
            history=tuple(_only(row, _NIGHT) for row in reversed(nights.get(place, ()))),
        )
        for place, now in enumerate(chosen.to_pylist())
    )


def _kept(
    tables: CommittedTables,
    table: str,
    columns: Sequence[str],
    wanted: pa.Table,
    order: Sequence[tuple[str, str]],
    most: int,
) -> dict[int, list[dict[str, Any]]]:
    """The first rows, in an order, of each wanted share-partition, by its place."""
    kept: pa.Table | None = None
    for piece in tables.batches(table, columns, may_be_among(wanted)):
        rows = among(piece, wanted)
        if rows.num_rows:
            together = rows if kept is None else pa.concat_tables([kept, rows])
            kept = _first_of_each(together.sort_by([("place", "ascending"), *order]), most)
    return _by_place(kept)


def _own(digest: pa.Table, wanted: pa.Table) -> dict[int, list[dict[str, Any]]]:
    if not digest.num_rows:
        return {}
    rows = digest.join(wanted.select([*IDENTITY, "place"]), keys=list(IDENTITY), join_type="inner")
    order = [("gravity", "ascending"), ("new", "descending"), ("count", "descending"), ("rule", "ascending")]
    return _by_place(_first_of_each(rows.sort_by([("place", "ascending"), *order]), _FINDINGS))


def _first_of_each(rows: pa.Table, most: int) -> pa.Table:
    """Of rows sorted by place, the first ones of each place."""
    place = rows["place"].to_numpy()
    rank = np.arange(len(place)) - np.searchsorted(place, place)
    return rows.filter(pa.array(rank < most)).combine_chunks()


def _by_place(rows: pa.Table | None) -> dict[int, list[dict[str, Any]]]:
    placed: dict[int, list[dict[str, Any]]] = {}
    for row in rows.to_pylist() if rows is not None else ():
        placed.setdefault(row["place"], []).append(row)
    return placed


def _only(row: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in names}


VERDICTS = ("REWIND", "STOP", "STALL", "OK")
"""The worst first. A verdict that is none of these counts as worse than OK."""

_JUST_WORSE_THAN_OK = VERDICTS.index("OK") - 0.5
_OVERVIEW_COLUMNS = (*KEY, "verdict", "poison_records", "waiting_records")
_OWN = {"errors": pa.int64(), "warnings": pa.int64()}
_ROWS_AT_A_TIME = 1_000_000


@dataclass(frozen=True, slots=True)
class Overview:
    """What the latest audit says of all live share-partitions.

    Attributes:
        live: how many there are.
        verdicts: verdict -> number of them, the worst first; the known ones are there even with 0.
        worst: those that need a look, the worst first, at most as many as were asked for: columns of
            `share_partitions_now`, suspect (boolean), errors and warnings: findings of its own.
        left_out: how many more need a look.
    """

    live: int
    verdicts: Mapping[str, int]
    worst: pa.Table
    left_out: int


def overview(tables: CommittedTables, digest: pa.Table, most: int) -> Overview:
    """Look over all live share-partitions.

    Args:
        tables: of the warehouse.
        digest: what `findings_digest` found.
        most: share-partitions to tell of.
    Raises:
        WarehouseError: if a table is gone.
    """
    suspects = identified(tables.read("share_partition_state", pc.field("suspect"), [*KEY, "suspect"]))
    own = own_findings(digest)
    night, counted, need, worst = of_latest_night(tables), Counter[str](), 0, list[pa.Table]()
    for piece in _together(tables.batches(HISTORY, _OVERVIEW_COLUMNS, night)):
        counted.update({row["values"]: row["counts"] for row in piece["verdict"].value_counts().to_pylist()})
        rows = looked_up(looked_up(identified(piece), suspects, {"suspect": pa.bool_()}), own, _OWN)
        found = _needing_a_look(rows)
        need += found.num_rows
        worst = [_worst_first(pa.concat_tables([*worst, found])).slice(0, most)]
    verdicts = dict.fromkeys(VERDICTS, 0) | dict(sorted(counted.items()))
    told = _told(tables, night, worst[0]) if need else pa.table({})
    return Overview(sum(counted.values()), verdicts, told, max(0, need - most))


def _together(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    waiting, count = list[pa.Table](), 0
    for piece in pieces:
        waiting.append(piece)
        count += piece.num_rows
        if count >= _ROWS_AT_A_TIME:
            yield pa.concat_tables(waiting)
            waiting, count = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _needing_a_look(rows: pa.Table) -> pa.Table:
    """A verdict other than OK, an error or warning of their own, or suspect."""
    for name, unknown in (("suspect", False), ("errors", 0), ("warnings", 0)):
        rows = rows.set_column(rows.column_names.index(name), name, pc.fill_null(rows[name], unknown))
    healthy = pc.equal(rows["verdict"], "OK")
    reported = pc.greater(pc.add(rows["errors"], rows["warnings"]), 0)
    return rows.filter(pc.or_(pc.or_(pc.invert(healthy), reported), rows["suspect"]))


def _worst_first(rows: pa.Table) -> pa.Table:
    rank = pc.fill_null(pc.cast(pc.index_in(rows["verdict"], pa.array(VERDICTS)), pa.float64()), _JUST_WORSE_THAN_OK)
    broken = pc.or_(pc.greater(rows["errors"], 0), rows["suspect"])
    ranked = rows.append_column("rank", rank).append_column("broken", pc.cast(broken, pa.int8()))
    down = [(name, "descending") for name in ("poison_records", "waiting_records")]
    ordered = ranked.sort_by([("rank", "ascending"), ("broken", "descending"), *down, *((n, "ascending") for n in KEY)])
    return ordered.drop_columns(["rank", "broken"])


def _told(tables: CommittedTables, night: pc.Expression, worst: pa.Table) -> pa.Table:
    """All that is known of them, in their order."""
    wanted = placed(worst)
    known = among(share_partitions_now(tables, night, wanted).drop_columns("topic_key"), wanted)
    rows = looked_up(known, worst, {"suspect": pa.bool_(), **_OWN})
    return rows.sort_by("place").drop_columns("place")


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The latest audit of a warehouse.

    Attributes:
        cluster: its name, empty where none is given.
        warehouse: the folder that was read.
        run: the latest row of `runs`, its maps as dictionaries.
        runs: all kept runs, the newest first.
        limits: that the audit works under.
        tables: that it was read from.
        live: live share-partitions.
        verdicts: verdict -> number of share-partitions, the worst first; the known ones are there even with 0.
        troubled: the share-partitions that need a look, the worst first, at most as many as were asked for.
        troubled_left_out: how many more there are.
        findings: by rule and severity, the gravest first.
        cutoffs: rows of the table `cutoff`, the one that holds back most first.
        poison: offsets that every delivery fails on.
        fail_on: the severity from which on new findings make the run exit with 1.
    """

    cluster: str
    warehouse: str
    run: Mapping[str, Any]
    runs: tuple[Mapping[str, Any], ...]
    limits: Limits
    tables: CommittedTables
    live: int
    verdicts: Mapping[str, int]
    troubled: tuple[TroubledSharePartition, ...]
    troubled_left_out: int
    findings: tuple[BrokenRule, ...]
    cutoffs: tuple[Mapping[str, Any], ...]
    poison: PoisonRecords
    fail_on: str

    @property
    def log_time(self) -> datetime | None:
        """Stamp of the newest record of the input: the time that every "since" of a report ends at."""
        return self.run["log_time"]

    @property
    def by_severity(self) -> dict[str, int]:
        """Severity -> number of findings, the gravest first; all are there even with 0."""
        return {one: sum(rule.count for rule in self.findings if rule.severity == one) for one in SEVERITIES}

    @property
    def failing(self) -> int:
        """New findings at or above `fail_on`."""
        if self.fail_on == OFF:
            return 0
        graver = SEVERITIES[: SEVERITIES.index(self.fail_on) + 1]
        return sum(self.run["findings"].get(severity, 0) for severity in graver)

    @property
    def is_healthy(self) -> bool:
        """Nothing needs a look: no troubled share-partition, no error, no warning, every cutoff safe."""
        grave = any(rule.severity in SEVERITIES[:2] for rule in self.findings)
        return not self.troubled and not grave and all(row["safe"] for row in self.cutoffs)


def read_report(
    warehouse: str, cluster: str = "", limits: Limits | None = None, most: int = 50, fail_on: str = ERROR
) -> AuditReport:
    """Read what the latest audit of a warehouse found. Starts no Spark, and never holds all in-flight ranges.

    Args:
        warehouse: folder of the tables.
        cluster: its name, for headline and labels.
        limits: that the audit works under; Kafka's defaults where None.
        most: share-partitions to look at closely, and poison ranges to name.
        fail_on: of the audit's settings.
    Returns:
        The report.
    Raises:
        WarehouseError: if no audit was committed there, or a table is gone.
    """
    tables = CommittedTables(warehouse)
    limits = limits or Limits()
    digest = findings_digest(tables)
    seen = overview(tables, digest, most)
    runs = tables.read("runs").sort_by([("finished", "descending")]).to_pylist()
    return AuditReport(
        cluster=cluster,
        warehouse=warehouse,
        run=_plain(tables.run),
        runs=tuple(_plain(run) for run in runs if run["finished"] <= tables.run["finished"]),
        limits=limits,
        tables=tables,
        live=seen.live,
        verdicts=seen.verdicts,
        troubled=troubled_share_partitions(tables, seen.worst, digest),
        troubled_left_out=seen.left_out,
        findings=broken_rules(digest),
        cutoffs=_cutoffs(tables),
        poison=poison_records(tables, limits, most),
        fail_on=fail_on,
    )


def _plain(run: Mapping[str, Any]) -> dict[str, Any]:
    maps = ("progress", "findings", "table_versions", "options")
    return {**run, **{name: dict(run[name] or ()) for name in maps}, "notes": list(run["notes"] or ())}


def _cutoffs(tables: CommittedTables) -> tuple[Mapping[str, Any], ...]:
    rows = tables.read("cutoff").to_pylist()
    return tuple(sorted(rows, key=lambda row: (bool(row["safe"]), -(row["pinned_records"] or 0), row["partition"])))
