"""Share-partitions under small numbers, and the state partition that each belongs to."""

import base64
import struct
import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.kafka.share_partition_keys import (
    KeyTable,
    binary_texts,
    escaped_texts,
    number_of,
    uuid_texts,
)

texts = st.text(max_size=40).filter(lambda text: not any(0xD800 <= ord(character) <= 0xDFFF for character in text))
Key = tuple[str, bytes, int]
keys = st.tuples(texts, st.binary(min_size=16, max_size=16), st.integers(-(2**31), 2**31 - 1))


def _bytes(key: Key) -> bytes:
    name = key[0].encode()
    return struct.pack(">h", len(name)) + name + key[1] + struct.pack(">i", key[2])


def _number(table: KeyTable, content: bytes) -> int:
    data = np.frombuffer(content, np.uint8)
    while True:
        number = number_of(data, 0, len(data), table.slots, table.hashes, table.starts, table.arena, table.count)
        if number >= 0:
            return int(number)
        table.grow(len(data))


def _java_hash(text: str) -> int:
    """String.hashCode over UTF-16 units."""
    units = text.encode("utf-16-be")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def _text(topic: bytes) -> str:
    return base64.urlsafe_b64encode(topic).decode().rstrip("=")


@given(st.lists(keys, max_size=60))
def test_a_key_keeps_the_number_of_its_first_sight(drawn: list[Key]):
    table, model = KeyTable(), {}
    for key in drawn:
        assert _number(table, _bytes(key)) == model.setdefault(key, len(model))
    assert len(table) == len(model)
    groups, topics, partitions = (column.to_pylist() for column in table.columns())
    assert list(zip(groups, topics, partitions, strict=True)) == [(key[0], _text(key[1]), key[2]) for key in model]


@given(
    st.lists(keys, max_size=20), st.lists(st.sampled_from([b"g\xff", b"g\xfe", b"g", b"\xff"]), max_size=4), st.data()
)
def test_columns_made_key_by_key_are_those_made_at_once(drawn: list[Key], ids: list[bytes], data: st.DataObject):
    malformed = [struct.pack(">h", len(name)) + name + bytes(20) for name in ids]
    contents = data.draw(st.permutations([*map(_bytes, drawn), *malformed]))
    grown, copied = KeyTable(), KeyTable()
    for content in contents:
        for table in (grown, copied):
            table.merge_malformed(np.array([_number(table, content)], np.int32))
        before, copied = copied, copied.copy()
        assert all(map(pa.Array.equals, before.columns(), copied.columns()))
        assert len(grown.columns()[0]) == len(grown.coordinator_hashes()) == len(grown)
    at_once = KeyTable.of(pa.chunked_array([grown.binary()], pa.binary()))
    at_once.merge_malformed(np.arange(len(at_once), dtype=np.int32))
    for table in (grown, copied):
        assert all(map(pa.Array.equals, table.columns(), at_once.columns()))
        assert table.coordinator_hashes().tolist() == at_once.coordinator_hashes().tolist()


def test_a_copy_and_its_table_grow_apart():
    table = KeyTable()
    _number(table, _bytes(("a", bytes(16), 0)))
    copied = table.copy()
    assert [_number(one, _bytes((name, bytes(16), 0))) for one, name in ((table, "b"), (copied, "c"))] == [1, 1]
    assert [one.columns()[0].to_pylist() for one in (table, copied)] == [["a", "b"], ["a", "c"]]
    assert _number(table, _bytes(("c", bytes(16), 0))) == 2


def test_a_table_that_is_copied_before_each_key_takes_the_room_of_its_keys():
    table = KeyTable()
    for number in range(100):
        table = table.copy()
        assert _number(table, _bytes(("g", bytes(16), number))) == number
    assert [_number(table, _bytes(("g", bytes(16), number))) for number in range(100)] == list(range(100))
    assert len(table.arena) < 100 * len(_bytes(("g", bytes(16), 0))) * 3
    assert len(table.slots) == len(KeyTable().slots)


def test_more_keys_than_there_is_room_for_keep_their_numbers():
    table = KeyTable()
    contents = [_bytes(("g" * (number % 300), bytes(16), number)) for number in range(20_000)]
    assert [_number(table, content) for content in contents] == list(range(20_000))
    assert [_number(table, content) for content in contents] == list(range(20_000))
    assert table.columns()[2].to_pylist() == list(range(20_000))


def test_a_key_longer_than_all_room_finds_room():
    table, longest = KeyTable(), _bytes(("x" * (2**15 - 1), bytes(16), 0))
    assert [_number(table, longest + bytes([number])) for number in range(9)] == list(range(9))


def test_keys_that_differ_in_one_byte_are_two_keys():
    table, key = KeyTable(), _bytes(("group", bytes(16), 0))
    for place in range(len(key)):
        _number(table, key[:place] + bytes([key[place] ^ 1]) + key[place + 1 :])
    assert len(table) == len(key)


def test_bytes_that_are_no_utf_8_are_replaced_as_java_does():
    table = KeyTable()
    _number(table, struct.pack(">h", 3) + b"a\xffb" + bytes(16) + bytes(4))
    _number(table, _bytes(("gé", bytes(16), 1)))
    assert table.columns()[0].to_pylist() == ["a\N{REPLACEMENT CHARACTER}b", "gé"]


def test_a_table_without_keys_has_empty_columns():
    assert [len(column) for column in KeyTable().columns()] == [0, 0, 0]


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=20))
def test_a_topic_id_is_written_as_kafka_writes_it(ids: list[bytes]):
    rows = np.frombuffer(b"".join(ids), np.uint8).reshape(len(ids), 16)
    assert uuid_texts(rows).to_pylist() == [_text(identity) for identity in ids]


VECTORS = [
    ("g1", uuid.UUID(int=(1 << 64) + 2), 3, 33),
    ("group1", uuid.UUID(int=(1 << 64) + 2), 3, 35),
    ("gé:1", uuid.UUID(int=(1 << 64) + 2), 0, 7),
    ("😀", uuid.UUID(int=2**128 - 1), 7, 2),
    ("my-share-group", uuid.UUID(bytes=base64.urlsafe_b64decode("5Y2VfE9xTOSVmSFbWg1sdQ==")), 12, 30),
]
"""Group, topic id, partition, and the state partition of 50 that a released broker gives it."""


@pytest.mark.parametrize(("group", "topic", "partition", "expected"), VECTORS, ids=str)
def test_a_share_partition_belongs_where_the_broker_puts_it(
    group: str, topic: uuid.UUID, partition: int, expected: int
):
    table = KeyTable()
    _number(table, _bytes((group, topic.bytes, partition)))
    assert (table.coordinator_hashes() % 50).tolist() == [expected]


@given(st.lists(keys, min_size=1, max_size=30), st.integers(1, 1000))
def test_the_state_partition_is_java_s_hash_of_the_key(drawn: list[Key], state_partitions: int):
    table = KeyTable()
    numbers = [_number(table, _bytes(key)) for key in drawn]
    found = table.coordinator_hashes() % state_partitions
    for number, (group, topic, partition) in zip(numbers, drawn, strict=True):
        value = _java_hash(f"{group}:{_text(topic)}:{partition}")
        assert found[number] == (0 if value == -(2**31) else abs(value)) % state_partitions


def test_the_hash_of_these_tests_is_java_s():
    assert _java_hash("hello") == 99162322
    assert _java_hash("polygenelubricants") == -(2**31)


def test_keys_that_java_reads_as_one_have_one_number():
    """In whatever order they come: a malformed byte is U+FFFD, which a valid id may hold, too."""
    ids = [b"g\xff", b"g\xfe", "g\N{REPLACEMENT CHARACTER}".encode(), b"g", b"g\xff"]
    contents = [struct.pack(">h", len(name)) + name + bytes(16) + bytes(4) for name in ids]
    for order in ([0, 1, 2, 3, 4], [2, 3, 1, 0, 4], [3, 1, 4, 2, 0]):
        table, found = KeyTable(), {}
        for place in order:
            # One at a time: keys of later chunks meet those of earlier ones.
            numbers = np.array([_number(table, contents[place]), -1], np.int32)
            table.merge_malformed(numbers)
            found[place] = int(numbers[0])
            assert numbers[1] == -1
        assert len({found[0], found[1], found[2], found[4]}) == 1
        assert found[3] != found[0]
        assert table.columns()[0].to_pylist()[found[0]] == "g\N{REPLACEMENT CHARACTER}"
        again = KeyTable.of(pa.chunked_array([table.binary()]))
        numbers = np.array([_number(again, content) for content in contents], np.int32)
        again.merge_malformed(numbers)
        assert numbers.tolist() == [found[place] for place in range(5)]


@given(st.sets(st.lists(st.sampled_from([b"g", b"\\", b"x", b"f", b"\xff", "\N{POUND SIGN}".encode()])).map(b"".join)))
def test_no_two_ids_of_control_records_are_shown_alike(ids: set[bytes]):
    """Not even one that spells a byte as it is shown: `g\\xff`."""
    ids |= {b"g\xff", rb"g\xff", rb"g\\xff"}
    data = b"".join(ids)
    ends = np.cumsum([0, *map(len, ids)])
    texts = escaped_texts(binary_texts(ends, np.frombuffer(data, np.uint8))).to_pylist()
    assert len(set(texts)) == len(ids)
    plain = {one.decode() for one in ids if b"\\" not in one and b"\xff" not in one}
    assert plain <= set(texts)
