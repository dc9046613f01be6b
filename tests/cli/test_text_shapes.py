"""Texts in other shapes, and times in other units, are refused by name with what to do."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import share_state
from tests.cli.commands import Command
from tests.profiles import some_of
from tests.truth import DATA

SHAPES = DATA / "cases/text-shapes"
UNITS = DATA / "cases/timestamp-unit"
NAMES = {
    "array.json": "a JSON array of records of the console consumer",
    "docker-exec-t.txt": "byte 529: not a JSON object, but other output",
    "dump-bom.txt": "text with a byte order mark",
    "dump-grep.txt": "lines of kafka-dump-log without its other lines",
    "dump-utf16.txt": "UTF-16 text",
    "kafka-ui-export.json": "an export of Kafka UI, which decodes keys and values as text",
    "kubectl-run-ti.txt": "records of the console consumer after other output",
    "log4j-first.txt": "records of the console consumer after other output",
    "powershell-utf16.txt": "UTF-16 text",
    "redpanda-console.json": "an export of Redpanda Console",
    "rows-base64-array.json": "a JSON array of rows",
    "rows-base64.csv": "CSV",
    "utf8-bom.txt": "text with a byte order mark",
}
IN_SPARK = {"redpanda-console.json", "rows-base64-array.json"}
"""Shapes whose fix makes rows as JSON, which Spark reads."""


def test_every_shape_is_tested():
    assert {path.name for path in SHAPES.iterdir()} == NAMES.keys()


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_text_that_is_not_read_is_named_with_what_to_do(name: str, cli: Command, tmp_path: Path):
    said = cli("reconstruct", SHAPES / name, "--out", tmp_path / "w", "-q")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"share-state: {SHAPES / name}: {NAMES[name]}")
    assert "not a log segment" not in said.err
    assert not (tmp_path / "w").exists()


def _fixed(name: str, said: str, folder: Path) -> Path:
    """Run the command that the message gives, in a folder, and return the file that it makes."""
    command = said.removeprefix(f"share-state: {SHAPES / name}: ").partition(": ")[2].partition("; and ")[0].strip()
    if "; p.write_table" in said:
        command = command.replace("python", shlex.quote(sys.executable), 1)
    subprocess.run(["bash", "-c", command], cwd=folder, check=True)
    (made,) = folder.iterdir()
    return made


@pytest.mark.parametrize(
    "name", some_of(sorted({*NAMES} - {"docker-exec-t.txt", "dump-grep.txt", "kafka-ui-export.json"}), 5)
)
def test_the_command_in_the_message_makes_a_text_that_is_read(name: str, cli: Command, tmp_path: Path):
    made = _fixed(name, cli("reconstruct", SHAPES / name, "--out", tmp_path / "w", "-q").err, tmp_path)
    if name in IN_SPARK:
        expected = cli("reconstruct", SHAPES / "rows-base64-array.json", "--out", tmp_path / "w", "-q").err
        rows = _fixed("rows-base64-array.json", expected, _folder(tmp_path / "rows")).read_text().splitlines()
        assert sorted(map(_json, made.read_text().splitlines())) == sorted(map(_json, rows))
    elif name.startswith("dump"):  # the case itself ends inside its first batch
        assert "a batch of 3 records, 1 in the text" in cli("cutoff", made).err
    else:
        assert len(share_state.reconstruct(str(made)).share_partition_state) > 0


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _json(line: str) -> str:
    return json.dumps(json.loads(line), sort_keys=True)


@pytest.mark.parametrize("unit", ["seconds", "microseconds"])
def test_times_in_another_unit_are_refused(unit: str, cli: Command, tmp_path: Path):
    file = UNITS / f"stall-{unit[0].replace('m', 'us')}.parquet"
    said = cli("audit", file, "--out", tmp_path / "w", "-q")
    assert (said.code, said.out) == (2, "")
    assert f"column timestamp holds {unit} since 1970" in said.err
    assert "write it in milliseconds, or as a timestamp" in said.err


def _with_times(folder: Path, times: pa.Array, *, statistics: bool) -> Path:
    rows = pq.read_table(UNITS / "stall-ms.parquet")
    rows = rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", times)
    kept: Any = ["offset", "partition", *(["timestamp"] if statistics else [])]
    pq.write_table(rows, folder / "t.parquet", write_statistics=kept)
    return folder / "t.parquet"


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(("unit", "factor"), [("seconds", 1e-3), ("microseconds", 1e3), ("nanoseconds", 1e6)])
def test_a_unit_is_recognized_by_the_times_themselves(
    unit: str, factor: float, statistics: bool, cli: Command, tmp_path: Path
):
    times = pq.read_table(UNITS / "stall-ms.parquet")["timestamp"].to_pylist()
    file = _with_times(tmp_path, pa.array([int(time * factor) for time in times]), statistics=statistics)
    assert f"holds {unit} since 1970" in cli("cutoff", file).err


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns")])
def test_times_in_their_own_unit_are_read(kind: pa.DataType, cli: Command, tmp_path: Path):
    times = pq.read_table(UNITS / "stall-ms.parquet")["timestamp"].combine_chunks()
    times = times if pa.types.is_int64(kind) else times.cast(pa.timestamp("ms")).cast(kind)
    file = _with_times(tmp_path, times, statistics=True)
    found = [share_state.reconstruct(str(one)) for one in (file, UNITS / "stall-ms.parquet")]
    assert found[0].share_partition_state == found[1].share_partition_state
    assert found[0].findings.drop_columns("run_id") == found[1].findings.drop_columns("run_id")


def test_timestamps_that_were_made_from_seconds_are_refused(cli: Command, tmp_path: Path):
    times = pq.read_table(UNITS / "stall-s.parquet")["timestamp"].combine_chunks().cast(pa.timestamp("ms"))
    said = cli("cutoff", _with_times(tmp_path, times, statistics=True))
    assert said.code == 2
    assert "holds seconds since 1970" in said.err
