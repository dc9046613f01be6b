"""Audits whose group side comes in any form: the tables, names and findings are those that segments give."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from share_state.config.input_spec import KEYS, OPTIONS, spec_of_options
from share_state.config.loading import settings_for
from share_state.config.model import AuditSettings, config_fingerprint
from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse_place import CLAIM_TABLES, GROUP_TABLES
from share_state.errors import InputError
from share_state.pipeline.audit import NO_GROUPS, NOTHING_NEW, run_audit
from share_state.pipeline.executor import Executor
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.planning import build_plan
from share_state.pipeline.reconstruct import run_reconstruct
from share_state.pipeline.result import RunResult
from share_state.sources.discovery import find_group_logs
from share_state.spark.sorted_tables import SparkSorter
from share_state.spark.spark_executor import SparkExecutor
from tests.fold.groups.group_tables import both_topics, json_lines, rows_of
from tests.fold.groups.group_writer import group_metadata, share_group, write_group_log
from tests.profiles import IN_SPARK, by_profile, driver_alone, nightly, some_of
from tests.sources.formats.tables import BY_KEY, write
from tests.truth import DATA, logs_alone

CHAOS = logs_alone(DATA / "4.3.1/chaos")
PRINTED = Path(__file__).parents[1] / "fold/groups/printed"
NAMED = ("state_partitions=3", "groups.partitions=3", "limits.export_age=0")

Run = Callable[..., RunResult]


@pytest.fixture
def run(tasks: Executor, tmp_path: Path) -> Run:
    """Audits exports into a warehouse, as the nightly job does."""
    sorter = SparkSorter(tasks.spark) if isinstance(tasks, SparkExecutor) else None

    def audited(sources: Iterable[Path], *overrides: str, lake: str = "lake", executor: Executor = tasks) -> RunResult:
        named = [str(source) for source in sources]
        settings = settings_for(named, str(tmp_path / lake), [*NAMED, *overrides], {})
        plan, options = _plan(settings, sorter), config_fingerprint(settings)
        return run_audit(lambda _: nullcontext(executor), plan, settings.warehouse, options=options)

    return audited


def _plan(settings: AuditSettings, sorter: SparkSorter | None = None) -> FoldPlan:
    return build_plan(settings.input_spec(), KEYS, sorter)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Both topics of 4.3.1/chaos."""
    return both_topics(CHAOS)[2]


@pytest.fixture(scope="module")
def groups_alone() -> pa.Table:
    """`__consumer_offsets` of 4.3.1/chaos."""
    return rows_of(find_group_logs([str(CHAOS)]))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state logs of 4.3.1/chaos without its groups beside them."""
    for log in CHAOS.glob("__share_group_state-*"):
        (tmp_path / "state").mkdir(exist_ok=True)
        (tmp_path / "state" / log.name).symlink_to(log)
    return tmp_path / "state"


def contents(lake: Path) -> dict[str, object]:
    """What a reader believes of groups, and of state the columns that every form has."""
    tables = CommittedTables(str(lake))
    found: dict[str, object] = {
        name: tables.read(name).to_pylist() for name in (*GROUP_TABLES, *CLAIM_TABLES) if name in tables.versions
    }
    found["share_partition_state"] = tables.read("share_partition_state").sort_by(BY_KEY)
    findings = tables.read("findings").drop_columns(["run_id", "settled"]).to_pylist()
    return found | {"findings": sorted(map(repr, findings))}


@driver_alone
def test_the_group_side_of_segments_is_that_of_reconstruct(run: Run, tasks: Executor, tmp_path: Path):
    run([CHAOS])
    inputs = [str(CHAOS)]
    plan = build_plan(spec_of_options(OPTIONS, inputs, {"group_partitions": 3}), OPTIONS)
    run_reconstruct(tasks, plan, str(tmp_path / "reconstructed"))
    audited, rebuilt = contents(tmp_path / "lake"), contents(tmp_path / "reconstructed")
    assert audited == rebuilt
    assert set(audited) >= set(GROUP_TABLES)


@nightly("an audit in Spark")
@pytest.mark.parametrize("tasks", [IN_SPARK], indirect=True)
def test_a_table_of_both_topics_gives_both_sides(run: Run, table: pa.Table, tmp_path: Path):
    run([CHAOS], lake="segments", executor=LocalExecutor())
    run([write(table, tmp_path / "rows.parquet", row_group=500)])
    assert contents(tmp_path / "lake") == contents(tmp_path / "segments")


@nightly("two audits")
@driver_alone
def test_state_and_groups_may_be_two_tables(run: Run, groups_alone: pa.Table, tmp_path: Path):
    run([CHAOS], lake="segments")
    state, groups, _ = both_topics(CHAOS)
    assert groups
    write(rows_of(state), tmp_path / "state.parquet")
    write(groups_alone, tmp_path / "groups.parquet")
    run([tmp_path / "state.parquet", tmp_path / "groups.parquet"])
    assert contents(tmp_path / "lake") == contents(tmp_path / "segments")


@driver_alone
@pytest.mark.parametrize("form", by_profile(["segments", "renamed"], ["segments", "table", "json", "renamed"]))
def test_what_is_named_may_be_of_any_form_and_is_judged_again_once_it_changes(
    run: Run, state: Path, groups_alone: pa.Table, form: str, tmp_path: Path
):
    """The state does not change: whether there is anything new depends on the group side alone."""
    run([CHAOS], lake="segments")
    named = tmp_path / "named"
    named.mkdir()
    options = [f"groups.paths.0={named}"]

    def give(rows: pa.Table, number: int) -> None:
        if form == "json":
            json_lines(rows, named / f"{number}.json")
        elif form == "renamed":
            write(rows.rename_columns(["k", *rows.column_names[1:]]), named / f"{number}.parquet")
        else:
            write(rows, named / f"{number}.parquet")

    if form == "segments":
        for log in CHAOS.glob("__consumer_offsets-*"):
            (named / log.name).symlink_to(log)
    else:
        give(groups_alone, 0)
    if form == "renamed":
        options += ["groups.columns.key=k", "groups.format=table"]
    assert run([state], *options).notes == ()
    assert contents(tmp_path / "lake") == contents(tmp_path / "segments")
    again = run([state], *options)
    assert (again.notes, again.records) == ((NOTHING_NEW,), 0)
    if form == "segments":
        (named / "__consumer_offsets-2").unlink()
    else:
        for file in named.iterdir():
            file.unlink()
        give(groups_alone.filter(pc.field("partition") != 2), 0)
    changed = run([state], *options)
    assert (changed.notes, changed.records) == ((), 0)
    assert contents(tmp_path / "lake")["share_groups"] != contents(tmp_path / "segments")["share_groups"]


@nightly("two audits")
@driver_alone
@pytest.mark.parametrize(
    "texts",
    some_of([("dump-offsets.txt",), ("share-group-formatter.txt", "group-metadata-formatter.txt")], 1),
    ids=lambda texts: texts[0],
)
def test_texts_are_named_and_once_more_nothing_is_new(run: Run, state: Path, texts: tuple[str, ...], tmp_path: Path):
    options = [f"groups.paths.{number}={PRINTED / name}" for number, name in enumerate(texts)]
    run([state], *options)
    found = CommittedTables(str(tmp_path / "lake")).read("share_groups").to_pylist()
    run([state], f"groups.paths.0={CHAOS / '__consumer_offsets-2'}", lake="segments")
    expected = CommittedTables(str(tmp_path / "segments")).read("share_groups").to_pylist()
    assert [row["group_id"] for row in found] == [row["group_id"] for row in expected] != []
    assert [row["members"] for row in found] == [row["members"] for row in expected]
    if len(texts) == 1:
        assert found == expected
    assert run([state], *options).notes == (NOTHING_NEW,)


@driver_alone
def test_dumps_of_both_topics_give_both_sides(run: Run, tmp_path: Path):
    (dump,) = logs_alone(DATA / "4.3.1/happy").glob("dump-log-*.txt")
    run([dump, PRINTED / "dump-offsets.txt"])
    rows = CommittedTables(str(tmp_path / "lake")).read("share_groups").to_pylist()
    assert {row["group_partition"] for row in rows} == {2}


@nightly("two audits")
@driver_alone
def test_groups_that_are_in_the_table_no_more_are_told(run: Run, table: pa.Table, tmp_path: Path):
    run([write(table, tmp_path / "rows.parquet")])
    state = table.filter(pc.field("topic") == "__share_group_state")
    outcome = run([write(state, tmp_path / "rows.parquet")])
    assert NO_GROUPS in outcome.notes
    assert not set(GROUP_TABLES) & CommittedTables(str(tmp_path / "lake")).versions.keys()


def test_a_table_and_segments_that_hold_the_same_group_partition_are_refused(tmp_path: Path, table: pa.Table):
    of_state = pc.field("topic") == "__share_group_state"
    mine = table.filter((of_state & (pc.field("partition") == 0)) | ~of_state)
    write(mine, tmp_path / "rows.parquet")
    broker = tmp_path / "broker"
    broker.mkdir()
    (broker / "__share_group_state-1").symlink_to(CHAOS / "__share_group_state-1")
    write_group_log(broker, share_group("G", {}, epoch=1, ready={}), partition=1)
    sources = [str(tmp_path / "rows.parquet"), str(broker)]
    # A format that is said makes an export of its own.
    options = ["sources.0.format=table"]
    with pytest.raises(InputError, match=r"__consumer_offsets-1 is in two of them .*; name the one to read"):
        _plan(settings_for(sources, "/lake", options, {}))
    named = _plan(settings_for(sources, "/lake", [*options, f"groups.paths.0={broker}"], {})).groups
    assert named is not None
    assert [log.partition for log in named.logs] == [1]


def test_a_table_without_groups_and_segments_with_them_go_together(tmp_path: Path, table: pa.Table):
    mine = table.filter((pc.field("topic") == "__share_group_state") & (pc.field("partition") == 0))
    write(mine, tmp_path / "rows.parquet")
    broker = tmp_path / "broker"
    broker.mkdir()
    (broker / "__share_group_state-1").symlink_to(CHAOS / "__share_group_state-1")
    write_group_log(broker, [group_metadata("G", 3)], partition=1)
    plan = _plan(settings_for([str(tmp_path / "rows.parquet"), str(broker)], "/lake", ["sources.0.format=table"], {}))
    assert [log.name for log in plan.groups.logs] == ["__consumer_offsets-1"] if plan.groups else False
    assert [log.name for log in plan.logs] == ["__share_group_state-0", "__share_group_state-1"]


def test_a_cluster_is_not_named_as_the_group_side_alone():
    settings = settings_for([str(CHAOS)], "/lake", ["groups.paths.0=kafka://b:9092"], {})
    with pytest.raises(
        InputError, match="kafka://b:9092: the groups of a cluster must be read together with its state"
    ):
        _plan(settings)


def test_a_group_side_of_another_form_than_is_said_is_refused():
    settings = settings_for(
        [str(CHAOS)], "/lake", [f"groups.paths.0={PRINTED / 'dump-offsets.txt'}", "groups.format=table"], {}
    )
    with pytest.raises(InputError, match="neither Parquet nor lines of JSON"):
        _plan(settings)


def test_an_audit_notes_that_the_number_of_partitions_is_unknown():
    settings = settings_for([str(CHAOS)], "/lake", [f"groups.paths.0={PRINTED / 'dump-offsets.txt'}"], {})
    (*_, note) = _plan(settings).notes
    assert "found partition 2, but not how many there are" in note
    assert note.endswith("give groups.partitions")
