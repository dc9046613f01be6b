"""Rows that are merged into a table by key replace those with the same key, in whatever order the table holds them."""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.delta.merge import DELETED
from share_state.delta.reader import open_table
from share_state.delta.warehouse import Warehouse
from share_state.pipeline.stream_changes import KEYS
from share_state.schema.declarations import table_schema

_KEYS = st.tuples(st.sampled_from(["g", "h", "g\nh"]), st.sampled_from([None, "t", "u"]), st.integers(0, 2))
_ROWS = st.lists(st.tuples(_KEYS, st.integers(0, 9)), max_size=12)
_OTHERS = {
    "dialect": "share_group_state",
    "last_offset": 9,
    "record_count": 1,
    "delivery_state": 0,
    "state": "AVAILABLE",
}
_OTHERS |= {"delivery_count": 0, "terminal": False, "gap": False}
_Row = tuple[tuple[str, str | None, int], int]


def _in_flight(rows: Sequence[_Row]) -> pa.Table:
    named = [_OTHERS | dict(zip(("group_id", "topic_id", "partition"), key, strict=True)) for key, _ in rows]
    given = [one | {"first_offset": first} for one, (_, first) in zip(named, rows, strict=True)]
    return pa.Table.from_pylist(given, table_schema("in_flight"))


@given(before=_ROWS, changed=st.lists(st.tuples(_KEYS, st.integers(10, 19), st.booleans()), max_size=6))
def test_changed_rows_replace_those_with_the_same_key(
    before: list[_Row],
    changed: list[tuple[tuple[str, str | None, int], int, bool]],
    tmp_path_factory: pytest.TempPathFactory,
):
    root = tmp_path_factory.mktemp("lake")
    rows = _in_flight([(key, first) for key, first, _ in changed])
    with Warehouse(str(root)) as lake:
        lake.replace("in_flight", [_in_flight(before)])
        rows = rows.append_column(DELETED, pa.array([gone for *_, gone in changed], pa.bool_()))
        lake.merge("in_flight", rows, KEYS["in_flight"], "a-stream", 0)
        merged = open_table(f"{root}/in_flight")
        assert merged is not None
        found = merged.to_pyarrow_table()
    replaced = {key for key, *_ in changed}
    expected = [(key, first) for key, first in before if key not in replaced]
    expected += [(key, first) for key, first, gone in changed if not gone]
    names = KEYS["in_flight"]
    assert Counter((tuple(row[name] for name in names), row["first_offset"]) for row in found.to_pylist()) == Counter(
        expected
    )
