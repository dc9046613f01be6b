"""What members of classic consumer groups claim to have had (KIP-341): stale, contested and impossible claims."""

from share_state.fold.sticky import FoldedSticky
from share_state.fold.sticky_claims import STICKY, ClaimingMember, GroupGeneration
from share_state.fold.sticky_resolution import INVALIDATED
from share_state.rules.groups_findings import INFO, WARNING, GroupFinding, Rules, RuleText, listed
from share_state.rules.sticky_findings import at, members_of, resolved_of, with_earlier


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
