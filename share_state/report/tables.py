"""Reads a warehouse without Spark, for people who wait: each table in the version that the last run committed."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from share_state.declarations import table_schema
from share_state.errors import WarehouseError


class CommittedTables:
    """The tables that the latest row of `runs` names."""

    def __init__(self, warehouse: str) -> None:
        """Open a warehouse.

        Raises:
            WarehouseError: if no run was ever committed there.
        """
        self._root = Path(warehouse)
        if not (self._root / "runs" / "_delta_log").is_dir():
            raise WarehouseError(
                f"{warehouse}: no warehouse here; make one with `share-state reconstruct INPUT --out {warehouse}`"
            )
        runs = self._read("runs", None, None).sort_by([("finished", "descending")])
        self.run = runs.slice(0, 1).to_pylist()[0]
        self._versions: dict[str, int] = dict(self.run["table_versions"])

    def read(self, table: str, where: ds.Expression | None = None) -> pa.Table:
        """The committed rows of a table.

        Args:
            table: its name.
            where: only these rows.
        Returns:
            The columns that schemas/tables declares.
        Raises:
            WarehouseError: if the table is gone or was vacuumed away.
        """
        return self._read(table, self._versions.get(table), where)

    def _read(self, table: str, version: int | None, where: ds.Expression | None) -> pa.Table:
        try:
            files = DeltaTable(str(self._root / table), version=version).file_uris()
            schema = table_schema(table)
            if not files:
                return schema.empty_table()
            return ds.dataset(files, schema=schema, format="parquet").to_table(filter=where)
        except (DeltaError, OSError, pa.ArrowInvalid) as error:
            said = str(error).splitlines()[0]
            raise WarehouseError(f"{self._root / table}: cannot be read ({said}); run reconstruct again") from None


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
