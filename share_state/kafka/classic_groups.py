"""Records of groups of the classic protocol: members, assignments, and the claims of sticky assignors (KIP-341)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from share_state.kafka.codec import CodecError, decode
from share_state.kafka.group_records import (
    NO_GENERATION,
    GroupRecordError,
    GroupRecordType,
    Subscription,
    SubscriptionError,
    TopicPartition,
    read_assignment,
    read_subscription,
    read_value,
    topic_partitions,
)
from share_state.schema.declarations import layout

CONSUMER = "consumer"
STICKY, COOPERATIVE = "sticky", "cooperative-sticky"
STATELESS = ("range", "roundrobin")
STREAMS = "stream"


@dataclass(frozen=True, slots=True)
class StickyUserData:
    """The user data of a sticky assignor: the partitions that a member claims to have owned.

    Attributes:
        version: 0 or 1, None if there is no user data or it cannot be read.
        claims: claimed partitions in the order of the bytes.
        generation: generation of the claims; None if absent (no user data, or version 0), -1 if it cannot be
            read.
        trailing: number of bytes after it, which Kafka ignores.
        flaw: why it cannot be read, "" if it can.
    """

    version: int | None
    claims: tuple[TopicPartition, ...]
    generation: int | None
    trailing: int = 0
    flaw: str = ""


NO_USER_DATA = StickyUserData(None, (), None)


def read_sticky_user_data(data: bytes | None) -> StickyUserData:
    """Decode the user data of the assignor "sticky": in the later layout if it fits, otherwise in the earlier one.

    The bytes contain no version, so version 0 with four or more trailing bytes is read as version 1.

    Source: Kafka StickyAssignor.deserializeTopicPartitionAssignment; KIP-341.
    """
    if not data:
        return NO_USER_DATA
    failure = ""
    for version in (1, 0):
        try:
            fields, consumed = decode(layout("sticky_assignor_user_data", f"v{version}"), data)
        except CodecError as error:
            failure = str(error)
            continue
        return StickyUserData(
            version,
            topic_partitions(fields["previous_assignment"]),
            fields.get("generation"),
            len(data) - consumed,
        )
    return StickyUserData(None, (), NO_GENERATION, flaw=failure)


def read_cooperative_generation(data: bytes | None) -> int | None:
    """The generation in the user data of "cooperative-sticky", for clients whose subscription has none.

    Returns:
        None if there is no user data, -1 if it cannot be read.
    Source: Kafka CooperativeStickyAssignor.memberData.
    """
    if data is None:
        return None
    try:
        return decode(layout("cooperative_sticky_assignor_user_data", "v0"), data)[0]["generation"]
    except CodecError:
        return NO_GENERATION


@dataclass(frozen=True, slots=True)
class Generation:
    """An undecoded record of a group of the classic protocol.

    Attributes:
        partition: partition of `__consumer_offsets`, None if unknown.
        time: ms, timestamp of the record.
        value: bytes of a GroupMetadataValue with its version.
    """

    group_id: str
    partition: int | None
    offset: int
    time: int
    value: bytes


@dataclass(frozen=True, slots=True)
class ClaimingMember:
    """A member of one generation.

    Attributes:
        instance_id: `group.instance.id` of a static member, None for a dynamic one.
        subscription: None if it cannot be read.
        user_data: its decoded user data; for cooperative-sticky its owned partitions and their generation.
        assigned: its assignment by the leader.
        flaws: (rule, reason) for bytes that cannot be read.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    subscription: Subscription | None
    user_data: StickyUserData
    assigned: tuple[TopicPartition, ...]
    flaws: tuple[tuple[str, str], ...] = ()

    @property
    def identity(self) -> tuple[str, str]:
        """Identity across generations: static members return with a new member id."""
        return ("member", self.member_id) if self.instance_id is None else ("instance", self.instance_id)

    @property
    def generation(self) -> int:
        """Generation of its claims; -1 if absent."""
        return NO_GENERATION if self.user_data.generation is None else self.user_data.generation

    @property
    def subscription_generation(self) -> int | None:
        """Generation in its subscription; None if absent."""
        return self.subscription.generation if self.subscription else None

    @property
    def is_new(self) -> bool:
        """Whether it claims no earlier assignment at all."""
        data = self.user_data
        has_data = (
            data.claims
            or data.flaw
            or data.version is not None
            or data.generation not in (None, NO_GENERATION)
        )
        return self.subscription is not None and not has_data


@dataclass(frozen=True, slots=True)
class GroupGeneration:
    """A decoded record of a classic group.

    Attributes:
        partition, offset: where the record is in `__consumer_offsets`; the partition is None if unknown.
        generation: generation of the group from this record on.
        protocol: the assignor, None for an empty group.
        is_consumer: whether it is a group of consumers; the members' bytes of other groups have other
            meanings.
        members: in record order.
    """

    group_id: str
    partition: int | None
    offset: int
    generation: int
    protocol: str | None
    is_consumer: bool
    members: tuple[ClaimingMember, ...]

    @property
    def is_sticky(self) -> bool:
        """Whether its assignor is a sticky one."""
        return self.is_consumer and self.protocol in (STICKY, COOPERATIVE)

    @property
    def newest_claim(self) -> int:
        """The highest generation of any claim; -1 for none."""
        return max((member.generation for member in self.members), default=NO_GENERATION)

    @property
    def topics(self) -> frozenset[str]:
        """Topics that any member subscribes to."""
        return frozenset(
            topic for one in self.members if one.subscription for topic in one.subscription.topics
        )

    @property
    def has_equal_subscriptions(self) -> bool:
        """Whether all members subscribe to the same topics."""
        return (
            len({frozenset(one.subscription.topics) if one.subscription else None for one in self.members})
            <= 1
        )


def read_generations(
    latest: Mapping[str, Generation], earlier: Iterable[Generation] = ()
) -> tuple[list[GroupGeneration], list[tuple[Generation, GroupRecordError]]]:
    """Decode records of classic groups.

    Args:
        latest: the latest record of every group, by group id.
        earlier: earlier records; only those of groups with a sticky assignor are returned.
    Returns:
        The generations that have members, by group and offset; the records that cannot be decoded.
    """
    records = {(one.group_id, one.partition, one.offset): one for one in (*latest.values(), *earlier)}
    generations, unreadable = list[GroupGeneration](), list[tuple[Generation, GroupRecordError]]()
    for _, record in sorted(records.items(), key=lambda item: (item[0][0], item[0][2])):
        try:
            read = read_generation(record)
        except GroupRecordError as error:
            unreadable.append((record, error))
            continue
        if read.members and (read.is_sticky or record is latest.get(record.group_id)):
            generations.append(read)
    return generations, unreadable


def read_generation(record: Generation) -> GroupGeneration:
    """Decode the record of a classic group; bytes of members that cannot be decoded become flaws.

    Raises:
        GroupRecordError: if the value cannot be decoded.
    Source: Kafka ClassicGroup, GroupMetadataValue; KIP-341.
    """
    fields = read_value(GroupRecordType.CLASSIC_GROUP, record.value).fields
    is_consumer = fields["protocol_type"] == CONSUMER and bool(fields["protocol"])
    members = tuple(_member(one, fields["protocol"], is_consumer) for one in fields["members"])
    place = record.group_id, record.partition, record.offset
    return GroupGeneration(*place, fields["generation"], fields["protocol"], is_consumer, members)


def _member(fields: dict[str, Any], protocol: str | None, is_consumer: bool) -> ClaimingMember:
    flaws: list[tuple[str, str]] = []
    subscription = None
    assigned = ()
    user_data = NO_USER_DATA
    if is_consumer:
        try:
            subscription = read_subscription(fields["subscription"])
            user_data = _user_data(subscription, protocol)
        except SubscriptionError as error:
            flaws.append(("MALFORMED_SUBSCRIPTION", str(error)))
        try:
            assigned = read_assignment(fields["assignment"])
        except SubscriptionError as error:
            flaws.append(("MALFORMED_ASSIGNMENT", str(error)))
    identity = fields["member_id"], fields.get("group_instance_id"), fields["client_id"]
    return ClaimingMember(*identity, subscription, user_data, assigned, tuple(flaws))


def _user_data(subscription: Subscription, protocol: str | None) -> StickyUserData:
    if protocol == STICKY:
        return read_sticky_user_data(subscription.user_data)
    if protocol == COOPERATIVE:
        generation = subscription.generation
        if generation is None:
            generation = read_cooperative_generation(subscription.user_data)
        return StickyUserData(None, subscription.owned_partitions, generation)
    return NO_USER_DATA
