"""What consumers of the classic protocol tell the group coordinator: subscriptions, and assignments made of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from share_state.declarations import layout, record
from share_state.wire.codec import CodecError, decode

TopicPartition = tuple[str, int]
"""(topic, partition)"""

ABSENT = -1
"""A generation that is not there."""


class SubscriptionError(Exception):
    """Raised when bytes are no subscription or assignment; the message says which field and where."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants, and what it says of itself.

    Attributes:
        version: as written, which may be later than the layout it was read in.
        topics: names of the topics that it wants.
        user_data: what its assignor adds, None where it adds nothing.
        owned_partitions: what it keeps while it rejoins, in the order of the bytes.
        generation: in which it got them, None where absent (-1 on the wire).
        rack_id: rack of the client.
    """

    version: int
    topics: tuple[str, ...]
    user_data: bytes | None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation: int | None = None
    rack_id: str | None = None


def read_subscription(data: bytes) -> Subscription:
    """Read a ConsumerProtocolSubscription; a version that is too new is read as the newest known, its tail ignored.

    Raises:
        SubscriptionError: if the version is negative, or its layout does not fit the bytes.
    Source: Kafka ConsumerProtocol.deserializeSubscription.
    """
    version, fields = _read("consumer_protocol_subscription", data)
    generation = fields.get("generation_id", ABSENT)
    return Subscription(
        version,
        tuple(fields["topics"]),
        fields["user_data"],
        flat(fields.get("owned_partitions", ())),
        generation if generation >= 0 else None,
        fields.get("rack_id"),
    )


def read_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """What a member got, in the order of the bytes; nothing where there are no bytes, as for members of no assignment.

    Raises:
        SubscriptionError: if the version is negative, or its layout does not fit the bytes.
    Source: Kafka ConsumerProtocol.deserializeAssignment.
    """
    return flat(_read("consumer_protocol_assignment", data)[1]["assigned_partitions"]) if data else ()


def flat(topics: Iterable[Mapping[str, Any]]) -> tuple[TopicPartition, ...]:
    """Decoded ConsumerProtocolTopicPartition structs as topic-partitions, in order."""
    return tuple((one["topic"], partition) for one in topics for partition in one["partitions"])


def _read(name: str, data: bytes) -> tuple[int, dict[str, Any]]:
    if len(data) < 2:
        raise SubscriptionError(f"{record(name).name}: shorter than its version")
    version = int.from_bytes(data[:2], "big", signed=True)
    layouts = record(name).layouts
    if version < 0:
        raise SubscriptionError(f"{record(name).name}: version {version}")
    newest = layouts[-1].version or 0
    chosen = layout(name, layouts[min(version, newest)].releases)
    try:
        return version, decode(chosen, min(version, newest).to_bytes(2, "big") + data[2:])[0]
    except CodecError as error:
        raise SubscriptionError(str(error)) from None
