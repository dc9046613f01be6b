"""What uses the metrics: alert rules, the Grafana dashboard and docs/monitoring.md; with and without promtool."""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from share_state.fold.history import OUTCOME_COLUMNS
from share_state.fold.limits import Limits
from share_state.pipeline.stream_run import StreamProgress, StreamRun
from share_state.pipeline.stream_tables import StreamTables
from share_state.report.audit_data import read_report
from share_state.report.prometheus import write_metrics
from share_state.report.stream_metrics import CommittedStream, StreamMetrics
from tests.report.made_warehouse import TONIGHT, MadeWarehouse, cutoff, finding, share_partition

ROOT = Path(__file__).parents[2]
CONF, DOC = ROOT / "conf", ROOT / "docs/monitoring.md"
RULES = yaml.safe_load((CONF / "prometheus-rules.yaml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((CONF / "grafana-dashboard.json").read_text())
PROMTOOL = shutil.which("promtool", path=os.pathsep.join((os.environ["PATH"], str(Path(sys.executable).parent))))
NAME = re.compile(r"share_state_[a-z_]+")
SELECTOR = re.compile(r"(share_state_[a-z_]+)\{([^}]*)\}")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The metrics of a warehouse that has every table and every label."""
    made = MadeWarehouse(tmp_path_factory.mktemp("lake") / "w")
    row = share_partition(ranges=[(100, 104, "AVAILABLE")], lag=12, topic_end_offset=115, verdict="STALL")
    row |= dict.fromkeys(OUTCOME_COLUMNS, 3) | {"oldest_unfinished_time": TONIGHT - timedelta(hours=3)}
    made._write("group_outcomes", [row], "overwrite")
    made._write("share_groups", [{"group_id": "orders-app", "members": 2}], "overwrite")
    made._write("dead_letters", [{**row, "offset": 3, "reason": "rejected"}], "overwrite")
    made._write("lost_dead_letters", [{**row, "record_count": 4}], "overwrite")
    made.audit([row], [finding("EXPORT_STALE", "warning", "x")], [cutoff(7)])
    path = made.folder.parent / "share_state.prom"
    write_metrics(str(path), read_report(str(made.folder), "prod"), 10)
    return path


@pytest.fixture(scope="module")
def families(file: Path) -> dict[str, Metric]:
    """The metrics of this file by name."""
    families = text_string_to_metric_families(file.read_text())
    return {f"{family.name}_total" if family.type == "counter" else family.name: family for family in families}


def test_names_types_and_units_follow_prometheus_conventions(families: dict[str, Metric]):
    units = re.compile(
        r"_(seconds|bytes|ratio|records|offset|lag|findings|members|letters|share_partitions|series|read|outcomes)$"
    )
    exact = {"verdict", "safe", "high_water_mark"}
    for name, family in families.items():
        assert family.samples, name
        assert family.type == ("counter" if name.endswith("_total") else "gauge")
        assert re.fullmatch(r"share_state(_[a-z]+)+", name)
        # A gauge named as a counter, a summary or a histogram misleads.
        assert not re.search(r"_(count|sum|bucket|info)$", name)
        assert not re.search(r"_(ms|milliseconds|minutes|hours|days|kb|mb|megabytes)(_|$)", name)
        assert units.search(name.removesuffix("_total")) or any(name.endswith(f"_{one}") for one in exact), name
        assert family.documentation.endswith(".")
        assert "_gauge" not in name


def expressions() -> list[str]:
    """What the rules, the panels and the dashboard's variables query."""
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    variables = [one["query"]["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    return [*(rule["expr"] for rule in ALERTS), *panels, *variables]


@pytest.fixture(scope="module")
def of_stream(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Metric]:
    """The metrics that a stream alone has, by name."""
    lake = str(tmp_path_factory.mktemp("lake") / "w")
    stream = CommittedStream(StreamTables(lake, StreamRun("a-stream")), lambda: StreamProgress(1.5, 7), Limits(), lake)
    families = StreamMetrics(stream, 2).collect()
    return {f"{family.name}_total" if family.type == "counter" else family.name: family for family in families}


def test_the_page_of_streams_lists_the_metrics_that_they_alone_have(of_stream: dict[str, Metric]):
    rows = re.findall(r"^\| (`share_state_stream_.*?) \|", (ROOT / "docs/stream.md").read_text(), re.MULTILINE)
    assert {name for row in rows for name in NAME.findall(row)} == of_stream.keys()


@pytest.mark.parametrize("expression", dict.fromkeys(expressions()))
def test_a_rule_or_panel_queries_metrics_and_labels_that_there_are(
    families: dict[str, Metric], of_stream: dict[str, Metric], expression: str
):
    names = NAME.findall(expression)
    assert names
    families = families | of_stream
    assert set(names) <= families.keys()
    for name, selector in SELECTOR.findall(expression):
        labels = {label for sample in families[name].samples for label in sample.labels}
        assert set(re.findall(r"([a-z_]+)=", selector)) <= labels
    for listed in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
        known = {label for name in names for sample in families[name].samples for label in sample.labels}
        known |= {"instance", "job"}  # of a scrape
        assert {one.strip() for one in listed.split(",")} <= known


def test_an_alert_has_a_severity_and_says_what_is_wrong_and_what_to_do():
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS) > 10
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert all(rule["annotations"][name].endswith(".") for name in ("summary", "description"))
    tests = yaml.safe_load((CONF / "prometheus-rules-test.yaml").read_text())
    fires = {one["alertname"] for test in tests["tests"] for one in test["alert_rule_test"] if one.get("exp_alerts")}
    assert fires == {rule["alert"] for rule in ALERTS}
    # A scrape adds these labels; a rule that joins two metrics must name what it joins on.
    series = [
        one["series"] for test in tests["tests"] for one in test["input_series"] if "share_state" in one["series"]
    ]
    assert len(series) > 20
    assert all('instance="' in one and 'job="' in one for one in series)


def test_panels_do_not_overlap_and_have_their_own_ids():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells
        taken |= cells
        assert place["x"] + place["w"] <= 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_page_of_metrics_lists_each_metric_with_its_labels_and_no_other(families: dict[str, Metric]):
    table = DOC.read_text().partition("## Names of other exporters")[0]
    listed = dict(re.findall(r"^\| `(share_state_\w+)` \|([^|]*)\|", table, re.MULTILINE))
    assert listed.keys() == families.keys()
    for name, labels in listed.items():
        there = {label for sample in families[name].samples for label in sample.labels} - {"cluster"}
        assert set(re.findall(r"`(\w+)`", labels)) == there, name
    assert set(re.findall(r"`(Share(?:Group|State)\w+)`", DOC.read_text())) == {rule["alert"] for rule in ALERTS}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not on the PATH (Debian's package prometheus has it)")
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "rules", "prometheus-rules.yaml"],
        ["test", "rules", "prometheus-rules-test.yaml"],
        ["check", "metrics"],
    ],
    ids=" ".join,
)
def test_promtool_accepts(file: Path, arguments: list[str]):
    command: list[Any] = [PROMTOOL, *arguments]
    with file.open() as metrics:
        done = subprocess.run(command, cwd=CONF, stdin=metrics, capture_output=True, text=True, check=False)
    # `check metrics` exits with 3 and prints what its linter finds.
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
