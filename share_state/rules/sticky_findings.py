"""What the rules about sticky assignors share: walks over generations, and findings that say where they are."""

from collections.abc import Iterator

from share_state.fold.sticky import FoldedSticky
from share_state.fold.sticky_claims import ClaimingMember, GroupGeneration
from share_state.fold.sticky_resolution import Resolved
from share_state.rules.groups_findings import GroupFinding


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
