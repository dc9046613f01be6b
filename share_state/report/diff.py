"""What became of the offsets of one share-partition between two points: ranges whose standing is another.

`share-state diff`: what became different between two warehouses, or between two points of one export.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from share_state.delta.reader import CommittedTables, of_key
from share_state.fold.interval_merge import ACKNOWLEDGED, ARCHIVED, STATE_NAMES
from share_state.fold.options import Chosen
from share_state.pipeline.plan import Work
from share_state.report.console import print_table, say

Value = tuple[str, bool]
"""How a range is called, and whether it is finished: nobody gets it any more."""

BELOW: Value = ("below SPSO", True)
BEYOND: Value = ("beyond SPEO", False)

NEW, FINISHED, PASSED, CHANGED, RETURNED, GONE = "new", "finished", "passed", "changed", "returned", "gone"


@dataclass(frozen=True, slots=True)
class Flights:
    """The in-flight window of a share-partition.

    Attributes:
        start, end: SPSO and SPEO.
        tiles: (first offset, last offset, value), which tile [start, end) in order.
    """

    start: int
    end: int
    tiles: Sequence[tuple[int, int, Value]]


@dataclass(frozen=True, slots=True)
class Change:
    """Offsets first to last, inclusive, that stand elsewhere now.

    Attributes:
        kind: new (in flight now, and beyond SPEO before), finished, passed (by SPSO, finished before), changed (in
            flight before and after), returned (finished before, in flight now) or gone (beyond SPEO now, not before).
        before, after: where they stood and stand, in words.
    """

    first: int
    last: int
    kind: str
    before: str
    after: str


def changes(before: Flights | None, after: Flights | None) -> list[Change]:
    """The ranges that stand elsewhere, in order of offset.

    Args:
        before, after: the window at each point; None where there is none (no state, or no start yet).
    Returns:
        Ranges between the first and the last offset that is in either window, or between the two; what lies below both
        or beyond both has not changed. Where one is None, all of the other is new or gone.
    """
    if before is None and after is None:
        return []
    one, other = before or _nothing_at(after), after or _nothing_at(before)
    bounds = sorted({*_bounds(one), *_bounds(other)})
    found: list[Change] = []
    values = zip(_values(one, bounds), _values(other, bounds), strict=True)
    for (first, end), (was, is_now) in zip(pairwise(bounds), values, strict=True):
        if was == is_now:
            continue
        kind = _kind(was, is_now)
        if found and found[-1].last == first - 1 and (found[-1].before, found[-1].after) == (was[0], is_now[0]):
            found[-1] = Change(found[-1].first, end - 1, kind, was[0], is_now[0])
        else:
            found.append(Change(first, end - 1, kind, was[0], is_now[0]))
    return found


def _nothing_at(other: Flights | None) -> Flights:
    """A window without offsets where another begins: all of the other is beyond it."""
    start = other.start if other else 0
    return Flights(start, start, [])


def _bounds(window: Flights) -> Iterator[int]:
    yield window.start
    yield window.end
    for first, last, _ in window.tiles:
        yield first
        yield last + 1


def _values(window: Flights, bounds: Sequence[int]) -> Iterator[Value]:
    """The value of each range between two neighbouring bounds."""
    at = 0
    for first in bounds[:-1]:
        while at < len(window.tiles) and window.tiles[at][1] < first:
            at += 1
        if first < window.start:
            yield BELOW
        elif at < len(window.tiles) and window.tiles[at][0] <= first:
            yield window.tiles[at][2]
        else:
            yield BEYOND


def _kind(was: Value, is_now: Value) -> str:
    if is_now is BEYOND:
        return GONE
    if was[1] and not is_now[1]:
        return RETURNED
    if is_now[1] and not was[1]:
        return FINISHED
    if was is BEYOND:
        return NEW
    return PASSED if is_now is BELOW else CHANGED


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
