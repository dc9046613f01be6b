"""Dead letters where Spark folds: the tables of this process, also with deletion vectors in the dead-letter table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from share_state.delta.committed import CommittedTables
from share_state.fold.fold_options import FoldOptions
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.reconstruct import run_reconstruct
from share_state.sources.discovery import find_logs
from share_state.sources.input_detection import find_dead_letters
from share_state.sources.topics import read_topics
from share_state.spark.spark_executor import SparkExecutor
from tests.profiles import nightly
from tests.truth import DATA

REAL = DATA / "4.4.0/dead-letters"
NAMES = ("archiving_ranges", "dead_letters", "lost_dead_letters")
HEADERS = {"topic": "topic", "partition": "partition", "offset": "offset", "group": "group_id",
           "delivery.count": "delivery_count", "message": "reason"}  # fmt: skip


def _as_records(letters: list[dict[str, Any]]) -> pa.Table:
    """Rows of `dead_letters` as Spark's Kafka source reads the records of their topics."""
    headers = [[{"key": f"__dlq.errors.{name}", "value": str(row[column]).encode()} for name, column in HEADERS.items()]
               for row in letters]  # fmt: skip
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    of = {name: [row[f"dead_letter_{name}"] for row in letters] for name in ("topic", "partition", "offset")}
    times = pa.array([row["timestamp"] for row in letters], pa.timestamp("us", "UTC"))
    numbers = pa.array(of["partition"], pa.int32())
    return pa.table({"headers": pa.array(headers, kind), **of, "partition": numbers, "timestamp": times})


@pytest.fixture
def plan() -> FoldPlan:
    logs = find_logs([str(REAL / "__share_group_state-2")])
    dlq = find_dead_letters([str(REAL)], None)
    return FoldPlan(logs, options=FoldOptions(topics=read_topics(str(REAL / "topics.json"))), dead_letters=dlq)


@nightly("the other test reads the same tables")
def test_spark_has_the_tables_of_this_process(spark: SparkSession, plan: FoldPlan, tmp_path: Path):
    here, there = tmp_path / "here", tmp_path / "there"
    result = run_reconstruct(LocalExecutor(), plan, str(here))
    assert run_reconstruct(SparkExecutor(spark), plan, str(there)).run_id == result.run_id
    for name in NAMES:
        assert CommittedTables(str(there)).read(name).equals(CommittedTables(str(here)).read(name)), name


@nightly("Spark deletes and folds")
def test_a_dead_letter_that_a_vector_deletes_is_lost(spark: SparkSession, plan: FoldPlan, tmp_path: Path):
    run_reconstruct(LocalExecutor(), plan, str(tmp_path / "here"))
    tables, marked = CommittedTables(str(tmp_path / "here")), tmp_path / "marked"
    letters = tables.read("dead_letters").to_pylist()
    gone = [row for row in letters if row["archived"] and not row["duplicate"]][100]
    place = f"delta.`{tmp_path / 'dlq'}`"
    frame = spark.createDataFrame(_as_records(letters)).coalesce(1)
    frame.write.format("delta").option("delta.enableDeletionVectors", "true").save(str(tmp_path / "dlq"))
    spark.sql(f"DELETE FROM {place} WHERE partition = {gone['dead_letter_partition']} "
              f"AND offset = {gone['dead_letter_offset']}")  # fmt: skip
    assert list((tmp_path / "dlq").glob("deletion_vector_*"))
    dlq = find_dead_letters([str(tmp_path / "dlq")], None)
    run_reconstruct(SparkExecutor(spark), replace(plan, dead_letters=dlq), str(marked))
    assert CommittedTables(str(marked)).read("archiving_ranges").num_rows == len(tables.read("archiving_ranges"))
    key = ("group_id", "topic_id", "partition")
    assert [
        (*(row[name] for name in key), row["first_offset"], row["last_offset"])
        for row in CommittedTables(str(marked)).read("lost_dead_letters").to_pylist()
    ] == [(*(gone[name] for name in key), gone["offset"], gone["offset"])]
