"""Rows that are merged into a table by key replace those with the same key, in whatever order the table holds them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from share_state.delta import table_files
from share_state.delta.merge import DELETED, without_deleted
from share_state.delta.warehouse import Warehouse
from share_state.pipeline.stream_changes import KEYS
from share_state.schema.declarations import table_schema
from tests.profiles import SLOW, nightly

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


_CHANGED = st.lists(st.tuples(_KEYS, st.integers(10, 19), st.booleans()), max_size=6)


@pytest.fixture(scope="module", params=[1, 4 << 20], ids=["many files", "one file"])
def file_bytes(request: pytest.FixtureRequest) -> Iterator[int]:
    """How large the files of tables become."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "_LEAST_BYTES", request.param)
        patch.setattr(table_files, "_MOST_SMALL", 2)
        yield request.param


@pytest.mark.usefixtures("file_bytes")
@SLOW
@given(before=_ROWS, micro_batches=st.lists(_CHANGED, min_size=1, max_size=4))
def test_changed_rows_replace_those_with_the_same_key(
    before: list[_Row],
    micro_batches: list[list[tuple[tuple[str, str | None, int], int, bool]]],
    tmp_path_factory: pytest.TempPathFactory,
):
    root, expected = tmp_path_factory.mktemp("lake"), before
    with Warehouse(str(root)) as lake:
        lake.replace("in_flight", [_in_flight(before)])
        for number, changed in enumerate(micro_batches):
            rows = _in_flight([(key, first) for key, first, _ in changed])
            rows = rows.append_column(DELETED, pa.array([gone for *_, gone in changed], pa.bool_()))
            lake.merge("in_flight", rows, KEYS["in_flight"], "a-stream", number)
            replaced = {key for key, *_ in changed}
            expected = [(key, first) for key, first in expected if key not in replaced]
            expected += [(key, first) for key, first, gone in changed if not gone]
    for found in _as_others_read(f"{root}/in_flight"):
        assert Counter(
            (tuple(row[name] for name in KEYS["in_flight"]), row["first_offset"]) for row in found
        ) == Counter(expected)


def _as_others_read(place: str) -> Iterator[list[dict[str, Any]]]:
    """The rows of a table as delta-rs, polars and DuckDB read them."""
    table = DeltaTable(place)
    yield table.to_pyarrow_table().to_pylist()
    yield pl.read_delta(place).to_dicts()
    if files := table.file_uris():
        # Its extension for Delta, which is not in its package, reads the same files.
        yield duckdb.read_parquet(files).to_arrow_table().to_pylist()


@nightly("many rows")
def test_files_without_a_changed_key_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_files, "_LEAST_BYTES", 2000)
    groups = [(f"g{number:03}", "t", 0) for number in range(400)]
    place = tmp_path / "in_flight"

    def merge(lake: Warehouse, rows: pa.Table) -> set[str]:
        lake.merge("in_flight", rows, KEYS["in_flight"], "a-stream", 0)
        return {*DeltaTable(str(place)).file_uris()}

    with Warehouse(str(tmp_path)) as lake:
        lake.replace("in_flight", [])
        files = merge(lake, without_deleted(_in_flight([(key, 1) for key in groups])))
        assert len(files) > 10
        for number in range(40):
            # Two share-partitions that change all the time leave the files of the others.
            now = merge(lake, without_deleted(_in_flight([(groups[at], number) for at in (7, 300)])))
            kept, files = len(files & now), now
            assert kept >= len(now) - (3 if number == 0 else 1)
    statistics = pa.table(DeltaTable(str(place)).get_add_actions(flatten=True))
    assert sum(statistics["num_records"].to_pylist()) == 400
    assert (min(statistics["min.group_id"].to_pylist()), max(statistics["max.group_id"].to_pylist())) == (
        "g000",
        "g399",
    )


def test_only_columns_with_nulls_have_levels_and_others_compact_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(table_files, "_LEAST_BYTES", 1)
    place, key = f"{tmp_path}/in_flight", KEYS["in_flight"]
    with Warehouse(str(tmp_path)) as lake:
        lake.replace("in_flight", [])
        rows = without_deleted(_in_flight([(("g", None, 0), 1), (("h", "t", 1), 2)]))
        lake.merge("in_flight", rows, key, "a-stream", 0)
    files = [pq.read_table(file) for file in DeltaTable(place).file_uris()]
    assert len(files) == 2
    for file in files:
        assert [one.nullable for one in file.schema] == [column.null_count > 0 for column in file.columns]
    before = DeltaTable(place).to_pyarrow_table().sort_by("group_id")
    DeltaTable(place).optimize.compact()
    assert len(DeltaTable(place).file_uris()) == 1
    assert DeltaTable(place).to_pyarrow_table().sort_by("group_id") == before


@nightly("Spark reads what the test above reads with others")
def test_spark_reads_a_table_that_many_micro_batches_have_changed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(table_files, "_LEAST_BYTES", 2000)
    groups = [(f"g{number:03}", "t", 0) for number in range(200)]
    place = str(tmp_path / "in_flight")
    with Warehouse(str(tmp_path)) as lake:
        lake.replace("in_flight", [])
        for number in range(20):
            changed = [(key, number) for key in groups[number::7]]
            rows = _in_flight(changed).append_column(DELETED, pa.array([False, number > 10] * 100)[: len(changed)])
            lake.merge("in_flight", rows, KEYS["in_flight"], "a-stream", number)
    expected = DeltaTable(place).to_pyarrow_table()
    found = spark.read.format("delta").load(place).toArrow().select(expected.column_names).cast(expected.schema)
    assert Counter(map(str, found.to_pylist())) == Counter(map(str, expected.to_pylist()))
    assert 0 < len(expected) < 200
    # The statistics, too: a filter leaves out files by them.
    some = spark.read.format("delta").load(place).filter("group_id = 'g014'").count()
    assert some == expected.filter(pc.field("group_id") == "g014").num_rows
