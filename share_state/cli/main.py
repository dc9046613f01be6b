"""Options that several commands take, as a dataclass: a command names the bundle, people see its options one by one.

The application that commands register with, and how they leave.

`share-state`: loads the command that was typed, and says in one line what went wrong.

Lets the C library keep what it frees for what is made next: fresh memory can cost as much as the work done in it.

Keeps pyarrow from importing pandas, which no command needs and which takes as long as all else that starts.

Starts a command: what has to be settled before anything large is imported, and how the process is left.
"""

import ctypes
import gc
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields
from importlib import import_module
from typing import Annotated, Any, get_type_hints

import typer
from typer.exceptions import Abort, Exit, TyperException

from share_state import __version__
from share_state.errors import ShareStateError
from share_state.report import console


class Bundle:
    """Marks a frozen dataclass of options; the type of each field is what typer makes an option of."""


def unbundled(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose bundles are spread out into their options, as typer wants to see them.

    Args:
        command: its parameters are of types that typer knows, or of subclasses of Bundle.
    """
    told = get_type_hints(command, include_extras=True)
    bundles = {name: kind for name, kind in told.items() if inspect.isclass(kind) and issubclass(kind, Bundle)}
    shown = list[inspect.Parameter]()
    for name, parameter in inspect.signature(command).parameters.items():
        plain = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=told[name])
        shown += _options(bundles[name]) if name in bundles else [plain]

    def run(**given: Any) -> None:
        for name, kind in bundles.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    run.__signature__ = inspect.Signature(shown)
    return run


def _options(bundle: type[Bundle]) -> Iterator[inspect.Parameter]:
    types = get_type_hints(bundle, include_extras=True)
    for field in fields(bundle):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[field.name]
        )


DONE, FOUND, UNUSABLE, UNEXPECTED = 0, 1, 2, 3
"""Exit codes: done; done, with findings at or above --fail-on; unusable call or input; unexpected failure."""

app = typer.Typer(
    name="share-state",
    help="Kafka share-group state (KIP-932) from exported logs: what the coordinator would hold, what is wrong.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def command(example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a function as the command of its name.

    Args:
        example: a call of it, shown by --help.
    """

    def registered(function: Callable[..., None]) -> Callable[..., None]:
        app.command(epilog=f"Example: {example}")(unbundled(function))
        return function

    return registered


COMMANDS = {
    "reconstruct": "reconstruct",
    "audit": "audit",
    "cutoff": "cutoff",
    "show": "inspect",
    "explain": "inspect",
    "diff": "inspect",
    "groups": "inspect",
    "decode": "inspect",
    "simulate": "simulate",
    "compare": "inspect",
    "rules": "inspect",
    "plot": "inspect",
}
"""Every command and its module in share_state.cli, in the order of --help."""

_INTERRUPTED = 130
"""What typer makes of an interrupt, as a shell does: 128 and the number of the signal."""


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


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code: 0 done, 1 found, 2 unusable, 3 unexpected."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # What one command imports is nothing that another should wait for.
        for name in [name for name in given[:1] if name in COMMANDS] or COMMANDS:
            import_module(f"share_state.cli.{COMMANDS[name]}")
        code = int(app(args=given, prog_name="share-state", standalone_mode=False) or DONE)
        return _stopped() if code == _INTERRUPTED else code
    except Exit as left:
        return left.exit_code
    except ShareStateError as error:
        return _say(str(error), UNUSABLE)
    except TyperException as error:
        said = error.format_message() if hasattr(error, "format_message") else str(error)
        return _say(f"{' '.join(said.split()).rstrip('.')}; `share-state --help` lists commands and options", UNUSABLE)
    except (KeyboardInterrupt, Abort):
        return _stopped()
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


def _stopped() -> int:
    return _say("stopped; nothing was committed", _INTERRUPTED)


def _say(message: str, code: int) -> int:
    sys.stderr.write(f"share-state: {' '.join(message.splitlines())}\n")
    return code


_LARGEST_KEPT = -3, 32 << 20
"""M_MMAP_THRESHOLD: larger blocks go back to the system at once; glibc takes no larger number."""
_KEPT = -1, 64 << 20
"""M_TRIM_THRESHOLD: bytes at the end of the heap that stay."""
_ARENAS = -8, 1
"""M_ARENA_MAX: what one thread frees the next one takes."""


def keep_memory() -> None:
    """Do so in this process, where its C library is glibc.

    Source: mallopt(3).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    for setting in (_LARGEST_KEPT, _KEPT, _ARENAS):
        mallopt(*setting)


class _Hidden:
    """Finds pandas first, and says that it is not there."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def keep_pandas_out() -> None:
    """Let pyarrow find no pandas when it looks for it; for commands, not for notebooks.

    It looks when the first array is made of Python's objects and remembers what it found, but looks again where pandas
    is asked of it (`to_pandas`). Others import pandas as ever.
    Source: pyarrow pandas-shim.pxi, _PandasAPIShim._check_import.
    """
    sys.meta_path.insert(0, _Hidden)
    try:
        import pyarrow as pa  # noqa: PLC0415  not before pandas is hidden

        pa.array([None])
    finally:
        sys.meta_path.remove(_Hidden)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave with the exit code of the contract: 0 done, 1 found, 2 unusable, 3 unexpected."""
    keep_memory()
    keep_pandas_out()
    code = run(arguments)
    # Memory is given back in a moment: nothing has to be looked through for what could be let go, for half a second.
    gc.freeze()
    sys.exit(code)
