"""The tables of a warehouse in the versions of its last run: `CommittedTables`.

Importing this module loads neither deltalake nor pyarrow.dataset, which are slow to import.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.reader import (
    COMMITTED,
    damaged_files,
    list_files,
    needs_scan,
    open_table,
    read_rows,
    refuse_link,
    run_ids,
    table_read_errors,
    version_to_read,
)
from share_state.errors import NothingCommittedError, WarehouseError
from share_state.schema.declarations import table_schema

if TYPE_CHECKING:
    from deltalake import DeltaTable

IN_FLIGHT_COUNTS = ["group_id", "delivery_state", "state", "delivery_count"]
"""Columns of `in_flight` by which `in_flight_counts` counts records."""

EVERY_ROW = pc.scalar(True)
"""A filter that keeps all rows."""

_OF_SHARE_PARTITIONS = ("group_id", "partition")
"""Columns of the tables whose rows are about share-partitions."""


def sum_records(rows: pa.Table) -> pa.Table:
    """The sums of record_count by IN_FLIGHT_COUNTS."""
    sums = rows.group_by(IN_FLIGHT_COUNTS, use_threads=False).aggregate([("record_count", "sum")])
    return sums.rename_columns([*IN_FLIGHT_COUNTS, "record_count"])


class CommittedTables:
    """The tables of a warehouse in the versions that the latest row of `runs` names.

    Attributes:
        root: folder or address of the warehouse.
        runs: the table `runs` up to the run, latest first.
        run: its first row.
        versions: Delta version of each table that the run wrote or left unchanged.
    """

    _selected: pc.Expression | None = None

    def __init__(self, warehouse: str, command: str | None = None) -> None:
        """Open a warehouse.

        Args:
            warehouse: folder of the tables.
            command: read what the latest run of this command committed; by default the latest run of any
                command.
        Raises:
            NothingCommittedError: if no run (of that command) has committed there.
            WarehouseError: if it cannot be read.
        """
        self.root = warehouse.rstrip("/") if "://" in warehouse else str(Path(warehouse))
        self._fix = f"run {command or 'reconstruct'} again"
        self.versions: dict[str, int] = {}
        self._opened: dict[tuple[str, int | None], DeltaTable | None] = {}
        self._listed: dict[tuple[str, int], list[dict[str, Any]]] = {}
        if self._open("runs") is None:
            # Tables do not go into a folder that holds something else, such as the logs.
            is_taken = "://" not in warehouse and Path(warehouse).is_dir() and any(Path(warehouse).iterdir())
            made_by = f"{warehouse} --out WAREHOUSE" if is_taken else f"INPUT --out {warehouse}"
            raise NothingCommittedError(
                f"{warehouse}: no warehouse here; make one with `share-state reconstruct {made_by}`"
            )
        where = None if command is None else pc.field("command") == command
        # Not by the clock alone, which may have been wrong; rows of earlier releases have no sequence.
        self.runs = self.read("runs", where).sort_by([("sequence", "descending"), ("finished", "descending")])
        if not len(self.runs):
            raise NothingCommittedError(f"{warehouse}: no {command or 'run'} was ever committed here")
        self.run: dict[str, Any] = self.runs.slice(0, 1).to_pylist()[0]
        self._fix = f"run {'the audit' if self.run['command'] == 'audit' else self.run['command']} again"
        self.versions = dict(self.run["table_versions"])

    def unreported(self) -> "tuple[list[CommittedTables], CommittedTables | None]":
        """The tables as earlier runs of the same command committed them, the latest first.

        Returns:
            Those since the last run that was reported; that run's, None if there is none.
        """
        skipped = list[CommittedTables]()
        for found in self._earlier_runs():
            if found.run["status"] != COMMITTED:
                return skipped, found
            skipped.append(found)
        return skipped, None

    @property
    def previous(self) -> "CommittedTables | None":
        """The tables as the run before committed them, of the same command; None if it was the first."""
        return next(self._earlier_runs(), None)

    def _earlier_runs(self) -> "Iterator[CommittedTables]":
        """The tables as earlier runs of the same command committed them, the latest first."""
        ids = self.runs["run_id"].to_pylist()
        for run in self.runs.filter(pc.field("command") == self.run["command"]).slice(1).to_pylist():
            found = copy(self)
            found.runs = self.runs.slice(ids.index(run["run_id"]))
            found.run, found.versions = run, dict(run["table_versions"])
            yield found

    def of(self, share_partitions: pa.Table) -> Self:
        """The same tables with at least the rows of some share-partitions, where rows are about these.

        Args:
            share_partitions: IDENTITY_COLUMNS of `share_state.report.share_partitions`.
        """
        groups, partitions = (share_partitions[name].unique() for name in _OF_SHARE_PARTITIONS)
        tables = copy(self)
        tables._selected = pc.field("group_id").isin(groups) & pc.field("partition").isin(partitions)
        return tables

    def in_flight_counts(self, where: pc.Expression | None = None) -> pa.Table:
        """How many records are in flight: IN_FLIGHT_COUNTS and record_count.

        Args:
            where: a filter on rows of `in_flight`.
        """
        pieces = self.batches("in_flight", [*IN_FLIGHT_COUNTS, "record_count"], where)
        empty = table_schema("in_flight").empty_table().select([*IN_FLIGHT_COUNTS, "record_count"])
        return sum_records(pa.concat_tables([empty, *map(sum_records, pieces)]))

    def as_of(self, time_ms: int) -> "CommittedTables | None":
        """The tables as the latest run of the same command committed them that read no record after a time (ms)."""
        for found in (self, *self._earlier_runs()):
            if found.log_time is not None and found.log_time <= time_ms:
                return found
        return None

    @property
    def log_time(self) -> int | None:
        """Timestamp (ms) of the newest record that the run read; None for none."""
        time = self.run["log_time"]
        return None if time is None else int(time.timestamp() * 1000)

    def holds(self, table: str) -> bool:
        """Whether the run committed a version of a table."""
        return table in self.versions

    def read(
        self, table: str, where: pc.Expression | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Read the committed rows of a table at once.

        Args:
            table: its name.
            where: a filter on rows.
            columns: by default all that schemas/tables declares.
        Returns:
            The rows; none if the run has no such table.
        Raises:
            WarehouseError: if the table is gone or was vacuumed.
        """
        schema = table_schema(table)
        empty = pa.schema([schema.field(name) for name in columns or schema.names]).empty_table()
        return pa.concat_tables([empty, *self.batches(table, columns, where)])

    def batches(
        self, table: str, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> Iterator[pa.Table]:
        """Read the committed rows of a table piece by piece, in the order of its files.

        Args:
            table: its name.
            columns: by default all that schemas/tables declares.
            where: a filter on rows; files whose statistics exclude it are not read.
        Yields:
            Tables of some ten thousand rows; none if the run has no such table.
        Raises:
            WarehouseError: if the table is gone or was vacuumed.
        """
        if (opened := self._version_of(table)) is None:
            return
        names = table_schema(table).names if columns is None else list(columns)
        where, place = self._with_selected(table, where), f"{self.root}/{table}"
        with table_read_errors(place, self._fix, WarehouseError):
            yield from read_rows(place, opened, table, names, where, self._list(table, opened))

    def _with_selected(self, table: str, where: pc.Expression | None) -> pc.Expression | None:
        """A filter for the rows of a table that `of` has left."""
        if self._selected is None or not {*_OF_SHARE_PARTITIONS} <= {*table_schema(table).names}:
            return where
        return self._selected if where is None else self._selected & where

    def files(self, table: str) -> list[dict[str, Any]]:
        """The Parquet files of a committed table as `list_files` describes them, with their full paths.

        Raises:
            WarehouseError: if the table is gone, or its files alone do not determine its rows.
        """
        if (opened := self._version_of(table)) is None:
            return []
        if needs_scan(opened):
            raise WarehouseError(
                f"{self.root}/{table}: has deletion vectors or column mapping, from which audits cannot resume; "
                f"run ALTER TABLE ... DROP FEATURE or REORG TABLE ... APPLY (PURGE) in Spark"
            )
        return [file | {"path": f"{self.root}/{table}/{file['path']}"} for file in self._list(table, opened)]

    def run_ids(self, table: str) -> set[str]:
        """The runs that have rows in a committed table; as `run_ids`."""
        opened = self._version_of(table)
        return set() if opened is None else run_ids(f"{self.root}/{table}", table, opened)

    def _list(self, table: str, opened: "DeltaTable") -> list[dict[str, Any]]:
        """`list_files` of a table, whose version stays: a report reads it several times."""
        version = table, opened.version()
        if version not in self._listed:
            self._listed[version] = list_files(opened)
        return self._listed[version]

    def _version_of(self, table: str) -> "DeltaTable | None":
        # `runs` names the versions of the other tables and is itself read in its latest version.
        if table != "runs" and table not in self.versions:
            return None
        if (found := self._open(table)) is None:
            raise WarehouseError(f"{self.root}/{table}: cannot be read (it is gone); {self._fix}")
        return found

    def lack_files(self) -> bool:
        """Whether files of the tables are gone or truncated."""
        try:
            opened = [(table, self._version_of(table)) for table in self.versions]
        except WarehouseError:
            return True
        return any(damaged_files(f"{self.root}/{table}", one) for table, one in opened if one is not None)

    def _open(self, table: str) -> "DeltaTable | None":
        version = self.versions.get(table)
        if (table, version) not in self._opened:
            self._opened[table, version] = self._open_version(table, version)
        return self._opened[table, version]

    def _open_version(self, table: str, version: int | None) -> "DeltaTable | None":
        refuse_link(place := f"{self.root}/{table}")
        with table_read_errors(place, self._fix, WarehouseError):
            opened = open_table(place)
            if opened is not None and version is not None and opened.version() != version:
                opened.load_as_version(version_to_read(opened, version))
            return opened
