"""`share-state diff`: what changed between two warehouses, or between two points of one export.

State is compared per share-partition: its scalar columns, and the ranges of offsets that are in another state
now.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from share_state.delta.committed import CommittedTables
from share_state.errors import ShareStateError, pluralize
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.history import HISTORY_TABLE, OUTCOME_COLUMNS
from share_state.fold.states import KEY
from share_state.kafka.delivery_states import ARCHIVED, TERMINAL, state_name
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.task import OutputSpec, returned_table
from share_state.report.audit_text import outcomes_text
from share_state.report.console import UNKNOWN, escape_unprintable, print_line, print_table
from share_state.report.share_partitions import NO_BEGINNING, check_known, lacks_beginning
from share_state.rules.breaches import listed
from share_state.schema.declarations import table_schema

RangeState = tuple[str, bool]
"""The name of a range's state, and whether it is terminal: the records are not delivered again."""

BELOW: RangeState = ("below SPSO", True)
BEYOND: RangeState = ("beyond SPEO", False)

NEW = "new"
FINISHED = "finished"
GIVEN_UP = "given up"
PASSED = "passed"
CHANGED = "changed"
RETURNED = "returned"
GONE = "gone"
_KINDS = (NEW, FINISHED, GIVEN_UP, PASSED, CHANGED, RETURNED, GONE)

StateTables = tuple[pa.Table, pa.Table, pa.Table]
"""share_partition_state, in_flight, and rows of share_partition_history: what became of deliveries up to this
point."""

_TABLES = ("share_partition_state", "in_flight")
_EPOCHS = ("snapshot_epoch", "state_epoch", "leader_epoch")
_SCALARS = ("start_offset", "end_offset", *_EPOCHS, "delivery_complete_count", "suspect")
_MAX_RANGES = 8
_ARCHIVED = state_name(ARCHIVED)


@dataclass(frozen=True, slots=True)
class InFlightWindow:
    """The in-flight window of a share-partition.

    Attributes:
        start, end: SPSO and SPEO.
        ranges: (first offset, last offset, state), sorted; they tile [start, end).
    """

    start: int
    end: int
    ranges: Sequence[tuple[int, int, RangeState]]

    @property
    def bounds(self) -> set[int]:
        """Offsets at which the state may change."""
        return {self.start, self.end} | {
            bound for first, last, _ in self.ranges for bound in (first, last + 1)
        }

    def states(self, bounds: Sequence[int]) -> Iterator[RangeState]:
        """The state between neighbouring bounds, which are sorted and include the window's own."""
        at = 0
        for first in bounds[:-1]:
            while at < len(self.ranges) and self.ranges[at][1] < first:
                at += 1
            if first < self.start:
                yield BELOW
            elif at < len(self.ranges) and self.ranges[at][0] <= first:
                yield self.ranges[at][2]
            else:
                yield BEYOND


@dataclass(frozen=True, slots=True)
class RangeChange:
    """Offsets that are in another state now.

    Attributes:
        first_offset, last_offset: inclusive.
        change: new (in flight now, beyond SPEO before), finished (acknowledged now, or passed by SPSO since
            it was in flight), given up (archived now), passed (by SPSO, terminal before), changed (in flight
            before and after), returned (terminal before, in flight now) or gone (beyond SPEO now).
        before, after: names of the states.
    """

    first_offset: int
    last_offset: int
    change: str
    before: str
    after: str


def compare_windows(before: InFlightWindow | None, after: InFlightWindow | None) -> list[RangeChange]:
    """The ranges that are in another state, sorted by offset.

    Args:
        before, after: the window at each point; None if there is no state or no start offset yet.
    Returns:
        Ranges between the lowest and the highest offset of the windows. If one is None, the other is new or
        gone.
    """
    if before is None and after is None:
        return []
    # A missing window is empty and begins where the other does.
    before = before or InFlightWindow(after.start if after else 0, after.start if after else 0, ())
    after = after or InFlightWindow(before.start, before.start, ())
    bounds = sorted(before.bounds | after.bounds)
    changes: list[RangeChange] = []
    states = zip(before.states(bounds), after.states(bounds), strict=True)
    for (first, end), (was, is_now) in zip(pairwise(bounds), states, strict=True):
        if was == is_now:
            continue
        last = changes[-1] if changes else None
        if last and last.last_offset == first - 1 and (last.before, last.after) == (was[0], is_now[0]):
            changes[-1] = replace(last, last_offset=end - 1)
        else:
            changes.append(RangeChange(first, end - 1, _kind(was, is_now), was[0], is_now[0]))
    return changes


def _kind(was: RangeState, is_now: RangeState) -> str:
    if is_now is BEYOND:
        return GONE
    if was[1] and not is_now[1]:
        return RETURNED
    if is_now[1] and not was[1]:
        return GIVEN_UP if is_now[0].startswith(_ARCHIVED) else FINISHED
    if was is BEYOND:
        return NEW
    return PASSED if is_now is BELOW else CHANGED


def read_states(opened: Sequence[CommittedTables], selection: SharePartitionFilter) -> list[StateTables]:
    """The states that runs committed.

    Raises:
        InputError: if the filter matches a share-partition in none of them.
        WarehouseError: if a table cannot be read.
    """
    where = selection.of_rows
    # Two warehouses do not show what became of deliveries between them.
    none = table_schema(HISTORY_TABLE).empty_table()
    found = [(tables.read(_TABLES[0], where), tables.read(_TABLES[1], where), none) for tables in opened]
    if not any(len(states) for states, *_ in found):
        check_known(opened, selection)
    return found


def read_counted_states(tables: CommittedTables, selection: SharePartitionFilter) -> StateTables:
    """The state of an audit, with what became of deliveries: since the log's start if it is the first audit."""
    where = selection.of_rows
    counted = tables.read(HISTORY_TABLE, where)
    return tables.read(_TABLES[0], where), tables.read(_TABLES[1], where), counted


def fold_exports(plans: Sequence[FoldPlan], selection: SharePartitionFilter) -> list[StateTables]:
    """The states that an export folds to at several points, the latest last.

    Raises:
        InputError: if a segment cannot be read, a time is outside of those of the input, or the filter
            matches no share-partition at the last point.
        ShareStateError: if the last point is before the first one.
    """
    for plan in plans:
        plan.check_time()
    for log in plans[0].logs:
        for bound in ("until_offset", "until_time_ms"):
            first, last = (getattr(plan.window_of(log), bound) for plan in (plans[0], plans[-1]))
            if None not in (first, last) and last < first:
                raise ShareStateError(
                    f"diff: {log.name}: the later point is before the earlier one; exchange the two"
                )
    found = [fold_point(plan, selection) for plan in plans]
    if not any(len(states) for states, *_ in found):
        plans[-1].check(selection)
    return found


def fold_point(plan: FoldPlan, selection: SharePartitionFilter) -> StateTables:
    """The states that an export folds to at one point; none if nothing that is selected has state by then.

    Raises:
        InputError: if a segment cannot be read.
    """
    names = (*_TABLES, HISTORY_TABLE)
    output = OutputSpec(names, incomplete=(HISTORY_TABLE,))
    rows, where = LocalExecutor().fold(plan, output), selection.of_rows
    tables = (returned_table(rows, name, output) for name in names)
    states, in_flight, outcomes = (table if where is None else table.filter(where) for table in tables)
    return states, in_flight, outcomes


def compare_states(before: StateTables, after: StateTables) -> dict[str, Any]:
    """Compare two states.

    Args:
        before, after: tables of each.
    Returns:
        `share_partitions`: how many are compared; `differing`: how many of them differ; `changed`: for each
            of those
        its key, `change` (appeared, disappeared, changed), `scalars` (column -> [before, after], if they
        differ), `ranges` (record_count and the attributes of a RangeChange) and `deliveries` (what became of
        them between the points, None if the input does not show it); `without_beginning`: keys of those whose
        snapshot is not in the input at one of the two points.
    """
    columns = [*KEY, *_SCALARS, "snapshot_offset"]
    old, new = (
        {_identity(row): row for row in states.select(columns).to_pylist()} for states, *_ in (before, after)
    )
    old_ranges, new_ranges = _ranges_by_key(before[1]), _ranges_by_key(after[1])
    old_outcomes, new_outcomes = (
        {_identity(row): row for row in one[2].to_pylist()} for one in (before, after)
    )
    changed = []
    for key in {**old, **new}:
        windows = (
            _window(old.get(key), old_ranges.get(key, [])),
            _window(new.get(key), new_ranges.get(key, [])),
        )
        if row := _compare(old.get(key), new.get(key), compare_windows(*windows)):
            changed.append(row | {"deliveries": _deliveries(old_outcomes.get(key), new_outcomes.get(key))})
    # As `show` sorts: a topic without a name comes last.
    by = ("group_id", "topic", "topic_id", "partition", "dialect")
    changed.sort(key=lambda row: [(row[name] is None, row[name]) for name in by])
    unknown = [lacking for states, *_ in (before, after) for lacking in _keys_without_beginning(states)]
    return {
        "share_partitions": len({*old, *new}),
        "differing": len(changed),
        "changed": changed,
        "without_beginning": [dict(key) for key in dict.fromkeys(tuple(row.items()) for row in unknown)],
    }


def _deliveries(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, int] | None:
    """What became of deliveries between two points, from the counts up to each.

    None if they are not known.
    """
    if new is None or any(new[column] is None for column in OUTCOME_COLUMNS):
        return None
    return {name: new[column] - ((old and old[column]) or 0) for column, name in OUTCOME_COLUMNS.items()}


def _keys_without_beginning(states: pa.Table) -> list[dict[str, Any]]:
    """The keys of states whose snapshot is not in the input."""
    rows = states.filter(lacks_beginning(states)).select(list(KEY))
    return rows.sort_by(
        [(name, "ascending") for name in ("group_id", "topic_id", "topic", "partition")]
    ).to_pylist()


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The key, without the topic's name if it has an id: the name may become known late."""
    return (row["dialect"], row["group_id"], row["topic_id"] or row["topic"], row["partition"])


def windows_by_key(states: pa.Table, in_flight: pa.Table) -> dict[tuple[Any, ...], InFlightWindow]:
    """The window of each share-partition that has a start offset.

    Args:
        states, in_flight: rows of the tables of these names.
    Returns:
        (dialect, group id, topic id, or name without one, partition) -> window.
    """
    ranges = _ranges_by_key(in_flight)
    rows = {_identity(row): row for row in states.select([*KEY, "start_offset", "end_offset"]).to_pylist()}
    windows = {key: _window(row, ranges.get(key, ())) for key, row in rows.items()}
    return {key: window for key, window in windows.items() if window is not None}


def _ranges_by_key(rows: pa.Table) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    ranges: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    columns = [*KEY, "first_offset", "last_offset", "delivery_state", "delivery_count", "gap"]
    for row in rows.select(columns).sort_by("first_offset").to_pylist():
        ranges.setdefault(_identity(row), []).append(row)
    return ranges


def _window(state: Mapping[str, Any] | None, ranges: Sequence[Mapping[str, Any]]) -> InFlightWindow | None:
    if state is None or state["start_offset"] < 0:
        return None
    named = [(row["first_offset"], row["last_offset"], _range_state(row)) for row in ranges]
    return InFlightWindow(state["start_offset"], state["end_offset"], named)


def _range_state(row: Mapping[str, Any]) -> RangeState:
    if row["gap"]:
        return "gap", False
    state = row["delivery_state"]
    return f"{state_name(state)} ({row['delivery_count']})", state in TERMINAL


def _compare(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, changes: Sequence[RangeChange]
) -> dict[str, Any] | None:
    # The tables hold -1 for what is not known.
    values = {
        name: [row[name] if row and row[name] != -1 else None for row in (old, new)] for name in _SCALARS
    }
    scalars = {name: pair for name, pair in values.items() if pair[0] != pair[1]}
    if old and new and not scalars and not changes:
        return None
    ranges = [asdict(one) | {"record_count": one.last_offset - one.first_offset + 1} for one in changes]
    kind = "changed" if old and new else "appeared" if new else "disappeared"
    known = new or old or {}
    return {name: known[name] for name in KEY} | {"change": kind, "scalars": scalars, "ranges": ranges}


def print_differences(differences: Mapping[str, Any]) -> None:
    """Print the result of `compare_states`: one line per share-partition, then its changed ranges."""
    changed = differences["changed"]
    if not changed:
        print_line(f"no difference in {pluralize(differences['share_partitions'], 'share-partition')}")
        _print_without_beginning(differences["without_beginning"])
        return
    rows = []
    for row in changed:
        scalars, totals = row["scalars"], Counter[str]()
        for one in row["ranges"]:
            totals[one["change"]] += one["record_count"]
        epochs = [
            f"{name.removesuffix('_epoch')} {_step(scalars[name])}" for name in _EPOCHS if name in scalars
        ]
        key = [row["group_id"], row["topic"] or row["topic_id"], row["partition"], row["change"]]
        steps = [_step(scalars[name]) if name in scalars else None for name in ("start_offset", "end_offset")]
        deliveries = row.get("deliveries")
        # The counts say what the windows cannot: what became of records that SPSO has passed since.
        kinds = [kind for kind in _KINDS if deliveries is None or kind not in (FINISHED, GIVEN_UP, PASSED)]
        told = [f"{count:,} {kind}" for kind in kinds if (count := totals[kind])]
        records = ", ".join(
            ([outcomes_text(deliveries)] if deliveries and any(deliveries.values()) else []) + told
        )
        rows.append([*key, *steps, ", ".join(epochs), records])
    columns = ["GROUP", "TOPIC", "PARTITION", "CHANGE", "SPSO", "SPEO", "EPOCHS", "RECORDS"]
    print_table(columns, rows, numeric=("PARTITION",))
    print_line()
    for row in changed:
        _print_ranges(row)
    verb = "differs" if differences["differing"] == 1 else "differ"
    print_line(
        f"{differences['differing']:,} of {pluralize(differences['share_partitions'], 'share-partition')} {verb}"
    )
    _print_without_beginning(differences["without_beginning"])


def _print_without_beginning(keys: Sequence[Mapping[str, Any]]) -> None:
    """Print of which share-partitions it is not known what was in flight."""
    if keys:
        names = listed(
            [f"{key['group_id']} {key['topic'] or key['topic_id']} {key['partition']}" for key in keys], 3
        )
        print_line(escape_unprintable(f"not known what was in flight of {names}: {NO_BEGINNING}"))


def _print_ranges(row: Mapping[str, Any]) -> None:
    # Most ranges are terminal ones that SPSO passes, which is expected.
    ranges = _merge_counts([one for one in row["ranges"] if one["change"] != PASSED])
    if not ranges:
        return
    print_line(f"{row['group_id']} {row['topic'] or row['topic_id']} {row['partition']}")
    for change, first, last, before, after in ranges[:_MAX_RANGES]:
        offsets = str(first) if first == last else f"{first}-{last}"
        print_line(f"  {change:<9} {offsets}: {_named(before)} -> {_named(after)}")
    if (left := len(ranges) - _MAX_RANGES) > 0:
        print_line(f"  and {pluralize(left, 'more range')} (--json lists all)")
    print_line()


def _merge_counts(ranges: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, int, list[str], list[str]]]:
    """Neighbours that differ in delivery counts only as one: change, first, last, the states before and after."""
    merged = list[tuple[str, int, int, list[str], list[str]]]()
    for one in ranges:
        new = (one["change"], one["first_offset"], one["last_offset"], [one["before"]], [one["after"]])
        if merged and merged[-1][2] + 1 == new[1] and _kind_of(merged[-1]) == _kind_of(new):
            last = merged.pop()
            new = (new[0], last[1], new[2], last[3] + new[3], last[4] + new[4])
        merged.append(new)
    return merged


def _kind_of(merged: tuple[str, int, int, list[str], list[str]]) -> tuple[str, str, str]:
    change, _, _, before, after = merged
    return change, before[0].partition(" (")[0], after[0].partition(" (")[0]


def _named(states: Sequence[str]) -> str:
    """The state that all have, with the smallest and the largest delivery count."""
    name, _, rest = states[0].partition(" (")
    counts = sorted({int(state.partition(" (")[2].rstrip(")")) for state in states} if rest else ())
    if len(counts) < 2:
        return states[0]
    return f"{name} ({counts[0]} to {counts[-1]})"


def _step(pair: Sequence[Any]) -> str:
    before, after = (UNKNOWN if value is None else value for value in pair)
    return f"{before} -> {after}"
