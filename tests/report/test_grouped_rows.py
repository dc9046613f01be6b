"""Rows that come in pieces give the groups that all of them give at once."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.report import share_partitions
from share_state.report.share_partitions import group_pieces

_ROW = st.tuples(
    st.sampled_from(["a", "b", None]), st.sampled_from([1, 2]), st.integers(0, 9), st.sampled_from(["x", None])
)


@given(rows=st.lists(_ROW, min_size=1), cut=st.integers(1, 5), pending=st.integers(0, 4))
def test_pieces_make_no_difference(rows: list[tuple], cut: int, pending: int):
    model: dict[tuple, list] = {}
    for group, rule, count, message in rows:
        model.setdefault((group, rule), [0, message])[0] += count
    table = pa.table(
        {
            "group": pa.array([row[0] for row in rows], pa.string()),
            "rule": pa.array([row[1] for row in rows]),
            "count": pa.array([row[2] for row in rows]),
            "message": pa.array([row[3] for row in rows], pa.string()),
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share_partitions, "_PENDING_ROWS", pending)
        pieces = (table.slice(start, cut) for start in range(0, len(rows), cut))
        found = group_pieces(pieces, ["group", "rule"], {"message": "first", "count": "sum"})
    assert found is not None
    assert found.column_names == ["group", "rule", "message", "count"]
    assert {(row["group"], row["rule"]): [row["count"], row["message"]] for row in found.to_pylist()} == model
    assert found.num_rows == len(model)


def test_no_piece_makes_no_groups():
    assert group_pieces([], ["group"], {"count": "sum"}) is None
