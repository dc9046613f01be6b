"""`share-state audit`: the nightly job. Settings in; tables, page and metrics out; one line per stage on stderr."""

from collections.abc import Sequence
from typing import Annotated, get_args

import typer

from share_state.api.nightly import nightly_audit
from share_state.cli.command import DONE, FOUND, Quiet, Verbose, command
from share_state.cli.input_options import InputOptions
from share_state.cli.options import FailingSeverity, Json, SparkConf, announce_compiling, pairs
from share_state.config.input_spec import input_options
from share_state.config.loading import Assignment, load_settings, settings_for
from share_state.config.model import AuditSettings, ReportSettings
from share_state.errors import ShareStateError
from share_state.pipeline.progress import Progress
from share_state.report import console
from share_state.report.audit_data import AuditReport
from share_state.report.audit_text import audit_json, print_audit
from share_state.sources.log_partition import STATE_TOPIC


def _written(targets: ReportSettings, live: int) -> list[str]:
    """The paths of the report files, and what the metrics leave out."""
    cut = ""
    if live > (most := targets.prometheus_share_partitions):
        cut = f" (series of the worst {most:,} of {live:,} share-partitions; groups are complete)"
    return [
        path
        for path in (targets.html, targets.index, targets.prometheus and f"{targets.prometheus}{cut}")
        if path is not None
    ]


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

    announce_compiling()
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
