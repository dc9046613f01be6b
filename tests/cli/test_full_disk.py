"""A disk without space, as a limit on the size of a file: the same errors reach the program without root's rights."""

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from share_state.cli.main import run
from tests.profiles import by_profile
from tests.truth import DATA


@contextmanager
def _file_limit(limit: int) -> Iterator[None]:
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


@pytest.fixture
def limited(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs a command whose files may not grow beyond a size: exit code and stderr."""

    def ran(limit: int, *arguments: object) -> tuple[int, str]:
        capsys.readouterr()
        with _file_limit(limit):
            code = run([str(argument) for argument in arguments])
        return code, capsys.readouterr().err

    return ran


@pytest.fixture(scope="module", autouse=True)
def _compiled_kernels(tmp_path_factory: pytest.TempPathFactory) -> None:
    for command in ("audit", "decode", "simulate"):
        given = () if command == "simulate" else (str(DATA / "4.3.1/fuzz"),)
        run([command, *given, "--out", str(tmp_path_factory.mktemp("w") / command)])


@pytest.mark.parametrize(
    ("command", "limit"),
    [
        ("reconstruct", 4_000),
        ("audit", 5_000),
        ("decode", 3_000),
        *by_profile([], [("reconstruct", 100), ("reconstruct", 5_500)]),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_nothing(
    limited: Callable[..., tuple[int, str]], tmp_path: Path, command: str, limit: int
):
    warehouse = tmp_path / "w"
    code, said = limited(limit, command, DATA / "4.3.1/happy", "--out", warehouse)
    assert code == 2, said
    assert said.splitlines()[-1].startswith(f"share-state: {warehouse}")
    assert said.splitlines()[-1].endswith("cannot be written (File too large); free space, or use another location")
    assert "Traceback" not in said
    assert [*tmp_path.rglob("*")] == []


def test_tables_stay_as_they_are_where_the_disk_is_full(limited: Callable[..., tuple[int, str]], tmp_path: Path):
    assert run(["audit", str(DATA / "4.3.1/happy"), "--out", str(tmp_path)]) == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*") if path.name != ".lock"}
    code, said = limited(6_000, "audit", DATA / "4.3.1/fuzz", "--out", tmp_path)
    assert (code, "cannot be written (File too large)" in said) == (2, True), said
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    assert after == {path: time for path, time in before.items() if path.suffix == ".parquet"}


def test_simulated_logs_that_do_not_fit_are_removed(limited: Callable[..., tuple[int, str]], tmp_path: Path):
    code, said = limited(10_000, "simulate", "--out", tmp_path / "made")
    assert (code, "free space" in said) == (2, True), said
    assert [*tmp_path.rglob("*")] == []


def test_a_full_disk_is_not_taken_for_events_that_cannot_be_read(
    limited: Callable[..., tuple[int, str]], tmp_path: Path
):
    assert run(["simulate", "--out", str(tmp_path / "events"), "--minutes", "1", "--groups", "2"]) == 0
    events = tmp_path / "events/events.jsonl"
    code, said = limited(2_000, "simulate", "--out", tmp_path / "made", "--events", events)
    assert (code, "free space" in said) == (2, True), said
    assert not (tmp_path / "made").exists()


def test_kernels_that_cannot_be_kept_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    command = [sys.executable, "-m", "share_state", "decode", str(DATA / "4.3.1/happy"), "--out", str(tmp_path / "w")]
    with _file_limit(3_000):
        made = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    assert made.returncode == 2, made.stderr
    announced, *said = made.stderr.splitlines()
    assert announced.startswith("share-state: compiling kernels")
    assert len(said) == 1
    assert said[0].startswith("share-state: the folder of scratch files or of compiled kernels: cannot be written")
    assert not (tmp_path / "w").exists()
