"""Warehouses and tables that other people move or set back between two nights."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from share_state.delta.reader import CommittedTables
from tests.delta.test_other_writers_in_spark import audit
from tests.profiles import nightly, some_of
from tests.spark.test_audit import grown
from tests.truth import DATA

TABLES = ("share_partition_state", "in_flight", "cutoff")


def rows(warehouse: Path) -> dict[str, list[str]]:
    tables = CommittedTables(str(warehouse))
    return {name: sorted(map(repr, tables.read(name).to_pylist())) for name in TABLES}


@nightly("three audits")
def test_a_warehouse_that_was_moved_goes_on_where_it_stopped(tmp_path: Path):
    nights, first = grown(DATA / "4.3.1/happy", tmp_path / "logs", 2), tmp_path / "w"
    begun = audit(next(nights), first)
    before = rows(first)
    moved = Path(shutil.move(first, tmp_path / "elsewhere"))
    assert rows(moved) == before
    logs = next(nights)
    night, afresh = audit(logs, moved), audit(logs, tmp_path / "fresh")
    assert rows(moved) == rows(tmp_path / "fresh") != before
    assert night.records == afresh.records - begun.records > 0
    assert not first.exists()


@nightly("three audits")
@pytest.mark.parametrize("table", some_of(["share_partition_state", "carried_share_partitions", "runs"], 1))
def test_a_table_that_was_restored_changes_no_night(tmp_path: Path, table: str):
    nights, warehouse = grown(DATA / "4.3.1/happy", tmp_path / "logs", 3), tmp_path / "w"
    for _ in range(2):
        audit(next(nights), warehouse)
    before = rows(warehouse)
    # Whoever restores a table commits a version that no run names.
    DeltaTable(str(warehouse / table)).restore(0)
    if table != "runs":
        assert rows(warehouse) == before
    logs = next(nights)
    audit(logs, warehouse)
    audit(logs, tmp_path / "fresh")
    assert rows(warehouse) == rows(tmp_path / "fresh")
