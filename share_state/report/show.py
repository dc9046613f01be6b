"""`share-state show`: the state as kafka-share-groups.sh describes it, and what is in flight.

`share-state groups`: state, members, assignment and lag of share groups, as kafka-share-groups.sh describes them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.reader import CommittedTables, of_key
from share_state.fold.states import lags
from share_state.report.console import in_pieces, print_json, print_table, printable, say
from share_state.report.share_partitions import IDENTITY, KEY, grouped, identified, looked_up
from share_state.schema.declarations import table_schema

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


_GROUP_SIDE = "share_groups"
_KEY = ("group_id", "topic_id", "topic", "partition")
_GROUPS_NUMERIC = (
    "MEMBERS",
    "EPOCH",
    "ASSIGNED-EPOCH",
    "SHARE-PARTITIONS",
    "LAG",
    "PARTITION",
    "START-OFFSET",
    "PARTITIONS",
)


def described_groups(warehouse: str, group: str | None = None) -> dict[str, Any]:
    """What `groups` prints, as plain data. Starts no Spark.

    Args:
        warehouse: folder of the tables.
        group: only this group.
    Returns:
        `run`: the row of `runs`; `read`: whether the run read the group side at all; `groups`: rows of `share_groups`,
        and of groups of which only state is known, each with its number of `share_partitions` and their `lag` (null
        where that of any is not known); `members`: rows of `share_group_members`; `share_partitions`: of the groups,
        with status, start_offset, lag and the `members` that hold them.
    Raises:
        WarehouseError: if no run was ever committed there, or a table is gone.
    """
    tables = CommittedTables(warehouse)
    where = of_key(group, None, None)
    groups, members = (tables.read(name, where) for name in (_GROUP_SIDE, "share_group_members"))
    listed = tables.read("share_group_partitions", where)
    states = tables.read("share_partition_state", _and_state_records(where))
    states = states.append_column("lag", lags(*(states[name] for name in _LAG)))
    return {
        "run": tables.run,
        "read": _GROUP_SIDE in tables.versions,
        "groups": _with_totals(groups, states),
        "members": members.sort_by([("group_id", "ascending"), ("member_id", "ascending")]).to_pylist(),
        "share_partitions": _share_partitions(states, listed, members.to_pylist()) if group is not None else [],
    }


def print_groups(found: Mapping[str, Any], *, group: str | None, members: bool) -> None:
    """Print what `described_groups` found: of one group all that is known, of several one line each.

    Args:
        found: what it found.
        group: the group that was asked for.
        members: print the members of every group, too.
    """
    if not found["read"]:
        say("the input had no logs of __consumer_offsets: of groups only their state is known")
    if not found["groups"]:
        say("no share group here" if group is None else f"no share group {printable(group)} here")
        return
    columns = ["GROUP", "STATE", "MEMBERS", "EPOCH", "ASSIGNED-EPOCH", "SHARE-PARTITIONS", "LAG"]
    names = ("group_id", "state", "members", "group_epoch", "assignment_epoch", "share_partitions", "lag")
    print_table(columns, [[row[name] for name in names] for row in found["groups"]], numeric=_GROUPS_NUMERIC)
    if group is not None:
        say()
        _print_share_partitions(found["share_partitions"])
    if members or group is not None:
        say()
        _print_members(found["members"])


def _print_share_partitions(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        say("no share-partition")
        return
    columns = ["TOPIC", "PARTITION", "STATUS", "START-OFFSET", "LAG", "MEMBERS"]
    cells = []
    for row in rows:
        place = [row["topic"] or row["topic_id"], row["partition"], row["status"]]
        cells.append([*place, row["start_offset"], row["lag"], ", ".join(row["members"]) or None])
    print_table(columns, cells, numeric=[name for name in _GROUPS_NUMERIC if name != "MEMBERS"])


def _print_members(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        say("no members")
        return
    columns = ["GROUP", "CONSUMER-ID", "CLIENT-ID", "HOST", "EPOCH", "PARTITIONS", "ASSIGNMENT", "TARGET"]
    cells = []
    for row in rows:
        assigned, target = _assignment(row["assigned"]), _assignment(row["target"])
        who = [row["group_id"], row["member_id"], row["client_id"], row["client_host"], row["member_epoch"]]
        cells.append([*who, len(row["assigned"]), assigned, "same" if target == assigned else target or "nothing"])
    print_table(columns, cells, numeric=_GROUPS_NUMERIC)


def _assignment(places: Sequence[Mapping[str, Any]]) -> str | None:
    """As kafka-share-groups.sh has it: topic:partition, parted by commas."""
    return ",".join(f"{place['topic'] or place['topic_id']}:{place['partition']}" for place in places) or None


def _and_state_records(where: Any) -> Any:
    """Rows of `__share_group_state`: groups of the draft's control records have no group side."""
    ours = pc.field("dialect") == "share_group_state"
    return ours if where is None else ours & where


def _with_totals(groups: pa.Table, states: pa.Table) -> list[dict[str, Any]]:
    totals = states.select(["group_id", "lag"]).group_by("group_id").aggregate([
        ([], "count_all"),
        ("lag", "sum", pc.ScalarAggregateOptions(skip_nulls=False)),
    ])  # fmt: skip
    of_group = {row["group_id"]: (row["count_all"], row["lag_sum"]) for row in totals.to_pylist()}
    rows = {row["group_id"]: row for row in groups.to_pylist()}
    blank = dict.fromkeys(table_schema(_GROUP_SIDE).names)
    rows |= {group_id: blank | {"group_id": group_id} for group_id in of_group.keys() - rows.keys()}
    none = (0, 0)
    return [
        row | dict(zip(("share_partitions", "lag"), of_group.get(group_id, none), strict=True))
        for group_id, row in sorted(rows.items())
    ]


def _share_partitions(states: pa.Table, listed: pa.Table, members: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Share-partitions that have state or that their group lists, by topic and partition."""
    holders: dict[tuple[str, int], list[str]] = {}
    for member in members:
        for place in member["assigned"]:
            holders.setdefault((place["topic_id"], place["partition"]), []).append(member["member_id"])
    found: dict[tuple[str, int], dict[str, Any]] = {}
    of_topic = {row["topic_id"]: row["status"] for row in listed.to_pylist() if row["partition"] is None}
    for row in listed.to_pylist():
        if row["partition"] is not None:
            known = {name: row[name] for name in (*_KEY, "status")}
            found[row["topic_id"], row["partition"]] = known | {"start_offset": None, "lag": None}
    for row in states.select([*_KEY, "start_offset", "lag"]).to_pylist():
        place = (row["topic_id"], row["partition"])
        known = found.get(place, {"status": of_topic.get(row["topic_id"])})
        start = row["start_offset"] if row["start_offset"] >= 0 else None
        found[place] = known | row | {"start_offset": start, "topic": row["topic"] or known.get("topic")}
    rows = [row | {"members": sorted(holders.get(place, ()))} for place, row in found.items()]
    return sorted(rows, key=lambda row: (row["topic"] or "", row["topic_id"], row["partition"]))
