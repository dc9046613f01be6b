"""Copies of a log: what both tell is told once, and where they disagree the log that survived is believed."""

from dataclasses import replace
from pathlib import Path

import pytest

from share_state.fold.state_log import decode_log, fold_log
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from tests.kafka.batches import UPDATE, Batch, Record, consecutive, in_bytes, key, log_of, snapshot, update
from tests.kafka.judged import Judged, judged, judged_bytes

CHUNKS = pytest.mark.parametrize("chunk", [1 << 20, 300])


def _snapshot(partition: int, last: int) -> Batch:
    return Batch([Record(key(partition=partition), snapshot([(0, last, 2, 1)]))])


LOG = consecutive(
    [
        _snapshot(0, 9),
        _snapshot(1, 9),
        Batch([Record(key(UPDATE, partition=number), update([(10, 12, 2, 1)])) for number in range(2)]),
        _snapshot(0, 20),
        _snapshot(2, 9),
    ]
)
"""Offsets 0, 1, 2-3, 4 and 5."""


def _copies(folder: Path, *copies: bytes) -> LogPartition:
    for number, data in enumerate(copies):
        log_of(folder / f"broker-{number}", data)
    (log,) = find_logs([str(folder / f"broker-{number}") for number in range(len(copies))])
    return log


def _same(found: Judged, expected: Judged) -> None:
    assert found.folded.states == expected.folded.states
    assert found.folded.in_flight == expected.folded.in_flight
    # The same records take fewer bytes where they are compressed.
    in_bytes = ["redundant_bytes", "pinned_bytes"]
    assert found.folded.cutoff.drop_columns(in_bytes) == expected.folded.cutoff.drop_columns(in_bytes)


@CHUNKS
@pytest.mark.parametrize("count", [2, 3])
def test_copies_that_agree_are_one_log(tmp_path: Path, chunk: int, count: int):
    found = judged(_copies(tmp_path, *[in_bytes(LOG)] * count), chunk=chunk)
    assert not found.findings
    _same(found, judged_bytes(tmp_path, in_bytes(LOG)))


@CHUNKS
def test_copies_that_each_lack_something_complete_each_other(tmp_path: Path, chunk: int):
    halves = in_bytes([LOG[0], LOG[1], LOG[4]]), in_bytes(LOG[1:4])
    _same(judged(_copies(tmp_path, *halves), chunk=chunk), judged_bytes(tmp_path, in_bytes(LOG)))


@CHUNKS
def test_the_second_copy_of_a_segment_in_one_folder_is_no_second_log(tmp_path: Path, chunk: int):
    log_of(tmp_path, in_bytes(LOG))
    found = judged(log_of(tmp_path, in_bytes(LOG[2:]), base_offset=2), chunk=chunk)
    assert [segment.base_offset for segment in found.folded.log.segments] == [0, 2]
    assert not found.findings
    _same(found, judged_bytes(tmp_path / "once", in_bytes(LOG)))


def _other(number: int, leader_epoch: int) -> list[Batch]:
    """The log with other bytes under the offsets of one batch."""
    content = [replace(record, time_delta=77) for record in LOG[number].records]
    return [*LOG[:number], *_of_epoch(leader_epoch, replace(LOG[number], records=content), *LOG[number + 1 :])]


def _of_epoch(leader_epoch: int, *batches: Batch) -> list[Batch]:
    return [replace(batch, leader_epoch=leader_epoch) for batch in batches]


@CHUNKS
@pytest.mark.parametrize("order", [1, -1])
def test_of_two_contents_of_an_offset_that_of_the_higher_leader_epoch_is_kept(tmp_path: Path, chunk: int, order: int):
    lost = _of_epoch(3, Batch([Record(key(partition=0), snapshot([(0, 99, 4, 5)]))], 4), LOG[4])
    copies = [in_bytes([*LOG[:3], *batches]) for batches in (lost, _of_epoch(7, *LOG[3:]))][::order]
    found = judged(_copies(tmp_path, *copies), chunk=chunk)
    assert found.causes == {"DUPLICATE_OFFSET_CONFLICT": 1}
    (finding,) = found.of("DUPLICATE_OFFSET_CONFLICT")
    assert (finding["offset"], finding["severity"]) == (4, "error")
    assert found.states["g", 0]["end_offset"] == 21
    assert f"broker-{0 if order == 1 else 1}" in finding["evidence"]["file"]
    assert not found.cutoff["safe"]


@CHUNKS
@pytest.mark.parametrize("order", [1, -1])
def test_batches_of_an_earlier_leader_epoch_after_a_later_one_are_left_out(tmp_path: Path, chunk: int, order: int):
    survived = [*LOG[:2], *_of_epoch(2, *_other(2, 2)[2:3])]
    found = judged(_copies(tmp_path, *[in_bytes(copy) for copy in (LOG, survived)][::order]), chunk=chunk)
    assert found.causes == {"DUPLICATE_OFFSET_CONFLICT": 3}
    alone = judged_bytes(tmp_path / "alone", in_bytes(survived))
    assert found.folded.states.drop_columns("suspect") == alone.folded.states.drop_columns("suspect")
    assert found.suspects == {0, 1}
    assert not found.cutoff["safe"]


def test_of_one_copy_all_is_read_whatever_its_leader_epochs_are(tmp_path: Path):
    log = log_of(tmp_path, in_bytes([*LOG[:2], *_of_epoch(9, LOG[2]), *LOG[3:]]))
    decoded = sum(len(records.rows) for records, _ in decode_log(log, Window()))
    assert decoded == fold_log(log).record_count == fold_log(log_of(tmp_path / "whole", in_bytes(LOG))).record_count


@pytest.mark.parametrize("number", range(len(LOG)))
def test_a_conflict_makes_the_states_before_it_suspect(tmp_path: Path, number: int):
    found = judged(_copies(tmp_path, in_bytes(LOG), in_bytes(_other(number, 1))))
    assert found.causes == {"DUPLICATE_OFFSET_CONFLICT": 1}
    offset = LOG[number].base_offset
    snapshots = {0: 4, 1: 1, 2: 5}
    assert found.suspects == {partition for partition, at in snapshots.items() if at < offset}


def test_batches_of_other_bounds_over_the_same_offsets_are_a_conflict(tmp_path: Path):
    joined = Batch([*LOG[0].records, *LOG[1].records])
    found = judged(_copies(tmp_path, in_bytes(LOG), in_bytes(_of_epoch(1, joined, *LOG[2:]))))
    assert found.causes == {"DUPLICATE_OFFSET_CONFLICT": 2}
    assert found.folded.record_count == 6


@CHUNKS
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("number", range(len(LOG)))
def test_a_batch_that_one_copy_holds_damaged_is_read_from_the_other(
    tmp_path: Path, chunk: int, order: int, number: int
):
    damaged = in_bytes([*LOG[:number], replace(LOG[number], crc=1), *LOG[number + 1 :]])
    found = judged(_copies(tmp_path, *[in_bytes(LOG), damaged][::order]), chunk=chunk)
    assert found.codes == {"CRC_MISMATCH": 1}
    # Every offset is there once, so nothing is suspect.
    _same(found, judged_bytes(tmp_path, in_bytes(LOG)))


def test_a_copy_that_is_torn_adds_nothing(tmp_path: Path):
    found = judged(_copies(tmp_path, in_bytes(LOG), in_bytes(LOG)[:-20]))
    assert found.codes == {"TORN_TAIL": 1}
    _same(found, judged_bytes(tmp_path, in_bytes(LOG)))


@CHUNKS
def test_batches_out_of_order_in_one_file_are_put_in_order(tmp_path: Path, chunk: int):
    found = judged_bytes(tmp_path, in_bytes([LOG[0], LOG[2], LOG[1], LOG[4], LOG[3]]), chunk=chunk)
    assert not found.findings
    _same(found, judged_bytes(tmp_path, in_bytes(LOG)))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@CHUNKS
def test_copies_of_compressed_logs_are_one_log(tmp_path: Path, codec: int, chunk: int):
    packed = in_bytes([replace(batch, attributes=codec) for batch in LOG])
    found = judged(_copies(tmp_path, packed, packed), chunk=chunk)
    assert not found.findings
    _same(found, judged_bytes(tmp_path, in_bytes(LOG)))
