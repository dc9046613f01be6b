"""Audits of control records: as full as those of `__share_group_state`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import run_cli
from tests.fold.control_records.logs import checkpoint, control, delta, log_of, user_data
from tests.fold.control_records.test_edges import stamped
from tests.kafka.batches import Batch, Record
from tests.profiles import nightly

BATCHES = [
    stamped(user_data(0, 100), 0),
    stamped(control(100, checkpoint("busy", 1, 0, 0)), 1),
    stamped(control(101, delta("busy", 1, 100, [(0, 9, 2, 1), (10, 14, 0, 4), (15, 19, 2, 1)])), 2),
    stamped(control(102, checkpoint("dead", 1, 0, 50, [(0, 49, 0, 1)])), 2),
    stamped(control(103, checkpoint("done", 1, 90, 100)), 2),
    stamped(control(104, delta("done", 1, 103, [(90, 99, 2, 1)])), 2),
    stamped(control(105, delta("busy", 1, 101, [(20, 29, 2, 1)])), 90),
    stamped(control(106, checkpoint("busy", 2, 10, 30, [(10, 14, 0, 4), (15, 29, 2, 1)])), 91),
]


def audit(capfd: pytest.CaptureFixture[str], folder: Path, batches: list[Batch], *options: Any) -> Mapping[str, Any]:
    """The report of an audit of these batches into the folder's warehouse."""
    log_of(folder / "broker", batches, topic="orders")
    said = run_cli(capfd, "audit", folder / "broker", "--out", folder / "lake", "--json", "--quiet", *options)
    assert said.code in (0, 1), said.err
    return said.json


def verdicts(report: Mapping[str, Any]) -> dict[str, str]:
    """Group -> verdict of the share-partitions that need attention."""
    return {one["now"]["group_id"]: one["now"]["verdict"] for one in report["troubled"]}


def test_share_partitions_verdicts_poison_and_metrics_are_those_of_the_other_dialect(capfd, tmp_path: Path):
    metrics, page = tmp_path / "m.prom", tmp_path / "r.html"
    report = audit(capfd, tmp_path, BATCHES, "--prometheus", metrics, "--html", page)
    assert (report["share_partitions"], report["verdicts"]["OK"]) == (3, 1)
    assert verdicts(report) == {"dead": "STOP", "busy": "STALL"}
    assert {one["now"]["group_id"]: one["why"] for one in report["troubled"]} == {
        "dead": "100 records wait, and no consumer has changed the state for 1 h 29 min",
        "busy": "SPSO does not move: it waits for records 10 to 14 after 4 failed deliveries",
    }
    rules = {one["rule"]: one for one in report["findings"]}
    assert rules.keys() == {"POISON_RECORDS", "SPSO_STALL"}
    assert rules["POISON_RECORDS"]["examples"][0]["message"].startswith("5 offsets (10-14)")
    assert report["poison"]["records"] == 5
    lags = {one["now"]["group_id"]: one["now"]["lag"] for one in report["troubled"]}
    assert lags == {"busy": 75, "dead": 100}
    lines = metrics.read_text().splitlines()
    metric, labels = "share_state_group_topic_partition", 'partition_id="0",topic_name="orders"'
    assert f'{metric}_lag{{group_id="done",{labels}}} 0.0' in lines
    assert f'{metric}_verdict{{group_id="dead",{labels},verdict="STOP"}} 1.0' in lines
    assert "STOP" in page.read_text()


def test_groups_whose_malformed_ids_differ_have_series_of_their_own(capfd, tmp_path: Path):
    metrics, one = tmp_path / "m.prom", checkpoint("GG", 1, 0, 50, [(0, 49, 0, 1)])
    ids = [Record(one.key, (one.value or b"").replace(b"GG", name)) for name in (b"G\xff", b"G\xfe")]
    report = audit(capfd, tmp_path, [control(100, *ids)], "--prometheus", metrics)
    assert report["share_partitions"] == 2
    assert {row["limited_by_group"] for row in report["cutoff"]} <= {r"G\xff", r"G\xfe"}
    series = [line.rpartition(" ")[0] for line in metrics.read_text().splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert sum(name.startswith("share_state_group_topic_partition_end_offset{") for name in series) == 2


def test_subscriptions_mode_and_index_are_keys_of_the_configuration(capfd, tmp_path: Path):
    subscriptions, index = tmp_path / "subscriptions.json", tmp_path / "index"
    subscriptions.write_text(json.dumps({"orders": ["busy", "done"]}))
    sets = [f"control_records.subscriptions={subscriptions}", f"control_records.index={index}"]
    options = [part for text in (*sets, "control_records.mode=best-effort") for part in ("--set", text)]
    plain = audit(capfd, tmp_path / "plain", BATCHES)
    assert (plain["cutoff"][0]["cutoff_offset"], plain["cutoff"][0]["limited_by_group"]) == (102, "dead")
    page = tmp_path / "r.html"
    report = audit(capfd, tmp_path, BATCHES, *options, "--html", page)
    (row,) = report["cutoff"]
    assert (row["cutoff_offset"], row["limited_by_group"]) == (103, "done")
    assert row["ignored"] == [{"group_id": "dead", "lost_records": 1}]
    assert "ignored, without a subscription: dead" in page.read_text()
    assert verdicts(report) == {"busy": "STALL"}
    file = index / "orders-0.share-snapshot"
    assert file.read_text().splitlines()[2:] == ["busy 106 2 106", "dead 102 1 102", "done 103 1 104"]
    file.write_text("0\n1\ngone 99 1 99\n")
    fork = [stamped(control(107, delta("done", 1, 103, [(90, 94, 2, 1), (95, 99, 0, 1)])), 92)]
    again = audit(capfd, tmp_path, BATCHES + fork, *options)
    assert {"STALE_INDEX", "FORK"} <= {one["rule"] for one in again["findings"]}
    assert "gone 99 1 99" in file.read_text()
    assert again["verdicts"]["REWIND"] == 1
    assert verdicts(again)["done"] == "REWIND"


@nightly("two audits")
def test_an_audit_knows_the_checkpoints_of_the_last_one(capfd, tmp_path: Path):
    audit(capfd, tmp_path, BATCHES)
    log_of(tmp_path / "broker", BATCHES[-2:], topic="orders", base=105)
    said = run_cli(capfd, "audit", tmp_path / "broker", "--out", tmp_path / "lake", "--json", "--quiet")
    lost = [one for one in said.json["findings"] if one["rule"] == "BASE_LOST"]
    assert [(one["severity"], one["count"]) for one in lost] == [("error", 2)]
    assert sorted(example["group_id"] for example in lost[0]["examples"]) == ["dead", "done"]


def test_offsets_that_retention_removed_neither_wait_nor_poison(capfd, tmp_path: Path):
    window = checkpoint("G", 1, 0, 50, [(0, 29, 0, 4), (30, 49, 0, 1)])
    log_of(
        tmp_path / "broker", [stamped(control(60, window), 0), stamped(user_data(61, 9), 50)], topic="orders", base=40
    )
    said = run_cli(capfd, "audit", tmp_path / "broker", "--out", tmp_path / "lake", "--json", "--quiet").json
    now = said["troubled"][0]["now"]
    assert (now["waiting_records"], now["poison_records"], now["lag"], now["verdict"]) == (10, 0, 30, "STOP")
    assert {one["rule"] for one in said["findings"]} == {"SPSO_BELOW_LOG_START"}


@nightly("two audits")
def test_a_topic_partition_that_is_gone_is_noted(capfd, tmp_path: Path):
    audit(capfd, tmp_path, BATCHES)
    log_of(tmp_path / "other", BATCHES, topic="payments")
    said = run_cli(capfd, "audit", tmp_path / "other", "--out", tmp_path / "lake", "--json", "--quiet")
    assert said.json["run"]["notes"] == ["orders-0 is not in the input any more; its rows are left out"]


def test_wrong_settings_are_refused_in_one_line(capfd, tmp_path: Path):
    log_of(tmp_path / "broker", BATCHES, topic="orders")
    for text, says in (("mode=lenient", "strict or best-effort"), ("subscriptions=/nowhere.json", "/nowhere.json")):
        said = run_cli(
            capfd, "audit", tmp_path / "broker", "--out", tmp_path / "lake", "--set", f"control_records.{text}"
        )
        assert (said.code, said.err.count("Traceback")) == (2, 0)
        assert says in said.err
