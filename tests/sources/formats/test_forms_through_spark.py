"""Tables that only Spark reads or puts in order, DataFrames of a notebook, and the commands over every form."""

import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import base64, col, expr, lit, struct, to_json

import share_state
from share_state.config.input_spec import OPTIONS, input_spec
from share_state.delta.committed import CommittedTables
from share_state.errors import InputError
from share_state.fold.state_log import fold_log
from share_state.pipeline.planning import build_plan
from share_state.pipeline.task import FINDINGS, STATE, OutputSpec
from share_state.sources import table_plan
from share_state.sources.discovery import find_logs
from share_state.sources.formats import ExportPaths
from share_state.sources.input_detection import read_export
from share_state.sources.log_partition import LogPartition
from share_state.spark.sorted_tables import SparkSorter
from share_state.spark.spark_executor import SparkExecutor
from tests.cli.commands import Command, run_cli
from tests.profiles import EXECUTORS, IN_SPARK, nightly, some_of
from tests.sources.formats.tables import BY_KEY, SIZES, shuffled, table_of, tables_of, write
from tests.sources.object_stores.test_s3_forms import json_lines
from tests.truth import DATA, logs_alone

EXPORT, HAPPY = logs_alone(DATA / "4.3.1/chaos"), logs_alone(DATA / "4.3.1/happy")


@pytest.fixture(scope="module")
def logs() -> list[LogPartition]:
    return find_logs([str(EXPORT)])


@pytest.fixture(scope="module")
def table(logs: list[LogPartition]) -> pa.Table:
    return table_of(logs)


@pytest.fixture
def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(shuffled(table).combine_chunks())


@pytest.fixture(params=EXECUTORS)
def command(request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> Command:
    if request.param == IN_SPARK:
        request.getfixturevalue("spark")
    return partial(run_cli, capfd)


def _found(spark: SparkSession, path: Path) -> list[LogPartition]:
    return read_export(ExportPaths([str(path)], sorter=SparkSorter(spark))).logs


def _same(told: list[LogPartition], logs: list[LogPartition]) -> None:
    assert [log.partition for log in told] == [log.partition for log in logs]
    for one, other in zip(told, logs, strict=True):
        assert tables_of(fold_log(one), without=SIZES) == tables_of(fold_log(other), without=SIZES)


@nightly("Spark; tables go through it below")
def test_json_lines_with_base64(spark: SparkSession, frame: DataFrame, logs: list[LogPartition], tmp_path: Path):
    texts = frame.withColumns({name: base64(col(name)) for name in ("key", "value")})
    texts.select(to_json(struct("*")).alias("value")).repartition(3).write.text(str(tmp_path / "rows"), "gzip")
    assert read_export(ExportPaths([str(tmp_path / "rows")], sorter=SparkSorter(spark))).notes[0].endswith("table)")
    _same(_found(spark, tmp_path / "rows"), logs)


@nightly("a run in Spark")
def test_a_line_of_json_that_is_cut_ends_the_run(spark: SparkSession, table: pa.Table, tmp_path: Path):
    rows = json_lines(table.slice(0, 9), tmp_path / "rows.json")
    rows.write_text(rows.read_text()[:-30])
    message = rf"^{rows}: a line is not complete JSON \({{.*…\); export it again, or delete the line$"
    with pytest.raises(InputError, match=message):
        _found(spark, rows)


@nightly("Spark writes the table")
def test_a_delta_table_is_read_without_spark(frame: DataFrame, logs: list[LogPartition], tmp_path: Path):
    place = str(tmp_path / "bronze")
    frame.write.format("delta").partitionBy("topic", "partition").save(place)
    frame.limit(500).write.format("delta").mode("append").save(place)
    told = read_export(ExportPaths([place])).logs
    _same(told, logs)


@nightly("Spark deletes rows")
def test_a_delta_table_with_deleted_rows_goes_through_spark(
    spark: SparkSession, frame: DataFrame, logs: list[LogPartition], tmp_path: Path
):
    place = str(tmp_path / "bronze")
    strange = frame.withColumns({"offset": col("offset") + 10_000, "value": lit(b"\0\0")})
    frame.unionByName(strange).coalesce(1).write.format("delta").option("delta.enableDeletionVectors", "true").save(
        place
    )
    spark.sql(f"DELETE FROM delta.`{place}` WHERE offset >= 10000")
    _same(_found(spark, Path(place)), logs)


@nightly("sorts in Spark")
def test_rows_without_any_order_are_put_in_order_by_spark(
    spark: SparkSession, table: pa.Table, logs: list[LogPartition], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = table.slice(0, 40).set_column(2, "topic", pa.array(["orders"] * 40))
    write(shuffled(pa.concat_tables([table, table.slice(7, 300), other])), tmp_path / "rows.parquet", row_group=64)
    # As if it were too large to be held in memory while it is merged.
    monkeypatch.setattr(table_plan, "MAX_OVERLAP", 1 << 10)
    told = read_export(ExportPaths([str(tmp_path / "rows.parquet")], sorter=SparkSorter(spark)))
    assert told.notes[1] == "rows of other topics are skipped: orders"
    # The scratch files are in order, so the limit does not bar them.
    _same(told.logs, logs)


@pytest.mark.parametrize(
    ("change", "pattern"),
    some_of(
        [
            ({"offset": "CAST(NULL AS BIGINT)"}, "partition .*, offset None: offset is null or negative"),
            ({"partition": "-1"}, "partition -1, offset .*: partition is null or negative"),
            ({"key": "'%'"}, "partition .*, offset .*: key is text but not base64 or hexadecimal"),
            ({"timestamp": "'noon'"}, "partition .*, offset .*: timestamp is text but not a time in ISO 8601"),
            ({"timestamp": "true"}, "column timestamp is boolean, not a timestamp or milliseconds"),
            ({"value": "1"}, "column value is int, not binary, or text in base64 or hexadecimal"),
            ({"offset": "'7'"}, "column offset is string, not an integer"),
            ({"topic": "'orders'"}, "no records of __share_group_state in this table .found rows of orders."),
        ],
        3,
    ),
)
def test_a_frame_that_is_no_table_of_records(frame: DataFrame, change: dict[str, str], pattern: str, tmp_path: Path):
    with pytest.raises(InputError, match=f"^the DataFrame: {pattern}"):
        share_state.reconstruct(
            frame.withColumns({name: expr(sql) for name, sql in change.items()}), warehouse=tmp_path / "lake"
        )
    assert not (tmp_path / "lake").exists()


def test_a_frame_without_rows_names_the_settings_of_sparks_connector(frame: DataFrame):
    empty = frame.where("false")
    with pytest.raises(InputError, match=r"useDeprecatedOffsetFetching=true.*failOnDataLoss=false"):
        share_state.reconstruct(empty)


@nightly("Spark; tests/api give frames")
def test_a_notebooks_frame_is_reconstructed(spark: SparkSession, frame: DataFrame, tmp_path: Path):
    renamed = frame.withColumnsRenamed({"key": "k", "offset": "record offset"})
    tables = share_state.reconstruct(
        renamed, warehouse=tmp_path / "lake", columns={"key": "k", "offset": "record offset"}
    )
    folds = [fold_log(log) for log in find_logs([str(EXPORT)])]
    expected = pa.concat_tables(fold.states for fold in folds).sort_by(BY_KEY)
    assert CommittedTables(str(tmp_path / "lake")).run["records"] == sum(fold.record_count for fold in folds)
    assert tables.share_partition_state.count() == len(expected)
    assert CommittedTables(str(tmp_path / "lake")).read("share_partition_state").sort_by(BY_KEY) == expected


TEXTS = {
    "dump-log": HAPPY / "dump-log-__share_group_state-2.txt",
    "console-json": HAPPY / "console-consumer-formatter.txt",
}


@pytest.mark.parametrize("form", TEXTS)
def test_texts_are_reconstructed(command: Command, form: str, tmp_path: Path):
    said = command("reconstruct", TEXTS[form], "--out", tmp_path / "lake", "--json")
    assert said.code == 0
    assert f"(--format {form})" in said.err
    plan = build_plan(input_spec(OPTIONS, sources=[{"path": str(TEXTS[form]), "format": form}]), OPTIONS)
    (log,) = plan.logs
    told = CommittedTables(str(tmp_path / "lake")).read("share_partition_state").sort_by(BY_KEY)
    assert told == fold_log(log).states.sort_by(BY_KEY)
    assert said.json["progress"] == {log.name: fold_log(log).next_offset if form == "dump-log" else None}


@pytest.mark.parametrize("form", some_of(TEXTS, 1))
def test_texts_are_folded_in_tasks(spark: SparkSession, form: str):
    plan = build_plan(input_spec(OPTIONS, sources=[{"path": str(TEXTS[form]), "format": form}]), OPTIONS)
    executor = SparkExecutor(spark)
    rows = executor.fold(plan, OutputSpec((STATE, FINDINGS)))
    found = executor.returned_tables(rows, [STATE, FINDINGS])
    assert found[FINDINGS].count() == 0
    assert found[STATE].count() == len(fold_log(plan.logs[0]).states) > 0


def test_the_cutoff_of_a_text_is_that_of_the_segments_or_none(command: Command):
    segments = command("cutoff", HAPPY / "__share_group_state-2", "--json", "--verify").json
    dumped = command("cutoff", TEXTS["dump-log"], "--json", "--verify").json
    assert dumped | {"run_id": segments["run_id"]} == segments
    (row,) = command("cutoff", TEXTS["console-json"], "--json").json["cutoff"]
    assert (row["cutoff_offset"], row["safe"], row["reason"]) == (None, False, "this format has no offsets")
    assert "not safe: __share_group_state: this format has no offsets" in command("cutoff", TEXTS["console-json"]).out


def test_decoded_texts(command: Command):
    segments = [json.loads(line) for line in command("decode", HAPPY / "__share_group_state-2").lines]
    # Only segments show the batches.
    assert all(row.pop("batch")["codec"] == "none" for row in segments)
    assert [json.loads(line) for line in command("decode", TEXTS["dump-log"]).lines] == segments
    streamed = [json.loads(line) for line in command("decode", TEXTS["console-json"]).out.splitlines()]
    hidden = ("offset", "timestamp", "state_partition")
    plain = [{name: cell for name, cell in row.items() if name not in hidden} for row in segments]
    assert len(streamed) > len(plain)
    assert [row for row in streamed if row in plain] == plain
    assert not any(name in row for row in streamed for name in hidden)


def test_a_table_is_cut_and_its_columns_are_named(command: Command, table: pa.Table, tmp_path: Path):
    renamed = table.rename_columns(["k", "v", "t", "p", "o", "ts", "kind"])
    path = write(shuffled(renamed), tmp_path / "rows.parquet", row_group=200)
    names = [word for pair in ("key=k", "value=v", "topic=t", "partition=p", "offset=o", "timestamp=ts")
             for word in ("--column", pair)]  # fmt: skip
    told = command("cutoff", path, *names, "--as-of-offset", "1=200", "--json").json
    segments = command("cutoff", EXPORT, "--as-of-offset", "1=200", "--json").json
    # The table holds no groups, which name the topics.
    assert [{**row, **dict.fromkeys((*SIZES, "limited_by_topic"))} for row in segments["cutoff"]] == told["cutoff"]
    assert told["progress"] == segments["progress"]


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["--as-of-offset", "0=5"], "--as-of-offset 0=5: console-json holds no offsets"),
        (["--as-of-time", "2026-11-21"], "--as-of-time: this console-json holds no timestamps"),
        (["--format", "dump-log"], "no dump of __share_group_state"),
        (["--format", "segments"], "not a log segment"),
        (["--format", "kafka"], "not the address of a cluster"),
        (["--format", "avro"], "--format avro: give one of"),
        (["--column", "keys=k"], "--column keys=k: no such column"),
    ],
)
def test_what_a_form_cannot_do_is_said_in_one_line(command: Command, arguments: list[str], pattern: str):
    said = command("cutoff", TEXTS["console-json"], *arguments)
    assert (said.code, said.out) == (2, "")
    assert pattern in said.err.splitlines()[-1]


def test_a_time_cannot_cut_a_table_without_times(command: Command, table: pa.Table, tmp_path: Path):
    path = write(table.drop_columns("timestamp"), tmp_path / "rows.parquet")
    said = command("cutoff", path, "--as-of-time", "2026-11-21")
    assert said.code == 2
    assert "--as-of-time: this table holds no timestamps" in said.err
