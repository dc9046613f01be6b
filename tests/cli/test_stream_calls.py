"""Calls of `stream` that cannot be used end with one line before Spark starts."""

from pathlib import Path

import pytest

from share_state.cli.main import run
from share_state.errors import InputError
from share_state.pipeline.stream_run import StreamRun
from share_state.pipeline.stream_tables import StreamTables

ON_SPARK = ["--master", "local[1]"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["in", "--trigger", "soon"], "--trigger soon: give a time as in 500ms, 10s or 1m"),
        (["nowhere"], "nowhere: no such folder; give a folder of Parquet files with Spark's Kafka columns"),
        (["segments", *ON_SPARK], "segments: segments, which a stream on Spark does not read; leave --master and"),
        (["in", "--checkpoint", "in"], "--checkpoint in: is in INPUT in; give a folder outside of it"),
        (["in", "--checkpoint", "lake/../lake/cp"], "--checkpoint lake/../lake/cp: is in --out lake; give a folder"),
        (["in", "--out", "in/lake"], "--out in/lake: is in INPUT in; give a folder outside of it"),
        (
            ["in", "--out", "cp/lake", "--checkpoint", "cp"],
            "--out cp/lake: is in --checkpoint cp; give a folder outside of it",
        ),
        (["lake/in"], "INPUT lake/in: is in --out lake; give a folder outside of it"),
        (["in", "--checkpoint", "taken", *ON_SPARK], "taken: holds something else (x.parquet); give an empty folder"),
        (["in", "--checkpoint", "/dev/null", *ON_SPARK], "give a folder that can be written"),
        (["in", "--checkpoint", "taken/x.parquet", *ON_SPARK], "give a folder that can be written"),
        (["in", "--checkpoint", "taken/x.parquet/y", *ON_SPARK], "give a folder that can be written"),
        (["other", *ON_SPARK], "belongs to a stream of"),
        (["in"], "lake: a stream on Spark keeps its tables here, and its state in its checkpoint; go on with --master"),
        (
            ["in", "--out", "catalog.schema"],
            "catalog.schema: a stream without Spark writes to a folder or an address, not to a schema",
        ),
        (["kafka://127.0.0.1:1"], "no broker answers"),
    ],
)
def test_an_unusable_call_is_one_line(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    for name in ("in", "other", "taken", "cp/0123456789abcdef", "segments/__share_group_state-0"):
        Path(name).mkdir(parents=True)
    Path("segments/__share_group_state-0/00000000000000000000.log").write_bytes(b"")
    for name in ("in", "taken"):
        Path(name, "x.parquet").write_bytes(b"")
    with StreamTables("lake", StreamRun("0123456789abcdef", inputs=(f"{tmp_path}/in",))) as tables:
        tables.write(0, [])
        tables._commit_run()
    before = sorted(tmp_path.rglob("[!.]*"))
    has_state = "--checkpoint" in options or "--master" not in options
    given = options if has_state else [*options, "--checkpoint", "cp"]
    assert run(["stream", *given, *(() if "--out" in given else ("--out", "lake")), "--once"]) == 2
    err = capfd.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("[!.]*")) == before


def test_a_cluster_without_the_topic_has_nothing_to_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    class WithoutTopic:
        def __init__(self, *_: object) -> None:
            pass

        def fetch_topic_offsets(self, names: list[str]) -> None:
            raise InputError(f"{names[0]}: no such topic")

    monkeypatch.setattr("share_state.sources.kafka_cluster.Cluster", WithoutTopic)
    places = ["--out", str(tmp_path / "lake"), "--checkpoint", str(tmp_path / "cp")]
    assert run(["stream", "kafka://127.0.0.1:1", *places, "--once"]) == 2
    assert capfd.readouterr().err == "share-state: __share_group_state: no such topic\n"
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--out", "lake", *ON_SPARK],
            "--checkpoint: is missing; a stream on Spark keeps its state in a folder",
        ),
        ([], "--out: is missing; give the folder of the tables"),
    ],
)
def test_a_stream_has_a_place_for_what_it_keeps(options: list[str], message: str, capfd: pytest.CaptureFixture[str]):
    assert run(["stream", "in", *options]) == 2
    assert message in capfd.readouterr().err
