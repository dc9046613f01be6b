"""The report holds what the tables of the latest audit say, and nothing that was not committed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from share_state.config.model import Acknowledged
from share_state.delta.committed import CommittedTables
from share_state.errors import WarehouseError
from share_state.fold.history import VERDICTS
from share_state.fold.limits import Limits
from share_state.fold.state_log import fold_log
from share_state.fold.states import KEY
from share_state.report import share_partitions
from share_state.report.audit_data import AuditReport, read_report
from share_state.report.audit_text import advice, audit_level, headline
from share_state.report.share_partitions import add_topic_key, latest_audit_filter, latest_share_partitions
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import find_logs
from tests.profiles import some_of
from tests.report.made_warehouse import (
    IN_FLIGHT,
    TONIGHT,
    MadeWarehouse,
    cutoff,
    finding,
    share_partition,
)
from tests.truth import DATA


@pytest.fixture
def made(tmp_path: Path) -> MadeWarehouse:
    return MadeWarehouse(tmp_path / "w")


def _read(made: MadeWarehouse, **how: Any) -> AuditReport:
    return read_report(str(made.folder), **how)


def _keys(report: AuditReport) -> list[tuple[str, int]]:
    return [(one.now["group_id"], one.now["partition"]) for one in report.flagged]


def test_a_healthy_warehouse_needs_no_look(made: MadeWarehouse):
    made.audit([share_partition(f"g{n}") for n in range(3)], [finding("UNKNOWN_TAG", "info", "x")], [cutoff()])
    report = _read(made)
    assert report.is_healthy
    assert (report.verdicts, report.flagged) == (dict.fromkeys(VERDICTS, 0) | {"OK": 3}, ())
    assert report.by_severity == {"error": 0, "warning": 0, "info": 1}


def test_what_was_not_committed_is_not_read(made: MadeWarehouse):
    sick = share_partition(verdict="STOP", ranges=IN_FLIGHT)
    made.audit([sick], [finding("OFFSET_GAP", "warning", "kept", sick)], [cutoff()])
    before = _read(made)
    for table in ("findings", "in_flight", "share_partition_state", "share_partition_history", "cutoff"):
        write_deltalake(str(made.folder / table), table_schema(table).empty_table(), mode="overwrite")
    after = _read(made)
    assert (after.flagged, after.findings, after.cutoffs) == (before.flagged, before.findings, before.cutoffs)
    assert (after.live, after.verdicts) == (before.live, before.verdicts)
    assert after.live == 1
    assert after.flagged[0].findings[0]["message"] == "kept"


def test_a_folder_without_an_audit_is_refused(made: MadeWarehouse):
    with pytest.raises(WarehouseError, match="no warehouse here"):
        _read(made)
    made.audit([share_partition()], table_versions={"findings": 0})
    with pytest.raises(WarehouseError, match="run `share-state audit`"):
        _read(made)


def test_a_table_that_is_gone_is_named_in_one_line(made: MadeWarehouse):
    made.audit([share_partition()])
    (made.folder / "in_flight").rename(made.folder / "elsewhere")
    with pytest.raises(WarehouseError, match=r"in_flight: cannot be read .*; run the audit again$") as refused:
        _read(made)
    assert len(str(refused.value).splitlines()) == 1


def test_the_worst_come_first(made: MadeWarehouse):
    warned, fine = share_partition("warned"), share_partition("fine")
    rows = [
        fine,
        warned,
        share_partition("suspect", suspect=True),
        share_partition("stalled", verdict="STALL"),
        share_partition("stalled-with-poison", verdict="STALL", poison_records=3),
        share_partition("stopped", verdict="STOP"),
        share_partition("newer", verdict="SOMETHING"),
        share_partition("rewound", verdict="REWIND"),
    ]
    made.audit(rows, [finding("LONG_CHAIN", "warning", "x", warned), finding("UNKNOWN_TAG", "info", "y", fine)])
    report = _read(made)
    worst = ["rewound", "stopped", "suspect", "stalled-with-poison", "stalled", "newer", "warned"]
    assert [group for group, _ in _keys(report)] == worst
    assert report.verdicts["SOMETHING"] == 1


def test_no_more_are_looked_at_than_asked_for(made: MadeWarehouse):
    made.audit([share_partition("g", n, verdict="STOP", ranges=IN_FLIGHT) for n in range(7)])
    report = _read(made, most=3)
    assert (_keys(report), report.flagged_left_out) == ([("g", 0), ("g", 1), ("g", 2)], 4)
    assert len(report.poison.worst) == 3


def test_ranges_and_state_are_those_of_the_share_partition_itself(made: MadeWarehouse):
    sick = share_partition("g", 1, verdict="STALL", ranges=IN_FLIGHT)
    namesake = share_partition("g", 1, topic_id="another-id", verdict="STALL", ranges=[(100, 100, "ACKNOWLEDGED")])
    made.audit([sick, namesake, share_partition("h", 1, ranges=[(7, 9, "AVAILABLE")], start_offset=7)])
    first, second = _read(made).flagged
    assert [(one["first_offset"], one["last_offset"]) for one in first.ranges] == [one[:2] for one in IN_FLIGHT]
    assert first.state is not None
    assert (first.state["snapshot_epoch"], first.state["topic_id"]) == (3, "id-of-orders")
    assert {
        state: first.now[state] for state in ("available", "acknowledged", "archiving", "archived", "acquired")
    } == {
        "available": 4 + 9 + 20,
        "acknowledged": 27,
        "archiving": 2,
        "archived": 11,
        "acquired": 0,
    }
    assert (second.now["topic_id"], second.now["acknowledged"], len(second.ranges)) == ("another-id", 1, 1)


def test_a_window_of_very_many_ranges_is_cut_from_its_start(made: MadeWarehouse):
    ranges = [(n, n, "AVAILABLE" if n % 2 else "ACKNOWLEDGED") for n in range(2500)]
    made.audit([share_partition(verdict="STOP", start_offset=0, ranges=ranges)])
    (one,) = _read(made).flagged
    assert (one.now["ranges"], len(one.ranges), one.ranges[-1]["last_offset"]) == (2500, 2000, 1999)


def test_what_is_not_initialised_has_no_numbers(made: MadeWarehouse):
    made.audit([share_partition(start_offset=-1, verdict="STOP")])
    (one,) = _read(made).flagged
    assert (one.now["available"], one.now["ranges"], one.now["end_offset"]) == (None, None, None)


def test_history_goes_over_all_runs_even_where_the_topic_got_its_name_late(made: MadeWarehouse):
    for night in range(4):
        row = share_partition(
            "g",
            topic="orders" if night > 1 else None,
            topic_id="an-id",
            start_offset=night * 10,
            lag=night,
            verdict="STALL" if night == 3 else "OK",
        )
        made.audit([row, share_partition("h")], run_id=f"run-{night}", time=TONIGHT + timedelta(days=night))
    report = _read(made)
    (one,) = report.flagged
    assert [(night["start_offset"], night["lag"], night["verdict"]) for night in one.history] == [
        (0, 0, "OK"),
        (10, 1, "OK"),
        (20, 2, "OK"),
        (30, 3, "STALL"),
    ]
    assert [run["run_id"] for run in report.runs] == ["run-3", "run-2", "run-1", "run-0"]
    assert report.live == 2


def test_an_audit_without_news_shows_what_the_one_before_it_saw(made: MadeWarehouse):
    sick = share_partition(verdict="STOP")
    made.audit([sick], run_id="first")
    made._write("runs", [_run_without_news(made)], "append")
    report = _read(made)
    assert (report.run["run_id"], report.verdicts["STOP"]) == ("second", 1)


def test_deleted_share_partitions_do_not_come_back(made: MadeWarehouse):
    made.audit([share_partition(verdict="STOP")], run_id="first")
    made.audit([], run_id="second", time=TONIGHT + timedelta(days=1))
    report = _read(made)
    assert (report.live, report.flagged) == (0, ())


def _run_without_news(made: MadeWarehouse) -> dict[str, object]:
    late = TONIGHT + timedelta(hours=5)
    versions = dict(made.versions)
    return {"run_id": "second", "started": late, "finished": late, "table_versions": versions, "log_time": TONIGHT}


def test_findings_are_counted_by_rule_the_gravest_first(made: MadeWarehouse):
    first, second = share_partition("g", 1), share_partition("g", 2)
    found = [
        *(finding("LONG_CHAIN", "warning", f"{n} updates", first, run_id="before", offset=n) for n in range(5)),
        *(finding("LONG_CHAIN", "warning", f"{n} updates", second, offset=n) for n in range(2)),
        finding("CRC_MISMATCH", "error", "batch at 3", offset=3),
        *(finding("UNKNOWN_TAG", "info", "tag 9", first) for _ in range(9)),
        finding("NEWER_RULE", "info", "from another version"),
    ]
    made.audit([first, second], found)
    report = _read(made)
    assert [(one.rule, one.severity, one.count, one.new) for one in report.findings] == [
        ("CRC_MISMATCH", "error", 1, 1),
        ("LONG_CHAIN", "warning", 7, 2),
        ("UNKNOWN_TAG", "info", 9, 9),
        ("NEWER_RULE", "info", 1, 1),
    ]
    crc, chain, _, newer = report.findings
    assert (crc.statement != "", newer.statement) == (True, "")
    # One example a share-partition, the ones that are new in this run first.
    assert [(one["partition"], one["message"]) for one in chain.examples] == [(2, "0 updates"), (1, "0 updates")]
    assert crc.examples[0]["group_id"] is None
    assert [(one.now["partition"], one.now["warnings"], one.findings[0]["count"]) for one in report.flagged] == [
        (1, 5, 5),
        (2, 2, 2),
    ]


def test_a_run_fails_by_its_new_findings_from_the_chosen_severity_on(made: MadeWarehouse):
    found = [finding("OFFSET_GAP", "warning", "x"), finding("CRC_MISMATCH", "error", "y")]
    made.audit([share_partition()], found)
    for fail_on, failing in (("error", 1), ("warning", 2), ("info", 2), ("off", 0)):
        assert _read(made, fail_on=fail_on).failing == failing
    # Nothing new: what was found before stands; it fails the run only if every run evaluates it.
    for is_settled, failing in ((True, 0), (False, 1)):
        made.audit([share_partition()], [row | {"run_id": "run-1", "settled": is_settled} for row in found], run_id="2")
        assert _read(made).failing == failing


def test_poison_is_what_waits_for_its_last_delivery_or_was_archived_by_the_limit(made: MadeWarehouse):
    ranges = [
        (100, 100, "AVAILABLE", 4),
        (101, 102, "AVAILABLE", 3),
        (103, 105, "ARCHIVED", 5),
        (106, 106, "ARCHIVED", 4),
        (107, 107, "ACKNOWLEDGED", 5),
        (108, 109, "ARCHIVING", 5),
        (110, 110, "gap", 0),
    ]
    made.audit([share_partition(ranges=ranges)])
    poison = _read(made).poison
    assert (poison.records, poison.waiting, poison.ranges) == (1 + 3 + 2, 1 + 2, 3)
    assert [(one["first_offset"], one["delivery_count"]) for one in poison.worst] == [(103, 5), (108, 5), (100, 4)]
    assert _read(made, limits=Limits(delivery_count=6)).poison.records == 2
    # The log shows five deliveries, so the limit of 1 is not the writer's.
    assert _read(made, limits=Limits(delivery_count=1)).poison.records == poison.records


def test_the_cutoff_that_is_not_safe_comes_first_then_the_one_that_is_held_back_most(made: MadeWarehouse):
    rows = [cutoff(1), cutoff(2, pinned_records=900), cutoff(3, pinned_records=None), cutoff(4, safe=False, reason="x")]
    made.audit([share_partition()], [], rows)
    report = _read(made)
    assert [row["partition"] for row in report.cutoffs] == [4, 2, 1, 3]
    assert not report.is_healthy


def test_share_partitions_of_the_draft_dialect_are_told_apart_by_their_topic(made: MadeWarehouse):
    draft = {"dialect": "control_records", "topic_id": None}
    rows = [
        share_partition("g", 0, "t1", verdict="STALL", ranges=[(100, 104, "AVAILABLE")], **draft),
        share_partition("g", 0, "t2", verdict="STALL", ranges=[(100, 109, "AVAILABLE")], **draft),
    ]
    made.audit(rows, [finding("LONG_CHAIN", "warning", "x", rows[1])])
    first, second = _read(made).flagged
    assert {one.now["topic"]: (one.now["available"], len(one.findings)) for one in (first, second)} == {
        "t1": (5, 0),
        "t2": (10, 1),
    }


def test_the_worst_are_the_worst_of_all_however_few_are_looked_at_at_a_time(
    made: MadeWarehouse, monkeypatch: pytest.MonkeyPatch
):
    verdicts = ["OK", "STOP", "STALL", "OK", "REWIND", "OK", "STALL", "NEW_WORD"]
    rows = [share_partition(f"g{n}", n, verdict=one, waiting_records=n) for n, one in enumerate(verdicts)]
    made.audit(rows, [finding("LONG_CHAIN", "warning", "x", rows[0])])
    at_once = _read(made, most=4)
    monkeypatch.setattr(share_partitions, "_PENDING_ROWS", 1)
    batches = CommittedTables.batches
    monkeypatch.setattr(CommittedTables, "batches", lambda *given: map_rows(batches(*given)))
    one_by_one = _read(made, most=4)
    assert [one.now["verdict"] for one in at_once.flagged] == ["REWIND", "STOP", "STALL", "STALL"]
    assert (at_once.live, at_once.flagged_left_out, at_once.verdicts["STALL"]) == (8, 2, 2)
    assert (one_by_one.flagged, one_by_one.flagged_left_out) == (at_once.flagged, 2)
    assert (one_by_one.live, one_by_one.verdicts) == (at_once.live, at_once.verdicts)


def map_rows(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    return (table.slice(row, 1) for table in tables for row in range(table.num_rows))


def test_the_report_of_a_real_broker_s_log_says_what_the_fold_says(made: MadeWarehouse):
    logs = [fold_log(log) for log in find_logs([str(DATA / "4.3.1/chaos")])]
    flights = [row for log in logs for row in log.in_flight.to_pylist()]
    states = [row for log in logs for row in log.states.to_pylist()]
    own = {_key(row): [one for one in flights if _key(one) == _key(row)] for row in states}
    made.audit([share_partition() | row | {"flights": own[_key(row)], "lag": None} for row in states])
    report = _read(made)
    assert report.is_healthy
    wanted = add_topic_key(report.tables.read("share_partition_state", columns=KEY))
    rows = latest_share_partitions(report.tables, latest_audit_filter(report.tables), wanted).to_pylist()
    assert report.live == len(rows) == len(states)
    for row in rows:
        for state in ("available", "acquired", "acknowledged", "archiving", "archived"):
            told = sum(one["record_count"] for one in own[_key(row)] if one["state"] == state.upper())
            assert row[state] == (None if row["start_offset"] is None else told)
    assert sum(row["archived"] or 0 for row in rows)


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["group_id"], row["topic_id"], row["partition"])


def test_a_verdict_fails_the_run_from_the_chosen_one_on(made: MadeWarehouse):
    verdicts = ["OK", "STALL", "STALL", "STOP", "REWIND"]
    made.audit([share_partition("g", n, verdict=verdict, reason="x") for n, verdict in enumerate(verdicts)])
    for chosen, failing in (("none", 0), ("STALL", 4), ("STOP", 2), ("REWIND", 1)):
        report = _read(made, fail_on_verdict=chosen)
        assert (report.failing_verdicts, report.failing) == (failing, 0)


def _numbers(made: MadeWarehouse, **options: Any) -> dict[str, tuple[int, int, int]]:
    """Rule -> findings, new ones, open ones."""
    return {one.rule: (one.count, one.new, one.open) for one in _read(made, **options).findings}


def test_a_finding_is_new_if_the_run_before_did_not_find_it(made: MadeWarehouse):
    first, second = share_partition("g", 1), share_partition("g", 2)
    tail = finding("TORN_TAIL", "warning", "at 90", offset=90)
    made.audit([first, second], [finding("SPSO_STALL", "warning", "31 min", first, offset=41), tail])
    again = [finding("SPSO_STALL", "warning", "91 min", one, offset=77) for one in (first, second)]
    later = {"run_id": "run-2", "time": TONIGHT + timedelta(days=1)}
    made.audit([first, second], [*again, tail, finding("TORN_TAIL", "warning", "at 120", offset=120)], **later)
    assert _numbers(made) == {"SPSO_STALL": (2, 1, 2), "TORN_TAIL": (2, 1, 2)}
    # Found again in records that are read again, as after LOG_DIVERGED.
    crc = finding("CRC_MISMATCH", "error", "batch at 3", offset=3, settled=True)
    for night in (3, 4):
        made.audit([first], [crc], run_id=f"run-{night}", time=TONIGHT + timedelta(days=night))
        assert _numbers(made) == {"CRC_MISMATCH": (1, night == 3, 1)}


def test_without_the_files_of_the_run_before_every_finding_of_a_run_is_new(made: MadeWarehouse):
    for night in (1, 2):
        found = [finding("SPSO_STALL", "warning", "31 min", share_partition())]
        made.audit([share_partition()], found, run_id=f"run-{night}", time=TONIGHT + timedelta(days=night))
    assert _numbers(made) == {"SPSO_STALL": (1, 0, 1)}
    present = set(DeltaTable(str(made.folder / "findings")).file_uris())
    for file in (made.folder / "findings").glob("*.parquet"):
        if not any(uri.endswith(file.name) for uri in present):
            file.unlink()
    assert _numbers(made) == {"SPSO_STALL": (1, 1, 1)}


def test_an_error_leaves_the_headline_once_a_newer_snapshot_supersedes_it(made: MadeWarehouse):
    """MadeWarehouse has every snapshot at 30, and `cutoff` ends at 500."""
    kept, suspect = share_partition("g", 1), share_partition("g", 2, suspect=True)
    gone = share_partition("gone", 1)
    of_log = {"settled": True, "run_id": "old"}
    found = [
        finding("TERMINAL_STATE_LEFT", "error", "before the snapshot", kept, offset=29, **of_log),
        finding("START_OFFSET_REGRESSION", "error", "after the snapshot", kept, offset=31, **of_log),
        finding("SNAPSHOT_MISMATCH", "error", "of a state that is suspect", suspect, offset=29, **of_log),
        finding("STATE_EPOCH_REGRESSION", "error", "of a deleted share-partition", gone, offset=29, **of_log),
        finding("CRC_MISMATCH", "error", "before the cutoff", offset=499, **of_log),
        finding("BATCH_MALFORMED", "error", "after the cutoff", offset=500, **of_log),
        finding("KEY_MALFORMED", "error", "before the cutoff of a log that is not safe", state_partition=8, **of_log),
        finding("SPLIT_KEY", "error", "evaluated by every audit", kept, offset=29, run_id="old"),
        finding("ORPHAN_UPDATE", "error", "found by this run", kept, offset=29, settled=True),
    ]
    made.audit([kept, suspect], found, [cutoff(7), cutoff(8, safe=False, reason="x")])
    is_open = {rule: count for rule, (_, _, count) in _numbers(made).items()}
    superseded = {"TERMINAL_STATE_LEFT", "STATE_EPOCH_REGRESSION", "CRC_MISMATCH"}
    assert is_open == {row["rule"]: int(row["rule"] not in superseded) for row in found}
    report = _read(made)
    assert (report.by_severity["error"], report.failing) == (6, 2)
    assert [(one.now["partition"], one.now["errors"]) for one in report.flagged] == [(1, 3), (2, 1)]


@pytest.mark.parametrize(
    ("chosen", "left"),
    some_of(
        [
            ({}, 0),
            ({"group": "g", "partition": 1}, 2),
            ({"group": "g"}, 1),
            ({"topic": "orders"}, 1),
            ({"topic": "id-of-orders", "partition": 2}, 2),
            ({"state_partition": 8}, 2),
            ({"state_partition": 9}, 3),
        ],
        3,
    ),
)
def test_what_is_acknowledged_leaves_the_headline_and_the_exit_code(made: MadeWarehouse, chosen: dict, left: int):
    about = [share_partition("g", 1), share_partition("g", 2), None]
    found = [finding("CRC_MISMATCH", "error", "x", one, state_partition=7 if one else 8) for one in about]
    made.audit([one for one in about if one], [*found, finding("OFFSET_GAP", "warning", "y")])
    report = _read(made, acknowledged=[Acknowledged(rule="CRC_MISMATCH", **chosen)])
    assert (report.by_severity["error"], report.failing) == (left, left)
    assert {one.rule: one.count for one in report.findings} == {"CRC_MISMATCH": 3, "OFFSET_GAP": 1}
    assert len(CommittedTables(str(made.folder)).read("findings")) == 4


@pytest.mark.parametrize(("until", "left"), [(None, 0), (TONIGHT.date(), 0), (TONIGHT.date() - timedelta(days=1), 1)])
def test_an_acknowledgement_ends_after_its_last_day(made: MadeWarehouse, until: date | None, left: int):
    made.audit([share_partition("g")], [finding("CRC_MISMATCH", "error", "x")])
    assert _read(made, acknowledged=[Acknowledged(rule="CRC_MISMATCH", until=until)]).failing == left
    stopped = share_partition("g", verdict="STOP", reason="9 records wait")
    made.audit([stopped], run_id="run-2")
    report = _read(made, acknowledged=[Acknowledged(verdict="STOP", until=until)], fail_on_verdict="STOP")
    assert (report.failing_verdicts, len(report.flagged)) == (left, left)


@pytest.mark.parametrize(
    ("chosen", "left"),
    some_of([({}, 0), ({"group": "g"}, 1), ({"group": "g", "partition": 2}, 2), ({"topic": "payments"}, 2)], 2),
)
def test_an_acknowledged_verdict_leaves_headline_level_and_exit_code(made: MadeWarehouse, chosen: dict, left: int):
    stopped = [
        share_partition("g", 1, verdict="STOP", reason="9 records wait"),
        share_partition("g", 2, verdict="STOP", reason="8 records wait"),
        share_partition("h", 1, "payments", verdict="STOP", reason="7 records wait"),
        share_partition("h", 2, "payments"),
    ]
    made.audit(stopped)
    report = _read(made, acknowledged=[Acknowledged(verdict="STOP", **chosen)], fail_on_verdict="STOP")
    assert (report.failing_verdicts, len(report.flagged), report.open_verdicts["STOP"]) == (left, left, left)
    assert report.verdicts["STOP"] == 3
    assert report.open_verdicts["OK"] == 4 - left
    assert audit_level(report) == ("error" if left else "ok")
    assert headline(report).startswith(f"{left} of 4 share-partitions" if left else "all 4 share-partitions are OK")
    # A finding about it still counts.
    made.audit(stopped, [finding("BASE_LOST", "error", "x", stopped[0])], run_id="run-2")
    report = _read(made, acknowledged=[Acknowledged(verdict="STOP")], fail_on_verdict="STOP")
    assert [(one.status, one.now["partition"]) for one in report.flagged] == [("error", 1)]


@pytest.mark.parametrize("mild", ["NO_MEMBERS", "GIVING_UP"])
def test_a_mild_verdict_needs_attention_and_fails_only_where_it_is_asked_for(made: MadeWarehouse, mild: str):
    made.audit([share_partition("g", verdict=mild, reason="467 records wait"), share_partition("h")])
    report = _read(made, fail_on_verdict="STALL")
    assert (report.failing_verdicts, [one.status for one in report.flagged]) == (0, [mild])
    assert audit_level(report) == "warning"
    assert next(iter(advice(report))).what.startswith(f"1 share-partition with {mild}: ")
    assert _read(made, fail_on_verdict=mild).failing_verdicts == 1


def test_whatever_else_is_wrong_comes_before_a_group_without_members(made: MadeWarehouse):
    rows = [share_partition(name, verdict="NO_MEMBERS", reason="9 records wait") for name in ("empty", "warned", "bad")]
    rows.append(share_partition("only-warned"))
    found = [
        finding("LONG_CHAIN", "warning", "500 updates follow", rows[1]),
        finding("BASE_LOST", "error", "the log starts at 7", rows[2]),
        finding("LONG_CHAIN", "warning", "501 updates follow", rows[3]),
    ]
    made.audit(rows, found)
    report = _read(made)
    assert [(one.status, one.now["group_id"], one.why) for one in report.flagged] == [
        ("error", "bad", "STATE_SUSPECT: the log starts at 7"),
        ("warning", "only-warned", "501 updates follow"),
        ("warning", "warned", "500 updates follow"),
        ("NO_MEMBERS", "empty", "9 records wait"),
    ]


def test_deliveries_are_summed_by_group_those_that_gave_up_most_first(made: MadeWarehouse):
    counts: dict[str, Any] = {
        "acknowledged_records": 40,
        "given_up_records": 2,
        "rejected_records": 1,
        "released_records": 5,
    }
    rows = [
        share_partition("fine", acknowledged_records=900, given_up_records=0, rejected_records=0, released_records=3,
                        dead_lettered_records=0),
        share_partition("busy", 1, **counts, dead_lettered_records=3),
        share_partition("busy", 2, **counts, dead_lettered_records=0),
        share_partition("unknown"),
    ]  # fmt: skip
    made.audit(rows)
    found = [asdict(one) for one in _read(made).deliveries]
    assert [one["group_id"] for one in found] == ["busy", "fine"]
    assert found[0] == {"group_id": "busy", "acknowledged": 80, "given_up": 4, "rejected": 2, "released": 10,
                        "dead_lettered": 3}  # fmt: skip
    # An audit with nothing new wrote no rows: nothing happened since the one before.
    made._write("runs", [{"run_id": "run-2", "started": TONIGHT, "finished": TONIGHT, "command": "audit",
                          "table_versions": dict(made.versions), "options": {}, "progress": {}, "findings": {},
                          "notes": [], "log_time": TONIGHT, "version": "0", "inputs": [], "records": 0,
                          "state_partitions": 1, "status": "done", "sequence": 2}], "append")  # fmt: skip
    assert CommittedTables(str(made.folder)).run["run_id"] == "run-2"
    assert _read(made).deliveries == ()


@pytest.mark.parametrize(("hours", "said"), some_of([(76, "3 d 4 h"), (0.5, "30 min"), (-2, "0 s")], 1))
def test_the_headline_says_how_old_the_newest_record_is(made: MadeWarehouse, hours: float, said: str):
    made.audit([share_partition()], started=TONIGHT, log_time=TONIGHT - timedelta(hours=hours))
    report = _read(made)
    assert headline(report).endswith(f"; the newest record was {said} old")
    assert report.export_age == max(0, hours * 3_600_000)
    made.audit([share_partition()], run_id="run-2", log_time=None)
    assert headline(_read(made)) == "1 share-partition, no errors, no warnings"
    # A stream began before its newest record; it measures the age at each scrape.
    made.audit([share_partition()], run_id="run-3", command="stream")
    assert _read(made).export_age is None


def test_the_worst_example_comes_first(made: MadeWarehouse):
    """Not the first of the alphabet."""
    sizes = {"a": 3, "b": 41, "c": 7}
    about = {group: share_partition(group, poison_records=size) for group, size in sizes.items()}
    found = [
        finding("POISON_RECORDS", "warning", f"{size} offsets", about[group], evidence={"offsets": str(size)})
        for group, size in sizes.items()
    ]
    made.audit(list(about.values()), found)
    report = _read(made)
    assert [one["group_id"] for one in report.findings[0].examples] == ["b", "c", "a"]
    assert next(iter(advice(report))).what == "3 findings of POISON_RECORDS: the worst is b orders-0: 41 offsets"


def test_a_share_partition_that_needs_a_look_says_why_first(made: MadeWarehouse):
    rows = {
        "OK": share_partition("late", verdict="STALL", reason="7 records wait, and SPSO has stayed at 5 for 31 min"),
        "error": share_partition("wrong"),
        "warning": share_partition("poisoned"),
        "suspect": share_partition("lost", suspect=True),
    }
    found = [
        finding("SNAPSHOT_MISMATCH", "error", "offset 7 was archived", rows["error"]),
        finding("POISON_RECORDS", "warning", "12 offsets are at the delivery limit of 5", rows["warning"]),
    ]
    made.audit(list(rows.values()), found)
    assert {one.now["group_id"]: (one.status, one.why) for one in _read(made).flagged} == {
        "late": ("STALL", "7 records wait, and SPSO has stayed at 5 for 31 min"),
        "wrong": ("error", "offset 7 was archived"),
        "poisoned": ("warning", "12 offsets are at the delivery limit of 5"),
        "lost": ("suspect", "records since its latest snapshot are missing or unreadable"),
    }


def test_unreported_findings_and_verdicts_that_are_gone_are_reported_too(tmp_path: Path):
    made, names = MadeWarehouse(tmp_path / "w"), ("g1", "g2")
    made.audit([share_partition(name) for name in names], run_id="a", status="reported")
    rewound = [share_partition("g1", verdict="REWIND", reason="went back"), share_partition("g2")]
    nights = [TONIGHT + timedelta(days=night) for night in (1, 2)]
    made.audit(
        rewound,
        [finding("LOG_DIVERGED", "error", "other bytes", settled=True)],
        run_id="b",
        time=nights[0],
        status="committed",
    )
    made.audit([share_partition(name) for name in names], run_id="c", time=nights[1], status="committed")
    report = read_report(str(made.folder), fail_on_verdict="STOP")
    assert (report.failing, report.failing_verdicts, report.verdicts["OK"]) == (1, 1, 1)
    assert [(one.rule, one.new, one.open) for one in report.findings] == [("LOG_DIVERGED", 1, 1)]
    assert [(one.now["group_id"], one.status, one.now["reason"]) for one in report.flagged] == [
        ("g1", "REWIND", "went back")
    ]
