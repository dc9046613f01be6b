"""Reads what kafka-dump-log prints of segments with the decoder of their topic, batch by batch."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from share_state.errors import InputError
from share_state.wire.chunk import Chunk
from share_state.wire.copies import one_of_each_offset
from share_state.wire.dump_lines import (
    DumpedBatch,
    DumpedRecord,
    batch_rows,
    dumped_batch,
    dumped_record,
    state_record,
)
from share_state.wire.framing import BATCH, Trust
from share_state.wire.group_logs import GROUP_TOPIC
from share_state.wire.group_text import record_bytes
from share_state.wire.log import RepeatedOffsetsError
from share_state.wire.log_folder import STATE_TOPIC, LogPartition, Segment
from share_state.wire.places import Place, place, unreadable
from share_state.wire.state_text import MOST_TEXT, Gathered, StateTextError

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
