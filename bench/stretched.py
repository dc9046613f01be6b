"""Large exports in seconds: the batches of a small one over and over, under offsets of their own.

Kafka's generator makes the small one. A round may repeat the share-partitions of the round before (they are then
initialized anew, as after a deletion) or bring as many new ones: then the partition in every record's key is raised.
A new share-partition stays in the log partition of the one that it was made from, wherever Kafka's hash would put it.
"""

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
from numba import njit

from bench.exports import Export
from bench.kafka import DATA
from share_state.kafka.primitives import crc32c, int32_at
from share_state.kafka.record_batches import locate_records
from share_state.sources.discovery import LogPartition, find_logs
from share_state.sources.segments import read_chunks

LARGEST_SEGMENT = 2**31 - 1
"""Bytes: Kafka's segment.bytes is an int32."""

_USUAL_SEGMENT = 104_857_600
_REPORT = "stretched.json"


def stretched(base: Export, size: int, *, new_keys: bool, segment_bytes: int = _USUAL_SEGMENT) -> Export:
    """An export of `size` bytes made of the batches of another, made once and kept.

    Args:
        base: whose batches are repeated; not compressed.
        size: bytes in all log partitions together, shared out as the base's are; no batch is cut, so maybe a few less.
        new_keys: whether every round is of new share-partitions.
        segment_bytes: at most so many in a segment.
    """
    asked = json.dumps([base.folder.name, size, new_keys, segment_bytes])
    folder = DATA / f"stretched-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"
    if not (folder / _REPORT).exists():
        shutil.rmtree(folder, ignore_errors=True)
        parts = [
            repeated(
                log, folder / log.name, size * log.size // base.bytes, new_keys=new_keys, segment_bytes=segment_bytes
            )
            for log in find_logs([str(base.folder)])
        ]
        (folder / _REPORT).write_text(json.dumps([asdict(part) for part in parts]))
    parts = [Part(**told) for told in json.loads((folder / _REPORT).read_text())]
    rounds = max(part.rounds for part in parts) if new_keys else 1
    records = sum(part.records for part in parts)
    shape = replace(base.shape, records=records, keys=base.shape.keys * rounds, segment_bytes=segment_bytes)
    sizes = [part.bytes for part in parts]
    return Export(folder, shape, sum(sizes), sum(part.segments for part in parts), max(sizes), base.ranges_a_key)


@dataclass(frozen=True, slots=True)
class Part:
    """One log partition as it was written: its bytes, records and segments, and the rounds begun."""

    bytes: int
    records: int
    segments: int
    rounds: int


def repeated(log: LogPartition, folder: Path, size: int, *, new_keys: bool, segment_bytes: int) -> Part:
    """Write the batches of a log partition over and over.

    Args:
        log: its segments; not compressed, every batch whole.
        folder: of the new log partition.
        size: bytes at most.
        new_keys: whether every round is of new share-partitions.
        segment_bytes: at most so many in a segment.
    """
    (whole,) = read_chunks(log, chunk=log.size + 1)
    data, batches = whole.data.copy(), whole.batches.copy()
    records = locate_records(data, batches)
    ends, counts = np.cumsum(batches["size"]), np.cumsum(batches["count"], dtype=np.int64)
    places = records["key_at"] + records["key_size"] - 4
    step = int(_partitions(data, places).max()) + 1 if new_keys else 0
    span = int(batches["last_offset"][-1]) + 1 - int(batches["base_offset"][0])
    written, of_records, rounds = 0, 0, 0
    with _Segments(folder, segment_bytes) as segments:
        while written + int(ends[0]) <= size:
            fitting = int(np.searchsorted(ends, size - written, side="right"))
            segments.take(data, batches["at"], ends[:fitting], batches["base_offset"] + rounds * span)
            written += int(ends[fitting - 1])
            of_records += int(counts[fitting - 1])
            rounds += 1
            if fitting < len(ends):
                break
            _move(data, batches, places, span * rounds, step)
    return Part(written, of_records, segments.count, rounds)


class _Segments:
    """Segment files of one log partition, each named after the offset of its first batch."""

    def __init__(self, folder: Path, most: int) -> None:
        folder.mkdir(parents=True)
        self._folder, self._most, self._size = folder, most, most
        self._file: IO[bytes] | None = None
        self.count = 0

    def __enter__(self) -> "_Segments":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def take(self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray, offsets: np.ndarray) -> None:
        """Write the batches that lie in `data` one behind the other, with a new file where the open one is full."""
        row = 0
        while row < len(ends):
            begin = int(starts[row])
            until = int(np.searchsorted(ends, begin + self._most - self._size, side="right"))
            if until <= row:
                self._open(int(offsets[row]))
                until = max(row + 1, int(np.searchsorted(ends, begin + self._most, side="right")))
            assert self._file is not None
            self._file.write(data[begin : int(ends[until - 1])].data)
            self._size += int(ends[until - 1]) - begin
            row = until

    def _open(self, offset: int) -> None:
        if self._file is not None:
            self._file.close()
        self._file = (self._folder / f"{offset:020}.log").open("wb")
        self._size, self.count = 0, self.count + 1


@njit(cache=True)
def _partitions(data, places):
    found = np.empty(len(places), np.int32)
    for row in range(len(places)):
        found[row] = int32_at(data, places[row])
    return found


@njit(cache=True)
def _move(data, batches, places, shift, step):
    """Raise the partition in every key by `step`, let offsets begin `shift` behind the first round's, sum up anew."""
    if step:
        for place in places:
            _put(data, place, np.int64(int32_at(data, place)) + step, 4)
    for row in range(len(batches)):
        batch = batches[row]
        _put(data, batch.at, batch.base_offset + shift, 8)
        if step:
            _put(data, batch.at + 17, np.int64(crc32c(data[batch.at + 21 :].ctypes, batch.size - 21)), 4)


@njit(cache=True, inline="always")
def _put(data, at, value, size):
    for byte in range(size):
        data[at + byte] = np.uint8((value >> (8 * (size - 1 - byte))) & 255)
