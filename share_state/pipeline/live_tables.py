"""The tables of a stream as they are in memory now, for metrics: nothing is read from a warehouse."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.committed import EVERY_ROW, CommittedTables, sum_records
from share_state.fold.history import GROUP_OUTCOMES, HISTORY_TABLE
from share_state.fold.limits import Limits
from share_state.fold.states import in_large_pieces, to_datetime
from share_state.pipeline.live_rows import LiveRows, ShownLog
from share_state.pipeline.mixed_logs import mixed_reasons, placed_keys
from share_state.pipeline.result import mark_unsafe
from share_state.pipeline.stream_changes import RowsOf
from share_state.pipeline.stream_findings import KnownGroups, judged_history, named_rows
from share_state.pipeline.task import CUTOFF, FINDINGS, IN_FLIGHT, STATE
from share_state.schema.declarations import table_schema
from share_state.sources.topics import Topics

_ROWS_A_PIECE = 2048
"""Share-partitions whose ranges are in memory at a time."""
_LEAST_ROWS = 1 << 16
"""Rows of a piece: each filter of a piece costs a millisecond, whatever its size."""
_COSTLY = {STATE: "state_batches", HISTORY_TABLE: "reason"}
"""A column of a table that takes longer than most others, and that few readers need."""


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
    """The tables of a stream in memory; they are built when they are read.

    Attributes:
        logs: its log partitions.
    """

    def __init__(
        self,
        shown: Shown,
        topics: Topics,
        limits: Limits,
        groups: KnownGroups,
        before: "LiveTables | None" = None,
        letters: Mapping[str, pa.Table] | None = None,
    ) -> None:
        """Show what a stream has read.

        Args:
            shown: what it has read.
            topics: the names and ends of topics now.
            limits: as for `add_verdicts`.
            groups: the share groups that are known now.
            before: the tables some time ago; only share-partitions that changed since get new rows.
            letters: as of StreamTables.
        """
        self.root = ""
        self._shown = shown
        self._letters = letters or {}
        self._topics = topics
        self._limits = limits
        self._groups = groups
        self._newest = max(shown.newest, groups.newest_time)
        row = {**shown.run, "finished": datetime.now(UTC), "table_versions": [], "sequence": 0}
        row["log_time"] = to_datetime(self._newest)
        self.runs = pa.Table.from_pylist([row], schema=table_schema("runs"))
        self.run = self.runs.to_pylist()[0]
        self.versions = {}
        self._kept = dict[tuple[str, bool], list[pa.Table]]()
        rows_before = {} if before is None else {rows.shown.folded.log.name: rows for rows in before.logs}
        self.logs = [LiveRows.following(rows_before.get(log.folded.log.name), log) for log in shown.logs]
        self._numbers: list[np.ndarray] | None = None

    def holds(self, table: str) -> bool:
        """Whether a stream has a table."""
        if table in _MAKERS:
            return table != "share_groups" or bool(self._groups.members)
        return table in self._letters

    def run_ids(self, table: str) -> set[str]:
        """The stream alone has rows."""
        del table
        return {self.run["run_id"]}

    def unreported(self) -> tuple[list[CommittedTables], CommittedTables | None]:
        """Nothing: a stream reports nothing once."""
        return [], None

    def of(self, share_partitions: pa.Table) -> Self:
        """As of CommittedTables: exactly the rows of these share-partitions."""
        tables = super().of(share_partitions)
        tables._kept = {}
        tables._numbers = [rows.of(share_partitions) for rows in self.logs]
        return tables

    def in_flight_counts(self, where: pc.Expression | None = None) -> pa.Table:
        """As of CommittedTables."""
        if where is not None or self._numbers is not None or not self.logs:
            return super().in_flight_counts(where)
        counts = sum_records(pa.concat_tables([rows.in_flight_counts for rows in self.logs]))
        return counts.cast(pa.schema([table_schema(IN_FLIGHT).field(name) for name in counts.column_names]))

    def batches(
        self, table: str, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> Iterator[pa.Table]:
        """The rows of a table, piece by piece, as of CommittedTables."""
        declared = table_schema(table)
        schema = pa.schema([declared.field(name) for name in columns or declared.names])
        if where is not None and where.equals(EVERY_ROW):
            # A filter copies all columns, even if it keeps all rows.
            where = None
        where = self._with_selected(table, where)
        for piece in self._pieces(table, is_whole=_COSTLY.get(table) in schema.names):
            # Texts are codes until here: a cast costs more than all else, so few columns of few rows get one.
            rows = piece if where is None else piece.filter(where)
            if len(rows):
                yield rows.select(schema.names).cast(schema)

    def _with_selected(self, table: str, where: pc.Expression | None) -> pc.Expression | None:
        """As of CommittedTables; the rows of some share-partitions are chosen by their numbers."""
        is_chosen = table in (STATE, IN_FLIGHT, HISTORY_TABLE) and self._numbers is not None
        return where if is_chosen else super()._with_selected(table, where)

    def _pieces(self, table: str, *, is_whole: bool) -> Iterator[pa.Table]:
        """The rows of a table, with the names of topics; kept, as a report reads some tables eight times.

        Args:
            table: its name.
            is_whole: whether a column of _COSTLY is read; if not, it is null.
        """
        pieces = in_large_pieces(self._named(table, is_whole=is_whole), _LEAST_ROWS)
        if table == IN_FLIGHT and self._numbers is None:
            # Many rows, which few read.
            return pieces
        kept = table, is_whole
        if kept not in self._kept:
            self._kept[kept] = list(pieces)
        return iter(self._kept[kept])

    def _named(self, table: str, *, is_whole: bool) -> Iterator[pa.Table]:
        if table == HISTORY_TABLE:
            return self._judged(with_reasons=is_whole)
        # Rows of a table that the stream does not make, or that matched dead letters have as well.
        others = (self._letters[table],) if table in self._letters else ()
        made = chain(_MAKERS[table](self) if table in _MAKERS else (), others)
        if table == STATE and not is_whole:
            made = (log.states_of(numbers) for log, numbers in self._numbers_by_log())
        return (named_rows(piece, self._topics) for piece in made)

    def _numbers_by_log(self) -> Iterator[tuple[LiveRows, np.ndarray]]:
        """The log partitions, with the share-partitions whose rows are read."""
        numbers = self._numbers or [rows.numbers for rows in self.logs]
        return zip(self.logs, numbers, strict=True)

    def _rows(self) -> Iterator[RowsOf]:
        return (log.rows(numbers) for log, numbers in self._numbers_by_log())

    def _in_flight(self) -> Iterator[pa.Table]:
        for log, numbers in self._numbers_by_log():
            for begin in range(0, len(numbers), _ROWS_A_PIECE):
                yield log.rows(numbers[begin : begin + _ROWS_A_PIECE]).in_flight()

    def _cutoffs(self) -> Iterator[pa.Table]:
        folded = [log.folded for log in self._shown.logs]
        reasons = mixed_reasons({one.log.name: placed_keys(one) for one in folded})
        return (mark_unsafe(one.cutoff, reasons) for one in folded)

    def _members(self) -> Iterator[pa.Table]:
        rows = [
            {"group_id": group, "members": count} for group, count in sorted(self._groups.members.items())
        ]
        yield pa.Table.from_pylist(rows, schema=table_schema("share_groups"))

    def _judged(self, *, with_reasons: bool = True) -> Iterator[pa.Table]:
        """One table for all logs that are judged up to the same time: each costs some milliseconds."""
        now = int(datetime.now(UTC).timestamp() * 1000)
        by_time = dict[int, list[pa.Table]]()
        for log, numbers in self._numbers_by_log():
            until = max(min(now, self._newest), log.shown.folded.judged_at)
            by_time.setdefault(until, []).append(log.history_of(numbers))
        for until, rows in by_time.items():
            yield judged_history(
                named_rows(pa.concat_tables(rows), self._topics),
                time_ms=until,
                run_id=self.run["run_id"],
                limits=self._limits,
                groups=self._groups,
                with_reasons=with_reasons,
            )


# Not of each LiveTables: a table that refers to itself would stay until the next garbage collection.
_MAKERS: dict[str, Callable[[LiveTables], Iterator[pa.Table]]] = {
    IN_FLIGHT: LiveTables._in_flight,
    STATE: lambda one: (rows.states for rows in one._rows()),
    HISTORY_TABLE: LiveTables._judged,
    CUTOFF: LiveTables._cutoffs,
    FINDINGS: lambda one: iter([one._shown.findings]),
    GROUP_OUTCOMES: lambda one: iter([one._shown.outcomes]),
    "share_groups": LiveTables._members,
    "runs": lambda one: iter([one.runs]),
}
