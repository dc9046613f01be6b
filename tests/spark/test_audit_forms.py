"""Audits of tables, texts and changing forms: read whole each night, what they tell is what segments tell."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from share_state.config.input_spec import KEYS
from share_state.config.loading import settings_for
from share_state.config.model import config_fingerprint
from share_state.delta.committed import CommittedTables
from share_state.errors import InputError
from share_state.fold.state_log import fold_log
from share_state.pipeline.audit import NOTHING_NEW, run_audit
from share_state.pipeline.executor import Executor
from share_state.pipeline.planning import build_plan
from share_state.pipeline.result import RunResult
from share_state.pipeline.resume import LastRun, resume_plan
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.resume_point import ResumeStatus
from tests.profiles import by_profile, driver_alone, nightly
from tests.sources.formats.tables import BY_KEY, SIZES, table_of, write
from tests.truth import DATA, logs_alone

FUZZ, HAPPY = logs_alone(DATA / "4.3.1/fuzz"), logs_alone(DATA / "4.3.1/happy")
DUMP, CONSOLE = HAPPY / "dump-log-__share_group_state-2.txt", HAPPY / "console-consumer-formatter.txt"
ORDERS = {"share_partition_state": BY_KEY, "in_flight": [*BY_KEY, ("first_offset", "ascending")]}
PARTITIONS = "state_partitions=3"


@pytest.fixture
def run(tasks: Executor, tmp_path: Path):
    """Audits an export into a warehouse, as the nightly job does."""

    def audited(source: Path, lake: str = "lake", *overrides: str) -> RunResult:
        settings = settings_for([str(source)], str(tmp_path / lake), [PARTITIONS, *overrides])
        plan, options = build_plan(settings.input_spec(), KEYS), config_fingerprint(settings)
        return run_audit(lambda _: nullcontext(tasks), plan, settings.warehouse, options=options)

    return audited


def _logs(source: Path) -> Sequence[LogPartition]:
    return build_plan(settings_for([str(source)], "/lake").input_spec(), KEYS).logs


def contents(lake: Path) -> dict[str, pa.Table]:
    """State and findings as a reader believes them."""
    tables = CommittedTables(str(lake))
    found = {name: tables.read(name).sort_by(order) for name, order in ORDERS.items()}
    findings = tables.read("findings").drop_columns(["run_id"]).to_pylist()
    return found | {"findings": sorted(findings, key=repr)}


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    """The records of 4.3.1/fuzz."""
    return table_of(find_logs([str(FUZZ)]))


@nightly("three audits")
@driver_alone
def test_a_table_that_grows_is_read_whole_and_nothing_is_told_twice(run, rows: pa.Table, tmp_path: Path):
    write(rows.slice(0, len(rows) // 2), tmp_path / "table/1.parquet")
    first = run(tmp_path / "table")
    write(rows.slice(len(rows) // 2), tmp_path / "table/2.parquet")
    second, again = run(tmp_path / "table"), run(tmp_path / "table")
    assert 0 < first.records < second.records == again.records == len(rows)
    assert NOTHING_NEW not in again.notes
    of_table = contents(tmp_path / "lake")
    run(FUZZ, "segments")
    of_segments = contents(tmp_path / "segments")
    assert len(of_segments["findings"]) > 0
    assert of_table == of_segments
    cutoffs = [
        CommittedTables(str(tmp_path / lake)).read("cutoff").drop_columns(SIZES) for lake in ("lake", "segments")
    ]
    assert cutoffs[0].sort_by("partition") == cutoffs[1].sort_by("partition")


@driver_alone
def test_columns_are_named_by_the_source(run, rows: pa.Table, tmp_path: Path):
    write(rows.rename_columns(["k", "value", "topic", "partition", "o", "timestamp", "kind"]), tmp_path / "t.parquet")
    named = [f"sources.0.columns.{pair}" for pair in ("key=k", "offset=o")]
    assert run(tmp_path / "t.parquet", "lake", *named).records == len(rows)


@nightly("three audits")
@driver_alone
def test_a_warehouse_of_segments_takes_a_table_anew(run, rows: pa.Table, tmp_path: Path):
    run(FUZZ)
    of_segments = contents(tmp_path / "lake")
    table = write(rows, tmp_path / "rows.parquet")
    settings = settings_for([str(table)], str(tmp_path / "lake"), [PARTITIONS])
    plan, notes = resume_plan(build_plan(settings.input_spec(), KEYS), LastRun.of(settings.warehouse))
    assert {known.status for known in (plan.resumed or {}).values()} == {ResumeStatus.NEW}
    assert notes == []
    run(table)
    assert contents(tmp_path / "lake") == of_segments
    assert run(FUZZ).records == len(rows)
    assert contents(tmp_path / "lake") == of_segments


@nightly("three audits")
@driver_alone
@pytest.mark.parametrize("text", by_profile([DUMP], [DUMP, CONSOLE]), ids=lambda one: one.stem[:8])
def test_a_text_is_audited_night_after_night(run, text: Path, tmp_path: Path):
    first = run(text)
    once = contents(tmp_path / "lake")
    second = run(text)
    assert second.records == first.records > 0
    assert contents(tmp_path / "lake") == once
    (log,) = _logs(text)
    assert once["share_partition_state"] == fold_log(log).states.sort_by(BY_KEY)
    assert len(CommittedTables(str(tmp_path / "lake")).runs) == 2


@driver_alone
def test_a_text_without_partitions_does_not_go_on_from_segments(run):
    run(HAPPY)
    with pytest.raises(
        InputError, match=r"console-consumer-formatter\.txt: has no partition numbers, but the warehouse"
    ):
        run(CONSOLE)


@pytest.mark.parametrize(
    ("other", "said"), [(DUMP, "__share_group_state-2 is in two of them"), (CONSOLE, "does not show its partitions")]
)
def test_two_forms_of_one_log_are_refused(other: Path, said: str):
    settings = settings_for([str(HAPPY), str(other)], "/lake", ["sources.0.format=segments"])
    with pytest.raises(InputError, match=said):
        build_plan(settings.input_spec(), KEYS)


def test_the_newest_stamp_is_known_of_forms_that_tell_stamps(rows: pa.Table, tmp_path: Path):
    table = write(rows, tmp_path / "rows.parquet")
    for log in _logs(table):
        own = rows.filter(pc.field("partition") == log.partition)
        assert fold_log(log).newest_time == pc.max(own["timestamp"]).value // 1000
    (log,) = _logs(CONSOLE)
    assert fold_log(log).newest_time == -1


@nightly("an audit")
@driver_alone
def test_the_newest_record_of_a_table_is_what_verdicts_are_counted_to(run, rows: pa.Table, tmp_path: Path):
    of_table = run(write(rows, tmp_path / "rows.parquet"), "table")
    of_segments = run(FUZZ, "segments")
    assert of_table.log_time == of_segments.log_time > 0
    verdicts = [
        CommittedTables(str(tmp_path / lake)).read("share_partition_history").drop_columns(["run_id"]).sort_by(BY_KEY)
        for lake in ("table", "segments")
    ]
    assert verdicts[0] == verdicts[1]


@nightly("two audits")
@driver_alone
def test_findings_of_a_text_do_not_stay_where_segments_follow(run, tmp_path: Path):
    flawed = CONSOLE.read_text().replace('"snapshotEpoch":', '"snapshotEpoch":9', 1)
    (tmp_path / "console.txt").write_text(flawed)
    assert run(tmp_path / "console.txt").findings
    run(HAPPY)
    run(HAPPY, "alone")
    assert contents(tmp_path / "lake") == contents(tmp_path / "alone")
