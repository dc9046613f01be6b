"""The bytes of Arrow's columns of texts and binaries, without an object of Python for each."""

import numpy as np
import pyarrow as pa


def column_bytes(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of a column.

    Args:
        column: of texts or binaries, large or not.
    Returns:
        (uint8, those of a row behind those of the one before; int64, row n has bytes ends[n] to ends[n + 1]).
        A null has none.
    """
    plain = column.cast(pa.large_string() if is_text(column) else pa.large_binary())
    _, ends_buffer, data_buffer = plain.buffers()
    if len(plain) == 0 or ends_buffer is None:
        return np.zeros(0, np.uint8), np.zeros(len(plain) + 1, np.int64)
    ends = np.frombuffer(ends_buffer, np.int64)[plain.offset : plain.offset + len(plain) + 1]
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return data[ends[0] : ends[-1]], ends - ends[0]


def is_text(column: pa.Array) -> bool:
    """Whether a column is of texts."""
    return pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
