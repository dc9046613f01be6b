"""Who had a partition where several members claim it: by the highest generation, and as Kafka's own rule goes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from share_state.fold.sticky_claims import ClaimingMember, GroupGeneration
from share_state.wire.subscription import ABSENT, TopicPartition

UNCONTESTED, WON_BY_GENERATION, STALE_UNCONTESTED = "UNCONTESTED", "WON_BY_GENERATION", "STALE_UNCONTESTED"
INVALIDATED, UNCLAIMED = "INVALIDATED_SAME_GENERATION", "UNCLAIMED"

_MOST_CLAIMANTS = 6
"""Up to so many claimants are tried in every order, beyond that in two."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One member's claim to a partition, as Kafka compares it.

    Attributes:
        member_id: who claims it.
        generation: of the claim, -1 where absent.
        subscription_generation: of the member's subscription, -1 where absent.
    """

    member_id: str
    generation: int
    subscription_generation: int = ABSENT


@dataclass(frozen=True, slots=True)
class Resolved:
    """Who had a partition.

    Attributes:
        topic: its topic.
        partition: its number.
        owner: None for nobody.
        generation: highest of the claims; None where there is none, or none tells one.
        status: UNCONTESTED, WON_BY_GENERATION, STALE_UNCONTESTED, INVALIDATED_SAME_GENERATION or UNCLAIMED.
        losing: claims that did not win, by member id.
        is_order_dependent: whether Kafka's own rule gives different owners for different orders of the members.
    """

    topic: str
    partition: int
    owner: str | None
    generation: int | None
    status: str
    losing: tuple[Claim, ...] = ()
    is_order_dependent: bool = False


def resolve(generation: GroupGeneration, sizes: Mapping[str, int] | None = None) -> list[Resolved]:
    """The previous assignment that the claims of a generation amount to.

    A partition belongs to the single claimant of the highest generation. Where several claim it at that generation
    nobody has it, and those below do not inherit it. Claims to topics that nobody wants, or that do not exist, are left
    out. No claim is compared in the order in which members stand, so the result does not depend on it.

    Args:
        generation: of a sticky group.
        sizes: topic -> number of partitions, where known; then partitions without a claim have a row, too.
    Returns:
        By topic and partition.
    Source: KIP-341; Kafka AbstractStickyAssignor.allSubscriptionsEqual, whose rule looks at two members at a time.
    """
    claims = claims_of(generation.members)
    known = {place: of_place for place, of_place in claims.items() if is_wanted(generation, place[0], sizes)}
    places = set(known)
    if sizes:
        wanted = generation.topics & sizes.keys()
        places |= {(topic, partition) for topic in wanted for partition in range(sizes[topic])}
    newest = generation.newest_claim
    return [_resolved(place, known.get(place, []), newest) for place in sorted(places)]


def claims_of(members: Iterable[ClaimingMember]) -> dict[TopicPartition, list[Claim]]:
    """The claims to every partition, in the order of the members; one a member."""
    claims: dict[TopicPartition, list[Claim]] = {}
    for member in members:
        present = member.subscription_generation
        claim = Claim(member.member_id, member.generation, ABSENT if present is None else present)
        for place in dict.fromkeys(member.told.claims):
            claims.setdefault(place, []).append(claim)
    return claims


def is_wanted(generation: GroupGeneration, topic: str, sizes: Mapping[str, int] | None) -> bool:
    """Whether some member subscribes to a topic, and it exists as far as that is known."""
    return topic in generation.topics and (sizes is None or topic in sizes)


def _resolved(place: TopicPartition, claims: Sequence[Claim], newest: int) -> Resolved:
    if not claims:
        return Resolved(*place, None, None, UNCLAIMED)
    highest = max(claim.generation for claim in claims)
    best = [claim for claim in claims if claim.generation == highest]
    owner = best[0].member_id if len(best) == 1 else None
    if owner is None:
        status = INVALIDATED
    elif len(claims) > 1:
        status = WON_BY_GENERATION
    else:
        status = UNCONTESTED if highest == newest else STALE_UNCONTESTED
    losing = sorted((claim for claim in claims if claim.member_id != owner), key=lambda claim: claim.member_id)
    known = None if highest == ABSENT else highest
    return Resolved(*place, owner, known, status, tuple(losing), is_order_dependent(claims))


def kafka_owner(claims: Iterable[Claim]) -> str | None:
    """Who has a partition by Kafka's own rule, its claimants met in this order.

    Each claimant's generation is held against the generation in the subscription of the one that claimed it last with
    success or at a draw, which differs from that one's own claim where its subscription is old or it had rejoined.

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
    """Whether Kafka's own rule gives a partition to different members where they stand in different orders."""
    if len(claims) < 2:
        return False
    few = len(claims) <= _MOST_CLAIMANTS
    orders = permutations(claims) if few else iter((tuple(claims), tuple(reversed(claims))))
    first = kafka_owner(next(orders))
    return any(kafka_owner(order) != first for order in orders)
