"""What is told of a chunk as a whole is what its batches and records say one by one, damaged ones too."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.kafka.buffers import RecordBuffer
from share_state.kafka.record_batches import BATCH, BatchStatus, locate_records, summarize_batches
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import STATE_BATCH, STATE_RECORD, Layout, StateRecords, decode_state_records
from share_state.sources.discovery import find_logs
from share_state.sources.segments import read_chunks
from tests.kafka.batches import SNAPSHOT, UPDATE, Batch, Record, consecutive, in_bytes, key, log_of
from tests.kafka.damaged import damaged
from tests.truth import DATA, scenarios


def decoded(folder: Path) -> list[StateRecords]:
    found = []
    for log in find_logs([str(folder)]):
        keys = KeyTable()
        for chunk in read_chunks(log, merge=True, chunk=1 << 16):
            found.append(decode_state_records(chunk.data, locate_records(chunk.data, chunk.batches), keys))
    return found


def check(records: StateRecords) -> None:
    rows = records.rows
    assert records.faults == np.bitwise_or.reduce(rows["fault"], initial=0)
    assert {layout for layout in Layout if layout != Layout.NONE and records.layouts & 1 << layout} == {
        Layout(code) for code in np.unique(rows["layout"]).tolist() if code != Layout.NONE
    }
    for row in rows[rows["batch_count"] > 0]:
        own = records.batches[row["batches"] : row["batches"] + row["batch_count"]]
        assert row["max_offset"] == max(-1, own["last"].max())


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda path: str(path.relative_to(DATA)))
def test_what_is_told_of_real_records(scenario: Path):
    parts = decoded(scenario)
    assert parts
    for records in parts:
        check(records)


@given(st.lists(st.tuples(st.booleans(), damaged("snapshot", "4.1+") | damaged("update", "4.1+")), max_size=8))
def test_what_is_told_of_damaged_records(tmp_path_factory: pytest.TempPathFactory, values: list[tuple[bool, bytes]]):
    content = [Record(key(SNAPSHOT if is_snapshot else UPDATE), value) for is_snapshot, value in values]
    log = log_of(tmp_path_factory.mktemp("log"), in_bytes(consecutive([Batch(content or [Record(None, None)])])))
    for chunk in read_chunks(log):
        check(decode_state_records(chunk.data, locate_records(chunk.data, chunk.batches), KeyTable()))


@given(st.lists(st.tuples(st.booleans(), damaged("snapshot", "4.1+") | damaged("update", "4.1+")), max_size=8))
def test_a_used_buffer_gives_the_same_records(
    tmp_path_factory: pytest.TempPathFactory, values: list[tuple[bool, bytes]]
):
    content = [Record(key(SNAPSHOT if is_snapshot else UPDATE), value) for is_snapshot, value in values]
    content += [Record(None, None), Record(key(SNAPSHOT), None), Record(b"\0\7", None)]
    log = log_of(tmp_path_factory.mktemp("log"), in_bytes(consecutive([Batch(content)])))
    for chunk in read_chunks(log):
        records, found = locate_records(chunk.data, chunk.batches), []
        for filler in (0, 255):
            buffer = RecordBuffer(STATE_RECORD, STATE_BATCH)
            for rows in buffer.extend(16, 1000):
                rows.view(np.uint8)[:] = filler
            buffer.clear()
            found.append(decode_state_records(chunk.data, records, KeyTable(), buffer).rows.tobytes())
        assert len(records) == len(content)
        assert found[0] == found[1]


@given(st.lists(st.tuples(st.sampled_from(BatchStatus), *[st.integers(0, 2**15 - 1)] * 4), max_size=12))
def test_what_is_told_of_batches(drawn: list[tuple[int, ...]]):
    names = ["status", "attributes", "base_offset", "last_offset", "max_timestamp"]
    batches = np.zeros(len(drawn), BATCH)
    for name, values in zip(names, zip(*drawn, strict=True), strict=False):
        batches[name] = values
    facts, whole = summarize_batches(batches), batches[batches["status"] == BatchStatus.VALID]
    assert (facts.rows, facts.valid, facts.all_valid) == (len(drawn), len(whole), len(whole) == len(drawn))
    assert facts.attributes == np.bitwise_or.reduce(whole["attributes"], initial=0)
    assert facts.last == max(np.flatnonzero(batches["status"] == BatchStatus.VALID), default=-1)
    assert facts.least_last_offset == min(whole["last_offset"], default=2**63 - 1)
    assert facts.greatest_base_offset == max(whole["base_offset"], default=-1)
    assert facts.newest_time == max(whole["max_timestamp"], default=-1)
    follows = batches["base_offset"][1:] == batches["last_offset"][:-1] + 1
    assert facts.is_continuous == (facts.all_valid and bool(follows.all()))


@pytest.mark.parametrize(
    ("offsets", "expected"), [([(3, 4), (5, 5), (6, 9)], True), ([(3, 4), (6, 6)], False), ([(3, 4), (4, 6)], False)]
)
def test_batches_without_gaps_are_continuous(offsets: list[tuple[int, int]], expected: bool):
    batches = np.zeros(len(offsets), BATCH)
    batches["base_offset"], batches["last_offset"] = np.transpose(offsets)
    assert summarize_batches(batches).is_continuous == expected
    batches["status"][-1] = BatchStatus.CRC_MISMATCH
    assert not summarize_batches(batches).is_continuous
