"""How tests are distributed over processes, and the one Spark session of a test run (profiles.py: how deep they go)."""

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from share_state.jit.portable import compile_for_every_cpu
from tests.profiles import HERE, IN_SPARK  # loads the profile before any test module asks for its settings

if TYPE_CHECKING:
    from share_state.pipeline.executor import Executor

# The logs in tests/data are months old; tests of EXPORT_STALE set a limit of their own.
os.environ["SHARE_STATE_LIMITS__EXPORT_AGE"] = "0"

# Tests and the commands that they start use the same compiled kernels.
compile_for_every_cpu()

# With colorama, which mkdocs brings along, numba keeps a test's stdout and writes to it when the process ends.
os.environ["NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"] = "1"


LONGEST = ("spark", "broker", "test_nights.py", "test_healing.py")
"""The groups of tests that take longest begin first, so that no process has one of them left at its end."""
_ORDER = {name: place for place, name in enumerate(LONGEST)}


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order of groups; xdist would begin with those of most tests."""
    config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True, tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Of several processes one has the Spark session, one the broker, and a file stays with one for its fixtures.

    Tests with both are with the broker, in a Spark session of their own: it starts sooner than a second broker.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    yield
    items.sort(key=lambda item: _ORDER.get(_group(item).rpartition("/")[2], len(_ORDER)))


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and tests, which stay to the end."""
    gc.freeze()


def _group(item: pytest.Item) -> str:
    if {"broker", "can_run_broker"} <= {*getattr(item, "fixturenames", ())}:
        return "broker"
    if _asks_for_spark(item):
        return "spark"
    file = item.nodeid.partition("::")[0]
    # Each of them parses the whole package.
    return "structure" if file.startswith("tests/structure/") else file


def _asks_for_spark(item: pytest.Item) -> bool:
    chosen = getattr(item, "callspec", None)
    is_chosen = chosen is not None and any(isinstance(one, str) and one == IN_SPARK for one in chosen.params.values())
    return is_chosen or "spark" in getattr(item, "fixturenames", ())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Commands find no active session, whatever this process has run before, unless their test asks for Spark."""
    with pytest.MonkeyPatch.context() as patch:
        if not _asks_for_spark(item):
            patch.setattr(SparkSession, "getActiveSession", lambda: None)
        return (yield)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session as the commands open it, shared by every test that needs one."""
    from share_state.spark.session import start  # noqa: PLC0415  tests without Spark must not wait for it

    # To compile a class for a few rows takes longer than to interpret them. Commands in processes of their own compile.
    session = start(
        "local[2]",
        {
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
    )
    yield session
    session.stop()


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of a test that asks for Spark find no active session either."""
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)


@pytest.fixture(scope="session", params=[HERE, IN_SPARK])
def tasks(request: pytest.FixtureRequest) -> "Executor":
    """Threads of this process, and Spark's tasks. A test of the first needs no session."""
    from share_state.pipeline.local_executor import LocalExecutor  # noqa: PLC0415  numba reads the environment that is set above
    from share_state.spark.spark_executor import SparkExecutor  # noqa: PLC0415

    return LocalExecutor() if request.param == HERE else SparkExecutor(request.getfixturevalue("spark"))


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    """HERE or IN_SPARK: who runs a stream; on Spark in the session of the tests, which commands here then use."""
    if request.param == IN_SPARK:
        request.getfixturevalue("spark")
    return request.param
