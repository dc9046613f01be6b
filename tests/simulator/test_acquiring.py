"""Which records a fetch hands out."""

from share_state.simulator import events as ev
from share_state.simulator.acquisition import AcquireMode, Fetch, LogBatch
from share_state.simulator.settings import PartitionSettings
from tests.simulator.history import ACCEPT, RELEASE, History

RECORD_LIMIT = AcquireMode.RECORD_LIMIT


def test_fetching_writes_nothing():
    history = History(start=100)
    history.acquire("100-109")
    assert history.writes == [] and history.deltas == []


def test_only_what_is_free_is_acquired_and_then_what_is_new():
    history = History(start=110)
    history.acquire("110-119")
    history.ack("110", RELEASE)
    history.ack("119", ACCEPT)
    assert history.acquire("110-120") == [(110, 110, 2), (120, 120, 1)]


def test_nothing_cached_the_next_fetch_is_at_the_end():
    history = History(start=100)
    assert history.partition.next_fetch_offset() == 100
    history.acquire("100-109")
    assert history.partition.next_fetch_offset() == 110
    history.ack("100-109", ACCEPT)
    assert history.partition.next_fetch_offset() == 110


def test_the_next_fetch_is_at_the_first_batch_that_was_released():
    history = History()
    for log in ("0-9", "10-20", "21-30"):
        history.acquire(log)
    history.ack("21-30", RELEASE)
    history.ack("10-20", RELEASE)
    assert history.partition.next_fetch_offset() == 10


def test_the_next_fetch_is_at_the_first_free_offset_of_a_batch_acknowledged_in_parts():
    history = History(start=10)
    history.acquire("10-12")
    history.ack("10-12", RELEASE, ACCEPT, RELEASE)
    assert history.partition.next_fetch_offset() == 10
    assert history.acquire("10-12") == [(10, 10, 2), (12, 12, 2)]


def test_a_full_window_hands_out_nothing_new_until_its_start_moves():
    history = History(settings=PartitionSettings(max_record_locks=5))
    history.acquire("0-5")
    assert not history.partition.can_acquire()
    assert history.acquire("6-9") == []
    history.ack("1", ACCEPT)
    assert not history.partition.can_acquire()
    history.ack("0", ACCEPT)
    assert history.start == 2
    assert history.partition.can_acquire()
    assert history.acquire("6") == [(6, 6, 1)]


def test_a_full_window_still_delivers_again_what_is_in_it():
    history = History(settings=PartitionSettings(max_record_locks=5))
    history.acquire("0-5")
    history.ack("3-4", RELEASE)
    assert history.partition.can_acquire()
    assert history.acquire("3-9", fetch_offset=3) == [(3, 4, 2)]


def test_a_new_batch_is_rounded_up_to_the_log_batch():
    history = History()
    assert history.acquire("0-4", "5-9", "10-14", max_records=7) == [(0, 9, 1)]
    assert history.partition.end_offset == 10


def test_record_limit_cuts_the_log_batch_and_keeps_the_rest_free():
    history = History()
    assert history.acquire("0-4", "5-9", max_records=7, mode=RECORD_LIMIT) == [(0, 6, 1)]
    assert history.memory == "0-6:1/1, 7-9:0/0"
    assert history.acquire("5-9", max_records=2, mode=RECORD_LIMIT) == [(7, 8, 1)]


def test_record_limit_makes_one_batch_in_flight_of_several_log_batches():
    history = History()
    acquired = history.acquire("0-1", "2-3", "4-5", max_records=3, batch_size=2, mode=RECORD_LIMIT)
    assert acquired == [(0, 2, 1)]
    assert history.memory == "0-2:1/1, 3:0/0"


def test_record_limit_cuts_a_batch_that_was_released_whole():
    history = History()
    history.acquire("0-9")
    history.ack("0-9", RELEASE)
    assert history.acquire("0-9", max_records=4, mode=RECORD_LIMIT) == [(0, 3, 2)]
    assert history.memory == "0-3:1/2, 4-9:0/1"


def test_releases_without_record_limit_round_up():
    history = History(release="4.1")
    assert history.acquire("0-9", max_records=5, mode=RECORD_LIMIT) == [(0, 9, 1)]


def test_a_hole_belongs_to_the_batch_in_flight_before_it():
    history = History()
    assert history.acquire("0-2", "5-6", "7-9", batch_size=4) == [(0, 4, 1), (5, 9, 1)]


def test_batches_in_flight_end_where_log_batches_do():
    history = History()
    assert history.acquire("0-2", "3-5", "6-8", "9-9", batch_size=4) == [(0, 5, 1), (6, 9, 1)]
    history.advance(30_001)
    assert [write[2] for write in history.writes] == ["0-5:0/1", "6-9:0/1"]


def test_a_log_batch_that_begins_before_the_start_is_acquired_from_the_start_on():
    history = History(start=5)
    assert history.acquire("0-9") == [(5, 9, 1)]


def test_a_log_that_begins_later_moves_the_start():
    history = History()
    assert history.acquire("5-9") == [(5, 9, 1)]
    assert history.start == 5


def test_what_the_log_no_longer_holds_before_the_first_batch_is_archived():
    history = History()
    history.acquire("0-4")
    history.acquire("5-9")
    history.acquire("10-14")
    history.ack("5-9", RELEASE)
    assert history.partition.next_fetch_offset() == 5
    history.acquire("15-19", fetch_offset=5)
    assert history.memory == "0-4:1/1, 5-9:4/1, 10-19:1/1"
    assert history.partition.delivery_complete_count == 5
    assert [write[2] for write in history.writes] == ["5-9:0/1"]


def test_offsets_that_never_were_in_flight_before_the_log_start_are_told_as_archived():
    history = History()
    history.apply(ev.LsoMove, offset=5)
    history.acquire("5-9")
    history.ack("5-9", ACCEPT)
    assert history.deltas == ["0-4:4/0, 5-9:2/1"]
    assert history.writes == [(5, 5, "5-9:2/1")]


def test_a_batch_that_lost_records_to_a_hole_times_out_offset_by_offset():
    history = History()
    history.acquire("0-4")
    history.ack("0-4", RELEASE)
    history.apply(ev.LogHole, first=2, last=4)
    assert history.acquire("0-4") == [(0, 1, 2)]
    history.pass_ms(30_001)
    assert [write[2] for write in history.writes] == ["0-4:0/1", "0:0/2", "1:0/2"]


def test_a_hole_in_the_log_is_archived_in_memory_only():
    history = History()
    history.acquire("0-9")
    history.ack("0-9", RELEASE)
    history.apply(ev.LogHole, first=5, last=9)
    assert history.memory == "0-4:0/1, 5-9:4/1"
    history.acquire("0-4")
    history.ack("0-4", ACCEPT)
    assert history.writes[-1] == (0, 10, "0-4:2/2")
    assert history.start == 10


def test_aborted_records_are_archived_where_committed_ones_are_read():
    history = History(settings=PartitionSettings(reads_committed=True))
    history.acquire("0-9")
    history.apply(ev.Aborted, first=5, last=9)
    assert history.memory == "0-4:1/1, 5-9:4/1"
    assert history.writes == []


def test_aborted_records_are_delivered_where_everything_is_read():
    history = History()
    history.acquire("0-9")
    history.apply(ev.Aborted, first=5, last=9)
    assert history.memory == "0-9:1/1"


def test_the_last_delivery_is_made_alone():
    history = History(limit=3)
    for _ in range(2):
        history.acquire("0-3")
        history.leave()
    assert history.acquire("0-5") == [(0, 0, 3)]


def test_with_a_limit_of_two_nothing_is_delivered_alone():
    history = History(limit=2)
    history.acquire("0-3")
    history.leave()
    assert history.acquire("0-3") == [(0, 3, 2)]


def test_a_throttled_batch_comes_alone_even_behind_others():
    history = History(limit=4)
    history.acquire("0-1")
    history.acquire("2-9")
    for _ in range(2):
        history.ack("2-9", RELEASE)
        history.acquire("2-9")
    history.leave()
    assert history.acquire("0-9") == [(0, 1, 2)], "the batch near its limit waits"
    assert history.acquire("2-9") == [(2, 2, 4)]


def test_throttling_halves_with_every_delivery():
    history = History(limit=10)
    sizes = []
    for _ in range(9):
        sizes.append(sum(last - first + 1 for first, last, _ in history.acquire("0-63")))
        history.leave()
    assert sizes == [64, 64, 64, 64, 64, 32, 16, 8, 4]


def test_releases_without_throttling_deliver_whole_batches_to_the_end():
    history = History(release="4.1", limit=3)
    for _ in range(2):
        history.acquire("0-3")
        history.ack("0-3", RELEASE)
    assert history.acquire("0-3") == [(0, 3, 3)]


def test_a_partition_that_was_not_loaded_hands_out_nothing():
    history = History(start=None)
    history.apply(ev.Init, state_epoch=1, start_offset=0)
    assert history.apply(ev.Acquire, member="M1", log_batches=(LogBatch(0, 9),)).error.name == "NOT_LEADER_OR_FOLLOWER"


def test_a_fetch_that_found_nothing_acquires_nothing():
    history = History()
    assert history.partition.acquire(Fetch("M1", (), 0), 0) == ()
