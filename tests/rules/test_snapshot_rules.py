"""Snapshots and updates against what was folded before them."""

from pathlib import Path

import pytest

from tests.kafka.batches import NOW, Record, key
from tests.rules.histories import ACKNOWLEDGED, ARCHIVED, ARCHIVING, AVAILABLE, found, snapshot, tombstone, update

COLD = NOW + 1
HELD = [(0, 4, ACKNOWLEDGED, 1), (7, 9, AVAILABLE, 1)]


def _cold(**change) -> Record:
    return snapshot(**{"ranges": HELD, "count": 5, "epoch": 1, "written": COLD} | change)


def test_a_cold_snapshot_that_repeats_the_state_is_quiet(tmp_path: Path):
    assert found(tmp_path, snapshot(HELD, count=5), _cold()).codes == {}


def test_a_cold_snapshot_may_cut_the_same_ranges_in_other_places(tmp_path: Path):
    # Until 4.3 the combiner left neighbours unjoined.
    ranges = [(0, 2, ACKNOWLEDGED, 1), (3, 4, ACKNOWLEDGED, 1), (7, 9, AVAILABLE, 1)]
    assert found(tmp_path, snapshot(HELD, count=5), _cold(ranges=ranges)).codes == {}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"ranges": HELD[:1]}, "its ranges: offset 7 was folded to AVAILABLE at delivery count 1,"
         " the snapshot has no state"),
        ({"ranges": [*HELD, (20, 20, AVAILABLE, 1)]}, "its ranges: offset 20 was folded to no state,"
         " the snapshot has AVAILABLE at delivery count 1"),
        ({"ranges": [HELD[0], (7, 9, AVAILABLE, 2)]}, "its ranges: offset 7 was folded to AVAILABLE at delivery"
         " count 1, the snapshot has AVAILABLE at delivery count 2"),
        ({"ranges": [HELD[0], (7, 8, AVAILABLE, 1)]}, "its ranges: offset 9 was folded to AVAILABLE at delivery"
         " count 1, the snapshot has no state"),
        ({"count": 4}, "the delivery complete count"),
        ({"leader_epoch": 3, "state_epoch": 3}, "the state epoch, the leader epoch"),
        ({"created": NOW + 2, "written": NOW + 3}, "the create time"),
    ],
)  # fmt: skip
def test_a_cold_snapshot_that_says_something_else_is_found(tmp_path: Path, change: dict, what: str):
    judged = found(tmp_path, snapshot(HELD, count=5), _cold(**change))
    assert judged.codes.keys() - {"DELIVERY_COMPLETE_COUNT_MISMATCH"} == {"COLD_SNAPSHOT_MISMATCH"}
    (row,) = judged.of("COLD_SNAPSHOT_MISMATCH")
    assert row["message"] == f"the cold snapshot differs from the state before it in {what}"


def test_a_cold_snapshot_is_not_held_against_a_state_whose_beginning_is_gone(tmp_path: Path):
    assert found(tmp_path, update(HELD, count=5), _cold(), base_offset=7).codes == {}
    assert found(tmp_path / "more", update(HELD[:1], count=5), _cold(), base_offset=7).codes == {}


def test_a_snapshot_is_not_held_against_a_state_with_an_unreadable_record(tmp_path: Path):
    unreadable = Record(key(), b"\0\0\1")
    history = (snapshot(HELD, count=5), unreadable, snapshot([(0, 1, AVAILABLE, 1)], epoch=2))
    codes = found(tmp_path, *history).codes
    assert codes == {"VALUE_MALFORMED": 1}


def test_a_snapshot_merged_with_a_request_is_quiet(tmp_path: Path):
    ranges = [(3, 4, ACKNOWLEDGED, 1), (7, 8, AVAILABLE, 2), (9, 9, AVAILABLE, 1), (12, 12, ARCHIVED, 1)]
    assert found(tmp_path, snapshot(HELD, count=5), snapshot(ranges, start=3, epoch=1, count=3)).codes == {}


@pytest.mark.parametrize(
    ("ranges", "offset"),
    [
        ([(0, 4, ACKNOWLEDGED, 1), (7, 8, AVAILABLE, 1)], 9),
        ([(0, 4, ACKNOWLEDGED, 1), (8, 9, AVAILABLE, 1)], 7),
        ([(0, 4, AVAILABLE, 1), (7, 9, AVAILABLE, 1)], 0),
        ([(0, 3, ACKNOWLEDGED, 1), (4, 4, ACKNOWLEDGED, 0), (7, 9, AVAILABLE, 1)], 4),
    ],
)
def test_a_snapshot_that_lowers_an_offset_is_found(tmp_path: Path, ranges: list, offset: int):
    judged = found(tmp_path, snapshot(HELD, count=5), snapshot(ranges, epoch=1, count=5))
    (row,) = judged.of("SNAPSHOT_MISMATCH")
    assert row["evidence"] == {"contradicted_offset": str(offset)}


def test_a_snapshot_over_a_state_with_a_range_below_its_start_is_found(tmp_path: Path):
    judged = found(tmp_path, snapshot(start=2), snapshot([(1, 2, AVAILABLE, 1)], start=2, epoch=1))
    assert judged.codes == {"BATCH_BELOW_START": 1, "SNAPSHOT_MISMATCH": 1}
    (row,) = judged.of("SNAPSHOT_MISMATCH")
    assert row["message"].endswith(": it holds offset 1, below its start offset")


def test_initialising_throws_the_state_away(tmp_path: Path):
    assert found(tmp_path, snapshot(HELD, count=5), snapshot(epoch=1, leader_epoch=0)).codes == {}


@pytest.mark.parametrize(
    ("before", "after", "is_found"),
    [
        ((ACKNOWLEDGED, 1), (AVAILABLE, 2), True),
        ((ACKNOWLEDGED, 1), (AVAILABLE, 1), False),  # comes late and changes nothing
        ((ACKNOWLEDGED, 2), (AVAILABLE, 1), False),
        ((ACKNOWLEDGED, 1), (ARCHIVED, 1), True),
        ((ARCHIVED, 1), (ACKNOWLEDGED, 1), True),
        ((ARCHIVED, 2), (ACKNOWLEDGED, 1), False),
        ((ACKNOWLEDGED, 1), (ACKNOWLEDGED, 2), False),
        ((ACKNOWLEDGED, 1), (ARCHIVING, 1), True),
        ((ARCHIVED, 1), (ARCHIVING, 1), False),
        ((ARCHIVED, 1), (ARCHIVING, 2), True),
        ((ARCHIVING, 1), (ARCHIVED, 1), False),
        ((ARCHIVING, 1), (AVAILABLE, 1), True),
        ((ARCHIVING, 1), (ACKNOWLEDGED, 2), True),
        ((ARCHIVING, 2), (ACKNOWLEDGED, 1), False),
        ((AVAILABLE, 1), (AVAILABLE, 2), False),
        ((AVAILABLE, 1), (ARCHIVING, 1), False),
    ],
)
def test_nothing_leaves_a_terminal_state(tmp_path: Path, before: tuple, after: tuple, is_found: bool):
    judged = found(tmp_path, snapshot([(3, 5, *before)]), update([(4, 9, *after)]))
    rows = judged.of("TERMINAL_STATE_LEFT")
    assert [row["evidence"]["left_offset"] for row in rows] == ["4"] * is_found


def test_a_snapshot_that_takes_a_terminal_offset_back_is_found(tmp_path: Path):
    ranges = [(0, 2, ACKNOWLEDGED, 1), (3, 4, AVAILABLE, 2), (7, 9, AVAILABLE, 1)]
    judged = found(tmp_path, snapshot(HELD, count=5), snapshot(ranges, epoch=1, count=3))
    assert judged.codes == {"TERMINAL_STATE_LEFT": 1}
    assert judged.of("TERMINAL_STATE_LEFT")[0]["evidence"]["left_offset"] == "3"


def test_an_offset_that_the_start_has_passed_may_come_back_after_a_deletion(tmp_path: Path):
    anew = (snapshot(leader_epoch=0), update([(0, 4, AVAILABLE, 2)]))
    assert found(tmp_path, snapshot(HELD, count=5), tombstone(), *anew).codes == {}


def test_what_lies_below_the_new_start_is_left_alone(tmp_path: Path):
    history = (snapshot(HELD, count=5), update([(0, 4, AVAILABLE, 2)], start=5))
    assert found(tmp_path, *history).codes == {"BATCH_BELOW_START": 1}
