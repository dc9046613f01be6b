"""What a share-partition answers."""

from dataclasses import dataclass
from enum import StrEnum

from share_state.partition.error_codes import ErrorCode
from share_state.partition.operations import Operation


class Status(StrEnum):
    """Whether a share-partition answers. Source: Kafka SharePartition.SharePartitionState."""

    EMPTY = "empty"
    ACTIVE = "active"
    FAILED = "failed"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The answer to an acknowledgement, as far as it is known before the write is.

    Args:
        error: NONE where the request holds.
        message: why not, one line, empty where it holds.
        operation: what is to be persisted, None where nothing is.
        lock_timeout_ms: the lock duration in force, for the client to plan its renewals by (KIP-1222).
    """

    error: ErrorCode
    message: str
    operation: Operation | None
    lock_timeout_ms: int
