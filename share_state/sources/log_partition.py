"""`LogPartition`: a partition of a topic, with the segments and copies that an input has of it.

A `RecordSource` reads one from another format than segments.

`discovery` finds log partitions in folders, `join_copies` and `of_copies` combine and select their copies.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from share_state.kafka.compression import MAX_BODY_SIZE
from share_state.sources.topics import Topics
from share_state.stores.paths import to_path

if TYPE_CHECKING:
    from share_state.kafka.record_batches import Chunk


class RecordSource(Protocol):
    """Reads a log partition from a format other than segments.

    Small and picklable, because it is sent to the tasks.

    Attributes:
        form: name of the format, as in `--format`.
        has_offsets: whether the format has offsets; otherwise records are numbered in their order.
        has_times: whether the format has timestamps.
        has_sizes: whether the format has the sizes of batches.
    """

    @property
    def form(self) -> str: ...  # noqa: D102
    @property
    def has_offsets(self) -> bool: ...  # noqa: D102
    @property
    def has_times(self) -> bool: ...  # noqa: D102
    @property
    def has_sizes(self) -> bool: ...  # noqa: D102

    def chunks(self, log: "LogPartition", chunk: int, *, merge: bool) -> Iterator["Chunk"]:
        """The chunks of a log partition in log order; `records` is set in each.

        Args:
            log: the log partition; its segments are files of this format.
            chunk: bytes of keys and values to hold in memory at a time.
            merge: whether files may overlap; if so, all of them are scanned first, as in `read_chunks`.
        Raises:
            RepeatedOffsetsError: if `merge` is off and files overlap.
            InputError: if a file has another format.
        """
        ...


STATE_TOPIC = "__share_group_state"
LARGEST_PARTITION = 2**31 - 1
"""The largest number of a partition: Kafka's are int32."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One `.log` file, or a file of another format.

    Attributes:
        path: path of the file.
        base_offset: first offset according to its name.
        size: bytes.
        replica: number of the replica (or copy) of the log that it belongs to.
        begin: position to read from; earlier runs read the bytes before it.
    """

    path: str
    base_offset: int
    size: int
    replica: int = 0
    begin: int = 0

    @property
    def unread(self) -> int:
        """Bytes to be read."""
        return self.size - self.begin


@dataclass(frozen=True, slots=True)
class LogCopy:
    """Metadata of one copy of a log, from the files beside its segments.

    Attributes:
        log_start_offset: first offset that a broker would load.
        start_is_recorded: whether the broker's checkpoint files show that its log begins there or later, at
            an offset after 0: log-start-offset-checkpoint and the first entry of leader-epoch-checkpoint, if
            both are there.
        high_watermark: from replication-offset-checkpoint; None if absent.
        leader_epochs: leader epochs and their first offsets, from leader-epoch-checkpoint.
    """

    log_start_offset: int
    start_is_recorded: bool = False
    high_watermark: int | None = None
    leader_epochs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LogPartition:
    """One partition of a topic with all its replicas in the input.

    Attributes:
        topic: name of the topic.
        partition: number; None if no folder name contains it.
        segments: all segments of all replicas, by base offset.
        log_start_offset: first offset that a broker would load, the lowest of all replicas.
        start_is_recorded: whether the broker records that its log begins there or later, as in LogCopy.
        topic_id: from partition.metadata, None if there is none.
        source: reads input of another format; None for segments of a broker.
        copies: metadata of the replicas, by `Segment.replica`.
        max_body_size: bytes that a batch of segments may have when decompressed.
        holds_all: whether every record since `log_start_offset` is in the input. If not, records of other
            share-partitions are elsewhere, and neither the log start nor a gap is known; `log_start_offset` is 0.
    """

    topic: str
    partition: int | None
    segments: tuple[Segment, ...]
    log_start_offset: int
    start_is_recorded: bool = False
    topic_id: str | None = None
    source: RecordSource | None = None
    copies: tuple[LogCopy, ...] = ()
    max_body_size: int = MAX_BODY_SIZE
    holds_all: bool = True

    @property
    def shows_its_start(self) -> bool:
        """Whether the broker's own log has no record before `log_start_offset` that it would load."""
        is_known = self.log_start_offset == 0 or self.start_is_recorded
        return self.has_offsets and self.holds_all and is_known

    @property
    def committed_end(self) -> int | None:
        """The offset before which every later leader has the records; None if the input does not show it.

        The greatest high watermark that is recorded beside a copy, or the start of the latest leader epoch:
        that leader has all records before it.
        """
        if self.high_watermark is None:
            return None
        return max([self.high_watermark, *(start for copy in self.copies for _, start in copy.leader_epochs)])

    @property
    def high_watermark(self) -> int | None:
        """The greatest high watermark that is recorded beside a copy; None if there is none."""
        return max(
            (copy.high_watermark for copy in self.copies if copy.high_watermark is not None), default=None
        )

    @property
    def has_offsets(self) -> bool:
        """Whether offsets are known; otherwise records are numbered in their order."""
        return self.source is None or self.source.has_offsets

    @property
    def has_times(self) -> bool:
        """Whether timestamps are known."""
        return self.source is None or self.source.has_times

    @property
    def has_sizes(self) -> bool:
        """Whether the sizes of batches are known."""
        return self.source is None or self.source.has_sizes

    @property
    def name(self) -> str:
        """`topic-partition`.

        If the partition is unknown, the path of the folder, or of the file of another format.
        """
        if self.partition is not None:
            return f"{self.topic}-{self.partition}"
        path = self.segments[0].path
        return str(to_path(path).parent) if self.source is None else path

    @property
    def size(self) -> int:
        """Bytes to read in all segments."""
        return sum(segment.unread for segment in self.segments)

    @property
    def has_replicas(self) -> bool:
        """Whether segments come from more than one replica and may overlap."""
        return len({segment.replica for segment in self.segments}) > 1


@dataclass(frozen=True, slots=True)
class Export:
    """The contents of one export: files or a running cluster.

    Attributes:
        logs: log partitions of the state topic, or of the topics of control records.
        groups: partitions of `__consumer_offsets` in the same tables, texts or cluster.
        notes: facts that the result depends on, one line each.
        topics: names and end offsets; None if the export does not hold them.
        state_partitions: number of partitions of the state topic; None if the export does not show it.
        group_partitions: number of partitions of `__consumer_offsets`; None if the export does not show it.
    """

    logs: list[LogPartition]
    groups: tuple[LogPartition, ...] = ()
    notes: tuple[str, ...] = ()
    topics: Topics | None = None
    state_partitions: int | None = None
    group_partitions: int | None = None


def of_copies(log: LogPartition, numbers: Collection[int]) -> LogPartition:
    """A log partition with only the copies of these numbers."""
    copies = [log.copies[number] for number in numbers]
    start = min(copy.log_start_offset for copy in copies)
    is_recorded = any(copy.start_is_recorded for copy in copies if copy.log_start_offset == start)
    segments = in_offset_order(segment for segment in log.segments if segment.replica in numbers)
    return replace(log, segments=segments, log_start_offset=start, start_is_recorded=is_recorded)


def in_offset_order(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Segments by base offset, those of different replicas side by side."""
    return tuple(sorted(segments, key=lambda segment: (segment.base_offset, segment.replica)))


def join_copies(log: LogPartition, other: LogPartition) -> LogPartition:
    """Join the copies of a log partition from two inputs."""
    count = len(log.copies)
    segments = (*log.segments, *(replace(one, replica=one.replica + count) for one in other.segments))
    copies, topic_id = log.copies + other.copies, log.topic_id or other.topic_id
    joined = replace(log, segments=segments, topic_id=topic_id, copies=copies)
    return of_copies(joined, {segment.replica for segment in segments})


GROUP_TOPIC = "__consumer_offsets"
