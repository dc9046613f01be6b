"""Plans for share-partitions in trouble: options, their foretold effects, and what commands pass to a shell."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from share_state import repair, timeline
from share_state.cli.main import run
from share_state.errors import ShareStateError
from share_state.fold.limits import Limits
from share_state.kafka.delivery_states import DeliveryState
from share_state.repairs.commands import KafkaTools, quote
from share_state.repairs.remedies import repairs
from share_state.repairs.repair_plan import RepairPlan
from share_state.repairs.status import SharePartitionStatus, Survey, can_be_named
from share_state.repairs.subject import HARM
from share_state.simulator.types import StateBatch
from tests.cli.commands import Command, flipped, run_cli
from tests.kafka.batches import Record, consecutive
from tests.log_writer import Key, batch, snapshot, update, write_log_folder, write_segment
from tests.profiles import by_profile, nightly, some_of
from tests.truth import DATA
from tests.warehouses import arrow

CHAOS, DLQ = DATA / "4.3.1/chaos", DATA / "4.4.0/dlq"


@pytest.fixture
def share_state(capfd: pytest.CaptureFixture[str]) -> Command:
    return partial(run_cli, capfd)


def _plan(share_state: Command, *arguments: object) -> list[dict[str, Any]]:
    said = share_state("repair", *arguments, "--json", "--quiet", "--most", 1000)
    assert said.code == 0, said.err
    return said.json["share_partitions"]


def _offsets(ranges: list[list[int]]) -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}


@cache
def _in_flight(source: Path) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    with TemporaryDirectory() as lake:
        assert run(["reconstruct", str(source), "--out", lake, "--quiet"]) == 0
        with redirect_stdout(StringIO()) as printed:
            assert run(["show", lake, "--json"]) == 0
    ranges: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in json.loads(printed.getvalue())["in_flight"]:
        ranges.setdefault((row["group_id"], row["topic_id"], row["partition"]), []).append(row)
    return ranges


KINDS = [
    (CHAOS, "POISON_RECORDS", {"delivery_count": 3}, True,
     ["RAISE_DELIVERY_COUNT_LIMIT", "START_CONSUMERS", "MOVE_START"]),
    (CHAOS, "POISON_RECORDS", {"delivery_count": 3}, False, ["RAISE_DELIVERY_COUNT_LIMIT", "WAIT", "MOVE_START"]),
    (CHAOS, "IN_FLIGHT_LIMIT", {"record_locks": 20}, False,
     ["RAISE_PARTITION_MAX_RECORD_LOCKS", "RESTART_CONSUMERS", "WAIT", "MOVE_START"]),
    (CHAOS, "STALL", {"stall_minutes": 0.05}, False, ["FORBID_RENEWALS", "RESTART_CONSUMERS", "WAIT", "MOVE_START"]),
    (CHAOS, "STOP", {"stall_minutes": 0.01}, True, ["START_CONSUMERS"]),
    (DLQ, "ARCHIVING_STUCK", {"archiving_seconds": 0}, True,
     ["START_CONSUMERS", "FIX_DLQ", "RESTART_LEADER", "MOVE_START", "RESET_TO_LATEST"]),
    (DLQ, "ARCHIVING_STUCK", {"archiving_seconds": 0}, False,
     ["WAIT", "FIX_DLQ", "RESTART_LEADER", "MOVE_START", "RESET_TO_LATEST"]),
    (CHAOS, "CUTOFF_PINNED", {"pinned_records": 1}, True, ["WAIT", "DELETE_OFFSETS"]),
]  # fmt: skip
"""Source, trouble, limits, whether it is known that the groups are empty, and options in their order."""


@pytest.mark.parametrize(("source", "trouble", "limits", "are_empty", "actions"), some_of(KINDS, 2))
def test_each_trouble_has_its_options_in_order_of_harm(
    source: Path,
    trouble: str,
    limits: dict[str, float],
    are_empty: bool,
    actions: list[str],
) -> None:
    groups = None if are_empty else ()
    found = repair(source, limits=limits, most=1000, topics=source / "topics.json", groups=groups)
    repairs = [
        one for one in found.to_json()["share_partitions"]
        if one["trouble"] == trouble and [o["action"] for o in one["options"] if o["action"] in actions] == actions
    ]  # fmt: skip
    assert repairs, [(one.trouble, [o.action for o in one.options]) for one in found.repairs]
    in_flight = _in_flight(source)
    for one in repairs:
        harms = [HARM.index(option["harm"]) for option in one["options"]]
        assert harms == sorted(harms)
        ranges = in_flight.get((one["group_id"], one["topic_id"], one["partition"]), [])
        for option in one["options"]:
            skips = option["effect"] is not None and bool(option["effect"]["skipped"])
            assert harms[one["options"].index(option)] >= HARM.index("records are skipped") * skips
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


@nightly("an audit")
def test_a_full_window_has_room_after_its_limit_is_raised(share_state: Command) -> None:
    found = _plan(share_state, CHAOS, "--set", "limits.record_locks=20")
    one = next(one for one in found if one["trouble"] == "IN_FLIGHT_LIMIT")
    raised = next(option for option in one["options"] if option["action"].startswith("RAISE_PARTITION"))
    assert raised["effect"]["start_offset"] == one["now"]["start_offset"]
    assert raised["effect"]["end_offset"] - raised["effect"]["start_offset"] >= 40
    assert "share.partition.max.record.locks=40" in raised["command"]


@nightly("an audit")
def test_a_delivery_limit_that_the_log_exceeds_is_taken_from_the_log(share_state: Command) -> None:
    """The limit of this broker was 3."""
    found = _plan(share_state, CHAOS, "--set", "limits.delivery_count=2")
    assert any("AVAILABLE after delivery 2 of at least 3;" in one["sentence"] for one in found)
    raised = [o["what"] for one in found for o in one["options"] if o["action"] == "RAISE_DELIVERY_COUNT_LIMIT"]
    assert raised
    assert all("Raise the delivery limit from 3 to 6," in what for what in raised)


@nightly("two audits")
def test_a_restarted_broker_did_what_the_plan_had_foretold(share_state: Command) -> None:
    """The log of a 4.4 broker up to its restart, and what its next leaders wrote about ARCHIVING after that."""
    until = datetime(2026, 11, 21, 4, 49, 18, 500_000, UTC)
    found = _plan(share_state, DLQ, "--set", "limits.archiving_seconds=0", "--as-of-time", until.isoformat())
    written: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in arrow(timeline(DLQ, group="dq-copy")).to_pylist():
        written.setdefault((row["group_id"], row["topic_id"], row["partition"]), []).append(row)
    archived = 0
    for one in found:
        rows = written.get((one["group_id"], one["topic_id"], one["partition"]), [])
        waiting = _archiving([row for row in rows if row["timestamp"] <= until][-1:])
        later = next((row for row in rows if row["timestamp"] > until and not waiting & _archiving([row])), None)
        if waiting and later:
            option = next(option for option in one["options"] if option["action"] == "RESTART_LEADER")
            assert one["now"]["start_offset"] < option["effect"]["start_offset"] == later["effective_start_offset"]
            archived += len(waiting)
    assert archived == 29


def _archiving(rows: list[dict[str, Any]]) -> set[int]:
    ranges = [one for row in rows for one in row["state_batches"] or () if one["delivery_state"] == 3]
    return {offset for one in ranges for offset in range(one["first_offset"], one["last_offset"] + 1)}


@nightly("two audits")
@pytest.mark.parametrize(("release", "trouble"), [("4.2", "UNLOADABLE"), ("4.3", "ARCHIVING_STUCK")])
def test_only_an_upgrade_resumes_dead_letters_that_a_later_release_left(
    share_state: Command, release: str, trouble: str
) -> None:
    found = _plan(share_state, DLQ, "--set", "limits.archiving_seconds=0", "--release", release)
    stuck = [one for one in found if one["trouble"] == trouble]
    assert stuck
    for one in stuck:
        upgrade = next(option for option in one["options"] if option["action"] == "UPGRADE")
        assert "ARCHIVING" not in upgrade["effect"]["in_flight"]
        assert not {"WAIT", "FIX_DLQ", "RESTART_LEADER"} & {option["action"] for option in one["options"]}


def test_a_state_that_no_leader_loads_is_trouble(share_state: Command, tmp_path: Path) -> None:
    folder = write_log_folder(tmp_path, 0, [batch([snapshot(KEY, [(8, 12, 0, 1)], start_offset=10)])])
    (found,) = _plan(share_state, folder)
    assert found["trouble"] == "UNLOADABLE"
    assert "a persisted batch begins before the start offset 10" in found["sentence"]
    assert "ASK_BROKER" in {option["action"] for option in found["options"]}


def test_an_idle_cluster_in_order_needs_no_plan(share_state: Command) -> None:
    said = share_state("repair", DATA / "4.3.1/happy", "--quiet")
    assert said.code == 0
    assert "No share-partition is in trouble, but there are errors or warnings: NO_MEMBERS (2)" in said.out
    plan = share_state("repair", CHAOS, "--group", "g0", "--json", "--quiet").json["share_partitions"]
    assert {(one["trouble"], one["options"][0]["action"]) for one in plan} == {("NO_MEMBERS", "START_CONSUMERS")}


def test_input_without_offsets_gets_no_command_that_needs_one(share_state: Command, tmp_path: Path) -> None:
    plan = tmp_path / "rep.sh"
    said = share_state(
        "repair", DATA / "4.3.1/happy/console-consumer-formatter.txt", "--set", "limits.delivery_count=2", "--out", plan
    )
    assert said.code == 0
    assert "# `bash rep.sh 1.2` carries out option 1.2" in plan.read_text()
    assert "None" not in plan.read_text()
    assert "check)" not in plan.read_text()
    assert subprocess.run(["bash", "-n", plan], check=False).returncode == 0


KEY: Key = ("app", "AAECAwQFBgcICQoLDA0ODw", 0)
_SNAPSHOT, _UPDATE = snapshot(KEY, [(0, 4, 0, 4)]), update(KEY, [(5, 9, 0, 4)])
_SOUND = [_SNAPSHOT, _UPDATE, _UPDATE]
SUSPECT: dict[str, tuple[list[list[Record]], str]] = {
    "a batch that fails its CRC": ([_SOUND], "missing or unreadable"),
    "a batch that is missing": ([_SOUND], "missing or unreadable"),
    "a value that cannot be decoded": (
        [[_SNAPSHOT, Record(_UPDATE.key, b"\0\1\2"), _UPDATE]], "missing or unreadable",
    ),
    "a key in two state partitions": ([_SOUND, _SOUND], "in several state partitions"),
    "an update that no snapshot precedes": ([[_UPDATE, _UPDATE]], "that no snapshot precedes"),
    "an update of a missing snapshot": (
        [[_SNAPSHOT, update(KEY, [(5, 9, 0, 4)], snapshot_epoch=1)]], "the snapshot before it 0",
    ),
    "a missing snapshot": ([[_SNAPSHOT, snapshot(KEY, [(0, 4, 0, 4)], snapshot_epoch=2)]], "expected 1"),
}  # fmt: skip


@pytest.mark.parametrize("cause", some_of(SUSPECT, 3))
def test_a_suspect_state_is_said_first_and_nothing_risky_is_offered(tmp_path: Path, cause: str) -> None:
    logs, text = SUSPECT[cause]
    for number, records in enumerate(logs):
        place = write_log_folder(tmp_path, number, [batch([one]) for one in records])
        path = next(place.glob("*.log"))
        if "CRC" in cause:
            path.write_bytes(flipped(path.read_bytes(), batch=1))
        if "batch that is missing" in cause:
            placed = consecutive([batch([one]) for one in records], 0)
            write_segment(place, [placed[0], placed[2]])
    plan = repair(tmp_path)
    (found,) = plan.repairs
    assert found.trouble == "STATE_SUSPECT"
    assert found.sentence.startswith("Do not act on this state")
    assert text in found.sentence
    assert [option.action for option in found.options] == ["EXPORT_AGAIN", "ASK_BROKER"]
    assert {HARM[option.harm] for option in found.options} == {"no harm"}
    assert all(not option.command or " --describe " in option.command for option in found.options)
    assert plan.to_json()["share_partitions"][0]["suspect"]


def test_a_snapshot_after_a_broken_chain_is_trusted(tmp_path: Path) -> None:
    broken = [_SNAPSHOT, update(KEY, [(5, 9, 0, 4)], snapshot_epoch=1), snapshot(KEY, [(0, 9, 0, 4)], snapshot_epoch=1)]
    write_log_folder(tmp_path, 0, [batch([one]) for one in broken])
    assert [one.trouble for one in repair(tmp_path).repairs] == ["POISON_RECORDS"]


@nightly("an audit for each form")
def test_a_warehouse_has_the_plan_of_its_input(share_state: Command, tmp_path: Path) -> None:
    limits = ("--set", "limits.record_locks=20", "--set", "limits.groups.g0={record_locks: 30}")
    lake = tmp_path / "lake"
    assert share_state("audit", CHAOS, "--out", lake, *limits, "--fail-on", "off", "--quiet").code == 0
    of_input = share_state("repair", CHAOS, *limits, "--json", "--quiet").json
    of_tables = share_state("repair", lake, "--json", "--quiet").json
    assert of_input["share_partitions"]
    assert of_tables == of_input
    in_python = repair(CHAOS, limits={"record_locks": 20, "groups": {"g0": {"record_locks": 30}}}, group="g0")
    assert [one.sentence for one in in_python.repairs if one.trouble != "NO_MEMBERS"] == [
        one["sentence"] for one in of_input["share_partitions"] if one["group_id"] == "g0"
    ]
    assert in_python.repairs[0].sentence in repr(in_python)
    with pytest.raises(ShareStateError, match="is a warehouse, which keeps the options of its run; leave out others"):
        repair(lake, limits={"record_locks": 20})
    assert share_state("repair", lake, "--as-of-time", "2026-11-21", "--quiet").code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--group", "g99"), "group g99: not found; the nearest of"),
        (("--out", "plan.txt"), "plan.txt: give a name that ends in .md, .sh or .json"),
        (("--out", "no/folder/plan.md"), "no/folder/plan.md: the folder no/folder does not exist"),
        (("--release", "3.9"), "--release 3.9: give one of 4.0, 4.1, 4.2, 4.2.0, 4.2.1, 4.3, 4.4"),
        (("--set", "fail_on=off"), "--set fail_on=off: give a limit as --limit NAME=VALUE"),
    ],
)
def test_unusable_calls_are_refused(share_state: Command, arguments: tuple[str, ...], message: str) -> None:
    said = share_state("repair", CHAOS, *arguments, "--quiet")
    assert said.code == 2
    assert message in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("release", "without"),
    some_of(
        [
            ("4.0", {"MOVE_START", "RESET_TO_LATEST", "FORBID_RENEWALS"}),
            ("4.1", {"RESET_TO_LATEST", "FORBID_RENEWALS"}),
            ("4.3", set[str]()),
        ],
        2,
    ),
)
def test_commands_are_those_of_the_release(release: str, without: set[str]) -> None:
    limits = {"record_locks": 20, "stall_minutes": 0.05}
    found = repair(CHAOS, topics=CHAOS / "topics.json", groups=(), limits=limits, release=release, most=1000)
    options = [option for one in found.repairs for option in one.options]
    actions = {option.action for option in options}
    assert not actions & without
    assert {"MOVE_START", "RESET_TO_LATEST", "FORBID_RENEWALS"} - without <= actions
    raised = [option.command for option in options if option.action.startswith("RAISE")]
    assert raised
    assert all(bool(command) == (release >= "4.3") for command in raised)


_STUB = '#!/bin/sh\nprintf \'%s\\0\' "${0##*/}" "$@"\n'
"""Stands for a tool: it prints its name and arguments, which shows what bash passes."""


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str], list[str]]:
    """Runs lines of bash, where the tools print what they are given."""
    reads = {"jshell": "cat\n", "awk": "printf '%s\\0' \"$TOPIC\"; cat\n"}
    for tool in ("kafka-share-groups.sh", "kafka-configs.sh", "jshell", "awk", "share-state"):
        (tmp_path / tool).write_text(_STUB + reads.get(tool, ""))
        (tmp_path / tool).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "BOOTSTRAP": "b:9092", "KAFKA_LIBS": "/opt/kafka libs"}

    def run(lines: str) -> list[str]:
        done = subprocess.run(["bash", "-eu"], input=lines.encode(), capture_output=True, check=True,
                              cwd=tmp_path, env=environment)  # fmt: skip
        assert not done.stderr
        return done.stdout.decode().split("\0")

    return run


_NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufffd")
    | st.sampled_from("'\"`$\\!;&|<>(){}*?#~ \n\r\t"),
    min_size=1,
).filter(can_be_named)


@nightly("start-ups of Java")
@pytest.mark.parametrize("release", ["4.3", "4.4"])
@example("$(echo no)`id`; false #", "a b\n```\n# 1\nEND\n")
@example("'\"\\$'\\101' !! %s \\u0022", "-t&|<>(){}*?~")
@settings(max_examples=by_profile(4, 150))
@given(_NAMES, _NAMES)
def test_any_names_arrive_at_kafkas_tools_as_they_are(
    shell: Callable[[str], list[str]], tmp_path: Path, release: str, group: str, topic: str
) -> None:
    """From the script and from the Markdown alike; and neither prints or runs anything else."""
    found = replace(_full_window(group, topic, 3), releases=(release,))
    plan = RepairPlan(repairs(found, KafkaTools(properties="my client.properties")), found)
    for name in ("plan.sh", "plan.md"):
        plan.write(str(tmp_path / name))
    script, text = tmp_path / "plan.sh", (tmp_path / "plan.md").read_text(encoding="utf-8")
    assert shell(f"bash {quote(str(script))}") == [text]
    options = [option for option in plan.repairs[0].options if option.command]
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if line.startswith("```")]
    blocks = ["\n".join(lines[begin + 1 : end]) for begin, end in zip(fences[::2], fences[1::2], strict=True)]
    assert blocks == [*(option.command for option in options), plan.repairs[0].check]
    assert sum(line.startswith("#") for line in lines) == 2 + len(plan.repairs[0].options)
    numbers = [f"1.{place}" for place, option in enumerate(plan.repairs[0].options, 1) if option.command]
    passed = shell("\n".join(f"bash {quote(str(script))} {number}" for number in (*numbers, "1.check")))
    assert passed == shell("\n".join(blocks))
    called = {"kafka-share-groups.sh": f"--group={group}", "kafka-configs.sh": f"--entity-name={group}",
              "share-state": f"--group={group}"}  # fmt: skip
    assert called.keys() | called.values() | {f"--topic={topic}:0", "my client.properties"} <= {*passed}
    if release == "4.4":
        assert {"--to-offset=103", "awk", topic} <= {*passed}
        return
    (java,) = [one for one in passed if "alterShareGroupOffsets" in one]
    (literals,) = re.findall(r'alterShareGroupOffsets\((".*"), java.*TopicPartition\((".*"), 0\)', java)
    assert [json.loads(one) for one in literals] == [group, topic]


@pytest.mark.parametrize(
    ("group", "topic", "why"),
    [("", "t", "the group id is not UTF-8"), ("bad\ufffdbytes", "t", "the group id is not UTF-8"),
     ("bad\\xff", "t", "the group id is not UTF-8"), ("nul\0", "t", "the group id is not UTF-8"),
     ("g", None, "the topic's name is unknown")],
)  # fmt: skip
def test_what_cannot_be_named_has_no_command(group: str, topic: str | None, why: str) -> None:
    (found,) = repairs(_full_window(group, topic, 100), KafkaTools())
    assert {"RAISE_PARTITION_MAX_RECORD_LOCKS", "MOVE_START"} <= {option.action for option in found.options}
    assert not any(option.command for option in found.options)
    assert why in " ".join(option.what for option in found.options)


@pytest.mark.parametrize(
    ("release", "epoch", "actions"),
    [("4.4", 2, ["ASK_BROKER", "RECREATE_GROUP"]), ("4.4", 3, ["ASK_BROKER", "LEAVE"]),
     ("4.0", 2, ["ASK_BROKER", "UPGRADE"])],
)  # fmt: skip
def test_state_of_a_group_that_does_not_exist_has_options_that_brokers_accept(
    release: str, epoch: int, actions: list[str]
) -> None:
    survey = _full_window("g", "t", 100)
    troubles = {"ORPHAN_SHARE_STATE": "no group", **survey.found[0].troubles}
    status = replace(survey.found[0], troubles=troubles, row={**survey.found[0].row, "state_epoch": epoch})
    (found,) = repairs(replace(survey, found=(status,), releases=(release,)), KafkaTools(properties="c.properties"))
    assert [option.action for option in found.options] == actions
    if actions[-1] == "RECREATE_GROUP":
        joined, deleted = found.options[-1].command.splitlines()
        assert "--consumer-config c.properties --release --max-messages=1" in joined
        assert "--command-config c.properties --delete" in deleted


def test_the_largest_window_is_planned_quickly() -> None:
    """Each record of a window of ten thousand failed four of five deliveries, so brokers hand them out one by one."""
    begun = time.monotonic()
    (found,) = repairs(_full_window("g", "t", 10_000), KafkaTools())
    assert time.monotonic() - begun < 2
    wait = next(option for option in found.options if option.action == "WAIT")
    assert (wait.action, wait.effect and wait.effect.skipped) == ("WAIT", ((0, 9_999),))


def _full_window(group: str, topic: str | None, records: int) -> Survey:
    """A share-partition with records that have one delivery left, and finished ones after them."""
    row = dict.fromkeys(("write_time", "moved_time", "verdict", "reason"))
    row |= {"group_id": group, "topic_id": "We0ABtXRQ0uVly26I_w1Mw", "topic": topic, "partition": 0}
    row |= dict.fromkeys(("state_partition", "start_offset", "delivery_complete_count", "updates_since_snapshot"), 0)
    row |= dict.fromkeys(("snapshot_epoch", "state_epoch", "leader_epoch", "snapshot_offset"), 1)
    row |= {"effective_start_offset": 0, "topic_end_offset": 2 * records + 200, "suspect": False}
    ranges = (StateBatch(0, records - 1, DeliveryState.AVAILABLE, 4),
              StateBatch(records, records + 99, DeliveryState.ACKNOWLEDGED, 1))  # fmt: skip
    cutoff = {"log_end_offset": 10, "cutoff_offset": 5}
    status = SharePartitionStatus(row, ranges, frozenset(), {"IN_FLIGHT_LIMIT": "the window is full"}, 0, cutoff, None)
    return Survey((status,), 0, Limits(), frozenset(), ("4.4",), None, ("export",))


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
    assert "no record beyond them is delivered until" in shown.stdout
    assert run(["bash", script, "77.1"]).returncode == 2
    number = next(
        line.split()[1] for line in shown.stdout.splitlines() if line.startswith("###") and "RAISE_PARTITION" in line
    )
    stub = tmp_path / "kafka-configs.sh"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert "BOOTSTRAP: host:port of a broker" in run(["bash", script, number], env=path).stderr
    done = run(["bash", script, number], env=path | {"BOOTSTRAP": "b:9092"})
    assert done.stdout.split()[:3] == ["--bootstrap-server", "b:9092", "--alter"]
