"""What a running cluster tells before anything is read: the log to read and how far, names and ends of its topics.

Reads one partition of a running cluster's state topic, between the offsets taken at the start.

A running cluster as what a command folds: the state topic's partitions, and what is known of the other topics.
"""

import base64
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AclOperation, AdminClient, OffsetSpec

from share_state.errors import InputError
from share_state.kafka.record_batches import RECORD, Chunk
from share_state.sources.discovery import GROUP_TOPIC, STATE_TOPIC, LogPartition
from share_state.sources.kafka_client import (
    FORM,
    ClientProperties,
    Complaints,
    bootstrap_servers,
    read_client_properties,
    refusal,
)
from share_state.sources.tables import Rows, chunk_of
from share_state.sources.topics import Topics

_Key = TypeVar("_Key")

_PASSED_OVER = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
"""Of a topic that was deleted between two questions, has no leader, or is another's: its lag stays unknown."""

PATIENCE = 15.0
"""Seconds that a cluster has for an answer."""

_PATIENCE_IF_DOWN = 2.5


@dataclass(frozen=True, slots=True)
class LiveLog:
    """One partition of a topic, as it was when the command began.

    Attributes:
        partition: its number.
        start_offset: first offset that the broker still has.
        end_offset: the high watermark: the offset behind the last record that counts.
    """

    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a cluster told.

    Attributes:
        topic_id: of the state topic.
        logs: its partitions, by number.
        topics: names and end offsets of every topic that is not the broker's own.
    """

    topic_id: str
    logs: tuple[LiveLog, ...]
    topics: Topics


@dataclass(frozen=True, slots=True)
class LiveGroups:
    """`__consumer_offsets` of a cluster.

    Attributes:
        topic_id: of the topic.
        partitions: how many it has.
        logs: those that have a leader, by number.
    """

    topic_id: str
    partitions: int
    logs: tuple[LiveLog, ...]


class Cluster:
    """A connection for questions.

    Args:
        address: `kafka://host:port[,host:port…]`.
        properties: how to reach it.
    Raises:
        InputError: if the address or a setting cannot be used, or no broker answers.
    """

    def __init__(self, address: str, properties: ClientProperties) -> None:
        self.address, self._complaints = address, Complaints()
        settings = client_settings(address, properties) | {"error_cb": self._complaints}
        try:
            self._admin = AdminClient(settings)
        except KafkaException as error:
            raise unusable_setting(properties, error) from None
        self._reach()

    def _reach(self) -> None:
        """Ask for anything until a broker answers; no user who is refused, and no dead address, is waited for long."""
        begun = time.monotonic()
        while True:
            try:
                self._admin.list_topics(STATE_TOPIC, timeout=1)
                return
            except KafkaException as error:
                self._admin.poll(0)
                waited = time.monotonic() - begun
                # A host may have several addresses, and the first need not be the one that listens.
                given_up = self._complaints.are_final or (self._complaints.say_down and waited > _PATIENCE_IF_DOWN)
                if given_up or waited > PATIENCE:
                    raise refusal(self.address, error, self._complaints) from None

    def look(self) -> Found:
        """Take the bounds of the state topic's partitions, then names and ends of the other topics.

        Raises:
            InputError: if no broker answers, refuses, or has no state topic.
        """
        state = self._described([STATE_TOPIC])[STATE_TOPIC]
        logs = self._logs(STATE_TOPIC, state)
        # The ends of the topics come later than those of the log, or a lag could be negative.
        return Found(topic_id_text(state.topic_id), logs, self.topics())

    def groups(self) -> LiveGroups | None:
        """Take the bounds of the partitions of `__consumer_offsets`; None where there is none that this user may read.

        Raises:
            InputError: if no broker answers, or it refuses.
        """
        found = self._described([GROUP_TOPIC]).get(GROUP_TOPIC)
        if found is None or AclOperation.READ not in (found.authorized_operations or ()):
            return None
        return LiveGroups(topic_id_text(found.topic_id), len(found.partitions), self._logs(GROUP_TOPIC, found))

    def _logs(self, topic: str, described: Any) -> tuple[LiveLog, ...]:
        """The earliest and the latest offset of each partition of a topic."""
        places = [(topic, partition.id) for partition in described.partitions]
        starts, ends = self._offsets(places, OffsetSpec.earliest()), self._offsets(places, OffsetSpec.latest())
        return tuple(LiveLog(place[1], starts[place], ends[place]) for place in sorted(starts.keys() & ends.keys()))

    def topics(self) -> Topics:
        """Names and end offsets of every topic that this user may see and that is not the broker's own.

        Raises:
            InputError: if no broker answers, or it refuses.
        """
        try:
            listed = self._admin.list_topics(timeout=PATIENCE).topics
        except KafkaException as error:
            raise refusal(self.address, error, self._complaints) from None
        names = sorted(name for name, topic in listed.items() if topic.error is None)
        described = {name: topic for name, topic in self._described(names).items() if not topic.is_internal}
        places = [(name, partition.id) for name, topic in described.items() for partition in topic.partitions
                  if partition.leader is not None]  # fmt: skip
        ends = self._offsets(places, OffsetSpec.latest()) if places else {}
        ids = {name: topic_id_text(topic.topic_id) for name, topic in described.items()}
        return Topics(
            pa.table({"topic_id": pa.array(ids.values(), pa.string()), "topic": pa.array(ids.keys(), pa.string())}),
            pa.table(
                {
                    "topic_id": pa.array([ids[name] for name, _ in ends], pa.string()),
                    "partition": pa.array([partition for _, partition in ends], pa.int32()),
                    "end_offset": pa.array(ends.values(), pa.int64()),
                }
            ),
        )

    def _described(self, names: Sequence[str]) -> dict[str, Any]:
        asked = self._admin.describe_topics(
            TopicCollection(list(names)), include_authorized_operations=True, request_timeout=PATIENCE
        )
        return self._answers({name: (name, future) for name, future in asked.items()})

    def _offsets(self, places: Sequence[tuple[str, int]], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        """The earliest or latest offset of each (topic, partition)."""
        wanted = {TopicPartition(*place): spec for place in places}
        asked = self._admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=PATIENCE
        )
        futures = {(at.topic, at.partition): (f"{at.topic}-{at.partition}", future) for at, future in asked.items()}
        return {place: found.offset for place, found in self._answers(futures).items()}

    def _answers(self, asked: Mapping[_Key, tuple[str, Future[Any]]]) -> dict[_Key, Any]:
        """What was answered of each; what went away, or cannot be told of a user's own topic now, is left out."""
        answers = {}
        for key, (called, future) in asked.items():
            is_state = called.rpartition("-")[0] == STATE_TOPIC or called == STATE_TOPIC
            try:
                answers[key] = future.result(timeout=2 * PATIENCE)
            except KafkaException as error:
                if not is_state and error.args[0].code() in _PASSED_OVER:
                    continue
                self._admin.poll(0)
                raise refusal(f"{self.address}: {called}", error, self._complaints) from None
            except TimeoutError:
                silence = KafkaError(KafkaError._TIMED_OUT)
                raise refusal(f"{self.address}: {called}", silence, self._complaints) from None
        return answers


def topic_id_text(topic_id: Uuid) -> str:
    """Kafka's own text of a topic id: librdkafka's is base64 of another alphabet."""
    halves = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return base64.urlsafe_b64encode(struct.pack(">qq", *halves)).decode().rstrip("=")


def client_settings(address: str, properties: ClientProperties) -> dict[str, Any]:
    """The settings that every client of a cluster shares; librdkafka itself logs nothing.

    Raises:
        InputError: if the address or a setting cannot be used.
    """
    given = properties.for_librdkafka()
    given.pop("debug", None)  # it would bring a log of what the client does
    own = {"bootstrap.servers": bootstrap_servers(address), "log_level": 0, "socket.connection.setup.timeout.ms": 5000}
    return {"client.id": "share-state"} | given | own


def unusable_setting(properties: ClientProperties, error: KafkaException) -> InputError:
    """What librdkafka said of a setting that it cannot use, by the setting's name."""
    path = properties.path or "client settings"
    said = error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else str(error)
    shown = properties.hidden_in(said)
    return InputError(f"{path}: {', '.join(shown)}: not a value that the client takes" if shown else f"{path}: {said}")


READ_PATIENCE = 30.0
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
            following, end = log.log_start_offset, time.monotonic() + READ_PATIENCE
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
                    end = time.monotonic() + READ_PATIENCE
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


@dataclass(frozen=True, slots=True)
class LiveInput:
    """What is to be folded of a cluster.

    Attributes:
        logs: every partition of the state topic, each to be read from the earliest to the end offset of now.
        topics: names and end offsets.
        state_partitions: how many partitions the state topic has.
        groups: partitions of `__consumer_offsets`, to be read in the same way; none where this user may not read it.
        group_partitions: how many partitions that topic has, None where it is not read.
    """

    logs: tuple[LogPartition, ...]
    topics: Topics
    state_partitions: int
    groups: tuple[LogPartition, ...] = ()
    group_partitions: int | None = None


def live_logs(address: str, properties: str | None = None) -> LiveInput:
    """Ask a cluster what there is to read.

    Args:
        address: `kafka://host:port[,host:port…]`.
        properties: path of a properties file, as Kafka's own tools take it with --command-config.
    Raises:
        InputError: if no broker answers, refuses, or has no `__share_group_state`.
    """
    given = read_client_properties(properties)
    cluster = Cluster(address, given)
    # A group lists a share-partition before its state is written, and as deleted before its state goes: were the groups
    # read up to a later moment than the state, they would list what the state does not have yet.
    groups = cluster.groups()
    found = cluster.look()

    def partition_of(topic: str, topic_id: str, log: LiveLog) -> LogPartition:
        return LogPartition(
            topic,
            log.partition,
            segments=(),
            log_start_offset=log.start_offset,
            start_is_noted=True,
            topic_id=topic_id,
            source=LiveSource(address, log.end_offset, given),
        )

    logs = tuple(partition_of(STATE_TOPIC, found.topic_id, log) for log in found.logs)
    if groups is None:
        return LiveInput(logs, found.topics, len(logs))
    of_groups = tuple(partition_of(GROUP_TOPIC, groups.topic_id, log) for log in groups.logs)
    return LiveInput(logs, found.topics, len(logs), of_groups, groups.partitions)
