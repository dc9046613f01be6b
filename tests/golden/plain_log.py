"""A plain reader of log segments, record by record: the twin that tells what the truth files leave out."""

import base64
import gzip
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

_BATCH = struct.Struct(">qiibIhiqqqhii")
_XERIAL_HEADER = 16


@dataclass(frozen=True)
class Record:
    """One record: where it lies, when it was stamped, and whose it is (kind: snapshot, update or tombstone)."""

    offset: int
    timestamp: int
    kind: str
    key: tuple[str, str, int]
    batch: tuple[int, int]


def read_folder(folder: Path, log_start: int = 0) -> list[Record]:
    """The records of one `__share_group_state-N`, the batch that holds the log start included as a whole."""
    segments = sorted(path for path in folder.iterdir() if path.suffix == ".log")
    records = [record for segment in segments for record in read_segment(segment.read_bytes())]
    return [record for record in records if record.batch[1] >= log_start]


def read_segment(data: bytes) -> Iterator[Record]:
    """The records of a segment up to its first incomplete batch."""
    at = 0
    while at + _BATCH.size <= len(data):
        base, length, _, magic, _, attributes, last_delta, first_stamp, *_, count = _BATCH.unpack_from(data, at)
        end = at + 12 + length
        if magic != 2 or length <= 0 or end > len(data):
            return
        body = _plain(attributes & 7, data[at + _BATCH.size : end])
        position = 0
        for _ in range(count):
            size, position = _varint(body, position)
            yield _record(body[position : position + size], base, base + last_delta, first_stamp)
            position += size
        at = end


def _record(body: bytes, base: int, last: int, first_stamp: int) -> Record:
    delta_stamp, at = _varint(body, 1)
    delta_offset, at = _varint(body, at)
    key_size, at = _varint(body, at)
    key = body[at : at + key_size]
    value_size, _ = _varint(body, at + key_size)
    record_type, group_size = struct.unpack_from(">hh", key)
    group, (partition,) = key[4 : 4 + group_size].decode(), struct.unpack_from(">i", key, 20 + group_size)
    kind = "tombstone" if value_size < 0 else ("snapshot", "update")[record_type]
    identity = group, _topic_id(key[4 + group_size : 20 + group_size]), partition
    return Record(base + delta_offset, first_stamp + delta_stamp, kind, identity, (base, last))


def _topic_id(uuid: bytes) -> str:
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def _varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = body[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number >> 1 ^ -(number & 1), at


def _plain(codec: int, body: bytes) -> bytes:
    if codec == 0:
        return body
    if codec == 1:
        return gzip.decompress(body)
    if codec == 2:
        return _plain_snappy(body)
    return pa.CompressedInputStream(pa.BufferReader(body), {3: "lz4", 4: "zstd"}[codec]).read()


def _plain_snappy(body: bytes) -> bytes:
    """Blocks of raw snappy, each behind its size, behind a fixed header."""
    out, at = b"", _XERIAL_HEADER
    while at < len(body):
        (size,) = struct.unpack_from(">i", body, at)
        block, at = body[at + 4 : at + 4 + size], at + 4 + size
        plain_size = sum((byte & 127) << 7 * place for place, byte in enumerate(_uvarint(block)))
        out += pa.decompress(block, plain_size, codec="snappy", asbytes=True)
    return out


def _uvarint(block: bytes) -> bytes:
    last = next(place for place, byte in enumerate(block) if byte < 128)
    return block[: last + 1]
