"""The tables of a stream as they are in memory now, for metrics: nothing is read from a warehouse."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.reader import CommittedTables
from share_state.fold.history import GROUP_OUTCOMES, HISTORY_TABLE
from share_state.fold.limits import Limits
from share_state.fold.state_log import FoldedLog
from share_state.pipeline.stream_changes import KeyColumns, RowsOf, present_numbers
from share_state.pipeline.stream_findings import judged_history, named_rows
from share_state.pipeline.task import CUTOFF, FINDINGS, IN_FLIGHT, STATE
from share_state.schema.declarations import table_schema
from share_state.sources.topics import Topics

_ROWS_A_PIECE = 2048
"""Share-partitions whose ranges are in memory at a time."""


@dataclass(frozen=True, slots=True)
class ShownLog:
    """A log partition as metrics show it; nothing changes it.

    Attributes:
        folded: its latest fold.
        starts: from `earlier_starts`, of some minutes ago at most.
        outcomes: OUTCOMES rows, one per share-partition of the log, since the stream began.
    """

    folded: FoldedLog
    starts: np.ndarray
    outcomes: np.ndarray


@dataclass(frozen=True, slots=True)
class Shown:
    """What a stream shows after a read.

    Attributes:
        logs: its log partitions.
        run: a row of `runs`.
        findings: the table.
        outcomes: the table `group_outcomes`, since the stream began.
        newest: ms, timestamp of the newest record; -1 if unknown.
    """

    logs: tuple[ShownLog, ...]
    run: Mapping[str, Any]
    findings: pa.Table
    outcomes: pa.Table
    newest: int


class LiveTables(CommittedTables):
    """The tables of a stream in memory; they are built when they are read."""

    def __init__(self, shown: Shown, topics: Topics, limits: Limits, members: Mapping[str, int]) -> None:
        """Show what a stream has read.

        Args:
            shown: what it has read.
            topics: the names and ends of topics now.
            limits: as for `add_verdicts`.
            members: share group -> number of its members now, as far as that is known.
        """
        self.root = ""
        self._shown = shown
        self._topics = topics
        self._limits = limits
        self._members = dict(members)
        self._empty = sorted(group for group, count in members.items() if not count)
        row = {**shown.run, "finished": datetime.now(UTC), "table_versions": [], "sequence": 0}
        self.runs = pa.Table.from_pylist([row], schema=table_schema("runs"))
        self.run = self.runs.to_pylist()[0]
        self.versions = {}
        self._history: list[pa.Table] | None = None
        self._makers: dict[str, Callable[[], Iterator[pa.Table]]] = {
            STATE: self._states,
            IN_FLIGHT: self._in_flight,
            HISTORY_TABLE: self._judged,
            CUTOFF: lambda: iter([one.folded.cutoff for one in shown.logs]),
            FINDINGS: lambda: iter([shown.findings]),
            GROUP_OUTCOMES: lambda: iter([shown.outcomes]),
            "share_groups": self._groups,
            "runs": lambda: iter([self.runs]),
        }

    def holds(self, table: str) -> bool:
        """Whether a stream has a table."""
        return table in self._makers and (table != "share_groups" or bool(self._members))

    def run_ids(self, table: str) -> set[str]:
        """The stream alone has rows."""
        del table
        return {self.run["run_id"]}

    def unreported(self) -> tuple[list[CommittedTables], CommittedTables | None]:
        """Nothing: a stream reports nothing once."""
        return [], None

    def batches(
        self, table: str, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> Iterator[pa.Table]:
        """The rows of a table, piece by piece, as of CommittedTables."""
        make = self._makers.get(table)
        for piece in make() if make is not None else ():
            rows = named_rows(piece, self._topics).cast(table_schema(table))
            rows = rows if where is None else rows.filter(where)
            if len(rows):
                yield rows if columns is None else rows.select(list(columns))

    def _states(self) -> Iterator[pa.Table]:
        return (RowsOf(one.folded, present_numbers(one.folded)).states for one in self._shown.logs)

    def _in_flight(self) -> Iterator[pa.Table]:
        for one in self._shown.logs:
            numbers, names = present_numbers(one.folded), KeyColumns(one.folded.keys)
            for begin in range(0, len(numbers), _ROWS_A_PIECE):
                yield RowsOf(one.folded, numbers[begin : begin + _ROWS_A_PIECE], names).in_flight()

    def _groups(self) -> Iterator[pa.Table]:
        rows = [{"group_id": group, "members": count} for group, count in sorted(self._members.items())]
        yield pa.Table.from_pylist(rows, schema=table_schema("share_groups"))

    def _judged(self) -> Iterator[pa.Table]:
        if self._history is None:
            now = int(datetime.now(UTC).timestamp() * 1000)
            self._history = [self._judged_log(one, now) for one in self._shown.logs]
        return iter(self._history)

    def _judged_log(self, one: ShownLog, now: int) -> pa.Table:
        numbers = present_numbers(one.folded)
        rows = RowsOf(one.folded, numbers).history(one.starts[numbers], one.outcomes[numbers])
        until = max(min(now, self._shown.newest), one.folded.judged_at)
        return judged_history(
            named_rows(rows, self._topics),
            time_ms=until,
            run_id=self.run["run_id"],
            limits=self._limits,
            empty_groups=self._empty,
        )
