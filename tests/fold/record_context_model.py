"""What was true before and after each record, record by record and offset by offset: slow, short and independent."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from share_state.fold.record_context import BROKEN_RULES
from share_state.jit.compile import first_class
from share_state.kafka.state_records import StateRecords
from tests.present import present
from tests.truth import TERMINAL

SNAPSHOT, UPDATE, TOMBSTONE = 0, 1, 2
UNREADABLE, EARLY = 8 | 32 | 64, 1
NO_RANGE = -(2**31)
FARTHEST = 2**63 - 1

EVERY_RECORD = first_class(lambda record, context, batches, limits: 1, BROKEN_RULES)
"""In place of the rules' conditions: selects every record of a share-partition."""

Fact = dict[str, Any]
Values = dict[int, tuple[int, int]]
"""Offset -> (delivery count, delivery state)."""


def facts(records: StateRecords) -> list[Fact]:
    """One fact a record of a share-partition; what is meaningless where nothing is known before it is left out."""
    known: dict[int, Fact] = {}
    return [_fact(row, _values(row, records.batches), known) for row in records.rows if row["key"] >= 0]


def seen(row: np.void) -> Fact:
    """A RECORD_CONTEXT row in the form of `facts`."""
    names = _ALWAYS if not row["exists_before"] else present(row.dtype.names)
    return {name: row[name].item() for name in names}


_ALWAYS = (
    "is_folded", "exists_before", "was_deleted", "is_initial", "is_cold", "timestamp_before", "start_before",
    "start_after", "end_after", "terminal_after", "left_offset", "left_from", "left_to", "contradicted_offset",
    "contradicted_from", "contradicted_to", "archiving_passed_offset", "rests_on_snapshot", "is_suspect", "gaps_after",
)  # fmt: skip


def _values(row: np.void, batches: np.ndarray) -> Values:
    values: Values = {}
    for first, last, count, state in batches[row["batches"] : row["batches"] + row["batch_count"]].tolist():
        if first <= last < FARTHEST:
            for offset in range(first, last + 1):
                values[offset] = max(values.get(offset, (count, state)), (count, state))
    return values


def _fact(row: np.void, values: Values, known: dict[int, Fact]) -> Fact:
    before = known.setdefault(int(row["key"]), {"state": None, "deleted": False, "timestamp": -1})
    state = before["state"]
    fact = {
        "is_folded": False, "exists_before": False, "was_deleted": False, "is_initial": False, "is_cold": False,
        "is_suspect": False, "gaps_after": 0,
        "rests_on_snapshot": False, "timestamp_before": -1, "start_before": -1, "start_after": -1, "end_after": -1,
        "terminal_after": 0, "left_offset": -1, "left_from": NO_RANGE, "left_to": NO_RANGE, "contradicted_offset": -1,
        "contradicted_from": NO_RANGE, "contradicted_to": NO_RANGE, "archiving_passed_offset": -1,
    }  # fmt: skip
    fact["timestamp_before"] = before["timestamp"]
    fact["was_deleted"] = before["deleted"] and state is None
    fact["is_suspect"] = bool(before.get("unreadable"))
    if state is not None:
        fact |= {f"{name}_before": state[name] for name in _CARRIED}
        fact |= {name: state[name] for name in ("rests_on_snapshot", "is_suspect")} | {"exists_before": True}
    if row["fault"] & UNREADABLE:
        if state is not None:
            state["is_suspect"] = True
        else:
            before["unreadable"] = True
        return fact
    fact["is_folded"] = True
    before["timestamp"] = int(row["timestamp"])
    if row["kind"] == TOMBSTONE:
        before |= {"state": None, "deleted": True, "unreadable": False}
        return fact
    fact["is_cold"] = state is not None and row["kind"] == SNAPSHOT and row["create_time"] != row["write_time"]
    fact["is_initial"] = row["kind"] == SNAPSHOT and (state is None or _initialises(row))
    if row["kind"] == SNAPSHOT or state is None:
        after = _begun(row, values, before.pop("unreadable", False))
        if state is not None and not fact["is_initial"]:
            fact |= _compared(state, after, fact["is_cold"])
    else:
        after, incoming = _updated(row, values, state)
        fact |= _left({at: value for at, value in state["values"].items() if at in incoming}, incoming)
    if state is not None and not fact["is_initial"]:
        passed = [at for at, (_, of) in state["values"].items() if of == 3 and state["start"] <= at < after["start"]]
        fact["archiving_passed_offset"] = min(passed, default=-1)
    start = after["start"]
    fact["start_after"] = start
    fact["end_after"] = -1 if start < 0 else max([start, *(at + 1 for at in after["values"])])
    fact["terminal_after"] = sum(at >= start and of in TERMINAL for at, (_, of) in after["values"].items())
    if start >= 0 and row["delivery_complete_count"] > fact["terminal_after"]:
        fact["gaps_after"] = fact["end_after"] - start - sum(at >= start for at in after["values"])
    before["state"] = after
    return fact


_CARRIED = (
    "start", "snapshot_epoch", "state_epoch", "leader_epoch", "complete_count", "create_time", "write_time",
)  # fmt: skip


def _begun(row: np.void, values: Values, unreadable: bool) -> Fact:
    is_snapshot = row["kind"] == SNAPSHOT
    return {
        "start": int(row["start_offset"]),
        "values": values,
        "snapshot_epoch": int(row["snapshot_epoch"]),
        "state_epoch": int(row["state_epoch"]) if is_snapshot else (-1 if row["layout"] == EARLY else 0),
        "leader_epoch": int(row["leader_epoch"]),
        "complete_count": int(row["delivery_complete_count"]),
        "create_time": int(row["create_time"]),
        "write_time": int(row["write_time"]),
        "rests_on_snapshot": bool(is_snapshot),
        "is_suspect": bool(row["fault"] & 128) or (unreadable and not is_snapshot),
    }


def _updated(row: np.void, values: Values, state: Fact) -> tuple[Fact, Values]:
    after = state | {"complete_count": int(row["delivery_complete_count"])}
    if row["start_offset"] != -1:
        after["start"] = int(row["start_offset"])
    if row["leader_epoch"] != -1:
        after["leader_epoch"] = int(row["leader_epoch"])
    if row["fault"] & 128:
        after["is_suspect"] = True
    start = after["start"]
    incoming = {at: value for at, value in values.items() if start < 0 or at >= start}
    merged = {at: value for at, value in state["values"].items() if start < 0 or at >= start}
    for at, value in incoming.items():
        merged[at] = max(merged.get(at, value), value)
    after["values"] = merged
    return after, incoming


def _initialises(row: np.void) -> bool:
    complete = (-1,) if row["start_offset"] == -1 else (-1, 0)
    return (
        row["layout"] != EARLY
        and row["leader_epoch"] == row["batch_count"] == 0
        and row["create_time"] == row["write_time"]
        and row["delivery_complete_count"] in complete
    )


def _compared(state: Fact, after: Fact, cold: bool) -> Fact:
    old, new, start = state["values"], after["values"], after["start"]
    if cold:
        wrong = [at for at in old.keys() | new.keys() if old.get(at) != new.get(at)]
    else:
        wrong = [at for at, value in old.items() if at >= start and new.get(at, (NO_RANGE, 0)) < value]
        wrong += [at for at in new if at < start]
    fact = {} if cold else _left(old, new)
    if wrong:
        at = min(wrong)
        below = not cold and at < start
        fact |= {"contradicted_offset": at, "contradicted_from": NO_RANGE if below else _packed(old.get(at))}
        fact["contradicted_to"] = NO_RANGE if below else _packed(new.get(at))
    return fact


def _left(old: Values, new: Values) -> Fact:
    for at, value in sorted(new.items()):
        if at in old and _leaves(old[at], value):
            return {"left_offset": at, "left_from": _packed(old[at]), "left_to": _packed(value)}
    return {}


def _leaves(old: tuple[int, int], new: tuple[int, int]) -> bool:
    (old_count, old_state), (new_count, new_state) = old, new
    if new_count < old_count or old_state == new_state:
        return False
    if old_state == 3:
        return new_state in (0, 2)
    if old_state in TERMINAL and new_state in TERMINAL:
        return True
    return old_state in TERMINAL and (new_count > old_count or (old_state, new_state) == (2, 3))


def _packed(value: tuple[int, int] | None) -> int:
    return NO_RANGE if value is None else value[0] * 256 + value[1]


def chunks(records: StateRecords, cuts: list[int]) -> Iterator[StateRecords]:
    """The records in pieces that end before each of these rows, and the rest."""
    for begin, end in zip([0, *cuts], [*cuts, len(records.rows)], strict=True):
        rows = records.rows[begin:end].copy()
        skipped = int(records.rows["batch_count"][:begin].sum())
        rows["batches"] -= np.where(rows["batch_count"] > 0, skipped, 0)
        yield StateRecords(rows, records.batches[skipped : skipped + int(rows["batch_count"].sum())])


def outcomes(records: StateRecords, keys: int, limit: int, count_from: int) -> list[dict[str, int]]:
    """What became of deliveries by share-partition: offset by offset, from records at or after `count_from`."""
    counts = ("acknowledged", "given_up", "rejected", "released", "dead_lettered")
    times = {"failing_since": -1, "failing_until": -1}
    found = [dict.fromkeys((*counts, "rewound_from", "rewound_to"), 0) | times for _ in range(keys)]
    known: dict[int, Fact] = {}
    for row in records.rows:
        if row["key"] < 0:
            continue
        before = known.get(int(row["key"]), {}).get("state")
        values, of_key = _values(row, records.batches), int(row["key"])
        fact = _fact(row, values, known)
        after = known[of_key]["state"]
        if not fact["is_folded"] or row["offset"] < count_from:
            continue
        if after is None:
            found[of_key]["rewound_from"] = -1
        elif before is not None and fact["is_initial"]:
            _note_reset(found[of_key], before, after["start"])
        elif before is not None:
            _count(found[of_key], before["values"], after["values"], limit, int(row["timestamp"]))
    return found


def _note_reset(found: dict[str, int], before: Fact, start: int) -> None:
    leader_starts = before["start"]
    while before["values"].get(leader_starts, (0, 0))[1] in TERMINAL:
        leader_starts += 1
    if 0 <= start < leader_starts and before["start"] >= 0:
        found["rewound_from"] = max(found["rewound_from"], leader_starts)
        found["rewound_to"] = start


def _count(found: dict[str, int], old: Values, new: Values, limit: int, timestamp: int) -> None:
    changes = [_outcome(old.get(at, (0, 0)), value, limit) for at, value in new.items() if old.get(at) != value]
    for change in changes:
        if change:
            found[change] += 1
    if "acknowledged" in changes:
        found["failing_since"] = found["failing_until"] = -1
    elif {"given_up", "rejected"} & {*changes}:
        found["failing_since"] = timestamp if found["failing_since"] == -1 else found["failing_since"]
        found["failing_until"] = timestamp


def _outcome(old: tuple[int, int], new: tuple[int, int], limit: int) -> str | None:
    (old_count, old_state), (new_count, new_state) = old, new
    if old_state in TERMINAL:
        return None
    if new_state == 2:
        return "acknowledged"
    if new_state in (3, 4) and old_state != 3:
        return "given_up" if new_count >= limit else "rejected"
    if new_state == 4:
        return "dead_lettered"
    return "released" if new_state == 0 and new_count > old_count else None
