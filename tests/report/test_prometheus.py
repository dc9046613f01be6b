"""The metrics file, read back with Prometheus' own parser."""

from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from share_state.fold.history import VERDICTS
from share_state.report.audit_data import AuditReport, read_report
from share_state.report.console import ReportError
from share_state.report.prometheus import write_metrics
from tests.report.made_warehouse import HOSTILE, TONIGHT, MadeWarehouse, cutoff, finding, share_partition

Metrics = dict[str, list[Sample]]

OF_ONE = "group_topic_partition"
"""kminion's words for what is about one share-partition."""


def _metrics(folder: Path, cluster: str = "", most: int = 100) -> Metrics:
    return _written(read_report(str(folder), cluster), folder.parent / "share_state.prom", most)


def _written(report: AuditReport, path: Path, most: int = 100) -> Metrics:
    write_metrics(str(path), report, most)
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
        ("lag", 12),
        ("poison_records", 5),
        ("start_offset_unmoved_seconds", 180),
    ):
        assert [(one.labels, one.value) for one in metrics[f"{OF_ONE}_{name}"]] == [(labels, value)], name
    (end,) = metrics["topic_partition_high_water_mark"]
    assert (end.labels, end.value) == ({name: labels[name] for name in labels if name != "group_id"}, 115)
    in_flight = {one.labels["state"]: one.value for one in metrics[f"{OF_ONE}_in_flight_records"]}
    assert in_flight == {"AVAILABLE": 7, "ACKNOWLEDGED": 3}
    verdicts = {one.labels["verdict"]: one.value for one in metrics[f"{OF_ONE}_verdict"]}
    assert verdicts == dict.fromkeys(VERDICTS, 0) | {"STALL": 1}
    state_partition = {"cluster": "prod-eu", "topic_name": "__share_group_state", "partition_id": "7"}
    assert [(one.labels, one.value) for one in metrics["log_partition_cutoff_offset"]] == [(state_partition, 500)]
    assert _only(metrics["log_partition_redundant_records"]) == 500
    assert _only(metrics["log_partition_redundant_bytes"]) == 41_000
    assert _only(metrics["log_partition_pinned_records"]) == 20
    assert _only(metrics["log_partition_pinned_bytes"]) == 1640
    assert _only(metrics["log_partition_safe"]) == 1


def test_what_is_unknown_is_absent(made: MadeWarehouse):
    row = share_partition(start_offset=-1, moved_time=None)
    metrics = _metrics(made.audit([row], cutoffs=[cutoff(cutoff_offset=None, pinned_records=None)]))
    for name in ("start_offset", "end_offset", "lag", "start_offset_unmoved_seconds", "in_flight_records"):
        assert metrics[f"{OF_ONE}_{name}"] == [], name
    assert (metrics["group_topic_lag"], metrics["topic_partition_high_water_mark"]) == ([], [])
    assert (metrics["log_partition_cutoff_offset"], metrics["log_partition_pinned_records"]) == ([], [])
    assert "cluster" not in metrics[f"{OF_ONE}_verdict"][0].labels


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
    shown = {
        int(one.labels["partition_id"]): one.labels for one in _metrics(made.folder, 'c"l\n')[f"{OF_ONE}_start_offset"]
    }
    for number, name in enumerate(HOSTILE):
        assert shown[number]["group_id"] == name
        assert shown[number]["topic_name"] == (name or "id-of-None")
        assert shown[number]["cluster"] == 'c"l\n'


def test_groups_are_counted_in_full_and_only_the_worst_share_partitions_have_series(made: MadeWarehouse):
    rows = [
        share_partition("a", 0, "t", lag=5, poison_records=2, ranges=[(100, 101, "AVAILABLE", 4)]),
        share_partition("a", 1, "t", lag=7),
        share_partition("a", 2, "t", lag=None),
        share_partition("a", 0, "u", lag=1, verdict="STALL", ranges=[(100, 109, "ACQUIRED")]),
        share_partition("b", 0, "t", verdict="REWIND"),
    ]
    metrics = _metrics(made.audit(rows), most=3)
    assert [one.labels["group_id"] + one.labels["topic_name"] for one in metrics[f"{OF_ONE}_start_offset"]] == [
        "bt",
        "au",
        "at",
    ]
    assert [one.labels["partition_id"] for one in metrics[f"{OF_ONE}_poison_records"]] == ["0", "0", "0"]
    assert _only(metrics["share_partitions_without_series"]) == 2
    lags = {(one.labels["group_id"], one.labels["topic_name"]): one.value for one in metrics["group_topic_lag"]}
    assert lags == {("a", "t"): 12, ("a", "u"): 1}
    assert {one.labels["group_id"]: one.value for one in metrics["group_poison_records"]} == {"a": 2, "b": 0}
    counts = {(one.labels["group_id"], one.labels["verdict"]): one.value for one in metrics["group_share_partitions"]}
    assert counts == {(group, verdict): 0 for group in "ab" for verdict in VERDICTS} | {
        ("a", "OK"): 3,
        ("a", "STALL"): 1,
        ("b", "REWIND"): 1,
    }
    states = {one.labels["state"]: one.value for one in metrics["group_in_flight_records"] if one.value}
    assert states == {"AVAILABLE": 2, "ACQUIRED": 10}
    all_series = _metrics(made.folder, most=10)
    assert len(all_series[f"{OF_ONE}_start_offset"]) == 5
    assert _only(all_series["share_partitions_without_series"]) == 0
    none = _metrics(made.folder, most=0)
    assert not any(name.startswith(OF_ONE) for name in none)
    assert none["group_topic_lag"] == metrics["group_topic_lag"]


def test_no_series_is_there_twice_even_where_a_topic_was_made_anew(made: MadeWarehouse):
    rows = [
        share_partition("g", 0, "orders", topic_id="old-id"),
        share_partition("g", 0, "orders", topic_id="new-id"),
        share_partition("g", 1, "orders", topic_id="new-id"),
        share_partition("g", 2, None, topic_id="no-name"),
    ]
    series = [
        (one.labels["topic_name"], one.labels["partition_id"])
        for one in _metrics(made.audit(rows))[f"{OF_ONE}_start_offset"]
    ]
    assert sorted(series) == [("new-id", "0"), ("no-name", "2"), ("old-id", "0"), ("orders", "1")]


def test_share_partitions_that_are_gone_vanish(made: MadeWarehouse):
    made.audit([share_partition("stays"), share_partition("goes")], run_id="first")
    assert {one.labels["group_id"] for one in _metrics(made.folder)["group_share_partitions"]} == {"stays", "goes"}
    made.audit([share_partition("stays")], run_id="second", time=TONIGHT + timedelta(days=1))
    assert {one.labels["group_id"] for one in _metrics(made.folder)["group_share_partitions"]} == {"stays"}


def test_every_series_of_a_troubled_warehouse_is_unique(troubled: AuditReport, tmp_path: Path):
    metrics = _written(troubled, tmp_path / "x.prom")
    series = [(one.name, *sorted(one.labels.items())) for samples in metrics.values() for one in samples]
    assert len(set(series)) == len(series) > 300
    one_hot: dict[tuple[str, ...], float] = {}
    for one in metrics[f"{OF_ONE}_verdict"]:
        key = tuple(one.labels[name] for name in ("group_id", "topic_name", "partition_id"))
        one_hot[key] = one_hot.get(key, 0) + one.value
    assert set(one_hot.values()) == {1}
    assert len(one_hot) == troubled.live


def test_a_file_that_cannot_be_written_is_one_line_and_the_old_one_stays(troubled: AuditReport, tmp_path: Path):
    with pytest.raises(ReportError, match=r"nowhere/x.prom: the folder .* does not exist"):
        write_metrics(str(tmp_path / "nowhere" / "x.prom"), troubled, 100)
    place = tmp_path / "x.prom"
    place.mkdir()
    with pytest.raises(ReportError, match="is a folder"):
        write_metrics(str(place), troubled, 100)
    assert list(tmp_path.iterdir()) == [place]
