"""`share-state show`: the state as kafka-share-groups.sh describes it, and what is in flight."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.committed import CommittedTables, of_key
from share_state.fold.lag import lags
from share_state.report.console import in_pieces, print_json, print_table, say
from share_state.report.grouped_rows import grouped
from share_state.report.identity import IDENTITY, KEY, identified, looked_up

_BY_KEY = [("group_id", "ascending"), ("topic", "ascending"), ("topic_id", "ascending"), ("partition", "ascending")]
_COLUMNS = {
    "GROUP": "group_id",
    "TOPIC": "topic",
    "PARTITION": "partition",
    "LEADER-EPOCH": "leader_epoch",
    "START-OFFSET": "start_offset",
    "LAG": "lag",
    "IN-FLIGHT": "in_flight",
    "STATES": "states",
}
_LAG = ("topic_end_offset", "start_offset", "delivery_complete_count")
_NUMERIC = (
    "PARTITION",
    "START-OFFSET",
    "LAG",
    "LEADER-EPOCH",
    "IN-FLIGHT",
    "FIRST",
    "LAST",
    "RECORDS",
    "DELIVERY-COUNT",
)


def print_everything(warehouse: str, group: str | None, topic: str | None, partition: int | None) -> None:
    """Print all that `show` knows as JSON: the run, the share-partitions with their lag, the in-flight ranges."""
    tables, where = CommittedTables(warehouse), of_key(group, topic, partition)
    states, ranges = _states(tables, where), _ranges(tables, where)
    print_json({"run": tables.run}, {"share_partitions": in_pieces(states), "in_flight": in_pieces(ranges)})


def print_described(
    warehouse: str, group: str | None, topic: str | None, partition: int | None, *, verbose: bool, ranges: bool
) -> None:
    """Print share-partitions, a line each; their ranges one by one where asked, or where there is only one of them."""
    tables, where = CommittedTables(warehouse), of_key(group, topic, partition)
    states = _states(tables, where, [*KEY, "leader_epoch", "suspect", *_LAG])
    if not states.num_rows:
        say("no share-partition here")
        return
    rows = looked_up(identified(states), _in_flight(tables, where), {"in_flight": pa.int64(), "states": pa.string()})
    columns = _COLUMNS if verbose else {head: name for head, name in _COLUMNS.items() if name != "leader_epoch"}
    told = _told(rows.sort_by(_BY_KEY)).select([*columns.values()])
    print_table([*columns], zip(*(column.to_pylist() for column in told), strict=True), numeric=_NUMERIC)
    if ranges or states.num_rows == 1:
        say()
        _print_ranges(_ranges(tables, where).to_pylist(), one=states.num_rows == 1)


def _states(tables: CommittedTables, where: pc.Expression | None, columns: Sequence[str] | None = None) -> pa.Table:
    states = tables.read("share_partition_state", where, columns).sort_by(_BY_KEY)
    return states.append_column("lag", lags(*(states[name] for name in _LAG)))


def _ranges(tables: CommittedTables, where: pc.Expression | None) -> pa.Table:
    return tables.read("in_flight", where).sort_by([*_BY_KEY, ("first_offset", "ascending")])


def _in_flight(tables: CommittedTables, where: pc.Expression | None) -> pa.Table | None:
    """How many records are in flight, and in which states, in words: one row a share-partition; None where none is."""
    pieces = map(_named, tables.batches("in_flight", [*KEY, "state", "gap", "record_count"], where))
    counted = grouped(pieces, [*IDENTITY, "named"], {"record_count": "sum"})
    if counted is None:
        return None
    counted = counted.sort_by("named")
    text = pc.binary_join_element_wise(counted["record_count"].cast(pa.string()), counted["named"], " ")
    summed = counted.append_column("text", text).group_by(list(IDENTITY), use_threads=False)
    found = summed.aggregate([("record_count", "sum"), ("text", "list")])
    states = pc.binary_join(found["text_list"], ", ")
    return found.select(IDENTITY).append_column("in_flight", found["record_count_sum"]).append_column("states", states)


def _named(piece: pa.Table) -> pa.Table:
    return identified(piece).append_column("named", pc.if_else(piece["gap"], "gap", pc.utf8_lower(piece["state"])))


def _told(rows: pa.Table) -> pa.Table:
    """Share-partitions as they are printed."""
    known, nothing = pc.greater_equal(rows["start_offset"], 0), pa.scalar(None, pa.int64())
    columns = {name: rows[name] for name in rows.column_names} | {"topic": pc.coalesce(rows["topic"], rows["topic_id"])}
    columns["in_flight"] = pc.fill_null(rows["in_flight"], 0)
    for name in ("leader_epoch", "start_offset", "in_flight"):
        columns[name] = pc.if_else(known, columns[name].cast(pa.int64()), nothing)
    warning = pc.if_else(rows["suspect"], "  (suspect, see findings)", "")
    columns["states"] = pc.binary_join_element_wise(pc.fill_null(rows["states"], ""), warning, "")
    return pa.table(columns)


def _print_ranges(flights: Sequence[Mapping[str, Any]], *, one: bool) -> None:
    columns = [*([] if one else ["GROUP", "TOPIC", "PARTITION"]), "FIRST", "LAST", "RECORDS", "STATE", "DELIVERY-COUNT"]
    rows = []
    for row in flights:
        state = f"{row['state']} (gap)" if row["gap"] else row["state"]
        key = [] if one else [row["group_id"], row["topic"] or row["topic_id"], row["partition"]]
        rows.append([*key, row["first_offset"], row["last_offset"], row["record_count"], state, row["delivery_count"]])
    print_table(columns, rows, numeric=_NUMERIC) if rows else say("nothing in flight")
