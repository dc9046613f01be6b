"""Transactions that real clients leave in `__consumer_offsets`: our reader against Kafka's own loader."""

import time
from pathlib import Path
from shutil import copytree

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from share_state.fold.groups.group_tables import fold_groups
from share_state.kafka.transactions import Transactions
from share_state.sources import jars
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_group_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.segments import index_records, read_chunks
from tests.differential.kafka_loader import KafkaLoader
from tests.profiles import nightly
from tests.sources.kafka_cluster.broker import Broker, running, skip_without_broker

pytestmark = pytest.mark.broker

_PATIENCE = 30.0
_TOPIC = "topic.transactions"


def _join(broker: Broker, group: str) -> ShareConsumer:
    """A member of a share group, once the broker has written of it."""
    consumer = ShareConsumer({"bootstrap.servers": broker.address, "log_level": 0, "group.id": group})
    consumer.subscribe([_TOPIC])
    end = time.monotonic() + _PATIENCE
    while group not in fold_groups(find_group_logs([str(broker.logs)])).live:
        assert time.monotonic() < end, f"{group}: no group after {_PATIENCE} s"
        consumer.poll(0.5)
    return consumer


def _producer(broker: Broker, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0, "transactional.id": name})
    producer.init_transactions(_PATIENCE)
    producer.begin_transaction()
    return producer


def _offsets(log: LogPartition) -> tuple[list[int], list[int]]:
    """The offsets of the records that count, and of all, by the markers of a log, as of one of the state topic."""
    counted, every = list[int](), list[int]()
    transactions = Transactions.of(read_chunks(log, only_control=True))
    for part in read_chunks(log):
        part.transactions = transactions
        indexed = index_records(part, log.log_start_offset, Window())
        counted += indexed.records["offset"].tolist()
        every += indexed.located["offset"].tolist()
    return counted, every


@nightly("a broker, transactions and Kafka's loader")
def test_offsets_of_transactions_count_as_kafka_s_loader_counts_them(spark: SparkSession, tmp_path: Path) -> None:
    """One is committed, one aborted, one open; share groups write their records between them, never in them."""
    skip_without_broker(jars.TEST_BROKER)
    with running(
        tmp_path,
        transaction_state_log_replication_factor=1,
        transaction_state_log_min_isr=1,
        transaction_state_log_num_partitions=1,
    ) as broker:
        kafka = {"bootstrap.servers": broker.address, "log_level": 0}
        admin = AdminClient(kafka)
        for future in admin.create_topics([NewTopic(_TOPIC, 1, 1)]).values():
            future.result(_PATIENCE)
        consumer = Consumer(kafka | {"group.id": "classic", "auto.offset.reset": "earliest"})
        consumer.subscribe([_TOPIC])
        consumer.poll(_PATIENCE / 6)
        members = [_join(broker, "before")]
        producers = list[Producer]()
        for number, name in enumerate(("committed", "aborted", "open"), 1):
            producers.append(producer := _producer(broker, name))
            position = [TopicPartition(_TOPIC, 0, number)]
            producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), _PATIENCE)
            members.append(_join(broker, f"during.{name}"))
            if name == "committed":
                producer.commit_transaction(_PATIENCE)
            elif name == "aborted":
                producer.abort_transaction(_PATIENCE)
        members.append(_join(broker, "after"))
    (log,) = find_group_logs([str(broker.logs)])
    counted, every = _offsets(log)
    copy = copytree(broker.logs / "__consumer_offsets-0", tmp_path / "copy" / "__consumer_offsets-0")
    loaded = KafkaLoader(spark._jvm, jars.jars(jars.KAFKA_TOOLS)).load(copy, is_of_groups=True)
    assert counted == loaded.offsets
    assert every == loaded.all_offsets
    assert len(every) - len(counted) == 2
    (open_offset,) = [offset for offset in every if offset not in counted and offset >= loaded.last_stable_offset]
    assert open_offset == loaded.last_stable_offset < loaded.end_offset
    folded = fold_groups([log], partition_count=1)
    assert {*folded.live} == {"before", "during.committed", "during.aborted", "during.open", "after"}
    assert folded.faults == []
    # Only offsets are in transactions, which the group side does not read.
    in_transactions = {*every} - {*counted} | {offset for offset in every if loaded.types[offset] < 2}
    groups = [offset for offset in every if offset not in in_transactions]
    assert max(group.last_offset for group in folded.live.values()) == max(groups)
