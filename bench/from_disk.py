"""A log that nobody has read yet, as an export is: checksummed and folded from the disk, not the page cache."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.contestants import Contestant
from bench.crc_pass import crc_pass
from bench.exports import Export
from bench.seconds import seconds
from share_state.sources.discovery import LogPartition, find_logs


@dataclass(frozen=True, slots=True)
class FromDisk:
    """Medians over passes by turns, wall seconds.

    Attributes:
        crc_s: to read and checksum the bytes.
        ours_s: to read, decode and fold them.
    """

    crc_s: float
    ours_s: float

    @property
    def over_crc(self) -> float:
        """The second over the first."""
        return self.ours_s / self.crc_s


def measured(ours: Contestant, export: Export, runs: int) -> FromDisk:
    """Read the same log by turns with a plain CRC pass and with the fold, from the disk each time.

    Args:
        ours: this project's side, running and warm.
        export: what to read.
        runs: passes of each.
    """
    logs, crc_s, ours_s = find_logs([str(export.folder)]), list[float](), list[float]()
    for _ in range(runs):
        _forget(logs)
        crc_s.append(seconds(lambda: crc_pass(logs)))
        _forget(logs)
        ours_s.append(ours.replay(export.folder).wall_s)
    return FromDisk(median(crc_s), median(ours_s))


def _forget(logs: Sequence[LogPartition]) -> None:
    """Let the page cache go of segments.

    Source: posix_fadvise(2), POSIX_FADV_DONTNEED, which leaves pages that are not on the disk yet.
    """
    for segment in (segment for log in logs for segment in log.segments):
        file = os.open(segment.path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
