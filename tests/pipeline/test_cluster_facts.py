"""A broker's data folder names the topics, and gives ends and limits, to every command that folds."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import share_state
from share_state.config.input_spec import OPTIONS, input_spec
from share_state.delta.committed import CommittedTables
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.planning import build_plan
from share_state.sources.metadata_log import read_metadata_log
from share_state.sources.topics import Topics
from tests.sources.cluster_facts.metadata_writer import (
    config,
    message,
    partition,
    removed,
    topic,
    uuid,
    write_metadata_log,
    write_snapshot,
)
from tests.truth import DATA, without_topics

FOLDER = Path(__file__).parents[1] / "sources" / "cluster_facts" / "whole-broker"
TRUTH = FOLDER / "truth"
LIMIT = "share.delivery.count.limit"


def plan_of(folder: Path, **values: Any) -> FoldPlan:
    return build_plan(input_spec(OPTIONS, sources=[{"path": str(folder)}], **values), OPTIONS)


def described() -> dict[tuple[str, str, int], tuple[str, str]]:
    """What kafka-share-groups.sh --describe printed when the broker stopped."""
    lines = (line.split() for line in (TRUTH / "kafka-share-groups-describe-offsets.txt").read_text().splitlines())
    return {(row[0], row[1], int(row[2])): (row[3], row[4]) for row in lines if len(row) == 5 and row[2].isdecimal()}


def test_names_and_lag_are_those_of_the_cluster_with_the_folder_alone():
    states = share_state.reconstruct(str(FOLDER)).share_partition_state.to_pylist()
    lags = {
        (row["group_id"], row["topic"], row["partition"]): (
            ("-", "-")
            if row["start_offset"] < 0
            else (
                str(row["start_offset"]),
                str(row["topic_end_offset"] - row["start_offset"] - row["delivery_complete_count"]),
            )
        )
        for row in states
    }
    assert lags == described()


def test_topics_limits_and_counts_are_those_of_the_cluster():
    plan = plan_of(FOLDER)
    truth = json.loads((TRUTH / "topics.json").read_text())
    topics = plan.options.topics
    names = dict(zip(*(topics.names[column].to_pylist() for column in ("topic_id", "topic")), strict=True))
    assert names == {one["topicId"]: one["name"] for one in truth}
    assert topics.partition_counts == {one["topicId"]: len(one["partitions"]) for one in truth}
    ends = {(row["topic_id"], row["partition"]): row["end_offset"] for row in topics.ends.to_pylist()}
    partitions = [(one["topicId"], part) for one in truth for part in one["partitions"]]
    assert ends == {(topic_id, part["partition"]): part["highWatermark"] for topic_id, part in partitions}
    starts = {(row["topic_id"], row["partition"]): row["start_offset"] for row in topics.starts.to_pylist()}
    with_folders = {topic_id for topic_id, name in names.items() if not name.startswith(("__c", "__t"))}
    assert starts == {
        (topic_id, part["partition"]): part["logStartOffset"]
        for topic_id, part in partitions
        if topic_id in with_folders
    }
    limits = plan.options.limits
    assert (limits.delivery_count, limits.updates_per_snapshot, plan.state_partitions) == (4, 20, 7)
    assert topics.is_complete
    assert not plan.fact_conflicts
    assert "group.share.delivery.count.limit" in plan.facts["cluster_facts.delivery_count"]


def test_an_export_of_logs_alone_has_no_facts(tmp_path):
    plan = plan_of(without_topics(DATA / "4.4.0" / "happy", tmp_path / "export"))
    assert (plan.facts, plan.fact_conflicts, len(plan.options.topics.names)) == ({}, (), 0)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A data folder with one state log, whose cluster has a topic and a group with a limit of its own."""
    shutil.copytree(FOLDER / "__share_group_state-0", tmp_path / "__share_group_state-0")
    limit = "share.delivery.count.limit"
    records = [topic(1, "orders"), partition(1, 0), partition(1, 1)]
    configs = [config(32, "own", limit, "7"), config(32, "bounded", limit, "99"), config(4, "", f"group.{limit}", "3")]
    write_metadata_log(tmp_path, [records, configs, [config(4, "1", f"group.{limit}", "6")]])
    return tmp_path


def test_limits_follow_the_precedence_of_kafka_and_of_the_call(small):
    (small / "server.properties").write_text("group.share.delivery.count.limit=4\nssl.key.password=hunter2\n")
    facts = plan_of(small)
    assert facts.options.limits.delivery_count == 6
    assert facts.options.limits.groups == {"bounded": {"delivery_count": 10}, "own": {"delivery_count": 7}}
    called = plan_of(small, limits={"delivery_count": 8, "groups": {"own": {"delivery_count": 9}}})
    assert called.options.limits.delivery_count == 8
    assert called.options.limits.groups["own"] == {"delivery_count": 9}
    assert "hunter2" not in repr(facts)


def findings_of(folder: Path, topics: Path) -> list[dict]:
    found = share_state.reconstruct(str(folder), topics=str(topics))
    return [row for row in found.findings.to_pylist() if row["rule"] == "CLUSTER_FACTS_DISAGREE"]


def test_sources_that_disagree_are_a_finding(small):
    told = plan_of(small, limits={"delivery_count": 8}, state_partitions=3)
    assert [one.message.partition(" is ")[0] for one in told.fact_conflicts] == ["limits.delivery_count"]
    file = small / "topics.json"
    stale = {uuid(1): {"name": "renamed", "partitions": 1}, uuid(2): "elsewhere"}
    file.write_text(json.dumps(stale))
    found = findings_of(small, file)
    assert [(row["severity"], row["topic"]) for row in found] == [("warning", "renamed")] * 2 + [
        ("warning", "elsewhere")
    ]
    assert "orders in the metadata log" in found[0]["message"]
    assert "but 2 in the metadata log" in found[1]["message"]


def test_what_the_topics_file_leaves_out_comes_from_the_metadata_log(small):
    file = small / "topics.json"
    file.write_text(json.dumps({uuid(1): {"end_offsets": {"0": 5}}}))
    topics = plan_of(small, topics=str(file)).options.topics
    assert isinstance(topics, Topics)
    assert topics.names.to_pylist() == [{"topic_id": uuid(1), "topic": "orders"}]
    assert topics.ends["end_offset"].to_pylist() == [5]
    assert topics.partition_counts == {uuid(1): 2}


def test_a_metadata_log_of_noise_is_noted_and_the_command_works(small, caplog):
    segment = small / "__cluster_metadata-0" / f"{0:020}.log"
    segment.write_bytes(b"\x07" * 5000)
    with caplog.at_level("INFO", "share_state"):
        plan = plan_of(small)
    assert not plan.options.topics.is_complete
    assert "__cluster_metadata-0" in caplog.text


def test_the_options_of_a_run_change_when_a_topic_is_created(small):
    first = plan_of(small).facts
    write_metadata_log(small, [[topic(1, "orders"), partition(1, 0)], [topic(2, "payments"), partition(2, 0)]])
    assert plan_of(small).facts["cluster_facts.digest"] != first["cluster_facts.digest"]


def test_dead_letter_topics_in_the_data_folder_are_read_if_groups_use_them(tmp_path):
    real = DATA / "4.4.0/dead-letters"
    folder = tmp_path / "broker"
    for name in ("__share_group_state-2", "dlq.all-0", "dlq.all-1"):
        shutil.copytree(real / name, folder / name)
    known = json.loads((real / "topics.json").read_text())
    given = share_state.reconstruct(
        str(folder / "__share_group_state-2"), topics=str(real / "topics.json"), dead_letters=[str(real)],
        warehouse=str(tmp_path / "given"),
    )  # fmt: skip
    del given
    expected = CommittedTables(str(tmp_path / "given")).read("dead_letters")
    groups = set(expected["group_id"].to_pylist())
    assert len(expected) > 200
    of_topics = [
        message("topic_record", name=about["name"] if isinstance(about, dict) else about, topic_id=topic_id)
        for topic_id, about in known.items()
    ]
    configs = [config(32, group, "errors.deadletterqueue.topic.name", "dlq.all") for group in groups]
    write_metadata_log(folder, [of_topics, configs])
    share_state.reconstruct(str(folder), warehouse=str(tmp_path / "own"))
    own = CommittedTables(str(tmp_path / "own")).read("dead_letters")
    columns = ["group_id", "partition", "offset", "dead_letter_partition", "dead_letter_offset", "archived"]
    by_place = [(name, "ascending") for name in ("dead_letter_partition", "dead_letter_offset")]
    assert own.select(columns).sort_by(by_place).equals(expected.select(columns).sort_by(by_place))


def test_folders_of_ordinary_topics_are_no_dead_letters():
    assert plan_of(FOLDER).dead_letters is None


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_explain_says_which_delivery_limits_a_group_had(tmp_path, from_snapshot):
    shutil.copytree(DATA / "4.4.0" / "happy", tmp_path / "broker", ignore=shutil.ignore_patterns("*.json", "*.jsonl"))
    (row, *_) = share_state.reconstruct(str(tmp_path / "broker")).share_partition_state.to_pylist()
    limit = "share.delivery.count.limit"
    changes = [[config(32, row["group_id"], limit, value)] for value in ("7", "9", None)]
    times = [1_700_000_000_000, 1_700_000_060_000, 1_700_000_120_000]
    if from_snapshot:
        write_snapshot(tmp_path / "broker", 1, changes[0], time=times[0])
    write_metadata_log(tmp_path / "broker", changes, timestamps=times)
    key = (row["group_id"], row["topic_id"], row["partition"], row["start_offset"])
    facts = share_state.explain(str(tmp_path / "broker"), *key).facts
    limits = [one["limit"] for one in facts["delivery_limits"]]
    assert limits == ([7, 9, 5] if from_snapshot else [5, 7, 9, 5])
    begins = "7" if from_snapshot else "5 until 2023-11-14 22:13:20 UTC, then 7"
    assert facts["sentence"].endswith(
        f"The group's delivery limit was {begins} until 2023-11-14 22:14:20 UTC, then 9"
        " until 2023-11-14 22:15:20 UTC, then 5."
    )


def test_brokers_with_different_bounds_are_one_finding(small):
    bound = "group.share.max.delivery.count.limit"
    records = [config(4, "1", bound, "6"), config(4, "2", bound, "8"), config(32, "high", LIMIT, "9")]
    write_metadata_log(small, [records])
    plan = plan_of(small)
    (conflict,) = plan.fact_conflicts
    assert f"{bound} is 6" in conflict.message
    assert plan.options.limits.groups == {"high": {"delivery_count": 6}}


def test_configs_of_thousands_of_digits_are_no_limits(small):
    digits = "9" * 5000
    records = [config(4, "1", f"group.{LIMIT}", digits), config(4, "", f"group.{LIMIT}", f"--{digits}")]
    state_topic = [topic(9, "__share_group_state"), partition(9, 0)]
    state_topic += [config(2, "__share_group_state", "min.insync.replicas", digits)]
    write_metadata_log(small, [records, [config(32, "own", LIMIT, digits)], state_topic])
    plan = plan_of(small)
    assert (plan.options.limits.delivery_count, plan.options.limits.groups) == (5, {})
    rules = share_state.reconstruct(str(small)).findings["rule"].to_pylist()
    assert not {"GROUP_CONFIG_OUT_OF_BOUNDS", "STATE_TOPIC_UNDER_MIN_ISR"} & set(rules)


def test_facts_are_those_of_the_given_moment(small):
    """At 02:00 the limit of a group changed; at 03:00 its topic was created again with another id."""
    two, three, until = (1_795_212_000_000 + hours * 3_600_000 for hours in (0, 1, 3))
    write_metadata_log(
        small,
        [
            [topic(1, "orders"), partition(1, 0), config(32, "own", LIMIT, "5")],
            [config(32, "own", LIMIT, "10")],
            [removed(1), topic(2, "orders"), partition(2, 0), partition(2, 1)],
            [config(32, "own", LIMIT, "3")],
        ],
        timestamps=[two - 3_600_000, two, three, until + 1],
    )
    moments = {time: plan_of(small, as_of_time=str(time)) for time in (two - 1, two, three - 1, three, until)}
    assert {time: plan.options.limits.groups["own"]["delivery_count"] for time, plan in moments.items()} == {
        two - 1: 5, two: 10, three - 1: 10, three: 10, until: 10,
    }  # fmt: skip
    ids = {time: plan.options.topics.names["topic_id"].to_pylist() for time, plan in moments.items()}
    assert ids == {time: [uuid(1 if time < three else 2)] for time in moments}
    assert moments[until].options.topics.partition_counts == {uuid(2): 2}
    assert plan_of(small).options.limits.groups["own"]["delivery_count"] == 3


def test_partitions_are_counted_without_being_kept(tmp_path):
    records = [topic(1, "orders"), *(partition(1, number) for number in range(3)), topic(2, "wanted"), partition(2, 0)]
    folder = write_metadata_log(tmp_path, [records, [partition(1, 3), partition(2, 1)]])
    whole, some = read_metadata_log(folder), read_metadata_log(folder, partitions_of=["wanted"])
    assert whole.topics == some.topics
    assert some.topics["partitions"].to_pylist() == [4, 2]
    assert whole.partitions["topic"].tolist() == [0, 0, 0, 1, 0, 1]
    assert some.partitions.tolist() == [row for row in whole.partitions.tolist() if row[0] == 1]
