"""When records of a running cluster's topics were written, and how long its topics keep them.

Needs the extra `share-state[kafka]`; import this module only when an address is given.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import confluent_kafka

from share_state.sources.kafka_client import ClientProperties
from share_state.sources.kafka_cluster import ClientErrors, Cluster, open_consumer
from share_state.sources.record_times import RecordPlace

# The type stubs of confluent-kafka are incomplete.
_kafka: Any = confluent_kafka

_SECONDS = 30.0
"""For all records; then the times of the others stay unknown."""

_IDLE_SECONDS = 5.0
"""Without an answer: of a topic that was deleted meanwhile, or that may not be described, there is none."""

_FEW_BYTES = {
    # The first record of each partition is all that is needed; a broker sends at least one batch.
    "fetch.message.max.bytes": 1 << 14,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 1 << 12,
}


class LiveRecordTimes:
    """The records of a running cluster; a `RecordTimes`."""

    def __init__(self, address: str, properties: ClientProperties) -> None:
        """Take the address of a cluster, and the settings of its clients."""
        self._address = address
        self._properties = properties

    def partitions(self) -> None:
        """Any partition may be asked for."""

    def read(self, places: Iterable[RecordPlace]) -> dict[RecordPlace, int]:
        """The timestamps of records, ms, or of the next record if an offset has none.

        Without those that are denied.

        Raises:
            InputError: if no broker answers.
        """
        times = dict[RecordPlace, int]()
        deadline = time.monotonic() + _SECONDS
        for one_each in _rounds(places):
            times |= self._read_round(one_each, deadline)
        return times

    def retention(self, topics: Sequence[str]) -> Mapping[str, int]:
        """As `Cluster.fetch_retention`."""
        return Cluster(self._address, self._properties).fetch_retention(topics)

    def _read_round(self, places: Sequence[RecordPlace], deadline: float) -> dict[RecordPlace, int]:
        """The times of records of different partitions."""
        times = dict[RecordPlace, int]()
        wanted = {(topic, partition): offset for topic, partition, offset in places}
        with open_consumer(
            self._address, self._properties, ClientErrors(), self._address, _FEW_BYTES
        ) as consumer:
            consumer.assign([_kafka.TopicPartition(*place) for place in places])
            idle_until = time.monotonic() + _IDLE_SECONDS
            while wanted and time.monotonic() < min(deadline, idle_until):
                answered = list[tuple[str, int]]()
                for message in consumer.consume(len(wanted), timeout=1.0):
                    key = message.topic(), message.partition()
                    if key not in wanted:
                        continue
                    offset = wanted.pop(key)
                    answered.append(key)
                    # Its error is the end of the partition, a deleted record, or a topic that may not be
                    # read.
                    if message.error() is None:
                        kind, timestamp = message.timestamp()
                        if kind != _kafka.TIMESTAMP_NOT_AVAILABLE:
                            times[*key, offset] = timestamp
                if answered:
                    idle_until = time.monotonic() + _IDLE_SECONDS
                    consumer.pause([_kafka.TopicPartition(*key) for key in answered])
        return times


def _rounds(places: Iterable[RecordPlace]) -> Iterator[list[RecordPlace]]:
    """The places in groups that have each partition at most once: a consumer has one position per partition."""
    offsets = dict[tuple[str, int], list[RecordPlace]]()
    for place in sorted(set(places)):
        offsets.setdefault(place[:2], []).append(place)
    for one_each in zip_longest(*offsets.values()):
        yield [place for place in one_each if place is not None]
