"""Rows that come in pieces give the groups that all of them give at once; rows of two tables meet by key."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.report import share_partitions
from share_state.report.share_partitions import IDENTITY_COLUMNS, group_pieces, left_join

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


_KEY = st.tuples(st.sampled_from("de"), *(st.sampled_from(["a", "b", "c", None]) for _ in range(2)), st.integers(0, 2))


def _keyed(keys: list[tuple]) -> pa.Table:
    columns = {name: pa.array([key[at] for key in keys], pa.string()) for at, name in enumerate(IDENTITY_COLUMNS[:3])}
    return pa.table(columns | {"partition": pa.array([key[3] for key in keys], pa.int32())})


@given(rows=st.lists(_KEY), known=st.dictionaries(_KEY, st.sampled_from([1, 2, None])), cut=st.integers(0, 9))
def test_rows_get_what_another_table_knows_of_their_share_partition(rows: list[tuple], known: dict, cut: int):
    other = _keyed([*known]).append_column("known", pa.array(known.values(), pa.int64()))
    other = pa.concat_tables([other.slice(0, cut), other.slice(cut)])
    found = left_join(_keyed(rows), other, {"known": pa.int64()})
    assert found.column_names == [*IDENTITY_COLUMNS, "known"]
    # Null equals nothing: findings about a whole log have no share-partition.
    expected = [{**row, "known": known.get(key)} for key, row in zip(rows, _keyed(rows).to_pylist(), strict=True)]
    assert found.to_pylist() == [row if None not in row.values() else {**row, "known": None} for row in expected]
