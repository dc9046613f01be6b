"""Options that several commands share, besides those of the input (share_state/cli/input_options.py).

Imports that only commands over logs need are in functions: `show` and `groups` start in half the time without
them.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from share_state.cli.command import Bundle, Quiet, Verbose
from share_state.cli.completion import complete_group, complete_topic
from share_state.errors import ShareStateError

if TYPE_CHECKING:
    from share_state.spark.choice import ExecutorChoice

_LOG = logging.getLogger("share_state")

Out = Annotated[
    str,
    typer.Option(
        metavar="WAREHOUSE",
        help="Where the Delta tables go: a folder, an address (s3://...) or, on Spark, catalog.schema.",
    ),
]
Warehouse = Annotated[
    str,
    typer.Argument(
        metavar="[WAREHOUSE]",
        help="Folder or address of the Delta tables; or an export, which is read with default options.",
    ),
]
Group = Annotated[
    str | None, typer.Option(metavar="GROUP", help="Select this group.", autocompletion=complete_group)
]
Topic = Annotated[
    str | None,
    typer.Option(metavar="TOPIC", help="Select this topic (name or id).", autocompletion=complete_topic),
]
Partition = Annotated[int | None, typer.Option(metavar="N", help="Select this partition.")]
FailingSeverity = Literal["error", "warning", "info", "off"]
FailOn = Annotated[
    FailingSeverity,
    typer.Option(
        metavar="|".join(get_args(FailingSeverity)), help="Lowest severity that makes the exit code 1."
    ),
]
SparkConf = Annotated[list[str] | None, typer.Option(metavar="K=V", help="Spark setting (repeatable).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DeliveryLimit = Annotated[
    int | None,
    typer.Option("--delivery-limit", min=1, hidden=True, help="Old name of --limit delivery_count=N."),
]


@dataclass(frozen=True, slots=True)
class Running(Bundle):
    """Options for where a command runs, and what it prints."""

    master: Annotated[
        str | None,
        typer.Option(metavar="MASTER", help="Spark master; by default local[*] where Spark is needed."),
    ] = None
    spark_conf: SparkConf = None
    quiet: Quiet = False
    verbose: Verbose = False

    @property
    def choice(self) -> "ExecutorChoice":
        """The executor that the options request."""
        from share_state.spark.choice import ExecutorChoice  # noqa: PLC0415

        return ExecutorChoice(self.master, pairs(self.spark_conf), self.verbose)


def pairs(
    given: Sequence[str] | None, option: str = "--spark-conf", form: str = "NAME=VALUE"
) -> dict[str, str]:
    """`K=V` options as a dictionary.

    Args:
        given: the values.
        option: the option, for messages.
        form: what its values look like.
    Raises:
        ShareStateError: if one has no `=`, or an offset is given twice.
    """
    split = [item.partition("=") for item in given or ()]
    for name, sign, _ in split:
        if not name or not sign:
            raise ShareStateError(f"{option} {name}: give {form}")
        if option == "--as-of-offset" and [one for one, _, _ in split].count(name) > 1:
            raise ShareStateError(f"{option} {name}: is given twice; give one offset per partition")
    return {name: value for name, _, value in split}


def fails(by_severity: Mapping[str, int], fail_on: str) -> bool:
    """Whether there are findings at or above a severity."""
    from share_state.rules.breaches import at_or_above  # noqa: PLC0415

    return any(by_severity.get(severity) for severity in at_or_above(fail_on))


def announce_compiling() -> None:
    """Log that kernels will be compiled, if none are cached, and begin with it in a second process."""
    from share_state.jit.compile import has_cached_kernels  # noqa: PLC0415

    if not has_cached_kernels():
        from share_state.cli.second_compiler import start_second_compiler  # noqa: PLC0415

        start_second_compiler()
        _LOG.info("compiling kernels, which takes half a minute to two minutes; later commands start at once")
