"""What a cluster refuses is one clear line, and never shows a secret."""

import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from share_state.errors import InputError, PrunedError
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.task import OutputSpec
from share_state.sources.kafka_client import ClientProperties, read_client_properties
from share_state.sources.kafka_source import KafkaSource, read_cluster
from share_state.sources.log_partition import LogPartition
from share_state.sources.segments import read_chunks
from share_state.spark.spark_executor import SparkExecutor
from tests.profiles import nightly
from tests.sources.kafka_cluster.broker import PASSWORDS, properties_of
from tests.sources.kafka_cluster.workload import Workload


def refused(address: str, properties: str | None = None) -> str:
    """The message of a refusal, which must hold no password."""
    with pytest.raises(InputError) as error:
        read_cluster(f"kafka://{address}", properties)
    said = str(error.value)
    assert "\n" not in said
    assert not any(password in said for password in PASSWORDS.values())
    return said


def test_a_broker_that_is_down_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    begun = time.monotonic()
    said = refused(f"127.0.0.1:{port}")
    assert said.startswith(f"kafka://127.0.0.1:{port}: no broker answers")
    assert "Connection refused" in said
    assert time.monotonic() - begun < 10


def test_a_host_that_does_not_exist_is_named() -> None:
    assert "no broker answers (Failed to resolve 'nowhere.invalid:9092'" in refused("nowhere.invalid:9092")


@pytest.mark.broker
def test_one_dead_broker_of_several_is_no_matter(worked: Workload) -> None:
    assert read_cluster(f"kafka://127.0.0.1:1,{worked.broker.address}").state_partitions == 3


@pytest.mark.broker
def test_a_cluster_without_the_topic_is_told(worked: Workload) -> None:
    said = f"kafka://{worked.broker.address}: __share_group_state: no such topic"
    assert worked.before.startswith(said)


@pytest.mark.broker
def test_a_user_without_rights_is_told_which_it_lacks(worked: Workload, tmp_path: Path) -> None:
    said = refused(worked.broker.secured, properties_of(worked.broker, "stranger", tmp_path))
    assert said.endswith("grant this user DESCRIBE and READ on the topic")


@pytest.mark.broker
def test_a_wrong_password_is_told_and_not_shown(worked: Workload, tmp_path: Path) -> None:
    file = Path(properties_of(worked.broker, "auditor", tmp_path))
    file.write_text(file.read_text(encoding="utf-8").replace(PASSWORDS["auditor"], "n0t-it"), encoding="utf-8")
    said = refused(worked.broker.secured, str(file))
    assert "the broker refuses this user" in said
    assert "n0t-it" not in said


@pytest.mark.broker
def test_a_certificate_that_is_not_trusted_is_told(worked: Workload, tmp_path: Path) -> None:
    file = Path(properties_of(worked.broker, "auditor", tmp_path))
    kept = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("ssl.truststore")]
    file.write_text("\n".join(kept), encoding="utf-8")
    assert "certificate" in refused(worked.broker.secured, str(file))


@pytest.mark.broker
def test_a_listener_that_wants_a_user_is_not_waited_for(worked: Workload) -> None:
    assert "security.protocol" in refused(worked.broker.secured)


@pytest.mark.broker
def test_records_deleted_while_they_are_read_are_told(worked: Workload) -> None:
    kafka = {"bootstrap.servers": worked.broker.address, "log_level": 0}
    admin, producer = AdminClient(kafka), Producer(kafka)
    admin.create_topics([NewTopic("trimmed", 1, 1)])["trimmed"].result(10)
    for number in range(10):
        producer.produce("trimmed", f"{number}")
    assert producer.flush(10) == 0
    for future in admin.delete_records([TopicPartition("trimmed", 0, 5)]).values():
        future.result(10)
    address = f"kafka://{worked.broker.address}"
    log = LogPartition("trimmed", 0, (), log_start_offset=0, source=KafkaSource(address, 10, ClientProperties()))
    with pytest.raises(PrunedError, match="trimmed-0: the broker deleted records while they were read; run") as error:
        list(read_chunks(log))
    rest = replace(log, log_start_offset=5, source=KafkaSource(address, 10, ClientProperties(), is_extended=True))
    assert error.value.log == rest
    (chunk,) = read_chunks(error.value.log)
    assert chunk.records is not None
    assert chunk.records["offset"].tolist() == [5, 6, 7, 8, 9]
    # Whatever was to be read, the state may be in the records that came later.
    for end in (3, 7):
        early = replace(log, source=KafkaSource(address, end, ClientProperties()))
        with pytest.raises(PrunedError) as error:
            list(read_chunks(early))
        assert error.value.log == rest


@nightly("a plan in Spark")
@pytest.mark.broker
def test_a_refusal_inside_a_task_is_one_line_too(
    spark: SparkSession, worked: Workload, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    properties = read_client_properties(properties_of(worked.broker, "stranger", tmp_path))
    stranger = KafkaSource(f"kafka://{worked.broker.secured}", 10, properties)
    log = LogPartition("__share_group_state", 0, (), log_start_offset=0, source=stranger)
    with pytest.raises(PySparkException, match=r"share_state\.errors\.InputError: kafka://.* not authorized") as error:
        SparkExecutor(spark).fold(FoldPlan([log]), OutputSpec(())).collect()
    assert PASSWORDS["stranger"] not in str(error.value) + "".join(capfd.readouterr())
