"""Repeated exports hold what a log holds: valid checksums, consecutive offsets."""

from pathlib import Path

import numpy as np
import pytest

from bench.inputs import SEGMENT_BYTES, faulty_log, repeat_log
from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import fold_log
from share_state.kafka.record_batches import BatchStatus
from share_state.rules.findings import judge_records
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.segments import read_chunks
from tests.log_writer import batch, snapshot, update, write_log_folder

TOPIC = "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.fixture
def base(tmp_path: Path) -> LogPartition:
    """Three batches of two share-partitions, whose partitions are 0 and 3."""
    first, second = ("g", TOPIC, 0), ("g", TOPIC, 3)
    batches = [
        batch([snapshot(first, start_offset=5), snapshot(second, start_offset=7)]),
        batch([update(first, [(5, 6, 0, 1)], start_offset=5)]),
        batch([update(second, [(7, 9, 2, 1)], start_offset=7)]),
    ]
    write_log_folder(tmp_path / "base", 0, batches)
    return find_logs([str(tmp_path / "base")])[0]


def repeat(base: LogPartition, size: int, *, new_keys: bool = False, segment_bytes: int = SEGMENT_BYTES):
    folder = Path(base.segments[0].path).parents[2] / "repeated"
    counts = repeat_log(base, folder / base.name, size, new_keys, segment_bytes)
    return find_logs([str(folder)])[0], counts


def test_each_repetition_brings_new_share_partitions(base: LogPartition) -> None:
    log, counts = repeat(base, 4 * base.size, new_keys=True)
    folded = fold_log(log)
    assert (*counts, log.size) == (16, 4, 4 * base.size)
    assert sorted(folded.states["partition"].to_pylist()) == [0, 3, 4, 7, 8, 11, 12, 15]
    assert folded.record_count == 16


def test_repeated_share_partitions_end_in_the_same_state(base: LogPartition) -> None:
    columns = ["partition", "start_offset", "state_batches"]
    repeated, once = fold_log(repeat(base, 3 * base.size)[0]), fold_log(base)
    assert repeated.states.select(columns) == once.states.select(columns)
    assert (repeated.record_count, repeated.next_offset) == (12, 12)


@pytest.mark.parametrize("new_keys", [False, True])
def test_checksums_are_valid_and_offsets_consecutive(base: LogPartition, new_keys: bool) -> None:
    log, _ = repeat(base, 5 * base.size, new_keys=new_keys)
    batches = np.concatenate([chunk.batches.copy() for chunk in read_chunks(log)])
    assert (batches["status"] == BatchStatus.VALID).all()
    assert batches["base_offset"].tolist()[1:] == (batches["last_offset"] + 1).tolist()[:-1]


def test_no_batch_is_cut_at_the_end(base: LogPartition) -> None:
    log, counts = repeat(base, 2 * base.size - 1)
    assert counts == (7, 2)
    assert fold_log(log).record_count == 7


def test_segments_are_at_most_as_large_as_requested(base: LogPartition) -> None:
    log, _ = repeat(base, 4 * base.size, segment_bytes=1)
    assert len(log.segments) == 12
    assert fold_log(log).record_count == 16


def test_the_chosen_share_partitions_of_a_faulty_log_break_one_rule_once(base: LogPartition, tmp_path: Path) -> None:
    assert faulty_log(base, tmp_path / "faulty" / base.name, 0.5) == 1
    (log,) = find_logs([str(tmp_path / "faulty")])
    folded = fold_log(log, options=FoldOptions(judge=judge_records))
    assert [(code, found.offset.tolist()) for code, found in folded.record_breaches] == [("UPDATE_EPOCH_MISMATCH", [2])]
    batches = np.concatenate([chunk.batches.copy() for chunk in read_chunks(log)])
    assert (batches["status"] == BatchStatus.VALID).all()
