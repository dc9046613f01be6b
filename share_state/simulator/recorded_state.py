"""What was recorded of a share-partition, folded offset by offset: the smallest persister there is."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, Protocol

from share_state.simulator.durability import joined
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
    """One topic-partition as one share group sees it."""

    group: str
    topic: str
    partition: int


class Persister(Protocol):
    """Who keeps the state of share-partitions. Source: Kafka org.apache.kafka.server.share.persister.Persister."""

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, now_ms: int) -> ErrorCode:
        """Begin a state, or begin it anew."""
        ...

    def read(self, key: SharePartitionKey, leader_epoch: int, now_ms: int) -> StateRead | ErrorCode:
        """The state, for a leader that loads it; older leaders are fenced from now on."""
        ...

    def write(self, key: SharePartitionKey, write: StateWrite, now_ms: int) -> ErrorCode:
        """Merge a write into the state."""
        ...

    def delete(self, key: SharePartitionKey, now_ms: int) -> ErrorCode:
        """Forget the state."""
        ...

    def cold_snapshot(self, key: SharePartitionKey, now_ms: int) -> None:
        """Have the state recorded whole, unchanged, where it is kept in a log."""
        ...

    def prune(self, now_ms: int) -> None:
        """Let go of records that nothing needs any more, where states are kept in a log."""
        ...


class RecordedBatches:
    """Batches laid over one another, the winner of each offset kept.

    Args:
        batches: to begin with, ascending, disjoint.
    """

    __slots__ = ("_batches",)

    def __init__(self, batches: Iterable[StateBatch] = ()):
        self._batches = list(joined(list(batches)))

    def lay(self, batch: StateBatch, wins: Callable[[StateBatch, StateBatch], bool]) -> None:
        """Lay a batch over what is there.

        Args:
            batch: the new one.
            wins: whether the first of two batches wins against the second where both hold an offset.
        """
        old = self._batches
        begin = bisect_left(old, batch.first_offset, key=_last)
        end = bisect_right(old, batch.last_offset, key=_first)
        laid: list[StateBatch] = []
        at = batch.first_offset
        for other in old[begin:end]:
            low, high = max(other.first_offset, batch.first_offset), min(other.last_offset, batch.last_offset)
            if other.first_offset < low:
                laid.append(other._replace(last_offset=low - 1))
            if at < low:
                laid.append(batch._replace(first_offset=at, last_offset=low - 1))
            laid.append((batch if wins(batch, other) else other)._replace(first_offset=low, last_offset=high))
            if high < other.last_offset:
                laid.append(other._replace(first_offset=high + 1))
            at = high + 1
        if at <= batch.last_offset:
            laid.append(batch._replace(first_offset=at))
        # With their neighbours, so that equal ones are always joined.
        around = [*old[max(begin - 1, 0) : begin], *laid, *old[end : end + 1]]
        old[max(begin - 1, 0) : end + 1] = joined(around)

    def prune(self, start_offset: int) -> None:
        """Let go of everything before the start."""
        batches = self._batches
        keep = bisect_left(batches, start_offset, key=_last)
        del batches[:keep]
        if batches and batches[0].first_offset < start_offset:
            batches[0] = batches[0]._replace(first_offset=start_offset)

    def all(self) -> tuple[StateBatch, ...]:
        """Every batch, ascending, equal neighbours joined."""
        return tuple(self._batches)

    def end_of_leading(self, start_offset: int, states: Container[DeliveryState]) -> int:
        """The first offset from the start on that is not in one of the states.

        Args:
            start_offset: nothing is held before it.
            states: to be passed.
        """
        for batch in self._batches:
            if batch.first_offset > start_offset or batch.delivery_state not in states:
                break
            start_offset = batch.last_offset + 1
        return start_offset


def is_further(new: StateBatch, old: StateBatch) -> bool:
    """The higher delivery count wins, then the higher state. Source: Kafka PersisterStateBatchCombiner."""
    return (new.delivery_count, new.delivery_state) > (old.delivery_count, old.delivery_state)


def is_later(new: StateBatch, old: StateBatch) -> bool:
    """The later batch wins. Source: KIP-932 draft, recovery."""
    return True


@dataclass(slots=True)
class _State:
    state_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: RecordedBatches = field(default_factory=RecordedBatches)


class MemoryPersister:
    """Keeps states in memory, folded, without records: what is durable is what was merged here.

    Source: Kafka ShareCoordinatorShard, its checks and its merge.
    """

    def __init__(self) -> None:
        self._states: dict[SharePartitionKey, _State] = {}
        self._state_epochs: dict[SharePartitionKey, int] = {}
        self._leader_epochs: dict[SharePartitionKey, int] = {}

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, now_ms: int) -> ErrorCode:
        """Begin a state without batches; an older epoch than the greatest known is fenced."""
        if state_epoch != NO_EPOCH and state_epoch < self._state_epochs.get(key, NO_EPOCH):
            return ErrorCode.FENCED_STATE_EPOCH
        self._states[key] = _State(state_epoch, start_offset, -1 if start_offset == NO_START_OFFSET else 0)
        self._state_epochs[key] = max(state_epoch, self._state_epochs.get(key, NO_EPOCH))
        return ErrorCode.NONE

    def read(self, key: SharePartitionKey, leader_epoch: int, now_ms: int) -> StateRead | ErrorCode:
        """The state; an older leader than the newest known is fenced."""
        state = self._states.get(key)
        if state is None:
            return ErrorCode.INVALID_REQUEST
        if leader_epoch < self._leader_epochs.get(key, NO_EPOCH):
            return ErrorCode.FENCED_LEADER_EPOCH
        self._leader_epochs[key] = leader_epoch
        return StateRead(state.state_epoch, state.start_offset, state.delivery_complete_count, state.batches.all())

    def write(self, key: SharePartitionKey, write: StateWrite, now_ms: int) -> ErrorCode:
        """Merge a write, offset by offset; older leaders and older states are fenced."""
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
            state.batches.lay(batch, is_further)
        state.batches.prune(state.start_offset)
        return ErrorCode.NONE

    def delete(self, key: SharePartitionKey, now_ms: int) -> ErrorCode:
        """Forget the state and its epochs."""
        for known in (self._states, self._state_epochs, self._leader_epochs):
            known.pop(key, None)
        return ErrorCode.NONE

    def cold_snapshot(self, key: SharePartitionKey, now_ms: int) -> None:
        """Nothing: there is no log."""

    def prune(self, now_ms: int) -> None:
        """Nothing: there is no log."""
