"""Where the state of share-partitions is persisted: the persister protocol and one that keeps states in memory."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, Protocol

from share_state.simulator.durability import merge_adjacent
from share_state.simulator.types import (
    NO_EPOCH,
    NO_START_OFFSET,
    DeliveryState,
    ErrorCode,
    StateBatch,
    StateRead,
    StateWrite,
)

_first, _last = attrgetter("first_offset"), attrgetter("last_offset")


class SharePartitionKey(NamedTuple):
    """A group's share-partition."""

    group: str
    topic: str
    partition: int


class Persister(Protocol):
    """Persists the state of share-partitions. Source: Kafka org.apache.kafka.server.share.persister.Persister."""

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, now_ms: int) -> ErrorCode:
        """Initialize or re-initialize the state."""
        ...

    def read(self, key: SharePartitionKey, leader_epoch: int, now_ms: int) -> StateRead | ErrorCode:
        """Read the state for a leader that loads it; earlier leader epochs are fenced from now on."""
        ...

    def write(self, key: SharePartitionKey, write: StateWrite, now_ms: int) -> ErrorCode:
        """Merge a write into the state."""
        ...

    def delete(self, key: SharePartitionKey, now_ms: int) -> ErrorCode:
        """Delete the state."""
        ...

    def cold_snapshot(self, key: SharePartitionKey, now_ms: int) -> None:
        """Write an unchanged snapshot, if states are kept in a log."""
        ...

    def prune(self, now_ms: int) -> None:
        """Delete redundant records, if states are kept in a log."""
        ...


class BatchMap:
    """Ascending, disjoint state batches with equal neighbours merged."""

    def __init__(self, batches: Iterable[StateBatch] = ()):
        self._batches = list(merge_adjacent(list(batches)))

    def overlay(self, batch: StateBatch, wins: Callable[[StateBatch, StateBatch], bool]) -> None:
        """Add a batch; where it overlaps another, `wins(new, old)` decides which one stays."""
        old = self._batches
        begin = bisect_left(old, batch.first_offset, key=_last)
        end = bisect_right(old, batch.last_offset, key=_first)
        overlaid: list[StateBatch] = []
        at = batch.first_offset
        for other in old[begin:end]:
            low, high = max(other.first_offset, batch.first_offset), min(other.last_offset, batch.last_offset)
            if other.first_offset < low:
                overlaid.append(other._replace(last_offset=low - 1))
            if at < low:
                overlaid.append(batch._replace(first_offset=at, last_offset=low - 1))
            overlaid.append((batch if wins(batch, other) else other)._replace(first_offset=low, last_offset=high))
            if high < other.last_offset:
                overlaid.append(other._replace(first_offset=high + 1))
            at = high + 1
        if at <= batch.last_offset:
            overlaid.append(batch._replace(first_offset=at))
        # Including both neighbours, which may equal the new batches.
        around = [*old[max(begin - 1, 0) : begin], *overlaid, *old[end : end + 1]]
        old[max(begin - 1, 0) : end + 1] = merge_adjacent(around)

    def prune(self, start_offset: int) -> None:
        """Remove offsets before the start."""
        batches = self._batches
        keep = bisect_left(batches, start_offset, key=_last)
        del batches[:keep]
        if batches and batches[0].first_offset < start_offset:
            batches[0] = batches[0]._replace(first_offset=start_offset)

    def all(self) -> tuple[StateBatch, ...]:
        """Every batch, ascending, equal neighbours merged."""
        return tuple(self._batches)

    def end_of_leading(self, start_offset: int, states: Container[DeliveryState]) -> int:
        """The first offset from `start_offset` on that is not in one of the states."""
        for batch in self._batches:
            if batch.first_offset > start_offset or batch.delivery_state not in states:
                break
            start_offset = batch.last_offset + 1
        return start_offset


def greater_wins(new: StateBatch, old: StateBatch) -> bool:
    """The greater delivery count wins, then the greater state. Source: Kafka PersisterStateBatchCombiner."""
    return (new.delivery_count, new.delivery_state) > (old.delivery_count, old.delivery_state)


def newer_wins(new: StateBatch, old: StateBatch) -> bool:
    """The newer batch wins. Source: KIP-932 draft, recovery."""
    return True


@dataclass(slots=True)
class _State:
    state_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: BatchMap = field(default_factory=BatchMap)


class MemoryPersister:
    """Keeps merged states in memory, without records. Source: Kafka ShareCoordinatorShard, checks and merge."""

    def __init__(self) -> None:
        self._states: dict[SharePartitionKey, _State] = {}
        self._state_epochs: dict[SharePartitionKey, int] = {}
        self._leader_epochs: dict[SharePartitionKey, int] = {}

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, now_ms: int) -> ErrorCode:
        """Initialize a state without batches; lower state epochs are fenced."""
        if state_epoch != NO_EPOCH and state_epoch < self._state_epochs.get(key, NO_EPOCH):
            return ErrorCode.FENCED_STATE_EPOCH
        self._states[key] = _State(state_epoch, start_offset, -1 if start_offset == NO_START_OFFSET else 0)
        self._state_epochs[key] = max(state_epoch, self._state_epochs.get(key, NO_EPOCH))
        return ErrorCode.NONE

    def read(self, key: SharePartitionKey, leader_epoch: int, now_ms: int) -> StateRead | ErrorCode:
        """Read the state; lower leader epochs are fenced."""
        state = self._states.get(key)
        if state is None:
            return ErrorCode.INVALID_REQUEST
        if leader_epoch < self._leader_epochs.get(key, NO_EPOCH):
            return ErrorCode.FENCED_LEADER_EPOCH
        self._leader_epochs[key] = leader_epoch
        return StateRead(state.state_epoch, state.start_offset, state.delivery_complete_count, state.batches.all())

    def write(self, key: SharePartitionKey, write: StateWrite, now_ms: int) -> ErrorCode:
        """Merge a write; lower leader epochs and state epochs are fenced."""
        state = self._states.get(key)
        if state is None:
            return ErrorCode.INVALID_REQUEST
        if write.leader_epoch < self._leader_epochs.get(key, NO_EPOCH):
            return ErrorCode.FENCED_LEADER_EPOCH
        if write.state_epoch < self._state_epochs.get(key, NO_EPOCH):
            return ErrorCode.FENCED_STATE_EPOCH
        state.start_offset = max(state.start_offset, write.start_offset)
        state.delivery_complete_count = write.delivery_complete_count
        for batch in write.batches:
            state.batches.overlay(batch, greater_wins)
        state.batches.prune(state.start_offset)
        return ErrorCode.NONE

    def delete(self, key: SharePartitionKey, now_ms: int) -> ErrorCode:
        """Delete the state and its epochs."""
        for known in (self._states, self._state_epochs, self._leader_epochs):
            known.pop(key, None)
        return ErrorCode.NONE

    def cold_snapshot(self, key: SharePartitionKey, now_ms: int) -> None:
        """Do nothing: there is no log."""

    def prune(self, now_ms: int) -> None:
        """Do nothing: there is no log."""
