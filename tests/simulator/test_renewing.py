"""Renewing locks (KIP-1222)."""

import pytest

from share_state.simulator import events as ev
from share_state.simulator.settings import PartitionSettings
from share_state.simulator.types import ErrorCode
from tests.simulator.history import ACCEPT, RELEASE, RENEW, History


def test_a_renewal_starts_the_lock_anew():
    history = History()
    history.acquire("0-2")
    history.advance(20_000)
    history.ack("0-2", RENEW)
    history.advance(50_000)
    assert history.memory == "0-2:1/1"
    history.advance(50_001)
    assert history.memory == "0-2:0/1"
    assert history.writes == [(0, 0, "0-2:0/1")], "renewed whole, the batch still times out whole"


def test_one_offset_may_be_renewed_alone():
    history = History()
    history.acquire("0-9")
    history.advance(25_000)
    history.ack("0", RENEW)
    history.advance(30_001)
    assert history.memory == "0:1/1, 1-9:0/1"
    assert [write[2] for write in history.writes] == [f"{offset}:0/1" for offset in range(1, 10)]
    assert history.deltas == ["0:0/0, 1-9:0/1"]


def test_types_may_be_mixed_and_only_the_others_are_persisted():
    history = History()
    history.acquire("0-2")
    history.ack("0-2", RELEASE)
    history.acquire("0-2")
    history.ack("0-2", ACCEPT, RENEW, RELEASE)
    assert history.writes[-1] == (0, 1, "0:2/2, 2:0/2")
    assert history.memory == "0:2/2, 1:1/2, 2:0/2"


def test_the_lock_duration_in_force_is_told_and_taken():
    history = History()
    history.acquire("0")
    history.apply(ev.Config, name="share.record.lock.duration.ms", value=60_000)
    history.advance(10_000)
    answer = history.ack_result("0", RENEW)
    assert answer.lock_timeout_ms == 60_000
    history.advance(70_000)
    assert history.memory == "0:1/1"
    history.advance(70_001)
    assert history.memory == "0:0/1"


def test_a_lock_that_ran_out_cannot_be_renewed():
    history = History()
    history.acquire("0")
    history.advance(30_001)
    assert history.ack("0", RENEW) is ErrorCode.INVALID_RECORD_STATE


def test_renewals_may_be_switched_off():
    history = History(settings=PartitionSettings(renews=False))
    history.acquire("0")
    assert history.ack("0", RENEW) is ErrorCode.INVALID_RECORD_STATE
    history = History()
    history.apply(ev.Config, name="share.renew.acknowledge.enable", value=False)
    history.acquire("0")
    assert history.ack("0", RENEW) is ErrorCode.INVALID_RECORD_STATE


@pytest.mark.parametrize(("release", "code"), [("4.1", ErrorCode.INVALID_REQUEST), ("4.2", ErrorCode.NONE)])
def test_brokers_know_renewals_since_4_2(release: str, code: ErrorCode):
    history = History(release=release)
    history.acquire("0")
    assert history.ack("0", RENEW) is code


def test_a_fetch_that_renews_must_ask_for_nothing():
    history = History()
    history.acquire("0-2")
    history.advance(10_000)
    answer = history.ack_result("0-2", RENEW, route="fetch", max_bytes=1, max_records=5)
    assert answer.error is ErrorCode.INVALID_REQUEST
    assert answer.message == "a fetch that renews must have 0 for max_bytes, max_records"
    history.advance(30_001)
    assert history.memory == "0-2:0/1", "and renewed nothing"


def test_an_acknowledgement_by_itself_has_no_limits_to_check():
    history = History()
    history.acquire("0-2")
    assert history.ack("0-2", RENEW, route="acknowledge", max_bytes=1) is ErrorCode.NONE
    assert history.ack("0-2", RENEW, route="fetch") is ErrorCode.NONE


def test_without_timeouts_renewals_change_no_record():
    history, plain = History(), History()
    for each in (history, plain):
        each.acquire("0-2")
    history.ack("0-2", RENEW)
    for each in (history, plain):
        each.ack("0-2", ACCEPT)
    assert history.writes == plain.writes == [(0, 3, "0-2:2/1")]
    assert history.deltas == plain.deltas


def test_a_renewed_record_at_the_front_holds_the_start_up():
    history = History(lock_ms=30_000)
    history.acquire("0-9")
    for _ in range(10):
        history.pass_ms(25_000)
        history.ack("0", RENEW)
        if history.memory == "0-9:1/1":
            history.ack("1-9", ACCEPT)
    assert (history.start, history.partition.delivery_complete_count) == (0, 9)
