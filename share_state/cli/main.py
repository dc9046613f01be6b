"""`share-state`: imports the module of the command, runs it, and converts errors to an exit code."""

import ast
import atexit
import errno
import gc
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import TextIO, cast

from typer.core import TyperCommand, TyperGroup
from typer.exceptions import Abort, Exit, TyperException
from typer.main import get_command

from share_state.cli.command import DONE, UNEXPECTED, UNUSABLE, app, plain_numbers
from share_state.cli.completion import words_to_complete
from share_state.cli.output import (
    as_written,
    describe_usage_error,
    error_of_task,
    fail,
    fail_stopped,
    print_traceback,
    with_standing,
)
from share_state.cli.process import (
    INTERRUPTED,
    Stopped,
    keep_freed_memory,
    keep_pandas_out,
    share_one_heap,
    stop_on_signal,
)
from share_state.delta import commits
from share_state.errors import DiskFullError, ShareStateError, SparkEndedError, disk_error, missing_module
from share_state.jit.portable import compile_for_every_cpu
from share_state.terminal import CommandStream

_UNUSABLE_PATHS = {errno.ENAMETOOLONG, errno.ELOOP}


COMMANDS = {
    "reconstruct": "reconstruct",
    "audit": "audit",
    "stream": "stream",
    "cutoff": "logs",
    "why": "why",
    "repair": "repair",
    "offsets": "offsets",
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


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    if sys.stderr is None:  # closed, as by `2>&-`
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  for the rest of the process
    if sys.stdout is None:
        return fail("stdout is closed; redirect it, such as >/dev/null", UNUSABLE)
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
        # Libraries that kept the stream, as colorama does, have nothing to say once the command is done.
        sys.stdout.close()
        sys.stdout, sys.stderr = streams


def _run(arguments: list[str]) -> int:
    for argument in arguments:
        # Python keeps bytes that are not UTF-8 as surrogates.
        if any("\ud800" <= character <= "\udfff" for character in argument):
            return fail(f"{argument!r}: not UTF-8; rename the file, or give UTF-8", UNUSABLE)
    try:
        command = _named_command(arguments)
        if command in COMMANDS:
            import_module(f"share_state.cli.{COMMANDS[command]}")
        try:
            code = _call(plain_numbers(_name_logs_afresh(arguments)), names_any=command in COMMANDS)
        except Exit as left:
            code = left.exit_code
        sys.stdout.flush()
        return fail_stopped(code) if code == INTERRUPTED else code
    except ShareStateError as error:
        return fail(with_standing(as_written(str(error), arguments), error), UNUSABLE)
    except TyperException as error:
        return fail(describe_usage_error(error, arguments), UNUSABLE)
    except (Abort, KeyboardInterrupt):
        return fail_stopped(INTERRUPTED)
    except Stopped as stopped:
        return fail_stopped(stopped.code)
    except SystemExit as left:
        # typer exits after completing a word of a shell, and on a broken pipe that is not stdout.
        if isinstance(left.__context__, BrokenPipeError):
            return fail(f"unexpected {left.__context__!r}", UNEXPECTED)
        return DONE
    except Exception as error:  # noqa: BLE001  the last line of defence: one line, and the traceback on request
        if isinstance(error, SparkEndedError):
            print_traceback(arguments)
            return fail(with_standing(str(error), error), UNEXPECTED)
        if (known := error_of_task(error)) is not None:
            return fail(with_standing(known, error), UNUSABLE)
        if isinstance(error, ImportError) and isinstance(missing := missing_module(error), ShareStateError):
            return fail(with_standing(str(missing), error), UNUSABLE)
        if isinstance(
            full := disk_error("the folder of scratch files or of compiled kernels", error), DiskFullError
        ):
            return fail(with_standing(str(full), error), UNUSABLE)
        if isinstance(error, OSError) and error.errno in _UNUSABLE_PATHS:
            reason = f"{error.filename}: cannot be used ({error.strerror}); give another path"
            return fail(with_standing(reason, error), UNUSABLE)
        if isinstance(error, FileNotFoundError) and _is_working_directory_gone():
            return fail("the working directory is deleted; change to another one", UNUSABLE)
        print_traceback(arguments)
        try:
            text = str(error).strip()
        except Exception:  # noqa: BLE001
            text = ""
        first = text.partition("\n")[0]
        return fail(
            with_standing(f"unexpected {type(error).__name__}: {first} (-v shows more)", error), UNEXPECTED
        )


def _named_command(arguments: Sequence[str]) -> str | None:
    """The first word of a command line, or of one that a shell asks to complete; it may be no command."""
    return next(iter(arguments or words_to_complete()), None)


def _call(arguments: list[str], *, names_any: bool) -> int:
    """Let typer run a command, which is imported if the arguments name any; its exit code."""
    commands = _commands(len(app.registered_commands), is_whole=not names_any)
    return int(commands.main(args=arguments, prog_name="share-state", standalone_mode=False) or DONE)


@cache
def _commands(number: int, *, is_whole: bool) -> TyperGroup:
    """The registered commands with their parameters; typer would read all signatures at each call.

    Args:
        number: how many are registered; each import of a module may add some.
        is_whole: add the others with their summaries, for --help and for a name that no command has.
    """
    del number
    group = cast("TyperGroup", get_command(app))
    if is_whole:
        group.commands = {name: group.commands.get(name) or _summary(name) for name in COMMANDS}
    return group


def _summary(name: str) -> TyperCommand:
    """A command with its help alone: what it does is read from its module, whose imports take longer."""
    source = resources.files("share_state.cli") / f"{COMMANDS[name]}.py"
    functions = ast.parse(source.read_bytes()).body
    (function,) = (one for one in functions if isinstance(one, ast.FunctionDef) and one.name == name)
    return TyperCommand(name, help=ast.get_docstring(function))


def _is_working_directory_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


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


def _run_until_signal(arguments: Sequence[str] | None) -> int:
    """Run a command as the only one of its process; a signal after its exit code is decided changes nothing."""
    compile_for_every_cpu()
    keep_freed_memory()
    share_one_heap()
    if _named_command(sys.argv[1:] if arguments is None else arguments) in COMMANDS:
        # It imports pyarrow, which --help does without.
        keep_pandas_out()
    signals = [signal.SIGTERM]
    # Who starts a command in the background of a script lets it ignore interrupts.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signals.append(signal.SIGINT)
    try:
        for number in signals:
            signal.signal(number, stop_on_signal)
        code = run(arguments)
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
    except Stopped as stopped:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        code = fail_stopped(stopped.code)
    return code


def run_job(arguments: Sequence[str] | None = None) -> None:
    """Run a command in an interpreter that others started, as spark-submit does, and raise its exit code."""
    code = _run_until_signal(arguments)
    # The process ends now: scanning all objects for garbage would take half a second.
    gc.freeze()
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its code: 0 done, 1 findings, 2 unusable, 3 unexpected.

    The interpreter is not shut down: threads of pyarrow and deltalake that wait for it then abort the
    process, after its work is done (apache/arrow issue 34314).
    """
    code = _run_until_signal(arguments)
    # Scratch folders are deleted, and coverage is written.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)
