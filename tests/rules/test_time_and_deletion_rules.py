"""Clocks, tombstones, and what follows them."""

from pathlib import Path

import pytest

from tests.kafka.batches import NOW, Record
from tests.rules.histories import found, snapshot, tombstone, update

CLOCK = "TIMESTAMP_REGRESSION"


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (snapshot(epoch=1, after=-5), "the record's timestamp is 5 ms before the share-partition's last record"),
        (snapshot(epoch=1, created=NOW, written=NOW - 2), "the snapshot was written 2 ms before it was created"),
        (
            snapshot(epoch=1, created=NOW - 7, written=NOW - 7),
            "the snapshot was written 7 ms before the one it replaces",
        ),
    ],
)
def test_a_clock_that_steps_back_is_found(tmp_path: Path, last: Record, message: str):
    judged = found(tmp_path, snapshot(), last)
    assert judged.codes == {CLOCK: 1}
    assert judged.of(CLOCK)[0]["message"] == message


def test_a_clock_may_stand_still(tmp_path: Path):
    assert found(tmp_path, snapshot(), update(), snapshot(epoch=1)).codes == {}


def test_the_clock_of_another_share_partition_does_not_matter(tmp_path: Path):
    assert found(tmp_path, snapshot(after=9), snapshot(partition=1, after=2)).codes == {}


def test_a_tombstone_is_stamped_too(tmp_path: Path):
    anew = snapshot(leader_epoch=0, after=-1)
    assert found(tmp_path, snapshot(), tombstone(), anew).codes == {CLOCK: 1}


def test_a_snapshot_of_4_0_has_no_times_to_compare(tmp_path: Path):
    assert found(tmp_path, snapshot(early=True), snapshot(early=True, epoch=1)).codes == {}


def test_an_update_behind_a_tombstone_is_found(tmp_path: Path):
    judged = found(tmp_path, snapshot(), tombstone(), update(), snapshot(epoch=1, leader_epoch=0))
    assert judged.codes == {"STATE_AFTER_DELETE": 1}
    (row,) = judged.of("STATE_AFTER_DELETE")
    assert row["offset"] == 2
    assert "an update follows" in row["message"]


@pytest.mark.parametrize("change", [{"leader_epoch": 3}, {"ranges": [(0, 0, 0, 1)], "leader_epoch": 0}])
def test_a_snapshot_that_goes_on_behind_a_tombstone_is_found(tmp_path: Path, change: dict):
    assert found(tmp_path, snapshot(), tombstone(), snapshot(**change)).codes == {"STATE_AFTER_DELETE": 1}


def test_only_the_first_record_behind_a_tombstone_follows_it(tmp_path: Path):
    history = (snapshot(), tombstone(), snapshot(leader_epoch=0), update(), snapshot([(0, 0, 0, 1)], epoch=1))
    assert found(tmp_path, *history).codes == {}


def test_a_tombstone_behind_a_tombstone_is_found(tmp_path: Path):
    judged = found(tmp_path, snapshot(), tombstone(), tombstone())
    assert judged.codes == {"TOMBSTONE_WITHOUT_STATE": 1}
    assert judged.of("TOMBSTONE_WITHOUT_STATE")[0]["message"].endswith("that is already deleted")


def test_in_a_log_that_was_pruned_a_tombstone_may_come_first_but_not_twice(tmp_path: Path):
    judged = found(tmp_path, tombstone(), tombstone(), base_offset=4)
    assert [row["offset"] for row in judged.of("TOMBSTONE_WITHOUT_STATE")] == [5]
