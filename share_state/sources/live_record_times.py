"""When records of a running cluster's topics were written, and how long its topics keep them.

Needs the extra `share-state[kafka]`; import this module only when an address is given.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import confluent_kafka

from share_state.sources.kafka_client import ClientProperties
from share_state.sources.kafka_cluster import ClientErrors, Cluster
from share_state.sources.kafka_source import open_consumer
from share_state.sources.record_times import FoundRecord, RecordPlace

# The type stubs of confluent-kafka are incomplete.
_kafka: Any = confluent_kafka

_SECONDS = 30.0
"""For all records; then the times of the others stay unknown."""

_IDLE_SECONDS = 5.0
"""Without an answer: of a topic that was deleted meanwhile, or that may not be described, there is none."""

_FIRST_RECORDS = {
    # Where records are deleted, the first one that is left counts.
    "auto.offset.reset": "earliest",
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

    def read(self, places: Iterable[RecordPlace]) -> dict[RecordPlace, FoundRecord]:
        """The record at each place, or the next one if the offset has none; without those that are denied.

        Raises:
            InputError: if no broker answers.
        """
        records = dict[RecordPlace, FoundRecord]()
        deadline = time.monotonic() + _SECONDS
        for one_each in _rounds(places):
            records |= self._read_round(one_each, deadline)
        return records

    def retention(self, topics: Sequence[str]) -> Mapping[str, int]:
        """As `Cluster.fetch_retention`."""
        return Cluster(self._address, self._properties).fetch_retention(topics)

    def _read_round(self, places: Sequence[RecordPlace], deadline: float) -> dict[RecordPlace, FoundRecord]:
        """The records at places in different partitions."""
        records = dict[RecordPlace, FoundRecord]()
        unanswered = {place[:2]: place for place in places}
        with open_consumer(
            self._address, self._properties, ClientErrors(), self._address, _FIRST_RECORDS
        ) as consumer:
            consumer.assign([_kafka.TopicPartition(*place) for place in places])
            idle_until = time.monotonic() + _IDLE_SECONDS
            while unanswered and time.monotonic() < min(deadline, idle_until):
                answered = list[RecordPlace]()
                for message in consumer.consume(len(unanswered), timeout=1.0):
                    place = unanswered.pop((message.topic(), message.partition()), None)
                    if place is None:
                        continue
                    answered.append(place)
                    # An error is the end of the partition, or a topic that may not be read. From beyond its
                    # end, a consumer begins anew at the start.
                    if message.error() is None and message.offset() >= place[2]:
                        kind, timestamp = message.timestamp()
                        if kind != _kafka.TIMESTAMP_NOT_AVAILABLE:
                            records[place] = message.offset(), timestamp
                if answered:
                    idle_until = time.monotonic() + _IDLE_SECONDS
                    consumer.pause([_kafka.TopicPartition(*place[:2]) for place in answered])
        return records


def _rounds(places: Iterable[RecordPlace]) -> Iterator[list[RecordPlace]]:
    """The places in groups that have each partition at most once: a consumer has one position per partition."""
    offsets = dict[tuple[str, int], list[RecordPlace]]()
    for place in sorted(set(places)):
        offsets.setdefault(place[:2], []).append(place)
    for one_each in zip_longest(*offsets.values()):
        yield [place for place in one_each if place is not None]
