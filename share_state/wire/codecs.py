"""Undoes the compression of a batch's records; the codecs are pyarrow's, the framing of snappy is Kafka's."""

import pyarrow as pa

LARGEST_BODY = 1 << 30
"""A batch that inflates beyond this many bytes is refused; brokers bound batches far below it (message.max.bytes)."""

_PIECE = 256 << 10
_STREAMED = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY = 2
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16


class BodyError(ValueError):
    """Raised when the records of a batch cannot be decompressed; the message says why."""


def decompress(codec: int, body: bytes) -> bytes:
    """The records of a batch whose attributes name `codec`.

    Args:
        codec: 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        body: the compressed bytes behind the batch header.
    Raises:
        BodyError: for an unknown codec, damaged bytes, or more than LARGEST_BODY bytes of output.
    Source: Kafka CompressionType, SnappyOutputStream of xerial.
    """
    try:
        if codec == _SNAPPY:
            return _unsnappy(body)
        if codec not in _STREAMED:
            raise BodyError(f"codec {codec} is unknown")
        with pa.CompressedInputStream(pa.BufferReader(body), _STREAMED[codec]) as stream:
            return _in_pieces(stream)
    except (OSError, pa.ArrowInvalid) as error:
        raise BodyError(f"{str(error).splitlines()[0]}") from None


def _in_pieces(stream: pa.CompressedInputStream) -> bytes:
    """All that a stream holds; pyarrow takes room for the whole of what one read asks for."""
    pieces, total = [], 0
    while (piece := stream.read_buffer(_PIECE)).size:
        pieces.append(piece)
        total += piece.size
        _check_size(total)
    return b"".join(pieces)


def _unsnappy(body: bytes) -> bytes:
    if not body.startswith(_XERIAL):
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
    return b"".join(blocks)


def _unsnappy_block(block: bytes) -> bytes:
    size, shift = 0, 0
    for byte in block[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    else:
        raise BodyError("a snappy block without its length")
    # Snappy cannot shrink more than about 1:21, so a larger claim is a lie that must not be allocated.
    if size > LARGEST_BODY or size > 64 * len(block) + 64:
        raise BodyError(f"a snappy block claims {size} bytes")
    return pa.Codec("snappy").decompress(block, decompressed_size=size).to_pybytes()


def _check_size(total: int) -> None:
    if total > LARGEST_BODY:
        raise BodyError(f"more than {LARGEST_BODY} bytes when decompressed")
