"""A screenful on the terminal whatever the size of the trouble, and the same for programs."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from share_state.report.audit_data import AuditReport, read_report
from share_state.report.audit_text import audit_json, print_audit
from share_state.report.console import print_json
from tests.report.made_warehouse import TONIGHT, MadeWarehouse, cutoff, finding, share_partition

STATUSES = ("REWIND+error", "STOP", "suspect", "STALL", "error", "warning", "info")


@pytest.fixture
def made(tmp_path: Path) -> MadeWarehouse:
    return MadeWarehouse(tmp_path / "w")


def _lines(report: AuditReport, capsys: pytest.CaptureFixture[str], written: tuple[str, ...] = ()) -> list[str]:
    print_audit(report, written)
    return capsys.readouterr().out.splitlines()


def test_a_healthy_audit_is_a_few_lines(made: MadeWarehouse, capsys: pytest.CaptureFixture[str]):
    made.audit([share_partition(f"g{n}") for n in range(3)], [], [cutoff(1), cutoff(2)])
    read = "2,222 records of 2 log partitions read in 4.5 s; newest record: 2026-11-21 02:00:00 UTC"
    assert _lines(read_report(str(made.folder), "prod-eu"), capsys, ("a.html",)) == [
        f"audit of prod-eu, run run-1: {read}",
        "all 3 share-partitions are OK, no errors, no warnings; the newest record was 10 s old",
        "status: 3 OK",
        "no findings",
        "cutoff: 1,000 redundant records (82.0 kB) in 2 log partitions; "
        "group orders-app alone holds back 20 more records",
        "written: a.html",
        f"tables are in {made.folder}: `share-state show {made.folder}`",
    ]


def test_the_worst_share_partitions_and_the_gravest_rules_are_named(
    troubled: AuditReport, capsys: pytest.CaptureFixture[str]
):
    lines = _lines(troubled, capsys)
    assert "status: 1 REWIND+error, 1 STOP, 1 suspect, 13 STALL, 21 OK" in lines
    worst = [line.split()[0] for line in lines if line.split()[0] in ("REWIND+error", "STOP", "suspect", "STALL")]
    assert worst == ["REWIND+error", "STOP", "suspect", "STALL", "STALL"]
    assert "54,000" in next(line for line in lines if line.startswith("REWIND"))
    assert any("and 11 more share-partitions that need attention" in line for line in lines)
    severities = [line.split()[0] for line in lines if line.split()[0] in ("error", "warning", "info")]
    assert severities == ["error", *["warning"] * 5, "info"]
    assert "note: the log of partition 4 <began> again" in lines
    at = next(number for number, line in enumerate(lines) if line.startswith("next: "))
    assert lines[at].startswith("next: 1 share-partition with REWIND: billing kT5v0sG1RCqQ0m7yq0nXaw-3: the start")
    assert lines[at + 1].startswith("      Check whether the group's offsets were reset")
    assert lines[at + 2].startswith("      share-state why billing ")
    assert lines[at + 2].endswith(" --topic kT5v0sG1RCqQ0m7yq0nXaw --partition 3")
    assert lines[at + 3].startswith("      share-state repair ")
    assert lines[at + 3].endswith(" --group billing")
    (cleaned,) = [line for line in lines if line.startswith("cutoff: ")]
    assert "1 of them unsafe" in cleaned
    assert "<i>pin</i> alone holds back 48,000 more records" in cleaned


def test_a_number_that_is_not_known_is_a_hyphen(made: MadeWarehouse, capsys: pytest.CaptureFixture[str]):
    made.audit([share_partition("g", start_offset=-1, verdict="STOP", reason="x", moved_time=None)])
    (row,) = [line for line in _lines(read_report(str(made.folder)), capsys) if line.startswith("STOP")]
    assert row.split() == ["STOP", "g", "orders", "0", "-", "-", "-", "x"]


def test_each_share_partition_counts_once_under_its_gravest_status(
    made: MadeWarehouse, capsys: pytest.CaptureFixture[str]
):
    rows = [
        share_partition("fine"),
        share_partition("stalled", verdict="STALL", reason="12 records wait"),
        share_partition("broken"),
        share_partition("both", verdict="STALL", reason="9 records wait"),
        share_partition("warned"),
        share_partition("suspect", suspect=True),
    ]
    found = [
        finding("BASE_LOST", "error", "the log starts at 7, after the snapshot", rows[2]),
        finding("BASE_LOST", "error", "the log starts at 8, after the snapshot", rows[3]),
        *(finding("LONG_CHAIN", "warning", f"{n} updates follow", rows[4]) for n in (500, 501)),
        *(finding("OFFSET_GAP", "warning", f"the gap {n}", rows[5]) for n in (1, 2)),
    ]
    made.audit(rows, found)
    report = read_report(str(made.folder))
    assert report.statuses == {"STALL+error": 1, "error": 1, "STALL": 1, "suspect": 1, "warning": 1, "OK": 1}
    assert list(report.statuses) == ["STALL+error", "error", "suspect", "STALL", "warning", "OK"]
    assert [(one.status, one.now["group_id"]) for one in report.flagged] == [
        ("STALL+error", "both"),
        ("error", "broken"),
        ("suspect", "suspect"),
        ("STALL", "stalled"),
        ("warning", "warned"),
    ]
    assert [one.why for one in report.flagged] == [
        "STATE_SUSPECT: the log starts at 8, after the snapshot",
        "STATE_SUSPECT: the log starts at 7, after the snapshot",
        "2 findings, the worst: the gap 1",
        "12 records wait",
        "500 updates follow",
    ]
    lines = _lines(report, capsys)
    assert "status: 1 STALL+error, 1 error, 1 suspect, 1 STALL, 1 warning, 1 OK" in lines
    (first,) = [line for line in lines if line.startswith("next: ")]
    worst = "the worst is both orders-0: the log starts at 8, after the snapshot"
    assert first == f"next: 3 share-partitions with STATE_SUSPECT: {worst}."


def test_names_of_topics_that_are_known_stand_for_their_ids(made: MadeWarehouse):
    pinned = {"pinned_records": 48_000, "limited_by_group": "g"}
    made.audit([share_partition("g")], [], [cutoff(1, **pinned), cutoff(2, limited_by_topic_id="deleted")])
    report = read_report(str(made.folder))
    assert [row["limited_by_topic"] for row in report.cutoffs] == ["orders", None]
    assert "g orders-0 alone holds back 48,000 records" in audit_json(report)["advice"][0]["what"]


def test_no_audit_fills_more_than_thirty_lines(made: MadeWarehouse, capsys: pytest.CaptureFixture[str]):
    endless = "very " * 200 + "long\nname"
    rows = [share_partition(f"{endless}{n}", n, endless, verdict="STOP", reason=endless) for n in range(300)]
    found = [finding(f"RULE_{n}", "error", endless, rows[n]) for n in range(60)]
    cutoffs = [cutoff(n, safe=False, reason=endless, limited_by_group=endless) for n in range(90)]
    made.audit(rows, found, cutoffs, notes=[endless] * 40)
    lines = _lines(read_report(str(made.folder), "prod"), capsys, tuple(f"{n}.html" for n in range(9)))
    assert len(lines) <= 30
    assert max(len(line) for line in lines) <= 480
    assert all(character.isprintable() for line in lines for character in line)


def test_at_eighty_columns_a_row_has_its_numbers_and_its_reason_is_below_it(
    troubled: AuditReport, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in _lines(troubled, capsys)]
    header = next(number for number, line in enumerate(lines) if line.startswith("STATUS"))
    assert lines[header].split() == ["STATUS", "GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"]
    rewound, reason = lines[header + 1].split(), lines[header + 2]
    assert rewound[:4] == ["REWIND+error", "billing", "kT5v0sG1RC...", "3"]
    flagged = troubled.flagged[0]
    assert rewound[4:] == [f"{flagged.now['start_offset']:,}", "-"]
    assert flagged.now["lag"] is None
    assert reason.strip().removesuffix("...") in flagged.why
    rows = [line for line in lines if line.split()[0] in STATUSES]
    assert len(rows) == 3 + 3
    assert max(map(len, rows)) <= 80
    assert any("and 13 more share-partitions that need attention" in line for line in lines)
    assert sum(-(-len(line) // 80) for line in lines) <= 30


def test_one_line_says_what_became_of_deliveries_and_where_most_fail(
    made: MadeWarehouse, capsys: pytest.CaptureFixture[str]
):
    names = ("given_up_records", "rejected_records", "released_records", "dead_lettered_records")
    none: dict[str, Any] = dict.fromkeys(names, 0)
    busy: dict[str, Any] = none | {"acknowledged_records": 1200, "given_up_records": 50, "released_records": 250}
    rows = [
        share_partition("fine", acknowledged_records=40_000, **none),
        share_partition("busy", **busy),
    ]
    made.audit(rows)
    lines = _lines(read_report(str(made.folder)), capsys)
    counted = "41,200 acknowledged, 50 given up, 250 released; failed deliveries: busy 300 of 1,500"
    assert f"in the whole log: {counted}" in lines
    made.audit(rows, run_id="run-1b")
    assert f"since the last audit: {counted}" in _lines(read_report(str(made.folder)), capsys)
    made.audit([share_partition("unknown")], run_id="run-2")
    assert not any(line.startswith("since") for line in _lines(read_report(str(made.folder)), capsys))


def test_programs_get_the_same_as_people(troubled: AuditReport, capsys: pytest.CaptureFixture[str]):
    print_json(audit_json(troubled))
    told = json.loads(capsys.readouterr().out)
    assert told["verdicts"] == dict(troubled.verdicts)
    assert told["findings_by_severity"] == {"error": 1, "warning": 44, "info": 1}
    assert (told["failing"], told["healthy"], told["cluster"]) == (1, False, "prod-eu")
    assert told["share_partitions"] == troubled.live
    assert [one["now"]["group_id"] for one in told["troubled"]] == [one.now["group_id"] for one in troubled.flagged]
    (rewound,) = [one for one in told["troubled"] if one["now"]["verdict"] == "REWIND"]
    assert [night["start_offset"] for night in rewound["history"]] == [80_000 + n * 500 for n in range(8)] + [54_000]
    assert rewound["state"]["snapshot_offset"] == 30
    assert rewound["now"]["time"] == (TONIGHT + timedelta(days=8)).isoformat()
    assert told["cutoff"][0]["reason"] == "a state is suspect"
    assert told["poison"]["records"] == troubled.poison.records > 0
    assert told["run"]["table_versions"] == dict(troubled.run["table_versions"])
    assert told["advice"][0]["severity"] == "error"
