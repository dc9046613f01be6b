"""A member's own side: implicit and explicit acknowledgement, renewals, old brokers."""

import pytest

from share_state.simulator import events as ev
from share_state.simulator.acquisition import AcquiredRecords
from share_state.simulator.consumer import AckMode, Completed, Delivered, IllegalStateError, ShareConsumer
from share_state.simulator.settings import AckBatch
from share_state.simulator.types import ErrorCode
from tests.partition.history import ACCEPT, REJECT, RELEASE, RENEW, History


def explicit(**fields: bool) -> ShareConsumer:
    """Holding 0-2, returned by the last poll."""
    consumer = ShareConsumer(AckMode.EXPLICIT, **fields)
    consumer.poll(0)
    consumer.take([AcquiredRecords(0, 2, 1)], 30_000)
    assert consumer.poll(0).records == (Delivered(0, 1), Delivered(1, 1), Delivered(2, 1))
    return consumer


def test_implicitly_a_poll_accepts_what_the_last_one_returned():
    consumer = ShareConsumer()
    assert consumer.poll(0).fetches
    consumer.take([AcquiredRecords(0, 9, 1)], 30_000)
    assert len(consumer.poll(0).records) == 10
    poll = consumer.poll(0)
    assert poll.acks == (AckBatch(0, 9, (ACCEPT,)),)
    assert poll.fetches and poll.records == ()


def test_implicitly_nothing_may_be_acknowledged():
    consumer = ShareConsumer()
    consumer.take([AcquiredRecords(5, 5, 1)], 30_000)
    consumer.poll(0)
    with pytest.raises(IllegalStateError, match="not in implicit mode"):
        consumer.acknowledge(5, RELEASE)


def test_explicitly_everything_must_be_acknowledged_before_the_next_poll():
    consumer = explicit()
    consumer.acknowledge(0, ACCEPT)
    with pytest.raises(
        IllegalStateError, match="2 records of the last poll are not acknowledged, the first at offset 1"
    ):
        consumer.poll(0)


def test_only_what_was_returned_may_be_acknowledged():
    with pytest.raises(IllegalStateError, match="offset 7 was not returned"):
        explicit().acknowledge(7, ACCEPT)


def test_neighbours_of_one_type_are_one_batch_with_one_type():
    consumer = explicit()
    for offset, ack in ((0, ACCEPT), (1, REJECT), (2, RELEASE)):
        consumer.acknowledge(offset, ack)
    assert consumer.commit() == (AckBatch(0, 2, (1, 3, 2)),)


def test_a_renewed_record_is_returned_again_once_the_broker_agrees():
    consumer = explicit()
    for offset, ack in ((0, ACCEPT), (1, RENEW), (2, ACCEPT)):
        consumer.acknowledge(offset, ack)
    poll = consumer.poll(1)
    assert poll.is_renew_ack
    assert poll.acks == (AckBatch(0, 2, (1, 4, 1)),)
    assert not poll.fetches, "nothing new is asked for while a renewal is under way"
    consumer.answered(poll.acks, ErrorCode.NONE, 60_000)
    poll = consumer.poll(2)
    assert poll.records == (Delivered(1, 1),)
    assert poll.completed == (Completed((0, 1, 2), ErrorCode.NONE),)
    assert consumer.lock_timeout_ms == 60_000


def test_a_renewal_that_failed_is_told_by_the_callback_and_returns_nothing():
    consumer = explicit()
    for offset in range(3):
        consumer.acknowledge(offset, RENEW)
    poll = consumer.poll(1)
    consumer.answered(poll.acks, ErrorCode.INVALID_RECORD_STATE)
    poll = consumer.poll(2)
    assert poll.completed == (Completed((0, 1, 2), ErrorCode.INVALID_RECORD_STATE),)
    assert poll.records == () and poll.fetches


def test_a_record_delivered_again_is_no_renewed_one():
    consumer = explicit()
    for offset in range(3):
        consumer.acknowledge(offset, RENEW)
    poll = consumer.poll(1)
    consumer.answered(poll.acks, ErrorCode.NONE)
    consumer.take([AcquiredRecords(1, 1, 2)], 30_000)
    assert consumer.poll(2).records == (Delivered(0, 1), Delivered(2, 1))


def test_an_old_broker_is_never_asked_to_renew():
    consumer = explicit(broker_renews=False)
    for offset, ack in ((0, ACCEPT), (1, RENEW), (2, ACCEPT)):
        consumer.acknowledge(offset, ack)
    poll = consumer.poll(1)
    assert not poll.is_renew_ack
    assert poll.acks == (AckBatch(0, 0, (1,)), AckBatch(2, 2, (1,)))
    assert consumer.poll(2).completed == (Completed((1,), ErrorCode.UNSUPPORTED_VERSION),)


def test_the_lock_duration_is_unknown_before_the_first_fetch():
    consumer = ShareConsumer()
    assert consumer.lock_timeout_ms is None
    assert consumer.renews_in_time(30_000)
    consumer.take([], 30_000)
    assert consumer.lock_timeout_ms == 30_000
    assert not consumer.renews_in_time(30_000)
    assert consumer.renews_in_time(29_999)


def test_an_application_that_stays_away_leaves():
    consumer = ShareConsumer()
    assert not consumer.has_stayed_away(999_999)
    consumer.poll(0)
    assert not consumer.has_stayed_away(300_000)
    assert consumer.has_stayed_away(300_001)


def test_member_and_share_partition_keep_a_record_by_renewing_it():
    told, consumer = History(), ShareConsumer(AckMode.EXPLICIT)
    consumer.poll(0)
    consumer.take((AcquiredRecords(*records) for records in told.acquire("0-2")), 30_000)
    consumer.poll(0)
    for _ in range(3):
        told.pass_ms(20_000)
        for offset in range(3):
            consumer.acknowledge(offset, RENEW)
        poll = consumer.poll(told.now_ms)
        answer = told.tell(ev.Ack, member="M1", batches=poll.acks, is_renew_ack=poll.is_renew_ack, route="fetch")
        consumer.answered(poll.acks, answer.error, answer.lock_timeout_ms)
        assert len(consumer.poll(told.now_ms).records) == 3
    assert told.memory == "0-2:1/1"
    assert told.writes == []
