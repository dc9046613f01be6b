"""Calls of `stream` that cannot be used end with one line before Spark starts."""

from pathlib import Path

import pytest

from share_state.cli.main import run
from share_state.pipeline.stream_tables import StreamRun, StreamTables


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["in", "--trigger", "soon"], "--trigger soon: give a time as in 500ms, 10s or 1m"),
        (["nowhere"], "nowhere: no such folder; give a folder of Parquet files with Spark's Kafka columns"),
        (["in", "--checkpoint", "in"], "in: holds something else (x.parquet); give an empty folder"),
        (["other"], "belongs to a stream of"),
        (
            ["in", "--out", "catalog.schema"],
            "catalog.schema: a stream writes to a folder or an address, not to a schema",
        ),
        (["kafka://127.0.0.1:1"], "no broker answers"),
    ],
)
def test_an_unusable_call_is_one_line(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    for name in ("in", "other", "cp/0123456789abcdef"):
        Path(name).mkdir(parents=True)
    Path("in/x.parquet").write_bytes(b"")
    with StreamTables("lake", StreamRun("0123456789abcdef", inputs=(f"{tmp_path}/in",))) as tables:
        tables.write(0, [])
        tables._commit_run()
    given = options if "--checkpoint" in options else [*options, "--checkpoint", "cp"]
    assert run(["stream", *given, *(() if "--out" in given else ("--out", "lake")), "--once"]) == 2
    err = capfd.readouterr().err
    assert message in err
    assert err.count("\n") == 1
