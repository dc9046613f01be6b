"""The records of `__share_group_state` as plain values, and what a coordinator makes of each."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from share_state.partition.combining import Batches, combine
from share_state.partition.writer_release import WriterRelease
from share_state.partition.writes import NO_DELIVERY_COMPLETE_COUNT, NO_EPOCH, NO_START_OFFSET

NO_TIME = 0


class StateKey(NamedTuple):
    """A share-partition as records name it: the topic by Kafka's text of its id."""

    group_id: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class DurableState:
    """The state of a share-partition as the coordinator holds it, and as a snapshot says it.

    Attributes:
        create_timestamp, write_timestamp: ms since 1970; NO_TIME in 4.0 and where an update made the state.
        batches: as recorded.
    Source: Kafka ShareGroupOffset, ShareSnapshotValue.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = NO_DELIVERY_COMPLETE_COUNT
    batches: Batches = ()
    create_timestamp: int = NO_TIME
    write_timestamp: int = NO_TIME

    @property
    def is_cold(self) -> bool:
        """True for a snapshot that only repeats an idle share-partition's state."""
        return self.create_timestamp != self.write_timestamp


@dataclass(frozen=True, slots=True)
class UpdateValue:
    """What an update says. Source: Kafka ShareUpdateValue."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = NO_DELIVERY_COMPLETE_COUNT
    batches: Batches = ()


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A record of the log: a snapshot, an update, or a tombstone, whose value is None."""

    key: StateKey
    value: DurableState | UpdateValue | None

    @property
    def kind(self) -> str:
        """In a word: snapshot, update or tombstone."""
        if self.value is None:
            return "tombstone"
        return "snapshot" if isinstance(self.value, DurableState) else "update"


def merged(state: DurableState | None, update: UpdateValue, release: WriterRelease) -> DurableState:
    """The state after an update is replayed, which checks nothing.

    Args:
        state: before it; None where no snapshot precedes the update, so that the update itself becomes the state.
        update: of the log.
        release: whose coordinator replays.
    Source: Kafka ShareCoordinatorShard.handleShareUpdate, merge.
    """
    if state is None:
        return DurableState(
            snapshot_epoch=update.snapshot_epoch,
            state_epoch=0 if release.has_initialize else NO_EPOCH,
            leader_epoch=update.leader_epoch,
            start_offset=update.start_offset,
            delivery_complete_count=update.delivery_complete_count,
            batches=update.batches,
        )
    start = state.start_offset if update.start_offset == NO_START_OFFSET else update.start_offset
    return replace(
        state,
        leader_epoch=state.leader_epoch if update.leader_epoch == NO_EPOCH else update.leader_epoch,
        start_offset=start,
        delivery_complete_count=update.delivery_complete_count,
        batches=combine(state.batches, update.batches, start, joins=release.joins_neighbours),
    )
