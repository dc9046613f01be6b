"""Whatever cannot be used: one clear line on stderr, exit code 2, nothing written. None of it starts Spark."""

import os
from pathlib import Path

import pytest

from tests.cli.commands import DATA, listing, say

HAPPY = DATA / "4.3.1" / "happy"


def _refused(capfd, tmp_path: Path, *arguments: object) -> str:
    before = listing(tmp_path)
    said = say(capfd, *arguments)
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("share-state: ")
    assert said.err.count("\n") == 1
    assert listing(tmp_path) == before
    return said.err


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with what people point at by mistake."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "pictures" / "2026").mkdir(parents=True)
    (tmp_path / "pictures" / "2026" / "cat.jpg").write_bytes(b"\xff\xd8")
    (tmp_path / "notes.txt").write_text("remember the milk, and the bread, and the eggs\n")
    (tmp_path / "gone.log").symlink_to(tmp_path / "never-was.log")
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "garbage" / "__share_group_state-0").mkdir(parents=True)
    (tmp_path / "garbage" / "__share_group_state-0" / f"{0:020}.log").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("missing", "no such file or folder"),
        ("empty", "no log segments here"),
        ("pictures", "no log segments here"),
        ("notes.txt", "not a log segment"),
        ("gone.log", "no such file or folder"),
        ("*.nothing", "no such file or folder"),
        ("garbage", "cannot be read"),
        ("s3://bucket/logs", "only local files"),
    ],
)
@pytest.mark.parametrize("command", ["reconstruct", "cutoff", "decode"])
def test_an_input_that_is_none_is_refused(capfd, place: Path, command: str, given: str, words: str):
    path = given if "://" in given else place / given
    more = ["--out", place / "warehouse"] if command == "reconstruct" else []
    assert words in _refused(capfd, place, command, path, *more)


def test_a_log_of_kafka_s_own_is_refused(capfd, place: Path):
    folder = place / "__consumer_offsets-3"
    folder.mkdir()
    (folder / f"{0:020}.log").write_bytes((HAPPY / "__share_group_state-0" / f"{0:020}.log").read_bytes())
    said = _refused(capfd, place, "reconstruct", folder, "--out", place / "warehouse")
    assert "__consumer_offsets" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_refused(capfd, place: Path):
    segment = place / f"{0:020}.log"
    segment.write_bytes(b"")
    segment.chmod(0)
    assert "Permission denied" in _refused(capfd, place, "reconstruct", segment, "--out", place / "warehouse")


@pytest.mark.parametrize("out", ["notes.txt", "pictures", "notes.txt/below"])
def test_an_output_that_holds_something_else_is_refused(capfd, place: Path, out: str):
    _refused(capfd, place, "reconstruct", HAPPY, "--out", place / out)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--as-of-offset", "7=12"], "partition 7 is not in the input"),
        (["--as-of-offset", "0"], "NAME=VALUE"),
        (["--as-of-offset", "0=x"], "3=12000"),
        (["--as-of-time", "yesterday"], "2026-11-21T02:10:00Z"),
        (["--rule", "NO_SUCH=off"], "no such rule"),
        (["--rule", "CRC_MISMATCH=loud"], "give one of"),
        (["--fail-on", "never"], "give one of"),
        (["--format", "parquet"], "give one of"),
        (["--dialect", "klingon"], "give one of"),
        (["--mode", "lax"], "give one of"),
        (["--topics", "nowhere.json"], "cannot be read"),
        (["--state-partitions", "0"], "--state-partitions"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(capfd, place: Path, options: list[str], words: str):
    assert words in _refused(capfd, place, "reconstruct", HAPPY, "--out", place / "warehouse", *options)


def test_topics_that_are_none_are_refused(capfd, place: Path):
    said = _refused(capfd, place, "reconstruct", HAPPY, "--out", place / "w", "--topics", place / "notes.txt")
    assert "end_offsets" in said


def test_a_warehouse_that_is_none_is_not_shown(capfd, place: Path):
    assert "share-state reconstruct" in _refused(capfd, place, "show", place / "empty")


@pytest.mark.parametrize("command", [["bogus"], ["reconstruct"], ["show", "--partition", "x"]])
def test_a_call_that_is_none_is_refused(capfd, place: Path, command: list[str]):
    assert "--help" in _refused(capfd, place, *command)


@pytest.mark.parametrize("command", ["reconstruct", "cutoff", "show", "decode", "rules"])
def test_help_holds_an_example(capfd, command: str):
    said = say(capfd, command, "--help")
    assert said.code == 0
    assert f"Example: share-state {command}" in " ".join(said.out.split())


def test_the_bare_command_lists_the_commands(capfd):
    said = say(capfd)
    assert said.code == 0
    assert "reconstruct" in said.out


def test_the_version_is_told(capfd):
    assert say(capfd, "--version").out.startswith("share-state 0.")
