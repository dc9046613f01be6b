"""`share-state diff`: what became different between two warehouses, or between two points of one export."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from share_state.committed import CommittedTables, of_key
from share_state.fold.chosen import Chosen
from share_state.fold.ranges import ACKNOWLEDGED, ARCHIVED, STATE_NAMES
from share_state.report.changed_ranges import PASSED, Change, Flights, changes
from share_state.report.console import print_table, say
from share_state.work import Work

_KEY = ("dialect", "group_id", "topic_id", "topic", "partition")
_SCALARS = (
    "start_offset",
    "end_offset",
    "snapshot_epoch",
    "state_epoch",
    "leader_epoch",
    "delivery_complete_count",
    "suspect",
)
_RANGES_SHOWN = 8

Tables = tuple[pa.Table, pa.Table]
"""share_partition_state and in_flight."""


def of_warehouse(warehouse: str, chosen: Chosen) -> Tables:
    """What the last run of a warehouse says.

    Raises:
        WarehouseError: if there is none, or a table cannot be read.
    """
    tables, where = CommittedTables(warehouse), of_key(chosen.group_id, chosen.topic, chosen.partition)
    return tables.read("share_partition_state", where), tables.read("in_flight", where)


def of_export(work: Work, chosen: Chosen) -> Tables:
    """What an export says, folded here.

    Raises:
        InputError: if a segment cannot be read.
    """
    where = of_key(chosen.group_id, chosen.topic, chosen.partition)
    folded = list(work.each())
    found = (pa.concat_tables([one.states for one in folded]), pa.concat_tables([one.in_flight for one in folded]))
    return found if where is None else (found[0].filter(where), found[1].filter(where))


def differences(before: Tables, after: Tables) -> dict[str, Any]:
    """What is different between two states.

    Args:
        before, after: tables share_partition_state and in_flight of each.
    Returns:
        `share_partitions`: how many are compared; `differing`: how many of them differ; `changed`: for each of those
        its key, `change` (appeared, disappeared, changed), `scalars` (column -> [before, after], where they differ) and
        `ranges` (first_offset, last_offset, record_count, before, after; `change` as report/changed_ranges.py says).
    """
    old, new = (_by_key(tables[0]) for tables in (before, after))
    flights = [_flights(tables[1]) for tables in (before, after)]
    changed = [
        row
        for key in sorted({*old, *new}, key=str)
        if (row := _changed(old.get(key), new.get(key), *(one.get(key, []) for one in flights)))
    ]
    return {"share_partitions": len({*old, *new}), "differing": len(changed), "changed": changed}


def print_differences(found: Mapping[str, Any]) -> None:
    """Print what `differences` found: a line a share-partition, and what became of its ranges."""
    changed = found["changed"]
    if not changed:
        say(f"nothing is different in {found['share_partitions']:,} share-partitions")
        return
    rows = []
    for row in changed:
        scalars = row["scalars"]
        rows.append([
            row["group_id"],
            row["topic"] or row["topic_id"],
            row["partition"],
            row["change"],
            _step(scalars.get("start_offset")),
            _step(scalars.get("end_offset")),
            ", ".join(f"{name.removesuffix('_epoch')} {_step(scalars[name])}" for name in _EPOCHS if name in scalars),
            _totals(row["ranges"]),
        ])  # fmt: skip
    print_table(["GROUP", "TOPIC", "PARTITION", "CHANGE", "SPSO", "SPEO", "EPOCHS", "RECORDS"], rows,
                numeric=("PARTITION",))  # fmt: skip
    say()
    for row in changed:
        _print_ranges(row)
    say(f"{found['differing']:,} of {found['share_partitions']:,} share-partitions differ")


_EPOCHS = ("snapshot_epoch", "state_epoch", "leader_epoch")


def _print_ranges(row: Mapping[str, Any]) -> None:
    # That SPSO passes what is finished is no news, and there is much of it.
    ranges = [one for one in row["ranges"] if one["change"] != PASSED]
    if not ranges:
        return
    say(f"{row['group_id']} {row['topic'] or row['topic_id']} {row['partition']}")
    for one in ranges[:_RANGES_SHOWN]:
        span = f"{one['first_offset']}-{one['last_offset']}"
        say(f"  {one['change']:<9} {span}: {one['before']} -> {one['after']}")
    left = len(ranges) - _RANGES_SHOWN
    if left > 0:
        say(f"  and {left:,} more (--json has them all)")
    say()


def _step(step: Sequence[Any] | None) -> str | None:
    if step is None:
        return None
    before, after = ("-" if value is None or value == -1 else value for value in step)
    return f"{before} -> {after}"


def _totals(ranges: Sequence[Mapping[str, Any]]) -> str:
    totals: dict[str, int] = {}
    for one in ranges:
        totals[one["change"]] = totals.get(one["change"], 0) + one["record_count"]
    return ", ".join(f"{count:,} {name}" for name, count in totals.items())


def _by_key(states: pa.Table) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {_same(row): row for row in states.select([*_KEY, *_SCALARS]).to_pylist()}


def _same(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The key without what may become known later: the name of a topic that has an id."""
    return (row["dialect"], row["group_id"], row["topic_id"] or row["topic"], row["partition"])


def _flights(rows: pa.Table) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    wanted = [*_KEY, "first_offset", "last_offset", "delivery_state", "delivery_count", "gap"]
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows.select(wanted).sort_by("first_offset").to_pylist():
        found.setdefault(_same(row), []).append(row)
    return found


def _changed(
    old: Mapping[str, Any] | None,
    new: Mapping[str, Any] | None,
    old_flights: Sequence[Mapping[str, Any]],
    new_flights: Sequence[Mapping[str, Any]],
) -> dict[str, Any] | None:
    one = new or old
    if one is None:
        return None
    scalars = {
        name: [old[name] if old else None, new[name] if new else None]
        for name in _SCALARS
        if (old[name] if old else None) != (new[name] if new else None)
    }
    ranges = [_told(change) for change in changes(_window(old, old_flights), _window(new, new_flights))]
    if old and new and not scalars and not ranges:
        return None
    kind = "changed" if old and new else "appeared" if new else "disappeared"
    return {name: one[name] for name in _KEY} | {"change": kind, "scalars": scalars, "ranges": ranges}


def _window(state: Mapping[str, Any] | None, flights: Sequence[Mapping[str, Any]]) -> Flights | None:
    if state is None or state["start_offset"] < 0:
        return None
    tiles = [(row["first_offset"], row["last_offset"], _value(row)) for row in flights]
    return Flights(state["start_offset"], state["end_offset"], tiles)


def _value(row: Mapping[str, Any]) -> tuple[str, bool]:
    """How a range is called, and whether it is finished."""
    state = row["delivery_state"]
    if row["gap"]:
        return "gap", False
    name = STATE_NAMES.get(state, f"UNKNOWN({state})")
    return f"{name} ({row['delivery_count']})", state in (ACKNOWLEDGED, ARCHIVED)


def _told(change: Change) -> dict[str, Any]:
    return {
        "first_offset": change.first,
        "last_offset": change.last,
        "record_count": change.last - change.first + 1,
        "change": change.kind,
        "before": change.before,
        "after": change.after,
    }
