"""Runs over exports that hold `__consumer_offsets`, too: its tables, its names, its findings."""

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from share_state.config.sections import HISTORY, LATEST
from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse_place import CLAIM_TABLES, GROUP_TABLES
from share_state.fold.fold_options import FoldOptions
from share_state.fold.groups.group_tables import fold_groups
from share_state.kafka.primitives import partition_for
from share_state.pipeline.audit import NO_GROUPS, NOTHING_NEW, run_audit
from share_state.pipeline.executor import Executor
from share_state.pipeline.plan import FoldPlan, GroupInput
from share_state.pipeline.reconstruct import run_reconstruct
from share_state.pipeline.result import RunResult
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_group_logs, find_logs
from share_state.sources.input_detection import adjacent_group_logs
from share_state.sources.log_partition import STATE_TOPIC
from share_state.sources.partition_count import PartitionCount, infer_partition_count
from share_state.sources.topics import Topics, read_topics
from tests.fold.groups.described import scenarios
from tests.fold.groups.group_writer import (
    Assigned,
    assignment,
    classic_group,
    classic_member,
    group_metadata,
    share_group,
    state_partitions,
    subscription,
    user_data,
    write_group_log,
)
from tests.kafka.batches import Record
from tests.profiles import driver_alone, nightly, some_of
from tests.truth import DATA, logs_alone

HAPPY = logs_alone(DATA / "4.3.1/happy")
CHAOS = logs_alone(DATA / "4.3.1/chaos")

Run = Callable[..., RunResult]


def work_of(source: Path, **options: Any) -> FoldPlan:
    """What a command makes of a folder."""
    logs = find_logs([str(source)])
    beside = adjacent_group_logs([str(source)], logs)
    partitions = options.pop("group_partitions", None)
    claims = options.pop("claims", HISTORY)
    groups = GroupInput(beside, partitions, claims) if beside else None
    count = PartitionCount(options.pop("state_partitions", infer_partition_count(logs, STATE_TOPIC)))
    fold_options = FoldOptions(topics=options.pop("topics", Topics()), partition_count=count)
    return FoldPlan(logs, groups=groups, options=fold_options, names_logs=True, **options)


@pytest.fixture
def rebuilt(tasks: Executor, tmp_path: Path) -> Run:
    """Reconstructs a folder into `lake`."""
    return lambda source, **options: run_reconstruct(tasks, work_of(source, **options), str(tmp_path / "lake"))


@pytest.fixture
def audited(tasks: Executor, tmp_path: Path) -> Run:
    """Audits a folder into `lake`."""
    return lambda source, **options: run_audit(
        lambda _: nullcontext(tasks), work_of(source, **options), str(tmp_path / "lake"), inputs=(str(source),)
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the state logs of 4.3.1/happy, without its groups."""
    for log in HAPPY.glob("__share_group_state-*"):
        shutil.copytree(log, tmp_path / "source" / log.name)
    return tmp_path / "source"


def member(name: str, claims: Assigned, generation: int, assigned: Assigned) -> dict:
    return classic_member(
        name, subscription(["t"], user_data(claims, generation), generation=generation), assignment(assigned)
    )


def rebalances() -> list[Record]:
    """A classic group of which b, which was away in generation 2, comes back with what it had in generation 1."""
    return [
        classic_group("cg", 1, [member("a", {}, -1, {"t": [0]}), member("b", {}, -1, {"t": [1]})]),
        classic_group("cg", 2, [member("a", {"t": [0]}, 1, {"t": [0, 1]})]),
        classic_group("cg", 3, [member("a", {"t": [0, 1]}, 2, {"t": [0, 1]}), member("b", {"t": [1]}, 1, {"t": [1]})]),
    ]


def found(warehouse: Path) -> list[tuple[str, str, str, int | None]]:
    rows = CommittedTables(str(warehouse)).read("findings").to_pylist()
    return sorted((row["rule"], row["severity"], row["group_id"], row["partition"] or 0) for row in rows)


@driver_alone
@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize("command", ["rebuilt", "audited"])
def test_both_commands_write_the_group_side_and_fill_in_names(
    command: str, request: pytest.FixtureRequest, tmp_path: Path
):
    outcome = request.getfixturevalue(command)(CHAOS)
    tables = CommittedTables(str(tmp_path / "lake"))
    folded = fold_groups(find_group_logs([str(CHAOS)]))
    for name in GROUP_TABLES:
        # The logs of groups alone show no configs.
        rows = getattr(folded, name)
        columns = [column for column in rows.column_names if column != "configs"]
        assert tables.read(name, columns=columns).to_pylist() == rows.select(columns).to_pylist()
    assert len(folded.share_groups) == 6
    assert not set(CLAIM_TABLES) & tables.versions.keys()
    for name in ("share_partition_state", "in_flight"):
        rows = tables.read(name).to_pylist()
        assert {row["topic"] for row in rows} == {"t0", "t1", "t2"}
    assert outcome.by_severity.keys() <= {"info"}
    assert dict(tables.run["findings"]) == outcome.by_severity


@driver_alone
@pytest.mark.parametrize("scenario", some_of(scenarios(), 2), ids=lambda one: one.name)
def test_real_brokers_logs_are_free_of_errors_and_warnings(audited: Run, tmp_path: Path, scenario):
    """Nor for offsets that wait for their dead letter: none has waited a minute yet."""
    audited(scenario.folder, topics=read_topics(str(scenario.folder / "topics.json")))
    grave = {rule for rule, severity, *_ in found(tmp_path / "lake") if severity != "info"}
    # Records and a topic were deleted in these scenarios.
    assert grave <= ({"RECORDS_LOST", "TOPIC_GONE"} if scenario.name.endswith("chaos") else set())


@driver_alone
def test_without_a_group_side_nothing_is_written_and_nothing_said(rebuilt: Run, source: Path, tmp_path: Path):
    assert work_of(source).groups is None
    outcome = rebuilt(source)
    tables = CommittedTables(str(tmp_path / "lake"))
    assert sorted(tables.versions) == ["cutoff", "findings", "in_flight", "share_partition_state"]
    assert outcome.findings == {}
    assert set(tables.read("share_partition_state")["topic"].to_pylist()) == {None}


@driver_alone
def test_a_name_that_is_given_wins(rebuilt: Run, tmp_path: Path):
    told = read_topics(str(DATA / "4.3.1/happy/topics.json"))
    given = replace(told, names=told.names.set_column(1, "topic", [["given"] * len(told.names)]))
    rebuilt(HAPPY, topics=given)
    assert set(CommittedTables(str(tmp_path / "lake")).read("share_partition_state")["topic"].to_pylist()) == {"given"}


@driver_alone
def test_state_and_groups_are_held_against_each_other(rebuilt: Run, source: Path, tmp_path: Path):
    """K-08, spec I33, K-26: app-b has no record; app-a lists a topic of another id than the one that has state."""
    write_group_log(source, share_group("app-a", {}, epoch=4, ready={"AAAAAAAAAAAAAAAAAAAAKg": [0]}))
    outcome = rebuilt(source, group_partitions=1)
    expected = [("MISSING_SHARE_STATE", "warning", "app-a", 0)]
    expected += [("ORPHAN_SHARE_STATE", "warning", "app-b", partition) for partition in range(3)]
    expected += [("UNINITIALIZED_PARTITION", "warning", "app-a", partition) for partition in range(3)]
    assert found(tmp_path / "lake") == expected
    assert outcome.by_severity == {"warning": 7}
    rows = CommittedTables(str(tmp_path / "lake")).read("findings").to_pylist()
    assert {row["run_id"] for row in rows} == {outcome.run_id}
    assert {row["settled"] for row in rows} == {False}


@driver_alone
def test_severities_reach_the_rules_over_groups(rebuilt: Run, source: Path, tmp_path: Path):
    write_group_log(source, share_group("app-a", {}, epoch=4, ready={}))
    severities = {"ORPHAN_SHARE_STATE": "error", "UNINITIALIZED_PARTITION": "off"}
    outcome = rebuilt(source, group_partitions=1, severities=severities)
    assert outcome.findings == {("error", "ORPHAN_SHARE_STATE"): 3}


@driver_alone
def test_claims_become_tables_and_findings(rebuilt: Run, source: Path, tmp_path: Path):
    write_group_log(source, rebalances())
    outcome = rebuilt(source)
    tables = CommittedTables(str(tmp_path / "lake"))
    assert len(tables.read("sticky_claim")) == 4
    resolved = {
        (row["group_generation"], row["partition"]): (row["owner"], row["status"])
        for row in tables.read("effective_previous_assignment").to_pylist()
    }
    assert resolved == {
        (2, 0): ("a", "UNCONTESTED"),
        (3, 0): ("a", "UNCONTESTED"),
        (3, 1): ("a", "WON_BY_GENERATION"),
    }
    graver = {rule: count for (severity, rule), count in outcome.findings.items() if severity == "warning"}
    # No share group has a record, and one partition does not show how many there are: they may lie in others.
    assert graver == {"DOUBLE_ASSIGNED": 1, "STALE_CLAIM": 1}


@driver_alone
def test_the_latest_generation_alone_is_judged_where_that_is_asked_for(rebuilt: Run, source: Path, tmp_path: Path):
    write_group_log(source, rebalances())
    rebuilt(source, claims=LATEST)
    assert {row["group_generation"] for row in _claims(tmp_path)} == {3}


def _claims(tmp_path: Path) -> list[dict]:
    return CommittedTables(str(tmp_path / "lake")).read("sticky_claim").to_pylist()


@driver_alone
def test_where_offsets_are_cut_groups_are_not_held_against_another_time(rebuilt: Run, source: Path):
    write_group_log(source, [*share_group("app-a", {}, epoch=4, ready={}), group_metadata("app-a", 3)])
    work = {"group_partitions": 1, "windows": {"__share_group_state-0": Window(until_offset=10)}}
    assert rebuilt(source, **work).findings == {}


@nightly("two audits")
@driver_alone
def test_missing_state_rests_where_its_log_was_not_read(rebuilt: Run, source: Path):
    """Of the 40 share-partitions that app-a lists three have state."""
    ids = {row["topic_id"] for log in find_logs([str(source)]) for row in FoldPlan([log]).fold(log).states.to_pylist()}
    (topic_id,) = ids
    listed = state_partitions("app-a", {topic_id: range(40)}, names={topic_id: "orders"})
    write_group_log(source, [group_metadata("app-a", 4), listed])
    options = {"severities": {"ORPHAN_SHARE_STATE": "off"}}
    assert rebuilt(source, **options).findings == {("warning", "MISSING_SHARE_STATE"): 37}
    shutil.rmtree(source / "__share_group_state-0")
    assert rebuilt(source, **options).findings == {}
    homes = [partition_for(f"app-a:{topic_id}:{partition}", 3) for partition in range(3, 40)]
    missed = sum(home in (1, 2) for home in homes)
    assert 0 < missed < 37
    assert rebuilt(source, state_partitions=3, **options).findings == {("warning", "MISSING_SHARE_STATE"): missed}


@nightly("three runs")
@driver_alone
def test_the_same_input_gives_the_same_run_and_another_group_side_another(rebuilt: Run, source: Path):
    alone = rebuilt(source).run_id
    write_group_log(source, rebalances())
    assert rebuilt(source).run_id == rebuilt(source).run_id != alone


@driver_alone
def test_an_audit_goes_on_where_only_the_groups_changed(audited: Run, source: Path, tmp_path: Path):
    place = write_group_log(source, share_group("app-a", {}, epoch=4, ready={}))
    assert audited(source).notes == ()
    assert audited(source).notes == (NOTHING_NEW,)
    shutil.rmtree(place)
    write_group_log(source, share_group("app-a", {}, epoch=5, ready={}))
    assert audited(source).notes == ()
    assert CommittedTables(str(tmp_path / "lake")).read("share_groups")["group_epoch"].to_pylist() == [5]
    # Findings are judged anew by each audit: none is there twice.
    rows = found(tmp_path / "lake")
    assert len(rows) == len(set(rows))


@nightly("two audits")
@driver_alone
def test_an_audit_whose_groups_are_gone_says_so_and_drops_their_tables(audited: Run, source: Path, tmp_path: Path):
    place = write_group_log(source, share_group("app-a", {}, epoch=4, ready={}))
    audited(source)
    shutil.rmtree(place)
    outcome = audited(source)
    assert outcome.notes == (NO_GROUPS,)
    tables = CommittedTables(str(tmp_path / "lake"))
    assert not set(GROUP_TABLES) & tables.versions.keys()
    assert found(tmp_path / "lake") == []
