"""What a command prints besides its results: notes of the library, and errors in one line."""

import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from share_state.delta import commits
from share_state.kafka.releases import RELEASES, unreleased_note
from share_state.terminal import elide, one_line

_NOTHING_COMMITTED = "stopped; nothing was committed"


class _OneLine(logging.Formatter):
    """Formats a note as one line of a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record))


@contextmanager
def notes_on_stderr(*, quiet: bool, has_clock: bool) -> Iterator[None]:
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


def print_traceback(given: Sequence[str]) -> None:
    """Print the traceback of an error if --verbose is given."""
    if "-v" in given or "--verbose" in given:
        traceback.print_exc()


def with_standing(message: str, error: BaseException | None = None) -> str:
    """A message with what is committed in spite of what it says."""
    return "; ".join(dict.fromkeys([message, *getattr(error, "__notes__", ()), *commits.standing.values()]))


def fail_stopped(code: int) -> int:
    """Print that a signal stopped the command, and return its exit code."""
    return fail(with_standing("stopped") if commits.standing else _NOTHING_COMMITTED, code)


def as_written(message: str, given: Sequence[str]) -> str:
    """A message with the path at its start as the user wrote it: `./x/` instead of `x`."""
    for argument in given:
        plain = os.path.normpath(argument)
        if plain != argument and message.startswith(plain):
            rest = message.removeprefix(plain)
            return f"{argument.rstrip('/') if rest.startswith('/') else argument}{rest}"
    return message


def describe_usage_error(error: Any, given: Sequence[str]) -> str:
    """A call that typer refuses, in one line: the option, its value and valid values, or where they are listed."""
    reason, option = str(error.message), next(iter(getattr(getattr(error, "param", None), "opts", ())), "")
    for begin, fix in {"a valid integer": "a whole number", "greater than or equal to ": "at least "}.items():
        if reason.startswith(begin := f"Input should be {begin}"):
            written = [then for word, then in pairwise(given) if word == option]
            written += [word.partition("=")[2] for word in given if word.startswith(f"{option}=")]
            end = reason.removeprefix(begin) if fix.endswith(" ") else ""
            return f"{option} {written[-1] if written else ''}: give {fix}{end}"
    choices = getattr(getattr(getattr(error, "param", None), "type_descriptor", None), "choices", None)
    from pydantic import ValidationError  # noqa: PLC0415  slow to import, and --help needs none

    if choices and isinstance(error.__cause__, ValidationError):
        refused = error.__cause__.errors()[0]["input"]
        named = option if option.startswith("-") else error.param.display_name_raw
        note = unreleased_note(str(refused)) if set(RELEASES) & {*choices} else ""
        return f"{named} {refused}: {note}give one of {', '.join(choices)}"
    text, context = " ".join(error.format_message().split()).rstrip("."), error.ctx
    if text.startswith("Missing argument") and context is not None:
        # What is missing may be the first of two: `why INPUT` takes its input for the group.
        arguments = (one for one in context.command.params if one.param_type_name == "argument")
        before = [one for one in arguments if one.name in context.params]
        text += "".join(f" after {one.metavar} {context.params[one.name]}" for one in before)
    name = "share-state" if context is None else context.command_path
    return f"{text}; `{name} --help` lists what can be given"


def error_of_task(error: Exception) -> str | None:
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


_LONGEST_ERROR = 900


def fail(message: str, code: int) -> int:
    """Print one line about an error, and return the exit code."""
    line = one_line(" ".join(message.splitlines()), _LONGEST_ERROR // 4)
    sys.stderr.write(f"share-state: {elide(line, _LONGEST_ERROR)}\n")
    return code
