"""`share-state`: loads the command that was typed, and says in one line what went wrong."""

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer
from typer.exceptions import Abort, Exit, TyperException

from share_state import __version__
from share_state.commands.app import DONE, UNEXPECTED, UNUSABLE, app
from share_state.errors import ShareStateError
from share_state.report import console

COMMANDS = (
    "reconstruct",
    "audit",
    "cutoff",
    "show",
    "explain",
    "diff",
    "groups",
    "decode",
    "simulate",
    "compare",
    "rules",
    "plot",
)
"""Every command, in the order of --help: a module of share_state.commands each."""

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
            import_module(f"share_state.commands.{name}")
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
