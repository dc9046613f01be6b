"""`cutoff` on damaged inputs on which it once wrote offsets that would have deleted live state."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.commands import Command, flipped
from tests.truth import DATA

CASES = DATA / "cases"
HEAD_LOST = CASES / "unsafe-cutoff-head-lost/headlost"
SWAPPED = CASES / "unsafe-cutoff-swapped-folders/damaged"
PARTIAL = CASES / "partial-export/late.parquet"


@pytest.mark.parametrize(
    ("damaged", "unsafe", "reason"),
    [
        (HEAD_LOST, {0}, "the snapshot of 1 share-partition is not in the input"),
        (SWAPPED, {1, 2}, "the records of 3 share-partitions belong to another state partition"),
        (PARTIAL, {0, 1, 2}, "the input begins at offset 401, and nothing in it shows that the broker's log does"),
    ],
)
def test_an_unsafe_cutoff_is_not_written_and_says_why(
    cli: Command, tmp_path: Path, damaged: Path, unsafe: set[int], reason: str
):
    target = tmp_path / "offsets.json"
    said = cli("cutoff", damaged, "--verify", "--delete-records", target)
    assert said.code == 1
    assert f"not safe: __share_group_state-{max(unsafe)}: " in said.out
    assert reason in said.out
    assert "verified: the records" not in said.out
    assert json.loads(target.read_text())["partitions"] == []
    rows = cli("cutoff", damaged, "--json").json["cutoff"]
    assert {row["partition"] for row in rows if not row["safe"]} == unsafe


def test_a_safe_cutoff_beside_an_unsafe_one_is_written(cli: Command, tmp_path: Path):
    shutil.copytree(DATA / "4.3.1/chaos", tmp_path / "chaos")
    (segment,) = (tmp_path / "chaos/__share_group_state-1").glob("*.log")
    segment.write_bytes(flipped(segment.read_bytes(), batch=3))
    said = cli("cutoff", tmp_path / "chaos", "--verify", "--delete-records", tmp_path / "offsets.json")
    assert said.code == 1
    assert "not verified: 1 log partition whose cutoff is not safe" in said.out
    assert "verified: the records at or after the cutoff fold to the same state" in said.out
    assert "names 2 state partitions" in said.out
    written = json.loads((tmp_path / "offsets.json").read_text())["partitions"]
    assert [entry["partition"] for entry in written] == [0, 2]


def test_a_state_whose_snapshot_is_not_in_the_input_is_suspect(cli: Command, tmp_path: Path):
    for number, export in enumerate((HEAD_LOST, PARTIAL)):
        warehouse = tmp_path / str(number)
        cli("reconstruct", export, "--out", warehouse)
        shown = cli("show", warehouse, "--json").json
        rows = shown if isinstance(shown, list) else shown["share_partitions"]
        suspect = [row["suspect"] for row in rows]
        assert True in suspect
        assert False in suspect
