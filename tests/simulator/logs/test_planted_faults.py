"""Every fault causes the finding that it names, where it says; logs without a fault cause none."""

import json
from pathlib import Path
from typing import Any

import pytest

from share_state.fold.draft.control_log import fold_control_log
from share_state.fold.fold_options import FoldOptions
from share_state.fold.limits import Limits
from share_state.fold.state_log import fold_log
from share_state.fold.states import CONTROL_RECORDS, SHARE_GROUP_STATE
from share_state.rules.breaches import INFO
from share_state.rules.findings import judge, judge_records
from share_state.rules.registry import registered
from share_state.simulator.faults import ALL, FAULTS
from share_state.simulator.simulation import Simulation, simulate
from share_state.simulator.types import SimulationError
from share_state.sources.discovery import find_logs, find_topic_logs
from share_state.sources.partition_count import PartitionCount
from tests.profiles import some_of
from tests.rules.histories import CONTROL_SCOPES, STATE_SCOPES

UPDATES_PER_SNAPSHOT = 20
LIMITS = Limits(updates_per_snapshot=UPDATES_PER_SNAPSHOT)
# Small enough for several segments, short enough for seconds.
SMALL: dict[str, Any] = {"seed": 3, "groups": 36, "minutes": 1, "state_partitions": 40, "segment_bytes": 3_000}
# True of a history without a fault: some groups have records that nobody can process, or members that crash with
# records in hand; and no record of the draft tells that a group was made again or its offsets were set back.
TRUE_OF_THEM = {
    *(("POISON_RECORDS", behaviour) for behaviour in ("poison", "dead-letters", "crashing")),
    *(("CHECKPOINT_MISMATCH", behaviour) for behaviour in ("recreated", "altered")),
}


def findings(folder: Path) -> list[dict[str, Any]]:
    """What the audit says of every log in a folder."""
    rows = []
    if any(folder.glob("__share_group_state-*")):
        logs = find_logs([str(folder)])
        for log in logs:
            folded = fold_log(
                log, options=FoldOptions(partition_count=PartitionCount(len(logs)), limits=LIMITS, judge=judge_records)
            )
            rows += judge(folded, records=folded.record_breaches).to_pylist()
    else:
        for log in find_topic_logs([str(folder)]):
            rows += judge(fold_control_log(log)).to_pylist()
    return rows


Broken = tuple[Simulation, list[dict[str, Any]]]
"""One history with every fault that its dialect knows, and what the audit says of it."""


def broken(folder: Path, dialect: str) -> Broken:
    limits: dict[str, Any] = {"updates_per_snapshot": UPDATES_PER_SNAPSHOT, "checkpoint_every": 5}
    return simulate(folder, dialect=dialect, faults=[ALL], **limits, **SMALL), findings(folder)


@pytest.fixture(scope="module")
def broken_state(tmp_path_factory) -> Broken:
    return broken(tmp_path_factory.mktemp("state"), SHARE_GROUP_STATE)


@pytest.fixture(scope="module")
def broken_control(tmp_path_factory) -> Broken:
    return broken(tmp_path_factory.mktemp("control"), CONTROL_RECORDS)


SCOPES = {SHARE_GROUP_STATE: STATE_SCOPES, CONTROL_RECORDS: CONTROL_SCOPES}


def faults_of(dialect: str) -> list[str]:
    """Faults whose findings our rules know in a dialect."""
    rules = registered()
    return sorted(
        name
        for name, fault in FAULTS.items()
        if dialect in fault.dialects and fault.finding in rules and rules[fault.finding].checks.keys() & SCOPES[dialect]
    )


def assert_found(dialect: str, of: Broken, name: str) -> None:
    simulation, found = of
    planted = [one for one in simulation.planted if one.fault == name]
    assert len(planted) == 1
    (one,) = planted
    own = [row for row in found if row["rule"] == one.finding]
    if dialect == SHARE_GROUP_STATE:
        own = [row for row in own if row["state_partition"] == one.log[1]]
    else:
        own = [row for row in own if (row["topic"], row["partition"]) == one.log]
    assert one.offset in {row["offset"] for row in own}
    if one.group is not None:
        groups = {(row["group_id"], row["topic_id"]) for row in own if row["offset"] == one.offset}
        assert (one.group, one.topic_id) in groups


@pytest.mark.parametrize("name", faults_of(SHARE_GROUP_STATE))
def test_a_fault_of_the_state_topic_is_found(broken_state, name):
    assert_found(SHARE_GROUP_STATE, broken_state, name)


@pytest.mark.parametrize("name", ["start-not-carried", "count-regression", "archiving-passed"])
def test_the_log_itself_shows_the_writer_of_a_fault_of_4_4(broken_state, name):
    simulation, found = broken_state
    (one,) = (planted for planted in simulation.planted if planted.fault == name)
    (row,) = (row for row in found if (row["rule"], row["offset"]) == (one.finding, one.offset))
    assert "the writer must be 4.4 or later: ARCHIVING is in the log since" in row["message"]


@pytest.mark.parametrize("name", faults_of(CONTROL_RECORDS))
def test_a_fault_of_control_records_is_found(broken_control, name):
    assert_found(CONTROL_RECORDS, broken_control, name)


@pytest.mark.parametrize("dialect", some_of([SHARE_GROUP_STATE, CONTROL_RECORDS], 1))
def test_the_same_history_without_a_fault_causes_no_finding(tmp_path, dialect):
    small: dict[str, Any] = SMALL | {"groups": 14, "updates_per_snapshot": UPDATES_PER_SNAPSHOT, "checkpoint_every": 5}
    done = simulate(tmp_path, dialect=dialect, **small)
    assert done.planted == ()
    found = {(row["rule"], row["group_id"].rpartition("-")[0]) for row in findings(tmp_path) if row["severity"] != INFO}
    assert found <= TRUE_OF_THEM


def test_what_was_planted_stands_beside_the_logs(tmp_path):
    small: dict[str, Any] = SMALL | {"groups": 8, "minutes": 1, "faults": ["start-offset-regression", "crc-mismatch"]}
    done = simulate(tmp_path, **small)
    lines = [json.loads(line) for line in (tmp_path / "faults.jsonl").read_text().splitlines()]
    assert [line["finding"] for line in lines] == ["START_OFFSET_REGRESSION", "CRC_MISMATCH"]
    assert lines[0] == {
        "fault": "start-offset-regression",
        "finding": "START_OFFSET_REGRESSION",
        "log": f"__share_group_state-{done.planted[0].log[1]}",
        "offset": done.planted[0].offset,
        "group": done.planted[0].group,
        "topicId": done.planted[0].topic_id,
        "partition": done.planted[0].partition,
    }
    assert lines[1].keys() == {"fault", "finding", "log", "offset"}


def test_the_same_seed_plants_the_same_faults(tmp_path):
    small: dict[str, Any] = SMALL | {"groups": 8, "minutes": 1}
    first, second = (simulate(tmp_path / name, faults=[ALL], **small) for name in ("first", "second"))
    assert first.planted == second.planted


def test_an_unknown_fault_is_named(tmp_path):
    with pytest.raises(SimulationError, match="--fault crc: give one of archiving-passed, "):
        simulate(tmp_path, faults=["crc"], groups=1, minutes=1)


def test_a_fault_that_nothing_suits_is_refused(tmp_path):
    with pytest.raises(SimulationError, match="fault wrong-partition: no suitable log or share-partition"):
        simulate(tmp_path, faults=["wrong-partition"], groups=1, minutes=1, state_partitions=1)
