"""`share-state show`: the state as kafka-share-groups.sh describes it, and what is in flight."""

from collections.abc import Mapping, Sequence
from typing import Any

from share_state.committed import CommittedTables, of_key
from share_state.fold.lag import lags
from share_state.report.console import print_table, say

_BY_KEY = [("group_id", "ascending"), ("topic", "ascending"), ("topic_id", "ascending"), ("partition", "ascending")]
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


def described(warehouse: str, group: str | None, topic: str | None, partition: int | None) -> dict[str, Any]:
    """What `show` prints, as plain data: the run, the share-partitions with their lag, the in-flight ranges."""
    tables = CommittedTables(warehouse)
    where = of_key(group, topic, partition)
    states = tables.read("share_partition_state", where).sort_by(_BY_KEY)
    ranges = tables.read("in_flight", where).sort_by([*_BY_KEY, ("first_offset", "ascending")])
    return {
        "run": tables.run,
        "share_partitions": states.append_column("lag", lags(*(states[name] for name in _LAG))).to_pylist(),
        "in_flight": ranges.to_pylist(),
    }


def print_described(found: Mapping[str, Any], *, verbose: bool, ranges: bool) -> None:
    """Print what `described` found; the ranges one by one where asked, or where there is only one share-partition."""
    states, flights = found["share_partitions"], _by_key(found["in_flight"])
    if not states:
        say("no share-partition here")
        return
    columns = [
        "GROUP",
        "TOPIC",
        "PARTITION",
        *(["LEADER-EPOCH"] if verbose else []),
        "START-OFFSET",
        "LAG",
        "IN-FLIGHT",
        "STATES",
    ]
    rows = []
    for row in states:
        known = row["start_offset"] >= 0
        cells = [row["group_id"], row["topic"] or row["topic_id"], row["partition"]]
        cells += [row["leader_epoch"] if known else None] if verbose else []
        of_key = flights.get(_key(row), [])
        cells += [row["start_offset"] if known else None, row["lag"]]
        cells += [sum(flight["record_count"] for flight in of_key) if known else None, _totals(of_key) + _warning(row)]
        rows.append(cells)
    print_table(columns, rows, numeric=_NUMERIC)
    if ranges or len(states) == 1:
        say()
        _print_ranges(found["in_flight"], one=len(states) == 1)


def _print_ranges(flights: Sequence[Mapping[str, Any]], *, one: bool) -> None:
    columns = [*([] if one else ["GROUP", "TOPIC", "PARTITION"]), "FIRST", "LAST", "RECORDS", "STATE", "DELIVERY-COUNT"]
    rows = []
    for row in flights:
        state = f"{row['state']} (gap)" if row["gap"] else row["state"]
        key = [] if one else [row["group_id"], row["topic"] or row["topic_id"], row["partition"]]
        rows.append([*key, row["first_offset"], row["last_offset"], row["record_count"], state, row["delivery_count"]])
    print_table(columns, rows, numeric=_NUMERIC) if rows else say("nothing in flight")


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["dialect"], row["group_id"], row["topic_id"], row["topic"], row["partition"])


def _by_key(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    grouped: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(_key(row), []).append(row)
    return grouped


def _totals(flights: Sequence[Mapping[str, Any]]) -> str:
    totals: dict[str, int] = {}
    for row in flights:
        name = "gap" if row["gap"] else row["state"].lower()
        totals[name] = totals.get(name, 0) + row["record_count"]
    return ", ".join(f"{count} {name}" for name, count in sorted(totals.items()))


def _warning(row: Mapping[str, Any]) -> str:
    return "  (suspect, see findings)" if row["suspect"] else ""
