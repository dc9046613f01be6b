"""Memory for stretch after stretch of a log, the oldest used again: fresh memory costs as much as reading into it.

Rows of several fields, copied as bytes: numpy copies them field by field, which takes fifteen times as long.

Room for the decoded records of chunk after chunk, used again: fresh memory costs as much as what is put there.

Moves rows between arrays in one go, for compiled kernels, which copy a row of several fields field by field.

The bytes of Arrow's columns of texts and binaries, without an object of Python for each.

Work that a log's stages do side by side, each in a thread: compiled kernels and reads let the others run.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

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


_LARGE = 256 << 20
"""Bytes; a room that can take more is let go."""


class RecordRoom:
    """Two growing arrays: rows of records, zero when they are handed out, and rows that those point into."""

    def __init__(self, record: np.dtype, batch: np.dtype) -> None:
        self._rows, self._batches = np.empty(0, record), np.empty(0, batch)
        self.row_count = self.batch_count = 0

    @property
    def rows(self) -> np.ndarray:
        """The rows in use."""
        return self._rows[: self.row_count]

    @property
    def batches(self) -> np.ndarray:
        """The rows in use that those point into."""
        return self._batches[: self.batch_count]

    @property
    def size(self) -> int:
        """Bytes in use."""
        return self.rows.nbytes + self.batches.nbytes

    @property
    def capacity(self) -> int:
        """Bytes that it can take before it grows."""
        return self._rows.nbytes + self._batches.nbytes

    def more(self, rows: int, batches: int) -> tuple[np.ndarray, np.ndarray]:
        """So many rows more, all zero, and every row that they may point into: those in use and as many more.

        Whoever fills them sets `batch_count`.
        """
        begin, self.row_count = self.row_count, self.row_count + rows
        self._rows = _with_room(self._rows, begin, self.row_count)
        self._batches = _with_room(self._batches, self.batch_count, self.batch_count + batches)
        added = self._rows[begin : self.row_count]
        added.view(np.uint8)[:] = 0
        return added, self._batches

    def clear(self) -> None:
        """Nothing is in use any more."""
        self.row_count = self.batch_count = 0


class SpareRooms:
    """Rooms that a log needs no more are for the next one, unless they have grown large."""

    def __init__(self, make: Callable[[], RecordRoom]) -> None:
        self._make, self._spare = make, list[RecordRoom]()

    def room(self) -> RecordRoom:
        """One that nobody uses; it is empty."""
        try:
            return self._spare.pop()
        except IndexError:
            return self._make()

    def take_back(self, room: RecordRoom) -> None:
        """Nobody looks at what is in a room any more."""
        room.clear()
        if room.capacity <= _LARGE:
            self._spare.append(room)


def _with_room(array: np.ndarray, used: int, wanted: int) -> np.ndarray:
    if wanted <= len(array):
        return array
    larger = np.empty(max(wanted, 2 * len(array)), array.dtype)
    put(array[:used], larger)
    return larger


def _move_rows(typing_context: Any, source: Any, begin: Any, target: Any, to: Any, count: Any) -> Any:
    del typing_context, begin, to, count
    kinds = source, target

    def made(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        del signature
        rows = [context.make_array(kind)(context, builder, at) for kind, at in zip(kinds, given[0:4:2], strict=True)]
        first, into = (
            cgutils.get_item_pointer(context, builder, kind, array, [at])
            for kind, array, at in zip(kinds, rows, given[1:4:2], strict=True)
        )
        size = context.get_abi_sizeof(context.get_data_type(source.dtype))
        cgutils.raw_memmove(builder, into, first, given[4], size)
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp, types.intp), made


move_rows: Any = intrinsic(_move_rows)
"""move_rows(source, begin, target, to, count): let rows `to` on of the target be what `begin` on of the source was.

Both are contiguous and of one type, and may be one array; all these rows are there.

Source: LLVM Language Reference, llvm.memmove.
"""


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


_T = TypeVar("_T")


AHEAD = 2
"""Items that are made before they are asked for: one alone lets the threads wait for each other at every item."""


def made_ahead(items: Iterable[_T]) -> Iterator[_T]:
    """The items of an iterable, the next ones made in a thread while one is in use.

    Args:
        items: what one item stands on must hold while AHEAD more are made.
    """
    end, source = object(), iter(items)
    with ThreadPoolExecutor(1) as thread:
        coming: deque[Future[_T | object]] = deque(thread.submit(next, source, end) for _ in range(AHEAD))
        while (item := coming.popleft().result()) is not end:
            coming.append(thread.submit(next, source, end))
            yield item  # pyright: ignore[reportReturnType]  it is no end


class Behind:
    """Does one thing after the other, at most one of them while its owner goes on."""

    def __init__(self, cores: int) -> None:
        """With one core everything is done at once."""
        self._thread = ThreadPoolExecutor(1) if cores > 1 else None
        self._doing: Future[None] | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Begin something, when what was begun before it is done."""
        self.wait()
        if self._thread is None:
            work()
        else:
            self._doing = self._thread.submit(work)

    def wait(self) -> None:
        """Until what was begun is done; what it raised is raised here."""
        doing, self._doing = self._doing, None
        if doing is not None:
            doing.result()
