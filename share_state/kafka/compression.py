"""Decompresses the records of batches with Kafka's codecs; snappy is framed as xerial's snappy-java does.

`decompress` handles the body of one batch; `decompress_bodies` puts the bodies of many batches into pooled
buffers.
"""

import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol, cast

import cramjam
import lz4.frame
import numpy as np
import zstandard
from isal import isal_zlib

from share_state.kafka.buffers import BufferPool
from share_state.kafka.record_batches import CODEC_BITS, CONTROL, BatchStatus

MAX_BODY_SIZE = 128 << 20
"""Limit of a decompressed batch in bytes; the brokers' default (message.max.bytes) is 1 MiB, compressed."""

_STEP = 4096
"""Compressed bytes between two checks of the decompressed size: 4 bytes of zstd can expand to 128 KiB."""

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
_XERIAL_START = struct.Struct(">8s8xi")
"""Magic, versions, and the size of the first block."""
_GZIP_WINDOW = 16 + isal_zlib.MAX_WBITS
_INCOMPLETE = "the compressed bytes end early"
_GZIP_ERROR = cast(type[Exception], isal_zlib.error)
_CODEC_ERRORS = (_GZIP_ERROR, zstandard.ZstdError, cramjam.DecompressionError, RuntimeError, EOFError)
"""The exceptions of the libraries; lz4 raises RuntimeError."""


class DecompressionError(ValueError):
    """Raised when the records of a batch cannot be decompressed."""


class _Frame(Protocol):
    """A decompressor of one gzip or zstd frame: `eof` is set at its end, `unused_data` follows the end."""

    eof: bool
    unused_data: bytes | None

    def decompress(self, data: memoryview | bytes) -> bytes: ...


class _Contexts(threading.local):
    """Decompression contexts that are reused from body to body; one per thread."""

    def __init__(self) -> None:
        self.lz4 = lz4.frame.create_decompression_context()
        self.zstd = cast(Callable[[], _Frame], zstandard.ZstdDecompressor().decompressobj)


_CONTEXTS = _Contexts()
_GZIP = cast(Callable[[], _Frame], partial(isal_zlib.decompressobj, _GZIP_WINDOW))


def decompress(codec: int, body: memoryview | bytes, max_size: int = MAX_BODY_SIZE) -> memoryview | bytes:
    """Decompress the records of one batch.

    Args:
        codec: from the batch attributes: 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        body: the compressed bytes after the batch header.
        max_size: limit of the output in bytes.
    Raises:
        DecompressionError: for an unknown codec, damaged bytes, or more than `max_size` bytes of output.
    Source: Kafka CompressionType, Lz4BlockInputStream, SnappyOutputStream of xerial.
    """
    if codec not in _CODECS:
        raise DecompressionError(f"codec {codec} is unknown")
    try:
        plain = _CODECS[codec](body, max_size)
    except _CODEC_ERRORS as error:
        raise DecompressionError(str(error).partition("\n")[0]) from None
    _check_size(len(plain), max_size)
    return plain


def _frames(new_frame: Callable[[], _Frame], body: memoryview | bytes, max_size: int) -> bytes:
    if len(body) <= _STEP:
        frame = new_frame()
        plain = frame.decompress(body)
        # Most bodies are one small frame.
        if frame.eof and not frame.unused_data:
            return plain
    return _concat(_all_frames(new_frame, body), max_size)


def _all_frames(new_frame: Callable[[], _Frame], body: memoryview | bytes) -> Iterator[bytes]:
    frame = new_frame()
    for at in range(0, len(body), _STEP):
        part = body[at : at + _STEP]
        while part:
            frame = new_frame() if frame.eof else frame
            yield frame.decompress(part)
            part = frame.unused_data
    if not frame.eof:
        raise DecompressionError(_INCOMPLETE)


def _lz4(body: memoryview | bytes, max_size: int) -> bytes:
    """Only the first frame: Kafka's stream ends with it."""
    lz4.frame.reset_decompression_context(_CONTEXTS.lz4)
    plain, used, is_end = lz4.frame.decompress_chunk(_CONTEXTS.lz4, body[:_STEP])
    # Most bodies are small.
    return plain if is_end else _concat(_lz4_frame(plain, body, used), max_size)


def _lz4_frame(start: bytes, body: memoryview | bytes, begin: int) -> Iterator[bytes]:
    yield start
    for at in range(begin, len(body), _STEP):
        part, _, is_end = lz4.frame.decompress_chunk(_CONTEXTS.lz4, body[at : at + _STEP])
        yield part
        if is_end:
            return
    raise DecompressionError(_INCOMPLETE)


def _snappy(body: memoryview | bytes, max_size: int) -> memoryview | bytes:
    if len(body) >= _XERIAL_START.size:
        magic, size = _XERIAL_START.unpack_from(body)
        # Most bodies are one block.
        if magic == _XERIAL and size == len(body) - _XERIAL_START.size:
            return _snappy_block(body[_XERIAL_START.size :], max_size)
    if body[: len(_XERIAL)] == _XERIAL:
        return _concat(_snappy_blocks(body, max_size), max_size)
    return _snappy_block(body, max_size)


def _snappy_blocks(body: memoryview | bytes, max_size: int) -> Iterator[memoryview]:
    at = _XERIAL_HEADER
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big", signed=True)
        at += 4
        if size < 0 or at + size > len(body):
            raise DecompressionError("a snappy block runs past the batch")
        yield _snappy_block(body[at : at + size], max_size)
        at += size


def _snappy_block(block: memoryview | bytes, max_size: int) -> memoryview:
    size = cramjam.snappy.decompress_raw_len(block)
    # Snappy compresses to at most about 1:21, so a larger claim is false and must not be allocated.
    _check_size(size, max_size)
    if size > 64 * len(block) + 64:
        raise DecompressionError(f"a snappy block claims {size} bytes")
    return memoryview(cramjam.snappy.decompress_raw(block))


def _concat(parts: Iterable[memoryview | bytes], max_size: int) -> bytes:
    joined, total = [], 0
    for part in parts:
        joined.append(part)
        total += len(part)
        _check_size(total, max_size)
    return b"".join(joined)


def _check_size(size: int, max_size: int) -> None:
    if size > max_size:
        raise DecompressionError(f"more than {max_size} bytes when decompressed (limits.batch_bytes)")


_CODECS: dict[int, Callable[[memoryview | bytes, int], memoryview | bytes]] = {
    1: partial(_frames, _GZIP),
    2: _snappy,
    3: _lz4,
    4: lambda body, max_size: _frames(_CONTEXTS.zstd, body, max_size),
}


def needs_decompression(batches: np.ndarray, only_control: bool) -> bool:
    """Whether any batch whose records will be read is compressed."""
    return bool((batches["attributes"][_selected(batches, only_control)] & CODEC_BITS).any())


def decompress_bodies(
    data: np.ndarray,
    batches: np.ndarray,
    only_control: bool,
    buffers: BufferPool[np.ndarray],
    max_size: int = MAX_BODY_SIZE,
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[int, str]]]:
    """Decompress the bodies of batches into buffers; uncompressed bodies are copied.

    Args:
        data: raw segment bytes.
        batches: BATCH rows; `body`, `body_end` and `status` are changed in place.
        only_control: skip the bodies of data batches.
        buffers: byte buffers to fill; a part ends when its buffer is full.
        max_size: bytes of a decompressed body.
    Returns:
        Parts in order: (uint8 bytes of the bodies, their BATCH rows, row number in the part -> decompression
        error).
    """
    selected, packed = np.flatnonzero(_selected(batches, only_control)), data.data
    codecs = (batches["attributes"][selected] & CODEC_BITS).tolist()
    begins, ends = batches["body"][selected].tolist(), batches["body_end"][selected].tolist()
    status, errors = batches["status"], dict[int, str]()
    buffer = np.empty(0, np.uint8)
    space = -1
    used = 0
    start = 0
    target = buffer.data
    rows = list[int]()
    body_ends = list[int]()

    def part(end: int) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
        batches["body"][rows], batches["body_end"][rows] = [0, *body_ends[:-1]][: len(body_ends)], body_ends
        part_errors = {row - start: error for row, error in errors.items() if start <= row < end}
        if rows:
            buffers.mark_used()
        return buffer[:used], batches[start:end], part_errors

    for row, codec, begin, end in zip(selected.tolist(), codecs, begins, ends, strict=True):
        body = packed[begin:end]
        if codec:
            try:
                body = decompress(codec, body, max_size)
            except DecompressionError as error:
                status[row], errors[row] = BatchStatus.MALFORMED, str(error)
                continue
        body_end = used + len(body)
        if body_end > space:
            if used:
                yield part(row)
                start = row
                rows = []
                body_ends = []
            # A reused buffer may be larger than requested; parts must not depend on that.
            used = 0
            body_end = len(body)
            space = max(len(body), buffers.size)
            buffer = buffers.next(body_end)
            target = buffer.data
        target[used:body_end] = body
        rows.append(row)
        body_ends.append(body_end)
        used = body_end
    yield part(len(batches))


def _selected(batches: np.ndarray, only_control: bool) -> np.ndarray:
    """Mask of the batches whose records will be read."""
    valid = batches["status"] == BatchStatus.VALID
    return valid & (batches["attributes"] & CONTROL != 0) if only_control else valid
