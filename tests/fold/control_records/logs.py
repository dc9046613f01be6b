"""Writes the logs of ordinary topics: the draft's control records amid user data and transaction markers."""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from share_state.fold.fold_options import ControlOptions, FoldOptions
from share_state.fold.limits import Limits
from share_state.sources.discovery import find_topic_logs
from share_state.sources.log_partition import LogPartition
from tests.kafka.batches import Batch, Range, Record

CONTROL, TRANSACTIONAL = 0x20, 0x10
CHECKPOINT, DELTA = 5, 6
ABORT, COMMIT = 0, 1


def control_key(kind: int, version: int = 0) -> bytes:
    """The key of a control record."""
    return struct.pack(">hh", version, kind)


def checkpoint(
    group: str, epoch: int, start: int, end: int, states: Sequence[Range] = (), *, prefix: bool = False
) -> Record:
    """A checkpoint as a record."""
    return Record(control_key(CHECKPOINT), checkpoint_value(group, epoch, start, end, states, prefix=prefix))


def delta(group: str, epoch: int, back: int, states: Sequence[Range] = (), *, prefix: bool = False) -> Record:
    """A delta as a record."""
    return Record(control_key(DELTA), delta_value(group, epoch, back, states, prefix=prefix))


def checkpoint_value(
    group: str, epoch: int, start: int, end: int, states: Sequence[Range] = (), *, prefix: bool = False
) -> bytes:
    """The value of a checkpoint."""
    return _head(group, epoch, prefix) + struct.pack(">qq", start, end) + _tuples(states)


def delta_value(group: str, epoch: int, back: int, states: Sequence[Range] = (), *, prefix: bool = False) -> bytes:
    """The value of a delta."""
    return _head(group, epoch, prefix) + struct.pack(">q", back) + _tuples(states)


def _head(group: str, epoch: int, prefix: bool) -> bytes:
    name = group.encode()
    return (b"\0\0" if prefix else b"") + struct.pack(">h", len(name)) + name + struct.pack(">H", epoch)


def _tuples(states: Sequence[Range]) -> bytes:
    return struct.pack(">i", len(states)) + b"".join(struct.pack(">qqbh", *state) for state in states)


def control(offset: int, *records: Record, codec: int = 0, leader_epoch: int = 0) -> Batch:
    """A control batch of these records at consecutive offsets."""
    return Batch(records, base_offset=offset, attributes=CONTROL | codec, leader_epoch=leader_epoch)


def marker(offset: int, kind: int = COMMIT) -> Batch:
    """The end of a transaction."""
    value = struct.pack(">hi", 0, 3)
    return Batch(
        [Record(control_key(kind), value)], base_offset=offset, attributes=CONTROL | TRANSACTIONAL, producer=(7, 0, -1)
    )


def user_data(offset: int, count: int = 1, *, codec: int = 0, transactional: bool = False) -> Batch:
    """A batch of user records whose keys look like those of control records."""
    records = [Record(control_key(CHECKPOINT), checkpoint_value("user", 1, 0, 9)) for _ in range(count)]
    attributes = codec | (TRANSACTIONAL if transactional else 0)
    return Batch(
        records, base_offset=offset, attributes=attributes, producer=(7, 0, 0) if transactional else (-1, -1, -1)
    )


def log_of(
    folder: Path, batches: Iterable[Batch], *, topic: str = "T", start: int | None = None, base: int = 0
) -> LogPartition:
    """Write one segment of the topic's partition 0, and find the log again.

    `start` is a log start noted beside it, `base` the base offset of the segment: compaction may leave none before the
    first batch.
    """
    written = sorted(batches, key=lambda batch: batch.base_offset)
    place = folder / f"{topic}-0"
    place.mkdir(parents=True, exist_ok=True)
    for old in place.glob("*.log"):
        old.unlink()
    (place / f"{base:020}.log").write_bytes(b"".join(batch.written() for batch in written))
    if start is not None:
        (folder / "log-start-offset-checkpoint").write_text(f"0\n1\n{topic} 0 {start}\n")
    (found,) = find_topic_logs([str(place)])
    return found


def control_options(*, limits: Limits = Limits(), **options: Any) -> FoldOptions:  # noqa: B008  frozen
    """How control records are folded; `options` are fields of ControlOptions."""
    return FoldOptions(limits=limits, control=ControlOptions(**options))


def at(records: dict[int, Record]) -> list[Batch]:
    """Control batches of one record each, at these offsets."""
    return [control(offset, record) for offset, record in sorted(records.items())]
