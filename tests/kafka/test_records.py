"""Records inside a batch: where they lie, and records whose lengths run past it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.kafka.record_batches import BATCH, HEADER_SIZE, BatchStatus, frame_batches, locate_records
from share_state.sources.as_of import Window
from tests.kafka.batches import NOW, SNAPSHOT, UPDATE, Batch, Record, in_bytes, key, snapshot, uvarint, varint
from tests.kafka.judged import judged_bytes

LOG_APPEND_TIME, CONTROL = 0x08, 0x20

contents = st.none() | st.binary(max_size=200)
records = st.builds(
    Record,
    contents,
    contents,
    st.lists(st.tuples(st.binary(max_size=5), contents), max_size=3),
    time_delta=st.integers(-(2**40), 2**40),
)


def _framed(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    content, table = np.frombuffer(bytearray(data), np.uint8), np.empty(len(data) // HEADER_SIZE + 2, BATCH)
    rows, _, _ = frame_batches(content, 0, len(content), True, 0, 0, table, 0, len(content))
    return content, table[:rows]


@given(st.lists(st.lists(records, max_size=5), max_size=4), st.integers(0, 2**62))
def test_every_record_is_located(batches: list[list[Record]], base_offset: int):
    log, expected = [], []
    for content in batches:
        log.append(Batch(content, base_offset, last_delta=max(len(content) - 1, 0)))
        for number, record in enumerate(content):
            expected.append((base_offset + number, NOW + record.time_delta, record.key, record.value))
        base_offset += max(len(content), 1)
    data, table = _framed(in_bytes(log))
    located = locate_records(data, table)
    assert (table["status"] == BatchStatus.VALID).all()
    found = [
        (
            int(row["offset"]),
            int(row["timestamp"]),
            _content(data, int(row["key_at"]), int(row["key_size"])),
            _content(data, int(row["value_at"]), int(row["value_size"])),
        )
        for row in located
    ]
    assert found == expected


def _content(data: np.ndarray, at: int, size: int) -> bytes | None:
    return None if size < 0 else data[at : at + size].tobytes()


def test_only_control_batches_are_looked_into_where_those_are_wanted():
    plain, control = Record(b"key", b"value"), Record(b"\0\0\0\1", b"")
    data, table = _framed(in_bytes([Batch([plain]), Batch([control, control], 1, attributes=CONTROL)]))
    assert locate_records(data, table)["offset"].tolist() == [0]
    assert locate_records(data, table, control=True)["offset"].tolist() == [1, 2]


def test_offsets_may_leave_holes_inside_a_batch():
    batch = Batch([Record(b"a", b"", offset_delta=2), Record(b"b", b"", offset_delta=5)], 100, last_delta=9)
    data, table = _framed(batch.written())
    assert locate_records(data, table)["offset"].tolist() == [102, 105]


def test_a_record_in_a_log_that_stamps_at_append_has_the_time_of_its_batch():
    batch = Batch([Record(b"a", b"", time_delta=3)], attributes=LOG_APPEND_TIME, max_timestamp=NOW + 50)
    data, table = _framed(batch.written())
    assert locate_records(data, table)["timestamp"].tolist() == [NOW + 50]


def test_a_point_in_time_uses_the_append_time_where_there_is_one(tmp_path: Path):
    early, late = Record(key(partition=0), snapshot()), Record(key(partition=1), snapshot(), time_delta=-5)
    batches = [
        Batch([early], 0, attributes=LOG_APPEND_TIME, max_timestamp=NOW + 10),
        Batch([late], 1, attributes=LOG_APPEND_TIME, max_timestamp=NOW + 20),
    ]
    found = judged_bytes(tmp_path, in_bytes(batches), window=Window(until_time_ms=NOW + 19))
    assert found.states.keys() == {("g", 0)}


def test_headers_say_nothing_about_state(tmp_path: Path):
    content = [Record(key(SNAPSHOT), snapshot([(0, 4, 2, 1)]))]
    plain = judged_bytes(tmp_path / "plain", in_bytes([Batch(content)]))
    for headers in ([(b"", b"")], [(b"h", None)], [(b"name", b"x" * 300), (b"name", b"y")], [(b"h", b"")] * 200):
        found = judged_bytes(tmp_path, in_bytes([Batch([replace(content[0], headers=headers)])]))
        assert not found.findings
        assert found.folded.states == plain.folded.states


SOUND = Record(key(UPDATE), b"\0\0", headers=[(b"name", b"text")]).written(0)
FIELDS = {
    "the attributes": b"\0",
    "a timestamp of ten bytes": varint(-(2**62)),
    "an offset": varint(0),
    "a key": varint(2) + b"ke",
    "a value": varint(3) + b"val",
    "headers": varint(1) + varint(1) + b"h" + varint(1) + b"x",
}
LYING = {
    "a length of nothing": varint(0),
    "a negative length": varint(-1) + b"\0" * 20,
    "a length beyond the batch": varint(1000) + b"\0" * 20,
    "the largest length": varint(2**31 - 1) + b"\0" * 20,
    "a length without end": b"\xff" * 12,
    "a length of six bytes": b"\x80\x80\x80\x80\x80\x01" + b"\0" * 20,
    "a length one short": varint(len(SOUND) - 2) + SOUND[1:],
    "a length one long": varint(len(SOUND)) + SOUND[1:] + b"\0",
}


def _record(**fields: bytes) -> bytes:
    body = b"".join((FIELDS | fields).values())
    return varint(len(body)) + body


WRONG_FIELDS = {
    "a key below null": _record(**{"a key": varint(-2)}),
    "a key beyond the record": _record(**{"a key": varint(100) + b"ke"}),
    "the largest key": _record(**{"a key": varint(2**31 - 1)}),
    "a key length without end": _record(**{"a key": b"\xff" * 5}),
    "a value below null": _record(**{"a value": varint(-2)}),
    "a value beyond the record": _record(**{"a value": varint(100) + b"val"}),
    "a value of the least number": _record(**{"a value": varint(-(2**31))}),
    "fewer headers than counted": _record(headers=varint(2) + varint(1) + b"h" + varint(1) + b"x"),
    "more headers than counted": _record(headers=varint(0) + varint(1) + b"h" + varint(1) + b"x"),
    "a negative number of headers": _record(headers=varint(-1)),
    "the largest number of headers": _record(headers=varint(2**31 - 1)),
    "a header without a name": _record(headers=varint(1) + varint(-1) + varint(1) + b"x"),
    "a header name beyond the record": _record(headers=varint(1) + varint(50) + b"h"),
    "a header value beyond the record": _record(headers=varint(1) + varint(1) + b"h" + varint(50)),
    "no headers at all": _record(headers=b""),
    "bytes behind the headers": _record(headers=FIELDS["headers"] + b"\0"),
    "a timestamp of eleven bytes": _record(**{"a timestamp of ten bytes": b"\x80" * 10 + b"\1"}),
    "a negative offset": _record(**{"an offset": varint(-1)}),
    "an offset behind the last": _record(**{"an offset": varint(1)}),
    "an offset of six bytes": _record(**{"an offset": b"\x80\x80\x80\x80\x80\0"}),
}


def test_the_record_that_the_wrong_ones_are_made_of_is_right():
    data, table = _framed(Batch(body=_record(), count=1, last_delta=0).written())
    assert len(locate_records(data, table)) == 1
    assert table["status"].tolist() == [BatchStatus.VALID]


@pytest.mark.parametrize("wrong", LYING | WRONG_FIELDS)
def test_a_record_that_does_not_fit_takes_out_its_batch(tmp_path: Path, wrong: str):
    before = Batch([Record(key(partition=0), snapshot())])
    bad = Batch(base_offset=1, body=(LYING | WRONG_FIELDS)[wrong], count=1, last_delta=0)
    after = Batch([Record(key(partition=1), snapshot())], 2)
    found = judged_bytes(tmp_path, in_bytes([before, bad, after]))
    assert found.causes == {"BATCH_MALFORMED": 1}
    assert found.positions == {"BATCH_MALFORMED": [len(before.written())]}
    assert found.states.keys() == {("g", 0), ("g", 1)}
    assert found.suspects == {0}


def test_a_bad_record_takes_the_good_ones_of_its_batch_with_it(tmp_path: Path):
    good = Record(key(), snapshot()).written(0)
    bad = Batch(body=good + WRONG_FIELDS["a value beyond the record"], count=2, last_delta=1)
    found = judged_bytes(tmp_path, bad.written())
    assert found.causes == {"BATCH_MALFORMED": 1}
    assert not found.states


def test_the_records_of_a_batch_cut_at_any_byte_take_out_the_batch(tmp_path: Path):
    body = b"".join(Record(key(UPDATE, partition=n), b"\0\0").written(n) for n in range(2))
    for cut in range(len(body)):
        found = judged_bytes(tmp_path, Batch(body=body[:cut], count=2, last_delta=1).written())
        assert found.causes == {"BATCH_MALFORMED": 1}, cut


def test_bytes_behind_the_last_record_take_out_the_batch(tmp_path: Path):
    body = Record(key(), snapshot()).written(0) + b"\0"
    found = judged_bytes(tmp_path, Batch(body=body, count=1, last_delta=0).written())
    assert found.causes == {"BATCH_MALFORMED": 1}


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0)])
def test_offsets_that_do_not_rise_take_out_the_batch(tmp_path: Path, deltas: tuple[int, int]):
    content = [Record(key(partition=n), snapshot(), offset_delta=delta) for n, delta in enumerate(deltas)]
    found = judged_bytes(tmp_path, Batch(content).written())
    assert found.causes == {"BATCH_MALFORMED": 1}


@given(st.binary(max_size=300), st.integers(-5, 40), st.integers(0, 50))
def test_no_body_whatever_is_read_outside_of_it(body: bytes, count: int, last_delta: int):
    data, table = _framed(Batch(body=body, count=count, last_delta=last_delta).written())
    located = locate_records(data, table)
    assert len(located) == (count if table["status"][0] == BatchStatus.VALID else 0)
    for field in ("key", "value"):
        ends = located[f"{field}_at"] + np.maximum(located[f"{field}_size"], 0)
        assert (located[f"{field}_at"] >= HEADER_SIZE).all()
        assert (ends <= len(data)).all()


@given(st.integers(0, 2**32 - 1))
def test_the_varints_of_these_tests_are_kafka_s(number: int):
    assert varint(number >> 1) == uvarint(number >> 1 << 1)
    assert varint(-1) == b"\1"
    assert uvarint(300) == b"\xac\x02"
