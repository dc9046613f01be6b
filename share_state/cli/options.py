"""Options that several commands share, and the InputSpec that they describe.

Imports that only commands over logs need are in functions: `show` and `groups` start in half the time without them.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from share_state.cli.main import Bundle, Quiet, Verbose
from share_state.errors import ShareStateError

if TYPE_CHECKING:
    from share_state.config.inputs import FieldNames, InputSpec
    from share_state.pipeline.plan import FoldPlan
    from share_state.spark.choice import ExecutorChoice

_LOG = logging.getLogger("share_state")

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...", help="Log folders, .log files, tables, texts or globs. Several form one export."
    ),
]
Out = Annotated[
    str,
    typer.Option(
        metavar="WAREHOUSE",
        help="Where the Delta tables go: a folder, an address (s3://...) or, on Spark, catalog.schema.",
    ),
]
Warehouse = Annotated[str, typer.Argument(metavar="[WAREHOUSE]", help="Folder or address of the Delta tables.")]
Group = Annotated[str | None, typer.Option(help="Select this group.")]
Topic = Annotated[str | None, typer.Option(help="Select this topic (name or id).")]
Partition = Annotated[int | None, typer.Option(help="Select this partition.")]
KafkaProperties = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="kafka://: client properties, as for --command-config of Kafka's tools."),
]
Dialect = Annotated[
    str,
    typer.Option(
        help="Records in the logs: share_group_state, control_records (KIP-932 draft), or auto, by the folder names."
    ),
]
Format = Annotated[
    str, typer.Option(help="Format of the input: auto (by content), segments, table, console-json, dump-log or kafka.")
]
ColumnNames = Annotated[
    list[str] | None, typer.Option(metavar="NAME=COLUMN", help="table: name of a column in the input, such as key=k.")
]
TopicsFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="JSON file: topic id to name, partition count and end offsets.")
]
StatePartitions = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Partition count of __share_group_state; by default inferred from the input."
    ),
]
DeadLetters = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="Export of the dead-letter topics, or kafka://HOST:PORT (repeatable)."),
]
CopiedLast = Annotated[
    bool, typer.Option("--dead-letters-copied-last", help="The dead-letter topics were copied after the state logs.")
]
Mode = Annotated[str, typer.Option(help="control_records: strict (fold up to the first broken link) or best-effort.")]
Subscriptions = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="control_records: JSON file, topic to the groups that subscribe to it."),
]
RuleSeverity = Annotated[
    list[str] | None,
    typer.Option(metavar="CODE=SEVERITY", help="Set the severity of a rule: error, warning, info or off (repeatable)."),
]


def check_fail_on(fail_on: str | None) -> str | None:
    """Refuse an unknown severity; the callback of `--fail-on`.

    Raises:
        ShareStateError: if it is unknown.
    """
    from share_state.rules.registry import OFF, SEVERITIES  # noqa: PLC0415

    if fail_on not in (None, *SEVERITIES, OFF):
        raise ShareStateError(f"--fail-on {fail_on}: give one of {', '.join((*SEVERITIES, OFF))}")
    return fail_on


FailOn = Annotated[
    str,
    typer.Option(
        callback=check_fail_on, help="Lowest severity that makes the exit code 1: error, warning, info or off."
    ),
]
SparkConf = Annotated[list[str] | None, typer.Option(metavar="K=V", help="Spark setting (repeatable).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DeliveryLimit = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Deliveries after which the broker archives a record.")
]


@dataclass(frozen=True, slots=True)
class Source(Bundle):
    """Options that describe the input."""

    format: Format = "auto"
    column: ColumnNames = None
    kafka_properties: KafkaProperties = None
    dialect: Dialect = "auto"
    topics: TopicsFile = None


@dataclass(frozen=True, slots=True)
class Reading(Source):
    """Options that describe the input, and which of its records to read."""

    as_of_offset: Annotated[
        list[str] | None,
        typer.Option(metavar="P=OFFSET", help="Ignore records at or after OFFSET of state partition P (repeatable)."),
    ] = None
    as_of_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Ignore records with a later timestamp: ISO 8601 (UTC unless it has an offset or a zone as "
            "Europe/Berlin), ms since 1970, 02:10, or -30m before the newest record.",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Folding(Bundle):
    """Options of the fold."""

    mode: Mode = "strict"
    state_partitions: StatePartitions = None


@dataclass(frozen=True, slots=True)
class GroupSide(Bundle):
    """Options that describe the logs of the groups."""

    groups: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP_INPUT",
            help="Export of __consumer_offsets; by default taken from the input or the folders next to it.",
        ),
    ] = None
    group_partitions: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Partition count of __consumer_offsets; by default inferred from the input."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Judging(Bundle):
    """Options for the severities of findings."""

    rule: RuleSeverity = None
    fail_on: FailOn = "error"


@dataclass(frozen=True, slots=True)
class Running(Bundle):
    """Options for where a command runs, and what it prints."""

    master: Annotated[str | None, typer.Option(help="Spark master; by default local[*] where Spark is needed.")] = None
    spark_conf: SparkConf = None
    quiet: Quiet = False
    verbose: Verbose = False

    @property
    def choice(self) -> "ExecutorChoice":
        """The executor that the options request."""
        from share_state.spark.choice import ExecutorChoice  # noqa: PLC0415

        return ExecutorChoice(self.master, pairs(self.spark_conf), self.verbose)


_FORMS = {"--as-of-offset": "P=OFFSET", "--column": "NAME=COLUMN", "--rule": "CODE=SEVERITY"}


def pairs(given: Sequence[str] | None, option: str = "--spark-conf") -> dict[str, str]:
    """`K=V` options as a dictionary.

    Raises:
        ShareStateError: if one has no `=`.
    """
    split = [item.partition("=") for item in given or ()]
    for name, sign, _ in split:
        if not name or not sign:
            raise ShareStateError(f"{option} {name}: give {_FORMS.get(option, 'NAME=VALUE')}")
        if option == "--as-of-offset" and [one for one, _, _ in split].count(name) > 1:
            raise ShareStateError(f"{option} {name}: is given twice; give one offset per partition")
    return {name: value for name, _, value in split}


def fails(by_severity: Mapping[str, int], fail_on: str) -> bool:
    """Whether there are findings at or above a severity."""
    from share_state.rules.registry import at_or_above  # noqa: PLC0415

    return any(by_severity.get(severity) for severity in at_or_above(fail_on))


def spec_of(
    inputs: Sequence[str],
    reading: Reading,
    *,
    folding: Folding | None = None,
    side: GroupSide | None = None,
    judging: Judging | None = None,
    names_only: bool = False,
    judge: str | None = None,
    dead_letters: Sequence[str] | None = None,
    copied_last: bool = False,
    names: "FieldNames | None" = None,
    **control: Any,
) -> "InputSpec":
    """The InputSpec that the options describe; `control` holds fields of ControlSettings, `names` those of options.

    It has a group side if `side` or `names_only` is given.

    Raises:
        ShareStateError: if an option cannot be used.
    """
    from share_state.config.inputs import OPTIONS, input_spec  # noqa: PLC0415
    from share_state.kafka.primitives import parse_digits  # noqa: PLC0415

    folding, columns = folding or Folding(), pairs(reading.column, "--column")
    side = GroupSide() if names_only else side
    source = {"format": reading.format, "dialect": reading.dialect, "columns": columns}
    source |= {"kafka_properties": reading.kafka_properties}
    as_of = pairs(reading.as_of_offset, "--as-of-offset")
    return input_spec(
        names or OPTIONS,
        sources=[{"path": path} | source for path in inputs],
        as_of_offsets={log: offset if (at := parse_digits(offset)) is None else at for log, offset in as_of.items()},
        as_of_time=reading.as_of_time,
        topics=reading.topics,
        state_partitions=folding.state_partitions,
        groups=side and {"paths": side.groups or None, "columns": columns, "partitions": side.group_partitions},
        names_only=names_only,
        rules=pairs(judging.rule, "--rule") if judging else None,
        judge=judge,
        dead_letters=dead_letters,
        dead_letters_copied_last=copied_last,
        control_records={"mode": folding.mode, **control},
    )


@contextmanager
def open_plan(
    spec: "InputSpec", choice: "ExecutorChoice | None" = None, names: "FieldNames | None" = None
) -> "Iterator[FoldPlan]":
    """Yield the plan of a spec; its notes go to stderr.

    If tables had to be sorted by Spark, the session stays active until the end.

    Raises:
        ShareStateError: if an option or an input cannot be used.
    """
    from share_state.config.inputs import OPTIONS  # noqa: PLC0415
    from share_state.pipeline.plan import build_plan  # noqa: PLC0415
    from share_state.spark.choice import ExecutorChoice, open_sorter  # noqa: PLC0415

    with open_sorter(choice or ExecutorChoice()) as sorter:
        plan = build_plan(spec, names or OPTIONS, sorter)
        announce_compiling()
        yield plan


def announce_compiling() -> None:
    """Log that kernels will be compiled, if none are cached."""
    from share_state.jit.compile import has_cached_kernels  # noqa: PLC0415

    if not has_cached_kernels():
        _LOG.info("compiling kernels, which takes half a minute to two minutes; later commands start at once")
