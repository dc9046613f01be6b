"""Warehouses and tables that other people move, set back or change with delta-rs between two nights."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.delta.test_other_writers_in_spark import audit, current
from tests.profiles import nightly, some_of
from tests.spark.test_audit import grown
from tests.truth import DATA


@nightly("three audits")
def test_a_warehouse_that_was_moved_goes_on_where_it_stopped(tmp_path: Path):
    nights, first = grown(DATA / "4.3.1/happy", tmp_path / "logs", 2), tmp_path / "w"
    begun = audit(next(nights), first)
    before = current(first)
    moved = Path(shutil.move(first, tmp_path / "elsewhere"))
    assert current(moved) == before
    logs = next(nights)
    night, afresh = audit(logs, moved), audit(logs, tmp_path / "fresh")
    assert current(moved) == current(tmp_path / "fresh") != before
    assert night.records == afresh.records - begun.records > 0
    assert not first.exists()


@nightly("three audits")
@pytest.mark.parametrize("table", some_of(["share_partition_state", "carried_share_partitions", "runs"], 1))
def test_a_table_that_was_restored_changes_no_night(tmp_path: Path, table: str):
    nights, warehouse = grown(DATA / "4.3.1/happy", tmp_path / "logs", 3), tmp_path / "w"
    for _ in range(2):
        audit(next(nights), warehouse)
    before = current(warehouse)
    # Whoever restores a table commits a version that no run names.
    DeltaTable(str(warehouse / table)).restore(0)
    if table != "runs":
        assert current(warehouse) == before
    logs = next(nights)
    audit(logs, warehouse)
    audit(logs, tmp_path / "fresh")
    assert current(warehouse) == current(tmp_path / "fresh")


@nightly("three audits")
@pytest.mark.parametrize("table", some_of(["carried_share_partitions", "carried_logs", "in_flight", "findings"], 1))
def test_a_row_that_was_deleted_changes_no_night(tmp_path: Path, table: str):
    nights, warehouse = grown(DATA / "4.3.1/happy", tmp_path / "logs", 2), tmp_path / "w"
    begun = audit(next(nights), warehouse)
    rows = DeltaTable(str(warehouse / table)).to_pyarrow_table().to_pylist()
    numbers = {name: value for name, value in rows[-1].items() if type(value) is int}
    done = DeltaTable(str(warehouse / table)).delete(
        " AND ".join(f"{name} = {value}" for name, value in numbers.items())
    )
    assert 0 < done["num_deleted_rows"] < len(rows)
    logs = next(nights)
    night, fresh = audit(logs, warehouse), audit(logs, tmp_path / "fresh")
    assert current(warehouse) == current(tmp_path / "fresh")
    # A log of which a share-partition is gone is read from its start.
    assert ("RESUME_STATE_CHANGED" in str(night.notes)) == (table == "carried_share_partitions")
    assert night.run_id != begun.run_id != fresh.run_id
