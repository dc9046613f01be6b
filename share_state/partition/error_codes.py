"""The error codes a share-partition and its coordinator answer with."""

from enum import IntEnum


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
