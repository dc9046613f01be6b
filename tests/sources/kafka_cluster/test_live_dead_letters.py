"""Dead-letter topics of a running broker of 4.4 that fail: exactly the records that were lost are found."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from tests.profiles import nightly
from tests.sources.kafka_cluster.broker import Broker, joined, running, skip_without_broker

pytestmark = [
    pytest.mark.broker,
    nightly("two brokers, and a minute of retries"),
]

_PATIENCE = 40.0
_DLQ = "errors.deadletterqueue."
_RECORDS = 9


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with dead-letter topics."""
    skip_without_broker()
    folder = tmp_path_factory.mktemp("broker")
    with running(folder, share_version=2) as started:
        yield started


def _set(admin: AdminClient, kind: Any, name: str, **configs: str) -> None:
    entries = [ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
               for key, value in configs.items()]  # fmt: skip
    for future in admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=entries)]).values():
        future.result(_PATIENCE)


def _create(admin: AdminClient, name: str, partitions: int = 1, **configs: str) -> None:
    created = admin.create_topics([NewTopic(name, partitions, 1, config=configs)])
    created[name].result(_PATIENCE)


def _configure(admin: AdminClient, group: str, dead_letter_topic: str) -> None:
    _create(admin, f"of-{group}")
    configs = {f"{_DLQ}topic.name": dead_letter_topic, "share.auto.offset.reset": "earliest"}
    _set(admin, ConfigResource.Type.GROUP, group, **configs)


def _reject_some(address: str, group: str) -> None:
    """Let a consumer of a group reject every third of _RECORDS new records, and accept the others."""
    topic = f"of-{group}"
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for number in range(_RECORDS):
        producer.produce(topic, f"{number}", partition=0)
    assert producer.flush(_PATIENCE) == 0
    consumer = ShareConsumer({"bootstrap.servers": address, "group.id": group, "log_level": 0,
                              "share.acknowledgement.mode": "explicit"})  # fmt: skip
    consumer.subscribe([topic])
    end, done = time.monotonic() + _PATIENCE, 0
    try:
        while done < _RECORDS:
            assert time.monotonic() < end, f"{group}: only {done} of {_RECORDS} records after {_PATIENCE} s"
            records = [one for one in consumer.poll(0.5) if one.error() is None]
            for one in records:
                is_rejected = (one.offset() or 0) % 3 == 1
                consumer.acknowledge(one, AcknowledgeType.REJECT if is_rejected else AcknowledgeType.ACCEPT)
            consumer.commit_sync(_PATIENCE)
            done += len(records)
    finally:
        consumer.close()


def _lost(tables: CommittedTables) -> set[tuple[str, int]]:
    return {(row["group_id"], offset) for row in tables.read("lost_dead_letters").to_pylist()
            for offset in range(row["first_offset"], row["last_offset"] + 1)}  # fmt: skip


def _unusable(tables: CommittedTables) -> dict[str, str]:
    """Group -> why its dead letters cannot be written."""
    rows = tables.read("findings").to_pylist()
    return {row["group_id"]: row["message"] for row in rows if row["rule"] == "DLQ_UNUSABLE"}


def _audited(address: str, lake: Path) -> CommittedTables:
    """The tables of an audit of the cluster, once no dead letter is being written."""
    command = ["audit", f"kafka://{address}", "--out", str(lake), "--dead-letters", f"kafka://{address}", "--quiet"]
    end = time.monotonic() + _PATIENCE
    while True:
        assert run(command) in (0, 1)
        tables = CommittedTables(str(lake))
        if None not in tables.read("archiving_ranges")["left_by"].to_pylist():
            return tables
        assert time.monotonic() < end, "dead letters are still being written"


def _check_stream(address: str, folder: Path, audited: CommittedTables) -> None:
    """What a stream that goes on from its checkpoint says of dead letters is what an audit says."""
    places = ["--out", str(folder / "live"), "--checkpoint", str(folder / "checkpoint")]
    letters = ["--dead-letters", f"kafka://{address}"]
    assert run(["stream", f"kafka://{address}", *places, *letters, "--once", "--quiet"]) in (0, 1)
    tables = CommittedTables(str(folder / "live"))
    for name in ("dead_letters", "lost_dead_letters"):
        assert sorted(map(str, tables.read(name).to_pylist())) == sorted(map(str, audited.read(name).to_pylist()))
    assert _unusable(tables) == _unusable(audited)


@pytest.mark.usefixtures("spark")
def test_exactly_the_records_whose_dead_letters_failed_are_lost(
    broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    admin, address = AdminClient({"bootstrap.servers": broker.address, "log_level": 0}), broker.address
    enabled = f"{_DLQ}group.enable"
    _create(admin, "dlq.turns", 2, **{enabled: "true"})
    _create(admin, "dlq.refuses")
    for group, topic in {"turns": "dlq.turns", "refused": "dlq.refuses", "missing": "dlq.nowhere"}.items():
        _configure(admin, group, topic)
        _reject_some(address, group)
    # The topic of the first group stops accepting dead letters, and accepts them again.
    for value in ("false", "true"):
        _check_stream(address, tmp_path, _audited(address, tmp_path / "lake"))
        _set(admin, ConfigResource.Type.TOPIC, "dlq.turns", **{enabled: value})
        _reject_some(address, "turns")
    tables = _audited(address, tmp_path / "lake")
    _check_stream(address, tmp_path, tables)
    assert _lost(tables) == {("turns", offset) for offset in (10, 13, 16)}
    # No copy holds a dead letter of the others, whose topics may have been created anew: DLQ_UNUSABLE names them.
    doubts = [note for note in tables.run["notes"] if "were written for 3 archived offsets" in note]
    assert len(doubts) == 2
    letters = tables.read("dead_letters").to_pylist()
    assert {row["offset"] for row in letters} == {1, 4, 7, 19, 22, 25}
    assert {(row["group_id"], row["archived"], row["reason"]) for row in letters} == {
        ("turns", True, "Offset rejected by client.")
    }
    unusable = _unusable(tables)
    assert unusable.keys() == {"refused", "missing"}
    assert "does not set errors.deadletterqueue.group.enable=true" in unusable["refused"]
    assert "dlq.nowhere does not exist" in unusable["missing"]
    place = ["--group", "turns", "--topic", "of-turns", "--partition", "0", "--offset"]
    for offset, text in ((19, "Dead letter: dlq.turns-0 offset 3"), (13, "no dead letter for this offset")):
        capfd.readouterr()
        command = ["explain", f"kafka://{address}", *place, str(offset), "--dead-letters", f"kafka://{address}"]
        assert run(command) == 0
        assert text in capfd.readouterr().out


def test_records_lost_by_a_leaderless_dead_letter_topic_show_once_it_is_back(broker: Broker, tmp_path: Path):
    admin, address = AdminClient({"bootstrap.servers": broker.address, "log_level": 0}), broker.address

    def leader() -> int:
        return admin.list_topics("dlq.gone", timeout=_PATIENCE).topics["dlq.gone"].partitions[0].leader

    # All but one topic is on the first broker.
    _configure(admin, "warm", "")
    _reject_some(address, "warm")
    _configure(admin, "gone", "dlq.gone")
    with joined(tmp_path, broker):
        _wait_until(lambda: 2 in admin.list_topics(timeout=_PATIENCE).brokers)
        config = {f"{_DLQ}group.enable": "true"}
        created = admin.create_topics([NewTopic("dlq.gone", 1, replica_assignment=[[2]], config=config)])
        created["dlq.gone"].result(_PATIENCE)
        _reject_some(address, "gone")
        tables = _audited(address, tmp_path / "lake")
        assert "gone" not in {group for group, _ in _lost(tables)}
    _wait_until(lambda: leader() < 0)
    _reject_some(address, "gone")
    tables = _audited(address, tmp_path / "lake")
    assert "dlq.gone has no leader for partition 0" in _unusable(tables)["gone"]
    assert "gone" not in {group for group, _ in _lost(tables)}
    assert "not among the copies" in " ".join(tables.run["notes"])
    with joined(tmp_path, broker):
        _wait_until(
            lambda: admin.list_topics("dlq.gone", timeout=_PATIENCE).topics["dlq.gone"].partitions[0].leader == 2
        )
        tables = _audited(address, tmp_path / "lake")
        assert {one for one in _lost(tables) if one[0] == "gone"} == {("gone", offset) for offset in (10, 13, 16)}


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)
