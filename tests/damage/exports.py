"""Whole exports for the tests of damage: the folders of log partitions and the broker's checkpoint files, in memory."""

import struct
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import google_crc32c

from share_state.simulator.simulation import simulate
from tests.truth import DATA

_LENGTH_AT, _HEADER_SIZE = 8, 12
_EPOCH = slice(12, 16)
_CRC = slice(17, 21)
_CHECKED_AT = 21
_LAST_OFFSET_DELTA_AT = 23


@dataclass
class Log:
    """The folder of one log partition.

    Attributes:
        segments: base offset -> bytes.
        log_start: the log start offset of the broker.
        leader_epochs: lines of leader-epoch-checkpoint: epoch and its first offset; None without the file.
    """

    segments: dict[int, bytes]
    log_start: int = 0
    leader_epochs: list[tuple[int, int]] | None = None

    @property
    def end(self) -> int:
        """The offset after the last batch."""
        return max((last_offset(batch) + 1 for data in self.segments.values() for batch in batches(data)), default=0)


@dataclass
class Export:
    """A copy of a broker's log directory.

    Attributes:
        logs: folder name -> its log.
        log_starts: folder name -> offset, lines of log-start-offset-checkpoint; None without the file.
        high_watermarks: the same of replication-offset-checkpoint.
        older: another copy beside it; None for none.
    """

    logs: dict[str, Log] = field(default_factory=dict)
    log_starts: dict[str, int] | None = None
    high_watermarks: dict[str, int] | None = None
    older: "Export | None" = None

    def write(self, place: Path) -> list[str]:
        """Write it to a folder; returns the paths to read."""
        if self.older is not None:
            return [*self._write(place / "broker-0"), *self.older.write(place / "broker-1")]
        return self._write(place)

    def _write(self, place: Path) -> list[str]:
        place.mkdir(parents=True)
        for name, log in self.logs.items():
            folder = place / name
            folder.mkdir()
            for base_offset, data in log.segments.items():
                (folder / f"{base_offset:020}.log").write_bytes(data)
            if log.leader_epochs is not None:
                lines = [f"{epoch} {start}" for epoch, start in log.leader_epochs]
                (folder / "leader-epoch-checkpoint").write_text("\n".join(["0", str(len(lines)), *lines, ""]))
        for file, offsets in (
            ("log-start-offset-checkpoint", self.log_starts),
            ("replication-offset-checkpoint", self.high_watermarks),
        ):
            if offsets is not None:
                lines = [f"{name.rpartition('-')[0]} {name.rpartition('-')[2]} {offset}"
                         for name, offset in offsets.items()]  # fmt: skip
                (place / file).write_text("\n".join(["0", str(len(lines)), *lines, ""]))
        return [str(place)]

    def copied(self) -> "Export":
        """A copy that may be damaged."""
        return deepcopy(self)

    def without_checkpoints(self) -> "Export":
        """A copy without any of the broker's checkpoint files."""
        bare = self.copied()
        bare.log_starts = bare.high_watermarks = None
        for log in bare.logs.values():
            log.leader_epochs = None
        return bare


def batches(data: bytes) -> list[bytes]:
    """The record batches of a segment that is not damaged."""
    split = list[bytes]()
    position = 0
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position + _LENGTH_AT)
        split.append(data[position : position + _HEADER_SIZE + length])
        position += _HEADER_SIZE + length
    return split


def base_offset(batch: bytes) -> int:
    """The offset of the first record of a batch."""
    return struct.unpack_from(">q", batch)[0]


def last_offset(batch: bytes) -> int:
    """The offset of the last record of a batch."""
    return base_offset(batch) + struct.unpack_from(">i", batch, _LAST_OFFSET_DELTA_AT)[0]


def moved(batch: bytes, offset: int) -> bytes:
    """A batch at another offset; its CRC stays right, because it does not cover the offset."""
    return struct.pack(">q", offset) + batch[8:]


def renumbered(several: list[bytes], offset: int) -> list[bytes]:
    """Batches with consecutive offsets from one on."""
    result = list[bytes]()
    for batch in several:
        result.append(moved(batch, offset))
        offset = last_offset(result[-1]) + 1
    return result


def in_epoch(batch: bytes, epoch: int) -> bytes:
    """A batch that a leader of this epoch appended."""
    return batch[: _EPOCH.start] + struct.pack(">i", epoch) + batch[_EPOCH.stop :]


def with_right_crc(batch: bytes) -> bytes:
    """A batch whose CRC matches its bytes."""
    crc = struct.pack(">I", google_crc32c.value(bytes(batch[_CHECKED_AT:])))
    return batch[: _CRC.start] + crc + batch[_CRC.stop :]


DRAFT = "control_records"
RELEASES = ("4.0", "4.1", "4.2", "4.3", "4.4")
PRUNED = "pruned"
FIXTURES = ("4.0.2/happy", "4.1.2/chaos", "4.2.1/chaos", "4.3.1/chaos", "4.3.1/prune", "4.3.1/pruneraw", "4.4.0/dlq")
HISTORIES = (*RELEASES, *(f"{release} {PRUNED}" for release in RELEASES), DRAFT, *FIXTURES)
"""Releases of simulated brokers, some of which deleted redundant records; the draft; folders of real brokers."""


def dialect_of(history: str) -> str:
    """The dialect of a history, as `--dialect` takes it."""
    return DRAFT if history == DRAFT else "share_group_state"


@cache
def whole_export(history: str, seed: int) -> Export:
    """What a broker leaves, with each of its checkpoint files.

    Args:
        history: one of HISTORIES.
        seed: of a simulated broker.
    """
    if history in FIXTURES:
        return read_export(DATA / history)
    release, _, is_pruned = history.partition(" ")
    with TemporaryDirectory() as folder:
        place = Path(folder) / "made"
        is_draft = release == DRAFT
        more: dict[str, Any] = {"dialect": DRAFT, "checkpoint_every": 4} if is_draft else {"release": release}
        simulate(place, seed=seed, groups=3 + seed % 3, minutes=1 + seed % 2, state_partitions=2 + seed % 3,
                 updates_per_snapshot=3 + seed % 4, segment_bytes=3000, prunes=bool(is_pruned), **more)  # fmt: skip
        export = Export(log_starts={})
        for log_folder in sorted(path for path in place.iterdir() if path.is_dir()):
            segments = {int(file.stem): file.read_bytes() for file in sorted(log_folder.glob("*.log"))}
            log = Log(segments, log_start=min(segments))
            _lead_by_several(log)
            export.logs[log_folder.name] = log
    return _with_high_watermarks(export)


def _with_high_watermarks(export: Export) -> Export:
    export.high_watermarks = {name: log.end for name, log in export.logs.items()}
    return export


def _lead_by_several(log: Log) -> None:
    """Let three leaders have written a log."""
    first = min(log.segments)
    third = max(1, (log.end - first) // 3)
    log.leader_epochs = [(0, first)]
    for base, data in log.segments.items():
        written = list[bytes]()
        for batch in batches(data):
            epoch = min(2, (base_offset(batch) - first) // third)
            if epoch > log.leader_epochs[-1][0]:
                log.leader_epochs.append((epoch, base_offset(batch)))
            written.append(in_epoch(batch, epoch))
        log.segments[base] = b"".join(written)


def read_export(place: Path) -> Export:
    """The folders of log partitions that a real broker left."""
    log_starts: dict[str, int] = {}
    export = Export(log_starts=log_starts)
    starts = place / "log-start-offset-checkpoint"
    for line in starts.read_text().splitlines()[2:] if starts.exists() else ():
        topic, number, offset = line.split()
        log_starts[f"{topic}-{number}"] = int(offset)
    for folder in sorted(place.glob("__share_group_state-*")):
        segments = {int(file.stem): file.read_bytes() for file in sorted(folder.glob("*.log"))}
        log = Log(segments, log_start=max(min(segments), log_starts.get(folder.name, 0)))
        epochs = folder / "leader-epoch-checkpoint"
        if epochs.exists():
            lines = [line.split() for line in epochs.read_text().splitlines()[2:]]
            log.leader_epochs = [(int(epoch), int(start)) for epoch, start in lines]
        export.logs[folder.name] = log
    return _with_high_watermarks(export)


def positions(log: Log) -> Iterator[tuple[int, int]]:
    """The segment and the number in it of every batch."""
    for base, data in log.segments.items():
        yield from ((base, number) for number in range(len(batches(data))))
