"""Reads a log partition in order, a bounded chunk at a time: bytes of whole batches, decompressed, each offset once."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np

from share_state.wire.ahead import AHEAD, made_ahead
from share_state.wire.chunk import CHUNK, Chunk
from share_state.wire.copies import one_of_each_offset
from share_state.wire.framed_segments import framed_segments, load
from share_state.wire.framing import BATCH, HEADER, Trust, is_continuous
from share_state.wire.inflated import inflated, is_compressed
from share_state.wire.log_folder import LogPartition, Segment
from share_state.wire.rooms import Rooms, byte_room


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
