"""Tables of a stream on Spark that the driver cannot write: Spark's Delta writer does, and the rows are the same."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse import Warehouse
from share_state.errors import WarehouseError
from share_state.pipeline import stream_tables
from share_state.spark.delta_writer import DeltaWriter
from tests.pipeline.test_stream_tables import pieces, reconstructed, tables_in
from tests.present import present
from tests.profiles import nightly
from tests.sources.formats.tables import found, table_of, write
from tests.truth import DATA

STREAMED = ("findings", "in_flight", "share_partition_state", "cutoff", "share_partition_history", "runs")
MAPPED = "ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
FEATURES = {
    "deletion vectors": [
        "ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        "UPDATE {table} SET {column} = {column} WHERE hash({column}) % 2 = 0",
    ],
    "column mapping": [MAPPED],
    "a constraint": ["ALTER TABLE {table} ADD CONSTRAINT named CHECK ({column} <> 'none')"],
    "change data feed": ["ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"],
    "row tracking": ["ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')"],
    "type widening": ["ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"],
}
TEXTS = {"in_flight": "group_id", "share_partition_state": "group_id", "cutoff": "topic"}


class Grown:
    """A folder of records that grows, and the stream of it."""

    def __init__(self, folder: Path, out: str | None = None) -> None:
        self.folder, records = folder, table_of(found(DATA / "4.4.0/chaos"))
        # Some that cannot be decoded are findings in each part.
        is_broken = pa.array([number % 100 == 50 for number in range(len(records))])
        values = pc.if_else(is_broken, pa.scalar(b"\0\0\1"), records["value"].combine_chunks())
        records = records.set_column(records.schema.get_field_index("value"), "value", values)
        self.parts = list(pieces(records, len(records) // 12))
        self.written = list[pa.Table]()
        state = ["--out", out or str(folder / "lake"), "--checkpoint", str(folder / "checkpoint")]
        self.command = ["stream", str(folder / "in"), *state, "--once", "--quiet", "--max-files", "1"]

    def grow(self, count: int = 1) -> int:
        """Write so many files, run the stream, and return its exit code."""
        for _ in range(count):
            self.written.append(self.parts[len(self.written)])
            number = len(self.written)
            # Spark takes in files by their modification time, in milliseconds.
            os.utime(write(self.written[-1], self.folder / f"in/{number:04}.parquet"), (number, number))
        return run(self.command)

    def check(self, lake: Path | None = None) -> None:
        """The tables are those of a reconstruct of what was written."""
        whole = self.folder / f"whole-{len(self.written)}"
        assert tables_in(lake or self.folder / "lake") == reconstructed(pa.concat_tables(self.written), whole)


@pytest.fixture
def grown(tmp_path: Path, spark: SparkSession) -> Grown:
    assert spark
    return Grown(tmp_path)


def _change(spark: SparkSession, lake: Path, statements: list[str]) -> None:
    for name in STREAMED:
        for statement in statements:
            spark.sql(statement.format(table=f"delta.`{lake}/{name}`", column=TEXTS.get(name, "run_id")))


def _writers(spark: SparkSession, place: Path, since: int) -> set[str]:
    """Who wrote the versions of a table after one."""
    rows = spark.sql(f"DESCRIBE HISTORY delta.`{place}`").where(f"version > {since}").select("engineInfo").collect()
    return {row.engineInfo.partition("/")[0] for row in rows}


@nightly("two streams on Spark per feature")
@pytest.mark.parametrize("feature", FEATURES)
def test_spark_writes_tables_of_a_stream_with_features(feature: str, grown: Grown, spark: SparkSession):
    lake = grown.folder / "lake"
    assert grown.grow(2) in (0, 1)
    _change(spark, lake, FEATURES[feature])
    changed = {name: DeltaTable(lake / name).version() for name in STREAMED}
    assert grown.grow(2) in (0, 1)
    grown.check()
    for name in STREAMED:
        writers = _writers(spark, lake / name, changed[name])
        # A table whose rows are all replaced has no vectors any more.
        has_vectors = feature != "deletion vectors" or name in ("in_flight", "share_partition_state")
        assert "Apache-Spark" in writers or not has_vectors, name
        assert writers == {"Apache-Spark"} or feature == "deletion vectors", name
        committed = CommittedTables(str(lake)).read(name)
        assert spark.read.format("delta").load(str(lake / name)).count() == len(committed)


@nightly("five streams on Spark")
def test_a_stream_that_ends_between_two_tables_of_spark_leaves_each_row_once(
    grown: Grown, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    assert grown.grow(2) in (0, 1)
    _change(spark, grown.folder / "lake", [MAPPED])
    for lost in ("share_partition_state", "runs"):
        before = CommittedTables(str(grown.folder / "lake")).run
        with monkeypatch.context() as patched:
            patched.setattr(Warehouse, "commit", _ended_at(lost, Warehouse.commit))
            assert grown.grow() == 2
        assert "killed" in capfd.readouterr().err
        assert CommittedTables(str(grown.folder / "lake")).run == before
        assert run(grown.command) in (0, 1)
        grown.check()


def _ended_at(lost: str, commit: Callable[..., Any]) -> Callable[..., Any]:
    def stopped(self: Warehouse, table: str, replaced_runs: Any) -> Any:
        if table == lost:
            raise WarehouseError("killed")
        return commit(self, table, replaced_runs)

    return stopped


@nightly("four streams into a catalog")
def test_a_stream_writes_to_a_schema_of_a_catalog(grown: Grown, spark: SparkSession, monkeypatch: pytest.MonkeyPatch):
    lake = grown.folder / "somewhere"
    spark.sql(f"CREATE SCHEMA streamed LOCATION '{lake}'")
    try:
        stream = Grown(grown.folder, out="spark_catalog.streamed")
        assert stream.grow(2) in (0, 1)
        stream.check(lake)
        state = spark.table("streamed.share_partition_state")
        assert state.count() == len(CommittedTables(str(lake)).read("share_partition_state"))
        spark.sql("ALTER TABLE streamed.cutoff SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
        assert {row.tableName for row in spark.sql("SHOW TABLES IN streamed").collect()} >= {*STREAMED}
        # It cleans up after each micro-batch, not every ten minutes.
        monkeypatch.setattr(stream_tables, "_KEPT_SECONDS", 0.0)
        assert stream.grow(2) in (0, 1)
        stream.check(lake)
        done = {row.operation for row in spark.sql("DESCRIBE HISTORY streamed.cutoff").collect()}
        assert {"MERGE", "VACUUM END"} <= done
        assert spark.table("streamed.cutoff").count() == len(CommittedTables(str(lake)).read("cutoff"))
    finally:
        spark.sql("DROP SCHEMA streamed CASCADE")


@nightly("VACUUM in Spark")
def test_a_small_table_is_vacuumed_in_few_tasks_and_settings_stay(spark: SparkSession, tmp_path: Path):
    """By default Spark lists the files of every table in 10,000 tasks."""
    spark.range(3).write.format("delta").save(str(tmp_path / "runs"))
    spark.range(3).write.format("delta").mode("overwrite").save(str(tmp_path / "runs"))
    names = ("spark.databricks.delta.retentionDurationCheck.enabled", "spark.sql.shuffle.partitions")
    names += ("spark.sql.sources.parallelPartitionDiscovery.parallelism",)
    before, tracker = [spark.conf.get(name, None) for name in names], spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("vacuum", "")
    DeltaWriter(Warehouse(str(tmp_path)), spark, None).vacuum("runs", 0)
    jobs = [present(tracker.getJobInfo(job)) for job in tracker.getJobIdsForGroup("vacuum")]
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # pyright: ignore[reportArgumentType]  removes it
    stages = [present(tracker.getStageInfo(number)) for job in jobs for number in job.stageIds]
    assert 0 < sum(stage.numTasks for stage in stages) < 200
    assert [spark.conf.get(name, None) for name in names] == before
    assert len([*(tmp_path / "runs").glob("*.parquet")]) == len(DeltaTable(tmp_path / "runs").file_uris())
