"""Delta tables of a warehouse: written in an order that makes the `runs` row the commit point."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from share_state.errors import WarehouseError

_SHORTEST_SWEEP = 7

Write = Callable[[str], None]
"""Writes a table to a path."""


class Warehouse:
    """The tables under one folder; what the tasks made is written by Spark, what the driver holds by delta-rs."""

    def __init__(self, root: str) -> None:
        self._root = Path(root).absolute()

    def write(self, writes: Mapping[str, Write]) -> dict[str, int]:
        """Write some tables side by side.

        Args:
            writes: table -> `replacing` or `adding` its rows.
        Returns:
            The Delta version that each table now has.
        Raises:
            WarehouseError: if a table there has other columns.
        """
        with ThreadPoolExecutor(len(writes)) as pool:
            return dict(zip(writes, pool.map(self._written, writes, writes.values()), strict=True))

    def put(self, table: str, rows: pa.Table, where: str | None = None) -> dict[str, int]:
        """Replace the rows of a small table.

        Args:
            table: its name.
            rows: all of them.
            where: replace only the rows for which this SQL condition holds, as it must for all new rows.
        Returns:
            The Delta version that the table now has.
        Raises:
            WarehouseError: if the table there has other columns.
        """
        condition = where if self._exists(table) else None
        try:
            write_deltalake(self._path(table), rows, mode="overwrite", schema_mode="merge", predicate=condition)
        except DeltaError as error:
            raise self._in_the_way(table, error) from None
        return {table: self._version(table)}

    def sweep(self, days: int) -> None:
        """Delete files that no version of the last so many days holds: replaced rows, and what killed runs left.

        Args:
            days: a week at least, as Delta's own tools keep them for readers that are slow.
        """
        for log in self._root.glob("*/_delta_log"):
            if self._exists(log.parent.name):
                hours = 24 * max(days, _SHORTEST_SWEEP)
                DeltaTable(str(log.parent)).vacuum(retention_hours=hours, dry_run=False, full=True)

    def adding(self, table: str, rows: DataFrame, run_id: str, kept_runs: Collection[str]) -> Write:
        """Write the rows of one run beside those of earlier ones.

        Args:
            table: its name; it has a column run_id.
            rows: of the run.
            run_id: of the run.
            kept_runs: earlier runs whose rows stay; rows of others go, such as those of a run that never committed.
        """
        present = self._runs_in(table)
        gone = {*present, run_id} - set(kept_runs)
        if not present & set(kept_runs):
            return replacing(rows)
        if gone == {run_id} - present:
            return partial(_save, rows, "append", {})
        listed = ", ".join(f"'{one}'" for one in sorted(gone))
        return partial(_save, rows, "overwrite", {"replaceWhere": f"run_id IN ({listed})"})

    def _runs_in(self, table: str) -> set[str]:
        """The runs whose rows are there; each file holds those of one."""
        if not self._exists(table):
            return set()
        files = pa.table(DeltaTable(self._path(table)).get_add_actions(flatten=True))
        return set(files["min.run_id"].to_pylist()) if "min.run_id" in files.schema.names else set()

    def _written(self, table: str, write: Write) -> int:
        try:
            write(self._path(table))
        except AnalysisException as error:
            raise self._in_the_way(table, error) from None
        return self._version(table)

    def _in_the_way(self, table: str, error: Exception) -> WarehouseError:
        said = str(error).strip().splitlines()[0]
        return WarehouseError(f"{self._path(table)}: another table is here ({said}); give an empty folder")

    def _exists(self, table: str) -> bool:
        # A run that was killed may leave a log folder without a commit.
        return any((self._root / table / "_delta_log").glob("*.json"))

    def _path(self, table: str) -> str:
        return str(self._root / table)

    def _version(self, table: str) -> int:
        return DeltaTable(self._path(table)).version()


def replacing(rows: DataFrame) -> Write:
    """Write rows in place of all that a table holds."""
    return partial(_save, rows, "overwrite", {})


def _save(rows: DataFrame, mode: str, options: Mapping[str, str], path: str) -> None:
    rows.write.format("delta").mode(mode).option("mergeSchema", "true").options(**options).save(path)
