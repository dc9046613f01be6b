"""Tables read batch by batch, so that a warehouse of any size is looked at in bounded memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from share_state.committed import CommittedTables
from share_state.declarations import table_schema

_PENDING_ROWS = 1_000_000
_AHEAD = {"batch_readahead": 2, "fragment_readahead": 1, "batch_size": 32_768}


class ScannedTables(CommittedTables):
    """The tables that the latest row of `runs` names, a column or a batch at a time."""

    def holds(self, table: str) -> bool:
        """Whether the latest run committed a version of this table."""
        return table in self.versions

    def batches(self, table: str, columns: Sequence[str], where: ds.Expression | None = None) -> Iterator[pa.Table]:
        """The committed rows of a table, in pieces.

        Args:
            table: its name.
            columns: only these columns.
            where: only these rows; what the files' statistics rule out is not even read.
        Yields:
            Tables of some ten thousand rows, in the order of the files.
        Raises:
            WarehouseError: if the table is gone or was vacuumed away.
        """
        try:
            files = DeltaTable(str(self.root / table), version=self.versions.get(table)).file_uris()
            if files:
                scan = ds.dataset(files, schema=table_schema(table), format="parquet")
                for batch in scan.to_batches(columns=list(columns), filter=where, **_AHEAD):
                    if batch.num_rows:
                        yield pa.Table.from_batches([batch])
        except (DeltaError, OSError, pa.ArrowInvalid) as error:
            raise self.unreadable(table, error) from None

    def rows(self, table: str, columns: Sequence[str], where: ds.Expression | None = None) -> pa.Table:
        """The committed rows of a table, whole: for tables and filters that leave few.

        Raises:
            WarehouseError: if the table is gone or was vacuumed away.
        """
        schema = table_schema(table)
        empty = pa.schema([schema.field(name) for name in columns]).empty_table()
        return pa.concat_tables([empty, *self.batches(table, columns, where)])


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
