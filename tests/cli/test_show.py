"""`show`: what kafka-share-groups.sh says of the same cluster, and what is in flight."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from share_state.cli.main import run
from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import fold_log
from share_state.fold.states import compute_lags
from share_state.sources.discovery import find_logs
from share_state.sources.topics import read_topics
from tests.cli.commands import Command
from tests.kafka.batches import UPDATE, Batch, Record, key, log_of, snapshot, update
from tests.truth import DATA

DESCRIBED = sorted(
    path.parent
    for path in DATA.glob("4.[2-9]*/*/kafka-share-groups-describe-offsets.txt")
    if "START-OFFSET" in path.read_text()
)
"""Scenarios of releases that compute the lag from the state."""


def _kafka_s_own(scenario: Path) -> dict[tuple[str, ...], list[str]]:
    """(group, topic, partition) -> the cells of kafka-share-groups.sh --describe --offsets."""
    rows = [line.split() for line in (scenario / "kafka-share-groups-describe-offsets.txt").read_text().splitlines()]
    return {tuple(row[:3]): row[3:] for row in rows if len(row) == 5 and row[0] != "GROUP"}


def _shown(table: list[list[str]]) -> dict[tuple[str, ...], list[str]]:
    header, *rows = table
    assert header[:5] == ["GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"]
    shown = {tuple(row[:3]): row[3:5] for row in rows}
    assert len(shown) == len(rows)
    return shown


def _is_what_kafka_says(shown: dict[tuple[str, ...], list[str]], scenario: Path) -> None:
    described = _kafka_s_own(scenario)
    assert described
    groups, topics = {row[0] for row in described}, {row[1] for row in described}
    # The tool lists groups and topics that exist; the state of deleted ones stays in the log.
    assert {row: cells for row, cells in shown.items() if row[0] in groups and row[1] in topics} == described


def test_start_offset_and_lag_are_those_of_kafka_s_own_tool(cli: Command, chaos: Path):
    _is_what_kafka_says(_shown(cli("show", chaos).table), DATA / "4.3.1/chaos")


def test_a_dead_letter_queue_s_waiting_records_lag_as_kafka_s_own_tool_says(cli: Command, tmp_path: Path):
    scenario = DATA / "4.4.0/dlq"
    done = cli("reconstruct", scenario, "--out", tmp_path / "w", "--topics", scenario / "topics.json")
    assert (done.code, done.err) == (0, "")
    _is_what_kafka_says(_shown(cli("show", tmp_path / "w").table), scenario)


@pytest.mark.parametrize("scenario", DESCRIBED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_lag_of_every_release_is_that_of_kafka_s_own_tool(scenario: Path):
    topics = read_topics(str(scenario / "topics.json"))
    states = pa.concat_tables(
        fold_log(log, options=FoldOptions(topics=topics)).states for log in find_logs([str(scenario)])
    )
    lag = compute_lags(*(states[name] for name in ("topic_end_offset", "start_offset", "delivery_complete_count")))
    rows = states.append_column("lag", lag).to_pylist()
    shown = {
        (row["group_id"], row["topic"] or row["topic_id"], str(row["partition"])): [
            "-" if row["start_offset"] < 0 else str(row["start_offset"]),
            "-" if row["lag"] is None else str(row["lag"]),
        ]
        for row in rows
    }
    _is_what_kafka_says(shown, scenario)


def test_json_says_what_the_table_says(cli: Command, chaos: Path):
    shown, found = _shown(cli("show", chaos).table), cli("show", chaos, "--json").json
    assert found["run"]["command"] == "reconstruct"
    assert {
        (row["group_id"], row["topic"] or row["topic_id"], str(row["partition"])): [
            "-" if row["start_offset"] is None else str(row["start_offset"]),
            "-" if row["lag"] is None else str(row["lag"]),
        ]
        for row in found["share_partitions"]
    } == shown


def test_json_has_one_shape_of_the_run_in_all_commands(cli: Command, tmp_path: Path):
    made = cli("reconstruct", DATA / "4.3.1/happy", "--out", tmp_path / "w", "--json").json["run"]
    assert made["command"] == "reconstruct"
    assert made["table_versions"]["share_partition_state"] == 0
    assert all(cli(name, tmp_path / "w", "--json").json["run"] == made for name in ("show", "groups"))


def test_json_hints_where_an_uninitialised_share_partition_will_start(cli: Command, chaos: Path):
    """K-47: at the topic's end offset, by the default of share.auto.offset.reset."""
    rows = cli("show", chaos, "--json").json["share_partitions"]
    assert all(row["spso_hint"] is None for row in rows if row["start_offset"] is not None)
    hints = [(row["spso_hint"], row["topic_end_offset"]) for row in rows if row["start_offset"] is None]
    assert all(hint == end for hint, end in hints)
    assert any(hint is not None for hint, _ in hints)


def test_verbose_adds_the_leader_epoch(cli: Command, chaos: Path):
    header, *rows = cli("show", chaos, "--epochs").table
    assert header[:6] == ["GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "START-OFFSET", "LAG"]
    states = cli("show", chaos, "--json").json["share_partitions"]
    assert [row[3] for row in rows] == [
        "-" if row["start_offset"] is None else str(row["leader_epoch"]) for row in states
    ]


def test_a_start_that_is_not_initialised_is_a_hyphen(cli: Command, chaos: Path):
    rows = [row for row in cli("show", chaos).table[1:] if row[3] == "-"]
    assert rows
    assert all(row[3:6] == ["-", "-", "-"] for row in rows)


def test_group_topic_and_partition_choose_rows(cli: Command, chaos: Path):
    everything = _shown(cli("show", chaos).table)
    for options, place, value in (
        (["--group", "g1"], 0, "g1"),
        (["--topic", "t1"], 1, "t1"),
        (["--partition", 2], 2, "2"),
    ):
        chosen = _shown(cli("show", chaos, *options).table)
        assert chosen == {row: cells for row, cells in everything.items() if row[place] == value}
        assert chosen
    (state, *_) = cli("show", chaos, "--topic", "t1", "--json").json["share_partitions"]
    assert _shown(cli("show", chaos, "--topic", state["topic_id"]).table) == {
        row: cells for row, cells in everything.items() if row[1] == "t1"
    }


@pytest.mark.parametrize(
    ("chosen", "error"),
    [
        (["--group", "g11"], "group g11: not found; the nearest of 6 are g1, g5, g4"),
        (["--topic", "T1", "--group", "g1"], "topic T1 of group g1: not found; there are t0, t1, t2"),
        (["--topic", "t1", "--partition", 40], "partition 40 of topic t1: not found; the nearest of 4 are 3, 2, 1"),
        (["--group", "\x1b[31m"], "group '\\x1b[31m': not found; the nearest of 6 are g3, g1, g5"),
    ],
)
def test_an_unknown_share_partition_is_refused_with_the_nearest(
    cli: Command, chaos: Path, chosen: list[object], error: str
):
    for command in (("show", chaos), ("show", chaos, "--json"), ("diff", chaos, chaos)):
        said = cli(*command, *chosen)
        assert (said.code, said.out, said.err) == (2, "", f"share-state: {error}\n")


def test_one_share_partition_is_shown_with_its_ranges(cli: Command, chaos: Path):
    one = ["--group", "g3", "--topic", "t0", "--partition", "3"]
    found = cli("show", chaos, *one, "--json").json
    (state,) = found["share_partitions"]
    header, *rows = [line.split() for line in cli("show", chaos, *one).out.split("\n\n")[1].splitlines()]
    assert header == ["FIRST", "LAST", "RECORDS", "STATE", "DELIVERY-COUNT"]
    assert (int(rows[0][0]), int(rows[-1][1])) == (state["start_offset"], state["end_offset"] - 1)
    assert [(int(row[0]), int(row[1])) for row in rows] == [
        (row["first_offset"], row["last_offset"]) for row in found["in_flight"]
    ]


def test_the_ranges_of_every_share_partition_are_shown_where_asked_for(cli: Command, chaos: Path):
    ranges = cli("show", chaos, "--ranges").out.split("\n\n")[1].splitlines()
    assert ranges[0].split()[:5] == ["GROUP", "TOPIC", "PARTITION", "FIRST", "LAST"]
    assert len(ranges) - 1 == len(cli("show", chaos, "--json").json["in_flight"])


def test_without_topics_names_and_lags_are_unknown(cli: Command, tmp_path: Path):
    scenario = DATA / "4.3.1/happy"
    for log in scenario.glob("__share_group_state-*"):
        shutil.copytree(log, tmp_path / "logs" / log.name)
    cli("reconstruct", tmp_path / "logs", "--out", tmp_path / "w")
    shown = _shown(cli("show", tmp_path / "w").table)
    described = _kafka_s_own(scenario)
    names = {topic["topicId"]: topic["name"] for topic in json.loads((scenario / "topics.json").read_text())}
    assert {(group, names[topic], partition): cells for (group, topic, partition), cells in shown.items()} == {
        row: [start, "-"] for row, (start, _) in described.items()
    }


GROUPS = ["a:star:b", "[red]x[/red]", "new\nline", "\x1b[31mred", "tab\tbed", "é😀", "", "\N{RIGHT-TO-LEFT MARK}"]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse of odd names, of a state with a gap, and of one that is suspect."""
    folder = tmp_path_factory.mktemp("odd")
    records = [
        *(Record(key(group=group), snapshot()) for group in GROUPS),
        Record(key(group="gap"), snapshot([(0, 4, 2, 1)])),
        Record(key(UPDATE, group="gap"), update([(8, 8, 0, 2)])),
        Record(key(group="suspect"), snapshot()),
        Record(key(UPDATE, group="suspect"), None),
    ]
    log_of(folder, Batch(records).written())
    assert run(["reconstruct", str(folder), "--out", str(folder / "w")]) == 1
    return folder / "w"


def test_a_group_of_any_name_keeps_its_line(cli: Command, odd: Path):
    said = cli("show", odd)
    assert len(said.out.split("\n\n")[0].splitlines()) == 1 + len(GROUPS) + 2
    assert all(character.isprintable() for line in said.lines for character in line)
    for shown in ("a:star:b", "[red]x[/red]", "new\\nline", "\\x1b[31mred"):
        assert any(line.startswith(f"{shown} ") for line in said.lines)
    found = cli("show", odd, "--json").json["share_partitions"]
    assert {row["group_id"] for row in found} == {*GROUPS, "gap", "suspect"}


def test_a_suspect_state_says_so(cli: Command, odd: Path):
    assert [line.split()[0] for line in cli("show", odd).lines if "(suspect, see findings)" in line] == ["suspect"]


def test_a_gap_is_shown_as_one(cli: Command, odd: Path):
    said = cli("show", odd, "--group", "gap")
    assert "5 acknowledged, 1 available, 3 gap" in said.out
    assert "AVAILABLE (gap)" in said.out


def test_a_moved_warehouse_is_still_one(cli: Command, chaos: Path, tmp_path: Path):
    shutil.copytree(chaos, tmp_path / "elsewhere")
    assert cli("show", tmp_path / "elsewhere").out == cli("show", chaos).out


def test_the_largest_come_first_and_totals_are_of_all(cli: Command, chaos: Path):
    whole = cli("show", chaos, "--json").json
    lags = sorted((row["lag"] for row in whole["share_partitions"] if row["lag"] is not None), reverse=True)
    totals = whole["totals"]
    assert totals == {
        "share_partitions": len(whole["share_partitions"]),
        "known_lag": sum(lags),
        "unknown_lags": len(whole["share_partitions"]) - len(lags),
        "in_flight": sum(row["record_count"] for row in whole["in_flight"]),
    }
    printed = cli("show", chaos, "--sort", "lag", "--top", 5)
    assert [int(row[4]) for row in printed.table[1:]] == lags[:5]
    said = f"5 of 55 share-partitions shown; in all: lag at least {sum(lags):,}, {totals['in_flight']:,} in flight"
    assert said in printed.lines
    listed = cli("show", chaos, "--sort", "in-flight", "--top", 2, "--json").json
    keys = [(row["group_id"], row["topic"], row["partition"]) for row in listed["share_partitions"]]
    of_ranges = [(row["group_id"], row["topic"], row["partition"]) for row in listed["in_flight"]]
    assert list(dict.fromkeys(of_ranges)) == keys
    assert listed["totals"] == totals
    unknown_last = cli("show", chaos, "--sort", "lag").table
    assert [row[4] for row in unknown_last[-totals["unknown_lags"] :]] == ["-"] * totals["unknown_lags"]
