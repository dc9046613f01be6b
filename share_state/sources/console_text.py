"""Reads what kafka-console-consumer prints with the formatters for share groups: JSON objects without a separator."""

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, NoReturn

import numpy as np

from share_state.errors import InputError
from share_state.kafka.record_batches import BATCH, Chunk, Trust
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
from share_state.sources.object_stores import Place, place, size_of, unreadable
from share_state.sources.tables import NO_TIME

_STEP = 1 << 20
_LONGEST = 256 << 20
"""Characters of one object; the largest value that Kafka 4.4 reads prints to about 80 million."""

_LONGEST_NAME = 1 << 18
_CUT_TOKEN = 8
_SPACE = re.compile(r"\s*")
_LAST_WORD = re.compile(r"Processed a total of \d+ messages\s*")
_STATED_KEYS = re.compile(rb'\s*\{\s*"key"\s*:\s*\{\s*"(type|version)"\s*:')


@dataclass(frozen=True, slots=True)
class ConsoleJson:
    """The records of one or several partitions of a topic in the order of the stream, as a Source."""

    form: str = "console-json"
    has_offsets: bool = False
    has_times: bool = False
    has_sizes: bool = False

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        """The chunks of the stream; the records are numbered as they come.

        Raises:
            InputError: if a text holds something else than records, or ends inside one.
        """
        gathered, first = Gathered(), 0
        for number, segment in enumerate(log.segments):
            for key, value in _records(segment.path, log.topic):
                gathered.add(first + len(gathered), NO_TIME, key, value, 0)
                if gathered.size >= min(chunk, MOST_TEXT):
                    part = _chunk(gathered, first, number)
                    first = int(part.batches[0]["last_offset"]) + 1
                    yield part
        if len(gathered) or not first:
            yield _chunk(gathered, first, len(log.segments) - 1)


def _chunk(gathered: Gathered, first: int, file: int) -> Chunk:
    """What was gathered, as if it were one batch."""
    data, records = gathered.taken()
    batch = np.zeros(1, BATCH)
    batch["base_offset"], batch["last_offset"], batch["count"] = first, first + len(records) - 1, len(records)
    batch["magic"], batch["trust"], batch["segment"], batch["max_timestamp"] = 2, Trust.WHOLE, file, NO_TIME
    return Chunk(data, batch, records=records)


def console_log(files: Sequence[Place], topic: str = STATE_TOPIC) -> LogPartition:
    """Texts of the console consumer as one stream, in the order in which they are given.

    Args:
        files: texts.
        topic: whose records they are.
    Raises:
        InputError: if one cannot be read.
    """
    try:
        segments = tuple(Segment(str(file), 0, size_of(file)) for file in files)
    except OSError as error:
        raise unreadable(str(error.filename), error) from None
    return LogPartition(topic, None, segments, 0, source=ConsoleJson())


def is_console_json(head: bytes) -> bool:
    """Whether a file begins as the formatter's output does."""
    return _STATED_KEYS.match(head) is not None


def _records(path: str, topic: str) -> Iterator[tuple[bytes, bytes | None]]:
    """The key and the value of each record of a text."""
    read = record_bytes if topic == GROUP_TOPIC else _state_record
    try:
        with place(path).open("rb") as file:
            for position, printed in _objects(file, path):
                try:
                    if not printed.keys() >= {"key", "value"}:
                        raise StateTextError("no key or no value")
                    yield read(printed["key"], printed["value"])
                except StateTextError as error:
                    raise InputError(f"{path}: byte {position}: not a record of {topic} ({error})") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _state_record(key: Any, value: Any) -> tuple[bytes, bytes | None]:
    kind = record_kind(key)
    written = key_bytes(kind, key.get("data"))
    if value is None:
        return written, None
    if not isinstance(value, dict) or value.get("version") != 0:
        raise StateTextError("the value is not of version 0")
    # The tool of 4.0 says `version` where later ones say `type`, and reads its own layout only.
    return written, value_bytes(kind, value.get("data"), early="version" in key)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _objects(file: IO[bytes], path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of a stream, each with the byte at which it begins; memory holds one object and a step."""
    read, decode = (
        json.JSONDecoder(parse_constant=_no_number).raw_decode,
        codecs.getincrementaldecoder("utf-8")().decode,
    )
    text, at, begun, ended = "", 0, 0, False

    def wrong(why: str) -> InputError:
        return InputError(f"{path}: byte {begun}: {why}")

    while True:
        behind = _after_space(text, at)
        at, begun = behind, begun + behind - at
        if at < len(text):
            if text[at] != "{":
                if ended and _LAST_WORD.fullmatch(text, at):
                    return
                if text[at] != "P" or len(text) - at > _STEP:
                    raise wrong("not a JSON object; give what the formatter prints, and nothing else")
            else:
                try:
                    printed, end = read(text, at)
                    yield begun, printed
                    at, begun = end, begun + len(text[at:end].encode())
                    continue
                except json.JSONDecodeError as error:
                    if not _is_cut(error, text):
                        raise wrong(f"not JSON ({error.msg})") from None
                    if ended or len(text) - at > _LONGEST:
                        raise wrong("the text ends inside a record; print it again, or cut this one off") from None
                except (ValueError, RecursionError) as error:
                    raise wrong(f"not JSON ({error})") from None
        if ended:
            return
        # A cut object is read again from its start, so each look must be at twice as much.
        text, at = text[at:], 0
        more = file.read(max(_STEP, len(text)))
        ended = not more
        try:
            text += decode(more, final=ended)
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: byte {file.tell() - len(more) + error.start}: not UTF-8") from None


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _is_cut(error: json.JSONDecodeError, text: str) -> bool:
    """Whether the text may only have ended too early."""
    left = len(text) - error.pos
    return left <= _CUT_TOKEN or (error.msg.startswith("Unterminated string") and left <= _LONGEST_NAME)
