"""A signal at any moment around a commit: what the command says that it left behind is what is there."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from share_state.delta.committed import CommittedTables
from share_state.errors import NothingCommittedError
from tests.profiles import by_profile, nightly
from tests.truth import DATA

HAPPY = str(DATA / "4.3.1/happy")
MOMENTS = by_profile(3, 200)
"""Spread evenly over some thousand calls, the last of them after the last line is printed."""

NOTHING = "share-state: stopped; nothing was committed\n"


def stopped_runs(folder: Path, number: int, *command: str) -> list[tuple[int, str, Path]]:
    """Exit code, stderr and folder of runs of a command that a signal stops at different moments."""
    script = [sys.executable, "-m", "tests.cli.stopped_runs", str(folder), str(number), str(MOMENTS), *command]
    made = subprocess.run(script, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return [(code, err, Path(place)) for code, err, place in json.loads(made.stdout)]


@nightly("a process for each moment")
@pytest.mark.parametrize(
    ("command", "number", "more"),
    [
        ("audit", signal.SIGTERM, "(, and the next audit reports it| and reported)"),
        ("audit", signal.SIGINT, "(, and .*| and reported)"),
        ("reconstruct", signal.SIGINT, ""),
        ("reconstruct", signal.SIGTERM, ""),
    ],
)
def test_a_signal_around_the_commit_says_whether_the_run_stands(tmp_path: Path, command: str, number: int, more: str):
    said = set[bool]()
    for code, err, place in stopped_runs(tmp_path, number, command, HAPPY, "--out", "{place}/w", "--quiet"):
        try:
            run_id = CommittedTables(str(place / "w")).run["run_id"]
        except NothingCommittedError:
            run_id = None
        if err == "":
            # The exit code was decided before the signal came.
            assert (code, run_id is None) == (0, False)
        else:
            expected = NOTHING if run_id is None else f"share-state: stopped; run {run_id} is committed{more}\n"
            assert re.fullmatch(expected, err), err
            assert code == 128 + number
        said.add(run_id is None)
    assert said == {True, False}


@nightly("a process for each moment")
@pytest.mark.parametrize(
    ("command", "file"),
    [
        (["decode", HAPPY, "--out", "{place}/w", "--quiet"], "w/_delta_log"),
        (["repair", HAPPY, "--out", "{place}/plan.md", "--quiet"], "plan.md"),
    ],
)
def test_a_signal_around_the_writing_of_a_file_says_whether_it_is_there(tmp_path: Path, command: list[str], file: str):
    for code, err, place in stopped_runs(tmp_path, signal.SIGINT, *command):
        out = command[command.index("--out") + 1].format(place=place)
        is_written = (place / file).exists()
        if err == "":
            assert (code, is_written) == (0, True)
        else:
            assert (code, err) == (130, f"share-state: stopped; {out} is written\n" if is_written else NOTHING)


def test_a_signal_after_the_exit_code_is_decided_changes_nothing(tmp_path: Path):
    script = tmp_path / "late.py"
    script.write_text(
        "import atexit, os, signal\n"
        "from share_state.cli.main import main\n"
        "atexit.register(lambda: [os.kill(os.getpid(), one) for one in (signal.SIGINT, signal.SIGTERM)])\n"
        "main(['--version'])\n"
    )
    made = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.startswith("share-state ")
