"""The metadata log is folded as Kafka's loader does, and only named configs are kept."""

import re
import shutil
from pathlib import Path

import pytest

from share_state.kafka.metadata_records import ResourceType
from share_state.sources import metadata_log
from share_state.sources.cluster_metadata import KEPT_CONFIGS, ClusterMetadata
from share_state.sources.metadata_log import read_metadata_log
from tests.kafka.batches import NOW, Record
from tests.sources.cluster_facts.metadata_writer import (
    ABORT,
    BEGIN,
    END,
    config,
    framed,
    message,
    partition,
    removed,
    topic,
    uuid,
    write_metadata_log,
    write_snapshot,
)

REAL = Path(__file__).parent / "whole-broker" / "__cluster_metadata-0"
WITH_SNAPSHOTS = Path(__file__).parent / "broker-4.0.2" / "__cluster_metadata-0"
"""Of a broker of 4.0.2 that was killed: one segment, three snapshots, and five records after the last of them."""


def read(folder: Path, *batches: list[Record]) -> ClusterMetadata:
    return read_metadata_log(write_metadata_log(folder, batches))


def names(metadata: ClusterMetadata) -> dict[str, str]:
    live = metadata.live_topics
    return dict(zip(live["topic_id"].to_pylist(), live["topic"].to_pylist(), strict=True))


def leaders(metadata: ClusterMetadata) -> dict[tuple[str, int], tuple[int, int]]:
    ids = metadata.topics["topic_id"].to_pylist()
    return {(ids[topic], number): (leader, epoch) for topic, number, leader, epoch, _ in metadata.partitions.tolist()}


def test_topics_partitions_and_leaders_are_read(tmp_path):
    metadata = read(
        tmp_path,
        [topic(1, "orders"), partition(1, 0), partition(1, 1, leader=2, leader_epoch=4, version=0)],
        [message("partition_change_record", partition_id=1, topic_id=uuid(1), leader=3, isr=[3])],
        [message("partition_change_record", 0, partition_id=0, topic_id=uuid(1), isr=[1])],
        [message("partition_change_record", 1, partition_id=0, topic_id=uuid(1), leader=-1, replicas=[1])],
    )
    assert names(metadata) == {uuid(1): "orders"}
    assert leaders(metadata) == {(uuid(1), 0): (-1, 1), (uuid(1), 1): (3, 5)}
    assert metadata.live_topics["partitions"].to_pylist() == [2]
    assert metadata.is_complete
    assert not metadata.notes


def test_a_topic_created_again_under_its_name_has_new_partitions_and_configs(tmp_path):
    metadata = read(
        tmp_path,
        [topic(1, "c"), config(2, "c", "cleanup.policy", "compact"), partition(1, 0), partition(1, 1)],
        [removed(1)],
        [topic(2, "c"), config(2, "c", "min.insync.replicas", "2"), partition(2, 0)],
    )
    assert names(metadata) == {uuid(2): "c"}
    assert metadata.topics["removed"].to_pylist() == [NOW, None]
    assert leaders(metadata) == {(uuid(2), 0): (1, 0)}
    assert metadata.configs_of(ResourceType.TOPIC, ["c"]) == {"c": {"min.insync.replicas": "2"}}


def test_the_last_value_of_a_config_counts_and_null_removes_it(tmp_path):
    limit = "share.delivery.count.limit"
    metadata = read(
        tmp_path,
        [config(32, "a", limit, "7"), config(32, "b", limit, "7"), config(4, "", "group.share.max.size", "9")],
        [config(32, "a", limit, "8"), config(32, "b", limit, None)],
    )
    assert metadata.configs_of(ResourceType.GROUP) == {"a": {limit: "8"}}
    assert metadata.configs_of(ResourceType.BROKER) == {"": {"group.share.max.size": "9"}}
    assert metadata.config_changes.filter([True, True, False, True, True])["value"].to_pylist() == ["7", "7", "8", None]


def test_no_password_leaves_the_log(tmp_path):
    secret = config(4, "1", "listener.name.a.ssl.keystore.password", "hunter2")
    scram = framed(11, 0, b"hunter2")
    metadata = read(tmp_path, [secret, scram, config(4, "1", "group.share.max.size", "9")])
    assert "hunter2" not in repr(metadata) + str(metadata.config_changes.to_pydict())
    assert len(metadata.config_changes) == 1


@pytest.mark.parametrize(("marker", "expected"), [(END, {"before", "inside", "after"}), (ABORT, {"before", "after"})])
def test_a_metadata_transaction_counts_once_it_ends(tmp_path, marker, expected):
    metadata = read(
        tmp_path, [topic(1, "before"), BEGIN, topic(2, "inside")], [topic(3, "inside")], [marker, topic(4, "after")]
    )
    assert {*names(metadata).values()} == expected


def test_an_unfinished_metadata_transaction_is_not_applied(tmp_path):
    metadata = read(tmp_path, [topic(1, "before")], [BEGIN, topic(2, "inside")], [config(32, "g", "x", "1")])
    assert [*names(metadata).values()] == ["before"]
    assert "unfinished metadata transactions" in metadata.notes[0]


def test_a_transaction_longer_than_a_chunk_keeps_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(metadata_log, "_CHUNK_SIZE", 256)
    inside = [[topic(number, f"topic-{number}")] for number in range(40)]
    metadata = read(tmp_path, [BEGIN], *inside, [END])
    assert names(metadata) == {uuid(number): f"topic-{number}" for number in range(40)}


def test_a_snapshot_is_continued_by_the_records_after_it(tmp_path):
    write_snapshot(tmp_path, 10, [topic(1, "old"), partition(1, 0), topic(2, "gone")])
    write_metadata_log(tmp_path, [[removed(1)] * 5, [removed(1)] * 5, [removed(2), topic(3, "new")]])
    metadata = read_metadata_log(tmp_path / "__cluster_metadata-0")
    assert names(metadata) == {uuid(1): "old", uuid(3): "new"}
    assert (metadata.is_complete, metadata.end_offset) == (True, 12)


def test_an_unfinished_snapshot_gives_way_to_the_one_before_it(tmp_path):
    write_snapshot(tmp_path, 0, [topic(1, "first")])
    write_snapshot(tmp_path, 1, [topic(2, "second")], footer=False)
    metadata = read_metadata_log(write_metadata_log(tmp_path, [[topic(3, "third")]]))
    assert {*names(metadata).values()} == {"first", "third"}
    assert "cut off or damaged" in metadata.notes[0]


def test_facts_as_of_a_moment(tmp_path):
    log = [[topic(1, "kept"), config(32, "g", "share.delivery.count.limit", "5")],
           [config(32, "g", "share.delivery.count.limit", "10"), removed(1)]]  # fmt: skip
    write_snapshot(tmp_path, 2, [topic(9, "later")], time=NOW + 2000)
    place = write_metadata_log(tmp_path, log, timestamps=[NOW, NOW + 1000])
    before, after = read_metadata_log(place, NOW + 500), read_metadata_log(place, NOW + 1500)
    assert before.configs_of(ResourceType.GROUP) == {"g": {"share.delivery.count.limit": "5"}}
    assert after.configs_of(ResourceType.GROUP) == {"g": {"share.delivery.count.limit": "10"}}
    assert ([*names(before).values()], [*names(after).values()]) == (["kept"], [])


def test_records_of_newer_releases_are_skipped_and_counted(tmp_path):
    newer = framed(2, 1, b"\x02x" + bytes(17))
    metadata = read(tmp_path, [framed(77, 0, b"\0"), newer, framed(3, 2, b"\0"), topic(1, "known")])
    assert metadata.skipped == {"unknown_type": 1, "unknown_version": 1, "malformed": 1}
    assert names(metadata) == {uuid(1): "known"}
    assert "1 record skipped: unknown version" in metadata.notes[0]


@pytest.mark.parametrize("bytes_left", [-1, -40])
def test_a_torn_tail_is_noted_and_what_is_before_it_counts(tmp_path, bytes_left):
    place = write_metadata_log(tmp_path, [[topic(1, "whole")], [topic(2, "torn")]])
    segment = place / f"{0:020}.log"
    segment.write_bytes(segment.read_bytes()[:bytes_left])
    metadata = read_metadata_log(place)
    assert names(metadata) == {uuid(1): "whole"}
    assert "torn last batch" in metadata.notes[0]


def test_a_damaged_batch_and_a_missing_segment_make_the_log_incomplete(tmp_path):
    place = write_metadata_log(tmp_path, [[topic(1, "a")], [topic(2, "b")]])
    segment = place / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)
    assert not read_metadata_log(place).is_complete
    segment.unlink()
    metadata = read_metadata_log(write_metadata_log(tmp_path, [[topic(3, "c")]], base_offset=7))
    assert (metadata.is_complete, [*names(metadata).values()]) == (False, ["c"])
    assert "missing offsets" in metadata.notes[0]


def test_changes_of_unknown_topics_are_noted(tmp_path):
    metadata = read(tmp_path, [partition(5, 0), removed(6), topic(1, "a")])
    assert "2 times: changes of topics that the log does not hold" in metadata.notes[0]


def test_brokers_and_features(tmp_path):
    registered = message(
        "register_broker_record", broker_id=7, incarnation_id=uuid(1), broker_epoch=3, rack=None,
        end_points=[{"name": "PLAIN", "host": "h", "port": 9092, "security_protocol": 0}], features=[],
    )  # fmt: skip
    unfenced = message("broker_registration_change_record", broker_id=7, broker_epoch=3, fenced=-1)
    feature = message("feature_level_record", name="share.version", feature_level=2)
    off = message("feature_level_record", name="streams.version", feature_level=0)
    metadata = read(tmp_path, [registered, unfenced, feature, off])
    assert (metadata.brokers, metadata.features) == ({7: False}, {"share.version": 2})
    gone = message("unregister_broker_record", broker_id=7, broker_epoch=3)
    assert not read(tmp_path / "gone", [registered, unfenced], [gone]).brokers


def test_the_log_of_a_real_broker():
    metadata = read_metadata_log(REAL)
    assert metadata.features["share.version"] == 2
    assert metadata.brokers == {1: True}
    assert (metadata.is_complete, metadata.skipped, metadata.notes) == (True, {}, ())
    removed_names = metadata.topics.filter(metadata.topics["removed"].is_valid())["topic"].to_pylist()
    assert removed_names == ["c", "late"]
    assert metadata.configs_of(ResourceType.GROUP)["L6"]["share.record.lock.duration.ms"] == "1200"
    assert "share.delivery.count.limit" not in metadata.configs_of(ResourceType.GROUP)["L3"]


def _described() -> dict[str, tuple[str, int, dict[str, str]]]:
    """Topic id -> name, number of partitions and kept configs, as kafka-topics.sh printed them before the kill."""
    text = (WITH_SNAPSHOTS.parent / "truth" / "kafka-topics-describe.txt").read_text()
    lines = re.findall(r"^Topic: (\S+)\tTopicId: (\S+)\tPartitionCount: (\d+).*Configs: (\S*)$", text, re.MULTILINE)
    return {
        topic_id: (
            name,
            int(count),
            {key: value for key, _, value in (one.partition("=") for one in configs.split(",")) if key in KEPT_CONFIGS},
        )
        for name, topic_id, count, configs in lines
    }


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_log_of_4_0_2_says_the_same_with_its_first_snapshots_alone(tmp_path, kept):
    place = shutil.copytree(WITH_SNAPSHOTS, tmp_path / "__cluster_metadata-0")
    snapshots = sorted(place.glob("*.checkpoint"))
    assert len(snapshots) == 3
    for snapshot in snapshots[kept:]:
        snapshot.unlink()
    metadata = read_metadata_log(place)
    assert (metadata.is_complete, metadata.end_offset, metadata.skipped, metadata.notes) == (True, 132, {}, ())
    described = _described()
    assert len(described) == 6
    live = metadata.live_topics
    configs = metadata.configs_of(ResourceType.TOPIC)
    rows = zip(*(live[name].to_pylist() for name in ("topic_id", "topic", "partitions")), strict=True)
    assert {topic_id: (name, count, configs.get(name, {})) for topic_id, name, count in rows} == described
    assert metadata.configs_of(ResourceType.GROUP) == {"g2": {"share.record.lock.duration.ms": "25000"}}
    assert metadata.features["group.version"] == 1
    assert "share.version" not in metadata.features
