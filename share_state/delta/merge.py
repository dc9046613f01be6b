"""Merges changed rows into Delta tables by key, and restores the versions that were committed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.reader import (
    commit_errors,
    open_table,
    scan,
    version_to_read,
)
from share_state.delta.replaced_files import SHORT_LOG
from share_state.errors import WarehouseError
from share_state.schema.declarations import table_schema

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

DELETED = "deleted"
"""Column of changed rows: the row with this key is no longer in the table."""

_FIX = "start the stream again; it then rewrites all tables"


def without_deleted(rows: pa.Table) -> pa.Table:
    """Changed rows with the column DELETED, false for each."""
    return rows.append_column(DELETED, pa.repeat(False, len(rows)))


def not_deleted(rows: pa.Table) -> pa.Table:
    """The rows that are not DELETED; pieces without a deleted row, as most are, stay as they are."""
    pieces = rows.to_batches()
    kept = [
        piece.filter(pc.invert(piece[DELETED])) if pc.any(piece[DELETED]).as_py() else piece
        for piece in pieces
    ]
    return pa.Table.from_batches(kept, rows.schema)


def merged_rows(existing: "DeltaTable", table: str, rows: pa.Table, key: Sequence[str]) -> list[pa.Table]:
    """The rows of a table whose key no changed row has, then the changed rows that are not DELETED.

    Args:
        existing: the table.
        table: its name.
        rows: the changed rows: the columns of the table, and DELETED.
        key: names of columns; empty to keep no row of the table.
    """
    names, left = table_schema(table).names, table_schema(table).empty_table()
    if key:
        left = pa.concat_tables([left, *scan(existing, table, names, None)])
        found, counts = key_runs(left, key)
        is_left = pc.invert(pc.is_in(found, key_runs(rows, key)[0])).to_numpy(zero_copy_only=False)
        left = left.filter(pa.array(np.repeat(is_left, counts)))
    return [left, not_deleted(rows)]


def key_runs(rows: pa.Table, key: Sequence[str]) -> tuple[pa.Array, np.ndarray]:
    """The key, as one sequence of bytes, of each run of rows with equal keys, and how many rows the run has."""
    columns, is_first = [_in_one_piece(rows[name]) for name in key], np.zeros(len(rows), bool)
    is_first[:1] = True
    for column in columns:
        numbers = (column.indices if pa.types.is_dictionary(column.type) else column).fill_null(-1).to_numpy()
        is_first[1:] |= numbers[1:] != numbers[:-1]
    first = np.flatnonzero(is_first)
    texts = [_as_bytes(column.take(pa.array(first))) for column in columns]
    joined = pc.call_function("binary_join_element_wise", [*texts, pa.scalar(b"\n")])
    return joined, np.diff(np.append(first, len(rows)))


def _in_one_piece(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece, as a dictionary if it is text or bytes."""
    whole = column.combine_chunks()
    is_text = pa.types.is_string(whole.type) or pa.types.is_binary(whole.type)
    return whole.dictionary_encode() if is_text else whole


def _as_bytes(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.string()).cast(pa.binary())
    return pc.fill_null(column, b"")


def restore_version(place: str, version: int) -> int:
    """Restore the rows of a committed version of a table if a run has written it since.

    Returns:
        The latest version, which has these rows.
    """
    with merge_errors(place):
        existing = opened(place)
        if (kept := version_to_read(existing, version)) != existing.version():
            existing.restore(kept)
            existing.update_incremental()
        return existing.version()


def keep_short_log(table: "DeltaTable") -> None:
    """Let `shorten_log` delete entries of a table's log after minutes instead of a month."""
    if not SHORT_LOG.items() <= table.metadata().configuration.items():
        table.alter.set_table_properties(SHORT_LOG)


def opened(place: str) -> "DeltaTable":
    """A table that exists.

    Raises:
        WarehouseError: if it is gone.
    """
    if (existing := open_table(place)) is None:
        raise lost_table(place)
    return existing


def lost_table(place: str) -> WarehouseError:
    """The error about a table that a stream has written before and that is gone."""
    return WarehouseError(f"{place}: the table is gone; {_FIX}")


def overtaken_stream(place: str) -> WarehouseError:
    """The error about a table that another run has written while a stream runs."""
    return WarehouseError(f"{place}: another writer committed here meanwhile; start the stream again")


def transaction(application: str, batch: int) -> "CommitProperties":
    """Delta's txnAppId and txnVersion of a commit, which is not tried again."""
    from deltalake import CommitProperties, Transaction  # noqa: PLC0415  slow to import

    return CommitProperties(app_transactions=[Transaction(application, batch)], max_commit_retries=0)


@contextmanager
def merge_errors(place: str) -> Iterator[None]:
    """Raise what Delta raises when a stream commits as WarehouseError.

    Other errors as `warehouse_errors` does.
    """
    from deltalake.exceptions import CommitFailedError  # noqa: PLC0415  slow to import

    with commit_errors(place, _FIX):
        try:
            yield
        except CommitFailedError:
            raise overtaken_stream(place) from None
