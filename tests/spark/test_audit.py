"""Audits of a growing log: what they write is what one audit of everything writes, whatever kills them on the way."""

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from share_state.config.input_spec import OPTIONS, input_spec
from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse import Warehouse
from share_state.errors import WarehouseError
from share_state.fold.fold_options import FoldOptions
from share_state.pipeline.audit import NOTHING_NEW, run_audit
from share_state.pipeline.executor import Executor
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.planning import build_plan
from share_state.pipeline.result import RunResult
from share_state.pipeline.resume import LastRun
from share_state.rules.findings import count_findings
from share_state.sources.discovery import find_logs
from share_state.sources.partition_count import PartitionCount
from share_state.spark.delta_writer import APP_ID
from share_state.spark.spark_executor import SparkExecutor
from tests.profiles import by_profile, driver_alone, nightly
from tests.truth import DATA

KEY = [(name, "ascending") for name in ("group_id", "topic_id", "partition")]
TABLES = {
    "share_partition_state": KEY,
    "in_flight": [*KEY, ("first_offset", "ascending")],
    "cutoff": [("partition", "ascending")],
}
STATE_PARTITIONS = 3

Audit = Callable[..., RunResult]


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def run(tasks: Executor, tmp_path: Path) -> Audit:
    """Audits a folder into a warehouse."""

    def audited(source: Path, warehouse: Path = tmp_path / "warehouse", **options: Any) -> RunResult:
        work = FoldPlan(
            find_logs([str(source)]), options=FoldOptions(partition_count=PartitionCount(STATE_PARTITIONS)), **options
        )
        return run_audit(lambda _: nullcontext(tasks), work, str(warehouse), inputs=(str(source),))

    return audited


def contents(warehouse: Path) -> dict[str, list[dict]]:
    """What a reader believes: every table in the version that the last run committed, without run ids."""
    tables = CommittedTables(str(warehouse))
    found = {name: tables.read(name).sort_by(order).to_pylist() for name, order in TABLES.items()}
    rows = tables.read("findings").drop_columns(["run_id"])
    # Of a rule with more findings than are kept, each night keeps the first of its own.
    is_capped = pc.equal(rows["rule"], "DELIVERY_COMPLETE_COUNT_MISMATCH")
    capped = pc.sum(count_findings(rows.filter(is_capped))).as_py()
    findings = sorted(rows.filter(pc.invert(is_capped)).to_pylist(), key=repr)
    return found | {"findings": [*findings, {"capped": capped}]}


def grown(scenario: Path, folder: Path, nights: int) -> Iterator[Path]:
    """A copy of a scenario's logs that grows by cuts at random bytes, and is whole in the last night."""
    draw = random.Random(scenario.name)
    logs = find_logs([str(scenario)])
    cuts = {log.name: [*sorted(draw.sample(range(log.size), nights - 1)), log.size] for log in logs}
    for night in range(nights):
        for log in logs:
            place = folder / log.name
            place.mkdir(parents=True, exist_ok=True)
            left = cuts[log.name][night]
            for segment in log.segments:
                data = Path(segment.path).read_bytes()[:left]
                left -= len(data)
                if data or segment is log.segments[0]:
                    (place / Path(segment.path).name).write_bytes(data)
        yield folder


def killed_at(monkeypatch: pytest.MonkeyPatch, write: int) -> None:
    """Let the process end in place of the n-th write to the warehouse."""
    count = iter(range(write + 1))

    def counted(original: Callable) -> Callable:
        def writing(*arguments: object, **named: Any) -> object:
            if next(count, None) == write:
                raise KilledError
            return original(*arguments, **named)

        return writing

    monkeypatch.setattr(Warehouse, "commit", counted(Warehouse.commit))


WRITES = 9
"""Four tables of tasks, cutoff, carried_logs, group_outcomes, history and runs."""
TRIED = (0, 4, 7, 8)
"""Before the first, after those of tasks, and before each of the last two."""


@nightly("a dozen audits; one kill is in the test below")
@driver_alone
def test_nights_with_kills_in_between_are_one_audit(run: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nights = by_profile(5, 10)
    for night, source in enumerate(grown(DATA / "4.3.1/fuzz", tmp_path / "grown", nights)):
        if night % 2:
            before = contents(tmp_path / "warehouse") if night else None
            with monkeypatch.context() as patch, pytest.raises(KilledError):
                killed_at(patch, (3 * night) % WRITES)
                run(source)
            if night:
                assert contents(tmp_path / "warehouse") == before
        run(source)
    run(DATA / "4.3.1/fuzz", tmp_path / "once")
    assert contents(tmp_path / "warehouse") == contents(tmp_path / "once")
    runs = CommittedTables(str(tmp_path / "warehouse")).runs
    assert len(runs) == nights
    assert sum(runs["records"].to_pylist()) == CommittedTables(str(tmp_path / "once")).run["records"]
    history = CommittedTables(str(tmp_path / "warehouse")).read("share_partition_history")
    assert set(history["run_id"].to_pylist()) == set(runs["run_id"].to_pylist())


@nightly("a dozen audits")
@driver_alone
def test_killed_at_any_write_a_second_try_leaves_what_an_undisturbed_run_leaves(
    run: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    nights = grown(DATA / "4.4.0/dlq", tmp_path / "grown", 2)
    first = run(next(nights))
    source = next(nights)
    for name in ("undisturbed", *map(str, TRIED)):
        shutil.copytree(tmp_path / "warehouse", tmp_path / name)
    undisturbed = run(source, tmp_path / "undisturbed")
    for write in TRIED:
        place = tmp_path / str(write)
        with monkeypatch.context() as patch, pytest.raises(KilledError):
            killed_at(patch, write)
            run(source, place)
        assert CommittedTables(str(place)).run["run_id"] == first.run_id
        assert run(source, place).run_id == undisturbed.run_id
        assert contents(place) == contents(tmp_path / "undisturbed")
        for table in ("share_partition_history", "carried_logs", "carried_share_partitions"):
            left, right = (CommittedTables(str(where)).read(table) for where in (place, tmp_path / "undisturbed"))
            assert sorted(left.to_pylist(), key=repr) == sorted(right.to_pylist(), key=repr)


BROKER = Path(__file__).parents[1] / "sources" / "cluster_facts" / "whole-broker"
EXPORTS = sorted(str(logs.relative_to(DATA)) for logs in DATA.glob("*/*") if [*logs.glob("__share_group_state-*")])


def rows_of(warehouse: Path) -> dict[str, list[str]]:
    """All rows of all tables but `runs`, and what of its row does not depend on time and versions."""
    tables = CommittedTables(str(warehouse))
    assert not list(warehouse.rglob("*.arrows"))
    found = {name: sorted(map(repr, tables.read(name).to_pylist())) for name in tables.versions}
    of_time = {"started", "finished", "table_versions", "sequence"}
    return found | {"runs": [repr({name: value for name, value in tables.run.items() if name not in of_time})]}


@pytest.mark.parametrize("export", by_profile(["4.3.1/fuzz"], EXPORTS))
def test_spark_writes_the_rows_that_delta_rs_writes(
    spark: SparkSession, tmp_path: Path, export: str, monkeypatch: pytest.MonkeyPatch
):
    kills = by_profile(0, 1)

    def audited(source: Path, name: str, tasks: Executor) -> None:
        plan = FoldPlan(find_logs([str(source)]), options=FoldOptions(partition_count=PartitionCount(STATE_PARTITIONS)))
        run_audit(lambda _: nullcontext(tasks), plan, str(tmp_path / name))

    for night, source in enumerate(grown(DATA / export, tmp_path / "logs", by_profile(1, 2))):
        if night and kills:
            before = rows_of(tmp_path / "spark")
            with monkeypatch.context() as patch, pytest.raises(KilledError):
                killed_at(patch, WRITES - 1)
                audited(source, "spark", SparkExecutor(spark))
            assert rows_of(tmp_path / "spark") == before
        audited(source, "spark", SparkExecutor(spark))
        audited(source, "here", LocalExecutor())
        here, written = rows_of(tmp_path / "here"), rows_of(tmp_path / "spark")
        assert written == here
        assert all(here[name] for name in ("share_partition_state", "share_partition_history"))
        table = DeltaTable(str(tmp_path / "spark/share_partition_state"))
        # The first write to a table has no number; the killed run wrote, too.
        assert table.transaction_version(APP_ID) == ((1 + kills) * night - 1 if night else None)
        assert table.history()[0]["engineInfo"].startswith("Apache-Spark")


@nightly("an audit in Spark")
def test_on_spark_the_driver_reads_the_times_of_unfinished_records(spark: SparkSession, tmp_path: Path):
    for name in ("__cluster_metadata-0", "__share_group_state-2", "a-0"):
        shutil.copytree(BROKER / name, tmp_path / "data" / name)
    for name, tasks in (("spark", SparkExecutor(spark)), ("here", LocalExecutor())):
        plan = build_plan(input_spec(OPTIONS, sources=[{"path": str(tmp_path / "data")}]), OPTIONS)
        run_audit(lambda _, tasks=tasks: nullcontext(tasks), plan, str(tmp_path / name))
    assert rows_of(tmp_path / "spark") == rows_of(tmp_path / "here")
    history = CommittedTables(str(tmp_path / "spark")).read("share_partition_history")
    assert "record" in history["oldest_unfinished_from"].to_pylist()


@driver_alone
def test_an_audit_that_was_overtaken_while_its_tasks_began_commits_nothing(run: Audit, tasks: Executor, tmp_path: Path):
    warehouse, night = tmp_path / "warehouse", grown(DATA / "4.3.1/happy", tmp_path / "logs", 2)
    run(next(night))
    source = next(night)

    @contextmanager
    def overtaken(_: FoldPlan) -> Iterator[Executor]:
        run(source)
        yield tasks

    work = FoldPlan(find_logs([str(source)]), options=FoldOptions(partition_count=PartitionCount(STATE_PARTITIONS)))
    with pytest.raises(WarehouseError, match="another run committed here meanwhile"):
        run_audit(overtaken, work, str(warehouse))
    assert len(CommittedTables(str(warehouse)).runs) == 2


@driver_alone
def test_a_warehouse_that_cannot_be_read_is_not_taken_for_a_new_one(run: Audit, tmp_path: Path):
    run(DATA / "4.3.1/happy")
    (tmp_path / "warehouse/runs/_delta_log" / f"{0:020}.json").write_text("no JSON")
    with pytest.raises(WarehouseError, match="cannot be read"):
        LastRun.of(str(tmp_path / "warehouse"))
    assert LastRun.of(str(tmp_path / "nothing")) is None


@driver_alone
def test_where_nothing_is_new_an_audit_says_so_and_leaves_the_tables(run: Audit, tmp_path: Path):
    run(DATA / "4.3.1/happy")
    before = CommittedTables(str(tmp_path / "warehouse"))
    again = run(DATA / "4.3.1/happy")
    after = CommittedTables(str(tmp_path / "warehouse"))
    assert (again.records, again.notes, again.findings) == (0, (NOTHING_NEW,), {})
    assert after.versions == before.versions
    assert len(after.runs) == 2
    assert after.run["progress"] == before.run["progress"]


@driver_alone
def test_where_nothing_is_new_but_the_settings_all_is_judged_again(tasks: Executor, tmp_path: Path):
    def audited(**options: str) -> RunResult:
        work = FoldPlan(
            find_logs([str(DATA / "4.3.1/happy")]),
            options=FoldOptions(partition_count=PartitionCount(STATE_PARTITIONS)),
        )
        return run_audit(lambda _: nullcontext(tasks), work, str(tmp_path / "w"), options=options)

    assert [audited().notes, audited().notes, audited(topics="new").notes] == [(), (NOTHING_NEW,), ()]


@nightly("three audits; test_healing misses one, too")
@driver_alone
def test_a_log_that_is_missing_keeps_its_state_and_is_told(run: Audit, tmp_path: Path):
    shutil.copytree(DATA / "4.3.1/happy", tmp_path / "source")
    run(tmp_path / "source")
    whole = contents(tmp_path / "warehouse")
    shutil.move(tmp_path / "source/__share_group_state-1", tmp_path / "elsewhere")
    missing = run(tmp_path / "source")
    assert missing.findings == {("error", "STATE_PARTITION_MISSING"): 1}
    found = contents(tmp_path / "warehouse")
    assert {name: found[name] for name in TABLES} == {name: whole[name] for name in TABLES}
    shutil.move(tmp_path / "elsewhere", tmp_path / "source/__share_group_state-1")
    run(tmp_path / "source")
    assert contents(tmp_path / "warehouse") == whole


@nightly("two audits; test_healing has one")
@driver_alone
def test_a_topic_made_anew_is_read_from_its_start(run: Audit, tmp_path: Path):
    run(DATA / "4.2.1/chaos")
    # Written later, by another cluster: its folders tell another topic id.
    again = run(DATA / "4.4.0/happy")
    run(DATA / "4.4.0/happy", tmp_path / "once")
    assert again.findings[("info", "LOG_BEGUN_AGAIN")] == STATE_PARTITIONS
    found, expected = contents(tmp_path / "warehouse"), contents(tmp_path / "once")
    assert {name: found[name] for name in TABLES} == {name: expected[name] for name in TABLES}


@nightly("two audits; test_healing has one")
@driver_alone
def test_a_replica_that_lags_takes_nothing_back(run: Audit, tmp_path: Path):
    nights = grown(DATA / "4.3.1/chaos", tmp_path / "behind", 2)
    behind = next(nights)
    run(DATA / "4.3.1/chaos")
    whole = contents(tmp_path / "warehouse")
    assert len(run(behind).notes) == STATE_PARTITIONS
    found = contents(tmp_path / "warehouse")
    assert {name: found[name] for name in TABLES} == {name: whole[name] for name in TABLES}


@driver_alone
def test_a_log_that_was_pruned_since_goes_on(run: Audit, tmp_path: Path):
    unpruned = DATA / "4.3.1/prune/archive-unpruned"
    nights = grown(unpruned, tmp_path / "grown", 3)
    run(next(nights))
    run(next(nights))
    # What the broker itself kept.
    run(DATA / "4.3.1/prune")
    run(DATA / "4.3.1/prune", tmp_path / "once")
    run(unpruned, tmp_path / "unpruned")
    found, expected, whole = (contents(tmp_path / name) for name in ("warehouse", "once", "unpruned"))
    # Bytes are counted by 4096 offsets, and the first of them are gone in one of the two.
    (cutoff, once) = ([{**row, "pinned_bytes": None} for row in known["cutoff"]] for known in (found, expected))
    assert cutoff == once
    assert found["share_partition_state"] == whole["share_partition_state"]
    assert found["in_flight"] == expected["in_flight"]


@nightly("three audits")
@driver_alone
def test_findings_about_old_records_stay_with_the_run_that_found_them(run: Audit, tmp_path: Path):
    found = [run(source) for source in grown(DATA / "4.3.1/fuzz", tmp_path / "grown", 2)]
    findings = CommittedTables(str(tmp_path / "warehouse")).read("findings")
    kept = findings.filter(pc.equal(findings["rule"], "TERMINAL_STATE_LEFT"))
    assert all(kept["settled"].to_pylist())
    expected = {one.run_id: one.findings["error", "TERMINAL_STATE_LEFT"] for one in found}
    assert Counter(kept["run_id"].to_pylist()) == expected
    run(tmp_path / "grown", tmp_path / "once")
    assert contents(tmp_path / "warehouse") == contents(tmp_path / "once")


@nightly("three audits")
@driver_alone
def test_history_older_than_it_is_to_be_kept_goes(tasks: Executor, tmp_path: Path):
    nights = grown(DATA / "4.3.1/happy", tmp_path / "grown", 3)

    def audited(history_days: int) -> RunResult:
        work = FoldPlan(
            find_logs([str(next(nights))]), options=FoldOptions(partition_count=PartitionCount(STATE_PARTITIONS))
        )
        return run_audit(lambda _: nullcontext(tasks), work, str(tmp_path / "w"), history_days=history_days)

    _, second = audited(90), audited(90)
    left_by_a_kill = [tmp_path / "w/findings/part-left.parquet", tmp_path / "w/.staged-left/runs-left.arrows"]
    left_by_a_kill[1].parent.mkdir()
    for file in left_by_a_kill:
        file.write_bytes(b"half a file")
        os.utime(file, (1, 1))
    third = audited(0)
    assert not any(file.exists() for file in left_by_a_kill)
    tables = CommittedTables(str(tmp_path / "w"))
    assert set(tables.runs["run_id"].to_pylist()) == {second.run_id, third.run_id}
    assert set(tables.read("share_partition_history")["run_id"].to_pylist()) == {second.run_id, third.run_id}


@nightly("two audits")
@driver_alone
def test_a_partition_that_the_topic_gained_is_read_and_judged(run: Audit, tmp_path: Path):
    source = tmp_path / "source"
    shutil.copytree(DATA / "4.3.1/happy", source)
    shutil.move(source / "__share_group_state-2", tmp_path / "elsewhere")
    run(source)
    shutil.move(tmp_path / "elsewhere", source / "__share_group_state-2")
    assert run(source).notes == ()
    run(source, tmp_path / "once")
    assert contents(tmp_path / "warehouse") == contents(tmp_path / "once")
