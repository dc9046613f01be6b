"""A stream that is killed at any moment, while its logs grow, goes on and leaves the tables of a reconstruct."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from share_state.cli.main import run
from tests.pipeline.test_local_stream import of_states
from tests.pipeline.test_stream_tables import pieces
from tests.processes import die_with_parent
from tests.profiles import by_profile
from tests.sources.formats.tables import found, table_of, write
from tests.truth import DATA

_SCENARIO = DATA / "4.4.0/chaos"
_KILLS = by_profile(2, 50)
_PATIENCE = 20.0


class Segments:
    """A broker's own folder, whose segments grow at any byte."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources = [*_SCENARIO.glob("__share_group_state-*/*.log")]

    def grow(self, share: float) -> None:
        """Append up to a share of each segment."""
        for source in self._sources:
            target = self._folder / source.relative_to(_SCENARIO)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("ab") as segment:
                segment.write(source.read_bytes()[segment.tell() : int(source.stat().st_size * share)])


class Files:
    """A folder of Parquet files, one for each call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts = [*pieces(table_of(found(_SCENARIO)), 1)]
        self._next = 0

    def grow(self, share: float) -> None:
        """Add a file with what is missing to a share of the records."""
        until = int(len(self._parts) * share)
        if until > self._next:
            path = self._folder / f"{self._next:06}.parquet"
            write(pa.concat_tables(self._parts[self._next : until]), path.with_suffix(".new"))
            os.utime(path.with_suffix(".new"), (until, until))
            path.with_suffix(".new").rename(path)
            self._next = until


@contextmanager
def _stream(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "share_state", "stream", str(folder / "in"), "--out", str(folder / "lake")]
    command += ["--trigger", "0ms", "--quiet"]
    with subprocess.Popen(command, preexec_fn=die_with_parent) as process:  # noqa: PLW1509
        try:
            yield process
        finally:
            process.kill()


def _versions(lake: Path) -> int:
    """How many versions all tables have: it grows with each commit of a micro-batch."""
    logs = lake.glob("*/_delta_log")
    return sum(max((int(entry.stem) + 1 for entry in log.glob("0*.json")), default=0) for log in logs)


@pytest.mark.parametrize("kind", by_profile([Segments], [Segments, Files]))
def test_tables_after_kills_are_those_of_a_reconstruct(kind: type[Segments | Files], tmp_path: Path):
    drawn, logs, lake = Random(kind.__name__), kind(tmp_path / "in"), tmp_path / "lake"
    for number in range(_KILLS):
        logs.grow((number + 0.5) / _KILLS)
        with _stream(tmp_path) as process:
            deadline, before = time.monotonic() + _PATIENCE, _versions(lake)
            # Of a commit, so that kills come between the tables of one micro-batch, too.
            least = drawn.randrange(1, 9)
            while _versions(lake) < before + least and time.monotonic() < deadline:
                assert process.poll() is None
                time.sleep(0.002)
            logs.grow((number + 0.5 + drawn.random() / 2) / _KILLS)
            time.sleep(drawn.random() / 4)
        if number == _KILLS - 1:
            logs.grow(1.0)
        if number % 5 == 4 or number == _KILLS - 1:
            assert run(["stream", str(tmp_path / "in"), "--out", str(lake), "--once", "--quiet"]) in (0, 1)
            truth = ["reconstruct", str(tmp_path / "in"), "--out", str(tmp_path / "truth"), "--quiet"]
            assert run(truth) in (0, 1)
            assert of_states(lake) == of_states(tmp_path / "truth"), number
