"""The columns of rows and tables: what a table lacks, and rows in the order of a table's columns."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from share_state.errors import WarehouseError
from share_state.schema.declarations import table_schema

if TYPE_CHECKING:
    from deltalake import DeltaTable


_BATCH_BYTES = 16 << 20
"""Rows that are written at a time; most tables are one batch."""


def missing_columns(table: str, path: str, existing: "DeltaTable") -> list[str]:
    """The declared columns that a table lacks.

    Raises:
        WarehouseError: if another program wrote it.
    """
    declared, found = table_schema(table), pa.schema(existing.schema())
    foreign = [name for name in found.names if name not in declared.names and not found.field(name).nullable]
    # A table that share_state wrote has at least the first column.
    foreign += found.names[: declared.names[0] not in found.names]
    foreign += [
        one.name for one in declared if one.name in found.names and not _is_same(one, found.field(one.name))
    ]
    if foreign:
        raise WarehouseError(
            f"{path}: another table is here (with the column {foreign[0]} {found.field(foreign[0]).type}); "
            f"give an empty folder"
        )
    return [name for name in declared.names if name not in found.names]


def _is_same(declared: pa.Field, found: pa.Field) -> bool:
    """Whether Delta stores both types alike, whatever Arrow calls their parts."""
    from deltalake import Schema  # noqa: PLC0415  slow to import

    # The columns of a mapped table carry metadata of Delta, nested ones too.
    one, other = (pa.schema(Schema.from_arrow(pa.schema([pa.field("x", f.type)]))) for f in (declared, found))
    return one.equals(other, check_metadata=False)


class RowStream:
    """Rows with the columns of a table, in its order; those that the rows lack are null.

    Attributes:
        schema: of the rows; texts are dictionaries if they are in the first rows, which is faster to write.
        error: what their source raised.
    """

    def __init__(self, rows: Iterable[pa.Table], schema: pa.Schema) -> None:
        pieces = iter(rows)
        first = next(pieces, None)
        if first is None:
            first = schema.empty_table()
        encoded = {one.name: one.type for one in first.schema if pa.types.is_dictionary(one.type)}
        self.schema = pa.schema([one.with_type(encoded.get(one.name, one.type)) for one in schema])
        self.error: Exception | None = None
        self._pieces = chain((first,), pieces)

    @property
    def reader(self) -> pa.RecordBatchReader:
        """The rows, for delta-rs."""
        tables = self.tables(_pulled_apart(self._pieces))
        batches = (batch for table in tables for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def tables(self, pieces: Iterable[pa.Table] | None = None) -> Iterator[pa.Table]:
        """The rows, some megabytes at a time; `pieces` are those that the stream began with."""
        waiting, size = list[pa.Table](), 0
        try:
            for rows in self._pieces if pieces is None else pieces:
                given = {name: rows[name] for name in rows.column_names}
                columns = [given.get(one.name, pa.nulls(len(rows), one.type)) for one in self.schema]
                waiting.append(pa.table(columns, self.schema.names).cast(self.schema))
                size += waiting[-1].nbytes
                if size >= _BATCH_BYTES:
                    yield self._joined(waiting)
                    waiting, size = [], 0
            yield self._joined(waiting)
        except Exception as error:
            self.error = error
            raise

    def _joined(self, tables: Sequence[pa.Table]) -> pa.Table:
        if not tables:
            return self.schema.empty_table()
        return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _pulled_apart(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The items of an iterator, each pulled in a thread of its own.

    Rows of one table may go into another, and delta-rs panics where its reader is called in a thread of its writer.
    """
    with ThreadPoolExecutor(1) as thread:
        while (piece := thread.submit(next, pieces, None).result()) is not None:
            yield piece
