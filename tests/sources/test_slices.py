"""A log handed out in stretches is the log, and what was handed out holds as long as it is said to."""

from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.kafka.record_batches import BATCH, CHUNK_SIZE, BatchStatus, Chunk
from share_state.sources.segment_frames import frame_segments
from tests.kafka.batches import SNAPSHOT, Batch, Record, consecutive, in_bytes, key, log_of, snapshot

SOUND = in_bytes(
    consecutive(
        [
            Batch([Record(key(SNAPSHOT, partition=row), snapshot([(0, 9, 0, 1)])) for row in range(1 + number % 5)])
            for number in range(40)
        ]
    )
)
IN_THE_CHUNK = {"at", "body", "body_end"}
TOLD = [name for name in BATCH.names or () if name not in IN_THE_CHUNK]


def told(parts: list[np.ndarray]) -> list[list[object]]:
    """All of whole batches, and where the others lie: what a lying header says depends on where a buffer ends."""
    rows = np.concatenate(parts)
    whole = rows[rows["status"] == BatchStatus.VALID]
    return [*(whole[name].tolist() for name in TOLD), *(rows[name].tolist() for name in ("file_position", "size"))]


def content(part: Chunk) -> list[bytes]:
    return [part.data[row["at"] : row["at"] + row["size"]].tobytes() for row in part.batches]


@given(
    st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(1, 255)), max_size=3),
    st.integers(0, 300),
    st.sampled_from([1200, 5000, 1 << 20]),
    st.integers(1, 20),
    st.integers(1, 3),
)
def test_stretches_are_the_whole_and_hold(
    tmp_path_factory: pytest.TempPathFactory,
    flips: list[tuple[int, int]],
    zeros: int,
    chunk: int,
    stretches: int,
    buffers: int,
):
    written = bytearray(SOUND + bytes(zeros) + SOUND)
    for at, mask in flips:
        written[at] ^= mask
    segments = tuple(log_of(tmp_path_factory.mktemp("log"), bytes(written)).segments)
    whole = [part.batches.copy() for part in frame_segments(segments, 1 << 20)]
    rows, held = list[np.ndarray](), deque[tuple[Chunk, list[bytes], np.ndarray]]()
    for part in frame_segments(segments, chunk, buffers, stretches):
        for older, bytes_then, rows_then in held:
            assert content(older) == bytes_then
            assert (older.batches == rows_then).all()
        rows.append(part.batches.copy())
        held.append((part, content(part), rows[-1]))
        if len(held) == buffers:
            held.popleft()
    assert told(rows) == told(whole)


def test_a_stretch_is_about_as_long_as_it_was_asked_for(tmp_path: Path):
    segments = tuple(log_of(tmp_path, SOUND).segments)
    sizes = [int(part.batches["size"].sum()) for part in frame_segments(segments, len(SOUND), slices=8)]
    largest = int(max(part.batches["size"].max() for part in frame_segments(segments)))
    assert len(sizes) in (7, 8)
    assert max(sizes) < len(SOUND) // 8 + largest


def test_a_batch_larger_than_a_chunk_is_found_behind_a_length_that_lies(tmp_path: Path):
    many = [(2 * row, 2 * row, 0, 1) for row in range((CHUNK_SIZE + (1 << 20)) // 20)]
    batches = consecutive([Batch([Record(key(SNAPSHOT), snapshot(ranges))]) for ranges in ([(0, 9, 0, 1)], many)])
    sound = in_bytes(batches)
    lying = bytearray(sound)
    lying[8:12] = (1 << 30).to_bytes(4, "big")
    (segment,) = log_of(tmp_path, bytes(lying)).segments
    rows = np.concatenate([part.batches.copy() for part in frame_segments((segment,))])
    assert rows["status"].tolist() == [BatchStatus.MALFORMED, BatchStatus.VALID]
    assert rows["size"].sum() == len(sound)
