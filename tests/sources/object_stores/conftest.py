"""One S3 server for all tests of stores, and sessions whose tasks know of it."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.sources.object_stores.s3 import environment, server


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    """The address of a server that runs as long as the tests."""
    with server() as address:
        yield address


@pytest.fixture
def s3(s3_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server's address; the environment lets us in."""
    for name, value in environment(s3_address).items():
        monkeypatch.setenv(name, value)
    return s3_address


@pytest.fixture
def s3_spark(s3: str, spark: SparkSession) -> Iterator[SparkSession]:
    """A session whose tasks are let in: they have the environment that the session was started in."""
    of_tasks = spark.sparkContext.environment
    before = dict(of_tasks)
    of_tasks |= environment(s3)
    yield spark
    of_tasks.clear()
    of_tasks |= before
