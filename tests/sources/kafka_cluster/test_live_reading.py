"""A cluster read over the network gives what its own log folder gives."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Uuid

from share_state.cli.main import run
from share_state.config.input_spec import OPTIONS, input_spec
from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import FoldedLog, fold_log
from share_state.pipeline.planning import build_plan
from share_state.rules.findings import judge
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from share_state.sources.kafka_cluster import topic_id_text
from share_state.sources.kafka_source import KafkaSource, read_cluster
from share_state.sources.log_partition import LogPartition
from share_state.sources.partition_count import PartitionCount
from share_state.sources.topics import read_topics
from tests.profiles import nightly
from tests.sources.kafka_cluster.workload import A_PARTITION, TOPICS, Workload

SIZES = {"redundant_bytes", "pinned_bytes"}


def both(worked: Workload) -> list[tuple[FoldedLog, FoldedLog]]:
    live, folders = read_cluster(f"kafka://{worked.broker.address}"), find_logs([str(worked.broker.logs)])
    known = {"topics": live.topics, "partition_count": PartitionCount(live.state_partitions)}
    assert [log.name for log in live.logs] == [log.name for log in folders]
    return [
        (fold_log(log, options=FoldOptions(**known)), fold_log(folder, options=FoldOptions(**known)))
        for log, folder in zip(live.logs, folders, strict=True)
    ]


@pytest.mark.broker
def test_the_tables_of_a_cluster_are_those_of_its_segments(worked: Workload) -> None:
    assert sum(len(live.states) for live, _ in both(worked)) == 2 + 5 + 2
    for live, segments in both(worked):
        assert live.states.equals(segments.states)
        assert live.in_flight.equals(segments.in_flight)
        assert judge(live).equals(judge(segments))
        assert live.record_count == segments.record_count
        # A running broker's high watermark checkpoint is older than its log.
        others = sorted({*SIZES, "safe", "reason"})
        assert live.cutoff.drop_columns(others).equals(segments.cutoff.drop_columns(others))


@pytest.mark.broker
def test_the_bytes_of_batches_are_not_known_of_a_cluster(worked: Workload) -> None:
    for live, _ in both(worked):
        assert {live.cutoff[name][0].as_py() for name in SIZES} == {None}


@pytest.mark.broker
def test_what_is_in_flight_is_of_every_kind(worked: Workload) -> None:
    ranges = [row for live, _ in both(worked) for row in live.in_flight.to_pylist()]
    assert {row["state"] for row in ranges} >= {"AVAILABLE", "ACKNOWLEDGED", "ARCHIVED"}


def source_of(log: LogPartition) -> KafkaSource:
    """How a log partition of a cluster is read."""
    assert isinstance(log.source, KafkaSource)
    return log.source


@pytest.mark.broker
def test_names_and_ends_come_from_the_cluster(worked: Workload) -> None:
    live = read_cluster(f"kafka://{worked.broker.address}")
    assert live.topics is not None
    names = {row["topic_id"]: row["topic"] for row in live.topics.names.to_pylist()}
    ends = {(names[row["topic_id"]], row["partition"]): row["end_offset"] for row in live.topics.ends.to_pylist()}
    ends = {place: end for place, end in ends.items() if place[0] in TOPICS}  # other tests may make their own
    assert not any(name.startswith("__") for name in names.values())
    assert ends == {(name, number): A_PARTITION for name, count in TOPICS.items() for number in range(count)}


@pytest.mark.broker
def test_the_topics_file_of_a_cluster_has_partitions_and_log_starts(worked: Workload, tmp_path: Path) -> None:
    assert run(["topics", f"kafka://{worked.broker.address}", "--out", str(tmp_path / "topics.json")]) == 0
    topics = read_topics(str(tmp_path / "topics.json"))
    names = dict(zip(topics.names["topic_id"].to_pylist(), topics.names["topic"].to_pylist(), strict=True))
    counts = {names[topic_id]: count for topic_id, count in topics.partition_counts.items()}
    assert {name: counts[name] for name in TOPICS} == dict(TOPICS)
    starts = {names[row["topic_id"]]: row["start_offset"] for row in topics.starts.to_pylist()}
    assert {starts[name] for name in TOPICS} == {0}


@nightly("start-ups of Java")
@pytest.mark.broker
def test_a_cluster_precedes_the_topics_file(worked: Workload, tmp_path: Path) -> None:
    address = f"kafka://{worked.broker.address}"
    topics = read_cluster(address).topics
    assert topics is not None
    topic_id, name = next((row["topic_id"], row["topic"]) for row in topics.names.to_pylist() if row["topic"] in TOPICS)
    stale = {
        topic_id: {"name": "old", "partitions": 99, "end_offsets": {"0": 1}},
        "AAAAAAAAAAAAAAAAAAAAAQ": "elsewhere",
    }
    (tmp_path / "old.json").write_text(json.dumps(stale))
    spec = input_spec(OPTIONS, sources=[{"path": address}], topics=str(tmp_path / "old.json"))
    plan = build_plan(spec, OPTIONS)
    topics = plan.options.topics
    assert topics.name_of(pa.array([topic_id, "AAAAAAAAAAAAAAAAAAAAAQ"])).to_pylist() == [name, "elsewhere"]
    assert topics.end_of(pa.array([topic_id]), pa.array([0])).to_pylist() == [A_PARTITION]
    assert topics.partition_counts[topic_id] == TOPICS[name]
    assert f"the topic is {name} in the live cluster, but old in the topics file; {name} is used" in [
        one.message for one in plan.fact_conflicts
    ]
    assert plan.facts["cluster_facts.topics"] == f"{address}, then {tmp_path / 'old.json'}"
    configs = {one.name: one.source for one in plan.group_configs.effective("any")}
    assert configs["share.delivery.count.limit"] == f"group.share.delivery.count.limit in {address}"


@pytest.mark.broker
def test_records_that_come_later_are_left_out(worked: Workload) -> None:
    live, folders = read_cluster(f"kafka://{worked.broker.address}"), find_logs([str(worked.broker.logs)])
    log, folder = max(zip(live.logs, folders, strict=True), key=lambda pair: source_of(pair[0]).end_offset)
    assert live.topics is not None
    source, options = source_of(log), FoldOptions(topics=live.topics)
    until = source.end_offset // 2
    earlier = fold_log(replace(log, source=replace(source, end_offset=until)), options=options)
    assert earlier.next_offset == until > 0
    assert earlier.states.equals(fold_log(folder, Window(until_offset=until), options).states)


def test_a_topic_id_is_written_as_kafka_writes_it() -> None:
    assert topic_id_text(Uuid(-1, -1)) == "_____________________w"
    assert topic_id_text(Uuid(1, 2)) == "AAAAAAAAAAEAAAAAAAAAAg"
    assert topic_id_text(Uuid(-0x4000000000000000, 0x3F)) == "wAAAAAAAAAAAAAAAAAAAPw"
