"""Reads a warehouse without Spark, for people who wait: each table in the version that the last run committed."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from share_state.declarations import table_schema
from share_state.errors import WarehouseError


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
            WarehouseError: if no run (of that command) was ever committed there.
        """
        self.root = Path(warehouse)
        if not any((self.root / "runs" / "_delta_log").glob("*.json")):
            raise WarehouseError(
                f"{warehouse}: no warehouse here; make one with `share-state reconstruct INPUT --out {warehouse}`"
            )
        self.made_by = command or "reconstruct"
        where = None if command is None else pc.field("command") == command
        self.runs = self._read("runs", None, where).sort_by([("finished", "descending")])
        if not len(self.runs):
            raise WarehouseError(f"{warehouse}: no {command} was ever committed here")
        self.run: dict[str, Any] = self.runs.slice(0, 1).to_pylist()[0]
        self.made_by = "the audit" if self.run["command"] == "audit" else self.run["command"]
        self.versions: dict[str, int] = dict(self.run["table_versions"])

    def read(self, table: str, where: ds.Expression | None = None) -> pa.Table:
        """The committed rows of a table.

        Args:
            table: its name.
            where: only these rows.
        Returns:
            The columns that schemas/tables declares; no rows where the run has no such table.
        Raises:
            WarehouseError: if the table is gone or was vacuumed away.
        """
        if table not in self.versions:
            return table_schema(table).empty_table()
        return self._read(table, self.versions[table], where)

    def files(self, table: str) -> list[dict[str, Any]]:
        """The Parquet files of a table: their path, and the least and greatest value of each column that has them.

        Raises:
            WarehouseError: if the table is gone or was vacuumed away.
        """
        if table not in self.versions:
            return []
        try:
            found = DeltaTable(str(self.root / table), version=self.versions[table]).get_add_actions(flatten=True)
        except (DeltaError, OSError) as error:
            raise self.unreadable(table, error) from None
        files = pa.table(found).to_pylist()
        return [file | {"path": str(self.root / table / file["path"])} for file in files]

    def _read(self, table: str, version: int | None, where: ds.Expression | None) -> pa.Table:
        try:
            files = DeltaTable(str(self.root / table), version=version).file_uris()
            schema = table_schema(table)
            if not files:
                return schema.empty_table()
            return ds.dataset(files, schema=schema, format="parquet").to_table(filter=where)
        except (DeltaError, OSError, pa.ArrowInvalid) as error:
            raise self.unreadable(table, error) from None

    def unreadable(self, table: str, error: Exception) -> WarehouseError:
        """What is raised where a table cannot be read."""
        said = str(error).splitlines()[0]
        return WarehouseError(f"{self.root / table}: cannot be read ({said}); run {self.made_by} again")


def of_key(group: str | None, topic: str | None, partition: int | None) -> ds.Expression | None:
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
