"""The metrics file, read back with Prometheus' own parser."""

from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from share_state.report.audit_data import AuditReport, read_report
from share_state.report.console import ReportError
from share_state.report.prometheus import write_metrics
from tests.report.made_warehouse import HOSTILE, TONIGHT, MadeWarehouse, cutoff, finding, share_partition

Metrics = dict[str, list[Sample]]


def _metrics(folder: Path, cluster: str = "") -> Metrics:
    return _written(read_report(str(folder), cluster), folder.parent / "share_state.prom")


def _written(report: AuditReport, path: Path) -> Metrics:
    write_metrics(str(path), report)
    # A carriage return inside a name is no end of a line.
    families = list(text_string_to_metric_families(path.read_bytes().decode()))
    assert len({family.name for family in families}) == len(families)
    assert all(family.documentation and family.type == "gauge" for family in families)
    return {family.name.removeprefix("share_state_"): family.samples for family in families}


def _only(samples: list[Sample]) -> float:
    (one,) = samples
    return one.value


@pytest.fixture
def made(tmp_path: Path) -> MadeWarehouse:
    return MadeWarehouse(tmp_path / "w")


def test_a_share_partition_has_its_numbers_under_kminion_s_labels(made: MadeWarehouse):
    ranges = [(100, 104, "AVAILABLE", 4), (105, 106, "gap", 0), (107, 109, "ACKNOWLEDGED", 1)]
    row = share_partition("g", 3, "t", ranges=ranges, lag=12, topic_end_offset=115, poison_records=5, verdict="STALL")
    metrics = _metrics(made.audit([row], cutoffs=[cutoff(7)]), "prod-eu")
    labels = {"cluster": "prod-eu", "group_id": "g", "topic_name": "t", "partition_id": "3"}
    for name, value in (
        ("start_offset", 100),
        ("end_offset", 110),
        ("topic_end_offset", 115),
        ("lag", 12),
        ("poison_records", 5),
        ("start_offset_unmoved_seconds", 180),
    ):
        assert [(one.labels, one.value) for one in metrics[name]] == [(labels, value)], name
    in_flight = {one.labels["state"]: one.value for one in metrics["in_flight_records"]}
    assert in_flight == {"AVAILABLE": 7, "ACKNOWLEDGED": 3}
    verdicts = {one.labels["verdict"]: one.value for one in metrics["verdict"]}
    assert verdicts == {"REWIND": 0, "STOP": 0, "STALL": 1, "OK": 0}
    state_partition = {"cluster": "prod-eu", "topic_name": "__share_group_state", "partition_id": "7"}
    assert [(one.labels, one.value) for one in metrics["cutoff_offset"]] == [(state_partition, 500)]
    assert _only(metrics["redundant_records"]) == 500
    assert _only(metrics["redundant_bytes"]) == 41_000
    assert _only(metrics["pinned_records"]) == 20
    assert _only(metrics["pinned_bytes"]) == 1640


def test_what_is_unknown_is_absent(made: MadeWarehouse):
    row = share_partition(start_offset=-1, moved_time=None)
    metrics = _metrics(made.audit([row], cutoffs=[cutoff(cutoff_offset=None, pinned_records=None)]))
    for name in ("end_offset", "topic_end_offset", "lag", "start_offset_unmoved_seconds", "in_flight_records"):
        assert metrics[name] == [], name
    assert (metrics["cutoff_offset"], metrics["pinned_records"]) == ([], [])
    assert metrics["start_offset"] == []
    assert "cluster" not in metrics["verdict"][0].labels


def test_the_run_says_when_it_succeeded_and_what_it_cost(made: MadeWarehouse):
    metrics = _metrics(made.audit([share_partition()]))
    assert _only(metrics["last_success_timestamp_seconds"]) == (TONIGHT + timedelta(seconds=14.5)).timestamp()
    assert _only(metrics["log_timestamp_seconds"]) == TONIGHT.timestamp()
    assert _only(metrics["run_duration_seconds"]) == 4.5
    assert _only(metrics["records_read"]) == 2222


def test_findings_are_counted_by_severity_and_rule(made: MadeWarehouse):
    found = [finding("OFFSET_GAP", "warning", "x"), finding("OFFSET_GAP", "warning", "y"), finding("A", "error", "z")]
    counts = {
        (one.labels["severity"], one.labels["rule"]): one.value for one in _metrics(made.audit([], found))["findings"]
    }
    assert counts == {("warning", "OFFSET_GAP"): 2, ("error", "A"): 1}


def test_names_of_any_characters_come_back_as_they_were(made: MadeWarehouse):
    rows = [share_partition(one, number, one or None) for number, one in enumerate(HOSTILE)]
    made.audit(rows)
    shown = {int(one.labels["partition_id"]): one.labels for one in _metrics(made.folder, 'c"l\n')["start_offset"]}
    for number, name in enumerate(HOSTILE):
        assert shown[number]["group_id"] == name
        assert shown[number]["topic_name"] == (name or "id-of-None")
        assert shown[number]["cluster"] == 'c"l\n'


def test_no_series_is_there_twice_even_where_a_topic_was_made_anew(made: MadeWarehouse):
    rows = [
        share_partition("g", 0, "orders", topic_id="old-id"),
        share_partition("g", 0, "orders", topic_id="new-id"),
        share_partition("g", 1, "orders", topic_id="new-id"),
        share_partition("g", 2, None, topic_id="no-name"),
    ]
    series = [
        (one.labels["topic_name"], one.labels["partition_id"]) for one in _metrics(made.audit(rows))["start_offset"]
    ]
    assert sorted(series) == [("new-id", "0"), ("no-name", "2"), ("old-id", "0"), ("orders", "1")]


def test_share_partitions_that_are_gone_vanish(made: MadeWarehouse):
    made.audit([share_partition("stays"), share_partition("goes")], run_id="first")
    assert {one.labels["group_id"] for one in _metrics(made.folder)["verdict"]} == {"stays", "goes"}
    made.audit([share_partition("stays")], run_id="second", time=TONIGHT + timedelta(days=1))
    assert {one.labels["group_id"] for one in _metrics(made.folder)["verdict"]} == {"stays"}


def test_every_series_of_a_troubled_warehouse_is_unique(troubled: AuditReport, tmp_path: Path):
    metrics = _written(troubled, tmp_path / "x.prom")
    series = [(one.name, *sorted(one.labels.items())) for samples in metrics.values() for one in samples]
    assert len(set(series)) == len(series) > 300
    one_hot: dict[tuple[str, ...], float] = {}
    for one in metrics["verdict"]:
        key = tuple(one.labels[name] for name in ("group_id", "topic_name", "partition_id"))
        one_hot[key] = one_hot.get(key, 0) + one.value
    assert set(one_hot.values()) == {1}
    assert len(one_hot) == troubled.live


def test_a_file_that_cannot_be_written_is_one_line_and_the_old_one_stays(troubled: AuditReport, tmp_path: Path):
    with pytest.raises(ReportError, match=r"nowhere/x.prom: the folder .* does not exist"):
        write_metrics(str(tmp_path / "nowhere" / "x.prom"), troubled)
    place = tmp_path / "x.prom"
    place.mkdir()
    with pytest.raises(ReportError, match="a folder is here"):
        write_metrics(str(place), troubled)
    assert list(tmp_path.iterdir()) == [place]
