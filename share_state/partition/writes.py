"""What a share-partition hands to whoever persists it, and what it is loaded from, in both dialects."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

NO_EPOCH = -1
NO_START_OFFSET = -1
NO_DELIVERY_COMPLETE_COUNT = -1


class DeliveryState(IntEnum):
    """Where a record stands between its first delivery and its end. ARCHIVING waits for a dead letter queue.

    Source: Kafka org.apache.kafka.server.share.fetch.RecordState.
    """

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class StateBatch(NamedTuple):
    """Neighbouring offsets that share a delivery state and a delivery count; both offsets are inclusive.

    Source: Kafka org.apache.kafka.server.share.persister.PersisterStateBatch.
    """

    first_offset: int
    last_offset: int
    delivery_state: DeliveryState
    delivery_count: int


@dataclass(frozen=True, slots=True)
class StateWrite:
    """One request to the share coordinator to write the state of one share-partition.

    Args:
        leader_epoch: the partition leader's epoch, a fence.
        state_epoch: the epoch the state was initialized with, a fence.
        start_offset: the start (SPSO) before this operation moves it, so it lags.
        delivery_complete_count: terminal offsets at or after `start_offset`, this operation's included.
        batches: what changed, ascending; not pruned by the start and not merged with earlier writes.
    Source: Kafka WriteShareGroupStateRequest; SharePartition.writeShareGroupState.
    """

    leader_epoch: int
    state_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


@dataclass(frozen=True, slots=True)
class StateRead:
    """What the share coordinator answers a partition leader that loads a share-partition.

    Args:
        state_epoch: the epoch the state was initialized with.
        start_offset: the recorded start, NO_START_OFFSET where none was ever known.
        delivery_complete_count: as last written, NO_DELIVERY_COMPLETE_COUNT where unknown.
        batches: every recorded batch, ascending.
    Source: Kafka ReadShareGroupStateResponse.
    """

    state_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


@dataclass(frozen=True, slots=True)
class DeltaWrite:
    """One SHARE_DELTA of the draft: everything one operation changed, and the offsets that must be told because of it.

    Offsets between the durable end and the highest change come along in their recorded state (acquired with count n is
    available with n - 1), so that no reader has to guess them. The epoch and the back offset are the log writer's.

    Args:
        batches: ascending, equal neighbours joined.
    Source: KIP-932 draft, ShareDeltaValue.
    """

    batches: tuple[StateBatch, ...]


@dataclass(frozen=True, slots=True)
class CheckpointWrite:
    """One SHARE_CHECKPOINT of the draft: the whole recorded state of the share-partition.

    Args:
        start_offset: the start (SPSO).
        end_offset: exclusive end (SPEO) without the trailing offsets that are available and were never delivered.
        batches: the recorded state of [start_offset, end_offset), ascending, equal neighbours joined.
    Source: KIP-932 draft, ShareCheckpointValue.
    """

    start_offset: int
    end_offset: int
    batches: tuple[StateBatch, ...]
