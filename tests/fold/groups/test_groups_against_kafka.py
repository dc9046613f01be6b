"""Kafka's own classes read the same values, resolve the same claims, and give the same assignments and hashes."""

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_state.fold.groups.group_tables import expected_assignment_sizes, members_per_partition
from share_state.fold.groups.sticky import Claim, kafka_owner
from share_state.kafka.codec import UNKNOWN_TAGS, encode
from share_state.kafka.group_records import GroupRecordError, read_value
from share_state.schema.declarations import layout, record
from share_state.simulator.assignor import assign
from share_state.simulator.metadata_hash import group_hash, topic_hash
from share_state.sources import jars
from tests.fold.groups.group_writer import classic_group, key, subscription, user_data
from tests.fold.groups.kafka_group_classes import KafkaGroups
from tests.kafka.test_codec import values
from tests.kafka_classes import RefusedByKafkaError
from tests.present import present

NAMES = {
    10: "share_group_member_metadata_value",
    11: "share_group_metadata_value",
    12: "share_group_target_assignment_metadata_value",
    13: "share_group_target_assignment_member_value",
    14: "share_group_current_member_assignment_value",
    15: "share_group_state_partition_metadata_value",
}
KEYS = {record_type: key(record_type, "G1", "m1" if record_type in (10, 13, 14) else None) for record_type in NAMES}
KEYS[2] = present(classic_group("G1", 1, []).key)


@pytest.fixture(scope="module")
def kafka(spark) -> KafkaGroups:
    return KafkaGroups(spark._jvm, jars.jars(jars.KAFKA_TOOLS))


@pytest.mark.parametrize("record_type", NAMES)
@settings(max_examples=max(10, settings().max_examples // 4))
@given(data=st.data())
def test_kafka_reads_what_is_written(kafka, record_type, data):
    latest = layout(NAMES[record_type], record(NAMES[record_type]).layouts[-1].releases)
    drawn = data.draw(values(latest.fields, latest.flexible))
    assert kafka.read(KEYS[record_type], encode(latest, drawn)) == in_kafka_s_words(drawn)


@pytest.mark.parametrize("version", range(5))
@settings(max_examples=max(10, settings().max_examples // 4))
@given(data=st.data())
def test_kafka_reads_every_version_of_a_classic_group(kafka, version, data):
    chosen = layout("group_metadata_value", f"v{version}")
    drawn = data.draw(values(chosen.fields, chosen.flexible))
    drawn["members"] = drawn["members"][:3]
    assert kafka.read(KEYS[2], encode(chosen, drawn)) == in_kafka_s_words(drawn)


@pytest.mark.parametrize("record_type", [*NAMES, 2])
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_damaged_values_are_read_or_refused_as_kafka_does(kafka, record_type, data):
    """But that 4.3.1 refuses the layout of 4.0, and puts a sign of its own for bytes that are no UTF-8."""
    name = NAMES.get(record_type, "group_metadata_value")
    latest = layout(name, "v3" if record_type == 2 else record(name).layouts[-1].releases)
    drawn = data.draw(values(latest.fields, latest.flexible))
    if record_type == 2:
        drawn["members"] = drawn["members"][:3]
    written = bytearray(encode(latest, drawn))
    for _ in range(data.draw(st.integers(1, 3))):
        written[data.draw(st.integers(2, len(written) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(written[: data.draw(st.integers(0, len(written)))])
    try:
        theirs = kafka.read(KEYS[record_type], cut)
    except RefusedByKafkaError:
        theirs = None
    try:
        read = read_value(record_type, cut)
    except GroupRecordError as error:
        assert theirs is None or "not UTF-8" in str(error)
        return
    assert read.is_early or theirs == in_kafka_s_words(read.fields)


def in_kafka_s_words(fields: dict[str, Any]) -> dict[str, Any]:
    """As the tools' JSON: camel case, bytes in base 64, no field at a tag's default, no unknown tags."""
    told = {}
    for name, field in fields.items():
        if name == UNKNOWN_TAGS or (name == "assignment_timestamp" and field == 0):
            continue
        first, *rest = name.split("_")
        told[first + "".join(word.capitalize() for word in rest)] = _in_kafka_s_words(field)
    return told


def _in_kafka_s_words(field: Any) -> Any:
    if isinstance(field, dict):
        return in_kafka_s_words(field)
    if isinstance(field, list):
        return [_in_kafka_s_words(one) for one in field]
    return base64.b64encode(field).decode() if isinstance(field, bytes) else field


MEMBERS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), unique=True, max_size=3),  # partitions of t
        st.none() | st.integers(0, 4),  # generation of the claims; none is version 0
        st.integers(-1, 4),  # generation of the subscription
        st.integers(0, 3),  # version of the subscription
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=2 * settings().max_examples)
@given(MEMBERS)
def test_kafka_resolves_claims_by_the_rule_that_is_said_to_be_its_own(kafka, drawn):
    members, claims = [], {}
    for number, (partitions, generation, subscribed, version) in enumerate(drawn):
        data = user_data({"t": partitions}, generation)
        members.append((f"m{number}", subscription(["t"], data, version=version, generation=subscribed)))
        told = subscribed if version >= 2 else -1
        for partition in partitions:
            claims.setdefault(("t", partition), []).append(
                Claim(f"m{number}", -1 if generation is None else generation, told)
            )
    owners = {place: kafka_owner(of_place) for place, of_place in claims.items()}
    assert kafka.owned(members, ["t"]) == {place: owner for place, owner in owners.items() if owner is not None}


def test_kafka_leaves_claims_to_unknown_topics_out(kafka):
    members = [("m0", subscription(["t"], user_data({"t": [0], "gone": [0]}, 3), generation=3))]
    assert kafka.owned(members, ["t"]) == {("t", 0): "m0"}


def test_kafka_takes_the_cooperative_assignor_s_owned_partitions(kafka):
    members = [
        ("m0", subscription(["t"], user_data({"t": [3]}, 9), generation=3, owned={"t": [0]})),
        ("m1", subscription(["t"], bytes.fromhex("00000002"), version=1, owned={"t": [0, 1]})),
    ]
    assert kafka.owned(members, ["t"], cooperative=True) == {("t", 0): "m0", ("t", 1): "m1"}


IDS = [
    base64.urlsafe_b64encode(bytes([7 * number + place for place in range(16)])).decode()[:22] for number in range(3)
]
MEMBERS_BY_NAME = [f"{base64.b64encode(bytes([number] * 9)).decode()}-{number}" for number in range(14)]
STEPS = st.lists(
    st.tuples(
        st.dictionaries(
            st.sampled_from(MEMBERS_BY_NAME), st.lists(st.sampled_from(IDS), unique=True, max_size=3), min_size=1
        ),  # who subscribes to what
        st.none() | st.sampled_from([IDS[:1], IDS[:2], IDS]),  # or all to this
        st.tuples(*[st.integers(0, 14)] * 3),  # partitions of the topics, at least
        st.integers(0, 3),  # partitions at the front of the first topic that are not initialized
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=5 * settings().max_examples)
@given(STEPS)
def test_our_assignor_gives_what_kafka_s_gives(kafka, steps):
    """Members come and go and change their topics, partitions are added; each assignment changes the one before."""
    sizes, current = [0, 0, 0], {}
    for members, same, partitions, waiting in steps:
        subscriptions = {member: same or topics for member, topics in members.items()}
        sizes = [max(pair) for pair in zip(sizes, partitions, strict=True)]
        assignable = {one: [*range(size)] for one, size in zip(IDS, sizes, strict=True)}
        assignable[IDS[0]] = assignable[IDS[0]][waiting:]
        current = {member: current.get(member, {}) for member in members}
        try:
            theirs = kafka.assign(subscriptions, assignable, current)
        except RefusedByKafkaError as error:
            assert "NoSuchElementException" in str(error) and waiting
            return
        assert assign(subscriptions, assignable, current) == {one: theirs.get(one, {}) for one in subscriptions}
        current = theirs


GROWTH = st.lists(
    st.tuples(st.sets(st.integers(0, 11), min_size=1, max_size=12), st.integers(1, 16)), min_size=1, max_size=4
)


@settings(max_examples=2 * settings().max_examples)
@given(GROWTH)
def test_the_assignor_keeps_the_rules(steps):
    """Members come and go, partitions are added; each assignment changes the one before."""
    partitions, assigned = 0, {}
    for members, more in steps:
        partitions = max(partitions, more)
        subscriptions = {f"m{member}": IDS[:1] for member in sorted(members)}
        assigned = assign(subscriptions, {IDS[0]: range(partitions)}, assigned)
        held = [of_member.get(IDS[0], []) for of_member in assigned.values()]
        sizes = sorted(map(len, held))
        most = members_per_partition(len(members), partitions)
        assert {partition for of_member in held for partition in of_member} == set(range(partitions))
        for partition in range(partitions):
            assert sum(partition in of_member for of_member in held) <= most
        expected = sorted(expected_assignment_sizes(len(members), partitions))
        assert sizes[-1] - sizes[0] <= 1
        assert all(abs(size - due) <= 1 for size, due in zip(sizes, expected, strict=True))


RACKS = st.lists(st.lists(st.sampled_from(["", "eu-1a", "ü", "\U0001f98a"]), max_size=3), max_size=40)


@given(st.binary(min_size=16, max_size=16), st.text(max_size=300), RACKS)
def test_our_hash_of_a_topic_is_kafka_s(kafka, topic_id, name, racks):
    text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
    assert topic_hash(text, name, racks) == kafka.topic_hash(text, name, racks)


@given(st.dictionaries(st.text(max_size=4), st.just(0) | st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_our_hash_of_a_group_is_kafka_s(kafka, topics):
    assert group_hash(topics) == kafka.group_hash(topics)
