"""Reads one partition of a running cluster's state topic, between the offsets taken at the start."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from share_state.live.address import FORM
from share_state.live.client_properties import ClientProperties
from share_state.live.cluster import client_settings, unusable_setting
from share_state.live.refusals import Complaints, refusal
from share_state.wire.chunk import Chunk
from share_state.wire.kafka_rows import Rows, chunk_of
from share_state.wire.log_folder import LogPartition
from share_state.wire.records import RECORD

PATIENCE = 30.0
"""Seconds without a record after which a cluster has stopped answering."""

_AT_ONCE = 10_000
_BUFFERED_KIB = 32 << 10
_A_FETCH = 8 << 20
_READER = {
    "group.id": "share-state",  # the client wants one; no group is joined and no offset committed
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "isolation.level": "read_uncommitted",  # as the coordinator reads it
    "check.crcs": True,
    "queued.max.messages.kbytes": _BUFFERED_KIB,
    "fetch.message.max.bytes": _A_FETCH,
}


@dataclass(frozen=True, slots=True)
class LiveSource:
    """Where a log partition of a running cluster is read from; see `share_state.wire.source.Source`.

    Attributes:
        address: `kafka://host:port[,host:port…]`.
        end_offset: where to stop: the records from here on came later than the command.
        properties: how to reach the cluster.
    """

    address: str
    end_offset: int
    properties: ClientProperties

    form = FORM
    has_offsets = True
    has_times = True
    has_sizes = False  # a consumer is shown records, not the batches they came in

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        """The records of a partition in offset order, each once, up to `chunk` bytes of keys and values at a time.

        Raises:
            InputError: if the cluster refuses, stops answering, or deletes what is about to be read.
        """
        messages, size = list[Any](), 0
        for message in self._messages(log):
            messages.append(message)
            size += len(message)
            if size >= chunk:
                yield chunk_of(_rows(messages))
                messages, size = [], 0
        if messages:
            yield chunk_of(_rows(messages))

    def _messages(self, log: LogPartition) -> Iterator[Any]:
        if log.log_start_offset >= self.end_offset:
            return
        where, complaints = f"{self.address}: {log.name}", Complaints()
        try:
            consumer = Consumer(client_settings(self.address, self.properties) | _READER | {"error_cb": complaints})
        except KafkaException as error:
            raise unusable_setting(self.properties, error) from None
        try:
            consumer.assign([TopicPartition(log.topic, log.partition, log.log_start_offset)])
            following, end = log.log_start_offset, time.monotonic() + PATIENCE
            while True:
                # No more than are left: a consumer that waits for others would wait in vain.
                found = consumer.consume(min(_AT_ONCE, self.end_offset - following), timeout=1.0)
                for message in found:
                    error = message.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise refusal(where, error, complaints)
                    if message.offset() >= self.end_offset:
                        return
                    if error is None:
                        following = message.offset() + 1
                        yield message
                        if following == self.end_offset:
                            return
                if found:
                    end = time.monotonic() + PATIENCE
                elif complaints.are_final or time.monotonic() > end:
                    raise refusal(where, KafkaError(KafkaError._TIMED_OUT), complaints)
        except KafkaException as error:
            raise refusal(where, error, complaints) from None
        finally:
            consumer.close()


def _rows(messages: list[Any]) -> Rows:
    """Messages as RECORD rows over the bytes of their keys and values."""
    count = len(messages)
    parts = [part for message in messages for part in (message.key(), message.value())]
    sizes = np.fromiter((-1 if part is None else len(part) for part in parts), np.int64, 2 * count)
    ends = np.cumsum(np.maximum(sizes, 0))
    at, records = ends - np.maximum(sizes, 0), np.zeros(count, RECORD)
    records["key_at"], records["value_at"] = at[0::2], at[1::2]
    records["key_size"], records["value_size"] = sizes[0::2], sizes[1::2]
    records["offset"] = np.fromiter((message.offset() for message in messages), np.int64, count)
    records["timestamp"] = np.fromiter((message.timestamp()[1] for message in messages), np.int64, count)
    data = np.frombuffer(b"".join(part for part in parts if part), np.uint8)
    return Rows(data, records, np.zeros(count, np.int32), np.arange(count))
