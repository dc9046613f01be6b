"""Lags, cutoffs and initializing share-partitions: what is not known is said with its reason and a way on."""

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.truth import DATA, logs_alone

CASES = DATA / "cases"
STUCK = CASES / "stuck-initializing"
CHAOS = DATA / "4.3.1/chaos"
ONE = ("--group", "gs1", "--topic", "tp1", "--partition", 0)


@pytest.fixture
def stuck(cli: Command, tmp_path: Path) -> Path:
    """A warehouse in which a group initializes a share-partition without a state."""
    groups = ("--groups", STUCK / "consumer-offsets-dump.txt")
    assert cli("audit", STUCK / "__share_group_state-0", *groups, "--out", tmp_path / "w", "-q").code == 0
    return tmp_path / "w"


def test_the_lag_of_a_group_is_not_0_while_it_is_initializing(cli: Command, stuck: Path):
    rows = {row[0]: row for row in cli("groups", stuck).table}
    assert rows["gs1"][-2:] == ["0", "-"]
    (group,) = cli("groups", stuck, "--group", "gs1", "--json").json["groups"]
    assert (group["lag"], group["known_lag"], group["unknown_lags"]) == (None, None, 1)
    said = cli("groups", stuck, "--group", "gs1").out
    assert "the lag of 1 share-partition is not known: their group lists them, but the input holds no state" in said


def test_the_hints_for_a_share_partition_without_a_state_lead_on(cli: Command, stuck: Path):
    groups = ("--groups", STUCK / "consumer-offsets-dump.txt")
    lake = stuck.parent / "again"
    found = cli("audit", STUCK / "__share_group_state-0", *groups, "--out", lake, "--json", "-q").json
    (advice,) = [one for one in found["advice"] if "STUCK_INITIALIZING" in one["what"]]
    assert "initializing for 59 min 58 s" in advice["what"]
    hint = shlex.split(advice["command"])
    assert hint[1:] == ["groups", str(lake), "--group", "gs1"]
    assert "tp1            0  initializing" in cli(*hint[1:]).out
    shown = cli("show", stuck, *ONE)
    assert "the input holds no state of gs1 tp1 0; its group lists it as initializing" in shown.lines
    assert shlex.split(shown.lines[-1].split("`")[1])[1:] == ["groups", str(stuck), "--group", "gs1"]


@pytest.mark.parametrize("of", ["log", "warehouse"])
def test_repair_names_share_partitions_without_a_state(of: str, cli: Command, stuck: Path):
    groups = ("--groups", STUCK / "consumer-offsets-dump.txt")
    inputs = (STUCK / "__share_group_state-0", *groups) if of == "log" else (stuck,)
    said = cli("repair", *inputs, "-q").out
    assert "- gs1 tp1-0: the share-partition has been initializing for 59 min 58 s" in said
    assert "InitializeShareGroupState" in said
    assert "No share-partition that has a state is in trouble: there is nothing else to do." in said
    assert "but there are errors or warnings: NO_MEMBERS (2)." in cli("repair", DATA / "4.3.1/happy", "-q").out


def _topics(folder: Path, *, without: tuple[str, int]) -> Path:
    """The topics file of 4.3.1/chaos, which lacks the end of one partition."""
    document = json.loads((CHAOS / "topics.json").read_text())
    for topic in document:
        parts = topic["partitions"]
        topic["partitions"] = [one for one in parts if (topic["name"], one["partition"]) != without]
    (folder / "topics.json").write_text(json.dumps(document))
    return folder / "topics.json"


def test_a_group_shows_what_is_known_of_its_lag(cli: Command, chaos: Path, tmp_path: Path):
    whole = {one["group_id"]: one for one in cli("groups", chaos, "--json").json["groups"]}
    known = next(one for one in whole.values() if one["lag"])
    states = cli("show", chaos, "--group", known["group_id"], "--json").json["share_partitions"]
    missing = max(states, key=lambda row: row["lag"] or 0)
    topics = _topics(tmp_path, without=(missing["topic"], missing["partition"]))
    cli("reconstruct", CHAOS, "--out", tmp_path / "w", "--topics", topics, "--fail-on", "off")
    found = {one["group_id"]: one for one in cli("groups", tmp_path / "w", "--json").json["groups"]}
    one = found[known["group_id"]]
    assert (one["lag"], one["known_lag"], one["unknown_lags"]) == (None, known["lag"] - missing["lag"], 1)
    line = next(line for line in cli("groups", tmp_path / "w").lines if line.startswith(known["group_id"]))
    assert line.endswith(f"at least {one['known_lag']}")
    said = cli("show", tmp_path / "w", "--group", known["group_id"]).lines[-1]
    assert said.startswith("the lag of 1 share-partition is not known: the ends of their topics are not known")


@pytest.mark.parametrize(
    ("case", "arguments", "reason"),
    [
        ("spso-past-end", ("--topics", "topics.json"), "what is known of the topics is older than the log"),
        ("spso-past-end", (), "the ends of their topics are not known: give --topics"),
    ],
)
def test_a_lag_is_unknown_only_with_its_reason(
    case: str, arguments: tuple[str, ...], reason: str, cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(CASES / case if arguments else logs_alone(CASES / case))
    cli("audit", "__share_group_state-0", *arguments, "--out", tmp_path / "w", "--fail-on", "off", "-q")
    for command in (("show", tmp_path / "w"), ("groups", tmp_path / "w", "--group", "gs1")):
        said = cli(*command)
        assert reason in said.out, command
        assert "-" in said.table[1 + (command[0] == "groups")]


def test_known_lags_need_no_reason(cli: Command, chaos: Path):
    found = cli("groups", chaos, "--json").json["groups"]
    group = next(one["group_id"] for one in found if one["lag"] is not None and one["share_partitions"])
    for command in ("show", "groups"):
        assert "is not known" not in cli(command, chaos, "--group", group).out


@pytest.mark.parametrize("file", ["strimzi.json", "del.txt"])
def test_no_cutoff_is_claimed_where_none_can_be_known(file: str, cli: Command, tmp_path: Path):
    said = cli("reconstruct", CASES / "console-claims" / file, "--out", tmp_path / "r", "-q")
    assert "the cutoff is not known in 1 log partition: this format has no offsets" in said.lines
    assert "lie before the cutoff" not in said.out
    audited = cli("audit", CASES / "console-claims" / file, "--out", tmp_path / "a", "-q")
    assert "cutoff: not known in 1 log partition: this format has no offsets" in audited.lines
    for one in (said, audited, cli("cutoff", CASES / "console-claims" / file)):
        assert "None" not in one.out + one.err


def test_a_known_cutoff_is_counted(cli: Command, tmp_path: Path):
    said = cli("reconstruct", CHAOS, "--out", tmp_path / "w", "--fail-on", "off", "-q")
    assert "377 of the records lie before the cutoff: see `share-state cutoff`" in said.lines
