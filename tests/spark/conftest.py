"""Both executors."""

import pytest
from pyspark.sql import SparkSession

from share_state.pipeline.executor import Executor, LocalExecutor
from share_state.spark.executor import SparkExecutor
from tests.profiles import by_profile


@pytest.fixture(scope="session", params=by_profile(["here"], ["here", "in Spark"]))
def nightly_tasks(request: pytest.FixtureRequest) -> Executor:
    """Threads of this process; in the nightly profile Spark's tasks, too, where an audit takes seconds."""
    return LocalExecutor() if request.param == "here" else SparkExecutor(request.getfixturevalue("spark"))


@pytest.fixture(scope="session", params=["here", "in Spark"])
def tasks(request: pytest.FixtureRequest, spark: SparkSession) -> Executor:
    """Threads of this process, and Spark's tasks."""
    return LocalExecutor() if request.param == "here" else SparkExecutor(spark)
