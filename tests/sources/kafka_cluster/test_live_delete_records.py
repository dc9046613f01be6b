"""The file of `cutoff --delete-records`, carried out by Kafka's own tool on the state topic and on a copy of it."""

import json
import os
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from share_state.cli.main import run
from share_state.errors import SetupError
from share_state.fold.state_log import fold_log
from share_state.sources import jars
from share_state.sources.kafka_source import KafkaSource, read_cluster, read_topics
from share_state.sources.log_partition import STATE_TOPIC, LogPartition
from share_state.sources.pruned_logs import copy_log
from tests.profiles import nightly
from tests.sources.kafka_cluster.broker import Broker, running, skip_without_broker
from tests.sources.kafka_cluster.workload import Workload, share_consumers_at_work

pytestmark = pytest.mark.broker

COPY = "eu.share_group_state"
_PATIENCE = 30.0


def _delete_records(broker: Broker, file: Path) -> str:
    """Carry out a file with kafka-delete-records.sh; returns what it prints, as it exits with 0 even if it fails."""
    try:
        class_path = [*jars.jars(jars.TEST_BROKER), *jars.jars(jars.KAFKA_TOOLS)]
    except SetupError as error:
        pytest.skip(str(error))
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(map(str, class_path))]
    command += ["org.apache.kafka.tools.DeleteRecordsCommand", "--bootstrap-server", broker.address]
    done = subprocess.run([*command, "--offset-json-file", str(file)], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _copy_topic(broker: Broker, number_of_partitions: int) -> None:
    """Copy the state topic to another topic, record by record, so that offsets are the same."""
    kafka: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.address, "log_level": 0}
    admin = AdminClient(kafka)
    admin.create_topics([NewTopic(COPY, number_of_partitions, 1)])[COPY].result(_PATIENCE)
    producer = Producer(kafka | {"enable.idempotence": True})
    for log in read_cluster(f"kafka://{broker.address}").logs:
        assert log.log_start_offset == 0
        assert isinstance(log.source, KafkaSource)
        for message in log.source.messages(log):
            producer.produce(
                COPY, message.value(), message.key(), partition=log.partition or 0, timestamp=message.timestamp()[1]
            )
    assert producer.flush(_PATIENCE) == 0


def _states_of_copy(address: str) -> list[pa.Table]:
    logs = read_topics(address, None, [COPY])
    as_state = [
        LogPartition(STATE_TOPIC, one.partition, (), one.log_start_offset, source=copy_log(one).source) for one in logs
    ]
    kept = ["group_id", "topic_id", "partition", "start_offset", "end_offset", "state_batches", "last_offset"]
    by_key = [(name, "ascending") for name in ("group_id", "topic_id", "partition")]
    return [fold_log(log).states.select(kept).sort_by(by_key) for log in as_state]


@nightly("Kafka's tool in three processes")
def test_brokers_refuse_the_file_for_the_state_topic_and_take_it_for_a_copy(
    worked: Workload, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _carry_out(worked, tmp_path, capfd)


@nightly("a broker of its own, and half a minute")
def test_brokers_of_4_3_do_so_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    skip_without_broker(jars.BROKER_BEFORE_DEAD_LETTERS)
    (folder := tmp_path / "broker").mkdir()
    with (
        running(folder, release=jars.BROKER_BEFORE_DEAD_LETTERS) as broker,
        share_consumers_at_work(broker) as worked,
    ):
        _carry_out(worked, tmp_path, capfd)


def _carry_out(worked: Workload, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Carry out the file for the state topic, and for a copy of it."""
    broker, address = worked.broker, f"kafka://{worked.broker.address}"
    own, of_copy = tmp_path / "own.json", tmp_path / "copy.json"
    deadline = time.monotonic() + _PATIENCE
    # A broker records its high watermarks every 5 s; before that, a cutoff is not safe.
    while run(["cutoff", str(broker.logs), "--delete-records", str(own)]) != 0:
        assert time.monotonic() < deadline, capfd.readouterr().out
        time.sleep(1)
    assert run(["cutoff", str(broker.logs), "--delete-records", str(of_copy), "--copy-topic", COPY]) == 0
    entries = json.loads(of_copy.read_text())["partitions"]
    assert entries
    capfd.readouterr()

    said = _delete_records(broker, own)
    assert said.count("InvalidTopicException") >= len(entries)
    assert {log.log_start_offset for log in read_cluster(address).logs} == {0}

    _copy_topic(broker, len(read_cluster(address).logs))
    before = _states_of_copy(address)
    assert sum(map(len, before)) > 0
    said = _delete_records(broker, of_copy)
    for entry in entries:
        assert f"partition: {COPY}-{entry['partition']}\tlow_watermark: {entry['offset']}" in said
    starts = {log.partition: log.log_start_offset for log in read_topics(address, None, [COPY])}
    assert {entry["partition"]: entry["offset"] for entry in entries}.items() <= starts.items()
    assert _states_of_copy(address) == before


@nightly("two start-ups of Java")
def test_the_file_is_refused_for_a_running_cluster(
    worked: Workload, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "offsets.json"
    code = run(["cutoff", f"kafka://{worked.broker.address}", "--delete-records", str(target)])
    error = capfd.readouterr().err
    assert code == 2
    assert error.startswith(f"share-state: {target}: not written: brokers refuse DeleteRecords on __share_group_state")
    assert error.count("\n") == 1
    assert not target.exists()
    assert run(["cutoff", f"kafka://{worked.broker.address}"]) == 0
    assert "due for the broker's own pruning" in capfd.readouterr().out
