"""Commands in this process, on the one session of the test run."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from share_state.cli import run
from tests.cli.command import Command, command
from tests.truth import DATA


@pytest.fixture
def share_state(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command that may use Spark."""
    return command(capfd)


@pytest.fixture
def light(capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command that needs no Spark."""
    return command(capfd)


@pytest.fixture(scope="session")
def chaos(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse made of 4.3.1/chaos, its topics known."""
    folder = tmp_path_factory.mktemp("lake") / "chaos"
    scenario = DATA / "4.3.1/chaos"
    assert run(["reconstruct", str(scenario), "--out", str(folder), "--topics", str(scenario / "topics.json")]) == 0
    return folder
