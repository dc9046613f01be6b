"""Names and end offsets of topics, which the state topic lacks.

Reads the files of `--topics` and `--subscriptions`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import from_json

from share_state.errors import InputError
from share_state.stores.object_stores import read_errors
from share_state.stores.paths import regular_path, to_path

TOPICS_HINT = (
    "give --topics topics.json, which `share-state topics kafka://HOST:PORT --out topics.json` writes"
)
"""What a person does if names or ends of topics are not known."""

_NAMES = pa.schema([("topic_id", pa.string()), ("topic", pa.string())])
_ENDS = pa.schema([("topic_id", pa.string()), ("partition", pa.int32()), ("end_offset", pa.int64())])
_STARTS = pa.schema([("topic_id", pa.string()), ("partition", pa.int32()), ("start_offset", pa.int64())])
_COUNTS = pa.schema([("topic_id", pa.string()), ("partitions", pa.int64()), ("extended", pa.int64())])

BEFORE_THE_LOG = 0
"""Value of `extended` for topics that have had all their partitions since before the metadata log shows
times."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Names and end offsets by topic id.

    Attributes:
        names: columns topic_id and topic.
        ends: columns topic_id, partition (int32) and end_offset (next offset to be written, int64).
        counts: columns topic_id, partitions (their number, int64), where it is known, and extended (ms, when
            the last of them was created, or BEFORE_THE_LOG; null if unknown); `ends` may lack some of them.
        starts: columns topic_id, partition (int32) and start_offset (first offset that is not deleted,
            int64).
        is_complete: whether a topic that `counts` lacks does not exist.
        are_live: whether a running cluster was asked for them.
        may_be_old: whether the ends come from a file that nobody named, so that they may be older than the log.
    """

    names: pa.Table = field(default_factory=_NAMES.empty_table)
    ends: pa.Table = field(default_factory=_ENDS.empty_table)
    counts: pa.Table = field(default_factory=_COUNTS.empty_table)
    starts: pa.Table = field(default_factory=_STARTS.empty_table)
    is_complete: bool = False
    are_live: bool = False
    may_be_old: bool = False

    @property
    def partition_counts(self) -> dict[str, int]:
        """Topic id -> number of partitions, where it is known."""
        return dict(zip(*(self.counts[name].to_pylist() for name in ("topic_id", "partitions")), strict=True))

    def name_of(self, topic_ids: pa.Array) -> pa.Array:
        """The name of each topic id, null if unknown."""
        if not len(self.names):
            return pa.nulls(len(topic_ids), pa.string())
        rows = pc.index_in(topic_ids, self.names["topic_id"].combine_chunks())
        return self.names["topic"].combine_chunks().take(rows)

    def end_of(self, topic_ids: pa.Array, partitions: pa.Array) -> pa.Array:
        """The end offset of each topic-partition, null if unknown."""
        return _offset_of(self.ends, topic_ids, partitions)

    def start_of(self, topic_ids: pa.Array, partitions: pa.Array) -> pa.Array:
        """The log start offset of each topic-partition, null if unknown."""
        return _offset_of(self.starts, topic_ids, partitions)


@dataclass(frozen=True, slots=True)
class TopicSource:
    """Topics according to one source.

    Attributes:
        name: as messages call it.
        topics: names, partitions and ends.
        origin: its path or address; None if the call holds the topics.
        note: what a run says of it; None for nothing.
        is_authority: whether the topics are those of the cluster itself, so that another source may be out of date.
        removed: id -> name of topics that were deleted, as far as the source shows them.
    """

    name: str
    topics: Topics
    origin: str | None = None
    note: str | None = None
    is_authority: bool = False
    removed: Mapping[str, str] = field(default_factory=dict)


def _offset_of(offsets: pa.Table, topic_ids: pa.Array, partitions: pa.Array) -> pa.Array:
    """The offset of each topic-partition in one of the tables `ends` and `starts`, null if unknown."""
    if not len(offsets):
        return pa.nulls(len(topic_ids), pa.int64())
    columns = [column.combine_chunks() for column in offsets.columns]
    return columns[2].take(pc.index_in(_join(topic_ids, partitions), _join(columns[0], columns[1])))


def topics_of(
    names: Mapping[str, str],
    *,
    ends: Mapping[tuple[str, int], int] | None = None,
    starts: Mapping[tuple[str, int], int] | None = None,
    partition_counts: Mapping[str, int] | None = None,
    is_complete: bool = False,
) -> Topics:
    """Topics from dictionaries.

    Args:
        names: topic id -> name.
        ends, starts: topic id and partition -> offset.
        partition_counts: topic id -> number of partitions.
        is_complete: as in Topics.
    """
    tables = [
        pa.table(
            [[key[0] for key in offsets], [key[1] for key in offsets], [*offsets.values()]], schema=schema
        )
        for offsets, schema in ((ends or {}, _ENDS), (starts or {}, _STARTS))
    ]
    named = pa.table([[*names], [*names.values()]], schema=_NAMES)
    return Topics(named, tables[0], _counts(partition_counts or {}), tables[1], is_complete)


def _counts(partition_counts: Mapping[str, int]) -> pa.Table:
    return pa.table(
        [[*partition_counts], [*partition_counts.values()], [None] * len(partition_counts)], schema=_COUNTS
    )


def _join(topic_ids: pa.Array, partitions: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(topic_ids, partitions.cast(pa.string()), ":")


_Partition = Annotated[int, Field(ge=0, lt=2**31)]
_Offset = Annotated[int, Field(ge=0, lt=2**63, strict=True)]


class _Topic(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str | None = None
    partitions: Annotated[int, Field(ge=1, lt=2**31, strict=True)] | None = None
    end_offsets: dict[_Partition, _Offset] = Field(default_factory=dict)
    start_offsets: dict[_Partition, _Offset] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, topic: Any) -> Any:
        """`"name"` alone, and partitions as a list of {partition, highWatermark or end_offset, logStartOffset}."""
        if isinstance(topic, str):
            return {"name": topic}
        end_offsets = topic.get("end_offsets", {}) if isinstance(topic, dict) else None
        if not isinstance(end_offsets, dict) or not isinstance(topic.get("partitions"), list):
            return topic
        ends = {
            entry["partition"]: entry.get("end_offset", entry.get("highWatermark"))
            for entry in topic["partitions"]
            if isinstance(entry, dict) and isinstance(entry.get("partition"), int)
        }
        starts = {
            entry["partition"]: entry["logStartOffset"]
            for entry in topic["partitions"]
            if isinstance(entry, dict)
            and isinstance(entry.get("partition"), int)
            and "logStartOffset" in entry
        }
        # A partition without a leader has no high watermark.
        known = {number: end for number, end in {**ends, **end_offsets}.items() if end is not None}
        known_starts = {number: start for number, start in starts.items() if start is not None}
        known_starts |= topic.get("start_offsets", {})
        count = max(ends) + 1 if ends else None
        return {**topic, "end_offsets": known, "start_offsets": known_starts, "partitions": count}


_TopicId = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{22}$")]
_FILE = TypeAdapter(dict[_TopicId, _Topic])
_PROBLEMS = {
    "string_pattern_mismatch": "is no topic id, which has 22 characters",
    "dict_type": "must be an object",
    "model_type": "must be an object or a name",
    "int_type": "must be a whole number",
    "string_type": "must be text",
}
"""Kind of a pydantic error -> the problem in words."""


def read_topics(path: str) -> Topics:
    """Read the file of `--topics`.

    Accepts two forms: `{"<topic id>": {"name": "orders", "partitions": 3, "end_offsets": {"0": 612}}}`, and a
    list of `{"topicId": ..., "name": ..., "partitions": [{"partition": 0, "highWatermark": 612}]}`; all but
    the id is optional. A file that has the partitions of each topic in it is taken to name all topics of the
    cluster.

    Raises:
        InputError: if the file is missing or invalid.
    """
    try:
        with read_errors(path, "give a JSON file of topics"):
            document = from_json(regular_path(to_path(path)).read_bytes())
        if isinstance(document, list):
            document = {entry.get("topicId") or entry["topic_id"]: entry for entry in document}
        topics = _FILE.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        problem = _PROBLEMS.get(first["type"], first["msg"].replace("Input should be", "must be"))
        place = ".".join(str(part) for part in first["loc"] if part != "[key]")
        raise InputError(f"{path}: {place}: {problem}; {_EXPECTED}") from None
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise InputError(f"{path}: not a JSON file of topics ({error}); {_EXPECTED}") from None
    names = [
        {"topic_id": key, "topic": topic.name} for key, topic in topics.items() if topic.name is not None
    ]
    ends = [
        {"topic_id": key, "partition": number, "end_offset": end}
        for key, topic in topics.items()
        for number, end in topic.end_offsets.items()
    ]
    starts = [
        {"topic_id": key, "partition": number, "start_offset": start}
        for key, topic in topics.items()
        for number, start in topic.start_offsets.items()
    ]
    counts = {key: topic.partitions for key, topic in topics.items() if topic.partitions is not None}
    return Topics(
        pa.Table.from_pylist(names, _NAMES),
        pa.Table.from_pylist(ends, _ENDS),
        _counts(counts),
        pa.Table.from_pylist(starts, _STARTS),
        is_complete=bool(topics) and len(counts) == len(topics),
    )


def read_subscriptions(path: str | None) -> dict[str, list[str]] | None:
    """Read the file of `--subscriptions`: topic name -> groups that subscribe to it.

    None if no file is given.

    Raises:
        InputError: if the file is missing or invalid.
    """
    if path is None:
        return None
    try:
        with read_errors(path, "--subscriptions needs a JSON file"):
            return TypeAdapter(dict[str, list[str]]).validate_json(regular_path(to_path(path)).read_bytes())
    except ValidationError:
        raise InputError(
            f'{path}: not a JSON file of subscriptions; give {{"<topic>": ["<group>", ...]}}'
        ) from None


_EXPECTED = 'give {"<topic id>": {"name": "...", "partitions": 3, "end_offsets": {"0": 612}}}'
