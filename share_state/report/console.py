"""What all reports share: tables and JSON on the console, numbers and names as text, and report files.

A command prints tables and lines for a person, or one JSON document (`--json`) for a program.
"""

import json
import os
import shutil
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from textwrap import wrap
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.cells import cell_len, set_cell_size
from rich.console import Console

from share_state.delta.commits import held_signals, note_file
from share_state.errors import ShareStateError, pluralize, reason_of
from share_state.fold.durations import timedelta_text
from share_state.kafka.buffers import column_bytes
from share_state.terminal import elide, escape_unprintable, one_line, styled

UNKNOWN = "-"
"""Printed for a value that is not known, as kafka-share-groups.sh does."""

_COLUMN_GAP = "  "
_LONGEST_WORD, _LONGEST_CELL = 100, 160
"""Characters of a word in a cell, and of a cell, that are printed: one long group id must not pad every
row."""
_PIECE_ROWS = 10_000
"""Rows that become Python objects at a time."""


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def _terminal_width() -> int:
    """Columns of the terminal that stdout is; 0 if it is none."""
    return shutil.get_terminal_size().columns if is_terminal() else 0


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    numeric: Container[str] = (),
    otherwise: str | None = None,
) -> None:
    """Print rows below a header, aligned; the `numeric` columns are right-aligned.

    Cells are escaped, and those of great length elided; only --json has them whole. On a terminal that is
    narrower than the table, the columns that do not fit follow each row on lines of their own, with their
    names. Without rows print `otherwise`, or only the header.
    """
    cells = list(rows)
    if not cells and otherwise is not None:
        print_line(otherwise)
        return
    header, *lines = table_lines(columns, cells, numeric)
    width = _terminal_width()
    if width and max(map(cell_len, (header, *lines))) > width:
        header, *lines = _narrow_lines(columns, cells, numeric, width)
    print_header(header)
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _narrow_lines(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], numeric: Container[str], width: int
) -> Iterator[str]:
    """The lines of a table on a narrow terminal, the header first."""
    widths = _widths(columns, [list(map(_cell, row)) for row in rows])
    ends = accumulate(widths, lambda end, size: end + len(_COLUMN_GAP) + size)
    fitting = max(1, sum(end <= width for end in ends))
    header, *lines = table_lines(columns[:fitting], [row[:fitting] for row in rows], numeric)
    yield header
    indent = 2 * _COLUMN_GAP
    for line, row in zip(lines, rows, strict=True):
        yield line
        others = (
            f"{column} {_cell(value)}"
            for column, value in zip(columns[fitting:], row[fitting:], strict=True)
            if value is not None
        )
        yield from wrap(
            ", ".join(others), width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )


def table_lines(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], numeric: Container[str] = ()
) -> list[str]:
    """The lines of `print_table`, the header first."""
    # rich.table takes half a millisecond per row.
    cells = [list(map(_cell, row)) for row in rows]
    widths = _widths(columns, cells)

    def line(texts: Sequence[str]) -> str:
        padded = (
            f"{' ' * (width - cell_len(text))}{text}" if column in numeric else set_cell_size(text, width)
            for column, text, width in zip(columns, texts, widths, strict=True)
        )
        return _COLUMN_GAP.join(padded).rstrip()

    return [line(columns), *map(line, cells)]


def _widths(columns: Sequence[str], cells: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]


def print_header(line: str) -> None:
    """Print the header of a table in bold."""
    console = Console(file=styled(sys.stdout), highlight=False, markup=False, emoji=False)
    console.print(line, style="bold", soft_wrap=True)


def _cell(value: Any) -> str:
    return UNKNOWN if value is None else elide(one_line(str(value), _LONGEST_WORD), _LONGEST_CELL)


def print_line(text: str = "") -> None:
    """Print a line on stdout: unprintable characters, also line breaks, are escaped."""
    sys.stdout.write(f"{one_line(text)}\n")


def print_sentence(text: str, indent: str = "") -> None:
    """Print a text on stdout, which a terminal breaks between words; files have it in a line."""
    width = _terminal_width()
    if len(text) <= width or not width:
        print_line(text)
        return
    for line in wrap(one_line(text), width, subsequent_indent=indent, break_on_hyphens=False):
        print_line(line)


def print_lines(text: str) -> None:
    """Print a text of several lines that a report has made; names in it hold no line break."""
    for line in text.split("\n"):
        print_line(line)


def print_findings(findings: Sequence[Mapping[str, Any]]) -> None:
    """Print how many findings each rule has and the statement that they violate, the most severe first."""
    from share_state.rules.breaches import SEVERITIES  # noqa: PLC0415  only after a fold
    from share_state.rules.registry import registered  # noqa: PLC0415  only after a fold

    if not findings:
        print_line("no findings")
        return
    rules = registered()
    for found in sorted(findings, key=lambda found: (SEVERITIES.index(found["severity"]), found["rule"])):
        statement = rules[found["rule"]].statement
        count = pluralize(found["count"], "finding")
        print_sentence(f"{found['severity']}: {found['rule']}, {count}. What should hold: {statement}")


def print_json(document: Any, lists: Mapping[str, Iterable[list[Any]]] | None = None) -> None:
    """Print one JSON document on stdout; times as ISO 8601.

    Args:
        document: plain data and times.
        lists: further lists of the document, an object, by name; each is given and printed in pieces, to save
            memory.
    """
    text = _encode(document)
    for name, pieces in (lists or {}).items():
        sys.stdout.write(f"{text.removesuffix('}')}, {_encode(name)}: [")
        separator = ""
        for piece in filter(None, pieces):
            sys.stdout.write(f"{separator}{_encode(piece)[1:-1]}")
            separator = ", "
        text = "]}"
    sys.stdout.write(f"{text}\n")


def row_pieces(rows: pa.Table) -> Iterator[list[dict[str, Any]]]:
    """The rows of a table in pieces for `print_json`."""
    return (batch.to_pylist() for batch in rows.to_batches(max_chunksize=_PIECE_ROWS))


def _encode(value: Any) -> str:
    # json.dump encodes in Python and takes five times as long.
    return json.dumps(value, ensure_ascii=False, default=datetime.isoformat)


def json_lines(rows: pa.RecordBatch) -> str:
    """One JSON object per row and line, without fields that are null.

    Ten times as fast as json.dumps of each row.

    Args:
        rows: integers, booleans, text, times in UTC, and lists and structs of these.
    Returns:
        The text that `json.dumps` writes, with times as `datetime.isoformat` writes them.
    """
    lines = pc.binary_join_element_wise(
        _encode_objects(rows.schema.names, map(_encode_column, rows.columns)), "\n", ""
    )
    return str(column_bytes(lines)[0].data, "utf-8")


def _encode_objects(names: Sequence[str], texts: Iterable[pa.Array]) -> pa.Array:
    fields = [
        pc.binary_join_element_wise(f"{json.dumps(name)}: ", text, "")
        for name, text in zip(names, texts, strict=True)
    ]
    # Arrow omits a row if all that is to be joined is null; the brace keeps it.
    joined = pc.binary_join_element_wise("{", *fields, ", ", null_handling="skip")
    opened = pc.binary_replace_slice(joined, start=0, stop=len("{, "), replacement="{")
    return pc.binary_join_element_wise(opened, "}", "")


def _encode_column(column: pa.Array) -> pa.Array:
    """The values as JSON; null remains null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        quoted = [json.dumps(text, ensure_ascii=False) for text in column.dictionary.to_pylist()]
        return pa.array(quoted, pa.string()).take(column.indices)
    if pa.types.is_string(kind):
        # Text repeats: groups, topics, kinds of record.
        return _encode_column(column.dictionary_encode())
    if pa.types.is_timestamp(kind):
        text = pc.replace_substring(column.cast(pa.timestamp("us")).cast(pa.string()), " ", "T")
        return pc.binary_join_element_wise('"', pc.replace_substring(text, ".000000", ""), '+00:00"', "")
    if pa.types.is_list(kind):
        sizes = pc.fill_null(pc.list_value_length(column), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(sizes)])
        elements = pc.fill_null(_encode_column(column.flatten()), "null")
        lists = pa.ListArray.from_arrays(offsets, elements, mask=column.is_null())
        return pc.binary_join_element_wise("[", pc.binary_join(lists, ", "), "]", "")
    if pa.types.is_struct(kind):
        fields = (pc.fill_null(_encode_column(field), "null") for field in column.flatten())
        return pc.if_else(column.is_valid(), _encode_objects([field.name for field in kind], fields), None)
    return column.cast(pa.string())


def format_name(text: str | None) -> str:
    """A group or topic name: unprintable characters are escaped, an empty name is quoted."""
    if text is None:
        return UNKNOWN
    return escape_unprintable(text) if text else '""'


def format_number(value: int | None) -> str:
    """An integer with thousands separators."""
    return UNKNOWN if value is None else f"{value:,}"


def format_time(time: datetime | None) -> str:
    """A time in UTC, to the second."""
    return UNKNOWN if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_duration(begin: datetime | None, end: datetime | None) -> str:
    """The time between two times in its two largest units, as "3 d 4 h"; 0 where clocks of brokers differ."""
    if begin is None or end is None:
        return UNKNOWN
    return timedelta_text(max(end - begin, timedelta()))


def format_size(octets: int | None) -> str:
    """A number of bytes in its largest decimal unit, as "5.2 MB"."""
    if octets is None:
        return UNKNOWN
    value, units = float(octets), iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while value >= 1000 and (larger := next(units, None)):
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


class ReportError(ShareStateError):
    """Raised if a report cannot be written."""


def check_report_paths(*paths: str | None) -> None:
    """Refuse paths that no report can be written to, and two reports in one file.

    Raises:
        ReportError: if a path is a folder or given twice, or its folder does not exist or is not writable.
    """
    seen = set[Path]()
    for path in filter(None, paths):
        folder, target = Path(path).parent, Path(path).resolve()
        if Path(path).is_dir():
            raise ReportError(f"{path}: is a folder; give the name of a file")
        if not folder.is_dir():
            raise ReportError(f"{path}: the folder {folder} does not exist; create it, or give another file")
        if not os.access(path if _is_special(path) else target.parent, os.W_OK):
            raise ReportError(f"{path}: the folder {folder} is not writable; allow it, or give another file")
        if target in seen and not _is_special(path):
            raise ReportError(f"{path}: is given for two reports; give each its own file")
        seen.add(target)


def check_suffix(path: str | Path, suffixes: Sequence[str]) -> None:
    """Refuse a file whose suffix names no format that it can be written in.

    Raises:
        ReportError: naming those that do.
    """
    if Path(path).suffix not in suffixes:
        *others, last = suffixes
        named = f"{', '.join(others)} or {last}" if others else last
        raise ReportError(f"{path}: give a name that ends in {named}")


def _is_special(path: str) -> bool:
    """Whether a path is a device, a pipe or another stream: nothing that a rename could replace."""
    return path.startswith("/dev/") or (Path(path).exists() and not Path(path).is_file())


def write_report(path: str, content: str | bytes | Iterable[str]) -> None:
    """Write a report: under a temporary name first, so that readers see the old file or the new one.

    A symbolic link stays, and a device or pipe is written to.

    Args:
        path: the file.
        content: its text, pieces of it, or its bytes.

    Raises:
        ReportError: if it cannot be written; an existing file stays.
    """
    check_report_paths(path)
    target = Path(path) if _is_special(path) else Path(path).resolve()
    temporary = target if _is_special(path) else Path(f"{target}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            pieces = [content] if isinstance(content, str | bytes) else content
            file.writelines(piece.encode() if isinstance(piece, str) else piece for piece in pieces)
        if temporary != target:
            with held_signals():
                temporary.replace(target)
                note_file(path)
    except OSError as error:
        if temporary != target:
            temporary.unlink(missing_ok=True)
        raise ReportError(
            f"{path}: cannot be written ({reason_of(path, error)}); an existing file is unchanged"
        ) from None
