"""Share consumers at work on a broker: they accept, release and reject, and leave records in flight."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from share_state.errors import InputError
from share_state.sources.kafka_source import read_cluster
from tests.sources.kafka_cluster.broker import Broker

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
TOPICS = {"orders": 2, "payments.eu": 3}
"""Topic -> partitions."""
A_PARTITION = 60
"""Records in each partition of each topic."""

_QUIET = {"log_level": 0}
_PATIENCE = 30.0


@dataclass(frozen=True)
class Workload:
    """What was left on a broker.

    Attributes:
        broker: the broker.
        groups: the share groups that took part.
        before: what the broker said when no share group had ever been used.
    """

    broker: Broker
    groups: tuple[str, ...]
    before: str


@contextmanager
def share_consumers_at_work(broker: Broker) -> Iterator[Workload]:
    """Fill topics and let share groups consume; one consumer goes on holding records until the end."""
    with pytest.raises(InputError) as before:
        read_cluster(f"kafka://{broker.address}")
    kafka = {"bootstrap.servers": broker.address, **_QUIET}
    admin = AdminClient(kafka)
    _done(admin.create_topics([NewTopic(name, partitions, 1) for name, partitions in TOPICS.items()]))
    groups = ("acceptors", "pickërs", "holders")
    read_from_the_earliest(admin, *groups)
    _fill(kafka)
    with ExitStack() as stack:
        consume(kafka, stack, "acceptors", ["orders"], A_PARTITION * 2, lambda _: ACCEPT).close()
        every = sum(TOPICS.values()) * A_PARTITION
        consume(kafka, stack, "pickërs", list(TOPICS), every, _picked).close()
        # Half of what this one acknowledges is released, and it holds what it was given again.
        consume(kafka, stack, "holders", ["orders"], A_PARTITION, _half_released)
        yield Workload(broker, groups, str(before.value))


@contextmanager
def working_on(broker: Broker) -> Iterator[None]:
    """Let share groups of `share_consumers_at_work` go on until the end, with new records."""
    kafka = {"bootstrap.servers": broker.address, **_QUIET}

    def work() -> None:
        _fill(kafka)
        for group, verdict in (("acceptors", lambda _: ACCEPT), ("pickërs", _picked)):
            with ExitStack() as stack:
                consume(kafka, stack, group, ["orders"], A_PARTITION, verdict)

    with repeated(work):
        yield


@contextmanager
def repeated(work: Callable[[], None]) -> Iterator[None]:
    """Do some work in a thread again and again, until the end."""
    is_over = Event()

    def repeat() -> None:
        while not is_over.is_set():
            work()

    with ThreadPoolExecutor(1) as threads:
        repeating = threads.submit(repeat)
        try:
            yield
        finally:
            is_over.set()
        repeating.result()


def _picked(one: Message) -> AcknowledgeType:
    return (ACCEPT, ACCEPT, RELEASE, REJECT)[(one.offset() or 0) // 3 % 4]


def _half_released(one: Message) -> AcknowledgeType:
    return RELEASE if (one.offset() or 0) % 2 else ACCEPT


def _fill(kafka: dict[str, object]) -> None:
    producer = Producer(kafka)
    for name, partitions in TOPICS.items():
        for number in range(partitions * A_PARTITION):
            producer.produce(name, f"{number}", partition=number % partitions)
    assert producer.flush(_PATIENCE) == 0


def consume(
    kafka: dict[str, object],
    stack: ExitStack,
    group: str,
    topics: list[str],
    wanted: int,
    verdict: Callable[[Message], AcknowledgeType],
) -> ShareConsumer:
    """Acknowledge at least so many records, a few a write, so that updates and snapshots both are written."""
    consumer = ShareConsumer(kafka | {"group.id": group, "share.acknowledgement.mode": "explicit"})
    stack.callback(consumer.close)
    consumer.subscribe(topics)
    end, done = time.monotonic() + _PATIENCE, 0
    while done < wanted:
        assert time.monotonic() < end, f"{group}: only {done} of {wanted} records after {_PATIENCE} s"
        records = [one for one in consumer.poll(0.5) if one.error() is None]
        for number, one in enumerate(records):
            consumer.acknowledge(one, verdict(one))
            if number % 7 == 6:
                consumer.commit_sync(_PATIENCE)
        consumer.commit_sync(_PATIENCE)
        done += len(records)
    return consumer


def read_from_the_earliest(admin: AdminClient, *groups: str) -> None:
    """Let share groups begin with the first record of a topic."""
    _done(admin.incremental_alter_configs([_from_the_earliest(group) for group in groups]))


def _from_the_earliest(group: str) -> ConfigResource:
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    return ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])


def _done(asked: dict[Any, Future[Any]]) -> None:
    for future in asked.values():
        future.result(_PATIENCE)
