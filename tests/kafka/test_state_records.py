"""Keys and values of `__share_group_state`: the two layouts, and everything that can be wrong with one record."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kafka.batches import (
    NOW,
    SNAPSHOT,
    TOPIC,
    UPDATE,
    Batch,
    Range,
    Record,
    consecutive,
    in_bytes,
    key,
    ranges,
    snapshot,
    state_batch,
    update,
    uvarint,
)
from tests.kafka.judged import Judged, judged_bytes
from tests.profiles import by_profile, some_of

BATCHES: list[Range] = [(0, 9, 2, 1), (12, 12, 0, 3)]
BASE = [Record(key(partition=number), snapshot(BATCHES, start=0)) for number in range(2)]
"""Two share-partitions; what the tests add at offset 2 is about partition 0."""
STATES = [
    {"first_offset": 0, "last_offset": 9, "delivery_state": 2, "delivery_count": 1},
    {"first_offset": 12, "last_offset": 12, "delivery_state": 0, "delivery_count": 3},
]


def _with(folder: Path, *content: Record, base: list[Record] = BASE) -> Judged:
    """The base, then each record in a batch of its own."""
    return judged_bytes(folder, in_bytes(consecutive([Batch(base), *(Batch([record]) for record in content)])))


def _update(value: bytes | None) -> Record:
    return Record(key(UPDATE), value)


def _snapshot(value: bytes | None) -> Record:
    return Record(key(SNAPSHOT), value)


def _state(found: Judged, partition: int = 0, *, but: tuple[str, ...] = ("last_offset", "suspect")) -> dict:
    return {name: value for name, value in found.states["g", partition].items() if name not in but}


@pytest.fixture
def plain(tmp_path: Path) -> Judged:
    found = _with(tmp_path / "plain")
    assert not found.findings
    return found


def _is_unreadable(found: Judged, plain: Judged, code: str) -> None:
    """Nothing of the record was used; its share-partition is suspect and no other is."""
    assert found.causes == {code: 1}
    (finding,) = found.of(code)
    assert (finding["offset"], finding["severity"], finding["group_id"], finding["partition"]) == (2, "error", "g", 0)
    assert _state(found) == _state(plain)
    assert found.suspects == {0}
    assert not found.cutoff["safe"]


def _is_harmless(found: Judged, expected: Judged, code: str, severity: str) -> None:
    """The record was folded as if it were right."""
    assert found.causes == {code: 1}
    assert found.of(code)[0]["severity"] == severity
    assert found.folded.states == expected.folded.states
    assert found.folded.in_flight == expected.folded.in_flight
    assert not found.suspects
    assert found.cutoff["safe"] == expected.cutoff["safe"]


def test_a_snapshot_is_the_state(tmp_path: Path):
    value = snapshot(BATCHES, start=3, epoch=7, state_epoch=4, leader_epoch=9, created=NOW, written=NOW + 1, count=10)
    row = _with(tmp_path, _snapshot(value)).states["g", 0]
    assert row["topic_id"] == "AAECAwQFBgcICQoLDA0ODw"
    assert (row["start_offset"], row["snapshot_epoch"], row["state_epoch"], row["leader_epoch"]) == (3, 7, 4, 9)
    assert row["delivery_complete_count"] == 10
    assert [row[name].timestamp() * 1000 for name in ("create_time", "write_time")] == [NOW, NOW + 1]
    assert row["state_batches"] == STATES  # a lone snapshot stands as it was written


def test_a_snapshot_of_4_0_is_read_in_its_own_layout(tmp_path: Path):
    row = _with(tmp_path, base=[_snapshot(snapshot(BATCHES, start=0, epoch=65535, early=True))]).states["g", 0]
    assert row["snapshot_epoch"] == 65535
    assert (row["create_time"], row["write_time"], row["delivery_complete_count"]) == (None, None, -1)
    assert row["state_batches"] == STATES


def test_an_update_of_4_0_is_read_in_its_own_layout(tmp_path: Path):
    base = [_snapshot(snapshot(start=0, early=True))]
    row = _with(tmp_path, _update(update(BATCHES, start=1, leader_epoch=8, early=True)), base=base).states["g", 0]
    assert (row["start_offset"], row["leader_epoch"], row["updates_since_snapshot"]) == (1, 8, 1)
    assert row["state_batches"][0] == STATES[0] | {"first_offset": 1}


@pytest.mark.parametrize("at_first", [True, False])
def test_values_of_both_layouts_in_one_log_are_read_and_named(tmp_path: Path, at_first: bool):
    layouts = [at_first, not at_first, at_first]
    content = [Record(key(partition=number), snapshot(BATCHES, early=early)) for number, early in enumerate(layouts)]
    found = _with(tmp_path, base=content)
    assert found.codes == {"LAYOUT_MIXED": 1}
    (finding,) = found.of("LAYOUT_MIXED")
    early, current = (0, 1) if at_first else (1, 0)
    assert (finding["offset"], finding["severity"]) == (1, "warning")
    assert finding["evidence"] == {"first_4.0": str(early), "first_4.1": str(current)}
    assert [row["state_batches"] for row in found.states.values()] == [STATES] * 3


@pytest.mark.parametrize("kind", [2, 3, 15, 255, -1, 2**15 - 1])
def test_a_record_of_another_type_is_skipped(tmp_path: Path, plain: Judged, kind: int):
    found = _with(tmp_path, Record(key(kind), b"anything"), Record(key(kind), None))
    assert found.codes == {"UNKNOWN_RECORD_TYPE": 1}
    (finding,) = found.of("UNKNOWN_RECORD_TYPE")
    assert (finding["offset"], finding["severity"]) == (2, "info")
    assert finding["evidence"] == {"type": str(kind), "records": "2"}
    assert found.folded.states == plain.folded.states
    assert found.folded.record_count == 4
    assert found.cutoff["safe"]


@pytest.mark.parametrize("kind", [SNAPSHOT, UPDATE])
def test_a_key_cut_at_any_byte_makes_every_state_before_it_suspect(tmp_path: Path, plain: Judged, kind: int):
    whole = key(kind)
    for cut in range(0, len(whole), by_profile(5, 1)):
        found = _with(tmp_path, Record(whole[:cut], snapshot()))
        assert found.causes == {"KEY_MALFORMED": 1}, cut
        (finding,) = found.of("KEY_MALFORMED")
        assert (finding["offset"], finding["severity"], finding["group_id"]) == (2, "error", None)
        # Nobody knows whose record it was.
        assert found.suspects == {0, 1}, cut
        assert not found.cutoff["safe"]
        assert _state(found) == _state(plain)


def test_a_record_without_a_key_makes_every_state_before_it_suspect(tmp_path: Path):
    found = _with(tmp_path, Record(None, snapshot()), Record(key(partition=1), snapshot()))
    assert found.causes == {"KEY_MALFORMED": 1}
    assert found.suspects == {0}


@pytest.mark.parametrize("length", [-1, -(2**15), 2, 2**15 - 1])
def test_a_group_id_whose_length_lies_is_no_key(tmp_path: Path, length: int):
    whole = key(SNAPSHOT)
    found = _with(tmp_path, Record(whole[:2] + length.to_bytes(2, "big", signed=True) + whole[4:], snapshot()))
    assert found.causes == {"KEY_MALFORMED": 1}
    assert found.states.keys() == {("g", 0), ("g", 1)}


@pytest.mark.parametrize("value", [snapshot([(0, 20, 2, 1)]), None])
def test_bytes_behind_a_key_are_ignored_and_named(tmp_path: Path, value: bytes | None):
    found = _with(tmp_path, Record(key(SNAPSHOT) + b"\0", value))
    expected = _with(tmp_path / "expected", Record(key(SNAPSHOT), value))
    _is_harmless(found, expected, "KEY_MALFORMED", "warning")


def test_an_empty_group_id_is_a_group_id(tmp_path: Path):
    found = _with(tmp_path, Record(key(group=""), snapshot()))
    assert not found.findings
    assert ("", 0) in found.states


@pytest.mark.parametrize("version", [1, 2, 7, -1, 2**15 - 1])
@pytest.mark.parametrize("kind", [SNAPSHOT, UPDATE])
def test_a_value_of_another_version_cannot_be_read(tmp_path: Path, plain: Judged, version: int, kind: int):
    value = snapshot(BATCHES) if kind == SNAPSHOT else update(BATCHES)
    found = _with(tmp_path, Record(key(kind), version.to_bytes(2, "big", signed=True) + value[2:]))
    _is_unreadable(found, plain, "VALUE_VERSION_UNKNOWN")
    assert found.of("VALUE_VERSION_UNKNOWN")[0]["evidence"] == {"version": str(version)}


VALUES = {
    "snapshot": (SNAPSHOT, snapshot(BATCHES, start=5, epoch=3, count=11)),
    "snapshot without a count": (SNAPSHOT, snapshot(BATCHES, start=5, epoch=3, count=None)),
    "snapshot without batches": (SNAPSHOT, snapshot(start=-1, count=None)),
    "snapshot of 4.0": (SNAPSHOT, snapshot(BATCHES, start=5, epoch=3, early=True)),
    "update": (UPDATE, update(BATCHES, start=5, count=11)),
    "update without batches": (UPDATE, update(count=None)),
    "update of 4.0": (UPDATE, update(BATCHES, start=5, early=True)),
}


@pytest.mark.parametrize("name", some_of(VALUES, 1))
def test_a_value_cut_at_any_byte_cannot_be_read(tmp_path: Path, plain: Judged, name: str):
    kind, value = VALUES[name]
    for cut in range(0, len(value), by_profile(5, 1)):
        _is_unreadable(_with(tmp_path, Record(key(kind), value[:cut])), plain, "VALUE_MALFORMED")


@pytest.mark.parametrize("name", ["snapshot", "snapshot without a count", "update"])
@pytest.mark.parametrize("trailing", [b"\0", b"\xff" * 3, bytes(20)])
def test_bytes_behind_a_value_are_ignored_and_named(tmp_path: Path, name: str, trailing: bytes):
    kind, value = VALUES[name]
    found = _with(tmp_path, Record(key(kind), value + trailing))
    _is_harmless(found, _with(tmp_path / "right", Record(key(kind), value)), "VALUE_MALFORMED", "warning")


def _tags(*tags: tuple[int, bytes]) -> bytes:
    return uvarint(len(tags)) + b"".join(uvarint(tag) + uvarint(len(content)) + content for tag, content in tags)


HEAD = update()[:18]
COMPLETE = (0, (5).to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("of_batch", "of_message"),
    [
        (_tags(), _tags(COMPLETE, (7, b"\xab\xcd"))),
        (_tags(), _tags((7, b""), COMPLETE)),
        (_tags((0, bytes(8)), (200, b"\1")), _tags(COMPLETE)),
        (_tags((0, bytes(8)), (200, b"x" * 300)), _tags(COMPLETE, (1, b"y" * 200), (2**32 - 1, b""))),
    ],
)
def test_tags_of_a_newer_release_are_stepped_over_and_named(tmp_path: Path, of_batch: bytes, of_message: bytes):
    batches = state_batch(10, 11, 4, 2, of_batch) + state_batch(12, 12, 2, 3)
    found = _with(tmp_path, _update(HEAD + uvarint(3) + batches + of_message))
    right = _with(tmp_path / "right", _update(update([(10, 11, 4, 2), (12, 12, 2, 3)], count=5)))
    _is_harmless(found, right, "UNKNOWN_TAG", "info")


@pytest.mark.parametrize(
    "tags",
    [
        b"\1", b"\1\7", b"\1\7\5", b"\1\7\5abc", b"\1\0\4\0\0", b"\2\7\1a", b"\xff\xff\xff\xff\x0f", b"\xff" * 5,
        b"\1\7\xff\xff\xff\xff\x0f", b"\1\xff\xff\xff\xff\xff\1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("of_a_batch", [True, False])
def test_tags_that_run_past_the_value_cannot_be_read(tmp_path: Path, plain: Judged, tags: bytes, of_a_batch: bool):
    batch = state_batch(10, 11, 4, 2, tags if of_a_batch else b"\0")
    found = _with(tmp_path, _update(HEAD + uvarint(2) + batch + (b"" if of_a_batch else tags)))
    _is_unreadable(found, plain, "VALUE_MALFORMED")


def test_a_count_of_eight_bytes_is_read_by_its_first_four(tmp_path: Path):
    value = HEAD + ranges(BATCHES) + b"\1\0\x08" + (5).to_bytes(4, "big") + (77).to_bytes(4, "big")
    found = _with(tmp_path, _update(value))
    right = _with(tmp_path / "right", _update(update(BATCHES, count=5)))
    _is_harmless(found, right, "VALUE_MALFORMED", "warning")


def test_a_count_tag_of_no_bytes_reads_what_follows(tmp_path: Path):
    found = _with(tmp_path, _update(HEAD + ranges(BATCHES) + b"\1\0\0" + (6).to_bytes(4, "big")))
    right = _with(tmp_path / "right", _update(update(BATCHES, count=6)))
    _is_harmless(found, right, "VALUE_MALFORMED", "warning")


def test_a_null_array_cannot_be_read(tmp_path: Path, plain: Judged):
    for head in (HEAD, snapshot()[:38]):
        kind = UPDATE if head is HEAD else SNAPSHOT
        _is_unreadable(_with(tmp_path, Record(key(kind), head + b"\0\0")), plain, "VALUE_MALFORMED")


@pytest.mark.parametrize("claimed", [2, 3, 100, 127, 2**14, 2**28, 2**32 - 2])
def test_an_array_that_claims_more_batches_than_there_are_cannot_be_read(tmp_path: Path, plain: Judged, claimed: int):
    value = HEAD + uvarint(claimed + 1) + state_batch(10, 11, 4, 2) + b"\0"
    _is_unreadable(_with(tmp_path, _update(value)), plain, "VALUE_MALFORMED")


def test_an_array_count_without_end_cannot_be_read(tmp_path: Path, plain: Judged):
    for count in (b"\xff" * 5, b"\xff" * 40, b"\x80\x80\x80\x80\x80\1"):
        _is_unreadable(_with(tmp_path, _update(HEAD + count)), plain, "VALUE_MALFORMED")


def test_an_array_that_claims_fewer_batches_than_there_are_is_read_as_far_as_it_says(tmp_path: Path):
    value = HEAD + uvarint(2) + state_batch(10, 11, 4, 2) + state_batch(12, 12, 2, 3) + b"\0"
    found = _with(tmp_path, _update(value))
    right = _with(tmp_path / "right", _update(update([(10, 11, 4, 2)], count=None)))
    _is_harmless(found, right, "VALUE_MALFORMED", "warning")


def test_a_null_value_under_an_update_key_cannot_be_read(tmp_path: Path, plain: Judged):
    _is_unreadable(_with(tmp_path, _update(None)), plain, "UPDATE_TOMBSTONE")


def test_a_null_value_under_a_snapshot_key_deletes_the_share_partition(tmp_path: Path):
    found = _with(tmp_path, _snapshot(None))
    assert not found.findings
    assert found.states.keys() == {("g", 1)}


@pytest.mark.parametrize(
    "inverted",
    [(5, 4, 2, 1), (0, -1, 0, 1), (2**62, -(2**62), 4, 9), (5, 2**63 - 1, 0, 1), (2**63 - 1, 2**63 - 1, 2, 1)],
)
@pytest.mark.parametrize("kind", [SNAPSHOT, UPDATE])
def test_a_range_that_covers_nothing_is_left_out_and_named(tmp_path: Path, inverted: Range, kind: int):
    write = snapshot if kind == SNAPSHOT else update
    good = (12, 12, 0, 4)
    found = _with(tmp_path, Record(key(kind), write([inverted, good])))
    right = _with(tmp_path / "right", Record(key(kind), write([good])))
    assert found.causes == {"INVERTED_RANGE": 1}
    (finding,) = found.of("INVERTED_RANGE")
    assert (finding["offset"], finding["severity"], finding["partition"]) == (2, "error", 0)
    assert _state(found, but=("suspect",)) == _state(right, but=("suspect",))
    assert found.suspects == {0}
    assert not found.cutoff["safe"]


@pytest.mark.parametrize(
    "unreadable",
    [_update(None), _update(b""), _update(b"\0\7"), _update(update([(5, 4, 0, 1)])), _snapshot(b"\0\1")],
)
def test_a_suspect_share_partition_can_be_trusted_again_from_its_next_snapshot_on(tmp_path: Path, unreadable: Record):
    found = _with(tmp_path, unreadable, _update(update([(1, 1, 0, 9)])))
    assert found.suspects == {0}
    found = _with(tmp_path, unreadable, _snapshot(snapshot([(1, 1, 0, 9)])))
    assert not found.suspects
    assert "STATE_SUSPECT" not in found.codes
    assert found.cutoff["safe"]


@pytest.mark.parametrize("unreadable", [_update(None), _update(b""), _snapshot(b"\0\7"), _snapshot(b"\0\0")])
def test_a_suspect_share_partition_that_is_deleted_is_gone(tmp_path: Path, unreadable: Record):
    found = _with(tmp_path, unreadable, _snapshot(None))
    assert found.states.keys() == {("g", 1)}
    assert found.cutoff["safe"]


@pytest.mark.parametrize("value", [b"", b"\0\1", b"\0\0\0"])
def test_a_cutoff_is_unsafe_if_the_only_record_of_a_share_partition_is_unreadable(tmp_path: Path, value: bytes):
    base = [Record(key(partition=5), value)]
    found = _with(tmp_path, Record(key(partition=6), snapshot()), base=base)
    assert found.states.keys() == {("g", 6)}
    assert found.cutoff["cutoff_offset"] == 1
    assert not found.cutoff["safe"]


def test_an_update_that_cannot_be_read_does_not_change_what_others_say(tmp_path: Path):
    found = _with(tmp_path, _update(None), _update(update([(0, 0, 4, 7)], start=0)))
    row = found.states["g", 0]
    assert row["suspect"]
    assert row["updates_since_snapshot"] == 1
    assert row["state_batches"][0] == {"first_offset": 0, "last_offset": 0, "delivery_state": 4, "delivery_count": 7}


@given(st.binary(max_size=120), st.sampled_from([SNAPSHOT, UPDATE]), st.booleans())
def test_no_value_whatever_raises_or_reaches_another_share_partition(
    tmp_path_factory: pytest.TempPathFactory, value: bytes, kind: int, versioned: bool
):
    folder = tmp_path_factory.mktemp("log")
    found = _with(folder, Record(key(kind), b"\0\0" + value if versioned else value))
    assert _state(found, 1) == _state(_with(folder), 1)
    assert found.causes or _state(found) is not None


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_no_key_whatever_raises(tmp_path_factory: pytest.TempPathFactory, beginning: bytes, end: bytes):
    found = _with(tmp_path_factory.mktemp("log"), Record(beginning, snapshot()), Record(b"\0\0" + end, snapshot()))
    assert found.folded.record_count == 4
    assert {("g", 0), ("g", 1)} <= found.states.keys()


def test_the_worked_examples_of_the_specification_are_read(tmp_path: Path):
    # Bytes that released classes wrote: a snapshot of 4.2, an update on it, and an update with unknown tags.
    topic = (1).to_bytes(8, "big") + (2).to_bytes(8, "big")
    first = bytes.fromhex(
        "0000 00000000 00000001 00000002 0000000000000064 0000018bcfe56800 0000018bcfe56801 03"
        "0000000000000064 000000000000006d 02 0001 00 000000000000006e 000000000000006e 00 0002 00 01 00 04 0000000a"
    )
    second = bytes.fromhex(
        "0000 00000000 00000002 ffffffffffffffff 02 000000000000006e 000000000000006e 04 0003 00 01 00 04 0000000b"
    )
    third = bytes.fromhex(
        "0000 00000001 00000002 000000000000012c 02 000000000000012c 000000000000012c 02 0001 02 00 08"
        "00000000000003e8 c801 01 01 02 00 04 00000005 07 02 abcd"
    )
    keys = [key(kind, "g1", 3, topic) for kind in (SNAPSHOT, UPDATE, UPDATE)]
    row = _with(tmp_path, *map(Record, keys[1:2], [second]), base=[Record(keys[0], first)]).states["g1", 3]
    assert row["topic_id"] == "AAAAAAAAAAEAAAAAAAAAAg"
    assert (row["start_offset"], row["delivery_complete_count"], row["state_epoch"]) == (100, 11, 1)
    assert [tuple(batch.values()) for batch in row["state_batches"]] == [(100, 109, 2, 1), (110, 110, 4, 3)]
    found = _with(tmp_path, Record(keys[2], third), base=[Record(keys[0], first)])
    assert found.codes == {"UNKNOWN_TAG": 1}
    row = found.states["g1", 3]
    assert (row["start_offset"], row["delivery_complete_count"]) == (300, 5)
    assert [tuple(batch.values()) for batch in row["state_batches"]] == [(300, 300, 2, 1)]


def test_the_keys_of_these_tests_are_kafka_s():
    assert key(UPDATE, "g1", 3, TOPIC).hex() == "0001" + "0002" + "6731" + TOPIC.hex() + "00000003"
