"""What members may say of records, and what becomes of them."""

from typing import Any

import pytest

from share_state.simulator import events as ev
from share_state.simulator.settings import AckBatch
from share_state.simulator.types import ErrorCode
from tests.simulator.history import ACCEPT, GAP, REJECT, RELEASE, RENEW, History

INVALID_REQUEST, INVALID_STATE, NONE = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD_STATE, ErrorCode.NONE


def acks(history: History, *batches: tuple[int, int, tuple[int, ...]], **fields: Any) -> ErrorCode:
    return history.apply(ev.Ack, member="M1", batches=tuple(AckBatch(*batch) for batch in batches), **fields).error


def test_each_type_leads_where_it_says():
    history = History()
    history.acquire("0-3")
    assert history.ack("0-3", ACCEPT, REJECT, RELEASE, GAP) is NONE
    assert history.writes == [(0, 3, "0:2/1, 1:4/1, 2:0/1, 3:4/1")]


def test_a_released_record_keeps_its_count_and_gets_the_next_one_when_delivered():
    history = History()
    history.acquire("0")
    history.ack("0", RELEASE)
    assert history.acquire("0") == [(0, 0, 2)]
    history.ack("0", ACCEPT)
    assert [write[2] for write in history.writes] == ["0:0/1", "0:2/2"]


@pytest.mark.parametrize("end", ["release", "timeout", "leave"])
def test_at_the_limit_a_record_is_archived_however_its_lock_ends(end: str):
    history = History(limit=2)
    for _ in range(2):
        history.acquire("0")
        if end == "release":
            history.ack("0", RELEASE)
        elif end == "timeout":
            history.pass_ms(30_001)
        else:
            history.leave()
    assert [write[2] for write in history.writes] == ["0:0/1", "0:4/2"]


def test_renewals_never_reach_the_limit():
    history = History(limit=2)
    history.acquire("0")
    history.ack("0", RELEASE)
    history.acquire("0")
    for _ in range(100):
        history.pass_ms(20_000)
        assert history.ack("0", RENEW) is NONE
    assert history.memory == "0:1/2"
    history.pass_ms(30_001)
    assert history.writes[-1] == (0, 1, "0:4/2")


@pytest.mark.parametrize(
    ("batches", "validate_ack_batches"),
    [
        ([(3, 2, (1,))], "ends before it starts"),
        ([(2, 4, (1,)), (3, 5, (1,))], "starts before the previous one"),
        ([(0, 2, ())], "has no type"),
        ([(0, 2, (1, 1))], "2 types for 3 offsets"),
        ([(0, 2, (5,))], "a type outside 0 to 4"),
        ([(0, 2, (-1,))], "a type outside 0 to 4"),
        ([(0, 2, (4,))], "without IsRenewAck"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_whole(batches: list[tuple], validate_ack_batches: str):
    history = History()
    history.acquire("0-9")
    history.apply(ev.Ack, member="M1", batches=tuple(AckBatch(*batch) for batch in batches))
    result = history.results[-1]
    assert result.error is INVALID_REQUEST
    assert validate_ack_batches in result.message
    assert history.memory == "0-9:1/1"
    assert history.writes == []


def test_a_version_that_does_not_know_renewals_refuses_them():
    history = History()
    history.acquire("0")
    assert history.ack("0", RENEW, version=1) is INVALID_REQUEST
    assert history.ack("0", ACCEPT, version=1) is NONE


def test_a_batch_that_was_never_acquired_has_no_state():
    history = History(start=10)
    assert history.ack("10", ACCEPT) is INVALID_STATE


def test_an_acknowledgement_past_what_was_acquired_is_an_invalid_request():
    history = History()
    history.acquire("0-9")
    assert history.ack("5-10", ACCEPT) is INVALID_REQUEST
    assert history.ack("10-12", ACCEPT) is INVALID_REQUEST
    assert history.memory == "0-9:1/1"


def test_another_member_has_no_say():
    history = History()
    history.acquire("0-9")
    assert history.ack("0-9", ACCEPT, member="M2") is INVALID_STATE
    assert history.ack("0-3", ACCEPT, member="M2") is INVALID_STATE
    assert history.ack("0-9", RENEW, member="M2") is INVALID_STATE


def test_what_has_ended_stays_ended():
    history = History()
    history.acquire("0-3")
    history.ack("1", ACCEPT)
    assert history.ack("1", RELEASE) is INVALID_STATE
    assert history.ack("0-3", ACCEPT) is INVALID_STATE
    assert history.memory == "0:1/1, 1:2/1, 2-3:1/1"


def test_offsets_before_the_start_are_passed_over():
    history = History()
    history.acquire("0-3")
    history.ack("0-1", ACCEPT)
    assert history.start == 2
    assert history.ack("0-1", ACCEPT) is NONE
    assert history.ack("0-3", ACCEPT) is NONE
    assert history.writes[-1] == (2, 2, "2-3:2/1")


def test_what_was_let_go_of_may_be_acknowledged_again_to_no_effect():
    history = History()
    history.acquire("0-4")
    history.acquire("5-9")
    history.ack("0-4", ACCEPT)
    assert history.ack("0-4", RELEASE) is NONE
    assert history.ack("0-9", ACCEPT) is NONE
    assert history.writes == [(0, 5, "0-4:2/1"), (5, 5, "5-9:2/1")]


def test_who_holds_what_lies_before_the_start_does_not_matter():
    history = History()
    history.acquire("0-4", member="M2")
    history.acquire("5-9")
    history.apply(ev.LsoMove, offset=5)
    assert history.ack("0-9", ACCEPT) is NONE
    assert history.writes == [(5, 5, "5-9:2/1")]


def test_one_error_undoes_every_batch_of_the_request():
    history = History()
    history.acquire("0-4")
    history.acquire("5-9", member="M2")
    assert acks(history, (0, 4, (ACCEPT,)), (5, 9, (ACCEPT,))) is INVALID_STATE
    assert history.memory == "0-9:1/1"
    assert history.partition.delivery_complete_count == 0
    assert history.ack("0-4", ACCEPT) is NONE


def test_renewals_before_an_error_stand():
    history = History()
    history.acquire("0-4")
    history.acquire("5-9", member="M2")
    history.advance(20_000)
    assert acks(history, (0, 4, (RENEW,)), (5, 9, (ACCEPT,)), is_renew_ack=True) is INVALID_STATE
    history.advance(30_001)
    assert history.memory == "0-4:1/1, 5-9:0/1"


def test_one_acknowledgement_may_cover_several_batches_in_one_write():
    history = History()
    history.acquire("0-4")
    history.acquire("5-9")
    assert history.ack("2-7", ACCEPT) is NONE
    assert history.writes == [(0, 6, "2-7:2/1")]
    assert history.deltas == ["0-1:0/0, 2-7:2/1"]


def test_gaps_are_left_out_of_writes_but_told_in_deltas():
    history = History(start=110)
    history.acquire("110-119")
    history.ack("119", ACCEPT)
    assert history.writes == [(110, 1, "119:2/1")]
    assert history.deltas == ["110-118:0/0, 119:2/1"]


def test_a_member_that_leaves_gives_back_what_it_holds_and_no_more():
    history = History()
    history.acquire("0-4")
    history.acquire("5-9", member="M2")
    history.ack("1", ACCEPT)
    history.leave("M1")
    assert history.memory == "0:0/1, 1:2/1, 2-4:0/1, 5-9:1/1"
    assert history.writes[-1] == (0, 1, "0:0/1, 2-4:0/1")
    writes = len(history.writes)
    history.leave("M1")
    assert len(history.writes) == writes, "nothing to give back, nothing to write"


def test_before_4_2_a_member_that_leaves_takes_its_delivery_with_it():
    history = History(release="4.1", limit=2)
    for _ in range(3):
        assert history.acquire("0") == [(0, 0, 1)]
        history.leave()
    assert [write[1:] for write in history.writes] == [(-1, "0:0/0")] * 3


def test_before_4_2_writes_say_nothing_of_what_is_complete():
    history = History(release="4.1")
    history.acquire("0-4")
    history.ack("2-4", ACCEPT)
    assert history.writes == [(0, -1, "2-4:2/1")]


def test_a_lock_that_runs_out_before_the_start_archives_and_is_still_written():
    history = History()
    history.acquire("0-4")
    history.acquire("5-9")
    history.apply(ev.LsoMove, offset=5)
    history.advance(30_001)
    assert history.writes == [(5, 0, "0-4:4/1"), (5, 0, "5-9:0/1")]
    assert history.recorded.batches[0].first_offset == 5
    assert (history.start, history.partition.next_fetch_offset()) == (5, 5)


def test_a_lock_that_runs_out_across_the_start_archives_what_is_before_it():
    history = History()
    history.acquire("0-9")
    history.apply(ev.LsoMove, offset=4)
    history.advance(30_001)
    assert history.writes == [(4, 0, "0-3:4/1, 4-9:0/1")]
    assert history.partition.next_fetch_offset() == 4
    assert history.acquire("0-9") == [(4, 9, 2)]


def test_free_records_before_the_log_start_are_archived_in_memory():
    history = History()
    history.acquire("0-9")
    history.ack("0-9", RELEASE)
    history.apply(ev.LsoMove, offset=4)
    assert (history.start, history.partition.next_fetch_offset()) == (4, 4)
    assert history.partition.delivery_complete_count == 0
    assert len(history.writes) == 1


def test_a_log_start_past_everything_leaves_what_has_ended_in_memory():
    history = History()
    history.acquire("0-9")
    history.ack("0-9", RELEASE)
    history.apply(ev.LsoMove, offset=25)
    assert (history.start, history.partition.end_offset, history.partition.next_fetch_offset()) == (25, 25, 25)
    assert history.memory == "0-9:4/1"
    history.acquire("25-29")
    history.ack("25-29", ACCEPT)
    assert history.writes[-1] == (25, 5, "25-29:2/1")
    assert history.memory == ""


def test_the_log_start_alone_does_not_move_on_past_what_had_ended_behind_it():
    history = History()
    history.acquire("0-2")
    history.acquire("3-9")
    history.ack("3-9", ACCEPT)
    history.ack("0-2", RELEASE)
    history.apply(ev.LsoMove, offset=3)
    assert history.start == 3
    history.acquire("10-12")
    history.ack("10", RELEASE)
    assert history.writes[-1] == (3, 7, "10:0/1")
    assert history.start == 10


def test_a_log_start_that_lies_behind_changes_nothing():
    history = History(start=10)
    history.apply(ev.LsoMove, offset=5)
    assert history.start == 10


def test_timeouts_of_whole_batches_are_one_write_each_and_one_delta():
    history = History()
    history.acquire("0-4")
    history.acquire("5-9")
    history.advance(30_001)
    assert history.writes == [(0, 0, "0-4:0/1"), (0, 0, "5-9:0/1")]
    assert history.deltas == ["0-9:0/1"]


def test_timeouts_at_different_times_are_different_operations():
    history = History()
    history.acquire("0-4")
    history.advance(10)
    history.acquire("5-9")
    history.advance(40_000)
    timeouts = [result for result in history.results if result.cause == "lock_timeout"]
    assert [result.ts_ms for result in timeouts] == [30_001, 30_011]
    assert history.deltas == ["0-4:0/1", "5-9:0/1"]


def test_a_lock_holds_up_to_and_with_its_deadline():
    history = History()
    history.acquire("0")
    history.advance(30_000)
    assert history.memory == "0:1/1"
    assert history.ack("0", ACCEPT) is NONE


def test_another_lock_duration_holds_for_locks_taken_from_then_on():
    history = History()
    history.acquire("0")
    history.apply(ev.Config, name="share.record.lock.duration.ms", value=60_000)
    history.acquire("1")
    history.advance(30_001)
    assert history.memory == "0:0/1, 1:1/1"
    history.advance(60_001)
    assert history.memory == "0-1:0/1"
