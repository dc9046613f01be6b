"""`share-state audit`: the nightly job."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from typer.exceptions import Exit

from share_state.commands.app import DONE, FOUND, command
from share_state.commands.judging import fails, severities
from share_state.commands.options import (
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
    pairs,
)
from share_state.config import AuditSettings, load_settings, settings_for
from share_state.errors import ShareStateError
from share_state.nightly import nightly_audit, stages_on_stderr
from share_state.phases import Phases
from share_state.report import console
from share_state.report.audit_summary import audit_json, print_audit

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
