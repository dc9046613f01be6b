"""Exports of a cluster, night by night: what each copy of each log partition holds, whole, cut, damaged or in part."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import google_crc32c

from share_state.simulator.simulation import simulate
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import STATE_TOPIC
from share_state.sources.segment_frames import frame_segments

BATCHES_PER_SEGMENT = 12
A_DAY = 86_400_000
TOPIC_IDS = ("AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBA", "CCCCCCCCCCCCCCCCCCCCCA", "DDDDDDDDDDDDDDDDDDDDDA")


@dataclass(frozen=True)
class Log:
    """Every batch of a log partition that a broker ever wrote."""

    batches: tuple[bytes, ...]
    base_offsets: tuple[int, ...]
    """Of each batch; then the end offset of the log."""


@cache
def simulated_topic(generation: int, partitions: int) -> tuple[Log, ...]:
    """The log partitions of a state topic; those of a later generation were written a day later."""
    with TemporaryDirectory() as folder:
        made = simulate(Path(folder), seed=generation, groups=4, minutes=4, state_partitions=partitions,
                        updates_per_snapshot=8)  # fmt: skip
        assert made is not None
        logs = []
        for number in range(partitions):
            batches, offsets = [], [0]
            place = Path(folder) / f"{STATE_TOPIC}-{number}"
            for log in find_logs([str(place)]) if place.exists() else ():
                for framed in frame_segments(log.segments):
                    for row in framed.batches:
                        data = bytes(framed.data[row["at"] : row["at"] + row["size"]])
                        batches.append(_later(data, generation * A_DAY))
                        offsets.append(int(row["last_offset"]) + 1)
            logs.append(Log(tuple(batches), tuple(offsets)))
    return tuple(logs)


def _later(batch: bytes, milliseconds: int) -> bytes:
    """A batch as if it had been written later."""
    times = [time + milliseconds for time in struct.unpack_from(">qq", batch, 27)]
    body = batch[21:27] + struct.pack(">qq", *times) + batch[43:]
    return batch[:17] + struct.pack(">I", google_crc32c.value(body)) + body


@dataclass
class Part:
    """What one copy holds of a log partition.

    Attributes:
        end: batches that it has got so far.
        first_segment: the first that is not deleted.
        lost: segments that were not copied.
        damaged: batches with a flipped bit.
        cut: bytes that its last segment lacks.
        is_there: whether the folder is in the export.
    """

    end: int = 0
    first_segment: int = 0
    lost: set[int] = field(default_factory=set)
    damaged: set[int] = field(default_factory=set)
    cut: int = 0
    is_there: bool = True

    def segments(self, log: Log, begin: int = 0) -> dict[int, bytes]:
        """Base offset of each segment in the export -> its bytes, without batches before `begin`."""
        found = dict[int, bytes]()
        last = max(self.end - 1, 0) // BATCHES_PER_SEGMENT
        for segment in range(self.first_segment, last + 1):
            if segment in self.lost:
                continue
            first = max(segment * BATCHES_PER_SEGMENT, begin)
            numbers = range(first, min((segment + 1) * BATCHES_PER_SEGMENT, self.end))
            data = b"".join(_flipped(log.batches[n]) if n in self.damaged else log.batches[n] for n in numbers)
            if segment == last and self.cut:
                data = data[: -self.cut] if self.cut < len(data) else b""
            if data or not begin:
                found[log.base_offsets[min(first, len(log.batches))]] = data
        return found

    def mend(self) -> None:
        """Copy the log again."""
        self.lost, self.damaged, self.cut, self.is_there = set(), set(), 0, True


def _flipped(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def write_part(folder: Path, segments: dict[int, bytes], topic_id: str | None) -> None:
    """Write the folder of a log partition."""
    folder.mkdir(parents=True)
    for base_offset, data in segments.items():
        (folder / f"{base_offset:020}.log").write_bytes(data)
    if topic_id is not None:
        (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")


def memory_part(log: Log, first_segment: int, read: int) -> dict[int, bytes]:
    """The segments of the batches before `read`, as they were written."""
    return Part(read, first_segment).segments(log) if read else {}


def named(folder: Path, partitions: Iterable[int]) -> list[Path]:
    """The folders of log partitions in a copy."""
    return [folder / f"{STATE_TOPIC}-{number}" for number in partitions]
