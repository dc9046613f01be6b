"""Types shared by the simulator: delivery states, state requests and responses, releases, error codes and errors."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal, NamedTuple

from share_state.errors import ShareStateError
from share_state.kafka.delivery_states import DeliveryState

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


class SimulationError(ShareStateError):
    """Raised when an argument or the output folder of a simulation cannot be used."""


@dataclass(frozen=True, slots=True)
class Release:
    """Features of the partition leaders and share coordinators of one Kafka release.

    Args:
        name: "4.0" to "4.4".
        layout: layout of record values, as in schemas/records.
        has_initialize: share-partitions are initialized, deleted and snapshotted when cold; otherwise the first read
            or write creates the state.
        fetches_load_gaps: offsets that no loaded batch covers are fetched again.
        leave_decrements_count: records of a member that leaves get their last delivery uncounted.
        uses_request_epochs: a write records the request's epochs instead of the state's.
        snapshots_higher_state_epoch: a write with a higher state epoch becomes a snapshot.
        refuses_inverted_batches: a loaded batch with last < first fails the share-partition.
        counts_completed: writes and values carry the delivery complete count (KIP-1226).
        counts_first_update: the first update counts towards the next snapshot.
        renews: acknowledgement type 4 is supported (KIP-1222).
        limits_records: acquire mode RECORD_LIMIT is supported (KIP-1206).
        throttles: batches near the delivery count limit are delivered in smaller parts.
        archiving: whether a loaded batch in state 3 is refused, kept, or resumed (sent to the dead letter queue again).
        exempts_reads_without_epoch: a read with leader epoch -1 is not fenced.
        dead_letters: rejected and exhausted records may go to a dead letter queue (KIP-1191).
        refuses_negative_epochs: requests with negative epochs are invalid.
        keeps_greater_start: updates keep the greater start and its delivery complete count.
        merges_neighbours: merged batches are maximal runs (the sweep-line combiner).
    Source: Kafka SharePartition and ShareCoordinatorShard of 4.0.2, 4.1.2, 4.2.1, 4.3.1 and 4.4.0.
    """

    name: str
    layout: str = "4.1+"
    has_initialize: bool = True
    fetches_load_gaps: bool = True
    leave_decrements_count: bool = False
    uses_request_epochs: bool = False
    snapshots_higher_state_epoch: bool = False
    refuses_inverted_batches: bool = True
    counts_completed: bool = True
    counts_first_update: bool = True
    renews: bool = True
    limits_records: bool = True
    throttles: bool = True
    archiving: Literal["refused", "kept", "resumed"] = "refused"
    exempts_reads_without_epoch: bool = False
    dead_letters: bool = False
    refuses_negative_epochs: bool = False
    keeps_greater_start: bool = False
    merges_neighbours: bool = False


_4_1 = Release(
    "4.1",
    leave_decrements_count=True,
    uses_request_epochs=True,
    snapshots_higher_state_epoch=True,
    refuses_inverted_batches=False,
    counts_completed=False,
    counts_first_update=False,
    renews=False,
    limits_records=False,
    throttles=False,
)
_4_0 = replace(_4_1, name="4.0", layout="4.0", has_initialize=False, fetches_load_gaps=False,
               snapshots_higher_state_epoch=False)  # fmt: skip
_4_3 = Release("4.3", archiving="kept", exempts_reads_without_epoch=True)
LATEST = replace(_4_3, name="4.4", archiving="resumed", dead_letters=True, refuses_negative_epochs=True,
                 keeps_greater_start=True, merges_neighbours=True)  # fmt: skip

RELEASES = {release.name: release for release in (_4_0, _4_1, Release("4.2"), _4_3, LATEST)}


def find_release(version: str) -> Release:
    """The release of a version such as "4.3" or "4.3.1".

    Raises:
        SimulationError: if it is not supported.
    """
    line = ".".join(version.split(".")[:2])
    if line not in RELEASES:
        raise SimulationError(f"release {version}: not supported by the simulator; use one of {', '.join(RELEASES)}")
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
