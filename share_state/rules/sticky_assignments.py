"""Rules over classic consumer groups with a sticky assignor (KIP-54, KIP-341).

Members claim the partitions that they had; the leader assigns partitions by these claims. The rules check the
claims, the assignments, and the bytes that consumers send.
"""

from collections import Counter
from collections.abc import Iterator

from share_state.fold.groups.sticky import INVALIDATED, FoldedSticky, ResolvedOwner, is_subscribed
from share_state.kafka.classic_groups import STATELESS, STICKY, STREAMS, ClaimingMember, GroupGeneration
from share_state.kafka.group_records import TopicPartition
from share_state.rules.breaches import INFO, WARNING, GroupBreach, listed
from share_state.rules.registry import Scope, rule


def members_of(sticky: FoldedSticky) -> Iterator[tuple[GroupGeneration, ClaimingMember]]:
    """Every member of every generation of a sticky assignor."""
    for generation in sticky.sticky:
        for member in generation.members:
            yield generation, member


def resolved_of(sticky: FoldedSticky) -> Iterator[tuple[GroupGeneration, ResolvedOwner]]:
    """The previous owner of every partition, for every generation of a sticky assignor."""
    for generation in sticky.sticky:
        for one in sticky.resolved[generation.group_id, generation.offset]:
            yield generation, one


def with_earlier(
    sticky: FoldedSticky,
) -> Iterator[tuple[GroupGeneration, ClaimingMember, GroupGeneration | None]]:
    """Every member with claims, and the latest earlier record of the generation of its claims."""
    if not sticky.is_history:
        return
    records: dict[tuple[str, int], GroupGeneration] = {}
    for generation in sticky.sticky:
        for member in generation.members:
            if member.user_data.claims and member.generation >= 0:
                yield generation, member, records.get((generation.group_id, member.generation))
        records[generation.group_id, generation.generation] = generation


def where(generation: GroupGeneration) -> dict[str, object]:
    """Evidence that identifies a generation."""
    return {"group_generation": generation.generation, "group_partition": generation.partition}


def at(
    generation: GroupGeneration, message: str, place: tuple[str, int | None] | None, **evidence: object
) -> GroupBreach:
    """Build a finding about a generation, and about `place`, a topic and partition, if it is given."""
    topic, partition = place or (None, None)
    return GroupBreach(
        message,
        generation.group_id,
        topic=topic,
        partition=partition,
        offset=generation.offset,
        evidence=where(generation) | evidence,
        dialect=None,
    )


@rule("STALE_CLAIM", Scope.CLAIMS, WARNING, "KIP-341")
def stale_claim(sticky: FoldedSticky) -> list[GroupBreach]:
    """All members claim partitions as of the newest generation that any of them names.

    A member that left and rejoined, for example, claims partitions as of an earlier one.

    Do: find out why it paused (`max.poll.interval.ms`).
    """
    return [
        at(generation, f"{member.member_id} claims {topic}-{partition} as of generation {member.generation}, and others"
                        f" name {generation.newest_claim}", (topic, partition),
            member=member.member_id, claim_generation=member.generation,
            lag=generation.generation - 1 - member.generation)
        for generation in sticky.sticky
        for member in generation.members
        if member.generation < generation.newest_claim
        for topic, partition in member.user_data.claims
    ]  # fmt: skip


@rule("LOST_TO_NEWER", Scope.CLAIMS, INFO, "KIP-341")
def lost_to_newer(sticky: FoldedSticky) -> list[GroupBreach]:
    """No claim loses to one of a later generation.

    Do: nothing.
    """
    return [
        at(generation, f"{claim.member_id} claims {one.topic}-{one.partition} as of generation {claim.generation},"
                        f" and {one.owner} had it in {one.generation}", (one.topic, one.partition),
            member=claim.member_id, owner=one.owner)
        for generation, one in resolved_of(sticky)
        if one.owner is not None
        for claim in one.losing
    ]  # fmt: skip


@rule("DOUBLE_CLAIM", Scope.CLAIMS, WARNING, "KIP-341")
def double_claim(sticky: FoldedSticky) -> Iterator[GroupBreach]:
    """Of the claims to a partition, at most one is of the newest generation.

    If several members claim it as of that generation, none of them keeps it.

    Do: nothing, if it happens once.
    """
    for generation, one in resolved_of(sticky):
        if one.status == INVALIDATED:
            highest = max(claim.generation for claim in one.losing)
            members = [claim.member_id for claim in one.losing if claim.generation == highest]
            text = f"{listed(members)} claim {one.topic}-{one.partition} as of generation {highest}; nobody keeps it"
            yield at(generation, text, (one.topic, one.partition), members=listed(members))


@rule("ORDER_DEPENDENT_OUTCOME", Scope.CLAIMS, WARNING, "Kafka AbstractStickyAssignor")
def order_dependent_outcome(sticky: FoldedSticky) -> list[GroupBreach]:
    """The previous owner of a partition does not depend on the order of the members.

    Do: upgrade the older clients.
    """
    return [
        at(generation, f"the previous owner of {one.topic}-{one.partition} depends on the order of the members",
            (one.topic, one.partition), members=listed([one.owner or "", *(claim.member_id for claim in one.losing)]))
        for generation, one in resolved_of(sticky)
        if one.is_order_dependent
    ]  # fmt: skip


@rule("GENERATION_RESET", Scope.CLAIMS, WARNING, "KIP-341")
def generation_reset(sticky: FoldedSticky) -> Iterator[GroupBreach]:
    """The generation that a member names never decreases.

    Do: check the client.
    """
    latest: dict[tuple[str, tuple[str, str]], int] = {}
    for generation in sticky.sticky:
        for member in generation.members:
            if member.generation < 0:
                continue
            before = latest.get((generation.group_id, member.identity), member.generation)
            if member.generation < before:
                text = f"{member.member_id} names generation {member.generation} after {before}"
                yield at(generation, text, None, before=before, after=member.generation)
            latest[generation.group_id, member.identity] = member.generation


@rule("FALSE_CLAIM", Scope.CLAIMS, WARNING, "Kafka StickyAssignor.onAssignment")
def false_claim(sticky: FoldedSticky) -> Iterator[GroupBreach]:
    """A member was assigned what it claims, in the generation that it names.

    Do: check the client and its version.
    """
    for generation, member, earlier in with_earlier(sticky):
        if earlier is None:
            continue
        earlier_member = next((one for one in earlier.members if one.identity == member.identity), None)
        assigned = set(earlier_member.assigned) if earlier_member else set()
        yield from [
            at(generation, f"{member.member_id} claims {topic}-{partition} as of generation {member.generation}, in"
                            " which it was not assigned it", (topic, partition), assigned_at=earlier.offset)
            for topic, partition in member.user_data.claims
            if (topic, partition) not in assigned
        ]  # fmt: skip


@rule("UNVERIFIABLE", Scope.CLAIMS, INFO, "Kafka StickyAssignor.onAssignment")
def unverifiable(sticky: FoldedSticky) -> list[GroupBreach]:
    """The log still holds the record of every claimed generation.

    Other claims cannot be checked.

    Do: nothing.
    """
    return [
        at(generation, f"{member.member_id} claims {len(member.user_data.claims)} partitions as of generation"
                        f" {member.generation}, whose record is gone", None, member=member.member_id)
        for generation, member, earlier in with_earlier(sticky)
        if earlier is None
    ]  # fmt: skip


@rule("CLAIM_AHEAD", Scope.CLAIMS, WARNING, "KIP-341")
def claim_ahead(sticky: FoldedSticky) -> list[GroupBreach]:
    """Claims name a generation before the one that begins.

    Do: check the client.
    """
    return [
        at(generation, f"{member.member_id} names generation {member.generation}, but the group begins"
                        f" {generation.generation}", None, member=member.member_id)
        for generation, member in members_of(sticky)
        if member.generation >= generation.generation
    ]  # fmt: skip


@rule("GENERATION_MISMATCH", Scope.CLAIMS, INFO, "Kafka ConsumerProtocolSubscription.json; StickyAssignor")
def generation_mismatch(sticky: FoldedSticky) -> list[GroupBreach]:
    """Subscription and user data name the same generation.

    Do: nothing.
    """
    return [
        at(generation, f"{member.member_id} subscribes as of generation {member.subscription_generation} and claims"
                        f" as of {member.generation}", None, member=member.member_id)
        for generation, member in members_of(sticky)
        if generation.protocol == STICKY
        and member.subscription_generation is not None
        and member.user_data.version is not None
        and member.subscription_generation != member.generation
    ]  # fmt: skip


@rule("NEW_MEMBER", Scope.CLAIMS, INFO, "Kafka StickyAssignor.memberData")
def new_member(sticky: FoldedSticky) -> list[GroupBreach]:
    """A member names its previous assignment.

    Do: nothing.
    """
    return [
        at(
            generation,
            f"{member.member_id} is new: it names no earlier assignment",
            None,
            member=member.member_id,
        )
        for generation, member in members_of(sticky)
        if member.is_new
    ]


@rule("DOUBLE_ASSIGNED", Scope.CLAIMS, WARNING, "KAFKA-7026")
def double_assigned(sticky: FoldedSticky) -> Iterator[GroupBreach]:
    """A partition is assigned to one member.

    Otherwise it is read twice.

    Do: upgrade the clients; check what was processed twice.
    """
    for generation in sticky.generations:
        holders: dict[TopicPartition, list[str]] = {}
        for member in generation.members if generation.protocol != STREAMS else ():
            for place in dict.fromkeys(member.assigned):
                holders.setdefault(place, []).append(member.member_id)
        yield from [
            at(generation, f"{topic}-{partition} is assigned to {listed(members)}", (topic, partition),
                members=listed(members))
            for (topic, partition), members in sorted(holders.items())
            if len(members) > 1
        ]  # fmt: skip


@rule("MOVED", Scope.CLAIMS, INFO, "KIP-54")
def moved(sticky: FoldedSticky) -> Iterator[GroupBreach]:
    """A partition stays with the member that had it.

    Do: nothing.
    """
    for generation in sticky.sticky:
        owners = {
            (one.topic, one.partition): one.owner
            for one in sticky.resolved[generation.group_id, generation.offset]
        }
        owned = sum(owner is not None for owner in owners.values())
        kept = sum(
            owners.get(place) == member.member_id
            for member in generation.members
            for place in member.assigned
        )
        yield from [
            at(generation, f"{topic}-{partition} goes from {owners[topic, partition]} to {member.member_id}",
                (topic, partition), kept=kept, owned=owned, stickiness=f"{kept / owned:.3f}")
            for member in generation.members
            for topic, partition in member.assigned
            if owners.get((topic, partition)) not in (None, member.member_id)
        ]  # fmt: skip


@rule("UNFAIR_ASSIGNMENT", Scope.CLAIMS, INFO, "KIP-54")
def unfair_assignment(sticky: FoldedSticky) -> Iterator[GroupBreach]:
    """Members with the same subscription get equal numbers of partitions, plus or minus one.

    Do: nothing.
    """
    for generation in sticky.sticky:
        sizes = sorted((len(set(member.assigned)) for member in generation.members), reverse=True)
        if generation.has_equal_subscriptions and sizes[0] - sizes[-1] > 1:
            text = f"members got {listed(sizes)} partitions each"
            yield at(generation, text, None, most=sizes[0], least=sizes[-1])


@rule("UNPARSEABLE_USER_DATA", Scope.CLAIMS, WARNING, "Kafka StickyAssignor.memberData")
def unparseable_user_data(sticky: FoldedSticky) -> list[GroupBreach]:
    """User data of the sticky assignor can be read.

    Otherwise Kafka treats the member as one without claims.

    Do: check the client.
    """
    return [
        at(generation, f"the user data of {member.member_id} cannot be read: {member.user_data.flaw}", None,
            member=member.member_id)
        for generation, member in members_of(sticky)
        if member.user_data.flaw
    ]  # fmt: skip


@rule("TRAILING_BYTES", Scope.CLAIMS, INFO, "Kafka StickyAssignor.memberData")
def trailing_bytes(sticky: FoldedSticky) -> list[GroupBreach]:
    """User data is read to its last byte.

    Kafka ignores trailing bytes.

    Do: nothing.
    """
    return [
        at(generation, f"{member.user_data.trailing} bytes after the user data of {member.member_id}", None,
            member=member.member_id)
        for generation, member in members_of(sticky)
        if member.user_data.trailing
    ]  # fmt: skip


@rule("UNEXPECTED_USER_DATA", Scope.CLAIMS, WARNING, "Kafka ConsumerPartitionAssignor.subscriptionUserData")
def unexpected_user_data(sticky: FoldedSticky) -> Iterator[GroupBreach]:
    """Assignors without state send no user data.

    Info for an assignor that is not Kafka's and may have state.

    Do: check `partition.assignment.strategy`.
    """
    for generation in sticky.generations:
        if generation.is_sticky or not generation.is_consumer or generation.protocol == STREAMS:
            continue
        yield from [
            GroupBreach(
                f"{member.member_id} has {len(member.subscription.user_data)} bytes of user data under the assignor"
                f" {generation.protocol}",
                generation.group_id,
                offset=generation.offset, evidence=where(generation) | {"member": member.member_id},
                severity=None if generation.protocol in STATELESS else INFO, dialect=None,
            )
            for member in generation.members
            if member.subscription and member.subscription.user_data
        ]  # fmt: skip


@rule("UNKNOWN_TOPIC", Scope.CLAIMS, INFO, "Kafka AbstractStickyAssignor")
def unknown_topic(sticky: FoldedSticky) -> list[GroupBreach]:
    """Members claim only partitions of topics that exist and that the group subscribes to.

    Other claims are ignored.

    Do: nothing.
    """
    return [
        at(generation, f"{member.member_id} claims {count} partitions of {topic}, which has no subscriber or does"
                        " not exist", (topic, None), member=member.member_id)
        for generation, member in members_of(sticky)
        for topic, count in _by_topic(member)
        if not is_subscribed(generation, topic, sticky.sizes)
    ]  # fmt: skip


@rule("PARTITION_OUT_OF_RANGE", Scope.CLAIMS, WARNING, "Kafka AbstractStickyAssignor")
def partition_out_of_range(sticky: FoldedSticky) -> list[GroupBreach]:
    """Members claim only partitions that exist in the topic.

    Do: nothing.
    """
    sizes = sticky.sizes or {}
    return [
        at(generation, f"{member.member_id} claims {topic}-{partition}, but the topic has {sizes[topic]} partitions",
            (topic, partition), member=member.member_id)
        for generation, member in members_of(sticky)
        for topic, partition in member.user_data.claims
        if topic in sizes and not 0 <= partition < sizes[topic]
    ]  # fmt: skip


@rule("MALFORMED_SUBSCRIPTION", Scope.CLAIMS, WARNING, "Kafka ConsumerProtocol.deserializeSubscription")
def malformed_subscription(sticky: FoldedSticky) -> list[GroupBreach]:
    """Every subscription can be read.

    Otherwise the claims of the member are unknown.

    Do: check the client.
    """
    return _flaws(sticky, "MALFORMED_SUBSCRIPTION")


@rule("MALFORMED_ASSIGNMENT", Scope.CLAIMS, WARNING, "Kafka ConsumerProtocol.deserializeAssignment")
def malformed_assignment(sticky: FoldedSticky) -> list[GroupBreach]:
    """Every assignment can be read.

    Do: check the client.
    """
    return _flaws(sticky, "MALFORMED_ASSIGNMENT")


def _flaws(sticky: FoldedSticky, code: str) -> list[GroupBreach]:
    return [
        at(generation, f"{member.member_id}: {why}", None, member=member.member_id)
        for generation in sticky.generations
        for member in generation.members
        for rule_code, why in member.flaws
        if rule_code == code
    ]


def _by_topic(member: ClaimingMember) -> list[tuple[str, int]]:
    return list(Counter(topic for topic, _ in member.user_data.claims).items())
