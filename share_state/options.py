"""The options that commands share, and what they mean for the library."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from share_state.early_session import early_session
from share_state.errors import InputError, ShareStateError
from share_state.fold.chosen import Chosen
from share_state.fold.control_log import MODES, STRICT, ControlOptions
from share_state.formats import AUTO, FORMATS, Asked, find, find_groups
from share_state.group_input import GroupInput, group_logs
from share_state.group_side import read_groups
from share_state.index_folder import read_indexes
from share_state.inputs import DIALECTS, state_partitions_found
from share_state.live import ask_cluster
from share_state.live.address import FORM, live_input
from share_state.rules import OFF, SEVERITIES, registered
from share_state.rules.groups_findings import listed
from share_state.topics_file import read_subscriptions, read_topics
from share_state.wire.as_of import milliseconds
from share_state.wire.group_logs import GROUP_TOPIC, partitions_shown
from share_state.wire.log_folder import LogPartition, Window
from share_state.wire.table_rows import Columns
from share_state.work import Work

if TYPE_CHECKING:
    from share_state.config import AuditSettings

Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT...", help="Log folders, .log files, tables, texts or globs; several are one export."),
]
OptionalInputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[INPUT]...", help="Log folders, .log files, tables, texts or globs, where no --config names them."
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format", help=f"{', '.join((AUTO, *FORMATS, FORM))}: what the input is; auto looks at the content."
    ),
]
ColumnNames = Annotated[
    list[str] | None,
    typer.Option(
        "--column", metavar="NAME=COLUMN", help="table: what key, value, offset, ... are called, as in key=k."
    ),
]
KafkaProperties = Annotated[
    str | None,
    typer.Option(
        "--kafka-properties",
        metavar="FILE",
        help="kafka://: how to come in, as Kafka's tools take it (--command-config).",
    ),
]
Dialect = Annotated[
    str,
    typer.Option(
        "--dialect", help="share_group_state, control_records (the KIP-932 draft's), or auto: as the folders are named."
    ),
]
Mode = Annotated[
    str, typer.Option("--mode", help="control_records: strict (the valid part of a chain) or best-effort.")
]
Subscriptions = Annotated[
    str | None,
    typer.Option(
        "--subscriptions", metavar="FILE", help="control_records: JSON, topic to the groups that subscribe to it."
    ),
]
AsOfOffset = Annotated[
    list[str] | None,
    typer.Option("--as-of-offset", metavar="P=OFFSET", help="Leave out records of partition P from OFFSET on."),
]
AsOfTime = Annotated[
    str | None,
    typer.Option("--as-of-time", metavar="ISO-8601", help="Leave out records stamped later (UTC unless it says)."),
]
AndAsOfOffset = Annotated[
    list[str] | None,
    typer.Option("--and-as-of-offset", metavar="P=OFFSET", help="The later point; the end where none is given."),
]
AndAsOfTime = Annotated[
    str | None, typer.Option("--and-as-of-time", metavar="ISO-8601", help="The later point, by time.")
]
TopicsFile = Annotated[
    str | None, typer.Option("--topics", metavar="FILE", help="JSON: topic id to name, partitions, end offsets.")
]
StatePartitions = Annotated[
    int | None,
    typer.Option(
        "--state-partitions", metavar="N", min=1, help="Partitions of __share_group_state; by default as found."
    ),
]
Timeline = Annotated[bool, typer.Option("--timeline", help="Also write the state after every record, table timeline.")]
DeliveryLimit = Annotated[
    int,
    typer.Option("--delivery-limit", metavar="N", min=1, help="Deliveries before a record is archived."),
]
RuleSeverity = Annotated[
    list[str] | None, typer.Option("--rule", metavar="CODE=SEVERITY", help="error, warning, info or off.")
]
FailOn = Annotated[
    str, typer.Option("--fail-on", help="Exit with 1 from this severity on: error, warning, info or off.")
]
Master = Annotated[str, typer.Option("--master", help="Spark master.")]
SparkConf = Annotated[list[str] | None, typer.Option("--spark-conf", metavar="K=V", help="A Spark setting.")]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--groups", metavar="GROUP_INPUT", help="Exports of __consumer_offsets; by default beside or in the input."
    ),
]
GroupPartitions = Annotated[
    int | None,
    typer.Option(
        "--group-partitions", metavar="N", min=1, help="Partitions of __consumer_offsets; by default as found."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress line.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Spark's own log, and tracebacks.")]


def pairs(given: Sequence[str] | None, option: str = "--spark-conf") -> dict[str, str]:
    """`K=V` options as a dictionary.

    Raises:
        ShareStateError: if one has no `=`.
    """
    split = [item.partition("=") for item in given or ()]
    for name, sign, _ in split:
        if not name or not sign:
            raise ShareStateError(f"{option} {name}: give NAME=VALUE")
    return {name: value for name, _, value in split}


def chosen_from(timeline: bool, group: str | None, topic: str | None, partition: int | None) -> Chosen | None:
    """The share-partitions that a timeline is wanted of; None for no timeline.

    Raises:
        ShareStateError: if some are named, but no timeline is wanted.
    """
    if timeline:
        return Chosen(group, topic, partition)
    for option, given in (("--group", group), ("--topic", topic), ("--partition", partition)):
        if given is not None:
            raise ShareStateError(f"{option} {given}: chooses what --timeline writes; give --timeline, too")
    return None


def is_of_exports(
    inputs: Sequence[str],
    as_of_offset: Sequence[str] | None,
    as_of_time: str | None,
    and_as_of_offset: Sequence[str] | None,
    and_as_of_time: str | None,
) -> bool:
    """Whether two points of one export are meant, not two warehouses.

    Raises:
        ShareStateError: if neither is.
    """
    if as_of_offset or as_of_time:
        return True
    if and_as_of_offset or and_as_of_time:
        raise ShareStateError("diff: give the earlier point of the export, too: --as-of-offset or --as-of-time")
    if len(inputs) != 2:
        raise ShareStateError("diff: give two warehouses, or an export and --as-of-offset or --as-of-time")
    return False


def work_from(
    inputs: Sequence[str],
    format: str,
    as_of_offset: Sequence[str] | None,
    as_of_time: str | None,
    topics: str | None,
    state_partitions: int | None,
    rules: Sequence[str] | None,
    fail_on: str = OFF,
    dialect: str = AUTO,
    mode: str = STRICT,
    subscriptions: str | None = None,
    index: str | None = None,
    columns: Sequence[str] | None = None,
    master: str = "local[*]",
    spark_conf: Sequence[str] | None = None,
    kafka_properties: str | None = None,
) -> Work:
    """The work that the options describe.

    Raises:
        ShareStateError: if an option or an input cannot be used.
    """
    if dialect not in DIALECTS:
        raise ShareStateError(f"--dialect {dialect}: give one of {', '.join(DIALECTS)}")
    if mode not in MODES:
        raise ShareStateError(f"--mode {mode}: give one of {', '.join(MODES)}")
    if fail_on not in (*SEVERITIES, OFF):
        raise ShareStateError(f"--fail-on {fail_on}: give one of {', '.join((*SEVERITIES, OFF))}")
    severities = _severities(rules)
    until_time = _milliseconds(as_of_time)
    known_topics = read_topics(topics)
    named = Columns.named(pairs(columns, "--column"))
    if (address := live_input(inputs, format)) is not None:
        live = ask_cluster(address, kafka_properties)
        logs, state_partitions = list(live.logs), live.state_partitions
        known_topics = known_topics if topics else live.topics
        groups = GroupInput(live.groups, live.group_partitions) if live.groups else None
    else:
        found = find(Asked(inputs, dialect, named, lambda: early_session(master, pairs(spark_conf))), format)
        logs = found.logs
        groups = GroupInput(found.groups) if found.groups else None
        for note in found.notes:
            sys.stderr.write(f"share-state: {' '.join(inputs)}: {note}\n")
    _check_as_of(logs, as_of_offset, as_of_time)
    cuts = _cuts(as_of_offset, logs)
    return Work(
        logs=logs,
        windows={name: Window(until_offset=offset, until_time_ms=until_time) for name, offset in cuts.items()},
        window=Window(until_time_ms=until_time),
        topics=known_topics,
        state_partitions=state_partitions or state_partitions_found(logs),
        indexes=read_indexes(index, logs),
        control=ControlOptions(mode=mode, subscriptions=read_subscriptions(subscriptions)),
        severities=severities,
        groups=groups,
    )


def with_groups(
    work: Work,
    inputs: Sequence[str],
    named: Sequence[str] | None,
    partitions: int | None,
    columns: Sequence[str] | None = None,
    master: str = "local[*]",
    spark_conf: Sequence[str] | None = None,
) -> Work:
    """Work with the group side that is named, that came with its logs, or that lies beside them.

    Says on stderr where it does not show how many partitions `__consumer_offsets` has.

    Args:
        work: the state side.
        inputs: as the person named them.
        named: exports of `__consumer_offsets`, where they are named.
        partitions: how many partitions that topic has, None for as many as are found.
        columns: what the columns of tables that are named are called, as `--column` has it.
        master: of the session that puts tables in order which are named and need it.
        spark_conf: of that session.
    Raises:
        InputError: if what is named cannot be used.
    """
    if named:
        asked = Asked(
            named, AUTO, Columns.named(pairs(columns, "--column")), lambda: early_session(master, pairs(spark_conf))
        )
        groups = GroupInput(find_groups(asked), partitions)
    elif work.groups is not None:
        groups = replace(work.groups, partitions=partitions or work.groups.partitions)
    else:
        groups = GroupInput(group_logs(inputs, work.logs, ()), partitions)
    if groups.logs and groups.partitions is None and partitions_shown(groups.logs) is None:
        numbers = listed(str(log.partition) for log in groups.logs if log.partition is not None)
        sys.stderr.write(
            f"share-state: {GROUP_TOPIC}: {f'found partition {numbers}' if numbers else 'found records'}, not how many"
            f" there are: a group without a record is not taken for gone; say --group-partitions N\n"
        )
    return replace(work, groups=groups) if groups.logs else work


def named_by_groups(work: Work, inputs: Sequence[str]) -> Work:
    """Work with the topic names that the group side tells, as the tables have them.

    Raises:
        InputError: if a segment of it cannot be read.
    """
    if work.groups is None:
        logs = group_logs(inputs, work.logs, ())
        work = replace(work, groups=GroupInput(logs)) if logs else work
    return read_groups(work)[1]


def audit_settings(
    inputs: Sequence[str] | None,
    config: str | None,
    out: str | None,
    dialect: str,
    overrides: Sequence[str],
    format: str = AUTO,
    columns: Sequence[str] | None = None,
    kafka_properties: str | None = None,
) -> "AuditSettings":
    """The settings of an audit: of its file, or for inputs and a warehouse that are named.

    Raises:
        ShareStateError: if both or neither are given, or one cannot be used.
    """
    from share_state.config import load_settings, settings_for  # noqa: PLC0415  only an audit needs its model

    if inputs:
        if config is not None or out is None:
            raise ShareStateError("audit: give INPUT... and --out WAREHOUSE, or --config FILE")
        of_each = [f"dialect={dialect}", f"format={format}"]
        of_each += [f"columns.{name}={column}" for name, column in pairs(columns, "--column").items()]
        of_each += [] if kafka_properties is None else [f"kafka_properties={kafka_properties}"]
        by_source = [f"sources.{number}.{one}" for number in range(len(inputs)) for one in of_each]
        return settings_for(inputs, out, [*by_source, *overrides])
    if config is None and out is None:
        raise ShareStateError("audit: give --config FILE, or INPUT... and --out WAREHOUSE")
    return load_settings(config, [*([f"warehouse={out}"] if out else ()), *overrides])


def audit_overrides(
    topics: str | None,
    state_partitions: int | None,
    rules: Sequence[str] | None,
    fail_on: str | None,
    html: str | None,
    prometheus: str | None,
    master: str | None,
    spark_conf: Sequence[str] | None,
) -> list[str]:
    """The options of an audit as settings.

    Raises:
        ShareStateError: if one cannot be used.
    """
    given = {
        "topics": topics,
        "state_partitions": state_partitions,
        "fail_on": fail_on,
        "report.html": html,
        "report.prometheus": prometheus,
        "spark.master": master,
    }
    given |= {f"rules.{code}": severity for code, severity in _severities(rules).items()}
    given |= {f"spark.conf.{name}": value for name, value in pairs(spark_conf).items()}
    return [f"{key}={value}" for key, value in given.items() if value is not None]


def group_overrides(named: Sequence[str] | None, partitions: int | None) -> list[str]:
    """The options of an audit about its group side as settings."""
    given = {f"groups.paths.{number}": path for number, path in enumerate(named or ())}
    given |= {} if partitions is None else {"groups.partitions": str(partitions)}
    return [f"{key}={value}" for key, value in given.items()]


def fails(by_severity: Mapping[str, int], fail_on: str) -> bool:
    """Whether findings at or above a severity were made."""
    return fail_on != OFF and any(by_severity.get(severity) for severity in SEVERITIES[: SEVERITIES.index(fail_on) + 1])


def _severities(rules: Sequence[str] | None) -> dict[str, str]:
    chosen = pairs(rules, "--rule")
    for code, severity in chosen.items():
        if code not in registered():
            raise ShareStateError(f"--rule {code}: no such rule; `share-state rules` lists them")
        if severity not in (*SEVERITIES, OFF):
            raise ShareStateError(f"--rule {code}={severity}: give one of {', '.join((*SEVERITIES, OFF))}")
    return chosen


def _check_as_of(logs: Sequence[LogPartition], as_of_offset: Sequence[str] | None, as_of_time: str | None) -> None:
    """Refuse to cut where the form of the export does not tell where."""
    for log in logs:
        form = log.source.form if log.source else ""
        if as_of_offset and not log.has_offsets:
            raise InputError(f"--as-of-offset: {form} holds no offsets; give segments or a table")
        if as_of_time and not log.has_times:
            raise InputError(f"--as-of-time: this {form} holds no timestamps; give segments or a table that has them")


def _cuts(as_of_offset: Sequence[str] | None, logs: Sequence[LogPartition]) -> dict[str, int]:
    """Name of a log partition -> offset; a bare number names every log partition of that number."""
    cuts = {}
    for given, offset in pairs(as_of_offset, "--as-of-offset").items():
        named = [log.name for log in logs if given in (log.name, str(log.partition))]
        if not offset.isdecimal():
            raise ShareStateError(f"--as-of-offset {given}={offset}: give a partition and an offset, as in 3=12000")
        if not named:
            raise InputError(f"--as-of-offset {given}={offset}: partition {given} is not in the input")
        cuts |= dict.fromkeys(named, int(offset))
    return cuts


def _milliseconds(as_of_time: str | None) -> int | None:
    try:
        return None if as_of_time is None else milliseconds(as_of_time)
    except InputError:
        raise ShareStateError(f"--as-of-time {as_of_time}: give a time as in 2026-11-21T02:10:00Z") from None
