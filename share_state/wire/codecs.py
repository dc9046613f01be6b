"""Undoes the compression of a batch's records; the codecs are libraries', the framing of snappy is Kafka's."""

import threading
from collections.abc import Callable
from typing import Protocol, cast

import cramjam
import lz4.frame
import zstandard
from isal import isal_zlib

LARGEST_BODY = 1 << 30
"""A batch that inflates beyond this many bytes is refused; brokers bound batches far below it (message.max.bytes)."""

_PIECE = 4096
"""Compressed bytes that are inflated before their size is looked at: 4 of zstd can be 128 KiB."""

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
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
        self.zstd = zstandard.ZstdDecompressor()


_OWN = _Contexts()


def decompress(codec: int, body: memoryview | bytes) -> bytes:
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
        return _CODECS[codec](body)
    except _BROKEN as error:
        raise BodyError(str(error).partition("\n")[0]) from None


def _ungzip(body: memoryview | bytes) -> bytes:
    return _inflated(lambda: cast(_Frame, isal_zlib.decompressobj(_GZIP_WINDOW)), body)


def _unzstd(body: memoryview | bytes) -> bytes:
    return _inflated(lambda: cast(_Frame, _OWN.zstd.decompressobj()), body)


def _inflated(begin: Callable[[], _Frame], body: memoryview | bytes) -> bytes:
    frame = begin()
    if len(body) <= _PIECE:
        plain = frame.decompress(body)
        _check_size(len(plain))
        # Nearly every body is one small frame.
        if frame.eof and not frame.unused_data:
            return plain
    return _frame_after_frame(begin, body)


def _frame_after_frame(begin: Callable[[], _Frame], body: memoryview | bytes) -> bytes:
    pieces, total, frame = [], 0, begin()
    for at in range(0, len(body), _PIECE):
        piece = body[at : at + _PIECE]
        while piece:
            frame = begin() if frame.eof else frame
            pieces.append(frame.decompress(piece))
            total += len(pieces[-1])
            _check_size(total)
            piece = frame.unused_data
    if not frame.eof:
        raise BodyError(_ENDS_EARLY)
    return _joined(pieces)


def _unlz4(body: memoryview | bytes) -> bytes:
    """Kafka's stream ends with its first frame."""
    pieces, total = [], 0
    lz4.frame.reset_decompression_context(_OWN.lz4)
    for at in range(0, len(body), _PIECE):
        piece, _, is_end = lz4.frame.decompress_chunk(_OWN.lz4, body[at : at + _PIECE])
        pieces.append(piece)
        total += len(piece)
        _check_size(total)
        if is_end:
            return _joined(pieces)
    raise BodyError(_ENDS_EARLY)


def _unsnappy(body: memoryview | bytes) -> bytes:
    if bytes(body[: len(_XERIAL)]) != _XERIAL:
        return _unsnappy_block(body)
    blocks, at, total = [], _XERIAL_HEADER, 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big", signed=True)
        at += 4
        if size < 0 or at + size > len(body):
            raise BodyError("a snappy block runs past the batch")
        blocks.append(_unsnappy_block(body[at : at + size]))
        total += len(blocks[-1])
        _check_size(total)
        at += size
    return _joined(blocks)


def _unsnappy_block(block: memoryview | bytes) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    # Snappy cannot shrink more than about 1:21, so a larger claim is a lie that must not be allocated.
    if size > LARGEST_BODY or size > 64 * len(block) + 64:
        raise BodyError(f"a snappy block claims {size} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))


def _joined(pieces: list[bytes]) -> bytes:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _check_size(total: int) -> None:
    if total > LARGEST_BODY:
        raise BodyError(f"more than {LARGEST_BODY} bytes when decompressed")


_CODECS = {1: _ungzip, 2: _unsnappy, 3: _unlz4, 4: _unzstd}
