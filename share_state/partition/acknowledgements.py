"""What a member says about the records it holds, and the checks a request must pass before anything is looked up."""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple


class AckType(IntEnum):
    """How a delivery ended. A gap is an offset that holds no record.

    Source: Kafka org.apache.kafka.clients.consumer.AcknowledgeType; KIP-932, KIP-1222.
    """

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AckBatch(NamedTuple):
    """Acknowledgements of neighbouring offsets: one type for all of them, or one an offset.

    Source: Kafka ShareAcknowledgementBatch.
    """

    first_offset: int
    last_offset: int
    types: tuple[int, ...]


class AckSegment(NamedTuple):
    """Neighbouring offsets of one request that are acknowledged alike."""

    first_offset: int
    last_offset: int
    type: AckType


RENEW_SINCE_VERSION = 2


def complaint(batches: Sequence[AckBatch], *, is_renew_ack: bool, version: int = RENEW_SINCE_VERSION) -> str | None:
    """Why a share-partition's part of a request is refused with INVALID_REQUEST, None where it is not.

    Args:
        batches: in the order of the request.
        is_renew_ack: the request says that it holds renewals.
        version: of ShareFetch or ShareAcknowledge; renewals are known from 2 on.
    Returns:
        The first reason, one line.
    Source: Kafka KafkaApis.validateAcknowledgementBatches; KIP-1222.
    """
    greatest = AckType.RENEW if version >= RENEW_SINCE_VERSION else AckType.REJECT
    previous = -1
    for first, last, types in batches:
        if first > last:
            return f"acknowledgement {first}-{last} ends before it begins"
        if first < previous:
            return f"acknowledgement {first}-{last} begins before the one ahead of it ends, at {previous}"
        if not types:
            return f"acknowledgement {first}-{last} has no type"
        if len(types) > 1 and len(types) != last - first + 1:
            return f"acknowledgement {first}-{last} has {len(types)} types for {last - first + 1} offsets"
        if not 0 <= min(types) <= max(types) <= greatest:
            return f"acknowledgement {first}-{last} has a type outside 0 to {greatest.value}"
        if not is_renew_ack and AckType.RENEW in types:
            return f"acknowledgement {first}-{last} renews in a request that does not say so"
        previous = last
    return None


def segments(batch: AckBatch) -> Iterator[AckSegment]:
    """The acknowledgement as ranges of one type, ascending."""
    first, last, types = batch
    if len(types) == 1:
        yield AckSegment(first, last, AckType(types[0]))
        return
    begin = 0
    for i in range(1, len(types) + 1):
        if i == len(types) or types[i] != types[begin]:
            yield AckSegment(first + begin, first + i - 1, AckType(types[begin]))
            begin = i
