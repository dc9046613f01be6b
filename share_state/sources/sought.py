"""Reads a log partition from an offset on, without the segments and the bytes before it."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from share_state.sources.batch_headers import SegmentHeaders
from share_state.sources.log_partition import LogPartition, Segment
from share_state.stores.object_stores import StorePath, read_errors
from share_state.stores.paths import to_path


def read_from(log: LogPartition, offset: int) -> LogPartition:
    """A log partition from the batch on that holds an offset; the whole one in a format other than segments.

    The offset index beside a segment leads near the batch, and its header is found from there; in an object store,
    where each header takes a request, the whole segment is read.

    Raises:
        InputError: if a segment cannot be read.
    """
    if log.source is not None:
        return log
    by_copy = sorted(log.segments, key=lambda segment: segment.replica)
    copies = [list(segments) for _, segments in groupby(by_copy, key=lambda segment: segment.replica)]
    segments = [segment for copy in copies for segment in _of_copy(copy, offset)]
    return replace(
        log, segments=tuple(sorted(segments, key=lambda segment: (segment.base_offset, segment.replica)))
    )


def _of_copy(segments: list[Segment], offset: int) -> Iterator[Segment]:
    """The segments of one copy from an offset on, ascending."""
    begin = max((number for number, one in enumerate(segments) if one.base_offset <= offset), default=0)
    first = segments[begin]
    yield replace(first, begin=max(first.begin, _position_of(first, offset)))
    yield from segments[begin + 1 :]


def _position_of(segment: Segment, offset: int) -> int:
    """The position of the first batch that ends at or after an offset; of the last batch if none does."""
    path = to_path(segment.path)
    if isinstance(path, StorePath):
        return 0
    with read_errors(path), SegmentHeaders(path, segment.base_offset) as headers:
        position = headers.position_near(offset)
        for header in headers.walk(position):
            position = header.position
            if header.last_offset >= offset:
                break
        return position
