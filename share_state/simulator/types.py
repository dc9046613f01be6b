"""Types shared by the simulator: delivery states, state requests and responses, releases, error codes and errors."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from share_state.errors import ShareStateError
from share_state.kafka.delivery_states import DeliveryState
from share_state.kafka.releases import Release, refusal_of, release_of

NO_EPOCH = -1
NO_START_OFFSET = -1
NO_DELIVERY_COMPLETE_COUNT = -1


class StateBatch(NamedTuple):
    """Adjacent offsets (inclusive) with the same delivery state and delivery count.

    Source: Kafka org.apache.kafka.server.share.persister.PersisterStateBatch.
    """

    first_offset: int
    last_offset: int
    delivery_state: DeliveryState
    delivery_count: int


def merge_adjacent(batches: Iterable[StateBatch]) -> tuple[StateBatch, ...]:
    """Merge equal neighbours of ascending, disjoint batches."""
    out: list[StateBatch] = []
    for batch in batches:
        if out and out[-1].last_offset + 1 == batch.first_offset and out[-1][2:] == batch[2:]:
            out[-1] = out[-1]._replace(last_offset=batch.last_offset)
        else:
            out.append(batch)
    return tuple(out)


class SharePartitionKey(NamedTuple):
    """A group's share-partition."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class StateWrite:
    """A write request to the share coordinator.

    Args:
        start_offset: SPSO before this operation moves it, so it lags.
        delivery_complete_count: terminal offsets at or after `start_offset`, including this operation's.
        batches: changed offsets, ascending; not merged with earlier writes.
    Source: Kafka WriteShareGroupStateRequest; SharePartition.writeShareGroupState.
    """

    leader_epoch: int
    state_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


@dataclass(frozen=True, slots=True)
class StateRead:
    """The share coordinator's response to a leader that loads a share-partition.

    Args:
        start_offset: SPSO, or NO_START_OFFSET.
        delivery_complete_count: as last written, or NO_DELIVERY_COMPLETE_COUNT.
        batches: ascending.
    Source: Kafka ReadShareGroupStateResponse.
    """

    state_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


@dataclass(frozen=True, slots=True)
class DeltaWrite:
    """A SHARE_DELTA of the draft: the offsets that one operation changed, ascending.

    Offsets between the persisted end and the highest change are included, so that readers need not guess
    their state. The log writer adds the checkpoint epoch and the back offset.
    Source: KIP-932 draft, ShareDeltaValue.
    """

    batches: tuple[StateBatch, ...]


@dataclass(frozen=True, slots=True)
class CheckpointWrite:
    """A SHARE_CHECKPOINT of the draft: the whole state of the share-partition.

    Args:
        start_offset: SPSO.
        end_offset: SPEO, exclusive, without trailing offsets that were never delivered.
        batches: state of [start_offset, end_offset), ascending, equal neighbours merged.
    Source: KIP-932 draft, ShareCheckpointValue.
    """

    start_offset: int
    end_offset: int
    batches: tuple[StateBatch, ...]


class SimulationError(ShareStateError):
    """Raised when an argument or the output folder of a simulation cannot be used."""


def find_release(version: str) -> Release:
    """The release of a version such as "4.3" or "4.3.1".

    Raises:
        SimulationError: if it is not supported.
    """
    if (release := release_of(version)) is None:
        raise SimulationError(f"--release {refusal_of(version)}")
    return release


class ErrorCode(IntEnum):
    """Error codes of share-group requests.

    Source: Kafka org.apache.kafka.common.protocol.Errors; KIP-932, KIP-1222.
    """

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    KAFKA_STORAGE_ERROR = 56
    FENCED_LEADER_EPOCH = 74
    GROUP_MAX_SIZE_REACHED = 81
    INVALID_RECORD_STATE = 121
    FENCED_STATE_EPOCH = 124


FENCED = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH)
"""Errors that end a leader; its clients get NOT_LEADER_OR_FOLLOWER."""
