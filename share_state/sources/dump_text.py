"""Reads the output of kafka-dump-log with --share-group-state-decoder or --offsets-decoder, batch by batch."""

import json
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from share_state.errors import InputError
from share_state.kafka.primitives import LARGEST_INT64, parse_digits
from share_state.kafka.record_batches import (
    BATCH,
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchStatus,
    Chunk,
)
from share_state.kafka.state_records import Fault
from share_state.kafka.text_records import (
    TEXT_CHUNK_SIZE,
    RecordAccumulator,
    TextRecordError,
    encode_group_record,
    encode_state_record,
)
from share_state.kafka.transactions import MARKER, ControlType, marker_key, marker_row
from share_state.sources.log_partition import (
    GROUP_TOPIC,
    LARGEST_PARTITION,
    STATE_TOPIC,
    LogPartition,
    Segment,
)
from share_state.sources.segments import RepeatedOffsetsError, merge_replicas
from share_state.stores.object_stores import read_errors
from share_state.stores.paths import InputPath, to_path

_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_LOG_APPEND = "LogAppendTime:"
_TIMESTAMP_NAMES = (_LOG_APPEND, "CreateTime:", "NoTimestampType:")
_NUMBERS = {"base_offset": "baseOffset:", "last_offset": "lastOffset:", "count": "count:", "producer_id": "producerId:",
            "leader_epoch": "partitionLeaderEpoch:", "file_position": "position:", "size": "size:", "magic": "magic:",
            "crc": "crc:"}  # fmt: skip
"""Column of BATCH -> its label in a batch line."""

_FLAGS = ("isTransactional:", "isControl:", "isvalid:")
_INT64 = range(-(2**63), 2**63)
_KEY_START = "] key: "
_PAYLOAD = " payload: "
_DELETE = "<DELETE>"
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


BatchFields = dict[str, int]
"""The columns of a BATCH row, in its order."""

_NO_FIELDS: BatchFields = dict.fromkeys(BATCH.fields or (), 0) | {
    "base_offset": -1,
    "last_offset": -1,
    "magic": -1,
}


def _parse_batch_line(line: str, segment: int) -> BatchFields:
    """Parse a batch line; its position refers to the dumped segment.

    Source: Kafka DumpLogSegments.printBatchLevel.
    """
    words = line.split(" ")
    texts = dict(zip(words[::2], words[1::2], strict=False))
    timestamp = next((name for name in _TIMESTAMP_NAMES if name in texts), _TIMESTAMP_NAMES[0])
    try:
        batch = (
            _NO_FIELDS
            | {column: int(texts[name]) for column, name in _NUMBERS.items()}
            | {"segment": segment}
        )
        batch["base_timestamp"] = batch["max_timestamp"] = int(texts[timestamp])
        transactional, control, is_valid = (texts[name] == "true" for name in _FLAGS)
        attributes = (
            _CODECS[texts["compresscodec:"].lower()] | transactional * TRANSACTIONAL | control * CONTROL
        )
        batch["attributes"] = attributes | (timestamp == _LOG_APPEND) * LOG_APPEND_TIME
        np.array(tuple(batch.values()), BATCH)
    except (KeyError, ValueError, OverflowError) as error:
        raise TextRecordError(
            f"a batch line without a valid {str(error.args[0]).removesuffix(':')}"
        ) from None
    status = BatchStatus.VALID if is_valid else BatchStatus.CRC_MISMATCH
    batch["status"] = status if batch["magic"] == 2 else BatchStatus.MAGIC_UNSUPPORTED
    return batch


def batch_rows(batches: Iterable[BatchFields]) -> np.ndarray:
    """Convert the fields of batches to BATCH rows."""
    return np.array([tuple(batch.values()) for batch in batches], BATCH)


def _parse_record_line(line: str, read: ReadRecord) -> DumpedRecord:
    """Parse the line of a data record.

    Source: Kafka DumpLogSegments.dumpLog, CoordinatorRecordMessageParser.
    """
    front, key_start, rest = line.partition(_KEY_START)
    words = front.split(" ")
    try:
        numbers = dict(zip(words[1:9:2], (int(word) for word in words[2:10:2]), strict=True))
        offset = numbers["offset:"]
        timestamp = next(numbers[name] for name in _TIMESTAMP_NAMES if name in numbers)
        if timestamp not in _INT64:
            raise ValueError(timestamp)
    except (KeyError, ValueError, StopIteration):
        raise TextRecordError("a record line without offset, time or sizes") from None
    if not key_start:
        raise TextRecordError(
            "a record line without key; dump with --share-group-state-decoder or --offsets-decoder"
        )
    if not rest.startswith("{"):
        return _unreadable_record(rest, offset, timestamp)
    # A group id may contain ` payload: `, so the key is parsed before the payload is searched.
    key, end = _json(rest, 0)
    if not rest.startswith(_PAYLOAD, end):
        raise TextRecordError("no payload after the key")
    at = end + len(_PAYLOAD)
    if rest[at:] == _DELETE:
        return DumpedRecord(offset, timestamp, *read(key, None))
    value, end = _json(rest, at)
    if end != len(rest) or not isinstance(value, dict):
        raise TextRecordError("the payload is not a JSON object")
    return DumpedRecord(offset, timestamp, *read(key, value))


def _parse_control_line(line: str, producer_id: int) -> list[tuple[int, ...]]:
    """The MARKER row of a control record; none for those of KRaft, of which the tool prints the content.

    Source: Kafka DumpLogSegments.dumpLog.
    """
    match = _CONTROL_RECORD.search(line)
    if match is None:
        return []
    kind = int(match["type"]) if match["name"] is None else ControlType[match["name"]]
    try:
        words = line.split(" ")
        numbers = dict(zip(words[1:5:2], (int(word) for word in words[2:6:2]), strict=True))
        timestamp = next(numbers[name] for name in _TIMESTAMP_NAMES if name in numbers)
        return [marker_row(numbers["offset:"], timestamp, producer_id, marker_key(kind))]
    except (KeyError, ValueError, StopIteration, struct.error):
        raise TextRecordError("a control record without a valid offset, time or type") from None


def _is_control(batch: BatchFields) -> bool:
    return bool(batch["attributes"] & CONTROL)


def _unreadable_record(message: str, offset: int, timestamp: int) -> DumpedRecord:
    """A record that the tool could not read: keeps an unknown record type; for other records, the fault."""
    if (unknown := _UNKNOWN_TYPE.match(message)) and int(unknown[1]) in _INT16:
        return DumpedRecord(offset, timestamp, int(unknown[1]).to_bytes(2, "big", signed=True))
    failed = _ERROR.match(message)
    if failed is None:
        raise TextRecordError("the key is neither JSON nor one of the tool's messages")
    if version := _UNKNOWN_VERSION.search(failed[1]):
        return DumpedRecord(offset, timestamp, fault=(Fault.VALUE_VERSION, int(version[1])))
    of_key = "key's buffer" in failed[1]
    return DumpedRecord(
        offset, timestamp, fault=(Fault.KEY_MALFORMED if of_key else Fault.VALUE_MALFORMED, 0)
    )


def _json(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODE(text, at)
    except (ValueError, RecursionError):
        raise TextRecordError("not JSON; the line may be cut") from None


_BATCH_LINE = b"baseOffset: "
_RECORD_LINE = b"| "
_SECTION_START = b"Dumping "
_MAX_LINE = 512 << 20
_SECTION = re.compile(rb"^Dumping ", re.MULTILINE)
_SEGMENT = re.compile(r"(?:(?P<topic>[^/\\]{1,249})-(?P<partition>\d{1,10})[/\\])?(?P<base>\d{20})\.log")
"""Lengths are bounded, so that a search stays linear. Source: Kafka Topic.MAX_NAME_LENGTH."""
_INVALID_END = re.compile(r"Found (\d{1,18}) invalid bytes at the end of ")
_UNDECODED = re.compile(r"Failed to decode message at offset (\d+) ")
_CONTROL_RECORD = re.compile(
    r" (?:endTxnMarker: (?P<name>COMMIT|ABORT) |controlType: \w+\((?P<type>-?\d{1,5})\))"
)
_EXCEPTION = b"Exception in thread "
_IGNORED_LINES = (b"Log starting offset:", b"Found ", b"Index offset:", b"Mismatches in", b"Non-consecutive offsets in",
                  b"  ", b"\tat ", b"\t... ", b"Caused by: ", _EXCEPTION)  # fmt: skip
"""Prefixes of lines that are neither batches nor records, including stack traces."""


@dataclass(slots=True)
class _Dumped:
    """A batch in the text.

    Attributes:
        batch: its fields.
        at: position of the batch line in the text.
        lines: number of record lines.
        records: the parsed records.
        markers: MARKER rows, if it is a control batch.
    """

    batch: BatchFields
    at: int
    lines: int = 0
    records: list[DumpedRecord] = field(default_factory=list)
    markers: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether the text has as many record lines as the batch line states."""
        return self.lines == self.batch["count"]


@dataclass(frozen=True, slots=True)
class DumpText:
    """A log partition in dumped text; a `RecordSource`.

    Each `Segment` is the section of a text for one segment.
    """

    form: str = "dump-log"
    has_offsets: bool = True
    has_times: bool = True
    has_sizes: bool = True

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        """The chunks of the log, in offset order unless segments overlap and `merge` is off.

        Raises:
            RepeatedOffsetsError: if `merge` is off and needed.
            InputError: if a line is not output of the tool, or the text ends inside a batch.
        """
        statuses: dict[tuple[int, int], int] = {}
        if merge:
            sections = (_batches(log, number, skip_records=True) for number in range(len(log.segments)))
            table = batch_rows(dumped.batch for section in sections for dumped in section)
            selected = merge_replicas(table)
            identity = zip(selected["segment"].tolist(), selected["file_position"].tolist(), strict=True)
            statuses = dict(zip(identity, selected["status"].tolist(), strict=True))
            if len(selected) < len(table):
                yield Chunk(np.zeros(0, np.uint8), np.zeros(0, BATCH), repeated=len(table) - len(selected))
        last_offset, collected = -1, _BatchAccumulator()
        for number in range(len(log.segments)):
            for dumped in _batches(log, number):
                batch = dumped.batch
                if merge:
                    if (status := statuses.get((number, batch["file_position"]))) is None:
                        continue
                    batch["status"] = status
                elif batch["status"] == BatchStatus.VALID:
                    if batch["base_offset"] <= last_offset:
                        raise RepeatedOffsetsError
                    last_offset = batch["last_offset"]
                collected.add(dumped)
                if collected.size >= min(chunk, TEXT_CHUNK_SIZE):
                    yield collected.flush()
        yield collected.flush()


class _BatchAccumulator:
    """Collects batches into chunks."""

    def __init__(self) -> None:
        self._batches: list[BatchFields] = []
        self._records = RecordAccumulator()
        self._markers: list[tuple[int, ...]] = []
        self._faults: dict[int, tuple[int, int]] = {}

    @property
    def size(self) -> int:
        """Bytes of the records and of the BATCH rows."""
        return self._records.size + len(self._batches) * BATCH.itemsize

    def add(self, dumped: _Dumped) -> None:
        """Append a batch; the records of invalid batches are dropped."""
        if dumped.batch["status"] == BatchStatus.VALID:
            for offset, timestamp, key, value, fault in dumped.records:
                self._records.add(offset, timestamp, key, value, len(self._batches))
                if fault is not None:
                    self._faults[offset] = fault
            self._markers += dumped.markers
        self._batches.append(dumped.batch)

    def flush(self) -> Chunk:
        """Return the chunk so far, and start again."""
        batches = batch_rows(self._batches)
        data, records = self._records.flush()
        faults, markers = self._faults, np.array(self._markers, MARKER)
        self._batches, self._faults = [], {}
        self._markers = []
        return Chunk(data, batches, records=records, faults=faults, markers=markers)


def dump_logs(
    files: Sequence[InputPath], topics: Sequence[str] = (STATE_TOPIC,)
) -> tuple[list[LogPartition], set[str]]:
    """The log partitions in dumped texts, and the names of other topics in them.

    Args:
        files: texts, each with one or more segments.
        topics: topics to read; the first must occur. Segments without a topic belong to it.
    Raises:
        InputError: if a text cannot be read, names a partition or a segment that no broker has, or has no
            segment of the first topic.
    """
    by_log: dict[tuple[int, int, str], list[Segment]] = {}
    other_topics = set[str]()
    for file in files:
        for dumped, begin, end in _sections(file):
            match = _SEGMENT.search(dumped)
            topic = match["topic"] if match else None
            if topic not in (None, *topics):
                other_topics.add(topic)
                continue
            rank = topics.index(topic) if topic else 0
            partition = _number(file, match["partition"], LARGEST_PARTITION) if match and topic else None
            base = _number(file, match["base"], LARGEST_INT64) if match else 0
            segment = Segment(str(file), base, end, begin=begin)
            identity = (rank, -1, str(file)) if partition is None else (rank, partition, "")
            by_log.setdefault(identity, []).append(segment)
    if all(rank for rank, _, _ in by_log):
        other_topics |= {topics[rank] for rank, _, _ in by_log}
        reason = (
            f"found segments of {', '.join(sorted(other_topics)[:3])}"
            if other_topics
            else "no line begins with `Dumping `"
        )
        raise InputError(f"{files[0]}: no dump of {topics[0]} in this text ({reason})")
    logs = []
    for (rank, partition, _), segments in sorted(by_log.items()):
        ordered = tuple(sorted(segments, key=lambda segment: segment.base_offset))
        number = partition if partition >= 0 else None
        logs.append(LogPartition(topics[rank], number, ordered, ordered[0].base_offset, source=DumpText()))
    return logs, other_topics


def _number(file: InputPath, digits: str, largest: int) -> int:
    """A number in the name of a segment, after `Dumping`.

    Raises:
        InputError: if no broker has a partition or a segment of this number.
    """
    if (number := parse_digits(digits, largest)) is None:
        raise InputError(
            f"{file}: a line begins with `Dumping ` and names {digits}; Kafka's largest is {largest}"
        )
    return number


def is_dump_text(head: bytes) -> bool:
    """Whether the first bytes of a file look like output of the tool, perhaps after a message of the JVM."""
    return _SECTION.search(head) is not None and (_BATCH_LINE in head or b"Log starting offset: " in head)


def _sections(file: InputPath) -> Iterator[tuple[str, int, int]]:
    """The segments in a text: name, first byte after the name, end."""
    name = ""
    begin = 0
    end = 0
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
    with read_errors(segment.path), to_path(segment.path).open("rb") as file:
        at = segment.begin
        file.seek(at)
        while at < segment.size:
            line = file.readline(min(segment.size - at, _MAX_LINE))
            if not line:
                return
            yield at, line
            at += len(line)


def _batches(log: LogPartition, number: int, *, skip_records: bool = False) -> Iterator[_Dumped]:
    """The batches of one section, and a row for invalid bytes that the tool reports."""
    segment = log.segments[number]
    current = None
    end = 0
    is_read = False
    read = encode_group_record if log.topic == GROUP_TOPIC else encode_state_record
    for line_position, line in _lines(segment):
        try:
            if line.startswith(_BATCH_LINE):
                if current is not None:
                    yield _complete(current, segment.path)
                current = _Dumped(batch := _parse_batch_line(_text(line), number), line_position)
                end = batch["file_position"] + batch["size"]
                holds_data = batch["status"] == BatchStatus.VALID and not _is_control(batch)
                is_read = holds_data and not skip_records
            elif line.startswith(_RECORD_LINE):
                if current is None:
                    raise TextRecordError("a record before any batch")
                current.lines += 1
                if is_read:
                    record = _parse_record_line(_text(line), read)
                    if not current.batch["base_offset"] <= record.offset <= current.batch["last_offset"]:
                        raise TextRecordError(f"offset {record.offset} is not in the batch before it")
                    current.records.append(record)
                elif _is_control(current.batch):
                    current.markers += _parse_control_line(_text(line), current.batch["producer_id"])
            elif line.startswith(_EXCEPTION) and current is not None and not current.is_complete:
                # The tool failed: keep the records that it printed, and a keyless record if it failed to
                # decode one.
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
            raise InputError(f"{segment.path}: byte {line_position}: {error}") from None
    if current is not None:
        yield _complete(current, segment.path)


def _complete(current: _Dumped, path: str) -> _Dumped:
    """Return a batch after checking that the text has all its record lines."""
    if current.batch["status"] == BatchStatus.VALID and not current.is_complete:
        counts = f"a batch of {current.batch['count']} records, {current.lines} in the text"
        raise InputError(f"{path}: byte {current.at}: {counts}; dump again")
    return current


def _truncated(position: int, size: int, number: int) -> _Dumped:
    """The row for invalid bytes at the end of a segment."""
    fields = {"segment": number, "status": BatchStatus.TRUNCATED, "file_position": position, "size": size}
    return _Dumped(_NO_FIELDS | fields, position)


def _text(line: bytes) -> str:
    try:
        return line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        raise TextRecordError(f"not UTF-8 {error.start} bytes into the line") from None
