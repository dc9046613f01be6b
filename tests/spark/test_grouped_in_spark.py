"""The fold as a function of other people's pipelines: `groupBy(...).applyInArrow`."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import share_state
from share_state.schema.declarations import table_schema
from tests.truth import DATA

ORDER = [("group_id", "ascending"), ("topic_id", "ascending"), ("partition", "ascending")]


@pytest.mark.parametrize("scenario", ["4.4.0/chaos", "4.0.2/happy"])
def test_grouped_records_give_the_states_of_the_main_job(spark: SparkSession, scenario: str):
    source: Path = DATA / scenario
    records = share_state.read(spark, source).repartition(3, "offset")
    grouped = records.groupBy("group_id", "topic_id", "partition")
    found = grouped.applyInArrow(share_state.fold_group, share_state.FOLD_GROUP_SCHEMA).toArrow()
    expected = share_state.reconstruct(source).share_partition_state
    schema = table_schema("share_partition_state")
    assert found.cast(schema).sort_by(ORDER).equals(expected.cast(schema).sort_by(ORDER))
