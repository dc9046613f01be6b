"""When records of topics were written, from the segments of the topics in a broker's data folder.

The offset index of a segment leads close to the record batch of an offset, so that few headers and one batch
are read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from share_state.kafka.record_batches import locate_records
from share_state.sources.batch_headers import BatchHeader, SegmentHeaders, find_segments
from share_state.sources.discovery import LogPartition, Segment
from share_state.sources.segments import read_chunks
from share_state.sources.topic_extents import topic_folders
from share_state.stores.object_stores import StorePath, read_errors
from share_state.stores.paths import InputPath, to_path

RecordPlace = tuple[str, int, int]
"""Topic, partition and offset of a record."""

_OffsetTime = tuple[int, int]
"""Offset and timestamp of a record."""

_LATEST_MS = 253_402_300_799_999
"""The last ms of year 9999; a later timestamp does not say when a record was written."""


class RecordTimes(Protocol):
    """Where records of topics can be read."""

    def partitions(self) -> Sequence[tuple[str, int]] | None:
        """The partitions that are there, as topic and number; None for any."""
        ...

    def read(self, places: Iterable[RecordPlace]) -> dict[RecordPlace, int]:
        """The timestamps of records, ms, or of the next record if an offset has none.

        Only of those that are there.

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

    def read(self, places: Iterable[RecordPlace]) -> dict[RecordPlace, int]:
        """The timestamps of the records."""
        return read_record_times(self._folders, places)

    def retention(self, topics: Sequence[str]) -> Mapping[str, int]:
        """No broker is asked."""
        del topics
        return {}


def read_record_times(
    data_folders: Sequence[InputPath], places: Iterable[RecordPlace]
) -> dict[RecordPlace, int]:
    """The timestamps of records in the logs of topics, ms.

    Args:
        data_folders: data folders of brokers in a local file system.
        places: where the records are; if an offset has no record, as after compaction, the next record
            counts.
    Returns:
        Only the places whose record is in one of the folders.
    Raises:
        InputError: if a segment cannot be read.
    """
    wanted = dict[tuple[str, int], set[int]]()
    for topic, partition, offset in places:
        wanted.setdefault((topic, partition), set()).add(offset)
    found = dict[RecordPlace, _OffsetTime]()
    for data_folder in data_folders:
        for (topic, partition), offsets in wanted.items():
            folder = data_folder / f"{topic}-{partition}"
            with read_errors(folder):
                if not folder.is_dir():
                    continue
                for offset, record in _find_records(folder, sorted(offsets)):
                    # Of several copies, the one counts that has the record itself.
                    place = topic, partition, offset
                    found[place] = min(found.get(place, record), record)
    return {place: time for place, (_, time) in found.items() if 0 <= time <= _LATEST_MS}


def _find_records(folder: InputPath, offsets: Sequence[int]) -> Iterator[tuple[int, _OffsetTime]]:
    """Each offset at or after which the log of a folder has a record, and the first such record."""
    segments = find_segments(folder)
    bases = [base for base, _ in segments]
    segment_of = np.maximum(np.searchsorted(bases, offsets, side="right") - 1, 0)
    for offset, number in zip(offsets, segment_of.tolist(), strict=True):
        # The last offsets of a segment may have no record: then the next record is in a later one.
        for base_offset, file in segments[number:]:
            record = _first_record(file, base_offset, offset)
            if record is not None:
                yield offset, record
                break


def _first_record(file: InputPath, base_offset: int, offset: int) -> _OffsetTime | None:
    """The first record of a segment at or after an offset; None if there is none."""
    with SegmentHeaders(file, base_offset) as headers:
        for header in headers.walk(headers.position_near(offset)):
            if header.last_offset >= offset:
                record = _record_in_batch(file, base_offset, header, offset)
                if record is not None:
                    return record
    return None


def _record_in_batch(
    file: InputPath, base_offset: int, header: BatchHeader, offset: int
) -> _OffsetTime | None:
    """The first record of a batch at or after an offset; None for control batches, too."""
    segment = Segment(str(file), base_offset, header.position + header.size, begin=header.position)
    log = LogPartition(file.parent.name, None, (segment,), 0)
    for chunk in read_chunks(log, chunk=header.size):
        records = locate_records(chunk.data, chunk.batches)
        later = records[records["offset"] >= offset]
        if len(later):
            return int(later["offset"][0]), int(later["timestamp"][0])
    return None
