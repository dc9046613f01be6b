"""Commands in this process: those that use Spark share the one session of the test run."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from share_state.cli.main import run
from tests.cli.commands import Command, flipped, run_cli
from tests.profiles import EXECUTORS, IN_SPARK
from tests.truth import DATA


@pytest.fixture(params=EXECUTORS)
def share_state(request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command that may use Spark."""
    if request.param == IN_SPARK:
        request.getfixturevalue("spark")
    return partial(run_cli, capfd)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command that needs no Spark."""
    return partial(run_cli, capfd)


@pytest.fixture
def no_java(tmp_path: Path) -> Mapping[str, str]:
    """The environment of a machine that has none."""
    return {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tmp_path)}


@pytest.fixture(scope="session")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse made of 4.3.1/chaos, its topics known; not to be written to."""
    folder, scenario = tmp_path_factory.mktemp("lake") / "chaos", DATA / "4.3.1/chaos"
    assert run(["reconstruct", str(scenario), "--out", str(folder), "--topics", str(scenario / "topics.json")]) == 0
    return folder


@pytest.fixture(scope="session")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of one log partition with a bit of its last batch but one changed."""
    source = DATA / "4.3.1/happy/__share_group_state-0" / f"{0:020}.log"
    folder = tmp_path_factory.mktemp("damaged") / "__share_group_state-0"
    folder.mkdir()
    (folder / source.name).write_bytes(flipped(source.read_bytes(), batch=-2))
    return folder
