"""What only Spark does to the tables of a warehouse: nights go on with it, or are refused by name."""

import shutil
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from share_state.delta.committed import CommittedTables
from share_state.errors import WarehouseError
from share_state.fold.fold_options import FoldOptions
from share_state.pipeline.audit import run_audit
from share_state.pipeline.executor import Executor
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.result import RunResult
from share_state.sources.discovery import find_logs
from share_state.sources.partition_count import PartitionCount
from share_state.spark.connections import changed_settings
from share_state.spark.delta_writer import _VACUUM
from share_state.spark.spark_executor import SparkExecutor
from tests.present import present
from tests.profiles import nightly
from tests.spark.test_audit import grown
from tests.truth import DATA

HISTORY = "share_partition_history"


def audit(source: Path, warehouse: Path, history_days: int = 90, tasks: Executor | None = None) -> RunResult:
    plan = FoldPlan(find_logs([str(source)]), options=FoldOptions(partition_count=PartitionCount(3)))
    executor = tasks or LocalExecutor()
    return run_audit(lambda _: nullcontext(executor), plan, str(warehouse), history_days=history_days)


def sizes(warehouse: Path) -> Counter[str]:
    return Counter(CommittedTables(str(warehouse)).read(HISTORY)["run_id"].to_pylist())


def versions(warehouse: Path) -> dict[str, int]:
    return dict(CommittedTables(str(warehouse)).versions)


def current(warehouse: Path) -> dict[str, list[str]]:
    """The rows of the tables that a night writes anew."""
    tables = CommittedTables(str(warehouse))
    names = ("share_partition_state", "in_flight", "cutoff")
    return {name: sorted(map(repr, tables.read(name).to_pylist())) for name in names}


def table(warehouse: Path, name: str) -> str:
    return f"delta.`{warehouse}/{name}`"


@nightly("three audits, and statements of another writer in Spark")
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


@nightly("an audit and a dozen statements in Spark")
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
    # Spark's own writer keeps it, and what else others have done.
    state, history, findings = (table(warehouse, name) for name in ("share_partition_state", HISTORY, "findings"))
    for change in (
        f"COMMENT ON TABLE {state} IS 'theirs'",
        f"ALTER TABLE {state} ADD COLUMNS (mine STRING COMMENT 'mine')",
        f"ALTER TABLE {state} ALTER COLUMN group_id COMMENT 'theirs'",
        f"ALTER TABLE {findings} ADD CONSTRAINT known CHECK (rule IS NOT NULL)",
        f"ALTER TABLE {history} SET TBLPROPERTIES "
        "('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')",
        f"OPTIMIZE {history} ZORDER BY (partition)",
        f"DELETE FROM {history} WHERE run_id = '{before['run_id']}' AND partition = 0",
        f"VACUUM {history} RETAIN 168 HOURS",
    ):
        spark.sql(change)
    (vector,) = (warehouse / HISTORY).glob("deletion_vector_*.bin")
    # Rows of the audit that was refused may be there, too; until the next one commits, nobody reads past them.
    known = CommittedTables(str(warehouse)).runs["run_id"].to_pylist()
    kept = Counter(row.run_id for row in spark.table(history).select("run_id").collect() if row.run_id in known)
    written = audit(tmp_path / "logs", warehouse, tasks=SparkExecutor(spark))
    assert {**sizes(warehouse)} == {**kept, written.run_id: written.share_partitions}
    assert spark.table(history).count() == sizes(warehouse).total()
    assert vector.exists()
    feed = spark.read.option("readChangeFeed", "true").option("startingVersion", versions(warehouse)[HISTORY])
    added = feed.format("delta").load(str(warehouse / HISTORY)).where("_change_type = 'insert'")
    assert added.count() == written.share_partitions
    fields = spark.table(state).schema
    assert [fields[name].metadata["comment"] for name in ("group_id", "mine")] == ["theirs", "mine"]
    theirs = {one: present(spark.sql(f"DESCRIBE DETAIL {one}").first()) for one in (state, findings)}
    assert theirs[state].description == "theirs"
    assert theirs[findings].properties["delta.constraints.known"] == "rule IS NOT NULL"
    assert CommittedTables(str(warehouse)).run["run_id"] == written.run_id
    (detail,) = spark.sql(f"DESCRIBE DETAIL {table(warehouse, 'cutoff')}").collect()
    assert detail.clusteringColumns == ["dialect"]
    assert spark.sql(f"SELECT first_offset FROM {mapped}").count() == len(
        CommittedTables(str(warehouse)).read("in_flight")
    )


@nightly("a second audit on Spark")
def test_rows_that_break_a_constraint_are_refused_by_sparks_writer(spark: SparkSession, tmp_path: Path):
    nights, warehouse, tasks = grown(DATA / "4.3.1/happy", tmp_path / "logs", 2), tmp_path / "w", SparkExecutor(spark)
    audit(next(nights), warehouse, tasks=tasks)
    before = CommittedTables(str(warehouse)).run
    spark.sql(f"ALTER TABLE {table(warehouse, HISTORY)} ADD CONSTRAINT known CHECK (run_id = '{before['run_id']}')")
    with pytest.raises(WarehouseError, match=f"{HISTORY}: cannot be written as a Delta table by Spark.*known"):
        audit(next(nights), warehouse, tasks=tasks)
    assert CommittedTables(str(warehouse)).run == before


@nightly("three audits on Spark")
def test_audits_on_spark_go_on_after_a_restore_and_in_another_place(spark: SparkSession, tmp_path: Path):
    nights, warehouse, tasks = grown(DATA / "4.3.1/happy", tmp_path / "logs", 3), tmp_path / "w", SparkExecutor(spark)
    first = audit(next(nights), warehouse, tasks=tasks)
    second = audit(next(nights), warehouse, tasks=tasks)
    before = current(warehouse)
    for name in ("share_partition_state", "in_flight", HISTORY):
        spark.sql(f"RESTORE {table(warehouse, name)} TO VERSION AS OF 1")
    assert current(warehouse) == before
    logs, moved = next(nights), Path(shutil.move(warehouse, tmp_path / "elsewhere"))
    third = audit(logs, moved, tasks=tasks)
    audit(logs, tmp_path / "fresh")
    assert current(moved) == current(tmp_path / "fresh") != before
    # Rows of a night that a restore took away stay away, and nothing is written twice.
    left = {run.run_id: run.share_partitions for run in (first, third)}
    assert {**sizes(moved)} == left
    assert second.run_id in CommittedTables(str(moved)).runs["run_id"].to_pylist()
    assert not warehouse.exists()


_WITH_VECTORS = "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
_DELETED = "DELETE FROM {} WHERE {row}"
_FEATURES = {
    "deletion vectors": [_WITH_VECTORS],
    "column mapping": ["ALTER TABLE {} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"],
    "type widening": ["ALTER TABLE {} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"],
    "in-commit timestamps": ["ALTER TABLE {} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')"],
    "row tracking": ["ALTER TABLE {} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')"],
    "v2 checkpoints": ["ALTER TABLE {} SET TBLPROPERTIES ('delta.checkpointPolicy' = 'v2')"],
    "change data feed": ["ALTER TABLE {} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"],
    "compaction": ["OPTIMIZE {}"],
    "an older version": ["RESTORE {} TO VERSION AS OF 0"],
    "a deleted row": [_WITH_VECTORS, _DELETED],
    "a purge and a vacuum": [_WITH_VECTORS, _DELETED, "REORG TABLE {} APPLY (PURGE)", "VACUUM {} RETAIN 0 HOURS"],
}
_REFUSED = {
    "type widening": "cannot be written .*TypeWidening.*DROP FEATURE",
    "in-commit timestamps": "cannot be written .*InCommitTimestamp.*DROP FEATURE",
    "row tracking": "cannot be written .*RowTracking.*DROP FEATURE",
}
_NOT_READ = ("column mapping", "a deleted row")
_NOT_RESUMED = "carried_share_partitions: has deletion vectors or column mapping"


def row_of(spark: SparkSession, name: str) -> str:
    """A condition that the last row of a table meets, and few others; false if the table has fewer than two."""
    rows = spark.table(name).orderBy(
        *(one.name for one in spark.table(name).schema if one.dataType.typeName() != "map")
    )
    if rows.count() < 2:
        return "false"
    pairs = rows.tail(1)[0].asDict().items()
    texts = [f"{column} = '{value}'" for column, value in pairs if isinstance(value, str) and "'" not in value]
    numbers = [f"{column} = {value}" for column, value in pairs if type(value) is int]
    return " AND ".join([*texts, *numbers])


@nightly("an audit per table and feature")
@pytest.mark.parametrize("feature", _FEATURES)
def test_every_table_may_have_every_feature(spark: SparkSession, tmp_path: Path, feature: str):
    """An audit in process goes on or refuses it by name; what is there stays readable; one on Spark goes on."""
    nights, warehouse = grown(DATA / "4.3.1/happy", tmp_path / "logs", 3), tmp_path / "w"
    audit(next(nights), warehouse)
    before = audit(next(nights), warehouse)
    tables, logs = ["runs", *CommittedTables(str(warehouse)).versions], next(nights)
    audit(logs, tmp_path / "fresh")
    for name in tables:
        changed = tmp_path / name
        shutil.copytree(warehouse, changed)
        row = row_of(spark, table(changed, name))
        with changed_settings(spark, _VACUUM):
            for statement in _FEATURES[feature]:
                spark.sql(statement.format(table(changed, name), row=row))
        refused = _REFUSED.get(feature)
        if feature in _NOT_READ and name == "carried_share_partitions":
            refused = _NOT_RESUMED
        if refused is None:
            assert audit(logs, changed).run_id != before.run_id
            assert current(changed) == current(tmp_path / "fresh")
        else:
            with pytest.raises(WarehouseError, match=refused):
                audit(logs, changed)
            if refused != _NOT_RESUMED:
                audit(logs, changed, tasks=SparkExecutor(spark))
        for one in tables:
            CommittedTables(str(changed)).read(one)
        shutil.rmtree(changed)
