"""What a stream has read of a log partition since it looked last: `NewRecords`, with the `LogFacts` of its source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from share_state.sources.log_partition import LogPartition
from share_state.sources.partition_count import PartitionCount
from share_state.sources.record_tables import CONSUMED
from share_state.sources.resume_point import ResumePoint, ResumeStatus

EMPTY_ROWS = CONSUMED.empty_table()


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts about a log partition that a source knows, besides its records; None if unknown.

    Attributes:
        log_start_offset: offset of its first record.
        topic_id: the id of its topic.
        state_partitions: number of partitions of the topic.
    """

    log_start_offset: int | None = None
    topic_id: str | None = None
    state_partitions: int | None = None


@dataclass(frozen=True, slots=True)
class NewRecords:
    """New records of a log partition.

    Attributes:
        partition: its number.
        rows: columns of CONSUMED, in any order, maybe with records that were read before.
        facts: what the source knows of the log.
    """

    partition: int
    rows: pa.Table
    facts: LogFacts = field(default_factory=LogFacts)


@dataclass(frozen=True, slots=True)
class GrownLog:
    """The unread part of a log partition in segments, and how the log has changed; as from `resume`.

    Attributes:
        log: with the segments that are left to read.
        status: None if no state of it was given.
        count: how many partitions the topic has.
    """

    log: LogPartition
    status: ResumeStatus | None
    count: PartitionCount

    @property
    def partition(self) -> int:
        """Its number."""
        assert self.log.partition is not None
        return self.log.partition


@dataclass(frozen=True, slots=True)
class Listing:
    """All log partitions that a source has now, with new records or without.

    Attributes:
        logs: the log partitions.
        count: how many partitions the topic has.
        is_whole: whether the source lacks the partitions that are not among them.
    """

    logs: tuple[LogPartition, ...]
    count: PartitionCount
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Read:
    """What a source had to read.

    Attributes:
        parts: by log partition; none if there is nothing new.
        problems: what cannot be read at all.
        behind: records that the source holds beyond these; None if unknown.
        has_more: whether there is more to read at once.
        is_away: whether the source did not answer.
        listing: None if the source shows nothing but records.
    """

    parts: list[NewRecords | GrownLog] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    behind: int | None = None
    has_more: bool = False
    is_away: bool = False
    listing: Listing | None = None

    @property
    def count(self) -> PartitionCount | None:
        """How many partitions the topic has; None if the source does not show it now."""
        if self.listing is not None:
            return self.listing.count
        facts = (part.facts for part in self.parts if isinstance(part, NewRecords))
        numbers = [one.state_partitions for one in facts if one.state_partitions is not None]
        return PartitionCount(numbers[-1]) if numbers else None


class StreamSource(Protocol):
    """Reads what is new in the log partitions of `__share_group_state`."""

    def read(self, marks: Mapping[int, ResumePoint]) -> Read:
        """What is new since the last call.

        Args:
            marks: log partition -> where its state ends.
        Raises:
            InputError: if the source cannot be read at all.
        """
        ...

    def close(self) -> None:
        """End reading."""
        ...
