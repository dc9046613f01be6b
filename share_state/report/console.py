"""One place to print: tables for a person, or one JSON document for a program.

Numbers, times and names as people read them.

Rows as JSON lines, a column at a time: Python takes ten times as long where it makes an object of each row.

Files that other programs pick up: there whole or not at all.

Decoded records as JSON lines.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.cells import cell_len, set_cell_size
from rich.console import Console

from share_state.errors import ShareStateError
from share_state.kafka.buffers import column_bytes
from share_state.pipeline.plan import Work

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


_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def number(value: int | None) -> str:
    """A whole number with its thousands apart."""
    return UNKNOWN if value is None else f"{value:,}"


def moment(time: datetime | None) -> str:
    """A time in UTC, to the second."""
    return UNKNOWN if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def span(begin: datetime | None, end: datetime | None) -> str:
    """The time between two moments, in its two largest units."""
    if begin is None or end is None:
        return UNKNOWN
    seconds = (end - begin).total_seconds()
    if 0 < seconds < 10:
        return f"{seconds:.1f} s"
    left, parts = abs(round(seconds)), []
    for unit, size in _UNITS:
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    return ("-" if seconds < 0 else "") + (" ".join(parts[:2]) or "0 s")


def size(octets: int | None) -> str:
    """A number of bytes."""
    if octets is None:
        return UNKNOWN
    value, units = float(octets), iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while value >= 1000 and (larger := next(units, None)):
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def name(text: str | None) -> str:
    """A name that may hold any character: what cannot be seen is escaped, what is empty is quoted."""
    if text is None:
        return UNKNOWN
    return printable(text) if text else '""'


_NO_FRACTION = ".000000"


def json_lines(rows: pa.RecordBatch) -> str:
    """A JSON object a row, a line each; fields of a row that are null are left out.

    Args:
        rows: of whole numbers, booleans, texts, times in UTC, and lists and structs of these.
    Returns:
        As `json.dumps` writes them, times as `datetime.isoformat` does.
    """
    lines = pc.binary_join_element_wise(_objects(rows.schema.names, map(_text, rows.columns)), "\n", "")
    return str(column_bytes(lines)[0].data, "utf-8")


def _objects(names: Sequence[str], texts: Iterable[pa.Array]) -> pa.Array:
    fields = [
        pc.binary_join_element_wise(f"{json.dumps(name)}: ", text, "") for name, text in zip(names, texts, strict=True)
    ]
    # Arrow leaves a row out where all that is to be joined is null, so the brace is one of them.
    joined = pc.binary_join_element_wise("{", *fields, ", ", null_handling="skip")
    begun = pc.binary_replace_slice(joined, start=0, stop=len("{, "), replacement="{")
    return pc.binary_join_element_wise(begun, "}", "")


def _text(column: pa.Array) -> pa.Array:
    """Values in JSON; null where they are."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        quoted = [json.dumps(text, ensure_ascii=False) for text in column.dictionary.to_pylist()]
        return pa.array(quoted, pa.string()).take(column.indices)
    if pa.types.is_string(kind):
        # Texts repeat: a group, a topic, a kind of record.
        return _text(column.dictionary_encode())
    if pa.types.is_timestamp(kind):
        text = column.cast(pa.timestamp("us")).cast(pa.string())
        text = pc.replace_substring(pc.replace_substring(text, " ", "T"), _NO_FRACTION, "")
        return pc.binary_join_element_wise('"', text, '+00:00"', "")
    if pa.types.is_list(kind):
        sizes = pc.fill_null(pc.list_value_length(column), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(sizes)])
        elements = pc.fill_null(_text(column.flatten()), "null")
        lists = pa.ListArray.from_arrays(offsets, elements, mask=column.is_null())
        return pc.binary_join_element_wise("[", pc.binary_join(lists, ", "), "]", "")
    if pa.types.is_struct(kind):
        fields = (pc.fill_null(_text(field), "null") for field in column.flatten())
        return pc.if_else(column.is_valid(), _objects([field.name for field in kind], fields), None)
    return column.cast(pa.string())


class ReportError(ShareStateError):
    """Raised when a report cannot be written where it was asked for."""


def check_report_place(path: str) -> None:
    """Refuse a place where no report can be written, before any work is done.

    Raises:
        ReportError: if it is a folder, its folder is not there, or that cannot be written to.
    """
    place = Path(path)
    folder = place.parent
    if place.is_dir():
        raise ReportError(f"{path}: a folder is here; give the name of a file")
    if not folder.is_dir():
        raise ReportError(f"{path}: the folder {folder} is not there; make it, or give another file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ReportError(f"{path}: the folder {folder} cannot be written to; allow it, or give another file")


def write_whole(path: str, text: str) -> None:
    """Write a file under a temporary name beside its place, then rename it: readers see the old one or the new one.

    Raises:
        ReportError: if it cannot be written; what was there before stays.
    """
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    with written_to(path):
        try:
            temporary.write_text(text, encoding="utf-8", newline="\n")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def written_to(path: str) -> Iterator[None]:
    """Say in one line why writing this file failed."""
    check_report_place(path)
    try:
        yield
    except OSError as error:
        raise ReportError(f"{path}: cannot be written ({error.strerror}); the report before it stays") from None


_ROWS_AT_A_TIME = 10_000


def print_records(work: Work) -> None:
    """Print every record as one JSON object a line, log partition after log partition; nulls are left out."""
    for log in work.logs:
        for table in work.decode(log):
            for batch in table.to_batches(max_chunksize=_ROWS_AT_A_TIME):
                sys.stdout.write(json_lines(batch))
