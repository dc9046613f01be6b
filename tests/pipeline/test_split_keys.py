"""One key in two state partitions, as after the state topic got more partitions."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from share_state.delta.committed import CommittedTables
from share_state.fold.fold_options import FoldOptions, SharePartitionFilter
from share_state.fold.timeline import timeline_tables
from share_state.kafka.primitives import partition_for
from share_state.pipeline.across_logs import settle_timeline
from share_state.pipeline.audit import run_audit
from share_state.pipeline.deltalake_sink import DeltalakeSink
from share_state.pipeline.driver_side import read_groups
from share_state.pipeline.executor import Executor
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan, GroupInput
from share_state.pipeline.reconstruct import run_reconstruct
from share_state.pipeline.result import RunResult
from share_state.sources.discovery import find_group_logs, find_logs
from share_state.sources.partition_count import PartitionCount
from share_state.spark.spark_executor import SparkExecutor
from tests.kafka.batches import Batch, Record, consecutive, in_bytes, log_of
from tests.profiles import by_profile, nightly
from tests.rules.histories import AVAILABLE, snapshot, update
from tests.truth import DATA

COUNT = 3
OLD, NEW = [(0, 9, AVAILABLE, 1)], [(50, 59, AVAILABLE, 2)]


def split(
    folder: Path, state_partitions: int | None, run: str, executor: Executor[Any] | None = None
) -> tuple[RunResult, dict[str, list[dict[str, Any]]]]:
    """Partition 0 of the topic has state in two state partitions, the right one and another; partition 1 in one."""
    logs, lake = [], str(folder / "lake")
    home, other = home_of(0), (home_of(0) + 1) % COUNT
    records: dict[int, list[Record]] = {number: [] for number in range(COUNT)}
    records[other] = [snapshot(OLD)]
    records[home] = [snapshot(NEW, start=50), update(start=51)]
    records[home_of(1)].append(snapshot(OLD, partition=1))
    for number, own in records.items():
        if not own:
            own.append(snapshot(partition=9))
        logs.append(log_of(folder, in_bytes(consecutive([Batch([one]) for one in own])), partition=number))
    plan = FoldPlan(logs, options=FoldOptions(partition_count=PartitionCount(state_partitions)))
    executor = executor or LocalExecutor()
    if run == "audit":
        result = run_audit(lambda _: nullcontext(executor), plan, lake)
    else:
        result = run_reconstruct(executor, plan, lake)
    tables = CommittedTables(lake)
    names = ("share_partition_state", "in_flight", "findings") + (
        ("share_partition_history",) if run == "audit" else ()
    )
    return result, {name: tables.read(name).to_pylist() for name in names}


@nightly("an audit in Spark")
@pytest.mark.parametrize("state_partitions", by_profile([COUNT], [None, COUNT]))
@pytest.mark.parametrize("run", by_profile(["audit"], ["audit", "reconstruct"]))
def test_tables_that_spark_writes_are_settled_alike(
    spark: SparkSession, tmp_path: Path, state_partitions: int | None, run: str
):
    here, there = (
        split(tmp_path / name, state_partitions, run, executor)
        for name, executor in (("here", None), ("there", SparkExecutor(spark)))
    )
    assert here[0] == there[0]
    for name, rows in here[1].items():
        assert sorted(map(repr, there[1][name])) == sorted(map(repr, rows))


def home_of(partition: int) -> int:
    return partition_for(f"{KEY[0]}:{KEY[1]}:{partition}", COUNT)


KEY = ("g", "AAECAwQFBgcICQoLDA0ODw")


@pytest.mark.parametrize("run", ["reconstruct", "audit"])
def test_where_the_count_is_known_only_the_right_state_is_in_the_tables(tmp_path: Path, run: str):
    result, tables = split(tmp_path, COUNT, run)
    rows = [row for row in tables["share_partition_state"] if row["partition"] == 0]
    assert [(row["state_partition"], row["start_offset"]) for row in rows] == [(home_of(0), 51)]
    assert not any(row["suspect"] for row in tables["share_partition_state"])
    assert {row["first_offset"] for row in tables["in_flight"] if row["partition"] == 0} == {51}
    found = [row for row in tables["findings"] if row["rule"] == "SPLIT_KEY"]
    assert {(row["severity"], row["group_id"], row["partition"]) for row in found} == {("error", "g", 0)}
    assert {row["state_partition"] for row in found} == {home_of(0), (home_of(0) + 1) % COUNT}
    assert all(row["message"].endswith(f"the one in {home_of(0)} is used") for row in found)
    assert result.findings["error", "SPLIT_KEY"] == 2
    assert result.share_partitions == len(tables["share_partition_state"])
    history = tables.get("share_partition_history", tables["share_partition_state"])
    assert len(history) == len(tables["share_partition_state"])


@nightly("timelines of two logs")
@pytest.mark.parametrize("state_partitions", [None, COUNT])
def test_tables_in_python_and_timelines_are_settled_too(tmp_path: Path, state_partitions: int | None):
    """Without a warehouse, as with one."""
    _, committed = split(tmp_path, state_partitions, "reconstruct")
    logs = find_logs([str(tmp_path)])
    plan = FoldPlan(logs, options=FoldOptions(partition_count=PartitionCount(state_partitions)))
    tables = LocalExecutor().result_tables(plan)
    for name, expected in committed.items():
        rows = [row | ({"run_id": None} if "run_id" in row else {}) for row in expected]
        assert sorted(map(str, tables[name].to_pylist())) == sorted(map(str, rows)), name
    assert not len(LocalExecutor().result_tables(replace(plan, judging="none"))["findings"])
    whole = pa.concat_tables([table for log in logs for table in timeline_tables(log)])
    rows = settle_timeline(whole, state_partitions)
    homes = {home_of(0)} | (set() if state_partitions else {(home_of(0) + 1) % COUNT})
    assert set(rows.filter(pc.field("partition") == 0)["state_partition"].to_pylist()) == homes
    run_reconstruct(LocalExecutor(), replace(plan, timeline=SharePartitionFilter()), str(tmp_path / "timed"))
    on_disk = CommittedTables(str(tmp_path / "timed")).read("timeline").to_pylist()
    assert sorted(map(str, on_disk)) == sorted(map(str, rows.to_pylist()))


@nightly("Spark folds each table")
@pytest.mark.parametrize("state_partitions", by_profile([COUNT], [None, COUNT]))
def test_lazy_dataframes_are_those_tables(spark: SparkSession, tmp_path: Path, state_partitions: int | None):
    split(tmp_path, state_partitions, "reconstruct")
    plan = FoldPlan(
        find_logs([str(tmp_path)]),
        options=FoldOptions(partition_count=PartitionCount(state_partitions)),
        timeline=SharePartitionFilter(),
    )
    here, there = LocalExecutor().result_tables(plan), SparkExecutor(spark).result_tables(plan)
    whole = pa.concat_tables([table for log in plan.logs for table in timeline_tables(log)])
    here, there = (
        here | {"timeline": settle_timeline(whole, state_partitions)},
        there | {"timeline": SparkExecutor(spark).timeline(plan)},
    )
    assert "SPLIT_KEY" in here["findings"]["rule"].to_pylist()
    for name, table in here.items():
        rows = there[name].toArrow().cast(table.schema)
        assert sorted(map(repr, rows.to_pylist())) == sorted(map(repr, table.to_pylist())), name


def test_groups_are_judged_against_settled_states(tmp_path: Path):
    """In memory as in a warehouse: the state in the wrong state partition is no second orphan."""
    split(tmp_path, COUNT, "reconstruct")
    groups = GroupInput(tuple(find_group_logs([str(DATA / "4.4.0/happy")])), partitions=3)
    plan = FoldPlan(
        find_logs([str(tmp_path)]), options=FoldOptions(partition_count=PartitionCount(COUNT)), groups=groups
    )
    run_reconstruct(LocalExecutor(), plan, str(tmp_path / "judged"))
    committed = CommittedTables(str(tmp_path / "judged")).read("findings").to_pylist()
    side, plan = read_groups(plan)
    returned = LocalExecutor().result_tables(plan, side)["findings"].to_pylist()
    assert sorted(map(repr, returned)) == sorted(repr(row | {"run_id": None}) for row in committed)
    orphans = [
        row["state_partition"] for row in returned if row["rule"] == "ORPHAN_SHARE_STATE" and row["partition"] == 0
    ]
    assert orphans == [home_of(0)]


def test_where_the_count_is_unknown_both_are_suspect(tmp_path: Path):
    result, tables = split(tmp_path, None, "reconstruct")
    rows = {(row["partition"], row["state_partition"]): row["suspect"] for row in tables["share_partition_state"]}
    assert rows.pop((0, home_of(0))) and rows.pop((0, (home_of(0) + 1) % COUNT))
    assert rows and not any(rows.values())
    found = [row for row in tables["findings"] if row["rule"] == "SPLIT_KEY"]
    assert len(found) == result.findings["error", "SPLIT_KEY"] == 2
    assert all(row["message"].endswith("any of them may be outdated") for row in found)


@pytest.mark.parametrize("state_partitions", [None, COUNT])
def test_of_logs_without_a_number_any_may_be_old(tmp_path: Path, state_partitions: int | None):
    """Two folders without a number may be parts or copies of one log; a third holds another share-partition."""
    for name, partition in (("a", 0), ("b", 0), ("c", 1)):
        segment = tmp_path / name / f"{0:020}.log"
        segment.parent.mkdir()
        segment.write_bytes(in_bytes(consecutive([Batch([snapshot(OLD, partition=partition)])])))
    logs = find_logs([str(tmp_path / name) for name in "abc"])
    assert [log.partition for log in logs] == [None] * 3
    plan = FoldPlan(logs, options=FoldOptions(partition_count=PartitionCount(state_partitions)))
    result = run_reconstruct(LocalExecutor(), plan, str(tmp_path / "lake"))
    assert (result.share_partitions, dict(result.findings)) == (3, {("error", "SPLIT_KEY"): 2})
    tables = CommittedTables(str(tmp_path / "lake"))
    states = tables.read("share_partition_state").to_pylist()
    assert sorted((row["partition"], row["suspect"]) for row in states) == [(0, True), (0, True), (1, False)]
    returned = LocalExecutor().result_tables(plan)["share_partition_state"].to_pylist()
    assert sorted(map(repr, returned)) == sorted(map(repr, states))
    (message,) = set(tables.read("findings")["message"].to_pylist())
    assert message == (
        f"its state is in several state partitions ({tmp_path}/a, {tmp_path}/b): any of them may be outdated"
    )


def test_the_driver_reads_no_state_where_every_key_is_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nor has the number of state partitions to be known for that."""
    records: dict[int, list[Record]] = {number: [] for number in range(COUNT)}
    for partition in range(20):
        records[home_of(partition)].append(snapshot(OLD, partition=partition))
    logs = [
        log_of(tmp_path, in_bytes(consecutive([Batch([one]) for one in own])), partition=number)
        for number, own in records.items()
    ]
    monkeypatch.setattr(DeltalakeSink, "read", lambda *_: pytest.fail("read"))
    result = run_reconstruct(LocalExecutor(), FoldPlan(logs), str(tmp_path / "lake"))
    assert (result.share_partitions, result.key_modulus) == (20, COUNT)
