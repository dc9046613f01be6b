"""Share-partitions that stand still, and what holds the cleaning back."""

from pathlib import Path

import pytest

from tests.kafka.batches import NOW, Batch
from tests.log_writer import write_log_folder
from tests.rules.histories import (
    ACKNOWLEDGED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    MINUTE,
    found,
    snapshot,
    tombstone,
    update,
)

AT_ONCE = {"archiving_seconds": 0}
SECOND = 1000


@pytest.mark.parametrize(("after", "is_found"), [(180, False), (59_999, False), (60_000, True)])
def test_archiving_takes_time_until_it_is_stuck(tmp_path: Path, after: int, is_found: bool):
    history = (snapshot([(1, 1, ARCHIVING, 1)]), update(after=after))
    assert found(tmp_path, *history).codes == ({"ARCHIVING_STUCK": 1} if is_found else {})


def test_the_age_is_that_of_the_first_offset_in_archiving(tmp_path: Path):
    # One dead letter after the other: each is done, so none waits for long.
    busy = [
        update([(number, number, ARCHIVED, 1), (number + 1, number + 1, ARCHIVING, 1)], count=number, after=after)
        for number, after in ((1, 50 * SECOND), (2, 100 * SECOND), (3, 150 * SECOND))
    ]
    history = (snapshot([(1, 1, ARCHIVING, 1)]), *busy, update(count=3, after=209 * SECOND))
    assert found(tmp_path / "busy", *history).codes == {}
    (row,) = found(tmp_path / "stuck", *history, update(count=3, after=210 * SECOND)).of("ARCHIVING_STUCK")
    assert row["evidence"]["milliseconds"] == "60000"


def test_time_goes_on_by_records_of_other_share_partitions(tmp_path: Path):
    history = (snapshot([(1, 1, ARCHIVING, 1)]), snapshot(partition=1, after=61 * SECOND))
    assert found(tmp_path, *history).codes == {"ARCHIVING_STUCK": 1}


def test_many_ranges_are_told_by_the_first_few(tmp_path: Path):
    ranges = [(10 * number, 10 * number + 1, ARCHIVING, 1) for number in range(1, 9)]
    (row,) = found(tmp_path, snapshot(ranges), limits=AT_ONCE).of("ARCHIVING_STUCK")
    assert row["message"].startswith("16 offsets (10-11, 20-21, 30-31, 40-41, 50-51 and 3 more ranges) in ARCHIVING")
    assert row["evidence"] == {"offsets": "16", "first_offset": "10", "ranges": "8", "milliseconds": "0"}


def test_each_share_partition_has_its_own_row(tmp_path: Path):
    held = [(number, number, ARCHIVING, 1) for number in (1, 3)]
    history = [snapshot(held[: number % 3], partition=number) for number in range(6)]
    rows = found(tmp_path, *history, limits=AT_ONCE).of("ARCHIVING_STUCK")
    assert [(row["partition"], row["evidence"]["offsets"]) for row in rows] == [(1, "1"), (2, "2"), (4, "1"), (5, "2")]


@pytest.mark.parametrize("last", [tombstone(), update([(1, 1, ARCHIVED, 1)], count=1), update(start=2)])
def test_what_is_done_does_not_wait(tmp_path: Path, last):
    judged = found(tmp_path, snapshot([(1, 1, ARCHIVING, 1)]), last, limits=AT_ONCE)
    assert "ARCHIVING_STUCK" not in judged.codes


@pytest.mark.parametrize(
    ("state", "count", "is_found"),
    [
        (AVAILABLE, 3, False), (AVAILABLE, 4, True), (AVAILABLE, 5, True), (ARCHIVING, 5, True),
        (ACKNOWLEDGED, 5, False), (ARCHIVED, 4, False), (ARCHIVED, 5, True),
    ],
)  # fmt: skip
def test_offsets_near_the_delivery_limit_are_found(tmp_path: Path, state: int, count: int, is_found: bool):
    done = int(state in (ACKNOWLEDGED, ARCHIVED))
    judged = found(tmp_path, snapshot([(3, 3, state, count)], count=done))
    assert judged.codes["POISON_RECORDS"] == is_found


def test_a_group_s_own_delivery_limit_decides(tmp_path: Path):
    limits = {"groups": {"h": {"delivery_count": 2}, "g": {"delivery_count": 10}}}
    history = (snapshot([(3, 3, AVAILABLE, 8)]),)
    assert found(tmp_path, *history, limits=limits).codes == {}
    (row,) = found(tmp_path / "near", snapshot([(3, 3, AVAILABLE, 9)]), limits=limits).of("POISON_RECORDS")
    assert "at the delivery limit of 10 or one delivery below it" in row["message"]
    (row,) = found(tmp_path / "over", snapshot([(3, 3, AVAILABLE, 11)]), limits=limits).of("DELIVERY_COUNT_OVER_LIMIT")
    assert row["message"].startswith("offsets were delivered up to 11 times, but the limit of the group is 10: ")
    other = {"delivery_count": 8, "groups": {"h": {"delivery_count": 10}, "g": {"record_locks": 7}}}
    assert found(tmp_path / "unnamed", *history, limits=other).codes == {"POISON_RECORDS": 1}


def test_a_group_s_own_window_decides(tmp_path: Path):
    wide = snapshot([(0, 49, AVAILABLE, 1)])
    limits = {"record_locks": 10, "groups": {"g": {"record_locks": 50}}}
    (row,) = found(tmp_path, wide, limits=limits).of("IN_FLIGHT_LIMIT")
    assert "; at 50 no record beyond" in row["message"].replace(" on; at", "; at")
    limits = {"record_locks": 10, "groups": {"g": {"record_locks": 51}}}
    assert found(tmp_path / "below", wide, limits=limits).codes == {}


def test_what_lies_below_the_start_is_nobody_s_poison(tmp_path: Path):
    judged = found(tmp_path, snapshot([(2, 4, AVAILABLE, 4)], start=4))
    (row,) = judged.of("POISON_RECORDS")
    assert row["message"].startswith("1 offset (4) at the delivery limit")
    assert "POISON_RECORDS" not in found(tmp_path / "behind", snapshot([(2, 4, AVAILABLE, 4)], start=5)).codes


@pytest.mark.parametrize(("minutes", "severity"), [(0, "info"), (4.99, "info"), (5, "warning"), (60, "warning")])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_records_before_their_last_delivery_are_a_warning_while_no_consumer_has_them(
    tmp_path: Path, minutes: float, severity: str, elsewhere: bool
):
    """The export goes on so long, in the same state partition or in another one."""
    history = (snapshot([(3, 3, AVAILABLE, 1)]), update([(3, 3, AVAILABLE, 4)]))
    later = snapshot(partition=1, after=int(minutes * MINUTE))
    if elsewhere:
        write_log_folder(tmp_path, 1, [Batch([later], max_timestamp=NOW + later.time_delta)])
    (row,) = found(tmp_path, *history, *(() if elsewhere else (later,))).of("POISON_RECORDS")
    assert (row["partition"], row["severity"]) == (0, severity)


def test_records_that_are_given_up_often_are_a_warning_at_once(tmp_path: Path):
    history = (snapshot([(3, 3, AVAILABLE, 1)]), update([(3, 3, ARCHIVED, 5), (4, 4, AVAILABLE, 4)], count=1))
    (row,) = found(tmp_path, *history).of("POISON_RECORDS")
    assert row["severity"] == "warning"
    many = update([(3, 3, ARCHIVED, 5), (4, 4, AVAILABLE, 4), (5, 203, ACKNOWLEDGED, 1)], count=200)
    (row,) = found(tmp_path / "many", history[0], many).of("POISON_RECORDS")
    assert row["severity"] == "info"


def _stall(minutes: float, *between, **last) -> tuple:
    """A first delivery behind the start, and a later offset that finishes so many minutes after it."""
    final = {"ranges": [(1, 1, ACKNOWLEDGED, 1)], "count": 1, "after": int(minutes * MINUTE)} | last
    return snapshot(), update([(5, 5, AVAILABLE, 1)]), *between, update(**final)


@pytest.mark.parametrize(("minutes", "is_found"), [(29.9, False), (30, True), (300, True)])
def test_a_start_that_stands_while_later_offsets_finish_is_a_stall(tmp_path: Path, minutes: float, is_found: bool):
    assert found(tmp_path, *_stall(minutes)).codes == ({"SPSO_STALL": 1} if is_found else {})


def test_the_stall_time_is_the_configuration_s(tmp_path: Path):
    assert found(tmp_path, *_stall(4), limits={"stall_minutes": 3}).codes == {"SPSO_STALL": 1}


def test_a_share_partition_that_was_idle_is_no_stall(tmp_path: Path):
    judged = found(tmp_path, snapshot(), update([(1, 1, ACKNOWLEDGED, 1)], count=1, after=300 * MINUTE))
    assert judged.codes == {}


def test_a_start_that_moved_lately_is_no_stall(tmp_path: Path):
    moved = update(start=1, after=20 * MINUTE)
    judged = found(tmp_path, *_stall(40, moved, ranges=[(3, 3, ACKNOWLEDGED, 1)], start=1))
    assert judged.codes == {}


def test_a_start_that_is_about_to_move_is_no_stall(tmp_path: Path):
    # A leader that loads this goes on from offset 2: the recorded start lags by one write.
    held = [(0, 1, ACKNOWLEDGED, 1), (3, 3, ACKNOWLEDGED, 1)]
    assert found(tmp_path, *_stall(40, ranges=held, count=3)).codes == {}


def test_nothing_finished_is_no_stall(tmp_path: Path):
    assert found(tmp_path, *_stall(40, ranges=[(1, 1, AVAILABLE, 1)], count=0)).codes == {}


def test_an_idle_share_partition_is_no_stall(tmp_path: Path):
    held = {"ranges": [(1, 1, ACKNOWLEDGED, 1)], "count": 1}
    cold = snapshot(**held, epoch=1, written=NOW + 99 * MINUTE, after=99 * MINUTE)
    assert found(tmp_path, snapshot(**held), cold).codes == {}


@pytest.mark.parametrize(("width", "is_found"), [(9, False), (10, True), (11, True)])
def test_a_full_window_is_found(tmp_path: Path, width: int, is_found: bool):
    history = snapshot([(5 + width - 1, 5 + width - 1, AVAILABLE, 1)], start=5)
    judged = found(tmp_path, history, limits={"record_locks": 10})
    assert judged.codes == ({"IN_FLIGHT_LIMIT": 1} if is_found else {})


def test_what_a_leader_would_pass_at_once_fills_no_window(tmp_path: Path):
    held = [(5, 20, ACKNOWLEDGED, 1), (21, 22, AVAILABLE, 1)]
    assert found(tmp_path, snapshot(held, start=5, count=16), limits={"record_locks": 10}).codes == {}


def test_a_share_partition_without_a_start_has_no_window(tmp_path: Path):
    held = snapshot([(0, 99, AVAILABLE, 1)], start=-1, count=None)
    assert found(tmp_path, held, limits={"record_locks": 10}).codes == {}


@pytest.mark.parametrize(
    ("writer", "updates", "is_found"),
    [(None, 4, False), (None, 5, True), ("4.1", 4, False), ("4.2", 4, False), ("4.2", 5, True), ("4.3", 4, True)],
)
def test_writers_up_to_4_2_0_may_write_one_update_more(
    tmp_path: Path, writer: str | None, updates: int, is_found: bool
):
    limits = {"updates_per_snapshot": 3, "writer_version": writer}
    judged = found(tmp_path, snapshot(), *[update()] * updates, limits=limits)
    assert judged.codes == ({"LONG_CHAIN": 1} if is_found else {})


def test_a_snapshot_ends_a_long_chain(tmp_path: Path):
    limits = {"updates_per_snapshot": 1}
    assert found(tmp_path, snapshot(), *[update()] * 5, snapshot(epoch=1), limits=limits).codes == {}


def test_the_cutoff_of_a_log_with_one_share_partition_is_pinned_by_nothing_else(tmp_path: Path):
    assert found(tmp_path, snapshot(), *[update()] * 9, limits={"pinned_records": 5}).codes == {}


def test_the_one_that_pins_the_cutoff_is_named(tmp_path: Path):
    busy = [snapshot(partition=1, epoch=epoch) for epoch in range(9)]
    judged = found(tmp_path, busy[0], snapshot(), *busy[1:], limits={"pinned_records": 5})
    (row,) = judged.of("CUTOFF_PINNED")
    assert (row["partition"], row["offset"]) == (0, 1)
    assert row["evidence"]["pinned_records"] == "8"
    assert row["message"].endswith("without it the cutoff would be 9")


SKIPPED = "; Kafka 4.4.0 skips the job that would snapshot it anew while updates are pending"


@pytest.mark.parametrize(
    ("writer", "more", "is_named"),
    [
        ({"writer_version": "4.4"}, (), True),
        ({}, (update([(0, 0, ARCHIVING, 1)], partition=1, epoch=8),), True),
        ({"writer_version": "4.3"}, (), False),
        ({}, (), False),
    ],
    ids=["4.4", "shown by ARCHIVING", "4.3", "unknown"],
)
def test_where_4_4_writes_a_pinned_cutoff_names_its_skipped_cold_snapshots(
    tmp_path: Path, writer, more, is_named: bool
):
    busy = [snapshot(partition=1, epoch=epoch) for epoch in range(9)]
    judged = found(tmp_path, busy[0], snapshot(), *busy[1:], *more, limits={"pinned_records": 5} | writer)
    (row,) = judged.of("CUTOFF_PINNED")
    assert row["message"].endswith(f"without it the cutoff would be 9{SKIPPED}") == is_named
    assert (SKIPPED in row["message"]) == is_named


def _often(count: int, partitions: int = 3) -> list:
    """Records of a group whose offsets are delivered up to `count` times, in several share-partitions."""
    records = [snapshot(partition=number) for number in range(partitions)]
    for delivery in range(1, count):
        records += [update([(0, 3, AVAILABLE, delivery)], partition=number) for number in range(partitions)]
    return records + [update([(0, 3, ACKNOWLEDGED, count)], count=4, partition=number) for number in range(partitions)]


def test_a_log_that_shows_a_higher_limit_says_so_once_a_group(tmp_path: Path):
    (row,) = found(tmp_path, *_often(10)).of("DELIVERY_COUNT_OVER_LIMIT")
    assert row["evidence"]["delivery_count"] == "10"
    assert row["message"].startswith("offsets were delivered up to 10 times, but the limit of the group is 5")
    assert found(tmp_path / "own", *_often(10), limits={"groups": {"g": {"delivery_count": 10}}}).codes == {}


def test_other_rules_are_judged_by_the_limit_that_the_log_shows(tmp_path: Path):
    waits = update([(9, 9, AVAILABLE, 7)], count=4)
    judged = found(tmp_path, *_often(10), waits)
    assert judged.codes == {"DELIVERY_COUNT_OVER_LIMIT": 1}
    near = found(tmp_path / "near", *_often(10), update([(9, 9, AVAILABLE, 9)], count=4))
    (row,) = near.of("POISON_RECORDS")
    assert "at the delivery limit of 10 or one delivery below it" in row["message"]
