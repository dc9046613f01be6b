"""One place to print: tables for a person, or one JSON document for a program."""

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table

UNKNOWN = "-"
"""What stands for a number that is not known, as in kafka-share-groups.sh."""

_AS_WIDE_AS_NEEDED = 100_000


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, numeric: Sequence[str] = ()) -> None:
    """Print rows under a header, aligned; never cut to a terminal's width where there is no terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True, justify="right" if column in numeric else "left")
    for row in rows:
        table.add_row(*(UNKNOWN if cell is None else printable(str(cell)) for cell in row))
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _AS_WIDE_AS_NEEDED
    with console.capture() as captured:
        console.print(table, crop=False)
    # rich pads the last column of every row.
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def printable(text: str) -> str:
    """Without what would break a line or drive a terminal: a group id may hold any character."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def say(text: str = "") -> None:
    """Print a line on stdout."""
    sys.stdout.write(f"{text}\n")


def print_json(document: Any) -> None:
    """Print one JSON document on stdout; times as ISO 8601."""
    json.dump(document, sys.stdout, ensure_ascii=False, default=_plain)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")
