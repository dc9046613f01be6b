"""What a new leader makes of what was recorded."""

import pytest

from share_state.kafka.delivery_states import DeliveryState
from share_state.kafka.releases import RELEASES
from share_state.simulator import events as ev
from share_state.simulator.acquisition import Fetch, LogBatch
from share_state.simulator.durability import UnloadableStateError
from share_state.simulator.share_partition import SharePartition, Status
from share_state.simulator.types import ErrorCode, SimulationError, StateBatch, StateRead, find_release
from tests.simulator.history import ACCEPT, RELEASE, History, batches, short


def load_coordinator(start: int, history: str, release: str = "4.3") -> SharePartition:
    partition = SharePartition(1, release=RELEASES[release])
    partition.load(StateRead(1, start, -1, batches(history)))
    return partition


def test_nothing_recorded_start_and_end_are_one():
    partition = load_coordinator(100, "")
    assert (partition.start_offset, partition.end_offset, partition.next_fetch_offset()) == (100, 100, 100)


def test_no_start_recorded_the_reset_offset_is_taken():
    partition = SharePartition(1)
    partition.load(StateRead(2, -1, -1, ()), reset_offset=42)
    assert (partition.start_offset, partition.state_epoch) == (42, 2)


def test_a_gap_is_fetched_before_what_lies_behind_it():
    partition = load_coordinator(0, "0-10:0/1, 20-30:0/1")
    assert partition.end_offset == 31
    assert partition.next_fetch_offset() == 0
    partition.acquire(Fetch("M1", (LogBatch(0, 10),), 0), 0)
    assert partition.next_fetch_offset() == 11


def test_a_gap_at_the_start_is_fetched_first_and_holds_the_start():
    partition = load_coordinator(0, "5-9:2/1")
    assert (partition.start_offset, partition.next_fetch_offset()) == (0, 0)
    assert partition.delivery_complete_count == 5


def test_a_fetch_over_gaps_and_batches_acquires_all_of_them():
    partition = load_coordinator(0, "0-1:0/1, 4-5:2/1, 8-9:0/2")
    acquired = partition.acquire(Fetch("M1", (LogBatch(0, 11),), 0), 0)
    assert [tuple(records) for records in acquired] == [(0, 1, 2), (2, 3, 1), (6, 7, 1), (8, 9, 3), (10, 11, 1)]


def test_a_gap_is_acquired_no_further_than_it_reaches():
    partition = load_coordinator(0, "0-1:0/1, 4-5:2/1")
    acquired = partition.acquire(Fetch("M1", (LogBatch(0, 9),), 0, max_records=3), 0)
    assert [tuple(records) for records in acquired] == [(0, 1, 2), (2, 3, 1)]


def test_a_gap_that_is_all_that_was_wanted_is_all_that_is_acquired():
    partition = load_coordinator(0, "4-5:0/1")
    acquired = partition.acquire(Fetch("M1", (LogBatch(0, 9),), 0, max_records=4), 0)
    assert [tuple(records) for records in acquired] == [(0, 3, 1)]


def test_the_log_start_passes_a_gap():
    partition = load_coordinator(0, "5-9:0/1, 15-19:0/1")
    partition.move_log_start(7)
    assert partition.next_fetch_offset() == 7
    partition.acquire(Fetch("M1", (LogBatch(7, 9),), 7), 0)
    assert partition.next_fetch_offset() == 10


def test_the_log_start_passes_a_gap_and_what_had_ended_behind_it():
    partition = load_coordinator(0, "1:2/1")
    partition.move_log_start(1)
    assert partition.next_fetch_offset() == 2, "not the gap that is gone"


def test_natural_holes_are_not_acquired_once_the_window_has_moved_on():
    history = History()
    history.acquire("0-4")
    history.acquire("10-14")
    history.ack("0-4", RELEASE)
    history.ack("10-14", RELEASE)
    assert history.acquire("0-4", "10-14") == [(0, 4, 2), (10, 14, 2)]


def test_before_4_1_gaps_are_lost():
    partition = load_coordinator(0, "0-10:2/1, 20-30:0/1", release="4.0")
    assert (partition.start_offset, partition.next_fetch_offset()) == (20, 20)


def test_what_has_ended_at_the_front_is_passed():
    partition = load_coordinator(10, "10-12:2/1, 20-22:0/1")
    assert (partition.start_offset, partition.end_offset, partition.next_fetch_offset()) == (13, 23, 13)


def test_everything_ended_leaves_an_empty_window():
    partition = load_coordinator(10, "10-12:2/1, 13-19:4/5")
    assert (partition.start_offset, partition.end_offset, partition.delivery_complete_count) == (20, 20, 0)
    assert partition.in_flight_batches() == ()


def test_recorded_counts_of_what_is_complete_are_not_trusted():
    partition = SharePartition(1)
    partition.load(StateRead(1, 0, 999, batches("0-4:0/1, 5-9:2/1")))
    assert partition.delivery_complete_count == 5


@pytest.mark.parametrize(
    ("history", "release", "message"),
    [
        ("8-12:2/1", "4.3", "persisted batch 8-12: starts before the start offset 10"),
        ("15-12:0/1", "4.2", "persisted batch 15-12: ends before it starts"),
        ("10-12:3/1", "4.2", "persisted batch 10-12: 4.2 does not support state 3"),
        ("10-15:0/1, 12-13:2/1", "4.3", "overlaps the previous batch, which ends at 15"),
    ],
)
def test_what_cannot_be_loaded_fails_the_share_partition(history: str, release: str, message: str):
    partition = SharePartition(1, release=RELEASES[release])
    with pytest.raises(UnloadableStateError, match=message):
        partition.load(StateRead(1, 10, -1, batches(history)))
    assert partition.status is Status.FAILED
    assert partition.acquire(Fetch("M1", (LogBatch(10, 12),), 10), 0) == ()


def test_a_state_that_nothing_knows_fails_the_share_partition():
    read = StateRead(1, 10, -1, (StateBatch(10, 12, 7, 1),))  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnloadableStateError, match="unknown state 7"):
        SharePartition(1).load(read)


def test_a_crash_forgets_what_members_hold_and_that_they_had_it():
    history = History(start=110)
    history.acquire("110-112")
    history.ack("111-112", RELEASE)
    history.acquire("111-112")
    history.apply(ev.Crash)
    assert history.memory == "111-112:0/1"
    assert history.acquire("110-112") == [(110, 110, 1), (111, 112, 2)]


def test_a_crash_of_the_draft_keeps_what_its_records_say():
    history = History(start=110, dialect="control_records")
    history.acquire("110-112")
    history.ack("111-112", RELEASE)
    history.acquire("111-112")
    history.apply(ev.Crash)
    assert history.memory == "110:0/0, 111-112:0/1"


def test_what_is_archived_in_memory_alone_comes_back_with_a_new_leader():
    history = History()
    history.acquire("0-9")
    history.ack("0-9", RELEASE)
    history.apply(ev.LogHole, first=5, last=9)
    history.apply(ev.Open, leader_epoch=1)
    assert history.memory == "0-9:0/1"


def test_an_older_leader_cannot_load():
    history = History(leader_epoch=5)
    assert history.apply(ev.Open, leader_epoch=4).error is ErrorCode.FENCED_LEADER_EPOCH


def test_nothing_initialized_nothing_to_load():
    history = History(start=None)
    assert history.apply(ev.Open, leader_epoch=0).error is ErrorCode.INVALID_REQUEST


def test_loaded_acquired_records_belong_to_nobody():
    partition = load_coordinator(0, "0-4:1/1")
    assert partition.acquire(Fetch("M1", (LogBatch(0, 4),), 0), 0) == ()
    assert partition.in_flight_batches() == (StateBatch(0, 4, DeliveryState.ACQUIRED, 1),)


def test_releases_are_looked_up_by_their_line():
    assert find_release("4.3.1") is RELEASES["4.3"]
    with pytest.raises(SimulationError, match=r"release 3\.9\.0: "):
        find_release("3.9.0")


def test_after_a_load_the_start_waits_at_the_end_of_the_gap_for_the_next_fetch():
    history = History()
    history.acquire("0-2")
    history.acquire("3")
    history.ack("3", ACCEPT)
    history.apply(ev.Open, leader_epoch=1)
    history.acquire("0-2")
    history.ack("0-2", ACCEPT)
    assert (history.start, short(history.partition.in_flight_batches())) == (3, "3:2/1")
    history.acquire("4")
    history.ack("4", ACCEPT)
    assert history.start == 5
