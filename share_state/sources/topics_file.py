"""Makes the topics file: from a broker's data folder, a live cluster, or the texts that Kafka's tools print.

`docs/topics.md` describes the file; `topics.read_topics` reads it.
"""

import re
from collections.abc import Sequence
from typing import Any

from share_state.errors import InputError
from share_state.sources.cluster_facts import read_cluster_facts
from share_state.sources.discovery import find_data_folders, is_data_folder
from share_state.sources.topics import Topics, topics_of
from share_state.stores.object_stores import read_errors
from share_state.stores.paths import InputPath, expand_paths

_DESCRIBED = re.compile(
    r"^Topic:\s*(?P<name>\S+)\s+TopicId:\s*(?P<id>[A-Za-z0-9_-]{22})\s+PartitionCount:\s*(?P<count>\d+)", re.MULTILINE
)
_OFFSET = re.compile(r"^(?P<name>[A-Za-z0-9._-]+):(?P<partition>\d{1,10}):(?P<end>\d{1,18})\s*$", re.MULTILINE)
_FIX = "give a broker's data folder, kafka://HOST:PORT, or texts of kafka-topics.sh --describe and kafka-get-offsets.sh"


def collect_topics(inputs: Sequence[str]) -> tuple[Topics, tuple[str, ...]]:
    """The topics that data folders of brokers, or texts of Kafka's tools, show.

    Returns:
        The topics, and notes on what is wrong or guessed.
    Raises:
        InputError: if an input cannot be read, or shows no topic.
    """
    folders, texts = list[InputPath](), list[tuple[str, str]]()
    for given in inputs:
        with read_errors(given):
            paths = expand_paths(given)
            if not paths:
                raise InputError(f"{given}: no such file or folder; {_FIX}")
            for path in paths:
                if path.is_dir():
                    folders += _data_folders(path)
                else:
                    texts.append((given, path.read_text(encoding="utf-8", errors="replace")))
    if folders and texts:
        raise InputError(f"{texts[0][0]}: a text beside a data folder; give one kind of input")
    if texts:
        return _of_texts(texts), ()
    if not folders:
        raise InputError(f"{inputs[0]}: not the data folder of a broker (no __cluster_metadata-0 in it); {_FIX}")
    facts = read_cluster_facts(folders)
    if not len(facts.topics.names):
        why = "; ".join(facts.notes) or "no __cluster_metadata-0 and no folders of topics in it"
        raise InputError(f"{inputs[0]}: names no topics ({why}); {_FIX}")
    return facts.topics, facts.notes


def _data_folders(path: InputPath) -> list[InputPath]:
    """The folder, the data folder that holds it, or the data folders in it."""
    if is_data_folder(path):
        return [path]
    inside = [child for child in sorted(path.iterdir()) if child.is_dir() and is_data_folder(child)]
    return inside or find_data_folders([path])


def _of_texts(texts: Sequence[tuple[str, str]]) -> Topics:
    """The topics in the texts of `kafka-topics.sh --describe`, with the ends in those of `kafka-get-offsets.sh`."""
    described = [topic for _, text in texts for topic in _DESCRIBED.finditer(text)]
    offsets = [offset for _, text in texts for offset in _OFFSET.finditer(text)]
    for name, text in texts:
        if not _DESCRIBED.search(text) and not _OFFSET.search(text):
            raise InputError(
                f"{name}: neither a text of kafka-topics.sh --describe nor of kafka-get-offsets.sh; {_FIX}"
            )
    if not described:
        fix = "give the text of kafka-topics.sh --describe too"
        raise InputError(f"{texts[0][0]}: kafka-get-offsets.sh prints no topic ids; {fix}")
    ids = {topic["name"]: topic["id"] for topic in described}
    return topics_of(
        {topic["id"]: topic["name"] for topic in described},
        ends={
            (ids[offset["name"]], int(offset["partition"])): int(offset["end"])
            for offset in offsets
            if offset["name"] in ids
        },
        partition_counts={topic["id"]: int(topic["count"]) for topic in described},
    )


def topics_document(topics: Topics) -> dict[str, dict[str, Any]]:
    """The content of the topics file, by topic name."""
    ids, names = (topics.names[column].to_pylist() for column in ("topic_id", "topic"))
    document = dict[str, dict[str, Any]]()
    for name, topic_id in sorted(zip(names, ids, strict=True)):
        document[topic_id] = {"name": name}
        if topic_id in topics.partition_counts:
            document[topic_id]["partitions"] = topics.partition_counts[topic_id]
    for table, column in ((topics.starts, "start_offset"), (topics.ends, "end_offset")):
        rows = sorted(zip(*(table[key].to_pylist() for key in ("topic_id", "partition", column)), strict=True))
        for topic_id, partition, offset in rows:
            if topic_id in document:
                document[topic_id].setdefault(f"{column}s", {})[str(partition)] = offset
    return document
