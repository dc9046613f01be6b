"""Sessions of one process, one after the other."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

import share_state
from share_state.cli.main import run
from share_state.spark.session import class_archive, java_options, package_settings, scratch_folder
from tests.profiles import nightly
from tests.truth import DATA

TWICE = """
from share_state.spark.session import session

for _ in range(2):
    with session("local[1]", {}) as spark:
        print(spark.sparkContext.applicationId, sum(spark.sparkContext.parallelize([1, 2]).map(abs).collect()))
"""


@nightly("waits for a session that stops")
def test_a_session_begins_behind_one_that_still_stops():
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=True)
    first, second = map(str.split, done.stdout.splitlines())
    assert first[1] == second[1] == "3"
    assert first[0] != second[0]


def test_the_class_archive_is_used_only_if_it_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert java_options() == ""
    class_archive().parent.mkdir(parents=True)
    class_archive().touch()
    assert f"-XX:SharedArchiveFile={class_archive()}" in java_options()


@nightly("Spark in a process of its own")
def test_the_package_runs_out_of_an_archive_as_py_files_ships_it(tmp_path: Path):
    archive = urlsplit(package_settings({})["spark.archives"]).path
    logs = DATA / "4.4.0/chaos"
    code = f"import share_state; print(share_state.__file__); print(share_state.reconstruct({str(logs)!r}))"
    command = [sys.executable, "-P", "-c", code]
    environment = os.environ | {"PYTHONPATH": archive}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    file, tables = done.stdout.splitlines()
    assert file == f"{archive}/share_state/__init__.py"
    assert tables == repr(share_state.reconstruct(logs))


def test_the_scratch_folder_of_a_killed_process_is_deleted_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = "from share_state.spark.session import scratch_folder; scratch_folder('copy')"
    killed = f"import os; {made}; os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -9
    (left,) = tmp_path.iterdir()
    (left / "rows").write_text("x")
    others = [left.name.replace("-copy-", "-copy-elsewhere."), left.name.replace("-copy-", "-"), "share-state-x"]
    (tmp_path / "theirs").mkdir()
    for name in others:
        (tmp_path / name).mkdir()
    link = tmp_path / f"{left.name}l"
    link.symlink_to(tmp_path / "theirs")
    monkeypatch.setattr(tempfile, "tempdir", None)
    mine = scratch_folder("copy")
    assert scratch_folder("copy") != mine
    assert (left.exists(), mine.exists(), link.is_symlink()) == (False, True, True)
    assert all((tmp_path / name).exists() for name in ("theirs", *others))


@pytest.mark.parametrize(("variable", "value"), [("SPARK_REMOTE", "sc://host"), ("SPARK_API_MODE", "connect")])
def test_a_command_opens_no_session_of_spark_connect(
    variable: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    call = ["reconstruct", str(DATA / "4.3.1/happy"), "--out", str(tmp_path / "w"), "--master", "local[1]", "--quiet"]
    assert run(call) == 2
    assert capsys.readouterr().err.startswith(f"share-state: {variable} is set, so Spark would open a session of")
    assert not (tmp_path / "w").exists()
