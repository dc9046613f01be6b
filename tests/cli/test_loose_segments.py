"""A segment that is not in a folder named after its log: commands that keep nothing read it, the others refuse it."""

import shutil
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.truth import DATA

FUZZ = DATA / "4.3.1/chaos/__share_group_state-2"
LOG = "__share_group_state-N"


@pytest.fixture
def loose(tmp_path: Path) -> Path:
    (segment,) = FUZZ.glob("*.log")
    return Path(shutil.copy(segment, tmp_path / "p2.log"))


def test_commands_that_keep_nothing_read_it_as_a_reconstruct_does(cli: Command, loose: Path, tmp_path: Path):
    assert cli("reconstruct", loose, "--out", tmp_path / "lake", "--fail-on", "off").code == 0
    expected, shown = (cli("show", place, "--json").json["share_partitions"] for place in (tmp_path / "lake", loose))
    assert shown == expected != []
    assert {row["state_partition"] for row in shown} == {None}
    of_group = expected[0]["group_id"]
    for call in (["why", of_group, loose], ["groups", loose], ["repair", loose], ["cutoff", loose, "--fail-on", "off"]):
        assert cli(*call, "--quiet").code == 0, call


def test_a_stated_number_of_partitions_shows_every_command_which_it_is(cli: Command, loose: Path, tmp_path: Path):
    stated = (loose, "--state-partitions", 3, "--json")
    (cutoff,) = cli("cutoff", *stated).json["cutoff"]
    assert (cutoff["partition"], cutoff["safe"]) == (2, True)
    for command in ("reconstruct", "audit"):
        assert cli(command, *stated, "--out", tmp_path / command, "--fail-on", "off").code == 0
        rows = cli("show", tmp_path / command, "--json").json["share_partitions"]
        assert {row["state_partition"] for row in rows} == {2}


def test_what_goes_on_from_run_to_run_refuses_it(cli: Command, loose: Path, tmp_path: Path):
    monday = tmp_path / "monday" / f"{0:020}.log"
    monday.parent.mkdir()
    shutil.copy(loose, monday)
    unnamed = "the name does not show which partition it is, and"
    for call, reason in (
        (["audit", loose], f"{loose}: {unnamed} --state-partitions is not given; name the folder {LOG}"),
        (["audit", loose, "--state-partitions", 7], f"{unnamed} its keys do not belong to one of 7; name the folder"),
        (["stream", loose, "--once"], f"{loose}: a file; a stream reads a folder that grows: give the folder that"),
        (["audit", monday.parent], f"{monday.parent}: {unnamed}"),
        (["stream", monday.parent, "--once"], f"{monday.parent}: {unnamed}"),
    ):
        done = cli(*call, "--out", tmp_path / "lake", "--quiet")
        assert (done.code, reason in done.err) == (2, True), done.err
        assert len(done.err.splitlines()) == 1
    assert not (tmp_path / "lake").exists()
