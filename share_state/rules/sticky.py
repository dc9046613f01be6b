"""What the rules about sticky assignors share: walks over generations, and findings that say where they are.

What members of classic consumer groups claim to have had (KIP-341): stale, contested and impossible claims.

What the leader of a classic consumer group made of the claims (KIP-341): double, moved and unequal assignments.

Bytes of consumers that cannot be read, that say too much, or that name what does not exist.
"""

from collections import Counter
from collections.abc import Iterator

from share_state.fold.sticky import (
    INVALIDATED,
    STATELESS,
    STICKY,
    STREAMS,
    ClaimingMember,
    FoldedSticky,
    GroupGeneration,
    Resolved,
    is_wanted,
)
from share_state.kafka.group_records import TopicPartition
from share_state.rules.registry import INFO, WARNING, GroupFinding, Rules, RuleText, listed


def members_of(sticky: FoldedSticky) -> Iterator[tuple[GroupGeneration, ClaimingMember]]:
    """Every member of every generation of a sticky assignor."""
    for generation in sticky.sticky:
        for member in generation.members:
            yield generation, member


def resolved_of(sticky: FoldedSticky) -> Iterator[tuple[GroupGeneration, Resolved]]:
    """Who had what before every generation of a sticky assignor."""
    for generation in sticky.sticky:
        for one in sticky.resolved[generation.group_id, generation.offset]:
            yield generation, one


def with_earlier(
    sticky: FoldedSticky,
) -> Iterator[tuple[GroupGeneration, ClaimingMember, GroupGeneration | None]]:
    """Every member with claims, beside the latest record before its own of the generation that it names."""
    if not sticky.is_history:
        return
    seen: dict[tuple[str, int], GroupGeneration] = {}
    for generation in sticky.sticky:
        for member in generation.members:
            if member.told.claims and member.generation >= 0:
                yield generation, member, seen.get((generation.group_id, member.generation))
        seen[generation.group_id, generation.generation] = generation


def where(generation: GroupGeneration) -> dict[str, object]:
    """What names a generation, for evidence."""
    return {"group_generation": generation.generation, "group_partition": generation.partition}


def at(
    generation: GroupGeneration, message: str, place: tuple[str, int | None] | None, **evidence: object
) -> GroupFinding:
    """A finding about a generation.

    Args:
        generation: the record that it is about.
        message: what is wrong, in a sentence.
        place: topic and partition, None where it is about neither.
        evidence: the numbers behind it.
    """
    topic, partition = place or (None, None)
    return GroupFinding(
        message,
        generation.group_id,
        topic=topic,
        partition=partition,
        offset=generation.offset,
        evidence=where(generation) | evidence,
        dialect=None,
    )


def stale_claim(sticky: FoldedSticky) -> list[GroupFinding]:
    """Claims of an earlier generation than another member's: what a member tells that left and came back."""
    return [
        at(generation, f"{member.member_id} claims {topic}-{partition} as of generation {member.generation}, and others"
                        f" tell of {generation.newest_claim}", (topic, partition), **_lag(generation, member))
        for generation in sticky.sticky
        for member in generation.members
        if member.generation < generation.newest_claim
        for topic, partition in member.told.claims
    ]  # fmt: skip


def lost_to_newer(sticky: FoldedSticky) -> list[GroupFinding]:
    """Claims that a claim of a later generation beats."""
    return [
        at(generation, f"{claim.member_id} claims {one.topic}-{one.partition} as of generation {claim.generation},"
                        f" and {one.owner} had it in {one.generation}", (one.topic, one.partition),
            member=claim.member_id, owner=one.owner)
        for generation, one in resolved_of(sticky)
        if one.owner is not None
        for claim in one.losing
    ]  # fmt: skip


def double_claim(sticky: FoldedSticky) -> list[GroupFinding]:
    """Partitions that several members claim as of the same, newest generation: nobody keeps them."""
    findings = []
    for generation, one in resolved_of(sticky):
        if one.status == INVALIDATED:
            highest = max(claim.generation for claim in one.losing)
            members = [claim.member_id for claim in one.losing if claim.generation == highest]
            text = f"{listed(members)} claim {one.topic}-{one.partition} as of generation {highest}; nobody keeps it"
            findings.append(at(generation, text, (one.topic, one.partition), members=listed(members)))
    return findings


def order_dependent_outcome(sticky: FoldedSticky) -> list[GroupFinding]:
    """Partitions that Kafka gives to one member or another, depending on the order in which it meets them."""
    return [
        at(generation, f"who had {one.topic}-{one.partition} depends on the order in which Kafka meets the members",
            (one.topic, one.partition), members=listed([one.owner or "", *(claim.member_id for claim in one.losing)]))
        for generation, one in resolved_of(sticky)
        if one.is_order_dependent
    ]  # fmt: skip


def generation_reset(sticky: FoldedSticky) -> list[GroupFinding]:
    """Members that tell of an earlier generation than they told of before."""
    findings = []
    latest: dict[tuple[str, tuple[str, str]], int] = {}
    for generation in sticky.sticky:
        for member in generation.members:
            if member.generation < 0:
                continue
            before = latest.get((generation.group_id, member.identity), member.generation)
            if member.generation < before:
                text = f"{member.member_id} tells of generation {member.generation} after {before}"
                findings.append(at(generation, text, None, before=before, after=member.generation))
            latest[generation.group_id, member.identity] = member.generation
    return findings


def false_claim(sticky: FoldedSticky) -> list[GroupFinding]:
    """Claims to partitions that the member was not assigned in the generation that it names."""
    findings = []
    for generation, member, earlier in with_earlier(sticky):
        if earlier is None:
            continue
        then = next((one for one in earlier.members if one.identity == member.identity), None)
        had = set(then.assigned) if then else set()
        findings += [
            at(generation, f"{member.member_id} claims {topic}-{partition} as of generation {member.generation}, in"
                            " which it was not assigned it", (topic, partition), assigned_at=earlier.offset)
            for topic, partition in member.told.claims
            if (topic, partition) not in had
        ]  # fmt: skip
    return findings


def unverifiable(sticky: FoldedSticky) -> list[GroupFinding]:
    """Members whose claims name a generation that the log no longer holds: they cannot be checked."""
    return [
        at(generation, f"{member.member_id} claims {len(member.told.claims)} partitions as of generation"
                        f" {member.generation}, whose record is gone", None, member=member.member_id)
        for generation, member, earlier in with_earlier(sticky)
        if earlier is None
    ]  # fmt: skip


def claim_ahead(sticky: FoldedSticky) -> list[GroupFinding]:
    """Members that tell of the generation that only begins, or of a later one."""
    return [
        at(generation, f"{member.member_id} tells of generation {member.generation}, and the group begins"
                        f" {generation.generation}", None, member=member.member_id)
        for generation, member in members_of(sticky)
        if member.generation >= generation.generation
    ]  # fmt: skip


def generation_mismatch(sticky: FoldedSticky) -> list[GroupFinding]:
    """Members whose subscription and user data tell of different generations."""
    return [
        at(generation, f"{member.member_id} subscribes as of generation {member.subscription_generation} and claims"
                        f" as of {member.generation}", None, member=member.member_id)
        for generation, member in members_of(sticky)
        if generation.protocol == STICKY
        and member.subscription_generation is not None
        and member.told.version is not None
        and member.subscription_generation != member.generation
    ]  # fmt: skip


def new_member(sticky: FoldedSticky) -> list[GroupFinding]:
    """Members that tell of no earlier assignment."""
    return [
        at(generation, f"{member.member_id} is new: it tells of no earlier assignment", None, member=member.member_id)
        for generation, member in members_of(sticky)
        if member.is_new
    ]


def _lag(generation: GroupGeneration, member: ClaimingMember) -> dict[str, object]:
    lag = generation.generation - 1 - member.generation
    return {"member": member.member_id, "claim_generation": member.generation, "lag": lag}


CLAIM_RULES: Rules[FoldedSticky] = (
    (
        RuleText(
            "STALE_CLAIM",
            WARNING,
            "Members claim partitions as of the newest generation that any of them tells of.",
            "P3-22, P3-34; KIP-341",
        ),
        stale_claim,
    ),
    (
        RuleText("LOST_TO_NEWER", INFO, "A claim is not beaten by one of a later generation.", "P3-20"),
        lost_to_newer,
    ),
    (
        RuleText(
            "DOUBLE_CLAIM", WARNING, "One member at most claims a partition as of one generation.", "P3-21; KIP-341"
        ),
        double_claim,
    ),
    (
        RuleText(
            "ORDER_DEPENDENT_OUTCOME",
            WARNING,
            "Who had a partition does not depend on the order of the members.",
            "P3-24; Kafka AbstractStickyAssignor",
        ),
        order_dependent_outcome,
    ),
    (
        RuleText("GENERATION_RESET", WARNING, "The generation that a member tells of never falls.", "S-16"),
        generation_reset,
    ),
    (
        RuleText(
            "FALSE_CLAIM",
            WARNING,
            "A member was assigned what it claims, in the generation that it names.",
            "S-06, P3-37",
        ),
        false_claim,
    ),
    (
        RuleText("UNVERIFIABLE", INFO, "The record of every generation that is claimed is still there.", "P3-37"),
        unverifiable,
    ),
    (
        RuleText("CLAIM_AHEAD", WARNING, "Claims are of generations before the one that begins.", "P3-34"),
        claim_ahead,
    ),
    (
        RuleText("GENERATION_MISMATCH", INFO, "Subscription and user data tell of the same generation.", "P3-35"),
        generation_mismatch,
    ),
    (
        RuleText("NEW_MEMBER", INFO, "A member tells of its previous assignment.", "P3-11"),
        new_member,
    ),
)
"""Rules over claims; the functions take FoldedSticky."""


def double_assigned(sticky: FoldedSticky) -> list[GroupFinding]:
    """Partitions that the leader gave to several members: they read it twice."""
    findings = []
    for generation in sticky.generations:
        holders: dict[TopicPartition, list[str]] = {}
        for member in generation.members if generation.protocol != STREAMS else ():
            for place in dict.fromkeys(member.assigned):
                holders.setdefault(place, []).append(member.member_id)
        findings += [
            at(generation, f"{topic}-{partition} is assigned to {listed(members)}", (topic, partition),
                members=listed(members))
            for (topic, partition), members in sorted(holders.items())
            if len(members) > 1
        ]  # fmt: skip
    return findings


def moved(sticky: FoldedSticky) -> list[GroupFinding]:
    """Partitions that went to another member than the one that had them."""
    findings = []
    for generation in sticky.sticky:
        owners = {
            (one.topic, one.partition): one.owner for one in sticky.resolved[generation.group_id, generation.offset]
        }
        owned = sum(owner is not None for owner in owners.values())
        kept = sum(owners.get(place) == member.member_id for member in generation.members for place in member.assigned)
        findings += [
            at(generation, f"{topic}-{partition} goes from {owners[topic, partition]} to {member.member_id}",
                (topic, partition), kept=kept, owned=owned)
            for member in generation.members
            for topic, partition in member.assigned
            if owners.get((topic, partition)) not in (None, member.member_id)
        ]  # fmt: skip
    return findings


def unfair_assignment(sticky: FoldedSticky) -> list[GroupFinding]:
    """Generations in which members that want the same topics got unequal numbers of partitions."""
    findings = []
    for generation in sticky.sticky:
        sizes = sorted((len(set(member.assigned)) for member in generation.members), reverse=True)
        if generation.wants_the_same and sizes[0] - sizes[-1] > 1:
            text = f"members got {listed(sizes)} partitions each"
            findings.append(at(generation, text, None, most=sizes[0], least=sizes[-1]))
    return findings


OUTCOME_RULES: Rules[FoldedSticky] = (
    (
        RuleText("DOUBLE_ASSIGNED", WARNING, "A partition is assigned to one member.", "S-03, P3-36; KAFKA-7026"),
        double_assigned,
    ),
    (
        RuleText("MOVED", INFO, "A partition stays with the member that had it.", "P3-36"),
        moved,
    ),
    (
        RuleText(
            "UNFAIR_ASSIGNMENT",
            INFO,
            "Members that want the same topics get equal numbers of partitions, give or take one.",
            "S-02",
        ),
        unfair_assignment,
    ),
)
"""Rules over assignments; the functions take FoldedSticky."""


def unparseable_user_data(sticky: FoldedSticky) -> list[GroupFinding]:
    """User data of the sticky assignor that no version reads; Kafka takes such a member for one without claims."""
    return [
        at(generation, f"the user data of {member.member_id} cannot be read: {member.told.flaw}", None,
            member=member.member_id)
        for generation, member in members_of(sticky)
        if member.told.flaw
    ]  # fmt: skip


def trailing_bytes(sticky: FoldedSticky) -> list[GroupFinding]:
    """User data with bytes behind it, which Kafka ignores."""
    return [
        at(generation, f"{member.told.trailing} bytes behind the user data of {member.member_id}", None,
            member=member.member_id)
        for generation, member in members_of(sticky)
        if member.told.trailing
    ]  # fmt: skip


def unexpected_user_data(sticky: FoldedSticky) -> list[GroupFinding]:
    """User data under an assignor that keeps no state; info under one that is not Kafka's, which may well have some."""
    findings = []
    for generation in sticky.generations:
        if generation.is_sticky or not generation.is_consumer or generation.protocol == STREAMS:
            continue
        findings += [
            GroupFinding(
                f"{member.member_id} has {len(member.subscription.user_data)} bytes of user data under the assignor"
                f" {generation.protocol}",
                generation.group_id,
                offset=generation.offset, evidence=where(generation) | {"member": member.member_id},
                severity=None if generation.protocol in STATELESS else INFO, dialect=None,
            )
            for member in generation.members
            if member.subscription and member.subscription.user_data
        ]  # fmt: skip
    return findings


def unknown_topic(sticky: FoldedSticky) -> list[GroupFinding]:
    """Claims to topics that nobody in the group wants, or that do not exist; they are left out."""
    return [
        at(generation, f"{member.member_id} claims {count} partitions of {topic}, which nobody wants or which"
                        " does not exist", (topic, None), member=member.member_id)
        for generation, member in members_of(sticky)
        for topic, count in _by_topic(member)
        if not is_wanted(generation, topic, sticky.sizes)
    ]  # fmt: skip


def partition_out_of_range(sticky: FoldedSticky) -> list[GroupFinding]:
    """Claims to partitions that their topic does not have."""
    sizes = sticky.sizes or {}
    return [
        at(generation, f"{member.member_id} claims {topic}-{partition}, and the topic has {sizes[topic]} partitions",
            (topic, partition), member=member.member_id)
        for generation, member in members_of(sticky)
        for topic, partition in member.told.claims
        if topic in sizes and not 0 <= partition < sizes[topic]
    ]  # fmt: skip


def malformed_subscription(sticky: FoldedSticky) -> list[GroupFinding]:
    """Subscriptions that cannot be read: whatever the member claims is not known."""
    return _flaws(sticky, "MALFORMED_SUBSCRIPTION")


def malformed_assignment(sticky: FoldedSticky) -> list[GroupFinding]:
    """Assignments that cannot be read."""
    return _flaws(sticky, "MALFORMED_ASSIGNMENT")


def _flaws(sticky: FoldedSticky, code: str) -> list[GroupFinding]:
    return [
        at(generation, f"{member.member_id}: {why}", None, member=member.member_id)
        for generation in sticky.generations
        for member in generation.members
        for found, why in member.flaws
        if found == code
    ]


def _by_topic(member: ClaimingMember) -> list[tuple[str, int]]:
    return list(Counter(topic for topic, _ in member.told.claims).items())


BYTES_RULES: Rules[FoldedSticky] = (
    (
        RuleText("UNPARSEABLE_USER_DATA", WARNING, "User data of the sticky assignor can be read.", "P3-10"),
        unparseable_user_data,
    ),
    (
        RuleText("TRAILING_BYTES", INFO, "User data is read to its last byte.", "P3-13, P3-14"),
        trailing_bytes,
    ),
    (
        RuleText("UNEXPECTED_USER_DATA", WARNING, "Assignors without state send no user data.", "S-15, P3-32"),
        unexpected_user_data,
    ),
    (
        RuleText(
            "UNKNOWN_TOPIC", INFO, "Members claim partitions of topics that the group wants and that exist.", "P3-23"
        ),
        unknown_topic,
    ),
    (
        RuleText("PARTITION_OUT_OF_RANGE", WARNING, "Members claim partitions that their topic has.", "P3-23"),
        partition_out_of_range,
    ),
    (
        RuleText("MALFORMED_SUBSCRIPTION", WARNING, "Every subscription can be read.", "P3-17"),
        malformed_subscription,
    ),
    (
        RuleText("MALFORMED_ASSIGNMENT", WARNING, "Every assignment can be read.", "P3-6"),
        malformed_assignment,
    ),
)
"""Rules over the bytes that consumers send; the functions take FoldedSticky."""
