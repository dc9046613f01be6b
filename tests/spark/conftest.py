"""Both executors."""

import pytest
from pyspark.sql import SparkSession

from share_state.pipeline.executor import Executor, LocalExecutor
from share_state.spark.executor import SparkExecutor


@pytest.fixture(scope="session", params=["here", "in Spark"])
def tasks(request: pytest.FixtureRequest, spark: SparkSession) -> Executor:
    """Threads of this process, and Spark's tasks."""
    return LocalExecutor() if request.param == "here" else SparkExecutor(spark)
