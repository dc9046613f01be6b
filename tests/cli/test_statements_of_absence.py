"""No command says that nothing is wrong, waits or is left where the input does not show it."""

import shutil
from pathlib import Path
from random import Random

import pytest

from tests.cli.commands import Command
from tests.damage.damage import KINDS
from tests.damage.exports import whole_export
from tests.truth import DATA

CHAOS = DATA / "4.3.1/chaos"
HAPPY = DATA / "4.3.1/happy"
PRUNED = DATA / "4.3.1/prune"
LATE = DATA / "cases/partial-export/late.parquet"
ABSENT = "app-a orders-1: the input holds no state of it; its group lists it as initialized"
UNSEEN = "share-partitions of __share_group_state-1: not in the input, so its share-partitions are not in the tables"


@pytest.fixture(params=[True, False], ids=["with groups", "without groups"])
def incomplete(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """An export without a state partition, and what is not known then of a group that has state in it."""
    folder, has_groups = tmp_path / "export", request.param
    shutil.copytree(HAPPY, folder, ignore=shutil.ignore_patterns("*.txt", "*.jsonl", "__share_group_state-1"))
    if has_groups:
        return folder, ABSENT
    for log in folder.glob("__consumer_offsets-*"):
        shutil.rmtree(log)
    return folder, UNSEEN


def test_a_missing_state_partition_is_not_known_to_be_healthy(cli: Command, incomplete: tuple[Path, str]):
    folder, unknown = incomplete
    assert any(line.startswith(unknown) for line in cli("why", "app-a", folder, "--json", "-q").json["unknown"])
    said = cli("repair", folder, "--group", "app-a", "-q").out
    assert "there is nothing to do" not in said
    assert f"- {unknown}" in said
    assert f"Not known: {unknown}" in cli("repair", folder, "--group", "app-a", "--redrive", "-q").out
    assert f"not known: {unknown}" in cli("show", folder, "--group", "app-a", "-q").out


def test_a_backup_without_all_offsets_of_a_group_is_incomplete(
    cli: Command, incomplete: tuple[Path, str], tmp_path: Path
):
    folder, unknown = incomplete
    said = cli("offsets", folder, "--group", "app-a", "--out", tmp_path / "offsets.csv", "-q")
    assert said.code == 1
    assert f"left out: {unknown}" in said.out


def test_a_log_without_its_beginning_may_lack_share_partitions(cli: Command, tmp_path: Path):
    topics = ("--topics", DATA / "4.3.1/chaos/topics.json")
    said = cli("offsets", LATE, *topics, "--out", tmp_path / "offsets.csv", "-q").out
    assert "not known: other share-partitions of __share_group_state-0: the input begins at offset" in said


def test_what_a_suspect_state_waits_for_is_not_known(cli: Command):
    said = " ".join(cli("why", "g4", LATE, "--topics", DATA / "4.3.1/chaos/topics.json", "-q").out.split())
    assert "STATE_SUSPECT" in said
    assert "nothing in flight" not in said


def test_the_state_as_of_a_point_may_lack_what_was_pruned(cli: Command, tmp_path: Path):
    note = "state of an earlier time: __share_group_state-0: records before offset 75 are not in the log any more"
    for offset, is_noted in ((200, True), (246, False)):
        said = cli("reconstruct", PRUNED, "--as-of-offset", f"0={offset}", "--out", tmp_path / str(offset))
        assert (note in said.err) is is_noted
    assert f"not known: {note}" in cli("show", tmp_path / "200").out


def test_the_cutoff_of_a_warehouse_comes_with_the_findings_of_its_logs(cli: Command, tmp_path: Path):
    assert cli("reconstruct", CHAOS, "--out", tmp_path / "lake", "-q").code == 0
    of_logs = cli("cutoff", CHAOS, "-q")
    assert "RECORDS_LOST, 3 findings" in of_logs.out
    assert "due for the broker's own pruning" in of_logs.out
    assert cli("cutoff", tmp_path / "lake", "-q").out == of_logs.out


def test_a_stream_calls_no_group_ok_whose_lost_records_only_an_audit_finds(cli: Command, tmp_path: Path):
    folder, one = tmp_path / "export", ("--topic", "t1", "--partition", 3, "-q")
    shutil.copytree(CHAOS, folder, ignore=shutil.ignore_patterns("__consumer_offsets*"))
    cli("stream", folder, "--once", "--out", tmp_path / "lake", "--fail-on", "off", "-q")
    lost, said = (cli("why", "g1", place, *one).out for place in (folder, tmp_path / "lake"))
    assert lost.startswith("RECORDS_LOST: g1 t1-3")
    assert said.startswith("NO TROUBLE SHOWN: g1 t1-3")
    assert "whether records were deleted before they were finished" in " ".join(said.split())


def test_a_share_partition_of_a_missing_log_has_an_earlier_state(cli: Command, tmp_path: Path):
    folder, lake = tmp_path / "export", tmp_path / "lake"
    shutil.copytree(HAPPY, folder, ignore=shutil.ignore_patterns("*.txt", "*.jsonl"))
    cli("audit", folder, "--out", lake, "-q")
    shutil.rmtree(folder / "__share_group_state-1")
    cli("audit", folder, "--out", lake, "-q")
    kept = "share-partitions of __share_group_state-1: not in the input; its share-partitions keep the state"
    said = cli("why", "app-a", lake, "--json", "-q").json
    assert any(line.startswith(kept) for line in said["unknown"])
    assert said["last_hour"] is not None
    assert f"not known: {kept}" in cli("offsets", lake, "--out", tmp_path / "offsets.csv", "-q").out
    assert cli("cutoff", lake, "-q").out == cli("cutoff", folder, "-q").out


def test_a_stream_names_the_share_partitions_that_it_leaves_out(cli: Command, tmp_path: Path):
    export = whole_export("4.3", 1).copied()
    KINDS["folders_swapped"](export, "__share_group_state-0", Random(1))
    export.write(tmp_path / "export")
    stated = ("--state-partitions", len(export.logs))
    cli("stream", tmp_path / "export", *stated, "--once", "--out", tmp_path / "lake", "--fail-on", "off", "-q")
    unknown = cli("repair", tmp_path / "lake", "--json", "-q").json["unknown"]
    assert any("its key belongs to state partition" in line for line in unknown)
    assert any("a stream leaves that to `share-state audit`" in line for line in unknown)


def test_an_offset_that_is_not_there_is_null_in_why_and_show(cli: Command):
    key = ("g2", CHAOS, "--topic", "t2", "--partition", 0, "--json", "-q")
    assert cli("show", CHAOS, "--group", "g2", "--json", "-q").json["share_partitions"][-1]["start_offset"] is None
    assert cli("why", *key).json["start_offset"] is None
