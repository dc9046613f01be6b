"""Where the logs of topics begin and end, from a broker's data folder: checkpoint files, and batch headers only.

A broker notes log starts in `log-start-offset-checkpoint` and high watermarks in
`replication-offset-checkpoint`. A log ends after its last complete batch; its offset index leads close to it,
so that few headers are read, and no records.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from share_state.kafka.primitives import parse_digits
from share_state.sources.batch_headers import SegmentHeaders, find_segments
from share_state.sources.discovery import HIGH_WATERMARK_CHECKPOINT
from share_state.stores.object_stores import StorePath, read_errors
from share_state.stores.paths import InputPath

_LARGEST_INT32 = 2**31 - 1

_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>\d{1,10})", re.ASCII)
_TOPIC_ID = re.compile(r"^topic_id: *(\S+)", re.MULTILINE)
_NODE_ID = re.compile(r"^node\.id *= *(\d+)", re.MULTILINE)

LOG_START_CHECKPOINT = "log-start-offset-checkpoint"


@dataclass(frozen=True, slots=True)
class TopicExtent:
    """Where the log of a topic partition begins and ends, according to one broker's folder.

    Attributes:
        topic, partition: as in the name of its folder or in the checkpoint files.
        topic_id: from partition.metadata; None if its folder is not in the export.
        start: offset of its first record; None if unknown.
        end: offset after its last record.
        is_log_end: whether `end` is the end of the log; if not, it is only the high watermark that was noted
            last.
        leader_epoch: of the last batch; -1 if unknown.
        node_id: the broker; None if unknown.
    """

    topic: str
    partition: int
    topic_id: str | None
    start: int | None
    end: int
    is_log_end: bool
    leader_epoch: int = -1
    node_id: int | None = None


def read_extents(data_folder: InputPath) -> list[TopicExtent]:
    """The extents of all topic partitions in a broker's data folder.

    In an object store, where each header takes a request, only the checkpoint files are read.

    Raises:
        InputError: if a file cannot be read.
    Source: Kafka LogManager, OffsetCheckpointFile, UnifiedLog.
    """
    with read_errors(data_folder):
        starts, marks = (
            read_checkpoint(data_folder / name) for name in (LOG_START_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)
        )
        node = _NODE_ID.search(_text(data_folder / "meta.properties"))
        node_id = parse_digits(node[1], _LARGEST_INT32) if node else None
        folders = [] if isinstance(data_folder, StorePath) else sorted(data_folder.iterdir())
        extents = dict[tuple[str, int], TopicExtent]()
        for folder in folders:
            key = _topic_partition(folder.name)
            if key is None or not folder.is_dir():
                continue
            extent = _read_extent(folder, *key, starts.get(key), marks.get(key), node_id)
            if extent is not None:
                extents[key] = extent
    for key in marks.keys() - extents.keys():
        extents[key] = TopicExtent(*key, None, starts.get(key), marks[key], is_log_end=False, node_id=node_id)
    return [extents[key] for key in sorted(extents)]


def topic_folders(data_folders: Iterable[InputPath]) -> list[tuple[str, int]]:
    """Topic and partition of each folder with a log in brokers' data folders.

    Raises:
        InputError: if a data folder cannot be read.
    """
    found = set[tuple[str, int]]()
    for data_folder in data_folders:
        with read_errors(data_folder):
            found |= {
                key for folder in data_folder.iterdir() if (key := _topic_partition(folder.name)) is not None
            }
    return sorted(found)


def _topic_partition(folder_name: str) -> tuple[str, int] | None:
    """Topic and partition of a folder by its name; None if it is not that of a topic partition."""
    name = _FOLDER.fullmatch(folder_name)
    number = parse_digits(name["partition"], _LARGEST_INT32) if name is not None else None
    return None if name is None or number is None else (name["topic"], number)


def _read_extent(
    folder: InputPath,
    topic: str,
    partition: int,
    noted_start: int | None,
    mark: int | None,
    node_id: int | None,
) -> TopicExtent | None:
    segments = find_segments(folder)
    if not segments:
        return None
    topic_id = _TOPIC_ID.search(_text(folder / "partition.metadata"))
    base_offset, last = segments[-1]
    end, epoch = _end_of(last, base_offset)
    # A log of which only the older segments were copied ends later than its copy.
    end = max(end, mark or 0)
    start = max(segments[0][0], noted_start or 0)
    return TopicExtent(topic, partition, topic_id and topic_id[1], start, end, True, epoch, node_id)


def _end_of(segment: InputPath, base_offset: int) -> tuple[int, int]:
    """The offset after the last complete batch of a segment, and its leader epoch.

    -1 if there is no batch.
    """
    end, epoch = base_offset, -1
    with SegmentHeaders(segment, base_offset) as headers:
        for header in headers.walk(headers.position_near()):
            end = header.last_offset + 1
            epoch = header.leader_epoch
    return end, epoch


def read_checkpoint(file: InputPath) -> dict[tuple[str, int], int]:
    """The offsets by topic and partition in one of a broker's checkpoint files; empty if there is none.

    Source: Kafka CheckpointFile: its version, the number of entries, and one entry per line.
    """
    offsets = dict[tuple[str, int], int]()
    for line in _text(file).splitlines()[2:]:
        words = line.split()
        if len(words) == 3:
            number, offset = parse_digits(words[1], _LARGEST_INT32), parse_digits(words[2])
            if number is not None and offset is not None:
                offsets[words[0], number] = offset
    return offsets


def latest_extents(
    extents: Iterable[TopicExtent], leaders: dict[tuple[str, int], int]
) -> Sequence[TopicExtent]:
    """One extent per topic partition: of its replicas, that of the latest leader epoch, of its leader, or the longest.

    Args:
        extents: those of all brokers; of topics that were deleted, too, if their folders remain.
        leaders: topic and partition -> id of the broker that leads it.
    """
    latest = dict[tuple[str, str | None, int], tuple[tuple[object, ...], TopicExtent]]()
    for extent in extents:
        is_leader = (
            extent.node_id is not None and leaders.get((extent.topic, extent.partition)) == extent.node_id
        )
        rank = (extent.is_log_end, extent.leader_epoch, is_leader, extent.end)
        key = extent.topic, extent.topic_id, extent.partition
        if key not in latest or latest[key][0] < rank:
            latest[key] = rank, extent
    return [extent for _, extent in latest.values()]


def _text(file: InputPath) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
