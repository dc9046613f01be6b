"""Rows set aside and finished later: nothing is lost, nothing is left."""

from pathlib import Path

import pyarrow as pa
import pytest

from share_state.delta.staging import Staging
from share_state.delta.warehouse import Warehouse

SEEN = pa.schema([("run_id", pa.dictionary(pa.int32(), pa.string())), ("records", pa.int64())])


def batches(*names: str) -> list[pa.RecordBatch]:
    rows = pa.table({"run_id": pa.array(names).dictionary_encode(), "records": range(len(names))}, schema=SEEN)
    return rows.to_batches(max_chunksize=2)


def test_staged_rows_come_back_in_order(tmp_path: Path):
    staging = Staging(str(tmp_path))
    staged = staging.write("runs", batches("c", "a", "b", "a", "c")) + staging.write("runs", batches("d"))
    assert [file["rows"] for file in staged] == [5, 1]
    rows = pa.concat_tables(piece for file in staged for piece in staging.read(file, ["records", "run_id"]))
    assert rows["run_id"].to_pylist() == ["c", "a", "b", "a", "c", "d"]
    assert rows["records"].to_pylist() == [0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize("given", [[], [pa.RecordBatch.from_pylist([], SEEN)]], ids=["none", "empty"])
def test_of_no_rows_there_is_no_file(tmp_path: Path, given: list[pa.RecordBatch]):
    assert Staging(str(tmp_path)).write("runs", given) == []
    assert list(tmp_path.iterdir()) == []


def test_staged_rows_go_with_the_run(tmp_path: Path):
    with Warehouse(str(tmp_path)) as tables:
        tables.staging.write("runs", batches("a"))
        assert [file.suffix for file in Path(tables.staging.folder).iterdir()] == [".arrows"]
    assert not list(tmp_path.iterdir())
