"""Who had a contested partition: the runs of Kafka's own class, the rule of this tool, and where the two part (3.3)."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.groups.sticky import (
    Claim,
    ResolvedOwner,
    is_order_dependent,
    kafka_owner,
    resolve,
)
from share_state.kafka.classic_groups import ClaimingMember, GroupGeneration, StickyUserData
from share_state.kafka.group_records import Subscription

TOPICS = ("t",)


def member(name: str, partitions: list[int], generation: int | None, subscribed: int | None) -> ClaimingMember:
    claims = tuple(("t", partition) for partition in partitions)
    version = 0 if generation is None else 1
    told = StickyUserData(version, claims, generation)
    return ClaimingMember(name, None, "c", Subscription(3, TOPICS, b"", (), subscribed), told, ())


def generation_of(*members: ClaimingMember) -> GroupGeneration:
    return GroupGeneration("cg", 0, 0, 9, "sticky", True, members)


def owned(resolved: list[ResolvedOwner]) -> dict[int, str | None]:
    return {one.partition: one.owner for one in resolved}


def kafka_owned(*members: ClaimingMember) -> dict[int, str | None]:
    """What Kafka's pairwise rule gives, its members met in this order."""
    places: dict[int, list[Claim]] = {}
    for one in members:
        subscribed = -1 if one.subscription_generation is None else one.subscription_generation
        for _, partition in one.user_data.claims:
            places.setdefault(partition, []).append(Claim(one.member_id, one.generation, subscribed))
    return {partition: kafka_owner(claims) for partition, claims in sorted(places.items())}


A_NEWER, B_OLDER = member("A", [0, 1], 7, 7), member("B", [1, 2], 5, None)
A_OLD_FORM, B_OLD_FORM = member("A", [0, 1], 7, None), member("B", [1, 2], 5, None)
D = {name: member(name, [0], generation, generation) for name, generation in (("A", 5), ("B", 5), ("C", 6))}
A_V0, B_3, B_V0 = member("A", [0, 1], None, None), member("B", [1, 2], 3, 3), member("B", [1, 2], None, None)
A_5, B_5 = member("A", [0, 1], 5, 5), member("B", [1, 2], 5, 5)

# case, members in order, what Kafka gave, what the rule of the highest generation gives: runs of 4.3.1 (P3-24).
RUNS = [
    ("A", (A_5, B_5), {0: "A", 1: None, 2: "B"}, {0: "A", 1: None, 2: "B"}),
    ("B", (A_NEWER, B_OLDER), {0: "A", 1: "A", 2: "B"}, {0: "A", 1: "A", 2: "B"}),
    ("B, B first", (B_OLDER, A_NEWER), {0: "A", 1: "A", 2: "B"}, {0: "A", 1: "A", 2: "B"}),
    ("C1", (A_OLD_FORM, B_OLD_FORM), {0: "A", 1: "B", 2: "B"}, {0: "A", 1: "A", 2: "B"}),
    ("C2", (B_OLD_FORM, A_OLD_FORM), {0: "A", 1: "A", 2: "B"}, {0: "A", 1: "A", 2: "B"}),
    ("D1", (D["A"], D["B"], D["C"]), {0: "C"}, {0: "C"}),
    ("D2", (D["C"], D["A"], D["B"]), {0: "C"}, {0: "C"}),
    ("E", (A_V0, B_3), {0: "A", 1: "B", 2: "B"}, {0: "A", 1: "B", 2: "B"}),
    ("E, B first", (B_3, A_V0), {0: "A", 1: "B", 2: "B"}, {0: "A", 1: "B", 2: "B"}),
    ("F", (A_V0, B_V0), {0: "A", 1: None, 2: "B"}, {0: "A", 1: None, 2: "B"}),
]


@pytest.mark.parametrize(("case", "members", "kafka", "ours"), RUNS, ids=[one[0] for one in RUNS])
def test_the_runs_of_kafka_s_own_class(case, members, kafka, ours):
    assert kafka_owned(*members) == kafka
    assert owned(resolve(generation_of(*members))) == ours


def test_only_old_subscriptions_make_the_order_matter():
    """C: the present holder's subscription tells no generation, so whoever comes later takes the partition."""
    dependent = {
        case: any(one.is_order_dependent for one in resolve(generation_of(*members))) for case, members, *_ in RUNS
    }
    assert {case for case, depends in dependent.items() if depends} == {"C1", "C2"}


def test_one_topic_partition_has_every_status():
    """P3-20 to P3-22."""
    members = (
        member("new", [0, 1, 2], 7, 7),
        member("other", [2, 3], 7, 7),
        member("stale", [1, 4], 5, 5),
    )
    rows = {one.partition: one for one in resolve(generation_of(*members), {"t": 6})}
    assert {partition: (one.owner, one.generation, one.status) for partition, one in rows.items()} == {
        0: ("new", 7, "UNCONTESTED"),
        1: ("new", 7, "WON_BY_GENERATION"),
        2: (None, 7, "INVALIDATED_SAME_GENERATION"),
        3: ("other", 7, "UNCONTESTED"),
        4: ("stale", 5, "STALE_UNCONTESTED"),
        5: (None, None, "UNCLAIMED"),
    }
    assert [claim.member_id for claim in rows[1].losing] == ["stale"]
    assert [claim.member_id for claim in rows[2].losing] == ["new", "other"]


def test_older_claims_do_not_inherit_a_partition_that_two_newer_ones_contest():
    members = (member("A", [0], 7, 7), member("B", [0], 7, 7), member("C", [0], 5, 5))
    (row,) = resolve(generation_of(*members))
    assert (row.owner, row.status, len(row.losing)) == (None, "INVALIDATED_SAME_GENERATION", 3)


def test_claims_to_topics_that_nobody_wants_are_left_out():
    told = StickyUserData(1, (("t", 0), ("gone", 0)), 7)
    one = ClaimingMember("A", None, "c", Subscription(3, TOPICS, b"", (), 7), told, ())
    assert [(row.topic, row.partition) for row in resolve(generation_of(one))] == [("t", 0)]
    assert resolve(generation_of(one), {"other": 3}) == []


def test_a_partition_claimed_twice_by_one_member_is_claimed_once():
    (row,) = resolve(generation_of(member("A", [0, 0], 7, 7)))
    assert (row.owner, row.status) == ("A", "UNCONTESTED")


CLAIMS = st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 4)), min_size=1, max_size=6).map(
    lambda drawn: [Claim(f"m{number}", *generations) for number, generations in enumerate(drawn)]
)


@given(CLAIMS)
def test_the_owner_does_not_depend_on_the_order_of_the_members(claims):
    def owner(order):
        members = [member(one.member_id, [0], one.generation, one.subscription_generation) for one in order]
        return owned(resolve(generation_of(*members)))

    assert owner(claims) == owner(claims[::-1])
    highest = max(one.generation for one in claims)
    best = [one.member_id for one in claims if one.generation == highest]
    assert owner(claims) == {0: best[0] if len(best) == 1 else None}


@given(CLAIMS)
def test_the_order_matters_exactly_where_two_orders_differ(claims):
    owners = {kafka_owner(order) for order in permutations(claims)}
    assert is_order_dependent(claims) == (len(owners) > 1)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_with_honest_subscriptions_kafka_gives_a_single_newest_claim_its_partition(generations):
    """Where every subscription tells the generation of its own claims, the newest claim wins in any order."""
    claims = [Claim(f"m{number}", generation, generation) for number, generation in enumerate(generations)]
    newest = max(generations)
    if generations.count(newest) == 1:
        assert {kafka_owner(order) for order in permutations(claims)} == {f"m{generations.index(newest)}"}
