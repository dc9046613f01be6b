"""What makes rows of different tables, or of different nights, be about the same share-partition.

Rows that come in pieces brought together by groups, in memory that grows with the groups and not with the rows.

Live share-partitions as the latest audit saw them, with what is in flight: all of them, or a few that matter.

Poison records: offsets that every delivery fails on.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.reader import CommittedTables
from share_state.errors import WarehouseError
from share_state.fold.interval_merge import ARCHIVED, STATE_NAMES
from share_state.fold.options import Limits
from share_state.schema.declarations import table_schema

KEY = ("dialect", "group_id", "topic_id", "topic", "partition")
"""Columns of schemas/tables/share_partition_key.yaml."""

IDENTITY = ("dialect", "group_id", "topic_key", "partition")
"""The key without what may become known later: the name of a topic that has an id."""


def identified(rows: pa.Table) -> pa.Table:
    """Rows with the column `topic_key`: the topic's id, or its name where it has none."""
    return rows.append_column("topic_key", pc.coalesce(rows["topic_id"], rows["topic"]))


def looked_up(rows: pa.Table, known: pa.Table | None, columns: dict[str, pa.DataType]) -> pa.Table:
    """Rows with columns of another table beside them.

    Args:
        rows: one row a share-partition, with the columns of IDENTITY.
        known: at most one row a share-partition, with these and `columns`; None, or no row, where nothing is known.
        columns: name -> type of the columns to look up.
    Returns:
        The rows, in any order; null where nothing is known.
    """
    if known is None or not known.num_rows:
        for name, kind in columns.items():
            rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
        return rows
    return rows.join(known.select([*IDENTITY, *columns]), keys=list(IDENTITY), join_type="left outer")


def may_be_among(wanted: pa.Table) -> pc.Expression:
    """A filter that a reader can use: true at least for the rows of these share-partitions.

    Args:
        wanted: with the columns `group_id` and `partition`.
    """
    groups, partitions = wanted["group_id"].unique(), wanted["partition"].unique()
    return pc.field("group_id").isin(groups) & pc.field("partition").isin(partitions)


def placed(rows: pa.Table) -> pa.Table:
    """Rows with the column `place`: their numbers from 0 on."""
    return rows.append_column("place", pa.array(np.arange(rows.num_rows)))


def among(rows: pa.Table, wanted: pa.Table) -> pa.Table:
    """The rows of these share-partitions.

    Args:
        rows: with the columns of KEY.
        wanted: with the columns of IDENTITY and `place`, a number.
    Returns:
        Those rows with the column `place`, in any order.
    """
    return identified(rows).join(wanted.select([*IDENTITY, "place"]), keys=list(IDENTITY), join_type="inner")


_PENDING_ROWS = 1_000_000


def grouped(pieces: Iterable[pa.Table], by: Sequence[str], merged: Mapping[str, str]) -> pa.Table | None:
    """Group rows that come in pieces; never holds more than the groups and some pieces.

    Args:
        pieces: tables with the columns of `by` and `merged`.
        by: columns that make a group; null is a value like any other.
        merged: column -> sum, min, max or first: what a column of a group becomes.
    Returns:
        One row a group, with the columns of `by` and `merged`; None where there was no piece.
    """
    pending: list[pa.Table] = []
    waiting, groups = 0, 0
    for piece in pieces:
        pending.append(_grouped(piece, by, merged))
        waiting += pending[-1].num_rows
        if waiting > 2 * groups + _PENDING_ROWS:
            pending = [_grouped(pa.concat_tables(pending), by, merged)]
            waiting = groups = pending[0].num_rows
    return _grouped(pa.concat_tables(pending), by, merged) if pending else None


def _grouped(rows: pa.Table, by: Sequence[str], merged: Mapping[str, str]) -> pa.Table:
    # A null that comes first is what was first.
    options = {"first": pc.ScalarAggregateOptions(skip_nulls=False)}
    wanted = [(column, how, options.get(how)) for column, how in merged.items()]
    summed = rows.group_by(list(by), use_threads=False).aggregate(wanted)
    return summed.select([*by, *(f"{column}_{how}" for column, how in merged.items())]).rename_columns([*by, *merged])


STATES = tuple(STATE_NAMES.values())
"""Delivery states in the order of their codes; the table has a column of record counts for each, in small letters."""

HISTORY = "share_partition_history"

_IN_FLIGHT = {name: pa.int64() for name in (*(state.lower() for state in STATES), "ranges")}


def share_partitions_now(tables: CommittedTables, night: pc.Expression, wanted: pa.Table | None = None) -> pa.Table:
    """The live share-partitions.

    Args:
        tables: of the warehouse.
        night: of `of_latest_night`.
        wanted: with the columns group_id and partition: others may be left out. By default all are there.
    Returns:
        Columns of schemas/tables/share_partition_history.yaml, then topic_key; available, acquired, acknowledged,
        archiving and archived: records in flight (gaps are available), ranges: how many; null where the start offset
        is not initialised. In the order of the keys.
    Raises:
        WarehouseError: if a table is gone.
    """
    chosen = None if wanted is None else may_be_among(wanted)
    where = night if chosen is None else night & chosen
    seen = identified(tables.read(HISTORY, where, table_schema(HISTORY).names))
    flights = grouped(_by_state(tables, chosen), IDENTITY, dict.fromkeys(_IN_FLIGHT, "sum"))
    rows = looked_up(seen, flights, _IN_FLIGHT)
    uninitialised = pc.less(rows["start_offset"], 0)
    nothing = pa.scalar(None, pa.int64())
    for name in _IN_FLIGHT:
        known = pc.if_else(uninitialised, nothing, pc.fill_null(rows[name], 0))
        rows = rows.set_column(rows.column_names.index(name), name, known)
    return rows.sort_by([(name, "ascending") for name in ("group_id", "topic", "topic_key", "partition", "dialect")])


def of_latest_night(tables: CommittedTables) -> pc.Expression:
    """The rows of HISTORY that the latest run wrote that wrote any: an audit that met nothing new may add none.

    Raises:
        WarehouseError: if the latest run is no audit.
    """
    return pc.field("run_id") == _run_with_history(tables)


def _run_with_history(tables: CommittedTables) -> str:
    if not tables.holds(HISTORY):
        raise WarehouseError("the latest run wrote no history; run `share-state audit` on this warehouse first")
    latest = tables.run["run_id"]
    if next(tables.batches("share_partition_state", ["partition"]), None) is None:
        return latest
    runs = tables.read("runs", pc.field("finished") <= tables.run["finished"], ["run_id", "finished"])
    for run_id in runs.sort_by([("finished", "descending")])["run_id"].to_pylist():
        if next(tables.batches(HISTORY, ["partition"], pc.field("run_id") == run_id), None):
            return run_id
    return latest


def _by_state(tables: CommittedTables, where: pc.Expression | None) -> Iterator[pa.Table]:
    zero, one = pa.scalar(0, pa.int64()), pa.scalar(1, pa.int64())
    for piece in tables.batches("in_flight", [*KEY, "state", "record_count"], where):
        rows = identified(piece)
        for state in STATES:
            records = pc.if_else(pc.equal(rows["state"], state), rows["record_count"], zero)
            rows = rows.append_column(state.lower(), records)
        yield rows.append_column("ranges", pa.repeat(one, rows.num_rows))


_COLUMNS = (*KEY, "first_offset", "last_offset", "record_count", "state", "delivery_count")
_ORDER = [("delivery_count", "descending"), *((name, "ascending") for name in (*KEY, "first_offset"))]


@dataclass(frozen=True, slots=True)
class PoisonRecords:
    """Offsets at or one below the delivery limit, or archived by it.

    Attributes:
        records: how many in all.
        ranges: how many ranges they make.
        worst: some of these, delivered most often first: key columns, first_offset, last_offset, record_count,
            state, delivery_count.
    """

    records: int
    ranges: int
    worst: tuple[dict[str, Any], ...]


def poison_records(tables: CommittedTables, limits: Limits, most: int) -> PoisonRecords:
    """Look for poison records in all in-flight ranges.

    Args:
        tables: of the warehouse.
        limits: for the delivery count limit.
        most: ranges to name.
    Returns:
        The number of all of them, and the worst.
    Raises:
        WarehouseError: if the table is gone.
    """
    records = ranges = 0
    worst: pa.Table | None = None
    for piece in tables.batches("in_flight", _COLUMNS, is_poison(limits)):
        records += pc.sum(piece["record_count"]).as_py()
        ranges += piece.num_rows
        together = piece if worst is None else pa.concat_tables([worst, piece])
        worst = together.sort_by(_ORDER).slice(0, most).combine_chunks()
    return PoisonRecords(records, ranges, tuple(worst.to_pylist()) if worst is not None else ())


def is_poison(limits: Limits) -> pc.Expression:
    """Which rows of `in_flight` hold poison records.

    Source: KIP-932, group.share.delivery.count.limit.
    """
    count = pc.field("delivery_count")
    waits_once_more = ~pc.field("terminal") & (count >= max(1, limits.delivery_count - 1))
    return waits_once_more | ((pc.field("delivery_state") == ARCHIVED) & (count >= limits.delivery_count))
