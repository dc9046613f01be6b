"""Logs of every form with bytes changed at random: read to the end or refused, never believed in silence.

profiles.py says how many examples are drawn.
"""

import os
import struct
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.errors import InputError, ShareStateError
from share_state.fold.draft.control_log import fold_control_log
from share_state.rules.findings import judge
from share_state.sources.formats import ExportPaths
from share_state.sources.input_detection import read_export
from share_state.sources.log_partition import STATE_TOPIC
from tests.fold.control_records.logs import checkpoint, control, delta
from tests.fold.control_records.logs import log_of as control_log_of
from tests.kafka.batches import HEADER, Batch, Record, consecutive, in_bytes, log_of, packed
from tests.kafka.judged import Judged, judged, judged_bytes
from tests.log_writer import snapshot, tombstone, update
from tests.profiles import nightly
from tests.sources.formats.printed import console_text, dump_text
from tests.truth import DATA

SEGMENT = (DATA / "4.3.1/happy/__share_group_state-1" / f"{0:020}.log").read_bytes()


def _starts() -> list[int]:
    starts = [0]
    while starts[-1] < len(SEGMENT):
        starts.append(starts[-1] + 12 + int.from_bytes(SEGMENT[starts[-1] + 8 : starts[-1] + 12], "big"))
    return starts


STARTS = _starts()
LARGEST = max(end - start for start, end in pairwise(STARTS))
SMALL_CHUNKS = (2 * LARGEST, 3 * LARGEST + 1, 10 * LARGEST)
"""Behind bytes that cannot be framed, the next batch is looked for half a chunk at a time."""
CHUNK = st.sampled_from([1 << 20, *SMALL_CHUNKS])
places = st.integers(0, len(SEGMENT) - 1)
changes = st.lists(st.tuples(places, st.binary(min_size=1, max_size=8)), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    found = judged_bytes(tmp_path_factory.mktemp("sound"), SEGMENT)
    assert not found.findings
    assert len(STARTS) > 20
    return found


def _overwritten(made: list[tuple[int, bytes]]) -> bytes:
    data = bytearray(SEGMENT)
    for place, content in made:
        data[place : place + len(content)] = content[: len(data) - place]
    return bytes(data)


@given(changes, CHUNK)
def test_bytes_that_changed_are_found_or_did_not_matter(
    tmp_path_factory: pytest.TempPathFactory, sound: Judged, made: list[tuple[int, bytes]], chunk: int
):
    found = judged_bytes(tmp_path_factory.mktemp("log"), _overwritten(made), chunk=chunk)
    if not found.findings:
        assert found.folded.states == sound.folded.states
        assert found.folded.in_flight == sound.folded.in_flight
        assert found.folded.cutoff == sound.folded.cutoff


@given(st.integers(0, len(STARTS) - 2), st.integers(0, HEADER - 1), st.integers(1, 255), CHUNK)
def test_a_header_byte_that_changed_is_found_or_did_not_matter(
    tmp_path_factory: pytest.TempPathFactory, sound: Judged, batch: int, place: int, mask: int, chunk: int
):
    at = STARTS[batch] + place
    found = judged_bytes(tmp_path_factory.mktemp("log"), _overwritten([(at, bytes([SEGMENT[at] ^ mask]))]), chunk=chunk)
    if 12 <= place < 16:
        # The leader epoch is outside the CRC: one that seems to decrease is found, and changes no state.
        assert set(found.codes) <= {"FOREIGN_BATCH"}
        assert found.folded.states == sound.folded.states
    else:
        assert found.findings


@given(changes)
def test_a_damaged_log_read_in_small_chunks_is_the_same_log(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[int, bytes]]
):
    log = log_of(tmp_path_factory.mktemp("log"), _overwritten(made))
    at_once = judged(log)
    for chunk in SMALL_CHUNKS:
        found = judged(log, chunk=chunk)
        assert found.folded.states == at_once.folded.states
        assert found.folded.cutoff == at_once.folded.cutoff
        assert found.codes == at_once.codes
        assert found.positions == at_once.positions


def _with_right_crcs(data: bytearray) -> bytes:
    """Every batch that still has its place gets the CRC of what it now holds, so that its records are read."""
    for at, end in pairwise(STARTS):
        struct.pack_into(">I", data, at + 17, google_crc32c.value(bytes(data[at + 21 : end])))
    return bytes(data)


@given(changes, CHUNK)
def test_records_that_lie_under_a_right_crc_never_raise(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[int, bytes]], chunk: int
):
    data = _with_right_crcs(bytearray(_overwritten(made)))
    found = judged_bytes(tmp_path_factory.mktemp("log"), data, chunk=chunk)
    _is_in_order(found)


@given(st.data(), CHUNK)
def test_stretches_that_were_cut_out_repeated_or_put_in_never_raise(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, chunk: int
):
    content = SEGMENT
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)) | st.sampled_from(STARTS)) % (len(content) + 1)
        size = data.draw(st.integers(0, 400))
        how = data.draw(st.sampled_from(["cut", "repeat", "zeros", "noise", "end"]))
        if how == "cut":
            content = content[:at] + content[at + size :]
        elif how == "repeat":
            content = content[:at] + content[max(at - size, 0) : at] + content[at:]
        elif how == "end":
            content = content[:at]
        else:
            put_in = bytes(size) if how == "zeros" else data.draw(st.binary(max_size=100))
            content = content[:at] + put_in + content[at:]
    found = judged_bytes(tmp_path_factory.mktemp("log"), content, chunk=chunk)
    _is_in_order(found)


@given(st.binary(max_size=2000), CHUNK)
def test_noise_is_no_log(tmp_path_factory: pytest.TempPathFactory, noise: bytes, chunk: int):
    found = judged_bytes(tmp_path_factory.mktemp("log"), noise, chunk=chunk)
    assert not found.states
    # Zeros are preallocated space, but too few of them for the head of a batch are a torn tail.
    assert bool(found.findings) == (any(noise) or 0 < len(noise) < 12)


def _is_in_order(found: Judged) -> None:
    """What holds of any log: lists are canonical, tiles cover the window, findings name what they are about."""
    owners: dict[tuple, dict[str, Any]] = {}
    for row in found.folded.states.to_pylist():
        at, value = None, None
        for batch in row["state_batches"]:
            here = (batch["delivery_state"], batch["delivery_count"])
            assert batch["first_offset"] <= batch["last_offset"]
            assert at is None or batch["first_offset"] > at or (batch["first_offset"] == at and here != value)
            at, value = batch["last_offset"] + 1, here
        owners[row["group_id"], row["topic_id"], row["partition"]] = row
    covered = dict.fromkeys(owners, 0)
    for row in found.folded.in_flight.to_pylist():
        owner = row["group_id"], row["topic_id"], row["partition"]
        assert row["first_offset"] == owners[owner]["start_offset"] + covered[owner]
        assert row["record_count"] == row["last_offset"] - row["first_offset"] + 1 > 0
        covered[owner] += row["record_count"]
    for owner, row in owners.items():
        assert covered[owner] == (row["end_offset"] - row["start_offset"] if row["start_offset"] >= 0 else 0)
    assert all(row["message"] and "\n" not in row["message"] for row in found.findings)


RECORDS = [
    made(key, [(first, first + 4, 2 + 2 * (first % 2), 1)])
    for key in (("g", "AAAAAAAAAAEAAAAAAAAAAg", 0), ("group-2", "AAAAAAAAAAEAAAAAAAAAAg", 7))
    for first, made in enumerate((snapshot, update, update, snapshot, update))
] + [tombstone(("g", "AAAAAAAAAAEAAAAAAAAAAg", 0))]
BATCHES = consecutive([Batch(RECORDS[:4]), Batch(RECORDS[4:5]), Batch(RECORDS[5:])])
replacements = st.lists(st.tuples(st.integers(0, 4000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4)


def _changed(content: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    data = bytearray(content)
    for place, put_in in changes:
        at = place % max(len(data), 1)
        data[at : at + len(put_in)] = put_in
    return bytes(data)


@given(st.sampled_from([1, 2, 3, 4]), st.integers(0, len(BATCHES) - 1), replacements, CHUNK, st.booleans())
def test_compressed_bodies_that_changed_never_raise(
    tmp_path_factory: pytest.TempPathFactory,
    codec: int,
    number: int,
    changes: list[tuple[int, bytes]],
    chunk: int,
    inside: bool,
):
    plain = b"".join(record.written(place) for place, record in enumerate(BATCHES[number].records))
    body = packed(codec, _changed(plain, changes)) if inside else _changed(packed(codec, plain), changes)
    batches = [replace(batch, attributes=codec) for batch in BATCHES]
    batches[number] = replace(batches[number], body=body)
    found = judged_bytes(tmp_path_factory.mktemp("log"), in_bytes(batches), chunk=chunk)
    _is_in_order(found)
    others = sum(len(batch.records) for batch in BATCHES) - len(BATCHES[number].records)
    assert found.folded.record_count >= others


STATES = [(10, 14, 2, 1), (15, 19, 0, 2)]
CONTROL_RECORDS = [
    checkpoint("g", 1, 10, 20, STATES),
    delta("g", 1, 0, STATES),
    checkpoint("h", 1, 0, 30),
    delta("g", 1, 1, [(20, 24, 2, 1)]),
    checkpoint("g", 2, 12, 25, [(15, 19, 2, 1)]),
]


@given(st.integers(0, len(CONTROL_RECORDS) - 1), replacements, st.booleans(), st.sampled_from([0, 1, 2, 3, 4]))
def test_control_records_that_changed_never_raise(
    tmp_path_factory: pytest.TempPathFactory, number: int, changes: list[tuple[int, bytes]], in_key: bool, codec: int
):
    records = list(CONTROL_RECORDS)
    key, value = records[number].key or b"", records[number].value or b""
    records[number] = Record(_changed(key, changes), value) if in_key else Record(key, _changed(value, changes))
    batches = [control(offset, record, codec=codec) for offset, record in enumerate(records)]
    folded = fold_control_log(control_log_of(tmp_path_factory.mktemp("log"), batches))
    assert folded.record_count >= len(records) - 1 - in_key
    for row in [*folded.states.to_pylist(), *folded.in_flight.to_pylist(), *judge(folded).to_pylist()]:
        assert row["dialect"] == "control_records"


@given(st.sampled_from(["console-json", "dump-log"]), replacements)
def test_texts_that_changed_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, form: str, changes: list[tuple[int, bytes]]
):
    text = console_text(RECORDS) if form == "console-json" else dump_text(BATCHES)
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(_changed(text.encode(), changes))
    for given_form in (form, "auto"):
        _is_read_or_refused(path, given_form)


INT64S = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, 2, 3, 2**31, 2**63 - 2])
BYTES = (
    st.none()
    | st.binary(max_size=60)
    | st.sampled_from([part for record in RECORDS for part in (record.key, record.value)])
)
TABLE_ROWS = st.lists(
    st.tuples(st.integers(0, 3) | INT64S, st.integers(0, 20) | INT64S, INT64S, BYTES, BYTES), max_size=8
)


@given(TABLE_ROWS, st.booleans(), st.booleans())
def test_tables_of_any_values_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[int, int, int, bytes, bytes]],
    statistics: bool,
    unsigned: bool,
):
    partitions, offsets, times, keys, values = zip(*drawn, strict=True) if drawn else ((),) * 5
    kind = pa.uint64() if unsigned else pa.int64()
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "topic": pa.array([STATE_TOPIC] * len(drawn), pa.string()),
        "partition": pa.array(partitions, pa.int64()),
        "offset": pa.array([offset % 2**64 if unsigned else offset for offset in offsets], kind),
        "timestamp": pa.array(times, pa.int64()),
    }
    path = tmp_path_factory.mktemp("table") / "rows.parquet"
    pq.write_table(pa.table(columns), path, write_statistics=statistics)
    _is_read_or_refused(path, "table")


def _is_read_or_refused(path: Path, form: str) -> None:
    try:
        for log in read_export(ExportPaths([str(path)]), form).logs:
            _is_in_order(judged(log))
    except InputError as refused:
        assert "\n" not in str(refused)
    except ShareStateError as needs_spark:
        assert "sorted by Spark" in str(needs_spark)


@nightly("compiles every kernel anew")
def test_no_kernel_ever_reads_outside_of_its_arrays(tmp_path: Path):
    # numba checks every index where it is told to; a kernel that reads outside raises IndexError then.
    checked = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "HYPOTHESIS_PROFILE": "fast"}
    tests = [str(Path(__file__).parents[1] / name) for name in ("kafka", "sources", "fold")]
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, env=checked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
