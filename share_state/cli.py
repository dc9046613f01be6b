"""The commands. Each does four things: settings, session, one call into the library, output."""

import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import Abort, Exit, TyperException

from share_state import __version__
from share_state.errors import ShareStateError
from share_state.fold.chosen import Chosen
from share_state.index_folder import write_indexes
from share_state.local import fold_here
from share_state.options import (
    AndAsOfOffset,
    AndAsOfTime,
    AsOfOffset,
    AsOfTime,
    ColumnNames,
    DeliveryLimit,
    Dialect,
    FailOn,
    Format,
    GroupPartitions,
    Groups,
    Inputs,
    Json,
    KafkaProperties,
    Master,
    Mode,
    OptionalInputs,
    Quiet,
    RuleSeverity,
    SparkConf,
    StatePartitions,
    Subscriptions,
    Timeline,
    TopicsFile,
    Verbose,
    audit_overrides,
    audit_settings,
    chosen_from,
    fails,
    group_overrides,
    is_of_exports,
    named_by_groups,
    pairs,
    with_groups,
    work_from,
)
from share_state.outcome import summarise
from share_state.phases import Phases
from share_state.report import console
from share_state.report.cutoff import check_deletable, print_cutoffs, print_proof, write_delete_records
from share_state.report.records import print_records
from share_state.report.simulation import print_simulation, simulation_json
from share_state.report.summary import print_summary
from share_state.rules import registered
from share_state.warehouse_lock import locked
from share_state.warehouse_place import check_place

DONE, FOUND, UNUSABLE, UNEXPECTED = 0, 1, 2, 3

app = typer.Typer(
    name="share-state",
    help="Kafka share-group state (KIP-932) from exported logs: what the coordinator would hold, what is wrong.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command(epilog="Example: share-state reconstruct /exports/broker-1 --out /lake/share_state")
def reconstruct(
    inputs: Inputs,
    out: Annotated[str, typer.Option("--out", metavar="WAREHOUSE", help="Folder of the Delta tables.")],
    format: Format = "auto",
    column: ColumnNames = None,
    kafka_properties: KafkaProperties = None,
    dialect: Dialect = "auto",
    mode: Mode = "strict",
    subscriptions: Subscriptions = None,
    as_of_offset: AsOfOffset = None,
    as_of_time: AsOfTime = None,
    topics: TopicsFile = None,
    groups: Groups = None,
    group_partitions: GroupPartitions = None,
    state_partitions: StatePartitions = None,
    timeline: Timeline = False,
    group: Annotated[str | None, typer.Option(help="Timeline only of this group.")] = None,
    topic: Annotated[str | None, typer.Option(help="Timeline only of this topic (name or id).")] = None,
    partition: Annotated[int | None, typer.Option(help="Timeline only of this partition.")] = None,
    rule: RuleSeverity = None,
    fail_on: FailOn = "error",
    master: Master = "local[*]",
    spark_conf: SparkConf = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Fold an export and write the tables; prints a summary."""
    phases = Phases(quiet=quiet)
    chosen = chosen_from(timeline, group, topic, partition)
    check_place(out)
    work = work_from(
        inputs,
        format,
        as_of_offset,
        as_of_time,
        topics,
        state_partitions,
        rule,
        fail_on,
        dialect,
        mode,
        subscriptions,
        columns=column,
        master=master,
        spark_conf=spark_conf,
        kafka_properties=kafka_properties,
    )
    work = replace(work, timeline=chosen)
    work = with_groups(work, inputs, groups, group_partitions)
    from share_state.spark import reconstruct as job  # noqa: PLC0415  Spark is imported only where it is used
    from share_state.spark.session import session  # noqa: PLC0415

    with locked(out, "reconstruct"), session(master, pairs(spark_conf), verbose=verbose, phases=phases) as spark:
        options = {
            "as_of_offset": ",".join(as_of_offset or ()),
            "as_of_time": as_of_time or "",
            "rules": ",".join(rule or ()),
            "mode": mode,
            "subscriptions": json.dumps(work.control.subscriptions) if subscriptions else "",
            "timeline": json.dumps(asdict(chosen)) if chosen else "",
        }
        outcome = job.reconstruct(spark, work, out, inputs=tuple(inputs), options=options, phases=phases)
    phases.close()
    found = _plain(outcome) | {"warehouse": out}
    console.print_json(found) if as_json else print_summary(found)
    raise Exit(FOUND if fails(outcome.by_severity, fail_on) else DONE)


@app.command(epilog="Example: share-state audit --config conf/audit.yaml")
def audit(
    inputs: OptionalInputs = None,
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
    groups: Groups = None,
    group_partitions: GroupPartitions = None,
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
    from share_state.nightly import nightly_audit, stages_on_stderr  # noqa: PLC0415  only an audit needs its settings and reports

    overrides = audit_overrides(topics, state_partitions, rule, fail_on, html, prometheus, master, spark_conf)
    overrides += group_overrides(groups, group_partitions)
    settings = audit_settings(
        inputs, config, out, dialect, [*overrides, *(sets or ())], format, column, kafka_properties
    )
    with stages_on_stderr(quiet=quiet):
        outcome, report = nightly_audit(settings, Phases(quiet=quiet), verbose=verbose)
    from share_state.report.audit_summary import audit_json, print_audit  # noqa: PLC0415

    written = [path for path in (settings.report.html, settings.report.prometheus) if path is not None]
    console.print_json(audit_json(report)) if as_json else print_audit(report, written)
    raise Exit(FOUND if fails(outcome.by_severity, settings.fail_on) else DONE)


@app.command(epilog="Example: share-state cutoff /exports/broker-1 --verify --delete-records offsets.json")
def cutoff(
    inputs: Inputs,
    delete_records: Annotated[
        str | None, typer.Option("--delete-records", metavar="FILE", help="Write the JSON for kafka-delete-records.sh.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Fold again without what lies before it; prove nothing changes.")
    ] = False,
    ignore_uncheckpointed: Annotated[
        bool,
        typer.Option("--ignore-uncheckpointed", help="control_records: groups without a checkpoint hold nothing back."),
    ] = False,
    index: Annotated[
        str | None,
        typer.Option(
            "--index", metavar="DIR", help="control_records: check the share snapshot files there, write new ones."
        ),
    ] = None,
    format: Format = "auto",
    column: ColumnNames = None,
    kafka_properties: KafkaProperties = None,
    dialect: Dialect = "auto",
    mode: Mode = "strict",
    subscriptions: Subscriptions = None,
    as_of_offset: AsOfOffset = None,
    as_of_time: AsOfTime = None,
    state_partitions: StatePartitions = None,
    rule: RuleSeverity = None,
    fail_on: FailOn = "error",
    master: Annotated[
        str | None, typer.Option("--master", help="Spark master; by default the logs are folded here without Spark.")
    ] = None,
    spark_conf: SparkConf = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """The offset below which every record of a state partition is redundant, and whether to trust it."""
    phases = Phases(quiet=quiet)
    work = work_from(
        inputs,
        format,
        as_of_offset,
        as_of_time,
        None,
        state_partitions,
        rule,
        fail_on,
        dialect,
        mode,
        subscriptions,
        index,
        columns=column,
        master=master or "local[*]",
        spark_conf=spark_conf,
        kafka_properties=kafka_properties,
    )
    work = replace(work, verify=verify, control=replace(work.control, ignore_uncheckpointed=ignore_uncheckpointed))
    if delete_records is not None:
        check_deletable(delete_records, work.logs)
    if master is None:
        with phases("read and fold"):
            outcome = summarise(fold_here(work), tuple(inputs), {})
    else:
        from share_state.spark import reconstruct as job  # noqa: PLC0415
        from share_state.spark.session import session  # noqa: PLC0415

        with session(master, pairs(spark_conf), verbose=verbose, phases=phases) as spark:
            outcome = job.fold_only(spark, work, inputs=tuple(inputs), phases=phases)
    phases.close()
    found = _plain(outcome)
    if index is not None:
        write_indexes(index, outcome.index)
    named = None
    if delete_records is not None and not outcome.differing:
        named = write_delete_records(delete_records, found["cutoff"])
    if as_json:
        console.print_json(found | {"delete_records": delete_records if named is not None else None})
    else:
        print_cutoffs(found["cutoff"])
        if verify:
            print_proof(outcome.compared, outcome.differing)
        if delete_records is not None:
            written = (
                f"{delete_records}: names {named} state partitions" if named is not None else "nothing was written"
            )
            console.say(
                f"{written}; run kafka-delete-records.sh --offset-json-file {delete_records}" if named else written
            )
    raise Exit(FOUND if outcome.differing or fails(outcome.by_severity, fail_on) else DONE)


@app.command(epilog="Example: share-state show /lake/share_state --group orders-app --topic orders")
def show(
    warehouse: Annotated[
        str, typer.Argument(metavar="[WAREHOUSE]", help="Folder of the Delta tables.")
    ] = "share_state",
    group: Annotated[str | None, typer.Option(help="Only this group.")] = None,
    topic: Annotated[str | None, typer.Option(help="Only this topic (name or id).")] = None,
    partition: Annotated[int | None, typer.Option(help="Only this partition.")] = None,
    ranges: Annotated[bool, typer.Option("--ranges", help="Every in-flight range, one a line.")] = False,
    as_json: Json = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="With the leader epoch.")] = False,
) -> None:
    """Print state, lag and what is in flight, from the tables."""
    from share_state.report.show import described, print_described  # noqa: PLC0415

    found = described(warehouse, group, topic, partition)
    console.print_json(found) if as_json else print_described(found, verbose=verbose, ranges=ranges)


@app.command(
    epilog="Example: share-state explain /exports/broker-1 --group app --topic orders --partition 0 --offset 4711"
)
def explain(
    inputs: Inputs,
    group: Annotated[str, typer.Option(help="The share group.")],
    topic: Annotated[str, typer.Option(help="The topic (name or id).")],
    partition: Annotated[int, typer.Option(help="The partition of the topic.")],
    offset: Annotated[int, typer.Option(help="The offset to explain.")],
    format: Format = "auto",
    as_of_offset: AsOfOffset = None,
    as_of_time: AsOfTime = None,
    topics: TopicsFile = None,
    state_partitions: StatePartitions = None,
    dialect: Dialect = "auto",
    mode: Mode = "strict",
    delivery_limit: DeliveryLimit = 5,
    as_json: Json = False,
) -> None:
    """What became of one offset: every record that touched it, and how it stands."""
    from share_state.report.explain import explained, print_explained  # noqa: PLC0415

    work = work_from(
        inputs, format, as_of_offset, as_of_time, topics, state_partitions, None, dialect=dialect, mode=mode
    )
    work = replace(work, limits=replace(work.limits, delivery_count=delivery_limit))
    found = explained(work, inputs, group, topic, partition, offset)
    console.print_json(found) if as_json else print_explained(found)


@app.command(
    epilog="Example: share-state diff /exports/broker-1 --as-of-time 2026-11-21T02Z --and-as-of-time 2026-11-21T03Z"
)
def diff(
    inputs: Annotated[
        list[str], typer.Argument(metavar="A B | INPUT...", help="Two warehouses; or an export, with as-of options.")
    ],
    as_of_offset: AsOfOffset = None,
    as_of_time: AsOfTime = None,
    and_as_of_offset: AndAsOfOffset = None,
    and_as_of_time: AndAsOfTime = None,
    group: Annotated[str | None, typer.Option(help="Only this group.")] = None,
    topic: Annotated[str | None, typer.Option(help="Only this topic (name or id).")] = None,
    partition: Annotated[int | None, typer.Option(help="Only this partition.")] = None,
    topics: TopicsFile = None,
    dialect: Dialect = "auto",
    as_json: Json = False,
) -> None:
    """What moved between two warehouses, or in an export between two points in time: SPSO, epochs, ranges in flight."""
    from share_state.report.diff import differences, of_export, of_warehouse, print_differences  # noqa: PLC0415

    chosen = Chosen(group, topic, partition)
    if is_of_exports(inputs, as_of_offset, as_of_time, and_as_of_offset, and_as_of_time):
        points = ((as_of_offset, as_of_time), (and_as_of_offset, and_as_of_time))
        works = (work_from(inputs, "auto", *point, topics, None, None, dialect=dialect) for point in points)
        before, after = (of_export(named_by_groups(work, inputs), chosen) for work in works)
    else:
        before, after = (of_warehouse(warehouse, chosen) for warehouse in inputs)
    found = differences(before, after)
    console.print_json(found) if as_json else print_differences(found)


@app.command(epilog="Example: share-state groups /lake/share_state --group orders-app")
def groups(
    warehouse: Annotated[
        str, typer.Argument(metavar="[WAREHOUSE]", help="Folder of the Delta tables.")
    ] = "share_state",
    group: Annotated[str | None, typer.Option(help="All that is known of this group.")] = None,
    members: Annotated[bool, typer.Option("--members", help="With the members of every group.")] = False,
    as_json: Json = False,
) -> None:
    """Print state, members, assignment and lag of share groups, from the tables."""
    from share_state.report.groups import described_groups, print_groups  # noqa: PLC0415

    found = described_groups(warehouse, group)
    console.print_json(found) if as_json else print_groups(found, group=group, members=members)


@app.command(epilog="Example: share-state decode /exports/broker-1/__share_group_state-7 | head")
def decode(
    inputs: Inputs,
    out: Annotated[str | None, typer.Option("--out", metavar="DIR", help="Write a Delta table instead.")] = None,
    format: Format = "auto",
    column: ColumnNames = None,
    kafka_properties: KafkaProperties = None,
    dialect: Dialect = "auto",
    as_of_offset: AsOfOffset = None,
    as_of_time: AsOfTime = None,
    topics: TopicsFile = None,
    master: Master = "local[*]",
    spark_conf: SparkConf = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Decoded records as JSON lines, in log order."""
    work = work_from(
        inputs,
        format,
        as_of_offset,
        as_of_time,
        topics,
        None,
        None,
        dialect=dialect,
        columns=column,
        master=master,
        spark_conf=spark_conf,
        kafka_properties=kafka_properties,
    )
    if out is None:
        print_records(work)
        return
    from share_state.spark.decoded import write_decoded  # noqa: PLC0415
    from share_state.spark.session import session  # noqa: PLC0415

    phases = Phases(quiet=quiet)
    with session(master, pairs(spark_conf), verbose=verbose, phases=phases) as spark, phases("write"):
        count = write_decoded(spark, work, out)
    phases.close()
    console.print_json({"records": count, "table": out}) if as_json else console.say(f"{count:,} records are in {out}")


@app.command(epilog="Example: share-state simulate --out history --seed 7 --groups 12 --minutes 60")
def simulate(
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="A new or empty folder for logs and truth.")],
    events: Annotated[
        str | None, typer.Option("--events", metavar="FILE", help="Play these events (JSON lines) instead.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    groups: Annotated[int, typer.Option(help="Share groups, each with one of the stated behaviours.")] = 8,
    minutes: Annotated[int, typer.Option(help="Of simulated time.")] = 10,
    dialect: Annotated[
        str, typer.Option("--dialect", help="share_group_state, control_records or both.")
    ] = "share_group_state",
    faults: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="NAME", help="Break the logs; repeatable, or all; each names its finding."),
    ] = None,
    release: Annotated[str, typer.Option(help="Of the brokers that write, 4.0 to 4.4.")] = "4.4",
    state_partitions: Annotated[int, typer.Option(help="Partitions of __share_group_state.")] = 50,
    updates_per_snapshot: Annotated[int, typer.Option(help="After which a snapshot is written.")] = 500,
    checkpoint_every: Annotated[int, typer.Option(help="control_records: deltas before a checkpoint.")] = 10,
    codec: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    prune: Annotated[bool, typer.Option("--prune", help="Let the brokers delete redundant records.")] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Also the outcome of every event, the state per record.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make share-group histories with the share-partition state machine, written as real segments, with the truth."""
    from share_state.partition.simulation import simulate as simulated  # noqa: PLC0415  other commands need none of it

    made = simulated(
        Path(out),
        events=None if events is None else Path(events),
        seed=seed,
        groups=groups,
        minutes=minutes,
        dialect=dialect,
        faults=faults or (),
        release=release,
        state_partitions=state_partitions,
        updates_per_snapshot=updates_per_snapshot,
        checkpoint_every=checkpoint_every,
        codec=codec,
        prunes=prune,
        traces=trace,
    )
    console.print_json(simulation_json(made)) if as_json else print_simulation(made)


@app.command(epilog="Example: share-state compare /lake/share_state kafka://broker-1:9092")
def compare(
    warehouse: Annotated[str, typer.Argument(metavar="WAREHOUSE", help="Folder of the Delta tables.")],
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="kafka://HOST:PORT[,HOST:PORT...].")],
    kafka_properties: KafkaProperties = None,
    fail_on: FailOn = "error",
    as_json: Json = False,
) -> None:
    """What the broker answers beside what the log says."""
    from share_state.live import ask_broker  # noqa: PLC0415  only this command asks
    from share_state.report.compare import compare as compared  # noqa: PLC0415
    from share_state.report.compare import counted, groups_of, print_compared  # noqa: PLC0415
    from share_state.spark import jars  # noqa: PLC0415

    groups = groups_of(warehouse)
    found = compared(warehouse, ask_broker(cluster, kafka_properties, jars.jars(jars.KAFKA_CLIENTS), groups))
    console.print_json(found | {"warehouse": warehouse, "cluster": cluster}) if as_json else print_compared(found)
    raise Exit(FOUND if fails(counted(found), fail_on) else DONE)


@app.command(epilog="Example: share-state rules --json")
def rules(as_json: Json = False) -> None:
    """List the rules: code, severity, what must hold, and where that comes from."""
    listed = [
        {"rule": rule.code, "severity": rule.severity, "statement": rule.statement, "source": rule.source}
        for rule in sorted(registered().values(), key=lambda rule: rule.code)
    ]
    if as_json:
        console.print_json(listed)
    else:
        console.print_table(["RULE", "SEVERITY", "STATEMENT", "SOURCE"], [list(rule.values()) for rule in listed])


@app.command(
    epilog="Example: share-state plot window /exports/broker-1 --group app --topic orders --partition 0 --out w.html"
)
def plot(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="window, offsets, deliveries or cutoff.")],
    inputs: Inputs,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="A name that ends in .html, .svg or .png.")],
    group: Annotated[str | None, typer.Option(help="The share group.")] = None,
    topic: Annotated[str | None, typer.Option(help="The topic (name or id).")] = None,
    partition: Annotated[int | None, typer.Option(help="The partition of the topic.")] = None,
    format: Format = "auto",
    dialect: Dialect = "auto",
    as_of_offset: AsOfOffset = None,
    as_of_time: AsOfTime = None,
    topics: TopicsFile = None,
    delivery_limit: Annotated[
        int | None, typer.Option("--delivery-limit", metavar="N", min=1, help="deliveries: draw the group's limit.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw one picture: the in-flight window, offsets over time, delivery counts, or cutoff against log."""
    from share_state.plots.drawn import drawn  # noqa: PLC0415  matplotlib is imported only where something is drawn
    from share_state.plots.saved import checked, save  # noqa: PLC0415

    checked(out)
    work = work_from(inputs, format, as_of_offset, as_of_time, topics, None, None, dialect=dialect)
    chart = drawn(what, work, Chosen(group, topic, partition), delivery_limit)
    save(chart, out)
    told = {"picture": what, "of": chart.heading, "file": out, "says": chart.says}
    console.print_json(told) if as_json else console.say(f"{out}: {console.printable(chart.says)}")


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)] = False,
) -> None:
    """Kafka share-group state (KIP-932) from exported logs."""
    if version:
        console.say(f"share-state {__version__}")
    elif context.invoked_subcommand is None:
        console.say(context.get_help())


def _plain(outcome: Any) -> dict[str, Any]:
    found = asdict(replace(outcome, cutoff=None, findings={}, index={}, files=()))
    counted = [
        {"severity": severity, "rule": rule, "count": count} for (severity, rule), count in outcome.findings.items()
    ]
    del found["index"], found["files"]
    return found | {"cutoff": outcome.cutoff.to_pylist(), "findings": counted}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave with the exit code of the contract: 0 done, 1 found, 2 unusable, 3 unexpected."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return int(app(args=given, prog_name="share-state", standalone_mode=False) or DONE)
    except Exit as left:
        return left.exit_code
    except ShareStateError as error:
        return _say(str(error), UNUSABLE)
    except TyperException as error:
        said = error.format_message() if hasattr(error, "format_message") else str(error)
        return _say(f"{' '.join(said.split()).rstrip('.')}; `share-state --help` lists commands and options", UNUSABLE)
    except (KeyboardInterrupt, Abort):
        return _say("stopped; nothing was committed", 130)
    except SystemExit:
        # So typer leaves where the reader of stdout has gone, as `| head` does.
        return DONE
    except Exception as error:  # noqa: BLE001  the last line of defence: one line, and the traceback on request
        if (known := _caused_by_us(error)) is not None:
            return _say(known, UNUSABLE)
        if "-v" in given or "--verbose" in given:
            traceback.print_exc()
        first = str(error).strip().splitlines()[0] if str(error).strip() else ""
        return _say(f"unexpected {type(error).__name__}: {first} (-v shows more)", UNEXPECTED)


def _caused_by_us(error: Exception) -> str | None:
    """The message of an error of ours that a Spark task raised: it comes back as text inside Spark's own."""
    for line in reversed(str(error).splitlines()):
        for name in ("InputError", "WarehouseError"):
            marker = f"share_state.errors.{name}: "
            if marker in line:
                return line.split(marker, 1)[1].strip()
    return None


def _say(message: str, code: int) -> int:
    sys.stderr.write(f"share-state: {' '.join(message.splitlines())}\n")
    return code
