"""Finds the batches in the bytes of segments, without decompressing them.

`frame_segments` yields them in the order of the files. Bytes that hold no batch are told apart from a torn end, and the
search goes on after them.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from share_state.errors import InputError
from share_state.kafka.buffers import BufferPool, byte_buffer
from share_state.kafka.record_batches import (
    BATCH,
    CHUNK_SIZE,
    HEADER_SIZE,
    BatchStatus,
    Chunk,
    Stop,
    find_valid_batch,
    frame_batches,
)
from share_state.sources.log_partition import Segment
from share_state.stores.object_stores import READ_SIZE, StorePath, StoreUnavailableError, read_errors
from share_state.stores.paths import to_path

_MAGIC_AT = 16


_INDEX_ENTRY = 8


_MIN_SEGMENT_BYTES = 1 << 20


_SEARCH_WINDOW = 16 << 20
"""Bytes searched at a time for a batch after damaged bytes; finds batches of up to half this size."""


def frame_segments(
    segments: tuple[Segment, ...], chunk: int = CHUNK_SIZE, buffers: int = 1, slices: int = 1
) -> Iterator[Chunk]:
    """The batches of segments, still compressed; each chunk stays valid until `buffers` more are read.

    A buffer is filled from consecutive segments and yielded in about `slices` chunks. A batch that does not
    fit starts the next buffer.

    Raises:
        InputError: if a segment cannot be read.
    """
    unread = sum(segment.unread for segment in segments)
    # A request to a store takes long, so it asks for more bytes, unless the caller limits memory.
    is_remote = chunk >= CHUNK_SIZE and any(
        isinstance(to_path(segment.path), StorePath) for segment in segments
    )
    buffer = _SegmentBuffer(
        min(max(chunk, READ_SIZE) if is_remote else chunk, unread + 1), max(1, chunk // slices), buffers
    )
    window = np.empty(0, np.uint8)
    used = 0
    for number, segment in enumerate(segments):
        position = segment.begin
        while position < segment.size:
            if used == len(buffer.data):
                yield from buffer.flush(used)
                used = buffer.restart()
            loaded = load(segment, position, buffer.data[used:])
            end = used + loaded
            at_end = position + loaded >= segment.size
            stop = Stop.ENOUGH
            while stop == Stop.ENOUGH:
                begin = used
                place = (buffer.data, begin, end, at_end, position, number)
                buffer.rows, used, stop = frame_batches(*place, buffer.table, buffer.rows, buffer.enough)
                position += used - begin
                if stop == Stop.ENOUGH:
                    yield from buffer.flush(used)
            if stop in (Stop.BROKEN, Stop.ZEROS):
                # Batches may follow the bytes that cannot be framed.
                broken_at = position
                broken = buffer.pop_row() if stop == Stop.BROKEN else _row_of_zeros(broken_at, number)
                yield from buffer.flush(used)
                used = buffer.restart()
                window = window if len(window) else np.empty(min(_SEARCH_WINDOW, unread), np.uint8)
                position = next_valid_position(segment, broken_at + 1, window)
                if position < segment.size:
                    # A batch follows, so the file is not truncated: the length is wrong.
                    is_truncated = broken["status"] == BatchStatus.TRUNCATED
                    broken["status"] = np.where(is_truncated, BatchStatus.MALFORMED, broken["status"])
                elif broken_at == segment.begin and is_destroyed(segments, number, broken[0]):
                    broken["status"], broken["base_offset"] = BatchStatus.UNREADABLE, segment.base_offset
                elif stop == Stop.ZEROS:
                    broken = broken[:0]  # The end of a preallocated file.
                broken["at"], broken["size"] = 0, position - broken_at
                buffer.table[: len(broken)], buffer.rows = broken, len(broken)
            elif stop == Stop.NEED_MORE:
                if used == 0:
                    buffer.grow()
                    continue
                # Read the partial batch again, at the start of the next buffer.
                yield from buffer.flush(used)
                used = buffer.restart()
    yield from buffer.flush(used)


class _SegmentBuffer:
    """Bytes of segments, and the BATCH rows that are not yielded yet."""

    def __init__(self, size: int, slice_size: int, count: int) -> None:
        self._bytes = BufferPool(byte_buffer, size, count)
        self._tables = BufferPool(_batch_table, min(slice_size, size), count)
        self.data = self._bytes.next()
        self.table = self._tables.next()
        self.rows = 0
        self._slice_size = self.enough = slice_size
        self._is_handed_out = False

    def flush(self, end: int) -> Iterator[Chunk]:
        """Yield a chunk of the rows, if any; `end` is the position after their bytes."""
        if self.rows:
            self._bytes.mark_used()
            self._tables.mark_used()
            yield Chunk(self.data[:end], self.table[: self.rows])
            self.table = self._tables.next()
            self.rows = 0
            self._is_handed_out = True
        self.enough = end + self._slice_size

    def restart(self) -> int:
        """Continue at the start of a free buffer; returns that position."""
        if self._is_handed_out:
            self.data, self._is_handed_out = self._bytes.next(), False
        self.enough = self._slice_size
        return 0

    def pop_row(self) -> np.ndarray:
        """Remove and return the last row."""
        self.rows -= 1
        return self.table[self.rows : self.rows + 1].copy()

    def grow(self) -> None:
        """Make space for a batch larger than the buffer; the contents are dropped."""
        self.data = self._bytes.grow()


def is_destroyed(segments: Sequence[Segment], number: int, row: np.void) -> bool:
    """Whether the first unread bytes of a segment are damaged, rather than a truncated batch or preallocated space.

    A crash truncates a batch only after the start of its header. With log.preallocate, a broker preallocates
    only the newest segment, with log.segment.bytes; its index is empty until 4 kB are written.

    Args:
        segments: segments of a log partition.
        number: number of the segment.
        row: BATCH row of the bytes, if no batch follows them; magic -1 for zeros.
    Source: Kafka LogSegment.open, FileRecords.open; TopicConfig.SEGMENT_BYTES_CONFIG, at least 1 MiB;
    OffsetIndex.
    """
    segment = segments[number]
    if row["status"] == BatchStatus.TRUNCATED:
        is_due = row["magic"] == 2 and 0 <= row["base_offset"] - segment.base_offset < 1 << 31
        return bool(segment.unread > _MAGIC_AT and not is_due)
    if row["magic"] != -1 or segment.begin:
        return False
    is_newest = all(segments[later].replica != segment.replica for later in range(number + 1, len(segments)))
    index = to_path(segment.path.removesuffix(".log") + ".index")
    try:
        with index.open("rb") as file:
            is_indexed = any(file.read(_INDEX_ENTRY))
    except (OSError, StoreUnavailableError):
        is_indexed = False
    return segment.size > _MAGIC_AT and not (
        is_newest and segment.size >= _MIN_SEGMENT_BYTES and not is_indexed
    )


def _row_of_zeros(position: int, segment: int) -> np.ndarray:
    """The row for zero bytes between batches."""
    row = np.zeros(1, BATCH)
    row["file_position"] = position
    row["segment"] = segment
    row["status"] = BatchStatus.MALFORMED
    row["base_offset"] = -1
    row["last_offset"] = -1
    row["magic"] = -1
    return row


def next_valid_position(segment: Segment, position: int, window: np.ndarray) -> int:
    """Position of the first valid batch at or after `position`, or the end of the file.

    Overwrites the window.
    """
    while position < segment.size:
        loaded = load(segment, position, window)
        batch_at = find_valid_batch(window, 0, loaded)
        if batch_at >= 0:
            return position + batch_at
        if position + loaded >= segment.size:
            break
        # Advance by half a window, so that a batch across its end is complete in the next one.
        position += max(1, loaded // 2)
    return segment.size


def load(segment: Segment, position: int, target: np.ndarray) -> int:
    """Read a segment from a position in its file until it ends or `target` is full.

    Returns the number of bytes.

    Raises:
        InputError: if the file cannot be read, or has become shorter.
    """
    size = min(len(target), segment.size - position)
    with read_errors(segment.path), to_path(segment.path).open("rb", buffering=0) as file:
        file.seek(position)
        loaded = 0
        while loaded < size:
            count = file.readinto(target.data[loaded:size])
            if not count:
                raise InputError(
                    f"{segment.path}: became shorter while it was read; copy the log folder first"
                )
            loaded += count
    return size


def _batch_table(size: int) -> np.ndarray:
    """BATCH rows for a number of bytes."""
    return np.empty(size // HEADER_SIZE + 64, BATCH)
