"""`InputOptions`: the options of input, fold, limits and rules of a command, from their declaration."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import typer

from share_state.cli.command import Bundle, without_separators
from share_state.cli.completion import complete_limit, complete_rule
from share_state.cli.options import announce_compiling, pairs
from share_state.config.declaration import OptionSpec, parse_limit
from share_state.config.input_spec import (
    OPTIONS,
    FieldNames,
    InputSpec,
    input_options,
    spec_of_options,
    texts_of_options,
)
from share_state.errors import ShareStateError
from share_state.kafka.primitives import parse_digits

if TYPE_CHECKING:
    from share_state.config.loading import Assignment
    from share_state.pipeline.plan import FoldPlan
    from share_state.spark.choice import ExecutorChoice

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Log folders, .log files, tables, texts or globs; several form one export. Or a warehouse: the logs of "
        "its last run.",
    ),
]

_COMPLETIONS = {"rules": complete_rule, "limits": complete_limit}
_FROM_VARIABLES = ("topics",)
"""Options that commands take from their environment variable if the call does not give them."""


def typer_option(option: OptionSpec, variable: str | None = None) -> Any:
    """The type of a parameter that is an option, annotated as typer reads it.

    Args:
        option: the option.
        variable: the environment variable that sets it if the call does not.
    """
    described = partial(typer.Option, option.flag, help=option.help, envvar=variable)
    if option.kind == "flag":
        return Annotated[bool, described()]
    if option.kind == "choice":
        shown = option.default or False
        return Annotated[
            Literal[option.choices] | None, described(metavar="|".join(option.choices), show_default=shown)
        ]
    if option.kind == "number":
        return Annotated[int | None, described(metavar=option.metavar, min=option.minimum)]
    if option.kind == "text":
        return Annotated[str | None, described(metavar=option.metavar)]
    return Annotated[
        list[str] | None, described(metavar=option.metavar, autocompletion=_COMPLETIONS.get(option.name))
    ]


@dataclass(frozen=True, slots=True)
class InputOptions(Bundle):
    """The options of input, fold, limits and rules that a call gives.

    Attributes:
        given: name of an option -> its value, as `spec_of_options` takes it; without those that are not
            given.
    """

    given: Mapping[str, Any]

    @classmethod
    def parameters(cls, command: str) -> Iterator[inspect.Parameter]:
        """Each option that a command takes."""
        for option in input_options(command):
            default = False if option.kind == "flag" else None
            kind = inspect.Parameter.KEYWORD_ONLY
            # An audit reads the variables of all its settings itself, and names them in messages.
            variable = option.variable if option.name in _FROM_VARIABLES and command != "audit" else None
            annotation = typer_option(option, variable)
            yield inspect.Parameter(option.name, kind, default=default, annotation=annotation)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Read the values of options, as typer gives them.

        Raises:
            ShareStateError: if one lacks its `=`.
        """
        by_name = {option.name: option for option in input_options()}
        is_given = {name: value not in (None, False, []) for name, value in values.items()}
        return cls({name: _value(by_name[name], value) for name, value in values.items() if is_given[name]})

    @property
    def texts(self) -> dict[str, str]:
        """The options for the table `runs`."""
        return texts_of_options(self.given)

    def get(self, name: str) -> Any:
        """The value of an option; None if it is not given."""
        return self.given.get(name)

    def with_values(self, **values: Any) -> "InputOptions":
        """These options with other values, as typer gives them; None takes an option away."""
        others = InputOptions.of(values)
        left = {name: value for name, value in self.given.items() if name not in values}
        return InputOptions({**left, **others.given})

    def with_limit(self, name: str, value: object, group: str | None = None) -> "InputOptions":
        """These options with a limit that an older option sets, where no `--limit` does.

        Args:
            name: key below `limits`.
            value: its value.
            group: the group whose limit it is; None for the cluster.
        """
        limits = dict(self.given.get("limits", {}))
        if group is None:
            limits = {name: value} | limits
        else:
            groups = limits.get("groups", {})
            limits["groups"] = groups | {group: {name: value} | groups.get(group, {})}
        return InputOptions({**self.given, "limits": limits})

    def spec(
        self, inputs: Sequence[str], *, names: FieldNames = OPTIONS, reads_groups: bool = True, **more: Any
    ) -> InputSpec:
        """The InputSpec of these options.

        Args:
            inputs: the inputs.
            names: how messages name the options.
            reads_groups, more: as for `spec_of_options`.
        Raises:
            ShareStateError: if an option cannot be used.
        """
        return spec_of_options(names, inputs, self.given, reads_groups=reads_groups, **more)

    def assignments(self, sources: int) -> "list[Assignment]":
        """The options as values of the configuration, once `spec` has accepted them.

        Args:
            sources: number of sources that they are about.
        """
        from share_state.config.loading import assignments_of  # noqa: PLC0415  imports every rule

        return assignments_of(self.given, sources, OPTIONS)


def _value(option: OptionSpec, value: Any) -> Any:
    """The value of an option as its field takes it.

    Raises:
        ShareStateError: if an item of a map has no `=`.
    """
    if option.name == "limits":
        return _limits(value)
    if option.kind != "map":
        return value
    named = pairs(value, option.flag, option.metavar or "")
    if option.name != "as_of_offset":
        return named
    numbers = {log: parse_digits(without_separators(offset)) for log, offset in named.items()}
    return {log: named[log] if number is None else number for log, number in numbers.items()}


def _limits(texts: Sequence[str]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for text in texts:
        found = parse_limit(text)
        if found is None or found[0] == ("groups",):
            raise ShareStateError(f"--limit {text}: give NAME=VALUE, or GROUP:NAME=VALUE for a group")
        (*above, name), value = found
        section = limits
        for key in above:
            section = section.setdefault(key, {})
        section[name] = without_separators(value)
    return limits


@contextmanager
def open_plan(
    spec: InputSpec, choice: "ExecutorChoice | None" = None, names: FieldNames = OPTIONS
) -> "Iterator[FoldPlan]":
    """Yield the plan of a spec; its notes go to stderr.

    If tables had to be sorted by Spark, the session stays active until the end.

    Raises:
        ShareStateError: if an option or an input cannot be used.
    """
    from share_state.pipeline.planning import build_plan  # noqa: PLC0415  `topics` starts without Delta
    from share_state.spark.choice import ExecutorChoice, open_sorter  # noqa: PLC0415

    with open_sorter(choice or ExecutorChoice()) as sorter:
        plan = build_plan(spec, names, sorter)
        announce_compiling()
        yield plan
