"""Folds the records of a metadata log: `MetadataFold` applies them chunk by chunk, and returns a ClusterMetadata.

Records of a metadata transaction count once it ends, as in Kafka's loader.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import pluralize
from share_state.jit.compile import kernel
from share_state.kafka.buffers import range_rows
from share_state.kafka.metadata_records import (
    NO_LEADER_CHANGE,
    MetadataRecordType,
    ResourceType,
    RowStatus,
    decode_metadata,
)
from share_state.kafka.record_batches import BatchStatus, Chunk, locate_records
from share_state.kafka.share_partition_keys import binary_texts, utf8_texts, uuid_texts
from share_state.sources.cluster_metadata import KEPT_CONFIGS, PARTITION, ClusterMetadata

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


class MetadataFold:
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
