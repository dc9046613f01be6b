"""Where a plan runs: the `Executor` protocol."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import pyarrow as pa

from share_state.delta.warehouse import Warehouse
from share_state.pipeline.driver_side import GroupSide
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.sink import Sink
from share_state.pipeline.task import (
    OutputSpec,
    PerLog,
)

Rows = TypeVar("Rows")
"""What an executor returns: an Arrow table, or in Spark a lazy DataFrame."""


class Executor(Protocol[Rows]):
    """Runs a plan over its log partitions.

    Only `explain` and charts over time read one share-partition without it.
    """

    def map_logs(self, plan: FoldPlan, per_log: PerLog, schema: pa.Schema) -> Rows:
        """Run a function over every log partition.

        Args:
            plan: has the log partitions.
            per_log: yields batches of `schema` for one of them; travels to the tasks.
            schema: the schema of the result.
        """
        ...

    def fold(self, plan: FoldPlan, output: OutputSpec) -> Rows:
        """Fold and judge every log partition.

        Returns:
            Rows of `output.schema`.
        Raises:
            InputError: if a segment cannot be read.
        """
        ...

    def returned_tables(self, rows: Rows, tables: Sequence[str]) -> dict[str, Rows]:
        """Tables that `fold` returned, by name."""
        ...

    def result_tables(self, plan: FoldPlan, side: GroupSide | None = None) -> dict[str, Rows]:
        """Every table that `reconstruct` writes, by name; findings include those of the group side."""
        ...

    def cutoffs(self, plan: FoldPlan) -> Rows:
        """The table `cutoff`, in which what all logs show together is considered."""
        ...

    def collect(self, rows: Rows) -> pa.Table:
        """Rows as an Arrow table in this process."""
        ...

    def open_sink(self, tables: Warehouse) -> AbstractContextManager[Sink]:
        """Open the sink for the rows of a run that this executor folds; they are released on exit."""
        ...
