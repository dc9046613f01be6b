"""Makes the topics file: from a broker's data folder, a live cluster, or the texts that Kafka's tools print.

Finds it.

`docs/topics.md` describes the file; `topics.read_topics` reads it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import InputError
from share_state.sources.cluster_facts import read_cluster_facts
from share_state.sources.discovery import find_data_folders, is_data_folder, log_parent
from share_state.sources.kafka_client import SCHEME
from share_state.sources.log_partition import LogPartition
from share_state.sources.topics import Topics, TopicSource, read_topics, topics_of
from share_state.stores.object_stores import read_errors
from share_state.stores.paths import InputPath, expand_paths, to_path

TOPICS_FILE = "topics.json"
"""Name of a topics file that is read without being named."""

_DESCRIPTION = re.compile(
    r"^Topic:\s*(?P<name>\S+)\s+TopicId:\s*(?P<id>[A-Za-z0-9_-]{22})\s+PartitionCount:\s*(?P<count>\d+)",
    re.MULTILINE,
)
_OFFSET = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+):(?P<partition>\d{1,10}):(?P<end>\d{1,18})\s*$", re.MULTILINE
)
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
        raise InputError(
            f"{inputs[0]}: not the data folder of a broker (no __cluster_metadata-0 in it); {_FIX}"
        )
    facts = read_cluster_facts(folders)
    if not len(facts.topics.names):
        why = "; ".join(facts.notes) or "no __cluster_metadata-0 and no folders of topics in it"
        raise InputError(f"{inputs[0]}: names no topics ({why}); {_FIX}")
    return facts.topics, facts.notes


def find_topics_files(inputs: Iterable[str], logs: Iterable[LogPartition] = ()) -> list[InputPath]:
    """The files TOPICS_FILE in the folders that are given, and beside the folders of logs; each once.

    Args:
        inputs: paths of files or folders, glob patterns, or the address of a cluster, which has none.
        logs: the log partitions found in them.
    Raises:
        InputError: if a folder cannot be read.
    """
    files = (folder / TOPICS_FILE for folder in dict.fromkeys(_beside(inputs, logs)))
    distinct = dict[str, InputPath]()
    for file in files:
        with read_errors(file):
            if file.is_file():
                distinct.setdefault(str(file.resolve()), file)
    return list(distinct.values())


def read_adjacent_topics(
    inputs: Iterable[str], logs: Iterable[LogPartition]
) -> tuple[TopicSource | None, list[str]]:
    """The topics file beside the logs, and notes on files and folders that cannot be read.

    Args:
        inputs: as given.
        logs: the log partitions found in them.
    """
    notes = list[str]()
    try:
        files = find_topics_files(inputs, logs)
    except InputError as error:
        return None, [f"{error}; no topics file is looked for there"]
    for number, file in enumerate(files):
        try:
            topics = read_topics(str(file))
        except InputError as error:
            notes.append(f"{error}; this file beside the logs is not used")
            continue
        others = ", ".join(str(other) for other in files[number + 1 :])
        note = (
            f"names and ends come from {file}, beside the logs"
            + (f", and not from {others}" if others else "")
            + "; --topics names another file"
        )
        return TopicSource("topics file", replace(topics, may_be_old=True), str(file), note), notes
    return None, notes


def _beside(inputs: Iterable[str], logs: Iterable[LogPartition]) -> Iterator[InputPath]:
    """The folders that may hold a topics file."""
    for given in inputs:
        if not given.startswith(SCHEME) and not any(sign in given for sign in "*?["):
            path = to_path(given)
            with suppress(OSError):
                yield path if path.is_dir() else path.parent
    for log in logs:
        if log.source is None:
            yield from dict.fromkeys(log_parent(to_path(segment.path)) for segment in log.segments)


def _data_folders(path: InputPath) -> list[InputPath]:
    """The folder, the data folder that holds it, or the data folders in it."""
    if is_data_folder(path):
        return [path]
    inside = [child for child in sorted(path.iterdir()) if child.is_dir() and is_data_folder(child)]
    return inside or find_data_folders([path])


def _of_texts(texts: Sequence[tuple[str, str]]) -> Topics:
    """The topics in the texts of `kafka-topics.sh --describe`, with the ends in those of `kafka-get-offsets.sh`."""
    described = [topic for _, text in texts for topic in _DESCRIPTION.finditer(text)]
    offsets = [offset for _, text in texts for offset in _OFFSET.finditer(text)]
    for name, text in texts:
        if not _DESCRIPTION.search(text) and not _OFFSET.search(text):
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


_TOPICS_AT_ONCE = 5_000


def topics_text(topics: Topics) -> Iterator[str]:
    """The content of the topics file, by topic name, in pieces."""
    names = topics.names
    order = pc.sort_indices(names, sort_keys=[("topic", "ascending"), ("topic_id", "ascending")])
    begin = "{\n"
    for first in range(0, len(names), _TOPICS_AT_ONCE):
        some = names.take(order.slice(first, _TOPICS_AT_ONCE)).combine_chunks()
        for topic_id, entry in zip(some["topic_id"].to_pylist(), _entries(topics, some), strict=True):
            members = ",\n".join(f'    "{key}": {value}' for key, value in entry.items())
            yield f'{begin}  "{topic_id}": {{\n{members}\n  }}'
            begin = ",\n"
    yield "\n}\n" if len(names) else "{}\n"


def _entries(topics: Topics, names: pa.Table) -> Iterator[dict[str, str]]:
    """The entry of each topic: key -> value as JSON."""
    ids = names["topic_id"].combine_chunks()
    places = pc.index_in(ids, topics.counts["topic_id"].combine_chunks())
    counts = topics.counts["partitions"].combine_chunks().take(places).to_pylist()
    starts, ends = (_offsets_by_topic(table, ids) for table in (topics.starts, topics.ends))
    for topic_id, name, count in zip(ids.to_pylist(), names["topic"].to_pylist(), counts, strict=True):
        entry = {"name": json.dumps(name, ensure_ascii=False)}
        if count is not None:
            entry["partitions"] = str(count)
        for key, offsets in (("start_offsets", starts), ("end_offsets", ends)):
            if topic_id in offsets:
                lines = ",\n".join(
                    f'      "{partition}": {offset}' for partition, offset in sorted(offsets[topic_id])
                )
                entry[key] = f"{{\n{lines}\n    }}"
        yield entry


def _offsets_by_topic(table: pa.Table, topic_ids: pa.Array) -> dict[str, list[tuple[int, int]]]:
    """Topic id -> partition and offset of each of its partitions, for some topics."""
    by_topic = dict[str, list[tuple[int, int]]]()
    some = table.filter(pc.is_in(table["topic_id"], topic_ids)) if len(table) else table
    for topic_id, partition, offset in zip(*(column.to_pylist() for column in some.columns), strict=True):
        by_topic.setdefault(topic_id, []).append((partition, offset))
    return by_topic
