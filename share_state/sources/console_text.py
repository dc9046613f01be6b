"""Reads the output of kafka-console-consumer with the formatters for share groups: JSON objects without separators."""

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, NoReturn

import numpy as np

from share_state.errors import InputError
from share_state.kafka.record_batches import BATCH, BatchStatus, Chunk
from share_state.kafka.text_records import (
    TEXT_CHUNK_SIZE,
    RecordAccumulator,
    TextRecordError,
    encode_group_record,
    encode_state_record,
)
from share_state.sources.log_partition import GROUP_TOPIC, STATE_TOPIC, LogPartition, Segment
from share_state.sources.record_tables import NO_TIME
from share_state.stores.object_stores import read_errors
from share_state.stores.paths import InputPath, to_path

_READ_STEP = 1 << 20
_MAX_OBJECT = 256 << 20
"""Limit of one object in characters; the largest value that Kafka 4.4 reads is printed as about 80
million."""

_MAX_NAME = 1 << 18
_MAX_TOKEN = 8
_SPACE = re.compile(r"\s*")
_SUMMARY_LINE = re.compile(r"Processed a total of \d+ messages\s*")
_FIRST_KEY = re.compile(rb'\s*\{\s*"key"\s*:\s*\{\s*"(type|version)"\s*:')


@dataclass(frozen=True, slots=True)
class ConsoleJson:
    """The records of one or more partitions of a topic in the order of the output; a `RecordSource`."""

    form: str = "console-json"
    has_offsets: bool = False
    has_times: bool = False
    has_sizes: bool = False

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        """The chunks of the output; records are numbered in their order.

        Raises:
            InputError: if a text contains anything but records, or ends inside one.
        """
        records, first = RecordAccumulator(), 0
        for number, segment in enumerate(log.segments):
            for key, value in _records(segment.path, log.topic):
                records.add(first + len(records), NO_TIME, key, value, 0)
                if records.size >= min(chunk, TEXT_CHUNK_SIZE):
                    part = _chunk(records, first, number)
                    first = int(part.batches[0]["last_offset"]) + 1
                    yield part
        if len(records) or not first:
            yield _chunk(records, first, len(log.segments) - 1)


def _chunk(collected: RecordAccumulator, first: int, file: int) -> Chunk:
    """The collected records as one batch."""
    data, records = collected.flush()
    batch = np.zeros(1, BATCH)
    batch["base_offset"] = first
    batch["last_offset"] = first + len(records) - 1
    batch["count"] = len(records)
    batch["magic"] = 2
    batch["status"] = BatchStatus.VALID
    batch["segment"] = file
    batch["max_timestamp"] = NO_TIME
    return Chunk(data, batch, records=records)


def console_log(files: Sequence[InputPath], topic: str = STATE_TOPIC) -> LogPartition:
    """Files of console output as one log, in the given order.

    Raises:
        InputError: if a file cannot be read.
    """
    with read_errors(files[0]):
        segments = tuple(Segment(str(file), 0, file.stat().st_size) for file in files)
    return LogPartition(topic, None, segments, 0, source=ConsoleJson())


def is_console_json(head: bytes) -> bool:
    """Whether the first bytes of a file look like output of the formatter."""
    return _FIRST_KEY.match(head) is not None


def _records(path: str, topic: str) -> Iterator[tuple[bytes, bytes | None]]:
    """Key and value of each record of a text."""
    read = encode_group_record if topic == GROUP_TOPIC else encode_state_record
    with read_errors(path), to_path(path).open("rb") as file:
        for position, printed in _objects(file, path):
            try:
                if not printed.keys() >= {"key", "value"}:
                    raise TextRecordError("no key or no value")
                yield read(printed["key"], printed["value"])
            except TextRecordError as error:
                raise InputError(f"{path}: byte {position}: not a record of {topic} ({error})") from None


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _objects(file: IO[bytes], path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of a file with their first byte; holds one object and one read step in memory."""
    read = json.JSONDecoder(parse_constant=_reject_constant).raw_decode
    decode = codecs.getincrementaldecoder("utf-8")().decode
    text = ""
    text_position = 0
    position = 0
    is_end = False

    def input_error(why: str) -> InputError:
        return InputError(f"{path}: byte {position}: {why}")

    while True:
        after = space.end() if (space := _SPACE.match(text, text_position)) else text_position
        text_position, position = after, position + after - text_position
        if text_position < len(text):
            if text[text_position] != "{":
                if is_end and _SUMMARY_LINE.fullmatch(text, text_position):
                    return
                if text[text_position] != "P" or len(text) - text_position > _READ_STEP:
                    fix = "print it again with 2>/dev/null, and without -t of docker exec or kubectl"
                    raise input_error(
                        f"not a JSON object, but other output: give only that of the formatter; {fix}"
                    )
            else:
                try:
                    printed, end = read(text, text_position)
                    yield position, printed
                    text_position, position = end, position + len(text[text_position:end].encode())
                    continue
                except json.JSONDecodeError as error:
                    if not _is_incomplete(error, text):
                        raise input_error(f"not JSON ({error.msg})") from None
                    if is_end or len(text) - text_position > _MAX_OBJECT:
                        raise input_error(
                            "the text ends inside a record; print it again, or remove the partial record"
                        ) from None
                except (ValueError, RecursionError) as error:
                    raise input_error(f"not JSON ({error})") from None
        if is_end:
            return
        # An incomplete object is parsed again from its start, so read twice as much each time.
        text, text_position = text[text_position:], 0
        more = file.read(max(_READ_STEP, len(text)))
        is_end = not more
        try:
            text += decode(more, final=is_end)
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: byte {file.tell() - len(more) + error.start}: not UTF-8") from None


def _is_incomplete(error: json.JSONDecodeError, text: str) -> bool:
    """Whether the error may be due to the end of the text."""
    left = len(text) - error.pos
    return left <= _MAX_TOKEN or (error.msg.startswith("Unterminated string") and left <= _MAX_NAME)
