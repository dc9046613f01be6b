"""Both executors."""

import pytest

from share_state.pipeline.executor import Executor, LocalExecutor
from share_state.spark.executor import SparkExecutor


@pytest.fixture(scope="session", params=["here", "in Spark"])
def tasks(request: pytest.FixtureRequest) -> Executor:
    """Threads of this process, and Spark's tasks. A test of the first needs no session."""
    return LocalExecutor() if request.param == "here" else SparkExecutor(request.getfixturevalue("spark"))
