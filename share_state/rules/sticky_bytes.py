"""Bytes of consumers that cannot be read, that say too much, or that name what does not exist."""

from collections import Counter

from share_state.fold.sticky import FoldedSticky
from share_state.fold.sticky_claims import STATELESS, STREAMS, ClaimingMember
from share_state.fold.sticky_resolution import is_wanted
from share_state.rules.groups_findings import INFO, WARNING, GroupFinding, Rules, RuleText
from share_state.rules.sticky_findings import at, members_of, where


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
