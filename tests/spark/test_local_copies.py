"""Copies of Spark's state for other workers of a machine: only the value that is asked for, and never an error."""

from pathlib import Path

import pytest

from share_state.spark.local_copies import keep_copy, kept_copy

SCRATCH = "SPARK_LOCAL_DIRS"


def test_a_copy_is_of_a_name_and_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(SCRATCH, f"{tmp_path / 'first'},{tmp_path / 'second'}")
    (tmp_path / "first").mkdir()
    keep_copy("7-whole", "a" * 32, b"one")
    keep_copy("8-whole", "b" * 32, b"")
    assert kept_copy("7-whole", "a" * 32) == b"one"
    assert kept_copy("8-whole", "b" * 32) == b""
    assert kept_copy("7-whole", "b" * 32) is None
    assert kept_copy("7-whole", "") is None
    assert kept_copy("9-whole", "a" * 32) is None


def test_the_latest_copy_of_a_name_stays_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(SCRATCH, str(tmp_path))
    for token in "abc":
        keep_copy("7-whole", token, token.encode() * 3)
    assert [kept_copy("7-whole", token) for token in "abc"] == [None, None, b"ccc"]
    assert [path.name for path in (tmp_path / "share_state").iterdir()] == ["7-whole"]


def test_a_copy_that_cannot_be_kept_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    for folders in ("", str(tmp_path / "gone"), str(tmp_path / "file")):
        monkeypatch.setenv(SCRATCH, folders)
        keep_copy("7-whole", "a", b"one")
        assert kept_copy("7-whole", "a") is None
    monkeypatch.delenv(SCRATCH)
    keep_copy("7-whole", "a", b"one")
    assert kept_copy("7-whole", "a") is None
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
