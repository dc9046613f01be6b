"""What an audit left in a warehouse, as plain data: the page, the metrics and the terminal all show this."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from share_state.committed import CommittedTables
from share_state.fold.limits import Limits
from share_state.report.broken_rules import BrokenRule, broken_rules, findings_digest
from share_state.report.overview import overview
from share_state.report.poison import PoisonRecords, poison_records
from share_state.report.troubled import TroubledSharePartition, troubled_share_partitions
from share_state.rules import ERROR, OFF, SEVERITIES


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
