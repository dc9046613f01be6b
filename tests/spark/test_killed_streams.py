"""Streams that are killed at any time: the next one leaves the tables of a reconstruct, and every finding once."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from share_state.cli.main import run
from share_state.pipeline.stream_run import last_stream_run
from tests.pipeline.test_stream_tables import pieces, reconstructed, tables_in
from tests.processes import die_with_parent
from tests.profiles import EXECUTORS, IN_SPARK, by_profile, nightly
from tests.sources.formats.tables import found, table_of, write
from tests.streams import on_each_engine, own_process, places
from tests.truth import DATA

KILLS = by_profile(1, 50)


def _command(engine: str, folder: Path, *more: str) -> list[str]:
    return ["stream", str(folder / "in"), *places(engine, folder), *more, "--quiet"]


def _check_second_runs(engine: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """While a stream runs, no other one takes its warehouse or its checkpoint."""
    capfd.readouterr()
    same = _command(engine, folder, "--once")
    assert run(same) == 2
    assert "locked by `share-state stream`, process " in capfd.readouterr().err
    if engine == IN_SPARK:
        assert run([str(folder / "other") if word == str(folder / "lake") else word for word in same]) == 2
        said = capfd.readouterr().err
        assert f"belongs to the stream that writes {folder / 'lake'}; give another folder" in said


@nightly("a stream for each kill; test_stream_kills kills those without Spark")
@pytest.mark.parametrize("engine", EXECUTORS, indirect=True)  # Spark takes a minute for each kill
def test_killed_at_any_micro_batch_a_stream_leaves_the_tables_of_a_reconstruct(
    engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    records, draw = table_of(found(DATA / "4.4.0/chaos")), random.Random(7)
    for number, part in enumerate(pieces(records, max(1, len(records) // (by_profile(8, 20) * KILLS)))):
        # Spark takes in files by their modification time, in milliseconds, and a disk may be faster.
        os.utime(write(part, tmp_path / f"in/{number:04}.parquet"), (number, number))
    more = ["--trigger", "0ms", "--max-files", "1", "-v", *own_process(engine)]
    command = [sys.executable, "-m", "share_state", *_command(engine, tmp_path, *more)]
    for _ in range(KILLS):
        before = last_stream_run(str(tmp_path / "lake"))
        with (
            (tmp_path / "stderr").open("wb") as errors,
            subprocess.Popen(command, stderr=errors, start_new_session=True, preexec_fn=die_with_parent) as victim,  # noqa: PLW1509
        ):
            while victim.poll() is None and last_stream_run(str(tmp_path / "lake")) == before:
                time.sleep(0.1)
            _check_second_runs(engine, tmp_path, capfd)
            time.sleep(draw.uniform(0, 2))
            os.killpg(victim.pid, signal.SIGKILL)
        assert victim.returncode == -signal.SIGKILL, (tmp_path / "stderr").read_text()
    assert run(_command(engine, tmp_path, "--once")) in (0, 1)
    assert tables_in(tmp_path / "lake") == reconstructed(records, tmp_path)


@nightly("three streams, each begun twice")
@pytest.mark.parametrize("lost", ["checkpoint", "lake", "lake/in_flight"])
@on_each_engine
def test_a_stream_that_lost_its_checkpoint_or_its_tables_starts_anew(
    engine: str, lost: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    if lost == "checkpoint" and engine != IN_SPARK:
        pytest.skip("the tables are its checkpoint")
    records = table_of(found(DATA / "4.4.0/dlq"))
    write(records.slice(0, 100), tmp_path / "in/a.parquet")
    assert run(_command(engine, tmp_path, "--once")) in (0, 1)
    shutil.rmtree(tmp_path / lost)
    write(records.slice(100), tmp_path / "in/b.parquet")
    assert run([*_command(engine, tmp_path, "--once")[:-1]]) in (0, 1)
    if engine == IN_SPARK:
        what = "checkpoint" if lost == "checkpoint" else "tables"
        assert f"the {what} of the stream in" in capfd.readouterr().err
    assert tables_in(tmp_path / "lake") == reconstructed(records, tmp_path)
