"""The plain codec reads and refuses what Kafka's generated readers do, byte for byte."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from share_state.kafka.codec import CodecError, decode
from share_state.schema.declarations import layout
from share_state.sources import jars
from tests.kafka.damaged import damaged
from tests.kafka_classes import KafkaShard, RefusedByKafkaError
from tests.log_writer import snapshot, update
from tests.present import present

KEY = ("g1", "AAAAAAAAAAEAAAAAAAAAAg", 3)
KEYS = {"snapshot": snapshot(KEY).key, "update": update(KEY).key}
# An update alone says nothing of these, so Kafka holds what a state begins with.
NOT_IN_AN_UPDATE = {"state_epoch": 0, "create_timestamp": 0, "write_timestamp": 0}


@pytest.fixture(scope="module")
def kafka(spark):
    """What Kafka 4.4.0 holds after one record, None where it refuses it."""

    def load(key: bytes, value: bytes) -> dict | None:
        shard = KafkaShard(spark._jvm, jars.jars(jars.KAFKA))
        try:
            shard.replay(0, key, value)
        except RefusedByKafkaError:
            return None
        (state,) = shard.states().values()
        return state

    return load


@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=3 * settings().max_examples)
@given(data=st.data())
def test_values_are_read_or_refused_as_kafka_does(kafka, kind, data):
    assert_read_alike(kafka, kind, data.draw(damaged(kind, "4.1+")))


def assert_read_alike(kafka, kind: str, value: bytes) -> bool:
    """Whether both read it; fails where only one does, or they read different things."""
    held = kafka(KEYS[kind], value)
    try:
        read, consumed = decode(layout(f"share_{kind}_value", "4.1+"), value)
    except CodecError:
        assert held is None
        return False
    assert consumed <= len(value)
    assert held is not None
    read: dict[str, Any] = NOT_IN_AN_UPDATE | read
    names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    read["state_batches"] = [tuple(one[name] for name in names) for one in read["state_batches"]]
    fields = read.keys() - {"unknown_tags"}
    assert {name: held[name] for name in fields} == {name: read[name] for name in fields}
    return True


HEAD = "0000 00000000 00000002 ffffffffffffffff"


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        (f"{HEAD} 01 00", True),
        (f"{HEAD} 01 00 07", True),  # a byte behind the value
        (f"{HEAD} 01 01 00 08 0000000b 0000000c", True),  # tag 0 of 8 bytes
        (f"{HEAD} 01 01 00 ffffffff0f 0000000b", True),  # tag 0 of any size at all
        (f"{HEAD} 01 02 00 04 0000000b 00 04 0000000c", True),  # tag 0 twice
        (f"{HEAD} 01 02 09 00 07 00", True),  # tags that do not ascend
        (f"{HEAD} 01 01 ffffffff0f 00", True),  # the greatest tag
        (f"{HEAD} 8100 00", True),  # an array length longer than it need be
        (f"{HEAD} 00 00", False),  # a null array
        (f"{HEAD} 03 00", False),  # more elements than bytes
        (f"{HEAD} 01 ffffffff0f", False),  # a negative number of tags
        (f"{HEAD} 01 01 09 ffffffff0f 00", False),  # an unknown tag of negative size
        (f"{HEAD} 01 01 09 02 00", False),  # an unknown tag cut short
        (f"{HEAD} 01 808080808000", False),  # a varint of six bytes
        (f"{HEAD} 01", False),  # no tags
        ("0001" + HEAD[4:] + "01 00", False),  # another version
        ("00", False),
        ("", False),
    ],
)
def test_odd_updates_are_read_or_refused_as_kafka_does(kafka, text, is_read):
    assert assert_read_alike(kafka, "update", bytes.fromhex(text)) == is_read


@settings(max_examples=settings().max_examples)
@given(group=st.text(st.characters(exclude_categories=["Cs"]), max_size=20), partition=st.integers(-(2**31), 2**31 - 1))
@example(group="😀é:1", partition=0)
def test_keys_are_those_that_kafka_reads(spark, group, partition):
    key = (group, "_____________________w", partition)
    shard = KafkaShard(spark._jvm, jars.jars(jars.KAFKA))
    one = snapshot(key)
    shard.replay(0, present(one.key), one.value)
    assert list(shard.states()) == [key]
