"""Reads the output of kafka-dump-log with --share-group-state-decoder or --offsets-decoder, batch by batch.

`parse_batch_line` and `parse_record_line` read single lines; `DumpText` reads log partitions.
"""

import json
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from share_state.errors import InputError
from share_state.kafka.record_batches import BATCH, CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, BatchStatus, Chunk
from share_state.kafka.state_records import Fault
from share_state.kafka.text_records import (
    TEXT_CHUNK_SIZE,
    RecordAccumulator,
    TextRecordError,
    encode_group_record,
    encode_state_key,
    encode_state_value,
    parse_record_type,
)
from share_state.sources.discovery import GROUP_TOPIC, STATE_TOPIC, LogPartition, Segment
from share_state.sources.object_stores import InputPath, read_error, to_path
from share_state.sources.segments import RepeatedOffsetsError, merge_replicas

_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_LOG_APPEND = "LogAppendTime:"
_TIMESTAMP_NAMES = (_LOG_APPEND, "CreateTime:", "NoTimestampType:")
_NUMBERS = {"base_offset": "baseOffset:", "last_offset": "lastOffset:", "count": "count:", "producer_id": "producerId:",
            "leader_epoch": "partitionLeaderEpoch:", "file_position": "position:", "size": "size:", "magic": "magic:",
            "crc": "crc:"}  # fmt: skip
_FLAGS = ("isTransactional:", "isControl:", "isvalid:")
_BATCH_NUMBERS = struct.Struct(
    "<" + "".join(BATCH[name].char for name in (*_NUMBERS, "max_timestamp")).replace("l", "q")
)
_TIMESTAMP = struct.Struct("<q")
"""Both reject numbers that do not fit their field."""
_KEY_START, _PAYLOAD, _DELETE = "] key: ", " payload: ", "<DELETE>"
_UNKNOWN_TYPE = re.compile(r"Unknown record type (-?\d+) at offset \d+, skipping\.")
_ERROR = re.compile(r"Error at offset \d+, skipping\. ?(.*)", re.DOTALL)
_UNKNOWN_VERSION = re.compile(r"unknown record version (-?\d+) for -?\d+ type")
_INT16 = range(-(2**15), 2**15)

ReadRecord = Callable[[Any, Any], tuple[bytes, bytes | None]]
"""(printed key, printed value) -> their bytes; raises TextRecordError."""

_DECODE = json.JSONDecoder().raw_decode


class DumpedRecord(NamedTuple):
    """A record line.

    Attributes:
        offset, timestamp: offset and timestamp in ms.
        key: bytes; empty if the tool could not read the record.
        value: bytes, None for null.
        fault: (Fault, value version) if the tool reports why it could not read the record.
    """

    offset: int
    timestamp: int
    key: bytes = b""
    value: bytes | None = None
    fault: tuple[int, int] | None = None


@dataclass(slots=True)
class DumpedBatch:
    """A batch line, with the field names of BATCH; positions are those in the dumped segment."""

    segment: int
    status: int
    file_position: int
    size: int
    base_offset: int = -1
    last_offset: int = -1
    max_timestamp: int = 0
    producer_id: int = 0
    count: int = 0
    leader_epoch: int = 0
    crc: int = 0
    magic: int = -1
    attributes: int = 0

    @property
    def holds_data(self) -> bool:
        """Whether its records count: it is valid and no control batch."""
        return self.status == BatchStatus.VALID and not self.attributes & CONTROL


def batch_rows(batches: Sequence[DumpedBatch]) -> np.ndarray:
    """BATCH rows of batch lines."""
    rows = np.zeros(len(batches), BATCH)
    for column in fields(DumpedBatch):
        rows[column.name] = [getattr(batch, column.name) for batch in batches]
    rows["base_timestamp"] = rows["max_timestamp"]
    return rows


def parse_batch_line(line: str, segment: int) -> DumpedBatch:
    """Parse a batch line.

    Args:
        line: starts with `baseOffset: `.
        segment: number of the segment.
    Raises:
        TextRecordError: if a field is missing or does not fit.
    Source: Kafka DumpLogSegments.printBatchLevel.
    """
    words = line.split(" ")
    texts = dict(zip(words[::2], words[1::2], strict=False))
    timestamp = next((name for name in _TIMESTAMP_NAMES if name in texts), _TIMESTAMP_NAMES[0])
    try:
        numbers = {field: int(texts[name]) for field, name in _NUMBERS.items()}
        numbers["max_timestamp"] = int(texts[timestamp])
        _BATCH_NUMBERS.pack(*numbers.values())
        codec = _CODECS[texts["compresscodec:"].lower()]
        transactional, control, is_valid = (texts[name] == "true" for name in _FLAGS)
    except (KeyError, ValueError, struct.error) as error:
        field_name = str(error.args[0]).removesuffix(":") if error.args else "field"
        raise TextRecordError(f"a batch line without a valid {field_name}") from None
    is_append_time = timestamp == _LOG_APPEND
    status = BatchStatus.MAGIC_UNSUPPORTED
    if numbers["magic"] == 2:
        status = BatchStatus.VALID if is_valid else BatchStatus.CRC_MISMATCH
    return DumpedBatch(
        segment=segment,
        status=status,
        attributes=codec | transactional * TRANSACTIONAL | control * CONTROL | is_append_time * LOG_APPEND_TIME,
        **numbers,
    )


def parse_record_line(line: str, read: ReadRecord) -> DumpedRecord:
    """Parse a record line of a data batch.

    A group id may contain ` payload: `, so the key is parsed as JSON before the payload is searched.

    Args:
        line: starts with `| offset: `.
        read: encodes the printed key and payload; the payload is None for a tombstone.
    Raises:
        TextRecordError: if a field is missing or invalid.
    Source: Kafka DumpLogSegments.dumpLog, CoordinatorRecordMessageParser.
    """
    front, key_start, rest = line.partition(_KEY_START)
    words = front.split(" ")
    try:
        numbers = dict(zip(words[1:9:2], (int(word) for word in words[2:10:2]), strict=True))
        offset = numbers["offset:"]
        timestamp = next(numbers[name] for name in _TIMESTAMP_NAMES if name in numbers)
        _TIMESTAMP.pack(timestamp)
    except (KeyError, ValueError, StopIteration, struct.error):
        raise TextRecordError("a record line without offset, time or sizes") from None
    if not key_start:
        raise TextRecordError("a record line without key; dump with --share-group-state-decoder or --offsets-decoder")
    if not rest.startswith("{"):
        return _unreadable_record(rest, offset, timestamp)
    key, end = _json(rest, 0)
    if not rest.startswith(_PAYLOAD, end):
        raise TextRecordError("no payload after the key")
    at = end + len(_PAYLOAD)
    if rest[at:] == _DELETE:
        return DumpedRecord(offset, timestamp, *read(key, None))
    value, end = _json(rest, at)
    if end != len(rest) or not isinstance(value, dict):
        raise TextRecordError("the payload is no JSON object")
    return DumpedRecord(offset, timestamp, *read(key, value))


def state_record(key: Any, value: Any) -> tuple[bytes, bytes | None]:
    """Encode a printed record of the state topic; a `ReadRecord`."""
    kind = parse_record_type(key)
    encoded_key = encode_state_key(kind, key.get("data"))
    if value is None:
        return encoded_key, None
    # The tool of 4.0 prints `type` instead of `version` in a value, and reads only its own layout.
    early = "version" not in value
    if str(value.get("type" if early else "version")) != "0":
        raise TextRecordError("the payload is not of version 0")
    return encoded_key, encode_state_value(kind, value.get("data"), early=early)


def _unreadable_record(message: str, offset: int, timestamp: int) -> DumpedRecord:
    """A record that the tool could not read: an unknown type is kept; of other records only the fault is known."""
    if (unknown := _UNKNOWN_TYPE.match(message)) and int(unknown[1]) in _INT16:
        return DumpedRecord(offset, timestamp, int(unknown[1]).to_bytes(2, "big", signed=True))
    failed = _ERROR.match(message)
    if failed is None:
        raise TextRecordError("the key is neither JSON nor one of the tool's messages")
    if version := _UNKNOWN_VERSION.search(failed[1]):
        return DumpedRecord(offset, timestamp, fault=(Fault.VALUE_VERSION, int(version[1])))
    of_key = "key's buffer" in failed[1]
    return DumpedRecord(offset, timestamp, fault=(Fault.KEY_MALFORMED if of_key else Fault.VALUE_MALFORMED, 0))


def _json(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODE(text, at)
    except (ValueError, RecursionError):
        raise TextRecordError("not JSON; the line may be cut") from None


_BATCH_LINE, _RECORD_LINE, _SECTION_START = b"baseOffset: ", b"| ", b"Dumping "
_MAX_LINE = 512 << 20
_SECTION = re.compile(rb"^Dumping ", re.MULTILINE)
_SEGMENT = re.compile(r"(?:(?P<topic>[^/\\]+)-(?P<partition>\d+)[/\\])?(?P<base>\d{20})\.log")
_INVALID_END = re.compile(r"Found (\d{1,18}) invalid bytes at the end of ")
_UNDECODED = re.compile(r"Failed to decode message at offset (\d+) ")
_EXCEPTION = b"Exception in thread "
_IGNORED_LINES = (b"Log starting offset:", b"Found ", b"Index offset:", b"Mismatches in", b"Non-consecutive offsets in",
                  b"  ", b"\tat ", b"\t... ", b"Caused by: ", _EXCEPTION)  # fmt: skip
"""Prefixes of lines that are neither batches nor records, including stack traces."""


@dataclass(slots=True)
class _Dumped:
    """A batch and its records."""

    batch: DumpedBatch
    at: int
    lines: int = 0
    records: list[DumpedRecord] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether the text has as many record lines as the batch line states."""
        return self.lines == self.batch.count


@dataclass(frozen=True, slots=True)
class DumpText:
    """A log partition in dumped text; a `RecordSource`. Each segment is the section of a text that dumps one."""

    form: str = "dump-log"
    has_offsets: bool = True
    has_times: bool = True
    has_sizes: bool = True

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        """The chunks of the log, in offset order unless segments overlap and `merge` is off.

        Raises:
            RepeatedOffsetsError: if `merge` is off and needed.
            InputError: if a line is no output of the tool, or the text ends inside a batch.
        """
        chosen = None
        if merge:
            table = np.concatenate([_table(log, number) for number in range(len(log.segments))])
            chosen = merge_replicas(table)
            if len(chosen) < len(table):
                yield Chunk(np.zeros(0, np.uint8), np.zeros(0, BATCH), repeated=len(table) - len(chosen))
        last_offset, collected = -1, _BatchAccumulator()
        for number in range(len(log.segments)):
            own = chosen[chosen["segment"] == number] if chosen is not None else np.zeros(0, BATCH)
            statuses = dict(zip(own["file_position"].tolist(), own["status"].tolist(), strict=True))
            for dumped in _batches(log, number):
                batch = dumped.batch
                if merge:
                    if batch.file_position not in statuses:
                        continue
                    batch.status = statuses[batch.file_position]
                elif batch.status == BatchStatus.VALID:
                    if batch.base_offset <= last_offset:
                        raise RepeatedOffsetsError
                    last_offset = batch.last_offset
                collected.add(dumped)
                if collected.size >= min(chunk, TEXT_CHUNK_SIZE):
                    yield collected.flush()
        yield collected.flush()


def _table(log: LogPartition, number: int) -> np.ndarray:
    """The BATCH rows of one section."""
    return batch_rows([dumped.batch for dumped in _batches(log, number, skip_records=True)])


class _BatchAccumulator:
    """Collects batches until there are enough for a chunk."""

    def __init__(self) -> None:
        self._batches: list[DumpedBatch] = []
        self._records = RecordAccumulator()
        self._faults: dict[int, tuple[int, int]] = {}

    @property
    def size(self) -> int:
        """Bytes of the records and of the BATCH rows."""
        return self._records.size + len(self._batches) * BATCH.itemsize

    def add(self, dumped: _Dumped) -> None:
        """Append a batch; the records of invalid batches are dropped."""
        if dumped.batch.status == BatchStatus.VALID:
            for offset, timestamp, key, value, fault in dumped.records:
                self._records.add(offset, timestamp, key, value, len(self._batches))
                if fault is not None:
                    self._faults[offset] = fault
        self._batches.append(dumped.batch)

    def flush(self) -> Chunk:
        """Return the chunk so far, and start again."""
        batches, (data, records), faults = batch_rows(self._batches), self._records.flush(), self._faults
        self._batches, self._faults = [], {}
        return Chunk(data, batches, records=records, faults=faults)


def dump_logs(
    files: Sequence[InputPath], topics: Sequence[str] = (STATE_TOPIC,)
) -> tuple[list[LogPartition], set[str]]:
    """The log partitions in dumped texts, and the names of other topics in them.

    Args:
        files: texts, each with one or more segments.
        topics: topics to read; the first must occur. Segments without a topic belong to it.
    Raises:
        InputError: if a text cannot be read, or has no segment of the first topic.
    """
    by_log: dict[tuple[int, int, str], list[Segment]] = {}
    others = set[str]()
    for file in files:
        for dumped, begin, end in _sections(file):
            match = _SEGMENT.search(dumped)
            topic = match["topic"] if match else None
            if topic not in (None, *topics):
                others.add(topic)
                continue
            rank = topics.index(topic) if topic else 0
            partition = int(match["partition"]) if match and topic else None
            segment = Segment(str(file), int(match["base"]) if match else 0, end, begin=begin)
            identity = (rank, -1, str(file)) if partition is None else (rank, partition, "")
            by_log.setdefault(identity, []).append(segment)
    if all(rank for rank, _, _ in by_log):
        others |= {topics[rank] for rank, _, _ in by_log}
        found = f"found segments of {', '.join(sorted(others)[:3])}" if others else "no line begins with `Dumping `"
        raise InputError(f"{files[0]}: nothing of {topics[0]} is dumped here ({found})")
    logs = []
    for (rank, partition, _), segments in sorted(by_log.items()):
        ordered = tuple(sorted(segments, key=lambda segment: segment.base_offset))
        number = partition if partition >= 0 else None
        logs.append(LogPartition(topics[rank], number, ordered, ordered[0].base_offset, source=DumpText()))
    return logs, others


def is_dump_text(head: bytes) -> bool:
    """Whether a file starts like the output of the tool, perhaps after a message of the JVM."""
    return _SECTION.search(head) is not None and (_BATCH_LINE in head or b"Log starting offset: " in head)


def _sections(file: InputPath) -> Iterator[tuple[str, int, int]]:
    """The segments in a text: name, first byte after the name, end."""
    name, begin, end = "", 0, 0
    for at, line in _lines(Segment(str(file), 0, sys.maxsize)):
        if line.startswith(_SECTION_START):
            if name:
                yield name, begin, at
            name, begin = line[len(_SECTION_START) :].decode("utf-8", "replace").rstrip(), at + len(line)
        end = at + len(line)
    if name:
        yield name, begin, end


def _lines(segment: Segment) -> Iterator[tuple[int, bytes]]:
    """The lines of a section of a text with their first byte."""
    try:
        with to_path(segment.path).open("rb") as file:
            at = segment.begin
            file.seek(at)
            while at < segment.size:
                line = file.readline(min(segment.size - at, _MAX_LINE))
                if not line:
                    return
                yield at, line
                at += len(line)
    except OSError as error:
        raise read_error(segment.path, error) from None


def _batches(log: LogPartition, number: int, *, skip_records: bool = False) -> Iterator[_Dumped]:
    """The batches of one section, and a row for invalid bytes that the tool reports.

    Args:
        log: the log partition.
        number: number of the section.
        skip_records: read batch lines only.
    """
    segment, current, end, is_read = log.segments[number], None, 0, False
    read = encode_group_record if log.topic == GROUP_TOPIC else state_record
    for at, line in _lines(segment):
        try:
            if line.startswith(_BATCH_LINE):
                if current is not None:
                    yield _complete(current, segment.path)
                current = _Dumped(batch := parse_batch_line(_text(line), number), at)
                end, is_read = batch.file_position + batch.size, batch.holds_data and not skip_records
            elif line.startswith(_RECORD_LINE):
                if current is None:
                    raise TextRecordError("a record before any batch")
                current.lines += 1
                if is_read:
                    record = parse_record_line(_text(line), read)
                    if not current.batch.base_offset <= record.offset <= current.batch.last_offset:
                        raise TextRecordError(f"offset {record.offset} is not in the batch before it")
                    current.records.append(record)
            elif line.startswith(_EXCEPTION) and current is not None and not current.is_complete:
                # The tool failed: keep the records it printed, and one without key if that was the reason.
                if failed := _UNDECODED.search(_text(line)):
                    current.records.append(DumpedRecord(int(failed[1]), -1))
                yield current
                yield _truncated(end, 0, number)
                current = None
            elif invalid := _INVALID_END.match(_text(line)) if line.startswith(b"Found ") else None:
                if current is not None:
                    yield _complete(current, segment.path)
                current = None
                yield _truncated(end, int(invalid[1]), number)
            elif line.strip() and not line.startswith(_IGNORED_LINES):
                raise TextRecordError("not a line of kafka-dump-log")
        except TextRecordError as error:
            raise InputError(f"{segment.path}: byte {at}: {error}") from None
    if current is not None:
        yield _complete(current, segment.path)


def _complete(current: _Dumped, path: str) -> _Dumped:
    """A batch that ends here.

    Raises:
        InputError: if record lines are missing.
    """
    expected, found = current.batch.count, current.lines
    if current.batch.status == BatchStatus.VALID and not current.is_complete:
        raise InputError(f"{path}: byte {current.at}: a batch of {expected} records, {found} in the text; dump again")
    return current


def _truncated(position: int, size: int, number: int) -> _Dumped:
    """The row for invalid bytes at the end of a segment."""
    return _Dumped(DumpedBatch(number, BatchStatus.TRUNCATED, position, size), position)


def _text(line: bytes) -> str:
    try:
        return line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        raise TextRecordError(f"not UTF-8 {error.start} bytes into the line") from None
