"""Every live share-partition as the latest audit saw it: one Arrow table, its size that of the number of them."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from share_state.committed import CommittedTables
from share_state.declarations import table_schema
from share_state.errors import WarehouseError
from share_state.fold.ranges import STATE_NAMES
from share_state.report.broken_rules import own_findings
from share_state.report.grouped_rows import grouped
from share_state.report.identity import IDENTITY, KEY, identified, looked_up

STATES = tuple(STATE_NAMES.values())
"""Delivery states in the order of their codes; the table has a column of record counts for each, in small letters."""

VERDICTS = ("REWIND", "STOP", "STALL", "OK")
"""The worst first. A verdict that is none of these counts as worse than OK."""

_JUST_WORSE_THAN_OK = VERDICTS.index("OK") - 0.5
_IN_FLIGHT = {name: pa.int64() for name in (*(state.lower() for state in STATES), "ranges")}


def share_partitions_now(tables: CommittedTables, digest: pa.Table) -> pa.Table:
    """The live share-partitions.

    Args:
        tables: of the warehouse.
        digest: what `findings_digest` found.
    Returns:
        Columns of schemas/tables/share_partition_history.yaml, then topic_key; available, acquired, acknowledged,
        archiving and archived: records in flight (gaps are available), ranges: how many; null where the start offset
        is not initialised; suspect (boolean), errors and warnings: findings of its own. In the order of the keys.
    Raises:
        WarehouseError: if a table is gone.
    """
    columns = table_schema("share_partition_history").names
    seen = tables.read("share_partition_history", pc.field("run_id") == _run_with_history(tables), columns)
    rows = looked_up(identified(seen), _records_in_flight(tables), _IN_FLIGHT)
    uninitialised = pc.less(rows["start_offset"], 0)
    nothing = pa.scalar(None, pa.int64())
    for name in _IN_FLIGHT:
        known = pc.if_else(uninitialised, nothing, pc.fill_null(rows[name], 0))
        rows = rows.set_column(rows.column_names.index(name), name, known)
    rows = looked_up(rows, _suspects(tables), {"suspect": pa.bool_()})
    rows = looked_up(rows, own_findings(digest), {"errors": pa.int64(), "warnings": pa.int64()})
    for name, unknown in (("suspect", False), ("errors", 0), ("warnings", 0)):
        rows = rows.set_column(rows.column_names.index(name), name, pc.fill_null(rows[name], unknown))
    return rows.sort_by([(name, "ascending") for name in ("group_id", "topic", "topic_key", "partition", "dialect")])


def worst_first(rows: pa.Table) -> pa.Table:
    """The share-partitions that need a look: a verdict other than OK, an error or warning of their own, or suspect."""
    healthy = pc.equal(rows["verdict"], "OK")
    reported = pc.greater(pc.add(rows["errors"], rows["warnings"]), 0)
    chosen = rows.filter(pc.or_(pc.or_(pc.invert(healthy), reported), rows["suspect"]))
    rank = pc.fill_null(pc.cast(pc.index_in(chosen["verdict"], pa.array(VERDICTS)), pa.float64()), _JUST_WORSE_THAN_OK)
    broken = pc.or_(pc.greater(chosen["errors"], 0), chosen["suspect"])
    ranked = chosen.append_column("rank", rank).append_column("broken", pc.cast(broken, pa.int8()))
    down = [(name, "descending") for name in ("poison_records", "waiting_records")]
    ordered = ranked.sort_by([("rank", "ascending"), ("broken", "descending"), *down, *((n, "ascending") for n in KEY)])
    return ordered.drop_columns(["rank", "broken"])


def _run_with_history(tables: CommittedTables) -> str:
    """The latest run that wrote history: an audit that met nothing new may add no rows."""
    if not tables.holds("share_partition_history"):
        raise WarehouseError("the latest run wrote no history; run `share-state audit` on this warehouse first")
    latest = tables.run["run_id"]
    if next(tables.batches("share_partition_state", ["partition"]), None) is None:
        return latest
    runs = tables.read("runs", pc.field("finished") <= tables.run["finished"], ["run_id", "finished"])
    for run_id in runs.sort_by([("finished", "descending")])["run_id"].to_pylist():
        if next(tables.batches("share_partition_history", ["partition"], pc.field("run_id") == run_id), None):
            return run_id
    return latest


def _records_in_flight(tables: CommittedTables) -> pa.Table | None:
    return grouped(_by_state(tables), IDENTITY, dict.fromkeys(_IN_FLIGHT, "sum"))


def _by_state(tables: CommittedTables) -> Iterator[pa.Table]:
    zero, one = pa.scalar(0, pa.int64()), pa.scalar(1, pa.int64())
    for piece in tables.batches("in_flight", [*KEY, "state", "record_count"]):
        rows = identified(piece)
        for state in STATES:
            records = pc.if_else(pc.equal(rows["state"], state), rows["record_count"], zero)
            rows = rows.append_column(state.lower(), records)
        yield rows.append_column("ranges", pa.repeat(one, rows.num_rows))


def _suspects(tables: CommittedTables) -> pa.Table:
    return identified(tables.read("share_partition_state", pc.field("suspect"), [*KEY, "suspect"]))
