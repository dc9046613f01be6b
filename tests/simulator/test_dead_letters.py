"""Records on their way to a dead letter queue (KIP-1191, Kafka 4.4)."""

from typing import Any

from share_state.kafka.releases import RELEASES
from share_state.simulator import events as ev
from share_state.simulator.acquisition import Fetch, LogBatch
from share_state.simulator.durability import DeadLetter, DeadLetterReason
from share_state.simulator.settings import AckBatch, PartitionSettings
from share_state.simulator.share_partition import SharePartition
from share_state.simulator.types import StateRead
from tests.simulator.history import ACCEPT, GAP, REJECT, RELEASE, History, batches

QUEUE = PartitionSettings(delivery_count_limit=2, has_dead_letter_queue=True)


def with_queue(**fields: Any) -> History:
    return History(release="4.4", settings=QUEUE, dialect="share_group_state", **fields)


def texts(history: History) -> list[str]:
    return [text for _, _, text in history.writes]


def test_a_rejected_batch_is_written_twice():
    history = with_queue()
    history.acquire("0-4")
    history.ack("0-4", REJECT)
    assert history.writes == [(0, 0, "0-4:3/1"), (0, 5, "0-4:4/1")]
    assert history.start == 5


def test_rejected_offsets_of_a_batch_tracked_so_are_archived_one_by_one():
    history = with_queue()
    history.acquire("0-4")
    history.ack("1-2", REJECT)
    assert history.writes == [(0, 0, "1-2:3/1"), (0, 1, "1:4/1"), (0, 2, "2:4/1")]


def test_exhausted_records_go_there_too_however_their_lock_ends():
    history = with_queue()
    for _ in range(2):
        history.acquire("0")
        history.ack("0", RELEASE)
    for _ in range(2):
        history.acquire("1")
        history.pass_ms(30_001)
    for _ in range(2):
        history.acquire("2")
        history.leave()
    assert texts(history) == ["0:0/1", "0:3/2", "0:4/2", "1:0/1", "1:3/2", "1:4/2", "2:0/1", "2:3/2", "2:4/2"]


def test_gaps_and_accepted_records_never_go_there():
    history = with_queue()
    history.acquire("0-1")
    history.ack("0-1", GAP, ACCEPT)
    assert texts(history) == ["0:4/1, 1:2/1"]


def test_what_lies_before_the_start_does_not_go_there_when_its_lock_runs_out():
    history = with_queue()
    history.acquire("0-4")
    history.ack("0-4", RELEASE)
    history.acquire("0-4")
    history.apply(ev.LsoMove, offset=5)
    history.pass_ms(30_001)
    assert texts(history) == ["0-4:0/1", "0-4:4/2"]


def test_without_a_queue_nothing_changes():
    history = History(release="4.4", limit=2)
    history.acquire("0-4")
    history.ack("0-4", REJECT)
    assert history.writes == [(0, 5, "0-4:4/1")]


def test_before_4_4_there_is_no_queue_whatever_is_configured():
    history = History(release="4.3", settings=QUEUE)
    history.acquire("0-4")
    history.ack("0-4", REJECT)
    assert texts(history) == ["0-4:4/1"]


def test_a_group_that_names_a_topic_has_a_queue():
    history = History(release="4.4")
    history.apply(ev.Config, name="errors.deadletterqueue.topic.name", value="dlq.orders")
    history.acquire("0")
    history.ack("0", REJECT)
    assert texts(history) == ["0:3/1", "0:4/1"]


def test_while_the_queue_is_silent_the_start_waits_and_nothing_is_delivered():
    history = with_queue()
    history.acquire("0-4")
    history.acquire("5-9")
    history.apply(ev.HoldDeadLetters, on=True)
    history.ack("0-4", REJECT)
    history.ack("5-9", ACCEPT)
    assert (history.start, history.memory) == (0, "0-4:3/1, 5-9:2/1")
    assert history.partition.delivery_complete_count == 5
    assert history.partition.next_fetch_offset() == 10
    history.apply(ev.HoldDeadLetters, on=False)
    assert history.writes[-1] == (0, 10, "0-4:4/1")
    assert history.start == 10


def test_a_first_write_that_fails_sends_nothing():
    history = with_queue()
    history.acquire("0-4")
    history.apply(ev.FailWrites, on=True)
    history.ack("0-4", REJECT)
    assert history.memory == "0-4:1/1"
    history.apply(ev.FailWrites, on=False)
    assert texts(history) == []


def test_a_timeout_is_sent_whatever_becomes_of_its_write():
    history = with_queue()
    for _ in range(2):
        history.acquire("0-4")
        history.apply(ev.FailWrites, on=history.memory == "0-4:1/2")
        history.pass_ms(30_001)
    assert history.start == 5
    assert texts(history) == ["0-4:0/1"]


def test_a_second_write_that_fails_leaves_state_3_in_the_log_until_a_new_leader():
    history = with_queue()
    history.acquire("0-4")
    history.apply(ev.HoldDeadLetters, on=True)
    history.ack("0-4", REJECT)
    history.apply(ev.FailWrites, on=True)
    history.apply(ev.HoldDeadLetters, on=False)
    assert history.start == 5, "archived in memory, the start has moved"
    assert history.recorded.batches == batches("0-4:3/1")
    history.apply(ev.FailWrites, on=False)
    history.apply(ev.Open, leader_epoch=1)
    assert texts(history) == ["0-4:3/1", "0-4:4/1"]
    assert history.start == 5


def test_a_new_leader_sends_again_and_tells_the_reason_from_the_count():
    partition = SharePartition(1, PartitionSettings(delivery_count_limit=3), RELEASES["4.4"])
    dead_letters = partition.load(StateRead(1, 0, 0, batches("0-4:3/1, 5:3/3, 6-9:2/1")))
    assert dead_letters == (
        DeadLetter(0, 4, 1, DeadLetterReason.REJECTED),
        DeadLetter(5, 5, 3, DeadLetterReason.EXHAUSTED),
    )
    assert partition.start_offset == 0
    for dead_letter in dead_letters:
        operation = partition.dead_letter_answered(dead_letter)
        assert operation is not None
        partition.write_succeeded(operation.writes[0])
    assert partition.start_offset == 10
    assert partition.dead_letter_answered(dead_letters[0]) is None


def test_a_crash_has_records_sent_again_once():
    history = with_queue()
    history.acquire("0-4")
    history.apply(ev.HoldDeadLetters, on=True)
    history.ack("0-4", REJECT)
    history.apply(ev.Crash)
    history.apply(ev.HoldDeadLetters, on=False)
    assert texts(history) == ["0-4:3/1", "0-4:4/1"]


def test_letters_wait_for_the_first_write_and_fall_with_it():
    partition = SharePartition(0, QUEUE, RELEASES["4.4"])
    partition.load(StateRead(1, 0, 0, ()))
    for result in ("failed", "written"):
        partition.acquire(Fetch("M1", (LogBatch(0, 4),), 0), 0)
        operation = partition.acknowledge("M1", [AckBatch(0, 4, (REJECT,))], 0).operation
        assert operation is not None
        (pending,) = operation.writes
        if result == "failed":
            assert partition.write_failed(pending, 0) == ()
        else:
            assert partition.write_succeeded(pending) == (DeadLetter(0, 4, 1, DeadLetterReason.REJECTED),)


def test_4_3_loads_state_3_and_is_stuck_there():
    partition = SharePartition(1, release=RELEASES["4.3"])
    assert partition.load(StateRead(1, 0, 0, batches("0-4:3/1, 5-9:2/1"))) == ()
    assert (partition.start_offset, partition.next_fetch_offset()) == (0, 10)


def test_the_log_start_passes_records_on_their_way():
    history = with_queue()
    history.acquire("0-4")
    history.apply(ev.HoldDeadLetters, on=True)
    history.ack("0-4", REJECT)
    history.apply(ev.LsoMove, offset=5)
    history.apply(ev.HoldDeadLetters, on=False)
    assert history.writes[-1] == (5, 0, "0-4:4/1")
    assert history.recorded.batches == ()
    assert history.memory == ""
