"""Memory for stretch after stretch of a log, the oldest used again: fresh memory costs as much as reading into it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

_Room = TypeVar("_Room")


class Rooms(Generic[_Room]):
    """Gives out rooms, the oldest again once what lay in it need not hold any more.

    Attributes:
        size: bytes that each has at least.
    """

    def __init__(self, make: Callable[[int], _Room], size: int, count: int) -> None:
        """Begin with none.

        Args:
            make: one of so many bytes.
            size: bytes that each has at least.
            count: how many stretches hold at a time.
        """
        self._make, self.size, self._count = make, size, count
        self._made: list[_Made[_Room]] = []
        self._handed_out = 0

    def next(self, least: int = 0) -> _Room:
        """One for what comes next, of `least` bytes at least."""
        wanted = max(least, self.size)
        is_free = bool(self._made) and self._handed_out - self._made[0].handed_out >= self._count
        room = self._made.pop(0) if is_free else None
        if room is None or room.size < wanted:
            room = _Made(wanted, self._make(wanted))
        room.handed_out = self._handed_out
        self._made.append(room)
        return room.room

    def hand_out(self) -> None:
        """A stretch that lies in the newest room is handed out."""
        self._made[-1].handed_out = self._handed_out
        self._handed_out += 1

    def larger(self) -> _Room:
        """One in place of the newest, of twice its size, as all will have that are made from now on."""
        self.size *= 2
        self._made[-1] = _Made(self.size, self._make(self.size), self._handed_out)
        return self._made[-1].room


@dataclass(slots=True)
class _Made(Generic[_Room]):
    """A room, how many bytes it has, and how many stretches were handed out before the last one that lies in it."""

    size: int
    room: _Room
    handed_out: int = 0


def byte_room(size: int) -> np.ndarray:
    """A room of bytes."""
    return np.empty(size, np.uint8)
