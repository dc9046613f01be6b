"""The warehouse of a stream on Spark: Spark's Delta writer writes the tables that the driver's writer cannot.

The driver writes a table without further features in a fraction of the time, as Spark runs several jobs for each.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession

from share_state.delta.merge import DELETED, not_deleted, opened
from share_state.delta.reader import check_readable, commit_errors, version_to_read
from share_state.delta.table_columns import RowStream
from share_state.delta.table_files import is_plain
from share_state.delta.warehouse import Warehouse
from share_state.delta.warehouse_place import EMPTY_FOLDER_HINT
from share_state.pipeline.stream_tables import OpenWarehouse
from share_state.schema.declarations import table_schema
from share_state.spark.delta_writer import DeltaWriter, arrow_frame, in_files, missing_support, spark_errors

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_LOG = logging.getLogger("share_state")

_CHANGE_FEED = "delta.enableChangeDataFeed"
_KEPT_HOURS = 0.5


def stream_warehouse(spark: SparkSession, root: str, schema: str | None) -> OpenWarehouse:
    """How a stream in a session opens its warehouse, at a folder or address, which may be that of a schema."""
    if (missing := missing_support(spark, root)) is not None:
        _LOG.info("%s: tables with features that deltalake lacks cannot be written", missing)
        return Warehouse
    return partial(SparkWarehouse, spark=spark, schema=schema)


class SparkWarehouse(Warehouse):
    """Writes with Spark what is created in a catalog, and tables to which no file can be added as it is."""

    def __init__(
        self, root: str, *, spark: SparkSession, schema: str | None, deletes_replaced: bool = False
    ) -> None:
        super().__init__(root, deletes_replaced=deletes_replaced)
        self._writer = DeltaWriter(self, spark, schema)

    def __enter__(self) -> "SparkWarehouse":
        self.check_readable()
        return self

    def restore(self, table: str, version: int) -> None:
        """As `Warehouse.restore`."""
        place = self.folder(table)
        with commit_errors(place, EMPTY_FOLDER_HINT):
            existing = opened(place)
            self._writer.register(table)
            if not self._is_of_spark(existing):
                super().restore(table, version)
                return
            if (kept := version_to_read(existing, version)) != existing.version():
                with spark_errors(place):
                    self._writer.restore(table, kept)
                existing.update_incremental()
            self.versions[table] = existing.version()

    def _is_of_spark(self, existing: "DeltaTable | None") -> bool:
        """Whether Spark writes a table; None for one that does not exist."""
        if existing is None:
            return self._writer.schema is not None
        # A commit of whole files would show every row of them in the change data feed.
        return _has_feed(existing) or not is_plain(existing)

    def _takes_files(self, existing: "DeltaTable") -> bool:
        return not self._is_of_spark(existing)

    def _write(
        self,
        table: str,
        rows: Iterable[pa.Table],
        replaced_runs: Collection[str] | None,
        properties: "CommitProperties | None" = None,
    ) -> None:
        with commit_errors(self.folder(table), EMPTY_FOLDER_HINT):
            existing = self._table(table)
            is_of_spark = self._is_of_spark(existing)
        if not is_of_spark:
            super()._write(table, rows, replaced_runs, properties)
            return
        schema = table_schema(table)
        whole = pa.concat_tables(piece.cast(schema) for piece in RowStream(rows, schema).tables())
        with self.commit(table, replaced_runs) as commit, spark_errors(commit.path):
            if existing is not None:
                check_readable(commit.path, existing)
            frame = None
            if existing is not None or len(whole):
                frame = in_files(arrow_frame(self._writer.spark, table, whole), len(whole))
            self._writer.write(table, commit, frame, may_be_empty=not len(whole))

    def _merge_otherwise(
        self,
        table: str,
        existing: "DeltaTable",
        rows: pa.Table,
        key: Sequence[str],
        properties: "CommitProperties",
    ) -> None:
        if not key:
            new = not_deleted(rows).drop_columns(DELETED)
            self._write(table, [new], None, properties)
            return
        with self.commit(table, None) as commit, spark_errors(commit.path):
            check_readable(commit.path, existing)
            self._writer.merge(table, commit, rows, key)

    def _tidy(self, table: str, kept: Collection[int], *, is_log_alone: bool) -> None:
        place = self.folder(table)
        existing = opened(place)
        if not self._is_of_spark(existing):
            super()._tidy(table, kept, is_log_alone=is_log_alone)
            return
        if is_log_alone:
            return
        with spark_errors(place):
            self._writer.optimize(table)
            # The change data feed is read for as long as the table says.
            self._writer.vacuum(table, None if _has_feed(existing) else _KEPT_HOURS)


def _has_feed(table: "DeltaTable") -> bool:
    return table.metadata().configuration.get(_CHANGE_FEED) == "true"
