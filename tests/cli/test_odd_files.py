"""Files of every kind beside the logs with values changed at random: a command reads them or ends with one line.

profiles.py says how many examples are drawn.
"""

import json
import re
import shutil
import struct
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from share_state.cli.main import run
from tests.cli.commands import run_cli
from tests.fold.control_records.logs import checkpoint, control, delta
from tests.kafka.batches import Batch, in_bytes
from tests.log_writer import snapshot, update
from tests.pipeline.test_dead_letter_topics import ARCHIVED, ARCHIVING, KEY, STEP, letter
from tests.profiles import SLOW, nightly
from tests.sources.formats.printed import console_text, dump_text
from tests.truth import DATA

HAPPY = DATA / "4.3.1/happy"
STATE = HAPPY / "__share_group_state-0"
SEGMENT = f"{0:020}.log"
NUMBERS = ["0", "-1", "1e9", "1.5", "٣", "0x10", "1_000", "true", "null", '""', "[]", "{}", "NaN", "-0", "", "+7"]
NUMBERS += [str(2**bits - less) for bits in (15, 16, 31, 32, 63, 64) for less in (1, 0)] + ["9" * 30, "9" * 5000]
NewNumbers = Sequence[tuple[int, str]]
NewBytes = Sequence[tuple[int, bytes]]
IS_NUMBER = re.compile(rb"\d+")
places = st.integers(0, 10_000)
numbers = st.lists(st.tuples(places, st.sampled_from(NUMBERS)), max_size=3)
patches = st.lists(st.tuples(places, st.binary(min_size=1, max_size=6)), max_size=2)


def changed(content: bytes, new_numbers: NewNumbers, new_bytes: NewBytes) -> bytes:
    """A text with some of its numbers replaced, and some of its bytes overwritten."""
    for place, number in new_numbers:
        old = list(IS_NUMBER.finditer(content))
        if old:
            found = old[place % len(old)]
            content = content[: found.start()] + number.encode() + content[found.end() :]
    data = bytearray(content)
    for place, put_in in new_bytes:
        at = place % max(len(data), 1)
        data[at : at + len(put_in)] = put_in
    return bytes(data)


def is_read_or_refused(capfd: pytest.CaptureFixture[str], *call: object) -> int:
    """Run a command, which reads what it is given or refuses it in one line; returns its exit code."""
    said = run_cli(capfd, *call)
    assert said.code in (0, 1, 2), (call, said)
    assert "Traceback" not in said.err, said
    assert all(line.isprintable() for line in said.err.splitlines()), said
    if said.code == 2:
        assert said.err.splitlines()[-1].startswith("share-state: "), said
        assert said.out == ""
    return said.code


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("odd")


def _control_log(place: Path) -> Path:
    folder = place / "orders-0"
    if not folder.exists():
        folder.mkdir()
        ranges = [(10, 14, 2, 1), (15, 19, 0, 2)]
        records = [checkpoint("a b", 1, 10, 20, ranges), delta("a b", 1, 0, ranges), checkpoint("h", 1, 0, 30)]
        batches = [replace(control(offset, record), base_offset=offset) for offset, record in enumerate(records)]
        (folder / SEGMENT).write_bytes(in_bytes(batches))
    return folder


@given(numbers, patches, st.booleans())
@example([(2, str(2**63))], [], False)
@example([(1, "9" * 5000)], [], False)
@example([(4, "9" * 5000)], [], True)
def test_a_share_snapshot_file_with_odd_values_is_read_or_refused(
    capfd: pytest.CaptureFixture[str],
    place: Path,
    new_numbers: NewNumbers,
    new_bytes: NewBytes,
    accept: bool,
):
    log, index = _control_log(place), place / "index"
    shutil.rmtree(index, ignore_errors=True)
    index.mkdir()
    content = changed(b"0\n2\na b 0 1 1\nh 2 1 2\n", new_numbers, new_bytes)
    (index / "orders-0.share-snapshot").write_bytes(content)
    call = ["cutoff", log, "--dialect", "control_records", "--index", index, *["--accept"] * accept]
    if is_read_or_refused(capfd, *call) == 2:
        assert (index / "orders-0.share-snapshot").read_bytes() == content


TOPICS = json.dumps({"cZIhGIMPQJWPghBGSXkyBg": {"name": "orders", "partitions": 3, "end_offsets": {"0": 612, "2": 9}}})
LISTED = json.dumps([{"topicId": "cZIhGIMPQJWPghBGSXkyBg", "partitions": [{"partition": 0, "highWatermark": 612}]}])
SUBSCRIPTIONS = json.dumps({"orders": ["a b", "h1"]})


@given(st.sampled_from([TOPICS, LISTED]), numbers, patches)
def test_a_topics_file_with_odd_values_is_read_or_refused(
    capfd: pytest.CaptureFixture[str],
    place: Path,
    text: str,
    new_numbers: NewNumbers,
    new_bytes: NewBytes,
):
    file = place / "topics.json"
    file.write_bytes(changed(text.encode(), new_numbers, new_bytes))
    is_read_or_refused(capfd, "cutoff", STATE, "--topics", file)


@given(numbers, patches)
def test_a_subscriptions_file_with_odd_values_is_read_or_refused(
    capfd: pytest.CaptureFixture[str],
    place: Path,
    new_numbers: NewNumbers,
    new_bytes: NewBytes,
):
    file = place / "subscriptions.json"
    file.write_bytes(changed(SUBSCRIPTIONS.encode(), new_numbers, new_bytes))
    log = _control_log(place)
    is_read_or_refused(capfd, "cutoff", log, "--dialect", "control_records", "--subscriptions", file)


CONFIG = """\
cluster: prod
sources:
  - {{path: "{source}", format: auto}}
warehouse: "{warehouse}"
state_partitions: 50
limits:
  delivery_count: 5
  record_locks: 2000
  updates_per_snapshot: 500
  stall_minutes: 30
  archiving_seconds: 60
  pinned_records: 1000
  groups: {{app: {{delivery_count: 10}}}}
groups: {{members: 200, retry_seconds: 60}}
retention: {{history_days: 90}}
rules: {{TORN_TAIL: "off"}}
fail_on: error
"""


def _config(place: Path, source: object, new_numbers: NewNumbers, new_bytes: NewBytes):
    shutil.rmtree(place / "lake", ignore_errors=True)
    head, _, tail = CONFIG.format(source=source, warehouse=place / "lake").partition("state_partitions")
    file = place / "audit.yaml"
    file.write_bytes(head.encode() + changed(f"state_partitions{tail}".encode(), new_numbers, new_bytes))
    return file


@given(numbers, patches)
def test_a_configuration_with_odd_values_is_read_or_refused(
    capfd: pytest.CaptureFixture[str],
    place: Path,
    new_numbers: NewNumbers,
    new_bytes: NewBytes,
):
    is_read_or_refused(capfd, "audit", "--config", _config(place, STATE, new_numbers, new_bytes))


VARIABLES = ["LIMITS__DELIVERY_COUNT", "LIMITS__STALL_MINUTES", "STATE_PARTITIONS", "SOURCES__0__PATH", "TOPICS"]
VARIABLES += ["GROUPS__PARTITIONS", "RETENTION__HISTORY_DAYS", "LIMITS__GROUPS__app__RECORD_LOCKS", "REPORT__HTML"]
VARIABLES += [f"SOURCES__{'9' * 5000}__PATH", "SOURCES__٣__PATH", "WAREHOUSE", "LIMITS"]


@given(st.sampled_from(VARIABLES), st.sampled_from([*NUMBERS, "file://", "a" * 300, "/dev/full", "\x1b[31m", "~"]))
def test_a_variable_with_an_odd_value_is_read_or_refused(
    capfd: pytest.CaptureFixture[str], place: Path, variable: str, value: str
):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv(f"SHARE_STATE_{variable}", value)
        is_read_or_refused(capfd, "audit", "--config", _config(place, STATE, [], []))


@pytest.mark.parametrize("key", ["warehouse", "topics", "sources.0.path", "report.html", "dead_letters.0"])
def test_a_nul_in_a_path_of_the_configuration_is_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path, key: str):
    lines = {"warehouse": f'"{tmp_path}/lake"', "sources.0.path": f'"{STATE}"'} | {key: '"a\\0b"'}
    config = f"warehouse: {lines['warehouse']}\nsources: [{{path: {lines['sources.0.path']}}}]\n"
    config += {"topics": f"topics: {lines[key]}\n", "report.html": f"report: {{html: {lines[key]}}}\n"}.get(key, "")
    config += f"dead_letters: [{lines[key]}]\n" if key == "dead_letters.0" else ""
    (tmp_path / "audit.yaml").write_text(config)
    said = run_cli(capfd, "audit", "--config", tmp_path / "audit.yaml")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"share-state: {tmp_path}/audit.yaml: {key}: 'a\\x00b' given; give a path"), said.err


CHECKPOINT_FILES = {
    "log-start-offset-checkpoint": "0\n1\n__share_group_state 0 3\n",
    "replication-offset-checkpoint": "0\n1\n__share_group_state 0 9\n",
    "__share_group_state-0/leader-epoch-checkpoint": "0\n1\n0 0\n",
}


@given(st.sampled_from([*CHECKPOINT_FILES]), numbers, patches)
@example("log-start-offset-checkpoint", [(3, "9" * 5000)], [])
@example("__share_group_state-0/leader-epoch-checkpoint", [(3, str(2**63))], [])
@example("replication-offset-checkpoint", [(2, str(2**31 - 1))], [])
@example("replication-offset-checkpoint", [(3, "9" * 5000)], [])
def test_a_checkpoint_file_of_a_broker_with_odd_values_is_read_or_refused(
    capfd: pytest.CaptureFixture[str],
    place: Path,
    name: str,
    new_numbers: NewNumbers,
    new_bytes: NewBytes,
):
    broker = place / "broker"
    shutil.rmtree(broker, ignore_errors=True)
    shutil.copytree(STATE, broker / STATE.name)
    (broker / name).write_bytes(changed(CHECKPOINT_FILES[name].encode(), new_numbers, new_bytes))
    is_read_or_refused(capfd, "cutoff", broker)


def test_a_base_offset_that_no_log_holds_is_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    shutil.copytree(STATE, tmp_path / STATE.name)
    (tmp_path / STATE.name / SEGMENT).rename(tmp_path / STATE.name / f"{2**63:020}.log")
    said = run_cli(capfd, "cutoff", tmp_path)
    assert (said.code, said.out) == (2, "")
    assert f"{2**63}.log: a base offset above {2**63 - 1}; rename the file or leave it out" in said.err


RECORDS = [snapshot(KEY, [(0, 9, 2, 1)]), update(KEY, [(10, 19, 0, 3)], start_offset=0)]


@given(st.sampled_from(["console-json", "dump-log"]), numbers, patches)
@example("dump-log", [(0, str(2**31))], [])
@example("dump-log", [(1, str(2**64))], [])
def test_a_text_with_odd_numbers_is_read_or_refused(
    capfd: pytest.CaptureFixture[str],
    place: Path,
    form: str,
    new_numbers: NewNumbers,
    new_bytes: NewBytes,
):
    text = console_text(RECORDS) if form == "console-json" else dump_text([Batch(RECORDS)])
    (place / "text").write_bytes(changed(text.encode(), new_numbers, new_bytes))
    is_read_or_refused(capfd, "cutoff", place / "text", "--format", form)


HEADERS = ["partition", "offset", "group", "delivery_count", "message"]
LETTERS = [letter(number) for number in (10, 11, 14)] + [letter(12, time=2, message=None)]


def _dead_letter_run(capfd: pytest.CaptureFixture[str], place: Path, letters: Path) -> int:
    export = place / "__share_group_state-0"
    if not export.exists():
        export.mkdir()
        states = [
            snapshot(KEY, [(0, 9, 2, 1)]),
            update(KEY, [(10, 14, ARCHIVING, 5)], start_offset=0),
            update(KEY, [(10, 14, ARCHIVED, 5)], start_offset=0),
        ]
        batches = [Batch([one], base_offset=number, base_timestamp=STEP * number) for number, one in enumerate(states)]
        (export / SEGMENT).write_bytes(in_bytes(batches))
    shutil.rmtree(place / "out", ignore_errors=True)
    return is_read_or_refused(capfd, "reconstruct", export, "--out", place / "out", "--dead-letters", letters)


@nightly("audits of drawn files")
@SLOW
@given(patches, numbers, st.booleans())
def test_a_segment_of_dead_letters_that_changed_is_read_or_refused(
    capfd: pytest.CaptureFixture[str],
    place: Path,
    new_bytes: NewBytes,
    new_numbers: NewNumbers,
    has_right_crc: bool,
):
    changes: list[dict[str, Any]] = [{HEADERS[at % len(HEADERS)]: number.encode()} for at, number in new_numbers]
    odd = [letter(10, **change) for change in changes]
    segment = bytearray(changed(in_bytes([Batch([*LETTERS, *odd])]), [], new_bytes))
    if has_right_crc:
        struct.pack_into(">I", segment, 17, google_crc32c.value(bytes(segment[21:])))
    folder = place / "dlq.app-0"
    folder.mkdir(exist_ok=True)
    (folder / SEGMENT).write_bytes(segment)
    _dead_letter_run(capfd, place, folder)


odd_texts = st.sampled_from(NUMBERS).map(str.encode) | st.binary(max_size=8) | st.none()
names = st.sampled_from(["topic", "partition", "offset", "group", "delivery.count", "message", "other"])
header_lists = st.none() | st.lists(
    st.tuples(names.map(lambda name: f"__dlq.errors.{name}") | st.none(), odd_texts), max_size=7
)
int64s = st.sampled_from([0, 1, -1, 2**31, -(2**31), 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
letter_rows = st.tuples(st.none() | st.sampled_from(["dlq.app", ""]), int64s | st.none(), int64s | st.none(), int64s)


@SLOW
@given(st.lists(st.tuples(letter_rows, header_lists), max_size=4), st.booleans(), st.sampled_from(["us", "ms", "ns"]))
def test_a_table_of_dead_letters_with_odd_values_is_read_or_refused(
    capfd: pytest.CaptureFixture[str], place: Path, drawn: list, is_int32: bool, unit: str
):
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows, headers = [row for row, _ in drawn], [listed for _, listed in drawn]
    partitions = [None if row[1] is None else row[1] % 2**31 if is_int32 else row[1] for row in rows]
    columns = {
        "topic": pa.array([row[0] for row in rows], pa.string()),
        "partition": pa.array(partitions, pa.int32() if is_int32 else pa.int64()),
        "offset": pa.array([row[2] for row in rows], pa.int64()),
        "timestamp": pa.array([row[3] for row in rows], pa.int64()).cast(pa.timestamp(unit, "UTC")),
        "key": pa.array([b"k"] * len(rows), pa.binary()),
        "value": pa.array([None] * len(rows), pa.binary()),
        "headers": pa.array([one and [{"key": k, "value": v} for k, v in one] for one in headers], kind),
    }
    pq.write_table(pa.table(columns), place / "letters.parquet")
    _dead_letter_run(capfd, place, place / "letters.parquet")


def _letter_table(place: Path, partition: int) -> Path:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = [{"key": f"__dlq.errors.{name}", "value": text} for name, text in LETTER_HEADERS.items()]
    columns = {
        "topic": pa.array(["dlq.app"]),
        "partition": pa.array([partition], pa.int64()),
        "offset": pa.array([0], pa.int64()),
        "timestamp": pa.array([0], pa.timestamp("ms", "UTC")),
        "headers": pa.array([headers], kind),
    }
    pq.write_table(pa.table(columns), place / "letters.parquet")
    return place / "letters.parquet"


LETTER_HEADERS = {"topic": b"orders", "partition": b"0", "offset": b"10", "group": b"app", "delivery.count": b"5"}


@nightly("every command")
def test_a_partition_that_no_dead_letter_topic_has_is_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    # With a row for each partition up to this one, 20 GB of memory were not enough.
    assert _dead_letter_run(capfd, tmp_path, _letter_table(tmp_path, 100_000)) == 2
    assert not (tmp_path / "out").exists()
    tracemalloc.start()
    try:
        assert _dead_letter_run(capfd, tmp_path, _letter_table(tmp_path, 9_999)) in (0, 1)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["key", "value", "topic", "partition", "offset", "timestamp"])
def test_two_columns_of_one_name_are_named(capfd: pytest.CaptureFixture[str], tmp_path: Path, name: str):
    columns = {"key": [b"k"], "value": [b"v"], "topic": ["__share_group_state"], "partition": [0], "offset": [0]}
    table = pa.table(columns | {"timestamp": pa.array([0], pa.timestamp("us", "UTC"))})
    pq.write_table(table.append_column(name, table[name]), tmp_path / "twice.parquet")
    said = run_cli(capfd, "cutoff", tmp_path / "twice.parquet")
    assert (said.code, said.out) == (2, "")
    assert f"twice.parquet: has 2 columns {name}; write it with one, or rename the others" in said.err


def test_every_case_has_a_right_answer_without_a_change(capfd: pytest.CaptureFixture[str], place: Path):
    folder = place / "dlq.app-0"
    folder.mkdir(exist_ok=True)
    (folder / SEGMENT).write_bytes(in_bytes([Batch(LETTERS)]))
    assert _dead_letter_run(capfd, place, folder) in (0, 1)
    assert run(["audit", "--config", str(_config(place, STATE, [], [])), "--quiet"]) in (0, 1)
