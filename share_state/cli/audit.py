"""The nightly audit as a team schedules it: settings in; tables, page and metrics out; a line a stage on stderr.

`share-state audit`: the nightly job.
"""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer
from typer.exceptions import Exit

from share_state.cli.main import DONE, FOUND, command
from share_state.cli.options import (
    ColumnNames,
    Dialect,
    Format,
    GroupSide,
    Json,
    KafkaProperties,
    Quiet,
    RuleSeverity,
    SparkConf,
    StatePartitions,
    TopicsFile,
    Verbose,
    fails,
    pairs,
    severities,
)
from share_state.config.loading import load_settings, settings_for
from share_state.config.model import AuditSettings
from share_state.delta.warehouse import check_place, locked
from share_state.errors import ShareStateError
from share_state.pipeline.audit import run_audit
from share_state.pipeline.inputs import told, work_of
from share_state.pipeline.progress import Phases
from share_state.pipeline.result import Outcome
from share_state.report import console
from share_state.report.audit_data import AuditReport, read_report
from share_state.report.audit_text import audit_json, print_audit
from share_state.report.console import check_report_place
from share_state.report.prometheus import write_metrics
from share_state.spark.choice import Where

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
    where = Where(settings.spark.master, settings.spark.conf, verbose)
    work = work_of(settings, where.session)
    size = sum(log.size for log in work.logs)
    _LOG.info("found %s log partitions of %s bytes", f"{len(work.logs):,}", f"{size:,}")
    with locked(settings.warehouse, "audit"):
        outcome = run_audit(
            partial(where.tasks, phases=phases),
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
                from share_state.report.page import write_page  # noqa: PLC0415  pictures are slow to import

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


_USUAL = {"dialect": "auto", "format": "auto"}


@command("share-state audit --config conf/audit.yaml")
def audit(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUT]...", help="Log folders, .log files, tables, texts or globs, where no --config names them."
        ),
    ] = None,
    config: Annotated[str | None, typer.Option("--config", metavar="FILE", help="The YAML file of a cluster.")] = None,
    out: Annotated[str | None, typer.Option("--out", metavar="WAREHOUSE", help="Folder of the Delta tables.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in limits.delivery_count=3."),
    ] = None,
    format: Format = "auto",
    column: ColumnNames = None,
    kafka_properties: KafkaProperties = None,
    dialect: Dialect = "auto",
    topics: TopicsFile = None,
    *,
    side: GroupSide,
    state_partitions: StatePartitions = None,
    rule: RuleSeverity = None,
    fail_on: Annotated[str | None, typer.Option("--fail-on", help="As the key fail_on.")] = None,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="As the key report.html.")] = None,
    prometheus: Annotated[
        str | None, typer.Option("--prometheus", metavar="FILE", help="As the key report.prometheus.")
    ] = None,
    master: Annotated[str | None, typer.Option("--master", help="As the key spark.master.")] = None,
    spark_conf: SparkConf = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """The nightly job: take in what is new since the last audit, fold, write, check every rule, report."""
    given = {
        "topics": topics,
        "state_partitions": state_partitions,
        "fail_on": fail_on,
        "report.html": html,
        "report.prometheus": prometheus,
        "spark.master": master,
        "groups.partitions": side.group_partitions,
    }
    given |= {f"groups.paths.{number}": path for number, path in enumerate(side.groups or ())}
    given |= {f"rules.{code}": severity for code, severity in severities(rule).items()}
    given |= {f"spark.conf.{name}": value for name, value in pairs(spark_conf).items()}
    columns = {f"columns.{name}": called for name, called in pairs(column, "--column").items()}
    of_each = {"dialect": dialect, "format": format, "kafka_properties": kafka_properties}
    if side.groups:
        given |= {f"groups.{name}": called for name, called in columns.items()}
    if inputs or not side.groups:
        of_each |= columns
    settings = _settings(inputs, config, out, of_each, [*_told(given), *(sets or ())])
    with stages_on_stderr(quiet=quiet):
        outcome, report = nightly_audit(settings, Phases(quiet=quiet), verbose=verbose)
    written = [path for path in (settings.report.html, settings.report.prometheus) if path is not None]
    console.print_json(audit_json(report)) if as_json else print_audit(report, written)
    raise Exit(FOUND if fails(outcome.by_severity, settings.fail_on) else DONE)


def _told(given: Mapping[str, object]) -> list[str]:
    return [f"{key}={value}" for key, value in given.items() if value is not None]


def _settings(
    inputs: Sequence[str] | None,
    config: str | None,
    out: str | None,
    of_each: Mapping[str, str | None],
    overrides: Sequence[str],
) -> AuditSettings:
    """The settings of an audit: of its file, or for inputs and a warehouse that are named.

    Raises:
        ShareStateError: if both or neither are given, or one cannot be used.
    """
    if inputs:
        if config is not None or out is None:
            raise ShareStateError("audit: give INPUT... and --out WAREHOUSE, or --config FILE")
        by_source = [f"sources.{number}.{one}" for number in range(len(inputs)) for one in _told(of_each)]
        return settings_for(inputs, out, [*by_source, *overrides])
    if config is None and out is None:
        raise ShareStateError("audit: give --config FILE, or INPUT... and --out WAREHOUSE")
    for key, value in of_each.items():
        if value not in (None, _USUAL.get(key)):
            option = "column" if key.startswith("columns.") else key.replace("_", "-")
            raise ShareStateError(f"audit: --{option} is about INPUT; give --set sources.N.{key}={value}")
    return load_settings(config, [*([f"warehouse={out}"] if out else ()), *overrides])
