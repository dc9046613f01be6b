"""The metadata log is folded as Kafka's MetadataDelta and MetadataImage do, on random histories of a cluster."""

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.kafka.metadata_records import ResourceType
from share_state.kafka.record_batches import locate_records
from share_state.sources import jars
from share_state.sources.cluster_metadata import KEPT_CONFIGS, ClusterMetadata
from share_state.sources.log_partition import LogPartition, Segment
from share_state.sources.metadata_log import read_metadata_log
from share_state.sources.segments import read_chunks
from tests.differential.kafka_metadata import fold_in_kafka
from tests.kafka.batches import Record
from tests.sources.cluster_facts.metadata_writer import (
    config,
    message,
    partition,
    removed,
    topic,
    uuid,
    write_metadata_log,
    write_snapshot,
)

BROKERS = Path(__file__).parents[1] / "sources" / "cluster_facts"
KEYS = (*KEPT_CONFIGS[:3], "share.delivery.count.limit", "ssl.key.password")


def history(seed: int, length: int) -> list[Record]:
    """Records that a controller could write: nothing changes that does not exist."""
    draw, records = random.Random(seed), [message("feature_level_record", name="metadata.version", feature_level=25)]
    live, brokers, count = dict[int, tuple[str, int]](), set[int](), 0
    for _ in range(length):
        kind = draw.randrange(9)
        number = draw.choice([*live]) if live else None
        if kind == 0 or number is None:
            name = f"t{draw.randrange(6)}"
            if name not in {used for used, _ in live.values()}:
                count += 1
                live[count] = name, 0
                records.append(topic(count, name))
        elif kind == 1:
            name, partitions = live[number]
            live[number] = name, partitions + 1
            records.append(partition(number, partitions, draw.randrange(-1, 4), draw.randrange(9), draw.randrange(3)))
        elif kind in (2, 3) and live[number][1]:
            changes: dict[str, Any] = draw.choice(
                [{"isr": [1, 2, 3][: draw.randrange(1, 4)]}, {"leader": draw.randrange(-2, 4)}, {"replicas": [1]}]
            )
            place = draw.randrange(live[number][1])
            version = draw.randrange(3)
            records.append(
                message("partition_change_record", version, partition_id=place, topic_id=uuid(number), **changes)
            )
        elif kind == 4 and draw.random() < 0.3:
            del live[number]
            records.append(removed(number))
        elif kind in (5, 6):
            resource, name = draw.choice([(2, live[number][0]), (32, f"g{draw.randrange(3)}"), (4, ""), (4, "1")])
            records.append(config(resource, name, draw.choice(KEYS), draw.choice([None, "1", "2"])))
        elif kind == 7:
            name = draw.choice(("share.version", "group.version"))
            records.append(message("feature_level_record", name=name, feature_level=draw.randrange(3)))
        elif kind == 8:
            records.append(_of_broker(draw, brokers, draw.randrange(1, 4)))
    return records


def _of_broker(draw: random.Random, brokers: set[int], broker: int) -> Record:
    if broker not in brokers:
        brokers.add(broker)
        return message(
            "register_broker_record", broker_id=broker, incarnation_id=uuid(broker), broker_epoch=broker, features=[],
            end_points=[{"name": "P", "host": "h", "port": 9, "security_protocol": 0}], rack=None,
        )  # fmt: skip
    if draw.random() < 0.2:
        brokers.remove(broker)
        return message("unregister_broker_record", broker_id=broker, broker_epoch=broker)
    if draw.random() < 0.3:
        return message(draw.choice(("fence_broker_record", "unfence_broker_record")), id=broker, epoch=broker)
    fenced = draw.choice((-1, 0, 1))
    return message("broker_registration_change_record", broker_id=broker, broker_epoch=broker, fenced=fenced)


def image(metadata: ClusterMetadata) -> dict[str, Any]:
    """Our fold in the shape of Kafka's."""
    live = metadata.live_topics
    topics = {row["topic_id"]: [row["topic"], {}] for row in live.to_pylist()}
    ids = metadata.topics["topic_id"].to_pylist()
    for owner, number, *facts in metadata.partitions.tolist():
        topics[ids[owner]][1][str(number)] = facts
    configs = {f"{int(kind)} {name}": data for kind in ResourceType for name, data in metadata.configs_of(kind).items()}
    brokers = {str(broker): fenced for broker, fenced in metadata.brokers.items()}
    # Kafka's FeaturesImage holds the metadata version apart.
    features = {name: level for name, level in metadata.features.items() if name != "metadata.version"}
    assert live["partitions"].to_pylist() == [len(partitions) for _, partitions in topics.values()]
    return {"topics": topics, "configs": configs, "features": features, "brokers": brokers}


def only_kept(found: dict[str, Any]) -> dict[str, Any]:
    """Kafka's image without the configs that we do not keep."""
    configs = {
        name: kept
        for name, data in found["configs"].items()
        if (kept := {key: value for key, value in data.items() if key in KEPT_CONFIGS})
    }
    return {**found, "configs": configs}


@given(seed=st.integers(0, 2**32), length=st.integers(1, 150), cut=st.floats(0, 1))
def test_random_histories_give_the_image_of_kafka(spark, seed, length, cut):
    records = history(seed, length)
    expected = only_kept(fold_in_kafka(spark._jvm, jars.jars(jars.KAFKA), [one.value or b"" for one in records]))
    with tempfile.TemporaryDirectory() as folder:
        place = write_metadata_log(Path(folder), [records[at : at + 7] for at in range(0, len(records), 7)])
        assert image(read_metadata_log(place)) == expected
        counted = read_metadata_log(place, partitions_of=["t1"]).live_topics
        assert counted == read_metadata_log(place).live_topics
        # The same records, the first part of them in a snapshot.
        first = max(1, int(cut * len(records)))
        write_snapshot(Path(folder), first, records[:first])
        assert image(read_metadata_log(place)) == expected


@pytest.mark.parametrize(("broker", "topics"), [("whole-broker", 8), ("broker-4.0.2", 6)])
def test_the_log_of_a_real_broker_gives_the_image_of_kafka(spark, broker, topics):
    folder = BROKERS / broker / "__cluster_metadata-0"
    snapshot = max(folder.glob("*.checkpoint"))
    start = int(snapshot.name.partition("-")[0])
    values = list[bytes]()
    for path, first in [(snapshot, 0), *((segment, start) for segment in sorted(folder.glob("*.log")))]:
        log = LogPartition("__cluster_metadata", 0, (Segment(str(path), 0, path.stat().st_size),), 0)
        for chunk in read_chunks(log):
            for row in locate_records(chunk.data, chunk.batches):
                at, size = int(row["value_at"]), int(row["value_size"])
                value = chunk.data[at : at + size].tobytes()
                # MetadataDelta does not take the markers of transactions, which the loader handles.
                if row["offset"] >= first and value[1] not in (23, 24):
                    values.append(value)
    expected = only_kept(fold_in_kafka(spark._jvm, jars.jars(jars.KAFKA), values))
    assert len(expected["topics"]) == topics
    assert image(read_metadata_log(folder)) == expected
