"""Flaws of a log that a text or a table tells: findings, as the segments would give them, as far as the form knows."""

import base64
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from share_state.fold.state_log import FoldedLog, fold_log
from share_state.rules.findings import judge
from share_state.sources.as_of import Window
from share_state.sources.input_detection import detect_format
from tests.kafka.batches import NOW, Batch, Record, consecutive, in_bytes, key, log_of
from tests.log_writer import batch, snapshot, tombstone, update
from tests.sources.formats.printed import console_text, dump_text
from tests.sources.formats.tables import SIZES, found, rows, tables_of, write

KEY = ("g", "AAAAAAAAAAEAAAAAAAAAAg", 3)
ODD = ('a payload: <DELETE> | offset: 3 ] key: {"x" \\ é中\n', "AAAAAAAAAAEAAAAAAAAAAg", 0)


def _rules(folded: FoldedLog) -> list[tuple]:
    return [(row["rule"], row["severity"], row["offset"]) for row in judge(folded).to_pylist()]


def _dumped(folder: Path, text: str) -> FoldedLog:
    path = folder / "dump.txt"
    path.write_text(text, encoding="utf-8")
    (log,) = found(path)
    return fold_log(log)


def test_an_unknown_record_type_in_dumped_text_is_told_as_from_the_segments(tmp_path: Path):
    batches = consecutive([Batch([snapshot(KEY), Record(b"\0\x09\0\0", b"\0\0"), update(KEY)])])
    told, expected = _dumped(tmp_path, dump_text(batches)), fold_log(log_of(tmp_path, in_bytes(batches)))
    assert tables_of(told) == tables_of(expected)
    assert _rules(told) == [("UNKNOWN_RECORD_TYPE", "info", 1)]


def test_an_unknown_value_version_in_dumped_text_makes_every_older_state_suspect(tmp_path: Path):
    strange = Record(key(0), b"\0\x07" + bytes(40))
    batches = consecutive([Batch([snapshot(KEY), strange])])
    told = _dumped(tmp_path, dump_text(batches))
    # The tool hides whose record it is, so it may be anyone's.
    assert _rules(told) == [("STATE_SUSPECT", "warning", 1), ("VALUE_VERSION_UNKNOWN", "error", 1)]
    assert dict(judge(told).to_pylist()[1]["evidence"]) == {"version": "7"}
    assert told.cutoff["safe"].to_pylist() == [False]


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ("Could not read record with version 0 from value's buffer due to: what.", "VALUE_MALFORMED"),
        ("Could not read record with version 0 from key's buffer due to: what.", "KEY_MALFORMED"),
        ("Could not read version from value's buffer.", "VALUE_MALFORMED"),
    ],
)
def test_what_the_tool_could_not_read_is_a_finding(said: str, rule: str, tmp_path: Path):
    text = dump_text(consecutive([Batch([snapshot(KEY), update(KEY)])]))
    lines = text.splitlines()
    lines[4] = lines[4].partition(" key: ")[0] + f" key: Error at offset 1, skipping. {said}"
    assert (rule, "error", 1) in _rules(_dumped(tmp_path, "\n".join(lines)))


def test_the_tool_stops_at_a_record_without_key(tmp_path: Path):
    text = dump_text(consecutive([Batch([snapshot(KEY)]), Batch([update(KEY), update(KEY)])]))
    lines = text.splitlines()
    lines[6] = (
        'Exception in thread "main" java.lang.RuntimeException: Failed to decode message at offset 2 using share group'
        " state topic decoder (message had a missing key)"
    )
    lines.append("\tat kafka.tools.DumpLogSegments$.main(DumpLogSegments.scala)")
    told = _dumped(tmp_path, "\n".join(lines))
    assert {("TORN_TAIL", "warning", 3), ("KEY_MALFORMED", "error", 2)} <= set(_rules(told))
    assert told.states["updates_since_snapshot"].to_pylist() == [1]


def test_invalid_bytes_at_the_end_of_a_dumped_segment_are_a_torn_tail(tmp_path: Path):
    batches = consecutive([Batch([snapshot(KEY)])])
    told = _dumped(tmp_path, dump_text(batches) + "Found 17 invalid bytes at the end of 00000000000000000000.log\n")
    (finding,) = judge(told).to_pylist()
    assert (finding["rule"], dict(finding["evidence"])["bytes"]) == ("TORN_TAIL", "17")
    assert dict(finding["evidence"])["position"] == str(len(in_bytes(batches)))


def test_a_batch_that_the_tool_calls_invalid_is_left_out(tmp_path: Path):
    text = dump_text(consecutive([Batch([snapshot(KEY)]), Batch([tombstone(KEY)])]))
    head, _, tail = text.rpartition("isvalid: true")
    told = _dumped(tmp_path, head + "isvalid: false" + tail)
    assert ("CRC_MISMATCH", "error", 1) in _rules(told)
    assert len(told.states) == 1


def test_a_group_id_may_hold_what_the_tools_print(tmp_path: Path):
    records = [snapshot(ODD, [(3, 2**62, 2, 1)], start_offset=2**60 + 1), update(ODD, [(5, 5, 4, 2)])]
    expected = fold_log(log_of(tmp_path, in_bytes([Batch(records)])))
    assert tables_of(_dumped(tmp_path, dump_text([Batch(records)]))) == tables_of(expected)
    path = tmp_path / "console.txt"
    path.write_text(console_text(records), encoding="utf-8")
    (log,) = found(path)
    assert fold_log(log).states["group_id"].to_pylist() == [ODD[0]]
    assert fold_log(log).states["start_offset"].to_pylist() == [2**60 + 1]


def test_transactional_control_and_appended_batches_are_told(tmp_path: Path):
    marker = Record(b"\0\0\0\1", bytes(6))
    batches = consecutive([
        batch([snapshot(KEY), update(KEY)], transactional=True, log_append_time=NOW + 9),
        batch([marker], transactional=True, control=True),
    ])  # fmt: skip
    told, expected = _dumped(tmp_path, dump_text(batches)), fold_log(log_of(tmp_path, in_bytes(batches)))
    assert tables_of(told) == tables_of(expected)
    assert _rules(told) == [("TRANSACTIONAL_BATCH", "warning", 0)]


def test_words_of_the_java_machine_do_not_matter(tmp_path: Path):
    text = dump_text([Batch([snapshot(KEY)])])
    noise = "SLF4J: something\n[2026-11-21 00:00:00] WARN x\n"
    trace = 'Exception in thread "main" java.lang.NoSuchMethodError: x\n\tat a.b(c.java:1)\n'
    path = tmp_path / "dump.txt"
    path.write_text(noise + text + trace)
    assert detect_format([str(path)]) == "dump-log"
    assert _rules(_dumped(tmp_path, noise + text + trace)) == []


def test_the_console_consumers_last_word_does_not_matter(tmp_path: Path):
    path = tmp_path / "console.txt"
    path.write_text(console_text([snapshot(KEY)]) + "\nProcessed a total of 1 messages\n")
    (log,) = found(path)
    assert fold_log(log).record_count == 1


def test_an_orphan_in_a_stream_is_told_by_its_number(tmp_path: Path):
    path = tmp_path / "console.txt"
    path.write_text(console_text([snapshot(KEY), update(("h", KEY[1], 0))]))
    (log,) = found(path)
    (finding,) = judge(fold_log(log)).to_pylist()
    assert (finding["rule"], finding["offset"]) == ("ORPHAN_UPDATE", None)
    assert finding["message"] == "the state begins with an update at record 1 that no snapshot precedes"


def test_offsets_of_the_topic_are_offsets_in_a_stream_too(tmp_path: Path):
    path = tmp_path / "console.txt"
    path.write_text(console_text([snapshot(KEY, [(7, 8, 3, 1)])]))
    (log,) = found(path)
    messages = {row["rule"]: row["message"] for row in judge(fold_log(log)).to_pylist()}
    assert messages["ARCHIVING_STUCK"].startswith(
        "2 offsets (7-8) in ARCHIVING: the start offset cannot pass them until their dead-letter write is done"
    )


SNAPSHOT, UPDATE = snapshot(KEY, [(0, 4, 2, 1)]), update(KEY, [(5, 9, 4, 2)])


def _table(*given: tuple[int, int, Record]) -> pa.Table:
    offsets, times, records = zip(*given, strict=True)
    return rows(0, offsets, times, [one.key for one in records], [one.value for one in records])


@pytest.mark.parametrize("row_group", [1, 2, 9])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_one_offset_with_two_contents_is_a_conflict_and_the_later_stamp_is_kept(
    order: list[int], row_group: int, tmp_path: Path
):
    other = update(KEY, [(5, 9, 0, 1)])
    table = _table((0, 1, SNAPSHOT), (1, 2, other), (1, 3, UPDATE), (1, 3, UPDATE))
    path = write(table.take(order), tmp_path / "rows.parquet", row_group=row_group)
    (log,) = found(path)
    folded = fold_log(log, chunk=1)
    assert ("DUPLICATE_OFFSET_CONFLICT", "error", 1) in _rules(folded)
    expected = fold_log(log_of(tmp_path, in_bytes([Batch([SNAPSHOT, UPDATE])])))
    assert folded.states["state_batches"] == expected.states["state_batches"]
    assert folded.cutoff["safe"].to_pylist() == [False]
    (conflict,) = [row for row in judge(folded).to_pylist() if row["rule"] == "DUPLICATE_OFFSET_CONFLICT"]
    assert dict(conflict["evidence"])["position"] == str(order.index(1))


def test_a_null_and_an_empty_value_are_not_the_same(tmp_path: Path):
    gone = tombstone(KEY)
    path = write(_table((0, 1, SNAPSHOT), (1, 2, gone), (1, 2, Record(gone.key, b""))), tmp_path / "rows.parquet")
    assert ("DUPLICATE_OFFSET_CONFLICT", "error", 1) in _rules(fold_log(found(path)[0]))


def test_missing_offsets_of_a_table_are_a_gap(tmp_path: Path):
    path = write(_table((4, 1, SNAPSHOT), (5, 2, UPDATE), (9, 3, UPDATE)), tmp_path / "rows.parquet")
    folded = fold_log(found(path)[0])
    assert ("OFFSET_GAP", "warning", 6) in _rules(folded)
    assert (folded.cutoff["log_start_offset"][0].as_py(), folded.cutoff["log_end_offset"][0].as_py()) == (4, 10)


def test_a_window_of_time_cuts_a_table(tmp_path: Path):
    path = write(_table((0, 1, SNAPSHOT), (1, 7, UPDATE)), tmp_path / "rows.parquet")
    told = fold_log(found(path)[0], Window(until_time_ms=6))
    assert told.states["last_offset"].to_pylist() == [0]


def test_text_keys_and_milliseconds_of_sinks_are_read(tmp_path: Path):
    plain = _table((0, 1, SNAPSHOT), (1, 7, UPDATE), (2, 8, tombstone(("h", KEY[1], 0))))
    for letters in (base64.b64encode, base64.urlsafe_b64encode):
        texts = {
            name: pa.array([None if one is None else letters(one).decode() for one in plain[name].to_pylist()])
            for name in ("key", "value")
        }
        sunk = plain.set_column(0, "key", texts["key"]).set_column(1, "value", texts["value"])
        sunk = sunk.set_column(5, "timestamp", pa.array([1, 7, 8]))
        expected = fold_log(found(write(plain, tmp_path / "plain.parquet"))[0])
        told = fold_log(found(write(sunk, tmp_path / "sunk.parquet"))[0])
        assert tables_of(told) == tables_of(expected)
        assert told.chains.chains["last_timestamp"].tolist() == expected.chains.chains["last_timestamp"].tolist()


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view()])
def test_other_binary_types_are_read(kind: pa.DataType, tmp_path: Path):
    plain = _table((0, 1, SNAPSHOT), (1, 7, UPDATE))
    cast = plain.set_column(1, "value", plain["value"].cast(kind))
    told, expected = found(write(cast, tmp_path / "a.parquet"))[0], found(write(plain, tmp_path / "b.parquet"))[0]
    assert tables_of(fold_log(told), without=SIZES) == tables_of(fold_log(expected), without=SIZES)
    assert np.array_equal(fold_log(told).numbers, fold_log(expected).numbers)
