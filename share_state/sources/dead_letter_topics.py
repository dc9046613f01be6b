"""Reads dead-letter topics: segments, tables with the column `headers` of Spark's Kafka source, and live clusters."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import InputError
from share_state.kafka.buffers import is_text
from share_state.kafka.dead_letter_headers import (
    DEAD_LETTERS,
    HEADER_PREFIX,
    HEADERS,
    dead_letters,
    header_columns,
)
from share_state.sources.as_of import Window
from share_state.sources.log_partition import LARGEST_PARTITION, LogPartition, Segment
from share_state.sources.pruned_logs import read_pieces
from share_state.sources.record_tables import check_distinct, int64_column, known_span, timestamp_ms
from share_state.sources.resume_point import digest_of_logs
from share_state.sources.segments import index_records, read_chunks
from share_state.stores.paths import InputPath

if TYPE_CHECKING:
    from share_state.sources.kafka_admin import DeadLetterTopics

ReadSoFar = Mapping[tuple[str, int], int]
"""(dead-letter topic, partition) -> first offset that no earlier audit has read."""

COLUMNS = ("headers", "topic", "partition", "offset", "timestamp")
"""The columns to read from tables."""

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_MESSAGES = 10_000


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The contents of dead-letter topics.

    Attributes:
        rows: columns of DEAD_LETTERS.
        others: number of records that are not dead letters.
        starts: (topic, partition) -> first offset, for each log partition in the input.
        partitions: topic -> number of partitions, if known.
        unusable: group -> why the brokers cannot write to its dead-letter topic; only for a live cluster.
        topic_of: group -> the dead-letter topic that it is configured with; only for a live cluster.
        is_live: whether they were read from a live cluster.
    """

    rows: pa.Table
    others: int
    starts: Mapping[tuple[str, int], int]
    partitions: Mapping[str, int] = field(default_factory=dict)
    unusable: Mapping[str, str] = field(default_factory=dict)
    topic_of: Mapping[str, str] = field(default_factory=dict)
    is_live: bool = False


class DeadLetterSource(Protocol):
    """Reads dead-letter topics."""

    def read(self, so_far: ReadSoFar) -> DeadLetters:
        """Read the dead letters from where an earlier audit stopped.

        Raises:
            InputError: if a file, a table or the cluster cannot be read.
        """
        ...

    def digest(self) -> str:
        """A hash that changes if the dead-letter topics change; errors as for `read`."""
        ...


@dataclass(frozen=True, slots=True)
class SegmentLetters:
    """The segments of dead-letter topics."""

    logs: Sequence[LogPartition]

    def read(self, so_far: ReadSoFar) -> DeadLetters:
        """Read the dead letters from where an earlier audit stopped."""
        parts = list[_Part]()
        for log in self.logs:
            begin = max(so_far.get(_place(log), 0), log.log_start_offset)
            following = {one.replica: one.base_offset for one in log.segments}
            kept = []
            for segment in reversed(log.segments):
                if segment.base_offset == following[segment.replica] or following[segment.replica] > begin:
                    kept.insert(0, segment)
                following[segment.replica] = segment.base_offset
            for part in read_chunks(replace(log, segments=tuple(kept)), merge=True):
                found = index_records(part, begin, Window())
                records = found.records[found.records["offset"] >= begin]
                last, first = (
                    header_columns(found.part.data, found.part.batches, records, first=is_first)
                    for is_first in (False, True)
                )
                topic, partition = (pa.repeat(one, len(records)) for one in _place(log))
                offset, timestamp = (pa.array(records[name].copy()) for name in ("offset", "timestamp"))
                parts.append(_part_of(last, first, (topic, partition, offset, timestamp)))
        return DeadLetters(*_joined(parts), {_place(log): log.log_start_offset for log in self.logs})

    def digest(self) -> str:
        """A hash that changes if the segments change."""
        return digest_of_logs(self.logs)


@dataclass(frozen=True, slots=True)
class TableLetters:
    """Tables with the columns of Spark's Kafka source, one after the other.

    Attributes:
        tables: each opens the rows of a table, as `checked_batches` yields them.
        files: files that change if a table changes.
    """

    tables: Sequence[Callable[[], Iterator[pa.RecordBatch]]]
    files: Sequence[InputPath]

    def read(self, so_far: ReadSoFar) -> DeadLetters:
        """Read the dead letters from where an earlier audit stopped."""
        parts, starts = list[_Part](), dict[tuple[str, int], int]()
        for batch in (one for open_table in self.tables for one in open_table()):
            parts.append(_of_table(batch))
            firsts = pa.table(batch.select(["topic", "partition", "offset"])).group_by(["topic", "partition"])
            for row in firsts.aggregate([("offset", "min")]).to_pylist():
                place, first = (row["topic"], row["partition"]), int(row["offset_min"])
                starts[place] = min(starts.get(place, first), first)
        rows, others = _joined(parts)
        for (topic, partition), offset in so_far.items():
            own = (pc.field("dead_letter_topic") == topic) & (pc.field("dead_letter_partition") == partition)
            rows = rows.filter(~own | (pc.field("dead_letter_offset") >= offset))
        return DeadLetters(rows, others, starts)

    def digest(self) -> str:
        """A hash that changes if a table changes."""
        segments = tuple(Segment(str(file), 0, file.stat().st_size) for file in self.files)
        return digest_of_logs([LogPartition("dead_letters", None, segments, 0)])


@dataclass(frozen=True, slots=True)
class ClusterLetters:
    """The dead-letter topics of a running cluster, without the partitions that have no leader.

    Attributes:
        address: `kafka://host:port[,host:port…]`.
        properties: path of a properties file, as for `--command-config` of Kafka's tools.
    """

    address: str
    properties: str | None

    def _find(self) -> tuple[list[LogPartition], "DeadLetterTopics"]:
        """The log partitions, up to their current end, and their topics.

        Raises:
            InputError: if no broker answers or access is denied.
            SetupError: if Java or the jars of Kafka's client are missing.
        """
        from share_state.sources.kafka_admin import fetch_dead_letter_topics  # noqa: PLC0415  a live cluster needs it
        from share_state.sources.kafka_source import read_topics  # noqa: PLC0415  the client library is an extra

        found = fetch_dead_letter_topics(self.address, self.properties)
        return read_topics(self.address, self.properties, list(found.topics)), found

    def read(self, so_far: ReadSoFar) -> DeadLetters:
        """Read the dead letters from where an earlier audit stopped."""
        logs, topics = self._find()
        parts, starts = list[_Part](), {_place(log): log.log_start_offset for log in logs}

        def read_log(log: LogPartition) -> Iterator[_Part]:
            begin = max(so_far.get(_place(log), 0), log.log_start_offset)
            # Retention may delete records before they are read.
            starts[_place(log)] = max(starts[_place(log)], log.log_start_offset)
            source: Any = log.source
            messages = source.messages(replace(log, log_start_offset=begin))
            while part := list(islice(messages, _MESSAGES)):
                columns = {
                    "headers": pa.array([message.headers() for message in part], _HEADERS),
                    "topic": pa.repeat(log.topic, len(part)),
                    "partition": pa.repeat(pa.scalar(log.partition or 0, pa.int32()), len(part)),
                    "offset": pa.array([message.offset() for message in part]),
                    "timestamp": pa.array(
                        [message.timestamp()[1] for message in part], pa.timestamp("ms", "UTC")
                    ),
                }
                yield _of_table(pa.RecordBatch.from_pydict(columns))

        for log in logs:
            parts += read_pieces(log, read_log)
        return DeadLetters(
            *_joined(parts, topics.topic_of),
            starts,
            topics.topics,
            topics.unusable,
            topics.topic_of,
            is_live=True,
        )

    def digest(self) -> str:
        """A hash that changes if the topics or their ends change."""
        logs, topics = self._find()
        ends = [(log.name, log.log_start_offset, getattr(log.source, "end_offset", None)) for log in logs]
        return sha256(json.dumps([ends, topics.topics, topics.unusable]).encode()).hexdigest()[:16]


ReadTable = Callable[..., Iterator[pa.RecordBatch]]
"""Yields columns of the table at a place, after it has called a check with the place and all names of
columns."""


def checked_batches(read: ReadTable, place: str) -> Iterator[pa.RecordBatch]:
    """The rows of a table of dead letters.

    Args:
        read: reads Parquet or Delta.
        place: path or address of the table.
    Yields:
        COLUMNS; topic as text, partition and offset as int64, timestamp in ms.
    Raises:
        InputError: if the table cannot be read, lacks a column, or has a value that no record has.
    """
    rows_before = 0
    for batch in read(place, COLUMNS, _check_names):
        yield _checked(batch, place, rows_before)
        rows_before += len(batch)


def _check_names(path: str, names: Sequence[str]) -> None:
    """Refuse a table that lacks one of COLUMNS or has one twice.

    `headers` needs the option `includeHeaders`.
    """
    if missing := [name for name in COLUMNS if name not in names]:
        fix = (
            "write it with Spark's option includeHeaders"
            if "headers" in missing
            else "give a table that has it"
        )
        raise InputError(f"{path}: no column {missing[0]}, which dead letters need; {fix}")
    for name in COLUMNS:
        check_distinct(path, name, names)


def _checked(batch: pa.RecordBatch, path: str, rows_before: int) -> pa.RecordBatch:
    kinds = {name: batch.schema.field(name).type for name in COLUMNS}
    is_right = {
        "headers": _is_header_list(kinds["headers"]),
        "topic": is_text(kinds["topic"]),
        "partition": pa.types.is_integer(kinds["partition"]),
        "offset": pa.types.is_integer(kinds["offset"]),
        "timestamp": pa.types.is_timestamp(kinds["timestamp"]) or pa.types.is_integer(kinds["timestamp"]),
    }
    if wrong := [name for name in COLUMNS if not is_right[name]]:
        raise InputError(
            f"{path}: column {wrong[0]} is {kinds[wrong[0]]}; write it as Spark's Kafka source has it"
        )
    if batch["topic"].null_count:
        row = rows_before + int(np.flatnonzero(np.asarray(batch["topic"].is_null()))[0])
        raise InputError(f"{path}: row {row}: topic is null; each record needs a value")
    partitions, offsets = (
        int64_column(pa.chunked_array([batch[name]]), name, path, rows_before)
        for name in ("partition", "offset")
    )
    if len(beyond := np.flatnonzero(partitions > LARGEST_PARTITION)):
        row = rows_before + int(beyond[0])
        raise InputError(
            f"{path}: row {row}: partition is {partitions[beyond[0]]}; Kafka's are up to 2^31 - 1"
        )
    times = timestamp_ms(batch["timestamp"])
    known_span(path, "timestamp", times)
    columns = {
        "headers": batch["headers"],
        "topic": batch["topic"].cast(pa.string()),
        "partition": pa.array(partitions),
        "offset": pa.array(offsets),
        "timestamp": pa.array(times),
    }
    return pa.RecordBatch.from_pydict(columns)


def _is_header_list(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    value = fields.get("value")
    is_binary = value is not None and any(
        check(value) for check in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    )
    key = fields.get("key")
    return is_binary and key is not None and is_text(key)


_Part = tuple[pa.Table, pa.Table, int]
"""Dead letters by the last set of headers in each record, by the first set where it differs; and the number of
other records."""


def _part_of(last: Sequence[pa.Array], first: Sequence[pa.Array], place: Sequence[pa.Array]) -> _Part:
    """The dead letters of records, by the last and the first set of their headers.

    Args:
        last, first: one binary column per name of HEADERS.
        place: topic, partition, offset and timestamp (ms) of each record.
    """
    differs = np.zeros(len(place[2]), bool)
    for one, other in zip(last, first, strict=True):
        is_same = pc.fill_null(pc.equal(one, other), False)
        differs |= ~np.asarray(pc.or_(is_same, pc.and_(one.is_null(), other.is_null())))
    rows, others = dead_letters(last, *place)
    if not differs.any():
        return rows, DEAD_LETTERS.empty_table(), others
    again = pa.array(differs)
    firsts, _ = dead_letters([one.filter(again) for one in first], *(one.filter(again) for one in place))
    # A set that lacks a header is none.
    known = {*zip(*(rows[name].to_pylist() for name in _LETTER), strict=True)}
    is_only = pa.array(
        [row not in known for row in zip(*(firsts[name].to_pylist() for name in _LETTER), strict=True)]
    )
    only = firsts.filter(is_only) if len(firsts) else firsts
    return pa.concat_tables([rows, only]), firsts, others - len(only)


_LETTER = ("dead_letter_topic", "dead_letter_partition", "dead_letter_offset")


def _joined(parts: Sequence[_Part], topic_of: Mapping[str, str] | None = None) -> tuple[pa.Table, int]:
    """All dead letters, by the headers that the broker of their group wrote; and the number of other records.

    A dead letter of a dead letter keeps the headers of its source record, before or after its own. Its own name a
    dead-letter topic as the source, or a group that writes its dead letters to this topic.

    Args:
        parts: what was read.
        topic_of: group -> the dead-letter topic that it is configured with, as far as that is known.
    """
    rows = pa.concat_tables([DEAD_LETTERS.empty_table(), *(rows for rows, _, _ in parts)])
    firsts = pa.concat_tables([DEAD_LETTERS.empty_table(), *(firsts for _, firsts, _ in parts)])
    others = sum(one for _, _, one in parts)
    if not len(firsts):
        return rows, others
    candidates = {tuple(row[name] for name in _LETTER): row for row in firsts.to_pylist()}
    topics = {*rows["dead_letter_topic"].unique().to_pylist(), *(topic_of or {}).values()}
    letters = rows.to_pylist()
    places = [tuple(row[name] for name in _LETTER) for row in letters]
    sure = {
        (row["dead_letter_topic"], row["group_id"])
        for row, place in zip(letters, places, strict=True)
        if place not in candidates
    }
    sure |= {(topic, group) for group, topic in (topic_of or {}).items()}

    def rank(row: Mapping[str, Any]) -> tuple[bool, bool]:
        return row["topic"] in topics, (row["dead_letter_topic"], row["group_id"]) in sure

    chosen = [
        row if place not in candidates or rank(row) >= rank(candidates[place]) else candidates[place]
        for row, place in zip(letters, places, strict=True)
    ]
    return pa.Table.from_pylist(chosen, DEAD_LETTERS), others


def _place(log: LogPartition) -> tuple[str, int]:
    return log.topic, log.partition or 0


def _of_table(batch: pa.RecordBatch) -> _Part:
    lists = batch["headers"]
    pairs, row_of = lists.flatten(), np.asarray(pc.call_function("list_parent_indices", [lists]))
    names, values = pairs.field("key").cast(pa.string()), pairs.field("value").cast(pa.large_binary())
    keys = np.asarray(pc.fill_null(names, ""), object)
    sets = [_sets_of(keys, row_of, is_first=is_first) for is_first in (False, True)]
    last, first = (
        [
            values.take(pa.array(places, mask=places < 0))
            for places in _places_of(keys, row_of, chosen, len(batch))
        ]
        for chosen in sets
    )
    return _part_of(last, first, [batch[name] for name in ("topic", "partition", "offset", "timestamp")])


def _sets_of(keys: np.ndarray, row_of: np.ndarray, *, is_first: bool) -> np.ndarray:
    """bool, for each header: whether it is in the last set of its record, or in the first; as `header_columns`."""
    begins = np.cumsum(keys == f"{HEADER_PREFIX}{HEADERS[0]}")
    if not len(row_of):
        return np.zeros(0, bool)
    starts = np.flatnonzero(np.append(True, np.diff(row_of) != 0))
    ends = np.append(starts[1:], len(row_of)) - 1
    counts = ends - starts + 1
    before = np.where(starts > 0, begins[starts - 1], 0)
    number, most = begins - np.repeat(before, counts), np.repeat(begins[ends] - before, counts)
    return (number <= 1) if is_first else (number == most) | (most <= 1)


def _places_of(keys: np.ndarray, row_of: np.ndarray, chosen: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """For each of HEADERS, the place of its value in the chosen set of each record, -1 for none."""
    for header in HEADERS:
        places = np.full(count, -1, np.int64)
        matching = np.flatnonzero(chosen & (keys == f"{HEADER_PREFIX}{header}"))
        places[row_of[matching]] = matching
        yield places
