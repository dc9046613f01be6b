"""What a share-partition hands to whoever persists it, and what it is loaded from, in both dialects.

In what the releases of Kafka differ, as far as a live share-partition shows it.

The error codes a share-partition and its coordinator answer with.

What a simulation refuses.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

from share_state.errors import ShareStateError

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


class UnknownReleaseError(ShareStateError):
    """Raised when a release has no entry here."""


@dataclass(frozen=True, slots=True)
class Release:
    """One release line.

    Args:
        name: "4.0" to "4.4".
        fetches_load_gaps: after a load, offsets that no recorded batch covers are fetched again.
        refuses_inverted_batches: a loaded batch with last < first fails the share-partition.
        counts_completed: writes carry the delivery complete count (KIP-1226).
        renews: acknowledge type 4 is known (KIP-1222).
        limits_records: the acquire mode that keeps to the number of records asked for (KIP-1206).
        throttles: batches are delivered in ever smaller parts as they near the delivery count limit.
        leave_lowers_count: records of a member that leaves lose the delivery they had.
        archiving: a loaded batch in state 3 is refused, kept as it is, or sent to the dead letter queue again.
        dead_letters: rejected and exhausted records may go to a dead letter queue (KIP-1191).
    Source: the same methods of kafka.server.share.SharePartition, release by release.
    """

    name: str
    fetches_load_gaps: bool
    refuses_inverted_batches: bool
    counts_completed: bool
    renews: bool
    limits_records: bool
    throttles: bool
    leave_lowers_count: bool
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


def release_of(version: str) -> Release:
    """The release line of a version.

    Args:
        version: "4.3" or "4.3.1".
    Returns:
        Its entry.
    Raises:
        UnknownReleaseError: where there is none.
    """
    line = ".".join(version.split(".")[:2])
    if line not in RELEASES:
        raise UnknownReleaseError(
            f"release {version}: not one whose share-partitions are known; give {', '.join(RELEASES)}"
        )
    return RELEASES[line]


class ErrorCode(IntEnum):
    """What a request is answered with.

    Source: Kafka org.apache.kafka.common.protocol.Errors; KIP-932 and KIP-1222, error sets of the share requests.
    """

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    KAFKA_STORAGE_ERROR = 56
    FENCED_LEADER_EPOCH = 74
    GROUP_MAX_SIZE_REACHED = 81
    UNKNOWN_TOPIC_ID = 100
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124


FENCED = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH)
"""A leader that is told one of these is no leader any more; its clients hear NOT_LEADER_OR_FOLLOWER."""


class SimulationError(ShareStateError):
    """Raised when what is to be simulated, or the place for it, cannot be used."""
