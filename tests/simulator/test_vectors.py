"""Whole histories with what must be persisted of them, in both dialects; numbers are those of a real 4.3.1 machine."""

import pytest

from share_state.simulator import events as ev
from share_state.simulator.acquisition import AcquireMode
from share_state.simulator.player import EventPlayer
from share_state.simulator.settings import PlayerSettings
from share_state.simulator.types import ErrorCode, SharePartitionKey
from tests.simulator.history import ACCEPT, GAP, REJECT, RELEASE, RENEW, History, batches, short


@pytest.fixture
def worked_example() -> History:
    history = History(start=100)
    history.acquire("100-109")
    history.ack("100-109", ACCEPT)
    history.acquire("110-119")
    history.ack("110", RELEASE)
    history.ack("119", ACCEPT)
    history.advance(1000)
    assert history.acquire("110-120") == [(110, 110, 2), (120, 120, 1)]
    assert history.ack("113-118", RENEW) is ErrorCode.NONE
    history.advance(30_001)
    history.ack("113-118", ACCEPT)
    history.acquire("111-112")
    history.ack("110", ACCEPT)
    history.ack("111-112", ACCEPT)
    return history


def test_v1_the_worked_example_in_the_state_dialect(worked_example: History):
    assert worked_example.writes == [
        (100, 10, "100-109:2/1"),
        (110, 0, "110:0/1"),
        (110, 1, "119:2/1"),
        (110, 1, "111:0/1"),
        (110, 1, "112:0/1"),
        (110, 7, "113-118:2/1"),
        (110, 8, "110:2/2"),
        (111, 9, "111-112:2/2"),
    ]
    assert short(worked_example.recorded.batches) == "111-112:2/2, 113-119:2/1"
    assert worked_example.recorded.start_offset == 111
    assert worked_example.recorded.delivery_complete_count == 9


def test_v1_the_worked_example_in_the_draft(worked_example: History):
    assert worked_example.checkpoints == [(100, 100, "")]
    assert worked_example.deltas == [
        "100-109:2/1",
        "110:0/1",
        "111-118:0/0, 119:2/1",
        "111-112:0/1",
        "113-118:2/1",
        "110:2/2",
        "111-112:2/2",
    ]


def test_v1_memory_after_the_worked_example(worked_example: History):
    assert worked_example.memory == "120:1/1"
    assert (worked_example.start, worked_example.partition.end_offset) == (120, 121)


def test_v1_a_checkpoint_leaves_first_deliveries_out(worked_example: History):
    worked_example.apply(ev.Checkpoint)
    assert worked_example.checkpoints[-1] == (120, 120, "")


def test_v2_the_delivery_limit_counts_releases_and_timeouts_alike():
    history = History(limit=2)
    for _ in range(2):
        history.acquire("0-1")
        history.ack("0-1", RELEASE)
    for _ in range(2):
        history.acquire("2-3")
        history.pass_ms(30_001)
    assert history.writes == [(0, 0, "0-1:0/1"), (0, 2, "0-1:4/2"), (2, 0, "2-3:0/1"), (2, 2, "2-3:4/2")]
    assert history.deltas == ["0-1:0/1", "0-1:4/2", "2-3:0/1", "2-3:4/2"]
    assert history.start == 4


def test_v3_renewing_keeps_records_and_is_never_persisted():
    history = History()
    history.acquire("0-2")
    history.advance(20_000)
    history.ack("0-2", RENEW)
    history.advance(40_000)
    assert history.memory == "0-2:1/1"
    history.advance(50_000)
    assert history.writes == []
    history.advance(50_001)
    assert history.memory == "0-2:0/1"
    history.acquire("0-2")
    history.advance(70_001)
    history.ack("0-2", ACCEPT, RENEW, RELEASE)
    assert short(history.recorded.batches) == "0:2/2, 1:0/1, 2:0/2"
    assert history.start == 1
    history.advance(90_001)
    history.ack("1", ACCEPT)
    assert history.ack("1", RENEW) is ErrorCode.NONE
    assert history.acquire("2", member="M2") == [(2, 2, 3)]
    history.ack("2", REJECT, member="M2")
    assert history.writes == [(0, 0, "0-2:0/1"), (0, 1, "0:2/2, 2:0/2"), (1, 1, "1:2/2"), (2, 1, "2:4/3")]
    assert history.deltas == ["0-2:0/1", "0:2/2, 2:0/2", "1:2/2", "2:4/3"]
    assert history.start == 3


def test_a_checkpoint_starts_past_what_has_ended_after_the_log_start_moved():
    # "Acknowledge 110: SPSO=111": no start offset of the draft names a finished record.
    history = History(start=100)
    history.acquire("100-119")
    history.ack("105-109", ACCEPT)
    history.ack("100-104", RELEASE)
    history.apply(ev.LsoMove, offset=105)
    history.apply(ev.Checkpoint)
    assert history.checkpoints[-1] == (110, 110, "")
    history.ack("112", REJECT)
    history.apply(ev.LsoMove, offset=107)
    history.apply(ev.Checkpoint)
    assert history.checkpoints[-1] == (110, 113, "110-111:0/0, 112:4/1")


def test_v4_two_groups_in_the_draft():
    player = EventPlayer(settings=PlayerSettings(dialect="control_records"))
    history = {}
    for group in ("G1", "G2"):
        history[group] = History(start=None, dialect="control_records")
        history[group].player, history[group].key = player, SharePartitionKey(group, "T", 0)
        history[group].apply(ev.Init, state_epoch=1, start_offset=0)
        history[group].apply(ev.Open, leader_epoch=0)
        history[group].acquire("0-4")
    history["G1"].ack("0-4", ACCEPT)
    history["G2"].ack("0-1", ACCEPT)
    history["G2"].apply(ev.Checkpoint)
    history["G2"].ack("2-4", REJECT)
    history["G1"].apply(ev.Checkpoint)
    assert history["G1"].deltas == ["0-4:2/1"]
    assert history["G1"].checkpoints == [(0, 0, ""), (5, 5, "")]
    assert history["G2"].deltas == ["0-1:2/1", "2-4:4/1"]
    assert history["G2"].checkpoints == [(0, 0, ""), (2, 2, "")]


def test_v5_a_failed_write_leaves_no_record():
    history = History()
    history.acquire("0-2")
    history.apply(ev.FailWrites, on=True)
    assert history.ack("0-2", ACCEPT) is ErrorCode.KAFKA_STORAGE_ERROR
    assert history.memory == "0-2:1/1"
    history.advance(30_001)
    assert history.memory == "0-2:0/1"
    history.apply(ev.FailWrites, on=False)
    history.acquire("0-2")
    assert history.ack("0-2", ACCEPT) is ErrorCode.NONE
    assert history.writes == [(0, 3, "0-2:2/2")]
    assert history.deltas == ["0-2:2/2"]
    assert history.start == 3


def test_v6_a_new_leader_fetches_the_gap_again():
    history = History()
    for log in ("0-10", "11-19", "20-30"):
        history.acquire(log)
    history.ack("0-10", RELEASE)
    history.ack("20-30", RELEASE)
    history.apply(ev.Open, leader_epoch=1)
    assert history.partition.next_fetch_offset() == 0
    history.acquire("0-10", member="M2")
    assert history.partition.next_fetch_offset() == 11
    assert history.acquire("11-19", member="M2") == [(11, 19, 1)]
    history.ack("0-10", ACCEPT, member="M2")
    history.ack("11-19", ACCEPT, member="M2")
    assert history.writes == [
        (0, 0, "0-10:0/1"),
        (0, 0, "20-30:0/1"),
        (0, 11, "0-10:2/2"),
        (11, 9, "11-19:2/1"),
    ]
    assert history.deltas == ["0-10:0/1", "11-19:0/0, 20-30:0/1", "0-10:2/2", "11-19:2/1"]
    assert short(history.recorded.batches) == "11-19:2/1, 20-30:0/1"
    assert (history.recorded.start_offset, history.start) == (11, 20)


def test_v7_single_records_one_after_the_other():
    history = History()
    for offset in range(7):
        history.acquire(str(offset))
        history.ack(str(offset), ACCEPT)
    assert history.writes == [(offset, 1, f"{offset}:2/1") for offset in range(7)]
    assert len(history.deltas) == 7
    assert history.start == 7


def test_v8_mixed_types_with_a_gap_and_a_leave():
    history = History()
    history.acquire("0-3")
    history.ack("0-3", ACCEPT, GAP, ACCEPT, RELEASE)
    history.acquire("3")
    history.leave()
    assert history.writes == [(0, 3, "0:2/1, 1:4/1, 2:2/1, 3:0/1"), (3, 0, "3:0/2")]
    assert history.deltas == ["0:2/1, 1:4/1, 2:2/1, 3:0/1", "3:0/2"]
    assert (history.start, history.memory) == (3, "0:2/1, 1:4/1, 2:2/1, 3:0/2")
    assert history.ack("0-3", ACCEPT) is ErrorCode.INVALID_RECORD_STATE


def test_v9_the_log_start_moves_and_nobody_records_it():
    history = History()
    history.acquire("0-4")
    history.acquire("5-9")
    history.ack("0-4", RELEASE)
    history.apply(ev.LsoMove, offset=7)
    history.ack("5-9", ACCEPT)
    assert history.writes == [(0, 0, "0-4:0/1"), (7, 3, "7-9:2/1")]
    assert history.deltas == ["0-4:0/1", "5-6:0/0, 7-9:2/1"]
    assert history.start == 7
    history.apply(ev.Open, leader_epoch=1)
    assert history.start == 10


def test_v10_batches_shrink_as_they_near_the_limit():
    history = History()
    counts = []
    for _ in range(10):
        log = f"{history.partition.next_fetch_offset()}-7"
        counts.append(sum(last - first + 1 for first, last, _ in history.acquire(log)))
        history.leave()
    assert counts == [8, 8, 8, 4, 1, 1, 1, 1, 4, 1]
    assert len(history.writes) == 10
    assert history.start == 5
    assert short(history.recorded.batches) == "4:4/5, 5-7:0/4"
    assert history.recorded.start_offset == 4


def test_v11_record_limit_mode_hands_out_no_more_than_was_asked_for():
    history = History(start=10)
    assert history.acquire("10-19", max_records=5, mode=AcquireMode.RECORD_LIMIT) == [(10, 14, 1)]
    history.ack("10-14", ACCEPT)
    assert history.writes == [(10, 5, "10-14:2/1")]
    assert history.deltas == ["10-14:2/1"]
    assert history.memory == "10-14:2/1, 15-19:0/0"
    assert (history.start, history.partition.next_fetch_offset()) == (15, 15)


def test_v12_older_leaders_and_older_states_are_fenced():
    history = History(start=None)
    history.apply(ev.Init, state_epoch=3, start_offset=50)
    history.apply(ev.Open, leader_epoch=2)
    history.acquire("50-51")
    history.apply(ev.Open, leader_epoch=5)
    answer = history.ack_result("50-51", ACCEPT, leader_epoch=2)
    assert answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [code for _, code in answer.refused] == [ErrorCode.FENCED_LEADER_EPOCH]
    assert history.apply(ev.Init, state_epoch=2, start_offset=10).error is ErrorCode.FENCED_STATE_EPOCH
    assert history.apply(ev.Init, state_epoch=4, start_offset=10).error is ErrorCode.NONE
    assert history.apply(ev.Init, state_epoch=-1, start_offset=-1).error is ErrorCode.NONE
    assert (history.recorded.start_offset, history.recorded.delivery_complete_count) == (-1, -1)
    assert history.writes == []


def test_v13_a_cold_snapshot_is_none_of_the_leaders_business():
    history = History()
    history.acquire("0-1")
    history.ack("0-1", ACCEPT)
    history.pass_ms(300_000)
    history.apply(ev.ColdSnapshot)
    history.acquire("2-3")
    history.ack("2-3", ACCEPT)
    assert history.writes == [(0, 2, "0-1:2/1"), (2, 2, "2-3:2/1")]


def test_v14_a_deleted_share_partition_begins_anew():
    history = History(start=10)
    history.acquire("10-12")
    history.ack("10-12", ACCEPT)
    history.apply(ev.Delete)
    assert history.player.leader(history.key) is None
    assert history.ack("10-12", ACCEPT) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert history.apply(ev.Init, state_epoch=2, start_offset=-1).error is ErrorCode.NONE
    history.apply(ev.Open, leader_epoch=0, reset_offset=42)
    assert history.start == 42


def test_v15_what_has_ended_at_the_front_is_passed_by_a_new_leader():
    history = History(start=10)
    for log in ("10-12", "13-19", "20-22"):
        history.acquire(log)
    history.ack("20-22", RELEASE)
    history.ack("10-12", ACCEPT)
    assert history.writes == [(10, 0, "20-22:0/1"), (10, 3, "10-12:2/1")]
    assert history.deltas == ["10-19:0/0, 20-22:0/1", "10-12:2/1"]
    history.apply(ev.Open, leader_epoch=1)
    assert (history.recorded.start_offset, history.start, history.partition.next_fetch_offset()) == (10, 13, 13)


def test_batches_are_told_as_they_are_read():
    text = "110:0/1, 111-118:1/1"
    assert short(batches(text)) == text
