"""Streams of `__share_group_state` from a running cluster: readers of Spark's Python streaming data sources.

The offset of a stream names the topic id and the next offset of each partition. Records that the broker has
deleted are left out, and reading continues at the log start; a topic that was deleted and created again is
read from its start. Where the log start passes the reader of the command `stream`, the state that it has is
of no use: the reader goes on to an end that was fetched after that start (`sources/pruned_logs.py`), beyond
the micro-batch, and `StreamFold` skips what the next micro-batch repeats.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from share_state.errors import InputError, PrunedError
from share_state.fold.timeline import decoded_tables
from share_state.pipeline.stream_fold import PACKED, MicroBatch, packed_batch
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.kafka_client import ClientProperties, read_client_properties
from share_state.sources.log_partition import STATE_TOPIC, LogPartition
from share_state.sources.new_records import LogFacts
from share_state.stores.paths import normalize_address

KAFKA_RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
"""The columns of Spark's Kafka source."""

PACKED_FORMAT = "share_group_state_packed"

_RETRY_SECONDS = 300.0
"""How long a task waits for a broker that restarts."""

_PAUSE = 1.0
_CREATE_TIME = 0


@dataclass
class LogRange(InputPartition):
    """The records of one log partition that a micro-batch holds.

    Attributes:
        partition: number of the log partition.
        next_offset, end_offset: the first offset to read, and the first after the range.
        facts: what is known of the log.
    """

    partition: int
    next_offset: int
    end_offset: int
    facts: LogFacts

    def __post_init__(self) -> None:
        self.value = self.partition


class ClusterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches of a cluster; subclasses define what a log partition yields.

    Attributes:
        reads_on: whether a task may read beyond the end of its range, if the broker deletes records of the
            range.
    """

    reads_on = False

    def __init__(
        self,
        address: str,
        properties: ClientProperties,
        most_records: int | None = None,
        starting: str | None = None,
    ) -> None:
        """A reader of a cluster.

        Args:
            address, properties: the cluster, and its client properties.
            most_records: maximum number of records in a micro-batch; None for no limit.
            starting: JSON of `topic_id` and `next`, log partition -> offset to begin at; by default all
                records.
        """
        self.address = address
        self.properties = properties
        self.most_records = most_records
        self.starting = starting
        self._cluster: Any = None
        self._target: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Before the first record of a topic that is not known yet, or where `starting` says."""
        return {"topic_id": "", "next": {}, "starts": {}} | json.loads(self.starting or "{}")

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option `max_records`."""
        return ReadAllAvailable() if self.most_records is None else ReadMaxRows(self.most_records)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember the present end of the logs."""
        self._target = self._fetch() or self.initialOffset()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The offset up to which the next micro-batch reads.

        `start` while no broker answers or there is no topic.
        """
        latest = self._target or self._fetch()
        if latest is None or not latest["next"]:
            return start
        same = latest["topic_id"] == start["topic_id"]
        before = start["next"] if same else {}
        begins = {log: max(before.get(log, 0), first) for log, first in latest["starts"].items()}
        # Reading a log that became shorter continues once it has reached the offset that was read.
        ends = {log: max(end, begins[log]) for log, end in latest["next"].items()}
        if isinstance(limit, ReadMaxRows):
            total = max(1, sum(ends[log] - begins[log] for log in ends))
            share = min(1.0, limit.max_rows / total)
            # A log whose start has passed what was read is read whole: its state begins anew.
            passed = {log for log, begin in begins.items() if begin > before.get(log, begin)}
            ends = {
                log: end if log in passed else begins[log] + int(np.ceil((end - begins[log]) * share))
                for log, end in ends.items()
            }
        return latest | {"next": ends}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The present end of the logs."""
        return self._fetch()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One range per log partition that has new records or a new log start, or is of another topic."""
        same, ranges = start["topic_id"] == end["topic_id"], list[InputPartition]()
        for log, end_offset in end["next"].items():
            first = end["starts"][log]
            begin = max(start["next"].get(log, first), first) if same else first
            if begin < end_offset or not same or start["starts"].get(log) != first:
                facts = LogFacts(first, end["topic_id"], len(end["next"]))
                ranges.append(LogRange(int(log), begin, end_offset, facts))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a range, and with `reads_on` what it needs beyond it.

        Waits for a broker that restarts.
        """
        assert isinstance(partition, LogRange)
        given, deadline = partition, time.monotonic() + _RETRY_SECONDS
        facts = given.facts
        at = given.next_offset
        end = given.end_offset
        yield from self.begin(given)
        while at < end:
            try:
                for batch in self._source(end).batches(_log(given, at)):
                    yield self.convert(batch, given, facts)
                    at = batch["offset"][-1].as_py() + 1
                return
            except PrunedError as pruned:
                log = pruned.log
                at = log.log_start_offset
                if self.reads_on:
                    end = log.source.end_offset
                facts = LogFacts(at, facts.topic_id, facts.state_partitions)
            except InputError as error:
                if "no such topic" in str(error):
                    # Deleted since the micro-batch was planned; the next one begins with the topic that
                    # replaces it.
                    return
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)

    def begin(self, given: LogRange) -> Iterator[pa.RecordBatch]:
        """Batches to return before the records of a range."""
        del given
        return iter(())

    def convert(self, batch: pa.RecordBatch, given: LogRange, facts: LogFacts) -> pa.RecordBatch:
        """Convert records to the batch that the source returns."""
        del facts
        count, milliseconds = batch.num_rows, batch["timestamp"]
        columns = {
            "key": batch["key"],
            "value": batch["value"],
            "topic": pa.repeat(STATE_TOPIC, count),
            "partition": pa.repeat(pa.scalar(given.partition, pa.int32()), count),
            "offset": batch["offset"],
            "timestamp": milliseconds.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
            "timestampType": pa.repeat(pa.scalar(_CREATE_TIME, pa.int32()), count),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=KAFKA_RECORDS)

    def _fetch(self) -> dict[str, Any] | None:
        """The topic id, first and next offsets of all log partitions; None while no broker answers."""
        from share_state.sources.kafka_cluster import Cluster  # noqa: PLC0415  needs confluent-kafka

        try:
            self._cluster = self._cluster or Cluster(self.address, self.properties)
            found = self._cluster.fetch_state_offsets()
        except InputError:
            self._cluster = None
            return None
        if found is None:
            return None
        starts = {str(log.partition): log.start_offset for log in found.logs}
        ends = {str(log.partition): log.end_offset for log in found.logs}
        return {"topic_id": found.topic_id, "starts": starts, "next": ends}

    def _source(self, end_offset: int) -> Any:
        from share_state.sources.kafka_source import KafkaSource  # noqa: PLC0415  needs confluent-kafka

        return KafkaSource(self.address, end_offset, self.properties)


def _log(given: LogRange, at: int) -> LogPartition:
    return LogPartition(STATE_TOPIC, given.partition, (), at, True, given.facts.topic_id)


class DecodedStreamReader(ClusterStreamReader):
    """The records of each log partition, decoded: the columns of schemas/tables/decoded_records.yaml."""

    def convert(self, batch: pa.RecordBatch, given: LogRange, facts: LogFacts) -> pa.RecordBatch:
        """Decode records."""
        log = replace(
            _log(given, batch["offset"][0].as_py()), source=MicroBatch(pa.Table.from_batches([batch]))
        )
        decoded = pa.concat_tables(decoded_tables(log, Window()))
        return decoded.cast(table_schema("decoded_records")).combine_chunks().to_batches()[0]


class _PackedReader(ClusterStreamReader):
    """The records of each log partition packed into few rows."""

    reads_on = True

    def begin(self, given: LogRange) -> Iterator[pa.RecordBatch]:
        """Facts alone: the log may have a new start without a new record."""
        yield packed_batch(given.partition, given.facts, None)

    def convert(self, batch: pa.RecordBatch, given: LogRange, facts: LogFacts) -> pa.RecordBatch:
        """Pack records into one row."""
        return packed_batch(given.partition, facts, pa.Table.from_batches([batch]))


class PackedSource(DataSource):
    """The data source of the command `stream`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return PACKED_FORMAT

    def schema(self) -> StructType:
        """The columns of PACKED."""
        return from_arrow_schema(PACKED)

    def streamReader(self, schema: StructType) -> _PackedReader:  # noqa: N802
        """Read a cluster."""
        del schema
        return _PackedReader(*reader_options(self.options))


def reader_options(options: Mapping[str, str]) -> tuple[str, ClientProperties, int | None, str | None]:
    """The arguments of ClusterStreamReader: options path, kafka_properties, max_records and starting."""
    most, properties = options.get("max_records"), read_client_properties(options.get("kafka_properties"))
    return (
        normalize_address(options["path"]),
        properties,
        int(most) if most else None,
        options.get("starting"),
    )
