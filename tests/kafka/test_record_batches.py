"""Batches that were cut, flipped or made up: what is whole is kept, what is not is named, and nothing raises."""

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from share_state.fold.log_stats import FINDINGS_KEPT
from share_state.kafka.record_batches import BATCH
from tests.kafka.batches import (
    SNAPSHOT,
    UPDATE,
    Batch,
    Record,
    consecutive,
    in_bytes,
    key,
    log_of,
    snapshot,
    update,
)
from tests.kafka.judged import Judged, judged, judged_bytes
from tests.present import present
from tests.profiles import by_profile, nightly, some_of

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


def _snapshot(partition: int, epoch: int = 0) -> Record:
    return Record(key(SNAPSHOT, partition=partition), snapshot([(0, 9, 2, 1), (10, 14, 0, 2)], epoch=epoch))


def _update(partition: int, first: int, state: int = 4, epoch: int = 0) -> Record:
    return Record(key(UPDATE, partition=partition), update([(first, first + 2, state, 3)], epoch=epoch))


LOG = consecutive(
    [
        Batch([_snapshot(0), _snapshot(1), _snapshot(2)]),
        Batch([_update(0, 11), _update(1, 11)]),
        Batch([_update(2, 3)]),
        Batch([_snapshot(1, epoch=1), _update(0, 20)]),
        Batch([_update(1, 30, epoch=1), _update(2, 17)]),
    ]
)
"""Offsets 0-2, 3-4, 5, 6-7 and 8-9; partition 1 has a later snapshot at offset 6."""
STARTS = list(accumulate((len(batch.written()) for batch in LOG), initial=0))
MIDDLE = 2
STEP = by_profile(7, 1)
"""Of places in a batch every seventh is tried by default; 7 and the 8 bits of a byte have no common divisor."""


def _changed(number: int, **change: Any) -> bytes:
    return in_bytes([replace(batch, **change) if row == number else batch for row, batch in enumerate(LOG)])


def _without(*numbers: int) -> bytes:
    return in_bytes([batch for row, batch in enumerate(LOG) if row not in numbers])


def _flipped(data: bytes, at: int, mask: int = 0xFF) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def _same_state(found: Judged, expected: Judged) -> bool:
    return found.folded.states == expected.folded.states and found.folded.in_flight == expected.folded.in_flight


def test_a_sound_log_has_no_finding(tmp_path: Path):
    found = judged_bytes(tmp_path, in_bytes(LOG))
    assert not found.findings
    assert found.folded.record_count == 10
    assert found.states.keys() == {("g", 0), ("g", 1), ("g", 2)}
    assert not found.suspects
    assert found.cutoff["safe"]


def test_a_log_cut_at_any_byte_of_its_last_two_batches_keeps_every_whole_batch(tmp_path: Path):
    data = in_bytes(LOG)
    for whole in (3, 4):
        expected = judged_bytes(tmp_path, data[: STARTS[whole]])
        assert not expected.findings
        for cut in range(STARTS[whole], STARTS[whole + 1], STEP):
            found = judged_bytes(tmp_path, data[:cut])
            assert _same_state(found, expected), cut
            assert found.cutoff == expected.cutoff, cut
            torn = cut > STARTS[whole]
            assert found.codes == ({"TORN_TAIL": 1} if torn else {}), cut
            assert [row["offset"] for row in found.findings] == [expected.folded.next_offset] * torn, cut
            assert found.positions == ({"TORN_TAIL": [STARTS[whole]]} if torn else {}), cut


@pytest.mark.parametrize("zeros", [1, 7, 8, 11])
def test_a_tail_of_a_few_zero_bytes_is_torn(tmp_path: Path, zeros: int):
    # They may begin a batch, whose first bytes are those of its offset.
    found = judged_bytes(tmp_path, in_bytes(LOG) + bytes(zeros))
    assert found.codes == {"TORN_TAIL": 1}
    assert _same_state(found, judged_bytes(tmp_path / "plain", in_bytes(LOG)))


def test_a_file_torn_inside_its_only_batch_has_no_state(tmp_path: Path):
    data = LOG[0].written()
    for cut in range(1, len(data), STEP):
        found = judged_bytes(tmp_path, data[:cut])
        assert found.codes == {"TORN_TAIL": 1}, cut
        assert not found.folded.has_valid_batches
        assert not found.states


@pytest.mark.parametrize("zeros", [12, 16, 17, 20, 21, 60, 61, 62, 4096, 1 << 20])
def test_a_tail_of_zero_bytes_is_no_finding(tmp_path: Path, zeros: int):
    found = judged_bytes(tmp_path, in_bytes(LOG) + bytes(zeros))
    assert not found.findings
    assert _same_state(found, judged_bytes(tmp_path / "plain", in_bytes(LOG)))


def test_a_preallocated_file_with_nothing_in_it_is_an_empty_log(tmp_path: Path):
    found = judged_bytes(tmp_path, bytes(1 << 20))
    assert not found.findings
    assert not found.states


@pytest.mark.parametrize("number", some_of([0, MIDDLE, 4], 1))
def test_a_flipped_bit_from_the_attributes_on_takes_out_its_batch_and_no_other(tmp_path: Path, number: int):
    data = in_bytes(LOG)
    expected = judged_bytes(tmp_path, _without(number))
    for place in range(21, len(LOG[number].written()), STEP):
        found = judged_bytes(tmp_path, _flipped(data, STARTS[number] + place, 1 << place % 8))
        assert found.causes == {"CRC_MISMATCH": 1}, place
        assert found.positions == {"CRC_MISMATCH": [STARTS[number]]}, place
        left_out = {"suspect"} if number == 4 else set()  # nothing is missing where nobody knows of it
        assert found.folded.states.drop(left_out) == expected.folded.states.drop(left_out), place


def test_states_that_a_lost_batch_may_have_changed_are_suspect_until_a_snapshot(tmp_path: Path):
    data = in_bytes(LOG)
    suspects = [judged_bytes(tmp_path, _flipped(data, STARTS[number] + 40)).suspects for number in range(len(LOG))]
    # Partition 1 has its snapshot in batch 3, so what was lost before does not matter to it.
    assert suspects == [{0, 2}, {0, 2}, {0, 2}, {0, 1, 2}, {0, 1, 2}]


def test_a_cutoff_over_lost_records_is_never_safe(tmp_path: Path):
    data = in_bytes(LOG)
    for number in range(len(LOG)):
        found = judged_bytes(tmp_path, _flipped(data, STARTS[number] + 40))
        assert not found.cutoff["safe"], number
        assert found.cutoff["reason"], number


def test_a_cutoff_is_unsafe_if_a_lost_batch_may_hold_an_unnamed_share_partition(tmp_path: Path):
    log = consecutive([Batch([_snapshot(0)]), Batch([_snapshot(1)]), Batch([_snapshot(2)]), Batch([_snapshot(1)])])
    found = judged_bytes(tmp_path, _flipped(in_bytes(log), len(log[0].written()) // 2))
    assert found.states.keys() == {("g", 1), ("g", 2)}
    assert not found.suspects
    assert found.cutoff["cutoff_offset"] == 2
    assert not found.cutoff["safe"]


def test_a_wrong_crc_is_a_crc_mismatch(tmp_path: Path):
    found = judged_bytes(tmp_path, _changed(MIDDLE, crc=0))
    assert found.causes == {"CRC_MISMATCH": 1}
    (finding,) = found.of("CRC_MISMATCH")
    assert (finding["offset"], finding["severity"]) == (5, "error")
    assert finding["evidence"]["file"] == found.folded.log.segments[0].path
    assert finding["evidence"]["position"] == str(STARTS[MIDDLE])
    assert finding["evidence"]["bytes"] == str(len(LOG[MIDDLE].written()))


LIES = {
    "zero": lambda true: 0,
    "one": lambda true: 1,
    "fourteen": lambda true: 14,
    "just under a header": lambda true: 48,
    "a bare header": lambda true: 49,
    "one short": lambda true: true - 1,
    "one long": lambda true: true + 1,
    "into the next header": lambda true: true + 20,
    "into the next records": lambda true: true + 70,
    "minus one": lambda true: -1,
    "most negative": lambda true: -(2**31),
    "beyond the file": lambda true: 1 << 20,
    "the largest": lambda true: 2**31 - 1,
}


@pytest.mark.parametrize("number", [0, MIDDLE, 4], ids=["first", "middle", "last"])
@pytest.mark.parametrize("lie", LIES)
def test_a_length_that_lies_is_found_and_hides_no_later_batch(tmp_path: Path, number: int, lie: str):
    data = _changed(number, length=LIES[lie](len(LOG[number].written()) - 12))
    found = judged_bytes(tmp_path, data)
    assert found.causes.keys() <= {"BATCH_MALFORMED", "CRC_MISMATCH", "TORN_TAIL"}
    positions = sorted(position for positions in found.positions.values() for position in positions)
    assert positions[0] == STARTS[number]
    assert all(position < STARTS[number + 1] or number == 4 for position in positions)
    expected = judged_bytes(tmp_path / "without", _without(number))
    left_out = {"suspect"} if number == 4 else set()
    assert found.folded.states.drop(left_out) == expected.folded.states.drop(left_out)
    if number < 4:
        assert "TORN_TAIL" not in found.codes
        assert not found.cutoff["safe"]
    assert found.suspects == ({0, 2} if number < 4 else found.suspects)


@pytest.mark.parametrize("number", [0, MIDDLE])
def test_a_length_that_covers_the_next_batch_too_leaves_both_out(tmp_path: Path, number: int):
    sizes = [len(batch.written()) for batch in LOG]
    found = judged_bytes(tmp_path, _changed(number, length=sizes[number] + sizes[number + 1] - 12))
    assert found.causes == {"CRC_MISMATCH": 1}
    assert found.suspects >= {0, 2}
    assert found.folded.states == judged_bytes(tmp_path / "x", _without(number, number + 1)).folded.states


def test_a_lying_length_is_found_behind_whatever_byte_ends_its_batch(tmp_path: Path):
    # One byte short, the last byte of the batch becomes the first of what seems the next offset.
    for last in range(0, 256, STEP):
        lying = Batch([replace(_update(2, 3), headers=[(b"h", bytes([last]))])], base_offset=5)
        data = in_bytes([*LOG[:2], replace(lying, length=len(lying.written()) - 13), *LOG[3:]])
        found = judged_bytes(tmp_path, data)
        assert found.folded.next_offset == 10, last
        assert found.suspects == {0, 2}, last


@pytest.mark.parametrize("chunk", some_of([1, 100, 256, 300, 512, 1000, 4096], 3))
def test_a_lying_length_at_the_end_of_a_chunk_hides_no_later_batch(tmp_path: Path, chunk: int):
    for lie in LIES.values():
        data = _changed(MIDDLE, length=lie(len(LOG[MIDDLE].written()) - 12))
        whole, cut = judged_bytes(tmp_path, data), judged_bytes(tmp_path, data, chunk=chunk)
        assert cut.folded.states == whole.folded.states
        assert cut.folded.next_offset == 10
        assert cut.positions.keys() == whole.positions.keys()


@pytest.mark.parametrize("size", [1, 5, 13, 20, 21, 61, 100, 1000])
@pytest.mark.parametrize("byte", [b"\xff", b"\x02", b"x", b"\0\0\0\1"])
def test_stray_bytes_between_batches_are_stepped_over(tmp_path: Path, size: int, byte: bytes):
    stray = (byte * size)[:size]
    found = judged_bytes(tmp_path, in_bytes(LOG[:2]) + stray + in_bytes(LOG[2:]))
    assert found.folded.record_count == 10
    assert found.codes
    assert found.positions.keys() <= {"BATCH_MALFORMED", "MAGIC_UNSUPPORTED", "CRC_MISMATCH"}
    # Every offset is there, so nothing is suspect.
    assert not found.suspects


@pytest.mark.parametrize("magic", [0, 1, 3, 7, 127, -1])
@pytest.mark.parametrize("number", [0, MIDDLE, 4])
def test_a_batch_of_another_format_version_is_left_out(tmp_path: Path, magic: int, number: int):
    found = judged_bytes(tmp_path, _changed(number, magic=magic))
    assert found.causes == {"MAGIC_UNSUPPORTED": 1}
    (finding,) = found.of("MAGIC_UNSUPPORTED")
    assert finding["severity"] == "error"
    assert finding["evidence"]["position"] == str(STARTS[number])
    assert finding["evidence"]["magic"] == str(magic)
    expected = judged_bytes(tmp_path / "without", _without(number))
    left_out = {"suspect"} if number == 4 else set()
    assert found.folded.states.drop(left_out) == expected.folded.states.drop(left_out)


@pytest.mark.parametrize("count", [1, 60, 5000])
def test_a_log_of_the_smallest_old_messages_is_named_batch_by_batch(tmp_path: Path, count: int):
    # 26 bytes each, less than half the header of format 2: as many rows as fit must find room.
    message = bytes(8) + (14).to_bytes(4, "big") + bytes(14)
    found = judged_bytes(tmp_path, message * count)
    assert found.causes == {"MAGIC_UNSUPPORTED": count}
    positions = [26 * number for number in range(count)]
    # The last row of more than a thousand counts the others.
    assert found.positions["MAGIC_UNSUPPORTED"] == positions[:FINDINGS_KEPT] + positions[FINDINGS_KEPT:][-1:]


@nightly("thousands of faults")
@pytest.mark.parametrize("chunk", some_of([1 << 10, 1 << 20], 1))
def test_as_many_faults_as_batches_are_all_named(tmp_path: Path, chunk: int):
    empty = [Batch(base_offset=offset, last_delta=0).written() for offset in range(1000)]
    found = judged_bytes(tmp_path, b"\xff".join([b"", *empty]), chunk=chunk)
    assert found.causes == {"BATCH_MALFORMED": 1000}
    assert found.folded.next_offset == 1000


@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_many_segments_that_are_torn_at_once_are_all_named(tmp_path: Path, chunk: int):
    folder = tmp_path / "__share_group_state-0"
    folder.mkdir()
    for number in range(300):
        (folder / f"{number:020}.log").write_bytes(b"\1\2\3")
    (folder / f"{300:020}.log").write_bytes(in_bytes(consecutive(LOG, 300)))
    found = judged(log_of(tmp_path, b"\1\2\3"), chunk=chunk)
    assert found.causes == {"TORN_TAIL": 300}
    assert found.folded.next_offset == 310
    assert {row["evidence"]["file"] for row in found.of("TORN_TAIL")} == {
        segment.path for segment in found.folded.log.segments[:300]
    }


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_takes_out_its_batch(tmp_path: Path, codec: int):
    found = judged_bytes(tmp_path, _changed(MIDDLE, attributes=codec))
    assert found.causes == {"BATCH_MALFORMED": 1}
    (finding,) = found.of("BATCH_MALFORMED")
    assert f"codec {codec} is unknown" in finding["message"]
    assert finding["evidence"]["position"] == str(STARTS[MIDDLE])
    assert found.suspects == {0, 2}


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_compressed_log_is_the_same_log(tmp_path: Path, codec: int):
    packed = in_bytes([replace(batch, attributes=codec) for batch in LOG])
    for chunk in (1 << 20, 200):
        found = judged_bytes(tmp_path / "packed", packed, chunk=chunk)
        assert not found.findings
        assert _same_state(found, judged_bytes(tmp_path / "plain", in_bytes(LOG)))


@pytest.mark.parametrize("codec", some_of([GZIP, SNAPPY, LZ4, ZSTD], 2))
def test_a_compressed_body_cut_at_any_byte_takes_out_its_batch(tmp_path: Path, codec: int):
    body = _body(MIDDLE, codec)
    expected = judged_bytes(tmp_path / "without", _without(MIDDLE))
    for cut in {*range(0, len(body), STEP), *range(max(len(body) - 9, 0), len(body))}:
        found = judged_bytes(tmp_path, _changed(MIDDLE, attributes=codec, body=body[:cut]))
        # What the cut took may be a check sum alone: then the records are all there.
        whole = not found.findings
        assert whole or found.causes == {"BATCH_MALFORMED": 1}, cut
        assert whole or found.folded.states == expected.folded.states, cut
        assert not whole or cut >= len(body) - 8, cut


@pytest.mark.parametrize("codec", some_of([GZIP, SNAPPY, LZ4, ZSTD], 2))
def test_a_damaged_compressed_body_never_raises(tmp_path: Path, codec: int):
    body = _body(MIDDLE, codec)
    sound = judged_bytes(tmp_path, in_bytes(LOG))
    outcomes = set()
    for place in range(0, len(body), STEP):
        for mask in (0xFF, 1 << place % 8):
            found = judged_bytes(tmp_path, _changed(MIDDLE, attributes=codec, body=_flipped(body, place, mask)))
            assert found.causes.keys() <= {
                "BATCH_MALFORMED", "KEY_MALFORMED", "VALUE_MALFORMED", "VALUE_VERSION_UNKNOWN", "UNKNOWN_RECORD_TYPE",
                "UNKNOWN_TAG", "INVERTED_RANGE",
            }  # fmt: skip
            # The other batches are untouched, so the other share-partitions are as they were.
            assert found.states["g", 1] == sound.states["g", 1]
            outcomes.add(bool(found.causes))
    assert True in outcomes


def _body(number: int, codec: int) -> bytes:
    return replace(LOG[number], attributes=codec).written()[61:]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 1000, 2**31 - 1, -1, -(2**31)])
@pytest.mark.parametrize("codec", [0, ZSTD])
def test_a_record_count_that_lies_takes_out_its_batch(tmp_path: Path, count: int, codec: int):
    found = judged_bytes(tmp_path, _changed(1, count=count, attributes=codec))
    assert found.causes == {"BATCH_MALFORMED": 1}
    assert found.positions == {"BATCH_MALFORMED": [STARTS[1]]}
    assert found.folded.states == judged_bytes(tmp_path / "without", _without(1)).folded.states


@pytest.mark.parametrize("last_delta", [-1, -(2**31), 0])
def test_a_last_offset_before_the_last_record_takes_out_its_batch(tmp_path: Path, last_delta: int):
    found = judged_bytes(tmp_path, _changed(1, last_delta=last_delta))
    assert found.causes == {"BATCH_MALFORMED": 1}
    assert found.positions == {"BATCH_MALFORMED": [STARTS[1]]}


@pytest.mark.parametrize("base_offset", [-1, -(2**63), 2**63 - 1])
def test_an_offset_that_no_log_reaches_takes_out_its_batch(tmp_path: Path, base_offset: int):
    found = judged_bytes(tmp_path, _changed(1, base_offset=base_offset))
    assert found.causes == {"BATCH_MALFORMED": 1}
    assert found.suspects == {0, 2}


def test_an_offset_just_below_the_largest_is_read(tmp_path: Path):
    far = consecutive(LOG, 2**63 - 12)
    found = judged(log_of(tmp_path, in_bytes(far), base_offset=2**63 - 12))
    assert not found.findings
    assert found.folded.next_offset == 2**63 - 2


@pytest.mark.parametrize(("kept", "missing"), [((), (3, 4)), ((0,), (4, 4)), ((1,), (3, 3))])
def test_records_that_compaction_removed_are_missing(tmp_path: Path, kept: tuple[int, ...], missing: tuple[int, int]):
    records = tuple(replace(LOG[1].records[number], offset_delta=number) for number in kept)
    compacted = replace(LOG[1], records=records, last_delta=1)
    found = judged_bytes(tmp_path, in_bytes([LOG[0], compacted, *LOG[2:]]))
    (gap,) = found.of("OFFSET_GAP")
    assert (gap["evidence"]["first_missing"], gap["evidence"]["last_missing"]) == tuple(map(str, missing))
    assert "compacted" in gap["message"]
    assert found.suspects
    assert not found.cutoff["safe"]


def test_missing_offsets_in_the_middle_are_a_gap(tmp_path: Path):
    found = judged_bytes(tmp_path, _without(1, 2))
    assert found.causes == {}
    (gap,) = found.of("OFFSET_GAP")
    assert (gap["offset"], gap["severity"]) == (3, "warning")
    assert gap["evidence"] == {"first_missing": "3", "last_missing": "5", "missing": "3"}
    assert found.suspects == {0, 2}
    assert not found.cutoff["safe"]


def test_missing_offsets_at_the_start_are_a_gap(tmp_path: Path):
    # The name of the first segment says where the log starts.
    found = judged_bytes(tmp_path, _without(0))
    (gap,) = found.of("OFFSET_GAP")
    assert gap["evidence"] == {"first_missing": "0", "last_missing": "2", "missing": "3"}
    assert not found.cutoff["safe"]


def test_a_gap_that_a_bad_batch_explains_is_not_told_twice(tmp_path: Path):
    found = judged_bytes(tmp_path, _changed(MIDDLE, crc=0))
    assert "OFFSET_GAP" not in found.codes


@pytest.mark.parametrize("attributes", [0x10, 0x30])
def test_transactional_and_control_batches_are_named(tmp_path: Path, attributes: int):
    found = judged_bytes(tmp_path, _changed(1, attributes=attributes))
    assert found.causes == {"TRANSACTIONAL_BATCH": 1}
    (finding,) = found.of("TRANSACTIONAL_BATCH")
    assert finding["offset"] == 3
    assert finding["evidence"] == {"batches": "1"}


def test_control_records_are_not_state(tmp_path: Path):
    found = judged_bytes(tmp_path, _changed(1, attributes=0x20))
    emptied = in_bytes([LOG[0], replace(LOG[1], records=(), last_delta=1), *LOG[2:]])
    expected = judged_bytes(tmp_path / "without", emptied)
    assert found.folded.states.drop_columns("suspect") == expected.folded.states.drop_columns("suspect")
    assert found.folded.record_count == 8
    # Nothing is missing: the offsets are taken.
    assert not found.suspects


def test_a_row_of_the_batch_table_is_what_its_header_says(tmp_path: Path):
    log = log_of(tmp_path, _changed(MIDDLE, crc=1, leader_epoch=5, attributes=0x10, producer=(42, 1, 2)))
    (row,) = judged(log).folded.observations.batches
    expected = {
        "file_position": STARTS[MIDDLE], "size": len(LOG[MIDDLE].written()), "base_offset": 5, "last_offset": 5,
        "count": 1, "leader_epoch": 5, "crc": 1, "attributes": 0x10, "magic": 2, "producer_id": 42, "segment": 0,
    }  # fmt: skip
    assert {name: int(row[name]) for name in expected} == expected
    assert set(expected) < {*present(BATCH.names)}


@pytest.mark.parametrize("chunk", [1650, 1 << 20])
def test_zeros_between_two_batches_are_no_preallocated_tail(tmp_path: Path, chunk: int):
    first, second, *_ = LOG
    found = judged_bytes(tmp_path, in_bytes([first]) + bytes(100_000) + in_bytes([second]), chunk=chunk)
    assert found.causes == {"BATCH_MALFORMED": 1}
    assert found.folded.record_count == len(first.records) + len(second.records)
