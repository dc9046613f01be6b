"""A file topics.json beside the logs is found by itself; what the call names precedes it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import share_state
from share_state.config.input_spec import OPTIONS, input_spec
from share_state.delta.committed import CommittedTables
from share_state.pipeline.facts import settle_topics
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.planning import build_plan
from share_state.sources.topics import TopicSource, topics_of
from tests.cli.commands import Command
from tests.profiles import nightly, some_of
from tests.sources.cluster_facts.metadata_writer import message, partition, removed, uuid, write_metadata_log
from tests.truth import DATA, without_topics

HAPPY = DATA / "4.4.0/happy"
KNOWN = json.loads((HAPPY / "topics.json").read_text())
(ORDERS,) = [one for one in KNOWN if one["name"] == "orders"]
PARTITIONS = len(ORDERS["partitions"])


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """The logs of a broker, without facts about its cluster."""
    return without_topics(HAPPY, tmp_path / "export")


def plan_of(*paths: Path | str, **values: Any) -> FoldPlan:
    return build_plan(input_spec(OPTIONS, sources=[{"path": str(path)} for path in paths], **values), OPTIONS)


def name_of(plan: FoldPlan) -> str | None:
    """The name that a plan has for the topic `orders`."""
    topics = plan.options.topics.names.to_pylist()
    return next((row["topic"] for row in topics if row["topic_id"] == ORDERS["topicId"]), None)


def write_topics(folder: Path, name: str) -> Path:
    (folder / "topics.json").write_text(json.dumps({ORDERS["topicId"]: {"name": name, "partitions": PARTITIONS}}))
    return folder / "topics.json"


@pytest.mark.parametrize(
    "given",
    ["", "__share_group_state-0", "__share_group_state-*", "__share_group_state-0/00000000000000000000.log"],
)
def test_the_file_is_found_in_the_folder_and_beside_the_folders_of_logs(export: Path, given: str):
    file = write_topics(export, "beside")
    plan = plan_of(export / given if given else export)
    assert name_of(plan) == "beside"
    assert plan.topics_note == f"names and ends come from {file}, beside the logs; --topics names another file"
    assert plan.facts["cluster_facts.topics"] == str(file)


def test_the_file_beside_a_text_is_found(tmp_path: Path):
    dump = DATA / "4.3.1/happy/dump-log-__share_group_state-2.txt"
    shutil.copy(dump, tmp_path / "dump.txt")
    (tmp_path / "topics.json").write_text(json.dumps({uuid(1): "elsewhere"}))
    assert plan_of(tmp_path / "dump.txt").options.topics.names.to_pylist() == [
        {"topic_id": uuid(1), "topic": "elsewhere"}
    ]


def test_a_file_that_the_call_names_precedes_it(export: Path, tmp_path: Path):
    write_topics(export, "beside")
    named = write_topics(tmp_path, "named")
    plan = plan_of(export, topics=str(named))
    assert name_of(plan) == "named"
    assert plan.topics_note is None
    assert plan.facts["cluster_facts.topics"] == str(named)
    assert name_of(plan_of(export, known_topics=topics_of({ORDERS["topicId"]: "called"}))) == "called"


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"short": "a"}', '{"a": {"b": [{}]}}'])
def test_a_file_that_is_no_topics_file_is_noted_and_not_used(export: Path, content: str):
    (export / "topics.json").write_text(content)
    plan = plan_of(export)
    assert len(plan.options.topics.names) == 0
    (note,) = [note for note in plan.notes if "topics.json" in note]
    assert note.endswith("; this file beside the logs is not used")


def test_of_the_files_of_several_brokers_the_first_is_used(export: Path, tmp_path: Path):
    write_topics(export, "first")
    second = tmp_path / "second"
    shutil.copytree(HAPPY / "__share_group_state-1", second / "__share_group_state-1")
    other = write_topics(second, "second")
    plan = plan_of(export / "__share_group_state-0", second)
    assert name_of(plan) == "second"  # the folder itself is given
    plan = plan_of(export, second)
    assert name_of(plan) == "first"
    assert f"and not from {other}" in str(plan.topics_note)


def test_the_metadata_log_precedes_it_and_tells_what_is_stale(export: Path):
    (export / "topics.json").write_text(
        json.dumps({ORDERS["topicId"]: "renamed", uuid(7): "deleted", uuid(8): "elsewhere"})
    )
    of_log = [
        message("topic_record", name="orders", topic_id=ORDERS["topicId"]),
        message("topic_record", name="deleted", topic_id=uuid(7)),
        removed(7),
    ]
    write_metadata_log(export, [of_log])
    plan = plan_of(export)
    assert name_of(plan) == "orders"
    assert [one.message for one in plan.fact_conflicts] == [
        "the topic is orders in the metadata log, but renamed in the topics file; orders is used",
        "the topics file names a topic that is deleted, according to the metadata log",
        "the topics file names a topic that is not in the metadata log; is it of another cluster?",
    ]


def test_a_live_cluster_precedes_the_topics_file_and_that_the_data_folder():
    ids = [uuid(number) for number in range(1, 5)]
    live = topics_of({ids[0]: "live"}, ends={(ids[0], 0): 10}, partition_counts={ids[0]: 1})
    file = topics_of(
        dict.fromkeys(ids[:2], "file"), ends={(ids[0], 0): 5, (ids[1], 0): 6}, partition_counts={ids[0]: 2}
    )
    folder = topics_of(dict.fromkeys(ids[:3], "folder"), ends={(ids[1], 0): 1, (ids[2], 0): 2})
    beside = topics_of(dict.fromkeys(ids, "beside"), starts={(ids[0], 0): 3})
    sources = [
        TopicSource("live cluster", live, "kafka://b:9092", is_authority=True),
        TopicSource("topics file", file, "topics.json"),
        TopicSource("metadata log", folder, "__cluster_metadata-0", is_authority=True),
        TopicSource("topics file", beside, "topics.json"),
    ]
    topics, conflicts = settle_topics(sources)
    assert topics.name_of(topics.names["topic_id"].combine_chunks()).to_pylist() == ["live", "file", "folder", "beside"]
    ends = {(row["topic_id"], row["partition"]): row["end_offset"] for row in topics.ends.to_pylist()}
    assert ends == {(ids[0], 0): 10, (ids[1], 0): 6, (ids[2], 0): 2}
    assert topics.partition_counts == {ids[0]: 1}
    assert topics.starts["start_offset"].to_pylist() == [3]
    texts = [one.message for one in conflicts]
    assert "the topic is live in the live cluster, but file in the topics file; live is used" in texts
    assert "the topic has 1 partitions in the live cluster, but 2 in the topics file; 1 is used" in texts
    assert "the topic is file in the topics file, but folder in the metadata log; file is used" in texts


def test_lags_are_those_of_the_cluster_with_the_folder_alone(tmp_path: Path):
    found = share_state.reconstruct(str(HAPPY), warehouse=str(tmp_path / "w"))
    assert None not in found.share_partition_state["topic_end_offset"].to_pylist()
    row = CommittedTables(str(tmp_path / "w")).run
    assert dict(row["options"])["cluster_facts.topics"] == str(HAPPY / "topics.json")
    (note,) = [note for note in row["notes"] if note.startswith("topics: ")]
    assert note.startswith(f"topics: names and ends come from {HAPPY / 'topics.json'}, beside the logs")


@nightly("two audits")
def test_an_audit_of_the_same_logs_and_the_same_file_finds_nothing_new(cli: Command, export: Path, tmp_path: Path):
    file = write_topics(export, "beside")
    audit = ("audit", export, "--out", tmp_path / "w", "--set", "limits.export_age=0", "--fail-on", "off", "--json")
    assert any(note.startswith("topics: ") for note in cli(*audit).json["run"]["notes"])
    again = cli(*audit).json["run"]["notes"]
    assert again[0].startswith("nothing new")
    assert [note for note in again if note.startswith("topics: ")]
    file.write_text(file.read_text().replace("beside", "renamed"))
    assert not cli(*audit).json["run"]["notes"][0].startswith("nothing new")
    assert {row["topic"] for row in cli("show", tmp_path / "w", "--json").json["share_partitions"]} >= {"renamed"}


@pytest.mark.parametrize(
    "command", some_of(["reconstruct", "explain", "cutoff", "diff", "decode", "repair", "audit"], 2)
)
def test_the_variable_names_the_file_for_every_command(
    command: str, cli: Command, export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (row, *_) = share_state.reconstruct(str(export)).share_partition_state.to_pylist()
    key = ("--group", row["group_id"], "--topic", row["topic_id"], "--partition", row["partition"])
    call = {
        "reconstruct": (export, "--out", tmp_path / "w"),
        "explain": (export, *key, "--offset", 1),
        "diff": (export, "--as-of-offset", "0=3"),
        "audit": (export, "--out", tmp_path / "a", "--set", "limits.export_age=0"),
    }.get(command, (export,))
    monkeypatch.setenv("SHARE_STATE_TOPICS", str(tmp_path / "missing.json"))
    refused = cli(command, *call)
    assert (refused.code, "missing.json: cannot be read" in refused.err) == (2, True)
    monkeypatch.setenv("SHARE_STATE_TOPICS", str(HAPPY / "topics.json"))
    assert cli(command, *call).code == 0
    monkeypatch.setenv("SHARE_STATE_TOPICS", str(tmp_path / "missing.json"))
    assert cli(command, *call, "--topics", HAPPY / "topics.json").code == 0


@nightly("every command")
def test_the_metadata_log_counts_partitions_of_topics_with_control_records(cli: Command, tmp_path: Path):
    made = tmp_path / "made"
    assert cli("simulate", "--dialect", "control_records", "--out", made).code == 0
    logs = sorted(path for path in made.rglob("*-0") if path.is_dir() and any(path.glob("*.log")))
    topic, place = logs[0].name.removesuffix("-0"), logs[0].parent
    assert not [note for note in absent_notes(cli, place, tmp_path) if "-97" in note]
    of_topic = [message("topic_record", name=topic, topic_id=uuid(1)), *(partition(1, number) for number in range(99))]
    write_metadata_log(place, [of_topic])
    (note,) = [note for note in absent_notes(cli, place, tmp_path) if topic in note]
    assert "are not in the input" in note


def absent_notes(cli: Command, place: Path, tmp_path: Path) -> list[str]:
    call = ("reconstruct", place, "--dialect", "control_records", "--out", tmp_path / "w", "--fail-on", "off", "--json")
    return [note for note in cli(*call).json["notes"] if "not in the input" in note]
