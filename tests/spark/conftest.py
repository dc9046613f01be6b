"""Both places where the tasks of a run can be."""

import pytest
from pyspark.sql import SparkSession

from share_state.runs.here import TasksHere
from share_state.runs.tasks import Tasks
from share_state.spark.spark_tasks import SparkTasks


@pytest.fixture(scope="session", params=["here", "in Spark"])
def tasks(request: pytest.FixtureRequest, spark: SparkSession) -> Tasks:
    """In this process, and in Spark's workers."""
    return TasksHere() if request.param == "here" else SparkTasks(spark)
