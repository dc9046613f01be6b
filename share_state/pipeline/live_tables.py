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
from share_state.fold.states import in_large_pieces, to_datetime
from share_state.pipeline.stream_changes import KeyColumns, RowsOf, present_numbers
from share_state.pipeline.stream_findings import KnownGroups, judged_history, named_rows
from share_state.pipeline.task import CUTOFF, FINDINGS, IN_FLIGHT, STATE
from share_state.schema.declarations import table_schema
from share_state.sources.topics import Topics

_ROWS_A_PIECE = 2048
"""Share-partitions whose ranges are in memory at a time."""
_LEAST_ROWS = 1 << 16
"""Rows of a piece: each filter of a piece costs a millisecond, whatever its size."""
_MOST_KEPT = 1_000_000
"""Rows of a table that are kept until the next report, of some 50 bytes each."""


@dataclass(frozen=True, slots=True)
class ShownLog:
    """A log partition as metrics show it; nothing changes it.

    Attributes:
        folded: its latest fold.
        starts: from `earlier_starts`, of some minutes ago at most.
    """

    folded: FoldedLog
    starts: np.ndarray


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

    def __init__(self, shown: Shown, topics: Topics, limits: Limits, groups: KnownGroups) -> None:
        """Show what a stream has read.

        Args:
            shown: what it has read.
            topics: the names and ends of topics now.
            limits: as for `add_verdicts`.
            groups: the share groups that are known now.
        """
        self.root = ""
        self._shown = shown
        self._topics = topics
        self._limits = limits
        self._groups = groups
        self._newest = max(shown.newest, groups.newest_time)
        row = {**shown.run, "finished": datetime.now(UTC), "table_versions": [], "sequence": 0}
        row["log_time"] = to_datetime(self._newest)
        self.runs = pa.Table.from_pylist([row], schema=table_schema("runs"))
        self.run = self.runs.to_pylist()[0]
        self.versions = {}
        self._kept = dict[str, list[pa.Table]]()

    def holds(self, table: str) -> bool:
        """Whether a stream has a table."""
        return table in _MAKERS and (table != "share_groups" or bool(self._groups.members))

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
        declared = table_schema(table)
        schema = pa.schema([declared.field(name) for name in columns or declared.names])
        for piece in self._pieces(table):
            # Texts are codes until here: a cast costs more than all else, so few columns of few rows get one.
            rows = piece if where is None else piece.filter(where)
            if len(rows):
                yield rows.select(schema.names).cast(schema)

    def _pieces(self, table: str) -> Iterator[pa.Table]:
        """The rows of a table, with the names of topics; kept, as a report reads some tables eight times."""
        if table in self._kept:
            yield from self._kept[table]
            return
        kept, rows = list[pa.Table](), 0
        made = _MAKERS[table](self) if table in _MAKERS else ()
        for named in in_large_pieces((named_rows(piece, self._topics) for piece in made), _LEAST_ROWS):
            rows += len(named)
            kept = [*kept, named] if rows <= _MOST_KEPT else []
            yield named
        if rows <= _MOST_KEPT:
            self._kept[table] = kept

    def _states(self) -> Iterator[pa.Table]:
        return (RowsOf(one.folded, present_numbers(one.folded)).states for one in self._shown.logs)

    def _in_flight(self) -> Iterator[pa.Table]:
        for one in self._shown.logs:
            numbers, names = present_numbers(one.folded), KeyColumns(one.folded.keys)
            for begin in range(0, len(numbers), _ROWS_A_PIECE):
                yield RowsOf(one.folded, numbers[begin : begin + _ROWS_A_PIECE], names).in_flight()

    def _members(self) -> Iterator[pa.Table]:
        rows = [
            {"group_id": group, "members": count} for group, count in sorted(self._groups.members.items())
        ]
        yield pa.Table.from_pylist(rows, schema=table_schema("share_groups"))

    def _judged(self) -> Iterator[pa.Table]:
        now = int(datetime.now(UTC).timestamp() * 1000)
        return (self._judged_log(one, now) for one in self._shown.logs)

    def _judged_log(self, one: ShownLog, now: int) -> pa.Table:
        numbers = present_numbers(one.folded)
        rows = RowsOf(one.folded, numbers).history(one.starts[numbers])
        until = max(min(now, self._newest), one.folded.judged_at)
        return judged_history(
            named_rows(rows, self._topics),
            time_ms=until,
            run_id=self.run["run_id"],
            limits=self._limits,
            groups=self._groups,
        )


# Not of each LiveTables: a table that refers to itself would stay until the next garbage collection.
_MAKERS: dict[str, Callable[[LiveTables], Iterator[pa.Table]]] = {
    STATE: LiveTables._states,
    IN_FLIGHT: LiveTables._in_flight,
    HISTORY_TABLE: LiveTables._judged,
    CUTOFF: lambda one: iter([log.folded.cutoff for log in one._shown.logs]),
    FINDINGS: lambda one: iter([one._shown.findings]),
    GROUP_OUTCOMES: lambda one: iter([one._shown.outcomes]),
    "share_groups": LiveTables._members,
    "runs": lambda one: iter([one.runs]),
}
