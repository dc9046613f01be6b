"""The options that several commands take: their types, and the bundles that belong together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from share_state.commands.bundle import Bundle
from share_state.errors import ShareStateError
from share_state.runs.where import Where
from share_state.spark.masters import LOCAL

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
