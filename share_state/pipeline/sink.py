"""The `Sink` protocol: the rows of a run are folded by an executor, completed by the driver, and committed by table."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from share_state.delta.warehouse import Warehouse
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.task import FinishRows
from share_state.sources.log_partition import LogPartition

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
            WarehouseError: as for `replace`.
        """
        ...

    def count(self, table: str) -> int:
        """The number of rows that the fold made for a table."""
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
