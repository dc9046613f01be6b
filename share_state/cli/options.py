"""The options that several commands take: their types, and the bundles that belong together.

What --rule and --fail-on mean.

The work that options describe: what is found in the inputs, up to which record, and how it is folded.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from share_state.cli.main import Bundle
from share_state.errors import InputError, ShareStateError
from share_state.fold.control_log import MODES, ControlOptions
from share_state.pipeline.groups import read_groups
from share_state.pipeline.inputs import Asked, check_cut, read_export, told_of_partitions, with_group_side
from share_state.pipeline.plan import Work
from share_state.rules.registry import OFF, SEVERITIES, registered
from share_state.sources.as_of import milliseconds
from share_state.sources.discovery import DIALECTS, LogPartition, Window
from share_state.sources.tables import Columns
from share_state.sources.topics import read_topics
from share_state.spark.choice import Where
from share_state.spark.session import LOCAL

Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT...", help="Log folders, .log files, tables, texts or globs; several are one export."),
]
Out = Annotated[
    str, typer.Option("--out", metavar="WAREHOUSE", help="Folder or address (s3://...) of the Delta tables.")
]
Warehouse = Annotated[str, typer.Argument(metavar="[WAREHOUSE]", help="Folder or address of the Delta tables.")]
Group = Annotated[str | None, typer.Option(help="Only this group.")]
Topic = Annotated[str | None, typer.Option(help="Only this topic (name or id).")]
Partition = Annotated[int | None, typer.Option(help="Only this partition.")]
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
Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="segments, table, console-json, dump-log or kafka: what the input is; auto looks at the content.",
    ),
]
ColumnNames = Annotated[
    list[str] | None,
    typer.Option(
        "--column", metavar="NAME=COLUMN", help="table: what key, value, offset, ... are called, as in key=k."
    ),
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
Mode = Annotated[
    str, typer.Option("--mode", help="control_records: strict (the valid part of a chain) or best-effort.")
]
Subscriptions = Annotated[
    str | None,
    typer.Option(
        "--subscriptions", metavar="FILE", help="control_records: JSON, topic to the groups that subscribe to it."
    ),
]
RuleSeverity = Annotated[
    list[str] | None, typer.Option("--rule", metavar="CODE=SEVERITY", help="error, warning, info or off.")
]
FailOn = Annotated[
    str, typer.Option("--fail-on", help="Exit with 1 from this severity on: error, warning, info or off.")
]
SparkConf = Annotated[list[str] | None, typer.Option("--spark-conf", metavar="K=V", help="A Spark setting.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress line.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Spark's own log, and tracebacks.")]
DeliveryLimit = Annotated[
    int | None, typer.Option("--delivery-limit", metavar="N", min=1, help="Deliveries before a record is archived.")
]


@dataclass(frozen=True, slots=True)
class Reading(Bundle):
    """What an input is, and which of its records count."""

    format: Format = "auto"
    column: ColumnNames = None
    kafka_properties: KafkaProperties = None
    dialect: Dialect = "auto"
    as_of_offset: Annotated[
        list[str] | None,
        typer.Option("--as-of-offset", metavar="P=OFFSET", help="Leave out records of partition P from OFFSET on."),
    ] = None
    as_of_time: Annotated[
        str | None,
        typer.Option("--as-of-time", metavar="ISO-8601", help="Leave out records stamped later (UTC unless it says)."),
    ] = None
    topics: TopicsFile = None


@dataclass(frozen=True, slots=True)
class Folding(Bundle):
    """How records are folded."""

    mode: Mode = "strict"
    state_partitions: StatePartitions = None


@dataclass(frozen=True, slots=True)
class GroupSide(Bundle):
    """Where the groups are told."""

    groups: Annotated[
        list[str] | None,
        typer.Option(
            "--groups", metavar="GROUP_INPUT", help="Exports of __consumer_offsets; by default beside or in the input."
        ),
    ] = None
    group_partitions: Annotated[
        int | None,
        typer.Option(
            "--group-partitions", metavar="N", min=1, help="Partitions of __consumer_offsets; by default as found."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Judging(Bundle):
    """What findings weigh."""

    rule: RuleSeverity = None
    fail_on: FailOn = "error"


@dataclass(frozen=True, slots=True)
class Running(Bundle):
    """Where a command runs, and what it says meanwhile."""

    master: Annotated[
        str | None, typer.Option("--master", help=f"Spark master. By default {LOCAL}, where there is enough to read.")
    ] = None
    spark_conf: SparkConf = None
    quiet: Quiet = False
    verbose: Verbose = False

    @property
    def where(self) -> Where:
        """Where tasks are to run.

        Raises:
            ShareStateError: if a setting has no `=`.
        """
        return Where(self.master, pairs(self.spark_conf), self.verbose)


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


def severities(rules: Sequence[str] | None) -> dict[str, str]:
    """Rule -> severity or "off".

    Raises:
        ShareStateError: if there is no such rule or severity.
    """
    chosen = pairs(rules, "--rule")
    for code, severity in chosen.items():
        if code not in registered():
            raise ShareStateError(f"--rule {code}: no such rule; `share-state rules` lists them")
        if severity not in (*SEVERITIES, OFF):
            raise ShareStateError(f"--rule {code}={severity}: give one of {', '.join((*SEVERITIES, OFF))}")
    return chosen


def check_fail_on(fail_on: str) -> None:
    """Refuse a severity that is none.

    Raises:
        ShareStateError: if it is none.
    """
    if fail_on not in (*SEVERITIES, OFF):
        raise ShareStateError(f"--fail-on {fail_on}: give one of {', '.join((*SEVERITIES, OFF))}")


def fails(by_severity: Mapping[str, int], fail_on: str) -> bool:
    """Whether findings at or above a severity were made."""
    return fail_on != OFF and any(by_severity.get(severity) for severity in SEVERITIES[: SEVERITIES.index(fail_on) + 1])


def work_of(
    inputs: Sequence[str], reading: Reading, folding: Folding | None = None, running: Running | None = None
) -> Work:
    """The work that the options describe; says on stderr what a person should know of the inputs.

    Args:
        inputs: as the person named them.
        reading: what they are, and which of their records count.
        folding: how they are folded; as by default where a command does not ask.
        running: of a session that puts tables in order which need it.
    Raises:
        ShareStateError: if an option or an input cannot be used.
    """
    folding = folding or Folding()
    if reading.dialect not in DIALECTS:
        raise ShareStateError(f"--dialect {reading.dialect}: give one of {', '.join(DIALECTS)}")
    if folding.mode not in MODES:
        raise ShareStateError(f"--mode {folding.mode}: give one of {', '.join(MODES)}")
    until_time = _milliseconds(reading.as_of_time)
    topics = None if reading.topics is None else read_topics(reading.topics)
    export = read_export(_asked(inputs, reading, running or Running()), reading.format, reading.kafka_properties)
    for note in export.notes:
        sys.stderr.write(f"share-state: {' '.join(inputs)}: {note}\n")
    logs = export.logs
    check_cut(
        logs,
        by_offset="--as-of-offset" if reading.as_of_offset else None,
        by_time=None if reading.as_of_time is None else "--as-of-time",
    )
    cuts = _cuts(reading.as_of_offset, logs)
    return replace(
        export.work(topics, folding.state_partitions),
        windows={name: Window(until_offset=offset, until_time_ms=until_time) for name, offset in cuts.items()},
        window=Window(until_time_ms=until_time),
        control=ControlOptions(mode=folding.mode),
    )


def with_groups(
    work: Work, inputs: Sequence[str], side: GroupSide, reading: Reading | None = None, running: Running | None = None
) -> Work:
    """Work with the group side that is named, that came with its logs, or that lies beside them.

    Says on stderr where it does not show how many partitions `__consumer_offsets` has.

    Args:
        work: the state side.
        inputs: as the person named them.
        side: where the groups are told.
        reading: what the columns of tables that are named are called.
        running: of a session that puts tables in order which are named and need it.
    Raises:
        InputError: if what is named cannot be used.
    """
    named = _asked(side.groups, reading or Reading(), running or Running()) if side.groups else None
    work = with_group_side(work, inputs, named, side.group_partitions)
    if (told := told_of_partitions(work.groups)) is not None:
        sys.stderr.write(f"share-state: {told}; say --group-partitions N\n")
    return work


def named_by_groups(work: Work, inputs: Sequence[str]) -> Work:
    """Work with the topic names that the group side tells, as the tables have them.

    Raises:
        InputError: if a segment of it cannot be read.
    """
    return read_groups(with_group_side(work, inputs))[1]


def _asked(inputs: Sequence[str], reading: Reading, running: Running) -> Asked:
    columns, where = Columns.named(pairs(reading.column, "--column")), running.where
    return Asked(inputs, reading.dialect, columns, where.session)


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
