"""Reads a warehouse without Spark, for people who wait: each table in the version that the last run committed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from share_state.delta.files import rows_of
from share_state.delta.warehouse import table_at
from share_state.errors import NothingCommittedError, WarehouseError
from share_state.schema.declarations import table_schema
from share_state.sources.object_stores import NotOpenedError, refusal

_AHEAD = {"batch_readahead": 2, "fragment_readahead": 1, "batch_size": 32_768}
"""Little is in memory at a time, whatever a table holds."""


class CommittedTables:
    """The tables that the latest row of `runs` names.

    Attributes:
        runs: the table `runs`, latest first.
        run: its first row.
        versions: Delta version of each table that the run wrote or left as it was.
    """

    def __init__(self, warehouse: str, command: str | None = None) -> None:
        """Open a warehouse.

        Args:
            warehouse: folder of the tables.
            command: believe the latest run of this command, whatever ran since.
        Raises:
            NothingCommittedError: if no run (of that command) was ever committed there.
            WarehouseError: if it cannot be read.
        """
        self.root = warehouse.rstrip("/") if "://" in warehouse else str(Path(warehouse))
        self.made_by = command or "reconstruct"
        self.versions: dict[str, int] = {}
        if self._opened("runs") is None:
            raise NothingCommittedError(
                f"{warehouse}: no warehouse here; make one with `share-state reconstruct INPUT --out {warehouse}`"
            )
        where = None if command is None else pc.field("command") == command
        self.runs = self.read("runs", where).sort_by([("finished", "descending")])
        if not len(self.runs):
            raise NothingCommittedError(f"{warehouse}: no {command} was ever committed here")
        self.run: dict[str, Any] = self.runs.slice(0, 1).to_pylist()[0]
        self.made_by = "the audit" if self.run["command"] == "audit" else self.run["command"]
        self.versions = dict(self.run["table_versions"])

    def holds(self, table: str) -> bool:
        """Whether the run committed a version of a table."""
        return table in self.versions

    def read(self, table: str, where: pc.Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """The committed rows of a table, whole.

        Args:
            table: its name.
            where: only these rows.
            columns: only these columns; by default all that schemas/tables declares.
        Returns:
            No rows where the run has no such table.
        Raises:
            WarehouseError: if the table is gone or was vacuumed away.
        """
        schema = table_schema(table)
        empty = pa.schema([schema.field(name) for name in columns or schema.names]).empty_table()
        return pa.concat_tables([empty, *self.batches(table, columns, where)])

    def batches(
        self, table: str, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> Iterator[pa.Table]:
        """The committed rows of a table, in pieces.

        Args:
            table: its name.
            columns: only these columns.
            where: only these rows; what the files' statistics rule out is not even read.
        Yields:
            Tables of some ten thousand rows, in the order of the files; none where the run has no such table.
        Raises:
            WarehouseError: if the table is gone or was vacuumed away.
        """
        try:
            if paths := [f"{self.root}/{table}/{file['path']}" for file in self._files(table)]:
                scan = rows_of(table, paths)
                chosen = None if columns is None else list(columns)
                for batch in scan.to_batches(columns=chosen, filter=where, **_AHEAD):
                    if batch.num_rows:
                        yield pa.Table.from_batches([batch])
        except (DeltaError, OSError, NotOpenedError, pa.ArrowInvalid) as error:
            raise self._unreadable(table, error) from None

    def files(self, table: str) -> list[dict[str, Any]]:
        """The Parquet files of a table: their path, and the least and greatest value of each column that has them.

        Raises:
            WarehouseError: if the table is gone or was vacuumed away.
        """
        try:
            return [file | {"path": f"{self.root}/{table}/{file['path']}"} for file in self._files(table)]
        except (DeltaError, OSError) as error:
            raise self._unreadable(table, error) from None

    def _files(self, table: str) -> list[dict[str, Any]]:
        # Whoever reads runs wants those after the one that is believed, too: it is the table that says which is.
        if table != "runs" and table not in self.versions:
            return []
        found = self._opened(table)
        if found is None:
            raise self._unreadable(table, "it is gone")
        return pa.table(found.get_add_actions(flatten=True)).to_pylist()

    def _opened(self, table: str) -> DeltaTable | None:
        try:
            return table_at(f"{self.root}/{table}", self.versions.get(table))
        except DeltaError as error:
            raise self._unreadable(table, error) from None

    def _unreadable(self, table: str, why: Exception | str) -> WarehouseError:
        if isinstance(why, Exception) and "://" in self.root:
            return WarehouseError(str(refusal(f"{self.root}/{table}", why)))
        return WarehouseError(
            f"{self.root}/{table}: cannot be read ({str(why).splitlines()[0]}); run {self.made_by} again"
        )


def of_key(group: str | None, topic: str | None, partition: int | None) -> pc.Expression | None:
    """Rows of one group, topic (name or id) or partition."""
    wanted = [
        pc.field(name) == value for name, value in (("group_id", group), ("partition", partition)) if value is not None
    ]
    if topic is not None:
        wanted.append((pc.field("topic") == topic) | (pc.field("topic_id") == topic))
    where = None
    for condition in wanted:
        where = condition if where is None else where & condition
    return where
