"""Writes the tables of a run with Spark: its own Delta writer brings the cluster's credentials and commit protocol.

The fold returns the rows of all tables as one cached DataFrame, so that the input is read once; each table is
a filter of it. Several tables are committed at a time, and `runs` last.
"""

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from share_state.delta.reader import delete_folder
from share_state.delta.warehouse import PROPERTIES, Commit, Warehouse
from share_state.delta.warehouse_place import ALL_TABLES
from share_state.errors import DiskFullError, WarehouseError, disk_error
from share_state.pipeline.executor import Executor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.sink import LogRows
from share_state.pipeline.task import LOG, SUMMARY, FinishRows, OutputSpec
from share_state.schema import declarations
from share_state.schema.declarations import table_schema
from share_state.spark.connections import described, local_address, missing_client
from share_state.spark.session import reason

APP_ID = "share_state"
"""The `txnAppId` of writes to existing tables; `txnVersion` counts them."""

_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"
"""Set in every Python process of a Databricks cluster."""

_WRITERS = 4
"""Tables that are written at a time: most are small, and the driver plans and commits them."""

_ROWS_PER_FILE = 1 << 18
"""A task writes a file, at about 100,000 rows a second."""


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


def _quoted(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))


class SparkSink:
    """Keeps the rows of a run as a cached DataFrame, and commits them with Spark's Delta writer."""

    def __init__(
        self, tables: Warehouse, executor: Executor[DataFrame], spark: SparkSession, schema: str | None
    ) -> None:
        """Begin; the executor runs in the session, which has Delta.

        The schema, if any, is at the warehouse.
        """
        self.tables = tables
        self._executor = executor
        self._spark = spark
        self._schema = schema
        self._output = OutputSpec(())
        self._rows = None
        self._counts = Counter[str]()
        self._changed = dict[str, DataFrame]()
        self._added = defaultdict[str, list[pa.Table]](list)
        self._threads, self._commits = ThreadPoolExecutor(_WRITERS), list[Future[None]]()

    def close(self) -> None:
        """Release the rows; commits that have not begun are dropped."""
        self._threads.shutdown(cancel_futures=True)
        if self._rows is not None:
            with suppress(Py4JError):
                self._rows.unpersist()

    def fold(self, plan: FoldPlan, written: Sequence[str], staged: Sequence[str]) -> pa.Table:
        """Fold every log partition in one job, and keep its rows in Spark."""
        self._output = OutputSpec((*written, *staged), incomplete=tuple(staged))
        # In memory, the rows of a million share-partitions do not fit into Spark's default heap, even while they
        # are spilled.
        self._rows = self._executor.fold(plan, self._output).persist(StorageLevel.DISK_ONLY)
        with described(self._spark, "share_state: read and fold log partitions"):
            rows = self._rows.where(sql.col(SUMMARY).isNotNull()).toArrow()
        for summary in rows[SUMMARY].to_pylist():
            self._counts.update({one["table"]: one["rows"] for one in summary["returned"]})
        return rows

    def write(self, table: str, plan: FoldPlan, per_log: LogRows) -> int:
        """Replace a table by what a function makes of every log partition."""
        return self.put(table, self._executor.map_logs(plan, partial(per_log, plan), table_schema(table)))

    def put(self, table: str, rows: DataFrame) -> int:
        """Replace a table by rows, and return their number."""
        self._changed[table] = rows
        self._commit(table, None)
        with described(self._spark, f"share_state: count {table}"):
            return self._spark.table(self._name(table)).count()

    def count(self, table: str) -> int:
        """The number of rows that the fold made for a table."""
        return self._counts[table]

    def read(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Collect rows of a table that the fold made."""
        schema = pa.schema([*table_schema(table), (LOG, pa.string())])
        chosen = pa.schema([schema.field(name) for name in columns or table_schema(table).names])
        with described(self._spark, f"share_state: collect {table}"):
            return self._made(table, *({LOG} & {*chosen.names})).select(*chosen.names).toArrow().cast(chosen)

    def take(self, table: str) -> pa.Table:
        """Collect the staged rows of a table, which are then dropped."""
        rows = self.read(table)
        self._counts[table] = 0
        return rows

    def settle(self, table: str, logs: Collection[str], change: FinishRows) -> None:
        """Change the rows of some log partitions."""
        if table in self._output.tables:
            given, made = pa.schema([*table_schema(table), (LOG, pa.string())]), self._made(table, LOG)
            changed = _mapped(made.where(sql.col(LOG).isin(sorted(logs))), given, change, given)
            self._changed[table] = made.where(~sql.col(LOG).isin(sorted(logs))).unionByName(changed)

    def finish(self, table: str, finish: FinishRows) -> None:
        """Complete the staged rows of a table."""
        self._changed[table] = _mapped(
            self._made(table), self._output.schema_of(table), finish, table_schema(table)
        )

    def add(self, table: str, rows: Iterable[pa.Table]) -> None:
        """Add rows that the driver made."""
        self._added[table] += (one.cast(table_schema(table)) for one in rows if len(one))

    def replace(self, table: str) -> None:
        """Begin to replace a table by its rows here."""
        self._commits.append(self._threads.submit(self._commit, table, None))

    def append(self, table: str, replaced_runs: Collection[str]) -> None:
        """Begin to append to a table its rows here, and to remove those of some runs."""
        self._commits.append(self._threads.submit(self._commit, table, replaced_runs))

    def commit_run(self, row: Mapping[str, Any], expired: Collection[str] = ()) -> None:
        """Wait for the other tables, and commit the run."""
        for one in self._commits:
            one.result()
        self.add("runs", [self.tables.run_rows(row)])
        self._commit("runs", {row["run_id"], *expired})

    def maintain(self, days: int) -> None:
        """As `Warehouse.maintain`; Spark vacuums tables with features that delta-rs lacks."""
        for table in ALL_TABLES:
            try:
                self.tables.maintain(days, [table])
            except WarehouseError:
                check = "spark.databricks.delta.retentionDurationCheck.enabled"
                with _spark_errors(self.tables.folder(table)):
                    before = self._spark.conf.get(check, "true")
                    self._spark.conf.set(check, "false")
                    self._spark.sql(f"VACUUM {self._name(table)} RETAIN {24 * days} HOURS")
                    self._spark.conf.set(check, str(before))

    def _name(self, table: str) -> str:
        """A table as SQL names it."""
        if self._schema is not None:
            return f"{_quoted(self._schema)}.{table}"
        return f"delta.`{local_address(self.tables.folder(table)).replace('`', '``')}`"

    def _made(self, table: str, *more: str) -> DataFrame:
        """The rows of a table that the fold made."""
        assert self._rows is not None
        return self._rows.where(sql.col(table).isNotNull()).select(f"{table}.*", *more)

    def _frame(self, table: str) -> DataFrame:
        """All rows of a table, in few files."""
        frames = list[DataFrame]()
        count = self._counts[table]
        schema = table_schema(table)
        if self._rows is None:
            return self._changed[table]
        if count:
            frames.append(self._changed.get(table, self._made(table)).select(*schema.names))
        if (added := self._added[table]) or not count:
            rows = pa.concat_tables([schema.empty_table(), *added]).combine_chunks()
            count += len(rows)
            frames.append(self._spark.createDataFrame(rows, from_arrow_schema(schema)))
        return reduce(DataFrame.unionByName, frames).coalesce(max(1, math.ceil(count / _ROWS_PER_FILE)))

    def _commit(self, table: str, replaced_runs: Collection[str] | None) -> None:
        with self.tables.commit(table, replaced_runs) as commit, _spark_errors(commit.path):
            name, number = self._name(table), commit.existing and commit.existing.transaction_version(APP_ID)
            with described(self._spark, f"share_state: write {table}"):
                if self._schema and commit.existing and not self._spark.catalog.tableExists(name):
                    self._spark.sql(
                        f"CREATE TABLE {name} USING delta LOCATION '{local_address(commit.path)}'"
                    )
                if commit.existing is None:
                    # Spark creates no table where files are, such as those of a run that was killed.
                    delete_folder(commit.path)
                change = _definition(name, table, commit)
                if change is not None:
                    self._spark.sql(change)
                may_have_rows = self._rows is None or self._counts[table] or self._added[table]
                if commit.existing is None and not may_have_rows:
                    return
                commit.version += change is not None
                writer = self._frame(table).writeTo(name)
                # An append of no rows commits nothing, and rows that are changed may be left out.
                if commit.existing is None and table not in self._changed:
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


@contextmanager
def _spark_errors(path: str) -> Iterator[None]:
    """Raise errors of Spark's writer as WarehouseError.

    Those of the fold, which may run again, stay as they are.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
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


def _mapped(frame: DataFrame, given: pa.Schema, change: FinishRows, made: pa.Schema) -> DataFrame:
    """Rows of one schema changed to rows of another in tasks."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from (
                change(pa.Table.from_batches([batch]).cast(given)).select(made.names).cast(made).to_batches()
            )

    return frame.mapInArrow(run, from_arrow_schema(made))


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
