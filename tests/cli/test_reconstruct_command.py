"""`reconstruct` and `decode`: from the arguments to what is printed, written and returned."""

import json
import re
import shutil
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

from share_state import reconstruct
from share_state.cli.main import run
from share_state.cli.process import Stopped
from share_state.delta.warehouse import Warehouse
from share_state.errors import ShareStateError
from share_state.fold.state_log import fold_log
from share_state.rules.findings import count_findings
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from share_state.spark.choice import ExecutorChoice
from tests.cli.commands import Command, contents
from tests.kafka.batches import Batch, Record, log_of
from tests.profiles import some_of
from tests.truth import DATA, expected_states
from tests.warehouses import WrittenTables

CHAOS, HAPPY, FUZZ = DATA / "4.3.1/chaos", DATA / "4.3.1/happy", DATA / "4.3.1/fuzz"


def test_the_summary_is_what_the_tables_hold(share_state: Command, tmp_path: Path):
    said = share_state("reconstruct", CHAOS, "--out", tmp_path / "w", "--json")
    assert (said.code, said.err) == (0, "")
    folds = [fold_log(log) for log in find_logs([str(CHAOS)])]
    assert said.json["records"] == sum(fold.record_count for fold in folds) == 2222
    assert said.json["share_partitions"] == 55
    rows = [row for fold in folds for row in fold.cutoff.to_pylist()]
    assert said.json["cutoff"] == [row | {"limited_since": row["limited_since"].isoformat()} for row in rows]
    # The fixture's workload deleted records of the topics.
    assert said.json["findings"] == [{"severity": "warning", "rule": "RECORDS_LOST", "count": 3}]
    assert said.json["progress"] == {f"__share_group_state-{fold.log.partition}": fold.next_offset for fold in folds}
    assert said.json["warehouse"] == str(tmp_path / "w")


def test_as_of_offsets_are_the_state_before_them(cli: Command, tmp_path: Path):
    truth = json.loads((FUZZ / "asof-2-redundant.json").read_text())
    ends = {row["statePartition"]: row["nextOffset"] for row in truth}
    cuts = [option for number, end in ends.items() for option in ("--as-of-offset", f"{number}={end}")]
    said = cli("reconstruct", FUZZ, "--out", tmp_path / "w", *cuts, "--json")
    assert said.json["progress"] == {f"__share_group_state-{number}": end for number, end in ends.items()}
    shown = cli("show", tmp_path / "w", "--json").json["share_partitions"]
    states = expected_states(FUZZ / "asof-2-oracle.jsonl")
    assert len(shown) == len(states)
    for row in shown:
        expected = states[row["group_id"], row["topic_id"], row["partition"]]
        for name in ("start_offset", "end_offset", "snapshot_epoch", "state_epoch", "state_batches", "last_offset"):
            assert row[name] == (None if expected[name] == -1 else expected[name])


def _moments() -> list[datetime]:
    (log, *_) = find_logs([str(CHAOS / "__share_group_state-0")])
    stamps = fold_log(log, Window(until_offset=200)).states["write_time"].drop_null()
    return sorted(stamps.to_pylist())


def test_before_the_first_record_there_is_no_state_and_no_error(cli: Command):
    cuts = [option for number in range(3) for option in ("--as-of-offset", f"{number}=0")]
    said = cli("cutoff", HAPPY, *cuts, "--json")
    assert (said.code, said.json["records"], said.json["share_partitions"]) == (0, 0, 0)


def test_as_of_a_time_leaves_out_what_was_stamped_later(cli: Command):
    moment = _moments()[-1]
    (log,) = find_logs([str(CHAOS / "__share_group_state-0")])
    expected = fold_log(log, Window(until_time_ms=round(moment.timestamp() * 1000))).record_count
    assert 0 < expected < fold_log(log).record_count
    folder = CHAOS / "__share_group_state-0"
    # With an offset, as UTC, and without either: all the same moment.
    for text in (moment.isoformat(), moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), moment.replace(tzinfo=None).isoformat()):
        assert cli("cutoff", folder, "--as-of-time", text, "--json").json["records"] == expected
    refused = cli("cutoff", folder, "--as-of-time", "2001-01-01", "--json")
    assert (refused.code, "before the first record" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], 1),
        (["--fail-on", "error"], 1),
        (["--fail-on", "warning"], 1),
        (["--fail-on", "off"], 0),
        (["--rule", "CRC_MISMATCH=info"], 0),
        (["--rule", "CRC_MISMATCH=info", "--fail-on", "warning"], 1),
        (["--rule", "CRC_MISMATCH=off", "--rule", "STATE_SUSPECT=off", "--fail-on", "info"], 0),
        (["--rule", "CRC_MISMATCH=off", "--rule", "STATE_SUSPECT=info", "--fail-on", "info"], 1),
        (["--rule", "CRC_MISMATCH=off", "--rule", "STATE_SUSPECT=error"], 1),
    ],
)
def test_the_exit_code_tells_whether_anything_grave_was_found(
    cli: Command, damaged: Path, options: list[str], code: int
):
    assert cli("cutoff", damaged, *options).code == code


def test_findings_are_written_and_counted(share_state: Command, damaged: Path, tmp_path: Path):
    said = share_state("reconstruct", damaged, "--out", tmp_path / "w", "--json")
    assert said.code == 1
    counted = {(found["severity"], found["rule"]): found["count"] for found in said.json["findings"]}
    assert counted[("error", "CRC_MISMATCH")] == 1
    assert [row["safe"] for row in said.json["cutoff"]] == [False]
    rows = DeltaTable(str(tmp_path / "w" / "findings")).to_pyarrow_table().to_pylist()
    assert {(row["severity"], row["rule"]) for row in rows} == counted.keys()
    assert {row["run_id"] for row in rows} == {said.json["run_id"]}
    text = share_state("reconstruct", damaged, "--out", tmp_path / "w")
    assert text.code == 1
    assert text.lines[0].startswith(f"{said.json['records']} records of 1 log partition")
    assert "error: CRC_MISMATCH, 1 finding. What should hold: The CRC" in text.out
    assert said.json["run_id"] in text.lines[-1]


def _found(folder: Path) -> list[str]:
    rows = WrittenTables(folder).read("findings").drop_columns(["run_id", "settled"]).to_pylist()
    return sorted(map(str, rows))


@pytest.mark.parametrize("scenario", some_of(["4.3.1/fuzz", "4.3.1/chaos", "4.4.0/dlq"], 1))
def test_reconstruct_judges_what_a_first_audit_judges(cli: Command, tmp_path: Path, scenario: str):
    made = cli("reconstruct", DATA / scenario, "--out", tmp_path / "w", "--json")
    audited = cli("audit", DATA / scenario, "--out", tmp_path / "a", "--json", "--quiet")
    assert (made.code, _found(tmp_path / "w")) == (audited.code, _found(tmp_path / "a"))
    in_python = reconstruct(DATA / scenario).findings
    assert len(in_python) == len(_found(tmp_path / "w"))
    assert sum(count_findings(in_python).to_pylist()) == sum(found["count"] for found in made.json["findings"])


def test_rules_that_are_not_judged_are_named(cli: Command, tmp_path: Path):
    every = cli("reconstruct", FUZZ, "--out", tmp_path / "w")
    assert (every.code, "not judged" in every.out) == (1, False)
    assert "error: TERMINAL_STATE_LEFT, " in every.out
    state = cli("reconstruct", FUZZ, "--out", tmp_path / "w", "--judge", "state")
    assert "not judged: the rules over single records of __share_group_state (--judge all)" in state.lines
    assert "TERMINAL_STATE_LEFT" not in state.out
    none = cli("reconstruct", FUZZ, "--out", tmp_path / "w", "--judge", "none")
    assert (none.code, _found(tmp_path / "w")) == (0, [])
    assert "not judged: every rule (--judge all)" in none.lines
    assert "no findings" not in none.lines
    assert len(reconstruct(FUZZ, judge="none").findings) == 0


def test_an_unknown_set_of_rules_is_refused(cli: Command, tmp_path: Path):
    said = cli("reconstruct", FUZZ, "--out", tmp_path / "w", "--judge", "some")
    assert (said.code, said.err) == (2, "share-state: --judge some: give one of all, state, none\n")
    with pytest.raises(ShareStateError, match=r"^judge='some': give one of all, state, none$"):
        reconstruct(FUZZ, judge="some")


def test_before_the_first_record_the_groups_have_no_state(cli: Command, tmp_path: Path):
    """The group side is read, too: it has groups, and no state to check them against."""
    for cut in (["--as-of-time", "2001-01-01"], [f"--as-of-offset={number}=0" for number in range(3)]):
        said = cli("reconstruct", CHAOS, "--out", tmp_path / "w", *cut, "--json")
        assert (said.code, said.json["records"], said.json["share_partitions"]) == (0, 0, 0)
        assert cli("show", tmp_path / "w").out.startswith("no share-partitions\n")


@pytest.mark.parametrize("command", ["reconstruct", "audit"])
def test_an_empty_state_topic_beside_its_groups_is_an_empty_state(cli: Command, tmp_path: Path, command: str):
    export = tmp_path / "export"
    for number in range(3):
        (export / f"__share_group_state-{number}").mkdir(parents=True)
        (export / f"__share_group_state-{number}" / f"{0:020}.log").touch()
        shutil.copytree(CHAOS / f"__consumer_offsets-{number}", export / f"__consumer_offsets-{number}")
    assert cli(command, export, "--out", tmp_path / "w").code == 0
    found = cli("groups", tmp_path / "w", "--json").json
    assert found["groups"]
    assert {group["share_partitions"] for group in found["groups"]} == {0}


def test_a_timeline_of_an_unknown_share_partition_is_refused(cli: Command, tmp_path: Path):
    options = ("--timeline", "--group", "g1", "--topic", "t0", "--partition", 77)
    said = cli("reconstruct", CHAOS, "--out", tmp_path / "w", *options)
    assert said.code == 2
    assert said.err.startswith("share-state: partition 77 of topic t0 of group g1: not found; the nearest of ")
    assert not any((tmp_path / "w").rglob("*.parquet"))


def test_an_empty_log_is_an_empty_state(cli: Command, tmp_path: Path):
    folder = tmp_path / "__share_group_state-0"
    folder.mkdir()
    (folder / f"{0:020}.log").touch()
    said = cli("reconstruct", folder, "--out", tmp_path / "w", "--json")
    assert (said.code, said.json["share_partitions"]) == (0, 0)
    assert cli("show", tmp_path / "w").out == "no share-partitions\n"


def test_a_table_that_cannot_be_written_leaves_the_last_good_run(cli: Command, chaos: Path, tmp_path: Path):
    warehouse = tmp_path / "w"
    shutil.copytree(chaos, warehouse)
    before = cli("show", warehouse).out
    (warehouse / "findings/_delta_log" / f"{0:020}.json").write_text("no JSON")
    said = cli("reconstruct", HAPPY, "--out", warehouse)
    assert (said.code, said.out) == (2, "")
    assert f"{warehouse / 'findings'}: cannot be written as a Delta table" in said.err.splitlines()[-1]
    assert cli("show", warehouse).out == before


def test_an_unexpected_failure_leaves_the_last_good_run(
    cli: Command, chaos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    warehouse = tmp_path / "w"
    shutil.copytree(chaos, warehouse)
    before = cli("show", warehouse).out

    def no_memory(*_: object) -> None:
        raise MemoryError("no more of it")

    monkeypatch.setattr(Warehouse, "replace", no_memory)
    said = cli("reconstruct", HAPPY, "--out", warehouse)
    assert (said.code, said.out) == (3, "")
    assert said.err.splitlines()[-1].startswith("share-state: unexpected ")
    assert "Traceback" not in said.err
    assert cli("show", warehouse).out == before


def test_inputs_are_left_as_they_were(cli: Command, tmp_path: Path):
    shutil.copytree(CHAOS, tmp_path / "broker")
    before = contents(tmp_path / "broker")
    cli("reconstruct", tmp_path / "broker", "--out", tmp_path / "w")
    cli("cutoff", tmp_path / "broker", "--verify", "--delete-records", tmp_path / "offsets.json")
    cli("decode", tmp_path / "broker", "--out", tmp_path / "decoded")
    assert contents(tmp_path / "broker") == before


def test_decode_prints_every_record_in_log_order(cli: Command):
    said = cli("decode", HAPPY)
    assert (said.code, said.err) == (0, "")
    rows = [json.loads(line) for line in said.lines]
    expected = [
        (log.partition, offset) for log in find_logs([str(HAPPY)]) for offset in range(fold_log(log).next_offset)
    ]
    assert [(row["state_partition"], row["offset"]) for row in rows] == expected
    assert {row["dialect"] for row in rows} == {"share_group_state"}
    assert {row["layout"] for row in rows} == {"4.1+"}
    assert {row["kind"] for row in rows} == {"snapshot", "update"}
    assert all(datetime.fromisoformat(row["timestamp"]).tzinfo == UTC for row in rows)
    assert not any(value is None for row in rows for value in row.values())
    assert not any("state_epoch" in row for row in rows if row["kind"] == "update")


def test_decode_names_what_it_cannot_read(cli: Command, tmp_path: Path):
    log_of(tmp_path, Batch([Record(None, b"x"), Record(b"\0\7", b"x")]).written())
    said = cli("decode", tmp_path)
    assert said.code == 0
    assert [json.loads(line)["fault"] for line in said.lines] == ["KEY_MALFORMED", "UNKNOWN_TYPE"]


def test_decode_takes_names_and_cuts(cli: Command):
    said = cli("decode", HAPPY, "--topics", HAPPY / "topics.json", "--as-of-offset", "0=3", "--as-of-offset", "1=0")
    rows = [json.loads(line) for line in said.lines]
    assert len([row for row in rows if row["state_partition"] == 0]) == 3
    assert not [row for row in rows if row["state_partition"] == 1]
    names = {topic["topicId"]: topic["name"] for topic in json.loads((HAPPY / "topics.json").read_text())}
    assert all(row["topic"] == names[row["topic_id"]] for row in rows)


def test_decode_writes_the_records_it_would_print(share_state: Command, tmp_path: Path):
    place = tmp_path / "decoded"
    for _ in range(2):  # the second time in place of the first
        said = share_state("decode", HAPPY, "--out", place, "--json")
        assert (said.code, said.json) == (0, {"records": 110, "table": str(place)})
    in_log_order = [("state_partition", "ascending"), ("offset", "ascending")]
    written = DeltaTable(str(place)).to_pyarrow_table().sort_by(in_log_order).to_pylist()
    printed = [json.loads(line) for line in share_state("decode", HAPPY).lines]
    for row, line in zip(written, printed, strict=True):
        told = {name: value for name, value in row.items() if value is not None}
        # A line also names the batch of its record, and the delivery states.
        assert line.pop("batch")["segment"].endswith(".log")
        assert all(batch.pop("state") for batch in line.get("state_batches", ()))
        assert json.loads(json.dumps(told, default=datetime.isoformat)) == line


@pytest.mark.parametrize(("signalled", "code"), [(Stopped(143), 143), (KeyboardInterrupt(), 130)])
def test_a_signal_that_ends_the_jvm_too_is_one_line(
    signalled: BaseException,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
):
    def ended(*_: object, **_more: object) -> None:
        try:
            raise signalled
        finally:
            raise ConnectionRefusedError("by the JVM")

    monkeypatch.setattr("share_state.cli.reconstruct.run_reconstruct", ended)
    assert run(["reconstruct", str(HAPPY), "--out", str(tmp_path / "w"), "-q"]) == code
    assert capfd.readouterr().err == "share-state: stopped; nothing was committed\n"


def test_tables_in_a_schema_of_a_catalog_are_shown_by_their_folder(
    cli: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    found = nullcontext((ExecutorChoice(), str(tmp_path / "w")))
    monkeypatch.setattr("share_state.cli.reconstruct.open_place", lambda *_: found)
    said = cli("reconstruct", HAPPY, "--out", "spark_catalog.lake")
    assert said.out.endswith(f"`share-state show {tmp_path / 'w'}`\n")


def test_a_result_that_cannot_be_printed_names_the_committed_run(
    monkeypatch: pytest.MonkeyPatch, cli: Command, tmp_path: Path
):
    with monkeypatch.context() as full, Path("/dev/full").open("w", encoding="utf-8") as stream:
        full.setattr(sys, "stdout", stream)
        said = cli("reconstruct", DATA / "4.3.1/happy", "--out", tmp_path / "w")
    assert said.code == 2
    assert re.search(r"^share-state: stdout: cannot be written .*; run [0-9a-f]{16} is committed$", said.err)
