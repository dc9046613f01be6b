"""Rows that come in pieces brought together by groups, in memory that grows with the groups and not with the rows."""

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

_PENDING_ROWS = 1_000_000


def grouped(pieces: Iterable[pa.Table], by: Sequence[str], merged: Mapping[str, str]) -> pa.Table | None:
    """Group rows that come in pieces; never holds more than the groups and some pieces.

    Args:
        pieces: tables with the columns of `by` and `merged`.
        by: columns that make a group; null is a value like any other.
        merged: column -> sum, min, max or first: what a column of a group becomes.
    Returns:
        One row a group, with the columns of `by` and `merged`; None where there was no piece.
    """
    pending: list[pa.Table] = []
    waiting, groups = 0, 0
    for piece in pieces:
        pending.append(_grouped(piece, by, merged))
        waiting += pending[-1].num_rows
        if waiting > 2 * groups + _PENDING_ROWS:
            pending = [_grouped(pa.concat_tables(pending), by, merged)]
            waiting = groups = pending[0].num_rows
    return _grouped(pa.concat_tables(pending), by, merged) if pending else None


def _grouped(rows: pa.Table, by: Sequence[str], merged: Mapping[str, str]) -> pa.Table:
    # A null that comes first is what was first.
    options = {"first": pc.ScalarAggregateOptions(skip_nulls=False)}
    wanted = [(column, how, options.get(how)) for column, how in merged.items()]
    summed = rows.group_by(list(by), use_threads=False).aggregate(wanted)
    return summed.select([*by, *(f"{column}_{how}" for column, how in merged.items())]).rename_columns([*by, *merged])
