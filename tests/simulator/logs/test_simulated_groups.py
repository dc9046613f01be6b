"""Simulated `__consumer_offsets`: the groups fold to their truth, and every fault of a group is found."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from share_state.cli.main import run
from share_state.errors import ShareStateError
from share_state.fold.groups.group_tables import FoldedGroups, fold_groups
from share_state.kafka.releases import LATEST
from share_state.rules.registry import Scope, registered
from share_state.simulator.events import EventError
from share_state.simulator.faults import ALL
from share_state.simulator.group_coordinator import GroupCoordinator
from share_state.simulator.group_faults import GROUP_FAULTS
from share_state.simulator.metadata_hash import group_hash, topic_hash
from share_state.simulator.simulation import Simulation, simulate
from share_state.simulator.types import ErrorCode
from share_state.sources.discovery import find_group_logs
from tests.cli.commands import run_cli
from tests.profiles import nightly, some_of
from tests.truth import DATA
from tests.warehouses import WrittenTables

HOUR_AGO = 1_700_000_000_000
NOT_PLANTED = {"ADDED_PARTITION_UNINITIALIZED"}
"""Rules over share groups that need more than records: this one the metadata log."""


def folded(folder: Path) -> FoldedGroups:
    return fold_groups(find_group_logs([str(folder)]))


def truth(folder: Path) -> dict[str, dict[str, Any]]:
    lines = (folder / "group-truth.jsonl").read_text().splitlines()
    return {row["group"]: row for row in map(json.loads, lines)}


def played(folder: Path, told: list[tuple[str, int, dict[str, Any]]], **options: Any) -> Simulation:
    """Simulate events; each gets its number."""
    rows = [{"event": kind, "seq": n, "ts_ms": HOUR_AGO + at} | row for n, (kind, at, row) in enumerate(told)]
    (folder / "events").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    asked: dict[str, Any] = {"state_partitions": 1, "group_partitions": 2, "traces": True, "consumer_offsets": True}
    asked["events"] = folder / "events"
    return simulate(folder / "out", **(asked | options))


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out/results.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("release", some_of(["4.4", "4.2.0"], 1))
def test_simulated_groups_fold_to_their_truth_without_a_fault(tmp_path: Path, release: str):
    done = simulate(tmp_path, seed=4, groups=8, minutes=2, release=release, consumer_offsets=True, group_partitions=3)
    groups, told = folded(tmp_path), truth(tmp_path)
    assert done.records > sum(groups.record_counts.values()) > 100
    assert groups.live.keys() == told.keys()
    assert not groups.faults and not groups.epoch_steps
    for group_id, group in groups.live.items():
        own, listed = told[group_id], groups.state_partitions[group_id]
        assert (group.epoch, group.assignment_epoch) == (own["groupEpoch"], own["assignmentEpoch"])
        assert {one.member_id: [one.member_epoch, [*one.subscribed_topics]] for one in group.members.values()} == {
            one["member"]: [one["epoch"], one["topics"]] for one in own["members"]
        }
        assigned = {one["member"]: {topic: tuple(some) for topic, some in one["assigned"].items()}
                    for one in own["members"]}  # fmt: skip
        assert {name: member.assigned for name, member in group.members.items()} == assigned == group.targets
        for status in ("initialized", "initializing"):
            lists = {topic: tuple(some) for topic, some in own[status].items()}
            assert getattr(listed, status) == lists
    subscriptions = {tuple(one["topics"]) for one in told["steady-0"]["members"]}
    assert len(subscriptions) == 2
    assert {group_id.split("-")[0] for group_id, group in groups.groups.items() if group.is_live} >= {"altered", "slow"}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Simulation, list[dict[str, Any]]]:
    """A history with every fault that suits it, and the findings of an audit."""
    logs, lake = tmp_path_factory.mktemp("logs"), tmp_path_factory.mktemp("lake") / "lake"
    small: dict[str, Any] = {"seed": 3, "groups": 40, "minutes": 1, "state_partitions": 20, "group_partitions": 5}
    done = simulate(logs, faults=[ALL], consumer_offsets=True, **small)
    assert run(["audit", str(logs), "--out", str(lake)]) == 1
    return done, WrittenTables(lake).read("findings").to_pylist()


@pytest.mark.parametrize("name", [fault.name for fault in GROUP_FAULTS])
def test_a_fault_of_a_group_is_found(broken: tuple[Simulation, list[dict[str, Any]]], name: str):
    simulation, found = broken
    (one,) = (planted for planted in simulation.planted if planted.fault == name)
    own = [row for row in found if row["rule"] == one.finding]
    if one.group is None:
        offsets = {(f"__consumer_offsets-{dict(row['evidence']).get('group_partition')}", row["offset"]) for row in own}
        assert ("-".join(map(str, one.log)), one.offset) in offsets
    else:
        subjects = {(row["group_id"], row["topic_id"], row["partition"]) for row in own}
        assert (one.group, one.topic_id, one.partition) in subjects


def test_every_rule_over_share_groups_has_a_fault():
    rules = {code for code, one in registered().items() if Scope.GROUPS in one.checks}
    assert rules - {fault.finding for fault in GROUP_FAULTS} == NOT_PLANTED


@nightly("an audit of every seed")
@pytest.mark.parametrize("seed", range(5))
def test_an_audit_of_a_healthy_group_side_finds_nothing_about_groups(tmp_path: Path, seed: int):
    simulate(tmp_path / "logs", seed=seed, groups=16, minutes=8, consumer_offsets=True)
    assert run(["audit", str(tmp_path / "logs"), "--out", str(tmp_path / "lake")]) in (0, 1)
    rules = {row["rule"] for row in WrittenTables(tmp_path / "lake").read("findings").to_pylist()}
    assert not {code for code in rules if Scope.GROUPS in registered()[code].checks}


TWO_TOPICS = [
    ("create_partitions", 0, {"topic": "t", "partitions": 2}),
    ("create_partitions", 0, {"topic": "u", "partitions": 1}),
    ("subscribe", 1, {"group": "g", "member": "a", "topics": ["t"]}),
    ("init", 2, {"group": "g", "topic": "t", "partition": 0, "state_epoch": 2, "start_offset": 0}),
    ("init", 2, {"group": "g", "topic": "t", "partition": 1, "state_epoch": 3, "start_offset": 0}),
    ("subscribe", 3, {"group": "g", "member": "b", "topics": ["u", "t"]}),
    ("init", 4, {"group": "g", "topic": "u", "partition": 0, "state_epoch": 5, "start_offset": 0}),
    ("subscribe", 5, {"group": "g", "member": "a", "topics": ["t"]}),
    ("leave_group", 6, {"group": "g", "member": "a"}),
    ("create_partitions", 7, {"topic": "t", "partitions": 3}),
]


def test_a_group_with_different_subscriptions_is_played(tmp_path: Path):
    played(tmp_path, TWO_TOPICS)
    group, listed = folded(tmp_path / "out").live["g"], folded(tmp_path / "out").state_partitions["g"]
    own = [row for row in results(tmp_path) if row["cause"] in ("subscribe", "leave_group")]
    topics = {row["name"]: row["topicId"] for row in json.loads((tmp_path / "out/topics.json").read_text())}
    t, u = topics["t"], topics["u"]
    # Join, two initializations, join, initialization, leave, and more partitions of a topic: an epoch each.
    assert group.epoch == 1 + 7
    assert [row.get("member_epoch") for row in own] == [2, 5, 6, None]
    assert own[2]["assigned"] == {t: [1]}
    assert group.targets == {"b": {t: (0, 1), u: (0,)}} == {"b": group.members["b"].assigned}
    assert (listed.initialized, listed.initializing) == ({t: (0, 1), u: (0,)}, {t: (2,)})
    assert group.metadata_hash == group_hash({"t": topic_hash(t, "t", [[]] * 3), "u": topic_hash(u, "u", [[]])})


def test_the_events_of_groups_give_the_same_bytes_again(tmp_path: Path):
    asked: dict[str, Any] = {"seed": 5, "consumer_offsets": True, "group_partitions": 3}
    first = simulate(tmp_path / "first", groups=4, minutes=1, **asked).folder
    again = simulate(tmp_path / "again", events=first / "events.jsonl", **asked).folder
    written = [path for path in first.rglob("*") if path.is_file() and path.name != "topics.json"]
    assert {path.relative_to(first): hashlib.sha256(path.read_bytes()).digest() for path in written} == {
        path.relative_to(first): hashlib.sha256((again / path.relative_to(first)).read_bytes()).digest()
        for path in written
    }


PLACE = {"group": "g", "topic": "t"}


def test_a_consumer_that_joins_is_a_member_until_it_no_longer_polls(tmp_path: Path):
    events = [
        ("join", 0, PLACE | {"member": "m", "max_poll_interval_ms": 1000}),
        ("init", 1, PLACE | {"state_epoch": 2, "start_offset": 0}),
        ("open", 2, PLACE | {"leader_epoch": 0}),
        ("poll", 3, PLACE | {"member": "m", "log_batches": [[0, 2]]}),
        ("advance", 1003, PLACE),
    ]
    played(tmp_path, events)
    assert folded(tmp_path / "out").live["g"].members["m"].subscribed_topics == ("t",)
    (tmp_path / "later").mkdir()
    played(tmp_path / "later", [*events, ("advance", 1005, PLACE)])
    assert folded(tmp_path / "later/out").live["g"].state == "Empty"
    assert [row["member"] for row in results(tmp_path / "later") if row["cause"] == "member_leave"] == ["m"]


def test_groups_audit_and_why_tell_of_simulated_members(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """A member reads ten records, accepts five and leaves."""
    events = [
        ("subscribe", 0, {"group": "g", "member": "m", "topics": ["t"]}),
        ("init", 1, PLACE | {"state_epoch": 2, "start_offset": 0}),
        ("open", 2, PLACE | {"leader_epoch": 0}),
        ("acquire", 3, PLACE | {"member": "m", "log_batches": [[0, 9]]}),
        ("ack", 4, PLACE | {"member": "m", "batches": [[0, 4, [1]]]}),
    ]
    left = [("member_leave", 5, PLACE | {"member": "m"}), ("leave_group", 5, {"group": "g", "member": "m"})]
    logs, later = tmp_path / "out", tmp_path / "later/out"
    later.parent.mkdir()
    played(tmp_path, events)
    played(later.parent, [*events, *left])
    members = run_cli(capfd, "groups", logs, "--members", "--json").json["members"]
    assert [(one["member_id"], [place["topic"] for place in one["assigned"]]) for one in members] == [("m", ["t"])]
    assert run_cli(capfd, "groups", later).table[1][:3] == ["g", "Empty", "0"]
    assert run_cli(capfd, "why", "g", logs).out.startswith("OK: ")
    assert run_cli(capfd, "why", "g", later).out.startswith("NO_MEMBERS: g t-0: 5 records wait, and the group has no")
    assert "1 NO_MEMBERS" in run_cli(capfd, "audit", later, "--out", tmp_path / "lake").out


def test_a_group_that_is_full_refuses_a_member():
    coordinator = GroupCoordinator(lambda *_: None, str, LATEST, 2)
    answers = [coordinator.subscribe("g", member, ["t"], 0) for member in ("a", "b", "c", "a")]
    assert answers == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.NONE]
    assert coordinator.groups["g"].members.keys() == {"a", "b"}


def test_a_group_that_loses_its_last_state_and_member_is_deleted(tmp_path: Path):
    events = [*TWO_TOPICS[:9], ("leave_group", 8, {"group": "g", "member": "b"})]
    events += [
        ("delete", 9, {"group": "g", "topic": topic, "partition": n}) for topic, n in (("t", 0), ("t", 1), ("u", 0))
    ]
    played(tmp_path, events)
    groups = folded(tmp_path / "out")
    assert groups.groups["g"].state == "Dead"
    assert not groups.state_partitions and not groups.faults and not truth(tmp_path / "out")


@pytest.mark.parametrize("scenario", ["4.1.2/happy", "4.2.1/happy", "4.3.1/happy", "4.4.0/happy"])
def test_the_hash_is_the_one_that_brokers_recorded(scenario: str):
    topics = json.loads((DATA / scenario / "topics.json").read_text())
    (orders,) = (topic for topic in topics if topic["name"] == "orders")
    hashed = topic_hash(orders["topicId"], "orders", [[]] * len(orders["partitions"]))
    steps = [row for log in find_group_logs([str(DATA / scenario)]) for row in recorded_hashes(log)]
    assert set(steps) == {group_hash({"orders": hashed}), group_hash({})}


def recorded_hashes(log: Any) -> list[int]:
    """The metadata hashes of a log of `__consumer_offsets`."""
    from share_state.kafka.group_records import (  # noqa: PLC0415
        GroupRecordType,
        read_group_records,
        read_value,
        record_types,
    )
    from share_state.sources.as_of import Window  # noqa: PLC0415
    from share_state.sources.segments import index_records, read_chunks  # noqa: PLC0415

    hashes = []
    for part in read_chunks(log, merge=True):
        records = index_records(part, log.log_start_offset, Window()).records
        types = record_types(part.data, records)
        hashes += [
            read_value(one.type, one.value).fields["metadata_hash"]
            for one in read_group_records(part.data, records, types)
            if one.type == GroupRecordType.SHARE_GROUP and one.value is not None
        ]
    return hashes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"release": "4.1"}, "--consumer-offsets with --release 4.1: its assignor is not simulated; give one of 4.2"),
        ({"dialect": "control_records"}, "--consumer-offsets: the groups of the draft are not simulated"),
        ({"events": None}, "--consumer-offsets and --requests: a request log has no heartbeats; give one of them"),
        ({"group_partitions": 0}, "--group-partitions 0: give at least 1"),
        ({"consumer_offsets": False}, "event 0: create_partitions needs --consumer-offsets"),
        ({"consumer_offsets": False, "faults": ["epoch-ahead"], "events": []},
         "fault epoch-ahead: no suitable group; simulate --consumer-offsets, and more groups or minutes"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_refused(tmp_path: Path, options: dict[str, Any], said: str):
    events = options.get("events", TWO_TOPICS)
    given = {name: value for name, value in options.items() if name != "events"}
    if events is None:
        events, given = [], given | {"events": None, "requests": tmp_path / "requests.log"}
    with pytest.raises(ShareStateError) as refused:
        played(tmp_path, events, **given)
    assert str(refused.value).startswith(said)


def test_an_event_of_a_group_in_the_past_is_refused(tmp_path: Path):
    events = [("subscribe", at, {"group": "g", "member": "m", "topics": ["t"]}) for at in (5, 4)]
    with pytest.raises(EventError, match="event 1: at 1700000000004 ms, but the time is already 1700000000005 ms"):
        played(tmp_path, events)
