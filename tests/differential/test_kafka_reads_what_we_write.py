"""Logs that the tests write are logs to Kafka's own reader too, and to ours the same."""

from pathlib import Path

import pytest

from share_state.kafka.record_batches import locate_records
from share_state.sources import jars
from share_state.sources.discovery import find_logs
from share_state.sources.segments import read_chunks
from tests.kafka.batches import NOW, Batch, Record
from tests.kafka_classes import RefusedByKafkaError, read_segment
from tests.log_writer import CODECS, batch, snapshot, tombstone, update, write_log_folder

KEY = ("g1", "AAAAAAAAAAEAAAAAAAAAAg", 3)
RELEASES = [jars.KAFKA, jars.KAFKA_BEFORE_SWEEP]

Row = tuple[int, int, bytes | None, bytes | None]
"""(offset, timestamp, key, value)"""


@pytest.fixture(params=RELEASES)
def kafka(request, spark):
    """Reads a segment with one release of Kafka."""
    return lambda path: read_segment(spark._jvm, jars.jars(request.param), path)


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def ours(folder: Path) -> list[Row]:
    """Every record of a log folder as our own reader sees it."""
    (log,) = find_logs([str(folder)])
    rows = []
    for chunk in read_chunks(log):
        data = chunk.data.tobytes()
        located = [locate_records(chunk.data, chunk.batches), locate_records(chunk.data, chunk.batches, control=True)]
        for row in (row for records in located for row in records):
            key, value = (
                None if row[f"{part}_size"] < 0 else data[row[f"{part}_at"] : row[f"{part}_at"] + row[f"{part}_size"]]
                for part in ("key", "value")
            )
            rows.append((int(row["offset"]), int(row["timestamp"]), key, value))
    return sorted(rows, key=lambda row: row[0])


def expected(batches: list[Batch], base_offset: int, log_append_time: int | None = None) -> list[Row]:
    records = [(one.base_timestamp, record) for one in batches for record in one.records]
    return [
        (
            base_offset + number,
            log_append_time if log_append_time is not None else timestamp + record.time_delta,
            record.key,
            record.value,
        )
        for number, (timestamp, record) in enumerate(records)
    ]


SOME = [
    snapshot(KEY, [(100, 109, 2, 1), (110, 110, 0, 2)], start_offset=100, delivery_complete_count=10),
    update(KEY, [(110, 110, 4, 3)], unknown_tags=[(7, b"\xab\xcd")]),
    tombstone(KEY),
]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_read(tmp_path, kafka, codec):
    batches = [batch(SOME, codec=codec), batch(SOME[:1], codec=codec)]
    folder = write_log_folder(tmp_path, 0, batches, base_offset=2**40)
    (segment,) = segments(folder)
    assert kafka(segment) == ours(folder) == expected(batches, 2**40)


@pytest.mark.parametrize("codec", CODECS)
def test_a_body_of_several_compressed_blocks_is_read(tmp_path, kafka, codec):
    # What cannot shrink and what can, each longer than a block of lz4.
    noise = bytes((number * number * 2654435761 >> 13) & 255 for number in range(100_000))
    batches = [batch([Record(b"k", noise), Record(b"k", bytes(200_000))], codec=codec)]
    folder = write_log_folder(tmp_path, 0, batches)
    (segment,) = segments(folder)
    assert kafka(segment) == ours(folder) == expected(batches, 0)


def test_headers_nulls_and_empty_parts_are_read(tmp_path, kafka):
    records = [
        Record(b"k", b"v", headers=[(b"a", b"1"), ("é".encode(), None), (b"", b"")]),
        Record(None, b"v"),
        Record(b"k", None, time_delta=5),
        Record(None, None, time_delta=-3),
        Record(b"", b""),
    ]
    folder = write_log_folder(tmp_path, 0, [batch(records)])
    (segment,) = segments(folder)
    assert kafka(segment) == ours(folder) == expected([batch(records)], 0)


def test_the_append_time_wins_over_the_records_own(tmp_path, kafka):
    batches = [batch([Record(b"k", b"v", time_delta=9)] * 3, log_append_time=NOW + 1000)]
    folder = write_log_folder(tmp_path, 0, batches)
    (segment,) = segments(folder)
    assert kafka(segment) == ours(folder) == expected(batches, 0, log_append_time=NOW + 1000)


def test_batches_of_transactions_and_their_markers_are_read(tmp_path, kafka):
    # Key: version 0, type 1 (commit); value: version 0, coordinator epoch 7.
    marker = Record(bytes.fromhex("0000 0001"), bytes.fromhex("0000 00000007"))
    batches = [
        batch(SOME, transactional=True, producer=(4000, 3, 0), leader_epoch=5),
        batch([marker], transactional=True, control=True, producer=(4000, 3, -1), leader_epoch=5),
        batch(SOME, leader_epoch=6),
    ]
    folder = write_log_folder(tmp_path, 0, batches)
    (segment,) = segments(folder)
    assert kafka(segment) == ours(folder) == expected(batches, 0)


def test_a_log_in_several_segments_is_read(tmp_path, kafka):
    batches = [batch(SOME[:number], codec=codec) for number, codec in ((1, "none"), (3, "zstd"), (2, "none"))]
    folder = write_log_folder(tmp_path, 0, batches, base_offset=7, a_segment=1)
    assert [path.name for path in segments(folder)] == [f"{base:020}.log" for base in (7, 8, 11)]
    assert [row for path in segments(folder) for row in kafka(path)] == ours(folder) == expected(batches, 7)


def test_kafka_refuses_a_changed_byte(tmp_path, kafka):
    folder = write_log_folder(tmp_path, 0, [batch(SOME)])
    (segment,) = segments(folder)
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    with pytest.raises(RefusedByKafkaError, match="CorruptRecordException"):
        kafka(segment)
