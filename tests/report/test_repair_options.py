"""Options of a repair plan: which are offered, how they rank, and what guards Kafka's tool against its traps."""

import os
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from share_state import repair
from share_state.errors import ShareStateError
from share_state.fold.limits import Limits
from share_state.kafka.delivery_states import DeliveryState
from share_state.repairs.commands import KafkaTools
from share_state.repairs.remedies import repairs
from share_state.repairs.repair_plan import RepairPlan
from share_state.repairs.status import SharePartitionStatus, Survey
from share_state.repairs.subject import HARM, Option, Repair
from share_state.simulator.types import StateBatch
from tests.cli.commands import run_cli
from tests.profiles import nightly
from tests.truth import DATA

AVAILABLE, ARCHIVING, ACKNOWLEDGED = DeliveryState.AVAILABLE, DeliveryState.ARCHIVING, DeliveryState.ACKNOWLEDGED
_NOW = datetime(2026, 11, 21, tzinfo=UTC)


def _survey(
    trouble: str,
    ranges: Sequence[StateBatch],
    *,
    gaps: Sequence[int] = (),
    unmoved: timedelta = timedelta(seconds=1),
    release: str = "4.4",
    topic_end: int = 1000,
) -> Survey:
    """A share-partition of group g on t-0 in trouble, whose SPSO is the first of the ranges."""
    row = dict.fromkeys(("write_time", "verdict", "reason"))
    row |= {"group_id": "g", "topic_id": "We0ABtXRQ0uVly26I_w1Mw", "topic": "t", "partition": 0}
    row |= dict.fromkeys(("state_partition", "delivery_complete_count", "updates_since_snapshot"), 0)
    row |= dict.fromkeys(("snapshot_epoch", "state_epoch", "leader_epoch", "snapshot_offset"), 1)
    start = ranges[0].first_offset
    row |= {"start_offset": start, "effective_start_offset": start, "topic_end_offset": topic_end, "suspect": False}
    row |= {"moved_time": _NOW - unmoved}
    status = SharePartitionStatus(
        row, tuple(ranges), frozenset(gaps), {trouble: "trouble"}, 0, {"log_end_offset": 10, "cutoff_offset": 5}, None
    )
    return Survey((status,), 0, Limits(), frozenset(), (release,), _NOW, ("export",))


def _plan(survey: Survey, *, empty: bool = False) -> Repair:
    (found,) = repairs(survey, KafkaTools(), {"g": True} if empty else {})
    return found


def _options(found: Repair) -> dict[str, Option]:
    return {option.action: option for option in found.options}


_POISON = [StateBatch(0, 0, AVAILABLE, 4), StateBatch(1, 9, ACKNOWLEDGED, 1)]
_STUCK = [StateBatch(0, 0, ARCHIVING, 5), StateBatch(1, 9, ACKNOWLEDGED, 1)]
_GAP = [StateBatch(0, 0, AVAILABLE, 0), StateBatch(1, 184, AVAILABLE, 1)]


def test_waiting_that_ends_in_a_lost_record_ranks_by_that_loss() -> None:
    found = _plan(_survey("POISON_RECORDS", _POISON))
    wait = _options(found)["WAIT"]
    assert wait.effect is not None
    assert wait.effect.skipped == ((0, 0),)
    assert HARM[wait.harm] == "records are skipped"
    assert [option.harm for option in found.options] == sorted(option.harm for option in found.options)
    assert found.options[0].action == "RAISE_DELIVERY_COUNT_LIMIT"


@pytest.mark.parametrize("trouble", ["POISON_RECORDS", "IN_FLIGHT_LIMIT", "STALL"])
def test_waiting_is_not_offered_after_its_own_worst_case_has_passed(trouble: str) -> None:
    """One delivery is left, and a lock lasts 30 s; but the deliveries of a group may be minutes apart."""
    assert "WAIT" in _options(_plan(_survey(trouble, _POISON, unmoved=timedelta(minutes=29))))
    assert "WAIT" not in _options(_plan(_survey(trouble, _POISON, unmoved=timedelta(minutes=32))))


def test_waiting_at_a_gap_delivers_it_and_everything_behind_it() -> None:
    """As a live broker of 4.4.0 did: SPSO went to 185, with nothing in flight."""
    found = _plan(_survey("STALL", _GAP, gaps=[0]))
    wait = _options(found)["WAIT"]
    assert wait.effect is not None
    assert (wait.effect.start_offset, wait.effect.in_flight) == (185, {})
    assert HARM[wait.harm] == "no harm"
    assert "gap" in wait.what
    assert "times out" not in wait.what


@pytest.mark.parametrize("trouble", ["POISON_RECORDS", "IN_FLIGHT_LIMIT", "STALL"])
def test_an_empty_group_needs_consumers_before_anything_moves(trouble: str) -> None:
    options = _options(_plan(_survey(trouble, _POISON, unmoved=timedelta(hours=1)), empty=True))
    assert options["START_CONSUMERS"].title == "START_CONSUMERS, then WAIT"
    assert "which is empty" in options["START_CONSUMERS"].what
    assert not {"WAIT", "RESTART_CONSUMERS", "FORBID_RENEWALS"} & options.keys()


def test_dead_letters_of_an_empty_group_need_a_consumer() -> None:
    survey = _survey("ARCHIVING_STUCK", _STUCK)
    options = _options(_plan(survey, empty=True))
    assert "WAIT" not in options
    assert options["START_CONSUMERS"].effect is not None
    assert options["START_CONSUMERS"].effect.start_offset == 10
    assert "start a consumer of the group, which is empty" in options["RESTART_LEADER"].what
    assert "start a consumer" not in _options(_plan(survey))["RESTART_LEADER"].what
    assert "until a consumer of the group fetches" in _options(_plan(survey))["WAIT"].what


def test_an_option_that_changes_nothing_by_itself_is_joined_with_what_it_needs() -> None:
    fix = _options(_plan(_survey("ARCHIVING_STUCK", _STUCK)))["FIX_DLQ"]
    assert fix.title == "FIX_DLQ, then RESTART_LEADER"
    assert fix.effect is not None
    assert fix.effect.start_offset == 10
    # Nothing is in ARCHIVING: it mends what will be rejected.
    alone = _options(_plan(_survey("DLQ_UNUSABLE", _POISON)))["FIX_DLQ"]
    assert (alone.title, alone.effect) == ("FIX_DLQ", None)


def test_an_option_that_changes_nothing_is_left_out() -> None:
    """The window reaches the end of the topic, so a larger one would hold no more."""
    ranges = [StateBatch(0, 1999, AVAILABLE, 1)]
    assert "RAISE_PARTITION_MAX_RECORD_LOCKS" in _options(_plan(_survey("IN_FLIGHT_LIMIT", ranges, topic_end=2001)))
    assert "RAISE_PARTITION_MAX_RECORD_LOCKS" not in _options(_plan(_survey("IN_FLIGHT_LIMIT", ranges, topic_end=2000)))


@pytest.mark.parametrize(("release", "uses_tool"), [("4.1", False), ("4.3", False), ("4.4", True)])
def test_kafkas_own_tool_sets_offsets_from_4_4_on(release: str, uses_tool: bool) -> None:
    command = _options(_plan(_survey("POISON_RECORDS", _POISON, release=release)))["MOVE_START"].command
    assert ("--reset-offsets --to-offset=10 --group=g --topic=t:0 --execute" in command) == uses_tool
    assert ("jshell" in command) == (not uses_tool)
    survey = _survey("POISON_RECORDS", _POISON, release=release)
    assert "KAFKA_LIBS" not in RepairPlan((_plan(survey),), survey).markdown() or not uses_tool


_DESCRIBED = """
Share group 'my group' has no active members.

GROUP           TOPIC           PARTITION  START-OFFSET    LAG
my group        other           0          7               0
my group        t               1          8               0
my group        t               0          {}              0
"""
"""What --describe --offsets of 4.4.0 prints."""


@pytest.mark.parametrize(("shown", "code"), [("9", 0), ("5", 1), ("-", 1), ("99", 1), ("09", 1)])
def test_a_reset_that_kafkas_tool_clamped_or_refused_fails(tmp_path: Path, shown: str, code: int) -> None:
    """The tool exits with 0 in any case, so the script compares what it describes afterwards."""
    described = tmp_path / "described"
    described.write_text(_DESCRIBED.format(shown))
    (tmp_path / "kafka-share-groups.sh").write_text(
        f'#!/bin/sh\ncase "$*" in *--describe*) cat {described};; *) echo "WARN New offset is higher";; esac\n'
    )
    (tmp_path / "kafka-share-groups.sh").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = KafkaTools("b:9092").reset_to_offset("my group", "t", 0, 9)
    done = subprocess.run(["bash", "-euc", command], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == code
    assert done.stderr == ("" if code == 0 else f"the start offset is {shown}, not 9\n")


def test_control_records_with_a_broken_chain_are_refused_not_passed_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(capfd, "simulate", "--dialect", "control_records", "--fault", "broken-chain", "--groups", 2,
                   "--minutes", 1, "--out", tmp_path / "draft", "--quiet").code == 0  # fmt: skip
    plan = repair(tmp_path / "draft")
    assert not plan.repairs
    assert plan.control_findings[0].startswith("BROKEN_CHAIN: group ")
    assert "nothing to do" not in repr(plan)
    assert "about control records, for which there is no plan" in repr(plan)
    assert "no tool moves or deletes their state" in repr(plan)
    assert plan.to_json()["control_findings"] == list(plan.control_findings)


GAP_STALL = DATA / "cases/gap-stall"


@nightly("three audits")
def test_the_clock_and_the_rules_are_those_of_any_audit(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("repair", GAP_STALL, "--quiet")
    by_log = run_cli(capfd, *given).out
    assert "for 40 min" in by_log
    by_wall = run_cli(capfd, *given, "--clock", "wall").out
    assert "**STOP**" in by_wall or "**STALL**" in by_wall
    assert "for 40 min" not in by_wall
    assert "for 40 min" not in run_cli(capfd, *given, "--set", "clock=wall").out
    assert "for 40 min" not in repr(repair(GAP_STALL, clock="wall"))
    with pytest.raises(ShareStateError, match="clock sun: give one of log, wall"):
        repair(GAP_STALL, clock="sun")
    monkeypatch.setenv("SHARE_STATE_CLOCK", "wall")
    assert "for 40 min" not in run_cli(capfd, *given).out
    assert "for 40 min" in run_cli(capfd, *given, "--clock", "log").out
    monkeypatch.delenv("SHARE_STATE_CLOCK")
    assert "nothing to do" in run_cli(capfd, *given, "--limit", "stall_minutes=60").out
