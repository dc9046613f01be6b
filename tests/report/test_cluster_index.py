"""The index of clusters: every audit puts its own row into it, whoever else writes at the same time."""

import fcntl
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from share_state.report import cluster_index
from share_state.report.audit_data import AuditReport, read_report
from share_state.report.cluster_index import read_index, write_index
from share_state.report.console import ReportError
from tests.report.made_warehouse import HOSTILE, MadeWarehouse, share_partition
from tests.report.parsed_page import ParsedPage


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    made = MadeWarehouse(tmp_path_factory.mktemp("lake") / "healthy")
    return read_report(str(made.audit([share_partition(lag=0)])), "quiet")


def test_the_worst_cluster_comes_first_and_leads_to_its_page(
    tmp_path: Path, troubled: AuditReport, healthy: AuditReport
):
    (tmp_path / "www").mkdir()
    index = tmp_path / "www/index.html"
    write_index(str(index), healthy, None)
    write_index(str(index), troubled, str(tmp_path / "pages/a b.html"))
    text = index.read_text()
    said = ParsedPage(text).texts["clusters"]
    assert said.index("prod-eu") < said.index("quiet")
    assert f"{len(troubled.flagged)} of {troubled.live} share-partitions need attention" in said
    assert 'href="../pages/a%20b.html"' in text
    assert text.count("<a href") == 1
    # The next night of one cluster replaces its row, and only that.
    write_index(str(index), replace(troubled, flagged=(), flagged_left_out=0), None)
    rows = read_index(str(index))
    assert [*rows] == ["prod-eu", "quiet"]
    assert rows["prod-eu"]["flagged"] == 0


def test_a_cluster_that_missed_a_night_says_so(tmp_path: Path, healthy: AuditReport):
    index = tmp_path / "index.html"
    late = {**healthy.run, "finished": healthy.run["finished"] + timedelta(days=2)}
    write_index(str(index), healthy, None)
    assert "overdue" not in index.read_text().lower().partition("<table")[2].partition("</table")[0]
    write_index(str(index), replace(healthy, cluster="later", run=late), None)
    rows = index.read_text().partition("<tbody>")[2].split("</tr>")
    assert ["overdue" in row for row in rows[:2]] == [True, False]
    assert "quiet" in rows[0]


def test_no_row_is_lost_to_a_concurrent_writer(tmp_path: Path, healthy: AuditReport):
    index = str(tmp_path / "index.html")
    names = [f"cluster-{number}" for number in range(12)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda name: write_index(index, replace(healthy, cluster=name), None), names))
    assert [*read_index(index)] == sorted(names)


def test_a_lock_that_nobody_gives_back_delays_but_does_not_stop_an_audit(
    tmp_path: Path, healthy: AuditReport, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(cluster_index, "_WAIT_SECONDS", 0.1)
    with (tmp_path / ".index.html.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_index(str(tmp_path / "index.html"), healthy, None)
    assert [*read_index(str(tmp_path / "index.html"))] == ["quiet"]
    assert "another audit has held its lock for long" in caplog.text


@pytest.mark.parametrize("name", HOSTILE[:-1])
def test_no_name_of_a_cluster_leaves_its_place(tmp_path: Path, healthy: AuditReport, name: str):
    index = tmp_path / "index.html"
    write_index(str(index), replace(healthy, cluster=name), f"{tmp_path}/{name.replace('/', '')}.html")
    text = index.read_text()
    assert [*read_index(str(index))] == [name]
    assert text.count("<script") == 1
    assert text.count("</style>") == 1
    assert text.count("<b>") == 0


@pytest.mark.parametrize(
    "content", ["hello", "<html></html>", '<script type="application/json" id="rows">[{"cluster": 3}]</script>']
)
def test_a_file_that_is_something_else_stays(tmp_path: Path, healthy: AuditReport, content: str):
    index = tmp_path / "index.html"
    index.write_text(content)
    with pytest.raises(ReportError, match="is no index of clusters; give another file"):
        write_index(str(index), healthy, None)
    assert index.read_text() == content


def test_the_rows_are_kept_in_the_page_as_json(tmp_path: Path, healthy: AuditReport):
    index = tmp_path / "index.html"
    index.write_text("")
    write_index(str(index), healthy, None)
    (row,) = json.loads(index.read_text().partition('id="rows">')[2].partition("</script>")[0])
    assert row["statuses"] == dict(healthy.statuses)
    assert row["log_time"] == healthy.run["log_time"].isoformat()
