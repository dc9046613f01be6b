"""How tests are distributed over processes, and the one Spark session of a test run (profiles.py: how deep they go)."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests import profiles  # noqa: F401  loads the profile before any test module asks for its settings

# With colorama, which mkdocs brings along, numba keeps a test's stdout and writes to it when the process ends.
os.environ["NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"] = "1"


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several processes one has the Spark session and the broker, and a file stays with one for its fixtures."""
    for item in items:
        chosen = getattr(item, "callspec", None)
        shares = {"spark", "broker"} & {*getattr(item, "fixturenames", ())}
        shares |= {"spark"} if chosen and chosen.params.get("tasks") == "in Spark" else set()
        item.add_marker(pytest.mark.xdist_group("spark" if shares else item.nodeid.partition("::")[0]))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session as the commands open it, shared by every test that needs one."""
    from share_state.spark.session import start  # noqa: PLC0415  tests without Spark must not wait for it

    session = start("local[2]", {"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find no active session, whatever this process has run before."""
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
