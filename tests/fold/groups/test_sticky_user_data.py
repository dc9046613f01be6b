"""Vectors of Kafka 4.3.1's own classes: subscriptions, assignments, sticky user data, byte for byte (P3-1 to P3-19)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.kafka.classic_groups import (
    NO_USER_DATA,
    StickyUserData,
    read_cooperative_generation,
    read_sticky_user_data,
)
from share_state.kafka.codec import encode
from share_state.kafka.group_records import Subscription, SubscriptionError, read_assignment, read_subscription
from share_state.schema.declarations import layout

CLAIMS = (("t1", 0), ("t1", 1), ("t2", 3))
V0 = "00000002 00027431 00000002 00000000 00000001 00027432 00000001 00000003"
V1 = f"{V0} 00000007"
SUBSCRIPTION = f"0003 00000002 00027431 00027432 00000024 {V1} 00000000 00000007 ffff"
ASSIGNMENT = "0003 00000002 00027431 00000002 00000000 00000001 00027432 00000001 00000003 ffffffff"


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


def previous(*topics: tuple[str, list[int]]) -> list[dict]:
    return [{"topic": topic, "partitions": partitions} for topic, partitions in topics]


OWNED = previous(("t1", [0, 1]), ("t2", [3]))


def test_version_1_ends_with_the_generation():
    """S-07, P3-1."""
    assert len(raw(V1)) == 36
    assert read_sticky_user_data(raw(V1)) == StickyUserData(1, CLAIMS, 7)
    layout_1 = layout("sticky_assignor_user_data", "v1")
    assert encode(layout_1, {"previous_assignment": OWNED, "generation": 7}) == raw(V1)


def test_version_0_has_no_generation():
    """S-05, P3-2, P3-12."""
    assert len(raw(V0)) == 32
    assert read_sticky_user_data(raw(V0)) == StickyUserData(0, CLAIMS, None)
    assert encode(layout("sticky_assignor_user_data", "v0"), {"previous_assignment": OWNED}) == raw(V0)


def test_a_member_that_owned_nothing_still_tells_its_generation():
    assert read_sticky_user_data(raw("00000000 00000007")) == StickyUserData(1, (), 7)


def test_an_old_leader_reads_the_same_partitions_from_version_1():
    """S-14: version 0 ignores what follows."""
    for size in (33, 34, 35):
        assert read_sticky_user_data(raw(V1)[:size]).claims == CLAIMS


@pytest.mark.parametrize("data", [None, b""])
def test_no_user_data_claims_nothing_and_is_no_error(data):
    assert read_sticky_user_data(data) == NO_USER_DATA


def test_what_neither_version_reads_claims_nothing_at_generation_minus_one():
    """S-13, P3-10."""
    read = read_sticky_user_data(raw("000000090102"))
    assert (read.version, read.claims, read.generation) == (None, (), -1)
    assert read.flaw


def test_bytes_behind_version_1_are_ignored_and_counted():
    assert read_sticky_user_data(raw(f"{V1} 010203")) == StickyUserData(1, CLAIMS, 7, trailing=3)


def test_up_to_three_bytes_behind_version_0_are_ignored_and_four_make_it_version_1():
    assert read_sticky_user_data(raw(f"{V0} 010203")) == StickyUserData(0, CLAIMS, None, trailing=3)
    assert read_sticky_user_data(raw(f"{V0} 00000007")) == StickyUserData(1, CLAIMS, 7)


@pytest.mark.parametrize("data", ["ffffffff 00000007", "7fffffff 00000007", "00000001 0001 74 ffffffff"])
def test_an_array_count_that_cannot_be_is_a_flaw(data):
    read = read_sticky_user_data(raw(data))
    assert (read.version, read.claims, read.generation) == (None, (), -1)


def test_four_zero_bytes_mean_different_things_to_the_two_assignors():
    assert read_sticky_user_data(raw("00000000")) == StickyUserData(0, (), None)
    assert read_cooperative_generation(raw("00000000")) == 0


def test_the_cooperative_assignor_writes_a_generation_alone():
    assert read_cooperative_generation(raw("ffffffff")) == -1
    assert read_cooperative_generation(raw("00000005")) == 5
    assert read_cooperative_generation(None) is None
    assert read_cooperative_generation(b"\0\0") == -1
    assert encode(layout("cooperative_sticky_assignor_user_data", "v0"), {"generation": -1}) == raw("ffffffff")


def test_the_order_of_topics_says_nothing():
    swapped = "00000002 00027432 00000001 00000003 00027431 00000002 00000000 00000001 00000007"
    assert set(read_sticky_user_data(raw(swapped)).claims) == set(CLAIMS)


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_found_flawed(data):
    read = read_sticky_user_data(data)
    assert (read.version is None) == (not data or bool(read.flaw))
    assert read.trailing <= len(data)


SIZES = {0: 54, 1: 58, 2: 62, 3: 64}


@pytest.mark.parametrize("version", SIZES)
def test_every_version_of_a_subscription_is_read_and_written(version):
    name = "v3+" if version == 3 else f"v{version}"
    fields = {"topics": ["t1", "t2"], "user_data": raw(V1)}
    fields |= {"owned_partitions": []} if version >= 1 else {}
    fields |= {"generation_id": 7} if version >= 2 else {}
    fields |= {"rack_id": None} if version >= 3 else {}
    written = encode(layout("consumer_protocol_subscription", name), fields)
    assert len(written) == SIZES[version]
    assert read_subscription(written) == Subscription(
        version, ("t1", "t2"), raw(V1), (), 7 if version >= 2 else None, None
    )


def test_the_newest_subscription_is_that_of_kafka():
    read = read_subscription(raw(SUBSCRIPTION))
    assert read == Subscription(3, ("t1", "t2"), raw(V1), (), 7, None)
    racked = raw(SUBSCRIPTION)[:-2] + raw("00027231")
    assert len(racked) == 66
    assert read_subscription(racked).rack_id == "r1"


def test_a_later_version_is_read_as_the_newest_known():
    later = raw("0009") + raw(SUBSCRIPTION)[2:]
    assert read_subscription(later + b"more") == Subscription(9, ("t1", "t2"), raw(V1), (), 7, None)


@pytest.mark.parametrize("data", ["ffff" + SUBSCRIPTION[4:], "", "00", "0003 00000002", SUBSCRIPTION[:-4]])
def test_a_malformed_subscription_is_refused(data):
    with pytest.raises(SubscriptionError):
        read_subscription(raw(data))


def test_a_negative_generation_is_an_absent_one():
    absent = raw(SUBSCRIPTION)[:-6] + raw("ffffffff ffff")
    assert read_subscription(absent).generation is None


def test_an_assignment_is_read():
    assert len(raw(ASSIGNMENT)) == 38
    assert read_assignment(raw(ASSIGNMENT)) == CLAIMS
    assert encode(
        layout("consumer_protocol_assignment", "v3+"), {"assigned_partitions": OWNED, "user_data": None}
    ) == raw(ASSIGNMENT)
    assert read_assignment(b"") == ()
    with pytest.raises(SubscriptionError, match="ConsumerProtocolAssignment"):
        read_assignment(b"\0")
