"""Chains of records folded at once, against the coordinator's way of one record after the other."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.state_log import FoldedLog, fold_log
from share_state.rules.findings import judge
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from tests.fold.model import SNAPSHOT_KIND, TOMBSTONE_KIND, UPDATE_KIND, State, Written, replay
from tests.fold.random_logs import folder_of, logs, numbered, row_of
from tests.profiles import some_of
from tests.truth import DATA

COLUMNS = list(State(Written(UPDATE_KIND, 0), -1, {}, None, 0, 0).row())
RANGE_COLUMNS = [
    "first_offset", "last_offset", "record_count", "delivery_state", "state", "delivery_count", "terminal", "gap",
]  # fmt: skip


def _agrees(folded: FoldedLog, log: list[tuple[int, Written]]) -> None:
    expected = replay(log)
    assert {row["partition"]: row for row in row_of(folded.states, COLUMNS)} == {
        partition: state.row() for partition, state in expected.items()
    }
    ranges: dict[int, list[dict]] = {partition: [] for partition in expected}
    for owner, row in zip(
        folded.in_flight["partition"].to_pylist(), row_of(folded.in_flight, RANGE_COLUMNS), strict=True
    ):
        ranges[owner].append(row)
    assert ranges == {partition: state.in_flight() for partition, state in expected.items()}


def _same(found: FoldedLog, expected: FoldedLog) -> None:
    assert found.states == expected.states
    assert found.in_flight == expected.in_flight
    assert found.cutoff == expected.cutoff
    assert judge(found) == judge(expected)


@given(logs())
def test_the_state_is_what_replay_gives(tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]]):
    _agrees(fold_log(folder_of(log, tmp_path_factory.mktemp("log"))), numbered(log))


@given(logs(), st.sampled_from([1, 100, 200, 333, 1024, 4096]), st.sampled_from([0, 1, 2, 3, 4]))
def test_a_log_read_in_chunks_of_any_size_is_the_same_log(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]], chunk: int, codec: int
):
    found = folder_of(log, tmp_path_factory.mktemp("log"), codec=codec)
    _same(fold_log(found, chunk=chunk), fold_log(found))
    _agrees(fold_log(found, chunk=chunk), numbered(log))


@given(logs(), st.data())
def test_a_log_as_of_an_offset_is_the_log_cut_there(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]], data: st.DataObject
):
    records = numbered(log)
    until = data.draw(st.integers(0, len(records) + 1))
    folded = fold_log(folder_of(log, tmp_path_factory.mktemp("log")), Window(until_offset=until))
    _agrees(folded, records[:until])


@given(logs(), st.data())
def test_a_log_from_an_offset_on_is_the_rest_of_the_log(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]], data: st.DataObject
):
    records = numbered(log)
    begin = data.draw(st.integers(0, len(records) + 1))
    folded = fold_log(folder_of(log, tmp_path_factory.mktemp("log")), Window(from_offset=begin))
    _agrees(folded, records[begin:])


@given(logs(), st.data())
def test_two_segments_are_one_log(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]], data: st.DataObject
):
    folder, cut = tmp_path_factory.mktemp("log"), data.draw(st.integers(0, len(log)))
    whole = fold_log(folder_of(log, folder / "whole"))
    folder_of(log[:cut], folder / "cut")
    at = sum(len(batch) for batch in log[:cut])
    if at:
        folder_of(log[cut:], folder / "cut", base_offset=at)
        (both,) = find_logs([str(folder / "cut")])
        _same(fold_log(both), whole)
        _same(fold_log(both, chunk=150), whole)


@pytest.mark.parametrize("chunk", some_of([200, 1000, 4096], 1))
@pytest.mark.parametrize(
    "name",
    some_of(["4.0.2/chaos", "4.1.2/fuzz", "4.3.1/pruneraw", "4.3.1/codec-gzip", "4.3.1/codec-snappy", "4.3.1/codec-lz4",
     "4.3.1/codec-zstd", "4.4.0/dlq", "4.3.1/crash/crash-copy"], 2),
)  # fmt: skip
def test_a_broker_s_log_read_in_small_chunks_is_the_same_log(name: str, chunk: int):
    for log in find_logs([str(DATA / name)]):
        _same(fold_log(log, chunk=chunk), fold_log(log))


def test_chunks_that_split_the_copies_of_a_log_are_the_same_log():
    for log in find_logs([str(DATA / "4.1.2/fuzz"), str(DATA / "4.1.2/fuzz/__share_group_state-1")]):
        _same(fold_log(log, chunk=500), fold_log(log))


def _folded(folder: Path, *records: Written) -> tuple[FoldedLog, dict[int, dict]]:
    folded = fold_log(folder_of([[record] for record in records], folder))
    _agrees(folded, list(enumerate(records)))
    return folded, {row["partition"]: row for row in folded.states.to_pylist()}


def _values(row: dict) -> list[tuple[int, ...]]:
    return [tuple(batch.values()) for batch in row["state_batches"]]


def test_a_snapshot_replaces_everything_before_it(tmp_path: Path):
    first = Written(SNAPSHOT_KIND, 0, ((0, 9, 4, 5),), start=0, state_epoch=9, leader_epoch=9, count=3)
    second = Written(SNAPSHOT_KIND, 0, ((4, 5, 0, 1),), start=2, epoch=1, state_epoch=1, leader_epoch=1)
    _, rows = _folded(tmp_path, first, second)
    assert _values(rows[0]) == [(4, 5, 0, 1)]
    assert (rows[0]["start_offset"], rows[0]["state_epoch"], rows[0]["max_state_epoch"]) == (2, 1, 9)
    assert (rows[0]["leader_epoch"], rows[0]["max_leader_epoch"]) == (1, 9)


def test_an_update_never_lowers_an_offset(tmp_path: Path):
    base = Written(SNAPSHOT_KIND, 0, ((0, 9, 2, 3),), start=0)
    _, rows = _folded(tmp_path, base, Written(UPDATE_KIND, 0, ((5, 12, 0, 2), (3, 3, 0, 4))))
    assert _values(rows[0]) == [(0, 2, 2, 3), (3, 3, 0, 4), (4, 9, 2, 3), (10, 12, 0, 2)]


def test_what_a_start_offset_cut_off_stays_gone_when_the_start_goes_back(tmp_path: Path):
    base = Written(SNAPSHOT_KIND, 0, ((1, 2, 2, 0),), start=0)
    ahead = Written(UPDATE_KIND, 0, ((1, 3, 4, 1),), start=4)
    back = Written(UPDATE_KIND, 0, ((0, 1, 4, 0),), start=0)
    _, rows = _folded(tmp_path, base, ahead, back)
    assert _values(rows[0]) == [(0, 1, 4, 0)]


def test_an_update_without_a_start_is_clipped_at_the_start_there_is(tmp_path: Path):
    _, rows = _folded(tmp_path, Written(SNAPSHOT_KIND, 0, start=10), Written(UPDATE_KIND, 0, ((5, 12, 0, 1),)))
    assert _values(rows[0]) == [(10, 12, 0, 1)]


def test_a_lone_snapshot_keeps_what_lies_below_its_start(tmp_path: Path):
    _, rows = _folded(tmp_path, Written(SNAPSHOT_KIND, 0, ((5, 12, 2, 1),), start=10))
    assert _values(rows[0]) == [(5, 12, 2, 1)]
    assert rows[0]["effective_start_offset"] == 10


def test_an_update_whose_count_is_absent_makes_the_count_unknown(tmp_path: Path):
    _, rows = _folded(tmp_path, Written(SNAPSHOT_KIND, 0, start=0, count=5), Written(UPDATE_KIND, 0))
    assert rows[0]["delivery_complete_count"] == -1


def test_a_tombstone_ends_a_share_partition_and_a_snapshot_begins_it_anew(tmp_path: Path):
    first = Written(SNAPSHOT_KIND, 0, ((0, 9, 4, 5),), start=0, epoch=4, state_epoch=7, leader_epoch=7)
    gone = Written(TOMBSTONE_KIND, 0)
    assert _folded(tmp_path / "gone", first, gone)[1] == {}
    _, rows = _folded(tmp_path / "anew", first, gone, Written(SNAPSHOT_KIND, 0, start=-1, state_epoch=1))
    assert (rows[0]["start_offset"], rows[0]["end_offset"], rows[0]["effective_start_offset"]) == (-1, None, -1)
    assert (rows[0]["max_state_epoch"], rows[0]["max_leader_epoch"]) == (1, 0)


def test_an_update_behind_a_tombstone_is_a_state_of_its_own(tmp_path: Path):
    first = Written(SNAPSHOT_KIND, 0, ((0, 9, 4, 5),), start=0, state_epoch=7)
    _, rows = _folded(tmp_path, first, Written(TOMBSTONE_KIND, 0), Written(UPDATE_KIND, 0, ((3, 4, 0, 1),), start=3))
    assert _values(rows[0]) == [(3, 4, 0, 1)]
    assert (rows[0]["snapshot_offset"], rows[0]["state_epoch"], rows[0]["max_state_epoch"]) == (None, 0, None)


@pytest.mark.parametrize(("early", "state_epoch"), [(True, -1), (False, 0)])
def test_an_orphan_update_has_the_state_epoch_its_release_gives_it(tmp_path: Path, early: bool, state_epoch: int):
    _, rows = _folded(tmp_path, Written(UPDATE_KIND, 0, start=0, early=early))
    assert rows[0]["state_epoch"] == state_epoch
