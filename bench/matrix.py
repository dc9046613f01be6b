"""Decode + fold against Kafka's replay over ranges in flight, records a batch and codecs, each in one run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from bench import from_disk
from bench.comparison import Comparison, compared
from bench.contestants import Contestant, median_ratio, typical
from bench.crc_pass import crc_pass
from bench.exports import Export, Shape
from bench.from_disk import FromDisk
from share_state.sources.discovery import find_logs

# Few log partitions, so that what each costs by itself does not hide the kernels. Many ranges are slow to generate and
# to replay, so their logs hold fewer records; each share-partition gets enough of them to fill its window.
_LOGS = {
    1: Shape(records=800_000, keys=8_000, ranges=1, batches_per_update=1, partitions=2),
    30: Shape(records=400_000, keys=4_000, ranges=30, partitions=2),
    200: Shape(records=120_000, keys=400, ranges=200, partitions=2),
}
RECORDS_PER_BATCH = (1, 5, 20, 500)
CODECS = ("gzip", "snappy", "lz4", "zstd")
_PACKED = 20


@dataclass(frozen=True, slots=True)
class Cell:
    """One log through both sides, and the floor beside them.

    Attributes:
        comparison: the passes.
        crc_s: CPU seconds to read and checksum the same bytes in the page cache, the median of as many passes.
        from_disk: both by wall time where none of them are in the page cache.
    """

    comparison: Comparison
    crc_s: float
    from_disk: FromDisk

    @property
    def export(self) -> Export:
        """What was replayed."""
        return self.comparison.export

    @property
    def ratio(self) -> float:
        """Kafka's CPU time over ours."""
        return median_ratio(self.comparison.kafka, self.comparison.ours)

    @property
    def over_crc(self) -> float:
        """Our CPU time over that of reading and checksumming."""
        return typical(self.comparison.ours).cpu_s / self.crc_s


def shapes(share: float = 1.0) -> list[Shape]:
    """The shapes of the matrix, uncompressed ones first.

    Args:
        share: of the usual records and share-partitions; less than 1 to see that it works.
    """
    smaller = {
        ranges: replace(shape, records=max(1, int(shape.records * share)), keys=max(1, int(shape.keys * share)))
        for ranges, shape in _LOGS.items()
    }
    plain = [replace(shape, records_per_batch=size) for shape in smaller.values() for size in RECORDS_PER_BATCH]
    return plain + [replace(smaller[30], records_per_batch=_PACKED, codec=codec) for codec in CODECS]


def measured(
    kafka: Contestant, ours: Contestant, exports: Sequence[Export], *, warm_ups: int, runs: int
) -> Iterator[Cell]:
    """Replay export after export with the same two processes, so that only the first needs them warmed up for long.

    Args:
        kafka: Kafka's side, running.
        ours: this project's side, running.
        exports: of `shapes`.
        warm_ups: passes of each side over the first export that are not measured; one over each other.
        runs: measured passes of each side over each export.
    """
    for number, export in enumerate(exports):
        comparison = compared(kafka, ours, export, warm_ups=1 if number else max(1, warm_ups), runs=runs)
        logs = find_logs([str(export.folder)])
        crc_pass(logs)
        crc_s = median(crc_pass(logs) for _ in range(runs))
        yield Cell(comparison, crc_s, from_disk.measured(ours, export, runs))
