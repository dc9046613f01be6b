"""`share-state stream` with Structured Streaming: its tables are those of a reconstruct of the same records."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.pipeline.stream_fold import StreamFold
from share_state.pipeline.stream_run import last_stream_run
from share_state.spark import streaming
from share_state.spark.connections import changed_settings
from share_state.spark.packed_rows import SHUFFLE_TASKS
from share_state.spark.streaming import StreamSpec
from tests.pipeline.test_stream_tables import pieces, reconstructed, tables_in
from tests.present import present
from tests.profiles import FAST, IN_SPARK, PROFILE, nightly
from tests.sources.formats.tables import found, table_of, write
from tests.streams import on_each_engine, places
from tests.truth import DATA


@nightly("two streams of Spark")
@pytest.mark.usefixtures("spark")
def test_a_stream_that_commits_nothing_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "in").mkdir()
    given = ["--out", str(tmp_path / "lake"), "--checkpoint", str(tmp_path / "cp"), "--once"]
    for _ in range(2):
        assert run(["stream", str(tmp_path / "in"), *given]) == 0
        said = capfd.readouterr()
        assert said.out == f"{tmp_path / 'in'}: no records of __share_group_state to read yet; nothing was committed\n"
        assert "gone" not in said.err
    # A checkpoint that no stream will use does not stay.
    assert run(["stream", "s3://bucket/in", *given]) == 2
    err = capfd.readouterr().err
    assert 'INPUT or --checkpoint (No FileSystem for scheme "s3"); for S3, write s3a:// and give --spark-conf ' in err
    assert "spark.jars.packages=org.apache.hadoop:hadoop-aws:3." in err
    assert not [*(tmp_path / "cp").iterdir()]
    # Spark's own error in place of that of the driver's function, which begins with "Traceback".
    write(table_of(found(DATA / "4.3.1/happy")), tmp_path / "in/a.parquet")
    monkeypatch.setattr(DataFrame, "toArrow", Mock(side_effect=PySparkException("Cannot write the state store")))
    assert run(["stream", str(tmp_path / "in"), *given]) == 2
    assert "the stream stopped (Cannot write the state store); the checkpoint is" in capfd.readouterr().err


@nightly("two more streams")
@on_each_engine
def test_a_folder_named_by_its_parent_is_read(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cp = engine == IN_SPARK
    records = table_of(found(DATA / "4.3.1/happy"))
    write(records, tmp_path / "elsewhere/in/a.parquet")
    (tmp_path / "elsewhere/below").mkdir()
    # The parent of a link is that of its target, for the operating system.
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere/below")
    monkeypatch.chdir(tmp_path / "link")
    state = ["--checkpoint", "../cp"] if cp else []
    stream = ["stream", "../in", "--out", str(tmp_path / "lake"), *state, "--once", "--quiet"]
    assert run(stream) == 0
    assert tables_in(tmp_path / "lake") == reconstructed(records, tmp_path)
    monkeypatch.chdir(tmp_path)
    state = ["--checkpoint", "elsewhere/cp"] if cp else []
    same = ["stream", "link/../in", "--out", "link/../../lake", *state, "--once", "--quiet"]
    assert run(same) == 0


@on_each_engine
def test_a_folder_in_which_no_file_can_be_read_is_refused(
    engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    if engine == IN_SPARK and PROFILE == FAST:
        pytest.skip("two more streams")
    folder = tmp_path / "in"
    write(pa.table({"a": [1, 2]}), folder / "a.parquet")
    (folder / "b.parquet").write_bytes(b"no Parquet")
    stream = ["stream", str(folder), *places(engine, tmp_path), "--once", "--quiet"]
    assert run(stream) == 2
    said = capfd.readouterr().err
    assert said.startswith(f"share-state: {folder}: none of its 2 Parquet files can be read ({folder}/a.parquet: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "lake").exists()
    # Once there is a file that can be read, the others are findings.
    write(table_of(found(DATA / "4.3.1/happy")), folder / "c.parquet")
    assert run(stream) == 1
    rules = CommittedTables(str(tmp_path / "lake")).read("findings")["rule"].to_pylist()
    assert rules == ["LOG_UNREADABLE"] * 2


@on_each_engine
def test_a_growing_folder_is_taken_in_where_the_last_run_stopped(engine: str, tmp_path: Path):
    records = table_of(found(DATA / "4.4.0/dlq"))
    # One record cannot be decoded: the stream reads on, and that is a finding.
    undecodable = records["offset"][len(records) - 30].as_py()
    is_it = pa.array([number == len(records) - 30 for number in range(len(records))])
    values = pc.if_else(is_it, pa.scalar(b"\0\0\1"), records["value"].combine_chunks())
    records = records.set_column(records.schema.get_field_index("value"), "value", values)
    parts = list(pieces(records, 40))
    begin, rest = pa.concat_tables(parts[:2]), pa.concat_tables(parts[2:])
    write(begin, tmp_path / "in/a.parquet")
    stream = ["stream", str(tmp_path / "in"), *places(engine, tmp_path)]
    assert run([*stream, "--once", "--quiet"]) in (0, 1)
    assert tables_in(tmp_path / "lake") == reconstructed(begin, tmp_path / "begin")
    # Rows that were read before are skipped, a file that is no Parquet is a finding.
    write(pa.concat_tables([rest, begin.slice(7, 30)]), tmp_path / "in/day=2/b.parquet")
    assert run([*stream, "--once", "--quiet"]) in (0, 1)
    assert tables_in(tmp_path / "lake") == reconstructed(records, tmp_path)
    rows = CommittedTables(str(tmp_path / "lake")).read("findings").to_pylist()
    assert undecodable in [row["offset"] for row in rows if row["rule"] == "VALUE_MALFORMED"]
    (tmp_path / "in/c.parquet").write_bytes(b"not a table")
    assert run([*stream, "--once", "--quiet"]) == 1
    tables = CommittedTables(str(tmp_path / "lake"))
    (unreadable,) = [row for row in tables.read("findings").to_pylist() if row["rule"] == "LOG_UNREADABLE"]
    assert "c.parquet: cannot be read" in unreadable["message"]
    assert len(tables.runs) == 1
    assert (tables.run["command"], tables.run["records"]) == ("stream", len(records))
    assert sum(dict(tables.run["progress"]).values()) == len(records)


@pytest.mark.parametrize("engine", [IN_SPARK], indirect=True)
def test_rows_that_a_stream_left_while_it_caught_up_are_made_by_the_next(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As of a stream that was stopped before it had caught up; nothing is to be read since."""
    records, behind = table_of(found(DATA / "4.4.0/dlq")), Mock(return_value=True)
    parts = list(pieces(records, 600))
    for number, part in enumerate(parts):
        write(part, tmp_path / f"in/{number}.parquet")
    stream = ["stream", str(tmp_path / "in"), *places(engine, tmp_path), "--max-files", "1", "--once", "--quiet"]
    monkeypatch.setattr(streaming, "RESTS_WHILE_BEHIND", 1e9)
    monkeypatch.setattr(streaming._MicroBatches, "_is_behind", behind)
    assert run(stream) in (0, 1)
    assert present(last_stream_run(str(tmp_path / "lake"))).records < len(records)
    assert behind.call_count == len(parts)
    assert run(stream) in (0, 1)
    assert tables_in(tmp_path / "lake") == reconstructed(records, tmp_path)
    assert present(last_stream_run(str(tmp_path / "lake"))).records == len(records)


@pytest.mark.parametrize("engine", [IN_SPARK], indirect=True)
def test_log_partitions_are_spread_evenly_over_tasks(engine: str, tmp_path: Path):
    """Also after a restart with another number of tasks, which would give log partitions other keys."""
    records = table_of(found(DATA / "4.4.0/dlq"))
    half = len(records) // 2
    stream = ["stream", str(tmp_path / "in"), *places(engine, tmp_path), "--once", "--quiet"]
    for tasks, part in (("3", records.slice(0, half)), ("2", records.slice(half))):
        write(part, tmp_path / f"in/{tasks}.parquet")
        with changed_settings(SparkSession.active(), {SHUFFLE_TASKS: tasks}):
            assert run(stream) in (0, 1)
    assert tables_in(tmp_path / "lake") == reconstructed(records, tmp_path)
    (checkpoint,) = (tmp_path / "checkpoint").iterdir()
    stored = SparkSession.active().read.format("statestore").option("stateVarName", "token")
    keys = stored.load(str(checkpoint)).select("partition_id", "key.state_partition").toArrow().to_pylist()
    assert len(keys) == len(set(records["partition"].to_pylist()))
    assert all(row["partition_id"] == row["state_partition"] % 3 for row in keys)


def test_a_stream_is_behind_where_a_micro_batch_was_as_large_as_it_may_be():
    """So tables of a live log, of which each micro-batch leaves a few records, never wait."""
    at = {"endOffset": '{"next": {"0": 50, "1": 7}}', "latestOffset": '{"next": {"0": 140, "1": 16}}'}
    folder, cluster = (StreamSpec(source, "checkpoint", StreamFold()) for source in ("in", "kafka://one:9092"))
    seen = list[bool]()
    for spec, files, is_new in (
        (replace(folder, files_per_trigger=4), 4, True),
        (replace(folder, files_per_trigger=4), 4, False),
        (replace(folder, files_per_trigger=4), 3, True),
        (replace(folder, files_per_trigger=4, once=True), 4, True),
        (replace(cluster, most_records=99), 4, True),
        (replace(cluster, most_records=100), 4, True),
        (cluster, 4, True),
    ):
        batches = streaming._MicroBatches(Mock(), spec, Mock())
        assert not batches._is_behind()
        last = {"numInputRows": files, "sources": [at], "durationMs": {}}
        batches.query = Mock(lastProgress=last, status={"isDataAvailable": is_new})
        seen.append(batches._is_behind())
    assert seen == [True, False, False, False, True, False, False]
