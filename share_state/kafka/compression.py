"""Undoes the compression of a batch's records; the codecs are libraries', the framing of snappy is Kafka's.

The bodies of batches, decompressed one behind the other into rooms of a bounded size that are used again.
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

from share_state.kafka.buffers import Rooms
from share_state.kafka.record_batches import CODEC_BITS, CONTROL, Trust, facts_of

LARGEST_BODY = 1 << 30
"""A batch that inflates beyond this many bytes is refused; brokers bound batches far below it (message.max.bytes)."""

_PIECE = 4096
"""Compressed bytes that are inflated before their size is looked at: 4 of zstd can be 128 KiB."""

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
_XERIAL_BEGIN = struct.Struct(">8s8xi")
"""Magic, versions, and the size of the first block."""
_GZIP_WINDOW = 16 + isal_zlib.MAX_WBITS
_ENDS_EARLY = "the compressed bytes end early"
_GZIP_ERROR = cast(type[Exception], isal_zlib.error)
_BROKEN = (_GZIP_ERROR, zstandard.ZstdError, cramjam.DecompressionError, RuntimeError, EOFError)
"""What the libraries raise; RuntimeError is lz4's."""


class BodyError(ValueError):
    """Raised when the records of a batch cannot be decompressed; the message says why."""


class _Frame(Protocol):
    """One compressed frame, as gzip and zstd have it: `eof` once its end was seen, `unused_data` behind that."""

    eof: bool
    unused_data: bytes | None

    def decompress(self, data: memoryview | bytes) -> bytes: ...


class _Contexts(threading.local):
    """What is used again from body to body; each thread has its own, as two cannot use one at a time."""

    def __init__(self) -> None:
        self.lz4 = lz4.frame.create_decompression_context()
        self.zstd = cast(Callable[[], _Frame], zstandard.ZstdDecompressor().decompressobj)


_OWN = _Contexts()
_GZIP = cast(Callable[[], _Frame], partial(isal_zlib.decompressobj, _GZIP_WINDOW))


def decompress(codec: int, body: memoryview | bytes) -> memoryview | bytes:
    """The records of a batch whose attributes name `codec`.

    Args:
        codec: 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        body: the compressed bytes behind the batch header.
    Raises:
        BodyError: for an unknown codec, damaged bytes, or more than LARGEST_BODY bytes of output.
    Source: Kafka CompressionType, Lz4BlockInputStream, SnappyOutputStream of xerial.
    """
    if codec not in _CODECS:
        raise BodyError(f"codec {codec} is unknown")
    try:
        plain = _CODECS[codec](body)
    except _BROKEN as error:
        raise BodyError(str(error).partition("\n")[0]) from None
    _check_size(len(plain))
    return plain


def _ungzip(body: memoryview | bytes) -> bytes:
    return _inflated(_GZIP, body)


def _unzstd(body: memoryview | bytes) -> bytes:
    return _inflated(_OWN.zstd, body)


def _inflated(begin: Callable[[], _Frame], body: memoryview | bytes) -> bytes:
    if len(body) <= _PIECE:
        frame = begin()
        plain = frame.decompress(body)
        # Nearly every body is one small frame.
        if frame.eof and not frame.unused_data:
            return plain
    return _joined(_frame_after_frame(begin, body))


def _frame_after_frame(begin: Callable[[], _Frame], body: memoryview | bytes) -> Iterator[bytes]:
    frame = begin()
    for at in range(0, len(body), _PIECE):
        piece = body[at : at + _PIECE]
        while piece:
            frame = begin() if frame.eof else frame
            yield frame.decompress(piece)
            piece = frame.unused_data
    if not frame.eof:
        raise BodyError(_ENDS_EARLY)


def _unlz4(body: memoryview | bytes) -> bytes:
    """The first frame alone: Kafka's stream ends with it."""
    lz4.frame.reset_decompression_context(_OWN.lz4)
    plain, used, is_end = lz4.frame.decompress_chunk(_OWN.lz4, body[:_PIECE])
    # Nearly every body is small.
    return plain if is_end else _joined(_lz4_frame(plain, body, used))


def _lz4_frame(begun: bytes, body: memoryview | bytes, begin: int) -> Iterator[bytes]:
    yield begun
    for at in range(begin, len(body), _PIECE):
        piece, _, is_end = lz4.frame.decompress_chunk(_OWN.lz4, body[at : at + _PIECE])
        yield piece
        if is_end:
            return
    raise BodyError(_ENDS_EARLY)


def _unsnappy(body: memoryview | bytes) -> memoryview | bytes:
    if len(body) >= _XERIAL_BEGIN.size:
        magic, size = _XERIAL_BEGIN.unpack_from(body)
        # Nearly every body is one block.
        if magic == _XERIAL and size == len(body) - _XERIAL_BEGIN.size:
            return _unsnappy_block(body[_XERIAL_BEGIN.size :])
    return _joined(_snappy_blocks(body)) if body[: len(_XERIAL)] == _XERIAL else _unsnappy_block(body)


def _snappy_blocks(body: memoryview | bytes) -> Iterator[memoryview]:
    at = _XERIAL_HEADER
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big", signed=True)
        at += 4
        if size < 0 or at + size > len(body):
            raise BodyError("a snappy block runs past the batch")
        yield _unsnappy_block(body[at : at + size])
        at += size


def _unsnappy_block(block: memoryview | bytes) -> memoryview:
    size = cramjam.snappy.decompress_raw_len(block)
    # Snappy cannot shrink more than about 1:21, so a larger claim is a lie that must not be allocated.
    if size > LARGEST_BODY or size > 64 * len(block) + 64:
        raise BodyError(f"a snappy block claims {size} bytes")
    return memoryview(cramjam.snappy.decompress_raw(block))


def _joined(pieces: Iterable[memoryview | bytes]) -> bytes:
    kept, total = [], 0
    for piece in pieces:
        kept.append(piece)
        total += len(piece)
        _check_size(total)
    return b"".join(kept)


def _check_size(size: int) -> None:
    if size > LARGEST_BODY:
        raise BodyError(f"more than {LARGEST_BODY} bytes when decompressed")


_CODECS = {1: _ungzip, 2: _unsnappy, 3: _unlz4, 4: _unzstd}


def is_compressed(batches: np.ndarray, only_control: bool) -> bool:
    """Whether the body of any batch that is to be looked into must be decompressed first."""
    if not facts_of(batches).attributes & CODEC_BITS:
        return False
    return bool((batches["attributes"][_wanted(batches, only_control)] & CODEC_BITS).any())


def inflated(
    data: np.ndarray, batches: np.ndarray, only_control: bool, rooms: Rooms[np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[int, str]]]:
    """Put the bodies of batches side by side, decompressed where they are not plain.

    Args:
        data: uint8, raw segment bytes.
        batches: BATCH rows; `body`, `body_end` and `trust` are changed in place.
        only_control: leave out the bodies of data batches, which must not be looked into then.
        rooms: of bytes, where to put them; a part ends when one is full.
    Returns:
        Parts in order: (uint8 bytes of the bodies, the rows they belong to, row of those -> why it cannot be
        decompressed).
    """
    wanted, packed = np.flatnonzero(_wanted(batches, only_control)), data.data
    codecs = (batches["attributes"][wanted] & CODEC_BITS).tolist()
    begins, ends = batches["body"][wanted].tolist(), batches["body_end"][wanted].tolist()
    trust, why = batches["trust"], dict[int, str]()
    room, space, used, start = np.empty(0, np.uint8), 0, 0, 0
    into, rows, lasts = room.data, list[int](), list[int]()

    def part(end: int) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
        batches["body"][rows], batches["body_end"][rows] = [0, *lasts[:-1]][: len(lasts)], lasts
        faults = {row - start: reason for row, reason in why.items() if start <= row < end}
        if rows:
            rooms.hand_out()
        return room[:used], batches[start:end], faults

    for row, codec, begin, end in zip(wanted.tolist(), codecs, begins, ends, strict=True):
        body = packed[begin:end]
        if codec:
            try:
                body = decompress(codec, body)
            except BodyError as reason:
                trust[row], why[row] = Trust.MALFORMED, str(reason)
                continue
        last = used + len(body)
        if last > space:
            if used:
                yield part(row)
                start, rows, lasts = row, [], []
            # Not all of a room that a larger body once made larger: where a part ends does not depend on the room.
            used, last, space = 0, len(body), max(len(body), rooms.size)
            room = rooms.next(last)
            into = room.data
        into[used:last] = body
        rows.append(row)
        lasts.append(last)
        used = last
    yield part(len(batches))


def _wanted(batches: np.ndarray, only_control: bool) -> np.ndarray:
    """Which rows of BATCH have a body that is to be looked into."""
    wanted = batches["trust"] == Trust.WHOLE
    return wanted & (batches["attributes"] & CONTROL != 0) if only_control else wanted
