"""The environment prepares itself: kernels on the first command, jars on Spark's first use, or all by `setup`."""

import io
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numba
import numpy as np
import pytest

from share_state.cli import second_compiler
from share_state.cli.main import run
from share_state.errors import SetupError
from share_state.jit import compile as compile_module
from share_state.pipeline.progress import Progress
from share_state.sources import jars
from tests.profiles import nightly
from tests.truth import DATA


def _run(env: Mapping[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "share_state", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@nightly(
    "compiles for 10 s; test_the_running_phase_tells_that_it_compiles shows the same in a process that has kernels"
)
def test_the_first_command_says_for_how_long_it_compiles_and_the_next_nothing(
    no_java: Mapping[str, str], tmp_path: Path
):
    env = {**no_java, "NUMBA_CACHE_DIR": str(tmp_path)}
    # A text needs few kernels.
    text = DATA / "4.3.1/happy/console-consumer-formatter.txt"
    first, second = (_run(env, "decode", text, "--out", tmp_path / f"table-{run}").stderr for run in range(2))
    assert "share-state: compiling kernels" in first
    assert re.search(r"share-state: write: compiled kernels for \d+ s", first)
    assert "compil" not in second


@pytest.mark.parametrize(("options", "is_told"), [((), True), (("--quiet",), False)])
def test_a_quiet_command_does_not_say_that_it_compiles(
    options: tuple[str, ...], is_told: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(compile_module, "has_cached_kernels", lambda: False)
    started = list[bool]()
    monkeypatch.setattr(second_compiler, "start_second_compiler", lambda: started.append(True))
    text = DATA / "4.3.1/happy/console-consumer-formatter.txt"
    assert run(["decode", str(text), *options]) == 0
    assert ("compiling kernels" in capfd.readouterr().err) == is_told
    assert started == [True]


@nightly("compiles for 10 s")
def test_a_second_process_compiles_what_folds_records(no_java: Mapping[str, str], tmp_path: Path):
    env = {**no_java, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "share_state.cli.kernels"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE) as process:
        assert process.wait(300) == 0
    compiled = {path.name.partition("-")[0] for path in (tmp_path / "cache").rglob("*.nbi")}
    assert "bit_fold.fold_keys_by_bits" in compiled
    # Commands need this one only for records that break a rule.
    assert "context_fold._fold_records" not in compiled
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*bit_fold*")}
    assert _run(env, "reconstruct", DATA / "4.3.1/happy", "--out", tmp_path / "lake").returncode == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*bit_fold*")} == before


@pytest.mark.parametrize(("cores", "memory"), [(1, None), (2, 1 << 30)])
def test_no_second_process_compiles_where_there_is_no_room(
    cores: int, memory: int | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(second_compiler, "available_cores", lambda: cores)
    monkeypatch.setattr(second_compiler, "available_memory", lambda: memory)
    before = [*second_compiler._started]
    second_compiler.start_second_compiler()()
    assert second_compiler._started == before


@nightly("compiles for seconds")
def test_a_second_process_ends_with_the_command(no_java: Mapping[str, str], tmp_path: Path):
    env = {**no_java, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    (tmp_path / "scratch").mkdir()
    command = [sys.executable, "-m", "share_state.cli.kernels", str(tmp_path / "scratch")]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(5)
        process.communicate(timeout=60)
        assert process.returncode == 0


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@nightly("compiles")
def test_the_running_phase_tells_that_it_compiles(monkeypatch: pytest.MonkeyPatch):
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    # Not kept in a cache, and compiled for longer than a terminal takes to show the next line.
    ordered = numba.njit(lambda values: np.sort(np.unique(values))[::-1].cumsum())
    progress = Progress(quiet=False)
    with progress("first"):
        assert ordered(np.array([2, 1])).tolist() == [2, 3]
    shown = terminal.getvalue()
    with progress("second"):
        assert ordered(np.array([3, 1])).tolist() == [3, 4]
    assert re.search(r"first: compiling kernels \(\d+\)", shown)
    assert "second: compiling" not in terminal.getvalue()


@nightly("compiles")
def test_setup_without_java_compiles_and_says_that_everything_but_spark_works(no_java: Mapping[str, str]):
    done = _run(no_java, "setup")
    assert done.returncode == 0
    *_, compiled, without_java = done.stderr.splitlines()
    assert compiled.startswith("share-state: compile kernels: ")
    assert "everything but Spark works" in without_java
    assert "`share-state setup`" in without_java


def test_jars_are_fetched_on_first_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A failing `java` stands for a registry that cannot be reached: nothing is left behind, and the error says why."""
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho no route to host\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    with pytest.raises(SetupError, match=r"io\.delta:delta-spark_4\.2_2\.13:4\.4\.0 could not be fetched: no route"):
        jars.jars(jars.DELTA)
    assert not jars.folder(jars.DELTA).exists()
    java.write_text(
        '#!/bin/sh\nwhile [ "$1" ]; do [ "$1" = -retrieve ] && target=${2%/*}; shift; done\n'
        'mkdir -p "$target" && touch "$target/new-1.jar"\n'
    )
    assert [jar.name for jar in jars.jars(jars.DELTA)] == ["new-1.jar"]
    assert [path.name for path in jars.folder(jars.DELTA).parent.iterdir()] == [jars.DELTA]
