"""The batches of segments where they lie: bytes in buffers that are used again, headers and checksums looked at.

Reads a log partition in order, a bounded chunk at a time: bytes of whole batches, decompressed, each offset once.

The records of a chunk that count: found, and held against the log start, the last audit and the window.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from share_state.errors import InputError
from share_state.kafka.buffers import AHEAD, Rooms, byte_room, made_ahead
from share_state.kafka.compression import inflated, is_compressed
from share_state.kafka.record_batches import (
    BATCH,
    CHUNK,
    HEADER,
    BatchFacts,
    Chunk,
    Stop,
    Trust,
    facts_of,
    frame,
    is_continuous,
    located_records,
    next_whole_batch,
)
from share_state.sources.discovery import LogPartition, Segment, Window
from share_state.sources.object_stores import STREAM, StorePath, place, unreadable
from share_state.sources.replicas import one_of_each_offset

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


class RepeatedOffsetsError(Exception):
    """Raised when the segments of one folder overlap: the log must be read again with `merge=True`."""


_Part = TypeVar("_Part")


class Taker(Protocol[_Part]):
    """Takes the chunks of a log partition, one after the other."""

    def prepared(self, part: Chunk) -> _Part:
        """Do what needs nothing of the chunks before; another thread may take one of those meanwhile."""
        ...

    def take(self, part: _Part) -> None:
        """Take the next one; its arrays hold until this returns."""
        ...


_Taker = TypeVar("_Taker", bound=Taker[Any])


def read_into(
    begin: Callable[[], _Taker],
    log: LogPartition,
    *,
    chunk: int = CHUNK,
    stretches: int = 1,
    only_control: bool = False,
    cores: int = 1,
) -> _Taker:
    """Give every chunk of a log partition to whoever takes it; anew, where its segments turn out to overlap.

    Args:
        begin: makes one that has taken nothing yet.
        log, chunk, stretches, only_control: as for `read_chunks`.
        cores: with more than one, the next chunks are read and prepared while one is taken.
    Returns:
        One that has taken all of them.
    Raises:
        InputError: if a segment cannot be read.
    """

    def filled(*, merge: bool) -> _Taker:
        taker = begin()
        buffers = 1 if cores == 1 else 1 + AHEAD
        parts = read_chunks(
            log, merge=merge, chunk=chunk, stretches=stretches, only_control=only_control, buffers=buffers
        )
        ready = map(taker.prepared, parts)
        for part in ready if buffers == 1 else made_ahead(ready):
            taker.take(part)
        return taker

    try:
        return filled(merge=log.has_copies)
    except RepeatedOffsetsError:
        return filled(merge=True)


def read_chunks(
    log: LogPartition,
    *,
    merge: bool = False,
    chunk: int = CHUNK,
    stretches: int = 1,
    only_control: bool = False,
    buffers: int = 1,
) -> Iterator[Chunk]:
    """The chunks of a log partition, in offset order; the arrays of one hold until `buffers` more are asked for.

    Args:
        log: segments of one or several copies, or what another form of export holds of it.
        merge: look at every batch header first and read each offset from one copy only. Needed where segments overlap.
        chunk: bytes to hold at a time.
        stretches: in about how many parts what is in memory is handed out, where nothing is merged.
        only_control: the bodies of data batches will not be looked into, and need not be decompressed.
        buffers: how many chunks are in memory.
    Raises:
        RepeatedOffsetsError: if `merge` is off and the segments do overlap.
        InputError: if a segment cannot be read.
    """
    if log.source is not None:
        yield from log.source.chunks(log, chunk, merge=merge)
        return
    segments, rooms = tuple(log.segments), Rooms(byte_room, chunk, buffers)
    if not merge:
        reached = -1
        for framed in framed_segments(segments, chunk, buffers, stretches):
            reached = _reached(framed.batches, reached)
            yield from _looked_into(framed, rooms, only_control)
        return
    tables = [framed.batches.copy() for framed in framed_segments(segments, chunk)]
    table = np.concatenate(tables) if tables else np.zeros(0, BATCH)
    chosen = one_of_each_offset(table)
    if len(chosen) < len(table):
        yield Chunk(np.zeros(0, np.uint8), np.zeros(0, BATCH), repeated=len(table) - len(chosen))
    for merged in _chosen(segments, chosen, chunk):
        yield from _looked_into(merged, rooms, only_control)


def _looked_into(framed: Chunk, rooms: Rooms[np.ndarray], only_control: bool) -> Iterator[Chunk]:
    """A chunk as it is, or what its bodies inflate to; many well-packed batches become several chunks."""
    if not is_compressed(framed.batches, only_control):
        yield framed
        return
    for data, batches, why in inflated(framed.data, framed.batches, only_control, rooms):
        yield Chunk(data, batches, why)


def _reached(batches: np.ndarray, reached: int) -> int:
    """The last offset so far; every batch must begin behind it."""
    if len(batches) and is_continuous(batches, reached + 1):
        return int(batches[-1]["last_offset"])
    whole = batches[batches["trust"] == Trust.WHOLE]
    lasts = np.maximum.accumulate(np.concatenate(([reached], whole["last_offset"])))
    if (whole["base_offset"] <= lasts[:-1]).any():
        raise RepeatedOffsetsError
    return int(lasts[-1])


def _chosen(segments: tuple[Segment, ...], table: np.ndarray, chunk: int) -> Iterator[Chunk]:
    """Read just the chosen batches, whose headers are known, in the order of `table`."""
    start = 0
    while start < len(table):
        ends = np.cumsum(table["size"][start:])
        taken = max(1, int(np.searchsorted(ends, chunk, side="right")))
        rows = table[start : start + taken].copy()
        data = np.empty(int(ends[taken - 1]), np.uint8)
        rows["at"] = ends[:taken] - rows["size"]
        shift = rows["at"] + np.minimum(HEADER, rows["size"]) - rows["body"]
        rows["body"] += shift
        rows["body_end"] = rows["at"] + rows["size"]
        follows = (rows["segment"][1:] == rows["segment"][:-1]) & (
            rows["file_position"][1:] == rows["file_position"][:-1] + rows["size"][:-1]
        )
        for run in np.split(np.arange(taken), np.flatnonzero(~follows) + 1):
            first, last = rows[run[0]], rows[run[-1]]
            load(segments[first["segment"]], int(first["file_position"]), data[first["at"] : last["at"] + last["size"]])
        yield Chunk(data, rows)
        start += taken


_ALL = Window()


@dataclass(frozen=True, slots=True)
class Located:
    """A chunk whose records were found.

    Attributes:
        part: the chunk without the batches that lie outside.
        facts: about the batches that are left, those whose records cannot be found being MALFORMED by now.
        records: RECORD rows that count.
        had_whole: whether any batch could be trusted before, outside or not.
    """

    part: Chunk
    facts: BatchFacts
    records: np.ndarray
    had_whole: bool


def located(part: Chunk, begin: int, window: Window) -> Located:
    """Find the records of a chunk that count; nothing of the chunks before it is needed for that.

    Args:
        part: of `read_chunks`; the `trust` of its batches is lowered in place.
        begin: whole batches that end before this offset are gone, or were read already.
        window: which records count.
    """
    facts = facts_of(part.batches)
    within = _within(part, facts, begin, window.until_offset)
    records, lowered = within.records, False
    if records is None:
        records, lowered = located_records(within.data, within.batches)
    left = facts_of(within.batches) if lowered or within is not part else facts
    return Located(within, left, records if window == _ALL else records[window.counts(records)], facts.whole > 0)


def _within(part: Chunk, facts: BatchFacts, begin: int, until: int | None) -> Chunk:
    """Without batches that end before `begin` (the one that holds it is loaded whole) or begin too late."""
    if facts.least_last_offset >= begin and (until is None or (facts.all_whole and facts.greatest_base_offset < until)):
        return part
    batches = part.batches
    outside = (batches["trust"] == Trust.WHOLE) & (batches["last_offset"] < begin)
    if until is not None:
        outside |= batches["base_offset"] >= until
    if not outside.any():
        return part
    places = np.cumsum(~outside) - 1
    why = {int(places[row]): reason for row, reason in part.why.items() if not outside[row]}
    records = part.records
    if records is not None:
        records = records[~outside[records["batch"]]]
        records["batch"] = places[records["batch"]]
    return Chunk(part.data, batches[~outside], why, part.repeated, records, part.faults)
