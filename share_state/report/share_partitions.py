"""Live share-partitions as the latest audit saw them, with what is in flight: all of them, or a few that matter."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from share_state.committed import CommittedTables
from share_state.declarations import table_schema
from share_state.errors import WarehouseError
from share_state.fold.ranges import STATE_NAMES
from share_state.report.grouped_rows import grouped
from share_state.report.identity import IDENTITY, KEY, identified, looked_up, may_be_among

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
