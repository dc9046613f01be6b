"""A cluster reconstructed: tables as from its segments; in Spark a task a partition, and nothing secret in a plan."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from share_state.delta.committed import CommittedTables
from share_state.fold.fold_options import FoldOptions
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.reconstruct import run_reconstruct
from share_state.pipeline.task import RESULTS, OutputSpec
from share_state.sources.discovery import find_logs
from share_state.sources.kafka_source import read_cluster
from share_state.sources.partition_count import PartitionCount
from share_state.sources.topics import Topics
from share_state.spark.spark_executor import SparkExecutor
from tests.profiles import nightly
from tests.sources.kafka_cluster.broker import PASSWORDS, properties_of
from tests.sources.kafka_cluster.test_live_reading import SIZES
from tests.sources.kafka_cluster.workload import Workload

pytestmark = pytest.mark.broker

KEY = ("group_id", "topic_id", "partition")


def test_the_warehouse_of_a_cluster_is_that_of_its_segments(worked: Workload, warehouse: str, tmp_path: Path) -> None:
    live = read_cluster(f"kafka://{worked.broker.address}")
    logs = find_logs([str(worked.broker.logs)])
    plan = FoldPlan(
        logs, options=FoldOptions(topics=live.topics or Topics(), partition_count=PartitionCount(live.state_partitions))
    )
    run_reconstruct(LocalExecutor(), plan, str(tmp_path / "lake"))
    ours, theirs = CommittedTables(warehouse), CommittedTables(str(tmp_path / "lake"))
    for table in ("share_partition_state", "in_flight", "findings", "cutoff"):
        columns = ours.read(table).column_names
        order = [(name, "ascending") for name in (*KEY, "rule", "first_offset", "offset") if name in columns]
        left_out = [name for name in columns if name in (*SIZES, "run_id")]
        one, other = (tables.read(table).sort_by(order).drop_columns(left_out) for tables in (ours, theirs))
        assert one.equals(other), table
    assert ours.run["progress"] == theirs.run["progress"]
    assert ours.run["records"] == theirs.run["records"] > 0


@nightly("a session beside the broker")
def test_a_partition_is_a_task_and_no_secret_is_in_its_plan(
    spark: SparkSession, worked: Workload, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    live = read_cluster(f"kafka://{worked.broker.secured}", properties_of(worked.broker, "auditor", tmp_path))
    frame = SparkExecutor(spark).fold(FoldPlan(logs=live.logs), OutputSpec(RESULTS))
    assert frame.rdd.getNumPartitions() == live.state_partitions == 3
    frame.explain("extended")
    shown = "".join(capfd.readouterr()) + repr(live)
    assert "MapInArrow" in shown
    assert PASSWORDS["auditor"] not in shown
