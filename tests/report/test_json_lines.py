"""JSON lines made by column, against json.dumps of each row."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from share_state.report.console import json_lines

_RANGE = pa.struct([("first", pa.int64()), ("state", pa.int8()), ("name", pa.string())])
_SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("coded", pa.dictionary(pa.int32(), pa.string())),
        ("number", pa.int64()),
        ("yes", pa.bool_()),
        ("time", pa.timestamp("us", "UTC")),
        ("ranges", pa.list_(_RANGE)),
        ("one", _RANGE),
        ("numbers", pa.list_(pa.int16())),
    ]
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
numbers = st.integers(-(2**63), 2**63 - 1)
times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
whole_seconds = times.map(lambda time: time.replace(microsecond=0))
small = st.integers(-128, 127)
ranges = st.fixed_dictionaries({"first": numbers | st.none(), "state": small, "name": texts | st.none()})


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    values = {
        "text": texts,
        "coded": texts,
        "number": numbers,
        "yes": st.booleans(),
        "time": times | whole_seconds,
        "ranges": st.lists(ranges | st.none(), max_size=3),
        "one": ranges,
        "numbers": st.lists(small | st.none(), max_size=3),
    }
    return {name: draw(value | st.none()) for name, value in values.items()}


@given(st.lists(rows(), max_size=6), st.data())
def test_a_line_is_what_json_makes_of_the_row(drawn: list[dict[str, Any]], data: st.DataObject):
    begin = data.draw(st.integers(0, len(drawn)))
    batch = pa.RecordBatch.from_pylist(drawn, schema=_SCHEMA).slice(begin)
    expected = [
        json.dumps(
            {name: value for name, value in row.items() if value is not None},
            ensure_ascii=False,
            default=datetime.isoformat,
        )
        for row in batch.to_pylist()
    ]
    assert json_lines(batch) == "".join(f"{line}\n" for line in expected)


def test_a_row_of_nulls_is_an_empty_object():
    nothing = dict.fromkeys(_SCHEMA.names)
    batch = pa.RecordBatch.from_pylist([nothing, nothing | {"number": 1}, nothing], schema=_SCHEMA)
    assert json_lines(batch) == '{}\n{"number": 1}\n{}\n'
