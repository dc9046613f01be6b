"""Writes log partitions as brokers do: record batches (magic 2), segments, and the topic `__share_group_state`."""

import gzip
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import pyarrow as pa

from share_state.kafka.codec import encode_uvarint
from share_state.kafka.record_batches import CONTROL
from share_state.kafka.releases import LATEST, Release
from share_state.simulator.coordinator import UPDATES_PER_SNAPSHOT, CoordinatorEntry, ShareCoordinator
from share_state.simulator.state_values import StateKey, StateRecord, encode_record, state_partition_for
from share_state.simulator.types import SimulationError
from share_state.sources.log_partition import STATE_TOPIC

MAGIC = 2
_LEADER_EPOCH = 0  # of the log itself, which has had one leader
_NO_PRODUCER = (-1, -1, -1)  # producer id, producer epoch, base sequence
_HEADER = struct.Struct(">qiibI")  # base offset, length, partition leader epoch, magic, crc
_CHECKED_HEADER = struct.Struct(">hiqqqhii")
_LENGTH_OVERHEAD = 12


class DataRecord(NamedTuple):
    """A record without offset; the timestamp is in ms."""

    timestamp: int
    key: bytes | None
    value: bytes | None


def encode_batch(
    base_offset: int, records: Sequence[DataRecord], *, codec: str = "none", is_control: bool = False
) -> bytes:
    """Encode a record batch with consecutive offsets.

    Args:
        records: at least one, in order.
        codec: one of CODECS.
        is_control: whether the batch has control records, which consumers do not see.
    Source: Kafka DefaultRecordBatch, DefaultRecord.
    """
    number, pack = _CODECS[codec]
    first = records[0].timestamp
    body = pack(b"".join([_record(index, first, record) for index, record in enumerate(records)]))
    attributes = number | (CONTROL if is_control else 0)
    latest = max(record.timestamp for record in records)
    checked = (
        _CHECKED_HEADER.pack(attributes, len(records) - 1, first, latest, *_NO_PRODUCER, len(records)) + body
    )
    length = _HEADER.size - _LENGTH_OVERHEAD + len(checked)
    return _HEADER.pack(base_offset, length, _LEADER_EPOCH, MAGIC, google_crc32c.value(checked)) + checked


def _record(index: int, first: int, record: DataRecord) -> bytes:
    timestamp, key, value = record
    parts = [b"\0", _varint(timestamp - first), _varint(index)]
    for content in (key, value):
        parts += (_varint(-1),) if content is None else (_varint(len(content)), content)
    parts.append(b"\0")  # no headers
    body = b"".join(parts)
    return _varint(len(body)) + body


@lru_cache(1 << 13)
def _varint(number: int) -> bytes:
    return encode_uvarint((number << 1) ^ (number >> 63))


def _snappy(body: bytes) -> bytes:
    """The framing of snappy-java: magic, version, lowest compatible version, then sized blocks."""
    blocks = [pa.compress(body[at : at + _SNAPPY_BLOCK], codec="snappy", asbytes=True)
              for at in range(0, len(body), _SNAPPY_BLOCK)]  # fmt: skip
    return _SNAPPY_HEAD + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def _lz4(body: bytes) -> bytes:
    """An LZ4 frame of independent blocks: Kafka reads no others, and pyarrow's streams link theirs."""
    parts = [_LZ4_HEAD]
    for at in range(0, len(body), _LZ4_BLOCK):
        plain = body[at : at + _LZ4_BLOCK]
        packed = pa.compress(plain, codec="lz4_raw", asbytes=True)
        is_smaller = len(packed) < len(plain)
        parts.append(struct.pack("<I", len(packed) if is_smaller else len(plain) | _LZ4_STORED))
        parts.append(packed if is_smaller else plain)
    return b"".join(parts) + struct.pack("<I", 0)


_SNAPPY_BLOCK = 1 << 15
_SNAPPY_HEAD = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_LZ4_BLOCK = 1 << 16
# Magic; version 1, independent blocks, no checksums; blocks of up to 64 KiB; the check byte of these two.
_LZ4_HEAD = bytes.fromhex("04224d18 60 40 82")
_LZ4_STORED = 1 << 31

_CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, bytes),
    # Without mtime the output is deterministic.
    "gzip": (1, partial(gzip.compress, compresslevel=6, mtime=0)),
    "snappy": (2, _snappy),
    "lz4": (3, _lz4),
    "zstd": (4, partial(pa.compress, codec="zstd", asbytes=True)),
}
CODECS = tuple(_CODECS)
"""Codec names, as in Kafka's compression.type."""


SEGMENT_BYTES = 104_857_600
BATCH_BYTES = 16_384
LINGER_MS = 5
_BUFFER = 1 << 18
_LOG_STARTS = "log-start-offset-checkpoint"


class LogWriter:
    """Appends records to one log partition; batches are written and segments rolled as limits are reached.

    A batch is closed if the next record would exceed `batch_bytes`, or is more than LINGER_MS later than the
    first. Files are open only while they are appended to, so that many logs can be written at once.

    Args:
        folder: folder of the log partition, `<topic>-<partition>`; created if missing.
        base_offset: offset of the first record.
        codec: codec of data batches, one of CODECS; control batches are not compressed.
        segment_bytes: maximum segment size.
        batch_bytes: maximum batch size before compression; 0 writes one record per batch.
    Source: Kafka CoordinatorRuntime (batches), UnifiedLog.maybeRoll (segments).
    """

    def __init__(
        self,
        folder: Path,
        *,
        base_offset: int = 0,
        codec: str = "none",
        segment_bytes: int = SEGMENT_BYTES,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self.folder, self.codec = folder, codec
        self.segment_bytes, self.batch_bytes = segment_bytes, batch_bytes
        self.next_offset = base_offset
        self._batch_base = base_offset
        self.log_start_offset = base_offset
        self._cleaned_to = base_offset
        self._batch: list[DataRecord] = []
        self._batch_size = 0
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._segments: list[Path] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._roll(base_offset)

    def append(self, timestamp_ms: int, key: bytes | None, value: bytes | None) -> int:
        """Append a data record; returns its offset."""
        size = len(key or b"") + len(value or b"")
        batch = self._batch
        if batch and (
            self._batch_size + size > self.batch_bytes
            or not 0 <= timestamp_ms - batch[0].timestamp <= LINGER_MS
        ):
            self.end_batch()
        self._batch.append(DataRecord(timestamp_ms, key, value))
        self._batch_size += size
        self.next_offset += 1
        return self.next_offset - 1

    def append_control(self, timestamp_ms: int, key: bytes, value: bytes) -> int:
        """Append a control record in its own batch; returns its offset."""
        self.end_batch()
        offset = self.next_offset
        self.next_offset += 1
        self._write(offset, encode_batch(offset, [DataRecord(timestamp_ms, key, value)], is_control=True))
        self._batch_base = self.next_offset
        return offset

    def delete_before(self, offset: int) -> None:
        """Move the log start offset forward, and delete segments before it.

        Raises:
            SimulationError: if the offset is past the log end.
        Source: Kafka ReplicaManager.deleteRecords, UnifiedLog.maybeIncrementLogStartOffset.
        """
        if offset > self.next_offset:
            raise SimulationError(
                f"{self.folder}: cannot delete records before {offset}: the log ends at {self.next_offset}"
            )
        self.log_start_offset = max(self.log_start_offset, offset)
        while len(self._segments) > 1 and int(self._segments[1].stem) <= self.log_start_offset:
            self._segments.pop(0).unlink()

    def delete_control_before(self, offset: int) -> None:
        """Delete the control records before an offset; the user data stay, and so do all offsets.

        Source: KIP-932 draft, log cleaning.
        """
        self._write_buffer()
        ends = [*(int(path.stem) for path in self._segments[1:]), self.next_offset]
        for path, end in zip(self._segments, ends, strict=True):
            if self._cleaned_to < end and int(path.stem) < offset:
                data = path.read_bytes()
                batches = (data[begin:end] for begin, end in batch_bounds(data))
                kept = b"".join(batch for batch in batches if not _is_control_before(batch, offset))
                path.write_bytes(kept)
                if path == self._segments[-1]:
                    self._segment_size = len(kept)
        self._cleaned_to = max(self._cleaned_to, offset)

    @property
    def starts_inside_segment(self) -> bool:
        """True if the log start is past the first segment's base offset."""
        return self.log_start_offset > int(self._segments[0].stem)

    def flush(self) -> None:
        """Write everything to disk."""
        self.end_batch()
        self._write_buffer()

    def end_batch(self) -> None:
        """Close the open batch."""
        if self._batch:
            self._write(self._batch_base, encode_batch(self._batch_base, self._batch, codec=self.codec))
            self._batch, self._batch_size = [], 0
            self._batch_base = self.next_offset

    def _write(self, base_offset: int, data: bytes) -> None:
        if self._segment_size and self._segment_size + len(data) > self.segment_bytes:
            self._write_buffer()
            self._roll(base_offset)
        self._buffer.append(data)
        self._buffered += len(data)
        self._segment_size += len(data)
        if self._buffered > _BUFFER:
            self._write_buffer()

    def _roll(self, base_offset: int) -> None:
        self._segments.append(self.folder / f"{base_offset:020}.log")
        self._segments[-1].touch()
        self._segment_size = 0

    def _write_buffer(self) -> None:
        if self._buffer:
            with self._segments[-1].open("ab") as file:
                file.writelines(self._buffer)
        self._buffer, self._buffered = [], 0


def flush_logs(folder: Path, logs: Iterable[LogWriter]) -> None:
    """Flush every log, and checkpoint log starts that differ from the first segment's base offset.

    Args:
        folder: the broker's log directory.
    Source: Kafka LogManager.checkpointLogStartOffsetsInDir.
    """
    starts = []
    for log in logs:
        log.flush()
        if log.starts_inside_segment:
            topic, _, partition = log.folder.name.rpartition("-")
            starts.append(f"{topic} {partition} {log.log_start_offset}")
    if starts:
        lines = ["0", str(len(starts)), *starts]
        (folder / _LOG_STARTS).write_text("\n".join(lines) + "\n", encoding="utf-8")


STATE_PARTITIONS = 50

Observer = Callable[[int, int, int, StateRecord, CoordinatorEntry | None], None]
"""Called after each replay with state partition, offset, timestamp in ms, record and the share-partition's
entry."""


def batch_bounds(data: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each batch of a valid segment."""
    begin = 0
    while begin < len(data):
        end = begin + _LENGTH_OVERHEAD + _HEADER.unpack_from(data, begin)[1]
        yield begin, end
        begin = end


def _is_control_before(batch: bytes, offset: int) -> bool:
    (attributes,) = struct.unpack_from(">h", batch, _HEADER.size)
    return bool(attributes & CONTROL) and _HEADER.unpack_from(batch)[0] < offset


@dataclass(frozen=True, slots=True)
class StateTopicSettings:
    """Settings of the state topic.

    Attributes:
        release: release of the brokers that write.
        updates_per_snapshot: see ShareCoordinator.
        codec, segment_bytes, batch_bytes: see LogWriter.
    Source: Kafka ShareCoordinatorConfig.
    """

    release: Release = LATEST
    state_partitions: int = STATE_PARTITIONS
    updates_per_snapshot: int = UPDATES_PER_SNAPSHOT
    codec: str = CODECS[0]
    segment_bytes: int = SEGMENT_BYTES
    batch_bytes: int = BATCH_BYTES


class StateTopic:
    """The state partitions of one cluster, in folders `__share_group_state-N`, and their coordinators.

    Args:
        observe: called for every record.
    """

    def __init__(self, folder: Path, settings: StateTopicSettings, observe: Observer) -> None:
        self._partitions: dict[StateKey, int] = {}
        self.settings = settings
        self.logs: list[LogWriter] = []
        self.coordinators: list[ShareCoordinator] = []
        for partition in range(settings.state_partitions):
            log = LogWriter(
                folder / f"{STATE_TOPIC}-{partition}",
                codec=settings.codec,
                segment_bytes=settings.segment_bytes,
                batch_bytes=settings.batch_bytes,
            )
            self.logs.append(log)
            self.coordinators.append(
                ShareCoordinator(
                    partial(self._append, log),
                    settings.release,
                    updates_per_snapshot=settings.updates_per_snapshot,
                    observe=partial(observe, partition),
                )
            )

    def _append(self, log: LogWriter, record: StateRecord, now_ms: int) -> int:
        return log.append(now_ms, *encode_record(record, self.settings.release))

    def coordinator_of(self, key: StateKey) -> ShareCoordinator:
        """The coordinator of a share-partition."""
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._partitions[key] = state_partition_for(key, self.settings.state_partitions)
        return self.coordinators[partition]

    def prune(self) -> None:
        """Delete redundant records of every state partition.

        Source: Kafka ShareCoordinatorService.performRecordPruning.
        """
        for coordinator, log in zip(self.coordinators, self.logs, strict=True):
            offset = coordinator.last_redundant_offset()
            if offset is not None:
                log.delete_before(offset)
