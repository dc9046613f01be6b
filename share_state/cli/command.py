"""`command` registers a function as a command of `share-state`; `Bundle` is a set of options that commands share."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand
from typer.models import ArgumentInfo

from share_state.cli.output import notes_on_stderr
from share_state.cli.process import find_stop
from share_state.errors import ShareStateError
from share_state.version import __version__

DONE = 0
FOUND = 1
UNUSABLE = 2
UNEXPECTED = 3
"""Exit codes: done; done, with findings at or above --fail-on; unusable call or input; unexpected failure."""


app = typer.Typer(
    name="share-state",
    help="Reconstruct Kafka share-group state (KIP-932) from exported logs, check it, and find what can be deleted.",
    add_completion=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Kafka share-group state (KIP-932) from exported logs."""
    if version:
        typer.echo(f"share-state {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


class _PlainCommand(TyperCommand):
    """A command whose help shows the arguments without their Python types."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                parameter.display_type_rich = _no_type  # type: ignore[method-assign]


_PRINTED = re.compile(r"\d{1,3}(,\d{3})+")


_NUMBER_OPTIONS: dict[str, set[str]] = {}
"""Command -> its options that take a whole number."""


def without_separators(number: str) -> str:
    """A number without the separators of thousands that commands print; another text stays as it is."""
    return number.replace(",", "") if _PRINTED.fullmatch(number) else number


def plain_numbers(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, with numbers that are typed as they are printed (`--offset 16,111`) as digits."""
    options = _NUMBER_OPTIONS.get(arguments[0], set()) if arguments else set()
    words = list[str]()
    for word in arguments:
        option, sign, value = word.partition("=")
        if words and words[-1] in options:
            words.append(without_separators(word))
        else:
            words.append(f"{option}={without_separators(value)}" if sign and option in options else word)
    return words


def _no_type(ctx: object) -> None:
    """In place of the type of an argument."""
    del ctx


class Bundle:
    """Base of frozen dataclasses whose fields are options. typer has no way to share options between commands."""

    @classmethod
    def parameters(cls, command: str) -> Iterator[inspect.Parameter]:
        """The options of a command that the bundle stands for."""
        del command
        types = get_type_hints(cls, include_extras=True)
        for field in fields(cls):  # type: ignore[arg-type]
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            kind = inspect.Parameter.KEYWORD_ONLY
            yield inspect.Parameter(field.name, kind, default=default, annotation=types[field.name])

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Bundle":
        """The bundle of the values of these options."""
        return cls(**values)


_Command = Callable[..., int | None]
"""Returns the exit code; None for DONE."""


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")]


Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also print Spark's log, and tracebacks of errors.")
]


def command(example: str, *, has_clock: bool = False) -> Callable[[_Command], _Command]:
    """Register a function as the command of its name, which returns the exit code; --help shows the example.

    Every command has --quiet and --verbose. With `has_clock`, notes on stderr begin with the time.
    """

    def register(function: _Command) -> _Command:
        app.command(cls=_PlainCommand, epilog=f"Example: {example}")(_without_bundles(function, has_clock))
        return function

    return register


def _without_bundles(function: _Command, has_clock: bool) -> _Command:
    """The function with each parameter that is a Bundle replaced by its fields, as typer needs it."""
    hints = get_type_hints(function, include_extras=True)
    bundles = {
        name: kind for name, kind in hints.items() if inspect.isclass(kind) and issubclass(kind, Bundle)
    }
    parameters = list[inspect.Parameter]()
    of_bundles = {name: list(kind.parameters(function.__name__)) for name, kind in bundles.items()}
    for name, parameter in inspect.signature(function).parameters.items():
        plain = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        parameters += of_bundles.get(name, [plain])
    named = {parameter.name for parameter in parameters}
    common = [one for one in _Common.parameters(function.__name__) if one.name not in named]
    parameters += common
    types = {parameter.name: parameter.annotation for parameter in parameters}
    _NUMBER_OPTIONS[function.__name__] = {
        _label(name, hint) for name, hint in types.items() if {int, bool} & _plain_types(hint) == {int}
    }

    def run(**given: Any) -> int | None:
        quiet = given["quiet"]
        given = {name: _check_text(name, value, types[name]) for name, value in given.items()}
        for parameter in common:
            del given[parameter.name]
        for name, kind in bundles.items():
            given[name] = kind.of({one.name: given.pop(one.name) for one in of_bundles[name]})
        try:
            with notes_on_stderr(quiet=quiet, has_clock=has_clock):
                return function(**given)
        except BaseException as error:
            if (stopped := find_stop(error)) is None:
                raise
            raise stopped from None

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__annotations__ = types
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _plain_types(hint: Any) -> set[Any]:
    """The types of a parameter, without None, lists and what typer is told."""
    return {one for inner in get_args(hint) for one in _plain_types(inner)} or {hint}


def _check_text(name: str, value: Any, hint: Any = None) -> Any:
    """A value of a parameter, with addresses as commands use them. Groups and topics stay as they are.

    Raises:
        ShareStateError: if it is empty, as an unset variable of a shell is, holds a NUL, or no int64 holds
            the number.
    """
    if isinstance(value, list):
        return [_check_text(name, one, hint) for one in value]
    if isinstance(value, int) and not -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER:
        raise ShareStateError(
            f"{_label(name, hint)}: no log holds a number beyond {_LARGEST_NUMBER}; give another"
        )
    if name in {"group", "topic"}:
        return value
    if value == "":
        raise ShareStateError(f"{_label(name, hint)} '': is empty; give a value (is a variable unset?)")
    if isinstance(value, str) and "\0" in value:
        raise ShareStateError(f"{_label(name, hint)} {value}: holds a NUL character; remove it")
    if isinstance(value, str) and "://" in value:
        from share_state.stores.paths import normalize_address  # noqa: PLC0415  few commands need it

        return normalize_address(value)
    return value


_LARGEST_NUMBER = 2**63 - 1


def _label(name: str, hint: Any) -> str:
    """The option or argument of a parameter, as --help names it."""
    info = getattr(hint, "__metadata__", (None,))[0]
    # In Annotated, typer keeps the name of an option as its default.
    own = str(getattr(info, "default", ""))
    option = own if own.startswith("--") else f"--{name.replace('_', '-')}"
    return (info.metavar or name).strip("[].") if isinstance(info, ArgumentInfo) else option


@dataclass(frozen=True)
class _Common(Bundle):
    quiet: Quiet = False
    verbose: Verbose = False
