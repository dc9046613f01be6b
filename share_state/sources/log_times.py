"""The times of the first and the newest record of an input, and the end offsets of its logs.

Reads the ends of segments, not what is between them.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from share_state.kafka.record_batches import BATCH, BatchStatus
from share_state.sources.as_of import TimeSpan
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.sources.log_partition import LogPartition, Segment
from share_state.sources.segment_frames import frame_segments, next_valid_position

_TAIL = 1 << 20
"""Bytes at the end of a segment in which its newest batch is searched first."""

_HEAD = 64 << 10
LATEST_MS = 253_402_300_799_999
"""The last ms of year 9999; a later timestamp says nothing about when the log was written."""


def time_span(logs: Sequence[LogPartition]) -> TimeSpan | None:
    """The times of the first and the newest record of logs; None if none of them has a timestamp.

    Logs of a running cluster end now.

    Raises:
        InputError: if a log cannot be read.
    """
    if any(log.source is not None and log.source.form == KAFKA_FORM for log in logs):
        return TimeSpan(None, int(time.time() * 1000), is_live=True)
    spans = [span for log in logs if log.has_times for span in _spans(log)]
    return TimeSpan(min(first for first, _ in spans), max(last for _, last in spans)) if spans else None


def _spans(log: LogPartition) -> Iterator[tuple[int, int]]:
    """First and last time of each replica of a log; of a log in another format, of each chunk."""
    if (known := getattr(log.source, "times", None)) is not None:
        yield known
    elif log.source is not None:
        for chunk in log.source.chunks(log, _TAIL, merge=True):
            records = chunk.records
            times = _plausible(chunk.batches["max_timestamp"] if records is None else records["timestamp"])
            if len(times):
                yield int(times.min()), int(times.max())
    else:
        for replica in {segment.replica for segment in log.segments}:
            own = [segment for segment in log.segments if segment.replica == replica]
            first = next((ms for segment in own for ms in _first_time(segment)), None)
            last = next((ms for segment in reversed(own) for ms in _last_time(segment)), None)
            if first is not None and last is not None:
                yield min(first, last), last


def _first_time(segment: Segment) -> Iterable[int]:
    """The time of the first valid batch of a segment; none if it has none."""
    for framed in frame_segments((segment,), _HEAD):
        times = _plausible(framed.batches["base_timestamp"][framed.batches["status"] == BatchStatus.VALID])
        if len(times):
            return [int(times[0])]
    return []


def _last_time(segment: Segment) -> Iterable[int]:
    """The newest time of the last valid batches of a segment; none if it has none."""
    for batches in _last_batches(segment):
        times = _plausible(batches["max_timestamp"])
        if len(times):
            return [int(times.max())]
    return []


def _last_batches(segment: Segment) -> Iterator[np.ndarray]:
    """The valid batches at the end of a segment, from ever earlier ones on, as BATCH rows."""
    size = _TAIL
    while True:
        begin = max(0, segment.size - size)
        at = next_valid_position(segment, begin, np.empty(min(size, _TAIL) + 1, np.uint8)) if begin else 0
        framed = [one.batches for one in frame_segments((replace(segment, begin=at),), _TAIL)]
        batches = np.concatenate(framed) if framed else np.zeros(0, BATCH)
        yield batches[batches["status"] == BatchStatus.VALID]
        if not begin:
            return
        size *= 16


def end_offset(log: LogPartition) -> int | None:
    """The offset after the last valid batch of a log of segments; None if it is not known without reading all."""
    if log.source is not None:
        return None
    ends = list[int]()
    for replica in {segment.replica for segment in log.segments}:
        own = [segment for segment in log.segments if segment.replica == replica]
        newest = (batches for segment in reversed(own) for batches in _last_batches(segment) if len(batches))
        ends += [int(batches["last_offset"].max()) + 1 for batches in islice(newest, 1)]
    return max(ends, default=None)


def _plausible(times: np.ndarray) -> np.ndarray:
    return times[(times >= 0) & (times <= LATEST_MS)]
