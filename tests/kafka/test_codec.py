"""The declared layouts against the worked examples of Kafka's own bytes, and against themselves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_state.kafka.codec import CodecError, decode, encode
from share_state.schema import declarations
from share_state.schema.declarations import Field, RecordLayout, WireField, WireLayout, layout, record
from tests.profiles import by_profile, some_of

KEY = {"group_id": "g1", "topic_id": "AAAAAAAAAAEAAAAAAAAAAg", "partition": 3}
IDENTITY = "0002 6731 00000000000000010000000000000002 00000003"
SNAPSHOT = {
    "snapshot_epoch": 0,
    "state_epoch": 1,
    "leader_epoch": 2,
    "start_offset": 100,
    "create_timestamp": 1_700_000_000_000,
    "write_timestamp": 1_700_000_000_001,
}
SNAPSHOT_BYTES = "0000 00000000 00000001 00000002 0000000000000064 0000018bcfe56800 0000018bcfe56801"
TWO_BATCHES = """03 0000000000000064 000000000000006d 02 0001 00
                    000000000000006e 000000000000006e 00 0002 00"""


def batch(first: int, last: int, state: int, count: int) -> dict:
    return {"first_offset": first, "last_offset": last, "delivery_state": state, "delivery_count": count}


ACKED, RELEASED = batch(100, 109, 2, 1), batch(110, 110, 0, 2)

# Every example was read or written by the classes of a released broker.
EXAMPLES = {
    "a snapshot's key": ("share_snapshot_key", "4.1+", f"0000 {IDENTITY}", KEY),
    "an update's key": ("share_update_key", "4.1+", f"0001 {IDENTITY}", KEY),
    "a snapshot's key of 4.0": ("share_snapshot_key", "4.0", f"0000 {IDENTITY}", KEY),
    "an update's key of 4.0": ("share_update_key", "4.0", f"0001 {IDENTITY}", KEY),
    "(a) a snapshot with its delivery complete count": (
        "share_snapshot_value",
        "4.1+",
        f"{SNAPSHOT_BYTES} {TWO_BATCHES} 01 00 04 0000000a",
        SNAPSHOT | {"state_batches": [ACKED, RELEASED], "delivery_complete_count": 10},
    ),
    "(b) a snapshot without the count": (
        "share_snapshot_value",
        "4.1+",
        f"{SNAPSHOT_BYTES} {TWO_BATCHES} 00",
        SNAPSHOT | {"state_batches": [ACKED, RELEASED], "delivery_complete_count": -1},
    ),
    "(c) the first initialisation": (
        "share_snapshot_value",
        "4.1+",
        "0000 00000000 00000000 00000000 ffffffffffffffff 0000018bcfe56800 0000018bcfe56800 01 00",
        {
            "snapshot_epoch": 0,
            "state_epoch": 0,
            "leader_epoch": 0,
            "start_offset": -1,
            "create_timestamp": 1_700_000_000_000,
            "write_timestamp": 1_700_000_000_000,
            "state_batches": [],
            "delivery_complete_count": -1,
        },
    ),
    "(d) an update that leaves the start": (
        "share_update_value",
        "4.1+",
        """0000 00000000 00000002 ffffffffffffffff 02
           000000000000006e 000000000000006e 04 0003 00
           01 00 04 0000000b""",
        {
            "snapshot_epoch": 0,
            "leader_epoch": 2,
            "start_offset": -1,
            "state_batches": [batch(110, 110, 4, 3)],
            "delivery_complete_count": 11,
        },
    ),
    "(e) an update with tags of a newer writer": (
        "share_update_value",
        "4.1+",
        """0000 00000001 00000002 000000000000012c 02
           000000000000012c 000000000000012c 02 0001 02 00 08 00000000000003e8 c801 01 01
           02 00 04 00000005 07 02 abcd""",
        {
            "snapshot_epoch": 1,
            "leader_epoch": 2,
            "start_offset": 300,
            "state_batches": [
                batch(300, 300, 2, 1) | {"unknown_tags": [(0, bytes.fromhex("00000000000003e8")), (200, b"\x01")]}
            ],
            "delivery_complete_count": 5,
            "unknown_tags": [(7, b"\xab\xcd")],
        },
    ),
    "(g) a snapshot of 4.0": (
        "share_snapshot_value",
        "4.0",
        "0000 0005 00000001 00000002 0000000000000064 02 0000000000000064 000000000000006d 02 0001 00 00",
        {"snapshot_epoch": 5, "state_epoch": 1, "leader_epoch": 2, "start_offset": 100, "state_batches": [ACKED]},
    ),
    "(h) an update of 4.0": (
        "share_update_value",
        "4.0",
        "0000 0005 00000002 0000000000000064 02 0000000000000064 000000000000006d 02 0001 00 00",
        {"snapshot_epoch": 5, "leader_epoch": 2, "start_offset": 100, "state_batches": [ACKED]},
    ),
}
# (f), a tombstone, is a snapshot's key without a value: there are no bytes to read.


@pytest.mark.parametrize(("record", "releases", "text", "value"), EXAMPLES.values(), ids=EXAMPLES)
class TestWorkedExamples:
    def test_is_read(self, record, releases, text, value):
        data = bytes.fromhex(text)
        assert decode(layout(record, releases), data) == (value, len(data))

    def test_is_written_byte_for_byte(self, record, releases, text, value):
        assert encode(layout(record, releases), value) == bytes.fromhex(text)

    def test_cut_short_anywhere_is_refused(self, record, releases, text, value):
        data = bytes.fromhex(text)
        for size in range(len(data)):
            with pytest.raises(CodecError):
                decode(layout(record, releases), data[:size])

    def test_bytes_behind_it_are_left_over(self, record, releases, text, value):
        data = bytes.fromhex(text)
        assert decode(layout(record, releases), data + b"\x00\x07") == (value, len(data))


UPDATE = layout("share_update_value", "4.1+")
UPDATE_HEAD = "0000 00000000 00000002 ffffffffffffffff"


def test_the_layouts_of_4_0_and_4_1_do_not_read_each_other():
    for example in ("(g) a snapshot of 4.0", "(a) a snapshot with its delivery complete count"):
        record, releases, text, _ = EXAMPLES[example]
        other = {"4.0": "4.1+", "4.1+": "4.0"}[releases]
        data = bytes.fromhex(text)
        try:
            _, consumed = decode(layout(record, other), data)
        except CodecError:
            continue
        assert consumed != len(data)


def test_a_known_tag_is_read_whatever_size_it_claims():
    data = bytes.fromhex(f"{UPDATE_HEAD} 01 01 00 08 0000000b 0000000c")
    value, consumed = decode(UPDATE, data)
    assert (value["delivery_complete_count"], len(data) - consumed) == (11, 4)


def test_an_unknown_tag_that_claims_more_than_is_left_is_refused():
    with pytest.raises(CodecError, match=r"ShareUpdateValue: tag 9 .*8 bytes expected, 1 are left"):
        decode(UPDATE, bytes.fromhex(f"{UPDATE_HEAD} 01 01 09 08 00"))


def test_a_null_array_is_refused():
    with pytest.raises(CodecError, match=r"state_batches .*null array"):
        decode(UPDATE, bytes.fromhex(f"{UPDATE_HEAD} 00 00"))


def test_an_array_longer_than_the_bytes_is_refused_before_it_is_read():
    with pytest.raises(CodecError, match=r"state_batches .*2147483646 elements cannot fit"):
        decode(UPDATE, bytes.fromhex(f"{UPDATE_HEAD} ffffffff07 00"))


def test_more_tags_than_bytes_are_refused():
    with pytest.raises(CodecError, match=r"number of tags .*4294967295 cannot fit"):
        decode(UPDATE, bytes.fromhex(f"{UPDATE_HEAD} 01 ffffffff0f"))


def test_a_varint_of_six_bytes_is_refused():
    with pytest.raises(CodecError, match="more than 5 bytes"):
        decode(UPDATE, bytes.fromhex(f"{UPDATE_HEAD} 808080808000 00"))


def test_another_value_version_is_refused():
    with pytest.raises(CodecError, match="begins with 1, not with 0"):
        decode(UPDATE, bytes.fromhex(f"0001{UPDATE_HEAD[4:]} 01 00"))


def test_an_updates_key_is_no_snapshots_key():
    with pytest.raises(CodecError, match="begins with 1, not with 0"):
        decode(layout("share_snapshot_key", "4.1+"), bytes.fromhex(f"0001 {IDENTITY}"))


@pytest.mark.parametrize("group", ["ffff", "8000"])
def test_a_null_group_is_refused(group):
    with pytest.raises(CodecError, match="group_id"):
        decode(layout("share_snapshot_key", "4.1+"), bytes.fromhex(f"0000 {group} {'00' * 20}"))


def test_a_group_that_is_no_utf_8_is_refused():
    with pytest.raises(CodecError, match=r"group_id .*not UTF-8"):
        decode(layout("share_snapshot_key", "4.1+"), bytes.fromhex(f"0000 0002 ff31 {'00' * 20}"))


GOOD_UPDATE = {"snapshot_epoch": 0, "leader_epoch": 2, "start_offset": -1, "state_batches": []}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"snapshot_epoch": 2**31}, "snapshot_epoch: 2147483648 is not an int32"),
        ({"state_batches": [batch(0, 1, 200, 1)]}, r"state_batches\[0\].delivery_state: 200 is not an int8"),
        ({"state_batches": [{"first_offset": 0}]}, "delivery_count.*missing"),
        ({"state_batches": None}, "None is not a list"),
        ({"state_batches": [7]}, "7 is not a StateBatch"),
        ({"state_epoch": 0}, "'state_epoch'.* are unknown"),
        ({"unknown_tags": [(0, b"1234")]}, "tag 0 is declared"),
        ({"unknown_tags": [(-1, b"")]}, "-1 is not an unsigned"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(change, message):
    assert encode(UPDATE, GOOD_UPDATE)
    with pytest.raises(CodecError, match=message):
        encode(UPDATE, GOOD_UPDATE | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_id": None}, "group_id: None is not text"),
        ({"group_id": "\ud800"}, "cannot be encoded in UTF-8"),
        ({"group_id": "g" * 32768}, "32768 bytes, more than 32767"),
        ({"topic_id": "AAAAAAAAAAEAAAAAAAAAAg=="}, "is not a uuid"),
        ({"topic_id": "AAAA"}, "is not a uuid"),
        ({"unknown_tags": [(9, b"")]}, "'unknown_tags'.* are unknown"),
    ],
)
def test_a_key_that_does_not_fit_is_refused(change, message):
    with pytest.raises(CodecError, match=message):
        encode(layout("share_snapshot_key", "4.1+"), KEY | change)


INTEGERS = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
UNKNOWN_TAG = st.tuples(st.integers(1, 2**32 - 1), st.binary(max_size=200))


def values(fields: tuple[WireField, ...], flexible: bool) -> st.SearchStrategy[dict]:
    """Values that a layout can hold, undeclared tags included."""
    every = {field.name: field_values(field, flexible) for field in fields}
    declared = {field.tag for field in fields}
    unknown = UNKNOWN_TAG.filter(lambda pair: pair[0] not in declared)
    tags = st.lists(unknown, min_size=1, max_size=3, unique_by=lambda pair: pair[0]).map(sorted)
    return st.fixed_dictionaries(every, optional={"unknown_tags": tags} if flexible else {})


def field_values(field: WireField, flexible: bool) -> st.SearchStrategy:
    if field.fields:
        one = values(field.fields, flexible)
    elif field.type == "uuid":
        one = st.sampled_from(["AAAAAAAAAAEAAAAAAAAAAg", "_____________________w", "5Y2VfE9xTOSVmSFbWg1sdQ"])
    elif field.type == "nullable_string":
        one = st.none() | TEXT
    elif field.type == "bytes":
        one = st.binary(max_size=200)
    elif field.type == "nullable_bytes":
        one = st.none() | st.binary(max_size=200)
    else:
        one = INTEGERS.get(field.type, TEXT)
    if not field.is_array:
        return one
    several = many(one) if field.fields else st.lists(one, max_size=130)
    return st.none() | several if field.default == "null" else several


def many(one: st.SearchStrategy) -> st.SearchStrategy[list]:
    """Mostly short lists, and one whose length takes two bytes as a varint."""
    return st.lists(one, max_size=4) | one.map(lambda element: [element] * 130)


SHIPPED = [
    (name, one.releases) for name in declarations.declaration_names("records", "name") for one in record(name).layouts
]


@pytest.mark.parametrize(("name", "releases"), some_of(SHIPPED, 23))
@settings(max_examples=by_profile(4, 3000))
@given(data=st.data())
def test_what_is_written_is_read_back(name, releases, data):
    shipped = layout(name, releases)
    value = data.draw(values(shipped.fields, shipped.flexible))
    written = encode(shipped, value)
    assert decode(shipped, written) == (value, len(written))


@pytest.mark.parametrize(("name", "releases"), SHIPPED)
@given(data=st.data(), prefixed=st.booleans())
def test_any_bytes_are_read_or_refused(name, releases, data, prefixed):
    shipped = layout(name, releases)
    given_bytes = data.draw(st.binary(max_size=120))
    if prefixed and shipped.prefix is not None:
        given_bytes = shipped.prefix.to_bytes(2, "big") + given_bytes
    try:
        value, consumed = decode(shipped, given_bytes)
    except CodecError as error:
        assert "\n" not in str(error)
        return
    assert 0 < consumed <= len(given_bytes)
    # What was read can be written and means the same, though not always in the same bytes.
    assert decode(shipped, encode(shipped, value))[0] == ordered(value)


def ordered(value: dict) -> dict:
    """Unknown tags ascending, as they are written, in a value and in every struct of it."""
    plain = {
        name: [ordered(one) if isinstance(one, dict) else one for one in field] if isinstance(field, list) else field
        for name, field in value.items()
    }
    if "unknown_tags" in plain:
        plain["unknown_tags"] = sorted(plain["unknown_tags"], key=lambda pair: pair[0])
    return plain


def declared(flexible: bool) -> WireLayout:
    """A layout that has every type of field, as the records of a group coordinator have them."""
    types = ["int8", "[]int32", "[]string", "nullable_string", "compact_string", "[]uuid", "uint16", "bytes"]
    types += ["nullable_bytes"]
    fields = [Field(name=f"field_{number}", type=text, doc="any") for number, text in enumerate(types)]
    checked = RecordLayout(releases="9.9", version=3, flexible=flexible, fields=tuple(fields))
    wire_fields = tuple(
        WireField(field.name, field.type.removeprefix("[]"), field.type.startswith("[]"), (), field.tag, field.default)
        for field in checked.fields
    )
    return WireLayout("Any", "9.9", 3, flexible, wire_fields)


@pytest.mark.parametrize("flexible", [True, False], ids=["flexible", "not flexible"])
@given(data=st.data())
def test_every_type_of_field_is_read_back(flexible, data):
    every = declared(flexible)
    value = data.draw(values(every.fields, flexible))
    written = encode(every, value)
    assert decode(every, written) == (value, len(written))


def test_lengths_are_varints_only_in_flexible_layouts():
    value = {
        "field_0": 1, "field_1": [2], "field_2": ["x"], "field_3": None, "field_4": "y", "field_5": [],
        "field_6": 65535, "field_7": b"z", "field_8": None,
    }  # fmt: skip
    assert encode(declared(True), value).hex(" ") == ("00 03 01 02 00 00 00 02 02 02 78 00 02 79 01 ff ff 02 7a 00 00")
    assert encode(declared(False), value).hex(" ") == (
        "00 03 01 00 00 00 01 00 00 00 02 00 00 00 01 00 01 78 ff ff 02 79 00 00 00 00 ff ff 00 00 00 01 7a ff ff ff ff"
    )


def test_data_without_a_version_begins_with_its_first_field():
    data = layout("cooperative_sticky_assignor_user_data", "v0")
    assert data.prefix is None
    assert encode(data, {"generation": 5}) == bytes(3) + b"\5"
    assert decode(data, bytes(3) + b"\5more") == ({"generation": 5}, 4)


def test_what_is_no_bytes_is_not_written():
    with pytest.raises(CodecError, match="field_7: 'z' is not bytes"):
        encode(declared(True), {f"field_{number}": 0 for number in range(9)} | {
            "field_1": [], "field_2": [], "field_3": None, "field_4": "", "field_5": [],
            "field_7": "z", "field_8": None,
        })  # fmt: skip
