"""Folded groups are what the running brokers said: members, assignments, epochs, topic names, share-partitions."""

import pytest

from share_state import Window, find_logs, fold_log
from share_state.fold.groups import FoldedGroups, fold_groups
from share_state.wire.group_logs import find_group_logs
from tests.groups.described import EPOCH_WITHOUT_RECORD, Scenario, scenarios

SCENARIOS = scenarios()
by_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=[one.name for one in SCENARIOS])


def folded(scenario: Scenario) -> FoldedGroups:
    return fold_groups(find_group_logs([str(scenario.folder)]))


def test_every_release_has_its_scenarios():
    releases = ("4.0.2", "4.1.2", "4.2.1", "4.3.1", "4.4.0")
    expected = {f"{release}/{scenario}" for release in releases for scenario in ("happy", "chaos")} | {"4.4.0/dlq"}
    assert {one.name for one in SCENARIOS} == expected


@by_scenario
def test_groups_have_the_state_members_and_epochs_that_the_broker_told(scenario):
    rows = {row["group_id"]: row for row in folded(scenario).share_groups.to_pylist() if row["state"] != "Dead"}
    assert rows.keys() == {told["group"] for told in scenario.groups}
    for told in scenario.groups:
        row = rows[told["group"]]
        assert (row["state"], row["members"]) == (told["state"], told["members"])
        if "groupEpoch" not in told:
            assert scenario.release == "4.0.2"
            continue
        unknown = EPOCH_WITHOUT_RECORD.get(scenario.release)
        assert (unknown if row["group_epoch"] is None else row["group_epoch"]) == told["groupEpoch"]
        assert (unknown if row["assignment_epoch"] is None else row["assignment_epoch"]) == told[
            "targetAssignmentEpoch"
        ]


@by_scenario
def test_the_stock_tool_shows_the_same_states(scenario):
    shown = {row["GROUP"]: (row["STATE"], int(row["#MEMBERS"])) for row in scenario.rows("state")}
    live = folded(scenario).live
    assert shown == {group_id: (group.state, len(group.members)) for group_id, group in live.items()}


@by_scenario
def test_the_stock_tool_shows_the_same_members_and_assignments(scenario):
    shown = {
        (row["GROUP"], row["CONSUMER-ID"], row["HOST"], row["CLIENT-ID"], frozenset(row["ASSIGNMENT"].split(",")))
        for row in scenario.rows("members")
    }
    assert shown == {
        (
            row["group_id"],
            row["member_id"],
            row["client_host"],
            row["client_id"],
            frozenset(f"{one['topic']}:{one['partition']}" for one in row["assigned"]),
        )
        for row in folded(scenario).share_group_members.to_pylist()
    }


def test_members_are_shown_somewhere():
    """Else the comparison above would compare nothing."""
    assert sum(len(scenario.rows("members")) for scenario in SCENARIOS) == 4


@by_scenario
def test_topics_that_still_exist_have_the_broker_s_names(scenario):
    names, existing = folded(scenario).names, scenario.topic_names
    assert {topic_id: names[topic_id] for topic_id in names.keys() & existing.keys()} == {
        topic_id: existing[topic_id] for topic_id in names.keys() & existing.keys()
    }
    assert names.keys() & existing.keys()


@by_scenario
def test_groups_list_the_share_partitions_that_the_stock_tool_shows(scenario):
    """The release 4.0 writes no such list, and shows offsets only of groups with members."""
    shown = {(row["GROUP"], row["TOPIC"], int(row["PARTITION"])) for row in scenario.rows("offsets")}
    listed = {
        (row["group_id"], row["topic"], row["partition"])
        for row in folded(scenario).share_group_partitions.to_pylist()
        if row["status"] == "initialized"
    }
    if scenario.release == "4.0.2":
        assert not listed
        return
    assert listed == shown


@by_scenario
def test_nothing_is_wrong_with_the_brokers_own_logs(scenario):
    found = folded(scenario)
    assert found.faults == []
    assert found.epoch_steps == []


@by_scenario
def test_the_names_fill_in_the_topic_of_every_share_partition_of_a_living_topic(scenario):
    found, existing = folded(scenario), scenario.topic_names
    for log in find_logs([str(scenario.folder)]):
        for row in fold_log(log, topics=found.topics).states.to_pylist():
            if row["topic_id"] in existing:
                assert row["topic"] == existing[row["topic_id"]]


def test_as_of_a_time_the_members_of_that_time_are_there():
    """Half way through its log every group of 4.3.1 chaos has members, which by the end have left."""
    scenario = next(one for one in SCENARIOS if one.name == "4.3.1/chaos")
    (log,) = (log for log in find_group_logs([str(scenario.folder)]) if log.partition == 1)
    half = fold_groups([log], Window(until_offset=60))
    assert {group.state for group in half.groups.values()} == {"Stable"}
    assert {group.state for group in fold_groups([log]).groups.values()} == {"Empty"}
