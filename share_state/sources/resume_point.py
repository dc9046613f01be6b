"""Finds where to resume reading a log partition after an earlier run, and detects that the log was replaced."""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, cast

import numpy as np

from share_state.kafka.record_batches import HEADER_SIZE, BatchStatus
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.sources.log_partition import LogPartition, Segment, in_offset_order
from share_state.sources.segment_frames import frame_segments
from share_state.stores.object_stores import Store, StorePath, read_errors, store_error
from share_state.stores.paths import to_path

if TYPE_CHECKING:
    from share_state.sources.kafka_source import KafkaSource

_HEADER_START = struct.Struct(">qiibI")
"""Base offset, length, leader epoch, magic, CRC."""

_TIMESTAMP_AT = 27
_LOG_OVERHEAD = 12


class ResumeStatus(StrEnum):
    """How a log partition has changed since an earlier run."""

    NEW = "new"
    GROWN = "grown"
    UNCHANGED = "unchanged"
    BEHIND = "behind"  # all replicas end before the last batch read
    UNREADABLE = "unreadable"  # no batch at the position of the last batch read
    MISSING = "missing"
    RECREATED = "begun again"  # the topic was deleted and created again
    DIVERGED = "diverged"  # different bytes at the offsets of the last batch read
    CLEANED = "cleaned"  # its start is after the next offset to read
    LONGER = "longer"  # its start is before that of the earlier run
    VANISHED = "vanished"  # read from its start, and share-partitions of the earlier run are gone without a tombstone
    CHANGED = "changed"  # another program changed what the earlier run left to resume from
    REREAD = "reread"  # whether it continues the log read earlier is uncertain


READ_FROM_START = (
    ResumeStatus.NEW,
    ResumeStatus.RECREATED,
    ResumeStatus.DIVERGED,
    ResumeStatus.CLEANED,
    ResumeStatus.LONGER,
    ResumeStatus.CHANGED,
    ResumeStatus.REREAD,
)
"""Statuses of logs that are read from their start."""


KEPT_STATE = (ResumeStatus.BEHIND, ResumeStatus.UNREADABLE, ResumeStatus.MISSING)
"""Statuses of logs whose state stays as the last run left it."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The last valid batch that an earlier run read.

    Attributes:
        segment: base offset of its segment.
        position, size: position and size of the batch in its segment, in bytes; -1 and 0 if the log was not
            read from segments.
        base_offset: its first offset.
        leader_epoch: its leader epoch.
        crc: its checksum.
        next_offset: offset to resume at.
        folded_from: log start offset of the first run.
        log_start_offset: log start offset of the last run.
        newest_time: ms, its max_timestamp.
        is_sound: whether no record before it that any state depends on is missing or unreadable.
        topic_id: id of the log's topic; None if its folder has none.
        input: hash of everything that was read; None if it is sound.
        start_is_recorded, committed_end: as in LogPartition, at the last run.
        read_to: the offset up to which the last run had read, if that is after `next_offset`: it resumes at the
            first open transaction, whose records may count once it ends. -1 without one.
    """

    segment: int
    position: int
    size: int
    base_offset: int
    leader_epoch: int
    crc: int
    next_offset: int
    folded_from: int
    log_start_offset: int
    newest_time: int
    is_sound: bool = True
    topic_id: str | None = None
    input: str | None = None
    start_is_recorded: bool = False
    committed_end: int | None = None
    read_to: int = -1

    @property
    def shows_its_start(self) -> bool:
        """Whether runs have read the log from its start, as far as the broker's log has one."""
        return self.folded_from == 0 or self.start_is_recorded

    @property
    def counted_to(self) -> int:
        """The offset up to which runs have counted what became of deliveries."""
        return max(self.next_offset, self.read_to)

    def check(self) -> None:
        """Refuse values of other types, as a damaged table may hold.

        Raises:
            ValueError: if there is one.
        """
        texts = ("topic_id", "input")
        flags = ("is_sound", "start_is_recorded")
        is_valid = all(type(getattr(self, name)) in (str, type(None)) for name in texts)
        is_valid &= all(type(getattr(self, name)) is bool for name in flags)
        if not is_valid:
            raise ValueError("not a resume point")
        others = [field.name for field in fields(self) if field.name not in (*texts, *flags)]
        numbers = [
            getattr(self, name) for name in others if (name, getattr(self, name)) != ("committed_end", None)
        ]
        if any(type(number) is not int or not -(2**63) <= number < 2**63 for number in numbers):
            raise ValueError("not a resume point")


class _ReplicaStatus(StrEnum):
    HAS_POINT = "has point"
    ENDS_BEFORE = "ends before"
    STARTS_AFTER = "starts after"
    DIFFERS = "differs"
    UNREADABLE = "unreadable"


def resume(log: LogPartition, point: ResumePoint) -> tuple[LogPartition, ResumeStatus]:
    """The unread part of a log partition.

    Args:
        log: the log partition in the current input.
        point: where the earlier run stopped.
    Returns:
        The log partition with the segments left to read (all of them if it must be read from its start), and
        its status.
    Raises:
        InputError: if a segment cannot be read.
    """
    if log.topic_id and point.topic_id and log.topic_id != point.topic_id:
        return log, ResumeStatus.RECREATED
    replicas = sorted({segment.replica for segment in log.segments})
    located = [
        _locate([one for one in log.segments if one.replica == replica], point) for replica in replicas
    ]
    statuses = {status for status, _ in located}
    if _ReplicaStatus.HAS_POINT not in statuses and _is_younger(log, point):
        return log, ResumeStatus.RECREATED
    left = replace(log, segments=in_offset_order(segment for _, segments in located for segment in segments))
    if statuses <= {_ReplicaStatus.ENDS_BEFORE, _ReplicaStatus.UNREADABLE}:
        status = ResumeStatus.UNREADABLE if _ReplicaStatus.UNREADABLE in statuses else ResumeStatus.BEHIND
        return replace(left, log_start_offset=point.log_start_offset), status
    status = _discontinuity(log, point, statuses)
    if status is not None:
        return log, status
    is_same = left.size == 0 and log.log_start_offset == point.log_start_offset
    return left, ResumeStatus.UNCHANGED if is_same else ResumeStatus.GROWN


def _discontinuity(
    log: LogPartition, point: ResumePoint, statuses: set[_ReplicaStatus]
) -> ResumeStatus | None:
    """Why a log may not continue the log read earlier, or None.

    At least one of its copies contains the point.
    """
    if log.log_start_offset > point.next_offset:
        return ResumeStatus.CLEANED
    if statuses == {_ReplicaStatus.DIFFERS}:
        return ResumeStatus.DIVERGED
    if log.log_start_offset < point.log_start_offset:
        return ResumeStatus.LONGER
    epochs = [entry for copy in log.copies for entry in copy.leader_epochs]
    is_replaced = any(epoch > point.leader_epoch and start <= point.base_offset for epoch, start in epochs)
    is_certain = (
        point.is_sound
        and not is_replaced
        and not statuses & {_ReplicaStatus.DIFFERS, _ReplicaStatus.UNREADABLE}
    )
    return None if is_certain else ResumeStatus.REREAD


def _is_younger(log: LogPartition, point: ResumePoint) -> bool:
    """Whether a first batch before the point has a later timestamp: the topic was then deleted and created again."""
    for segment in log.segments:
        if segment.size >= HEADER_SIZE:
            head = _bytes(segment, 0, HEADER_SIZE)
            is_below = int.from_bytes(head[:8], "big", signed=True) < point.next_offset
            return (
                head[16] == 2
                and is_below
                and struct.unpack_from(">q", head, _TIMESTAMP_AT)[0] > point.newest_time
            )
    return False


def _locate(segments: Sequence[Segment], point: ResumePoint) -> tuple[_ReplicaStatus, list[Segment]]:
    """Compare one replica with the resume point; returns its status and the segments left to read."""
    for number, segment in enumerate(segments):
        if segment.base_offset == point.segment and _has_point(segment, point):
            return _ReplicaStatus.HAS_POINT, _from(segments, number, point.position + point.size)
    # The segments of this replica have other bounds, or its bytes differ.
    candidates = [
        number for number, segment in enumerate(segments) if segment.base_offset <= point.base_offset
    ]
    if not candidates:
        return _ReplicaStatus.STARTS_AFTER, list(segments)
    for framed in frame_segments((segments[candidates[-1]],)):
        valid = framed.batches[framed.batches["status"] == BatchStatus.VALID]
        after = np.flatnonzero(valid["last_offset"] >= point.base_offset)
        if len(after):
            batch = valid[after[0]]
            if batch["base_offset"] != point.base_offset or batch["crc"] != point.crc:
                return _ReplicaStatus.DIFFERS, []
            end = int(batch["file_position"] + batch["size"])
            return _ReplicaStatus.HAS_POINT, _from(segments, candidates[-1], end)
    rest = list(segments[candidates[-1] + 1 :])
    if any(segment.size for segment in rest):
        return _ReplicaStatus.STARTS_AFTER, rest
    segment, status = segments[candidates[-1]], _ReplicaStatus.ENDS_BEFORE
    # A lagging replica may be truncated, or zero where it was preallocated, but cannot hold other bytes at
    # the point.
    is_covered = segment.base_offset == point.segment and segment.size >= point.position + point.size
    is_destroyed = any(
        (framed.batches["status"] == BatchStatus.UNREADABLE).any() for framed in frame_segments((segment,))
    )
    if is_destroyed or (is_covered and any(_bytes(segment, point.position, point.size))):
        status = _ReplicaStatus.UNREADABLE
    return status, _from(segments, len(segments) - 1, segments[-1].size)


def _from(segments: Sequence[Segment], number: int, position: int) -> list[Segment]:
    return [replace(segments[number], begin=position), *segments[number + 1 :]]


def _has_point(segment: Segment, point: ResumePoint) -> bool:
    if segment.size < point.position + point.size:
        return False
    base_offset, length, _, _, crc = _HEADER_START.unpack(_bytes(segment, point.position, _HEADER_START.size))
    return (base_offset, length + _LOG_OVERHEAD, crc) == (point.base_offset, point.size, point.crc)


def _bytes(segment: Segment, position: int, size: int) -> bytes:
    with read_errors(segment.path), to_path(segment.path).open("rb", buffering=0) as file:
        file.seek(position)
        return file.read(size)


def digest_of_logs(logs: Sequence[LogPartition]) -> str:
    """A hash that changes if the logs change.

    It covers the bytes of local files, size and modification time of files in an object store (hashing would
    download them), the end offsets of a cluster's log partitions, and the rows that Spark sorts.

    Args:
        logs: log partitions, in the order of the input.
    Raises:
        InputError: if a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=8)
    rows = [getattr(log.source, "content", None) for log in logs]
    files = (log for log, content in zip(logs, rows, strict=True) if content is None)
    contents = _contents(segment.path for log in files for segment in log.segments)
    for log, content in zip(logs, rows, strict=True):
        digest.update(f"{log.topic} {log.partition}\n".encode())
        if log.source is not None and log.source.form == KAFKA_FORM:
            end = cast("KafkaSource", log.source).end_offset
            digest.update(f"{log.topic_id} {log.log_start_offset} {end}\n".encode())
        for one in log.segments:
            # Several log partitions may share a file, each with its own slice.
            digest.update(
                f"{one.base_offset} {one.begin} {one.size} {content or contents[one.path]}\n".encode()
            )
    return digest.hexdigest()


def _contents(paths: Iterable[str]) -> dict[str, str]:
    """Path -> text that identifies its content, for each distinct path."""
    identities, stored = dict[str, str](), dict[Store, list[tuple[str, StorePath]]]()
    for path in dict.fromkeys(paths):
        store_path = to_path(path)
        if isinstance(store_path, StorePath):
            stored.setdefault(store_path.store, []).append((path, store_path))
        else:
            identities[path] = _file_hash(path)
    for store, files in stored.items():
        identities |= _last_written(store, files)
    return identities


def _last_written(store: Store, files: Sequence[tuple[str, StorePath]]) -> dict[str, str]:
    """Size and modification time of files of an object store.

    A hash of the bytes if it has no modification times.
    """
    with read_errors(files[0][0]):
        infos = store.file_system.get_file_info([identities.inner for _, identities in files])
    identities = {}
    for (path, _), info in zip(files, infos, strict=True):
        if not info.is_file:
            raise store_error(path, FileNotFoundError())
        identities[path] = _file_hash(path) if info.mtime_ns is None else f"{info.size} {info.mtime_ns}"
    return identities


def _file_hash(path: str) -> str:
    with read_errors(path), to_path(path).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
