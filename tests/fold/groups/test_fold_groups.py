"""Replay of `__consumer_offsets`: what each record changes, what its tombstone takes away, what is cheap to skip."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.groups.group_replay import GroupReplay
from share_state.fold.groups.group_tables import fold_groups
from share_state.kafka.group_records import GroupRecord
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_group_logs
from tests.fold.groups.group_writer import (
    QUIET,
    T,
    classic_group,
    classic_member,
    current,
    folded,
    group_metadata,
    member_metadata,
    share_group,
    state_partitions,
    subscription,
    target,
    target_epoch,
    told,
    write_group_log,
)
from tests.kafka.batches import NOW, Record, consecutive
from tests.log_writer import batch, write_segment

LEAVING = [told(13, "G1", "m1"), told(14, "G1", "m1"), told(10, "G1", "m1")]


def deletion(group: str, *members: str) -> list[Record]:
    """As Kafka deletes a group: per member 14, 13, 10, then 12, 15, 11."""
    return [
        *(told(record_type, group, member) for member in members for record_type in (14, 13, 10)),
        *(told(record_type, group) for record_type in (12, 15, 11)),
    ]


def test_a_share_group_is_what_its_records_tell(tmp_path):
    found = folded(tmp_path, QUIET)
    (row,) = found.share_groups.to_pylist()
    assert {name: row[name] for name in ("group_id", "state", "members", "group_epoch", "assignment_epoch")} == {
        "group_id": "G1",
        "state": "Stable",
        "members": 2,
        "group_epoch": 3,
        "assignment_epoch": 3,
    }
    assert (row["metadata_hash"], row["group_partition"], row["last_offset"]) == (255, 0, len(QUIET) - 1)
    assert row["group_epoch_time"].timestamp() * 1000 == NOW
    first, second = found.share_group_members.to_pylist()
    place = {"topic_id": T, "topic": "T", "partition": 0}
    assert (first["member_id"], first["assigned"], first["target"]) == ("m1", [place], [place])
    assert (first["client_id"], first["client_host"], first["rack_id"]) == ("c", "/h", None)
    assert (first["subscribed_topics"], first["member_epoch"], first["previous_member_epoch"]) == (["T"], 3, 2)
    assert (first["member_state"], second["member_id"]) == ("STABLE", "m2")
    assert [(row["partition"], row["status"], row["topic"]) for row in found.share_group_partitions.to_pylist()] == [
        (0, "initialized", "T"),
        (1, "initialized", "T"),
    ]
    assert found.topics.names.to_pylist() == [{"topic_id": T, "topic": "T"}]


def test_what_a_group_lists_is_told_in_order_and_once(tmp_path):
    """Share-partitions by topic id; those of a member by topic name first."""
    other = "AAAAAAAAAAAAAAAAAAAAEg"
    listed = {T: [2, 0, 2], other: [1]}
    records = [
        *share_group("G1", {"m1": listed, "m2": {}}, ready={}),
        state_partitions("G1", listed, names={other: "U"}),
    ]
    found = folded(tmp_path, records)
    places = [(row["topic_id"], row["partition"]) for row in found.share_group_partitions.to_pylist()]
    assert places == [(other, 1), (T, 0), (T, 2)]
    first, second = found.share_group_members.to_pylist()
    told = [{"topic_id": T, "topic": "T", "partition": partition} for partition in (0, 2)]
    assert first["assigned"] == first["target"] == [*told, {"topic_id": other, "topic": "U", "partition": 1}]
    assert second["assigned"] == second["target"] == []


def test_a_group_is_stable_with_members_empty_without_and_dead_once_deleted(tmp_path):
    states = []
    records = [*QUIET, *deletion("G1", "m1", "m2")]
    place = write_group_log(tmp_path, records)
    (log,) = find_group_logs([str(place)])
    for until in (len(QUIET), len(QUIET) + 3, len(QUIET) + 6, len(records)):
        found = fold_groups([log], Window(until_offset=until))
        assert found.faults == []
        (row,) = found.share_groups.to_pylist()
        states.append((row["state"], row["members"]))
    assert states == [("Stable", 2), ("Stable", 1), ("Empty", 0), ("Dead", 0)]
    assert found.live == {}
    assert found.share_group_partitions.num_rows == 0


def test_a_deleted_group_may_be_made_again(tmp_path):
    found = folded(tmp_path, [*QUIET, *deletion("G1", "m1", "m2"), *share_group("G1", {}, epoch=1, ready={})])
    assert found.faults == []
    assert found.epoch_steps == []
    (row,) = found.share_groups.to_pylist()
    assert (row["state"], row["group_epoch"]) == ("Empty", 1)


def test_a_group_that_was_only_given_offsets_lives_without_an_epoch(tmp_path):
    """Altering offsets of an unknown group writes its share-partitions alone."""
    found = folded(tmp_path, [state_partitions("G5", {}, {T: [0]}), state_partitions("G5", {T: [0]})])
    (row,) = found.share_groups.to_pylist()
    assert (row["state"], row["group_epoch"], row["assignment_epoch"]) == ("Empty", None, None)


def test_the_latest_list_of_share_partitions_replaces_the_whole_one_before(tmp_path):
    other = "AAAAAAAAAAAAAAAAAAAAKw"
    records = [
        state_partitions("G1", {T: [0]}, {T: [1]}),
        state_partitions("G1", {other: [0]}, deleting=[T], names={other: "U"}),
    ]
    rows = folded(tmp_path, records).share_group_partitions.to_pylist()
    assert [(row["topic"], row["partition"], row["status"], row["offset"]) for row in rows] == [
        ("T", None, "deleting", 1),
        ("U", 0, "initialized", 1),
    ]


@pytest.mark.parametrize(
    ("early", "text"),
    [
        ([told(11, "G1")], "the group is deleted while 2 members"),
        ([told(10, "G1", "m1")], "member m1 is deleted while it is at epoch 3"),
        ([told(12, "G1")], "the assignment is deleted while 2 members"),
        ([told(14, "G1", "m1"), told(10, "G1", "m1")], "member m1 is deleted while it is at epoch -1"),
    ],
)
def test_what_is_deleted_too_early_is_told(tmp_path, early, text):
    """GroupMetadataManager.replay throws; the broker's load of the partition fails."""
    found = folded(tmp_path, [*QUIET, *early])
    (fault,) = found.faults
    assert (fault.code, fault.group_id, fault.offset) == ("GROUP_DELETED_IN_USE", "G1", len(QUIET) + len(early) - 1)
    assert fault.message.startswith(text)


def test_tombstones_of_what_is_not_there_are_nothing(tmp_path):
    """Kafka skips them: compaction took what they delete."""
    tombstones = [told(record_type, "G9", "m9") for record_type in (10, 13, 14)]
    tombstones += [told(record_type, "G9") for record_type in (9, 11, 12, 15)]
    found = folded(tmp_path, tombstones)
    assert found.faults == []
    assert found.live == {}


def test_epochs_that_do_not_rise_by_one_are_noted(tmp_path):
    found = folded(tmp_path, [group_metadata("G1", epoch) for epoch in (3, 4, 7, 5, 5)])
    assert [(step.offset, step.before, step.after) for step in found.epoch_steps] == [(2, 4, 7), (3, 7, 5), (4, 5, 5)]


def test_records_count_by_offset_and_time(tmp_path):
    place = tmp_path / "__consumer_offsets-0"
    place.mkdir()
    batches = [batch([group_metadata("G1", epoch)], timestamp=NOW + 1000 * epoch) for epoch in range(5)]
    write_segment(place, consecutive(batches))
    logs = find_group_logs([str(tmp_path)])
    assert fold_groups(logs, Window(until_offset=3)).groups["G1"].epoch == 2
    assert fold_groups(logs, Window(until_time_ms=NOW + 1000)).groups["G1"].epoch == 1
    assert fold_groups(logs, Window(from_offset=4)).record_counts == {11: 1}


def test_a_group_in_two_partitions_is_that_of_the_one_it_belongs_to(tmp_path):
    """G1 belongs to partition 0 of 2."""
    write_group_log(tmp_path, [group_metadata("G1", 5)], 0, NOW)
    write_group_log(tmp_path, [group_metadata("G1", 9)], 1, NOW + 1000)
    found = fold_groups(find_group_logs([str(tmp_path)]), partition_count=2)
    assert (found.groups["G1"].epoch, found.groups["G1"].partition) == (5, 0)
    assert found.places == [(0, "G1"), (1, "G1")]
    unknown = fold_groups(find_group_logs([str(tmp_path)]), partition_count=None)
    assert unknown.partition_count is None  # half of the groups lie elsewhere: there are more partitions
    assert unknown.groups["G1"].epoch == 9


def test_a_folder_without_a_partition_in_its_name_is_read(tmp_path):
    place = write_group_log(tmp_path, QUIET)
    place.rename(tmp_path / "copied")
    found = fold_groups(find_group_logs([str(tmp_path / "copied")]))
    assert found.partitions == ()
    assert found.groups["G1"].partition is None
    assert not found.covers("G1")


def test_classic_and_consumer_groups_are_kept_apart(tmp_path):
    member = classic_member("m1", subscription(["t"]))
    consumer = Record(bytes.fromhex("000300024332"), b"\0\0\0\0\0\1\0")
    records = [classic_group("C1", 1, [member], "range"), consumer, classic_group("C3", 1, [member], "sticky")]
    found = folded(tmp_path, [*records, Record(records[2].key, None)])
    assert (found.classic.keys(), found.consumer_groups) == ({"C1"}, {"C2"})
    assert [one.group_id for one in found.sticky] == ["C3"]
    assert found.groups == {}


STEPS = st.lists(
    st.sampled_from(
        [
            group_metadata("G1", 1),
            group_metadata("G1", 2),
            member_metadata("G1", "m1"),
            current("G1", "m1", 2, {T: [0]}),
            target("G1", "m1", {T: [0]}),
            target_epoch("G1", 2),
            state_partitions("G1", {T: [0]}),
            *LEAVING,
            *(told(record_type, "G1") for record_type in (11, 12, 15)),
        ]
    ),
    max_size=30,
)


@given(STEPS)
def test_a_replay_holds_what_the_latest_record_of_each_key_says(steps):
    """Against a dictionary: compaction keeps the latest record of a key, and the fold must not need more."""
    replay = GroupReplay(partition=0)
    latest: dict[bytes | None, Record] = {}
    for offset, one in enumerate(steps):
        replay.apply(_as_read(offset, one))
        latest[one.key] = one
        if one == told(11, "G1"):
            for key in [key for key in latest if key is not None and key[1] in (10, 11, 12, 13, 14)]:
                latest[key] = replace(latest[key], value=None)
    group = replay.groups.get("G1")
    member = told(10, "G1", "m1").key
    listed = latest.get(told(15, "G1").key)
    assert ("G1" in replay.state_partitions) == (listed is not None and listed.value is not None)
    epoch = latest.get(told(11, "G1").key)
    assert (group.epoch if group else None) == (
        int.from_bytes(epoch.value[2:6], "big") if epoch and epoch.value else None
    )
    described = latest.get(member)
    has_member = bool(group and "m1" in group.members and group.members["m1"].is_described)
    assert has_member == (described is not None and described.value is not None)
    goal = latest.get(told(13, "G1", "m1").key)
    assert bool(group and "m1" in group.targets) == (goal is not None and goal.value is not None)


def _as_read(offset: int, one: Record) -> GroupRecord:
    assert one.key is not None
    return GroupRecord(int.from_bytes(one.key[:2], "big"), offset, NOW, one.key, one.value)


def test_a_million_committed_offsets_are_passed_over_in_seconds(tmp_path):
    """Type 1: not a line of Python a record."""
    key = bytes.fromhex("0001000263670001740000")
    (commits,) = consecutive([batch([Record(key + number.to_bytes(2, "big"), bytes(24)) for number in range(5000)])])
    written = commits.written()[8:]
    place = write_group_log(tmp_path, QUIET)
    with (place / f"{0:020}.log").open("ab") as file:
        for number in range(200):
            # The checksum does not cover the base offset.
            file.write((len(QUIET) + 5000 * number).to_bytes(8, "big") + written)
    logs = find_group_logs([str(tmp_path)])
    fold_groups(logs, Window(until_offset=1))
    began = time.perf_counter()
    found = fold_groups(logs)
    took = time.perf_counter() - began
    assert found.record_counts[1] == 1_000_000
    assert (found.groups["G1"].state, found.faults) == ("Stable", [])
    assert took < 5, f"{took:.2f} s"
