"""One place to print: tables for a person, or one JSON document for a program."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from rich.cells import cell_len, set_cell_size
from rich.console import Console

UNKNOWN = "-"
"""What stands for a number that is not known, as in kafka-share-groups.sh."""

_BETWEEN = "  "
_ROWS_A_PIECE = 10_000


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, numeric: Sequence[str] = ()) -> None:
    """Print rows under a header, aligned and never cut; numbers to the right."""
    # rich's own tables take half a millisecond a row.
    cells = [[UNKNOWN if cell is None else printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]
    to_right = [column in numeric for column in columns]

    def line(texts: Sequence[str]) -> str:
        padded = (
            f"{' ' * (width - cell_len(text))}{text}" if right else set_cell_size(text, width)
            for text, width, right in zip(texts, widths, to_right, strict=True)
        )
        return _BETWEEN.join(padded).rstrip()

    Console(highlight=False, markup=False, emoji=False).print(line(columns), style="bold", soft_wrap=True)
    sys.stdout.writelines(f"{line(row)}\n" for row in cells)


def printable(text: str) -> str:
    """Without what would break a line or drive a terminal: a group id may hold any character."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def say(text: str = "") -> None:
    """Print a line on stdout."""
    sys.stdout.write(f"{text}\n")


def print_json(document: Any, lists: Mapping[str, Iterable[list[Any]]] | None = None) -> None:
    """Print one JSON document on stdout; times as ISO 8601.

    Args:
        document: what it holds.
        lists: by name, further lists that an object holds; they come in pieces, and only one piece is in memory.
    """
    text = _encoded(document)
    for name, pieces in (lists or {}).items():
        sys.stdout.write(f"{text.removesuffix('}')}, {_encoded(name)}: [")
        between = ""
        for piece in filter(None, pieces):
            sys.stdout.write(f"{between}{_encoded(piece)[1:-1]}")
            between = ", "
        text = "]}"
    sys.stdout.write(f"{text}\n")


def in_pieces(rows: pa.Table) -> Iterator[list[dict[str, Any]]]:
    """Rows of a table as lists that `print_json` takes."""
    return (batch.to_pylist() for batch in rows.to_batches(max_chunksize=_ROWS_A_PIECE))


def _encoded(value: Any) -> str:
    # json.dump would do it bit by bit in Python, five times as slowly.
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")
