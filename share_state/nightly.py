"""The nightly audit as a team schedules it: settings in; tables, page and metrics out; a line a stage on stderr."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from share_state.audit_input import told, work_of
from share_state.config import AuditSettings
from share_state.outcome import Outcome
from share_state.phases import Phases
from share_state.report.audit_data import AuditReport, read_report
from share_state.report.prometheus import write_metrics
from share_state.report.report_file import check_report_place
from share_state.runs.audit import audit
from share_state.runs.where import Where
from share_state.warehouse_lock import locked
from share_state.warehouse_place import check_place

_LOG = logging.getLogger("share_state")


def nightly_audit(settings: AuditSettings, phases: Phases, *, verbose: bool = False) -> tuple[Outcome, AuditReport]:
    """Audit a cluster's exports into its warehouse and write the reports that the settings ask for.

    Args:
        settings: of the cluster.
        phases: told what is going on.
        verbose: let Spark log.
    Returns:
        What the audit found, and what people are shown of the warehouse as it is now.
    Raises:
        ShareStateError: if the settings, an input or the warehouse cannot be used.
    """
    check_place(settings.warehouse)
    written = [path for path in (settings.report.html, settings.report.prometheus) if path is not None]
    for path in written:
        check_report_place(path)
    work = work_of(settings)
    size = sum(log.size for log in work.logs)
    _LOG.info("found %s log partitions of %s bytes", f"{len(work.logs):,}", f"{size:,}")
    with locked(settings.warehouse, "audit"):
        outcome = audit(
            partial(Where(settings.spark.master, settings.spark.conf, verbose).tasks, phases=phases),
            work,
            settings.warehouse,
            inputs=tuple(source.path for source in settings.sources),
            options=told(settings),
            history_days=settings.retention.history_days,
            by_wall_clock=settings.clock == "wall",
            phases=phases,
        )
        for note in outcome.notes:
            _LOG.info("%s", note)
        _LOG.info("committed run %s: %s", outcome.run_id, _counts(outcome))
        with phases("report"):
            limits = settings.limits.to_limits()
            report = read_report(settings.warehouse, settings.cluster, limits, fail_on=settings.fail_on)
            if settings.report.html is not None:
                from share_state.report.audit_page import write_page  # noqa: PLC0415  pictures are slow to import

                write_page(settings.report.html, report)
                _LOG.info("wrote %s", settings.report.html)
            if settings.report.prometheus is not None:
                write_metrics(settings.report.prometheus, report)
                _LOG.info("wrote %s", settings.report.prometheus)
    phases.close()
    return outcome, report


@contextmanager
def stages_on_stderr(*, quiet: bool) -> Iterator[None]:
    """Let the stages of a command be told on stderr, a line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s share-state: %(message)s", "%H:%M:%S"))
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        yield
    finally:
        _LOG.removeHandler(handler)


def _counts(outcome: Outcome) -> str:
    found = ", ".join(f"{count:,} {severity}" for severity, count in sorted(outcome.by_severity.items())) or "none"
    return f"{outcome.records:,} new records, {outcome.share_partitions:,} live share-partitions, new findings: {found}"
