"""Decodes keys and values that a table holds as text: base64 or hexadecimal digits."""

import base64

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.kafka.buffers import column_bytes, is_text, range_rows

Spans = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Bytes of all values (uint8), and the start and the size of each (int64)."""

_PADDING = ord("=")
_TO_STANDARD_BASE64 = bytes.maketrans(b"-_=", b"+/A")
"""Maps the URL-safe alphabet to the standard one, and padding to A, which is cut off after decoding."""

_NO_DIGIT = 255
_HEX_DIGITS = np.full(256, _NO_DIGIT, np.uint8)
for _text in ("0123456789abcdef", "0123456789ABCDEF"):
    _HEX_DIGITS[np.frombuffer(_text.encode(), np.uint8)] = range(16)

_LINE_BREAKS = (ord("\r"), ord("\n"))
_HEX_PREFIXES = (b"0x", b"\\x")
"""How SQL engines begin a binary value that they print."""


NOT_ENCODED = "a key or value is text but neither base64 nor hexadecimal"
"""What messages say of such a text."""


class NotEncodedError(ValueError):
    """Raised when a text is neither base64 nor hexadecimal."""


def in_bytes(column: pa.Array) -> pa.Array:
    """A column of keys or values as bytes, whether it holds bytes or texts.

    Raises:
        NotEncodedError: if a text is neither base64 nor hexadecimal.
    """
    if not is_text(column.type):
        return column.cast(pa.binary())
    data, ends = column_bytes(column)
    decoded, starts, sizes = decode_texts(data, ends[:-1], np.diff(ends))
    decoded_ends = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    buffers = [None, pa.py_buffer(decoded_ends), pa.py_buffer(decoded[range_rows(starts, sizes)])]
    texts = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(column), buffers)
    return pc.if_else(column.is_valid(), texts, None).cast(pa.binary())


def decode_texts(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> Spans:
    """Decode a column of texts, all in one encoding.

    Base64 may be URL-safe, without padding, or broken into lines, as MIME encoders such as Spark's `base64`
    write it. Hexadecimal digits are also valid base64, so a column of them is base64 unless its first value
    begins with the digit 0: keys and values of state records begin with a type or version below 4096.

    Args:
        data: uint8, the bytes of all texts in row order, without gaps.
        starts, sizes: int64, start and size of each text; 0 for null.
    Raises:
        NotEncodedError: if a text is in neither encoding.
    """
    if np.isin(data, _LINE_BREAKS).any():
        data, starts, sizes = _select(data, starts, sizes, ~np.isin(data, _LINE_BREAKS))
    first = next(iter(np.flatnonzero(sizes)), None)
    if first is None:
        return data[:0], np.zeros(len(starts), np.int64), sizes
    begin = data[starts[first] : starts[first] + 2].tobytes()
    if begin in _HEX_PREFIXES:
        data, starts, sizes = _without_prefix(data, starts, sizes, begin)
    if begin[:1] == b"0" or begin in _HEX_PREFIXES:
        return _from_hex(data, starts, sizes)
    return _from_base64(data, starts, sizes)


def _select(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, is_kept: np.ndarray) -> Spans:
    """Texts without the bytes that a mask leaves out."""
    before = np.concatenate(([0], np.cumsum(is_kept)))
    kept_starts = before[starts]
    return data[is_kept], kept_starts, before[starts + sizes] - kept_starts


def _without_prefix(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, prefix: bytes) -> Spans:
    begins = starts[sizes > 0]
    is_kept = np.ones(len(data), bool)
    for place, byte in enumerate(prefix):
        if (sizes[sizes > 0] <= place).any() or (data[begins + place] != byte).any():
            raise NotEncodedError("not hexadecimal")
        is_kept[begins + place] = False
    return _select(data, starts, sizes, is_kept)


def _from_hex(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> Spans:
    digits = _HEX_DIGITS[data]
    if (sizes % 2).any() or (digits == _NO_DIGIT).any():
        raise NotEncodedError("not hexadecimal")
    return digits[::2] << 4 | digits[1::2], starts // 2, sizes // 2


def _from_base64(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> Spans:
    if (sizes % 4).any():
        data, starts, sizes = _padded(data, starts, sizes)
    ends = (starts + sizes)[sizes > 0]
    padding = np.zeros(len(starts), np.int64)
    padding[sizes > 0] = (data[ends - 1] == _PADDING).astype(np.int64) + (data[ends - 2] == _PADDING)
    if len(data) != sizes.sum() or (data == _PADDING).sum() != padding.sum():
        raise NotEncodedError("not base64")
    try:
        plain = base64.b64decode(data.tobytes().translate(_TO_STANDARD_BASE64), validate=True)
    except ValueError:
        raise NotEncodedError("not base64") from None
    return np.frombuffer(plain, np.uint8), starts // 4 * 3, sizes // 4 * 3 - padding


def _padded(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> Spans:
    """Texts with the padding that their encoder left out."""
    missing = -sizes % 4
    if (missing > 2).any() or (data == _PADDING).any():
        raise NotEncodedError("not base64")
    padded = np.insert(data, np.repeat(starts + sizes, missing), _PADDING)
    padded_sizes = sizes + missing
    return padded, np.cumsum(padded_sizes) - padded_sizes, padded_sizes


def decode_text(text: str) -> bytes:
    """Decode one text, as `decode_texts` does.

    Raises:
        NotEncodedError: if it is in neither encoding.
    """
    data = np.frombuffer(text.encode(), np.uint8)
    return decode_texts(data, np.zeros(1, np.int64), np.array([len(data)]))[0].tobytes()
