"""Parquet files as a stream reads them: what an audit reads or refuses, a stream does, too."""

import base64
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.pipeline import stream_files
from share_state.pipeline.stream_files import rows_by_log
from share_state.pipeline.stream_state import from_ipc
from share_state.sources.encoded_text import in_bytes
from share_state.spark.streaming import read_files
from tests.pipeline.test_stream_tables import reconstructed, tables_in
from tests.sources.formats.tables import found, table_of, write
from tests.truth import DATA

ENCODINGS = {"base64": lambda value: base64.b64encode(value).decode(), "hexadecimal": bytes.hex}


def _encoded(column: pa.ChunkedArray, encoding: str) -> pa.Array:
    encode = ENCODINGS[encoding]
    return pa.array([None if value is None else encode(value) for value in column.to_pylist()], pa.string())


def _in_text(records: pa.Table, encoding: str) -> pa.Table:
    for place, name in enumerate(("key", "value")):
        records = records.set_column(place, name, _encoded(records[name], encoding))
    return records


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_keys_and_values_in_text_leave_the_tables_of_those_in_bytes(encoding: str, tmp_path: Path):
    records = table_of(found(DATA / "4.3.1/prune"))
    write(_in_text(records, encoding), tmp_path / "in/0.parquet")
    assert run(["stream", str(tmp_path / "in"), "--out", str(tmp_path / "lake"), "--once", "--quiet"]) in (0, 1)
    assert tables_in(tmp_path / "lake") == reconstructed(records, tmp_path)


@given(
    values=st.lists(st.none() | st.binary(max_size=20).map(lambda value: b"\0" + value), min_size=1),
    begin=st.integers(0, 3),
)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_texts_are_the_bytes_that_were_encoded(encoding: str, values: list[bytes | None], begin: int):
    texts = _encoded(pa.chunked_array([pa.array(values, pa.binary())]), encoding)
    # A slice has the bytes of other rows before its own.
    assert in_bytes(texts[begin:]).to_pylist() == values[begin:]


@pytest.mark.parametrize(("unit", "factor"), [("seconds", 1e-3), ("microseconds", 1e3), ("nanoseconds", 1e6)])
def test_times_in_another_unit_are_refused_and_later_left_out(unit: str, factor: float, tmp_path: Path):
    records, lake = table_of(found(DATA / "4.3.1/prune")), str(tmp_path / "lake")
    times = records["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    scaled = pc.multiply(times.cast(pa.float64()), factor).cast(pa.int64(), safe=False)
    wrong = records.set_column(records.schema.get_field_index("timestamp"), "timestamp", scaled)
    write(wrong, tmp_path / "in/1.parquet")
    call = ["stream", str(tmp_path / "in"), "--out", lake, "--once", "--quiet"]
    assert run(call) == 2
    assert not Path(lake).exists()
    right = write(records, tmp_path / "in/0.parquet")
    os.utime(right, (1, 1))
    assert run(call) == 1
    found_here = CommittedTables(lake).read("findings").filter(pc.field("rule") == "LOG_UNREADABLE")
    (message,) = found_here["message"].to_pylist()
    assert f"column timestamp holds {unit} since 1970" in message
    assert "its records are left out" in message


def test_a_file_whose_end_is_unreadable_gives_a_stream_on_spark_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stream_files, "_ROWS_A_PART", 10)
    times = [1_700_000_000_000] * 10 + [1_700_000_000] * 10
    columns = {"key": [b"k"] * 20, "value": [b"v"] * 20, "partition": [0] * 20, "offset": range(20)}
    path = write(pa.table(columns | {"timestamp": times}), tmp_path / "in/0.parquet")
    batches = iter([pa.record_batch({"path": [str(path)]})])
    packed = [row for batch in read_files(str(tmp_path / "in"), batches) for row in batch.to_pylist()]
    assert [row["state_partition"] for row in packed] == [-1]
    assert "seconds" in packed[0]["problem"]


def test_a_file_of_many_parts_gives_a_stream_on_spark_the_rows_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(table_of(found(DATA / "4.3.1/prune")), tmp_path / "in/0.parquet")

    def read() -> dict[int, list[Any]]:
        rows = dict[int, list[Any]]()
        batches = iter([pa.record_batch({"path": [f"file:{path}"]})])
        for row in (row for batch in read_files(str(tmp_path / "in"), batches) for row in batch.to_pylist()):
            rows.setdefault(row["state_partition"], []).extend(from_ipc(row["rows"]).to_pylist())
        return rows

    whole = read()
    assert len(whole) == 3
    monkeypatch.setattr(stream_files, "_ROWS_A_PART", 20)
    assert read() == whole


def test_texts_in_no_encoding_are_named():
    table = pa.table({"key": ["no?"], "value": ["no?"], "partition": [0], "offset": [0]})
    with pytest.raises(ValueError, match="base64"):
        rows_by_log(table, "a.parquet")
