"""The compiled reader of state records against its plain twin, the codec that follows the declarations."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.kafka.codec import CodecError, decode
from share_state.kafka.record_batches import RECORD
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import Fault, Layout, StateRecords, decode_state_records
from share_state.schema.declarations import layout
from tests.kafka import batches
from tests.kafka.damaged import damaged

KEYS = {"snapshot": batches.key(batches.SNAPSHOT), "update": batches.key(batches.UPDATE)}
CURRENT, EARLY = "4.1+", "4.0"
ABSENT = {"state_epoch": 0, "create_timestamp": 0, "write_timestamp": 0, "delivery_complete_count": -1}
FIELDS = {
    "snapshot_epoch": "snapshot_epoch",
    "state_epoch": "state_epoch",
    "leader_epoch": "leader_epoch",
    "start_offset": "start_offset",
    "delivery_complete_count": "delivery_complete_count",
    "create_timestamp": "create_time",
    "write_timestamp": "write_time",
}


def by_kernel(kind: str, values: list[bytes]) -> StateRecords:
    """The values as records of one key, decoded in one go."""
    key = KEYS[kind]
    data, rows = bytearray(key), np.zeros(len(values), RECORD)
    for row, value in zip(rows, values, strict=True):
        row["key_size"], row["value_at"], row["value_size"] = len(key), len(data), len(value)
        data += value
    return decode_state_records(np.frombuffer(data, np.uint8), rows, KeyTable())


def by_codec(kind: str, value: bytes) -> tuple[str | None, dict[str, Any], int]:
    """(layout, fields, faults), as the two layouts must be told apart: by which consumes a value exactly."""
    read = {}
    for releases in (CURRENT, EARLY):
        shape = layout(f"share_{kind}_value", releases)
        try:
            fields, consumed = decode(shape, value)
        except CodecError:
            continue
        if consumed == len(value):
            return releases, fields, 0
        read[releases] = fields
    if CURRENT in read:
        return CURRENT, read[CURRENT], Fault.VALUE_TRAILING
    return None, {}, Fault.VALUE_MALFORMED


@pytest.mark.parametrize("releases", [CURRENT, EARLY])
@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
def test_both_read_the_same(kind, releases, data):
    values = data.draw(st.lists(damaged(kind, releases), min_size=1, max_size=8))
    # The version has rules of its own.
    values = [b"\0\0" + value[2:] for value in values]
    records = by_kernel(kind, values)
    for row, value in zip(records.rows, values, strict=True):
        found, fields, faults = by_codec(kind, value)
        assert row["layout"] == {CURRENT: Layout.CURRENT, EARLY: Layout.EARLY, None: Layout.NONE}[found]
        assert row["fault"] & (Fault.VALUE_MALFORMED | Fault.VALUE_TRAILING) == faults
        if found is None:
            continue
        fields: dict[str, Any] = ABSENT | fields
        assert {name: row[column] for name, column in FIELDS.items()} == {name: fields[name] for name in FIELDS}
        own = records.batches[row["batches"] :][: row["batch_count"]]
        assert [tuple(int(one[name]) for name in ("first", "last", "state", "count")) for one in own] == [
            (one["first_offset"], one["last_offset"], one["delivery_state"], one["delivery_count"])
            for one in fields["state_batches"]
        ]
        if any("unknown_tags" in one for one in [fields, *fields["state_batches"]]):
            assert row["fault"] & Fault.UNKNOWN_TAG


def test_the_layout_of_4_0_knows_no_tag():
    value = bytes.fromhex("0000 0005 00000002 0000000000000064 01 01 00 04 0000000b")
    assert by_codec("update", value)[0] == EARLY
    (row,) = by_kernel("update", [value]).rows
    assert row["layout"] == Layout.EARLY
    assert row["delivery_complete_count"] == -1
