"""Every record of a group against Kafka's own bytes; what is unknown or malformed is told with its offset."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.groups.group_tables import fold_groups
from share_state.fold.groups.sticky import fold_sticky
from share_state.kafka.classic_groups import read_generations
from share_state.kafka.codec import encode
from share_state.kafka.group_records import GroupRecordError, GroupRecordType, read_value
from share_state.kafka.primitives import partition_for
from share_state.rules.group_context import AuditedGroups
from share_state.rules.share_groups import judge_groups, judge_sticky
from share_state.schema.declarations import declaration_names, layout, record, table_schema
from share_state.sources.discovery import find_group_logs
from tests.fold.groups.group_writer import T, folded, group_metadata, told, value, write_group_log
from tests.kafka.batches import Record, consecutive
from tests.log_writer import batch, write_segment

G1_M1 = "0002473100026d31"
TOPIC = "0000000000000000000000000000002a"

# (type, key, value, decoded): Kafka 4.3.1's serde, group G1, member m1, topic T of id 0x...2a
# (K-16, K-17, K-18, K-19, K-20, K-21).
VECTORS = [
    (
        10,
        f"000a{G1_M1}",
        "0000000263032f6802025400",
        {"rack_id": None, "client_id": "c", "client_host": "/h", "subscribed_topic_names": ["T"]},
    ),
    (
        14,
        f"000e{G1_M1}",
        f"000000000003000000020002{TOPIC}0300000000000000010000",
        {
            "member_epoch": 3,
            "previous_member_epoch": 2,
            "state": 0,
            "assigned_partitions": [{"topic_id": T, "partitions": [0, 1]}],
        },
    ),
    (
        13,
        f"000d{G1_M1}",
        f"000002{TOPIC}0300000000000000010000",
        {"topic_partitions": [{"topic_id": T, "partitions": [0, 1]}]},
    ),
    (11, "000b00024731", "00000000000300000000000000ff00", {"epoch": 3, "metadata_hash": 255}),
    (
        12,
        "000c00024731",
        "0000000000030100080000018bcfe56800",
        {"assignment_epoch": 3, "assignment_timestamp": 1_700_000_000_000},
    ),
    (
        15,
        "000f00024731",
        f"00000102{TOPIC}0254030000000000000001000100",
        {
            "initializing_topics": [],
            "initialized_topics": [{"topic_id": T, "topic_name": "T", "partitions": [0, 1]}],
            "deleting_topics": [],
        },
    ),
]


@pytest.mark.parametrize(("record_type", "key", "written", "fields"), VECTORS, ids=[str(one[0]) for one in VECTORS])
def test_a_share_group_s_record_is_read_and_written_as_kafka_does(record_type, key, written, fields):
    read = read_value(record_type, bytes.fromhex(written))
    assert (read.fields, read.is_early, read.trailing) == (fields, False, 0)
    assert value(record_type, **fields).hex() == written
    made = told(record_type, "G1", "m1" if record_type in (10, 13, 14) else None, **fields)
    assert ((made.key or b"").hex(), (made.value or b"").hex()) == (key, written)


# The worked examples of group g1, member m1, topic t of id (1, 2).
WORKED = [
    (11, "00000000000700000000000000" + "0900", {"epoch": 7, "metadata_hash": 9}),
    (12, "00000000000301" + "00080000000000000005", {"assignment_epoch": 3, "assignment_timestamp": 5}),
    (
        10,
        "0000000263032f3102027400",
        {"rack_id": None, "client_id": "c", "client_host": "/1", "subscribed_topic_names": ["t"]},
    ),
]


@pytest.mark.parametrize(("record_type", "written", "fields"), WORKED)
def test_the_worked_examples_are_read(record_type, written, fields):
    assert read_value(record_type, bytes.fromhex(written)).fields == fields


def test_a_timestamp_that_is_not_written_is_zero():
    assert read_value(12, bytes.fromhex("00000000000300")).fields["assignment_timestamp"] == 0


def test_values_of_4_0_are_told_by_what_they_consume():
    """K-19, spec 7: again version 0, with a hash less and an array less."""
    early = read_value(11, bytes.fromhex("00000000000300"))
    assert (early.fields, early.is_early) == ({"epoch": 3}, True)
    two_arrays = value(15, releases="4.0", initialized_topics=[], deleting_topics=[])
    assert read_value(15, two_arrays).is_early
    three_arrays = value(15, initializing_topics=[], initialized_topics=[], deleting_topics=[])
    assert not read_value(15, three_arrays).is_early


def test_bytes_behind_a_value_are_counted_and_ignored():
    read = read_value(11, bytes.fromhex("00000000000300000000000000ff00") + b"\1\2\3")
    assert (read.fields["metadata_hash"], read.trailing) == (255, 3)


@pytest.mark.parametrize(
    ("record_type", "data", "code"),
    [
        (11, "", "VALUE_MALFORMED"),
        (11, "00", "VALUE_MALFORMED"),
        (11, "0001000000030000000000000000ff00", "VALUE_VERSION_UNKNOWN"),
        (11, "ffff00000003", "VALUE_VERSION_UNKNOWN"),
        (11, "0000000000", "VALUE_MALFORMED"),
        (13, f"0000ff{TOPIC}", "VALUE_MALFORMED"),
        (2, "0005000863", "VALUE_VERSION_UNKNOWN"),
    ],
)
def test_a_value_that_cannot_be_read_says_which_rule_it_breaks(record_type, data, code):
    with pytest.raises(GroupRecordError) as refused:
        read_value(record_type, bytes.fromhex(data))
    assert refused.value.code == code
    assert "\n" not in str(refused.value)


# P3-7 to P3-9: the group "cg" in generation 8, one member m1.
CLASSIC_V3 = (
    "00030008636f6e73756d6572000000080006737469636b7900026d310000018bcfe568000000000100026d31ffff0002633100032f6831000493e0"
    "0000afc80000004000030000000200027431000274320000002400000002000274310000000200000000000000010002743200000001000000030000"
    "00070000000000000007ffff0000002600030000000200027431000000020000000000000001000274320000000100000003ffffffff"
)
CLASSIC_SIZES = {0: 159, 1: 163, 2: 171, 3: 173, 4: 159}


def test_a_classic_group_s_key_and_value_are_kafka_s():
    """P3-7, P3-8."""
    assert encode(layout("group_metadata_key", "any"), {"group_id": "cg"}).hex() == "000200026367"
    data = bytes.fromhex(CLASSIC_V3)
    assert len(data) == 173
    fields = read_value(GroupRecordType.CLASSIC_GROUP, data).fields
    assert (fields["generation"], fields["protocol"], fields["leader"]) == (8, "sticky", "m1")
    (member,) = fields["members"]
    assert (member["client_id"], member["client_host"], member["session_timeout"]) == ("c1", "/h1", 45000)
    assert (len(member["subscription"]), len(member["assignment"])) == (64, 38)
    assert encode(layout("group_metadata_value", "v3"), fields) == data


@pytest.mark.parametrize("version", CLASSIC_SIZES)
def test_every_version_of_a_classic_group_has_kafka_s_size_and_is_read_back(version):
    whole = read_value(GroupRecordType.CLASSIC_GROUP, bytes.fromhex(CLASSIC_V3)).fields
    chosen = layout("group_metadata_value", f"v{version}")
    names = {field.name for field in chosen.fields}
    member_names = {field.name for field in next(one for one in chosen.fields if one.name == "members").fields}
    fields = {name: field for name, field in whole.items() if name in names}
    fields["members"] = [
        {name: field for name, field in member.items() if name in member_names} for member in whole["members"]
    ]
    written = encode(chosen, fields)
    assert len(written) == CLASSIC_SIZES[version]
    assert read_value(GroupRecordType.CLASSIC_GROUP, written).fields == fields
    if version == 4:
        assert written.hex().startswith("000409636f6e73756d6572")
        assert written.hex().endswith("0000")


def test_every_record_type_of_share_groups_is_declared_as_key_and_value():
    of_groups = [
        record(name) for name in declaration_names("records", "name") if record(name).log == "__consumer_offsets"
    ]
    types = {part: {one.key_type for one in of_groups if one.part == part} for part in ("key", "value")}
    assert types["value"] == {2, *range(9, 16)}
    assert types["key"] == types["value"] | {3}


def test_an_unknown_record_type_is_told_once_with_its_number(tmp_path):
    unknown = [Record(b"\0\x63\0\2G1", b"\0\0")] * 3
    found = folded(tmp_path, [group_metadata("G1", 3), *unknown])
    (fault,) = found.faults
    assert (fault.code, fault.offset, fault.is_harmless) == ("UNKNOWN_RECORD_TYPE", 1, True)
    assert fault.message.startswith("3 records of unknown type 99")
    assert found.groups["G1"].epoch == 3


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (Record(None, b"\0\0"), "KEY_MALFORMED"),
        (Record(b"\0", b"\0\0"), "KEY_MALFORMED"),
        (Record(bytes.fromhex("000b00094731"), b"\0\0"), "KEY_MALFORMED"),
        (Record(bytes.fromhex("000b0002ffff"), b"\0\0"), "KEY_MALFORMED"),
        (Record(bytes.fromhex("000b00024731"), b"\0\0\0"), "VALUE_MALFORMED"),
        (Record(bytes.fromhex("000b00024731"), b"\0\7\0\0\0\0\0"), "VALUE_VERSION_UNKNOWN"),
    ],
)
def test_a_record_that_cannot_be_read_is_told_with_its_offset_and_the_rest_is_folded(tmp_path, bad, code):
    found = folded(tmp_path, [group_metadata("G1", 3), bad, group_metadata("G1", 4)])
    (fault,) = found.faults
    assert (fault.code, fault.offset, fault.is_harmless) == (code, 1, False)
    assert found.groups["G1"].epoch == 4


def test_trailing_bytes_and_unknown_tags_are_told_and_read_over(tmp_path):
    tagged = value(11, epoch=3, metadata_hash=1, unknown_tags=[(7, b"new")])
    longer = value(11, epoch=4, metadata_hash=1) + b"tail"
    records = [Record(bytes.fromhex("000b00024731"), data) for data in (tagged, longer)]
    found = folded(tmp_path, records)
    assert [(fault.code, fault.offset, fault.is_harmless) for fault in found.faults] == [
        ("VALUE_MALFORMED", 1, True),
        ("UNKNOWN_TAG", 0, True),
    ]
    assert found.groups["G1"].epoch == 4


def test_a_log_of_4_0_and_later_groups_is_told(tmp_path):
    records = [told(11, "G1", releases="4.0", epoch=1), group_metadata("G2", 1)]
    assert [fault.code for fault in folded(tmp_path, records).faults] == ["LAYOUT_MIXED"]


def test_a_batch_with_a_wrong_checksum_is_told_and_left_out(tmp_path):
    place = tmp_path / "__consumer_offsets-0"
    place.mkdir()
    batches = consecutive([batch([group_metadata("G1", 3)]), batch([group_metadata("G1", 4)])])
    path = write_segment(place, batches)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    found = fold_groups(find_group_logs([str(tmp_path)]))
    assert [(fault.code, fault.offset) for fault in found.faults] == [("CRC_MISMATCH", 1)]
    assert found.groups["G1"].epoch == 3


def test_groups_belong_to_the_partition_that_their_id_hashes_to():
    """K-11, and Java's hash of characters beyond U+FFFF as two units."""
    assert partition_for("group001", 50) == 28
    assert partition_for("G1", 50) == 0
    assert partition_for("G1", 2251) == 2250
    assert partition_for("group001", 2**31 - 1) == 506314578
    assert partition_for("polygenelubricants", 50) == 0  # its hash is the smallest int, which has no absolute value
    assert partition_for("\U0001f600", 2**31 - 1) == 1772899


def test_several_copies_of_a_log_are_one(tmp_path):
    records = [group_metadata("G1", epoch) for epoch in (1, 2, 3)]
    write_group_log(tmp_path / "a", records)
    write_group_log(tmp_path / "b", records[:2])
    (log,) = find_group_logs([str(tmp_path / "a"), str(tmp_path / "b")])
    found = fold_groups([log])
    assert found.groups["G1"].epoch == 3
    assert found.record_counts == {11: 3}
    assert found.faults == []


@st.composite
def damaged(draw: st.DrawFn) -> Record:
    """A record of any type, known or not, with a key and a value that may be anything."""
    record_type = draw(st.integers(-2, 30)).to_bytes(2, "big", signed=True)
    named = st.sampled_from([b"\0\2G1", b"\0\2G1\0\2m1", b"\0\2\xff\xfe", b"", b"\xff\xff"])
    key = draw(st.none() | st.binary(max_size=3) | named.map(lambda rest: record_type + rest))
    version = draw(st.integers(-1, 5)).to_bytes(2, "big", signed=True)
    written = st.sampled_from([one[2] for one in VECTORS] + [CLASSIC_V3]).map(bytes.fromhex)
    cut = st.tuples(written, st.integers(0, 60)).map(lambda whole: whole[0][: whole[1]])
    any_value = st.binary(max_size=40).map(lambda rest: version + rest)
    return Record(key, draw(st.none() | written | cut | any_value))


@given(st.lists(damaged(), min_size=1, max_size=8))
def test_whatever_is_in_the_log_becomes_tables_and_findings(tmp_path_factory, records):
    """Unknown types, versions and layouts are told; nothing is raised, and a sound group beside them is there."""
    sound = [group_metadata("sound", 3)]
    found = folded(tmp_path_factory.mktemp("log"), [*records, *sound])
    assert found.live["sound"].epoch == 3
    tables = [found.share_groups, found.share_group_members, found.share_group_partitions]
    assert [table.schema for table in tables] == [
        table_schema(name) for name in ("share_groups", "share_group_members", "share_group_partitions")
    ]
    audited = fold_sticky(*read_generations(found.classic, found.sticky), history=True)
    assert audited.sticky_claim.schema == table_schema("sticky_claim")
    rows = pa.concat_tables([judge_groups(AuditedGroups(found, table_schema("share_partition_state").empty_table())),
                             judge_sticky(audited)])  # fmt: skip
    assert rows.schema == table_schema("findings")
    assert {row["rule"] for row in rows.to_pylist()} >= {fault.code for fault in found.faults}
