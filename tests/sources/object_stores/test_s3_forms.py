"""Every other form of an export on an object store folds to the tables of the local one."""

import base64
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import share_state
from share_state.delta.committed import CommittedTables
from share_state.errors import InputError
from share_state.fold.state_log import fold_log
from share_state.sources import table_plan
from share_state.sources.discovery import find_logs
from share_state.sources.formats import AUTO, ExportPaths, RowSorter
from share_state.sources.input_detection import read_export
from share_state.sources.log_partition import LogPartition
from share_state.sources.share_snapshots import ShareSnapshotEntry, read_share_snapshots, write_share_snapshots
from share_state.sources.topics import read_subscriptions, read_topics
from share_state.spark import sorted_tables as inputs
from share_state.spark.sorted_tables import SparkSorter
from tests.cli.commands import run_cli
from tests.profiles import nightly, some_of
from tests.sources.formats.tables import BY_KEY, SIZES, shuffled, table_of, tables_of, write
from tests.sources.object_stores.s3 import BUCKET, put
from tests.truth import DATA, logs_alone

CHAOS, HAPPY = logs_alone(DATA / "4.3.1/chaos"), logs_alone(DATA / "4.3.1/happy")
TEXTS = {
    "dump-log": HAPPY / "dump-log-__share_group_state-2.txt",
    "console-json": HAPPY / "console-consumer-formatter.txt",
}


@pytest.fixture(scope="module")
def logs() -> list[LogPartition]:
    return find_logs([str(CHAOS)])


@pytest.fixture(scope="module")
def table(logs: list[LogPartition]) -> pa.Table:
    return table_of(logs)


@pytest.fixture
def no_disk(s3_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """A session without a client for stores: tasks read them, and nothing passes the disk of the driver."""
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    yield s3_spark
    assert not [*disk.iterdir()]


def found(address: str, sorter: RowSorter | None = None, form: str = AUTO) -> list[LogPartition]:
    return read_export(ExportPaths([address], sorter=sorter), form).logs


def is_same(told: list[LogPartition], logs: list[LogPartition]) -> None:
    assert [log.partition for log in told] == [log.partition for log in logs]
    for one, other in zip(told, logs, strict=True):
        assert tables_of(fold_log(one), without=SIZES) == tables_of(fold_log(other), without=SIZES)


def json_lines(table: pa.Table, path: Path) -> Path:
    """A table as a sink writes it: JSON lines, bytes in base64."""
    names = ("key", "value", "topic", "partition", "offset")
    rows = table.select([name for name in names if name in table.column_names]).to_pylist()
    for row in rows:
        row |= {name: row[name] and base64.b64encode(row[name]).decode() for name in ("key", "value")}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("form", TEXTS)
def test_texts_are_streamed(s3: str, form: str):
    address = put(s3, TEXTS[form], f"texts/{form}.txt")
    (stored,), (local,) = found(address), found(str(TEXTS[form]))
    assert tables_of(fold_log(stored)) == tables_of(fold_log(local))
    assert stored.size == local.size


def test_a_folder_of_texts(s3: str):
    put(s3, TEXTS["console-json"], "folder of texts/2026-11-21/console.txt")
    (stored,) = found(f"s3://{BUCKET}/folder of texts", form="console-json")
    (local,) = found(str(TEXTS["console-json"]))
    assert fold_log(stored).states == fold_log(local).states


def test_parquet_files_in_folders_that_are_columns(s3: str, table: pa.Table, logs: list[LogPartition], tmp_path: Path):
    for log in logs:
        own = table.filter(pc.field("partition") == log.partition).drop_columns("partition")
        write(own, tmp_path / f"partition={log.partition}" / "rows.parquet", row_group=100)
    is_same(found(put(s3, tmp_path, "tables/parquet")), logs)


def test_a_delta_table(s3: str, table: pa.Table, logs: list[LogPartition], tmp_path: Path):
    write_deltalake(str(tmp_path / "bronze"), table.slice(0, 800), partition_by=["partition"])
    write_deltalake(str(tmp_path / "bronze"), table.slice(800), mode="append")
    is_same(found(put(s3, tmp_path / "bronze", "tables/delta bronze")), logs)


@nightly("test_forms_through_spark reads one in a folder")
def test_a_delta_table_with_deleted_rows_goes_through_spark(
    no_disk: SparkSession, s3: str, table: pa.Table, logs: list[LogPartition], tmp_path: Path
):
    frame = no_disk.createDataFrame(pa.concat_tables([table, shuffled(table)]).combine_chunks())
    rows = frame.selectExpr("*", "row_number() OVER (PARTITION BY partition, offset ORDER BY offset) AS copy")
    place = str(tmp_path / "bronze")
    rows.coalesce(1).write.format("delta").option("delta.enableDeletionVectors", "true").save(place)
    no_disk.sql(f"DELETE FROM delta.`{place}` WHERE copy = 2")
    assert DeltaTable(place).protocol().reader_features
    is_same(found(put(s3, Path(place), "tables/deleted"), SparkSorter(no_disk)), logs)


@nightly("test_forms_through_spark reads them in a folder")
def test_compressed_json_lines_go_through_spark(
    no_disk: SparkSession, s3: str, table: pa.Table, logs: list[LogPartition], tmp_path: Path
):
    for log, (ending, codec) in zip(logs, {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}.items(), strict=True):
        own = shuffled(table.filter(pc.field("partition") == log.partition))
        plain = json_lines(own.drop_columns("partition"), tmp_path / f"rows/partition={log.partition}/part-0.json")
        with pa.output_stream(f"{plain}.{ending}", compression=codec) as stream:
            stream.write(plain.read_bytes())
        plain.unlink()
    told = found(put(s3, tmp_path / "rows", "tables/json"), SparkSorter(no_disk))
    assert [log.partition for log in told] == [log.partition for log in logs]
    for one, other in zip(told, logs, strict=True):
        assert fold_log(one).states == fold_log(other).states


@nightly("Spark over a store")
def test_rows_without_any_order_go_through_spark(
    no_disk: SparkSession,
    s3: str,
    table: pa.Table,
    logs: list[LogPartition],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    write(shuffled(table), tmp_path / "rows.parquet", row_group=64)
    monkeypatch.setattr(table_plan, "MAX_OVERLAP", 1 << 10)
    is_same(found(put(s3, tmp_path / "rows.parquet", "tables/rows.parquet"), SparkSorter(no_disk)), logs)


@nightly("Spark over a store")
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_spark_reads_with_a_client_of_its_own_what_must_be_sorted(
    s3_spark: SparkSession,
    s3: str,
    table: pa.Table,
    logs: list[LogPartition],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
):
    """Hadoop's view of another place stands for the client, and has the rows."""
    rows = tmp_path / f"rows.{form}"
    json_lines(shuffled(table), rows) if form == "json" else write(shuffled(table), rows, row_group=64)
    monkeypatch.setattr(table_plan, "MAX_OVERLAP", 1 << 10)
    monkeypatch.setattr(inputs, "_read_in_tasks", lambda *_: pytest.fail("read by Arrow"))
    context: Any = s3_spark.sparkContext._jsc
    hadoop = context.hadoopConfiguration()
    settings = {
        "fs.s3.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "fs.s3.impl.disable.cache": "true",
        "fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        f"fs.viewfs.mounttable.{BUCKET}.link./viewed": f"file://{tmp_path}",
    }
    try:
        for name, value in settings.items():
            hadoop.set(name, value)
        told = found(put(s3, rows, f"viewed/{rows.name}"), SparkSorter(s3_spark))
        assert [fold_log(log).states for log in told] == [fold_log(log).states for log in logs]
    finally:
        for name in settings:
            hadoop.unset(name)


@nightly("Spark over a store")
def test_a_flaw_of_a_table_is_told_by_the_address_of_its_file(
    no_disk: SparkSession, s3: str, table: pa.Table, tmp_path: Path
):
    flawed = table.slice(0, 5).set_column(4, "offset", pa.array([1, 2, -3, 4, 5]))
    address = put(s3, json_lines(flawed, tmp_path / "flawed.json"), "tables/flawed.json")
    with pytest.raises(InputError, match=f"^{address}: partition 0, offset -3: offset is null or negative"):
        found(address, SparkSorter(no_disk))
    cut = json_lines(table.slice(0, 5), tmp_path / "cut.json")
    cut.write_text(cut.read_text()[:-30])
    with pytest.raises(InputError, match=f"^{put(s3, cut, 'tables/cut.json')}: a line is not complete JSON"):
        found(f"s3://{BUCKET}/tables/cut.json", SparkSorter(no_disk))


@nightly("writes a table with Spark")
def test_a_damaged_table_is_told_by_its_address(
    s3_spark: SparkSession, s3: str, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    damaged = bytearray(write(shuffled(table), tmp_path / "rows.parquet", row_group=64).read_bytes())
    damaged[3000:3400] = b"\xff" * 400
    (tmp_path / "rows.parquet").write_bytes(damaged)
    monkeypatch.setattr(table_plan, "MAX_OVERLAP", 1 << 10)
    address = put(s3, tmp_path / "rows.parquet", "tables/damaged.parquet")
    with pytest.raises(InputError, match=f"^{address}: not a complete Parquet file"):
        found(address, SparkSorter(s3_spark))


def test_files_that_go_with_an_input(s3: str, tmp_path: Path):
    local = DATA / "4.3.1/chaos/topics.json"
    topics = put(s3, local, "files/topics.json")
    assert read_topics(topics).names == read_topics(str(local)).names
    (tmp_path / "subscriptions.json").write_text('{"orders": ["app"]}')
    subscriptions = put(s3, tmp_path / "subscriptions.json", "files/subscriptions.json")
    assert read_subscriptions(subscriptions) == {"orders": ["app"]}
    log, entry = LogPartition("orders", 0, (), 0), ShareSnapshotEntry("app", 1, 2, 3)
    assert read_share_snapshots(f"s3://{BUCKET}/files/index", [log]) == {}
    write_share_snapshots(f"s3://{BUCKET}/files/index", {log.name: [entry]}, {log.name: 5})
    assert read_share_snapshots(f"s3://{BUCKET}/files/index", [log]) == {"orders-0": [entry]}


def _writes_the_same_tables(s3: str, capfd: pytest.CaptureFixture[str], local: Path, folder: Path) -> None:
    stored = put(s3, local, f"reconstructed/{folder.name}/{local.name}")
    for given, lake in ((local, "local"), (stored, "stored")):
        assert run_cli(capfd, "reconstruct", given, "--out", folder / lake).code == 0
    one, other = (CommittedTables(str(folder / lake)) for lake in ("local", "stored"))
    assert one.run["records"] == other.run["records"] > 0
    for name in ("share_partition_state", "in_flight"):
        order = [*BY_KEY, ("first_offset", "ascending")] if name == "in_flight" else BY_KEY
        assert one.read(name).sort_by(order) == other.read(name).sort_by(order)
    assert one.read("findings").drop_columns("run_id").num_rows == other.read("findings").num_rows


@pytest.mark.parametrize("form", some_of(["table", *TEXTS], 2))
def test_reconstruct_writes_the_same_tables(
    s3: str, table: pa.Table, form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    local = TEXTS.get(form) or write(table, tmp_path / "rows.parquet")
    _writes_the_same_tables(s3, capfd, local, tmp_path)


@nightly("as in threads")
def test_tasks_of_spark_read_segments_of_a_store(s3_spark: SparkSession, s3: str):
    there = share_state.reconstruct(put(s3, CHAOS, "reconstructed/chaos"), spark=s3_spark).share_partition_state
    here = share_state.reconstruct(CHAOS).share_partition_state
    assert there.toArrow().cast(here.schema).sort_by(BY_KEY) == here.sort_by(BY_KEY)


@pytest.mark.parametrize("command", some_of(["explain", "decode", "diff"], 1))
def test_commands_without_spark(s3: str, command: str, capfd: pytest.CaptureFixture[str]):
    key = fold_log(find_logs([str(CHAOS)])[0]).states.to_pylist()[0]
    arguments = {
        "explain": ["--group", key["group_id"], "--topic", key["topic_id"], "--partition", key["partition"],
                    "--offset", max(key["start_offset"], 0)],
        "decode": [],
        "diff": ["--as-of-offset", "0=100"],
    }[command]  # fmt: skip
    stored = put(s3, CHAOS, "segments/chaos")
    there, here = (run_cli(capfd, command, given, *arguments) for given in (stored, CHAOS))
    assert there.code == here.code == 0
    assert there.out == here.out
