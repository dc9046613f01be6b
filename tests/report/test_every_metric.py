"""Every metric of a stream without tables is what the tables of an audit of the same log say."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from share_state.cli import stream as stream_command
from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.fold.history import OUTCOME_COLUMNS, VERDICTS
from share_state.fold.limits import Limits
from share_state.report.audit_data import read_report
from share_state.report.stream_metrics import StreamMetrics
from share_state.rules.registry import Scope, registered
from tests.log_writer import snapshot
from tests.pipeline.test_dead_letter_topics import KEY, Export, archived, letter
from tests.truth import DATA

Values = dict[tuple[str, ...], float]
_STATES = ("available", "acquired", "acknowledged", "archiving", "archived")
_NOT_OF_TABLES = re.compile(r"stream_.*|last_success_.*|run_duration_.*")
"""Metrics of the process."""
_OF_ONE_LOG = {Scope.RECORD, Scope.STATE_BATCH, Scope.RECORD_BATCHES, Scope.LOG, Scope.STATE_LOG, Scope.DEAD_LETTERS}
_OF_THE_STREAM = {code for code, one in registered().items() if {*one.checks} & _OF_ONE_LOG}
"""Rules that need one log alone; docs/stream.md says which others are left to the audit."""


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "logs"
    assert run(["simulate", "--out", str(folder), "--minutes", "1", "--consumer-offsets", "--seed", "3"]) == 0
    return folder


def shown(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Values]:
    """Metric -> labels in the order of their names -> value, once a stream with these options has read a folder."""
    seen = list[StreamMetrics]()

    def keep(_address: str, _port: int, metrics: StreamMetrics) -> Callable[[], None]:
        seen.append(metrics)
        return lambda: None

    monkeypatch.setattr(stream_command, "serve_metrics", keep)
    command = ["stream", str(folder), "--once", "--prometheus-port", "9", "--fail-on", "off"]
    assert run([*command, *options]) == 0
    text, _ = seen[0].text("")
    found = defaultdict[str, Values](dict)
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found[sample.name.removeprefix("share_state_")][labels] = sample.value
    return {name: values for name, values in found.items() if not _NOT_OF_TABLES.fullmatch(name)}


def _sums(rows: Iterable[Mapping[str, Any]], value: str, *by: str) -> Values:
    found = defaultdict[tuple[str, ...], float](float)
    for row in rows:
        if row[value] is not None:
            found[tuple(str(row[name]) for name in sorted(by))] += row[value]
    return dict(found)


def _most(rows: Iterable[Mapping[str, Any]], value: str) -> Values:
    found = Values()
    for row in rows:
        if row[value] is not None:
            found[(row["group_id"],)] = max(found.get((row["group_id"],), 0), row[value])
    return found


def _share_partitions(tables: CommittedTables) -> list[dict[str, Any]]:
    """The rows of the audit with what is derived from them."""
    rows = tables.read("share_partition_history").to_pylist()
    limits, ranges = Limits(), defaultdict[tuple[str, str, int], list[dict[str, Any]]](list)
    for one in tables.read("in_flight").to_pylist():
        ranges[one["group_id"], one["topic"] or one["topic_id"], one["partition"]].append(one)
    for row in rows:
        name = row["topic_name"] = row["topic"] or row["topic_id"]
        row |= {"partition_id": row["partition"]}
        for column, metric in (("moved_time", "unmoved"), ("oldest_unfinished_time", "oldest")):
            known = None if row[column] is None else (row["time"] - row[column]).total_seconds()
            row[metric] = known
        is_known = row["start_offset"] >= 0
        width = max(0, row["end_offset"] - row["effective_start_offset"]) if is_known else None
        row["window"] = None if width is None else width / limits.of_group("record_locks", row["group_id"])
        for state in _STATES:
            of_state = [one for one in ranges[row["group_id"], name, row["partition"]] if one["state"].lower() == state]
            row[state] = sum(one["record_count"] for one in of_state) if is_known else None
    return rows


def _of_share_partitions(rows: list[dict[str, Any]]) -> dict[str, Values]:
    key = ("group_id", "topic_name", "partition_id")
    found = {
        f"group_topic_partition_{metric}": _sums(
            [row | {column: None if (row[column] or 0) < 0 else row[column]} for row in rows], column, *key
        )
        for metric, column in {
            "start_offset": "start_offset",
            "end_offset": "end_offset",
            "lag": "lag",
            "poison_records": "poison_records",
            "start_offset_unmoved_seconds": "unmoved",
            "oldest_unfinished_seconds": "oldest",
            "window_used_ratio": "window",
        }.items()
    }
    # A state that no record has is absent.
    by_state = [row | {"state": one.upper(), "count": row[one]} for row in rows for one in _STATES]
    some = {row["state"] for row in by_state if row["count"]}
    found["group_topic_partition_in_flight_records"] = _sums(
        [row for row in by_state if row["state"] in some], "count", *key, "state"
    )
    by_verdict = [row | {"is": row["verdict"] == one, "verdict": one} for row in rows for one in VERDICTS]
    found["group_topic_partition_verdict"] = _sums(by_verdict, "is", *key, "verdict")
    found["topic_partition_high_water_mark"] = {
        (str(row["partition_id"]), row["topic_name"]): row["topic_end_offset"]
        for row in rows
        if row["topic_end_offset"] is not None
    }
    found["share_partitions"] = _sums([row | {"n": row["is"]} for row in by_verdict], "n", "verdict")
    found["group_share_partitions"] = _sums(by_verdict, "is", "group_id", "verdict")
    return found


def _of_groups(tables: CommittedTables, rows: list[dict[str, Any]]) -> dict[str, Values]:
    in_flight = [row | {"deliveries": min(row["delivery_count"], 10)} for row in tables.read("in_flight").to_pylist()]
    outcomes = {
        (row["group_id"], outcome): row[column]
        for row in tables.read("group_outcomes").to_pylist()
        for column, outcome in OUTCOME_COLUMNS.items()
    }
    return {
        "group_topic_lag": _sums(rows, "lag", "group_id", "topic_name"),
        "group_poison_records": _sums(rows, "poison_records", "group_id"),
        "group_oldest_unfinished_seconds": _most(rows, "oldest"),
        "group_window_used_ratio": _most(rows, "window"),
        "group_in_flight_records": _sums(in_flight, "record_count", "group_id", "state"),
        "group_delivered_records": _sums(in_flight, "record_count", "group_id", "deliveries"),
        "group_members": _sums(tables.read("share_groups").to_pylist(), "members", "group_id"),
        "group_outcomes_total": outcomes,
        # Since the first record, as no audit was before.
        "group_outcome_records": outcomes,
    }


def _of_logs(tables: CommittedTables) -> dict[str, Values]:
    rows = [
        row | {"topic_name": row["topic"], "partition_id": row["partition"]}
        for row in tables.read("cutoff").to_pylist()
    ]
    columns = {"cutoff_offset", "redundant_records", "redundant_bytes", "pinned_records", "pinned_bytes", "safe"}
    return {f"log_partition_{name}": _sums(rows, name, "topic_name", "partition_id") for name in columns}


def _of_letters(tables: CommittedTables) -> dict[str, Values]:
    if not tables.holds("dead_letters"):
        return {}
    letters = [{"n": 1} | row for row in tables.read("dead_letters").to_pylist()]
    return {
        "group_dead_letters": _sums(letters, "n", "group_id", "reason"),
        "group_lost_dead_letters": _sums(tables.read("lost_dead_letters").to_pylist(), "record_count", "group_id"),
    }


def expected(tables: CommittedTables) -> dict[str, Values]:
    """What the tables of an audit say of each metric."""
    rows, run_row = _share_partitions(tables), tables.run
    found = [row | {"n": 1} for row in tables.read("findings").to_pylist() if row["rule"] in _OF_THE_STREAM]
    findings = _sums(found, "n", "rule", "severity")
    values = _of_share_partitions(rows) | _of_groups(tables, rows) | _of_logs(tables) | _of_letters(tables)
    values |= {"findings": findings, "open_findings": findings, "share_partitions_without_series": {(): 0}}
    flagged = [
        {"n": 1, "group_id": one.now["group_id"], "trouble": one.trouble} for one in read_report(tables.root).flagged
    ]
    values["group_troubled_share_partitions"] = _sums(
        [row for row in flagged if row["trouble"]], "n", "group_id", "trouble"
    )
    values["records_read"] = {(): run_row["records"]}
    values["log_timestamp_seconds"] = {(): run_row["log_time"].timestamp()}
    return {name: of_metric for name, of_metric in values.items() if of_metric}


@pytest.mark.parametrize("log", ["simulated", "chaos"])
def test_each_metric_of_a_stream_is_what_the_tables_of_an_audit_say(
    log: str, simulated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, lake = simulated if log == "simulated" else DATA / "4.3.1/chaos", str(tmp_path / "lake")
    _audit(folder, lake)
    _compare(shown(folder, monkeypatch, "--no-tables"), lake)


def test_a_stream_shows_the_dead_letters_that_an_audit_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    export, lake = Export(tmp_path), str(tmp_path / "lake")
    export.state([snapshot(KEY)], *archived(10, 14), *archived(20, 20)).letters(letter(10), letter(13), letter(14))
    logs = tmp_path / "logs"
    logs.mkdir()
    (tmp_path / "__share_group_state-0").rename(logs / "__share_group_state-0")
    options = ["--topics", str(tmp_path / "topics.json"), "--dead-letters", str(tmp_path / "dlq.app-0")]
    options += ["--dead-letters-copied-last", "--rule", "EXPORT_STALE=off"]
    _audit(logs, lake, *options)
    seen = shown(logs, monkeypatch, "--out", str(tmp_path / "live"), *options)
    assert (seen["group_lost_dead_letters"], len(seen["group_dead_letters"])) == ({("app",): 3}, 1)
    assert seen["findings"]["DEAD_LETTER_LOST", "error"] == 1
    _compare(seen, lake)


def _audit(folder: Path, lake: str, *options: str) -> None:
    # A rule that is left to the audit.
    audit = ["audit", str(folder), "--out", lake, "--rule", "RECORDS_LOST=off", "--fail-on", "off", "--quiet"]
    assert run([*audit, *options]) == 0


def _compare(seen: Mapping[str, Values], lake: str) -> None:
    told = expected(CommittedTables(lake))
    assert seen.keys() == told.keys()
    for name, values in told.items():
        assert seen[name] == pytest.approx(values), name
