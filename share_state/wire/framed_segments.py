"""The batches of segments where they lie: bytes in buffers that are used again, headers and checksums looked at."""

from collections.abc import Iterator

import numpy as np

from share_state.errors import InputError
from share_state.wire.chunk import CHUNK, Chunk
from share_state.wire.framing import BATCH, HEADER, Stop, Trust, frame, next_whole_batch
from share_state.wire.log_folder import Segment
from share_state.wire.places import place, unreadable
from share_state.wire.rooms import Rooms, byte_room
from share_state.wire.store_path import STREAM, StorePath

_SIGHT = 16 << 20
"""Bytes in which a batch is looked for behind what cannot be framed: one of half as many is found."""


def framed_segments(
    segments: tuple[Segment, ...], chunk: int = CHUNK, buffers: int = 1, stretches: int = 1
) -> Iterator[Chunk]:
    """The batches of segments, nothing decompressed; each chunk holds until `buffers` more are asked for.

    A buffer is filled with segment after segment and framed, in about so many stretches; a batch that it cuts opens
    the next one.

    Raises:
        InputError: if a segment cannot be read.
    """
    unread = sum(segment.unread for segment in segments)
    # A store is slow to answer, so it is asked for more at a time, unless memory is to be spared.
    far = chunk >= CHUNK and any(isinstance(place(segment.path), StorePath) for segment in segments)
    buffer = _Buffer(min(max(chunk, STREAM) if far else chunk, unread + 1), max(1, chunk // stretches), buffers)
    window = np.empty(0, np.uint8)
    used = 0
    for number, segment in enumerate(segments):
        position = segment.begin
        while position < segment.size:
            if used == len(buffer.data):
                yield from buffer.handed_out(used)
                used = buffer.begin()
            loaded = load(segment, position, buffer.data[used:])
            end, at_end, stop = used + loaded, position + loaded >= segment.size, Stop.ENOUGH
            while stop == Stop.ENOUGH:
                begin = used
                buffer.rows, used, stop = frame(
                    buffer.data, begin, end, at_end, position, number, buffer.table, buffer.rows, buffer.enough
                )
                position += used - begin
                if stop == Stop.ENOUGH:
                    yield from buffer.handed_out(used)
            if stop in (Stop.BROKEN, Stop.ZEROS):
                # What cannot be framed may hide batches that can.
                broken_at = position
                broken = buffer.last_row() if stop == Stop.BROKEN else _zeros_at(broken_at, number)
                yield from buffer.handed_out(used)
                used = buffer.begin()
                window = window if len(window) else np.empty(min(_SIGHT, unread), np.uint8)
                position = _next_position(segment, broken_at + 1, window)
                if position < segment.size:
                    # Not a torn tail then, but a length that lies.
                    broken["trust"] = np.where(broken["trust"] == Trust.TORN, Trust.MALFORMED, broken["trust"])
                elif stop == Stop.ZEROS:
                    broken = broken[:0]  # The end of a preallocated file.
                broken["at"], broken["size"] = 0, position - broken_at
                buffer.table[: len(broken)], buffer.rows = broken, len(broken)
            elif stop == Stop.NEED_MORE:
                if used == 0:
                    buffer.grow()
                    continue
                # A cut batch is read again at the front of the next buffer.
                yield from buffer.handed_out(used)
                used = buffer.begin()
    yield from buffer.handed_out(used)


class _Buffer:
    """Bytes of segments, and the BATCH rows of those that are not handed out yet."""

    def __init__(self, size: int, stretch: int, count: int) -> None:
        self._room, self._tables = Rooms(byte_room, size, count), Rooms(_table_room, min(stretch, size), count)
        self.data, self.table, self.rows = self._room.next(), self._tables.next(), 0
        self._stretch = self.enough = stretch
        self._is_held = False

    def handed_out(self, end: int) -> Iterator[Chunk]:
        """A chunk of the rows there are, if any; `end` is where their bytes end."""
        if self.rows:
            self._room.hand_out()
            self._tables.hand_out()
            yield Chunk(self.data[:end], self.table[: self.rows])
            self.table, self.rows, self._is_held = self._tables.next(), 0, True
        self.enough = end + self._stretch

    def begin(self) -> int:
        """Go on with bytes that nobody holds; returns where in them, at their front."""
        if self._is_held:
            self.data, self._is_held = self._room.next(), False
        self.enough = self._stretch
        return 0

    def last_row(self) -> np.ndarray:
        """Take the last row back."""
        self.rows -= 1
        return self.table[self.rows : self.rows + 1].copy()

    def grow(self) -> None:
        """Make room for a batch that is larger than all of it; what it holds is let go."""
        self.data = self._room.larger()


def _zeros_at(position: int, segment: int) -> np.ndarray:
    """The row of a stretch of zero bytes, if a batch follows it."""
    row = np.zeros(1, BATCH)
    row["file_position"], row["segment"], row["trust"] = position, segment, Trust.MALFORMED
    row["base_offset"] = row["last_offset"] = row["magic"] = -1
    return row


def _next_position(segment: Segment, position: int, window: np.ndarray) -> int:
    """Position of the first whole batch at or after `position`, or the end of the file; overwrites the window."""
    while position < segment.size:
        loaded = load(segment, position, window)
        found = next_whole_batch(window, 0, loaded)
        if found >= 0:
            return position + found
        if position + loaded >= segment.size:
            break
        # Half a window at a time, so that a batch across the edge is seen whole by the next look.
        position += max(1, loaded // 2)
    return segment.size


def load(segment: Segment, position: int, into: np.ndarray) -> int:
    """Read bytes of a segment, from a position in its file on, until they end or `into` is full; returns how many.

    Raises:
        InputError: if the file cannot be read, or became shorter.
    """
    wanted = min(len(into), segment.size - position)
    try:
        with place(segment.path).open("rb", buffering=0) as file:
            file.seek(position)
            loaded = 0
            while loaded < wanted:
                got = file.readinto(into.data[loaded:wanted])
                if not got:
                    raise InputError(f"{segment.path}: became shorter while it was read; copy the log folder first")
                loaded += got
    except OSError as error:
        raise unreadable(segment.path, error) from None
    return wanted


def _table_room(size: int) -> np.ndarray:
    """BATCH rows of so many bytes; where batches are smaller than their header, of fewer."""
    return np.empty(size // HEADER + 64, BATCH)
