"""One generation of a classic consumer group: its members, what they claim to have had (KIP-341), what they got."""

from dataclasses import dataclass
from typing import Any

from share_state.fold.groups_met import Generation
from share_state.wire.group_records import GroupRecordType, read_value
from share_state.wire.sticky_user_data import NO_USER_DATA, StickyUserData, read_cooperative_generation
from share_state.wire.sticky_user_data import read_sticky_user_data as read_user_data
from share_state.wire.subscription import (
    ABSENT,
    Subscription,
    SubscriptionError,
    TopicPartition,
    read_assignment,
    read_subscription,
)

CONSUMER = "consumer"
STICKY, COOPERATIVE = "sticky", "cooperative-sticky"
STATELESS = ("range", "roundrobin")
STREAMS = "stream"


@dataclass(frozen=True, slots=True)
class ClaimingMember:
    """A member of one generation.

    Attributes:
        instance_id: of a static member, None for others.
        subscription: None where it cannot be read.
        told: what its user data says; for cooperative-sticky its owned partitions and their generation.
        assigned: what the leader gave it.
        flaws: (rule, why) of bytes of it that cannot be read.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    subscription: Subscription | None
    told: StickyUserData
    assigned: tuple[TopicPartition, ...]
    flaws: tuple[tuple[str, str], ...] = ()

    @property
    def identity(self) -> tuple[str, str]:
        """What names the member in later generations: static members come back under another member id."""
        return ("member", self.member_id) if self.instance_id is None else ("instance", self.instance_id)

    @property
    def generation(self) -> int:
        """Generation of its claims as they are compared: -1 where it told none."""
        return ABSENT if self.told.generation is None else self.told.generation

    @property
    def subscription_generation(self) -> int | None:
        """Generation in its subscription, None where absent."""
        return self.subscription.generation if self.subscription else None

    @property
    def is_new(self) -> bool:
        """Whether it tells of no earlier assignment at all."""
        return self.subscription is not None and not self.told.claims and self.told.generation in (None, ABSENT) and (
            not self.told.flaw and self.told.version is None
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupGeneration:
    """A record of a classic group, read.

    Attributes:
        group_id: the group.
        partition: of `__consumer_offsets`, None where the log does not tell.
        offset: of the record.
        generation: that begins with it.
        protocol: the assignor that was chosen, None for an empty group.
        is_consumer: whether the group is one of consumers; of others the members' bytes mean something else.
        members: in the order of the bytes.
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
        """Whether its assignor keeps what it can of the previous assignment."""
        return self.is_consumer and self.protocol in (STICKY, COOPERATIVE)

    @property
    def newest_claim(self) -> int:
        """The highest generation that any member tells of; -1 for none."""
        return max((member.generation for member in self.members), default=ABSENT)

    @property
    def topics(self) -> frozenset[str]:
        """Topics that any member wants."""
        return frozenset(
            topic for member in self.members if member.subscription for topic in member.subscription.topics
        )

    @property
    def wants_the_same(self) -> bool:
        """Whether all members subscribe to the same topics."""
        return len({frozenset(one.subscription.topics) if one.subscription else None for one in self.members}) <= 1


def read_generation(record: Generation) -> GroupGeneration:
    """Read the record of a classic group; of members whose bytes cannot be read the flaw is kept.

    Raises:
        GroupRecordError: if no layout reads the value.
    Source: Kafka ClassicGroup, GroupMetadataValue; KIP-341.
    """
    fields = read_value(GroupRecordType.CLASSIC_GROUP, record.value).fields
    is_consumer = fields["protocol_type"] == CONSUMER and bool(fields["protocol"])
    members = tuple(_member(one, fields["protocol"], is_consumer) for one in fields["members"])
    return GroupGeneration(
        record.group_id,
        record.partition,
        record.offset,
        fields["generation"],
        fields["protocol"],
        is_consumer,
        members,
    )


def _member(fields: dict[str, Any], protocol: str | None, is_consumer: bool) -> ClaimingMember:
    flaws: list[tuple[str, str]] = []
    subscription, assigned, told = None, (), NO_USER_DATA
    if is_consumer:
        try:
            subscription = read_subscription(fields["subscription"])
            told = _told(subscription, protocol)
        except SubscriptionError as error:
            flaws.append(("MALFORMED_SUBSCRIPTION", str(error)))
        try:
            assigned = read_assignment(fields["assignment"])
        except SubscriptionError as error:
            flaws.append(("MALFORMED_ASSIGNMENT", str(error)))
    return ClaimingMember(
        fields["member_id"],
        fields.get("group_instance_id"),
        fields["client_id"],
        subscription,
        told,
        assigned,
        tuple(flaws),
    )


def _told(subscription: Subscription, protocol: str | None) -> StickyUserData:
    if protocol == STICKY:
        return read_user_data(subscription.user_data)
    if protocol == COOPERATIVE:
        generation = subscription.generation
        if generation is None:
            generation = read_cooperative_generation(subscription.user_data)
        return StickyUserData(None, subscription.owned_partitions, generation)
    return NO_USER_DATA
