"""`share-state groups`: state, members, assignment and lag of share groups, as kafka-share-groups.sh describes them."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.committed import CommittedTables, of_key
from share_state.declarations import table_schema
from share_state.fold.lag import lags
from share_state.report.console import print_table, printable, say

_GROUP_SIDE = "share_groups"
_LAG = ("topic_end_offset", "start_offset", "delivery_complete_count")
_KEY = ("group_id", "topic_id", "topic", "partition")
_NUMERIC = ("MEMBERS", "EPOCH", "ASSIGNED-EPOCH", "SHARE-PARTITIONS", "LAG", "PARTITION", "START-OFFSET", "PARTITIONS")


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
    print_table(columns, [[row[name] for name in names] for row in found["groups"]], numeric=_NUMERIC)
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
    print_table(columns, cells, numeric=[name for name in _NUMERIC if name != "MEMBERS"])


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
    print_table(columns, cells, numeric=_NUMERIC)


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
