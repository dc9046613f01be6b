"""What a state batch may hold, record by record."""

from pathlib import Path

import pytest

from tests.rules.histories import ACKNOWLEDGED, ARCHIVED, ARCHIVING, AVAILABLE, found, snapshot, update


@pytest.mark.parametrize("state", [-128, -1, 1, 5, 127])
def test_a_state_that_is_never_written_is_found(tmp_path: Path, state: int):
    history = (snapshot(), update([(0, 0, AVAILABLE, 1), (2, 3, state, 1), (5, 5, state, 1)]))
    (row,) = found(tmp_path, *history).of("UNKNOWN_DELIVERY_STATE")
    assert row["message"].startswith("the state batch 2-3 is in state ")
    assert row["evidence"] == {"state": str(state), "batches": "2"}


@pytest.mark.parametrize("writer", [None, "4.4"])
def test_archiving_is_a_state_from_4_4_on(tmp_path: Path, writer: str | None):
    history = (snapshot(), update([(0, 0, ARCHIVING, 1)]))
    assert found(tmp_path, *history, limits={"writer_version": writer}).codes == {}


@pytest.mark.parametrize("writer", ["4.0", "4.1", "4.2", "4.3"])
def test_archiving_is_unknown_to_earlier_writers(tmp_path: Path, writer: str):
    judged = found(tmp_path, snapshot(), update([(0, 0, ARCHIVING, 1)]), limits={"writer_version": writer})
    assert judged.codes == {"UNKNOWN_DELIVERY_STATE": 1}
    (row,) = judged.of("UNKNOWN_DELIVERY_STATE")
    assert row["message"] == f"the state batch 0-0 is in state ARCHIVING, which {writer} does not write"


@pytest.mark.parametrize(
    ("state", "count", "is_found"),
    [
        (AVAILABLE, -1, True), (AVAILABLE, 0, True), (AVAILABLE, 1, False),
        (ACKNOWLEDGED, 0, True), (ACKNOWLEDGED, 1, False),
        (ARCHIVING, 0, True), (ARCHIVING, 1, False),
        (ARCHIVED, -32768, True), (ARCHIVED, 0, False), (ARCHIVED, 1, False),
    ],
)  # fmt: skip
def test_what_was_delivered_has_a_count(tmp_path: Path, state: int, count: int, is_found: bool):
    done = int(state in (ACKNOWLEDGED, ARCHIVED))
    judged = found(tmp_path, snapshot(), update([(0, 0, state, count)], count=done))
    assert judged.codes["DELIVERY_COUNT_INVALID"] == is_found


@pytest.mark.parametrize(
    ("writer", "count", "early", "is_found"),
    [
        (None, 0, False, True),  # only 4.2 and later count what is complete
        (None, None, False, False),  # may be of 4.1, which lowers the count of what is released unread
        (None, None, True, True),
        ("4.1", 0, False, False),
        ("4.2", None, False, True),
    ],
)
def test_a_released_offset_without_a_delivery_may_be_of_4_1(
    tmp_path: Path, writer: str | None, count: int | None, early: bool, is_found: bool
):
    own = {"count": count, "early": early}
    history = (snapshot(**own), update([(0, 0, AVAILABLE, 0)], **own))
    judged = found(tmp_path, *history, limits={"writer_version": writer})
    assert judged.codes["DELIVERY_COUNT_INVALID"] == is_found


def test_a_snapshot_may_still_hold_what_4_1_left(tmp_path: Path):
    assert found(tmp_path, snapshot([(0, 0, AVAILABLE, 0)])).codes == {}


@pytest.mark.parametrize(("limit", "is_found"), [(4, True), (5, False), (10, False)])
def test_the_delivery_limit_is_the_configuration_s(tmp_path: Path, limit: int, is_found: bool):
    history = (snapshot(), update([(0, 0, ARCHIVED, 5)], count=1))
    judged = found(tmp_path, *history, limits={"delivery_count": limit})
    assert judged.codes["DELIVERY_COUNT_OVER_LIMIT"] == is_found


def test_batches_out_of_order_are_found_once_a_record(tmp_path: Path):
    history = (snapshot(), update([(9, 9, 0, 1), (5, 6, 0, 2), (1, 2, 0, 1)]), update([(1, 2, 0, 1), (3, 3, 0, 2)]))
    (row,) = found(tmp_path, *history).of("BATCHES_OVERLAP")
    assert (row["offset"], row["evidence"]) == (1, {"batches": "2"})


def test_the_batches_of_two_records_may_overlap(tmp_path: Path):
    assert found(tmp_path, snapshot(), update([(5, 9, 0, 1)]), update([(0, 5, 0, 1)])).codes == {}


def test_a_range_that_covers_nothing_overlaps_nothing(tmp_path: Path):
    history = (snapshot(), update([(9, 8, 0, 1), (0, 3, 0, 1), (9, 7, 0, 1)]))
    assert found(tmp_path, *history).codes == {"INVERTED_RANGE": 1, "STATE_SUSPECT": 1}


def test_a_snapshot_with_a_batch_below_its_start_is_found(tmp_path: Path):
    judged = found(tmp_path, snapshot([(2, 9, 0, 1)], start=3))
    assert judged.codes == {"BATCH_BELOW_START": 1}


def test_a_batch_may_lie_anywhere_where_there_is_no_start(tmp_path: Path):
    assert found(tmp_path, snapshot([(0, 9, 0, 1)], start=-1, count=None)).codes == {}


def test_an_update_that_leaves_the_start_out_may_reach_below_it(tmp_path: Path):
    assert found(tmp_path, snapshot(start=5), update([(2, 9, 0, 1)], start=-1)).codes == {}
