"""Folded groups are what the running brokers said: members, assignments, epochs, topic names, share-partitions."""

import pyarrow as pa
import pytest

from share_state.fold.fold_options import FoldOptions
from share_state.fold.groups.group_tables import FoldedGroups, add_topic_names, fold_groups, read_topic_names
from share_state.fold.state_log import fold_log
from share_state.fold.states import compute_lags
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_group_logs, find_logs
from share_state.sources.topics import read_topics
from tests.fold.groups.described import EPOCH_WITHOUT_RECORD, Scenario, scenarios

SCENARIOS = scenarios()
SINCE_4_1 = [one for one in SCENARIOS if one.release != "4.0.2"]
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
def test_topic_names_alone_are_those_of_the_folded_groups(scenario):
    names = dict(item for log in find_group_logs([str(scenario.folder)]) for item in read_topic_names(log).items())
    assert names == folded(scenario).names


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


def offsets(scenario: Scenario) -> dict[tuple[str, str, int], tuple[int | None, int | None]]:
    """(group, topic name, partition) -> start offset, None for none, and lag; topics are named as the groups do."""
    topics = add_topic_names(read_topics(str(scenario.folder / "topics.json")), folded(scenario).names)
    states = pa.concat_tables(
        fold_log(log, options=FoldOptions(topics=topics)).states for log in find_logs([str(scenario.folder)])
    )
    behind = compute_lags(*(states[name] for name in ("topic_end_offset", "start_offset", "delivery_complete_count")))
    return {
        (row["group_id"], row["topic"], row["partition"]): (
            None if row["start_offset"] < 0 else row["start_offset"],
            lag,
        )
        for row, lag in zip(states.to_pylist(), behind.to_pylist(), strict=True)
    }


@by_scenario
def test_start_offsets_and_lags_are_those_that_the_broker_told(scenario):
    """The client of 4.2 is the first that asks for them; a lag that is not known is not told."""
    ours = offsets(scenario)
    described = {
        (group["group"], one["topic"], one["partition"]): (one["topicId"], one["startOffset"], one.get("lag"))
        for group in scenario.groups
        for one in group.get("offsets", ())
    }
    assert bool(described) == (scenario.release not in ("4.0.2", "4.1.2"))
    assert {place: ours[place][0] for place in described} == {place: told[1] for place, told in described.items()}
    known = {place: told[2] for place, told in described.items() if told[2] is not None and told[2] >= 0}
    assert {place: ours[place][1] for place in known} == known
    assert bool(known) == bool(described)
    names = folded(scenario).names
    assert {names[told[0]] for told in described.values()} == {topic for _, topic, _ in described}


@pytest.mark.parametrize("scenario", SINCE_4_1, ids=[one.name for one in SINCE_4_1])
def test_the_stock_tool_shows_the_same_start_offsets_and_lags(scenario):
    """That of 4.0 shows how far the topics go in place of the starts, that of 4.1 no lags."""
    ours, rows = offsets(scenario), scenario.rows("offsets")
    shown = {(row["GROUP"], row["TOPIC"], int(row["PARTITION"])): row for row in rows if row["START-OFFSET"] != "-"}
    assert {place: ours[place][0] for place in shown} == {
        place: int(row["START-OFFSET"]) for place, row in shown.items()
    }
    known = {place: int(row["LAG"]) for place, row in shown.items() if row.get("LAG", "-") != "-"}
    assert {place: ours[place][1] for place in known} == known


@by_scenario
def test_nothing_is_wrong_with_the_brokers_own_logs(scenario):
    found = folded(scenario)
    assert found.faults == []
    assert found.epoch_steps == []


@by_scenario
def test_the_names_fill_in_the_topic_of_every_share_partition_of_a_living_topic(scenario):
    found, existing = folded(scenario), scenario.topic_names
    for log in find_logs([str(scenario.folder)]):
        for row in fold_log(log, options=FoldOptions(topics=found.topics)).states.to_pylist():
            if row["topic_id"] in existing:
                assert row["topic"] == existing[row["topic_id"]]


def test_as_of_a_time_the_members_of_that_time_are_there():
    """Half way through its log every group of 4.3.1 chaos has members, which by the end have left."""
    scenario = next(one for one in SCENARIOS if one.name == "4.3.1/chaos")
    (log,) = (log for log in find_group_logs([str(scenario.folder)]) if log.partition == 1)
    half = fold_groups([log], Window(until_offset=60))
    assert {group.state for group in half.groups.values()} == {"Stable"}
    assert {group.state for group in fold_groups([log]).groups.values()} == {"Empty"}
