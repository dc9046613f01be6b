"""Which share-partitions may have no row in the tables of a run: no command may call them healthy.

Their records may precede the input, be missing in it or unreadable, be later than an as-of point, or be in a
state partition that is not in the input. Where groups are known, they list their share-partitions.
"""

from collections.abc import Collection, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.committed import CommittedTables
from share_state.fold.cutoff import hiding_reasons
from share_state.pipeline.result import ABSENT_NOTE, PAST_NOTE, TAIL_NOTE
from share_state.report.share_partitions import STATE
from share_state.sources.log_partition import STATE_TOPIC

_LISTED = "share_group_partitions"
_KEYS = ("group_id", "topic_id", "partition")
_ABSENT_LOGS = ("STATE_PARTITION_MISSING", "LOG_UNREADABLE")
_MOST = 5


def listed_without_state(states: pa.Table, listed: pa.Table) -> list[tuple[str, str, int]]:
    """Group, topic id and partition of the share-partitions that a group lists and that have no state."""
    with_state = set(zip(*(states[name].to_pylist() for name in _KEYS), strict=True))
    found = zip(*(listed[name].to_pylist() for name in (*_KEYS, "status")), strict=True)
    return [
        key
        for *key_, status in found
        if key_[2] is not None
        and status != "deleting"
        and (key := (key_[0], key_[1], key_[2])) not in with_state
    ]


def absent_states(tables: CommittedTables, groups: Collection[str] = ()) -> list[str]:
    """Share-partitions of groups that have state which is not in the input, one line each.

    Args:
        tables: of a run.
        groups: only these; all if there are none.
    """
    where = pc.field("group_id").isin(list(groups)) if groups else None
    states = tables.read(STATE, where, (*_KEYS, "state_partition"))
    listed = tables.read(_LISTED, where) if tables.holds(_LISTED) else None
    lines = list[str]() if listed is None else _listed_lines(states, listed)
    lines += _misplaced(tables, where, states)
    if len(lines) > _MOST:
        lines[_MOST:] = [f"and {len(lines) - _MOST:,} more"]
    if groups and _are_listed(listed, groups):
        return lines
    kept = set(pc.unique(states["state_partition"]).to_pylist())
    return lines + [text for number, text in _absent_logs(tables) if number not in kept]


def unknown_states(tables: CommittedTables, groups: Collection[str] = ()) -> list[str]:
    """`absent_states`, then `possibly_absent_states`.

    Args:
        tables, groups: as for `absent_states`.
    """
    return [*absent_states(tables, groups), *possibly_absent_states(tables, groups)]


def _listed_lines(states: pa.Table, listed: pa.Table) -> list[str]:
    """The share-partitions that their group lists as initialized, and that have no state."""
    names = dict(zip(listed["topic_id"].to_pylist(), listed["topic"].to_pylist(), strict=True))
    absent = listed_without_state(states, listed.filter(pc.field("status") == "initialized"))
    return [
        f"{group} {names.get(topic) or topic}-{partition}: the input holds no state of it; "
        "its group lists it as initialized"
        for group, topic, partition in sorted(absent)
    ]


def _misplaced(tables: CommittedTables, where: pc.Expression | None, states: pa.Table) -> list[str]:
    """The share-partitions that a stream leaves out, because their records are in another state partition."""
    is_misplaced = pc.field("rule") == "WRONG_PARTITION"
    condition = is_misplaced if where is None else is_misplaced & where
    rows = tables.read("findings", condition, (*_KEYS, "topic", "message"))
    if not len(rows):
        return []
    known = set(zip(*(states[name].to_pylist() for name in _KEYS), strict=True))
    return [
        f"{row['group_id']} {row['topic'] or row['topic_id']}-{row['partition']}: {row['message']}, "
        "so its state is left out"
        for row in rows.to_pylist()
        if tuple(row[name] for name in _KEYS) not in known and row["group_id"] is not None
    ]


def _are_listed(listed: pa.Table | None, groups: Collection[str]) -> bool:
    """Whether all of the groups say which share-partitions they have."""
    return listed is not None and set(groups) <= set(listed["group_id"].to_pylist())


def _absent_logs(tables: CommittedTables) -> Iterator[tuple[int | None, str]]:
    """The state partitions that are not in the input, or of which nothing can be read: number and text."""
    rows = tables.read("findings", pc.field("rule").isin(list(_ABSENT_LOGS)), ("state_partition", "message"))
    for row in rows.sort_by("state_partition").to_pylist():
        number = row["state_partition"]
        yield number, f"share-partitions of {_name(STATE_TOPIC, number)}: {row['message']}"


def _name(topic: str, number: int | None) -> str:
    """The name of a log partition; the topic if the format does not show its number."""
    return topic if number is None else f"{topic}-{number}"


def possibly_absent_states(tables: CommittedTables, groups: Collection[str] = ()) -> list[str]:
    """Why share-partitions of groups may have state that is not in the input, or a later one, one line each.

    Args:
        tables, groups: as for `absent_states`.
    """
    where = pc.field("group_id").isin(list(groups)) if groups else None
    kept = set(pc.unique(tables.read(STATE, where, ("state_partition",))["state_partition"]).to_pylist())
    lines = [text for number, text in _absent_logs(tables) if number in kept]
    notes = tables.run["notes"] or ()
    listed = tables.read(_LISTED, columns=("group_id",)) if groups and tables.holds(_LISTED) else None
    if _are_listed(listed, groups):
        return [*lines, *(note for note in notes if note.startswith(TAIL_NOTE))]
    lines += [note for note in notes if note.startswith((ABSENT_NOTE, PAST_NOTE, TAIL_NOTE))]
    for row in (
        tables.read("cutoff").sort_by([("topic", "ascending"), ("partition", "ascending")]).to_pylist()
    ):
        name = _name(row["topic"], row["partition"])
        lines += [f"other share-partitions of {name}: {one}" for one in hiding_reasons(row["reason"])]
    if len(lines) > _MOST:
        lines[_MOST:] = [f"and {len(lines) - _MOST:,} more log partitions"]
    return lines
