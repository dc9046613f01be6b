"""What was read, counted chunk by chunk: the same wherever the chunks are cut."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.log_stats import CELL, LogExtent
from share_state.kafka.record_batches import BATCH, BatchStatus

SIZE = 100

steps = st.lists(st.sampled_from([1, 1, 1, 2, 7, CELL]), max_size=60)
cuts = st.lists(st.integers(0, 60), max_size=6)


def batches_of(offsets: np.ndarray) -> np.ndarray:
    """A batch of SIZE bytes for each offset."""
    rows = np.zeros(len(offsets), BATCH)
    rows["base_offset"] = rows["last_offset"] = offsets
    rows["size"] = SIZE
    return rows


@given(st.integers(-1, 2 * CELL), steps, cuts, st.integers(-1, 70 * CELL))
def test_chunks_count_as_the_whole_does(first: int, distances: list[int], at: list[int], before: int):
    offsets = first + np.cumsum([0, *distances])
    whole, cut = LogExtent(), LogExtent()
    whole.take(batches_of(offsets), offsets)
    for part in np.split(offsets, sorted(min(one, len(offsets)) for one in at)):
        cut.take(batches_of(part), part)
    assert cut.runs.tolist() == whole.runs.tolist()
    assert cut.cells.tolist() == whole.cells.tolist()
    assert cut.records_before(before) == int((offsets < before).sum())
    assert cut.bytes_before(int(offsets[-1]) + 1) == SIZE * len(offsets)


@given(steps)
def test_bytes_of_batches_that_cannot_be_trusted_do_not_count(distances: list[int]):
    offsets = np.cumsum([0, *distances])
    batches = batches_of(offsets)
    batches["status"][::2] = BatchStatus.CRC_MISMATCH
    extent = LogExtent()
    extent.take(batches, offsets[:0])
    assert int(extent.cells["bytes"].sum()) == SIZE * (len(offsets) // 2)
    assert extent.records_before(int(offsets[-1]) + 1) == 0


def test_runs_touch_nowhere():
    extent = LogExtent()
    for part in ([5, 6], [7], [9], [], [10, 11, 13]):
        extent.take(batches_of(np.array(part, np.int64)), np.array(part, np.int64))
    assert extent.runs.tolist() == [(5, 3), (9, 3), (13, 1)]
