"""The installed command itself, as a process of its own."""

import subprocess
import sys
from pathlib import Path

from tests.truth import DATA

COMMAND = Path(sys.executable).parent / "share-state"


def test_the_installed_command_reconstructs_and_shows(tmp_path: Path):
    made = _run(COMMAND, "reconstruct", DATA / "4.3.1/happy", "--out", tmp_path / "w", "--master", "local[1]")
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.startswith("110 records of 3 log partitions hold 6 live share-partitions\n")
    shown = _run(sys.executable, "-m", "share_state", "show", tmp_path / "w")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert len(shown.stdout.splitlines()) == 7


def test_a_reader_that_leaves_early_is_no_failure():
    with subprocess.Popen(
        [COMMAND, "decode", DATA / "4.3.1/fuzz"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        assert started.stdout.readline().startswith("{")
        started.stdout.close()
        assert started.stderr.read() == ""
    assert started.returncode == 0


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, check=False)
