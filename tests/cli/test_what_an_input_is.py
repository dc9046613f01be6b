"""What commands say about inputs that hold something else than state records, or state records in another shape."""

import shutil
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import share_state
from tests.cli.commands import Command
from tests.truth import DATA

CASES = DATA / "cases"
STATE = DATA / "4.3.1/chaos/__share_group_state-0"
GROUPS = DATA / "4.3.1/chaos/__consumer_offsets-0"


def _binary_twin(table: Path, folder: Path) -> Path:
    """The first 60 records of the same log, with keys and values as bytes."""
    rows = pq.read_table(table)
    encoded = DATA / "cases/hex-table/hex.parquet"
    decoded = {
        name: pa.array([text and bytes.fromhex(text) for text in pq.read_table(encoded)[name].to_pylist()], pa.binary())
        for name in ("key", "value")
    }
    for name, column in decoded.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    pq.write_table(rows, folder / "binary.parquet")
    return folder / "binary.parquet"


def _states(path: Path) -> list[dict]:
    return share_state.reconstruct(str(path)).share_partition_state.to_pylist()


@pytest.mark.parametrize("encoded", ["hex-table/hex.parquet", "base64-crlf/spark-base64.parquet"])
def test_text_keys_and_values_hold_the_state_of_their_bytes(encoded: str, tmp_path: Path):
    states = _states(CASES / encoded)
    assert states
    assert states == _states(_binary_twin(CASES / encoded, tmp_path))


@pytest.mark.parametrize("prefix", ["0x", "\\x"])
def test_hexadecimal_text_with_a_prefix_is_read(prefix: str, tmp_path: Path):
    rows = pq.read_table(CASES / "hex-table/hex.parquet")
    for name in ("key", "value"):
        texts = pa.array([text and prefix + text.lower() for text in rows[name].to_pylist()])
        rows = rows.set_column(rows.schema.get_field_index(name), name, texts)
    pq.write_table(rows, tmp_path / "prefixed.parquet")
    assert _states(tmp_path / "prefixed.parquet") == _states(CASES / "hex-table/hex.parquet")


def test_base64_without_padding_is_read(tmp_path: Path):
    rows = pq.read_table(CASES / "base64-crlf/spark-base64.parquet")
    for name in ("key", "value"):
        texts = pa.array([text and text.rstrip("=") for text in rows[name].to_pylist()])
        rows = rows.set_column(rows.schema.get_field_index(name), name, texts)
    pq.write_table(rows, tmp_path / "unpadded.parquet")
    assert _states(tmp_path / "unpadded.parquet") == _states(CASES / "base64-crlf/spark-base64.parquet")


@pytest.mark.parametrize("command", ["audit", "reconstruct", "cutoff"])
def test_the_table_of_another_topic_is_refused(command: str, cli: Command, tmp_path: Path):
    out = () if command == "cutoff" else ("--out", tmp_path / "w")
    said = cli(command, CASES / "hex-table/orders.parquet", *out, "-q")
    assert said.code == 2
    assert "none of its 500 records is a state record" in said.err
    assert not (tmp_path / "w").exists()


def test_a_folder_of_another_topic_under_the_name_of_the_state_topic_is_refused(cli: Command, tmp_path: Path):
    shutil.copytree(GROUPS, tmp_path / "logs/__share_group_state-0")
    said = cli("audit", tmp_path / "logs", "--out", tmp_path / "w", "-q")
    assert said.code == 2
    assert "is a state record" in said.err


def test_a_log_with_few_state_records_is_an_error_and_its_cutoff_is_unsafe(cli: Command, tmp_path: Path):
    shutil.copytree(STATE, tmp_path / "logs/__share_group_state-0")
    shutil.copytree(GROUPS, tmp_path / "logs/__share_group_state-1")
    for _ in range(2):  # the second audit resumes where the first one stopped
        said = cli("audit", tmp_path / "logs", "--out", tmp_path / "w", "--json", "-q")
        assert said.code == 1
        assert "NO_STATE_RECORDS" in {one["rule"] for one in said.json["findings"]}
    cut = cli("cutoff", tmp_path / "logs", "--json", "-q").json["cutoff"]
    assert "most of its records are no state records" in cut[1]["reason"]
    assert not cut[1]["safe"]


def test_an_empty_log_of_a_healthy_state_partition_is_no_finding(cli: Command, tmp_path: Path):
    shutil.copytree(STATE, tmp_path / "logs/__share_group_state-0")
    (tmp_path / "logs/__share_group_state-1").mkdir()
    (tmp_path / f"logs/__share_group_state-1/{0:020}.log").touch()
    said = cli("audit", tmp_path / "logs", "--out", tmp_path / "w", "--json", "-q")
    assert "NO_STATE_RECORDS" not in {one["rule"] for one in said.json["findings"]}


def test_two_state_partitions_in_files_without_folders_are_refused(cli: Command, tmp_path: Path):
    for number in (0, 1):
        shutil.copy(STATE.with_name(f"__share_group_state-{number}") / f"{0:020}.log", tmp_path / f"p{number}.log")
    said = cli("reconstruct", tmp_path / "p0.log", tmp_path / "p1.log", "--out", tmp_path / "w", "-q")
    assert said.code == 2
    assert "segments of two state partitions" in said.err
    assert "p0.log" in said.err
    assert "p1.log" in said.err


def test_two_copies_of_one_state_partition_in_files_without_folders_are_one_log(cli: Command, tmp_path: Path):
    segment = (STATE / f"{0:020}.log").read_bytes()
    (tmp_path / "broker-1.log").write_bytes(segment)
    (tmp_path / "broker-2.log").write_bytes(segment)
    said = cli("cutoff", tmp_path / "broker-1.log", tmp_path / "broker-2.log", "--json", "-q")
    assert said.json["records"] == 546
    assert said.json["findings"] == []


def test_an_archive_is_refused_with_what_to_do(cli: Command, tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        archive.write(STATE / f"{0:020}.log", f"__share_group_state-0/{0:020}.log")
    said = cli("reconstruct", tmp_path / "logs.zip", "--out", tmp_path / "w", "-q")
    assert said.code == 2
    assert "a zip archive; unpack it" in said.err
