"""The fold as a function of other people's pipelines: `groupBy(...).applyInArrow`."""

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import share_state
from share_state.schema.declarations import table_schema
from share_state.simulator.simulation import simulate
from tests.fold.test_fold_group import LOG_FACTS, rows
from tests.profiles import by_profile
from tests.truth import DATA, logs_alone, scenarios


def grouped_and_folded(
    spark: SparkSession, source: Path, *keys: str, without: Collection[str] = ()
) -> list[list[dict]]:
    """The states of an export by both ways."""
    records = share_state.read(source, spark).repartition(3, "offset")
    grouped = records.groupBy("group_id", "topic_id", *keys, "partition")
    found = grouped.applyInArrow(share_state.fold_group, share_state.FOLD_GROUP_SCHEMA).toArrow()
    # Records alone name no topic.
    expected: pa.Table = share_state.reconstruct(source).share_partition_state
    return [rows([table.cast(table_schema("share_partition_state"))], without) for table in (found, expected)]


@pytest.mark.parametrize("scenario", by_profile([DATA / "4.4.0/chaos", DATA / "4.0.2/happy"], scenarios()), ids=str)
def test_grouped_records_give_the_states_of_the_main_job(spark: SparkSession, scenario: Path):
    found, expected = grouped_and_folded(spark, logs_alone(scenario))
    assert found == expected != []


@pytest.mark.parametrize("seed", range(by_profile(1, 10)))
def test_grouped_control_records_give_the_states_of_the_main_job(spark: SparkSession, tmp_path: Path, seed: int):
    simulate(tmp_path / "logs", seed=seed, minutes=2, dialect="control_records")
    found, expected = grouped_and_folded(spark, tmp_path / "logs", "topic", without=LOG_FACTS)
    assert found == expected != []
