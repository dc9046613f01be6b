"""The nightly audit of a cluster: `share-state audit` and `share_state.audit` run it."""

import logging
import sys
from collections.abc import Callable, Collection
from functools import partial

from share_state.config.input_spec import KEYS
from share_state.config.model import AuditSettings, config_fingerprint
from share_state.delta.warehouse import Warehouse
from share_state.delta.warehouse_place import warehouse_lock
from share_state.errors import pluralize, require
from share_state.fold.limits import Limits
from share_state.pipeline.audit import run_audit
from share_state.pipeline.numbered_logs import check_numbered
from share_state.pipeline.planning import build_plan
from share_state.pipeline.progress import Progress
from share_state.pipeline.result import RunResult
from share_state.report.audit_data import AuditReport, read_report
from share_state.report.console import check_report_paths
from share_state.report.prometheus import write_metrics
from share_state.sources.share_snapshots import write_share_snapshots
from share_state.spark.choice import ExecutorChoice, open_executor, open_place, open_sorter

_LOG = logging.getLogger("share_state")


def nightly_audit(
    settings: AuditSettings,
    progress: Progress,
    print_report: Callable[[AuditReport], None],
    *,
    afresh: Collection[str] = (),
    verbose: bool = False,
) -> AuditReport:
    """Audit a cluster's exports into its warehouse, write the reports that the settings ask for, and print it.

    Args:
        settings: the settings of the cluster.
        progress: shows the phases.
        print_report: prints the report; only a run whose report is printed is marked as reported.
        afresh: names of log partitions to read from their start, or ALL_LOGS.
        verbose: let Spark log.
    Returns:
        The report on the warehouse as it is now.
    Raises:
        ShareStateError: if the settings, an input or the warehouse cannot be used.
    """
    check_report_paths(settings.report.html, settings.report.index, settings.report.prometheus)
    if settings.report.html is not None or settings.report.index is not None:
        require("matplotlib")
    if settings.report.index is not None:
        from share_state.report.cluster_index import read_index  # noqa: PLC0415  imports matplotlib

        read_index(settings.report.index)
    choice = ExecutorChoice(settings.spark.master, settings.spark.conf, verbose)
    with open_place(choice, settings.warehouse) as (choice, place), open_sorter(choice) as sorter:
        settings = settings.model_copy(update={"warehouse": place})
        plan = build_plan(settings.input_spec(), KEYS, sorter)
        check_numbered(plan.logs, plan.options.partition_count)
        size = sum(log.size for log in plan.logs)  # 0 for a running cluster: it is unknown
        _LOG.info(
            "found %s%s", pluralize(len(plan.logs), "log partition"), f" of {size:,} bytes" if size else ""
        )
        with warehouse_lock(settings.warehouse, "audit"):
            result = run_audit(
                partial(open_executor, choice, progress=progress),
                plan,
                settings.warehouse,
                inputs=tuple(source.path for source in settings.sources),
                options=config_fingerprint(settings),
                history_days=settings.retention.history_days,
                replaced_files_days=settings.retention.replaced_files_days,
                by_wall_clock=settings.clock == "wall",
                afresh=afresh,
                full_read_every=settings.control_records.full_read_every,
                cluster=settings.cluster,
                progress=progress,
            )
            for note in result.notes:
                _LOG.info("%s", note)
            _LOG.info("committed run %s: %s", result.run_id, _counts(result))
            if settings.control_records.index is not None:
                write_share_snapshots(settings.control_records.index, result.index, result.earliest_offsets)
            with progress("report"):
                report = _write_reports(settings, plan.options.limits)
            progress.close()
            print_report(report)
            sys.stdout.flush()
            Warehouse(settings.warehouse).mark_reported(report.tables.runs)
    return report


def _write_reports(settings: AuditSettings, limits: Limits) -> AuditReport:
    targets = settings.report
    report = read_report(
        settings.warehouse,
        settings.cluster,
        limits,
        fail_on=settings.fail_on,
        fail_on_verdict=settings.fail_on_verdict,
        acknowledged=settings.acknowledged,
    )
    if targets.html is not None:
        from share_state.report.page import write_page  # noqa: PLC0415  charts are slow to import

        write_page(targets.html, report)
        _LOG.info("wrote %s", targets.html)
    if targets.index is not None:
        from share_state.report.cluster_index import write_index  # noqa: PLC0415  imports matplotlib

        write_index(targets.index, report, targets.html)
        _LOG.info("wrote %s", targets.index)
    if targets.prometheus is not None:
        write_metrics(targets.prometheus, report, targets.prometheus_share_partitions)
        _LOG.info("wrote %s", targets.prometheus)
    return report


def _counts(result: RunResult) -> str:
    found = (
        ", ".join(f"{count:,} {severity}" for severity, count in sorted(result.by_severity.items())) or "none"
    )
    records = pluralize(result.records, "new record")
    return f"{records}, {pluralize(result.share_partitions, 'live share-partition')}, new findings: {found}"
