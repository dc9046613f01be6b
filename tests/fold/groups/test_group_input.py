"""Which logs of `__consumer_offsets` go with an input, and what is known of state that was not read."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from share_state.config.input_spec import OPTIONS, input_spec
from share_state.config.loading import settings_for
from share_state.errors import InputError
from share_state.fold.groups.group_tables import FoldedGroups
from share_state.fold.limits import GroupLimits
from share_state.kafka.primitives import partition_for
from share_state.pipeline.driver_side import name_topics, read_groups
from share_state.pipeline.plan import FoldPlan, GroupInput
from share_state.pipeline.planning import build_plan
from share_state.rules.group_context import AuditedGroups
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import find_group_logs, find_logs
from share_state.sources.input_detection import adjacent_group_logs
from share_state.sources.resume_point import digest_of_logs
from tests.fold.groups.group_writer import T, group_metadata, share_group, write_group_log
from tests.truth import DATA

STATE = DATA / "4.3.1/happy/__share_group_state-0"


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    """Two brokers' log directories, each with a partition of both topics, and an archive of groups deeper in one."""
    for number in (0, 1):
        broker = tmp_path / f"exports/broker-{number}"
        shutil.copytree(STATE, broker / f"__share_group_state-{number}")
        write_group_log(broker, [group_metadata(f"G{number}", 3)], partition=number)
    write_group_log(tmp_path / "exports/broker-0/archive", [group_metadata("old", 3)], partition=7)
    (tmp_path / "exports/broker-0/__consumer_offsets-9").mkdir()
    return tmp_path / "exports"


def found(*inputs: Path | str) -> list[int | None]:
    """Numbers of the group partitions that lie beside the logs of an input."""
    given = [str(one) for one in inputs]
    return [log.partition for log in adjacent_group_logs(given, find_logs(given))]


def side_of(source: Path, named: Path) -> list[int | None]:
    """Numbers of the group partitions of an input whose group side is named."""
    spec = input_spec(OPTIONS, sources=[{"path": str(source)}], groups={"paths": [str(named)]})
    side = build_plan(spec, OPTIONS).groups
    return [log.partition for log in side.logs] if side else []


def test_groups_are_taken_from_beside_the_state_logs(exports: Path):
    """Not from an archive, and not from a folder without a segment."""
    assert found(exports / "broker-0") == [0]
    assert found(exports) == [0, 1]
    assert found(exports / "broker-0", exports / "broker-1") == [0, 1]


def test_a_pattern_may_name_the_folders(exports: Path, monkeypatch: pytest.MonkeyPatch):
    assert found(f"{exports}/broker-*") == [0, 1]
    monkeypatch.chdir(exports)
    assert found("broker-[1]") == [1]
    assert found(".") == [0, 1]


def test_who_names_single_logs_gets_their_state_alone(exports: Path, monkeypatch: pytest.MonkeyPatch):
    log = exports / "broker-0/__share_group_state-0"
    assert found(log) == []
    assert found(next(log.glob("*.log"))) == []
    monkeypatch.chdir(log.parent)
    assert found(log.name) == []


def test_a_glob_over_the_logs_of_a_folder_finds_the_groups_beside_them(exports: Path, monkeypatch: pytest.MonkeyPatch):
    assert found(f"{exports}/broker-0/__share_group_state-*") == [0]
    assert found(f"{exports}/broker-*/__share_group_state-*") == [0, 1]
    monkeypatch.chdir(exports / "broker-0")
    assert found("__share_group_state-*") == [0]


def test_what_is_named_is_read_in_place_of_what_lies_beside(exports: Path):
    assert side_of(exports / "broker-0", exports / "broker-1") == [1]
    assert side_of(exports / "broker-0", exports / "broker-0/archive") == [7]
    with pytest.raises(InputError, match="give the folder that holds __consumer_offsets-0"):
        side_of(exports / "broker-0", exports / "nowhere")


def test_inputs_without_groups_have_none(exports: Path):
    for place in exports.rglob("__consumer_offsets-*"):
        shutil.rmtree(place)
    assert found(exports) == []
    assert read_groups(FoldPlan(find_logs([str(exports)])))[0] is None


def test_a_log_of_groups_that_vanishes_is_noted_where_only_names_are_read(
    exports: Path, caplog: pytest.LogCaptureFixture
):
    spec = input_spec(OPTIONS, sources=[{"path": str(exports)}], groups={}, names_only=True)
    plan = build_plan(spec, OPTIONS)
    assert plan.groups is not None
    for log in plan.groups.logs:
        for segment in log.segments:
            Path(segment.path).unlink()
    with caplog.at_level("INFO", "share_state"):
        assert name_topics(plan).groups is None
    assert [record.message.count("shown by their ids") for record in caplog.records] == [1] * len(plan.groups.logs)
    with pytest.raises(InputError):
        read_groups(plan)


def test_the_same_bytes_have_the_same_digest_wherever_they_were_copied(exports: Path, tmp_path: Path):
    def digest(folder: Path) -> str:
        return digest_of_logs(adjacent_group_logs([str(folder)], find_logs([str(folder)])))

    before = digest(exports)
    shutil.copytree(exports, tmp_path / "copy")
    (segment,) = (tmp_path / "copy/broker-1/__consumer_offsets-1").glob("*.log")
    os.utime(segment, (1, 1))
    assert digest(tmp_path / "copy") == before
    segment.write_bytes(segment.read_bytes()[:-1] + b"\1")
    assert digest(tmp_path / "copy") != before


def test_state_belongs_to_the_partition_that_its_key_hashes_to():
    """K-12, with its numbers: of 50 partitions G1's two lie in 18 and 19, G2's and G3's in 25 and 32."""
    homes = {("G1", 0): 18, ("G1", 1): 19, ("G2", 0): 25, ("G3", 0): 32}
    assert partition_for(f"G1:{T}:0", 2**31 - 1) == 2082368418
    for (group, partition), home in homes.items():
        for number in range(50):
            read = _audited(state_partition_count=50, state_partitions=frozenset([number]))
            assert read.knows_state_of(group, T, partition) == (number == home)


def test_without_the_number_of_partitions_missing_state_is_not_reported():
    assert not _audited(state_partitions=frozenset([18])).knows_state_of("G1", T, 0)
    assert _audited().knows_state_of("G1", T, 0)


def _audited(**known: Any) -> AuditedGroups:
    return AuditedGroups(FoldedGroups(), table_schema("share_partition_state").empty_table(), **known)


def test_settings_reach_the_group_side(exports: Path):
    given = ["groups.partitions=50", "groups.claims=latest", "groups.members=3", "groups.retry_seconds=5"]
    settings = settings_for([str(exports)], "/b", [*given, "groups.delete_grace_seconds=7"], {})
    logs = adjacent_group_logs([str(exports)], find_logs([str(exports)]))
    planned = build_plan(settings.input_spec(), OPTIONS).groups
    assert planned == GroupInput(logs, 50, "latest", GroupLimits(3, 5_000, 7_000))
    assert build_plan(settings_for([str(exports)], "/b", (), {}).input_spec(), OPTIONS).groups == GroupInput(logs)
    assert build_plan(settings_for([str(STATE)], "/b", (), {}).input_spec(), OPTIONS).groups is None


@pytest.mark.parametrize(("count", "expected"), [(200, 0), (201, 1)])
def test_the_cap_of_members_is_that_of_the_settings(tmp_path: Path, count: int, expected: int):
    """K-01, K-25: 200 are allowed, 201 are one too many; and 250 may be where the cluster says so."""
    members = {f"m{number}": {T: [0]} for number in range(count)}
    write_group_log(tmp_path, share_group("G1", members, ready={T: [0]}))
    logs = tuple(find_group_logs([str(tmp_path)]))
    for cap, over in ((200, expected), (250, 0)):
        work = FoldPlan(find_logs([str(STATE)]), groups=GroupInput(logs, limits=GroupLimits(cap)))
        side, work = read_groups(work)
        assert side is not None
        states = table_schema("share_partition_state").empty_table()
        assert side.judge(states, work)["rule"].to_pylist().count("GROUP_OVER_CAP") == over
