"""Delta tables of a warehouse: written in an order that makes the `runs` row the commit point."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from share_state.errors import WarehouseError

TABLES = ("findings", "in_flight", "share_partition_state", "cutoff", "runs")
"""Every table, in the order of writing; a reader believes the versions that the last row of `runs` names."""


class Warehouse:
    """The tables under one folder."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark, self._root = spark, root

    def replace(self, contents: Mapping[str, DataFrame]) -> dict[str, int]:
        """Replace the contents of some tables, side by side.

        Returns:
            The Delta version that each now has.
        Raises:
            WarehouseError: if a table there has other columns.
        """
        with ThreadPoolExecutor(len(contents)) as pool:
            return dict(zip(contents, pool.map(self._replace, contents, contents.values()), strict=True))

    def record_run(self, run: pa.Table) -> None:
        """Write the row of a run; the same run again takes the place of its row.

        Args:
            run: one row of the table `runs`.
        """
        run_id = run["run_id"][0].as_py()
        frame = self._spark.createDataFrame(run)
        path = self._path("runs")
        writer = frame.coalesce(1).write.format("delta").option("mergeSchema", "true")
        if Path(path, "_delta_log").exists():
            writer = writer.option("replaceWhere", f"run_id = '{run_id}'")
        self._write("runs", lambda: writer.mode("overwrite").save(path))

    def _replace(self, table: str, contents: DataFrame) -> int:
        path = self._path(table)
        writer = contents.write.format("delta").mode("overwrite").option("mergeSchema", "true")
        self._write(table, lambda: writer.save(path))
        return self._version(path)

    def _write(self, table: str, write: Callable[[], None]) -> None:
        try:
            write()
        except AnalysisException as error:
            said = str(error).strip().splitlines()[0]
            raise WarehouseError(f"{self._path(table)}: another table is here ({said}); give an empty folder") from None

    def _path(self, table: str) -> str:
        return str(Path(self._root).absolute() / table)

    def _version(self, path: str) -> int:
        jvm = self._spark._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, path)
        return int(log.update(False, jvm.scala.Option.empty(), jvm.scala.Option.empty()).version())


def check_place(root: str, tables: Sequence[str] = TABLES) -> None:
    """Refuse a place that holds something else than a warehouse, before any work is done.

    Raises:
        WarehouseError: if it is a file, cannot be written, or holds other things.
    """
    place = Path(root)
    try:
        if place.exists() and not place.is_dir():
            raise WarehouseError(f"{root}: a file is here; give a folder for the tables")
        entries = [entry for entry in place.iterdir() if not entry.name.startswith(".")] if place.exists() else []
    except OSError as error:
        raise WarehouseError(f"{root}: cannot be read ({error.strerror}); give a folder for the tables") from None
    known = {entry.name for entry in entries if entry.name in tables and next(entry.glob("**/*.json"), None)}
    strangers = [entry.name for entry in entries if entry.name not in known]
    if strangers:
        raise WarehouseError(f"{root}: holds something else ({strangers[0]}); give an empty folder or a warehouse")
    existing = next(parent for parent in (place, *place.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise WarehouseError(f"{root}: {existing} is a file; give a folder for the tables")
