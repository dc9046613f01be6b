"""Where the rows of a run go: folded by an executor, completed by what only the driver knows, committed by table."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from share_state.delta.files import FILE_SCHEMA, File, TableFiles
from share_state.delta.warehouse import Warehouse
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.task import LOG, SUMMARY, FinishRows, OutputSpec, PerLog, finalize_staged, read_staged
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import LogPartition

if TYPE_CHECKING:
    from share_state.pipeline.executor import Executor


LogRows = Callable[[FoldPlan, LogPartition], Iterator[pa.RecordBatch]]
"""Makes rows of a table from one log partition."""


class Sink(Protocol):
    """The rows of one run before they are committed to the tables of its warehouse.

    Attributes:
        tables: the warehouse.
    """

    tables: Warehouse

    def fold(self, plan: FoldPlan, written: Sequence[str], staged: Sequence[str]) -> pa.Table:
        """Fold every log partition.

        Args:
            plan: what to fold, and how.
            written: tables whose rows are complete.
            staged: tables whose rows `finish` completes.
        Returns:
            `cutoff` and `summary` of each log partition.
        Raises:
            InputError: if a segment cannot be read.
        """
        ...

    def write(self, table: str, plan: FoldPlan, per_log: LogRows) -> int:
        """Replace a table by what a function makes of every log partition, and return the number of rows.

        Raises:
            InputError: if a segment cannot be read.
            WarehouseError: as of `replace`.
        """
        ...

    def count(self, table: str) -> int:
        """How many rows of a table the fold made."""
        ...

    def read(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows of a table that the fold made; by default all columns, LOG only if it is named."""
        ...

    def take(self, table: str) -> pa.Table:
        """Read the staged rows of a table, which are then dropped."""
        ...

    def settle(self, table: str, logs: Collection[str], change: FinishRows) -> None:
        """Change the rows of some log partitions; `change` takes and returns rows with the column LOG."""
        ...

    def finish(self, table: str, finish: FinishRows) -> None:
        """Complete the staged rows of a table, some thousand at a time."""
        ...

    def add(self, table: str, rows: Iterable[pa.Table]) -> None:
        """Add rows that the driver made."""
        ...

    def replace(self, table: str) -> None:
        """Replace a table by its rows here; may return before that is committed.

        Raises:
            WarehouseError: if the table has other columns, or another run has committed meanwhile.
        """
        ...

    def append(self, table: str, replaced_runs: Collection[str]) -> None:
        """Append to a table its rows here, and remove those of some runs; as `Warehouse.append`."""
        ...

    def commit_run(self, row: Mapping[str, Any], expired: Collection[str] = ()) -> None:
        """Commit the run, after all other tables; as `Warehouse.commit_run`.

        Raises:
            WarehouseError: if a table could not be committed.
        """
        ...

    def maintain(self, days: int) -> None:
        """Compact and vacuum the tables; as `Warehouse.maintain`."""
        ...


class FileSink:
    """Tasks write Parquet files into the folders of the tables; the driver commits them with delta-rs."""

    def __init__(self, tables: Warehouse, executor: "Executor[Any]") -> None:
        """Begin; the executor's tasks write."""
        self.tables, self._executor = tables, executor
        self._files = defaultdict[str, list[File]](list)

    def fold(self, plan: FoldPlan, written: Sequence[str], staged: Sequence[str]) -> pa.Table:
        """Fold every log partition."""
        output = OutputSpec(written=tuple(written), staged=tuple(staged), files=self.tables.files)
        rows = self._executor.collect(self._executor.fold(plan, output))
        for summary in rows[SUMMARY].drop_null().to_pylist():
            for file in summary["files"]:
                self._files[file["table"]].append(file | {LOG: summary["log"]})
        return rows

    def write(self, table: str, plan: FoldPlan, per_log: LogRows) -> int:
        """Replace a table by what a function makes of every log partition."""
        write = partial(_write_log, self.tables.files, table, partial(per_log, plan))
        files = self._executor.collect(self._executor.map_logs(plan, write, FILE_SCHEMA)).to_pylist()
        self.tables.replace(table, files)
        return sum(file["rows"] for file in files)

    def count(self, table: str) -> int:
        """How many rows of a table the fold made."""
        return sum(file["rows"] for file in self._files[table])

    def read(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows of a table that the fold made."""
        names, schema = [*(columns or table_schema(table).names)], pa.schema([*table_schema(table), (LOG, pa.string())])
        pieces = [pa.schema([schema.field(name) for name in names]).empty_table()]
        for file in self._files[table]:
            rows = self.tables.files.read(table, [file["path"]], [name for name in names if name != LOG])
            rows = rows.append_column(LOG, pa.repeat(file[LOG], len(rows))) if LOG in names else rows
            pieces.append(rows.select(names))
        return pa.concat_tables(pieces)

    def take(self, table: str) -> pa.Table:
        """Read the staged rows of a table; their files are deleted with the attempt."""
        rows = read_staged(self.tables.files, self._files.pop(table, []))
        return pa.concat_tables([table_schema(table).empty_table(), *rows])

    def settle(self, table: str, logs: Collection[str], change: FinishRows) -> None:
        """Rewrite the files of some log partitions."""
        files, settled = self.tables.files, list[File]()
        for file in self._files[table]:
            if file[LOG] not in logs:
                settled.append(file)
                continue
            rows = files.read(table, [file["path"]])
            rows = change(rows.append_column(LOG, pa.repeat(file[LOG], len(rows)))).drop_columns([LOG])
            settled += files.write(table, rows.to_batches())
        self._files[table] = settled

    def finish(self, table: str, finish: FinishRows) -> None:
        """Write the staged rows of a table as its files."""
        self._files[table] = finalize_staged(self.tables.files, self._files[table], finish)

    def add(self, table: str, rows: Iterable[pa.Table]) -> None:
        """Write rows that the driver made."""
        self._files[table] += self.tables.files.write(table, (batch for one in rows for batch in one.to_batches()))

    def replace(self, table: str) -> None:
        """Replace a table by its files here."""
        self.tables.replace(table, self._files[table])

    def append(self, table: str, replaced_runs: Collection[str]) -> None:
        """Append the files here to a table, and remove the rows of some runs."""
        self.tables.append(table, self._files[table], replaced_runs)

    def commit_run(self, row: Mapping[str, Any], expired: Collection[str] = ()) -> None:
        """Commit the run."""
        self.tables.commit_run(row, expired)

    def maintain(self, days: int) -> None:
        """Compact and vacuum the tables."""
        self.tables.maintain(days)


def _write_log(files: TableFiles, table: str, per_log: PerLog, log: LogPartition) -> Iterator[pa.RecordBatch]:
    if written := files.write(table, per_log(log)):
        yield pa.RecordBatch.from_pylist(written, schema=FILE_SCHEMA)
