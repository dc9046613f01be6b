"""`share-state topics` writes what `--topics` reads."""

import json
from pathlib import Path

import pytest

from share_state.sources.topics import read_topics
from tests.cli.commands import Command

FOLDER = Path(__file__).parents[1] / "sources" / "cluster_facts" / "whole-broker"
TRUTH = json.loads((FOLDER / "truth" / "topics.json").read_text())

DESCRIBED = """Topic: orders\tTopicId: 82AEKPz2SVakeH_lLcx3QA\tPartitionCount: 2\tReplicationFactor: 1\tConfigs:
\tTopic: orders\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr:
\tTopic: orders\tPartition: 1\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr:
"""


@pytest.mark.parametrize("given", [FOLDER, FOLDER.parent, FOLDER / "__cluster_metadata-0", FOLDER / "a-0"])
def test_the_file_has_the_topics_of_a_data_folder(cli: Command, tmp_path: Path, given: Path):
    out = tmp_path / "topics.json"
    assert cli("topics", given, "--out", out).out == f"{out}: 8 topics\n"
    written = json.loads(out.read_text())
    assert {topic_id: (one["name"], one["partitions"]) for topic_id, one in written.items()} == {
        one["topicId"]: (one["name"], len(one["partitions"])) for one in TRUTH
    }
    ends = {one["topicId"]: {str(p["partition"]): p["highWatermark"] for p in one["partitions"]} for one in TRUTH}
    assert {topic_id: one["end_offsets"] for topic_id, one in written.items()} == ends
    topics = read_topics(str(out))
    assert (len(topics.names), len(topics.ends), len(topics.starts)) == (8, 32, 27)


def test_the_texts_of_kafkas_tools_make_a_topics_file(cli: Command, tmp_path: Path):
    (tmp_path / "d.txt").write_text(DESCRIBED)
    (tmp_path / "o.txt").write_text("orders:0:433\norders:1:0\nothers:0:7\n")
    printed = json.loads(cli("topics", tmp_path / "d.txt", tmp_path / "o.txt").out)
    end_offsets = {"0": 433, "1": 0}
    assert printed == {"82AEKPz2SVakeH_lLcx3QA": {"name": "orders", "partitions": 2, "end_offsets": end_offsets}}
    refused = cli("topics", tmp_path / "o.txt")
    assert (refused.code, "prints no topic ids" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("empty", None, "not the data folder of a broker"), ("noise.txt", "hello", "neither a text of kafka-topics.sh")],
)
def test_what_shows_no_topics_is_refused(cli: Command, tmp_path: Path, name: str, content: str | None, words: str):
    path = tmp_path / name
    path.mkdir() if content is None else path.write_text(content)
    refused = cli("topics", path)
    assert refused.code == 2
    assert words in refused.err
    assert "no such file" in cli("topics", tmp_path / "absent").err
