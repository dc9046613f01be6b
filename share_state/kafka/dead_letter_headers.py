"""Decodes dead-letter records: their headers name the source record. Keys and values are never read."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.jit.compile import kernel
from share_state.kafka.buffers import range_rows
from share_state.kafka.primitives import byte_at, varint
from share_state.kafka.share_partition_keys import binary_texts, utf8_texts

HEADERS = ("topic", "partition", "offset", "group", "delivery.count", "message")
"""Names of the headers without the prefix `__dlq.errors.`. Source: KIP-1191; Kafka ShareGroupDLQRecord."""

HEADER_PREFIX = "__dlq.errors."
_NUMBER = r"^\d{1,18}$"

DEAD_LETTERS = pa.schema(
    [
        ("group_id", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("delivery_count", pa.int16()),
        ("reason", pa.string()),
        ("dead_letter_topic", pa.string()),
        ("dead_letter_partition", pa.int32()),
        ("dead_letter_offset", pa.int64()),
        ("timestamp", pa.int64()),
    ]
)
"""Columns of decoded dead letters; `topic` is the source's name, or its id if the broker did not know the
name."""


def header_columns(
    data: np.ndarray, batches: np.ndarray, records: np.ndarray, *, first: bool = False
) -> list[pa.Array]:
    """The values of HEADERS in each record, binary; null if absent.

    A dead letter of a dead letter may have the headers of both. A broker writes the topic first, so each header
    `topic` begins a set.

    Args:
        data: uint8 bytes of a chunk.
        batches: its BATCH rows.
        records: RECORD rows located in it.
        first: take the first set instead of the last.
    Source: Kafka DefaultRecord.readFrom.
    """
    names = [f"{HEADER_PREFIX}{name}".encode() for name in HEADERS]
    ends = np.cumsum([0, *map(len, names)])
    positions = np.zeros((len(HEADERS), len(records)), np.int64)
    sizes = np.full(positions.shape, -1, np.int64)
    _locate_headers(
        data, batches, records, np.frombuffer(b"".join(names), np.uint8), ends, first, positions, sizes
    )
    return [_spans_to_column(data, *spans) for spans in zip(positions, sizes, strict=True)]


@kernel
def _locate_headers(data, batches, records, names, name_ends, first, positions, sizes):
    for number in range(len(records)):
        record = records[number]
        is_taken = True
        end = np.int64(batches[record.batch].body_end)
        count, position = varint(data, np.int64(record.value_at) + max(np.int64(record.value_size), 0), end)
        for _ in range(count):
            size, position = varint(data, position, end)
            if position < 0 or size < 0 or size > end - position:
                break
            begin = position
            value_size, position = varint(data, begin + size, end)
            if position < 0 or value_size > end - position:
                break
            for name in range(len(name_ends) - 1):
                if _is_name(data, begin, size, names, name_ends[name], name_ends[name + 1]):
                    if name == 0 and sizes[0, number] >= 0:
                        is_taken = not first
                        if is_taken:
                            sizes[:, number] = -1
                    if is_taken:
                        positions[name, number] = position
                        sizes[name, number] = value_size
            position += max(value_size, 0)


@kernel
def _is_name(data, at, size, names, begin, end):
    if size != end - begin:
        return False
    for byte in range(size):
        if byte_at(data, at + byte) != names[begin + byte]:
            return False
    return True


def _spans_to_column(data: np.ndarray, at: np.ndarray, sizes: np.ndarray) -> pa.Array:
    """A binary column of the bytes at the given positions; null where the size is -1."""
    lengths = np.maximum(sizes, 0)
    ends = np.concatenate(([0], np.cumsum(lengths)))
    return pc.if_else(pa.array(sizes >= 0), binary_texts(ends, data[range_rows(at, lengths)]), None)


def dead_letters(
    headers: Sequence[pa.Array], topic: pa.Array, partition: pa.Array, offset: pa.Array, timestamp: pa.Array
) -> tuple[pa.Table, int]:
    """The dead letters among the records of a topic.

    Args:
        headers: one binary column per name of HEADERS.
        topic, partition, offset: position of each record in the dead-letter topics.
        timestamp: ms.
    Returns:
        Columns of DEAD_LETTERS, and the number of records that are not dead letters: headers are missing or
        are not numbers.
    """
    valid = pa.array(np.ones(len(offset), bool))
    texts = dict[str, pa.Array]()
    for name, column in zip(HEADERS, headers, strict=True):
        is_usable = column.is_valid()
        text = utf8_texts(pc.fill_null(column.cast(pa.large_binary()), b""))
        if name in ("partition", "offset", "delivery.count"):
            is_usable = pc.fill_null(pc.match_substring_regex(text, _NUMBER), False)
            text = pc.if_else(is_usable, text, "0").cast(pa.int64())
            greatest = {"partition": 2**31 - 1, "delivery.count": 2**15 - 1}.get(name, 2**63 - 1)
            is_usable = pc.and_(is_usable, pc.less_equal(text, greatest))
        if name == "message":
            text = pc.if_else(is_usable, text, None)
        else:
            valid = pc.and_(valid, is_usable)
        texts[name] = text
    columns = (texts["group"], texts["topic"], texts["partition"], texts["offset"], texts["delivery.count"],
               texts["message"], topic, partition, offset, timestamp)  # fmt: skip
    rows = [
        column.filter(valid).cast(field.type) for column, field in zip(columns, DEAD_LETTERS, strict=True)
    ]
    table = pa.table(rows, schema=DEAD_LETTERS)
    return table, len(offset) - len(table)
