"""`share_state.open`: the tables of a warehouse in the versions that its last run committed together."""

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from os import PathLike, fspath
from typing import Any

import pyarrow as pa
from markupsafe import escape

from share_state.api.answers import Differences, differences_of, last_two_runs
from share_state.api.arguments import check_types
from share_state.delta.committed import CommittedTables
from share_state.errors import ShareStateError, pluralize
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.states import KEY
from share_state.report.diff import compare_states, read_states
from share_state.report.lags import lag_reason
from share_state.report.share_partitions import check_known, plain_run
from share_state.report.show import LAG_COLUMNS, describe_groups, lag_cell, read_lags
from share_state.schema.declarations import table_schema
from share_state.stores.paths import normalize_address

_MOST_GROUPS = 20


def open(warehouse: str | PathLike[str]) -> "OpenedWarehouse":
    """The tables of a warehouse, as the last run committed them together.

    Args:
        warehouse: folder or address of the Delta tables.
    Returns:
        An object with each table as an attribute (`lake.in_flight`), `lag` and `diff()`. Later runs do not change it:
        open the warehouse again to see them.
    Raises:
        WarehouseError: if there is no warehouse, or it cannot be read.
        ShareStateError: if the argument is no path.
    """
    if warehouse is None:
        raise ShareStateError("warehouse=None: give a path")
    check_types(warehouse=warehouse)
    return OpenedWarehouse(CommittedTables(normalize_address(fspath(warehouse))))


class OpenedWarehouse:
    """The tables of one run of a warehouse.

    Each table that the run committed is an attribute, an Arrow table with the columns of schemas/tables.

    Attributes:
        committed: the tables of the run, with their Delta versions.
    """

    def __init__(self, committed: CommittedTables) -> None:
        self.committed = committed

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables."""
        return (*sorted(self.committed.versions), "runs")

    @property
    def run(self) -> Mapping[str, Any]:
        """The row of `runs` of the run, with its maps as dictionaries."""
        return plain_run(self.committed.run)

    @property
    def time(self) -> datetime | None:
        """Timestamp of the newest record that the run read; None if no record has one."""
        return self.committed.run["log_time"]

    @property
    def previous(self) -> "OpenedWarehouse | None":
        """The tables as the run before committed them, of the same command; None if it was the first."""
        previous = self.committed.previous
        return None if previous is None else OpenedWarehouse(previous)

    def table(
        self, name: str, group: str | None = None, topic: str | None = None, partition: int | None = None
    ) -> pa.Table:
        """The rows of a table.

        Args:
            name: one of `names`.
            group, topic, partition: only those of these share-partitions; the topic by name or id.
        Raises:
            InputError: if no share-partition matches.
            WarehouseError: if the table is gone or was vacuumed.
            ShareStateError: if the run has no such table, or its rows are not about share-partitions.
        """
        check_types(group=group, topic=topic, partition=partition)
        if name not in self.names:
            raise ShareStateError(
                f"{self.committed.root}: has no table {name!r}; it has {', '.join(self.names)}"
            )
        if group is topic is partition is None:
            return self.committed.read(name)
        if not {"group_id", "topic", "topic_id", "partition"} <= {*table_schema(name).names}:
            raise ShareStateError(
                f"{name}: its rows are not about single share-partitions; leave out the group"
            )
        selection = SharePartitionFilter(group, topic, partition)
        check_known([self.committed], selection)
        return self.committed.read(name, selection.of_rows)

    def __getattr__(self, name: str) -> pa.Table:
        if name.startswith("_") or name == "committed" or name not in self.names:
            raise AttributeError(f"{type(self).__name__} has no attribute or table {name!r}")
        return self.table(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.names})

    @cached_property
    def lag(self) -> pa.Table:
        """The lag of every share-partition, one row each: its key, SPSO, the end of the topic, and `lag` in records.

        `reason` says why a lag is null.
        """
        rows = read_lags(self.committed, None, [*KEY, *LAG_COLUMNS])
        reasons = pa.array([lag_reason(row) for row in rows.to_pylist()], pa.string())
        shown = rows.select([*KEY, "start_offset", "topic_end_offset", "lag"])
        return shown.append_column("reason", reasons)

    def diff(
        self, group: str | None = None, topic: str | None = None, partition: int | None = None
    ) -> Differences:
        """What the run changed, against the run before it of the same command.

        Args:
            group, topic, partition: only these share-partitions.
        Raises:
            InputError: if no share-partition matches.
            ShareStateError: if there is no run before it.
        """
        check_types(group=group, topic=topic, partition=partition)
        selection = SharePartitionFilter(group, topic, partition)
        return differences_of(compare_states(*read_states(last_two_runs(self.committed), selection)))

    def __repr__(self) -> str:
        run = self.committed.run
        time = "" if self.time is None else f", records up to {self.time:%Y-%m-%d %H:%M:%S} UTC"
        tables = pluralize(len(self.names), "table")
        return f"{self.committed.root}: {tables} of run {run['run_id']} ({run['command']}){time}"

    def _repr_html_(self) -> str:
        groups = describe_groups(self.committed)["groups"]
        groups.sort(key=lambda one: -(one["known_lag"] or 0))
        rows = [
            (one["group_id"], one["state"], one["members"], one["share_partitions"], lag_cell(one))
            for one in groups[:_MOST_GROUPS]
        ]
        more = len(groups) - len(rows)
        heads = ("group", "state", "members", "share-partitions", "lag")
        tables = [(name, self.committed.versions.get(name)) for name in self.names]
        return (
            f"<p>{escape(repr(self))}</p>"
            + _html_table(heads, rows)
            + (f"<p>and {pluralize(more, 'more group')}</p>" if more > 0 else "")
            + _html_table(("table", "Delta version"), tables)
        )


def _html_table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    def cell(value: Any) -> str:
        text = "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
        return f"<td>{escape(text)}</td>"

    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
