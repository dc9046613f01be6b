"""All groups in one line each, and what began or healed since the last audit."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from share_state.report.audit_data import AuditReport, read_report
from share_state.report.page import render_page
from tests.report.made_warehouse import TONIGHT, MadeWarehouse, share_partition
from tests.report.parsed_page import ParsedPage

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    """Two nights: app-a healed, app-b began to stall, app-c is as before, app-d is gone."""
    made = MadeWarehouse(tmp_path_factory.mktemp("lake") / "nights")
    stall: dict[str, Any] = {"verdict": "STALL", "reason": "SPSO stands still"}
    first = [
        share_partition("app-a", lag=900, **stall),
        share_partition("app-a", 1, lag=5),
        share_partition("app-b", lag=0),
        share_partition("app-c", lag=7, **stall),
        share_partition("app-d", **stall),
    ]
    made.audit(first, run_id="run-1")
    second = [
        share_partition("app-a", lag=100, acknowledged_records=86_400),
        share_partition("app-a", 1, lag=None, acknowledged_records=0, oldest_unfinished_time=TONIGHT),
        share_partition("app-b", lag=50, **stall),
        share_partition("app-c", lag=7, **stall),
    ]
    return read_report(str(made.audit(second, run_id="run-2", time=TONIGHT + DAY)))


def test_every_group_has_a_line_the_worst_first(nights: AuditReport):
    found = {one.group_id: one for one in nights.summaries}
    assert [*found] == ["app-b", "app-c", "app-a"]
    one = found["app-a"]
    assert (one.verdict, one.share_partitions, one.lag, one.unknown_lags, one.members) == ("OK", 2, 100, 1, None)
    assert one.rate == pytest.approx(1.0)
    assert one.oldest_unfinished == TONIGHT
    assert [audit["behind"] for audit in one.history] == [905, 100]
    assert found["app-b"].rate is None


def test_what_began_and_healed_is_told_of_share_partitions(nights: AuditReport):
    since = nights.since_last
    assert since is not None
    assert since.time == TONIGHT
    told = {
        name: [(one.row["group_id"], one.row["partition"], one.before, one.now) for one in getattr(since, name)]
        for name in ("began", "healed", "gone")
    }
    assert told == {
        "began": [("app-b", 0, None, "STALL")],
        "healed": [("app-a", 0, "STALL", "OK")],
        "gone": [("app-d", 0, "STALL", None)],
    }
    assert since.remain == 1


def test_the_page_shows_both(nights: AuditReport):
    texts = ParsedPage(render_page(nights)).texts
    assert "1 share-partition is in trouble as before" in texts["since"]
    assert "Healed (1): app-a / orders / 0 STALL → OK" in texts["since"]
    assert "New (1): app-b / orders / 0 STALL" in texts["since"]
    assert "app-a OK 2 at least 100 - 1.0 1 d" in texts["all-groups"]


def test_a_first_and_a_quiet_night(tmp_path: Path):
    made = MadeWarehouse(tmp_path / "lake")
    first = read_report(str(made.audit([share_partition(lag=3)], run_id="run-1")))
    assert first.since_last is None
    assert "since" not in ParsedPage(render_page(first)).texts
    quiet = read_report(str(made.audit([share_partition(lag=3)], run_id="run-2", time=TONIGHT + DAY)))
    said = ParsedPage(render_page(quiet)).texts
    assert "No verdict has changed since then." in said["since"]
    assert "orders-app OK 1 3 -" in said["all-groups"]
