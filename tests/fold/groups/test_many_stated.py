"""Many share-partitions with state are held against their groups in columns; a plain loop over rows finds the same."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from share_state.fold.groups.group_replay import to_pairs
from share_state.fold.groups.group_tables import FoldedGroups
from share_state.rules.breaches import OFF
from share_state.rules.findings import findings
from share_state.rules.group_context import AuditedGroups
from share_state.rules.registry import Scope, registered
from tests.fold.groups.many_stated import EPOCH, TOPICS, many_groups, many_states
from tests.profiles import some_of

LATER = 1_000_000
COLUMNS = ("rule", "group_id", "topic_id", "partition", "state_partition", "offset")
RULES = [
    "ORPHAN_SHARE_STATE",
    "UNINITIALIZED_PARTITION",
    "MISSING_SHARE_STATE",
    "STATE_EPOCH_AHEAD_OF_GROUP",
    "DELETE_INCOMPLETE",
]


def troubled(groups: int, seed: int) -> AuditedGroups:
    """Groups of which some are gone, early, or list what they do not have; some states miss, or are of later epochs."""
    drawn, folded = np.random.default_rng(seed), many_groups(groups)
    states = many_states(folded)
    for number, group_id in enumerate(drawn.permutation([*folded.groups])[:9]):
        trouble(folded, str(group_id), number)
    rows = drawn.choice(len(states), min(len(states), 20), replace=False)
    epochs = np.full(len(states), EPOCH)
    epochs[rows[:10]] += 1
    told = pa.array(epochs, pa.int32(), mask=np.isin(np.arange(len(states)), rows[10:13]))
    states = states.set_column(states.column_names.index("state_epoch"), states.schema.field("state_epoch"), told)
    states = states.take(np.delete(np.arange(len(states)), rows[13:]))
    of_control = many_states(many_groups(1)).slice(0, 3)
    of_control = of_control.set_column(0, states.schema.field(0), pa.array(["control_records"] * 3))
    return AuditedGroups(folded, pa.concat_tables([of_control, states]), now_ms=LATER)


def trouble(folded: FoldedGroups, group_id: str, kind: int) -> None:
    group, listed = folded.groups[group_id], folded.state_partitions[group_id]
    match kind:
        case 0:
            group.is_live = False
        case 1:
            group.is_early = True
            del folded.state_partitions[group_id]
        case 2:
            del folded.state_partitions[group_id]
        case 3:
            listed.initialized[TOPICS[0]] = (*range(1, 90), 120, 120)
        case 4:
            listed.initialized["nowhere"] = (3, 1)
        case 5:
            listed.initializing[TOPICS[1]] = listed.initialized.pop(TOPICS[1])
        case 6:
            del listed.initialized[TOPICS[2]]
            folded.state_partitions[group_id] = replace(listed, deleting=(TOPICS[2],))
        case 7:
            group.epoch = None
        case _:
            group.epoch = EPOCH - 1


def plainly(audited: AuditedGroups) -> list[tuple]:
    """What COLUMNS of the findings are to be, row by row."""
    live, listed = audited.folded.live, {group.group_id: one for group, one in audited.listed()}
    rows = [row for row in audited.states.to_pylist() if row["dialect"] == "share_group_state"]
    stated = {(row["group_id"], row["topic_id"], row["partition"]) for row in rows}
    missing = {
        (group_id, *place)
        for group_id in {group_id for group_id, _, _ in stated} & listed.keys()
        for place in to_pairs(listed[group_id].initialized)
    } - stated
    ready = {group_id: to_pairs(one.initialized) | to_pairs(one.initializing) for group_id, one in listed.items()}

    def is_unlisted(row: dict) -> bool:
        group, one = live.get(row["group_id"]), listed.get(row["group_id"])
        if one is None:
            return group is not None and not group.is_early
        place = (row["topic_id"], row["partition"])
        return place not in ready[row["group_id"]] and row["topic_id"] not in one.deleting

    def is_ahead(row: dict) -> bool:
        group, epoch = live.get(row["group_id"]), row["state_epoch"]
        return group is not None and None not in (group.epoch, epoch) and epoch > group.epoch

    def is_deleting(row: dict) -> bool:
        return row["group_id"] in listed and row["topic_id"] in listed[row["group_id"]].deleting

    orphaned, unlisted, _, ahead, deleting = RULES
    checks = {orphaned: lambda row: row["group_id"] not in live, unlisted: is_unlisted}
    found = [about(rule, row) for rule, check in checks.items() for row in rows if check(row)]
    found += [("MISSING_SHARE_STATE", *key, None, listed[key[0]].offset) for key in sorted(missing)]
    checks = {ahead: is_ahead, deleting: is_deleting}
    return found + [about(rule, row) for rule, check in checks.items() for row in rows if check(row)]


def about(rule: str, row: dict) -> tuple:
    return (rule, *(row[name] for name in COLUMNS[1:-1]), row["last_offset"])


@pytest.mark.parametrize(("groups", "seed"), some_of([(0, 0), (1, 1), (3, 2), (9, 3), (300, 4)], 3))
def test_columns_find_what_a_loop_over_rows_finds(groups: int, seed: int):
    """Of 300 groups 300,000 share-partitions, in the same order, and of every rule some."""
    audited = troubled(groups, seed)
    found = findings(Scope.GROUPS, audited, dict.fromkeys(registered().keys() - set(RULES), OFF))
    assert list(zip(*(found[name].to_pylist() for name in COLUMNS), strict=True)) == plainly(audited)
    assert groups < 9 or set(found["rule"].to_pylist()) == set(RULES)


def test_a_quiet_cluster_breaks_no_rule():
    groups = many_groups(20)
    assert findings(Scope.GROUPS, AuditedGroups(groups, many_states(groups), now_ms=LATER)).num_rows == 0
