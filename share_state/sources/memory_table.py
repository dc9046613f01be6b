"""Log partitions in a table of records in memory, with the columns of Spark's Kafka source.

An Arrow table; `api.arguments` makes one of the frames of pandas and polars.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import InputError
from share_state.kafka.buffers import column_bytes, is_text
from share_state.kafka.record_batches import Chunk
from share_state.sources.encoded_text import NOT_ENCODED
from share_state.sources.formats import SortedLogs
from share_state.sources.log_partition import LARGEST_PARTITION, LogPartition, Segment
from share_state.sources.record_tables import (
    Columns,
    NotEncodedError,
    int64_column,
    known_span,
    rows_in_chunks,
    rows_of_batches,
    timestamp_ms,
)
from share_state.sources.table_plan import check_columns, missing_topic_message

LABEL = "the DataFrame"
"""How messages name the table, whatever library it is of."""

_FIX = "columns={{{ours!r}: NAME}}"
_BATCH_ROWS = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class MemoryRows:
    """A log partition in memory; a `RecordSource`.

    Attributes:
        rows: key, value, offset and, if there are times, timestamp (int64, ms), by offset.
        has_times: whether there are times.
        times: the first and the last of them (ms); None if none is known.
    """

    rows: pa.Table
    has_times: bool
    times: tuple[int, int] | None = None
    form: str = "table"
    has_offsets: bool = True
    has_sizes: bool = False

    @property
    def content(self) -> str:
        """A hash of the records, the same for every library that holds them."""
        digest = hashlib.blake2b(digest_size=8)
        for name in ("key", "value"):
            column = self.rows[name].combine_chunks()
            data, ends = column_bytes(column)
            for part in (data, ends, np.packbits(np.asarray(column.is_valid()))):
                digest.update(part.tobytes())
        for name in ("offset", "timestamp") if self.has_times else ("offset",):
            digest.update(self.rows[name].to_numpy().tobytes())
        return digest.hexdigest()

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        """The chunks of a log partition in offset order.

        Raises:
            InputError: if a text is neither base64 nor hexadecimal.
        """
        del merge
        try:
            parts = rows_of_batches(self.rows.to_batches(_BATCH_ROWS))
            yield from rows_in_chunks(parts, chunk, holds_all=log.holds_all)
        except NotEncodedError:
            raise InputError(
                f"{LABEL}: partition {log.partition}: {NOT_ENCODED}; give binary columns, or one of these"
            ) from None


def find_memory_logs(table: pa.Table, columns: Columns, topics: Sequence[str]) -> SortedLogs:
    """The log partitions of a table.

    Args:
        table: the records in any order; other columns are ignored.
        columns: the names of its columns.
        topics: those to find; the first must be there. A table without topics is of the first.
    Raises:
        InputError: if a column is missing or of another type, a row has no offset, or there is no record of the
            first topic.
    """
    table = _without_views(table)
    check_columns(table.schema, columns, LABEL, fix=_FIX)
    rows = _in_our_types(table, columns, topics[0])
    others = set(rows["topic"].unique().to_pylist()) - {*topics, None}
    logs = [log for topic in topics for log in _logs_of(rows.filter(pc.field("topic") == topic), topic)]
    if not logs or logs[0].topic != topics[0]:
        present = {log.topic for log in logs}
        raise InputError(f"{LABEL}: {missing_topic_message(topics[0], others | present)}")
    return logs, others


def _without_views(table: pa.Table) -> pa.Table:
    """The columns in types that all of Arrow takes: polars exports views, pandas null for a column of None."""
    kinds = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary(), pa.null(): pa.binary()}
    return table.cast(pa.schema([one.with_type(kinds.get(one.type, one.type)) for one in table.schema]))


def _in_our_types(table: pa.Table, columns: Columns, topic: str) -> pa.Table:
    """The columns under our names; offsets and partitions are checked where rows are of a topic that is read."""
    names = set(table.column_names)
    found = {"key": _wide(table[columns.key]), "value": _wide(table[columns.value])}
    found["topic"] = (
        table[columns.topic].cast(pa.string()) if columns.topic in names else pa.repeat(topic, len(table))
    )
    found |= {"partition": table[columns.partition], "offset": table[columns.offset]}
    if columns.timestamp in names:
        stamps = table[columns.timestamp].combine_chunks()
        found["timestamp"] = pa.array(timestamp_ms(stamps))
    return pa.table(found)


def _wide(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Keys or values in a type of any size, with which sorting cannot overflow."""
    return column.cast(pa.large_string() if is_text(column.type) else pa.large_binary())


def _logs_of(rows: pa.Table, topic: str) -> Iterator[LogPartition]:
    if not len(rows):
        return
    partitions = int64_column(rows["partition"], "partition", LABEL, 0)
    if (largest := int(partitions.max())) > LARGEST_PARTITION:
        raise InputError(f"{LABEL}: partition {largest}; Kafka's are from 0 to {LARGEST_PARTITION}")
    offsets = int64_column(rows["offset"], "offset", LABEL, 0)
    rows = rows.set_column(rows.column_names.index("offset"), "offset", pa.array(offsets))
    rows = rows.drop_columns(["topic", "partition"])
    has_times = "timestamp" in rows.column_names
    order = np.lexsort((offsets, partitions))
    numbers = partitions[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        own = rows.take(pa.array(order[begin:end])).combine_chunks()
        times = known_span(LABEL, "timestamp", own["timestamp"].to_numpy()) if has_times else None
        segment = Segment(LABEL, own["offset"][0].as_py(), own["key"].nbytes + own["value"].nbytes)
        source = MemoryRows(own, has_times, times)
        yield LogPartition(topic, int(numbers[begin]), (segment,), segment.base_offset, source=source)
