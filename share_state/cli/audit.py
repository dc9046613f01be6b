"""`share-state audit`: the nightly job. Settings in; tables, page and metrics out; one line per stage on stderr."""

import logging
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Annotated, get_args

import typer

from share_state.cli.command import DONE, FOUND, Quiet, Verbose, command
from share_state.cli.input_options import InputOptions
from share_state.cli.options import FailingSeverity, Json, SparkConf, announce_compiling, pairs
from share_state.config.input_spec import KEYS, input_options
from share_state.config.loading import Assignment, load_settings, settings_for
from share_state.config.model import AuditSettings, ReportSettings, config_fingerprint
from share_state.delta.warehouse import Warehouse
from share_state.delta.warehouse_place import warehouse_lock
from share_state.errors import ShareStateError, pluralize, require
from share_state.fold.limits import Limits
from share_state.pipeline.audit import run_audit
from share_state.pipeline.planning import build_plan
from share_state.pipeline.progress import Progress
from share_state.pipeline.result import RunResult
from share_state.report import console
from share_state.report.audit_data import AuditReport, read_report
from share_state.report.audit_text import audit_json, print_audit
from share_state.report.console import check_report_paths
from share_state.report.prometheus import write_metrics
from share_state.sources.log_partition import STATE_TOPIC
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
                cluster=settings.cluster,
                progress=progress,
            )
            for note in result.notes:
                _LOG.info("%s", note)
            _LOG.info("committed run %s: %s", result.run_id, _counts(result))
            if settings.control_records.index is not None:
                write_share_snapshots(settings.control_records.index, result.index)
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
    if targets.prometheus is not None:
        write_metrics(targets.prometheus, report, targets.prometheus_share_partitions)
        _LOG.info("wrote %s", targets.prometheus)
    return report


def _written(targets: ReportSettings, live: int) -> list[str]:
    """The paths of the report files, and what the metrics leave out."""
    cut = ""
    if live > (most := targets.prometheus_share_partitions):
        cut = f" (series of the worst {most:,} of {live:,} share-partitions; groups are complete)"
    return [
        path
        for path in (targets.html, targets.prometheus and f"{targets.prometheus}{cut}")
        if path is not None
    ]


def _counts(result: RunResult) -> str:
    found = (
        ", ".join(f"{count:,} {severity}" for severity, count in sorted(result.by_severity.items())) or "none"
    )
    records = pluralize(result.records, "new record")
    return f"{records}, {pluralize(result.share_partitions, 'live share-partition')}, new findings: {found}"


@command("share-state audit --config conf/audit.yaml", has_clock=True)
def audit(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUT]...", help="Log folders, .log files, tables, texts or globs; without --config."
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="YAML file with the configuration of the audit.")
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="WAREHOUSE", help="Folder of the Delta tables.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a key of the configuration, such as clock=wall."
        ),
    ] = None,
    *,
    options: InputOptions,
    afresh: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[LOG]...",
            help="Read these log partitions from their start; without a name, all of them.",
        ),
    ] = None,
    fail_on: Annotated[
        FailingSeverity | None,
        typer.Option(
            metavar="|".join(get_args(FailingSeverity)),
            help="Lowest severity that makes the exit code 1; overrides fail_on.",
        ),
    ] = None,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the page to this file; overrides report.html.")
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write metrics to this file; overrides report.prometheus."),
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="MASTER", help="Spark master; overrides spark.master.")
    ] = None,
    spark_conf: SparkConf = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Nightly job: read what is new, check every rule, report.

    It resumes where the last audit of the warehouse stopped, and writes the tables, a page and metrics.
    """
    given = {"fail_on": fail_on, "report.html": html, "report.prometheus": prometheus, "spark.master": master}
    given |= {f"spark.conf.{name}": value for name, value in pairs(spark_conf).items()}
    texts = [f"{key}={value}" for key, value in given.items() if value is not None]
    settings = _settings(inputs or (), config, out, options, [*texts, *(sets or ())])
    logs = [f"{STATE_TOPIC}-{log}" if log.isdecimal() else log for log in afresh or ()]

    def print_report(report: AuditReport) -> None:
        written = _written(settings.report, report.live)
        console.print_json(audit_json(report)) if as_json else print_audit(report, written)

    report = nightly_audit(settings, Progress(quiet=quiet), print_report, afresh=logs, verbose=verbose)
    return FOUND if report.failing or report.failing_verdicts else DONE


def _settings(
    inputs: Sequence[str],
    config: str | None,
    out: str | None,
    options: InputOptions,
    overrides: Sequence[str],
) -> AuditSettings:
    """The settings of an audit, from its file or from INPUT and --out.

    Raises:
        ShareStateError: if both or neither are given, or one cannot be used.
    """
    # Refuses values that no configuration takes, and names the option.
    options.spec(inputs)
    if inputs:
        if config is not None or out is None:
            raise ShareStateError("audit: give INPUT... and --out WAREHOUSE, or --config FILE")
        if inputs[0].endswith((".yaml", ".yml")):
            raise ShareStateError(
                f"audit: {inputs[0]} is not a log; give a configuration as --config {inputs[0]}"
            )
        return settings_for(inputs, out, overrides, assignments=options.assignments(len(inputs)))
    if config is None and out is None:
        raise ShareStateError("audit: give --config FILE, or INPUT... and --out WAREHOUSE")
    _check_no_source(options)
    assignments = options.assignments(0)
    if out is not None:
        assignments.append(Assignment("--out", ("warehouse",), out))
    return load_settings(config, overrides, assignments=assignments)


def _check_no_source(options: InputOptions) -> None:
    """Refuse options of an INPUT where the file names the sources; --column may be for the tables of --groups.

    Raises:
        ShareStateError: naming the first, and the key to set.
    """
    for option in input_options("audit"):
        value = options.get(option.name)
        is_of_groups = option.name == "columns" and options.get("groups") is not None
        if option.path[0] != "sources" or is_of_groups or value in (None, "auto"):
            continue
        key, text = option.path[-1], value
        if isinstance(value, dict):
            name, text = next(iter(value.items()))
            key = f"{key}.{name}"
        raise ShareStateError(f"audit: {option.flag} applies to INPUT; give --set sources.N.{key}={text}")
