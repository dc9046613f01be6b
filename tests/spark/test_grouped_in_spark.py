"""Records that Spark groups by share-partition: `fold_records`, and `fold_group` in the pipelines of others."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

import share_state
from share_state.cli.main import run
from share_state.errors import InputError, ShareStateError
from share_state.pipeline.given_records import _OF_WHOLE_LOGS
from share_state.schema.declarations import table_schema
from share_state.simulator.simulation import simulate
from share_state.sources.discovery import find_logs
from share_state.spark import packed_rows
from tests.fold.test_decoded_fold import SHOWN, compare
from tests.fold.test_fold_group import LOG_FACTS, rows
from tests.profiles import by_profile, nightly
from tests.sources.formats.tables import shuffled, table_of
from tests.truth import DATA, logs_alone, scenarios

SCENARIOS = by_profile([DATA / "4.4.0/chaos"], scenarios())


def by_groups(records: DataFrame, *keys: str) -> DataFrame:
    """A call of Python for each share-partition."""
    grouped = records.groupBy("group_id", "topic_id", *keys, "partition")
    return grouped.applyInArrow(share_state.fold_group, share_state.FOLD_GROUP_SCHEMA)


TABLES = ("share_partition_state", "in_flight", "findings", "cutoff")


def in_arrow(folded: share_state.Tables) -> share_state.Tables:
    found = (getattr(folded, name).toArrow().cast(table_schema(name)) for name in TABLES)
    return share_state.Tables(*found)


def check(states: DataFrame, expected: pa.Table, without: Collection[str] = ()) -> None:
    found = states.toArrow().cast(table_schema("share_partition_state"))
    assert rows([found], without) == rows([expected], without) != []


@nightly("two folds in Spark; the command below has one")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_grouped_records_give_the_states_and_ranges_of_the_main_job(
    spark: SparkSession, scenario: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(packed_rows, "_PIECE_BYTES", 10_000)
    source = logs_alone(scenario)
    expected = share_state.reconstruct(source, groups=())
    records = share_state.read(source, spark).repartition(3, "offset")
    folded = share_state.fold_records(records)
    compare(in_arrow(folded), expected)
    assert_df_equality(folded.share_partition_state, by_groups(records), ignore_row_order=True, ignore_nullable=True)
    # As bytes, whose tasks hold other parts of the logs.
    kafka = spark.createDataFrame(shuffled(table_of(find_logs([str(source)]))).combine_chunks())
    of_topic = share_state.fold_records(kafka.repartition(3))
    for name in TABLES:
        # Bytes name no topic; rows with a map have no order.
        columns = [column for column in table_schema(name).names if column != "topic"]
        text = sql.to_json(sql.struct(*columns)).alias("text")
        one, other = (getattr(tables, name).select(text) for tables in (folded, of_topic))
        assert_df_equality(one, other, ignore_row_order=True)


@nightly("Spark; the command below reads the state topic")
@pytest.mark.parametrize("seed", range(by_profile(1, 10)))
def test_grouped_control_records_give_the_states_of_the_main_job(spark: SparkSession, tmp_path: Path, seed: int):
    simulate(tmp_path / "logs", seed=seed, minutes=2, dialect="control_records")
    expected = share_state.reconstruct(tmp_path / "logs")
    records = share_state.read(tmp_path / "logs", spark).repartition(3, "offset")
    folded = share_state.fold_records(records)
    check(folded.share_partition_state, expected.share_partition_state, LOG_FACTS)
    check(by_groups(records, "topic"), expected.share_partition_state, LOG_FACTS)
    of_logs = expected.findings.filter(~pc.field("rule").isin(_OF_WHOLE_LOGS))
    found = folded.findings.toArrow()
    assert sorted(found["rule"].to_pylist()) == sorted(of_logs["rule"].to_pylist())
    cutoffs, of_control = folded.cutoff.toArrow(), [name for name in SHOWN if name != "log_end_offset"]
    limits = [sorted(table.select(of_control).to_pylist(), key=repr) for table in (cutoffs, expected.cutoff)]
    assert limits[0] == limits[1]
    assert cutoffs["log_end_offset"].null_count == len(cutoffs)


def test_records_of_the_topic_are_decoded_where_they_are(spark: SparkSession):
    source = DATA / "4.3.1/happy"
    kafka = spark.createDataFrame(shuffled(table_of(find_logs([str(source)]))).combine_chunks())
    folded = share_state.fold_records(kafka.withColumnRenamed("value", "v"), columns={"value": "v"})
    check(folded.share_partition_state, share_state.reconstruct(logs_alone(source)).share_partition_state, ["topic"])


def test_rows_in_memory_are_folded_in_few_tasks_of_a_session_that_is_given(spark: SparkSession):
    records: Any = share_state.read(logs_alone(DATA / "4.3.1/happy"))
    before = dict(spark.conf.getAll)
    spark.conf.set("spark.sql.shuffle.partitions", "40")
    try:
        states = share_state.fold_records(records, spark).share_partition_state
        assert states.sparkSession is spark
        assert states.rdd.getNumPartitions() < 4
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before["spark.sql.shuffle.partitions"])
    assert before.items() <= dict(spark.conf.getAll).items()
    check(states, share_state.fold_records(records).share_partition_state)


def test_the_shuffle_uses_every_task(spark: SparkSession):
    labels = packed_rows._labels(spark)
    chosen = spark.range(len(labels)).select(sql.array(*map(sql.lit, labels))[sql.col("id").cast("int")].alias("label"))
    assert chosen.schema["label"].dataType == from_arrow_schema(packed_rows._SHUFFLED)["label"].dataType
    tasks = chosen.repartition(len(labels), "label").select(sql.spark_partition_id().alias("task"))
    assert tasks.distinct().count() == len(labels)


def test_what_is_no_table_of_records_is_refused(spark: SparkSession):
    with pytest.raises(InputError, match=r"neither those of decoded records, as share_state\.read returns them"):
        share_state.fold_records(spark.range(3))
    decoded = spark.createDataFrame(table_schema("decoded_records").empty_table())
    with pytest.raises(InputError, match="fold_records: no column layout, fault; give those of decoded_records"):
        share_state.fold_records(decoded.drop("fault", "layout"))
    with pytest.raises(ShareStateError, match="columns: no nope; name key, value, topic, partition, offset, timestamp"):
        share_state.fold_records(decoded, columns={"nope": "x"})


def test_a_frame_without_a_record_of_the_topic_names_the_settings_of_the_connector(spark: SparkSession):
    source = logs_alone(DATA / "4.3.1/happy")
    rows = spark.createDataFrame(table_of(find_logs([str(source)])).slice(0, 3).combine_chunks())
    with pytest.raises(
        InputError, match=r"it has no rows\); Spark's Kafka connector .*useDeprecatedOffsetFetching=true"
    ):
        share_state.fold_records(rows.limit(0))
    others = rows.withColumn("topic", sql.lit("orders"))
    with pytest.raises(InputError, match=r"no records of __share_group_state in this table \(found rows of orders\)$"):
        share_state.fold_records(others)


def test_times_in_another_unit_are_refused(spark: SparkSession):
    rows = table_of(find_logs([str(logs_alone(DATA / "4.3.1/happy"))])).slice(0, 3).combine_chunks()
    in_seconds = rows["timestamp"].cast(pa.timestamp("s", "UTC"), safe=False).cast(pa.int64())
    frame = rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", in_seconds)
    for given in (frame, spark.createDataFrame(frame)):
        with pytest.raises(InputError, match="column timestamp holds seconds since 1970"):
            share_state.fold_records(given)


@nightly("a session of its own; the tests below fold in the shared one")
def test_the_command_writes_tables_without_a_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source, place = logs_alone(DATA / "4.3.1/happy"), tmp_path / "lake"
    assert run(["reconstruct", str(source), "--out", str(place), "--grouped", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    expected = share_state.reconstruct(source, groups=())
    written = {name: spark.read.format("delta").load(str(place / name)).toArrow() for name in TABLES}
    assert told["rows"] == {name: len(table) for name, table in written.items()}
    compare(share_state.Tables(*(written[name].cast(table_schema(name)) for name in TABLES)), expected)
    assert not (place / "runs").exists()
    share_state.reconstruct(source, warehouse=tmp_path / "w")
    assert run(["reconstruct", str(source), "--out", str(tmp_path / "w"), "--grouped"]) == 2
    assert "has its tables here, and --grouped makes no run" in capsys.readouterr().err
    assert run(["reconstruct", str(source), "--out", str(place), "--grouped", "--timeline"]) == 2
    assert "--grouped: does not write a timeline" in capsys.readouterr().err
