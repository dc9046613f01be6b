"""Reads `__cluster_metadata-0` of a broker or controller: what KRaft knows about topics, configs, features and brokers.

The log starts with its newest snapshot (`<end offset>-<epoch>.checkpoint`), and the records of the segments
from that offset on change it. `read_metadata_log` folds both (`metadata_fold`), as Kafka's loader does.
"""

import re
from collections.abc import Collection, Iterator

import pyarrow as pa

from share_state.kafka.metadata_records import (
    METADATA_TOPIC,
)
from share_state.kafka.record_batches import Chunk, locate_records
from share_state.sources.cluster_metadata import ClusterMetadata
from share_state.sources.log_partition import LogPartition, Segment
from share_state.sources.metadata_fold import MetadataFold
from share_state.sources.segments import RepeatedOffsetsError, read_chunks
from share_state.stores.object_stores import read_errors
from share_state.stores.paths import InputPath

_CHUNK_SIZE = 1 << 20
"""Bytes of the log in memory at a time."""

_SEGMENT = re.compile(r"(\d{20})\.log")
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_SNAPSHOT_HEADER, _SNAPSHOT_FOOTER = 3, 4
"""Types of control records. Source: Kafka ControlRecordType."""


def read_metadata_log(
    folder: InputPath, until_time_ms: int | None = None, partitions_of: Collection[str] | None = None
) -> ClusterMetadata:
    """Fold the metadata log in a folder.

    Args:
        folder: the folder `__cluster_metadata-0`.
        until_time_ms: records with a later timestamp do not count.
        partitions_of: names of the topics whose partitions are kept, since there may be millions; all by
            default.
    Raises:
        InputError: if a file cannot be read.
    Source: Kafka MetadataLoader, MetadataBatchLoader, RecordsSnapshotReader, MetadataDelta.
    """
    wanted = None if partitions_of is None else pa.array(sorted(partitions_of), pa.string())
    try:
        return _read(folder, until_time_ms, wanted, merge=False)
    except RepeatedOffsetsError:
        return _read(folder, until_time_ms, wanted, merge=True)


def _read(
    folder: InputPath, until_time_ms: int | None, wanted: pa.Array | None, *, merge: bool
) -> ClusterMetadata:
    with read_errors(folder):
        files = sorted(folder.iterdir())
        segments = [
            Segment(str(file), int(name[1]), file.stat().st_size)
            for file in files
            if (name := _SEGMENT.fullmatch(file.name))
        ]
        snapshots = [(int(name[1]), file) for file in files if (name := _SNAPSHOT.fullmatch(file.name))]
    image = MetadataFold(until_time_ms, wanted)
    start = 0
    notes = list[str]()
    for end_offset, file in sorted(snapshots, reverse=True):
        read, problem = _read_snapshot(file, until_time_ms, wanted)
        if read is not None:
            image, start = read, end_offset
            break
        if problem:
            notes.append(f"{file}: {problem}; the snapshot before it is used")
    image.until_time_ms = until_time_ms
    image.expect(start)
    needed = [one for number, one in enumerate(segments) if _next_base(segments, number) > start]
    log = LogPartition(METADATA_TOPIC, 0, tuple(needed), start)
    for chunk in read_chunks(log, merge=merge, chunk=_CHUNK_SIZE):
        image.apply(chunk, start)
    return image.result(str(folder), notes)


def _next_base(segments: list[Segment], number: int) -> int:
    """The base offset of the segment after one of them; above every offset for the last one."""
    return segments[number + 1].base_offset if number + 1 < len(segments) else 2**63 - 1


def _read_snapshot(
    file: InputPath, until_time_ms: int | None, wanted: pa.Array | None
) -> tuple["MetadataFold | None", str]:
    """Fold a snapshot file.

    Returns:
        None if the snapshot cannot be used; and why, or "" if it is only later than the moment.
    Source: Kafka RecordsSnapshotWriter, SnapshotHeaderRecord, SnapshotFooterRecord.
    """
    with read_errors(file):
        segment = Segment(str(file), 0, file.stat().st_size)
    fold, last_type = MetadataFold(None, wanted), -1
    for chunk in read_chunks(LogPartition(METADATA_TOPIC, 0, (segment,), 0), chunk=_CHUNK_SIZE):
        for record_type, time in _control_records(chunk):
            last_type = record_type
            if record_type == _SNAPSHOT_HEADER and until_time_ms is not None and time > until_time_ms:
                return None, ""
        fold.apply(chunk, 0, is_snapshot=True)
    if last_type != _SNAPSHOT_FOOTER or not fold.is_complete:
        return None, "a snapshot that is cut off or damaged"
    return fold, ""


def _control_records(chunk: Chunk) -> Iterator[tuple[int, int]]:
    """The control records of a chunk: type, and of the header of a snapshot the time of its last record."""
    for record in locate_records(chunk.data, chunk.batches.copy(), control=True):
        key_at, value_at = int(record["key_at"]), int(record["value_at"])
        if record["key_size"] >= 4:
            record_type = int.from_bytes(chunk.data[key_at + 2 : key_at + 4].tobytes(), "big")
            time = chunk.data[value_at + 2 : value_at + 10].tobytes() if record["value_size"] >= 10 else b""
            yield record_type, int.from_bytes(time, "big", signed=True)
