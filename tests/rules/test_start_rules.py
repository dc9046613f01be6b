"""Start offsets: where they may go back, and where not."""

from pathlib import Path

import pytest

from tests.rules.histories import found, snapshot, tombstone, update


def test_a_snapshot_whose_start_goes_back_is_found(tmp_path: Path):
    judged = found(tmp_path, snapshot(start=5), snapshot(start=3, epoch=1))
    assert judged.codes == {"START_OFFSET_REGRESSION": 1}
    assert judged.of("START_OFFSET_REGRESSION")[0]["evidence"] == {"found": "3", "before": "5"}


def test_a_snapshot_that_forgets_the_start_is_found(tmp_path: Path):
    assert found(tmp_path, snapshot(start=5), snapshot(start=-1, epoch=1)).codes == {"START_OFFSET_REGRESSION": 1}


def test_each_step_back_is_found_once(tmp_path: Path):
    history = (snapshot(start=5), update(start=4), update(start=4), update(start=6), update(start=5))
    assert [row["offset"] for row in found(tmp_path, *history).of("START_OFFSET_REGRESSION")] == [1, 4]


def test_initialising_may_take_the_start_back(tmp_path: Path):
    for number, count in enumerate([None, 0]):
        history = (snapshot(start=5), snapshot(start=3, epoch=1, leader_epoch=0, count=count))
        assert found(tmp_path / str(number), *history).codes == {}


def test_initialising_may_forget_the_start(tmp_path: Path):
    history = (snapshot(start=5), snapshot(start=-1, epoch=1, leader_epoch=0, count=None))
    assert found(tmp_path, *history).codes == {}


def test_a_snapshot_of_a_later_state_epoch_may_take_the_start_back(tmp_path: Path):
    # 4.1 merges a request of a later state epoch into a snapshot.
    history = (snapshot(start=5), snapshot(start=3, epoch=1, state_epoch=2))
    assert found(tmp_path, *history, limits={"writer_version": "4.1"}).codes == {}


def test_a_deleted_share_partition_may_start_anywhere(tmp_path: Path):
    assert found(tmp_path, snapshot(start=5), tombstone(), snapshot(start=0, leader_epoch=0)).codes == {}


def test_a_start_that_is_left_out_goes_nowhere(tmp_path: Path):
    assert found(tmp_path, snapshot(start=5), update(start=-1), update(start=5)).codes == {}


@pytest.mark.parametrize("kind", [snapshot, update])
@pytest.mark.parametrize("start", [-2, -(2**63)])
def test_a_negative_start_is_found_wherever_it_stands(tmp_path: Path, kind, start: int):
    last = kind(start=start, epoch=kind is snapshot)
    assert found(tmp_path, snapshot(), last).codes == {"START_OFFSET_INVALID": 1}
