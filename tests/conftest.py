"""Settings of property tests, and the one Spark session of a test run."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

# The first example of a test may compile or load kernels, which says nothing about the test.
_QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("fast", max_examples=30, deadline=None, suppress_health_check=_QUIET)
settings.register_profile("nightly", max_examples=3000, deadline=None, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several processes one has the Spark session and the broker, and a file stays with one for its fixtures."""
    for item in items:
        shares = {"spark", "broker"} & {*getattr(item, "fixturenames", ())}
        item.add_marker(pytest.mark.xdist_group("spark" if shares else item.nodeid.partition("::")[0]))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session as the commands open it, shared by every test that needs one."""
    from share_state.spark.session import start  # noqa: PLC0415  tests without Spark must not wait for it

    session = start("local[2]", {"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
