"""The warehouse: the tables of a fold without Spark, the same each time, readable as the last run left them."""

import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

import share_state
from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse import Warehouse
from share_state.delta.warehouse_place import CORE_TABLES
from share_state.errors import InputError, WarehouseError
from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import fold_log
from share_state.pipeline.executor import Executor
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.reconstruct import run_reconstruct, write_decoded
from share_state.pipeline.result import RunResult, summarize
from share_state.pipeline.task import STATE, OutputSpec, balance_tasks
from share_state.rules.findings import judge
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.partition_count import PartitionCount
from share_state.spark.spark_executor import SparkExecutor
from tests.profiles import by_profile, driver_alone, nightly
from tests.truth import DATA

KEY = [(name, "ascending") for name in ("group_id", "topic_id", "partition")]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's log directory with one damaged segment, so that every table has rows."""
    folder = tmp_path_factory.mktemp("export") / "broker"
    shutil.copytree(DATA / "4.3.1/chaos", folder)
    segment = folder / "__share_group_state-2" / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data[:-5])
    return folder


@pytest.fixture(scope="module")
def warehouse(tasks: Executor, export: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult]:
    """A warehouse of that export, and what the run said."""
    folder = tmp_path_factory.mktemp("lake") / "warehouse"
    return folder, run_reconstruct(tasks, _work(export), str(folder), inputs=(str(export),))


def _work(*inputs: Path | str) -> FoldPlan:
    logs = find_logs([str(given) for given in inputs])
    return FoldPlan(logs, options=FoldOptions(partition_count=PartitionCount(len(logs))))


def _outcome(tasks: Executor, work: FoldPlan) -> RunResult:
    return summarize(tasks.collect(tasks.fold(work, OutputSpec(()))), (), {})


def _folded(work: FoldPlan) -> dict[str, pa.Table]:
    """The tables as `fold_log` gives them, log partition after log partition."""
    folds = [work.fold(log) for log in work.logs]
    return {
        "share_partition_state": pa.concat_tables(fold.states for fold in folds),
        "in_flight": pa.concat_tables(fold.in_flight for fold in folds),
        "cutoff": pa.concat_tables(fold.cutoff for fold in folds),
        "findings": pa.concat_tables(judge(fold) for fold in folds),
    }


def _sortable(frame: DataFrame) -> DataFrame:
    """Maps have no order, so rows with one cannot be sorted: as a list of entries they can."""
    return frame.selectExpr(
        *(f"map_entries({name}) AS {name}" if kind.startswith("map") else name for name, kind in frame.dtypes)
    )


@pytest.mark.parametrize(
    "name", by_profile(["in_flight"], ["share_partition_state", "in_flight", "cutoff", "findings"])
)
def test_a_table_holds_what_the_fold_gives(
    spark: SparkSession, export: Path, warehouse: tuple[Path, RunResult], name: str
):
    folder, outcome = warehouse
    # Where the first chunk of a table is empty, createDataFrame of pyspark 4.2 takes all of it for empty.
    expected = spark.createDataFrame(_folded(_work(export))[name].combine_chunks())
    if name == "findings":
        expected = expected.withColumn("run_id", lit(outcome.run_id))
    found = spark.read.format("delta").load(str(folder / name))
    assert expected.count() > 0
    tables = _sortable(found), _sortable(expected)
    # Delta declares NOT NULL and comments.
    assert_df_equality(*tables, ignore_row_order=True, ignore_nullable=True, ignore_metadata=True)


@pytest.mark.parametrize("name", CORE_TABLES)
def test_a_table_has_the_columns_that_are_declared(spark: SparkSession, warehouse: tuple[Path, RunResult], name: str):
    frame = spark.read.format("delta").load(str(warehouse[0] / name))
    declared = spark.createDataFrame(table_schema(name).empty_table())
    assert frame.dtypes == declared.dtypes


def test_the_outcome_counts_what_is_in_the_tables(export: Path, warehouse: tuple[Path, RunResult]):
    _, outcome = warehouse
    tables = _folded(_work(export))
    assert outcome.share_partitions == len(tables["share_partition_state"])
    assert sum(outcome.findings.values()) == len(tables["findings"])
    assert outcome.by_severity == {
        severity: tables["findings"]["severity"].to_pylist().count(severity) for severity in outcome.by_severity
    }
    assert outcome.cutoff == tables["cutoff"]
    folds = [fold_log(log) for log in find_logs([str(export)])]
    assert outcome.records == sum(fold.record_count for fold in folds)
    assert dict(outcome.progress) == {f"__share_group_state-{fold.log.partition}": fold.next_offset for fold in folds}


def test_the_run_is_recorded(export: Path, warehouse: tuple[Path, RunResult]):
    folder, outcome = warehouse
    run = CommittedTables(str(folder)).run
    assert run["run_id"] == outcome.run_id
    assert (run["command"], run["inputs"], run["status"]) == ("reconstruct", [str(export)], "done")
    assert run["started"] <= run["finished"]
    assert (run["records"], run["state_partitions"]) == (outcome.records, 3)
    assert dict(run["progress"]) == dict(outcome.progress)
    assert dict(run["findings"]) == outcome.by_severity
    # Spark creates a table, with its comments, before it writes rows.
    versions = dict(run["table_versions"])
    assert versions == dict.fromkeys(CORE_TABLES[:-1], versions["cutoff"])
    assert versions["cutoff"] in (0, 1)


def _read(folder: Path) -> dict[str, list[dict]]:
    tables = CommittedTables(str(folder))
    return {
        name: tables.read(name)
        .sort_by([*KEY, *((c, "ascending") for c in order)] if order else "partition")
        .to_pylist()
        for name, order in {
            "share_partition_state": ["last_offset"],
            "in_flight": ["first_offset"],
            "findings": ["rule", "offset", "message"],
            "cutoff": [],
        }.items()
    }


@pytest.fixture
def again(warehouse: tuple[Path, RunResult], tmp_path: Path) -> tuple[Path, RunResult]:
    """A copy of the warehouse, for a test that writes into it."""
    shutil.copytree(warehouse[0], tmp_path / "again")
    return tmp_path / "again", warehouse[1]


@nightly("two runs in Spark")
@driver_alone
def test_running_again_changes_nothing(
    tasks: Executor, spark: SparkSession, export: Path, again: tuple[Path, RunResult]
):
    folder, first = again
    before, versions = _read(folder), CommittedTables(str(folder)).versions
    assert run_reconstruct(tasks, _work(export), str(folder), inputs=(str(export),)) == first
    assert _read(folder) == before
    (run,) = spark.read.format("delta").load(str(folder / "runs")).collect()
    assert run["table_versions"] == {name: version + 1 for name, version in versions.items()}


@nightly("two runs in Spark")
@driver_alone
def test_another_input_is_another_run_in_the_same_place(
    tasks: Executor, spark: SparkSession, export: Path, again: tuple[Path, RunResult]
):
    folder, first = again
    second = run_reconstruct(tasks, _work(export / "__share_group_state-0"), str(folder))
    runs = spark.read.format("delta").load(str(folder / "runs")).collect()
    assert {run["run_id"] for run in runs} == {first.run_id, second.run_id}
    assert len(runs) == 2
    states = CommittedTables(str(folder)).read("share_partition_state")
    assert set(states["state_partition"].to_pylist()) == {0}


@driver_alone
def test_tables_of_a_run_that_never_finished_are_not_shown(spark: SparkSession, again: tuple[Path, RunResult]):
    folder, _ = again
    before = _read(folder)
    # A run that is killed before its row of `runs` has replaced tables, but nobody believes them.
    half = {name: table_schema(name).empty_table() for name in ("share_partition_state", "in_flight", "findings")}
    with Warehouse(str(folder)) as tables:
        for name, table in half.items():
            tables.replace(name, [table])
    assert spark.read.format("delta").load(str(folder / "share_partition_state")).count() == 0
    assert _read(folder) == before


@driver_alone
def test_nothing_is_written_where_nothing_can_be_read(tasks: Executor, tmp_path: Path):
    log = tmp_path / "__share_group_state-0"
    log.mkdir()
    (log / f"{0:020}.log").write_text("this is a text file, whatever its name may say\n" * 9)
    with pytest.raises(InputError, match="nothing in it is a record batch"):
        run_reconstruct(tasks, _work(log), str(tmp_path / "warehouse"))
    assert not (tmp_path / "warehouse").exists()


@driver_alone
def test_a_table_of_someone_else_is_not_replaced(tasks: Executor, spark: SparkSession, export: Path, tmp_path: Path):
    place = tmp_path / "findings"
    spark.range(3).selectExpr("id", "'x' AS severity", "map(1, 2) AS offset").write.format("delta").save(str(place))
    with pytest.raises(WarehouseError, match="another table is here"):
        run_reconstruct(tasks, _work(export), str(tmp_path))
    assert spark.read.format("delta").load(str(place)).count() == 3


def _states(spark: SparkSession, work: FoldPlan) -> list[tuple]:
    executor = SparkExecutor(spark)
    frame = executor.returned_tables(executor.fold(work, OutputSpec((STATE,))), [STATE])[STATE]
    return sorted(map(tuple, frame.drop("state_partition").toArrow().to_pandas().astype(str).to_numpy().tolist()))


SCENARIO = DATA / "4.1.2/fuzz"
INPUTS = {
    "a glob of folders": [f"{SCENARIO}/__share_group_state-*"],
    "a glob of files": [f"{SCENARIO}/*/*.log"],
    "several inputs": [SCENARIO / f"__share_group_state-{number}" for number in (2, 0, 1)],
    "the same twice": [SCENARIO, SCENARIO],
}


@pytest.mark.parametrize("how", by_profile(["several inputs"], INPUTS))
def test_however_the_input_is_named_the_states_are_the_same(spark: SparkSession, how: str):
    assert _states(spark, _work(*INPUTS[how])) == _states(spark, _work(SCENARIO))


@driver_alone
def test_a_single_file_is_folded(tasks: Executor, tmp_path: Path):
    (file,) = (DATA / "4.3.1/happy/__share_group_state-0").glob("*.log")
    outcome = run_reconstruct(tasks, _work(file), str(tmp_path / "warehouse"))
    expected = fold_log(find_logs([str(file.parent)])[0])
    assert outcome.progress == {"__share_group_state-0": expected.next_offset}
    found = CommittedTables(str(tmp_path / "warehouse")).read("share_partition_state")
    assert found.sort_by(KEY) == expected.states.sort_by(KEY)


def test_more_log_partitions_than_cores_are_each_folded_once(tasks: Executor):
    work = _work(DATA / "4.3.1/fifty")
    assert len(work.logs) == 50
    outcome = _outcome(tasks, work)
    assert len(outcome.progress) == 50
    assert outcome.cutoff == pa.concat_tables(work.fold(log).cutoff for log in work.logs)


@driver_alone
def test_windows_reach_the_tasks(tasks: Executor):
    logs = find_logs([str(DATA / "4.3.1/happy")])
    windows = {logs[0].name: Window(until_offset=5), logs[2].name: Window(until_offset=0)}
    outcome = _outcome(tasks, FoldPlan(logs, windows=windows))
    assert list(outcome.progress.values()) == [5, fold_log(logs[1]).next_offset, 0]


@driver_alone
def test_a_proof_is_made_where_it_is_asked_for(tasks: Executor):
    logs = find_logs([str(DATA / "4.3.1/chaos")])
    outcome = _outcome(tasks, FoldPlan(logs, verify=True))
    assert outcome.compared == sum(
        len(fold.states) for fold in map(fold_log, logs) if fold.cutoff["cutoff_offset"][0].as_py() is not None
    )
    assert outcome.differing == ()
    assert _outcome(tasks, FoldPlan(logs)).compared is None


def status_of(spark: SparkSession) -> Any:
    """What Spark's UI shows, a Java object."""
    context: Any = spark.sparkContext._jsc
    return context.sc().statusStore()


@pytest.mark.parametrize("cores", [1, 2, 64])
def test_every_log_partition_belongs_to_one_task(cores: int):
    logs = find_logs([str(DATA / "4.3.1/fifty")])
    tasks = balance_tasks(logs, cores)
    assert len(tasks) == min(cores, len(logs))
    assert {log.partition for task in tasks for log in task} == {*range(50)}
    assert all(tasks)


def test_big_log_partitions_have_a_task_each():
    logs = [LogPartition(log.topic, log.partition, log.segments * 4000, 0) for log in find_logs([str(SCENARIO)])]
    assert sorted(len(task) for task in balance_tasks(logs, 1)) == [1, 1, 1]


@nightly("a catalog with its own store")
def test_the_catalog_names_the_tables_and_the_ui_of_spark_shows_what_is_written(spark: SparkSession, tmp_path: Path):
    export = DATA / "4.3.1/happy/__share_group_state-0"
    for name in ("lake", "same_lake"):
        spark.sql(f"CREATE SCHEMA {name} LOCATION '{tmp_path / 'lake'}'")
    try:
        before = _jobs(spark)
        written = share_state.reconstruct(export, spark=spark, warehouse="spark_catalog.lake").share_partition_state
        _check_jobs(spark, before, CommittedTables(str(tmp_path / "lake")))
        folded = share_state.reconstruct(export).share_partition_state
        assert sorted(map(str, written.toArrow().to_pylist())) == sorted(map(str, folded.to_pylist()))
        # Temporary views, as of other tests, are listed with every schema.
        listed = spark.sql("SHOW TABLES IN lake").collect()
        assert {table.tableName for table in listed if not table.isTemporary} == {*CORE_TABLES}
        # Tables that lie there, but that the catalog does not know, become known.
        assert run(["audit", str(export), "--out", "spark_catalog.same_lake", "--quiet"]) == 0
        runs = spark.table("same_lake.runs").select("command", "status").collect()
        assert sorted(map(tuple, runs)) == [("audit", "reported"), ("reconstruct", "done")]
        assert spark.table("same_lake.share_partition_history").count() == len(folded)
        # A table that was dropped, and one under another name, are written anew; the other one stays.
        spark.sql("DROP TABLE lake.in_flight")
        spark.sql("ALTER TABLE lake.findings RENAME TO lake.theirs")
        again = share_state.reconstruct(export, spark=spark, warehouse="spark_catalog.lake")
        listed = {table.tableName for table in spark.sql("SHOW TABLES IN lake").collect() if not table.isTemporary}
        assert listed == {*CORE_TABLES, "theirs"}
        assert again.in_flight.count() == spark.table("lake.in_flight").count() > 0
        assert spark.table("lake.findings").count() == again.findings.count()
        assert run(["reconstruct", str(export), "--out", "spark_catalog.nowhere", "--quiet"]) == 2
    finally:
        spark.sql("DROP SCHEMA same_lake CASCADE")
        spark.sql("DROP SCHEMA lake CASCADE")


def test_a_schema_whose_location_cannot_be_read_is_refused_in_one_line(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
):
    spark.sql("CREATE SCHEMA away LOCATION 'file:/proc/1/lake'")
    try:
        export = DATA / "4.3.1/happy/__share_group_state-0"
        assert run(["reconstruct", str(export), "--out", "spark_catalog.away", "--quiet"]) == 2
        (line,) = (line for line in capfd.readouterr().err.splitlines() if line.startswith("share-state: "))
        assert "/proc/1/lake" in line
        assert run(["reconstruct", str(export), "--out", "glue.lake", "--quiet"]) == 2
        assert "no such schema in Spark's catalogs (spark.sql.catalog.glue is not set)" in capfd.readouterr().err
    finally:
        spark.sql("DROP SCHEMA away")


def _jobs(spark: SparkSession) -> dict[int, Any]:
    """The jobs that Spark's UI shows, by their numbers."""
    found = status_of(spark).jobsList(None)
    return {found.apply(place).jobId(): found.apply(place) for place in range(found.size())}


def _check_jobs(spark: SparkSession, before: dict[int, Any], tables: CommittedTables) -> None:
    """Spark's UI shows what ran since, and the rows and bytes of every table."""
    store, written, bytes_written = status_of(spark), Counter[str](), Counter[str]()
    for job in (job for number, job in _jobs(spark).items() if number not in before):
        for place in range(job.stageIds().size()):
            # The store keeps a number of jobs and stages only, and first forgets skipped stages, which wrote nothing.
            with suppress(Py4JJavaError):
                stage = store.lastStageAttempt(job.stageIds().apply(place))
                # What Delta computes for itself writes nothing, and may have no description.
                described = stage.description().get() if stage.description().isDefined() else ""
                assert described.removeprefix("Delta: ").startswith("share_state: ") or not stage.outputBytes()
                written[described] += stage.outputRecords()
                bytes_written[described] += stage.outputBytes()
    assert "share_state: read and fold log partitions" in written
    for name in (*tables.versions, "runs"):
        rows = len(tables.runs) if name == "runs" else len(tables.read(name))
        assert written[f"share_state: write {name}"] == rows
        assert (bytes_written[f"share_state: write {name}"] > 0) == (rows > 0)


@nightly("the table with the most rows")
def test_spark_writes_decoded_records(spark: SparkSession, tmp_path: Path):
    work, tables = _work(SCENARIO), list[list[dict[str, object]]]()
    for name, executor in (("here", LocalExecutor()), ("there", SparkExecutor(spark)), ("there", SparkExecutor(spark))):
        count = write_decoded(executor, work, str(tmp_path / name))
        rows = spark.read.format("delta").load(str(tmp_path / name)).toArrow()
        tables.append(rows.sort_by([("state_partition", "ascending"), ("offset", "ascending")]).to_pylist())
        assert count == len(rows) > 0
    assert tables[0] == tables[1] == tables[2]
    history = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path / 'there'}`")
    assert all(row.engineInfo.startswith("Apache-Spark") for row in history.collect())
