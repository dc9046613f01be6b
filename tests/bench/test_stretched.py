"""Exports that are made of a small one's batches hold what a log holds: right checksums, offsets without a hole."""

from pathlib import Path

import numpy as np
import pytest

from bench.stretched import Part, repeated
from share_state.fold.log import fold_log
from share_state.kafka.record_batches import Trust
from share_state.sources.discovery import LogPartition, find_logs
from share_state.sources.segments import read_chunks
from tests.log_writer import batch, snapshot, update, write_log_folder

TOPIC = "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.fixture
def small(tmp_path: Path) -> LogPartition:
    """Three batches, two share-partitions; the partitions are 0 and 3."""
    first, second = ("g", TOPIC, 0), ("g", TOPIC, 3)
    write_log_folder(
        tmp_path / "small",
        0,
        [
            batch([snapshot(first, start_offset=5), snapshot(second, start_offset=7)]),
            batch([update(first, [(5, 6, 0, 1)], start_offset=5)]),
            batch([update(second, [(7, 9, 2, 1)], start_offset=7)]),
        ],
    )
    (log,) = find_logs([str(tmp_path / "small")])
    return log


def _read(folder: Path) -> LogPartition:
    (log,) = find_logs([str(folder)])
    return log


def _written(small: LogPartition, folder: Path, size: int, **how: object) -> Part:
    return repeated(small, folder / small.name, size, **{"new_keys": False, "segment_bytes": 1 << 20, **how})


def test_every_round_brings_as_many_new_share_partitions(small: LogPartition, tmp_path: Path) -> None:
    part = _written(small, tmp_path / "large", 4 * small.size, new_keys=True)
    folded = fold_log(_read(tmp_path / "large"))
    assert (part.rounds, part.records, part.bytes) == (4, 16, 4 * small.size)
    assert sorted(folded.states["partition"].to_pylist()) == [0, 3, 4, 7, 8, 11, 12, 15]
    assert folded.record_count == 16


def test_the_same_share_partitions_end_as_they_would_in_one_round(small: LogPartition, tmp_path: Path) -> None:
    _written(small, tmp_path / "large", 3 * small.size)
    columns = ["partition", "start_offset", "state_batches"]
    again, once = fold_log(_read(tmp_path / "large")), fold_log(small)
    assert again.states.select(columns) == once.states.select(columns)
    assert (again.record_count, again.next_offset) == (12, 12)


@pytest.mark.parametrize("new_keys", [False, True])
def test_checksums_are_right_and_no_offset_is_missing(small: LogPartition, tmp_path: Path, new_keys: bool) -> None:
    _written(small, tmp_path / "large", 5 * small.size, new_keys=new_keys)
    batches = np.concatenate([chunk.batches.copy() for chunk in read_chunks(_read(tmp_path / "large"))])
    assert (batches["trust"] == Trust.WHOLE).all()
    assert batches["base_offset"].tolist()[1:] == (batches["last_offset"] + 1).tolist()[:-1]


def test_no_batch_is_cut_where_the_size_ends(small: LogPartition, tmp_path: Path) -> None:
    part = _written(small, tmp_path / "large", 2 * small.size - 1)
    assert (part.records, part.rounds) == (7, 2)
    assert fold_log(_read(tmp_path / "large")).record_count == 7


def test_segments_are_as_small_as_asked(small: LogPartition, tmp_path: Path) -> None:
    part = _written(small, tmp_path / "large", 4 * small.size, segment_bytes=1)
    log = _read(tmp_path / "large")
    assert part.segments == len(log.segments) == 12
    assert fold_log(log).record_count == 16
