"""Reads `__cluster_metadata-0` of a broker or controller: what KRaft knows about topics, configs, features and brokers.

The log starts with its newest snapshot (`<end offset>-<epoch>.checkpoint`), and the records of the segments
from that offset on change it. `read_metadata_log` folds both, as Kafka's loader does: the records of a
metadata transaction count once it ends. Confidential values are never kept: only configs with a key in
KEPT_CONFIGS are read.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import pluralize
from share_state.jit.compile import kernel
from share_state.kafka.buffers import range_rows
from share_state.kafka.metadata_records import (
    METADATA_TOPIC,
    NO_LEADER_CHANGE,
    MetadataRecordType,
    ResourceType,
    RowStatus,
    decode_metadata,
)
from share_state.kafka.record_batches import BatchStatus, Chunk, locate_records
from share_state.kafka.share_partition_keys import binary_texts, utf8_texts, uuid_texts
from share_state.sources.discovery import LogPartition, Segment
from share_state.sources.segments import RepeatedOffsetsError, read_chunks
from share_state.stores.object_stores import read_errors
from share_state.stores.paths import InputPath

KEPT_CONFIGS = (
    "cleanup.policy",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "errors.deadletterqueue.auto.create.topics.enable",
    "errors.deadletterqueue.copy.record.enable",
    "errors.deadletterqueue.group.enable",
    "errors.deadletterqueue.topic.name",
    "errors.deadletterqueue.topic.name.prefix",
    "share.auto.offset.reset",
    "share.delivery.count.limit",
    "share.isolation.level",
    "share.partition.max.record.locks",
    "share.record.lock.duration.ms",
    "share.renew.acknowledge.enable",
    "group.share.delivery.count.limit",
    "group.share.max.delivery.count.limit",
    "group.share.max.partition.max.record.locks",
    "group.share.max.record.lock.duration.ms",
    "group.share.max.size",
    "group.share.min.delivery.count.limit",
    "group.share.min.partition.max.record.locks",
    "group.share.min.record.lock.duration.ms",
    "group.share.partition.max.record.locks",
    "group.share.record.lock.duration.ms",
    "share.coordinator.cold.partition.snapshot.interval.ms",
    "share.coordinator.snapshot.update.records.per.snapshot",
    "share.coordinator.state.topic.num.partitions",
    "share.coordinator.state.topic.prune.interval.ms",
    "log.cleanup.policy",
    "log.retention.hours",
    "log.retention.minutes",
    "log.retention.ms",
    "offsets.topic.num.partitions",
)
"""Keys of the configs that are read; no other config, and no password, leaves the bytes of the log."""

_CHUNK_SIZE = 1 << 20
"""Bytes of the log in memory at a time."""

_SEGMENT = re.compile(r"(\d{20})\.log")
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_SNAPSHOT_HEADER, _SNAPSHOT_FOOTER = 3, 4
"""Types of control records. Source: Kafka ControlRecordType."""

_TOPICS = pa.schema(
    [
        ("topic_id", pa.string()),
        ("topic", pa.string()),
        ("created", pa.int64()),
        ("removed", pa.int64()),
        ("number", pa.int64()),
        ("partitions", pa.int64()),
        ("extended", pa.int64()),
    ]
)
_CONFIGS = pa.schema(
    [
        ("resource_type", pa.int8()),
        ("resource", pa.string()),
        ("key", pa.int8()),
        ("value", pa.string()),
        ("timestamp", pa.int64()),
        ("number", pa.int64()),
    ]
)


PARTITION = np.dtype(
    [
        ("topic", "i4"),  # the row of its topic in `ClusterMetadata.topics`
        ("partition", "i4"),
        ("leader", "i4"),  # -1 for none
        ("leader_epoch", "i4"),
        ("in_sync", "i4"),  # number of in-sync replicas
    ]
)
"""A partition of a topic."""


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """What a metadata log says at its end, or at a moment.

    Attributes:
        path: folder of the log.
        topics: columns topic_id, topic, created and removed (ms; null if unknown or not removed), number (of
            the record), partitions (their number) and extended (ms, when the last of them was created; null
            if unknown); removed topics, too, if the log still shows them.
        partitions: PARTITION rows of topics that exist and that were asked for.
        config_changes: every change of a config that the log still shows, in its order: columns
            resource_type, resource, key (its place in KEPT_CONFIGS), value (null if it is removed), timestamp
            (ms; null in a snapshot) and number (of the record).
        features: feature -> finalized level.
        brokers: id of each registered broker -> whether it is fenced.
        end_offset: offset after the last record that counts.
        newest_time: ms, of the newest record; -1 for none.
        is_complete: whether the log is read from a snapshot or its very beginning on, without a gap or
            damage: only then does a missing topic not exist.
        skipped: reason -> number of records that were not understood.
        notes: what is wrong with the log, one line each.
    """

    path: str
    topics: pa.Table
    partitions: np.ndarray
    config_changes: pa.Table
    features: Mapping[str, int]
    brokers: Mapping[int, bool]
    end_offset: int
    newest_time: int
    is_complete: bool
    skipped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def live_topics(self) -> pa.Table:
        """The topics that exist, and the column row (in `topics`)."""
        topics = self.topics.append_column("row", pa.array(np.arange(len(self.topics))))
        exists = topics["removed"].is_null()
        return topics if pc.all(exists).as_py() else topics.filter(exists)

    def configs_of(
        self, resource_type: ResourceType, names: Sequence[str] | None = None
    ) -> dict[str, dict[str, str]]:
        """Name of a resource -> its configs; of a topic, those since it was created.

        Args:
            resource_type: topics, brokers or groups.
            names: those to look for; all by default.
        """
        changes = self.config_changes.filter(
            pc.equal(self.config_changes["resource_type"], int(resource_type))
        )
        if names is not None:
            changes = changes.filter(pc.is_in(changes["resource"], pa.array(names, pa.string())))
        configs, created = dict[str, dict[str, str]](), self._created(changes["resource"])
        columns = (changes[name].to_pylist() for name in ("resource", "key", "value", "number"))
        for resource, key, value, number in zip(*columns, strict=True):
            if resource_type == ResourceType.TOPIC and number < created.get(resource, number + 1):
                continue
            configs.setdefault(resource, {}).pop(KEPT_CONFIGS[key], None)
            if value is not None:
                configs[resource][KEPT_CONFIGS[key]] = value
        return {resource: config for resource, config in configs.items() if config}

    def _created(self, names: pa.ChunkedArray) -> dict[str, int]:
        """Name of a topic that exists -> number of the record that created it."""
        live = self.topics.filter(
            pc.and_(self.topics["removed"].is_null(), pc.is_in(self.topics["topic"], names))
        )
        return dict(zip(live["topic"].to_pylist(), live["number"].to_pylist(), strict=True))


def read_metadata_log(
    folder: InputPath, until_time_ms: int | None = None, partitions_of: Collection[str] | None = None
) -> ClusterMetadata:
    """Fold the metadata log in a folder.

    Args:
        folder: the folder `__cluster_metadata-0`.
        until_time_ms: records with a later timestamp do not count.
        partitions_of: names of the topics whose partitions are kept, since there may be millions; all by
            default.
    Raises:
        InputError: if a file cannot be read.
    Source: Kafka MetadataLoader, MetadataBatchLoader, RecordsSnapshotReader, MetadataDelta.
    """
    wanted = None if partitions_of is None else pa.array(sorted(partitions_of), pa.string())
    try:
        return _read(folder, until_time_ms, wanted, merge=False)
    except RepeatedOffsetsError:
        return _read(folder, until_time_ms, wanted, merge=True)


def _read(
    folder: InputPath, until_time_ms: int | None, wanted: pa.Array | None, *, merge: bool
) -> ClusterMetadata:
    with read_errors(folder):
        files = sorted(folder.iterdir())
        segments = [
            Segment(str(file), int(name[1]), file.stat().st_size)
            for file in files
            if (name := _SEGMENT.fullmatch(file.name))
        ]
        snapshots = [(int(name[1]), file) for file in files if (name := _SNAPSHOT.fullmatch(file.name))]
    image = _MetadataFold(until_time_ms, wanted)
    start = 0
    notes = list[str]()
    for end_offset, file in sorted(snapshots, reverse=True):
        read, problem = _read_snapshot(file, until_time_ms, wanted)
        if read is not None:
            image, start = read, end_offset
            break
        if problem:
            notes.append(f"{file}: {problem}; the snapshot before it is used")
    image.until_time_ms = until_time_ms
    image.expect(start)
    needed = [one for number, one in enumerate(segments) if _next_base(segments, number) > start]
    log = LogPartition(METADATA_TOPIC, 0, tuple(needed), start)
    for chunk in read_chunks(log, merge=merge, chunk=_CHUNK_SIZE):
        image.apply(chunk, start)
    return image.result(str(folder), notes)


def _next_base(segments: list[Segment], number: int) -> int:
    """The base offset of the segment after one of them; above every offset for the last one."""
    return segments[number + 1].base_offset if number + 1 < len(segments) else 2**63 - 1


def _read_snapshot(
    file: InputPath, until_time_ms: int | None, wanted: pa.Array | None
) -> tuple["_MetadataFold | None", str]:
    """Fold a snapshot file.

    Returns:
        None if the snapshot cannot be used; and why, or "" if it is only later than the moment.
    Source: Kafka RecordsSnapshotWriter, SnapshotHeaderRecord, SnapshotFooterRecord.
    """
    with read_errors(file):
        segment = Segment(str(file), 0, file.stat().st_size)
    fold, last_type = _MetadataFold(None, wanted), -1
    for chunk in read_chunks(LogPartition(METADATA_TOPIC, 0, (segment,), 0), chunk=_CHUNK_SIZE):
        for record_type, time in _control_records(chunk):
            last_type = record_type
            if record_type == _SNAPSHOT_HEADER and until_time_ms is not None and time > until_time_ms:
                return None, ""
        fold.apply(chunk, 0, is_snapshot=True)
    if last_type != _SNAPSHOT_FOOTER or not fold.is_complete:
        return None, "a snapshot that is cut off or damaged"
    return fold, ""


def _control_records(chunk: Chunk) -> Iterator[tuple[int, int]]:
    """The control records of a chunk: type, and of the header of a snapshot the time of its last record."""
    for record in locate_records(chunk.data, chunk.batches.copy(), control=True):
        key_at, value_at = int(record["key_at"]), int(record["value_at"])
        if record["key_size"] >= 4:
            record_type = int.from_bytes(chunk.data[key_at + 2 : key_at + 4].tobytes(), "big")
            time = chunk.data[value_at + 2 : value_at + 10].tobytes() if record["value_size"] >= 10 else b""
            yield record_type, int.from_bytes(time, "big", signed=True)


_TOPIC = np.dtype(
    [
        ("high", "u8"),
        ("low", "u8"),
        ("created", "i8"),
        ("removed", "i8"),
        ("number", "i8"),
        ("extended", "i8"),
        ("partitions", "i4"),
        ("is_wanted", "i4"),  # whether its partitions are kept
    ]
)
_UNKNOWN_TIME = -1
_REPLACED = -2


class _MetadataFold:
    """The state of a cluster while its metadata log is read.

    Topics are numbered in the order of their records; `names` holds their names in that order. Hash tables
    find the number of a topic by its id, and the row of a partition by topic and partition. `wanted` names
    the topics whose partitions are kept; None for all.
    """

    def __init__(self, until_time_ms: int | None, wanted: pa.Array | None) -> None:
        self.wanted = wanted
        self.until_time_ms = until_time_ms
        self.names = list[pa.Array]()
        self.is_complete = True
        self.configs = list[pa.Table]()
        self.features = dict[str, int]()
        self.brokers = dict[int, bool]()
        self.topics, self.topic_slots = np.empty(0, _TOPIC), np.empty(0, np.int32)
        self.partitions, self.partition_slots = np.empty(0, PARTITION), np.empty(0, np.int32)
        self.counts = np.zeros(3, np.int64)  # topics, partitions, changes of what does not exist
        self.end_offset = self.next_offset = 0
        self.row_count, self.newest_time = 0, _UNKNOWN_TIME
        self.skipped, self.problems = Counter[str](), Counter[str]()
        self.pending: list[tuple[np.ndarray, np.ndarray]] | None = None

    def expect(self, offset: int) -> None:
        """Set the offset that the next records must begin with."""
        self.end_offset = self.next_offset = offset
        self.pending = None

    def apply(self, chunk: Chunk, start: int, *, is_snapshot: bool = False) -> None:
        """Apply the records of a chunk from offset `start` on."""
        self._check(chunk.batches, start)
        records = locate_records(chunk.data, chunk.batches)
        is_selected = records["offset"] >= start
        if self.until_time_ms is not None:
            is_selected &= records["timestamp"] <= self.until_time_ms
        records = records if is_selected.all() else records[is_selected]
        if len(records):
            self.end_offset = int(records["offset"][-1]) + 1
            self.newest_time = max(self.newest_time, int(records["timestamp"].max()))
        rows = decode_metadata(chunk.data, records)
        for status in (RowStatus.UNKNOWN_TYPE, RowStatus.UNKNOWN_VERSION, RowStatus.MALFORMED):
            if count := int(np.count_nonzero(rows["status"] == status)):
                self.skipped[status.name.lower()] += count
        rows = rows[rows["status"] == RowStatus.DECODED]
        if is_snapshot:
            rows["timestamp"] = _UNKNOWN_TIME
        for data, committed in self._committed(chunk.data, rows):
            self._apply(data, committed)

    def _check(self, batches: np.ndarray, start: int) -> None:
        """Note batches that cannot be read, and offsets that are missing."""
        is_valid = batches["status"] == BatchStatus.VALID
        for status in batches["status"][~is_valid]:
            self.problems["a torn last batch" if status == BatchStatus.TRUNCATED else "a damaged batch"] += 1
            self.is_complete = False
        valid = batches[is_valid & (batches["last_offset"] >= start)]
        if len(valid):
            nexts = np.concatenate(([self.next_offset], valid["last_offset"] + 1))
            if (missing := int(np.maximum(valid["base_offset"] - nexts[:-1], 0).sum())) > 0:
                self.problems["missing offsets"] += missing
                self.is_complete = False
            self.next_offset = int(nexts[-1])

    def _committed(self, data: np.ndarray, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The rows that count from now on, with the bytes that they point into.

        Source: Kafka MetadataBatchLoader.replay (KIP-868).
        """
        types = rows["type"]
        is_marker = (types >= MetadataRecordType.BEGIN_TRANSACTION) & (
            types <= MetadataRecordType.ABORT_TRANSACTION
        )
        begin = 0
        for marker in (*np.flatnonzero(is_marker).tolist(), len(rows)):
            part = rows[begin:marker]
            begin = marker + 1
            if self.pending is None:
                yield data, part
            elif len(part):
                self.pending.append(_with_own_bytes(data, part))
            if marker == len(rows):
                return
            if types[marker] == MetadataRecordType.BEGIN_TRANSACTION:
                self._drop_pending("unfinished metadata transactions")
                self.pending = []
            elif types[marker] == MetadataRecordType.ABORT_TRANSACTION:
                self._drop_pending("")
            else:
                yield from self.pending or ()
                self.pending = None

    def _drop_pending(self, problem: str) -> None:
        if self.pending is not None and problem:
            self.problems[problem] += 1
        self.pending = None

    def _apply(self, data: np.ndarray, rows: np.ndarray) -> None:
        """Apply rows that count."""
        types = rows["type"]
        is_topic = types == MetadataRecordType.TOPIC
        topic_rows = rows[is_topic]
        names = _texts(data, topic_rows["name_at"], topic_rows["name_size"])
        is_wanted = np.ones(len(names), np.bool_)
        if self.wanted is not None:
            is_wanted = pc.is_in(names, self.wanted).to_numpy(zero_copy_only=False)
        self.names.append(names)
        self._make_space(len(topic_rows), int(np.count_nonzero(types == MetadataRecordType.PARTITION)))
        _apply_rows(rows, is_wanted, self.row_count, self.topics, self.topic_slots, self.partitions,
                    self.partition_slots, self.counts)  # fmt: skip
        config_numbers = np.flatnonzero(types == MetadataRecordType.CONFIG)
        if len(config_numbers):
            self.configs.append(_config_table(data, rows[config_numbers], self.row_count + config_numbers))
        self._apply_features_and_brokers(data, rows)
        self.row_count += len(rows)

    def _apply_features_and_brokers(self, data: np.ndarray, rows: np.ndarray) -> None:
        features = rows[rows["type"] == MetadataRecordType.FEATURE_LEVEL]
        if len(features):
            names = _texts(data, features["name_at"], features["name_size"]).to_pylist()
            self.features |= dict(zip(names, features["number"].tolist(), strict=True))
        is_broker = np.isin(rows["type"], _BROKER_TYPES)
        for record_type, broker, fencing in rows[["type", "number", "leader"]][is_broker].tolist():
            if record_type == MetadataRecordType.REGISTER_BROKER:
                self.brokers[broker] = fencing > 0
            elif record_type == MetadataRecordType.UNREGISTER_BROKER:
                self.brokers.pop(broker, None)
            elif fencing:
                self.brokers[broker] = fencing > 0

    def _make_space(self, topics: int, partitions: int) -> None:
        """Make space for so many more topics and partitions."""
        topic_count, partition_count = int(self.counts[0]), int(self.counts[1])
        if topic_count + topics >= len(self.topic_slots) // 2:
            self.topic_slots = np.full(_slot_count(topic_count + topics), -1, np.int32)
            _fill_topic_slots(self.topics, topic_count, self.topic_slots)
        if partition_count + partitions >= len(self.partition_slots) // 2:
            self.partition_slots = np.full(_slot_count(partition_count + partitions), -1, np.int32)
            _fill_partition_slots(self.partitions, partition_count, self.partition_slots)
        self.topics = _extended(self.topics, topic_count, topic_count + topics)
        self.partitions = _extended(self.partitions, partition_count, partition_count + partitions)

    def result(self, path: str, notes: list[str]) -> ClusterMetadata:
        """What is known after the last record."""
        self._drop_pending("unfinished metadata transactions")
        if self.counts[2]:
            self.problems["changes of topics that the log does not hold"] += int(self.counts[2])
        if not self.row_count:
            self.is_complete = False
        problems = [
            f"{pluralize(count, 'time')}: {problem}" for problem, count in sorted(self.problems.items())
        ]
        problems += [
            f"{pluralize(count, 'record')} skipped: {reason.replace('_', ' ')}"
            for reason, count in sorted(self.skipped.items())
        ]
        if problems:
            notes = [*notes, f"{path}: {'; '.join(problems)}"]
        topics, is_live = self._topic_table()
        return ClusterMetadata(
            path=path,
            topics=topics,
            partitions=self._partitions
            if is_live.all()
            else self._partitions[is_live[self._partitions["topic"]]],
            config_changes=pa.concat_tables([_CONFIGS.empty_table(), *self.configs]),
            features={name: level for name, level in self.features.items() if level},
            brokers=dict(sorted(self.brokers.items())),
            end_offset=self.end_offset,
            newest_time=self.newest_time,
            is_complete=self.is_complete,
            skipped=dict(self.skipped),
            notes=tuple(notes),
        )

    @property
    def _topics(self) -> np.ndarray:
        return self.topics[: self.counts[0]]

    @property
    def _partitions(self) -> np.ndarray:
        return self.partitions[: self.counts[1]]

    def _topic_table(self) -> tuple[pa.Table, np.ndarray]:
        """The topics by number, and which of them exist."""
        rows = self._topics
        ids = np.stack((rows["high"], rows["low"]), axis=1).astype(">u8").view(np.uint8).reshape(-1, 16)
        names = pa.chunked_array(self.names, pa.string())
        created, removed, extended = (_times(rows[name]) for name in ("created", "removed", "extended"))
        is_live = rows["removed"] == _EXISTS
        removed = pc.if_else(
            pa.array(is_live), pa.scalar(None, pa.int64()), pc.fill_null(removed, _UNKNOWN_TIME)
        )
        numbers, counts = (pa.array(rows[name].astype(np.int64)) for name in ("number", "partitions"))
        columns = [uuid_texts(ids), names, created, removed, numbers, counts, extended]
        return pa.table(columns, schema=_TOPICS), is_live


_EXISTS = -3
_BROKER_TYPES = np.array(
    [
        MetadataRecordType.REGISTER_BROKER,
        MetadataRecordType.UNREGISTER_BROKER,
        MetadataRecordType.FENCE_BROKER,
        MetadataRecordType.UNFENCE_BROKER,
        MetadataRecordType.BROKER_REGISTRATION_CHANGE,
    ]
)


def _times(column: np.ndarray) -> pa.Array:
    times = np.ascontiguousarray(column)
    return pa.array(times, mask=times < 0)


def _texts(data: np.ndarray, at: np.ndarray, sizes: np.ndarray) -> pa.Array:
    """A string column of the bytes at these positions."""
    lengths = np.maximum(sizes, 0).astype(np.int64)
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    return utf8_texts(binary_texts(ends, data[range_rows(np.ascontiguousarray(at), lengths)]))


def _config_table(data: np.ndarray, rows: np.ndarray, numbers: np.ndarray) -> pa.Table:
    """Changes of configs whose key is one of KEPT_CONFIGS; values of others are never read."""
    keys = pc.index_in(_texts(data, rows["key_at"], rows["key_size"]), pa.array(KEPT_CONFIGS))
    is_resource = np.isin(rows["resource_type"], np.array(list(ResourceType), np.int8))
    is_kept = is_resource & keys.is_valid().to_numpy(zero_copy_only=False)
    keys, rows = keys.filter(pa.array(is_kept)).cast(pa.int8()), rows[is_kept]
    resources, values = (_texts(data, rows[f"{name}_at"], rows[f"{name}_size"]) for name in ("name", "text"))
    values = pc.if_else(pa.array(rows["text_size"] >= 0), values, pa.scalar(None, pa.string()))
    types = pa.array(np.ascontiguousarray(rows["resource_type"]))
    return pa.table(
        [types, resources, keys, values, _times(rows["timestamp"]), numbers[is_kept]], schema=_CONFIGS
    )


def _with_own_bytes(data: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A copy of rows with the bytes that they point into, without the rest of their chunk."""
    sizes, rows = rows["value_size"].astype(np.int64), rows.copy()
    own = data[range_rows(np.ascontiguousarray(rows["value_at"]), sizes)]
    shift = np.cumsum(sizes) - sizes - rows["value_at"]
    for name in ("value_at", "name_at", "key_at", "text_at"):
        rows[name] += shift
    return own, rows


def _slot_count(keys: int) -> int:
    return 1 << (2 * keys).bit_length()


def _extended(rows: np.ndarray, used: int, count: int) -> np.ndarray:
    if count <= len(rows):
        return rows
    larger: Any = np.empty(max(count, 2 * len(rows)), rows.dtype)
    larger[:used] = rows[:used]
    return larger


@kernel
def _hash(high, low):
    value = (np.uint64(high) ^ (np.uint64(low) * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(
        0xBF58476D1CE4E5B9
    )
    return value ^ (value >> np.uint64(29))


@kernel
def _topic_slot(high, low, topics, slots):
    """The slot of a topic, or the free slot where it belongs; the table is never full."""
    mask = np.uint64(len(slots) - 1)
    slot = _hash(high, low) & mask
    while slots[slot] >= 0:
        topic = topics[slots[slot]]
        if topic.high == high and topic.low == low:
            break
        slot = (slot + np.uint64(1)) & mask
    return slot


@kernel
def _partition_slot(topic, partition, partitions, slots):
    """As `_topic_slot`, for a partition of a topic by its number."""
    mask = np.uint64(len(slots) - 1)
    slot = _hash(np.uint64(topic), np.uint64(np.uint32(partition))) & mask
    while slots[slot] >= 0:
        row = partitions[slots[slot]]
        if row.topic == topic and row.partition == partition:
            break
        slot = (slot + np.uint64(1)) & mask
    return slot


@kernel
def _fill_topic_slots(topics, count, slots):
    for number in range(count):
        if topics[number].removed != _REPLACED:
            slots[_topic_slot(topics[number].high, topics[number].low, topics, slots)] = number


@kernel
def _fill_partition_slots(partitions, count, slots):
    for number in range(count):
        row = partitions[number]
        slots[_partition_slot(row.topic, row.partition, partitions, slots)] = number


@kernel
def _apply_rows(rows, is_wanted, first_number, topics, topic_slots, partitions, partition_slots, counts):
    """Apply rows of topics and partitions.

    `is_wanted` says of each created topic whether its partitions are kept.

    Source: Kafka TopicsDelta.replay, PartitionRegistration.merge.
    """
    created = 0
    for number in range(len(rows)):
        row = rows[number]
        if row.type == MetadataRecordType.TOPIC:
            slot = _topic_slot(row.topic_high, row.topic_low, topics, topic_slots)
            if topic_slots[slot] >= 0:
                topics[topic_slots[slot]].removed = _REPLACED
            topic = topics[counts[0]]
            topic.high, topic.low = row.topic_high, row.topic_low
            topic.created = row.timestamp
            topic.removed = _EXISTS
            topic.number = first_number + number
            topic.extended = _UNKNOWN_TIME
            topic.partitions = 0
            topic.is_wanted = is_wanted[created]
            created += 1
            topic_slots[slot] = counts[0]
            counts[0] += 1
            continue
        is_partition = row.type == MetadataRecordType.PARTITION
        is_change = row.type == MetadataRecordType.PARTITION_CHANGE
        if not is_partition and not is_change and row.type != MetadataRecordType.REMOVE_TOPIC:
            continue
        owner = topic_slots[_topic_slot(row.topic_high, row.topic_low, topics, topic_slots)]
        if owner < 0 or topics[owner].removed != _EXISTS:
            counts[2] += 1
            continue
        if row.type == MetadataRecordType.REMOVE_TOPIC:
            topics[owner].removed = row.timestamp
            continue
        if topics[owner].is_wanted == 0:
            # A partition is recorded once, when it is created.
            if is_partition:
                topics[owner].partitions += 1
                topics[owner].extended = row.timestamp
            continue
        slot = _partition_slot(owner, row.number, partitions, partition_slots)
        if is_partition:
            if partition_slots[slot] < 0:
                partition_slots[slot] = counts[1]
                counts[1] += 1
                topics[owner].partitions += 1
                topics[owner].extended = row.timestamp
            partition = partitions[partition_slots[slot]]
            partition.topic, partition.partition = owner, row.number
            partition.leader, partition.leader_epoch = row.leader, row.leader_epoch
            partition.in_sync = row.in_sync
        elif partition_slots[slot] < 0:
            counts[2] += 1
        else:
            partition = partitions[partition_slots[slot]]
            if row.in_sync >= 0:
                partition.in_sync = row.in_sync
            if row.leader != NO_LEADER_CHANGE:
                partition.leader = row.leader
                partition.leader_epoch += 1
