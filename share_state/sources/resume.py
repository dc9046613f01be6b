"""Finds where reading a log partition goes on after an earlier run, and notices that it is no longer the same log."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from share_state.kafka.record_batches import HEADER, Trust
from share_state.sources.discovery import LogPartition, Segment
from share_state.sources.object_stores import place, unreadable
from share_state.sources.segments import framed_segments

_HEADER_START = struct.Struct(">qiibI")
"""Base offset, length, leader epoch, magic, CRC."""

_TIMESTAMP_AT = 27
_LOG_OVERHEAD = 12


class Fate(StrEnum):
    """What became of a log partition since an earlier run."""

    NEW = "new"
    GROWN = "grown"
    UNCHANGED = "unchanged"
    BEHIND = "behind"  # a replica that has not caught up with what was read before
    MISSING = "missing"
    BEGUN_AGAIN = "begun again"  # the topic was made anew
    DIVERGED = "diverged"  # other bytes under offsets that were read before
    CLEANED = "cleaned"  # its start has passed what was read before
    LONGER = "longer"  # it reaches further back than what was read before


ANEW = (Fate.NEW, Fate.BEGUN_AGAIN, Fate.DIVERGED, Fate.CLEANED, Fate.LONGER)
"""Fates of logs that are read from their start."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The last whole batch that an earlier run read.

    Attributes:
        segment: base offset of its segment.
        position, size: bytes, of the batch in its segment.
        base_offset: its first offset.
        crc: its checksum.
        next_offset: where reading goes on.
        log_start_offset: where the first run began.
        newest_time: ms, the latest stamp of any batch so far.
        topic_id: of the topic that the log belonged to, None where its folder did not tell.
    """

    segment: int
    position: int
    size: int
    base_offset: int
    crc: int
    next_offset: int
    log_start_offset: int
    newest_time: int
    topic_id: str | None = None


class _Copy(StrEnum):
    HAS_MARK = "has mark"
    ENDS_BEFORE = "ends before"
    STARTS_AFTER = "starts after"
    DIFFERS = "differs"


def resume(log: LogPartition, mark: Mark) -> tuple[LogPartition, Fate]:
    """The part of a log partition that was not read yet.

    Args:
        log: as it is found now.
        mark: where the earlier run stopped.
    Returns:
        The log partition with what is left to read (segments that begin where the mark ends; all of it where it must be
        read anew), and its fate.
    Raises:
        InputError: if a segment cannot be read.
    """
    if log.topic_id and mark.topic_id and log.topic_id != mark.topic_id:
        return log, Fate.BEGUN_AGAIN
    if log.log_start_offset > mark.next_offset:
        return log, Fate.BEGUN_AGAIN if _is_younger(log, mark) and log.log_start_offset == 0 else Fate.CLEANED
    if log.log_start_offset < mark.log_start_offset and not _is_younger(log, mark):
        return log, Fate.LONGER
    copies = [_place(_of_copy(log, copy), mark) for copy in sorted({segment.copy for segment in log.segments})]
    found = {state for state, _ in copies}
    if _Copy.DIFFERS in found:
        return log, Fate.BEGUN_AGAIN if _is_younger(log, mark) else Fate.DIVERGED
    unread = [segment for _, segments in copies for segment in segments]
    left = replace(log, segments=tuple(sorted(unread, key=lambda segment: (segment.base_offset, segment.copy))))
    if found == {_Copy.ENDS_BEFORE}:
        return (log, Fate.BEGUN_AGAIN) if _is_younger(log, mark) else (left, Fate.BEHIND)
    return left, Fate.GROWN if left.size else Fate.UNCHANGED


def _of_copy(log: LogPartition, copy: int) -> list[Segment]:
    return [segment for segment in log.segments if segment.copy == copy]


def _is_younger(log: LogPartition, mark: Mark) -> bool:
    """True where the first batch was written after everything that was read before: only a topic made anew is so."""
    for segment in log.segments:
        if segment.size >= HEADER:
            head = _bytes(segment, 0, HEADER)
            return head[16] == 2 and struct.unpack_from(">q", head, _TIMESTAMP_AT)[0] > mark.newest_time
    return False


def _place(segments: Sequence[Segment], mark: Mark) -> tuple[_Copy, list[Segment]]:
    """Where one copy stands to the mark, and what of it lies behind the mark."""
    for number, segment in enumerate(segments):
        if segment.base_offset == mark.segment and _has_mark(segment, mark):
            return _Copy.HAS_MARK, _from(segments, number, mark.position + mark.size)
    # Not where it was: this copy's segments are cut at other places, or its bytes are others.
    holding = [number for number, segment in enumerate(segments) if segment.base_offset <= mark.base_offset]
    if not holding:
        return _Copy.STARTS_AFTER, list(segments)
    for framed in framed_segments((segments[holding[-1]],)):
        whole = framed.batches[framed.batches["trust"] == Trust.WHOLE]
        behind = np.flatnonzero(whole["last_offset"] >= mark.base_offset)
        if len(behind):
            batch = whole[behind[0]]
            if batch["base_offset"] != mark.base_offset or batch["crc"] != mark.crc:
                return _Copy.DIFFERS, []
            return _Copy.HAS_MARK, _from(segments, holding[-1], int(batch["file_position"] + batch["size"]))
    rest = list(segments[holding[-1] + 1 :])
    if any(segment.size for segment in rest):
        return _Copy.STARTS_AFTER, rest
    return _Copy.ENDS_BEFORE, _from(segments, len(segments) - 1, segments[-1].size)


def _from(segments: Sequence[Segment], number: int, position: int) -> list[Segment]:
    return [replace(segments[number], begin=position), *segments[number + 1 :]]


def _has_mark(segment: Segment, mark: Mark) -> bool:
    if segment.size < mark.position + mark.size:
        return False
    base_offset, length, _, _, crc = _HEADER_START.unpack(_bytes(segment, mark.position, _HEADER_START.size))
    return (base_offset, length + _LOG_OVERHEAD, crc) == (mark.base_offset, mark.size, mark.crc)


def _bytes(segment: Segment, position: int, size: int) -> bytes:
    try:
        with place(segment.path).open("rb", buffering=0) as file:
            file.seek(position)
            return file.read(size)
    except OSError as error:
        raise unreadable(segment.path, error) from None
