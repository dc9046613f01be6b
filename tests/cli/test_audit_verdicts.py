"""What an audit says of the age of its input, of groups without members, of groups that give up, and of deliveries."""

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from share_state.fold.history import OUTCOME_COLUMNS
from share_state.fold.state_log import fold_log
from share_state.kafka.state_records import StateRecords
from share_state.sources.discovery import find_logs
from share_state.sources.topics import Topics
from tests.cli.commands import Command
from tests.fold.decoded_logs import decoded
from tests.fold.record_context_model import outcomes
from tests.profiles import by_profile, nightly, some_of
from tests.rules.histories import ACKNOWLEDGED, ARCHIVED, AVAILABLE, MINUTE, log_with, snapshot, update
from tests.truth import DATA
from tests.warehouses import WrittenTables

DLQ, HAPPY = DATA / "4.4.0/dlq", DATA / "4.3.1/happy"
STALE = "limits.export_age=36"
BATCH_JOBS = ("--set", "acknowledged=[{verdict: NO_MEMBERS}]")


def history(warehouse: Path) -> list[dict[str, Any]]:
    """The rows of `share_partition_history` of the latest run."""
    tables = WrittenTables(warehouse)
    return tables.read("share_partition_history", pc.field("run_id") == tables.run["run_id"]).to_pylist()


def codes(report: Any) -> set[str]:
    """The rules that a report names."""
    return {one["rule"] for one in report["findings"]}


@nightly("four audits")
def test_an_old_export_is_a_warning_every_night_and_no_green_page(cli: Command, tmp_path: Path):
    audit = (
        "audit",
        HAPPY,
        "--out",
        tmp_path / "w",
        "--html",
        tmp_path / "p.html",
        "--prometheus",
        tmp_path / "m.prom",
    )
    for _ in range(2):
        said = cli(*audit, "--set", STALE, "--json", "--quiet")
        assert (said.code, said.json["healthy"]) == (0, False)
        assert codes(said.json) == {"EXPORT_STALE"}
        (one,) = said.json["findings"]
        assert "more than 1 d 12 h before the audit" in one["examples"][0]["message"]
        assert re.search(r"; the newest record was \d+ d( \d+ h)? old$", said.json["headline"])
        assert '<header class="warning">' in (tmp_path / "p.html").read_text()
        assert " before the audit." in (tmp_path / "p.html").read_text()
        age = next(
            line for line in (tmp_path / "m.prom").read_text().splitlines() if line.startswith("share_state_newest")
        )
        assert float(age.split()[-1]) == pytest.approx(said.json["export_age_seconds"])
        assert said.json["export_age_seconds"] > 36 * 3600
    assert cli(*audit, "--set", STALE, "--quiet", "--fail-on", "warning").code == 1


@nightly("eight audits")
def test_the_limit_of_the_age_can_be_raised_and_switched_off_at_any_time(cli: Command, tmp_path: Path):
    audit = ("audit", HAPPY, "--out", tmp_path / "w", "--json", "--quiet", *BATCH_JOBS)
    found = []
    for limit in ("0", "36", "0", "9e9", "36", "36"):
        said = cli(*audit, "--set", f"limits.export_age={limit}").json
        found.append("EXPORT_STALE" in codes(said))
        assert not any("limits or rules have changed" in note for note in said["run"]["notes"])
        assert said["healthy"] != found[-1]
    assert found == [False, True, False, False, True, True]
    off = cli(*audit, "--set", STALE, "--rule", "EXPORT_STALE=off").json
    assert codes(off) == set()
    assert cli(*audit, "--set", STALE, "--rule", "EXPORT_STALE=error").code == 1


def test_only_an_audit_judges_the_age(cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SHARE_STATE_LIMITS__EXPORT_AGE")
    said = cli("reconstruct", HAPPY, "--out", tmp_path / "r", "--fail-on", "warning")
    assert (said.code, "EXPORT_STALE" in said.out) == (0, False)
    assert re.search(r"^the newest record was \d+ d( \d+ h)? old: 2026-11-21 ", said.out, re.MULTILINE)
    assert codes(cli("audit", HAPPY, "--out", tmp_path / "w", "--json", "--quiet").json) == {"EXPORT_STALE"}


def test_a_group_without_members_whose_records_wait_has_a_verdict(cli: Command, tmp_path: Path):
    """All groups of this broker ended Empty; of dq-auto, 467 records wait."""
    topics = ("--topics", DLQ / "topics.json", "--quiet", "--json")
    said = cli("audit", DLQ, "--out", tmp_path / "w", *topics)
    assert said.code == 0
    rows = history(tmp_path / "w")
    auto = [row for row in rows if row["group_id"] == "dq-auto"]
    assert {row["verdict"] for row in auto} == {"NO_MEMBERS"}
    assert sum(row["lag"] for row in auto) == 467
    assert auto[0]["reason"] == f"{auto[0]['lag']} records wait, and the group has no members"
    assert {row["verdict"] for row in rows if not row["lag"]} == {"OK"}
    assert said.json["verdicts"]["NO_MEMBERS"] == sum((row["lag"] or 0) > 0 for row in rows)
    # STOP and STALL are worse, and say so too.
    worse = cli("audit", DLQ, "--out", tmp_path / "later", *topics, "--set", "limits.stall_minutes=0.01")
    assert worse.json["verdicts"]["NO_MEMBERS"] < said.json["verdicts"]["NO_MEMBERS"]
    assert all(
        row["reason"].endswith("the group has no members") for row in history(tmp_path / "later") if row["reason"]
    )
    # Without the group side it is not known.
    alone = cli("audit", f"{DLQ}/__share_group_state-0", "--out", tmp_path / "alone", *topics)
    assert alone.json["verdicts"]["NO_MEMBERS"] == 0 or "share_groups" in WrittenTables(tmp_path / "alone").versions


@nightly("three audits; test_audit_data acknowledges")
def test_a_verdict_can_fail_the_job_and_be_acknowledged(cli: Command, tmp_path: Path):
    audit = ("audit", DLQ, "--out", tmp_path / "w", "--quiet", "--json", "--set", "fail_on_verdict=NO_MEMBERS")
    assert cli(*audit).code == 1
    acknowledged = ("--set", "acknowledged=[{verdict: NO_MEMBERS}]")
    said = cli(*audit, *acknowledged)
    assert (said.code, said.json["open_verdicts"]["NO_MEMBERS"], said.json["troubled"]) == (0, 0, [])
    assert said.json["verdicts"]["NO_MEMBERS"] > 0
    past = ("--set", "acknowledged=[{verdict: NO_MEMBERS, until: 2026-01-01}]")
    assert cli(*audit, *past).code == 1
    refused = cli(*audit, "--set", "acknowledged=[{verdict: STOP, rule: CRC_MISMATCH}]")
    assert (refused.code, "give either a rule or a verdict" in refused.err) == (2, True)
    refused = cli(*audit, "--set", "acknowledged=[{verdict: STOP, until: soon}]")
    assert (refused.code, "give a date, as in 2026-11-30" in refused.err) == (2, True)


def given_up(minute: int, *, first: int = 0) -> Any:
    """An update in which one record is archived at the limit of 5 deliveries."""
    return update([(first + minute, first + minute, ARCHIVED, 5)], after=minute * MINUTE, count=0)


ACCEPTED = update([(100, 100, ACKNOWLEDGED, 1)], after=6 * MINUTE)


@pytest.mark.parametrize(
    ("records", "verdict"),
    some_of([
        ([*map(given_up, range(30))], "GIVING_UP"),
        ([*map(given_up, range(10))], "OK"),
        # An acknowledgement ends it, and it may begin again.
        ([*map(given_up, range(30)), update([(100, 100, ACKNOWLEDGED, 1)], after=31 * MINUTE)], "OK"),
        ([*map(given_up, range(5)), ACCEPTED, *map(given_up, range(7, 30))], "GIVING_UP"),
        ([update([(minute, minute, ARCHIVED, 1)], after=minute * MINUTE) for minute in range(30)], "GIVING_UP"),
        ([update([(0, 9, AVAILABLE, minute)], after=minute * MINUTE) for minute in range(4)], "OK"),
    ], 1),
)  # fmt: skip
def test_a_group_that_only_gives_up_has_a_verdict(cli: Command, tmp_path: Path, records: list, verdict: str):
    log_with(tmp_path / "in", snapshot(), *records)
    said = cli("audit", tmp_path / "in", "--out", tmp_path / "w", "--quiet", "--json", "--fail-on", "off")
    assert (said.code, [row["verdict"] for row in history(tmp_path / "w")]) == (0, [verdict])
    if verdict == "GIVING_UP" and len(records) == 30:
        (row,) = history(tmp_path / "w")
        text = "30 records were given up or rejected, and none was acknowledged for 29 min"
        assert row["reason"] == text
    stream = ("stream", tmp_path / "in", "--out", tmp_path / "live", "--once", "--quiet", "--fail-on", "off")
    assert cli(*stream).code == 0
    (live,) = history(tmp_path / "live")
    assert (live["verdict"], "since the last audit" in (live["reason"] or "")) == (verdict, False)
    # What the last audit has reported is over.
    log_with(tmp_path / "next", snapshot(), *records, update([(200, 200, AVAILABLE, 1)], after=60 * MINUTE))
    shutil.rmtree(tmp_path / "in")
    (tmp_path / "next").rename(tmp_path / "in")
    cli(
        "audit",
        tmp_path / "in",
        "--out",
        tmp_path / "w",
        "--quiet",
        "--fail-on",
        "off",
        "--set",
        "limits.stall_minutes=999",
    )
    assert [row["verdict"] for row in history(tmp_path / "w")] == ["OK"]


@pytest.mark.parametrize("later", some_of([([(3, 3, AVAILABLE, 1)], 50), ()], 1), ids=repr)
def test_one_stall_has_one_duration(cli: Command, tmp_path: Path, later: Any):
    """The group was idle for two days, so the time since SPSO moved is not that since the first delivery."""
    idle, source = 2 * 24 * 60 * MINUTE, tmp_path / "in"
    records = [
        snapshot(),
        update([(2, 2, ACKNOWLEDGED, 1)], count=1, after=idle),
        update([(1, 1, ACKNOWLEDGED, 1)], count=2, after=idle + 45 * MINUTE),
        # SPSO waits for records that are known, with which a verdict is STALL.
        *([update([(0, 0, AVAILABLE, 1), *later[0]], count=2, after=idle + later[1] * MINUTE)] if later else ()),
    ]
    log_with(source, *records)
    span, seconds = "2 d", float((idle + (later or (0, 45))[1] * MINUTE) // 1000)
    audit = ("audit", source, "--out", tmp_path / "w", "--prometheus", tmp_path / "m.prom", "--fail-on", "off")
    report = cli(*audit, "--json", "--quiet").json
    assert f"has not moved for {span}," in str([one for one in report["findings"] if one["rule"] == "SPSO_STALL"])
    (row,) = history(tmp_path / "w")
    if later:
        assert row["reason"] == f"2 records wait, and SPSO has stayed at 0 for {span}"
    metric = re.search(r"start_offset_unmoved_seconds\{.*\} (\S+)", (tmp_path / "m.prom").read_text())
    assert metric is not None
    assert float(metric[1]) == seconds
    assert re.search(rf"^(warning|STALL) .* {span}  ", cli(*audit).out, re.MULTILINE)
    assert f", for {span}" in cli("why", "g", source).out
    assert f"for {span}" in cli("repair", source).out


def prefix(source: Path, target: Path, share: float) -> dict[int, int]:
    """Copy the first batches of each state partition; returns where each copy ends."""
    ends = {}
    for folder in sorted(source.glob("__share_group_state-*")):
        (segment,) = folder.glob("*.log")
        data, at, end = segment.read_bytes(), 0, 0
        while at < len(data) * share:
            size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            end = int.from_bytes(data[at : at + 8], "big") + int.from_bytes(data[at + 23 : at + 27], "big") + 1
            at += size
        (target / folder.name).mkdir(parents=True)
        (target / folder.name / segment.name).write_bytes(data[:at])
        ends[int(folder.name.rpartition("-")[2])] = end
    return ends


def expected(source: Path, begin: dict[int, int], end: dict[int, int], live: set[tuple]) -> Counter[str]:
    """Column -> sum over live share-partitions, offset by offset."""
    totals = Counter[str]()
    for number in end:
        records, _ = decoded(source / f"__share_group_state-{number}")
        rows = records.rows[records.rows["offset"] < end[number]]
        keys = int(rows["key"].max()) + 1
        for place, found in enumerate(outcomes(StateRecords(rows, records.batches), keys, 3, begin[number])):
            if (number, place) in live:
                totals.update({column: found[name] for column, name in OUTCOME_COLUMNS.items()})
    return totals


@nightly("four audits; tests/pipeline/test_group_outcomes sums them")
@pytest.mark.parametrize("name", by_profile(["4.4.0/dlq"], ["4.3.1/chaos", "4.4.0/dlq", "4.1.2/happy"]))
def test_deliveries_are_counted_since_the_last_audit(cli: Command, tmp_path: Path, name: str):
    source, before, nights = DATA / name, dict[int, int](), list[Counter[str]]()
    for night, share in enumerate((0.3, 0.6, 1.0)):
        place = tmp_path / f"night-{night}"
        end = prefix(source, place, share)
        cli("audit", place, "--out", tmp_path / "w", "--quiet", "--fail-on", "off", "--set", "limits.delivery_count=3")
        rows = history(tmp_path / "w")
        live = _live(source, rows)
        nights.append(Counter({column: sum(row[column] for row in rows) for column in OUTCOME_COLUMNS}))
        assert nights[-1] == expected(source, {number: before.get(number, 0) for number in end}, end, live)
        before = end
    assert nights[2].total() > 0
    # Reading all anew counts no more than what is new: nothing.
    cli("audit", place, "--out", tmp_path / "w", "--quiet", "--fail-on", "off", "--afresh")
    assert {row[column] for row in history(tmp_path / "w") for column in OUTCOME_COLUMNS} == {0}


def _live(source: Path, rows: list[dict]) -> set[tuple]:
    """The numbers of the share-partitions that the history has."""
    known, live = {(row["group_id"], row["topic_id"], row["partition"]) for row in rows}, set[tuple]()
    for log in find_logs([str(source)]):
        folded = fold_log(log)
        columns = folded.key_columns(np.arange(len(folded.keys)), Topics())
        keys = zip(*(columns[name].to_pylist() for name in ("group_id", "topic_id", "partition")), strict=True)
        live |= {(log.partition, number) for number, key in enumerate(keys) if key in known}
    return live


@nightly("two audits")
def test_a_warehouse_of_before_gets_the_new_columns(cli: Command, tmp_path: Path):
    """The history of an earlier release lacks them: its rows have nulls, and the next audit adds them."""
    place = tmp_path / "half"
    prefix(DATA / "4.3.1/chaos", place, 0.5)
    cli("audit", place, "--out", tmp_path / "w", "--quiet", "--fail-on", "off")
    table = tmp_path / "w/share_partition_history"
    rows = DeltaTable(str(table)).to_pyarrow_table().drop_columns([*OUTCOME_COLUMNS])
    shutil.rmtree(table)
    write_deltalake(str(table), rows)
    said = cli("audit", DATA / "4.3.1/chaos", "--out", tmp_path / "w", "--quiet", "--fail-on", "off", "--json")
    assert said.code == 0
    assert said.json["deliveries"]
    every = WrittenTables(tmp_path / "w").read("share_partition_history")
    assert 0 < every["acknowledged_records"].null_count < len(every)
    assert cli("show", tmp_path / "w").code == 0
