"""Totals of what became of the deliveries of each group, over all audits of a warehouse."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from share_state.cli.main import run
from share_state.config.input_spec import OPTIONS, input_spec
from share_state.delta.committed import CommittedTables
from share_state.fold.history import OUTCOME_COLUMNS
from share_state.pipeline.audit import run_audit
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.planning import build_plan
from share_state.pipeline.resume import ALL_LOGS
from tests.profiles import nightly
from tests.truth import DATA

EXPORT = DATA / "4.3.1" / "chaos"
KEPT = ("__share_group_state-0", "__share_group_state-1", "__share_group_state-2")


def audit(export: Path, warehouse: Path, *options: str) -> CommittedTables:
    metrics = ("--prometheus", str(warehouse.parent / "metrics.prom"))
    assert run(["audit", str(export), "--out", str(warehouse), "--quiet", *metrics, *options]) in (0, 1)
    return CommittedTables(str(warehouse))


def totals(tables: CommittedTables) -> dict[str, dict[str, int]]:
    return {row["group_id"]: row for row in tables.read("group_outcomes").to_pylist()}


def sums_of_history(tables: CommittedTables) -> dict[str, dict[str, int]]:
    rows = (
        tables.read("share_partition_history")
        .group_by("group_id")
        .aggregate([(name, "sum") for name in OUTCOME_COLUMNS])
    )
    return {
        row["group_id"]: {"group_id": row["group_id"]} | {name: row[f"{name}_sum"] or 0 for name in OUTCOME_COLUMNS}
        for row in rows.to_pylist()
    }


def metrics(warehouse: Path) -> dict[tuple[str, str], float]:
    lines = (warehouse.parent / "metrics.prom").read_text().splitlines()
    assert "# TYPE share_state_group_outcomes_total counter" in lines
    samples = [line.split('"') for line in lines if line.startswith("share_state_group_outcomes_total{")]
    return {(words[1], words[3]): float(words[-1].split()[-1]) for words in samples}


@pytest.fixture
def first_half(tmp_path: Path) -> Path:
    """The export as it was when half of each segment was written."""
    for name in KEPT:
        shutil.copytree(EXPORT / name, tmp_path / "half" / name)
    for segment in (tmp_path / "half").rglob("*.log"):
        data, at = segment.read_bytes(), 0
        while at < len(data) // 2:
            at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        segment.write_bytes(data[:at])
    return tmp_path / "half"


@nightly("five audits")
def test_totals_are_the_sums_of_all_nights_and_stay_when_nights_expire(first_half, tmp_path):
    lake = tmp_path / "lake"
    early = audit(first_half, lake)
    assert totals(early) == sums_of_history(early)
    late = audit(EXPORT, lake)
    assert totals(late) == sums_of_history(late)
    assert sum(row["acknowledged_records"] for row in totals(late).values()) > sum(
        row["acknowledged_records"] for row in totals(early).values()
    )
    once = audit(EXPORT, tmp_path / "once")
    assert totals(late) == totals(once)
    # Read again, with all earlier nights expired: nothing counts twice, and nothing is forgotten.
    plan = build_plan(input_spec(OPTIONS, sources=[{"path": str(EXPORT)}]), OPTIONS)
    run_audit(lambda _: nullcontext(LocalExecutor()), plan, str(lake), afresh=[ALL_LOGS], history_days=0)
    again = CommittedTables(str(lake))
    assert early.run["run_id"] not in again.read("share_partition_history")["run_id"].to_pylist()
    assert totals(again) == totals(late)


def test_the_counters_are_the_totals(first_half, tmp_path):
    lake = tmp_path / "lake"
    audit(first_half, lake)
    before = metrics(lake)
    tables = audit(EXPORT, lake)
    told = metrics(lake)
    rows = totals(tables)
    assert told == {
        (group, outcome): row[column] for group, row in rows.items() for column, outcome in OUTCOME_COLUMNS.items()
    }
    assert all(told[key] >= value for key, value in before.items())
    audit(EXPORT, lake)
    assert metrics(lake) == told


@nightly("four audits")
def test_a_lost_table_is_made_again_from_the_history(first_half, tmp_path):
    lake = tmp_path / "lake"
    audit(first_half, lake)
    shutil.rmtree(lake / "group_outcomes")
    tables = audit(EXPORT, lake)
    assert totals(tables) == sums_of_history(tables)
