"""Rows of several fields, copied as bytes: numpy copies them field by field, which takes fifteen times as long."""

from collections.abc import Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import numpy as np

_MUCH = 128 << 20
"""Bytes; where there is less, huge pages cost nothing that could be measured."""


def put(rows: np.ndarray, into: np.ndarray) -> None:
    """Copy rows to the beginning of others of the same type; both contiguous."""
    into[: len(rows)].view(np.uint8)[:] = rows.view(np.uint8)


def fill(rows: np.ndarray, row: np.void) -> None:
    """Make all of them, contiguous, equal to one of the same type."""
    rows.view(np.uint8).reshape(-1, rows.itemsize)[:] = np.frombuffer(row.tobytes(), np.uint8)


def used_once(count: int, rows: np.dtype) -> np.ndarray:
    """Room for rows that are written once and never asked for again.

    Much of it is in pages of the usual size: numpy would ask for huge ones, which take longer to be cleared.
    """
    size = count * rows.itemsize
    if size < _MUCH:
        return np.empty(count, rows)
    return np.frombuffer(mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS), rows)


def copied(rows: np.ndarray) -> np.ndarray:
    """Contiguous rows in memory of their own."""
    return rows.view(np.uint8).copy().view(rows.dtype)


def taken(rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Some of the rows, by their int64 numbers, in memory of their own."""
    return rows.view(np.dtype((np.void, rows.itemsize)))[numbers].view(rows.dtype)


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Contiguous rows of one type, behind each other; at least one part."""
    return np.concatenate([part.view(np.uint8) for part in parts]).view(parts[0].dtype)
