"""The headers of the record batches of one segment, one after another, from a position that its offset index gives."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from share_state.kafka.primitives import parse_digits
from share_state.kafka.record_batches import HEADER_SIZE
from share_state.sources.discovery import is_segment_name
from share_state.stores.paths import InputPath

_LOG_OVERHEAD = 12
_INDEX_ENTRY = 8


class BatchHeader(NamedTuple):
    """What a header says of its batch.

    Attributes:
        position: bytes from the start of the file.
        size: bytes of the batch.
        first_offset, last_offset: offsets in the log partition.
        leader_epoch: of the leader that wrote it.
    """

    position: int
    size: int
    first_offset: int
    last_offset: int
    leader_epoch: int


def find_segments(folder: InputPath) -> list[tuple[int, InputPath]]:
    """The base offset and the file of each segment in the folder of a topic partition, in their order."""
    segments = list[tuple[int, InputPath]]()
    for file in folder.iterdir():
        offset = parse_digits(file.name.removesuffix(".log")) if is_segment_name(file.name) else None
        if offset is not None:
            segments.append((offset, file))
    return sorted(segments)


class SegmentHeaders:
    """The batch headers of a segment; a context manager that holds the file open.

    Attributes:
        segment: the file.
        base_offset: the offset of its name.
    """

    def __init__(self, segment: InputPath, base_offset: int) -> None:
        """Take the file of a segment, and the offset of its name."""
        self.segment = segment
        self.base_offset = base_offset
        self._index: bytes | None = None

    def __enter__(self) -> Self:
        self._size = self.segment.stat().st_size
        self._file: Any = self.segment.open("rb", buffering=0)
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def walk(self, position: int) -> Iterator[BatchHeader]:
        """The headers of complete batches from a position on, at which a batch begins.

        Stops where none follows.
        """
        next_offset = self.base_offset
        while position + HEADER_SIZE <= self._size:
            data = self._read(position)
            first = int.from_bytes(data[:8], "big")
            length = int.from_bytes(data[8:12], "big")
            # A preallocated file ends in zeros.
            is_batch = data[16] == 2 and length >= HEADER_SIZE - _LOG_OVERHEAD and first >= next_offset
            if not is_batch or position + _LOG_OVERHEAD + length > self._size:
                return
            last = first + int.from_bytes(data[23:27], "big")
            yield BatchHeader(
                position, _LOG_OVERHEAD + length, first, last, int.from_bytes(data[12:16], "big", signed=True)
            )
            next_offset = last + 1
            position += _LOG_OVERHEAD + length

    def position_near(self, offset: int | None = None) -> int:
        """A position at which a batch begins, from the offset index; 0 if it gives none.

        Args:
            offset: the batch ends at or before it; None for one close to the end of the segment.
        Source: Kafka OffsetIndex: an entry is the last offset of a batch, relative to the base, and its
        position.
        """
        if self._index is None:
            file = self.segment.parent / self.segment.name.replace(".log", ".index")
            self._index = file.read_bytes() if file.is_file() else b""
        count = len(self._index) // _INDEX_ENTRY
        # Unused entries of a preallocated index are zero.
        used = bisect_left(range(count), True, key=lambda entry: self._entry(entry)[1] == 0)
        if offset is not None:
            used = bisect_right(
                range(used), offset - self.base_offset, key=lambda entry: self._entry(entry)[0]
            )
        if used == 0:
            return 0
        relative, position = self._entry(used - 1)
        if not 0 < position <= self._size - HEADER_SIZE:
            return 0
        data = self._read(position)
        first = int.from_bytes(data[:8], "big")
        last = first + int.from_bytes(data[23:27], "big")
        return position if data[16] == 2 and first <= self.base_offset + relative <= last else 0

    def _entry(self, number: int) -> tuple[int, int]:
        at = number * _INDEX_ENTRY
        index = self._index or b""
        return int.from_bytes(index[at : at + 4], "big"), int.from_bytes(
            index[at + 4 : at + _INDEX_ENTRY], "big"
        )

    def _read(self, position: int) -> bytes:
        self._file.seek(position)
        return self._file.read(HEADER_SIZE)
