"""Rows set aside and finished later: nothing is lost, nothing is left."""

from pathlib import Path

import pyarrow as pa
import pytest

from share_state.delta.files import TableFiles
from share_state.delta.warehouse import Warehouse
from share_state.pipeline.task import finalize_staged, write_staged
from share_state.schema.declarations import table_schema

SEEN = pa.schema([("run_id", pa.dictionary(pa.int32(), pa.string())), ("records", pa.int64())])


def batches(*names: str) -> list[pa.RecordBatch]:
    rows = pa.table({"run_id": pa.array(names).dictionary_encode(), "records": range(len(names))}, schema=SEEN)
    return rows.to_batches(max_chunksize=2)


def finished(rows: pa.Table) -> pa.Table:
    given = {name: rows[name] for name in SEEN.names} | {"command": pa.repeat(pa.scalar("audit"), len(rows))}
    schema = table_schema("runs")
    given["finished"] = pa.repeat(pa.scalar(0, schema.field("finished").type), len(rows))
    return pa.table([given.get(field.name, pa.nulls(len(rows), field.type)) for field in schema], names=schema.names)


def test_the_rows_of_all_drafts_are_finished_in_order(tmp_path: Path):
    files = TableFiles(str(tmp_path))
    drafts = write_staged(files, "runs", batches("c", "a", "b", "a", "c")) + write_staged(files, "runs", batches("d"))
    assert [draft["rows"] for draft in drafts] == [5, 1]
    assert [draft["size"] for draft in drafts] == [
        (tmp_path / "runs" / draft["path"]).stat().st_size for draft in drafts
    ]
    written = finalize_staged(files, drafts, finished)
    rows = files.read("runs", [file["path"] for file in written])
    assert rows["run_id"].to_pylist() == ["c", "a", "b", "a", "c", "d"]
    assert rows["records"].to_pylist() == [0, 1, 2, 3, 4, 0]
    assert set(rows["command"].to_pylist()) == {"audit"}


@pytest.mark.parametrize("given", [[], [pa.RecordBatch.from_pylist([], SEEN)]], ids=["none", "empty"])
def test_of_no_rows_there_is_no_file(tmp_path: Path, given: list[pa.RecordBatch]):
    files = TableFiles(str(tmp_path))
    assert write_staged(files, "runs", given) == []
    assert finalize_staged(files, [], finished) == []
    assert list(tmp_path.iterdir()) == []


def test_drafts_go_with_the_attempt(tmp_path: Path):
    with Warehouse(str(tmp_path)) as tables:
        drafts = write_staged(tables.files, "runs", batches("a"))
        tables.replace("runs", finalize_staged(tables.files, drafts, finished))
    assert [file.suffix for file in (tmp_path / "runs").iterdir() if file.is_file()] == [".parquet"]
    with pytest.raises(ZeroDivisionError), Warehouse(str(tmp_path)) as tables:
        write_staged(tables.files, "findings", batches("a"))
        raise ZeroDivisionError
    assert not (tmp_path / "findings").exists()
