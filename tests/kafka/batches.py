"""Writes record batches and share-group-state records byte by byte, right or wrong as a test wants them."""

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import google_crc32c
import pyarrow as pa

from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition

HEADER = 61
SNAPSHOT, UPDATE = 0, 1
TOPIC = bytes(range(16))
NOW = 1_700_000_000_000

Range = tuple[int, int, int, int]
"""(first offset, last offset, delivery state, delivery count)"""


def uvarint(number: int) -> bytes:
    """Seven bits a byte, the low ones first."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def varint(number: int) -> bytes:
    """Zigzag, then as `uvarint`."""
    return uvarint((number << 1) ^ (number >> 63) if number >= 0 else ((-number) << 1) - 1)


def key(kind: int = SNAPSHOT, group: str = "g", partition: int = 0, topic: bytes = TOPIC) -> bytes:
    """A record key."""
    name = group.encode()
    return struct.pack(">hh", kind, len(name)) + name + topic + struct.pack(">i", partition)


def state_batch(first: int, last: int, state: int, count: int, tags: bytes = b"\0") -> bytes:
    """One state batch of a value."""
    return struct.pack(">qqbh", first, last, state, count) + tags


def ranges(batches: Sequence[Range]) -> bytes:
    """The compact array of state batches."""
    return uvarint(len(batches) + 1) + b"".join(state_batch(*batch) for batch in batches)


def complete(count: int | None) -> bytes:
    """The tag section of a value: the delivery complete count, where there is one."""
    return b"\0" if count is None else b"\1\0\4" + struct.pack(">i", count)


def snapshot(
    batches: Sequence[Range] = (),
    *,
    start: int = 0,
    epoch: int = 0,
    state_epoch: int = 1,
    leader_epoch: int = 2,
    created: int = NOW,
    written: int = NOW,
    count: int | None = 0,
    early: bool = False,
) -> bytes:
    """The value of a snapshot, in the layout of 4.0 where `early`."""
    if early:
        return struct.pack(">hHiiq", 0, epoch, state_epoch, leader_epoch, start) + ranges(batches) + b"\0"
    head = struct.pack(">hiiiqqq", 0, epoch, state_epoch, leader_epoch, start, created, written)
    return head + ranges(batches) + complete(count)


def update(
    batches: Sequence[Range] = (),
    *,
    start: int = -1,
    epoch: int = 0,
    leader_epoch: int = 2,
    count: int | None = 0,
    early: bool = False,
) -> bytes:
    """The value of an update, in the layout of 4.0 where `early`."""
    if early:
        return struct.pack(">hHiq", 0, epoch, leader_epoch, start) + ranges(batches) + b"\0"
    return struct.pack(">hiiq", 0, epoch, leader_epoch, start) + ranges(batches) + complete(count)


@dataclass(frozen=True)
class Record:
    """One record; `offset_delta` counts from the batch's base offset, and follows the records before it by default."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    offset_delta: int | None = None
    time_delta: int = 0

    def written(self, number: int) -> bytes:
        """Its bytes as the record `number` of a batch."""
        delta = number if self.offset_delta is None else self.offset_delta
        body = b"\0" + varint(self.time_delta) + varint(delta) + _sized(self.key) + _sized(self.value)
        body += varint(len(self.headers)) + b"".join(_sized(name) + _sized(text) for name, text in self.headers)
        return varint(len(body)) + body


def _sized(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


@dataclass(frozen=True)
class Batch:
    """One record batch; whatever is given wins over what would be right."""

    records: Sequence[Record] = ()
    base_offset: int = 0
    leader_epoch: int = 0
    attributes: int = 0
    magic: int = 2
    base_timestamp: int = NOW
    max_timestamp: int = NOW
    count: int | None = None
    last_delta: int | None = None
    length: int | None = None
    crc: int | None = None
    body: bytes | None = None
    producer: tuple[int, int, int] = field(default=(-1, -1, -1))

    def written(self) -> bytes:
        """Its bytes."""
        plain = b"".join(record.written(number) for number, record in enumerate(self.records))
        body = packed(self.attributes & 7, plain) if self.body is None else self.body
        last = len(self.records) - 1 if self.last_delta is None else self.last_delta
        count = len(self.records) if self.count is None else self.count
        checked = struct.pack(
            ">hiqqqhii", self.attributes, last, self.base_timestamp, self.max_timestamp, *self.producer, count
        )
        checked += body
        crc = google_crc32c.value(checked) if self.crc is None else self.crc
        length = len(checked) + 9 if self.length is None else self.length
        return struct.pack(">qiibI", self.base_offset, length, self.leader_epoch, self.magic, crc) + checked

    @property
    def next_offset(self) -> int:
        """The base offset of the batch that would follow."""
        return self.base_offset + len(self.records)


def packed(codec: int, plain: bytes) -> bytes:
    """Records compressed as Kafka's producer would."""
    if codec == 1:
        return gzip.compress(plain, mtime=0)
    if codec == 2:
        block = pa.compress(plain, codec="snappy", asbytes=True)
        return b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block
    if codec in (3, 4):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, {3: "lz4", 4: "zstd"}[codec]) as stream:
            stream.write(plain)
        return sink.getvalue().to_pybytes()
    return plain


def consecutive(batches: Sequence[Batch], base_offset: int = 0) -> list[Batch]:
    """The batches, each with the base offset that follows from the ones before it."""
    placed = []
    for batch in batches:
        placed.append(replace(batch, base_offset=base_offset))
        base_offset = placed[-1].next_offset
    return placed


def in_bytes(batches: Sequence[Batch]) -> bytes:
    """The batches one after the other."""
    return b"".join(batch.written() for batch in batches)


def log_of(folder: Path, data: bytes, *, base_offset: int = 0, partition: int = 0) -> LogPartition:
    """Write one segment into `__share_group_state-N` under a folder, and find the log again."""
    place = folder / f"__share_group_state-{partition}"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{base_offset:020}.log").write_bytes(data)
    (found,) = find_logs([str(place)])
    return found
