"""The two engines of `share-state stream`, as parameters of tests: in the command's own process, and on Spark."""

import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from share_state.delta.committed import CommittedTables
from share_state.errors import NothingCommittedError
from tests.profiles import HERE, IN_SPARK

on_each_engine = pytest.mark.parametrize("engine", [HERE, IN_SPARK], indirect=True)


class MemoryStore:
    """A key of Spark's state store in memory."""

    def __init__(self) -> None:
        self.values = dict[str, list[tuple[Any, ...]]]()

    def getValueState(self, name: str, schema: str) -> "MemoryVariable":  # noqa: N802  as of Spark
        """A variable that holds one value or none."""
        del schema
        return MemoryVariable(self.values.setdefault(name, []))

    def getMapState(self, name: str, key: str, schema: str) -> "MemoryMap":  # noqa: N802
        """A variable that holds a value for each key."""
        del key, schema
        return MemoryMap(self.values.setdefault(name, []))


@dataclass(slots=True)
class MemoryVariable:
    """As Spark's ValueState."""

    values: list[tuple[Any, ...]]

    def get(self) -> tuple[Any, ...] | None:
        """The value; None for none."""
        return self.values[0] if self.values else None

    def update(self, value: tuple[Any, ...]) -> None:
        """Replace the value."""
        self.values[:] = [value]

    def clear(self) -> None:
        """Remove the value."""
        self.values.clear()


@dataclass(slots=True)
class MemoryMap:
    """As Spark's MapState."""

    values: list[tuple[Any, ...]]

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802
        """The value of a key; None for none."""
        return dict(self.values).get(key)

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802
        """Replace the value of a key."""
        self.values[:] = [*(one for one in self.values if one[0] != key), (key, value)]

    def clear(self) -> None:
        """Remove all."""
        self.values.clear()


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
