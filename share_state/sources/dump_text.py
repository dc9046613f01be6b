"""The lines that kafka-dump-log prints with --share-group-state-decoder or --offsets-decoder, one by one.

Reads what kafka-dump-log prints of segments with the decoder of their topic, batch by batch.
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
from share_state.kafka.record_batches import BATCH, CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, Chunk, Trust
from share_state.kafka.state_records import Fault
from share_state.kafka.text_records import (
    MOST_TEXT,
    Gathered,
    StateTextError,
    key_bytes,
    record_bytes,
    record_kind,
    value_bytes,
)
from share_state.sources.discovery import GROUP_TOPIC, STATE_TOPIC, LogPartition, Segment
from share_state.sources.object_stores import Place, place, unreadable
from share_state.sources.replicas import one_of_each_offset
from share_state.sources.segments import RepeatedOffsetsError

_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_APPENDED = "LogAppendTime:"
_STAMPS = (_APPENDED, "CreateTime:", "NoTimestampType:")
_NUMBERS = {"base_offset": "baseOffset:", "last_offset": "lastOffset:", "count": "count:", "producer_id": "producerId:",
            "leader_epoch": "partitionLeaderEpoch:", "file_position": "position:", "size": "size:", "magic": "magic:",
            "crc": "crc:"}  # fmt: skip
_FLAGS = ("isTransactional:", "isControl:", "isvalid:")
_FITTING = struct.Struct("<" + "".join(BATCH[name].char for name in (*_NUMBERS, "max_timestamp")).replace("l", "q"))
_STAMP = struct.Struct("<q")
"""Both refuse a number that its field cannot hold."""
_KEY_FOLLOWS, _PAYLOAD, _DELETE = "] key: ", " payload: ", "<DELETE>"
_UNKNOWN_TYPE = re.compile(r"Unknown record type (-?\d+) at offset \d+, skipping\.")
_ERROR = re.compile(r"Error at offset \d+, skipping\. ?(.*)", re.DOTALL)
_UNKNOWN_VERSION = re.compile(r"unknown record version (-?\d+) for -?\d+ type")
_INT16 = range(-(2**15), 2**15)

ReadRecord = Callable[[Any, Any], tuple[bytes, bytes | None]]
"""Key and value of a record as they are printed -> their bytes; raises StateTextError."""

_DECODE = json.JSONDecoder().raw_decode


class DumpedRecord(NamedTuple):
    """A record line.

    Attributes:
        offset, timestamp: of the record; the stamp in ms.
        key: its bytes; none where the tool could not read the key or the value.
        value: its bytes, None for null.
        fault: (Fault, value version) where the tool says what it could not read.
    """

    offset: int
    timestamp: int
    key: bytes = b""
    value: bytes | None = None
    fault: tuple[int, int] | None = None


@dataclass(slots=True)
class DumpedBatch:
    """A batch line, its fields called as in BATCH; its place in bytes is that in the dumped segment."""

    segment: int
    trust: int
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
        """Whether its records count, as it can be trusted and is no control batch."""
        return self.trust == Trust.WHOLE and not self.attributes & CONTROL


def batch_rows(batches: Sequence[DumpedBatch]) -> np.ndarray:
    """BATCH rows of batch lines."""
    rows = np.zeros(len(batches), BATCH)
    for column in fields(DumpedBatch):
        rows[column.name] = [getattr(batch, column.name) for batch in batches]
    rows["base_timestamp"] = rows["max_timestamp"]
    return rows


def dumped_batch(line: str, segment: int) -> DumpedBatch:
    """What a header line says.

    Args:
        line: begins with `baseOffset: `.
        segment: number of the file.
    Raises:
        StateTextError: if something is missing or no number that its field can hold.
    Source: Kafka DumpLogSegments.printBatchLevel.
    """
    words = line.split(" ")
    told = dict(zip(words[::2], words[1::2], strict=False))
    stamp = next((name for name in _STAMPS if name in told), _STAMPS[0])
    try:
        numbers = {ours: int(told[name]) for ours, name in _NUMBERS.items()} | {"max_timestamp": int(told[stamp])}
        _FITTING.pack(*numbers.values())
        codec = _CODECS[told["compresscodec:"].lower()]
        transactional, control, is_valid = (told[name] == "true" for name in _FLAGS)
    except (KeyError, ValueError, struct.error) as error:
        what = str(error.args[0]).removesuffix(":") if error.args else "field"
        raise StateTextError(f"a batch line without a right {what}") from None
    appended = stamp == _APPENDED
    return DumpedBatch(
        segment=segment,
        trust=(Trust.WHOLE if is_valid else Trust.CRC_MISMATCH) if numbers["magic"] == 2 else Trust.MAGIC_UNSUPPORTED,
        attributes=codec | transactional * TRANSACTIONAL | control * CONTROL | appended * LOG_APPEND_TIME,
        **numbers,
    )


def dumped_record(line: str, read: ReadRecord) -> DumpedRecord:
    """What a record line of a data batch says.

    A group id may hold ` payload: `, so the key is read as JSON before the value is looked for.

    Args:
        line: begins with `| offset: `.
        read: makes bytes of the printed key and payload, which is null for a tombstone.
    Raises:
        StateTextError: if something is missing or cannot be.
    Source: Kafka DumpLogSegments.dumpLog, CoordinatorRecordMessageParser.
    """
    front, key_follows, rest = line.partition(_KEY_FOLLOWS)
    words = front.split(" ")
    try:
        told = dict(zip(words[1:9:2], (int(word) for word in words[2:10:2]), strict=True))
        offset = told["offset:"]
        stamp = next(told[name] for name in _STAMPS if name in told)
        _STAMP.pack(stamp)
    except (KeyError, ValueError, StopIteration, struct.error):
        raise StateTextError("a record line without offset, time or sizes") from None
    if not key_follows:
        raise StateTextError("a record line without key; dump with --share-group-state-decoder or --offsets-decoder")
    if not rest.startswith("{"):
        return _told_unreadable(rest, offset, stamp)
    key, end = _json(rest, 0)
    if not rest.startswith(_PAYLOAD, end):
        raise StateTextError("no payload after the key")
    at = end + len(_PAYLOAD)
    if rest[at:] == _DELETE:
        return DumpedRecord(offset, stamp, *read(key, None))
    value, end = _json(rest, at)
    if end != len(rest) or not isinstance(value, dict):
        raise StateTextError("the payload is no JSON object")
    return DumpedRecord(offset, stamp, *read(key, value))


def state_record(key: Any, value: Any) -> tuple[bytes, bytes | None]:
    """The bytes of a printed record of the state topic: a `ReadRecord`."""
    kind = record_kind(key)
    written = key_bytes(kind, key.get("data"))
    if value is None:
        return written, None
    # The tool of 4.0 calls the version of a value its type, and reads its own layout only.
    early = "version" not in value
    if str(value.get("type" if early else "version")) != "0":
        raise StateTextError("the payload is not of version 0")
    return written, value_bytes(kind, value.get("data"), early=early)


def _told_unreadable(said: str, offset: int, stamp: int) -> DumpedRecord:
    """A record that the tool could not read: a newer type keeps its number, of others only the flaw is known."""
    if (unknown := _UNKNOWN_TYPE.match(said)) and int(unknown[1]) in _INT16:
        return DumpedRecord(offset, stamp, int(unknown[1]).to_bytes(2, "big", signed=True))
    failed = _ERROR.match(said)
    if failed is None:
        raise StateTextError("the key is neither JSON nor one of the tool's messages")
    if version := _UNKNOWN_VERSION.search(failed[1]):
        return DumpedRecord(offset, stamp, fault=(Fault.VALUE_VERSION, int(version[1])))
    of_key = "key's buffer" in failed[1]
    return DumpedRecord(offset, stamp, fault=(Fault.KEY_MALFORMED if of_key else Fault.VALUE_MALFORMED, 0))


def _json(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODE(text, at)
    except (ValueError, RecursionError):
        raise StateTextError("not JSON; the line may be cut") from None


_BATCH_LINE, _RECORD_LINE, _DUMPING = b"baseOffset: ", b"| ", b"Dumping "
_LONGEST = 512 << 20
_SECTION = re.compile(rb"^Dumping ", re.MULTILINE)
_SEGMENT = re.compile(r"(?:(?P<topic>[^/\\]+)-(?P<partition>\d+)[/\\])?(?P<base>\d{20})\.log")
_TORN = re.compile(r"Found (\d{1,18}) invalid bytes at the end of ")
_KEYLESS = re.compile(r"Failed to decode message at offset (\d+) ")
_FAILED = b"Exception in thread "
_SAID = (b"Log starting offset:", b"Found ", b"Index offset:", b"Mismatches in", b"Non-consecutive offsets in", b"  ",
         b"\tat ", b"\t... ", b"Caused by: ", _FAILED)  # fmt: skip
"""How the lines begin that the tool prints beside batches and records; a stack trace may have got among them."""


@dataclass(slots=True)
class _Dumped:
    """A batch and its records."""

    batch: DumpedBatch
    at: int
    lines: int = 0
    records: list[DumpedRecord] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether as many record lines came as the batch line says."""
        return self.lines == self.batch.count


@dataclass(frozen=True, slots=True)
class DumpText:
    """A log partition in dumped text, as a Source; each of its segments is the stretch of a text that dumps one."""

    form: str = "dump-log"
    has_offsets: bool = True
    has_times: bool = True
    has_sizes: bool = True

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        """The chunks of the log, in offset order where the segments do not repeat each other or `merge` is on.

        Raises:
            RepeatedOffsetsError: if `merge` is off and needed.
            InputError: if a line is not what the tool prints, or the text ends inside a batch.
        """
        chosen = None
        if merge:
            table = np.concatenate([_table(log, number) for number in range(len(log.segments))])
            chosen = one_of_each_offset(table)
            if len(chosen) < len(table):
                yield Chunk(np.zeros(0, np.uint8), np.zeros(0, BATCH), repeated=len(table) - len(chosen))
        reached, gathered = -1, _Batches()
        for number in range(len(log.segments)):
            here = chosen[chosen["segment"] == number] if chosen is not None else np.zeros(0, BATCH)
            trusts = dict(zip(here["file_position"].tolist(), here["trust"].tolist(), strict=True))
            for dumped in _batches(log, number):
                batch = dumped.batch
                if merge:
                    if batch.file_position not in trusts:
                        continue
                    batch.trust = trusts[batch.file_position]
                elif batch.trust == Trust.WHOLE:
                    if batch.base_offset <= reached:
                        raise RepeatedOffsetsError
                    reached = batch.last_offset
                gathered.add(dumped)
                if gathered.size >= min(chunk, MOST_TEXT):
                    yield gathered.taken()
        yield gathered.taken()


def _table(log: LogPartition, number: int) -> np.ndarray:
    """The BATCH rows of one stretch."""
    return batch_rows([dumped.batch for dumped in _batches(log, number, bare=True)])


class _Batches:
    """Batches one after the other, until there are enough for a chunk."""

    def __init__(self) -> None:
        self._batches: list[DumpedBatch] = []
        self._records = Gathered()
        self._faults: dict[int, tuple[int, int]] = {}

    @property
    def size(self) -> int:
        """Bytes of their records, and of the batches' own rows."""
        return self._records.size + len(self._batches) * BATCH.itemsize

    def add(self, dumped: _Dumped) -> None:
        """One more; of one that cannot be trusted only its row."""
        if dumped.batch.trust == Trust.WHOLE:
            for offset, timestamp, key, value, fault in dumped.records:
                self._records.add(offset, timestamp, key, value, len(self._batches))
                if fault is not None:
                    self._faults[offset] = fault
        self._batches.append(dumped.batch)

    def taken(self) -> Chunk:
        """The chunk so far; begins anew."""
        batches, (data, records), faults = batch_rows(self._batches), self._records.taken(), self._faults
        self._batches, self._faults = [], {}
        return Chunk(data, batches, records=records, faults=faults)


def dump_logs(files: Sequence[Place], topics: Sequence[str] = (STATE_TOPIC,)) -> tuple[list[LogPartition], set[str]]:
    """The log partitions of some topics that texts dump, and the other topics that are passed over.

    Args:
        files: texts, each of one or several segments.
        topics: those that are wanted, first the one that must be there; what names no topic is of it.
    Raises:
        InputError: if a text cannot be read, or none dumps a segment of the first topic.
    """
    by_log: dict[tuple[int, int, str], list[Segment]] = {}
    others = set[str]()
    for file in files:
        for dumped, begin, end in _sections(file):
            named = _SEGMENT.search(dumped)
            topic = named["topic"] if named else None
            if topic not in (None, *topics):
                others.add(topic)
                continue
            wanted = topics.index(topic) if topic else 0
            partition = int(named["partition"]) if named and topic else None
            segment = Segment(str(file), int(named["base"]) if named else 0, end, begin=begin)
            identity = (wanted, -1, str(file)) if partition is None else (wanted, partition, "")
            by_log.setdefault(identity, []).append(segment)
    if all(wanted for wanted, _, _ in by_log):
        others |= {topics[wanted] for wanted, _, _ in by_log}
        told = f"found segments of {', '.join(sorted(others)[:3])}" if others else "no line begins with `Dumping `"
        raise InputError(f"{files[0]}: nothing of {topics[0]} is dumped here ({told})")
    logs = []
    for (wanted, partition, _), segments in sorted(by_log.items()):
        ordered = tuple(sorted(segments, key=lambda segment: segment.base_offset))
        number = partition if partition >= 0 else None
        logs.append(LogPartition(topics[wanted], number, ordered, ordered[0].base_offset, source=DumpText()))
    return logs, others


def is_dump_text(head: bytes) -> bool:
    """Whether a file begins as the tool's output does, be it after a word of the Java machine."""
    return _SECTION.search(head) is not None and (_BATCH_LINE in head or b"Log starting offset: " in head)


def _sections(file: Place) -> Iterator[tuple[str, int, int]]:
    """The segments that a text dumps: name, first byte behind it, end."""
    name, begin, end = "", 0, 0
    for at, line in _lines(Segment(str(file), 0, sys.maxsize)):
        if line.startswith(_DUMPING):
            if name:
                yield name, begin, at
            name, begin = line[len(_DUMPING) :].decode("utf-8", "replace").rstrip(), at + len(line)
        end = at + len(line)
    if name:
        yield name, begin, end


def _lines(segment: Segment) -> Iterator[tuple[int, bytes]]:
    """The lines of a stretch of a text with the byte at which each begins."""
    try:
        with place(segment.path).open("rb") as file:
            at = segment.begin
            file.seek(at)
            while at < segment.size:
                line = file.readline(min(segment.size - at, _LONGEST))
                if not line:
                    return
                yield at, line
                at += len(line)
    except OSError as error:
        raise unreadable(segment.path, error) from None


def _batches(log: LogPartition, number: int, *, bare: bool = False) -> Iterator[_Dumped]:
    """The batches that one stretch dumps, and what the tool says of bytes that are no batch.

    Args:
        log: the log partition.
        number: of the stretch.
        bare: leave the records unread.
    """
    segment, held, end, is_read = log.segments[number], None, 0, False
    read = record_bytes if log.topic == GROUP_TOPIC else state_record
    for at, line in _lines(segment):
        try:
            if line.startswith(_BATCH_LINE):
                if held is not None:
                    yield _closed(held, segment.path)
                held = _Dumped(batch := dumped_batch(_text(line), number), at)
                end, is_read = batch.file_position + batch.size, batch.holds_data and not bare
            elif line.startswith(_RECORD_LINE):
                if held is None:
                    raise StateTextError("a record before any batch")
                held.lines += 1
                if is_read:
                    record = dumped_record(_text(line), read)
                    if not held.batch.base_offset <= record.offset <= held.batch.last_offset:
                        raise StateTextError(f"offset {record.offset} is not of the batch before it")
                    held.records.append(record)
            elif line.startswith(_FAILED) and held is not None and not held.is_whole:
                # The tool stopped: of this batch counts what it printed, and a record without key if that was why.
                if keyless := _KEYLESS.search(_text(line)):
                    held.records.append(DumpedRecord(int(keyless[1]), -1))
                yield held
                yield _torn(end, 0, number)
                held = None
            elif torn := _TORN.match(_text(line)) if line.startswith(b"Found ") else None:
                if held is not None:
                    yield _closed(held, segment.path)
                held = None
                yield _torn(end, int(torn[1]), number)
            elif line.strip() and not line.startswith(_SAID):
                raise StateTextError("not a line of kafka-dump-log")
        except StateTextError as error:
            raise InputError(f"{segment.path}: byte {at}: {error}") from None
    if held is not None:
        yield _closed(held, segment.path)


def _closed(held: _Dumped, path: str) -> _Dumped:
    """A batch behind which another line came, or the end of the text.

    Raises:
        InputError: if it lacks records.
    """
    told, found = held.batch.count, held.lines
    if held.batch.trust == Trust.WHOLE and not held.is_whole:
        raise InputError(f"{path}: byte {held.at}: a batch of {told} records, {found} are in the text; dump again")
    return held


def _torn(position: int, size: int, number: int) -> _Dumped:
    """What the tool says of the end of a segment."""
    return _Dumped(DumpedBatch(number, Trust.TORN, position, size), position)


def _text(line: bytes) -> str:
    try:
        return line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        raise StateTextError(f"not UTF-8 {error.start} bytes into the line") from None
