"""The two engines of `share-state stream`, as parameters of tests: in the command's own process, and on Spark."""

from pathlib import Path

import pytest

from tests.profiles import HERE, IN_SPARK

on_each_engine = pytest.mark.parametrize("engine", [HERE, IN_SPARK], indirect=True)


def places(engine: str, folder: Path) -> list[str]:
    """The options for the tables and, on Spark, for the state of a stream."""
    state = ["--checkpoint", str(folder / "checkpoint")] if engine == IN_SPARK else []
    return ["--out", str(folder / "lake"), *state]


def own_process(engine: str) -> list[str]:
    """The options with which a process of its own runs an engine."""
    return ["--master", "local[2]"] if engine == IN_SPARK else []
