"""Damage to segments: what disks, copies and people do to a log that was sound."""

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from share_state.partition.simulation_error import SimulationError

_LENGTH_AT, _MAGIC_AT, _CRC_AT, _CHECKED_AT, _LAST_DELTA_AT, _TIMESTAMP_AT = 8, 16, 17, 21, 23, 27
_BEFORE_LENGTH_COUNTS = 12
_TRANSACTIONAL = 0x10
_OLD_MAGIC = 1


class Span(NamedTuple):
    """Where a record batch lies in its segment, in bytes, and its first and last offset."""

    begin: int
    end: int
    base_offset: int
    last_offset: int


class LogOnDisk:
    """The segments of one log partition, none of them damaged so far.

    Args:
        folder: of the log partition.
        rng: chooses where the damage is done.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.segments = sorted(path for path in folder.glob("*.log") if path.stat().st_size)
        self.folder, self.rng = folder, rng

    def inner_batch(self) -> tuple[Path, Span]:
        """A batch that is neither the log's first nor its last."""
        places = [(path, span) for path in self.segments for span in spans(path.read_bytes())][1:-1]
        if not places:
            raise SimulationError(f"{self.folder}: has no batch between others to damage; simulate more")
        return self.rng.choice(places)

    def last_batch(self) -> tuple[Path, Span]:
        """The log's last batch."""
        if not self.segments:
            raise SimulationError(f"{self.folder}: has no batch to damage; simulate more")
        return self.segments[-1], spans(self.segments[-1].read_bytes())[-1]


def spans(data: bytes) -> list[Span]:
    """The batches of a sound segment."""
    found, at = [], 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        end = at + _BEFORE_LENGTH_COUNTS + length
        found.append(Span(at, end, base, base + struct.unpack_from(">i", data, at + _LAST_DELTA_AT)[0]))
        at = end
    return found


class BatchFault(NamedTuple):
    """One way to damage a log.

    Attributes:
        name: of the fault.
        finding: code of the rule that it breaks.
        what: in words.
        damage: does it; returns the offset that is hit.
        is_for_any_topic: whether it means anything in logs that may have holes and transactions.
    """

    name: str
    finding: str
    what: str
    damage: Callable[[LogOnDisk], int]
    is_for_any_topic: bool = True


def _write_at(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def _flip_a_byte(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    _write_at(path, span.end - 1, bytes([path.read_bytes()[span.end - 1] ^ 0x40]))
    return span.base_offset


def _tear(log: LogOnDisk) -> int:
    path, span = log.last_batch()
    with path.open("r+b") as file:
        file.truncate(span.end - log.rng.randint(1, span.end - span.begin - 1))
    return span.base_offset


def _age(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    _write_at(path, span.begin + _MAGIC_AT, bytes([_OLD_MAGIC]))
    return span.base_offset


def _lie_about_the_length(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    _write_at(path, span.begin + _LENGTH_AT, struct.pack(">i", 1))
    return span.base_offset


def _cut_out(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    data = path.read_bytes()
    path.write_bytes(data[: span.begin] + data[span.end :])
    return span.base_offset


def _drop_a_segment(log: LogOnDisk) -> int:
    inner = log.segments[1:-1]
    if not inner:
        raise SimulationError(f"{log.folder}: has no segment between others to drop; let segments be smaller")
    path = log.rng.choice(inner)
    path.unlink()
    return int(path.stem)


def _rewritten(batch: bytes, at: int, data: bytes) -> bytes:
    """A batch with other bytes in its checked part, and the checksum that belongs to them."""
    whole = bytearray(batch)
    whole[at : at + len(data)] = data
    struct.pack_into(">I", whole, _CRC_AT, google_crc32c.value(bytes(whole[_CHECKED_AT:])))
    return bytes(whole)


def _tell_it_twice(log: LogOnDisk) -> int:
    path, span = log.last_batch()
    batch = path.read_bytes()[span.begin : span.end]
    (timestamp,) = struct.unpack_from(">q", batch, _TIMESTAMP_AT)
    with path.open("ab") as file:
        file.write(_rewritten(batch, _TIMESTAMP_AT, struct.pack(">q", timestamp + 1)))
    return span.base_offset


def _make_it_transactional(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    batch = path.read_bytes()[span.begin : span.end]
    (attributes,) = struct.unpack_from(">h", batch, _CHECKED_AT)
    _write_at(path, span.begin, _rewritten(batch, _CHECKED_AT, struct.pack(">h", attributes | _TRANSACTIONAL)))
    return span.base_offset


BATCH_FAULTS = (
    BatchFault("crc-mismatch", "CRC_MISMATCH", "a flipped bit in a batch", _flip_a_byte),
    BatchFault("torn-tail", "TORN_TAIL", "a log that ends inside a batch", _tear),
    BatchFault("magic-unsupported", "MAGIC_UNSUPPORTED", "a batch of an older format", _age),
    BatchFault("batch-malformed", "BATCH_MALFORMED", "a batch whose length is wrong", _lie_about_the_length),
    BatchFault("offset-gap", "OFFSET_GAP", "a batch that is not there", _cut_out, False),
    BatchFault("missing-segment", "OFFSET_GAP", "a segment that is not there", _drop_a_segment, False),
    BatchFault("duplicate-offset-conflict", "DUPLICATE_OFFSET_CONFLICT", "an offset told twice, differently",
               _tell_it_twice),
    BatchFault("transactional-batch", "TRANSACTIONAL_BATCH", "a batch of a transaction", _make_it_transactional, False),
)  # fmt: skip
