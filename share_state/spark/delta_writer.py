"""Spark's Delta writer: `DeltaWriter` creates the tables of a warehouse, and writes and merges frames into them."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from share_state.delta.merge import DELETED, not_deleted
from share_state.delta.reader import delete_folder
from share_state.delta.warehouse import PROPERTIES, Commit, Warehouse
from share_state.errors import DiskFullError, WarehouseError, disk_error
from share_state.schema import declarations
from share_state.schema.declarations import table_schema
from share_state.spark.connections import (
    changed_settings,
    described,
    local_address,
    missing_client,
    quiet_hive,
)
from share_state.spark.jvm_errors import SPARK_ERRORS, reason

APP_ID = "share_state"
"""The `txnAppId` of writes to existing tables; `txnVersion` counts them."""

_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"
"""Set in every Python process of a Databricks cluster."""

_ROWS_PER_FILE = 1 << 18
"""A task writes a file, at about 100,000 rows a second."""

_VACUUM = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # By default VACUUM lists the files of a table in 10,000 tasks, which take a minute and a half.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}
_IS_ROW = "share_state_is_row"
"""Column of what is merged: a row of the table; otherwise a key whose rows are deleted."""


def missing_support(spark: SparkSession, root: str) -> str | None:
    """Why a session cannot write Delta tables to a folder or address; None if it can."""
    # Databricks has Delta without an extension.
    if (
        "delta" not in (spark.conf.get("spark.sql.extensions", "") or "").lower()
        and _DATABRICKS not in os.environ
    ):
        return "this Spark session has no Delta"
    return missing_client(spark, root)


def schema_location(spark: SparkSession, schema: str) -> str:
    """The folder or address where the tables of `catalog.schema` are.

    Raises:
        WarehouseError: if Spark does not know the schema.
    """
    quiet_hive(spark)
    try:
        rows = spark.sql(f"DESCRIBE SCHEMA {_quoted(schema)}").collect()
    except PySparkException as error:
        why, catalog = reason(error), schema.partition(".")[0]
        if why.startswith("Nested databases") and catalog != "spark_catalog":
            why = f"spark.sql.catalog.{catalog} is not set"
        raise WarehouseError(
            f"{schema}: no such folder, and no such schema in Spark's catalogs ({why}); "
            "create the schema, or give a path"
        ) from None
    location = next((row[1] for row in rows if row[0] == "Location"), None)
    if location is None:
        raise WarehouseError(f"{schema}: the catalog does not show where its tables are; give a path")
    return re.sub("^file:/+", "/", re.sub("^s3[an]:", "s3:", location)).rstrip("/")


def in_files(frame: DataFrame, count: int) -> DataFrame:
    """So many rows in as few files as tasks can write side by side."""
    return frame.coalesce(max(1, math.ceil(count / _ROWS_PER_FILE)))


class DeltaWriter:
    """Writes frames to the tables of a warehouse, by path or as `catalog.schema.table`.

    Attributes:
        spark: the session, which has Delta.
        schema: `catalog.schema`, if any, which is at the warehouse.
    """

    def __init__(self, tables: Warehouse, spark: SparkSession, schema: str | None) -> None:
        self.spark, self.schema = spark, schema
        self._tables = tables

    def name(self, table: str) -> str:
        """A table as SQL names it."""
        if self.schema is not None:
            return f"{_quoted(self.schema)}.{table}"
        return f"delta.`{local_address(self._tables.folder(table)).replace('`', '``')}`"

    def write(
        self, table: str, commit: Commit, frame: DataFrame | None, *, may_be_empty: bool = True
    ) -> None:
        """Write rows to a table, which is created or gets the columns that it lacks.

        Args:
            table: its name.
            commit: which rows of the table they replace.
            frame: the rows; None for none.
            may_be_empty: whether the frame may have no rows.
        """
        number = commit.existing and commit.existing.transaction_version(APP_ID)
        name = self.name(table)
        with described(self.spark, f"share_state: write {table}"):
            is_changed = self._define(table, commit)
            if frame is None:
                return
            commit.version += is_changed
            writer = frame.writeTo(name)
            # An append of no rows commits nothing.
            if commit.existing is None and not may_be_empty:
                # Delta would run three jobs to look for a number in a table that this run has just
                # created.
                writer.append()
                return
            # A write of another run with the same number would leave the version as it is, which `commit`
            # checks.
            writer.options(txnAppId=APP_ID, txnVersion=str(0 if number is None else number + 1))
            if commit.replaces_all:
                writer.overwrite(_every_row(table, commit))
            elif commit.replaced_runs:
                writer.overwrite(sql.col("run_id").isin(commit.replaced_runs))
            else:
                writer.append()

    def merge(self, table: str, commit: Commit, rows: pa.Table, key: Sequence[str]) -> None:
        """Replace the rows of an existing table whose key occurs in `rows` by those that are not DELETED.

        Spark rewrites the files that hold such rows, or marks these in deletion vectors if the table has them.
        """
        commit.version += self._define(table, commit)
        columns = ", ".join(f"`{name}`" for name in table_schema(table).names)
        values = ", ".join(f"s.`{name}`" for name in table_schema(table).names)
        is_of_key = " AND ".join(f"t.`{name}` <=> s.`{name}`" for name in key)
        changes = self.spark.createDataFrame(_rows_and_keys(table, rows, key))
        with described(self.spark, f"share_state: merge into {table}"):
            self.spark.sql(
                f"MERGE INTO {self.name(table)} t USING {{changes}} s ON NOT s.{_IS_ROW} AND {is_of_key} "
                f"WHEN MATCHED THEN DELETE "
                f"WHEN NOT MATCHED AND s.{_IS_ROW} THEN INSERT ({columns}) VALUES ({values})",
                changes=changes,
            )

    def restore(self, table: str, version: int) -> None:
        """Restore the rows that an existing table had in a version."""
        with described(self.spark, f"share_state: restore {table}"):
            self.spark.sql(f"RESTORE TABLE {self.name(table)} TO VERSION AS OF {version}")

    def vacuum(self, table: str, hours: float | None) -> None:
        """Delete files that no version of the last hours names; None for as many as the table says."""
        retained = "" if hours is None else f" RETAIN {hours} HOURS"
        with changed_settings(self.spark, _VACUUM), described(self.spark, f"share_state: vacuum {table}"):
            self.spark.sql(f"VACUUM {self.name(table)}{retained}")

    def optimize(self, table: str) -> None:
        """Make large files of the small ones of a table, and leave out rows that deletion vectors mark."""
        with described(self.spark, f"share_state: optimize {table}"):
            self.spark.sql(f"OPTIMIZE {self.name(table)}")

    def register(self, table: str) -> None:
        """Register a table that exists in the catalog, unless it is there."""
        name = self.name(table)
        if self.schema is not None and not self.spark.catalog.tableExists(name):
            place = local_address(self._tables.folder(table))
            self.spark.sql(f"CREATE TABLE {name} USING delta LOCATION '{place}'")

    def _define(self, table: str, commit: Commit) -> bool:
        """Create a table, register it in the catalog, or add the columns that it lacks.

        Returns:
            Whether that made a version.
        """
        name = self.name(table)
        if commit.existing is not None:
            self.register(table)
        else:
            # Spark creates no table where files are, such as those of a run that was killed.
            delete_folder(commit.path)
        change = _definition(name, table, commit)
        if change is not None:
            self.spark.sql(change)
        return change is not None


def arrow_frame(spark: SparkSession, table: str, rows: pa.Table) -> DataFrame:
    """Rows of a table as a frame."""
    return spark.createDataFrame(rows.combine_chunks(), from_arrow_schema(table_schema(table)))


def _rows_and_keys(table: str, rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows to insert, and the keys whose rows are to be deleted, told apart by _IS_ROW."""
    schema = pa.schema([one.with_nullable(True) for one in table_schema(table)])
    rows = rows.select([*schema.names, DELETED]).cast(schema.append(pa.field(DELETED, pa.bool_())))
    new, keys = not_deleted(rows).drop_columns(DELETED), rows.group_by([*key]).aggregate([])
    parts = [
        part.append_column(_IS_ROW, pa.repeat(is_row, len(part)))
        for part, is_row in ((new, True), (keys, False))
    ]
    return pa.concat_tables(parts, promote_options="default").combine_chunks()


def _quoted(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))


@contextmanager
def spark_errors(path: str) -> Iterator[None]:
    """Raise errors of Spark's writer as WarehouseError.

    Those of the fold, which may run again, stay as they are.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        if "share_state.errors." in str(error):
            raise
        if isinstance(full := disk_error(path, error), DiskFullError):
            raise full from None
        raise WarehouseError(
            f"{path}: cannot be written as a Delta table by Spark ({reason(error)})"
        ) from error


def _every_row(table: str, one: Commit) -> Column:
    """A condition that all rows of a table meet.

    Delta drops the clustering of a table that is overwritten without.
    """
    features = None if one.existing is None else one.existing.protocol().writer_features
    if not any("cluster" in str(feature).lower() for feature in features or ()):
        return sql.lit(True)
    # For a column that is never null, Spark would see that the condition is always true.
    column = sql.col(next(column.name for column in declarations.table(table)[1] if column.nullable))
    return column.isNull() | column.isNotNull()


def _definition(name: str, table: str, one: Commit) -> str | None:
    """The statement that creates a table or adds the columns that it lacks; None if it is as declared."""
    doc, columns = declarations.table(table)
    if one.existing is None:
        described_columns = ", ".join(f"{_column(column)}" for column in columns)
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in PROPERTIES.items())
        options = f"USING delta COMMENT {_literal(doc)} TBLPROPERTIES ({properties})"
        return f"CREATE TABLE {name} ({described_columns}) {options}"
    missing = [_column(column, nullable=True) for column in columns if column.name in one.missing]
    return f"ALTER TABLE {name} ADD COLUMNS ({', '.join(missing)})" if missing else None


def _column(column: declarations.Column, *, nullable: bool = False) -> str:
    null = "" if nullable or column.nullable else " NOT NULL"
    return f"`{column.name}` {column.type}{null} COMMENT {_literal(column.doc)}"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
