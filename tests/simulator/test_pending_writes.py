"""What a share-partition does while a write is under way, and once it has failed."""

import pytest

from share_state.simulator import events as ev
from share_state.simulator.acquisition import Fetch, LogBatch
from share_state.simulator.settings import AckBatch, PartitionSettings
from share_state.simulator.share_partition import SharePartition, Status
from share_state.simulator.types import ErrorCode, StateRead
from tests.present import present
from tests.simulator.history import ACCEPT, RELEASE, RENEW, History, short


@pytest.fixture
def partition() -> SharePartition:
    """0-4 and 5-9 held by M1 since 0."""
    opened = SharePartition(0, PartitionSettings(delivery_count_limit=2))
    opened.load(StateRead(1, 0, 0, ()))
    for first, last in ((0, 4), (5, 9)):
        opened.acquire(Fetch("M1", (LogBatch(first, last),), first), 0)
    return opened


def write_of(partition: SharePartition, first: int, last: int, *types: int, now_ms: int = 0):
    answer = partition.acknowledge("M1", [AckBatch(first, last, types)], now_ms)
    assert answer.error is ErrorCode.NONE
    assert answer.operation is not None
    (pending,) = answer.operation.writes
    return pending


def test_nothing_is_durable_before_it_is_said_to_be(partition: SharePartition):
    pending = write_of(partition, 0, 4, ACCEPT)
    assert partition.start_offset == 0
    assert partition.delivery_complete_count == 5
    partition.write_succeeded(pending)
    assert partition.start_offset == 5
    assert partition.delivery_complete_count == 0


def test_a_released_record_is_not_delivered_before_its_release_is_durable(partition: SharePartition):
    pending = write_of(partition, 0, 4, RELEASE)
    assert partition.acquire(Fetch("M2", (LogBatch(0, 4),), 0), 1) == ()
    assert partition.next_fetch_offset() == 10
    partition.write_succeeded(pending)
    assert partition.next_fetch_offset() == 0


def test_a_release_under_way_is_passed_over_by_the_next_fetch(partition: SharePartition):
    for first in (0, 1):
        partition.write_succeeded(write_of(partition, first, first, RELEASE))
    write_of(partition, 2, 4, RELEASE)
    partition.write_succeeded(write_of(partition, 5, 9, RELEASE))
    partition.acquire(Fetch("M1", (LogBatch(0, 1),), 0), 0)
    assert partition.next_fetch_offset() == 5


def test_a_change_under_way_cannot_be_changed(partition: SharePartition):
    write_of(partition, 0, 4, ACCEPT)
    for kind in (ACCEPT, RENEW):
        again = partition.acknowledge("M1", [AckBatch(2, 3, (kind,))], 0, is_renew_ack=True)
        assert again.error is ErrorCode.INVALID_RECORD_STATE
        assert "pending change" in again.message


def test_a_failed_acknowledgement_gives_the_lock_back_with_its_deadline(partition: SharePartition):
    pending = write_of(partition, 0, 4, ACCEPT, now_ms=100)
    partition.write_failed(pending, 200)
    assert short(partition.in_flight_batches()) == "0-9:1/1"
    assert partition.delivery_complete_count == 0
    assert partition.expire_locks(30_000) is None
    operation = partition.expire_locks(30_001)
    assert operation is not None
    assert short(operation.changes) == "0-9:0/1"


def test_a_failed_acknowledgement_whose_lock_ran_out_meanwhile_frees_the_records(partition: SharePartition):
    pending = write_of(partition, 0, 4, ACCEPT)
    assert short(present(partition.expire_locks(30_001)).changes) == "5-9:0/1", "what is under way does not time out"
    partition.write_failed(pending, 30_001)
    assert short(partition.in_flight_batches()) == "0-9:0/1"
    assert partition.next_fetch_offset() == 0


def test_at_the_limit_it_archives_them_instead(partition: SharePartition):
    partition.write_succeeded(write_of(partition, 0, 4, RELEASE))
    partition.acquire(Fetch("M1", (LogBatch(0, 4),), 0), 0)
    pending = write_of(partition, 0, 4, RELEASE)
    partition.write_failed(pending, 30_001)
    assert short(partition.in_flight_batches()) == "0-4:4/2, 5-9:1/1"
    assert partition.start_offset == 0, "the start moves once something is written"
    assert partition.delivery_complete_count == 5


def test_a_failed_leave_gives_the_locks_back(partition: SharePartition):
    operation = partition.release_member("M1")
    assert operation is not None
    assert short(operation.changes) == "0-9:0/1"
    partition.write_failed(operation.writes[0], 10)
    assert short(partition.in_flight_batches()) == "0-9:1/1"
    assert partition.release_member("M1") is not None


def test_a_failed_timeout_stands_in_memory_alone():
    history = History()
    history.acquire("0-2")
    history.apply(ev.FailWrites, on=True)
    history.advance(30_001)
    assert history.memory == "0-2:0/1"
    assert history.writes == []
    assert history.recorded.batches == ()
    assert history.deltas == []


def test_an_operation_refused_by_a_fence_ends_the_leader(partition: SharePartition):
    pending = write_of(partition, 0, 4, ACCEPT)
    partition.write_failed(pending, 0, ErrorCode.FENCED_STATE_EPOCH)
    assert partition.status is Status.FENCED
    again = partition.acknowledge("M1", [AckBatch(0, 4, (ACCEPT,))], 0)
    assert again.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.release_member("M1") is None
    assert partition.expire_locks(99_999) is None


def test_a_write_gets_one_response(partition: SharePartition):
    pending = write_of(partition, 0, 4, ACCEPT)
    partition.write_succeeded(pending)
    with pytest.raises(AssertionError, match="one response"):
        partition.write_failed(pending, 0)


def test_writes_may_be_answered_in_any_order(partition: SharePartition):
    first, second = write_of(partition, 0, 4, ACCEPT), write_of(partition, 5, 9, ACCEPT)
    assert (first.write.delivery_complete_count, second.write.delivery_complete_count) == (5, 10)
    partition.write_succeeded(second)
    assert partition.start_offset == 0
    partition.write_succeeded(first)
    assert (partition.start_offset, partition.in_flight_batches()) == (10, ())


def test_the_log_start_passes_a_release_under_way(partition: SharePartition):
    pending = write_of(partition, 0, 4, RELEASE)
    partition.move_log_start(3)
    partition.write_succeeded(pending)
    assert short(partition.in_flight_batches()) == "0-2:4/1, 3-4:0/1, 5-9:1/1"
    assert (partition.start_offset, partition.next_fetch_offset()) == (3, 3)
    assert partition.delivery_complete_count == 0


def test_held_writes_are_answered_in_order_when_they_are_let_go():
    history = History()
    history.acquire("0-4")
    history.acquire("5-9")
    history.apply(ev.HoldWrites, on=True)
    history.ack("5-9", ACCEPT)
    history.ack("0-4", ACCEPT)
    assert history.writes == [] and history.start == 0
    history.apply(ev.HoldWrites, on=False)
    assert history.writes == [(0, 5, "5-9:2/1"), (0, 10, "0-4:2/1")]
    assert history.start == 10


def test_a_crash_loses_writes_that_were_not_answered():
    history = History()
    history.acquire("0-4")
    history.apply(ev.HoldWrites, on=True)
    history.ack("0-4", ACCEPT)
    history.apply(ev.Crash)
    history.apply(ev.HoldWrites, on=False)
    assert history.writes == []
    assert (history.start, history.memory) == (0, "")


@pytest.mark.parametrize("fails", [False, True])
def test_what_the_draft_says_of_changes_under_way_is_what_was_there_before(fails: bool):
    history = History()
    history.acquire("0-4")
    history.acquire("5-9")
    history.apply(ev.HoldWrites, on=True)
    history.ack("0-4", ACCEPT)
    assert short(history.partition.durable_batches(0, 9)) == "0-9:0/0"
    history.apply(ev.FailWrites, on=fails)
    history.apply(ev.HoldWrites, on=False)
    assert history.deltas == ([] if fails else ["0-4:2/1"])
