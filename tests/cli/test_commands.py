"""The commands on real brokers' logs, from the arguments to what is printed, in one Spark session."""

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from share_state.fold.log import fold_log
from share_state.wire.log_folder import find_logs
from tests.cli.commands import DATA, Said, flipped, say

CHAOS = DATA / "4.3.1" / "chaos"
DESCRIBED = ["4.2.1/happy", "4.2.1/chaos", "4.3.1/happy", "4.3.1/chaos", "4.4.0/chaos"]

pytestmark = pytest.mark.usefixtures("spark")


def _reconstructed(capfd, scenario: Path, out: Path, *options: object) -> Said:
    said = say(capfd, "reconstruct", scenario, "--out", out, "--json", *options)
    assert said.code == 0, said.err
    return said


def _described_offsets(scenario: Path) -> list[tuple[str, ...]]:
    text = (scenario / "kafka-share-groups-describe-offsets.txt").read_text()
    rows = [tuple(line.split()) for line in text.splitlines() if line.strip()]
    return sorted(row for row in rows if len(row) == 5 and row[0] != "GROUP")


@pytest.mark.parametrize("scenario", DESCRIBED)
def test_show_prints_the_offsets_that_kafka_s_own_tool_printed(capfd, tmp_path: Path, scenario: str):
    folder = DATA / scenario
    _reconstructed(capfd, folder, tmp_path / "w", "--topics", folder / "topics.json")
    shown = say(capfd, "show", tmp_path / "w")
    header, *rows = (line.split() for line in shown.lines)
    assert header[:5] == ["GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"]
    found = sorted(tuple(row[:5]) for row in rows)
    described = _described_offsets(folder)
    assert described
    # The tool lists groups that exist; the state of deleted topics and of groups it cannot name stays in the log.
    groups = {row[0] for row in described}
    topics = {row[1] for row in described}
    assert [row for row in found if row[0] in groups and row[1] in topics] == described


def test_show_of_one_share_partition_prints_its_ranges(capfd, tmp_path: Path):
    _reconstructed(capfd, CHAOS, tmp_path / "w", "--topics", CHAOS / "topics.json")
    one = ["--group", "g3", "--topic", "t0", "--partition", "3"]
    shown = say(capfd, "show", tmp_path / "w", *one)
    found = say(capfd, "show", tmp_path / "w", *one, "--json").json
    (state,) = found["share_partitions"]
    ranges = found["in_flight"]
    assert ranges[0]["first_offset"] == state["start_offset"]
    assert ranges[-1]["last_offset"] == state["end_offset"] - 1
    printed = [line.split() for line in shown.lines[4:]]
    assert [(int(line[0]), int(line[1])) for line in printed] == [(r["first_offset"], r["last_offset"]) for r in ranges]


def test_what_is_not_known_is_a_hyphen(capfd, tmp_path: Path):
    _reconstructed(capfd, CHAOS, tmp_path / "w")
    shown = say(capfd, "show", tmp_path / "w", "--verbose")
    lags = [line.split()[5] for line in shown.lines[1:]]
    assert set(lags) == {"-"}


def test_the_same_run_again_leaves_the_same_tables(capfd, tmp_path: Path):
    first = _reconstructed(capfd, CHAOS, tmp_path / "w").json
    before = _contents(tmp_path / "w")
    again = _reconstructed(capfd, CHAOS, tmp_path / "w").json
    assert again["run_id"] == first["run_id"]
    after = _contents(tmp_path / "w")
    assert after == before
    assert len(after["runs"]) == 1


def test_other_input_is_another_run(capfd, tmp_path: Path):
    first = _reconstructed(capfd, CHAOS, tmp_path / "w").json
    other = _reconstructed(capfd, CHAOS, tmp_path / "w", "--as-of-offset", "1=300").json
    assert other["run_id"] != first["run_id"]
    assert len(_contents(tmp_path / "w")["runs"]) == 2
    assert say(capfd, "show", tmp_path / "w", "--json").json["run"]["run_id"] == other["run_id"]


def _contents(warehouse: Path) -> dict[str, list[str]]:
    """The rows of every table, without the times of the run."""
    contents = {}
    for table in ("share_partition_state", "in_flight", "cutoff", "findings", "runs"):
        frame = DeltaTable(str(warehouse / table)).to_pandas()
        frame = frame.drop(columns=[name for name in ("started", "finished", "table_versions") if name in frame])
        contents[table] = sorted(frame.to_json(orient="records", lines=True, default_handler=str).splitlines())
    return contents


def test_as_of_is_the_state_before_that_offset(capfd, tmp_path: Path):
    folder = DATA / "4.3.1" / "fuzz"
    truth = [json.loads(line) for line in (folder / "asof-2-oracle.jsonl").read_text().splitlines()]
    ends = {
        row["statePartition"]: row["nextOffset"] for row in json.loads((folder / "asof-2-redundant.json").read_text())
    }
    cuts = [option for number, end in ends.items() for option in ("--as-of-offset", f"{number}={end}")]
    _reconstructed(capfd, folder, tmp_path / "w", *cuts)
    shown = say(capfd, "show", tmp_path / "w", "--json").json["share_partitions"]
    found = {(row["group_id"], row["topic_id"], row["partition"]): row["start_offset"] for row in shown}
    assert found == {(row["group"], row["topicId"], row["partition"]): row["startOffset"] for row in truth}


def test_as_of_time_leaves_out_what_came_later(capfd, tmp_path: Path):
    said = _reconstructed(capfd, CHAOS, tmp_path / "w", "--as-of-time", "2001-01-01T00:00:00Z").json
    assert said["records"] == 0
    assert said["share_partitions"] == 0


def test_the_cutoff_is_proved_and_written_for_delete_records(capfd, tmp_path: Path):
    target = tmp_path / "offsets.json"
    said = say(capfd, "cutoff", CHAOS, "--verify", "--delete-records", target, "--json")
    assert said.code == 0
    assert said.json["differing"] == []
    assert said.json["compared"] == 55
    written = json.loads(target.read_text())
    redundant = {row["statePartition"]: row for row in json.loads((CHAOS / "redundant.json").read_text())}
    assert written == {
        "version": 1,
        "partitions": [
            {"topic": "__share_group_state", "partition": number, "offset": redundant[number]["lastRedundantOffset"]}
            for number in sorted(redundant)
        ],
    }
    assert "proved" in say(capfd, "cutoff", CHAOS, "--verify").out


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A copy of one log partition with a byte of its last batch but one changed."""
    folder = tmp_path / "__share_group_state-0"
    folder.mkdir()
    source = DATA / "4.3.1" / "happy" / "__share_group_state-0" / f"{0:020}.log"
    (folder / source.name).write_bytes(flipped(source.read_bytes(), batch=-2))
    return folder


def test_a_damaged_batch_is_found_and_nothing_is_called_safe(capfd, tmp_path: Path, damaged: Path):
    said = say(capfd, "reconstruct", damaged, "--out", tmp_path / "w", "--json")
    assert said.code == 1
    assert {(found["severity"], found["rule"]) for found in said.json["findings"]} >= {("error", "CRC_MISMATCH")}
    assert [row["safe"] for row in said.json["cutoff"]] == [False]
    target = tmp_path / "offsets.json"
    assert say(capfd, "cutoff", damaged, "--delete-records", target).code == 1
    assert json.loads(target.read_text())["partitions"] == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--fail-on", "off"], 0),
        (["--rule", "CRC_MISMATCH=info"], 0),
        (["--rule", "CRC_MISMATCH=info", "--fail-on", "warning"], 1),
        (["--rule", "CRC_MISMATCH=off", "--rule", "STATE_SUSPECT=off", "--fail-on", "info"], 0),
    ],
)
def test_the_exit_code_follows_severities(capfd, tmp_path: Path, damaged: Path, options: list[str], code: int):
    assert say(capfd, "reconstruct", damaged, "--out", tmp_path / "w", *options).code == code


def test_decode_prints_every_record_in_log_order(capfd):
    said = say(capfd, "decode", DATA / "4.3.1" / "happy" / "__share_group_state-1")
    records = [json.loads(line) for line in said.lines]
    assert [record["offset"] for record in records] == list(range(35))
    assert records[0]["kind"] == "snapshot"
    assert {record["layout"] for record in records} == {"4.1+"}


def test_decode_writes_a_table(capfd, tmp_path: Path):
    said = say(capfd, "decode", CHAOS, "--out", tmp_path / "decoded", "--json")
    assert said.json == {"records": 2222, "table": str(tmp_path / "decoded")}
    assert DeltaTable(str(tmp_path / "decoded")).to_pandas()["offset"].count() == 2222


def test_a_folder_a_glob_and_a_list_are_one_input(capfd, tmp_path: Path):
    folder = _reconstructed(capfd, CHAOS, tmp_path / "a").json
    glob = _reconstructed(capfd, CHAOS / "__share_group_state-*", tmp_path / "b").json
    each = sorted(CHAOS.glob("__share_group_state-*"))
    listed = say(capfd, "reconstruct", *each, "--out", tmp_path / "c", "--json").json
    assert folder["cutoff"] == glob["cutoff"] == listed["cutoff"]
    tables = [_contents(tmp_path / name)["share_partition_state"] for name in "abc"]
    assert tables[0] == tables[1] == tables[2]


def test_a_single_file_is_an_input(capfd, tmp_path: Path):
    (segment,) = sorted((CHAOS / "__share_group_state-2").glob("*.log"))
    said = _reconstructed(capfd, segment, tmp_path / "w").json
    (log,) = find_logs([str(segment)])
    assert said["share_partitions"] == fold_log(log).states.num_rows


def test_rules_are_listed_with_their_source(capfd):
    listed = {rule["rule"]: rule for rule in say(capfd, "rules", "--json").json}
    assert listed["CRC_MISMATCH"]["severity"] == "error"
    assert all(rule["statement"] and rule["source"] for rule in listed.values())
    assert "INVERTED_RANGE" in say(capfd, "rules").out
