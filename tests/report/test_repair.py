"""Plans for share-partitions in trouble: options, their foretold effects, and what commands pass to a shell."""

import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.report.repair.commands import KafkaTools, quote
from share_state.report.repair.options import HARM
from share_state.report.repair.status import can_be_named
from tests.cli.commands import Command, flipped, say
from tests.truth import DATA

CHAOS, DLQ = DATA / "4.3.1/chaos", DATA / "4.4.0/dlq"


@pytest.fixture
def share_state(capfd: pytest.CaptureFixture[str]) -> Command:
    return partial(say, capfd)


def _plan(share_state: Command, *arguments: object) -> list[dict[str, Any]]:
    said = share_state("repair", *arguments, "--json", "--quiet", "--most", 1000)
    assert said.code == 0, said.err
    return said.json["share_partitions"]


def _offsets(ranges: list[list[int]]) -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}


def _in_flight(share_state: Command, source: Path, lake: Path) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    assert share_state("reconstruct", source, "--out", lake, "--quiet").code == 0
    ranges: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in share_state("show", lake, "--json").json["in_flight"]:
        ranges.setdefault((row["group_id"], row["topic_id"], row["partition"]), []).append(row)
    return ranges


KINDS = [
    (CHAOS, "POISON_RECORDS", ("limits.delivery_count=3",), ["WAIT", "RAISE_DELIVERY_COUNT_LIMIT", "MOVE_START"]),
    (CHAOS, "IN_FLIGHT_LIMIT", ("limits.record_locks=20",),
     ["WAIT", "RAISE_PARTITION_MAX_RECORD_LOCKS", "RESTART_CONSUMERS", "MOVE_START"]),
    (CHAOS, "STALL", ("limits.stall_minutes=0.05",), ["WAIT", "FORBID_RENEWALS", "RESTART_CONSUMERS", "MOVE_START"]),
    (CHAOS, "STOP", ("limits.stall_minutes=0.01",), ["START_CONSUMERS"]),
    (DLQ, "ARCHIVING_STUCK", ("limits.archiving_seconds=0",),
     ["WAIT", "FIX_DLQ", "RESTART_LEADER", "MOVE_START", "RESET_TO_LATEST"]),
    (CHAOS, "CUTOFF_PINNED", ("limits.pinned_records=1",), ["WAIT", "DELETE_OFFSETS"]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "trouble", "limits", "actions"), KINDS, ids=[one[1] for one in KINDS])
def test_each_trouble_has_its_options_in_order_of_harm(
    share_state: Command, tmp_path: Path, source: Path, trouble: str, limits: tuple[str, ...], actions: list[str]
) -> None:
    named = ["--topics", source / "topics.json"] if (source / "topics.json").exists() else []
    found = _plan(share_state, source, *named, *(word for limit in limits for word in ("--set", limit)))
    repairs = [
        one for one in found if one["trouble"] == trouble and set(actions) <= {o["action"] for o in one["options"]}
    ]
    assert repairs, [(one["trouble"], [o["action"] for o in one["options"]]) for one in found]
    in_flight = _in_flight(share_state, source, tmp_path / "lake")
    for one in repairs:
        harms = [HARM.index(option["harm"]) for option in one["options"]]
        assert harms == sorted(harms)
        ranges = in_flight.get((one["group_id"], one["topic_id"], one["partition"]), [])
        for option in one["options"]:
            if option["action"] == "MOVE_START":
                _check_move(option["effect"], one["now"], ranges)


def _check_move(effect: dict[str, Any], now: dict[str, Any], ranges: list[dict[str, Any]]) -> None:
    """The lists of a move are what the in-flight ranges, as another command prints them, make of it."""
    target = effect["start_offset"]
    assert target > now["start_offset"]
    states = {o: row["terminal"] for row in ranges for o in range(row["first_offset"], row["last_offset"] + 1)}
    states = {offset: done for offset, done in states.items() if offset >= now["start_offset"]}
    assert _offsets(effect["skipped"]) == {o for o, done in states.items() if o < target and not done}
    again = {o for o, done in states.items() if o >= target and done}
    archiving = {o for row in ranges if row["state"] == "ARCHIVING"
                 for o in range(row["first_offset"], row["last_offset"] + 1) if o >= target}  # fmt: skip
    assert _offsets(effect["delivered_again"]) == again | archiving
    assert effect["in_flight"] == {}


def test_a_full_window_has_room_after_its_limit_is_raised(share_state: Command) -> None:
    found = _plan(share_state, CHAOS, "--set", "limits.record_locks=20")
    one = next(one for one in found if one["trouble"] == "IN_FLIGHT_LIMIT")
    raised = next(option for option in one["options"] if option["action"].startswith("RAISE_PARTITION"))
    assert raised["effect"]["start_offset"] == one["now"]["start_offset"]
    assert raised["effect"]["end_offset"] - raised["effect"]["start_offset"] >= 40
    assert "share.partition.max.record.locks=40" in raised["command"]


def test_an_idle_cluster_in_order_needs_no_plan(share_state: Command) -> None:
    said = share_state("repair", CHAOS, "--group", "g0", "--quiet")
    assert said.code == 0
    assert "there is nothing to do" in said.out


def test_a_suspect_state_is_said_first_and_nothing_risky_is_offered(share_state: Command, tmp_path: Path) -> None:
    for log in CHAOS.glob("__share_group_state-*/*.log"):
        copy = tmp_path / log.parent.name / log.name
        copy.parent.mkdir()
        copy.write_bytes(flipped(log.read_bytes(), batch=-2))
    found = [one for one in _plan(share_state, tmp_path, "--set", "limits.delivery_count=3") if one["suspect"]]
    assert found
    for one in found:
        assert one["sentence"].startswith("Do not act on this state")
        assert {option["harm"] for option in one["options"]} == {"nothing changes"}
        assert all(
            "--alter" not in option["command"] and "jshell" not in option["command"] for option in one["options"]
        )


def test_a_warehouse_has_the_plan_of_its_input(share_state: Command, tmp_path: Path) -> None:
    limits = ("--set", "limits.record_locks=20", "--set", "limits.groups.g0={record_locks: 30}")
    lake = tmp_path / "lake"
    assert share_state("audit", CHAOS, "--out", lake, *limits, "--fail-on", "off", "--quiet").code == 0
    of_input = share_state("repair", CHAOS, *limits, "--json", "--quiet").json
    of_tables = share_state("repair", lake, "--json", "--quiet").json
    assert of_input["share_partitions"]
    assert of_tables == of_input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--group", "g99"), "group g99: not here; the nearest of"),
        (("--out", "plan.txt"), "plan.txt: give a name that ends in .md, .sh or .json"),
        (("--out", "no/folder/plan.md"), "no/folder/plan.md: the folder no/folder does not exist"),
        (("--release", "3.9"), "--release 3.9: give one of 4.0, 4.1, 4.2, 4.3, 4.4"),
        (("--set", "fail_on=off"), "--set fail_on=off: give a key of limits"),
    ],
)
def test_unusable_calls_are_refused(share_state: Command, arguments: tuple[str, ...], message: str) -> None:
    said = share_state("repair", CHAOS, *arguments, "--quiet")
    assert said.code == 2
    assert message in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("release", "without"),
    [("4.0", {"MOVE_START", "RESET_TO_LATEST", "FORBID_RENEWALS"}), ("4.1", {"RESET_TO_LATEST", "FORBID_RENEWALS"}),
     ("4.3", set[str]())],
)  # fmt: skip
def test_commands_are_those_of_the_release(share_state: Command, release: str, without: set[str]) -> None:
    named = ("--topics", CHAOS / "topics.json", "--set", "limits.record_locks=20", "--set", "limits.stall_minutes=0.05")
    found = _plan(share_state, CHAOS, "--release", release, *named)
    actions = {option["action"] for one in found for option in one["options"]}
    assert not actions & without
    assert {"MOVE_START", "RESET_TO_LATEST", "FORBID_RENEWALS"} - without <= actions
    raised = [o["command"] for one in found for o in one["options"] if o["action"].startswith("RAISE")]
    assert raised
    assert all(bool(command) == (release >= "4.3") for command in raised)


_STUBS = """
kafka-share-groups.sh() { printf '%s\\0' "$@"; }
kafka-configs.sh() { printf '%s\\0' "$@"; }
jshell() { printf '%s\\0' "$@"; cat; }
"""


def _passed(command: str) -> list[str]:
    """The arguments that bash passes to the command."""
    environment = os.environ | {"BOOTSTRAP": "b:9092", "KAFKA_LIBS": "/opt/kafka libs"}
    done = subprocess.run(["bash", "-euc", _STUBS + command], capture_output=True, check=True, env=environment)
    return done.stdout.decode().split("\0")[:-1]


_GROUPS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufffd"), min_size=1)


@given(_GROUPS.filter(can_be_named))
def test_any_group_id_arrives_at_kafkas_tools_as_it_is(group: str) -> None:
    tools = KafkaTools(properties="my client.properties")
    assert f"--group={group}" in _passed(tools.delete_group(group))
    assert f"--entity-name={group}" in _passed(tools.configure("groups", group, "share.delivery.count.limit=6"))
    assert "my client.properties" in _passed(tools.describe(group, "offsets"))
    assert _passed(f"kafka-configs.sh {quote(group)}") == [group]


@pytest.mark.parametrize("group", ["", "bad\ufffdbytes", "bad\\xff", "nul\0"])
def test_a_group_that_no_shell_can_name_has_no_command(group: str) -> None:
    assert not can_be_named(group)


def test_a_plan_is_written_in_the_format_of_its_suffix(share_state: Command, tmp_path: Path) -> None:
    given = ("repair", CHAOS, "--set", "limits.record_locks=20", "--quiet")
    printed = share_state(*given).out
    for suffix in ("md", "sh", "json"):
        assert share_state(*given, "--out", tmp_path / f"plan.{suffix}").code == 0
    assert (tmp_path / "plan.md").read_text() == printed
    assert json.loads((tmp_path / "plan.json").read_text())["share_partitions"]
    script, run = tmp_path / "plan.sh", partial(subprocess.run, capture_output=True, text=True, check=False)
    shown = run(["bash", script])
    assert shown.returncode == 0, shown.stderr
    assert "in-flight window is full" in shown.stdout
    assert run(["bash", script, "77.1"]).returncode == 2
    number = next(line.split()[0] for line in shown.stdout.splitlines() if "RAISE_PARTITION" in line)
    stub = tmp_path / "kafka-configs.sh"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert "BOOTSTRAP: host:port of a broker" in run(["bash", script, number], env=path).stderr
    done = run(["bash", script, number], env=path | {"BOOTSTRAP": "b:9092"})
    assert done.stdout.split()[:3] == ["--bootstrap-server", "b:9092", "--alter"]
