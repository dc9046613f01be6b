"""A stream that is killed at any moment, while its logs grow, goes on and leaves the tables of a reconstruct."""

import os
import shutil
import time
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from share_state.cli.main import run
from share_state.sources.segments import read_chunks
from tests.pipeline.test_local_stream import of_states
from tests.pipeline.test_stream_tables import pieces
from tests.profiles import by_profile
from tests.sources.formats.tables import found, table_of, write
from tests.streams import is_torn, wait_within_a_commit
from tests.truth import DATA, scenarios
from tests.warm_commands import running_command

_KILLS = by_profile(2, 50)
_PATIENCE, _SHORT_PATIENCE = 60.0, 0.5
"""Seconds to wait for a commit; there may be none where a log has grown by less than a batch."""


def _data_folder(scenario: Path) -> Path:
    """The log directory of a fixture, which may be a copy within it."""
    return min(scenario.rglob("__share_group_state-*"), key=lambda log: len(log.parts)).parent


class Segments:
    """A broker's own folder, whose segments grow at any byte."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._folder = folder
        self._logs = [sorted(log.glob("*.log")) for log in source.glob("__share_group_state-*")]
        for log in source.glob("__share_group_state-*"):
            shutil.copytree(log, folder / log.name, ignore=shutil.ignore_patterns("*.log", "*index"))

    def grow(self, share: float) -> bool:
        """Append up to a share of each log; returns whether they have more whole batches."""
        before = self._batches()
        for segments in self._logs:
            left = int(sum(segment.stat().st_size for segment in segments) * share)
            for source in segments:
                with (self._folder / source.parent.name / source.name).open("ab") as segment:
                    segment.write(source.read_bytes()[segment.tell() : left])
                left -= source.stat().st_size
                if left <= 0:
                    break
        return self._batches() > before

    def _batches(self) -> int:
        if not any(self._folder.glob("*/*.log")):
            return 0
        return sum(len(chunk.batches) for log in found(self._folder) for chunk in read_chunks(log, merge=False))


class Files:
    """A folder of Parquet files, one for each call."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._folder = folder
        self._parts = [*pieces(table_of(found(source)), 1)]
        self._next = 0

    def grow(self, share: float) -> bool:
        """Add a file with what is missing to a share of the records; returns whether there are more."""
        until = max(1, int(len(self._parts) * share))
        has_grown = until > self._next
        if has_grown:
            path = self._folder / f"{self._next:06}.parquet"
            write(pa.concat_tables(self._parts[self._next : until]), path.with_suffix(".new"))
            os.utime(path.with_suffix(".new"), (until, until))
            path.with_suffix(".new").rename(path)
            self._next = until
        return has_grown


@pytest.mark.parametrize(
    "scenario", by_profile([DATA / "4.4.0/chaos"], scenarios()), ids=lambda path: f"{path.parent.name}/{path.name}"
)
@pytest.mark.parametrize("kind", by_profile([Segments], [Segments, Files]))
def test_tables_after_kills_are_those_of_a_reconstruct(kind: type[Segments | Files], scenario: Path, tmp_path: Path):
    drawn, logs = Random(f"{kind.__name__} {scenario.name}"), kind(_data_folder(scenario), tmp_path / "in")
    lake, stream = tmp_path / "lake", ["stream", str(tmp_path / "in"), "--out", str(tmp_path / "lake"), "--quiet"]
    torn = 0
    for number in range(_KILLS):
        patience = _PATIENCE if logs.grow((number + 0.5) / _KILLS) else _SHORT_PATIENCE
        with running_command([*stream, "--trigger", "0ms"]) as process:
            wait_within_a_commit(lake, process, drawn, patience)
            logs.grow((number + 0.5 + drawn.random() / 2) / _KILLS)
            time.sleep(drawn.choice([0.0, drawn.random() / 4]))
        torn += is_torn(lake)
        if number == _KILLS - 1:
            logs.grow(1.0)
        if number % 5 == 4 or number == _KILLS - 1:
            assert run([*stream, "--once"]) in (0, 1)
            truth = ["reconstruct", str(tmp_path / "in"), "--out", str(tmp_path / "truth"), "--quiet"]
            assert run(truth) in (0, 1)
            assert of_states(lake) == of_states(tmp_path / "truth"), number
    assert torn >= _KILLS // 50
