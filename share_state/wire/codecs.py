"""Undoes the compression of a batch's records; the codecs are libraries', the framing of snappy is Kafka's."""

import zlib
from collections.abc import Callable
from typing import Protocol, cast

import cramjam
import lz4.frame
import zstandard

LARGEST_BODY = 1 << 30
"""A batch that inflates beyond this many bytes is refused; brokers bound batches far below it (message.max.bytes)."""

_PIECE = 4096
"""Compressed bytes that are inflated before their size is looked at: 4 of zstd can be 128 KiB."""

_SNAPPY, _LZ4 = 2, 3
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_BROKEN = (zlib.error, zstandard.ZstdError, cramjam.DecompressionError, RuntimeError, EOFError)
"""What the libraries raise; RuntimeError is lz4's."""


class BodyError(ValueError):
    """Raised when the records of a batch cannot be decompressed; the message says why."""


class _Frame(Protocol):
    """One compressed frame, as every library has it: `eof` once its end was seen, `unused_data` behind that."""

    eof: bool
    unused_data: bytes | None

    def decompress(self, data: memoryview | bytes) -> bytes: ...


_FRAMES = {
    1: lambda: zlib.decompressobj(_GZIP_WINDOW),
    _LZ4: lz4.frame.LZ4FrameDecompressor,
    4: zstandard.ZstdDecompressor().decompressobj,
}


def decompress(codec: int, body: memoryview | bytes) -> bytes:
    """The records of a batch whose attributes name `codec`.

    Args:
        codec: 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        body: the compressed bytes behind the batch header.
    Raises:
        BodyError: for an unknown codec, damaged bytes, or more than LARGEST_BODY bytes of output.
    Source: Kafka CompressionType, Lz4BlockInputStream, SnappyOutputStream of xerial.
    """
    try:
        if codec == _SNAPPY:
            return _unsnappy(body)
        if codec not in _FRAMES:
            raise BodyError(f"codec {codec} is unknown")
        # Kafka's lz4 stream ends with its first frame, the others go on with the next.
        return _inflated(cast(Callable[[], _Frame], _FRAMES[codec]), body, goes_on=codec != _LZ4)
    except _BROKEN as error:
        raise BodyError(str(error).partition("\n")[0]) from None


def _inflated(begin: Callable[[], _Frame], body: memoryview | bytes, *, goes_on: bool) -> bytes:
    pieces, total, frame = [], 0, begin()
    for at in range(0, len(body), _PIECE):
        piece = body[at : at + _PIECE]
        while piece and (goes_on or not frame.eof):
            frame = begin() if frame.eof else frame
            pieces.append(frame.decompress(piece))
            total += len(pieces[-1])
            _check_size(total)
            piece = frame.unused_data
    if not frame.eof:
        raise BodyError("the compressed bytes end early")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


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
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _unsnappy_block(block: memoryview | bytes) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    # Snappy cannot shrink more than about 1:21, so a larger claim is a lie that must not be allocated.
    if size > LARGEST_BODY or size > 64 * len(block) + 64:
        raise BodyError(f"a snappy block claims {size} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))


def _check_size(total: int) -> None:
    if total > LARGEST_BODY:
        raise BodyError(f"more than {LARGEST_BODY} bytes when decompressed")
