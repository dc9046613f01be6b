"""Record batches (magic 2) as a broker writes them: records, compression, header, CRC-32C."""

import gzip
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import google_crc32c
import pyarrow as pa

MAGIC = 2
_LEADER_EPOCH = 0  # of the log itself, which has had one leader
_CONTROL = 0x20
_NO_PRODUCER = (-1, -1, -1)  # producer id, producer epoch, base sequence
_HEAD = struct.Struct(">qiibI")  # base offset, length, partition leader epoch, magic, crc
_CHECKED_HEAD = struct.Struct(">hiqqqhii")
_BEFORE_LENGTH_COUNTS = 12
_SMALL = 1 << 13


class Stamped(NamedTuple):
    """A record before it has an offset: its time in ms, its key and its value."""

    timestamp: int
    key: bytes | None
    value: bytes | None


def record_batch(
    base_offset: int,
    records: Sequence[Stamped],
    *,
    codec: str = "none",
    is_control: bool = False,
) -> bytes:
    """One record batch.

    Args:
        base_offset: of its first record; the others follow without a gap.
        records: at least one, in order.
        codec: one of CODECS.
        is_control: whether it holds control records, which no consumer is given.
    Source: Kafka DefaultRecordBatch, DefaultRecord.
    """
    number, pack = _CODECS[codec]
    first = records[0].timestamp
    body = pack(b"".join([_record(place, first, record) for place, record in enumerate(records)]))
    attributes = number | (_CONTROL if is_control else 0)
    latest = max(record.timestamp for record in records)
    checked = _CHECKED_HEAD.pack(attributes, len(records) - 1, first, latest, *_NO_PRODUCER, len(records)) + body
    length = _HEAD.size - _BEFORE_LENGTH_COUNTS + len(checked)
    return _HEAD.pack(base_offset, length, _LEADER_EPOCH, MAGIC, google_crc32c.value(checked)) + checked


def _record(place: int, first: int, record: Stamped) -> bytes:
    timestamp, key, value = record
    parts = [b"\0", _varint(timestamp - first), _varint(place)]
    for content in (key, value):
        parts += (_NULL,) if content is None else (_varint(len(content)), content)
    parts.append(b"\0")  # no headers
    body = b"".join(parts)
    return _varint(len(body)) + body


def _zigzag(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_NULL = _zigzag(-1)
_VARINTS = [_zigzag(number) for number in range(_SMALL)]


def _varint(number: int) -> bytes:
    return _VARINTS[number] if 0 <= number < _SMALL else _zigzag(number)


def _plain(body: bytes) -> bytes:
    return body


def _gzip(body: bytes) -> bytes:
    # No time of day in it, so that the same records give the same bytes.
    return gzip.compress(body, compresslevel=6, mtime=0)


def _snappy(body: bytes) -> bytes:
    """The frame of snappy-java's streams: magic, version and lowest compatible version, then sized blocks."""
    blocks = [pa.compress(body[at : at + _SNAPPY_BLOCK], codec="snappy", asbytes=True)
              for at in range(0, len(body), _SNAPPY_BLOCK)]  # fmt: skip
    return _SNAPPY_HEAD + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def _lz4(body: bytes) -> bytes:
    """An LZ4 frame of independent blocks: Kafka reads no others, and pyarrow's own streams link theirs."""
    parts = [_LZ4_HEAD]
    for at in range(0, len(body), _LZ4_BLOCK):
        plain = body[at : at + _LZ4_BLOCK]
        packed = pa.compress(plain, codec="lz4_raw", asbytes=True)
        is_smaller = len(packed) < len(plain)
        parts.append(struct.pack("<I", len(packed) if is_smaller else len(plain) | _LZ4_STORED))
        parts.append(packed if is_smaller else plain)
    return b"".join(parts) + struct.pack("<I", 0)


def _zstd(body: bytes) -> bytes:
    return pa.compress(body, codec="zstd", asbytes=True)


_SNAPPY_BLOCK = 1 << 15
_SNAPPY_HEAD = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_LZ4_BLOCK = 1 << 16
# Magic; version 1, independent blocks, no checksums; blocks of up to 64 KiB; the check byte of these two.
_LZ4_HEAD = bytes.fromhex("04224d18 60 40 82")
_LZ4_STORED = 1 << 31

_CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, _plain),
    "gzip": (1, _gzip),
    "snappy": (2, _snappy),
    "lz4": (3, _lz4),
    "zstd": (4, _zstd),
}
CODECS = tuple(_CODECS)
"""Names of the codecs, as the broker's settings have them."""
