"""Follows `__share_group_state` of a running cluster: one consumer, assigned to all log partitions, in no group.

Records that the broker has deleted are left out. Where the log start passes the reader, the log is read from
that start up to an end that was fetched after it, before any of it is returned (see `pruned_logs`). While no
broker answers, or there is no such topic, there is nothing to read; a topic that was deleted and created again
is read from its start.
Needs the extra `share-state[kafka]`; import this module only when an address is given.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
import pyarrow as pa
from confluent_kafka import KafkaError

from share_state.errors import InputError
from share_state.sources.kafka_client import ClientProperties
from share_state.sources.kafka_cluster import (
    DELETED_RECORDS,
    ClientErrors,
    Cluster,
    TopicOffsets,
    client_error,
)
from share_state.sources.kafka_source import READ_COMMITTED, consumed_batch, open_consumer
from share_state.sources.log_partition import STATE_TOPIC
from share_state.sources.new_records import EMPTY_ROWS, LogFacts, NewRecords, Read
from share_state.sources.resume_point import ResumePoint

# The type stubs of confluent-kafka are incomplete.
_kafka: Any = confluent_kafka
_LOG = logging.getLogger("share_state")

_MOST_RECORDS = 500_000
"""Records of a micro-batch if the call sets no limit: they are in memory at once."""
_MOST_MESSAGES = 10_000
_PATIENCE = 5.0
"""Seconds without a record after which a micro-batch ends early, as when a leader changes."""
_DENIED = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED}


@dataclass(slots=True)
class _Log:
    """How far a log partition is read.

    Attributes:
        position: the next offset.
        start: its log start offset when it was last returned; -1 if it never was.
        whole: the log start offset from which, and the offset up to which it is read before any of it is
            returned; None if it continues what was read before.
        messages: read and not returned.
    """

    position: int
    start: int = -1
    whole: tuple[int, int] | None = None
    messages: list[Any] = field(default_factory=list)


class ClusterFollower:
    """Reads what is new in `__share_group_state` of a cluster."""

    def __init__(self, address: str, properties: ClientProperties, most_records: int | None = None) -> None:
        """Begin; nothing is asked yet.

        Args:
            address, properties: as for `Cluster`.
            most_records: maximum number of records to return at once.
        """
        self._address, self._properties = address, properties
        self._most_records = most_records or _MOST_RECORDS
        self._where, self._errors = f"{address}: {STATE_TOPIC}", ClientErrors()
        self._cluster: Cluster | None = None
        self._consumer: Any = None
        self._opened = ExitStack()
        self._topic_id: str | None = None
        self._logs = dict[int, _Log]()
        self._assigned, self._is_away = set[int](), False

    def read(self, marks: Mapping[int, ResumePoint]) -> Read:
        """The records that are new.

        Args:
            marks: log partition -> where its state ends.
        Raises:
            InputError: if the cluster denies access.
        """
        found = self._fetch()
        if found is None:
            return Read(is_away=self._is_away)
        if found.topic_id != self._topic_id:
            self._begin(found, marks)
        ends = self._update(found)
        self._consume(ends)
        behind = sum(max(0, ends[number] - self._logs[number].position) for number in ends)
        parts = [part for log in found.logs if (part := self._take(log.partition, log.start_offset, found))]
        return Read([*parts], behind=behind, has_more=behind > 0 and bool(parts))

    def close(self) -> None:
        """Leave the cluster."""
        self._opened.close()
        self._consumer = None

    def _fetch(self) -> TopicOffsets | None:
        """The offsets of the topic; None while no broker answers, or there is no such topic."""
        try:
            self._cluster = self._cluster or Cluster(self._address, self._properties)
            found = self._cluster.fetch_state_offsets()
        except InputError as error:
            if "not authorized" in str(error) or "refuses this user" in str(error):
                raise
            if not self._is_away:
                _LOG.warning("%s; waiting for it", error)
            self._cluster, self._is_away = None, True
            return None
        if self._is_away:
            _LOG.warning("%s: a broker answers again", self._address)
        self._is_away = False
        return found

    def _begin(self, found: TopicOffsets, marks: Mapping[int, ResumePoint]) -> None:
        """Begin with a topic: where states of it end, else at the start of its logs."""
        self.close()
        self._topic_id = found.topic_id
        self._logs = {}
        self._assigned = set()
        for number, mark in marks.items():
            if mark.topic_id in (None, found.topic_id):
                self._logs[number] = _Log(mark.next_offset, mark.log_start_offset)
        self._consumer = self._opened.enter_context(
            open_consumer(self._address, self._properties, self._errors, self._where, READ_COMMITTED)
        )

    def _update(self, found: TopicOffsets) -> dict[int, int]:
        """Note the present starts of the logs, and assign those that can be read.

        Returns:
            Log partition -> offset up to which it can be read now.
        """
        ends, is_moved = dict[int, int](), False
        for one in found.logs:
            log = self._logs.setdefault(one.partition, _Log(one.start_offset))
            if log.position < one.start_offset or (log.whole and log.whole[0] < one.start_offset):
                is_moved |= log.position < one.start_offset
                log.position = max(log.position, one.start_offset)
                log.whole = (one.start_offset, one.end_offset)
            # A log that became shorter is read again once it has reached the offset that was read.
            if one.end_offset >= log.position:
                ends[one.partition] = one.end_offset
        if is_moved or not ends.keys() <= self._assigned or len(ends) < len(self._assigned):
            places = [
                _kafka.TopicPartition(STATE_TOPIC, number, self._logs[number].position) for number in ends
            ]
            self._consumer.assign(places)
            self._assigned = {*ends}
        return ends

    def _consume(self, ends: Mapping[int, int]) -> None:
        """Read up to the ends of the logs, or as much as one micro-batch may hold."""
        taken, deadline = 0, time.monotonic() + _PATIENCE

        def left() -> int:
            return sum(max(0, end - self._logs[number].position) for number, end in ends.items())

        while self._assigned and (rest := left()) and time.monotonic() < deadline:
            is_full = taken >= self._most_records
            # A log that is read whole is read to its end: its state begins anew.
            if is_full and not any(self._logs[number].whole for number in ends):
                return
            # The consumer would wait for more messages than there are.
            consumed = self._consumer.consume(min(_MOST_MESSAGES, rest), timeout=0.2)
            for message in consumed:
                error = message.error()
                if error is not None:
                    self._note(message, error)
                    continue
                log = self._logs[message.partition()]
                if message.offset() >= log.position:
                    log.messages.append(message)
                    log.position = message.offset() + 1
                    taken += 1
            if consumed:
                deadline = time.monotonic() + _PATIENCE
            elif self._errors.are_permanent:
                raise client_error(self._where, KafkaError(KafkaError._TIMED_OUT), self._errors)

    def _note(self, message: Any, error: KafkaError) -> None:
        """Handle what the consumer reports of a log partition."""
        if error.code() in _DENIED:
            raise client_error(self._where, error, self._errors)
        log = self._logs.get(message.partition())
        if error.code() == KafkaError._PARTITION_EOF:
            if log is not None:
                log.position = max(log.position, message.offset())
            return
        if error.code() in DELETED_RECORDS and log is not None:
            # What follows the deleted records is of no use without the snapshots that replace them.
            log.position = log.messages[0].offset() if log.messages else log.position
            log.messages.clear()
        # The next micro-batch asks where the log begins now, and which topic there is.
        self._assigned.clear()

    def _take(self, number: int, start: int, found: TopicOffsets) -> NewRecords | None:
        """What was read of a log; None if there is nothing new, or it is still to be read whole."""
        log = self._logs[number]
        if log.whole is not None and log.position < log.whole[1]:
            return None
        log.whole = None
        if not log.messages and start == log.start:
            return None
        log.start = start
        messages, log.messages = log.messages, []
        rows = pa.Table.from_batches([consumed_batch(messages)]) if messages else EMPTY_ROWS
        return NewRecords(number, rows, LogFacts(start, found.topic_id, found.partitions))
