"""Reads the records of a running Kafka cluster with confluent-kafka: `read_cluster` and `KafkaSource`.

`read_cluster` returns the log partitions to fold, each read by a `KafkaSource` between the offsets taken at
the start; `pruned_logs` reads on where the broker deletes records meanwhile.
Needs the extra `share-state[kafka]`; import this module only when an address is given.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from share_state.errors import PrunedError, missing_module
from share_state.kafka.record_batches import CHUNK_SIZE, Chunk
from share_state.sources.kafka_client import (
    KAFKA_FORM,
    ClientProperties,
    read_client_properties,
)
from share_state.sources.kafka_cluster import (
    DELETED_RECORDS,
    TIMEOUT,
    ClientErrors,
    Cluster,
    TopicOffsets,
    client_error,
    client_settings,
    unusable_setting,
)
from share_state.sources.log_partition import GROUP_TOPIC, STATE_TOPIC, Export, LogPartition
from share_state.sources.record_tables import CONSUMED, rows_of_batches, rows_to_chunk
from share_state.sources.topics import Topics

try:
    import confluent_kafka
    from confluent_kafka import KafkaError, KafkaException
except ModuleNotFoundError as error:
    raise missing_module(error) from None

# The type stubs of confluent-kafka are incomplete.
_kafka: Any = confluent_kafka

READ_TIMEOUT = 30.0
"""Seconds without a record after which reading fails."""


_MAX_MESSAGES = 10_000


_BUFFERED_KIB = 32 << 10


_FETCH_SIZE = 8 << 20


_READER = {
    "group.id": "share-state",  # required by the client; it joins no group and commits no offset
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "isolation.level": "read_uncommitted",  # as the coordinator reads `__consumer_offsets`
    "check.crcs": True,
    "queued.max.messages.kbytes": _BUFFERED_KIB,
    "fetch.message.max.bytes": _FETCH_SIZE,
}


READ_COMMITTED = {"isolation.level": "read_committed"}
"""Settings of a reader of `__share_group_state`: messages do not show which transaction a record belongs to."""


@contextmanager
def open_consumer(
    address: str,
    properties: ClientProperties,
    errors: ClientErrors,
    where: str,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Any]:
    """A consumer of confluent-kafka that joins no group and commits nothing.

    Args:
        address, properties: as for `Cluster`.
        errors: collects the errors of the client.
        where: the cluster and the request, for messages.
        settings: further settings of the client.
    Raises:
        InputError: if a setting is invalid, or for what the client raises meanwhile.
    """
    configured = client_settings(address, properties) | _READER | dict(settings or {}) | {"error_cb": errors}
    try:
        consumer = _kafka.Consumer(configured)
    except KafkaException as error:
        raise unusable_setting(properties, error) from None
    try:
        yield consumer
    except KafkaException as error:
        raise client_error(where, error, errors) from None
    finally:
        consumer.close()


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """Reads a log partition from a running cluster; a `RecordSource`.

    Attributes:
        end_offset: offset to stop at; later records were written after the command started.
        is_extended: whether `end_offset` was fetched later than the ends of other topics, because the broker
            had deleted records before they were read.
        high_watermark: the end of the log, after `end_offset` if a transaction is open there; None if unknown.
    """

    address: str
    end_offset: int
    properties: ClientProperties
    is_extended: bool = False
    high_watermark: int | None = None

    form = KAFKA_FORM
    has_offsets = True
    has_times = True
    has_sizes = False  # a consumer returns records, not batches

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        """The records of a partition in offset order, about `chunk` bytes of keys and values at a time.

        Raises:
            PrunedError: if the cluster deletes records that have not been read yet.
            InputError: if it denies access or stops answering.
        """
        del merge
        yield from (rows_to_chunk(rows) for rows, _ in rows_of_batches(self.batches(log, chunk)))

    def batches(self, log: LogPartition, size: int = CHUNK_SIZE) -> Iterator[pa.RecordBatch]:
        """The records as key, value, offset and timestamp (ms), about `size` bytes at a time.

        Errors as in `chunks`.
        """
        messages, read = list[Any](), 0
        for message in self.messages(log):
            messages.append(message)
            read += len(message)
            if read >= size:
                yield consumed_batch(messages)
                messages, read = [], 0
        if messages:
            yield consumed_batch(messages)

    def messages(self, log: LogPartition) -> Iterator[Any]:
        """The records of a partition as messages of confluent-kafka, in offset order.

        Errors as in `chunks`.
        """
        if log.log_start_offset >= self.end_offset:
            return
        where, errors = f"{self.address}: {log.name}", ClientErrors()
        settings = READ_COMMITTED if log.topic == STATE_TOPIC else None
        with open_consumer(self.address, self.properties, errors, where, settings) as consumer:
            consumer.assign([_kafka.TopicPartition(log.topic, log.partition, log.log_start_offset)])
            next_offset, deadline = log.log_start_offset, time.monotonic() + READ_TIMEOUT
            while True:
                # Request no more messages than are left: the consumer would wait for them.
                consumed = consumer.consume(min(_MAX_MESSAGES, self.end_offset - next_offset), timeout=1.0)
                for message in consumed:
                    error = message.error()
                    if error is not None and error.code() in DELETED_RECORDS:
                        raise PrunedError(
                            str(client_error(where, error, errors)), self._remaining(log, consumer)
                        )
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise client_error(where, error, errors)
                    if message.offset() >= self.end_offset:
                        return
                    if error is None:
                        next_offset = message.offset() + 1
                        yield message
                        if next_offset == self.end_offset:
                            return
                if consumed:
                    deadline = time.monotonic() + READ_TIMEOUT
                elif errors.are_permanent or time.monotonic() > deadline:
                    raise client_error(where, KafkaError(KafkaError._TIMED_OUT), errors)

    def _remaining(self, log: LogPartition, consumer: Any) -> LogPartition:
        """The log from its current start up to an end that is fetched after that start (see `pruned_logs`)."""
        start = self._watermarks(log, consumer)[0]
        end = self._watermarks(log, consumer)[1]
        return replace(log, log_start_offset=start, source=replace(self, end_offset=end, is_extended=True))

    def _watermarks(self, log: LogPartition, consumer: Any) -> tuple[int, int]:
        """The current log start offset and high watermark."""
        watermarks = consumer.get_watermark_offsets(
            _kafka.TopicPartition(log.topic, log.partition), timeout=TIMEOUT
        )
        if watermarks is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return watermarks

    def fetch_topics(self) -> Topics:
        """Names and end offsets of the cluster's topics now."""
        return Cluster(self.address, self.properties).topics()


def consumed_batch(messages: list[Any]) -> pa.RecordBatch:
    """Messages of confluent-kafka as columns of CONSUMED."""
    columns = {
        "key": [message.key() for message in messages],
        "value": [message.value() for message in messages],
        "offset": [message.offset() for message in messages],
        "timestamp": [message.timestamp()[1] for message in messages],
    }
    return pa.RecordBatch.from_pydict(columns, schema=CONSUMED)


def read_cluster(address: str, properties: str | None = None) -> Export:
    """The log partitions of a cluster, from their start to their current end.

    Args:
        address: `kafka://host:port[,host:port…]`.
        properties: path of a properties file, as for `--command-config` of Kafka's tools.
    Returns:
        Without groups if this user may not read `__consumer_offsets`.
    Raises:
        InputError: if no broker answers, access is denied, or there is no `__share_group_state`.
    """
    client_properties = read_client_properties(properties)
    cluster = Cluster(address, client_properties)
    # A group lists a share-partition before its state is written, and marks it as deleted before its state is
    # removed. If groups were read after the state, they would list share-partitions that the state does not
    # have yet.
    groups = cluster.fetch_group_offsets()
    state = cluster.fetch_offsets()
    logs = _log_partitions(STATE_TOPIC, state, address, client_properties)
    export = Export(logs, topics=state.topics, state_partitions=state.partitions)
    if groups is None:
        return export
    group_logs = _log_partitions(GROUP_TOPIC, groups, address, client_properties)
    return replace(export, groups=tuple(group_logs), group_partitions=groups.partitions)


def read_topics(address: str, properties: str | None, names: Sequence[str]) -> list[LogPartition]:
    """The log partitions of topics of a cluster, from their start to their current end.

    Args:
        address, properties: as for `read_cluster`.
        names: names of the topics; missing topics, and partitions without a leader, are left out.
    Raises:
        InputError: if no broker answers or access is denied.
    """
    client_properties = read_client_properties(properties)
    offsets = Cluster(address, client_properties).fetch_topic_offsets(names)
    logs = (
        _log_partitions(name, topic, address, client_properties) for name, topic in sorted(offsets.items())
    )
    return list(chain.from_iterable(logs))


def _log_partitions(
    name: str, topic: TopicOffsets, address: str, properties: ClientProperties
) -> list[LogPartition]:
    """The log partitions of a topic, each read up to the end that it has now."""
    return [
        LogPartition(
            name,
            log.partition,
            segments=(),
            log_start_offset=log.start_offset,
            start_is_recorded=True,
            topic_id=topic.topic_id,
            source=KafkaSource(address, log.end_offset, properties, high_watermark=log.high_watermark),
        )
        for log in topic.logs
    ]
