"""Reads a log partition in order, a bounded chunk at a time: bytes of whole batches, decompressed, each offset once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from share_state.errors import InputError
from share_state.wire.ahead import made_ahead
from share_state.wire.copies import one_of_each_offset
from share_state.wire.framing import BATCH, HEADER, Stop, Trust, frame, is_continuous, next_whole_batch
from share_state.wire.inflated import body_room, inflated, is_compressed
from share_state.wire.log_folder import LogPartition, Segment
from share_state.wire.places import place, unreadable
from share_state.wire.rooms import Rooms

CHUNK = 16 << 20
"""Bytes of segments that are in memory at a time; a larger batch grows the chunk to its own size."""


class RepeatedOffsetsError(Exception):
    """Raised when the segments of one folder overlap: the log must be read again with `merge=True`."""


@dataclass(slots=True)
class Chunk:
    """A stretch of a log partition; its arrays hold until the next chunk is asked for.

    Attributes:
        data: uint8; raw segment bytes, or the bodies of batches where any was compressed.
        batches: BATCH rows in offset order; only rows with trust WHOLE may be looked into.
        why: row of `batches` -> why it cannot be trusted, where the row alone does not say it.
        repeated: batches left out because another copy holds the same bytes; told once, by a chunk without batches.
        records: RECORD rows of the whole batches, where the form of the export has told them already.
        faults: offset -> (Fault, value version, 0 for none) of records whose key and value the form hides but whose
            flaw it tells; `records` holds them with neither.
    """

    data: npt.NDArray[np.uint8]
    batches: np.ndarray
    why: dict[int, str] = field(default_factory=dict)
    repeated: int = 0
    records: np.ndarray | None = None
    faults: dict[int, tuple[int, int]] = field(default_factory=dict)


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
    begin: Callable[[], _Taker], log: LogPartition, *, chunk: int = CHUNK, only_control: bool = False, cores: int = 1
) -> _Taker:
    """Give every chunk of a log partition to whoever takes it; anew, where its segments turn out to overlap.

    Args:
        begin: makes one that has taken nothing yet.
        log, chunk, only_control: as for `read_chunks`.
        cores: with more than one, the next chunk is read and prepared while one is taken.
    Returns:
        One that has taken all of them.
    Raises:
        InputError: if a segment cannot be read.
    """

    def filled(*, merge: bool) -> _Taker:
        taker = begin()
        buffers = 1 if cores == 1 else 2
        parts = read_chunks(log, merge=merge, chunk=chunk, only_control=only_control, buffers=buffers)
        ready = map(taker.prepared, parts)
        for part in ready if buffers == 1 else made_ahead(ready):
            taker.take(part)
        return taker

    try:
        return filled(merge=log.has_copies)
    except RepeatedOffsetsError:
        return filled(merge=True)


def read_chunks(
    log: LogPartition, *, merge: bool = False, chunk: int = CHUNK, only_control: bool = False, buffers: int = 1
) -> Iterator[Chunk]:
    """The chunks of a log partition, in offset order; the arrays of one hold until `buffers` more are asked for.

    Args:
        log: segments of one or several copies, or what another form of export holds of it.
        merge: look at every batch header first and read each offset from one copy only. Needed where segments overlap.
        chunk: bytes to hold at a time.
        only_control: the bodies of data batches will not be looked into, and need not be decompressed.
        buffers: how many chunks are in memory.
    Raises:
        RepeatedOffsetsError: if `merge` is off and the segments do overlap.
        InputError: if a segment cannot be read.
    """
    if log.source is not None:
        yield from log.source.chunks(log, chunk, merge=merge)
        return
    segments, rooms = tuple(log.segments), Rooms(body_room, chunk, buffers)
    if not merge:
        reached = -1
        for stretch in framed_segments(segments, chunk, buffers):
            reached = _reached(stretch.batches, reached)
            yield from _looked_into(stretch, rooms, only_control)
        return
    tables = [framed.batches.copy() for framed in framed_segments(segments, chunk)]
    table = np.concatenate(tables) if tables else np.zeros(0, BATCH)
    chosen = one_of_each_offset(table)
    if len(chosen) < len(table):
        yield Chunk(np.zeros(0, np.uint8), np.zeros(0, BATCH), repeated=len(table) - len(chosen))
    for stretch in _chosen(segments, chosen, chunk):
        yield from _looked_into(stretch, rooms, only_control)


def _looked_into(stretch: Chunk, rooms: Rooms[np.ndarray], only_control: bool) -> Iterator[Chunk]:
    """A stretch as it is, or what its bodies inflate to; many well-packed batches become several chunks."""
    if not is_compressed(stretch.batches, only_control):
        yield stretch
        return
    for data, batches, why in inflated(stretch.data, stretch.batches, only_control, rooms):
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


def framed_segments(segments: tuple[Segment, ...], chunk: int = CHUNK, buffers: int = 1) -> Iterator[Chunk]:
    """The batches of segments, nothing decompressed; each chunk holds until `buffers` more are asked for.

    A buffer is filled with segment after segment and framed; a batch that it cuts opens the next one.

    Raises:
        InputError: if a segment cannot be read.
    """
    room = Rooms(_framing_room, min(chunk, sum(segment.unread for segment in segments) + 1), buffers)
    (data, table), rows, used = room.next(), 0, 0
    for number, segment in enumerate(segments):
        position = segment.begin
        while position < segment.size:
            if used == len(data):
                if rows:
                    yield Chunk(data[:used], table[:rows])
                    data, table = room.next()
                rows, used = 0, 0
            loaded = _load(segment, position, data[used:])
            end, at_end = used + loaded, position + loaded >= segment.size
            rows, stopped, stop = frame(data, used, end, at_end, position, number, table, rows)
            if stop in (Stop.BROKEN, Stop.ZEROS):
                # What cannot be framed may hide batches that can; the chunk so far goes out before its buffer is used.
                broken_at = position + stopped - used
                broken = table[rows - 1 : rows].copy() if stop == Stop.BROKEN else _zeros_at(broken_at, number)
                rows -= stop == Stop.BROKEN
                if rows:
                    yield Chunk(data[:stopped], table[:rows])
                    data, table = room.next()
                position = _next_position(segment, broken_at + 1, data)
                if position < segment.size:
                    # Not a torn tail then, but a length that lies.
                    broken["trust"] = np.where(broken["trust"] == Trust.TORN, Trust.MALFORMED, broken["trust"])
                elif stop == Stop.ZEROS:
                    broken = broken[:0]  # The end of a preallocated file.
                broken["at"], broken["size"] = 0, position - broken_at
                rows, used = len(broken), 0
                table[:rows] = broken
                continue
            if stop == Stop.NEED_MORE and stopped == 0:
                kept = table[:rows]
                data, table = room.larger()
                table[:rows] = kept
                continue
            position += stopped - used
            # A cut batch is read again at the front of the next buffer.
            used = len(data) if stop == Stop.NEED_MORE else stopped
            if stop == Stop.NEED_MORE:
                yield Chunk(data[:stopped], table[:rows])
                data, table = room.next()
                rows, used = 0, 0
    if rows:
        yield Chunk(data[:used], table[:rows])


def _zeros_at(position: int, segment: int) -> np.ndarray:
    """The row of a stretch of zero bytes, if a batch follows it."""
    row = np.zeros(1, BATCH)
    row["file_position"], row["segment"], row["trust"] = position, segment, Trust.MALFORMED
    row["base_offset"] = row["last_offset"] = row["magic"] = -1
    return row


def _next_position(segment: Segment, position: int, data: np.ndarray) -> int:
    """Position of the first whole batch at or after `position`, or the end of the file; overwrites the buffer."""
    while position < segment.size:
        loaded = _load(segment, position, data)
        found = next_whole_batch(data, 0, loaded)
        if found >= 0:
            return position + found
        if position + loaded >= segment.size:
            break
        # Half a buffer at a time, so that a batch across the edge is seen whole by the next look.
        position += max(1, loaded // 2)
    return segment.size


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
            _load(
                segments[first["segment"]], int(first["file_position"]), data[first["at"] : last["at"] + last["size"]]
            )
        yield Chunk(data, rows)
        start += taken


def _load(segment: Segment, position: int, into: np.ndarray) -> int:
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


def _framing_room(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes, and the BATCH rows of what they may hold."""
    return np.empty(size, np.uint8), np.empty(size // HEADER + size // 4096 + 64, BATCH)
