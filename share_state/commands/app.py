"""The application that commands register with, and how they leave."""

from collections.abc import Callable

import typer

from share_state.commands.bundle import unbundled

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
