"""Types shared by the simulator: delivery states, state requests and responses, releases, error codes and errors."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

from share_state.errors import ShareStateError

NO_EPOCH = -1
NO_START_OFFSET = -1
NO_DELIVERY_COMPLETE_COUNT = -1


class DeliveryState(IntEnum):
    """Delivery state of an in-flight record; ARCHIVING waits for the dead letter queue.

    Source: Kafka org.apache.kafka.server.share.fetch.RecordState.
    """

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class StateBatch(NamedTuple):
    """Adjacent offsets (inclusive) with the same delivery state and delivery count.

    Source: Kafka org.apache.kafka.server.share.persister.PersisterStateBatch.
    """

    first_offset: int
    last_offset: int
    delivery_state: DeliveryState
    delivery_count: int


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

    Offsets between the persisted end and the highest change are included, so that readers need not guess their state.
    The log writer adds the checkpoint epoch and the back offset.
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


class UnknownReleaseError(ShareStateError):
    """Raised for a release that the simulator does not support."""


@dataclass(frozen=True, slots=True)
class Release:
    """Features of one Kafka release, as a share-partition leader shows them.

    Args:
        name: "4.0" to "4.4".
        fetches_load_gaps: offsets that no loaded batch covers are fetched again.
        refuses_inverted_batches: a loaded batch with last < first fails the share-partition.
        counts_completed: writes carry the delivery complete count (KIP-1226).
        renews: acknowledgement type 4 is supported (KIP-1222).
        limits_records: acquire mode RECORD_LIMIT is supported (KIP-1206).
        throttles: batches near the delivery count limit are delivered in smaller parts.
        leave_decrements_count: records of a member that leaves get their last delivery uncounted.
        archiving: whether a loaded batch in state 3 is refused, kept, or resumed (sent to the dead letter queue again).
        dead_letters: rejected and exhausted records may go to a dead letter queue (KIP-1191).
    Source: kafka.server.share.SharePartition of each release.
    """

    name: str
    fetches_load_gaps: bool
    refuses_inverted_batches: bool
    counts_completed: bool
    renews: bool
    limits_records: bool
    throttles: bool
    leave_decrements_count: bool
    archiving: Literal["refused", "kept", "resumed"]
    dead_letters: bool


#               name  gaps   inverted  count  renew  limits throttles leave  archiving  dead letters
_TABLE = (
    Release("4.0", False, False, False, False, False, False, True, "refused", False),
    Release("4.1", True, False, False, False, False, False, True, "refused", False),
    Release("4.2", True, True, True, True, True, True, False, "refused", False),
    Release("4.3", True, True, True, True, True, True, False, "kept", False),
    Release("4.4", True, True, True, True, True, True, False, "resumed", True),
)

RELEASES = {release.name: release for release in _TABLE}


def find_release(version: str) -> Release:
    """The release of a version such as "4.3" or "4.3.1".

    Raises:
        UnknownReleaseError: if it is not supported.
    """
    line = ".".join(version.split(".")[:2])
    if line not in RELEASES:
        raise UnknownReleaseError(
            f"release {version}: not supported by the simulator; use one of {', '.join(RELEASES)}"
        )
    return RELEASES[line]


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


class SimulationError(ShareStateError):
    """Raised when an argument or the output folder of a simulation cannot be used."""
