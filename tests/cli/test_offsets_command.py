"""`share-state offsets`: start offsets at any moment as the file that Kafka's tool takes, and what a restore does."""

import csv
import subprocess
from pathlib import Path

import pytest

from share_state.delta.committed import CommittedTables
from share_state.repairs.commands import KafkaTools
from tests.cli.commands import Command, flipped
from tests.kafka.batches import NOW, Batch, Record
from tests.log_writer import Key, snapshot, update, write_log_folder
from tests.profiles import nightly
from tests.truth import DATA

CHAOS = DATA / "4.4.0/chaos"
TOPICS = ("--topics", CHAOS / "topics.json")
TOPIC_ID = "AAAAAAAAAAEAAAAAAAAAAg"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from share_state.cli.main import run  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("lake") / "lake"
    assert run(["reconstruct", str(CHAOS), *map(str, TOPICS), "--out", str(folder), "--quiet"]) == 0
    return folder


def _write(folder: Path, *records: Record) -> Path:
    """A log of one share-partition with a record a second, and a topics file."""
    stamped = [Batch([one], base_timestamp=NOW + 1000 * number) for number, one in enumerate(records)]
    write_log_folder(folder, 0, stamped)
    (folder / "topics.json").write_text(f'{{"{TOPIC_ID}": "orders"}}')
    return folder


KEY: Key = ("app", TOPIC_ID, 3)


def test_the_file_holds_where_leaders_start_and_says_what_a_restore_delivers_again(
    cli: Command, tmp_path: Path, lake: Path
):
    of_input = cli("offsets", CHAOS, *TOPICS, "--group", "g0", "--out", tmp_path / "o.csv", "--json").json
    states = [row for row in CommittedTables(str(lake)).read("share_partition_state").to_pylist()
              if row["group_id"] == "g0"]  # fmt: skip
    expected = {(row["topic"], row["partition"]): row["effective_start_offset"] for row in states}
    with (tmp_path / "o.csv").open(newline="") as file:
        assert {(topic, int(partition)): int(offset) for topic, partition, offset in csv.reader(file)} == expected
    finished: dict[tuple[str, int], int] = {}
    for row in CommittedTables(str(lake)).read("in_flight").to_pylist():
        place = (row["topic"], row["partition"])
        if row["group_id"] == "g0" and row["terminal"]:
            first = max(row["first_offset"], expected[place])
            finished[place] = finished.get(place, 0) + max(0, row["last_offset"] - first + 1)
    again = {(one["topic"], one["partition"]): sum(last - first + 1 for first, last in one["delivered_again"])
             for one in of_input["offsets"]}  # fmt: skip
    assert again == {place: finished.get(place, 0) for place in expected}
    assert sum(again.values())
    of_tables = cli("offsets", lake, "--group", "g0", "--out", tmp_path / "p.csv", "--json").json
    assert of_tables["offsets"] == of_input["offsets"]


def test_several_groups_have_their_name_in_each_line(cli: Command, tmp_path: Path, lake: Path):
    said = cli("offsets", lake, "--group", "g0", "--group", "g1", "--out", tmp_path / "o.csv")
    assert said.code == 0
    groups = {line.split(",")[0] for line in (tmp_path / "o.csv").read_text().splitlines()}
    assert groups == {"g0", "g1"}
    assert "--from-file=" in said.out
    assert "--group=g1 --execute" in said.out


def test_an_earlier_moment_delivers_again_what_was_finished_since(cli: Command, tmp_path: Path):
    begun = snapshot(KEY, start_offset=10)
    folder = _write(
        tmp_path / "log", begun, update(KEY, [(12, 14, 2, 1)], start_offset=10), update(KEY, start_offset=15)
    )
    words = ("offsets", folder, "--topics", folder / "topics.json", "--out", tmp_path / "o.csv")
    now = cli(*words)
    assert (tmp_path / "o.csv").read_text() == "orders,3,15\n"
    assert "Nothing that is finished would be delivered again." in now.out
    earlier = cli(*words, "--as-of-offset", "0=2")
    assert (tmp_path / "o.csv").read_text() == "orders,3,10\n"
    assert "app orders-3: the restore delivers again 5 offsets: 10-14" in earlier.out
    assert "1 start offset, as of 20" in earlier.out


def test_a_moment_before_a_reset_names_what_a_restore_skips(cli: Command, tmp_path: Path):
    reset = snapshot(KEY, start_offset=5, snapshot_epoch=1, state_epoch=1)
    folder = _write(
        tmp_path / "log", snapshot(KEY, start_offset=10), reset, update(KEY, [(5, 6, 0, 1)], snapshot_epoch=1)
    )
    said = cli(
        "offsets", folder, "--topics", folder / "topics.json", "--out", tmp_path / "o.csv", "--as-of-offset", "0=1"
    )
    assert "app orders-3: the restore skips 5 offsets: 5-9" in said.out


@nightly("two runs")
def test_a_state_that_cannot_be_trusted_is_left_out_by_name(cli: Command, tmp_path: Path):
    other: Key = ("well", TOPIC_ID, 0)
    records = [snapshot(KEY), update(KEY, [(0, 4, 2, 1)]), snapshot(other, start_offset=7)]
    folder = _write(tmp_path / "log", *records)
    (path,) = folder.glob("*/*.log")
    path.write_bytes(flipped(path.read_bytes(), batch=1))
    out = tmp_path / "o.csv"
    words = ("offsets", folder, "--topics", folder / "topics.json", "--out", out)
    said = cli(*words)
    assert said.code == 1
    assert out.read_text() == "orders,0,7\n"
    assert "left out: app orders-3: its state cannot be trusted" in said.out
    refused = cli(*words, "--group", "app")
    assert (refused.code, "no start offset can be written: app orders-3: its state" in refused.err) == (2, True)


def test_what_the_file_cannot_name_is_left_out_by_name(cli: Command, tmp_path: Path):
    lines: Key = ("two\nlines", TOPIC_ID, 0)
    unnamed: Key = ("app", "AAAAAAAAAAEAAAAAAAAAAw", 1)
    started = snapshot(("app", TOPIC_ID, 9), start_offset=-1)
    folder = _write(tmp_path / "log", snapshot(KEY), snapshot(lines), snapshot(unnamed), started)
    said = cli("offsets", folder, "--topics", folder / "topics.json", "--out", tmp_path / "o.csv")
    assert said.code == 1
    assert (tmp_path / "o.csv").read_text() == "orders,3,0\n"
    for text in ("the group id cannot be written in a line", "the topic's name is unknown", "no start offset yet"):
        assert text in said.out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--out", "o.txt"), "give a name that ends in .csv"),
        (("--out", "o.csv", "--group", "g99"), "group g99: not found"),
    ],
)
def test_unusable_calls_are_refused(cli: Command, lake: Path, words: tuple[str, ...], error: str):
    said = cli("offsets", lake, *words)
    assert (said.code, error in said.err) == (2, True)
    assert not Path("o.csv").exists()


@pytest.mark.parametrize(("shown", "code"), [(5, 0), (6, 1)])
@pytest.mark.parametrize("has_group", [False, True])
def test_the_check_of_a_restore_compares_every_line_of_the_group(
    tmp_path: Path, has_group: bool, shown: int, code: int
):
    """The tool is a script that prints what `--describe --offsets` of 4.4.0 does."""
    lines = [("a,b", "t", 0, 4), ("a,b", "t", 1, 5)] + [("other", "t", 1, 9)] * has_group
    with (tmp_path / "x=1.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(line if has_group else line[1:] for line in lines)
    tool = tmp_path / "kafka-share-groups.sh"
    tool.write_text(
        f"#!/bin/sh\nprintf 'GROUP TOPIC PARTITION START-OFFSET LAG\\n\\na,b t 0 4 0\\na,b t 1 {shown} 0\\n'\n"
    )
    tool.chmod(0o755)
    command = KafkaTools("b:9092").reset_from_file("a,b", "x=1.csv", has_group=has_group)
    done = subprocess.run(
        ["bash", "-euc", command], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == code
    assert done.stderr == ("" if code == 0 else "t 1: the start offset is 6, not 5\n")


@nightly("an audit")
def test_a_warehouse_gives_another_moment_of_its_logs(cli: Command, tmp_path: Path, lake: Path):
    earlier = ("--group", "g0", "--as-of-offset", "0=400", "--json")
    of_logs = cli("offsets", CHAOS, *TOPICS, *earlier, "--out", tmp_path / "logs.csv").json
    of_lake = cli("offsets", lake, *earlier, "--out", tmp_path / "lake.csv").json
    assert of_lake["offsets"] == of_logs["offsets"]
    now = cli("offsets", lake, "--group", "g0", "--json", "--out", tmp_path / "now.csv").json
    assert now["offsets"] != of_lake["offsets"]
