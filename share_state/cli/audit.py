"""`share-state audit`: the nightly job. Settings in; tables, page and metrics out; one line per stage on stderr."""

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Annotated

import typer

from share_state.cli.main import DONE, FOUND, command
from share_state.cli.options import (
    CopiedLast,
    DeadLetters,
    GroupSide,
    Json,
    Quiet,
    RuleSeverity,
    Source,
    SparkConf,
    StatePartitions,
    Verbose,
    announce_compiling,
    check_fail_on,
    pairs,
)
from share_state.config.inputs import KEYS, OPTIONS, input_spec
from share_state.config.loading import load_settings, settings_for
from share_state.config.model import AuditSettings, ReportSettings, config_fingerprint
from share_state.delta.warehouse import Warehouse, warehouse_lock
from share_state.errors import ShareStateError, pluralize, require
from share_state.fold.limits import Limits
from share_state.pipeline.audit import run_audit
from share_state.pipeline.executor import Progress
from share_state.pipeline.plan import build_plan
from share_state.pipeline.result import RunResult
from share_state.report import console
from share_state.report.audit_data import AuditReport, read_report
from share_state.report.audit_text import audit_json, print_audit
from share_state.report.console import check_report_paths
from share_state.report.prometheus import write_metrics
from share_state.sources.discovery import STATE_TOPIC
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
    check_report_paths(settings.report.html, settings.report.prometheus)
    if settings.report.html is not None:
        require("matplotlib")
    choice = ExecutorChoice(settings.spark.master, settings.spark.conf, verbose)
    with open_place(choice, settings.warehouse) as (choice, place), open_sorter(choice) as sorter:
        settings = settings.model_copy(update={"warehouse": place})
        plan = build_plan(settings.input_spec(), KEYS, sorter)
        size = sum(log.size for log in plan.logs)  # 0 for a running cluster: it is unknown
        announce_compiling()
        _LOG.info("found %s%s", pluralize(len(plan.logs), "log partition"), f" of {size:,} bytes" if size else "")
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
                cluster=settings.cluster,
                progress=progress,
            )
            for note in result.notes:
                _LOG.info("%s", note)
            _LOG.info("committed run %s: %s", result.run_id, _counts(result))
            if settings.control_records.index is not None:
                write_share_snapshots(settings.control_records.index, result.index)
            with progress("report"):
                report = _write_reports(settings, plan.limits)
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
    if targets.prometheus is not None:
        write_metrics(targets.prometheus, report, targets.prometheus_share_partitions)
        _LOG.info("wrote %s", targets.prometheus)
    return report


def _written(targets: ReportSettings, live: int) -> list[str]:
    """The paths of the report files, and what the metrics leave out."""
    cut = ""
    if live > (most := targets.prometheus_share_partitions):
        cut = f" (series of the worst {most:,} of {live:,} share-partitions; groups are complete)"
    return [path for path in (targets.html, targets.prometheus and f"{targets.prometheus}{cut}") if path is not None]


def _counts(result: RunResult) -> str:
    found = ", ".join(f"{count:,} {severity}" for severity, count in sorted(result.by_severity.items())) or "none"
    records = pluralize(result.records, "new record")
    return f"{records}, {pluralize(result.share_partitions, 'live share-partition')}, new findings: {found}"


_DEFAULTS = {"dialect": "auto", "format": "auto"}


@command("share-state audit --config conf/audit.yaml", has_clock=True)
def audit(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INPUT]...", help="Log folders, .log files, tables, texts or globs; without --config."),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="YAML file with the configuration of the audit.")
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="WAREHOUSE", help="Folder of the Delta tables.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a key of the configuration, such as limits.delivery_count=3."
        ),
    ] = None,
    *,
    source: Source,
    side: GroupSide,
    dead_letters: DeadLetters = None,
    dead_letters_copied_last: CopiedLast = False,
    state_partitions: StatePartitions = None,
    rule: RuleSeverity = None,
    afresh: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[LOG]...", help="Read these log partitions from their start; without a name, all of them."
        ),
    ] = None,
    fail_on: Annotated[
        str | None, typer.Option(callback=check_fail_on, help="Overrides fail_on: error, warning, info or off.")
    ] = None,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the page to this file; overrides report.html.")
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write metrics to this file; overrides report.prometheus.")
    ] = None,
    master: Annotated[str | None, typer.Option(help="Spark master; overrides spark.master.")] = None,
    spark_conf: SparkConf = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Nightly job: read what is new, check every rule, report.

    It resumes where the last audit of the warehouse stopped, and writes the tables, a page and metrics.
    """
    given = {
        "topics": source.topics,
        "state_partitions": state_partitions,
        "fail_on": fail_on,
        "report.html": html,
        "report.prometheus": prometheus,
        "spark.master": master,
        "groups.partitions": side.group_partitions,
    }
    given |= {f"groups.paths.{number}": path for number, path in enumerate(side.groups or ())}
    given |= {f"dead_letters.{number}": path for number, path in enumerate(dead_letters or ())}
    if dead_letters_copied_last:
        given["dead_letters_copied_last"] = "true"
    # Check these values now, so that messages name the option instead of the key.
    by_name = pairs(source.column, "--column")
    read_as = {"path": "-", "format": source.format, "dialect": source.dialect, "columns": by_name}
    severities = input_spec(OPTIONS, sources=[read_as], rules=pairs(rule, "--rule")).rules
    given |= {f"rules.{code}": severity for code, severity in severities.items()}
    given |= {f"spark.conf.{name}": value for name, value in pairs(spark_conf).items()}
    columns = {f"columns.{name}": theirs for name, theirs in by_name.items()}
    of_each = {name: getattr(source, name) for name in ("dialect", "format", "kafka_properties")}
    if side.groups:
        given |= {f"groups.{name}": theirs for name, theirs in columns.items()}
    if inputs or not side.groups:
        of_each |= columns
    settings = _settings(inputs, config, out, of_each, [*_assignments(given), *(sets or ())])
    logs = [f"{STATE_TOPIC}-{log}" if log.isdecimal() else log for log in afresh or ()]

    def print_report(report: AuditReport) -> None:
        written = _written(settings.report, report.live)
        console.print_json(audit_json(report)) if as_json else print_audit(report, written)

    report = nightly_audit(settings, Progress(quiet=quiet), print_report, afresh=logs, verbose=verbose)
    return FOUND if report.failing or report.failing_verdicts else DONE


def _assignments(given: Mapping[str, object]) -> list[str]:
    return [f"{key}={value}" for key, value in given.items() if value is not None]


def _settings(
    inputs: Sequence[str] | None,
    config: str | None,
    out: str | None,
    of_each: Mapping[str, str | None],
    overrides: Sequence[str],
) -> AuditSettings:
    """The settings of an audit, from its file or from INPUT and --out.

    Raises:
        ShareStateError: if both or neither are given, or one cannot be used.
    """
    if inputs:
        if config is not None or out is None:
            raise ShareStateError("audit: give INPUT... and --out WAREHOUSE, or --config FILE")
        if inputs[0].endswith((".yaml", ".yml")):
            raise ShareStateError(f"audit: {inputs[0]} is not a log; give a configuration as --config {inputs[0]}")
        by_source = [f"sources.{number}.{one}" for number in range(len(inputs)) for one in _assignments(of_each)]
        return settings_for(inputs, out, [*by_source, *overrides])
    if config is None and out is None:
        raise ShareStateError("audit: give --config FILE, or INPUT... and --out WAREHOUSE")
    for key, value in of_each.items():
        if value not in (None, _DEFAULTS.get(key)):
            option = "column" if key.startswith("columns.") else key.replace("_", "-")
            raise ShareStateError(f"audit: --{option} applies to INPUT; give --set sources.N.{key}={value}")
    return load_settings(config, [*([f"warehouse={out}"] if out else ()), *overrides])
