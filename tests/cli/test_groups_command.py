"""`share-state groups` says what kafka-share-groups.sh said of the same groups, and names can be told by the groups."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.commands import Command, flipped
from tests.fold.groups.described import Scenario
from tests.fold.groups.group_writer import classic_group, share_group, write_group_log
from tests.fold.groups.test_sticky_audit import EXAMPLE, members_of
from tests.profiles import nightly
from tests.truth import DATA, without_topics
from tests.warehouses import WrittenTables

WITH_MEMBERS = Scenario(DATA / "4.0.2/chaos")
EMPTY = Scenario(DATA / "4.3.1/chaos")


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse of 4.0.2/chaos, whose groups have members; not to be written to."""
    from share_state.cli.main import run  # noqa: PLC0415

    lake = tmp_path_factory.mktemp("members") / "lake"
    folder = WITH_MEMBERS.folder
    assert run(["reconstruct", str(folder), "--out", str(lake), "--topics", str(folder / "topics.json")]) == 0
    return lake


def number(cell: str) -> int | None:
    return None if cell == "-" else int(cell)


def test_states_and_numbers_of_members_are_those_of_the_stock_tool(cli: Command, members: Path, chaos: Path):
    for scenario, lake in ((WITH_MEMBERS, members), (EMPTY, chaos)):
        header, *rows = cli("groups", lake).table
        assert header[:3] == ["GROUP", "STATE", "MEMBERS"]
        shown = {row["GROUP"]: [row["STATE"], row["#MEMBERS"]] for row in scenario.rows("state")}
        assert {group: rest[:2] for group, *rest in rows} == shown
        assert shown


def test_members_and_assignments_are_those_of_the_stock_tool(cli: Command, members: Path):
    shown = {
        (row["GROUP"], row["CONSUMER-ID"], row["CLIENT-ID"], row["HOST"], frozenset(row["ASSIGNMENT"].split(",")))
        for row in WITH_MEMBERS.rows("members")
    }
    _, *rows = cli("groups", members, "--members").out.split("\n\n")[1].splitlines()
    cells = [row.split() for row in rows]
    assert {(*row[:4], frozenset(row[6].split(","))) for row in cells} == shown
    assert len(shown) == 4


def test_start_offsets_and_lag_of_a_group_are_those_of_the_stock_tool(cli: Command, chaos: Path):
    shown = {}
    for row in EMPTY.rows("offsets"):
        place = (row["TOPIC"], int(row["PARTITION"]))
        shown.setdefault(row["GROUP"], {})[place] = (number(row["START-OFFSET"]), number(row["LAG"]))
    assert len(shown) == 6
    for group, expected in shown.items():
        found = cli("groups", chaos, "--group", group, "--json").json
        assert {
            (row["topic"], row["partition"]): (row["start_offset"], row["lag"]) for row in found["share_partitions"]
        } == expected
        (row,) = found["groups"]
        assert (row["group_id"], row["share_partitions"]) == (group, len(expected))
        lags = [lag for _, lag in expected.values()]
        assert row["lag"] == (None if None in lags else sum(lags))
        assert {one["status"] for one in found["share_partitions"]} == {"initialized"}


def test_one_view_of_a_group_has_state_lag_and_members(cli: Command, members: Path):
    group = WITH_MEMBERS.rows("members")[0]["GROUP"]
    state, places, who, why = cli("groups", members, "--group", group).out.split("\n\n")
    assert "Kafka before 4.2" in why
    assert state.splitlines()[1].split()[:2] == [group, "Stable"]
    _, *rows = [line.split() for line in places.splitlines()]
    holders = {(row[0], int(row[1])): row[5:] for row in rows}
    for row in WITH_MEMBERS.rows("members"):
        if row["GROUP"] == group:
            assert row["CONSUMER-ID"] in who
            for place in row["ASSIGNMENT"].split(","):
                topic, _, partition = place.rpartition(":")
                assert row["CONSUMER-ID"] in [name.strip(",") for name in holders[topic, int(partition)]]


def test_names_come_from_the_groups_and_lags_are_unknown_without_topics(cli: Command, tmp_path: Path):
    happy = Scenario(DATA / "4.3.1/happy")
    export = without_topics(happy.folder, tmp_path / "export")
    assert cli("reconstruct", export, "--out", tmp_path / "w").code == 0
    _, *rows = cli("show", tmp_path / "w").table
    expected = {
        (row["GROUP"], row["TOPIC"], row["PARTITION"], row["START-OFFSET"], "-") for row in happy.rows("offsets")
    }
    assert {tuple(row[:5]) for row in rows} == expected
    assert expected


def test_an_unknown_group_is_refused_with_the_nearest(cli: Command, chaos: Path):
    for options in ((), ("--json",)):
        said = cli("groups", chaos, "--group", "no\x1b[31mgroup", *options)
        assert (said.code, said.out) == (2, "")
        assert said.err == "share-state: group 'no\\x1b[31mgroup': not found; the nearest of 6 are g5, g4, g3\n"


def test_without_a_group_side_groups_are_those_with_state(cli: Command, tmp_path: Path):
    lake = tmp_path / "lake"
    assert cli("reconstruct", DATA / "4.3.1/chaos/__share_group_state-0", "--out", lake).code == 0
    said = cli("groups", lake)
    first, header, *rows = said.out.split("\n\n")[0].splitlines()
    assert first.startswith("the input has no logs of __consumer_offsets")
    assert header.split()[0] == "GROUP"
    assert {tuple(row.split()[:3]) for row in rows} == {(f"g{number}", "-", "-") for number in range(6)}


def test_no_warehouse_is_one_line(cli: Command, tmp_path: Path):
    said = cli("groups", tmp_path)
    assert said.code == 2
    assert "no warehouse here" in said.err


def test_logs_that_are_named_are_read_in_place_of_those_beside(cli: Command, tmp_path: Path):
    """The group app-a of the named log is at epoch 9; that beside the input at 4."""
    one, other = tmp_path / "one", tmp_path / "other"
    write_group_log(one, share_group("app-a", {}, epoch=9, ready={}), partition=0)
    write_group_log(other, share_group("app-b", {}, epoch=8, ready={}), partition=1)
    happy, lake = DATA / "4.3.1/happy", tmp_path / "lake"
    said = cli(
        "reconstruct", happy, "--out", lake, "--groups", one, "--groups", other, "--group-partitions", 3, "--quiet"
    )
    assert said.code == 0
    rows = WrittenTables(lake).read("share_groups").to_pylist()
    assert {(row["group_id"], row["group_epoch"]) for row in rows} == {("app-a", 9), ("app-b", 8)}
    assert {row["group_partition"] for row in rows} == {0, 1}
    assert "MISPLACED_GROUP" in said.out


@nightly("two audits; test_groups_beside_logs reads the shipped ones")
def test_an_audit_takes_its_group_side_from_the_configuration(cli: Command, tmp_path: Path):
    write_group_log(tmp_path / "one", share_group("app-a", {}, epoch=9, ready={}))
    config = tmp_path / "audit.yaml"
    config.write_text(
        f"sources: [{{path: {DATA / '4.3.1/happy'}}}]\nwarehouse: {tmp_path / 'lake'}\n"
        f"groups: {{paths: [{tmp_path / 'one'}], partitions: 1}}\nrules: {{ORPHAN_SHARE_STATE: error}}\n"
    )
    assert cli("audit", "--config", config, "--quiet").code == 1
    tables = WrittenTables(tmp_path / "lake")
    assert tables.read("share_groups")["group_epoch"].to_pylist() == [9]
    assert dict(tables.run["options"])["groups.partitions"] == "1"
    assert cli("audit", "--config", config, "--quiet", "--set", "fail_on=off").code == 0


@pytest.mark.parametrize("command", ["reconstruct", "audit"])
def test_named_logs_that_are_not_there_are_one_line_and_leave_nothing(cli: Command, tmp_path: Path, command: str):
    said = cli(command, DATA / "4.3.1/happy", "--out", tmp_path / "lake", "--groups", tmp_path / "nowhere")
    assert said.code == 2
    assert said.err == (
        f"share-state: {tmp_path}/nowhere: no such file or folder; give the folder that holds __consumer_offsets-0\n"
    )
    assert not (tmp_path / "lake").exists()


def test_rules_over_groups_are_listed_and_can_be_set(cli: Command, tmp_path: Path):
    listed = {row["rule"] for row in cli("rules", "--json").json}
    assert {"ORPHAN_SHARE_STATE", "MISPLACED_GROUP", "GROUP_OVER_CAP", "STALE_CLAIM", "DOUBLE_ASSIGNED"} <= listed
    said = cli("reconstruct", DATA / "4.3.1/happy", "--out", tmp_path / "w", "--rule", "STALE_CLAIM=never")
    assert "give one of error, warning, info, off" in said.err


@pytest.mark.parametrize("release", ["4.2.1", "4.3.1", "4.4.0"])
def test_the_epochs_of_a_group_whose_offsets_were_only_altered_are_kafka_s(cli: Command, release: str):
    scenario = DATA / release / "chaos"
    described = json.loads((scenario / "describe.json").read_text())["shareGroups"]
    (kafka,) = [one for one in described if one["group"] == "g5"]
    (row,) = cli("groups", scenario, "--group", "g5", "--json").json["groups"]
    assert (row["group_epoch"], row["assignment_epoch"]) == (kafka["groupEpoch"], kafka["targetAssignmentEpoch"])


@pytest.fixture
def claimed(tmp_path: Path) -> Path:
    """An export of `__consumer_offsets` alone: the worked example of KIP-341's claims, in two generations."""
    members = members_of(EXAMPLE)
    records = [classic_group("cg", generation, members) for generation in (7, 8)]
    return write_group_log(tmp_path / "export", records).parent


def test_claims_are_shown_of_an_export_of_the_groups_alone(cli: Command, claimed: Path):
    said = cli("groups", claimed, "--claims")
    assert (said.code, said.err) == (0, "")
    assert [row[1:6] for row in said.table[1:]] == [
        ["8", "t1-0", "c1", "7", "UNCONTESTED"],
        ["8", "t1-1", "c1", "7", "WON_BY_GENERATION"],
        ["8", "t2-0", "-", "7", "INVALIDATED_SAME_GENERATION"],
        ["8", "t2-1", "c2", "5", "STALE_UNCONTESTED"],
        ["8", "t2-2", "c3", "7", "UNCONTESTED"],
    ]
    assert "1 earlier generation with --group GROUP or --json" in said.out
    assert "warning: DOUBLE_CLAIM, group cg, generation 8: c1, c3 claim t2-0 as of generation 7" in said.out
    assert "generation 7: " not in said.out
    of_group = cli("groups", claimed, "--claims", "--group", "cg")
    assert len(of_group.table) == 1 + 2 * 5
    assert "generation 7: c1 names generation 7, but the group begins 7" in of_group.out


def test_claims_of_a_damaged_record_are_not_passed_over_in_silence(cli: Command, claimed: Path):
    (segment,) = claimed.rglob("*.log")
    segment.write_bytes(flipped(segment.read_bytes(), batch=-1))
    said = cli("groups", claimed, "--claims")
    assert {row[1] for row in said.table[1:]} == {"7"}
    assert "error: CRC_MISMATCH, record 1: " in said.out
    unknown = cli("groups", claimed, "--claims", "--group", "x")
    assert "group x: no member claims a partition in the records that could be read; there are cg" in unknown.err


def test_claims_of_a_warehouse_are_those_of_its_export(cli: Command, claimed: Path, tmp_path: Path):
    for log in (DATA / "4.3.1/happy").glob("__share_group_state-*"):
        shutil.copytree(log, claimed / log.name)
    assert cli("audit", claimed, "--out", tmp_path / "lake").code in (0, 1)
    alone, kept = (cli("groups", place, "--claims", "--json").json for place in (claimed, tmp_path / "lake"))
    assert kept["owners"] == alone["owners"]
    assert kept["claims"] == alone["claims"]
    messages = [{(row["rule"], row["message"]) for row in found["findings"]} for found in (alone, kept)]
    assert messages[0] == messages[1] != set()


@pytest.mark.parametrize(
    ("place", "group", "error"),
    [
        ("{claimed}", "x", "group x: no member claims a partition; there are cg"),
        ("/no/such", "cg", "/no/such: no such file or folder"),
        ("{state}", "cg", "a log of topic __share_group_state, not of __consumer_offsets"),
        ("kafka://127.0.0.1:1", "cg", "claims are read from a warehouse or an export"),
    ],
)
def test_claims_that_are_not_there_are_one_line(cli: Command, claimed: Path, place: str, group: str, error: str):
    given = place.format(claimed=claimed, state=DATA / "4.3.1/chaos/__share_group_state-0")
    said = cli("groups", given, "--claims", "--group", group)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert error in said.err
