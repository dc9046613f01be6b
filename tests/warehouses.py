"""Reads a warehouse as any other program would: the Delta versions that the latest row of `runs` names."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable


class WrittenTables:
    """What the latest run has committed.

    Attributes:
        runs: the table `runs`, latest first.
        run: its first row.
        versions: table -> Delta version.
    """

    def __init__(self, place: str | Path) -> None:
        self._place = Path(place)
        table = DeltaTable(str(self._place / "runs")).to_pyarrow_table()
        self.runs: pa.Table = table.sort_by([("sequence", "descending"), ("finished", "descending")])
        self.run: dict[str, Any] = self.runs.slice(0, 1).to_pylist()[0]
        self.versions: dict[str, int] = dict(self.run["table_versions"])

    def read(self, table: str, where: pc.Expression | None = None) -> pa.Table:
        """The committed rows of a table; none if the run has no such table."""
        if table not in self.versions:
            return pa.table({})
        rows = DeltaTable(str(self._place / table), version=self.versions[table]).to_pyarrow_table()
        return rows if where is None else rows.filter(where)


def arrow(table: object) -> pa.Table:
    """A table that a call without a session returns."""
    assert isinstance(table, pa.Table)
    return table
