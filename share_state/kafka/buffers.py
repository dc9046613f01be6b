"""Reused memory and fast copies of structured arrays: allocating fresh memory costs as much as filling it.

`BufferPool` reuses buffers chunk after chunk; `RecordBuffer` and `RecordBufferPool` hold decoded records. The
functions named `*_rows` copy structured arrays as bytes, because NumPy copies field by field, which is 15
times as slow. `prefetched` and `BackgroundWorker` run the stages of reading a log in threads.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

_Buffer = TypeVar("_Buffer")


class BufferPool(Generic[_Buffer]):
    """Hands out buffers and reuses the oldest one when its contents are no longer needed.

    Attributes:
        size: smallest size of a buffer in bytes.
    """

    def __init__(self, allocate: Callable[[int], _Buffer], size: int, count: int) -> None:
        """Create an empty pool.

        Args:
            allocate: makes a buffer of a number of bytes.
            size: smallest size of a buffer in bytes.
            count: how many blocks (see `mark_used`) stay valid at the same time.
        """
        self._allocate = allocate
        self.size = size
        self._count = count
        self._buffers: list[_PooledBuffer[_Buffer]] = []
        self._used = 0

    def next(self, min_size: int = 0) -> _Buffer:
        """A buffer of at least `min_size` bytes."""
        size = max(min_size, self.size)
        is_free = bool(self._buffers) and self._used - self._buffers[0].used >= self._count
        pooled = self._buffers.pop(0) if is_free else None
        if pooled is None or pooled.size < size:
            pooled = _PooledBuffer(size, self._allocate(size))
        pooled.used = self._used
        self._buffers.append(pooled)
        return pooled.buffer

    def mark_used(self) -> None:
        """Record that the newest buffer holds one more block, which must stay valid."""
        self._buffers[-1].used = self._used
        self._used += 1

    def grow(self) -> _Buffer:
        """Replace the newest buffer by one of twice the size, which is also the size of later ones."""
        self.size *= 2
        self._buffers[-1] = _PooledBuffer(self.size, self._allocate(self.size), self._used)
        return self._buffers[-1].buffer


@dataclass(slots=True)
class _PooledBuffer(Generic[_Buffer]):
    """A buffer, its size in bytes, and how many blocks were in use before the last one in it."""

    size: int
    buffer: _Buffer
    used: int = 0


def byte_buffer(size: int) -> np.ndarray:
    """A buffer of uint8."""
    return np.empty(size, np.uint8)


_HUGE_PAGES_FROM = 128 << 20
"""Bytes; from this size on, clearing huge pages takes measurable time."""


def write_rows(rows: np.ndarray, target: np.ndarray) -> None:
    """Copy rows to the start of a target of the same type; both are contiguous."""
    target[: len(rows)].view(np.uint8)[:] = rows.view(np.uint8)


def fill_rows(rows: np.ndarray, row: np.void) -> None:
    """Set all rows, which are contiguous, to one row of the same type."""
    rows.view(np.uint8).reshape(-1, rows.itemsize)[:] = np.frombuffer(row.tobytes(), np.uint8)


def allocate_rows(count: int, dtype: np.dtype) -> np.ndarray:
    """Uninitialized rows that are written once and not reused.

    Large arrays use pages of the normal size: NumPy would request huge pages, which take longer to clear.
    """
    size = count * dtype.itemsize
    if size < _HUGE_PAGES_FROM:
        return np.empty(count, dtype)
    return np.frombuffer(mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS), dtype)


def clone_rows(rows: np.ndarray) -> np.ndarray:
    """A copy of contiguous rows."""
    return rows.view(np.uint8).copy().view(rows.dtype)


def take_rows(rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """A copy of the rows with these int64 numbers."""
    return rows.view(np.dtype((np.void, rows.itemsize)))[numbers].view(rows.dtype)


def rows_at(rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The rows with these int64 numbers, which ascend; all rows are not copied."""
    return rows if len(numbers) == len(rows) else take_rows(rows, numbers)


def range_rows(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The row numbers of several ranges, one range after the other.

    Args:
        begins: int64, first row of each range.
        counts: int64, number of rows of each range.
    """
    ends = np.cumsum(counts, dtype=np.int64)
    return np.repeat(begins - ends + counts, counts) + np.arange(ends[-1] if len(ends) else 0)


def concat_rows(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate contiguous rows of one type; needs at least one part."""
    return np.concatenate([part.view(np.uint8) for part in parts]).view(parts[0].dtype)


_MAX_POOLED = 256 << 20
"""Bytes; larger record buffers are freed instead of reused."""


class RecordBuffer:
    """Growing arrays: record rows, the batch rows that they refer to, and the key number of each record.

    Attributes:
        row_count, batch_count: rows in use.
        last_snapshot_record: offset of the last readable snapshot or tombstone; -1 for none.
    """

    def __init__(self, record: np.dtype, batch: np.dtype) -> None:
        self._rows = np.empty(0, record)
        self._batches = np.empty(0, batch)
        self._keys = np.empty(0, np.int32)
        self.row_count = self.batch_count = 0
        self.last_snapshot_record = -1

    @property
    def rows(self) -> np.ndarray:
        """The record rows in use."""
        return self._rows[: self.row_count]

    @property
    def batches(self) -> np.ndarray:
        """The batch rows in use."""
        return self._batches[: self.batch_count]

    @property
    def keys(self) -> np.ndarray:
        """The key numbers of the records in use."""
        return self._keys[: self.row_count]

    @property
    def size(self) -> int:
        """Bytes in use."""
        return self.rows.nbytes + self.batches.nbytes

    @property
    def capacity(self) -> int:
        """Bytes that fit before the buffer grows."""
        return self._rows.nbytes + self._batches.nbytes

    def extend(self, rows: int, batches: int) -> tuple[np.ndarray, np.ndarray]:
        """Append `rows` record rows, which are not initialized, and make space for `batches` batch rows.

        Returns:
            The new record rows, and all batch rows including the new space. The caller sets `batch_count`.
        """
        begin, self.row_count = self.row_count, self.row_count + rows
        self._rows = _with_capacity(self._rows, begin, self.row_count)
        self._keys = _with_capacity(self._keys, begin, self.row_count)
        self._batches = _with_capacity(self._batches, self.batch_count, self.batch_count + batches)
        return self._rows[begin : self.row_count], self._batches

    def clear(self) -> None:
        """Drop all rows."""
        self.row_count = self.batch_count = 0
        self.last_snapshot_record = -1


class RecordBufferPool:
    """Reuses record buffers from log to log, except for very large ones."""

    def __init__(self, make: Callable[[], RecordBuffer]) -> None:
        self._make, self._free = make, list[RecordBuffer]()

    def acquire(self) -> RecordBuffer:
        """An empty buffer that is not in use."""
        try:
            return self._free.pop()
        except IndexError:
            return self._make()

    def release(self, buffer: RecordBuffer) -> None:
        """Return a buffer; its rows are no longer valid."""
        buffer.clear()
        if buffer.capacity <= _MAX_POOLED:
            self._free.append(buffer)

    def free(self) -> None:
        """Free the buffers that are not in use."""
        self._free.clear()


def _with_capacity(array: np.ndarray, used: int, count: int) -> np.ndarray:
    if count <= len(array):
        return array
    larger = np.empty(max(count, 2 * len(array)), array.dtype)
    write_rows(array[:used], larger)
    return larger


def column_bytes(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of a text or binary column, without one Python object per row.

    Returns:
        (uint8, the bytes of all rows; int64, row n has the bytes ends[n] to ends[n + 1]). A null has no
        bytes.
    """
    plain = column.cast(pa.large_string() if is_text(column.type) else pa.large_binary())
    _, ends_buffer, data_buffer = plain.buffers()
    if len(plain) == 0 or ends_buffer is None:
        return np.zeros(0, np.uint8), np.zeros(len(plain) + 1, np.int64)
    ends = np.frombuffer(ends_buffer, np.int64)[plain.offset : plain.offset + len(plain) + 1]
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return data[ends[0] : ends[-1]], ends - ends[0]


def is_text(kind: pa.DataType) -> bool:
    """Whether the values of a type are text, dictionary-encoded or not."""
    kind = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Texts and bytes in place of views of them, for which Arrow lacks functions; delta-rs writes views."""
    kinds = [
        pa.string()
        if pa.types.is_string_view(kind)
        else pa.binary()
        if pa.types.is_binary_view(kind)
        else kind
        for kind in batch.schema.types
    ]
    fields = [field.with_type(kind) for field, kind in zip(batch.schema, kinds, strict=True)]
    return batch.cast(pa.schema(fields))


_T = TypeVar("_T")

PREFETCH_COUNT = 2
"""Number of items to prefetch: with only one, the threads wait for each other at every item."""


def prefetched(items: Iterable[_T]) -> Iterator[_T]:
    """The items of an iterable; a thread prepares the next ones while one is in use.

    Args:
        items: each item must stay valid while PREFETCH_COUNT further items are prepared.
    """
    end, source = object(), iter(items)
    with ThreadPoolExecutor(1) as thread:
        pending: deque[Future[_T | object]] = deque(
            thread.submit(next, source, end) for _ in range(PREFETCH_COUNT)
        )
        while (item := pending.popleft().result()) is not end:
            pending.append(thread.submit(next, source, end))
            yield item  # pyright: ignore[reportReturnType]  it is not `end`


class BackgroundWorker:
    """Runs one function after the other, at most one at a time, while its owner continues."""

    def __init__(self, cores: int) -> None:
        """Create a worker; with one core, functions run at once in the caller's thread."""
        self._thread = ThreadPoolExecutor(1) if cores > 1 else None
        self._running: Future[None] | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Start a function after the previous one has finished."""
        self.wait()
        if self._thread is None:
            work()
        else:
            self._running = self._thread.submit(work)

    def wait(self) -> None:
        """Wait for the running function and raise its exception, if any."""
        running, self._running = self._running, None
        if running is not None:
            running.result()
