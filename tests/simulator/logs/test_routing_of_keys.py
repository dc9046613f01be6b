"""The scalar hash sends keys where Kafka's and the compiled one do."""

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.kafka.share_partition_keys import KeyTable, number_of
from share_state.simulator.state_values import StateKey, state_partition_for
from tests.kafka.batches import key

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.mark.parametrize(
    ("text", "partition"),
    [
        ("g1:AAAAAAAAAAEAAAAAAAAAAg:3", 33),
        ("group1:AAAAAAAAAAEAAAAAAAAAAg:3", 35),
        ("gé:1:AAAAAAAAAAEAAAAAAAAAAg:0", 7),
        ("😀:_____________________w:7", 2),
        ("my-share-group:5Y2VfE9xTOSVmSFbWg1sdQ:12", 30),
    ],
)
def test_known_keys_go_where_kafka_sends_them(text, partition):
    group, topic, number = text.rsplit(":", 2)
    assert state_partition_for(StateKey(group, topic, int(number)), 50) == partition


@given(st.lists(st.tuples(NAMES, st.binary(min_size=16, max_size=16), st.integers(-(2**31), 2**31 - 1)), max_size=5))
def test_every_key_goes_where_the_compiled_hash_sends_it(drawn):
    table = KeyTable()
    for group, topic, partition in drawn:
        data = np.frombuffer(key(group=group, topic=topic, partition=partition)[2:], np.uint8)
        number_of(data, 0, len(data), table.slots, table.hashes, table.starts, table.arena, table.count)
    distinct = dict.fromkeys(drawn)
    for one, expected in zip(distinct, table.coordinator_hashes() % 50, strict=True):
        group, topic, partition = one
        text = base64.urlsafe_b64encode(topic).decode().rstrip("=")
        assert state_partition_for(StateKey(group, text, partition), 50) == expected
