"""The bodies of batches, decompressed one behind the other into rooms of a bounded size that are used again."""

from collections.abc import Iterator

import numpy as np

from share_state.wire.batch_facts import facts_of
from share_state.wire.codecs import BodyError, decompress
from share_state.wire.framing import CODEC_BITS, CONTROL, Trust
from share_state.wire.rooms import Rooms


def body_room(size: int) -> np.ndarray:
    """Bytes to put bodies into."""
    return np.empty(size, np.uint8)


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
        rooms: of `body_room`, where to put them; a part ends when one is full.
    Returns:
        Parts in order: (uint8 bytes of the bodies, the rows they belong to, row of those -> why it cannot be
        decompressed).
    """
    wanted, packed = np.flatnonzero(_wanted(batches, only_control)), data.data
    codecs = (batches["attributes"][wanted] & CODEC_BITS).tolist()
    begins, ends = batches["body"][wanted].tolist(), batches["body_end"][wanted].tolist()
    body_at, body_end, trust = batches["body"], batches["body_end"], batches["trust"]
    start, used, room, why = 0, 0, np.empty(0, np.uint8), dict[int, str]()
    for row, codec, begin, end in zip(wanted.tolist(), codecs, begins, ends, strict=True):
        try:
            body = decompress(codec, packed[begin:end]) if codec else packed[begin:end]
        except BodyError as reason:
            trust[row], why[row] = Trust.MALFORMED, str(reason)
            continue
        if used + len(body) > len(room):
            if used:
                yield _part(room[:used], batches, start, row, why)
                start, used = row, 0
            # Not all of a room that a larger body once made larger: where a part ends does not depend on the room.
            room = rooms.next(len(body))[: max(len(body), rooms.size)]
        room.data[used : used + len(body)] = body
        body_at[row], body_end[row] = used, used + len(body)
        used += len(body)
    yield _part(room[:used], batches, start, len(batches), why)


def _part(
    data: np.ndarray, batches: np.ndarray, start: int, end: int, why: dict[int, str]
) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    return data, batches[start:end], {row - start: reason for row, reason in why.items() if start <= row < end}


def _wanted(batches: np.ndarray, only_control: bool) -> np.ndarray:
    """Which rows of BATCH have a body that is to be looked into."""
    wanted = batches["trust"] == Trust.WHOLE
    return wanted & (batches["attributes"] & CONTROL != 0) if only_control else wanted
