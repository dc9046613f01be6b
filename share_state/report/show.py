"""`share-state show` and `share-state groups`: state, in-flight ranges, lag, members and assignment, from tables.

Columns and words are those of kafka-share-groups.sh.
"""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.committed import CommittedTables
from share_state.errors import pluralize
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.states import KEY, SHARE_GROUP_STATE
from share_state.report.absent_states import listed_without_state, unknown_states
from share_state.report.console import print_json, print_line, print_table, row_pieces
from share_state.report.lags import LAG_COLUMNS, WITHOUT_STATE, lag_reason, lags_of, print_lag_reasons
from share_state.report.share_partitions import (
    IDENTITY_COLUMNS,
    NO_BEGINNING,
    add_topic_key,
    ascending,
    check_known,
    descending,
    group_pieces,
    lacks_beginning,
    left_join,
    null_unknown,
    number_rows,
    plain_run,
    select_share_partitions,
)
from share_state.schema.declarations import table_schema
from share_state.sources.group_configs import NOT_SET

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
_RANGE_COLUMNS = {
    "FIRST": "first_offset",
    "LAST": "last_offset",
    "RECORDS": "record_count",
    "STATE": "state",
    "DELIVERY-COUNT": "delivery_count",
}
_NUMERIC = {*_COLUMNS, *_RANGE_COLUMNS} - {"GROUP", "TOPIC", "STATES", "STATE"}
_GROUP_COLUMNS = {
    "GROUP": "group_id",
    "STATE": "state",
    "MEMBERS": "members",
    "EPOCH": "group_epoch",
    "ASSIGNED-EPOCH": "assignment_epoch",
    "SHARE-PARTITIONS": "share_partitions",
    "LAG": "lag",
}
_GROUP_KEY = ("group_id", "topic_id", "topic", "partition")
_MAX_LISTED = 10
SORTS = ("name", "lag", "in-flight")
"""By what `show` sorts share-partitions: their names, or a number, the largest first and unknown ones last."""
_BY_KEY = ascending("group_id", "topic", "topic_id", "partition")


@dataclass(frozen=True, slots=True)
class Order:
    """In which order share-partitions are printed, and how many.

    Attributes:
        by: one of SORTS.
        top: maximum number of share-partitions; None for all.
    """

    by: str = SORTS[0]
    top: int | None = None

    def chosen(self, rows: pa.Table) -> pa.Table:
        """The rows that are printed, in this order.

        Args:
            rows: by name; with `lag` or `in_flight` where they are sorted by it.
        """
        if self.by != SORTS[0]:
            rows = rows.sort_by([*descending(self.by.replace("-", "_")), *_BY_KEY])
        return rows if self.top is None else rows.slice(0, self.top)


def print_state_json(tables: CommittedTables, selection: SharePartitionFilter, order: Order) -> None:
    """Print the run, the share-partitions with their lag, their totals, and the in-flight ranges as JSON."""
    where = selection.of_rows
    states, ranges = read_lags(tables, where), _read_ranges(tables, where)
    if not states.num_rows:
        check_known([tables], selection)
    numbered = number_rows(states).select([*KEY, "lag", "place"])
    rows = _with_in_flight(tables, where, numbered)
    totals = _totals(rows)
    if order != Order():
        chosen = order.chosen(rows.sort_by(_BY_KEY))
        states = states.take(chosen["place"])
        ranges = _ranges_of(ranges, chosen).select(ranges.column_names)
    lists = {"share_partitions": row_pieces(null_unknown(states)), "in_flight": row_pieces(ranges)}
    unknown = _not_in_tables(tables, selection.group_id)
    print_json({"run": plain_run(tables.run), "totals": totals, "unknown": unknown}, lists)


def print_state(
    tables: CommittedTables,
    selection: SharePartitionFilter,
    order: Order,
    *,
    epochs: bool,
    ranges: bool,
    named: str,
) -> None:
    """Print one line per share-partition, and its in-flight ranges if `ranges` is set or there is only one.

    Args:
        tables: of a run.
        selection: which share-partitions.
        order: in which order, and how many.
        epochs: whether leader epochs are printed.
        ranges: whether ranges of several share-partitions are printed.
        named: the warehouse or the export, as the caller gave it, for commands to go on.
    """
    where = selection.of_rows
    states = read_lags(tables, where, [*KEY, "leader_epoch", "suspect", "snapshot_offset", *LAG_COLUMNS])
    if not states.num_rows:
        check_known([tables], selection)
        _print_without_state(named, tables, where)
        return
    rows = _with_in_flight(tables, where, states)
    chosen = order.chosen(rows.sort_by(_BY_KEY))
    columns = [head for head in _COLUMNS if epochs or head != "LEADER-EPOCH"]
    shown = _printed_columns(chosen).select([_COLUMNS[head] for head in columns])
    print_table(columns, zip(*(column.to_pylist() for column in shown), strict=True), numeric=_NUMERIC)
    if ranges or states.num_rows == 1:
        print_line()
        nothing = "nothing in flight is recorded"
        if pc.any(lacks_beginning(chosen)).as_py():
            nothing = f"it is not known what is in flight: {NO_BEGINNING}"
        of_chosen = _read_ranges(tables, where)
        if order != Order():
            of_chosen = _ranges_of(of_chosen, chosen)
        _print_ranges(of_chosen, with_key=states.num_rows > 1, otherwise=nothing)
    if states.num_rows > 1:
        print_line()
        print_line(_totals_line(_totals(rows), len(chosen)))
    print_lag_reasons(map(lag_reason, states.select(["lag", *LAG_COLUMNS]).to_pylist()))
    if selection.topic is None and selection.partition is None:
        for line in _not_in_tables(tables, selection.group_id):
            print_line(f"not known: {line}")


def _not_in_tables(tables: CommittedTables, group: str | None) -> list[str]:
    """Which share-partitions of a group, or of all groups, have or may have no row in the tables."""
    return unknown_states(tables, [] if group is None else [group])


def _ranges_of(ranges: pa.Table, chosen: pa.Table) -> pa.Table:
    """The ranges of share-partitions, in their order."""
    places = number_rows(chosen.select(IDENTITY_COLUMNS))
    return select_share_partitions(ranges, places).sort_by(ascending("place", "first_offset"))


def _with_in_flight(tables: CommittedTables, where: pc.Expression | None, states: pa.Table) -> pa.Table:
    """States with in_flight (records; null for none) and states (text) of `_sum_in_flight`."""
    added = {"in_flight": pa.int64(), "states": pa.string()}
    return left_join(add_topic_key(states), _sum_in_flight(tables, where), added)


def _totals(rows: pa.Table) -> dict[str, Any]:
    """Of share-partitions: how many, their lag as far as it is known, of how many it is not, and what is in flight."""
    return {
        "share_partitions": len(rows),
        "known_lag": pc.sum(rows["lag"], min_count=0).as_py(),
        "unknown_lags": rows["lag"].null_count,
        "in_flight": pc.sum(rows["in_flight"], min_count=0).as_py(),
    }


def _totals_line(totals: Mapping[str, Any], shown: int) -> str:
    count, unknown = totals["share_partitions"], totals["unknown_lags"]
    least = "at least " * (0 < unknown < count)
    lag = "unknown" if unknown == count else f"{least}{totals['known_lag']:,}"
    of = (
        f"{shown:,} of {pluralize(count, 'share-partition')} shown"
        if shown < count
        else pluralize(count, "share-partition")
    )
    return f"{of}; in all: lag {lag}, {totals['in_flight']:,} in flight"


def _print_without_state(warehouse: str, tables: CommittedTables, where: pc.Expression | None) -> None:
    """Print that there is no state, and of share-partitions that a group lists what it says of them."""
    print_line("no share-partitions")
    if not tables.holds("share_group_partitions"):
        return
    listed = tables.read("share_group_partitions", where).filter(pc.field("partition").is_valid())
    for row in listed.sort_by(_BY_KEY).slice(0, _MAX_LISTED).to_pylist():
        name = f"{row['group_id']} {row['topic'] or row['topic_id']} {row['partition']}"
        print_line(f"the input holds no state of {name}; its group lists it as {row['status']}")
    if len(listed):
        groups = sorted(set(listed["group_id"].to_pylist()))
        command = ["share-state", "groups", warehouse, "--group", groups[0]]
        print_line(f"what the group says: `{shlex.join(command)}`")


def read_lags(
    tables: CommittedTables, where: pc.Expression | None, columns: Sequence[str] | None = None
) -> pa.Table:
    """Rows of share_partition_state with `lag`, and `spso_hint`: where a leader starts that has no SPSO.

    Args:
        tables: of a run.
        where: a filter on rows.
        columns: of the table, LAG_COLUMNS among them; all by default.
    """
    states = tables.read("share_partition_state", where, columns).sort_by(_BY_KEY)
    states = states.append_column("lag", lags_of(states))
    # By the default of share.auto.offset.reset, latest, if the end is known.
    hint = pc.if_else(
        pc.less(states["start_offset"], 0), states["topic_end_offset"], pa.scalar(None, pa.int64())
    )
    return states.append_column("spso_hint", hint)


def _read_ranges(tables: CommittedTables, where: pc.Expression | None) -> pa.Table:
    return tables.read("in_flight", where).sort_by([*_BY_KEY, *ascending("first_offset")])


def _sum_in_flight(tables: CommittedTables, where: pc.Expression | None) -> pa.Table | None:
    """Records in flight per share-partition: in_flight (a number), states ("3 acquired, 5 gap").

    None if none are.
    """
    by_state = group_pieces(
        (
            add_topic_key(piece).append_column(
                "name", pc.if_else(piece["gap"], "gap", pc.utf8_lower(piece["state"]))
            )
            for piece in tables.batches("in_flight", [*KEY, "state", "gap", "record_count"], where)
        ),
        [*IDENTITY_COLUMNS, "name"],
        {"record_count": "sum"},
    )
    if by_state is None:
        return None
    by_state = by_state.sort_by("name")
    text = pc.binary_join_element_wise(by_state["record_count"].cast(pa.string()), by_state["name"], " ")
    grouped = by_state.append_column("text", text).group_by(list(IDENTITY_COLUMNS), use_threads=False)
    sums = grouped.aggregate([("record_count", "sum"), ("text", "list")])
    states = pc.binary_join(sums["text_list"], ", ")
    return (
        sums.select(IDENTITY_COLUMNS)
        .append_column("in_flight", sums["record_count_sum"])
        .append_column("states", states)
    )


def _printed_columns(rows: pa.Table) -> pa.Table:
    is_initialized, unknown = pc.greater_equal(rows["start_offset"], 0), pa.scalar(None, pa.int64())
    columns = {name: rows[name] for name in rows.column_names} | {
        "topic": pc.coalesce(rows["topic"], rows["topic_id"])
    }
    nothing = pc.if_else(lacks_beginning(rows), pa.scalar(None, pa.int64()), pa.scalar(0, pa.int64()))
    columns["in_flight"] = pc.coalesce(rows["in_flight"], nothing)
    for name in ("leader_epoch", "start_offset", "in_flight"):
        columns[name] = pc.if_else(is_initialized, columns[name].cast(pa.int64()), unknown)
    doubt = pc.if_else(lacks_beginning(rows), f"  (suspect: {NO_BEGINNING})", "  (suspect, see findings)")
    warning = pc.if_else(rows["suspect"], doubt, "")
    columns["states"] = pc.binary_join_element_wise(pc.fill_null(rows["states"], ""), warning, "")
    return pa.table(columns)


def _print_ranges(ranges: pa.Table, *, with_key: bool, otherwise: str) -> None:
    cells = []
    for row in ranges.to_pylist():
        key = [row["group_id"], row["topic"] or row["topic_id"], row["partition"]] if with_key else []
        row["state"] = f"{row['state']} (gap)" if row["gap"] else row["state"]
        cells.append([*key, *(row[name] for name in _RANGE_COLUMNS.values())])
    columns = [*(["GROUP", "TOPIC", "PARTITION"] if with_key else []), *_RANGE_COLUMNS]
    print_table(columns, cells, numeric=_NUMERIC, otherwise=otherwise)


def describe_groups(tables: CommittedTables, group: str | None = None) -> dict[str, Any]:
    """The groups of a warehouse, or one of them, as plain data; starts no Spark.

    Returns:
        `run`: the row of `runs`; `read`: whether the run read the group side at all;
            `groups`:
        rows of `share_groups`, and groups of which only state is known, each with its number of
        `share_partitions`, their `lag` (null if any is unknown), the lag of those of which it is known
        (`known_lag`, null if there are none), and how many others there are (`unknown_lags`), among them
        those that the group lists without a state;
        `members`: rows of `share_group_members`; `share_partitions`: of the given group, with status,
            start_offset,
        lag, `lag_reason` (why it is null) and the `members` that have them.
    Raises:
        InputError: if the group is unknown.
        WarehouseError: if no run has committed there, or a table is gone.
    """
    selection = SharePartitionFilter(group)
    where = selection.of_rows
    # Groups of the draft's control records have no group side.
    is_state_record = pc.field("dialect") == SHARE_GROUP_STATE
    states = read_lags(tables, is_state_record if where is None else is_state_record & where)
    groups, members = (tables.read(name, where) for name in ("share_groups", "share_group_members"))
    listed = tables.read("share_group_partitions", where)
    if not len(groups) + len(states):
        check_known([tables], selection)
    return {
        "run": plain_run(tables.run),
        "read": tables.holds("share_groups"),
        "groups": _add_totals(groups, states, listed),
        "members": members.sort_by(ascending("group_id", "member_id")).to_pylist(),
        "share_partitions": _share_partitions(states, listed, members.to_pylist())
        if group is not None
        else [],
    }


def _add_totals(groups: pa.Table, states: pa.Table, listed: pa.Table) -> list[dict[str, Any]]:
    totals = states.select(["group_id", "lag", "state_epoch"]).group_by("group_id").aggregate([
        ([], "count_all"),
        ("lag", "sum"),
        ("lag", "count"),
        ("state_epoch", "max"),
    ])  # fmt: skip
    of_group = {row["group_id"]: row for row in totals.to_pylist()}
    without_state = Counter(group_id for group_id, *_ in listed_without_state(states, listed))
    rows = {row["group_id"]: row for row in groups.to_pylist()}
    unknown = dict.fromkeys(table_schema("share_groups").names)
    rows |= {group_id: unknown | {"group_id": group_id} for group_id in of_group.keys() - rows.keys()}
    return [
        row
        | _total(of_group.get(group_id), without_state[group_id])
        | _initial_epochs(row, of_group.get(group_id))
        for group_id, row in sorted(rows.items())
    ]


def _initial_epochs(row: Mapping[str, Any], totals: Mapping[str, Any] | None) -> dict[str, int]:
    """The epochs of a group whose offsets were only altered, which no record holds.

    Its share-partitions were initialized with the epoch that every group begins with: 0 up to 4.2, 1 from 4.3 on.
    Source: Kafka ModernGroup, TargetAssignmentMetadata.INITIAL.
    """
    if totals is None or row["group_epoch"] is not None or row["state"] != "Empty":
        return {}
    return dict.fromkeys(("group_epoch", "assignment_epoch"), totals["state_epoch_max"])


def _total(row: Mapping[str, Any] | None, without_state: int) -> dict[str, Any]:
    """The lag of a group: of its share-partitions with state, and of `without_state` others that it lists."""
    count, known = (0, 0) if row is None else (row["count_all"], row["lag_count"])
    unknown = count - known + without_state
    lag = 0 if row is None or not known else row["lag_sum"]
    return {
        "share_partitions": count,
        "lag": None if unknown else lag,
        "known_lag": lag if known or not unknown else None,
        "unknown_lags": unknown,
    }


def _share_partitions(
    states: pa.Table, listed: pa.Table, members: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Share-partitions that have state or that their group lists, by topic and partition."""
    holders: dict[tuple[str, int], list[str]] = {}
    for member in members:
        for place in member["assigned"]:
            holders.setdefault((place["topic_id"], place["partition"]), []).append(member["member_id"])
    found: dict[tuple[str, int], dict[str, Any]] = {}
    topic_status = {row["topic_id"]: row["status"] for row in listed.to_pylist() if row["partition"] is None}
    for row in listed.to_pylist():
        if row["partition"] is not None:
            known = {name: row[name] for name in (*_GROUP_KEY, "status")}
            found[row["topic_id"], row["partition"]] = known | dict.fromkeys(("start_offset", "lag"))
            found[row["topic_id"], row["partition"]]["lag_reason"] = WITHOUT_STATE
    for row in states.select([*_GROUP_KEY, "lag", *LAG_COLUMNS]).to_pylist():
        place = (row["topic_id"], row["partition"])
        known = found.get(place, {"status": topic_status.get(row["topic_id"])})
        start = row["start_offset"] if row["start_offset"] >= 0 else None
        own = {name: row[name] for name in (*_GROUP_KEY, "lag")} | {"lag_reason": lag_reason(row)}
        found[place] = known | own | {"start_offset": start, "topic": row["topic"] or known.get("topic")}
    rows = [row | {"members": sorted(holders.get(place, ()))} for place, row in found.items()]
    return sorted(rows, key=lambda row: (row["topic"] or "", row["topic_id"], row["partition"]))


def print_groups(groups_shown: Mapping[str, Any], *, group: str | None, members: bool) -> None:
    """Print the result of `describe_groups`: one line per group, or all about one.

    The members of all if `members`.
    """
    if not groups_shown["read"]:
        print_line("the input has no logs of __consumer_offsets, so members and epochs of groups are unknown")
    if not groups_shown["groups"]:
        print_line("no share groups")
        return
    rows = [
        [*(row[name] for name in (*_GROUP_COLUMNS.values(),)[:-1]), lag_cell(row)]
        for row in groups_shown["groups"]
    ]
    print_table([*_GROUP_COLUMNS], rows, numeric=_GROUP_COLUMNS.keys() - {"GROUP", "STATE"})
    if group is not None:
        print_line()
        _print_share_partitions(groups_shown["share_partitions"])
    if group is not None:
        _print_configs(groups_shown["groups"][0].get("configs") or ())
    if members or group is not None:
        print_line()
        _print_members(
            groups_shown["members"],
            otherwise="no members" if groups_shown["read"] else "members are not known",
        )
    if group is not None:
        print_lag_reasons(row["lag_reason"] for row in groups_shown["share_partitions"])
    elif unknown := [row for row in groups_shown["groups"] if row["unknown_lags"]]:
        print_line()
        count = pluralize(sum(row["unknown_lags"] for row in unknown), "share-partition")
        command = shlex.join(
            ["share-state", "groups", groups_shown["warehouse"], "--group", unknown[0]["group_id"]]
        )
        print_line(f"the lag of {count} is not known; why, for a group: `{command}`")


def lag_cell(row: Mapping[str, Any]) -> str | None:
    """The lag of a group; what is known of it if one of its share-partitions is unknown."""
    if row["lag"] is not None:
        return str(row["lag"])
    return None if row["known_lag"] is None else f"at least {row['known_lag']:,}"


def _print_share_partitions(rows: Sequence[Mapping[str, Any]]) -> None:
    columns = ["TOPIC", "PARTITION", "STATUS", "START-OFFSET", "LAG", "MEMBERS"]
    cells = []
    for row in rows:
        place = [row["topic"] or row["topic_id"], row["partition"], row["status"]]
        cells.append([*place, row["start_offset"], row["lag"], ", ".join(row["members"]) or None])
    print_table(columns, cells, numeric=("PARTITION", "START-OFFSET", "LAG"), otherwise="no share-partitions")


def _print_configs(configs: Sequence[Mapping[str, str]]) -> None:
    """Print the configs of a group that somebody set."""
    rows = [[one["name"], one["value"] or None, one["source"]] for one in configs if one["source"] != NOT_SET]
    if rows:
        print_line()
        print_table(["CONFIG", "VALUE", "SOURCE"], rows)


def _print_members(rows: Sequence[Mapping[str, Any]], *, otherwise: str) -> None:
    columns = ["GROUP", "CONSUMER-ID", "CLIENT-ID", "HOST", "EPOCH", "PARTITIONS", "ASSIGNMENT", "TARGET"]
    cells = []
    for row in rows:
        # As kafka-share-groups.sh prints them: topic:partition, separated by commas.
        assigned, target = (
            ",".join(f"{one['topic'] or one['topic_id']}:{one['partition']}" for one in row[name]) or None
            for name in ("assigned", "target")
        )
        member = [
            row["group_id"],
            row["member_id"],
            row["client_id"],
            row["client_host"],
            row["member_epoch"],
        ]
        cells.append(
            [*member, len(row["assigned"]), assigned, "same" if target == assigned else target or "nothing"]
        )
    print_table(columns, cells, numeric=("EPOCH", "PARTITIONS"), otherwise=otherwise)
