"""Share groups held against their state, one rule at a time; real brokers' logs break none."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from share_state.fold.groups.group_tables import (
    FoldedGroups,
    add_topic_names,
    expected_assignment_sizes,
    fold_groups,
    members_per_partition,
    partition_counts_by_id,
    partition_counts_by_name,
)
from share_state.fold.groups.sticky import fold_sticky
from share_state.fold.state_log import fold_log
from share_state.kafka.classic_groups import read_generations
from share_state.rules.breaches import OFF
from share_state.rules.findings import findings
from share_state.rules.group_context import AuditedGroups
from share_state.rules.registry import Scope, registered
from share_state.rules.share_groups import judge_groups, judge_sticky
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_group_logs, find_logs
from share_state.sources.segments import read_chunks
from share_state.sources.topics import Topics, read_topics
from tests.fold.groups.described import Scenario, scenarios
from tests.fold.groups.group_writer import (
    QUIET,
    T,
    classic_group,
    classic_member,
    current,
    folded,
    group_metadata,
    member_metadata,
    share_group,
    state_partitions,
    subscription,
    target,
    target_epoch,
    told,
    write_group_log,
)
from tests.kafka.batches import NOW, Record
from tests.profiles import nightly, some_of


def states(*keys: tuple[str, str, int], epoch: int = 3) -> pa.Table:
    """Live share-partitions, as far as the rules look."""
    rows = [
        {
            "dialect": "share_group_state",
            "group_id": group,
            "topic_id": topic_id,
            "partition": partition,
            "state_partition": 7,
            "state_epoch": epoch,
            "last_offset": 40 + partition,
        }
        for group, topic_id, partition in keys
    ]
    return pa.Table.from_pylist(rows, schema=table_schema("share_partition_state"))


BOTH = states(("G1", T, 0), ("G1", T, 1))


def topics(count: int) -> Topics:
    """The topic T with so many partitions."""
    return Topics(
        pa.table({"topic_id": [T], "topic": ["T"]}),
        pa.table({"topic_id": [T] * count, "partition": pa.array(range(count), pa.int32()), "end_offset": [0] * count}),
    )


def found(groups: FoldedGroups, of_states: pa.Table = BOTH, **audited) -> list[dict]:
    return findings(Scope.GROUPS, AuditedGroups(groups, of_states, **audited)).to_pylist()


def codes(groups: FoldedGroups, of_states: pa.Table = BOTH, **audited) -> list[tuple[str, str | None, int | None]]:
    """(rule, topic, partition) of every finding."""
    return [(row["rule"], row["topic"], row["partition"]) for row in found(groups, of_states, **audited)]


def test_a_quiet_group_breaks_no_rule(tmp_path):
    assert found(folded(tmp_path, QUIET)) == []


def test_state_of_a_group_without_a_record_is_orphaned(tmp_path):
    groups = folded(tmp_path, QUIET)
    (row,) = found(groups, states(("G1", T, 0), ("G1", T, 1), ("G2", T, 0)))
    assert (row["rule"], row["severity"], row["group_id"], row["partition"]) == (
        "ORPHAN_SHARE_STATE",
        "warning",
        "G2",
        0,
    )
    assert (row["state_partition"], row["offset"], row["dialect"]) == (7, 40, "share_group_state")


def test_state_of_a_deleted_group_is_orphaned(tmp_path):
    deletion = [told(record_type, "G1") for record_type in (12, 15, 11)]
    groups = folded(tmp_path, [*share_group("G1", {}, ready={T: [0, 1]}), *deletion])
    assert codes(groups) == [("ORPHAN_SHARE_STATE", None, 0), ("ORPHAN_SHARE_STATE", None, 1)]


@pytest.mark.parametrize("partition_count", [2, None])
def test_orphans_are_judged_only_where_the_group_s_log_was_read(tmp_path, partition_count):
    """G2 belongs to partition 1 of 2, which is not here."""
    place = write_group_log(tmp_path, QUIET)
    place = place.rename(tmp_path / "__consumer_offsets-0")
    groups = fold_groups(find_group_logs([str(place)]), partition_count=partition_count)
    groups.partition_count = partition_count
    assert codes(groups, states(("G1", T, 0), ("G1", T, 1), ("G2", T, 0))) == []


def test_state_that_its_group_does_not_list_is_found(tmp_path):
    groups = folded(tmp_path, share_group("G1", {"m1": {T: [0]}}, ready={T: [0]}))
    assert codes(groups) == [("UNINITIALIZED_PARTITION", None, 1)]


def test_a_group_of_4_1_that_lists_nothing_lists_none_of_its_state(tmp_path):
    groups = folded(tmp_path, [group_metadata("G1", 3)])
    assert codes(groups, states(("G1", T, 0))) == [("UNINITIALIZED_PARTITION", None, 0)]


def test_state_that_is_being_made_or_deleted_is_listed_enough(tmp_path):
    records = [group_metadata("G1", 3), state_partitions("G1", {}, {T: [0, 1]})]
    assert codes(folded(tmp_path / "a", records)) == []
    records = [group_metadata("G1", 3), state_partitions("G1", {}, deleting=[T])]
    assert codes(folded(tmp_path / "b", records)) == []


def test_groups_of_4_0_list_nothing_and_are_not_held_to_it(tmp_path):
    groups = folded(tmp_path, [told(11, "G1", releases="4.0", epoch=3)])
    assert codes(groups) == []


def test_an_initialized_share_partition_without_state_is_found(tmp_path):
    assert codes(folded(tmp_path, QUIET), states(("G1", T, 0))) == [("MISSING_SHARE_STATE", "T", 1)]
    assert codes(fold_groups(find_group_logs([str(tmp_path)])), states()) == []


def test_state_of_a_later_epoch_than_its_group_is_found(tmp_path):
    """I40: equal is what initialisation writes."""
    groups = folded(tmp_path, QUIET)
    assert codes(groups, states(("G1", T, 0), ("G1", T, 1), epoch=3)) == []
    rows = found(groups, states(("G1", T, 0), ("G1", T, 1), epoch=4))
    assert [row["rule"] for row in rows] == ["STATE_EPOCH_AHEAD_OF_GROUP"] * 2
    assert dict(rows[0]["evidence"]) == {"state_epoch": "4", "group_epoch": "3"}


def test_a_reset_that_bumps_the_group_epoch_breaks_no_rule(tmp_path):
    """Merged for 4.5; where epoch and start are those of the state, initializing it writes no record of state."""
    reset = [
        group_metadata("G1", 4),
        target_epoch("G1", 4),
        state_partitions("G1", {}, {T: [0, 1]}),
        state_partitions("G1", {T: [0, 1]}),
    ]
    groups = folded(tmp_path, [*share_group("G1", {}, ready={T: [0, 1]}), *reset])
    assert found(groups, states(("G1", T, 0), ("G1", T, 1), epoch=4)) == []
    # State 0 was reset, state 1 had this start and the epoch of an earlier reset.
    assert found(groups, pa.concat_tables([states(("G1", T, 0), epoch=4), states(("G1", T, 1), epoch=3)])) == []


def test_a_group_in_another_partition_than_its_own_is_found(tmp_path):
    """K-11: group001 belongs to partition 28 of 50, G1 to 0."""
    records = [group_metadata("group001", 1), group_metadata("G1", 1)]
    groups = folded(tmp_path / "a", records, partition_count=50)
    (row,) = found(groups, states())
    assert (row["rule"], row["group_id"]) == ("MISPLACED_GROUP", "group001")
    assert dict(row["evidence"]) == {"partition": "0", "belongs_to": "28"}
    classic = classic_group("group001", 1, [classic_member("m1", subscription(["t"]))], "range")
    assert codes(folded(tmp_path / "b", [classic], partition_count=50), states()) == [("MISPLACED_GROUP", None, None)]


def test_misplacement_rests_where_the_number_of_partitions_is_not_known(tmp_path):
    write_group_log(tmp_path, [group_metadata("group001", 1)], partition=3)
    groups = fold_groups(find_group_logs([str(tmp_path)]))
    assert groups.partition_count is None
    assert codes(groups, states()) == []


@pytest.mark.parametrize(("later", "expected"), [(31_000, [("MISSING_INIT", "T", 2)]), (29_000, [])])
def test_a_new_partition_that_is_not_initialized_in_time_is_found(tmp_path, later, expected):
    """K-79: 3 partitions, [0, 1] initialized."""
    groups = folded(tmp_path, QUIET)
    assert codes(groups, topics=topics(3), now_ms=NOW + later) == expected
    counted = replace(topics(0), counts=counts(3, None))
    assert codes(groups, topics=counted, now_ms=NOW + later) == expected


def counts(partitions: int, extended: int | None) -> pa.Table:
    """`Topics.counts` of a topic that got its last partition at a time."""
    return pa.table({"topic_id": [T], "partitions": [partitions], "extended": pa.array([extended], pa.int64())})


@pytest.mark.parametrize(
    ("age", "expected"),
    [(31_000, [("MISSING_INIT", "T", 2)]), (30_000, []), (0, []), (None, [("MISSING_INIT", "T", 2)])],
)
def test_a_partition_that_was_just_added_may_not_be_initialized_yet(tmp_path, age, expected):
    now = NOW + 3_600_000
    added = replace(topics(0), counts=counts(3, None if age is None else now - age))
    assert codes(folded(tmp_path, QUIET), topics=added, now_ms=now) == expected


@pytest.mark.parametrize(("age", "found"), [(31_000, True), (30_000, False), (None, False)])
def test_partitions_added_while_a_group_has_no_members_are_an_info(tmp_path, age, found):
    """A topics file does not show when partitions were added; the metadata log does."""
    now = NOW + 3_600_000
    groups = folded(tmp_path, share_group("G1", {}, ready={T: [0, 1]}))
    added = replace(topics(0), counts=counts(4, None if age is None else now - age))
    assert codes(groups, topics=added, now_ms=now) == [("ADDED_PARTITION_UNINITIALIZED", "T", 2)] * found
    if found:
        (row,) = judge_groups(AuditedGroups(groups, states(), added, now)).to_pylist()
        assert row["severity"] == "info"
        assert dict(row["evidence"]) == {"partitions": "2", "last_partition": "3"}
        assert "4 partitions since 20" in row["message"]


def test_a_topic_used_whole_or_created_again_is_no_added_partition(tmp_path):
    now = NOW + 3_600_000
    whole = folded(tmp_path / "whole", share_group("G1", {}, ready={T: [0, 1]}))
    assert codes(whole, topics=replace(topics(0), counts=counts(2, NOW)), now_ms=now) == []
    again = replace(topics(0), counts=counts(4, NOW).set_column(0, "topic_id", pa.array(["AAAAAAAAAAAAAAAAAAAAAQ"])))
    assert codes(whole, topics=again, now_ms=now) == []
    deleting = folded(tmp_path / "deleting", [group_metadata("G1", 3), state_partitions("G1", {T: [0]}, deleting=[T])])
    assert codes(deleting, topics=replace(topics(0), counts=counts(4, NOW)), now_ms=NOW + 40_000) == []


def test_a_group_without_members_initializes_nothing(tmp_path):
    groups = folded(tmp_path, share_group("G1", {}, ready={T: [0, 1]}))
    assert codes(groups, topics=topics(3), now_ms=NOW + 31_000) == []


@pytest.mark.parametrize(("later", "expected"), [(31_000, [("STUCK_INITIALIZING", "T", 1)]), (29_000, [])])
def test_initializing_that_does_not_end_is_found_by_the_record_s_stamp(tmp_path, later, expected):
    """K-26, K-27."""
    groups = folded(tmp_path, [group_metadata("G1", 3), state_partitions("G1", {T: [0]}, {T: [1]})])
    assert codes(groups, now_ms=NOW + later) == expected


@pytest.mark.parametrize(("later", "expected"), [(300_001, [("DELETE_INCOMPLETE", None, 0)]), (300_000, [])])
def test_deleting_that_does_not_end_is_found(tmp_path, later, expected):
    groups = folded(tmp_path, [group_metadata("G1", 3), state_partitions("G1", {}, deleting=[T])])
    assert codes(groups, states(("G1", T, 0)), now_ms=NOW + later) == expected


def test_an_assigned_partition_that_is_not_initialized_is_found(tmp_path):
    """K-78: target T:[0, 1], initialized T:[0]."""
    groups = folded(tmp_path, share_group("G1", {"m1": {T: [0, 1]}}, ready={T: [0]}))
    assert codes(groups, states(("G1", T, 0))) == [("ASSIGNED_UNINITIALIZED", "T", 1)]


@pytest.mark.parametrize(("age", "is_found"), [(58, False), (30_000, False), (30_001, True)])
def test_an_assignment_that_is_behind_the_group_has_time_to_follow(tmp_path, age: int, is_found: bool):
    """A topic was deleted: the group is at epoch 4, the assignment of epoch 3 still has its partition."""
    records = [*share_group("G1", {"m1": {T: [0, 1]}}, ready={T: [0]}), group_metadata("G1", 4)]
    codes_now = codes(folded(tmp_path, records), states(("G1", T, 0)), now_ms=NOW + age)
    assert (("ASSIGNED_UNINITIALIZED", "T", 1) in codes_now) == is_found


def test_a_member_ahead_of_the_assignment_is_found(tmp_path):
    """K-15: member 4, assignment epoch 3."""
    groups = folded(tmp_path, [*QUIET, current("G1", "m1", 4, {T: [0]})])
    (row,) = found(groups)
    assert (row["rule"], dict(row["evidence"])) == ("EPOCH_AHEAD", {"member": "m1"})


@pytest.mark.parametrize(("count", "expected"), [(200, []), (201, ["GROUP_OVER_CAP"])])
def test_more_members_than_a_group_may_have_are_found(tmp_path, count, expected):
    """K-01, K-25."""
    records = [group_metadata("G1", 3), target_epoch("G1", 3)]
    records += [member_metadata("G1", f"m{number}") for number in range(count)]
    assert [row["rule"] for row in found(folded(tmp_path, records), states())] == expected


CLASSIC = classic_group("G1", 1, [classic_member("m1", subscription(["t"]))], "range")
CONSUMER = Record(bytes.fromhex("000300024731"), b"\0\0\0\0\0\1\0")


@pytest.mark.parametrize("other", [CLASSIC, CONSUMER])
def test_a_group_of_two_types_is_found(tmp_path, other):
    assert [rule for rule, _, _ in codes(folded(tmp_path / "a", [*QUIET, other]))] == ["GROUP_TYPE_CLASH"]
    assert codes(folded(tmp_path / "b", [other, Record(other.key, None), *QUIET])) == []


@pytest.mark.parametrize(("after", "severity"), [(2, "warning"), (3, "warning"), (5, "info"), (4, None)])
def test_a_group_epoch_that_falls_is_found_and_one_that_jumps_is_told(tmp_path, after, severity):
    """K-23: 3 then 2, 3 then 5."""
    rows = found(folded(tmp_path, [group_metadata("G1", 3), group_metadata("G1", after)]), states())
    expected = [] if severity is None else [("GROUP_EPOCH_REGRESSION", severity, 1)]
    assert [(row["rule"], row["severity"], row["offset"]) for row in rows] == expected


def test_an_assignment_that_is_due_is_told_with_its_age(tmp_path):
    """K-24: epoch 5, assignment 4."""
    records = [*share_group("G1", {"m1": {T: [0, 1]}}, epoch=4, ready={T: [0, 1]}), group_metadata("G1", 5)]
    (row,) = found(folded(tmp_path, records), now_ms=NOW + 5000)
    assert (row["rule"], row["severity"]) == ("ASSIGNMENT_PENDING", "info")
    assert row["message"] == "the assignment has epoch 4, but the group has been at 5 for 5.0 s"


def test_a_group_that_waits_for_its_first_assignment_is_told(tmp_path):
    (row,) = found(folded(tmp_path, [group_metadata("G1", 1), member_metadata("G1", "m1")]), states())
    assert row["message"] == "the assignment has no epoch yet, but the group has been at 1 for 0 s"


def test_a_group_without_members_waits_for_nothing(tmp_path):
    """Up to 4.3 the epoch rises when the last member leaves, and no assignment follows."""
    assert codes(folded(tmp_path, [group_metadata("G1", 5), target_epoch("G1", 4)]), states()) == []


@pytest.mark.parametrize(
    ("members", "partitions", "expected"), [(3, 7, 1), (6, 4, 2), (7, 3, 3), (200, 3, 67), (2, 0, 0), (3, 3, 1)]
)
def test_the_sharing_of_partitions(members, partitions, expected):
    assert members_per_partition(members, partitions) == expected


@pytest.mark.parametrize(
    ("members", "partitions", "expected"),
    [
        (3, 7, [3, 2, 2]),
        (6, 4, [2, 1, 1, 2, 1, 1]),
        (7, 3, [2, 1, 1, 2, 1, 1, 1]),
        (7, 29, [5, 4, 4, 4, 4, 4, 5]),
        (2, 0, [0, 0]),
        (0, 3, []),
    ],
)
def test_the_sizes_that_kafka_s_assignor_gives(members, partitions, expected):
    """K-31, K-32."""
    assert expected_assignment_sizes(members, partitions) == expected


@nightly("100,000 cases")
def test_doubles_give_one_too_many_in_as_many_cases_as_in_kafka():
    """K-32: 1789 of the 40000 pairs up to 200."""
    pairs = [(members, partitions) for members in range(1, 201) for partitions in range(1, 201)]
    off = [sum(expected_assignment_sizes(*pair)) - members_per_partition(*pair) * pair[1] for pair in pairs]
    assert set(off) == {0, 1}
    assert sum(off) == 1789


def assigned(sizes: list[list[int]]) -> list[Record]:
    """A group whose members have these partitions of T."""
    every = sorted({partition for of_member in sizes for partition in of_member})
    return share_group("G1", {f"m{number}": {T: of} for number, of in enumerate(sizes)}, ready={T: every})


def balance(tmp_path: Path, sizes: list[list[int]]) -> list[tuple[str, int | None]]:
    rows = found(folded(tmp_path, assigned(sizes)), states())
    return [(row["rule"], row["partition"]) for row in rows]


@pytest.mark.parametrize(
    "sizes",
    [
        [[0, 1, 2], [3, 4], [5, 6]],
        [[0, 1], [2, 3], [4, 5, 6]],  # the order of the members is that of a map
        [[0, 1], [0], [1], [2, 3], [2], [3]],
        [[0], [1]],
    ],
)
def test_even_assignments_break_no_rule(tmp_path, sizes):
    """K-31: (3, 7) as [3, 2, 2], (6, 4) as [2, 1, 1, 2, 1, 1]."""
    assert balance(tmp_path, sizes) == []


def test_an_uneven_assignment_is_found(tmp_path):
    """K-34: [3, 1]."""
    assert balance(tmp_path, [[0, 1, 2], [3]]) == [("UNBALANCED", None)]


def test_a_partition_of_too_many_members_is_found(tmp_path):
    """K-33: three members of partition 0 where two would do."""
    assert balance(tmp_path, [[0], [0], [0], [1]]) == [("OVERSHARED", 0)]


def test_balance_is_not_judged_where_members_want_different_topics(tmp_path):
    records = [*assigned([[0, 1, 2], [3]]), member_metadata("G1", "m1", ["T", "U"])]
    assert codes(folded(tmp_path, records), states()) == []


def test_balance_is_not_judged_of_groups_of_4_0(tmp_path):
    """Its assignor gives every member every partition."""
    everything = {"topic_partitions": [{"topic_id": T, "partitions": [0, 1, 2]}]}
    records = [told(11, "G1", releases="4.0", epoch=1)]
    for member in ("m1", "m2"):
        records += [member_metadata("G1", member), told(13, "G1", member, **everything)]
    assert codes(folded(tmp_path, [*records, target_epoch("G1", 1)]), states()) == []


def test_balance_is_not_judged_while_an_assignment_is_due(tmp_path):
    records = [*assigned([[0, 1, 2], [3]]), group_metadata("G1", 4)]
    assert [rule for rule, _, _ in codes(folded(tmp_path, records), states())] == ["ASSIGNMENT_PENDING"]


def test_a_member_without_an_assignment_counts_as_one_with_none(tmp_path):
    records = [*assigned([[0, 1]]), member_metadata("G1", "m9")]
    assert [rule for rule, _, _ in codes(folded(tmp_path, records), states())] == ["UNBALANCED"]


def test_severities_are_chosen_and_rules_are_switched_off(tmp_path):
    audited = AuditedGroups(folded(tmp_path, [*QUIET, current("G1", "m1", 4, {T: [0]}), CLASSIC]), BOTH)
    rows = findings(Scope.GROUPS, audited, {"EPOCH_AHEAD": "error", "GROUP_TYPE_CLASH": OFF}).to_pylist()
    assert [(row["rule"], row["severity"]) for row in rows] == [("EPOCH_AHEAD", "error")]


def test_what_cannot_be_read_becomes_findings(tmp_path):
    records = [
        group_metadata("G1", 3),
        Record(bytes.fromhex("000b00024731"), b"\0\7"),
        Record(b"\0\x63", b""),
        told(11, "G1"),
        Record(bytes.fromhex("000b00024731"), bytes.fromhex("00000000000300000000000000ff00ff")),
    ]
    faults = tuple(folded(tmp_path, records).faults)
    rows = findings(Scope.GROUP_RECORDS, faults).to_pylist()
    assert len(rows) == len(faults)
    assert sorted((row["rule"], row["severity"], row["offset"], row["group_id"]) for row in rows) == [
        ("UNKNOWN_RECORD_TYPE", "info", 2, None),
        ("VALUE_MALFORMED", "warning", 4, "G1"),
        ("VALUE_VERSION_UNKNOWN", "error", 1, None),
    ]
    assert {dict(row["evidence"])["group_partition"] for row in rows} == {"0"}


SCENARIOS = scenarios()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[one.name for one in SCENARIOS])
def test_real_brokers_break_no_rule(scenario: Scenario):
    """But that 4.0's group g0 ended while its assignment was due."""
    groups = fold_groups(find_group_logs([str(scenario.folder)]), partition_count=3)
    logs = find_logs([str(scenario.folder)])
    of_states = pa.concat_tables([fold_log(log).states for log in logs])
    assert of_states.num_rows
    rows = found(groups, of_states, topics=read_topics(str(scenario.folder / "topics.json")))
    expected = [("ASSIGNMENT_PENDING", "g0")] if scenario.name == "4.0.2/chaos" else []
    assert [(row["rule"], row["group_id"]) for row in rows] == expected


@pytest.mark.parametrize("scenario", some_of(SCENARIOS, 1), ids=lambda scenario: scenario.name)
def test_at_no_time_do_real_brokers_break_a_rule_over_members(scenario: Scenario):
    """At the end of every batch: assignments may be due, and 4.1's assignor is less even than those after it."""
    met = set()
    for log in find_group_logs([str(scenario.folder)]):
        for end in [int(batch["last_offset"]) + 1 for chunk in read_chunks(log) for batch in chunk.batches]:
            groups = fold_groups([log], Window(until_offset=end), partition_count=3)
            assert groups.faults == []
            met |= {row["rule"] for row in found(groups, states())}
    assert met <= {"ASSIGNMENT_PENDING"} | ({"UNBALANCED"} if scenario.release == "4.1.2" else set())


def test_orphans_of_state_that_was_written_without_a_group_are_found(tmp_path):
    """The fixture's own groups are real; a log without any group makes all of its state orphans."""
    scenario = next(one for one in SCENARIOS if one.name == "4.3.1/happy")
    of_states = pa.concat_tables([fold_log(log).states for log in find_logs([str(scenario.folder)])])
    write_group_log(tmp_path, [group_metadata("other", 1)])
    groups = fold_groups(find_group_logs([str(tmp_path)]), partition_count=1)
    rows = found(groups, of_states)
    assert {row["rule"] for row in rows} == {"ORPHAN_SHARE_STATE"}
    assert len(rows) == of_states.num_rows == 6


def test_a_target_of_a_member_that_is_gone_is_no_member(tmp_path):
    groups = folded(tmp_path, [group_metadata("G1", 3), target("G1", "m1", {T: [0]})])
    assert groups.groups["G1"].state == "Empty"
    assert groups.share_group_members.num_rows == 0


def test_every_rule_is_judged_at_once(tmp_path):
    unreadable = Record(CLASSIC.key, b"\0\x09")
    groups = folded(tmp_path, [*QUIET, current("G1", "m1", 4, {T: [0]}), Record(b"\0\x63", b""), unreadable])
    rows = judge_groups(AuditedGroups(groups, BOTH)).to_pylist()
    assert [row["rule"] for row in rows] == ["UNKNOWN_RECORD_TYPE", "EPOCH_AHEAD", "GROUP_TYPE_CLASH"]
    rows = judge_sticky(fold_sticky(*read_generations(groups.classic))).to_pylist()
    assert [(row["rule"], row["group_id"], row["dialect"]) for row in rows] == [
        ("VALUE_VERSION_UNKNOWN", "G1", "share_group_state")
    ]


def test_every_rule_over_groups_is_registered():
    shared = (
        "UNINITIALIZED_PARTITION STATE_EPOCH_AHEAD_OF_GROUP ORPHAN_SHARE_STATE MISPLACED_GROUP ASSIGNED_UNINITIALIZED"
        " MISSING_INIT EPOCH_AHEAD GROUP_OVER_CAP"
    )
    sticky = "STALE_CLAIM DOUBLE_CLAIM DOUBLE_ASSIGNED FALSE_CLAIM GENERATION_RESET UNEXPECTED_USER_DATA"
    assert {registered()[code].severity for code in f"{shared} {sticky}".split()} == {"warning"}


def test_names_that_are_given_win_over_those_that_the_groups_tell():
    given = Topics(pa.table({"topic_id": ["a"], "topic": ["given"]}), topics(2).ends)
    merged = add_topic_names(given, {"a": "told", "b": "other"})
    assert merged.name_of(pa.array(["a", "b", "c"])).to_pylist() == ["given", "other", None]
    assert merged.ends is given.ends


def test_the_number_of_partitions_is_that_of_the_end_offsets():
    assert partition_counts_by_name(topics(3)) == {"T": 3}
    assert partition_counts_by_id(topics(0)) == {}


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ({T: {"name": "T", "partitions": 3}}, {T: 3}),
        ({T: {"partitions": 3}}, {T: 3}),
        ({T: {"name": "T", "partitions": 3, "end_offsets": {"0": 9}}}, {T: 3}),
        ({T: {"name": "T", "partitions": 1, "end_offsets": {"4": 9}}}, {T: 5}),
        # As the fixtures list them: a partition without a leader has no high watermark, and is one of three.
        ([{"topicId": T, "name": "T", "partitions": [{"partition": 0, "highWatermark": 9}, {"partition": 2}]}], {T: 3}),
        ({T: "T"}, {}),
    ],
)
def test_the_number_of_partitions_is_the_one_that_is_given(tmp_path: Path, given: object, counts: dict[str, int]):
    (tmp_path / "topics.json").write_text(json.dumps(given))
    read = read_topics(str(tmp_path / "topics.json"))
    assert partition_counts_by_id(read) == counts
    assert partition_counts_by_id(add_topic_names(read, {"b": "other"})) == counts
