"""The two engines of `share-state stream`, as parameters of tests: in the command's own process, and on Spark."""

import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

import pytest

from share_state.delta.reader import CommittedTables
from share_state.errors import NothingCommittedError
from tests.profiles import HERE, IN_SPARK

on_each_engine = pytest.mark.parametrize("engine", [HERE, IN_SPARK], indirect=True)


def places(engine: str, folder: Path) -> list[str]:
    """The options for the tables and, on Spark, for the state of a stream."""
    state = ["--checkpoint", str(folder / "checkpoint")] if engine == IN_SPARK else []
    return ["--out", str(folder / "lake"), *state]


def own_process(engine: str) -> list[str]:
    """The options with which a process of its own runs an engine."""
    return ["--master", "local[2]"] if engine == IN_SPARK else []


def wait_within_a_commit(lake: Path, process: BaseProcess, drawn: Random, patience: float) -> None:
    """Wait until a stream has written some of the tables of a commit, or so many seconds."""
    deadline, until = time.monotonic() + patience, _versions(lake) + drawn.randrange(1, 9)
    while _versions(lake) < until and time.monotonic() < deadline:
        assert process.exitcode is None
        time.sleep(0.002)


def _versions(lake: Path) -> int:
    """How many versions all tables have: it grows with each commit of a micro-batch."""
    return sum(_latest(lake / table.parent.name) + 1 for table in lake.glob("*/_delta_log"))


def _latest(table: Path) -> int:
    return max((int(entry.stem) for entry in table.glob("_delta_log/0*.json")), default=-1)


def is_torn(lake: Path) -> bool:
    """Whether tables have versions that no row of `runs` names."""
    try:
        named = CommittedTables(str(lake)).versions
    except NothingCommittedError:
        return False
    return any(version < _latest(lake / table) for table, version in named.items())
