"""Times that a person gives: how they may be written, and what is said of those outside of the input."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import share_state
from share_state.errors import InputError
from share_state.sources.as_of import LogTime, parse_time, to_epoch_ms
from share_state.sources.discovery import find_logs
from share_state.sources.log_times import time_span
from tests.cli.commands import Command
from tests.kafka.batches import NOW
from tests.log_writer import batch, snapshot, write_log_folder
from tests.profiles import some_of
from tests.truth import DATA, without_topics

CHAOS = DATA / "4.3.1/chaos"
KEY = {"group": "g4", "topic": "t2", "partition": 3}
ONE = [word for name, value in KEY.items() for word in (f"--{name}", value)]
SPAN = "the records of the input are from 2026-11-21 03:06:58.076 UTC to 2026-11-21 03:08:16.529 UTC"
SAME = (
    "2026-11-21T03:07:10Z",
    "2026-11-21 03:07:10",
    "2026-11-21T04:07:10+01:00",
    "1795230430000",
    "03:07:10",
    "04:07:10 Europe/Berlin",
    "2026-11-21 04:07:10 Europe/Berlin",
    "2026-11-20 22:07:10 America/New_York",
)


def test_a_time_can_be_written_in_several_ways(cli: Command):
    found = {text: cli("cutoff", CHAOS, "--as-of-time", text, "--json").json["records"] for text in SAME}
    assert set(found.values()) == {found[SAME[0]]}
    assert 0 < found[SAME[0]] < cli("cutoff", CHAOS, "--json").json["records"]


def test_a_duration_counts_back_from_the_newest_record_of_the_input(cli: Command):
    newest = 1_795_230_496_529
    for text, ms in {"-30s": 30_000, "-1m": 60_000, "-1m10s": 70_000}.items():
        expected = cli("cutoff", CHAOS, "--as-of-time", newest - ms, "--json").json["records"]
        assert cli("cutoff", CHAOS, "--as-of-time", text, "--json").json["records"] == expected


@pytest.mark.parametrize("text", some_of(SAME, 1))
@pytest.mark.parametrize("option", ["--as-of-time", "--and-as-of-time"])
def test_every_option_that_takes_a_time_takes_the_same(option: str, text: str, cli: Command):
    earlier = () if option == "--as-of-time" else ("--as-of-time", "2026-11-21T03:07:05Z")
    expected = cli("diff", CHAOS, *earlier, option, SAME[0], "--json").json
    assert cli("diff", CHAOS, *earlier, option, text, "--json").json == expected
    given, usual = (share_state.reconstruct(str(CHAOS), as_of=one).cutoff for one in (text, SAME[0]))
    assert given == usual


def test_a_time_of_day_is_the_latest_one_before_the_newest_record():
    newest = to_epoch_ms("2026-11-21T02:00:00Z")
    parse: Any = parse_time  # returns a LogTime for texts without a date
    assert parse("01:30").at(newest) == to_epoch_ms("2026-11-21T01:30:00Z")
    assert parse("02:30").at(newest) == to_epoch_ms("2026-11-20T02:30:00Z")
    assert parse("02:30 Europe/Berlin").at(newest) == to_epoch_ms("2026-11-21T01:30:00Z")
    assert parse_time("-1d2h") == LogTime(26 * 3_600_000)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1795230430", "seconds since 1970? give milliseconds"),
        ("1795230430000000", "micro- or nanoseconds since 1970? give milliseconds"),
        ("2026-10-25 02:30 Europe/Berlin", "twice there; give 2026-10-25T00:30:00Z or 2026-10-25T01:30:00Z"),
        ("2026-03-29 02:30 Europe/Berlin", "clocks skip this time there"),
        ("2026-11-21 02:30 Europe/Atlantis", "Europe/Atlantis is no known time zone"),
        ("2026-11-21T02:30Z Europe/Berlin", "two time zones"),
        ("0001-01-01 00:00 Asia/Tokyo", "outside of the years"),
        ("-", "give a time as in"),
        ("25:00", "give a time as in"),
    ],
)
def test_a_text_that_is_no_time_is_refused_by_its_reason(text: str, reason: str, cli: Command):
    said = cli("explain", CHAOS, *ONE, "--offset", 10, "--as-of-time", text)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"share-state: --as-of-time {text}: ")
    assert reason in said.err


@pytest.mark.parametrize(
    ("time", "side"),
    [
        ("2020-01-01", "before the first record"),
        ("2030-01-01", "after the newest record"),
        ("-2h", "before the first record"),
    ],
)
@pytest.mark.parametrize(
    "command", some_of(["explain", "diff", "later", "plot", "decode", "decode --out", "cutoff", "repair"], 4)
)
def test_a_time_outside_of_the_input_is_refused_with_the_times_of_its_records(
    command: str, time: str, side: str, cli: Command, tmp_path: Path
):
    if command == "later" and side.startswith("before"):
        pytest.skip("the later point would be before the earlier one")
    call = {
        "explain": ("explain", CHAOS, *ONE, "--offset", 10, "--as-of-time", time),
        "diff": ("diff", CHAOS, "--as-of-time", time),
        "later": ("diff", CHAOS, "--as-of-time", SAME[0], "--and-as-of-time", time),
        "plot": ("plot", "window", CHAOS, *ONE, "--out", tmp_path / "w.svg", "--as-of-time", time),
        "decode": ("decode", CHAOS, "--as-of-time", time),
        "decode --out": ("decode", CHAOS, "--as-of-time", time, "--out", tmp_path / "records"),
        "cutoff": ("cutoff", CHAOS, "--as-of-time", time, "--delete-records", tmp_path / "d.json"),
        "repair": ("repair", CHAOS, "--as-of-time", time, "--out", tmp_path / "plan.md"),
    }[command]
    said = cli(*call)
    assert (said.code, said.out) == (2, "")
    assert f"{side}; {SPAN} (times without a zone are UTC)" in said.err
    assert ("--and-as-of-time" if command == "later" else "--as-of-time") in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", ["timeline", "cutoff", "explain", "repair"])
def test_python_calls_refuse_a_time_outside_of_the_input(call: str):
    calls = {
        "timeline": lambda: share_state.timeline(str(CHAOS), **KEY, as_of="2020-01-01"),
        "cutoff": lambda: share_state.cutoff(str(CHAOS), as_of="2020-01-01"),
        "explain": lambda: share_state.explain(str(CHAOS), **KEY, offset=10, as_of="2020-01-01"),
        "repair": lambda: share_state.repair(str(CHAOS), as_of="2020-01-01"),
    }
    with pytest.raises(InputError, match="before the first record"):
        calls[call]()


@pytest.mark.parametrize("time", ["2020-01-01", "2030-01-01"])
def test_reconstruct_notes_a_time_outside_of_the_input(time: str, cli: Command, tmp_path: Path):
    said = cli("reconstruct", CHAOS, "--out", tmp_path / "w", "--as-of-time", time, "--fail-on", "off", "--json")
    assert said.code == 0
    assert (said.json["records"] == 0) == (time == "2020-01-01")
    (note,) = [note for note in said.json["notes"] if SPAN in note]
    assert note in said.err
    assert cli("show", tmp_path / "w").code == 0


def test_the_first_and_the_last_time_themselves_are_inside(cli: Command):
    for time in ("2026-11-21 03:06:58.076 UTC", "2026-11-21 03:08:16.529 UTC"):
        assert cli("explain", CHAOS, *ONE, "--offset", 10, "--as-of-time", "03:08:00").code == 0
        assert "of the input" not in cli("cutoff", CHAOS, "--as-of-time", time).err


def test_the_times_of_an_input_are_those_of_all_its_records(tmp_path: Path):
    key = ("g", "AAAAAAAAAAAAAAAAAAAAAA", 0)
    count = 5000  # more than the bytes at the end that are read first
    batches = [batch([snapshot(key)] * 9, timestamp=NOW + 1000 * number) for number in range(count)]
    (log,) = find_logs([str(write_log_folder(tmp_path, 0, batches))])
    assert log.size > 3 << 20
    span = time_span([log])
    assert span is not None
    assert (span.first, span.last) == (NOW, NOW + 1000 * (count - 1))
    with Path(log.segments[0].path).open("ab") as file:
        file.write(bytes(2 << 20))  # preallocated
    span = time_span(find_logs([str(tmp_path)]))
    assert span is not None
    assert span.last == NOW + 1000 * (count - 1)


def test_the_times_of_a_table_are_those_of_its_column(cli: Command, tmp_path: Path):
    rows = pq.read_table(DATA / "cases/partial-export/late.parquet")
    assert rows["timestamp"].type != pa.int64()
    kinds: dict[str, Any] = {"stats": ["offset", "timestamp"], "none": False}
    for name, kept in kinds.items():
        pq.write_table(rows, tmp_path / f"{name}.parquet", write_statistics=kept)
        said = cli("explain", tmp_path / f"{name}.parquet", *ONE, "--offset", 10, "--as-of-time", "2020-01-01")
        assert said.code == 2
        assert "before the first record; the records of the input are from 2026-11-21 03:0" in said.err


def test_an_input_without_its_groups_has_the_times_of_its_own_records(cli: Command, tmp_path: Path):
    shutil.copytree(CHAOS / "__share_group_state-2", tmp_path / "__share_group_state-2")
    said = cli("explain", tmp_path, *ONE, "--offset", 10, "--as-of-time", "2030-01-01")
    assert "to 2026-11-21 03:07:59.096 UTC" in said.err


def test_an_offset_at_the_end_of_the_topic_is_said_to_have_no_record(cli: Command, tmp_path: Path):
    topics = ("--topics", CHAOS / "topics.json")
    for offset in (361, 99_999):
        said = cli("explain", CHAOS, *ONE, "--offset", offset, *topics)
        last = f"Offset {offset}: no record has this offset: it is not before the end of the topic-partition, 361."
        assert said.lines[-1] == last
        assert cli("explain", CHAOS, *ONE, "--offset", offset, *topics, "--json").json["topic_end_offset"] == 361
    before = cli("explain", CHAOS, *ONE, "--offset", 360, *topics).lines[-1]
    assert "no record has this offset" not in before
    export = without_topics(CHAOS, tmp_path / "export")
    unknown = cli("explain", export, *ONE, "--offset", 99_999).lines[-1]
    assert "the end of the topic is not known" in unknown


def test_an_end_before_the_window_is_named_as_doubtful(cli: Command):
    case = DATA / "cases/spso-past-end"
    one = ("--group", "gs1", "--topic", "tp1", "--partition", 0)
    said = cli("explain", case, *one, "--offset", 300, "--topics", case / "topics.json")
    assert "below SPSO" in said.lines[-1]
    assert "not before the end of the topic-partition, 200" in said.lines[-1]
    assert "older than the log" in said.lines[-1]
