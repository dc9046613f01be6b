"""What the leader of a classic consumer group made of the claims (KIP-341): double, moved and unequal assignments."""

from share_state.fold.sticky import FoldedSticky
from share_state.fold.sticky_claims import STREAMS
from share_state.rules.groups_findings import INFO, WARNING, GroupFinding, Rules, RuleText, listed
from share_state.rules.sticky_findings import at
from share_state.wire.subscription import TopicPartition


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
