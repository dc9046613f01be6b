"""Epochs that count up by one, and epochs that fence."""

from pathlib import Path
from typing import Any

import pytest

from tests.kafka.batches import UPDATE, Record, key
from tests.rules.histories import ACKNOWLEDGED, OF_4_4, found, snapshot, tombstone, update


@pytest.mark.parametrize("epoch", [-1, 0, 2, 65535])
def test_a_snapshot_that_skips_or_repeats_an_epoch_is_found(tmp_path: Path, epoch: int):
    judged = found(tmp_path, snapshot(), snapshot(epoch=epoch))
    assert judged.codes == {"SNAPSHOT_EPOCH_GAP": 1}
    assert judged.of("SNAPSHOT_EPOCH_GAP")[0]["evidence"] == {"found": str(epoch), "expected": "1"}


def test_a_share_partition_that_does_not_begin_with_epoch_0_is_found(tmp_path: Path):
    assert found(tmp_path, snapshot(epoch=1)).codes == {"SNAPSHOT_EPOCH_GAP": 1}


def test_a_share_partition_that_was_deleted_begins_with_epoch_0_again(tmp_path: Path):
    anew: dict[str, Any] = {"leader_epoch": 0}
    assert found(tmp_path / "0", snapshot(), tombstone(), snapshot(**anew)).codes == {}
    assert found(tmp_path / "1", snapshot(), tombstone(), snapshot(epoch=1, **anew)).codes == {"SNAPSHOT_EPOCH_GAP": 1}


def test_in_a_log_that_was_pruned_any_epoch_may_come_first(tmp_path: Path):
    assert found(tmp_path, snapshot(epoch=7), snapshot(epoch=8), base_offset=3).codes == {}


def test_after_a_tombstone_the_epoch_is_0_even_in_a_log_that_was_pruned(tmp_path: Path):
    history = (tombstone(), snapshot(epoch=7, leader_epoch=0))
    assert found(tmp_path, *history, base_offset=3).codes == {"SNAPSHOT_EPOCH_GAP": 1}


def test_the_snapshot_after_orphan_updates_counts_on_from_them(tmp_path: Path):
    orphan = update(epoch=4, start=0)
    assert found(tmp_path / "5", orphan, snapshot(epoch=5), base_offset=3).codes == {}
    assert found(tmp_path / "6", orphan, snapshot(epoch=6), base_offset=3).codes == {"SNAPSHOT_EPOCH_GAP": 1}


def test_an_unreadable_update_does_not_make_the_next_ones_mismatches(tmp_path: Path):
    # The unreadable record may have been the snapshot that they belong to.
    unreadable = Record(key(), b"\0\0\1")
    judged = found(tmp_path, snapshot(), unreadable, update(epoch=1), update(epoch=1))
    assert judged.codes == {"VALUE_MALFORMED": 1, "STATE_SUSPECT": 1}


def test_the_epochs_are_not_compared_across_an_unreadable_snapshot(tmp_path: Path):
    unreadable = Record(key(), b"\0\0\1")
    assert found(tmp_path, snapshot(), unreadable, snapshot(epoch=2)).codes == {"VALUE_MALFORMED": 1}


def test_the_state_epoch_may_stay_or_rise(tmp_path: Path):
    assert found(tmp_path, snapshot(), snapshot(epoch=1), snapshot(epoch=2, state_epoch=5)).codes == {}


def test_initialising_may_not_lower_the_state_epoch(tmp_path: Path):
    history = (snapshot(state_epoch=4), snapshot(epoch=1, state_epoch=3, leader_epoch=0))
    assert found(tmp_path, *history).codes == {"STATE_EPOCH_REGRESSION": 1}


@pytest.mark.parametrize(("limits", "is_found"), [({"writer_version": "4.3"}, False), (OF_4_4, True)])
def test_before_4_4_a_request_without_a_state_epoch_is_not_fenced(tmp_path: Path, limits: dict, is_found: bool):
    history = (snapshot(state_epoch=4), snapshot(epoch=1, state_epoch=-1, leader_epoch=0))
    assert found(tmp_path, *history, limits=limits).codes == ({"STATE_EPOCH_REGRESSION": 1} if is_found else {})


def test_a_deleted_share_partition_may_begin_with_a_lower_state_epoch(tmp_path: Path):
    assert found(tmp_path, snapshot(state_epoch=4), tombstone(), snapshot(leader_epoch=0)).codes == {}


@pytest.mark.parametrize("kind", ["update", "snapshot"])
def test_a_leader_epoch_that_goes_back_is_found(tmp_path: Path, kind: str):
    last = update(leader_epoch=1) if kind == "update" else snapshot(epoch=1, leader_epoch=1)
    assert found(tmp_path, snapshot(), update(leader_epoch=3), last).codes == {"LEADER_EPOCH_REGRESSION": 1}


def test_an_update_that_leaves_the_leader_epoch_as_it_is_is_quiet(tmp_path: Path):
    assert found(tmp_path, snapshot(), update(leader_epoch=-1), update(leader_epoch=3)).codes == {}


def test_initialising_sets_the_leader_epoch_to_0(tmp_path: Path):
    assert found(tmp_path, snapshot(), snapshot(epoch=1, leader_epoch=0)).codes == {}


def test_the_share_partitions_of_a_log_do_not_mix(tmp_path: Path):
    high: dict[str, Any] = {"leader_epoch": 9, "state_epoch": 9}
    history = (
        snapshot(**high), snapshot(partition=1), snapshot(epoch=1, **high),
        update(partition=1), Record(key(UPDATE, group="other"), None), snapshot(partition=1, epoch=1),
    )  # fmt: skip
    assert found(tmp_path, *history).codes == {"UPDATE_TOMBSTONE": 1}


@pytest.mark.parametrize("limits", [{}, OF_4_4])
@pytest.mark.parametrize("state_epoch", [1, 2, 4], ids=["as in 4.4", "as in 4.5", "after other changes of the group"])
def test_a_reset_may_bump_the_group_epoch(tmp_path: Path, limits, state_epoch: int):
    """Three resets in 4.4.0 initialize with one epoch; merged for 4.5: each bumps the group epoch first."""
    reset = snapshot(start=0, epoch=1, state_epoch=state_epoch, leader_epoch=0, count=0)
    of_leader = update([(0, 1, ACKNOWLEDGED, 1)], epoch=1, leader_epoch=3, count=2)
    assert found(tmp_path, snapshot(start=40), reset, of_leader, limits=limits).codes == {}
