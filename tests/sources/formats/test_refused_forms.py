"""What is no form of export is refused in one line that names the file and the place."""

import gzip
import json
import re
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from share_state.config.input_spec import OPTIONS, input_spec
from share_state.errors import InputError, ShareStateError
from share_state.fold.state_log import fold_log
from share_state.sources.input_detection import detect_format
from tests.kafka.batches import Batch, consecutive, key
from tests.log_writer import snapshot, tombstone, update
from tests.profiles import some_of
from tests.sources.formats.printed import console_text, dump_text
from tests.sources.formats.tables import found, rows, write
from tests.truth import DATA

KEY = ("g", "AAAAAAAAAAEAAAAAAAAAAg", 3)
RECORDS = [snapshot(KEY, [(0, 4, 2, 1)]), update(KEY, [(5, 5, 4, 3)]), tombstone(KEY)]
CONSOLE = console_text(RECORDS)
FIRST = len(console_text(RECORDS[:1]))
DUMP = dump_text(consecutive([Batch(RECORDS[:2]), Batch(RECORDS[2:])]))


def _refused(path: Path, form: str, pattern: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: {pattern}") as refused:
        for log in found(path, form=form):
            fold_log(log)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        (CONSOLE[:-1], rf"byte {len(console_text(RECORDS[:2]))}: the text ends inside a record"),
        (CONSOLE[: FIRST + 30], rf"byte {FIRST}: the text ends inside a record"),
        (CONSOLE[:FIRST] + "garbage" + CONSOLE[FIRST:], rf"byte {FIRST}: not a JSON object"),
        (CONSOLE[:FIRST] + "[1]", rf"byte {FIRST}: not a JSON object"),
        (CONSOLE[:FIRST] + '{"key":,}' + " " * 99, rf"byte {FIRST}: not JSON"),
        (CONSOLE[:FIRST] + '{"key":' + "[" * 99999 + " " * 99, rf"byte {FIRST}: not JSON"),
        (CONSOLE.replace('"startOffset":0', '"startOffset":NaN'), "byte 0: not JSON"),
        (CONSOLE.replace('"startOffset":0', '"startOffset":true'), "byte 0: not a record .*not an integer"),
        (CONSOLE.replace('"startOffset":0', '"startOffset":1.5'), "byte 0: not a record .*not an integer"),
        (CONSOLE.replace('"startOffset":0', '"startOffset":"0"'), "byte 0: not a record .*not an integer"),
        (CONSOLE.replace('"startOffset":0', f'"startOffset":{2**63}'), "byte 0: not a record .*does not fit"),
        (CONSOLE.replace('"startOffset":0', '"started":0'), "byte 0: not a record .*no field startOffset"),
        (CONSOLE.replace('"lastOffset":4', '"last":4'), "byte 0: not a record .*a state batch lacks"),
        (CONSOLE.replace('"stateBatches":[', '"stateBatches":null,"x":[', 1), "byte 0: not a record .*is not a list"),
        (CONSOLE.replace('"version":0', '"version":1', 1), "byte 0: not a record .*not of version 0"),
        (CONSOLE.replace('{"type":0', '{"type":9', 1), "byte 0: not a record .*type 9 of the key"),
        (CONSOLE.replace("AAAAAAAAAAEAAAAAAAAAAg", "short", 1), "byte 0: not a record .*is invalid"),
        (CONSOLE.replace('"groupId":"g"', '"groupId":null', 1), "byte 0: not a record .*wrong type"),
        (CONSOLE.replace('"groupId":"g"', f'"groupId":"{"g" * 40000}"', 1), "byte 0: not a record .*is invalid"),
        (CONSOLE.replace('"groupId":"g"', '"groupId":"\\ud800"', 1), "byte 0: not a record .*is invalid"),
        ('{"key":1}', "byte 0: not a record .*no key or no value"),
    ],
)  # fmt: skip
def test_console_json_that_is_none(text: str, pattern: str, tmp_path: Path):
    path = tmp_path / "console.txt"
    path.write_text(text)
    _refused(path, "console-json", pattern)


def _seconds(path: Path, form: str, text: str) -> float:
    """The least CPU time of three readings of a text."""
    path.write_text(text)
    taken = []
    for _ in range(3):
        begin = time.process_time()
        with suppress(InputError):
            for log in found(path, form=form):
                fold_log(log)
        taken.append(time.process_time() - begin)
    return min(taken)


SHAPES = [" ", "1", "-", "x-1", "key: ", "] key: ", "[", '{"a":', "Found ", "] key: {"]


@pytest.mark.parametrize("shape", some_of(SHAPES, 1))
@pytest.mark.parametrize(
    ("form", "before"),
    [
        ("dump-log", "Dumping "),
        ("dump-log", f"{DUMP}baseOffset: "),
        ("dump-log", f"{DUMP}| "),
        ("console-json", CONSOLE),
    ],
)
def test_a_long_line_takes_time_in_proportion_to_its_length(tmp_path: Path, form: str, before: str, shape: str):
    texts = (f"{before}{shape * (size // len(shape))}x" for size in (4000, 32_000))
    short, long = (_seconds(tmp_path / "text", form, text) for text in texts)
    # Eight times the length: a quadratic pattern takes 64 times as long.
    assert long < 24 * short + 0.05


def test_console_json_of_other_bytes(tmp_path: Path):
    path = tmp_path / "console.txt"
    path.write_bytes(CONSOLE.encode() + b"\xff")
    _refused(path, "console-json", f"byte {len(CONSOLE)}: not UTF-8")


def test_an_object_that_never_ends_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("share_state.sources.console_text._MAX_OBJECT", 1 << 20)
    path = tmp_path / "console.txt"
    path.write_text(CONSOLE + '{"key":[' + "1," * (3 << 20))
    _refused(path, "console-json", f"byte {len(CONSOLE)}: the text ends inside a record")


def _line(number: int) -> int:
    return len("".join(DUMP.splitlines(keepends=True)[:number]).encode())


def _late_record(text: str) -> str:
    """The first record with a time that no field of Kafka's holds."""
    return text[: _line(3)] + text[_line(3) :].replace("CreateTime: ", "CreateTime: 9999999999", 1)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        (DUMP[: _line(4)], rf"byte {_line(2)}: a batch of 2 records, 1 in the text"),
        (DUMP[: _line(4) + 150], rf"byte {_line(4)}: "),
        (DUMP[: _line(6) - 8], rf"byte {_line(5)}: "),
        (DUMP[: _line(3)] + "garbage\n" + DUMP[_line(3) :], rf"byte {_line(3)}: not a line of kafka-dump-log"),
        (DUMP.replace("lastOffset: 1", "lastOffset: x"), rf"byte {_line(2)}: a batch line"),
        (DUMP.replace("crc: ", "crc: 9999999999", 1), rf"byte {_line(2)}: a batch line without a valid "),
        (DUMP.replace("CreateTime: ", "CreateTime: 9999999999"), rf"byte {_line(2)}: a batch line without a valid "),
        (DUMP.replace("count: 2", f"count: {2**31}"), rf"byte {_line(2)}: a batch line without a valid "),
        (_late_record(DUMP), rf"byte {_line(3)}: a record line without offset, time"),
        (DUMP.replace("crc: ", "crk: "), rf"byte {_line(2)}: a batch line without a valid crc"),
        (DUMP.replace("compresscodec: none", "compresscodec: brotli", 1), rf"byte {_line(2)}: a batch line"),
        (DUMP.replace("| offset: 1", "| offset: 5"), rf"byte {_line(4)}: offset 5 is not in the batch before it"),
        (DUMP.replace("| offset: 0", "| number: 0"), rf"byte {_line(3)}: a record line without offset"),
        (DUMP.replace(" key: {", " kay: {"), rf"byte {_line(3)}: a record line without key; dump with"),
        (DUMP.replace(" payload: ", " content: "), rf"byte {_line(3)}: no payload after the key"),
        (DUMP.replace('"version":"0"', '"version":"7"'), rf"byte {_line(3)}: the value is not of version 0"),
        (DUMP.replace("key: {", "key: what {"), rf"byte {_line(3)}: the key is neither JSON nor"),
        (DUMP.replace('{"type":"0"', '{"type":"x"'), rf"byte {_line(3)}: type x of the key"),
        ("Dumping x/00000000000000000000.log\n" + DUMP[_line(3) :], r"byte 35: a record before any batch"),
        ("nothing of the kind", "no dump of __share_group_state"),
        (DUMP.replace("__share_group_state-0", "orders-0"), r"no dump of .* in this text \(found segments of orders\)"),
    ],
)
def test_dumped_text_that_is_none(text: str, pattern: str, tmp_path: Path):
    path = tmp_path / "dump.txt"
    path.write_text(text)
    _refused(path, "dump-log", pattern)


_NOT_BYTES = "row group 0: a key or value is text but neither base64 nor hexadecimal"
TABLE = rows(3, [5, 6], [1, 2], [key(), key()], [None, b"\0\0"])


@pytest.mark.parametrize(
    ("table", "pattern"),
    [
        (TABLE.drop_columns("key"), r"no column key \(columns: value, .*give --column key=NAME"),
        (TABLE.drop_columns("offset"), "no column offset"),
        (TABLE.drop_columns("partition"), "no column partition"),
        (
            TABLE.set_column(0, "key", pa.array([1, 2])),
            "column key is int64, not binary, or text in base64 or hexadecimal",
        ),
        (TABLE.set_column(4, "offset", pa.array(["5", "6"])), "column offset is string, not an integer"),
        (TABLE.set_column(5, "timestamp", pa.array(["a", "b"])), "column timestamp is string, not a timestamp"),
        (TABLE.set_column(2, "topic", pa.array([1, 2])), "column topic is int64, not text"),
        (TABLE.set_column(4, "offset", pa.array([5, None])), "row 1: offset is null"),
        (TABLE.set_column(4, "offset", pa.array([5, -6])), "row 1: offset is -6"),
        (TABLE.set_column(3, "partition", pa.array([None, 1])), "row 0: partition is null"),
        (
            TABLE.set_column(0, "key", pa.array(["AAA=", "?"])),
            _NOT_BYTES,
        ),
        (
            TABLE.set_column(0, "key", pa.array(["AAA=", "AA="])),
            _NOT_BYTES,
        ),
        (
            TABLE.set_column(0, "key", pa.array(["A=A=", "AAAA"])),
            _NOT_BYTES,
        ),
        (TABLE.set_column(2, "topic", pa.array(["a", "b"])), r"no records of .* \(found rows of a, b\)"),
        (TABLE.slice(0, 0), r"no records of .* \(it has no rows\)"),
    ],
)
def test_a_table_that_is_none(table: pa.Table, pattern: str, tmp_path: Path):
    _refused(write(table, tmp_path / "rows.parquet"), "table", pattern)


def test_half_a_parquet_file(tmp_path: Path):
    path = write(TABLE, tmp_path / "rows.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    _refused(path, "table", "not a complete Parquet file")


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["b", "c"]])
@pytest.mark.parametrize("form", ["auto", "table"])
def test_an_empty_parquet_file_is_named(tmp_path: Path, names: list[str], form: str):
    """As the first, the last or the only file of a folder, and by its own path."""
    files = [tmp_path / f"{name}.parquet" for name in names]
    for file in files:
        file.touch() if file.name != "b.parquet" else write(TABLE, file)
    (empty,) = (file for file in files if not file.stat().st_size)
    for given in (tmp_path, empty):
        with pytest.raises(InputError, match=f"^{re.escape(str(empty))}: not a complete Parquet file .* 0 bytes"):
            found(given, form=form)


def test_a_parquet_file_with_a_damaged_page(tmp_path: Path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.concat_tables([TABLE] * 500), path, compression="snappy", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[40:1500] = bytes(1460)
    path.write_bytes(data)
    _refused(path, "table", "row group 0: ")


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(("offset", "kind"), [(2**63 - 1, pa.int64()), (2**63, pa.uint64()), (2**64 - 1, pa.uint64())])
def test_an_offset_that_no_record_can_have(tmp_path: Path, offset: int, kind: pa.DataType, statistics: bool):
    table = rows(0, [0], [0], [key()], [None])
    table = table.set_column(table.schema.get_field_index("offset"), "offset", pa.array([offset], kind))
    path = tmp_path / "records.parquet"
    pq.write_table(table, path, write_statistics=statistics)
    _refused(path, "table", f".*{offset}")


def test_a_partition_that_no_topic_can_have(tmp_path: Path):
    table = rows(0, [0], [0], [key()], [None])
    table = table.set_column(table.schema.get_field_index("partition"), "partition", pa.array([2**31], pa.int64()))
    path = tmp_path / "records.parquet"
    pq.write_table(table, path)
    _refused(path, "table", f"partition {2**31}; Kafka's are from 0")


@pytest.mark.parametrize(
    ("sound", "damaged"),
    [(b"topic", b"to\xffic"), (b"offset", b"of\xffset"), (b"__share_group_state", b"\xff" * 19)],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_parquet_file_with_a_damaged_footer(tmp_path: Path, sound: bytes, damaged: bytes, first: bool):
    path = tmp_path / "records.parquet"
    pq.write_table(rows(0, [0, 1], [0, 0], [key(), key()], [None, None]), path, compression="none")
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert sound in data[footer:]
    at = data.index(sound, footer) if first else data.rindex(sound)
    path.write_bytes(data[:at] + damaged + data[at + len(sound) :])
    _refused(path, "table", "")


def test_two_forms_at_once(tmp_path: Path):
    path = write(TABLE, tmp_path / "rows.parquet")
    with pytest.raises(InputError, match=r"is segments of a log, .* is a table of keys and values; give one form"):
        detect_format([str(DATA / "4.3.1/happy/__share_group_state-0"), str(path)])


def test_a_form_that_is_not_known():
    with pytest.raises(ShareStateError, match="--format csv: give one of auto, console-json, dump-log"):
        input_spec(OPTIONS, sources=[{"path": "x", "format": "csv"}])


@pytest.mark.parametrize("form", ["table", "console-json", "dump-log"])
def test_what_is_not_there(form: str, tmp_path: Path):
    _refused(tmp_path / "nothing", form, "no such file or folder")


@pytest.mark.parametrize("form", ["table", "console-json", "dump-log"])
def test_an_empty_folder(form: str, tmp_path: Path):
    _refused(tmp_path, form, "no ")


def test_json_of_something_else_is_not_taken_for_the_consoles(tmp_path: Path):
    path = tmp_path / "topics.json"
    path.write_text(json.dumps({"topics": [{"name": "a"}]}))
    assert detect_format([str(path)]) != "console-json"


def test_a_text_that_is_compressed_as_a_file(tmp_path: Path):
    path = tmp_path / "dump.txt.gz"
    path.write_bytes(gzip.compress((DATA / "4.3.1/happy/dump-log-__share_group_state-2.txt").read_bytes()))
    with pytest.raises(InputError, match=f"^{path}: the text of kafka-dump-log, compressed as a file; decompress it"):
        detect_format([str(path)])
