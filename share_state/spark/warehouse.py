"""Delta tables of a warehouse: written in an order that makes the `runs` row the commit point."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from share_state.errors import WarehouseError


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
