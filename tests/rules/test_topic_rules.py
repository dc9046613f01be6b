"""The rules that compare the state of share-partitions with what is known of their topics."""

import json
from pathlib import Path
from typing import Any

import pytest

import share_state
from share_state.sources.discovery import find_logs
from share_state.sources.topics import read_topics
from tests.truth import DATA

CASES = DATA / "cases"
ID = "YDceSjdmT8S9BTxbi7vQIA"
RULES = {"RECORDS_LOST", "START_BEYOND_END", "TOPIC_GONE"}


def _findings(folder: Path, topics: Path, **options: Any) -> list[dict]:
    found = share_state.reconstruct(str(folder), topics=str(topics), **options).findings.to_pylist()
    return [row for row in found if row["rule"] in RULES]


def _topics(folder: Path, document: object) -> Path:
    (folder / "topics.json").write_text(json.dumps(document))
    return folder / "topics.json"


def test_unfinished_records_before_the_log_start_are_lost_and_counted():
    case = CASES / "retention-overtook"
    found = {row["group_id"]: row for row in _findings(case, case / "topics.json")}
    assert {(row["rule"], row["severity"]) for row in found.values()} == {("RECORDS_LOST", "warning")}
    row = found["gs1"]
    assert row["message"].startswith("690 unfinished records are gone: the log of the topic begins at 700")
    assert dict(row["evidence"])["records"] == "690"
    assert dict(found["busy"]["evidence"])["records"] == "590"


def test_a_log_start_before_the_start_offset_is_no_loss(tmp_path: Path):
    topics = {ID: {"name": "tp1", "partitions": 1, "end_offsets": {"0": 1010}, "start_offsets": {"0": 0}}}
    assert _findings(CASES / "retention-overtook", _topics(tmp_path, topics)) == []


def test_an_earlier_state_is_not_compared_with_the_topics_of_today():
    case = CASES / "retention-overtook"
    assert _findings(case, case / "topics.json", as_of={0: 5}) == []


def test_a_start_offset_beyond_the_end_of_the_topic_is_an_error():
    case = CASES / "spso-past-end"
    (row,) = _findings(case, case / "topics.json")
    assert (row["rule"], row["severity"]) == ("START_BEYOND_END", "error")
    assert "the start offset 500 is beyond the end of the topic, 200" in row["message"]
    assert "older than the log" in row["message"]


def test_an_end_offset_beyond_the_end_of_the_topic_is_an_error(tmp_path: Path):
    chaos = DATA / "4.3.1/chaos"
    states = share_state.reconstruct(str(chaos)).share_partition_state.to_pylist()
    row = next(row for row in states if row["end_offset"] is not None and row["start_offset"] < row["end_offset"])
    ends = {str(row["partition"]): row["end_offset"] - 1}
    topics = _topics(tmp_path, {row["topic_id"]: {"name": "t", "end_offsets": ends}})
    found = [one for one in _findings(chaos, topics) if one["group_id"] == row["group_id"]]
    assert [one["rule"] for one in found] == ["START_BEYOND_END"]
    assert found[0]["message"].startswith(f"the end offset {row['end_offset']} is beyond the end of the topic")


def test_state_of_a_topic_that_does_not_exist_is_named():
    case = CASES / "deleted-topic"
    (row,) = _findings(case, case / "topics.json")
    assert (row["rule"], row["severity"]) == ("TOPIC_GONE", "warning")
    assert "no topic has this id" in row["message"]


def test_state_of_a_partition_that_does_not_exist_is_named(tmp_path: Path):
    chaos = DATA / "4.3.1/chaos"
    document = json.loads((chaos / "topics.json").read_text())
    for topic in document:
        topic["partitions"] = topic["partitions"][:2] if topic["name"] == "t2" else topic["partitions"]
    gone = [row for row in _findings(chaos, _topics(tmp_path, document)) if row["rule"] == "TOPIC_GONE"]
    assert gone
    assert {row["topic"] for row in gone} == {"t2"}
    assert all(row["partition"] >= 2 and "no such partition" in row["message"] for row in gone)


def test_a_file_with_only_names_does_not_tell_which_topics_exist(tmp_path: Path):
    assert _findings(CASES / "deleted-topic", _topics(tmp_path, {"AAAAAAAAAAEAAAAAAAAAAg": "tp1"})) == []


@pytest.mark.parametrize("release", ["4.0.2", "4.1.2", "4.2.1", "4.3.1", "4.4.0"])
def test_healthy_topics_break_no_rule_about_topics(release: str):
    happy = DATA / release / "happy"
    assert _findings(happy, happy / "topics.json") == []
    assert find_logs([str(happy)])
    assert read_topics(str(happy / "topics.json")).is_complete
