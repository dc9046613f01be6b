"""The kernel reads metadata records as the declared layouts say, whatever their bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.kafka.codec import decode, encode, encode_uvarint
from share_state.kafka.metadata_records import (
    MetadataRecordError,
    MetadataRecordType,
    RowStatus,
    decode_metadata,
    read_message,
)
from share_state.kafka.record_batches import RECORD
from share_state.schema.declarations import declaration_names, layout, record
from tests.kafka.test_codec import values
from tests.profiles import some_of

LAYOUTS = [(kind, one.releases) for kind in MetadataRecordType for one in record(kind.declared).layouts]


def rows_of(*values: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of some records, and their rows."""
    data = np.frombuffer(bytearray().join(values), np.uint8)
    records = np.zeros(len(values), RECORD)
    records["value_size"] = [len(value) for value in values]
    records["value_at"] = np.cumsum(records["value_size"]) - records["value_size"]
    return data, decode_metadata(data, records)


def framed(kind: int, version: int, message: bytes) -> bytes:
    return encode_uvarint(1) + encode_uvarint(kind) + encode_uvarint(version) + message


def text(data: np.ndarray, row: np.void, name: str) -> str | None:
    at, size = int(row[f"{name}_at"]), int(row[f"{name}_size"])
    return None if size < 0 else data[at : at + size].tobytes().decode()


def topic_id(row: np.void) -> bytes:
    return int(row["topic_high"]).to_bytes(8, "big") + int(row["topic_low"]).to_bytes(8, "big")


@pytest.mark.parametrize(("kind", "releases"), some_of(LAYOUTS, 8))
@given(data=st.data())
def test_the_kernel_reads_what_the_layouts_say(kind, releases, data):
    shipped = layout(kind.declared, releases)
    fields = data.draw(values(shipped.fields, shipped.flexible))
    value = framed(kind, int(releases[1:]), encode(shipped, fields))
    assert read_message(value).fields == decode(shipped, encode(shipped, fields))[0]
    chunk, (row,) = rows_of(value)
    assert (row["type"], row["status"]) == (kind, RowStatus.DECODED)
    if "topic_id" in fields:
        assert topic_id(row) == encode(layout("remove_topic_record", "v0"), {"topic_id": fields["topic_id"]})[:16]
    fencing = {0: 1 if fields.get("fenced") else -1, 7: 1, 8: -1, 17: fields.get("fenced")}
    expected = {
        "number": fields.get("partition_id", fields.get("broker_id", fields.get("feature_level", fields.get("id")))),
        "leader": fields.get("leader", fencing.get(kind)),
        "leader_epoch": fields.get("leader_epoch"),
        "resource_type": fields.get("resource_type"),
    }
    assert {name: row[name] for name, value in expected.items() if value is not None} == {
        name: value for name, value in expected.items() if value is not None
    }
    if kind == MetadataRecordType.CONFIG:
        texts = [text(chunk, row, name) for name in ("name", "key", "text")]
        assert texts == [fields["resource_name"], fields["name"], fields["value"]]
    elif kind in (MetadataRecordType.TOPIC, MetadataRecordType.FEATURE_LEVEL):
        assert text(chunk, row, "name") == fields["name"]


@given(cut=st.integers(1, 30), kind=st.sampled_from(LAYOUTS), data=st.data())
def test_a_record_that_ends_early_is_malformed(cut, kind, data):
    shipped = layout(kind[0].declared, kind[1])
    message = encode(shipped, data.draw(values(shipped.fields, shipped.flexible)))
    whole = framed(kind[0], int(kind[1][1:]), message)
    _, (row,) = rows_of(whole[: max(len(whole) - cut, 3)])
    assert row["status"] == RowStatus.MALFORMED


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_are_decoded_or_refused(noise):
    _, rows = rows_of(*noise)
    assert len(rows) <= len(noise)
    for value in noise:
        try:
            read_message(value)
        except MetadataRecordError as error:
            assert "\n" not in str(error)


def test_records_without_facts_have_no_rows():
    no_op, quota, topic = framed(20, 0, b"\0"), framed(14, 0, b"any"), framed(9, 0, bytes(16) + b"\0")
    _, rows = rows_of(no_op, topic, quota)
    assert rows["type"].tolist() == [MetadataRecordType.REMOVE_TOPIC]


def test_every_decoded_type_is_declared_with_its_number():
    declared = {
        record(name).key_type for name in declaration_names("records", "name") if record(name).part == "message"
    }
    assert declared == {*map(int, MetadataRecordType)}
