"""A disk without space, as a limit on the size of a file: the same errors reach the program without root's rights."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.truth import DATA


def _limited(limit: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(
        [sys.executable, "-m", "share_state", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit_files,
    )


@pytest.fixture(scope="module", autouse=True)
def _compiled_kernels(tmp_path_factory: pytest.TempPathFactory) -> None:
    for command in ("audit", "decode"):
        _limited(resource.RLIM_INFINITY, command, DATA / "4.3.1/fuzz", "--out", tmp_path_factory.mktemp("w") / command)


@pytest.mark.parametrize(
    ("command", "limit"),
    [("reconstruct", 100), ("reconstruct", 4_000), ("reconstruct", 5_500), ("audit", 5_000), ("decode", 3_000)],
)
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, command: str, limit: int):
    warehouse = tmp_path / "w"
    made = _limited(limit, command, DATA / "4.3.1/happy", "--out", warehouse)
    assert made.returncode == 2, made.stderr
    said = made.stderr.splitlines()[-1]
    assert said.startswith(f"share-state: {warehouse}")
    assert said.endswith("cannot be written (File too large); free space, or give another place")
    assert "Traceback" not in made.stderr
    assert [*tmp_path.rglob("*")] == []


def test_tables_stay_as_they_are_where_the_disk_is_full(tmp_path: Path):
    assert _limited(resource.RLIM_INFINITY, "audit", DATA / "4.3.1/happy", "--out", tmp_path).returncode == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*") if path.name != ".lock"}
    made = _limited(6_000, "audit", DATA / "4.3.1/fuzz", "--out", tmp_path)
    assert (made.returncode, "cannot be written (File too large)" in made.stderr) == (2, True), made.stderr
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    assert after == {path: time for path, time in before.items() if path.suffix == ".parquet"}


def test_simulated_logs_that_do_not_fit_are_removed(tmp_path: Path):
    made = _limited(10_000, "simulate", "--out", tmp_path / "made")
    assert (made.returncode, "free space" in made.stderr) == (2, True), made.stderr
    assert [*tmp_path.rglob("*")] == []


def test_kernels_that_cannot_be_kept_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    made = _limited(3_000, "decode", DATA / "4.3.1/happy", "--out", tmp_path / "w")
    assert made.returncode == 2, made.stderr
    assert made.stderr.startswith("share-state: the folder of scratch files or of compiled kernels: cannot be written")
    assert not (tmp_path / "w").exists()
