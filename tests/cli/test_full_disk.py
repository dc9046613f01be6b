"""A disk without space, as a limit on the size of a file: the same errors reach the program without root's rights."""

import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from share_state.cli.main import run
from tests.profiles import by_profile, nightly
from tests.truth import DATA

pytestmark = nightly("fills the disk with each command, after a run that compiles")


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
        ("audit", 5_000),
        *by_profile([], [("decode", 3_000), ("reconstruct", 100), ("reconstruct", 4_000), ("reconstruct", 5_500)]),
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


@nightly("a simulation in a process of its own")
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
    # A text needs few kernels; the first of them is larger than the limit.
    text = str(DATA / "4.3.1/happy/console-consumer-formatter.txt")
    command = [sys.executable, "-m", "share_state", "decode", text, "--out", str(tmp_path / "w")]
    with _file_limit(3_000):
        made = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    assert made.returncode == 2, made.stderr
    *notes, announced, error = made.stderr.splitlines()
    assert all("console-consumer-formatter.txt: " in note for note in notes)
    assert announced.startswith("share-state: compiling kernels")
    assert error.startswith("share-state: the folder of scratch files or of compiled kernels: cannot be written")
    assert not (tmp_path / "w").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a disk that holds a number of files."""
    mounted = list[Path]()

    def mount(inodes: int) -> Path:
        folder = tmp_path / f"disk-{inodes}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size=50m,nr_inodes={inodes}", "none", str(folder)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a disk takes the rights of root")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        # A library may still have a file open.
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("inodes", [2, 3, 5, 14, 20])
@pytest.mark.parametrize("command", ["reconstruct", "decode"])
def test_a_disk_that_can_hold_no_more_files_is_named_as_such(
    small_disk: Callable[[int], Path], capfd: pytest.CaptureFixture[str], command: str, inodes: int
):
    disk = small_disk(inodes)
    code = run([command, str(DATA / "4.3.1/happy"), "--out", str(disk / "w")])
    last = capfd.readouterr().err.splitlines()
    if command == "decode" and inodes > 10:
        assert code == 0
        return
    assert code == 2, last
    assert last[-1].startswith(f"share-state: {disk}/w")
    assert "cannot be written (no inodes left: the disk can hold no more files); " in last[-1]
