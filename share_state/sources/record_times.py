"""When records of topics were written, from the segments of the topics in a broker's data folder.

The offset index of a segment leads close to the record batch of an offset, so that few headers and one batch
are read.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from share_state.kafka.primitives import LARGEST_INT64
from share_state.kafka.record_batches import locate_records
from share_state.sources.batch_headers import BatchHeader, SegmentHeaders, find_segments
from share_state.sources.log_partition import LogPartition, Segment
from share_state.sources.log_times import LATEST_MS
from share_state.sources.segments import read_chunks
from share_state.sources.topic_extents import topic_folders
from share_state.stores.object_stores import StorePath, read_errors
from share_state.stores.paths import InputPath, to_path

RecordPlace = tuple[str, int, int]
"""Topic, partition and offset of a record."""

FoundRecord = tuple[int, int]
"""Offset and timestamp (ms) of a record."""


class RecordTimes(Protocol):
    """Where records of topics can be read."""

    def partitions(self) -> Sequence[tuple[str, int]] | None:
        """The partitions that are there, as topic and number; None for any."""
        ...

    def read(self, places: Iterable[RecordPlace]) -> dict[RecordPlace, FoundRecord]:
        """The record at each place, or the next one if the offset has none; without places that have neither.

        Raises:
            InputError: if records cannot be read.
        """
        ...

    def retention(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Topic -> ms for which brokers keep its records, -1 for no limit of time.

        Empty if they are not asked.
        """
        ...


class FolderRecordTimes:
    """The records in data folders of brokers; a `RecordTimes`. Folders in an object store are not read."""

    def __init__(self, paths: Iterable[str]) -> None:
        """Take the paths of data folders."""
        self._folders = [folder for path in paths if not isinstance(folder := to_path(path), StorePath)]

    def partitions(self) -> list[tuple[str, int]]:
        """The partitions whose logs are in the folders."""
        return topic_folders(self._folders)

    def read(self, places: Iterable[RecordPlace]) -> dict[RecordPlace, FoundRecord]:
        """The records."""
        return read_records(self._folders, places)

    def retention(self, topics: Sequence[str]) -> Mapping[str, int]:
        """No broker is asked."""
        del topics
        return {}


def read_records(
    data_folders: Sequence[InputPath], places: Iterable[RecordPlace]
) -> dict[RecordPlace, FoundRecord]:
    """Records in the logs of topics.

    Args:
        data_folders: data folders of brokers in a local file system.
        places: where the records are; if an offset has no record, as after compaction, the next one counts.
    Returns:
        Only places whose record is in one of the folders, and has a time.
    Raises:
        InputError: if a segment cannot be read.
    """
    offsets_by_partition = dict[tuple[str, int], set[int]]()
    for topic, partition, offset in places:
        offsets_by_partition.setdefault((topic, partition), set()).add(offset)
    records = dict[RecordPlace, FoundRecord]()
    for data_folder in data_folders:
        for (topic, partition), offsets in offsets_by_partition.items():
            folder = data_folder / f"{topic}-{partition}"
            with read_errors(folder):
                if not folder.is_dir():
                    continue
                for offset, record in _find_records(folder, sorted(offsets)):
                    # Of several copies, the one counts that has the record itself.
                    place = topic, partition, offset
                    records[place] = min(records.get(place, record), record)
    return {place: record for place, record in records.items() if 0 <= record[1] <= LATEST_MS}


def _find_records(folder: InputPath, offsets: Sequence[int]) -> Iterator[tuple[int, FoundRecord]]:
    """Each offset at or after which the log of a folder has a record, and the first such record.

    Args:
        folder: of a topic partition.
        offsets: ascending.
    """
    segments = find_segments(folder)
    ends = [*(base_offset for base_offset, _ in segments[1:]), LARGEST_INT64]
    begun = 0
    not_found = list[int]()
    for (base_offset, file), end in zip(segments, ends, strict=False):
        begin, begun = begun, bisect_left(offsets, end)
        # The last offsets of a segment may have no record: then the next record is in a later one.
        sought = [*not_found, *offsets[begin:begun]]
        not_found = []
        if not sought:
            continue
        with SegmentHeaders(file, base_offset) as headers:
            for offset in sought:
                record = _first_record(headers, offset)
                if record is None:
                    not_found.append(offset)
                else:
                    yield offset, record


def _first_record(headers: SegmentHeaders, offset: int) -> FoundRecord | None:
    """The first record of a segment at or after an offset; None if there is none."""
    for header in headers.walk(headers.position_near(offset)):
        if header.last_offset >= offset:
            record = _record_in_batch(headers, header, offset)
            if record is not None:
                return record
    return None


def _record_in_batch(headers: SegmentHeaders, header: BatchHeader, offset: int) -> FoundRecord | None:
    """The first record of a batch at or after an offset; None for control batches, too."""
    end = header.position + header.size
    segment = Segment(str(headers.segment), headers.base_offset, end, begin=header.position)
    log = LogPartition(headers.segment.parent.name, None, (segment,), 0)
    for chunk in read_chunks(log, chunk=header.size):
        records = locate_records(chunk.data, chunk.batches)
        later = records[records["offset"] >= offset]
        if len(later):
            return int(later["offset"][0]), int(later["timestamp"][0])
    return None
