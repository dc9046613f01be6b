"""What only Spark does to the tables of a warehouse: nights go on with it, or are refused by name."""

from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from share_state.delta.reader import CommittedTables
from share_state.errors import WarehouseError
from share_state.pipeline.audit import run_audit
from share_state.pipeline.executor import Executor, LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.result import RunResult
from share_state.sources.discovery import find_logs
from share_state.spark.executor import SparkExecutor
from tests.spark.test_audit import grown
from tests.truth import DATA

HISTORY = "share_partition_history"


def audit(source: Path, warehouse: Path, history_days: int = 90, tasks: Executor | None = None) -> RunResult:
    plan = FoldPlan(find_logs([str(source)]), state_partitions=3)
    executor = tasks or LocalExecutor()
    return run_audit(lambda _: nullcontext(executor), plan, str(warehouse), history_days=history_days)


def sizes(warehouse: Path) -> Counter[str]:
    return Counter(CommittedTables(str(warehouse)).read(HISTORY)["run_id"].to_pylist())


def table(warehouse: Path, name: str) -> str:
    return f"delta.`{warehouse}/{name}`"


def test_deleted_rows_stay_deleted_and_no_night_is_written_twice(spark: SparkSession, tmp_path: Path):
    nights, warehouse = grown(DATA / "4.3.1/happy", tmp_path / "logs", 4), tmp_path / "w"
    first, second = audit(next(nights), warehouse), audit(next(nights), warehouse)
    before = sizes(warehouse)
    history, ranges = table(warehouse, HISTORY), table(warehouse, "in_flight")
    spark.sql(f"OPTIMIZE {history}")
    for one in (history, ranges):
        spark.sql(f"ALTER TABLE {one} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    (gone,) = spark.sql(f"SELECT group_id, topic_id, partition FROM {history} WHERE run_id = '{second.run_id}'").take(1)
    key = f"group_id = '{gone.group_id}' AND topic_id = '{gone.topic_id}' AND partition = {gone.partition}"
    spark.sql(f"DELETE FROM {history} WHERE run_id = '{second.run_id}' AND {key}")
    spark.sql(f"DELETE FROM {ranges} WHERE first_offset % 2 = 0")
    left = before - Counter({second.run_id: 1})
    assert sizes(warehouse) == left
    offsets = CommittedTables(str(warehouse)).read("in_flight")["first_offset"].to_pylist()
    assert offsets
    assert all(offset % 2 for offset in offsets)
    third = audit(next(nights), warehouse, history_days=0)
    assert {**sizes(warehouse)} == {second.run_id: left[second.run_id], third.run_id: third.share_partitions}
    assert spark.sql(f"SELECT * FROM {history}").count() == sizes(warehouse).total()
    assert first.run_id not in CommittedTables(str(warehouse)).runs["run_id"].to_pylist()
    checkpoint = table(warehouse, "carried_share_partitions")
    spark.sql(f"ALTER TABLE {checkpoint} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    (row,) = spark.sql(f"SELECT last_offset FROM {checkpoint}").take(1)
    spark.sql(f"DELETE FROM {checkpoint} WHERE last_offset = {row.last_offset}")
    with pytest.raises(WarehouseError, match="carried_share_partitions: has deletion vectors"):
        audit(next(nights), warehouse)


def test_mapped_columns_keep_their_names_and_clustering_is_refused_by_name(spark: SparkSession, tmp_path: Path):
    nights, warehouse = grown(DATA / "4.3.1/happy", tmp_path / "logs", 3), tmp_path / "w"
    audit(next(nights), warehouse)
    mapped = table(warehouse, "in_flight")
    spark.sql(f"ALTER TABLE {mapped} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE {mapped} RENAME COLUMN first_offset TO begins")
    spark.sql(f"ALTER TABLE {mapped} RENAME COLUMN begins TO first_offset")
    audit(next(nights), warehouse)
    committed = CommittedTables(str(warehouse)).read("in_flight")
    assert len(committed)
    assert sorted(committed["first_offset"].to_pylist()) == sorted(
        row.first_offset for row in spark.sql(f"SELECT first_offset FROM {mapped}").collect()
    )
    before = CommittedTables(str(warehouse)).run
    spark.sql(f"ALTER TABLE {table(warehouse, 'cutoff')} CLUSTER BY (dialect)")
    with pytest.raises(WarehouseError, match=r"cutoff: cannot be written .*ClusteredTable.*DROP FEATURE"):
        audit(next(nights), warehouse)
    assert CommittedTables(str(warehouse)).run == before
    # Spark's own writer keeps it.
    written = audit(tmp_path / "logs", warehouse, tasks=SparkExecutor(spark))
    assert CommittedTables(str(warehouse)).run["run_id"] == written.run_id
    (detail,) = spark.sql(f"DESCRIBE DETAIL {table(warehouse, 'cutoff')}").collect()
    assert detail.clusteringColumns == ["dialect"]
    assert spark.sql(f"SELECT first_offset FROM {mapped}").count() == len(
        CommittedTables(str(warehouse)).read("in_flight")
    )
