"""Memory for stretch after stretch of a log, the oldest used again: fresh memory costs as much as reading into it."""

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

_Room = TypeVar("_Room")


class Rooms(Generic[_Room]):
    """Gives out rooms by turns.

    Attributes:
        size: bytes that each has at least.
    """

    def __init__(self, make: Callable[[int], _Room], size: int, count: int) -> None:
        """Begin with none.

        Args:
            make: one of so many bytes.
            size: bytes that each has at least.
            count: how many hold at a time.
        """
        self._make, self.size, self._count = make, size, count
        self._made: list[tuple[int, _Room]] = []

    def next(self, least: int = 0) -> _Room:
        """One for the next stretch, of `least` bytes at least."""
        wanted = max(least, self.size)
        size, room = self._made.pop(0) if len(self._made) == self._count else (-1, None)
        if room is None or size < wanted:
            size, room = wanted, self._make(wanted)
        self._made.append((size, room))
        return room

    def larger(self) -> _Room:
        """One in place of the newest, of twice its size, as all will have that are made from now on."""
        self.size *= 2
        self._made[-1] = self.size, self._make(self.size)
        return self._made[-1][1]


def byte_room(size: int) -> np.ndarray:
    """A room of bytes."""
    return np.empty(size, np.uint8)
