"""Every form of export from Python, with its group side: what comes back is what segments give."""

from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, convert_timezone, lit

import share_state
from share_state.delta.warehouse_place import CLAIM_TABLES, GROUP_TABLES
from share_state.errors import InputError, ShareStateError
from share_state.fold.groups.group_tables import fold_groups
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import find_group_logs
from tests.fold.groups.group_tables import both_topics, json_lines, rows_of
from tests.fold.groups.group_writer import (
    assignment,
    classic_group,
    classic_member,
    share_group,
    subscription,
    user_data,
    write_group_log,
)
from tests.profiles import by_profile, nightly
from tests.sources.formats.tables import BY_KEY, SIZES, shuffled, write
from tests.truth import DATA, without_topics

EXPORTS = TemporaryDirectory(prefix="share-state-")
# No topics file is beside tables, texts and DataFrames.
CHAOS, HAPPY = (without_topics(DATA / "4.3.1" / name, Path(EXPORTS.name) / name) for name in ("chaos", "happy"))
STATE = str(CHAOS / "__share_group_state-*")
DUMP, CONSOLE = HAPPY / "dump-log-__share_group_state-2.txt", HAPPY / "console-consumer-formatter.txt"
PRINTED = Path(__file__).parents[1] / "fold/groups/printed"
PICKED = ("g0", "t3", 1)
"""A share-partition of CHAOS."""


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Both topics of CHAOS as rows."""
    return both_topics(CHAOS)[2]


@pytest.fixture(scope="module")
def parquet(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(table, tmp_path_factory.mktemp("rows") / "rows.parquet", row_group=500)


def arrow(table: object) -> pa.Table:
    return table if isinstance(table, pa.Table) else table.toArrow()  # type: ignore[attr-defined]


def contents(tables: share_state.Tables) -> dict[str, list[str]]:
    """Rows as text, without what depends on the order of findings, or on the form."""
    hidden = {*SIZES, "run_id", "settled"}
    found = {one.name: getattr(tables, one.name) for one in fields(tables)}
    return {
        name: sorted(
            repr({column: dict(value) if isinstance(value, list) and name == "findings" else value
                  for column, value in row.items() if column not in hidden})
            for row in arrow(table).to_pylist()
        )
        for name, table in found.items()
        if table is not None
    }  # fmt: skip


def test_segments_give_the_tables_of_groups_and_the_names_of_topics():
    tables = share_state.reconstruct(CHAOS)
    folded = fold_groups(find_group_logs([str(CHAOS)]))
    for name in GROUP_TABLES:
        known = [column for column in getattr(folded, name).column_names if column != "configs"]
        assert getattr(tables, name).select(known).equals(getattr(folded, name).select(known)), name
    assert [getattr(tables, name) for name in CLAIM_TABLES] == [None, None]
    assert set(tables.share_partition_state["topic"].to_pylist()) == {"t0", "t1", "t2"}
    assert "share_groups: 6 rows" in repr(tables)
    assert "sticky_claim" not in repr(tables)


def test_a_table_of_both_topics_gives_what_segments_give(parquet: Path):
    assert contents(share_state.reconstruct(parquet, group_partitions=3)) == contents(share_state.reconstruct(CHAOS))
    sizes = arrow(share_state.cutoff(CHAOS)).drop_columns(SIZES)
    assert arrow(share_state.cutoff(parquet)).drop_columns(SIZES).equals(sizes)
    assert (
        arrow(share_state.timeline(parquet))
        .sort_by("offset")
        .equals(arrow(share_state.timeline(CHAOS)).sort_by("offset"))
    )


@pytest.mark.parametrize(
    ("text", "segments"), [(DUMP, HAPPY / "__share_group_state-2"), (CONSOLE, HAPPY)], ids=["dump-log", "console-json"]
)
def test_texts_give_the_states_of_segments(text: Path, segments: Path):
    here = share_state.reconstruct(text).share_partition_state.sort_by(BY_KEY).to_pylist()
    there = share_state.reconstruct(segments).share_partition_state.sort_by(BY_KEY).to_pylist()
    told = ("group_id", "topic_id", "partition", "start_offset", "state_epoch", "snapshot_epoch")
    assert [[row[name] for name in told] for row in here] == [[row[name] for name in told] for row in there] != []
    assert share_state.reconstruct(text).share_groups is None


def test_columns_have_the_names_that_are_said(table: pa.Table, tmp_path: Path):
    renamed = table.rename_columns(["k", "v", *table.column_names[2:]])
    file = write(renamed, tmp_path / "rows.parquet")
    named = share_state.reconstruct(file, columns={"key": "k", "value": "v"}, group_partitions=3)
    assert contents(named) == contents(share_state.reconstruct(CHAOS))
    with pytest.raises(InputError, match="no column key"):
        share_state.cutoff(file)


def test_groups_are_named_in_any_form(tmp_path: Path):
    expected = contents(share_state.reconstruct(CHAOS))
    written = write(rows_of(find_group_logs([str(CHAOS)])), tmp_path / "groups.parquet")
    folder = CHAOS / "__consumer_offsets-*"
    assert contents(share_state.reconstruct(STATE, groups=written, group_partitions=3)) == expected
    assert contents(share_state.reconstruct(STATE, groups=[str(folder)])) == expected
    dumped = share_state.reconstruct(STATE, groups=PRINTED / "dump-offsets.txt").share_groups
    assert set(dumped["group_partition"].to_pylist()) == {2}
    assert contents(share_state.reconstruct(STATE)) == expected
    with pytest.raises(InputError, match="give the cluster as the input"):
        share_state.reconstruct(STATE, groups="kafka://b:9092")


def test_an_empty_list_of_groups_leaves_them_out(parquet: Path):
    for given in (CHAOS, parquet):
        tables = share_state.reconstruct(given, groups=())
        assert tables.share_groups is None
        assert set(tables.share_partition_state["topic"].to_pylist()) == {None}
    with pytest.raises(InputError, match="not found; the nearest"):
        share_state.explain(CHAOS, *PICKED, 24, groups=())


@nightly("every call in Spark")
def test_groups_name_topics_and_members_of_every_call(spark: SparkSession, parquet: Path):
    group, topic, partition = PICKED
    chosen: dict[str, Any] = {"group": group, "topic": topic, "partition": partition}
    for given in (CHAOS, parquet):
        timeline = arrow(share_state.timeline(given, **chosen))
        assert timeline.num_rows > 0
        assert set(timeline["topic"].to_pylist()) == {topic}
        assert share_state.timeline(given, **chosen, spark=spark).count() == timeline.num_rows
        assert share_state.explain(given, *PICKED, 24).facts["topic"] == topic
        names = share_state.read(given, spark).select("topic").distinct().collect()
        assert {row.topic for row in names} >= {"t0", "t1", "t2"}
    told = share_state.explain(STATE, *PICKED, 24, groups=CHAOS).records
    assert told.equals(share_state.explain(CHAOS, *PICKED, 24).records)
    assert told["members"].null_count < told.num_rows
    assert share_state.explain(parquet, *PICKED, 24).records.equals(told)
    with pytest.raises(InputError, match="topic t3 of group g0: not found; the nearest of 4 are "):
        share_state.timeline(STATE, **chosen, groups=())


@nightly("three runs in Spark; tests/api/test_in_python has one")
def test_with_a_session_the_tables_are_those_without_one(spark: SparkSession, tmp_path: Path):
    """Findings over groups among them: a state without a group, and claims that are contested."""
    for log in HAPPY.glob("__share_group_state-*"):
        (tmp_path / log.name).symlink_to(log)
    members = [
        classic_member(name, subscription(["t"], user_data({"t": [0]}, 1), generation=1), assignment({"t": [0]}))
        for name in ("a", "b")
    ]
    listed = share_group("app-a", {}, epoch=4, ready={"AAAAAAAAAAAAAAAAAAAAKg": [0]})
    write_group_log(tmp_path, [*listed, classic_group("cg", 2, members)])
    here = share_state.reconstruct(tmp_path, group_partitions=1, rules={"MISSING_SHARE_STATE": "error"})
    there = share_state.reconstruct(tmp_path, group_partitions=1, rules={"MISSING_SHARE_STATE": "error"}, spark=spark)
    assert contents(there) == contents(here)
    rules = dict(zip(here.findings["rule"].to_pylist(), here.findings["severity"].to_pylist(), strict=True))
    assert {"ORPHAN_SHARE_STATE", "MISSING_SHARE_STATE", "DOUBLE_ASSIGNED"} <= rules.keys()
    assert rules["MISSING_SHARE_STATE"] == "error"
    assert there.findings.columns == here.findings.column_names
    assert there.sticky_claim.count() == here.sticky_claim.num_rows == 2


@nightly("writes twelve tables with Spark")
def test_a_warehouse_of_a_table_has_the_tables_of_groups(spark: SparkSession, parquet: Path, tmp_path: Path):
    frames = share_state.reconstruct(parquet, spark=spark, warehouse=tmp_path / "lake", group_partitions=3)
    assert contents(frames) == contents(share_state.reconstruct(CHAOS))
    assert (tmp_path / "lake/share_groups/_delta_log").is_dir()


@nightly("Spark; the whole frame is in test_a_dataframe_in_gives_dataframes_out")
def test_a_dataframe_of_both_topics_is_what_its_segments_are_at_the_same_moment(
    spark: SparkSession, table: pa.Table, tmp_path: Path
):
    moment = sorted(arrow(share_state.timeline(CHAOS))["timestamp"].to_pylist())[200]
    frame = spark.createDataFrame(shuffled(table))
    cut = contents(share_state.reconstruct(CHAOS, as_of=moment))
    for warehouse in by_profile([None], [tmp_path / "lake", None]):
        assert contents(share_state.reconstruct(frame, warehouse=warehouse, as_of=moment, group_partitions=3)) == cut
    assert cut["share_groups"] != contents(share_state.reconstruct(CHAOS))["share_groups"] != []


@pytest.mark.parametrize("zone", by_profile(["America/New_York"], ["UTC", "America/New_York"]))
def test_a_dataframe_in_gives_dataframes_out(spark: SparkSession, table: pa.Table, zone: str):
    """In the time zone of any session; times without a zone are in UTC."""
    order = [("state_partition", "ascending"), ("offset", "ascending")]
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.createDataFrame(shuffled(table).combine_chunks())
        without_zone = convert_timezone(lit(zone), lit("UTC"), col("timestamp").cast("timestamp_ntz"))
        local = frame.withColumn("timestamp", without_zone)
        for given in by_profile((frame,), (frame, local)):
            assert contents(share_state.reconstruct(given, group_partitions=3)) == contents(
                share_state.reconstruct(CHAOS)
            )
            timeline = share_state.timeline(given).toArrow().cast(table_schema("timeline"))
            assert timeline.sort_by(order).equals(arrow(share_state.timeline(CHAOS)).sort_by(order))
        cutoffs = share_state.cutoff(frame).toArrow().cast(table_schema("cutoff")).drop_columns(SIZES)
        assert cutoffs.sort_by("partition").equals(arrow(share_state.cutoff(CHAOS)).drop_columns(SIZES))
        records, expected = (arrow(share_state.read(one, spark)).sort_by(order) for one in (frame, CHAOS))
        assert records.equals(expected)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@nightly("two more runs in Spark")
def test_groups_may_be_a_dataframe_of_their_own(spark: SparkSession, tmp_path: Path):
    state, groups, _ = both_topics(CHAOS)
    frame, of_groups = spark.createDataFrame(rows_of(state)), spark.createDataFrame(rows_of(groups))
    expected = contents(share_state.reconstruct(CHAOS))
    lake = by_profile(None, tmp_path / "a")
    frames = share_state.reconstruct(frame, warehouse=lake, groups=of_groups, group_partitions=3)
    assert contents(frames) == expected
    # Without adaptive execution Spark passes on empty batches.
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        assert contents(share_state.reconstruct(STATE, groups=of_groups, group_partitions=3)) == expected
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")


@nightly("sorts in Spark, as the command does in test_forms_through_spark")
@nightly("jobs of Spark over JSON; tests/fold/groups sort such rows, too")
def test_a_table_that_spark_must_put_in_order_wants_a_session(spark: SparkSession, table: pa.Table, tmp_path: Path):
    rows = json_lines(shuffled(table), tmp_path / "rows.json")
    with pytest.raises(ShareStateError, match=r"sorted by Spark; give spark=share_state\.session\(\)"):
        share_state.cutoff(rows)
    assert share_state.timeline(rows, spark=spark).count() == share_state.timeline(CHAOS).num_rows
    of_segments = share_state.explain(CHAOS, *PICKED, 24)
    assert share_state.explain(rows, *PICKED, 24, spark=spark).sentence == of_segments.sentence


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: share_state.cutoff(CHAOS, format="avro"), "format='avro': give one of auto, console-json, dump-log, "),
        (lambda: share_state.cutoff(STATE, format="table"), "neither Parquet nor lines of JSON"),
        (lambda: share_state.cutoff(CHAOS, format="kafka"), "not the address of a cluster"),
        (lambda: share_state.cutoff("kafka://b:9092", format="table"), "a cluster is not read as table"),
        (lambda: share_state.cutoff([CHAOS, "kafka://b:9092"]), "a cluster is read alone"),
        (lambda: share_state.cutoff(CONSOLE, as_of={0: 3}), "as_of={0: 3}: console-json holds no offsets"),
        (
            lambda: share_state.cutoff(CONSOLE, as_of="2026-01-01"),
            "this console-json holds no timestamps",
        ),
        (lambda: share_state.reconstruct(STATE, groups="nowhere"), "nowhere"),
        (lambda: share_state.reconstruct(STATE, groups=DUMP), "no dump of __consumer_offsets"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(call, told: str):
    with pytest.raises(ShareStateError, match=told) as raised:
        call()
    assert len(str(raised.value).splitlines()) == 1


def test_repair_takes_no_dataframe(spark: SparkSession):
    with pytest.raises(
        ShareStateError, match="input is a DataFrame: repair takes paths only; give an export, or the f"
    ):
        share_state.repair(cast("Any", spark.range(1)))


def test_a_streaming_dataframe_is_refused(spark: SparkSession):
    frame = spark.readStream.format("rate").load()
    for given in ({"input": frame}, {"input": STATE, "groups": frame}):
        with pytest.raises(InputError, match=r"^the DataFrame is streaming: .* run `share-state stream`$"):
            share_state.reconstruct(**cast("Any", given))


def test_rows_are_not_read_where_the_warehouse_cannot_be_written(spark: SparkSession, tmp_path: Path):
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake/notes.txt").write_text("mine")
    unreadable = spark.createDataFrame([(1,)], "nothing int")
    with pytest.raises(ShareStateError, match="holds something else"):
        share_state.reconstruct(unreadable, warehouse=tmp_path / "lake")


def test_what_a_form_lacks_is_told_to_who_listens(caplog: pytest.LogCaptureFixture):
    with caplog.at_level("INFO", "share_state"):
        share_state.reconstruct(CONSOLE)
        share_state.reconstruct(STATE, groups=PRINTED / "dump-offsets.txt")
    assert "this format has no offsets, partitions or timestamps" in caplog.text
    assert "groups without a record are not reported; give group_partitions=N" in caplog.text
