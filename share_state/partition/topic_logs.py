"""The logs of ordinary topics in the draft's dialect: user data, and amid it every group's control records."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

from share_state.partition.control_state import ControlState
from share_state.partition.draft_writer import FIRST_EPOCH, DraftWriter
from share_state.partition.outcomes import Outcome
from share_state.partition.segments import LogWriter

Observer = Callable[[str, int, str, ControlState], None]
"""Told of each control record: topic, partition, group, and the group's durable state behind it."""


class TopicLog:
    """One topic-partition: its log on disk, and where the control records in it are.

    Args:
        log: to be written.
        first_epoch, version_prefix: see DraftWriter.
        observe: told of each control record: its group, and the group's durable state behind it.
    """

    def __init__(
        self,
        log: LogWriter,
        *,
        first_epoch: int = FIRST_EPOCH,
        version_prefix: bool = False,
        observe: Callable[[str, ControlState], None] | None = None,
    ) -> None:
        self.log = log
        self.writer = DraftWriter(log, first_epoch=first_epoch, version_prefix=version_prefix, observe=observe)
        self.control_offsets: list[int] = []

    @property
    def data_records(self) -> int:
        """How many records of user data it holds."""
        return self.log.next_offset - len(self.control_offsets)

    def fill(self, end_offset: int, now_ms: int) -> None:
        """Write user data until the log ends at `end_offset`; nothing where it is longer."""
        while self.log.next_offset < end_offset:
            number = self.data_records
            self.log.append(now_ms, f"key-{number % 1000}".encode(), f"record {number}".encode())

    def persist(self, outcome: Outcome) -> None:
        """Write what an event made durable."""
        if outcome.delta is not None:
            self.control_offsets.append(self.writer.delta(outcome.key.group, outcome.delta, outcome.ts_ms))
        if outcome.checkpoint is not None:
            self.control_offsets.append(self.writer.checkpoint(outcome.key.group, outcome.checkpoint, outcome.ts_ms))

    def control_among(self, first: int, last: int) -> list[int]:
        """Offsets of the control records in a range, both ends inclusive."""
        begin = bisect_left(self.control_offsets, first)
        return self.control_offsets[begin : bisect_right(self.control_offsets, last)]

    def next_data_offset(self, offset: int) -> int:
        """The first offset from here on that holds no control record; the log may end before it."""
        place = bisect_left(self.control_offsets, offset)
        while place < len(self.control_offsets) and self.control_offsets[place] == offset:
            place, offset = place + 1, offset + 1
        return offset


class TopicLogs:
    """The logs of all topic-partitions, made as they are first used.

    Args:
        folder: gets a folder `<topic>-<partition>` for each.
        codec, segment_bytes: see LogWriter.
        first_epoch, version_prefix: see DraftWriter.
        observe: told of each control record.
    """

    def __init__(
        self,
        folder: Path,
        *,
        codec: str,
        segment_bytes: int,
        first_epoch: int = FIRST_EPOCH,
        version_prefix: bool = False,
        observe: Observer | None = None,
    ) -> None:
        self.folder, self.codec, self.segment_bytes = folder, codec, segment_bytes
        self.first_epoch, self.version_prefix, self.observe = first_epoch, version_prefix, observe
        self.logs: dict[tuple[str, int], TopicLog] = {}

    def of(self, topic: str, partition: int) -> TopicLog:
        """The log of a topic-partition."""
        if (topic, partition) not in self.logs:
            path = self.folder / f"{topic}-{partition}"
            observe = self.observe
            self.logs[topic, partition] = TopicLog(
                LogWriter(path, codec=self.codec, segment_bytes=self.segment_bytes),
                first_epoch=self.first_epoch,
                version_prefix=self.version_prefix,
                observe=observe and (lambda group, state: observe(topic, partition, group, state)),
            )
        return self.logs[topic, partition]

    def writers(self) -> Iterator[tuple[str, int, DraftWriter]]:
        """Topic, partition and writer of each log."""
        return ((topic, partition, log.writer) for (topic, partition), log in self.logs.items())
