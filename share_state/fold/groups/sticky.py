"""Resolves previous assignments of classic groups with a sticky assignor, from their members' claims (KIP-341).

If several members claim a partition, the highest generation wins; Kafka's own rule may depend on the order of
members.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import pyarrow as pa

from share_state.fold.groups.group_replay import GroupFault
from share_state.fold.groups.group_tables import rows_to_table
from share_state.kafka.classic_groups import ClaimingMember, Generation, GroupGeneration
from share_state.kafka.group_records import NO_GENERATION, GroupRecordError, TopicPartition

UNCONTESTED = "UNCONTESTED"
WON_BY_GENERATION = "WON_BY_GENERATION"
STALE_UNCONTESTED = "STALE_UNCONTESTED"
INVALIDATED, UNCLAIMED = "INVALIDATED_SAME_GENERATION", "UNCLAIMED"

_MOST_CLAIMANTS = 6
"""Up to this many claimants, all orders are tried; beyond, only two."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A member's claim to a partition, as Kafka compares it; absent generations are -1."""

    member_id: str
    generation: int
    subscription_generation: int = NO_GENERATION


@dataclass(frozen=True, slots=True)
class ResolvedOwner:
    """Previous owner of a partition.

    Attributes:
        owner: member id; None if nobody owned it.
        generation: highest generation of the claims; None if absent.
        status: UNCONTESTED, WON_BY_GENERATION, STALE_UNCONTESTED, INVALIDATED_SAME_GENERATION or UNCLAIMED.
        losing: claims that did not win, by member id.
        is_order_dependent: whether the owner according to Kafka's rule depends on the order of the members.
    """

    topic: str
    partition: int
    owner: str | None
    generation: int | None
    status: str
    losing: tuple[Claim, ...] = ()
    is_order_dependent: bool = False


def resolve(generation: GroupGeneration, sizes: Mapping[str, int] | None = None) -> list[ResolvedOwner]:
    """Resolve the claims of a generation to the previous assignment.

    A partition belongs to the only claimant of the highest generation. If several members claim it at that
    generation, nobody owns it, and claims of older generations are ignored. Claims to topics that have no
    subscriber or do not exist are ignored. The result does not depend on the order of the members.

    Args:
        generation: a generation of a sticky group.
        sizes: topic -> number of partitions; if given, partitions without a claim are included.
    Returns:
        Sorted by topic and partition.
    Source: KIP-341; Kafka AbstractStickyAssignor.allSubscriptionsEqual, whose rule looks at two members at a
    time.
    """
    claims = claims_of(generation.members)
    claims_by_partition = {
        place: partition_claims
        for place, partition_claims in claims.items()
        if is_subscribed(generation, place[0], sizes)
    }
    places = set(claims_by_partition)
    if sizes:
        topics = generation.topics & sizes.keys()
        places |= {(topic, partition) for topic in topics for partition in range(sizes[topic])}
    newest = generation.newest_claim
    return [_resolved(place, claims_by_partition.get(place, []), newest) for place in sorted(places)]


def claims_of(members: Iterable[ClaimingMember]) -> dict[TopicPartition, list[Claim]]:
    """The claims to every partition, in the order of the members; one per member."""
    claims: dict[TopicPartition, list[Claim]] = {}
    for member in members:
        present = member.subscription_generation
        claim = Claim(member.member_id, member.generation, NO_GENERATION if present is None else present)
        for place in dict.fromkeys(member.user_data.claims):
            claims.setdefault(place, []).append(claim)
    return claims


def is_subscribed(generation: GroupGeneration, topic: str, sizes: Mapping[str, int] | None) -> bool:
    """Whether a member subscribes to a topic and the topic may exist."""
    return topic in generation.topics and (sizes is None or topic in sizes)


def _resolved(place: TopicPartition, claims: Sequence[Claim], newest: int) -> ResolvedOwner:
    if not claims:
        return ResolvedOwner(*place, None, None, UNCLAIMED)
    highest = max(claim.generation for claim in claims)
    best = [claim for claim in claims if claim.generation == highest]
    owner = best[0].member_id if len(best) == 1 else None
    if owner is None:
        status = INVALIDATED
    elif len(claims) > 1:
        status = WON_BY_GENERATION
    else:
        status = UNCONTESTED if highest == newest else STALE_UNCONTESTED
    losing = sorted(
        (claim for claim in claims if claim.member_id != owner), key=lambda claim: claim.member_id
    )
    known = None if highest == NO_GENERATION else highest
    return ResolvedOwner(*place, owner, known, status, tuple(losing), is_order_dependent(claims))


def kafka_owner(claims: Iterable[Claim]) -> str | None:
    """The owner of a partition according to Kafka's rule, for claimants in this order.

    The rule compares each claim's generation with the subscription generation of the last claimant that won
    or tied. It differs from the generation of that claim if the subscription is old or the member has
    rejoined.

    Source: Kafka AbstractStickyAssignor.allSubscriptionsEqual.
    """
    owner: str | None = None
    holder: Claim | None = None
    for claim in claims:
        if holder is None or claim.generation > holder.subscription_generation:
            owner, holder = claim.member_id, claim
        elif claim.generation == holder.subscription_generation:
            owner, holder = None, claim
    return owner


def is_order_dependent(claims: Sequence[Claim]) -> bool:
    """Whether the owner of a partition according to Kafka's rule depends on the order of the members."""
    few = len(claims) <= _MOST_CLAIMANTS
    orders = permutations(claims) if few else (claims, claims[::-1])
    return len({kafka_owner(order) for order in orders}) > 1


@dataclass(frozen=True, slots=True)
class FoldedSticky:
    """The decoded generations of classic consumer groups.

    Attributes:
        generations: by group and offset; the latest of each group and, in history mode, all generations of
            groups with a sticky assignor.
        resolved: (group, offset of the record) -> previous owners, for generations of a sticky assignor.
        sizes: topic -> number of partitions, None if unknown.
        is_history: whether earlier records of a group are included.
        faults: records that cannot be decoded.
    """

    generations: tuple[GroupGeneration, ...]
    resolved: dict[tuple[str, int], list[ResolvedOwner]]
    sizes: Mapping[str, int] | None
    is_history: bool
    faults: tuple[GroupFault, ...]

    @property
    def sticky(self) -> list[GroupGeneration]:
        """The generations with a sticky assignor."""
        return [generation for generation in self.generations if generation.is_sticky]

    @property
    def sticky_claim(self) -> pa.Table:
        """The table `sticky_claim`."""
        return rows_to_table(
            "sticky_claim", (row for generation in self.sticky for row in _claims(generation))
        )

    @property
    def effective_previous_assignment(self) -> pa.Table:
        """The table `effective_previous_assignment`."""
        return rows_to_table("effective_previous_assignment", (
            {
                "group_id": generation.group_id,
                "record_offset": generation.offset,
                "group_generation": generation.generation,
                "topic": one.topic,
                "partition": one.partition,
                "owner": one.owner,
                "owner_generation": one.generation,
                "status": one.status,
                "other_claims": [
                    {"member_id": claim.member_id, "claim_generation": known_generation(claim.generation)}
                    for claim in one.losing
                ],
                "kafka_order_dependent": one.is_order_dependent,
                "group_partition": generation.partition,
            }
            for generation in self.sticky
            for one in self.resolved[generation.group_id, generation.offset]
        ))  # fmt: skip


def fold_sticky(
    generations: Sequence[GroupGeneration],
    unreadable: Iterable[tuple[Generation, GroupRecordError]] = (),
    sizes: Mapping[str, int] | None = None,
    *,
    history: bool = False,
) -> FoldedSticky:
    """Resolve the claims of the members of classic groups.

    Args:
        generations: generations from `read_generations`.
        unreadable: records that it could not decode.
        sizes: topic name -> number of partitions, None if unknown.
        history: whether the generations include earlier records of a group.
    Source: KIP-341.
    """
    faults = (
        GroupFault(error.code, record.partition, record.offset, str(error), record.group_id)
        for record, error in unreadable
    )
    resolved = {
        (generation.group_id, generation.offset): resolve(generation, sizes)
        for generation in generations
        if generation.is_sticky
    }
    return FoldedSticky(tuple(generations), resolved, sizes, history, tuple(faults))


def _claims(generation: GroupGeneration) -> Iterable[dict[str, Any]]:
    for member in generation.members:
        for topic, partition in member.user_data.claims:
            yield {
                "group_id": generation.group_id,
                "record_offset": generation.offset,
                "group_generation": generation.generation,
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "subscription_version": member.subscription.version if member.subscription else None,
                "subscription_generation": member.subscription_generation,
                "userdata_version": member.user_data.version,
                "claim_generation": known_generation(member.generation),
                "topic": topic,
                "partition": partition,
                "group_partition": generation.partition,
                "protocol": generation.protocol,
            }


def known_generation(generation: int) -> int | None:
    """A generation, None for NO_GENERATION."""
    return None if generation == NO_GENERATION else generation
