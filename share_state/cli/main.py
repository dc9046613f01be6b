"""`share-state`: imports the module of the command, runs it, and converts errors to one line and an exit code."""

import atexit
import ctypes
import errno
import gc
import inspect
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, TextIO, cast, get_type_hints

import typer
from pydantic import ValidationError
from typer.core import TyperArgument, TyperCommand
from typer.exceptions import Abort, Exit, TyperException
from typer.models import ArgumentInfo

from share_state.cli.completion import words_to_complete
from share_state.delta import commits
from share_state.errors import DiskFullError, ShareStateError, SparkEndedError, disk_error, missing_module
from share_state.terminal import CommandStream, elide, one_line
from share_state.version import __version__

DONE, FOUND, UNUSABLE, UNEXPECTED = 0, 1, 2, 3
"""Exit codes: done; done, with findings at or above --fail-on; unusable call or input; unexpected failure."""

_INTERRUPTED = 128 + signal.SIGINT
"""Exit code after an interrupt, as in a shell: 128 plus the number of the signal."""

_UNUSABLE_PATHS = {errno.ENAMETOOLONG, errno.ELOOP}

_NOTHING_COMMITTED = "stopped; nothing was committed"

COMMANDS = {
    "reconstruct": "reconstruct",
    "audit": "audit",
    "stream": "stream",
    "cutoff": "logs",
    "repair": "repair",
    "show": "show_tables",
    "explain": "logs",
    "diff": "logs",
    "groups": "show_tables",
    "decode": "logs",
    "topics": "running_cluster",
    "simulate": "simulate",
    "compare": "running_cluster",
    "rules": "show_tables",
    "plot": "logs",
    "setup": "setup",
}
"""Every command and its module in share_state.cli, in the order of --help."""

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
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
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


def _no_type(ctx: object) -> None:
    """In place of the type of an argument."""
    del ctx


class Stopped(BaseException):
    """Raised in the running command on SIGINT or SIGTERM, so that it deletes uncommitted files."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


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
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also print Spark's log, and tracebacks of errors.")]


def command(example: str, *, has_clock: bool = False) -> Callable[[_Command], _Command]:
    """Register a function as the command of its name, which returns the exit code; --help shows the example.

    Every command has --quiet and --verbose. With `has_clock`, notes on stderr begin with the time.
    """

    def register(function: _Command) -> _Command:
        app.command(cls=_PlainCommand, epilog=f"Example: {example}")(_without_bundles(function, has_clock))
        return function

    return register


class _OneLine(logging.Formatter):
    """Formats a note as one line of a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record))


@contextmanager
def _notes_on_stderr(*, quiet: bool, has_clock: bool) -> Iterator[None]:
    """Print what the library logs, one line each."""
    log, handler = logging.getLogger("share_state"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(f"{'%(asctime)s ' * has_clock}share-state: %(message)s", "%H:%M:%S"))
    handler.setLevel(logging.ERROR if quiet else logging.INFO)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    # When Spark's JVM ends, py4j logs tracebacks as the root logger, to which logging then adds a handler.
    root, unheard = logging.getLogger(), logging.NullHandler()
    root.addHandler(unheard)
    root.addFilter(_is_of_others)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        root.removeHandler(unheard)
        root.removeFilter(_is_of_others)


def _is_of_others(record: logging.LogRecord) -> bool:
    """Whether a record of the root logger is not of py4j's module java_gateway."""
    return record.module != "java_gateway"


def _without_bundles(function: _Command, has_clock: bool) -> _Command:
    """The function with each parameter that is a Bundle replaced by its fields, as typer needs it."""
    hints = get_type_hints(function, include_extras=True)
    bundles = {name: kind for name, kind in hints.items() if inspect.isclass(kind) and issubclass(kind, Bundle)}
    parameters = list[inspect.Parameter]()
    of_bundles = {name: list(kind.parameters(function.__name__)) for name, kind in bundles.items()}
    for name, parameter in inspect.signature(function).parameters.items():
        plain = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        parameters += of_bundles.get(name, [plain])
    named = {parameter.name for parameter in parameters}
    common = [one for one in _Common.parameters(function.__name__) if one.name not in named]
    parameters += common
    types = {parameter.name: parameter.annotation for parameter in parameters}

    def run(**given: Any) -> int | None:
        quiet = given["quiet"]
        given = {name: _check_text(name, value, types[name]) for name, value in given.items()}
        for parameter in common:
            del given[parameter.name]
        for name, kind in bundles.items():
            given[name] = kind.of({one.name: given.pop(one.name) for one in of_bundles[name]})
        try:
            with _notes_on_stderr(quiet=quiet, has_clock=has_clock):
                return function(**given)
        except BaseException as error:
            if (stopped := _find_stop(error)) is None:
                raise
            raise stopped from None

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__annotations__ = types
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _check_text(name: str, value: Any, hint: Any = None) -> Any:
    """A value of a parameter, with addresses as commands use them. Groups and topics stay as they are.

    Raises:
        ShareStateError: if it is empty, as an unset variable of a shell is, holds a NUL, or no int64 holds the number.
    """
    if isinstance(value, list):
        return [_check_text(name, one, hint) for one in value]
    if isinstance(value, int) and not -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER:
        raise ShareStateError(f"{_label(name, hint)}: no log holds a number beyond {_LARGEST_NUMBER}; give another")
    if name in {"group", "topic"}:
        return value
    if value == "":
        raise ShareStateError(f"{_label(name, hint)} '': is empty; give a value (is a variable unset?)")
    if isinstance(value, str) and "\0" in value:
        raise ShareStateError(f"{_label(name, hint)} {value}: holds a NUL character; remove it")
    if isinstance(value, str) and "://" in value:
        from share_state.sources.object_stores import normalize_address  # noqa: PLC0415  few commands need it

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


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    if sys.stderr is None:  # closed, as by `2>&-`
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  for the rest of the process
    if sys.stdout is None:
        return _fail("stdout is closed; redirect it, such as >/dev/null", UNUSABLE)
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        cast("TextIO", CommandStream(*one)) for one in zip(streams, ("stdout", "stderr"), strict=True)
    )
    commits.standing.clear()
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    finally:
        # What an error left in the buffer; if it cannot be written, the exit code stays that of the error.
        with suppress(ShareStateError):
            sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = streams


def _run(given: list[str]) -> int:
    for argument in given:
        # Python keeps bytes that are not UTF-8 as surrogates.
        if any("\ud800" <= character <= "\udfff" for character in argument):
            return _fail(f"{argument!r}: not UTF-8; rename the file, or give UTF-8", UNUSABLE)
    try:
        if given != ["--version"]:
            # Only the module of the command is imported, all of them for --help.
            for name in [name for name in (given or words_to_complete())[:1] if name in COMMANDS] or COMMANDS:
                import_module(f"share_state.cli.{COMMANDS[name]}")
        try:
            code = int(app(args=_name_logs_afresh(given), prog_name="share-state", standalone_mode=False) or DONE)
        except Exit as left:
            code = left.exit_code
        sys.stdout.flush()
        return _fail_stopped(code) if code == _INTERRUPTED else code
    except ShareStateError as error:
        return _fail(_with_standing(_as_written(str(error), given), error), UNUSABLE)
    except TyperException as error:
        return _fail(_describe_usage_error(error, given), UNUSABLE)
    except (Abort, KeyboardInterrupt):
        return _fail_stopped(_INTERRUPTED)
    except Stopped as stopped:
        return _fail_stopped(stopped.code)
    except SystemExit as left:
        # typer exits after completing a word of a shell, and on a broken pipe that is not stdout.
        if isinstance(left.__context__, BrokenPipeError):
            return _fail(f"unexpected {left.__context__!r}", UNEXPECTED)
        return DONE
    except Exception as error:  # noqa: BLE001  the last line of defence: one line, and the traceback on request
        if isinstance(error, SparkEndedError):
            _print_traceback(given)
            return _fail(_with_standing(str(error), error), UNEXPECTED)
        if (known := _error_of_task(error)) is not None:
            return _fail(_with_standing(known, error), UNUSABLE)
        if isinstance(error, ImportError) and isinstance(missing := missing_module(error), ShareStateError):
            return _fail(_with_standing(str(missing), error), UNUSABLE)
        if isinstance(full := disk_error("the folder of scratch files or of compiled kernels", error), DiskFullError):
            return _fail(_with_standing(str(full), error), UNUSABLE)
        if isinstance(error, OSError) and error.errno in _UNUSABLE_PATHS:
            reason = f"{error.filename}: cannot be used ({error.strerror}); give another path"
            return _fail(_with_standing(reason, error), UNUSABLE)
        if isinstance(error, FileNotFoundError) and _is_working_directory_gone():
            return _fail("the working directory is deleted; change to another one", UNUSABLE)
        _print_traceback(given)
        try:
            text = str(error).strip()
        except Exception:  # noqa: BLE001
            text = ""
        first = text.partition("\n")[0]
        return _fail(_with_standing(f"unexpected {type(error).__name__}: {first} (-v shows more)", error), UNEXPECTED)


def _print_traceback(given: Sequence[str]) -> None:
    if "-v" in given or "--verbose" in given:
        traceback.print_exc()


def _with_standing(message: str, error: BaseException | None = None) -> str:
    """A message with what is committed in spite of what it says."""
    return "; ".join(dict.fromkeys([message, *getattr(error, "__notes__", ()), *commits.standing.values()]))


def _fail_stopped(code: int) -> int:
    return _fail(_with_standing("stopped") if commits.standing else _NOTHING_COMMITTED, code)


def _is_working_directory_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _as_written(message: str, given: Sequence[str]) -> str:
    """A message with the path at its start as the user wrote it: `./x/` instead of `x`."""
    for argument in given:
        plain = os.path.normpath(argument)
        if plain != argument and message.startswith(plain):
            rest = message.removeprefix(plain)
            return f"{argument.rstrip('/') if rest.startswith('/') else argument}{rest}"
    return message


def _describe_usage_error(error: Any, given: Sequence[str]) -> str:
    """A call that typer refuses, in one line: the option, its value and valid values, or where they are listed."""
    reason, option = str(error.message), next(iter(getattr(getattr(error, "param", None), "opts", ())), "")
    for begin, fix in {"a valid integer": "a whole number", "greater than or equal to ": "at least "}.items():
        if reason.startswith(begin := f"Input should be {begin}"):
            written = [then for word, then in pairwise(given) if word == option]
            written += [word.partition("=")[2] for word in given if word.startswith(f"{option}=")]
            end = reason.removeprefix(begin) if fix.endswith(" ") else ""
            return f"{option} {written[-1] if written else ''}: give {fix}{end}"
    choices = getattr(getattr(getattr(error, "param", None), "type_descriptor", None), "choices", None)
    if choices and isinstance(error.__cause__, ValidationError):
        refused = error.__cause__.errors()[0]["input"]
        named = option if option.startswith("-") else error.param.display_name_raw
        return f"{named} {refused}: give one of {', '.join(choices)}"
    text, context = " ".join(error.format_message().split()).rstrip("."), error.ctx
    name = "share-state" if context is None else context.command_path
    return f"{text}; `{name} --help` lists what can be given"


def _name_logs_afresh(given: Sequence[str]) -> list[str]:
    """The arguments with `--afresh A B` as `--afresh A --afresh B`, and `--afresh` alone as `--afresh all`.

    typer has no options that take any number of values.
    """
    words, is_value = list[str](), False
    for word in given:
        if is_value and re.fullmatch(r"(__share_group_state-)?\d+", word):
            words = words[:-1] if words[-1] == "all" else [*words, "--afresh"]
            words.append(word)
        else:
            is_value = word == "--afresh"
            words += [word, "all"] if is_value else [word]
    return words


def _error_of_task(error: Exception) -> str | None:
    """The message of a ShareStateError from a Spark task, which Spark returns as text in its own error."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  that of a Java error is asked of the JVM, which may have ended
        return None
    for line in reversed(text.splitlines()):
        for name in ("InputError", "PrunedError", "WarehouseError"):
            marker = f"share_state.errors.{name}: "
            if marker in line:
                return line.split(marker, 1)[1].strip()
    return None


def _find_stop(error: BaseException) -> Stopped | None:
    """The signal that ended a command, whatever errors followed it; None for none.

    A signal to the process group ends the JVM of Spark as well, which then does not answer.
    """
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, Stopped | KeyboardInterrupt):
            return Stopped(chain.code if isinstance(chain, Stopped) else _INTERRUPTED)
        chain = chain.__context__
    return None


_LONGEST_ERROR = 900


def _fail(message: str, code: int) -> int:
    line = one_line(" ".join(message.splitlines()), _LONGEST_ERROR // 4)
    sys.stderr.write(f"share-state: {elide(line, _LONGEST_ERROR)}\n")
    return code


_MMAP_THRESHOLD = -3, 32 << 20
"""M_MMAP_THRESHOLD: larger blocks are returned to the system at once; glibc allows no larger number."""
_TRIM_THRESHOLD = -1, 64 << 20
"""M_TRIM_THRESHOLD: bytes kept at the end of the heap."""
_ARENA_MAX = -8, 1
"""M_ARENA_MAX: one heap for all threads."""


def keep_freed_memory() -> None:
    """Let glibc reuse freed memory: the page faults of new memory can cost as much as the work done in it.

    Other C libraries keep their defaults. Source: mallopt(3).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    for parameter in (_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX):
        mallopt(*parameter)


class _NoPandas:
    """An import hook that finds no pandas."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def keep_pandas_out() -> None:
    """Keep pyarrow from importing pandas with its first array: that would add 0.3 s to every command.

    pyarrow remembers that it is missing, but imports it when `to_pandas` is called. Source: pyarrow pandas-shim.pxi,
    _PandasAPIShim._check_import.
    """
    sys.meta_path.insert(0, _NoPandas)
    try:
        import pyarrow as pa  # noqa: PLC0415  after pandas is hidden

        pa.array([None])
    finally:
        sys.meta_path.remove(_NoPandas)


def _on_signal(number: int, _frame: FrameType | None = None) -> None:
    """Stop the command; a commit that is under way is completed first."""
    if commits.hold(partial(_on_signal, number)):
        return
    if number == signal.SIGTERM:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # If the JVM has ended as well, py4j logs tracebacks, and pyspark's server of accumulators prints them.
    logging.disable(logging.ERROR)
    if (loaded := sys.modules.get("socketserver")) is not None:
        loaded.BaseServer.handle_error = lambda *_: None
    raise Stopped(128 + number)


def _run_until_signal(arguments: Sequence[str] | None) -> int:
    """Run a command as the only one of its process; a signal after its exit code is decided changes nothing."""
    keep_freed_memory()
    keep_pandas_out()
    signals = [signal.SIGTERM]
    # Who starts a command in the background of a script lets it ignore interrupts.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signals.append(signal.SIGINT)
    try:
        for number in signals:
            signal.signal(number, _on_signal)
        code = run(arguments)
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
    except Stopped as stopped:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        code = _fail_stopped(stopped.code)
    return code


def run_job(arguments: Sequence[str] | None = None) -> None:
    """Run a command in an interpreter that others started, as spark-submit does, and raise its exit code."""
    code = _run_until_signal(arguments)
    # The process ends now: scanning all objects for garbage would take half a second.
    gc.freeze()
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its code: 0 done, 1 findings, 2 unusable, 3 unexpected.

    The interpreter is not shut down: threads of pyarrow and deltalake that wait for it then abort the process, after
    its work is done (apache/arrow issue 34314).
    """
    code = _run_until_signal(arguments)
    # Scratch folders are deleted, and coverage is written.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)
