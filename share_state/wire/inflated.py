"""The bodies of batches, decompressed one behind the other into rooms of a bounded size that are used again."""

from collections.abc import Iterator

import numpy as np

from share_state.wire.batch_facts import facts_of
from share_state.wire.codecs import BodyError, decompress
from share_state.wire.framing import CODEC_BITS, CONTROL, Trust
from share_state.wire.rooms import Rooms


def is_compressed(batches: np.ndarray, only_control: bool) -> bool:
    """Whether the body of any batch that is to be looked into must be decompressed first."""
    if not facts_of(batches).attributes & CODEC_BITS:
        return False
    return bool((batches["attributes"][_wanted(batches, only_control)] & CODEC_BITS).any())


def inflated(
    data: np.ndarray, batches: np.ndarray, only_control: bool, rooms: Rooms[np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[int, str]]]:
    """Put the bodies of batches side by side, decompressed where they are not plain.

    Args:
        data: uint8, raw segment bytes.
        batches: BATCH rows; `body`, `body_end` and `trust` are changed in place.
        only_control: leave out the bodies of data batches, which must not be looked into then.
        rooms: of bytes, where to put them; a part ends when one is full.
    Returns:
        Parts in order: (uint8 bytes of the bodies, the rows they belong to, row of those -> why it cannot be
        decompressed).
    """
    wanted, packed = np.flatnonzero(_wanted(batches, only_control)), data.data
    codecs = (batches["attributes"][wanted] & CODEC_BITS).tolist()
    begins, ends = batches["body"][wanted].tolist(), batches["body_end"][wanted].tolist()
    trust, why = batches["trust"], dict[int, str]()
    room, space, used, start = np.empty(0, np.uint8), 0, 0, 0
    into, rows, lasts = room.data, list[int](), list[int]()

    def part(end: int) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
        batches["body"][rows], batches["body_end"][rows] = [0, *lasts[:-1]][: len(lasts)], lasts
        faults = {row - start: reason for row, reason in why.items() if start <= row < end}
        if rows:
            rooms.hand_out()
        return room[:used], batches[start:end], faults

    for row, codec, begin, end in zip(wanted.tolist(), codecs, begins, ends, strict=True):
        body = packed[begin:end]
        if codec:
            try:
                body = decompress(codec, body)
            except BodyError as reason:
                trust[row], why[row] = Trust.MALFORMED, str(reason)
                continue
        last = used + len(body)
        if last > space:
            if used:
                yield part(row)
                start, rows, lasts = row, [], []
            # Not all of a room that a larger body once made larger: where a part ends does not depend on the room.
            used, last, space = 0, len(body), max(len(body), rooms.size)
            room = rooms.next(last)
            into = room.data
        into[used:last] = body
        rows.append(row)
        lasts.append(last)
        used = last
    yield part(len(batches))


def _wanted(batches: np.ndarray, only_control: bool) -> np.ndarray:
    """Which rows of BATCH have a body that is to be looked into."""
    wanted = batches["trust"] == Trust.WHOLE
    return wanted & (batches["attributes"] & CONTROL != 0) if only_control else wanted
