"""An input that begins after a share-partition's snapshot: no command says that something never was."""

import json
import shutil
from pathlib import Path

import pytest

from share_state.delta.committed import CommittedTables
from tests.cli.commands import Command
from tests.kafka.batches import Batch, consecutive, in_bytes, log_of
from tests.profiles import nightly
from tests.rules.histories import AVAILABLE, snapshot, update
from tests.sources.formats.tables import found, table_of, write
from tests.truth import DATA
from tests.warehouses import WrittenTables

CASE = DATA / "cases/partial-export"
LATE = CASE / "late.parquet"
TOPICS = ("--topics", DATA / "4.3.1/chaos/topics.json")
ONE = ("--group", "g4", "--topic", "t2", "--partition", "3")
UNKNOWN = "the log's beginning is not in the input"
BEGINS_AT_2 = (
    f"start of __share_group_state-0: {UNKNOWN}: reading began at offset 2, and nothing shows that the broker's"
)


@pytest.fixture
def warehouse(cli: Command, tmp_path: Path) -> Path:
    """What reconstruct makes of the export."""
    said = cli("reconstruct", LATE, *TOPICS, "--out", tmp_path / "lake", "--timeline")
    assert said.code == 0
    assert f"start of __share_group_state-0, __share_group_state-1, __share_group_state-2: {UNKNOWN}" in said.err
    return tmp_path / "lake"


def test_explain_does_not_say_that_no_delivery_is_recorded(cli: Command):
    said = cli("explain", LATE, *TOPICS, *ONE, "--offset", "10")
    assert "no delivery is recorded" not in said.out
    assert "it is not known whether it was delivered" in said.out
    assert said.out.rstrip().endswith(f"not to be trusted, because {UNKNOWN}.")
    assert cli("explain", LATE, *TOPICS, *ONE, "--offset", "10", "--json").json["beginning_missing"] is True


def test_explain_says_where_earlier_records_may_be(cli: Command, tmp_path: Path):
    rows = cli("reconstruct", LATE, *TOPICS, "--out", tmp_path / "lake")
    assert rows.code == 0
    states = WrittenTables(tmp_path / "lake").read("share_partition_state").to_pylist()
    (moved, *_) = [row for row in states if not row["suspect"] and row["start_offset"] > 300]
    topic = moved["topic"] or moved["topic_id"]
    key = ("--group", moved["group_id"], "--topic", topic, "--partition", moved["partition"])
    said = cli("explain", LATE, *TOPICS, *key, "--offset", "0")
    assert "below SPSO" in said.out
    assert UNKNOWN in said.out
    assert "the log holds nothing older" not in said.out


def test_show_does_not_say_that_nothing_is_in_flight(cli: Command, warehouse: Path):
    said = cli("show", warehouse, *ONE)
    assert "nothing in flight" not in said.out
    assert f"(suspect: {UNKNOWN})" in said.out
    assert f"it is not known what is in flight: {UNKNOWN}" in said.out
    # Not 0, which the export does not show.
    assert said.table[1][5] == "-"


@nightly("three runs")
def test_diff_says_of_which_share_partitions_it_knows_too_little(cli: Command):
    later = ("--as-of-time", "2026-11-21T03:07:20Z")
    said = cli("diff", LATE, *TOPICS, *later)
    assert "not known what was in flight of " in said.out
    assert UNKNOWN in said.out
    found = cli("diff", LATE, *TOPICS, *later, *ONE, "--json").json
    (key,) = found["without_beginning"]
    assert (key["group_id"], key["topic"], key["partition"]) == ("g4", "t2", 3)
    assert UNKNOWN in cli("diff", LATE, *TOPICS, *later, *ONE).out


@pytest.mark.parametrize("chart", ["window", "offsets", "deliveries"])
def test_a_chart_says_that_the_beginning_is_missing(cli: Command, tmp_path: Path, chart: str):
    said = cli("plot", chart, LATE, *TOPICS, *ONE, "--out", tmp_path / "chart.svg")
    assert said.code == 0
    assert UNKNOWN in said.out.lower()
    assert "Nothing was ever in flight" not in said.out


def test_the_timeline_marks_states_without_their_snapshot(warehouse: Path):
    rows = WrittenTables(warehouse).read("timeline").to_pylist()
    without = [row for row in rows if row["snapshot_offset"] is None and row["start_offset"] is not None]
    assert without
    assert all(row["suspect"] for row in without)


def test_a_whole_export_is_in_no_doubt(cli: Command, tmp_path: Path):
    whole = (DATA / "4.3.1/chaos", *TOPICS)
    texts = [
        cli("explain", *whole, *ONE, "--offset", "10").out,
        cli("plot", "window", *whole, *ONE, "--out", tmp_path / "chart.svg").out,
        cli("diff", *whole, "--as-of-time", "2026-11-21T03:07:20Z").out,
        cli("reconstruct", *whole, "--out", tmp_path / "lake").err,
        cli("show", tmp_path / "lake").out,
    ]
    assert [text for text in texts if UNKNOWN in text.lower()] == []


def test_the_text_of_the_newest_segment_alone_is_not_trusted(cli: Command, tmp_path: Path):
    said = cli("reconstruct", CASE / "newest-segment-dump.txt", *TOPICS, "--out", tmp_path / "lake")
    assert UNKNOWN in said.err
    states = WrittenTables(tmp_path / "lake").read("share_partition_state").to_pylist()
    assert [row["suspect"] for row in states].count(True) == 5
    target = tmp_path / "offsets.json"
    assert cli("cutoff", CASE / "newest-segment-dump.txt", "--verify", "--delete-records", target).code == 1
    assert json.loads(target.read_text())["partitions"] == []


def test_later_audits_say_that_the_beginning_is_missing(cli: Command, tmp_path: Path):
    segments = sorted((DATA / "cases/unsafe-cutoff-head-lost").rglob("*.log"))
    log, lake = tmp_path / "logs/__share_group_state-0", tmp_path / "lake"
    log.mkdir(parents=True)
    said = list[str]()
    for segment in segments:
        shutil.copy(segment, log)
        said.append(cli("audit", log.parent, "--out", lake).err)
    said.append(cli("audit", log.parent, "--out", lake).err)
    (log / segments[0].name).unlink()
    said.append(cli("audit", log.parent, "--out", lake).err)
    # The input of the last night begins later.
    assert [BEGINS_AT_2 in text for text in said] == [True] * 4


def test_audits_have_seen_a_beginning_that_was_pruned_since(cli: Command, tmp_path: Path):
    history = [snapshot([(0, 4, AVAILABLE, 1)]), update(start=1), snapshot(start=2), update(start=3)]
    batches, logs, lake = consecutive([Batch([one]) for one in history]), tmp_path / "logs", tmp_path / "lake"
    log_of(logs, in_bytes(batches[:2]))
    log_of(logs, in_bytes(batches[2:3]), base_offset=2)
    said = [cli("audit", logs, "--out", lake).err]
    (logs / "__share_group_state-0" / f"{0:020}.log").unlink()
    log_of(logs, in_bytes(batches[2:]), base_offset=2)
    said += [cli("audit", logs, "--out", lake).err, cli("reconstruct", logs, "--out", tmp_path / "anew").err]
    assert [UNKNOWN in text for text in said] == [False, False, True]


@pytest.mark.parametrize("form", ["segments", "parquet"])
def test_a_stream_says_what_a_reconstruct_says_of_beginnings(cli: Command, tmp_path: Path, form: str):
    case, logs, lake = DATA / "cases/unsafe-cutoff-head-lost", tmp_path / "logs", tmp_path / "lake"
    if form == "segments":
        shutil.copytree(next(case.rglob("*.log")).parent, logs / "__share_group_state-0")
    else:
        write(table_of(found(next(case.rglob("*.log")).parent)), logs / "one.parquet")
    said = [cli("stream", logs, "--once", "--out", lake).err for _ in range(2)]
    said.append(cli("reconstruct", logs, "--out", tmp_path / "whole").err)
    lines = [[line for line in text.splitlines() if UNKNOWN in line] for text in said]
    assert lines[0] == lines[1] == lines[2]
    assert [BEGINS_AT_2 in line for line in lines[0]] == [True]
    notes = [CommittedTables(str(place)).run["notes"] for place in (lake, tmp_path / "whole")]
    of_starts = [[note for note in one if UNKNOWN in note] for one in notes]
    assert of_starts[0] == of_starts[1] != []


def test_a_stream_does_not_doubt_a_beginning_that_was_read(cli: Command, tmp_path: Path):
    history = [snapshot([(0, 4, AVAILABLE, 1)]), update(start=1), snapshot(start=2), update(start=3)]
    batches, logs, lake = consecutive([Batch([one]) for one in history]), tmp_path / "logs", tmp_path / "lake"
    log_of(logs, in_bytes(batches[:2]))
    log_of(logs, in_bytes(batches[2:3]), base_offset=2)
    said = [cli("stream", logs, "--once", "--out", lake).err]
    (logs / "__share_group_state-0" / f"{0:020}.log").unlink()
    log_of(logs, in_bytes(batches[2:]), base_offset=2)
    said.append(cli("stream", logs, "--once", "--out", lake).err)
    assert [UNKNOWN in text for text in said] == [False, False]
