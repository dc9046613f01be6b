"""The times of records in a broker's data folder are those that reading the whole logs shows."""

import shutil
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from share_state.kafka.record_batches import locate_records
from share_state.sources.batch_headers import find_segments
from share_state.sources.log_partition import LogPartition, Segment
from share_state.sources.record_times import read_records
from share_state.sources.segments import read_chunks
from tests.kafka.batches import NOW, Record, consecutive, in_bytes
from tests.log_writer import batch, write_segment

FOLDER = Path(__file__).parent / "cluster_facts" / "whole-broker"
VALUE = b"v" * 40


def records_of(folder: Path) -> tuple[list[int], list[int]]:
    """Offset and timestamp of every data record of a log, read from its start."""
    offsets, times = list[int](), list[int]()
    for base_offset, file in find_segments(folder):
        segment = Segment(str(file), base_offset, file.stat().st_size)
        for chunk in read_chunks(LogPartition("t", 0, (segment,), 0)):
            records = locate_records(chunk.data, chunk.batches)
            offsets += records["offset"].tolist()
            times += records["timestamp"].tolist()
    return offsets, times


def expected(folder: Path, places: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Place -> offset and time of the first record at or after it."""
    offsets, times = records_of(folder)
    rows = np.searchsorted(offsets, places).tolist()
    return {place: (offsets[row], times[row]) for place, row in zip(places, rows, strict=True) if row < len(offsets)}


def found(data_folder: Path, topic: str, partition: int, places: Sequence[int]) -> dict[int, tuple[int, int]]:
    records = read_records([data_folder], [(topic, partition, offset) for offset in places])
    return {offset: record for (_, _, offset), record in records.items()}


@pytest.mark.parametrize("name", ["a-0", "b-3", "txn-0", "txn-2"])
def test_every_offset_of_a_real_broker_has_the_time_of_its_record_or_of_the_next(name):
    topic, _, partition = name.rpartition("-")
    places = range(430)
    assert found(FOLDER, topic, int(partition), places) == expected(FOLDER / name, places)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A log of three segments with all codecs, an append time, a gap, and a control batch at the end of a segment."""
    folder = tmp_path / "orders-0"
    folder.mkdir()
    codecs = ("none", "gzip", "lz4", "none")
    batches = [
        batch(
            [Record(b"k", VALUE, time_delta=10 * number) for number in range(5)], codec=codec, timestamp=NOW + 1000 * at
        )
        for at, codec in enumerate(codecs * 6)
    ]
    batches[3] = batch([Record(b"k", VALUE)] * 5, log_append_time=NOW + 77_000)
    batches[7] = batch([Record(b"\0\0\0\1", b"\0\0\0\0\0\0")], control=True, transactional=True)
    placed = consecutive(batches)
    write_segment(folder, placed[:8])
    # A compacted log has gaps: the second segment begins later than its name.
    late = placed[9:16]
    (folder / f"{placed[8].base_offset:020}.log").write_bytes(in_bytes(late))
    write_segment(folder, placed[16:])
    return tmp_path


def write_index(segment: Path, every: int) -> None:
    """The offset index that Kafka writes: the last offset of a batch, relative to the base offset, and its position."""
    data, base_offset, entries, position, number = segment.read_bytes(), int(segment.stem), b"", 0, 0
    while position < len(data):
        first, length = struct.unpack_from(">qi", data, position)
        (last_delta,) = struct.unpack_from(">i", data, position + 23)
        if position and number % every == 0:
            entries += struct.pack(">ii", first + last_delta - base_offset, position)
        position += 12 + length
        number += 1
    segment.with_suffix(".index").write_bytes(entries + bytes(80))


@pytest.mark.parametrize("every", [0, 1, 3])
def test_the_offset_index_changes_nothing_but_the_way(made, every):
    for segment in (made / "orders-0").glob("*.log") if every else ():
        write_index(segment, every)
    places = range(130)
    assert found(made, "orders", 0, places) == expected(made / "orders-0", places)
    assert len(found(made, "orders", 0, places)) == 116


def test_an_index_that_does_not_fit_its_segment_is_not_followed(made):
    for segment in (made / "orders-0").glob("*.log"):
        segment.with_suffix(".index").write_bytes(struct.pack(">iiii", 3, 17, 9, 10**6))
    assert found(made, "orders", 0, range(116)) == expected(made / "orders-0", range(116))


def test_what_is_not_there_has_no_time(made):
    assert read_records([made], [("orders", 1, 0), ("other", 0, 0), ("orders", 0, 10_000)]) == {}
    newest = max((made / "orders-0").glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:-20])
    last = max(records_of(made / "orders-0")[0])
    assert found(made, "orders", 0, [last, last + 1]) == expected(made / "orders-0", [last])


def test_of_several_brokers_any_that_has_the_record_tells_its_time(made, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(made / "orders-0", other / "orders-0")
    (min((other / "orders-0").glob("*.log"))).write_bytes(b"")
    places = [0, 3, 90]
    assert found(made, "orders", 0, places) == {
        offset: time
        for (_, _, offset), time in read_records([other, made], [("orders", 0, offset) for offset in places]).items()
    }


def test_a_time_that_is_none_is_not_told(tmp_path):
    folder = tmp_path / "orders-0"
    folder.mkdir()
    write_segment(
        folder,
        [
            replace(one, base_offset=at)
            for at, one in enumerate([batch([Record(b"k", VALUE)], timestamp=time) for time in (-1, 2**60)])
        ],
    )
    assert found(tmp_path, "orders", 0, [0, 1]) == {}
