"""Sessions of one process, one after the other."""

import subprocess
import sys
from pathlib import Path

import pytest

from share_state.spark.session import class_archive, java_options

TWICE = """
from share_state.spark.session import session

for _ in range(2):
    with session("local[1]", {}) as spark:
        print(spark.sparkContext.applicationId, sum(spark.sparkContext.parallelize([1, 2]).map(abs).collect()))
"""


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
