"""`cutoff`: what Kafka's own pruning would delete up to, proved, and written so that Kafka's own tool takes it."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from share_state.sources import jars
from tests.cli.commands import Command, contents
from tests.kafka.batches import UPDATE, Batch, Record, consecutive, in_bytes, key, log_of, snapshot, update
from tests.profiles import nightly
from tests.truth import DATA

CHAOS = DATA / "4.3.1/chaos"


def _redundant(scenario: Path) -> dict[int, int | None]:
    rows = json.loads((scenario / "redundant.json").read_text())
    return {row["statePartition"]: row["lastRedundantOffset"] for row in rows}


@pytest.mark.parametrize("name", ["4.3.1/chaos", "4.3.1/prune", "4.1.2/fuzz", "4.4.0/fifty"])
def test_the_cutoff_is_kafka_s_and_is_proved(share_state: Command, name: str):
    said = share_state("cutoff", DATA / name, "--verify", "--json")
    assert (said.code, said.err) == (0, "")
    assert {row["partition"]: row["cutoff_offset"] for row in said.json["cutoff"]} == _redundant(DATA / name)
    assert all(row["safe"] for row in said.json["cutoff"])
    assert said.json["differing"] == []
    assert said.json["compared"] == sum(
        row["live_share_partitions"] for row in said.json["cutoff"] if row["cutoff_offset"] is not None
    )


def test_the_table_says_what_json_says(cli: Command):
    rows = cli("cutoff", CHAOS, "--json").json["cutoff"]
    said = cli("cutoff", CHAOS, "--verify")
    header, *cells = said.table[: len(rows) + 1]
    assert header[:8] == ["TOPIC", "PARTITION", "CUTOFF", "LOG-START", "LOG-END", "REDUNDANT", "LIVE", "SAFE"]
    names = ["topic", "partition", "cutoff_offset", "log_start_offset", "log_end_offset", "redundant_records"]
    assert [row[:6] for row in cells] == [[str(row[name]) for name in names] for row in rows]
    assert {row[7] for row in cells} == {"yes"}
    assert "verified: " in said.out
    assert "55 share-partitions" in said.out


def test_what_may_be_deleted_is_written_for_kafka_s_tool(cli: Command, tmp_path: Path):
    target = tmp_path / "offsets.json"
    said = cli("cutoff", CHAOS, "--delete-records", target, "--json")
    assert said.json["delete_records"] == str(target)
    assert json.loads(target.read_text()) == {
        "version": 1,
        "partitions": [
            {"topic": "__share_group_state", "partition": number, "offset": offset}
            for number, offset in sorted(_redundant(CHAOS).items())
        ],
    }
    assert contents(tmp_path).keys() == {"offsets.json"}


def test_the_file_of_the_state_topic_is_not_recommended_for_brokers(cli: Command, tmp_path: Path):
    said = cli("cutoff", CHAOS, "--delete-records", tmp_path / "offsets.json").out
    assert "of __share_group_state, on which brokers refuse DeleteRecords" in said
    assert "kafka-delete-records.sh" not in said


def test_the_file_names_the_copy_of_the_topic_and_how_to_use_it(cli: Command, tmp_path: Path):
    target = tmp_path / "of today.json"
    said = cli("cutoff", CHAOS, "--delete-records", target, "--copy-topic", "eu.state_copy")
    assert "eu.state_copy, which must have the offsets of this log" in said.out
    assert f"kafka-delete-records.sh --offset-json-file '{target}'" in said.out
    entries = json.loads(target.read_text())["partitions"]
    assert {entry["topic"] for entry in entries} == {"eu.state_copy"}
    assert {entry["partition"]: entry["offset"] for entry in entries} == _redundant(CHAOS)


def test_a_copy_without_a_file_or_without_a_topic_name_is_refused(cli: Command, tmp_path: Path):
    said = cli("cutoff", CHAOS, "--copy-topic", "copy")
    assert (said.code, said.err) == (2, "share-state: --copy-topic: names the topic in the file of --delete-records; "
                                        "give that, too\n")  # fmt: skip
    said = cli("cutoff", CHAOS, "--delete-records", tmp_path / "offsets.json", "--copy-topic", "a b")
    assert said.code == 2
    assert said.err.startswith("share-state: --copy-topic 'a b': not a topic name")
    assert not contents(tmp_path)


def test_what_the_broker_prunes_and_what_holds_it_back_is_printed(cli: Command):
    said = cli("cutoff", CHAOS).out
    rows = cli("cutoff", CHAOS, "--json").json["cutoff"]
    due = sum(row["redundant_records"] for row in rows)
    assert f"due for the broker's own pruning: {due} records of 3 state partitions" in said
    assert "(share.coordinator.state.topic.prune.interval.ms, by default 5 minutes)" in said
    assert "to free what is held back: let the group consume" in said
    assert "due for" not in cli("cutoff", DATA / "4.3.1/prune").out
    assert "due for" not in cli("cutoff", CHAOS, "--as-of-time", "2026-11-21T03:07Z").out


@nightly("a start of Java")
def test_kafka_s_tool_takes_the_file(spark: SparkSession, cli: Command, tmp_path: Path):
    target = tmp_path / "offsets.json"
    cli("cutoff", CHAOS, "--delete-records", target)
    assert _parsed_by_kafka(spark, target.read_text()) == {
        f"__share_group_state-{number}": [offset] for number, offset in _redundant(CHAOS).items()
    }


def _parsed_by_kafka(spark: SparkSession, text: str) -> dict[str, list[int]]:
    """What kafka-delete-records.sh reads from its --offset-json-file."""
    jvm: Any = spark._jvm
    gateway: Any = spark._sc._gateway
    urls = [jvm.java.io.File(str(jar)).toURI().toURL() for jar in jars.jars(jars.KAFKA_TOOLS)]
    array = gateway.new_array(jvm.java.net.URL, len(urls))
    for place, url in enumerate(urls):
        array[place] = url
    # Apart from Spark's own classes, some of which have the same names.
    loader = jvm.java.net.URLClassLoader(array, jvm.java.lang.ClassLoader.getPlatformClassLoader())
    tool = loader.loadClass("org.apache.kafka.tools.DeleteRecordsCommand")
    (parse,) = [
        method for method in tool.getDeclaredMethods() if method.getName() == "parseOffsetJsonStringWithoutDedup"
    ]
    parse.setAccessible(True)
    arguments = gateway.new_array(jvm.java.lang.Object, 1)
    arguments[0] = text
    parsed = parse.invoke(None, arguments)
    return {str(entry.getKey()): list(entry.getValue()) for entry in parsed.entrySet()}


def test_an_earlier_file_is_replaced(cli: Command, tmp_path: Path):
    target = tmp_path / "offsets.json"
    target.write_text("from last week")
    cli("cutoff", CHAOS, "--delete-records", target)
    assert len(json.loads(target.read_text())["partitions"]) == 3


def test_what_is_not_safe_is_not_written(cli: Command, damaged: Path, tmp_path: Path):
    target = tmp_path / "offsets.json"
    said = cli("cutoff", damaged, "--delete-records", target)
    assert said.code == 1
    assert "error: CRC_MISMATCH, 1 finding. What should hold: " in said.out
    assert json.loads(target.read_text())["partitions"] == []
    assert "not safe: __share_group_state-" in said.out


def test_a_cutoff_at_the_log_start_deletes_nothing_and_is_not_written(cli: Command, tmp_path: Path):
    target = tmp_path / "offsets.json"
    cli("cutoff", DATA / "4.3.1/prune", "--delete-records", target)
    rows = cli("cutoff", DATA / "4.3.1/prune", "--json").json["cutoff"]
    assert any(row["cutoff_offset"] == row["log_start_offset"] for row in rows)
    assert [entry["partition"] for entry in json.loads(target.read_text())["partitions"]] == [
        row["partition"] for row in rows if row["cutoff_offset"] > row["log_start_offset"]
    ]


def test_a_share_partition_without_a_snapshot_is_not_proven_and_not_written(cli: Command, tmp_path: Path):
    orphan, later = Record(key(UPDATE), update(start=0)), Record(key(partition=1), snapshot())
    batches = consecutive([Batch([record]) for record in (orphan, later)])
    log_of(tmp_path / "broker", in_bytes(batches))
    target = tmp_path / "offsets.json"
    said = cli("cutoff", tmp_path / "broker", "--verify", "--delete-records", target, "--fail-on", "off")
    assert said.code == 1
    assert "not safe: __share_group_state-0: " in said.out
    assert "the snapshot of 1 share-partition is not in the input" in said.out
    assert "not verified: 1 log partition whose cutoff is not safe" in said.out
    assert "verified: the records" not in said.out
    assert json.loads(target.read_text())["partitions"] == []


def test_a_log_with_nothing_to_clean_says_so(cli: Command, tmp_path: Path):
    log_of(tmp_path, Batch([Record(key(), snapshot())]).written())
    said = cli("cutoff", tmp_path, "--verify")
    assert said.code == 0
    assert "nothing to verify" in said.out
    assert said.table[1][2] == "-"


def test_topics_have_the_names_that_the_groups_of_the_export_give(cli: Command):
    assert "g4 t2 1" in cli("cutoff", CHAOS).out


def test_a_count_that_the_log_does_not_hold_is_null_in_an_explanation(cli: Command):
    said = cli("explain", CHAOS, "--group=g3", "--topic=t0", "--partition=2", "--offset=470", "--json")
    assert json.loads(said.out)["records"][0]["delivery_complete_count"] is None


def test_an_unreadable_log_of_groups_costs_only_the_names_of_topics(cli: Command, tmp_path: Path):
    for log in CHAOS.glob("__share_group_state-*"):
        (tmp_path / log.name).symlink_to(log)
    (tmp_path / f"__consumer_offsets-0/{0:020}.log").mkdir(parents=True)
    said = cli("cutoff", tmp_path, "--json")
    assert said.code == 0
    assert "cannot be read" in said.err
    assert "topics that only it names are shown by their ids" in said.err
    rows = cli("cutoff", CHAOS, "--json").json["cutoff"]
    assert {row["limited_by_topic"] for row in rows} != {None}
    assert said.json["cutoff"] == [row | {"limited_by_topic": None} for row in rows]
