"""Logs on disk: framing, batches, segments; what we and Kafka read is what was appended."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.kafka.record_batches import locate_records
from share_state.simulator.log_writer import CODECS, DataRecord, LogWriter, encode_batch
from share_state.simulator.types import SimulationError
from share_state.sources import jars
from share_state.sources.discovery import find_logs, find_topic_logs
from share_state.sources.segments import read_chunks
from tests.kafka.batches import NOW, Batch, Record
from tests.kafka_classes import read_segment

Row = tuple[int, int, bytes | None, bytes | None]

PARTS = st.none() | st.binary(max_size=40) | st.integers(60, 70_000).map(bytes)
RECORDS = st.lists(st.tuples(st.integers(-3, 9), PARTS, PARTS), min_size=1, max_size=12)


def rows_of(log, *, control: bool = False) -> list[Row]:
    """Every record of a log as our reader sees it."""
    rows = []
    for chunk in read_chunks(log):
        assert (chunk.batches["status"] == 0).all()
        data = chunk.data.tobytes()
        for row in locate_records(chunk.data, chunk.batches, control=control):
            key, value = (
                None if row[f"{part}_size"] < 0 else data[row[f"{part}_at"] : row[f"{part}_at"] + row[f"{part}_size"]]
                for part in ("key", "value")
            )
            rows.append((int(row["offset"]), int(row["timestamp"]), key, value))
    return rows


@given(RECORDS)
def test_a_plain_batch_is_byte_for_byte_what_the_tests_own_writer_makes(records):
    stamped = [DataRecord(NOW + time, key, value) for time, key, value in records]
    first = stamped[0].timestamp
    expected = Batch(
        [Record(key, value, time_delta=NOW + time - first) for time, key, value in records],
        base_offset=7,
        base_timestamp=first,
        max_timestamp=max(record.timestamp for record in stamped),
    )
    assert encode_batch(7, stamped) == expected.written()


@pytest.mark.parametrize("codec", CODECS)
@given(RECORDS, st.sampled_from([0, 100, 16_384]), st.sampled_from([100, 3000, 10**6]))
def test_what_is_appended_is_read_again(tmp_path_factory, codec, records, batch_bytes, segment_bytes):
    folder = tmp_path_factory.mktemp("log") / "__share_group_state-3"
    log = LogWriter(folder, base_offset=40, codec=codec, batch_bytes=batch_bytes, segment_bytes=segment_bytes)
    offsets = [log.append(NOW + time, key, value) for time, key, value in records]
    log.flush()
    assert offsets == list(range(40, 40 + len(records)))
    (found,) = find_logs([str(folder)])
    assert rows_of(found) == [
        (offset, NOW + record[0], *record[1:]) for offset, record in zip(offsets, records, strict=True)
    ]
    assert found.segments[0].base_offset == 40
    batches = [int(row["segment"]) for chunk in read_chunks(found) for row in chunk.batches]
    # A batch that is larger than a segment may be has one to itself.
    for number, segment in enumerate(found.segments):
        assert segment.size <= segment_bytes or batches.count(number) == 1


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_reads_every_codec(tmp_path, spark, codec):
    folder = tmp_path / "__share_group_state-0"
    log = LogWriter(folder, codec=codec, batch_bytes=400_000)
    # What cannot shrink and what can, each longer than the blocks of snappy and lz4.
    noise = b"".join(hashlib.sha256(number.to_bytes(4, "big")).digest() for number in range(4000))
    appended = [(NOW, b"k", noise), (NOW + 2, b"", bytes(200_000)), (NOW + 5, None, None), (NOW + 5, b"k", b"")]
    for record in appended:
        log.append(*record)
    log.flush()
    (segment,) = folder.iterdir()
    expected = [(offset, *record) for offset, record in enumerate(appended)]
    assert read_segment(spark._jvm, jars.jars(jars.KAFKA), segment) == expected


def test_records_that_come_late_begin_a_batch_of_their_own(tmp_path):
    log = LogWriter(tmp_path / "__share_group_state-0")
    for after in (0, 5, 6, 6, 20):
        log.append(NOW + after, b"k", b"v")
    log.flush()
    (found,) = find_logs([str(tmp_path)])
    (chunk,) = read_chunks(found)
    assert chunk.batches["base_offset"].tolist() == [0, 2, 4]


def test_control_records_stand_in_batches_of_their_own_amid_data(tmp_path):
    log = LogWriter(tmp_path / "orders-0", codec="zstd")
    offsets = [
        log.append(NOW, b"k", b"v"),
        log.append(NOW, b"k", b"w"),
        log.append_control(NOW, b"\0\0\0\5", b"state"),
        log.append(NOW, b"k", b"x"),
    ]
    log.flush()
    (found,) = find_topic_logs([str(tmp_path)])
    assert offsets == [0, 1, 2, 3]
    assert rows_of(found, control=True) == [(2, NOW, b"\0\0\0\5", b"state")]
    assert [row[3] for row in rows_of(found)] == [b"v", b"w", b"x"]
    (chunk,) = read_chunks(found)
    assert chunk.batches["attributes"].tolist() == [4, 0x20, 4]


def test_an_empty_log_has_its_first_segment(tmp_path):
    LogWriter(tmp_path / "__share_group_state-0").flush()
    (found,) = find_logs([str(tmp_path)])
    assert [(segment.base_offset, segment.size) for segment in found.segments] == [(0, 0)]


def test_segments_roll_before_they_grow_too_large(tmp_path):
    log = LogWriter(tmp_path / "__share_group_state-0", batch_bytes=0, segment_bytes=1000)
    for number in range(100):
        log.append(NOW + number, b"key", bytes(50))
    log.flush()
    (found,) = find_logs([str(tmp_path)])
    assert len(found.segments) > 10
    assert all(segment.size <= 1000 for segment in found.segments)
    assert len(rows_of(found)) == 100


def test_what_is_redundant_goes_a_whole_segment_at_a_time(tmp_path):
    log = LogWriter(tmp_path / "__share_group_state-0", batch_bytes=0, segment_bytes=300)
    for number in range(20):
        log.append(NOW + number, b"key", bytes(20))
    log.delete_before(10)
    log.delete_before(9)
    log.flush()
    assert log.log_start_offset == 10
    bases = sorted(int(path.stem) for path in (tmp_path / "__share_group_state-0").iterdir())
    assert bases[0] <= 10 < bases[1]
    with pytest.raises(SimulationError, match="records before 21"):
        log.delete_before(21)
