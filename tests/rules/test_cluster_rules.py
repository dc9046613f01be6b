"""Settings by which share groups or dead letters cannot work are findings of whatever reads the broker's folder."""

import shutil
from pathlib import Path

import pytest

import share_state
from tests.kafka.batches import Record
from tests.sources.cluster_facts.metadata_writer import (
    config,
    message,
    partition,
    topic,
    uuid,
    write_metadata_log,
    write_snapshot,
)
from tests.truth import DATA

BROKERS = Path(__file__).parents[1] / "sources" / "cluster_facts"
GROUP, TOPIC, BROKER = 32, 2, 4
DEAD_LETTERS, ENABLED = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.group.enable"
STATE = "__share_group_state"
NEW_RELEASE = [
    message("feature_level_record", name="metadata.version", feature_level=31),
    message("feature_level_record", name="share.version", feature_level=2),
]
STATE_TOPIC = [topic(1, STATE), partition(1, 0), config(TOPIC, STATE, "min.insync.replicas", "2")]
"""Its only partition has one in-sync replica."""


CODES = {
    "CLUSTER_FACTS_DISAGREE",
    "DLQ_UNUSABLE",
    "GROUP_CONFIG_OUT_OF_BOUNDS",
    "SHARE_GROUPS_DISABLED",
    "STATE_TOPIC_CONFIG",
    "STATE_TOPIC_UNDER_MIN_ISR",
}


def found(folder: Path, *batches: list[Record]) -> list[tuple[str, str]]:
    """The codes and messages of findings about the cluster, in an export of one state log and a metadata log."""
    shutil.copytree(DATA / "4.4.0" / "happy" / f"{STATE}-0", folder / f"{STATE}-0")
    write_metadata_log(folder, [records for records in batches if records])
    rows = share_state.reconstruct(str(folder)).findings.to_pylist()
    return [(row["rule"], row["message"]) for row in rows if row["rule"] in CODES]


def test_a_healthy_broker_has_no_finding_about_its_cluster():
    rules = share_state.reconstruct(str(BROKERS / "whole-broker")).findings["rule"].to_pylist()
    assert not CODES & set(rules)


@pytest.mark.parametrize(
    ("levels", "is_found"),
    [
        ([("metadata.version", 31)], True),
        ([("metadata.version", 28), ("share.version", 1), ("share.version", 0)], True),
        ([("metadata.version", 31), ("share.version", 1)], False),
        # Before 4.2 brokers can be configured to serve share groups without the feature.
        ([("metadata.version", 25)], False),
    ],
)
def test_state_in_a_cluster_without_share_version_is_found(tmp_path, levels, is_found):
    records = [message("feature_level_record", name=name, feature_level=level) for name, level in levels]
    codes = [code for code, _ in found(tmp_path, records)]
    assert codes == ["SHARE_GROUPS_DISABLED"] * is_found


def test_a_metadata_log_whose_beginning_is_missing_shows_no_absence(tmp_path):
    shutil.copytree(DATA / "4.4.0" / "happy" / f"{STATE}-0", tmp_path / f"{STATE}-0")
    write_metadata_log(tmp_path, [[message("feature_level_record", name="metadata.version", feature_level=31)]], 7)
    rules = share_state.reconstruct(str(tmp_path)).findings["rule"].to_pylist()
    assert "SHARE_GROUPS_DISABLED" not in rules


@pytest.mark.parametrize(
    ("key", "value", "is_found"),
    [
        ("cleanup.policy", "compact", True),
        ("cleanup.policy", "delete", False),
        ("retention.ms", "604800000", True),
        ("retention.ms", "-1", False),
        ("retention.bytes", "1000", True),
    ],
)
def test_a_state_topic_that_loses_records_by_time_size_or_key_is_found(tmp_path, key, value, is_found):
    records = [topic(1, STATE), partition(1, 0), config(TOPIC, STATE, key, value)]
    messages = found(tmp_path, NEW_RELEASE, records)
    assert [code for code, _ in messages] == ["STATE_TOPIC_CONFIG"] * is_found
    assert all(f"{key} of {STATE} is {value}" in text for _, text in messages)


def test_too_few_in_sync_replicas_of_the_state_topic_are_found_until_they_are_back(tmp_path):
    (one,) = found(tmp_path / "short", NEW_RELEASE, STATE_TOPIC)
    assert one[0] == "STATE_TOPIC_UNDER_MIN_ISR"
    assert one[1].startswith(f"{STATE}-0: fewer in-sync replicas than min.insync.replicas, 2")
    back = message("partition_change_record", partition_id=0, topic_id=uuid(1), isr=[1, 2])
    assert not found(tmp_path / "back", NEW_RELEASE, STATE_TOPIC, [back])
    write_snapshot(tmp_path / "back", 3, [*NEW_RELEASE, *STATE_TOPIC])
    rules = share_state.reconstruct(str(tmp_path / "back")).findings["rule"].to_pylist()
    assert "STATE_TOPIC_UNDER_MIN_ISR" not in rules


def test_a_group_config_beyond_the_bounds_of_the_brokers_is_found(tmp_path):
    limit = "share.delivery.count.limit"
    records = [config(GROUP, "high", limit, "9"), config(GROUP, "right", limit, "6")]
    bound = config(BROKER, "", "group.share.max.delivery.count.limit", "6")
    assert found(tmp_path, NEW_RELEASE, [*records, bound]) == [
        ("GROUP_CONFIG_OUT_OF_BOUNDS", f"{limit} is 9, but brokers allow 2 to 6 and use 6")
    ]


CREATES = config(BROKER, "", "errors.deadletterqueue.auto.create.topics.enable", "true")
NO_PREFIX = config(BROKER, "", "errors.deadletterqueue.topic.name.prefix", "")


@pytest.mark.parametrize(
    ("name", "records", "why"),
    [
        ("dlq.g", [], "does not exist"),
        ("dlq.g", [CREATES], ""),
        ("dlq.g", [topic(5, "dlq.g")], f"does not set {ENABLED}=true"),
        ("dlq.g", [topic(5, "dlq.g"), config(TOPIC, "dlq.g", ENABLED, "true")], ""),
        ("letters", [topic(5, "letters"), config(TOPIC, "letters", ENABLED, "true")], "does not begin with dlq."),
        ("letters", [topic(5, "letters"), config(TOPIC, "letters", ENABLED, "true"), NO_PREFIX], ""),
        ("__letters", [CREATES], "begins with __"),
        ("dlq.g", [CREATES, message("feature_level_record", name="share.version", feature_level=1)], "need 2"),
    ],
)
def test_dead_letters_that_brokers_cannot_write_are_found(tmp_path, name, records, why):
    messages = found(tmp_path, NEW_RELEASE, [config(GROUP, "g", DEAD_LETTERS, name)], records)
    assert [code for code, _ in messages] == ["DLQ_UNUSABLE"] * bool(why)
    assert all(why in text for _, text in messages)
