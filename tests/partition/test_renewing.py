"""Renewing locks (KIP-1222)."""

import pytest

from share_state.simulator import events as ev
from share_state.simulator.settings import PartitionSettings
from share_state.simulator.types import ErrorCode
from tests.partition.history import ACCEPT, REJECT, RELEASE, RENEW, History


def test_a_renewal_starts_the_lock_anew():
    told = History()
    told.acquire("0-2")
    told.advance(20_000)
    told.ack("0-2", RENEW)
    told.advance(50_000)
    assert told.memory == "0-2:1/1"
    told.advance(50_001)
    assert told.memory == "0-2:0/1"
    assert told.writes == [(0, 0, "0-2:0/1")], "renewed whole, the batch still times out whole"


def test_one_offset_may_be_renewed_alone():
    told = History()
    told.acquire("0-9")
    told.advance(25_000)
    told.ack("0", RENEW)
    told.advance(30_001)
    assert told.memory == "0:1/1, 1-9:0/1"
    assert [write[2] for write in told.writes] == [f"{offset}:0/1" for offset in range(1, 10)]
    assert told.deltas == ["0:0/0, 1-9:0/1"]


def test_types_may_be_mixed_and_only_the_others_are_persisted():
    told = History()
    told.acquire("0-2")
    told.ack("0-2", RELEASE)
    told.acquire("0-2")
    told.ack("0-2", ACCEPT, RENEW, RELEASE)
    assert told.writes[-1] == (0, 1, "0:2/2, 2:0/2")
    assert told.memory == "0:2/2, 1:1/2, 2:0/2"


def test_the_lock_duration_in_force_is_told_and_taken():
    told = History()
    told.acquire("0")
    told.tell(ev.Config, name="share.record.lock.duration.ms", value=60_000)
    told.advance(10_000)
    answer = told.told_ack("0", RENEW)
    assert answer.lock_timeout_ms == 60_000
    told.advance(70_000)
    assert told.memory == "0:1/1"
    told.advance(70_001)
    assert told.memory == "0:0/1"


def test_a_lock_that_ran_out_cannot_be_renewed():
    told = History()
    told.acquire("0")
    told.advance(30_001)
    assert told.ack("0", RENEW) is ErrorCode.INVALID_RECORD_STATE


def test_renewals_may_be_switched_off():
    told = History(settings=PartitionSettings(renews=False))
    told.acquire("0")
    assert told.ack("0", RENEW) is ErrorCode.INVALID_RECORD_STATE
    told = History()
    told.tell(ev.Config, name="share.renew.acknowledge.enable", value=False)
    told.acquire("0")
    assert told.ack("0", RENEW) is ErrorCode.INVALID_RECORD_STATE


@pytest.mark.parametrize(("release", "code"), [("4.1", ErrorCode.INVALID_REQUEST), ("4.2", ErrorCode.NONE)])
def test_brokers_know_renewals_since_4_2(release: str, code: ErrorCode):
    told = History(release=release)
    told.acquire("0")
    assert told.ack("0", RENEW) is code


def test_a_fetch_that_renews_must_ask_for_nothing():
    told = History()
    told.acquire("0-2")
    told.advance(10_000)
    answer = told.told_ack("0-2", RENEW, route="fetch", max_bytes=1, max_records=5)
    assert answer.error is ErrorCode.INVALID_REQUEST
    assert answer.message == "a fetch that renews must have 0 for max_bytes, max_records"
    told.advance(30_001)
    assert told.memory == "0-2:0/1", "and renewed nothing"


def test_an_acknowledgement_by_itself_has_no_limits_to_check():
    told = History()
    told.acquire("0-2")
    assert told.ack("0-2", RENEW, route="acknowledge", max_bytes=1) is ErrorCode.NONE
    assert told.ack("0-2", RENEW, route="fetch") is ErrorCode.NONE


def test_without_timeouts_renewals_change_no_record():
    told, plain = History(), History()
    for history in (told, plain):
        history.acquire("0-2")
    told.ack("0-2", RENEW)
    for history in (told, plain):
        history.ack("0-2", ACCEPT)
    assert told.writes == plain.writes == [(0, 3, "0-2:2/1")]
    assert told.deltas == plain.deltas


def test_records_are_counted_by_type_and_gaps_are_not():
    told = History()
    told.acquire("0-9")
    told.ack("0-2", ACCEPT, RENEW, RELEASE)
    assert told.player.acknowledged == {"Accept": 1, "Renew": 1, "Release": 1}
    told.ack("3-5", REJECT)
    told.ack("6-7", ACCEPT, 0)
    told.ack("6-7", ACCEPT)
    assert told.player.acknowledged == {"Accept": 2, "Renew": 1, "Release": 1, "Reject": 3}


def test_a_renewed_record_at_the_front_holds_the_start_up():
    told = History(lock_ms=30_000)
    told.acquire("0-9")
    for _ in range(10):
        told.pass_ms(25_000)
        told.ack("0", RENEW)
        if told.memory == "0-9:1/1":
            told.ack("1-9", ACCEPT)
    assert (told.start, told.partition.delivery_complete_count) == (0, 9)
