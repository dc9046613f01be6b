"""Reads dead-letter topics: segments, and tables with the column `headers` of Spark's Kafka source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from share_state.errors import InputError
from share_state.kafka.dead_letters import DEAD_LETTERS, HEADERS, dead_letters, header_columns
from share_state.sources.as_of import Window
from share_state.sources.discovery import LogPartition, find_topic_logs
from share_state.sources.kafka_client import is_kafka_address
from share_state.sources.object_stores import InputPath, parquet_source
from share_state.sources.segments import index_records, read_chunks
from share_state.sources.tables import timestamp_ms

ReadSoFar = Mapping[tuple[str, int], int]
"""(dead-letter topic, partition) -> offset that an earlier audit has read up to, exclusive."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """What the dead-letter topics hold.

    Attributes:
        rows: columns of DEAD_LETTERS.
        others: number of records that are no dead letters.
        deleted: (topic, partition) of log partitions that do not begin at offset 0.
    """

    rows: pa.Table
    others: int
    deleted: tuple[tuple[str, int], ...]


def read_dead_letters(logs: Sequence[LogPartition], read: ReadSoFar) -> DeadLetters:
    """Read the dead letters in segments, from where an earlier audit stopped.

    Raises:
        InputError: if a segment cannot be read.
    """
    tables, others = [DEAD_LETTERS.empty_table()], 0
    for log in logs:
        begin = max(read.get((log.topic, log.partition or 0), 0), log.log_start_offset)
        following = {one.replica: one.base_offset for one in log.segments}
        kept = []
        for segment in reversed(log.segments):
            if segment.base_offset == following[segment.replica] or following[segment.replica] > begin:
                kept.insert(0, segment)
            following[segment.replica] = segment.base_offset
        for part in read_chunks(replace(log, segments=tuple(kept)), merge=True):
            found = index_records(part, begin, Window())
            records = found.records[found.records["offset"] >= begin]
            columns = header_columns(found.part.data, found.part.batches, records)
            rows, strangers = dead_letters(
                columns,
                pa.repeat(log.topic, len(records)),
                pa.repeat(log.partition or 0, len(records)),
                pa.array(records["offset"].copy()),
                pa.array(records["timestamp"].copy()),
            )
            tables.append(rows)
            others += strangers
    deleted = tuple((log.topic, log.partition or 0) for log in logs if log.log_start_offset > 0)
    return DeadLetters(pa.concat_tables(tables), others, deleted)


def read_dead_letter_tables(files: Sequence[InputPath], read: ReadSoFar) -> DeadLetters:
    """Read the dead letters in Parquet files with the columns of Spark's Kafka source.

    Raises:
        InputError: if a file cannot be read or lacks a column; `headers` needs the option `includeHeaders`.
    """
    tables, others = [DEAD_LETTERS.empty_table()], 0
    for path in files:
        try:
            with pq.ParquetFile(parquet_source(str(path))) as file:
                names = ("headers", "topic", "partition", "offset", "timestamp")
                if missing := [name for name in names if name not in file.schema_arrow.names]:
                    fix = "write it with Spark's option includeHeaders" if "headers" in missing else "give such a table"
                    raise InputError(f"{path}: no column {missing[0]}, which dead letters need; {fix}")
                for batch in file.iter_batches(columns=list(names)):
                    rows, strangers = _of_table(batch)
                    tables.append(rows)
                    others += strangers
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]}); write it again") from None
    rows = pa.concat_tables(tables)
    place = ("dead_letter_topic", "dead_letter_partition")
    firsts = rows.group_by(place).aggregate([("dead_letter_offset", "min")]).to_pylist()
    deleted = tuple((one[place[0]], one[place[1]]) for one in firsts if one["dead_letter_offset_min"] > 0)
    begins = [read.get(one, 0) for one in zip(*(rows[name].to_pylist() for name in place), strict=True)] if read else 0
    kept = np.asarray(rows["dead_letter_offset"]) >= np.array(begins)
    return DeadLetters(rows.filter(pa.array(kept)), others, deleted)


def _of_table(batch: pa.RecordBatch) -> tuple[pa.Table, int]:
    lists = batch["headers"]
    pairs, row_of = lists.flatten(), np.asarray(pc.call_function("list_parent_indices", [lists]))
    names, values = pairs.field("key"), pairs.field("value").cast(pa.large_binary())
    columns = []
    for header in HEADERS:
        places = np.full(len(batch), -1, np.int64)
        chosen = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(names, f"__dlq.errors.{header}"), False)))
        places[row_of[chosen]] = chosen
        columns.append(values.take(pa.array(places, mask=places < 0)))
    times = pa.array(timestamp_ms(batch["timestamp"]))
    return dead_letters(columns, batch["topic"], batch["partition"], batch["offset"], times)


def find_dead_letter_logs(paths: Sequence[str]) -> tuple[LogPartition, ...]:
    """The log partitions of dead-letter topics in segments.

    Raises:
        InputError: if a path is missing, is a cluster, or holds no log of an ordinary topic.
    """
    for path in paths:
        if is_kafka_address(path):
            raise InputError(f"{path}: dead letters are read from segments and tables; give a copy of the topic")
    return tuple(find_topic_logs(paths))
