"""Both places where the tasks of a run can be."""

import pytest
from pyspark.sql import SparkSession

from share_state.pipeline.executor import Tasks, TasksHere
from share_state.spark.executor import SparkTasks


@pytest.fixture(scope="session", params=["here", "in Spark"])
def tasks(request: pytest.FixtureRequest, spark: SparkSession) -> Tasks:
    """In this process, and in Spark's workers."""
    return TasksHere() if request.param == "here" else SparkTasks(spark)
