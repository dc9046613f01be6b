"""The exports that are measured: made once per shape by bench/java/Generate.java, kept under bench/data."""

import hashlib
import json
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.kafka import DATA, command, sources
from share_state.errors import ShareStateError

_BYTES_A_RECORD = 205


class GenerationError(ShareStateError):
    """Raised when the generator does not finish."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What an export looks like.

    Attributes:
        records: in all state partitions together.
        keys: share-partitions that the records are spread over, evenly at random.
        records_per_batch: in each record batch of the log.
        batches_per_update: state batches that one write acknowledges, before Kafka's combiner joins them.
        ranges: runs of offsets between start and end of a share-partition, once its window has filled.
        partitions: of the state topic (a broker's default is 50).
        updates_per_snapshot: as the broker's share.coordinator.snapshot.update.records.per.snapshot.
        segment_bytes: as the topic's segment.bytes.
        codec: none, gzip, snappy, lz4 or zstd.
        tombstones: share of records that delete their share-partition.
        minus_one: share of writes that leave the start out, as writers before 4.4 may.
        seed: of the traffic.
    """

    records: int = 2_000_000
    keys: int = 20_000
    records_per_batch: int = 1
    batches_per_update: int = 4
    ranges: int = 30
    partitions: int = 8
    updates_per_snapshot: int = 500
    segment_bytes: int = 104_857_600
    codec: str = "none"
    tombstones: float = 0.0
    minus_one: float = 0.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Export:
    """An export on disk: its folder, and what the generator said of it."""

    folder: Path
    shape: Shape
    bytes: int
    segments: int
    largest_partition_bytes: int
    ranges_a_key: float

    @property
    def title(self) -> str:
        """One line that names the shape."""
        return (
            f"{self.shape.records:,} records, {self.shape.keys:,} share-partitions,"
            f" {self.shape.records_per_batch} a batch, {self.ranges_a_key:.0f} ranges a key,"
            f" {self.shape.partitions} state partitions, {self.bytes / 1e6:.1f} MB ({self.shape.codec})"
        )


def records_in(size: int) -> int:
    """How many records of about 30 ranges, one a batch, take so many bytes; a thousand at least."""
    return max(1_000, size // _BYTES_A_RECORD)


def made(shape: Shape) -> Export:
    """The export of a shape, generated unless one of the same shape and generator is there.

    Raises:
        GenerationError: if the generator fails, with its first line.
    """
    identity = hashlib.sha256(json.dumps(asdict(shape), sort_keys=True).encode())
    for source in sources():
        if source.stem == "Generate":
            identity.update(source.read_bytes())
    folder = DATA / f"export-{identity.hexdigest()[:12]}"
    report = folder / "generated.json"
    if not report.exists():
        shutil.rmtree(folder, ignore_errors=True)
        named = {f"--{name.replace('_', '-')}": str(value) for name, value in asdict(shape).items()}
        options = [text for option in named.items() for text in option]
        generator = command("Generate", "--out", str(folder), *options, options=("-Xmx2g",))
        done = subprocess.run(generator, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if not line.startswith("SLF4J")]
            raise GenerationError(f"the generator stopped: {said[0].split(': ', 1)[-1] if said else 'no message'}")
        report.write_text(done.stdout)
    told = json.loads(report.read_text())
    return Export(folder, shape, told["bytes"], told["segments"], told["largest_partition_bytes"], told["ranges_a_key"])
