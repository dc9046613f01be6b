"""Dead letters of a 4.4 broker that cannot be written: a plan is made, and what it foretells comes true."""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import share_state
from share_state.cli.main import run
from tests.profiles import nightly
from tests.sources.kafka_cluster.broker import carry_out, joined, running, skip_without_broker
from tests.sources.kafka_cluster.test_live_dead_letters import _DLQ, _configure, _create, _reject_some, _wait_until

pytestmark = [
    pytest.mark.broker,
    nightly("three starts of brokers, and a minute of retries"),
]


def _plan(address: str, group: str, path: Path, *options: str) -> list[dict[str, Any]]:
    """The plan as data; `path`, which ends in .json, and the script beside it hold it."""
    words = ["repair", f"kafka://{address}", f"--group={group}", "--quiet", *options]
    for out in (path, path.with_suffix(".sh")):
        assert run([*words, "--out", str(out), "--set", "limits.archiving_seconds=0"]) == 0
    return json.loads(path.read_text(encoding="utf-8"))["share_partitions"]


def _start(address: str, group: str) -> int:
    states = share_state.reconstruct(f"kafka://{address}").share_partition_state.to_pylist()
    return next(row["effective_start_offset"] for row in states if row["group_id"] == group)


def test_what_waits_in_archiving_finishes_as_foretold(tools: Mapping[str, str], tmp_path: Path) -> None:
    skip_without_broker()
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with ExitStack() as stack:
        broker = stack.enter_context(running(first, share_version=2))
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        for group in ("warm", "waits", "restarted"):
            _configure(admin, group, "" if group == "warm" else "dlq.gone")
        _create(admin, "dlq.refuses")
        _configure(admin, "refused", "dlq.refuses")
        _reject_some(broker.address, "warm")
        with joined(second, broker):
            _wait_until(lambda: 2 in admin.list_topics(timeout=40).brokers)
            config = {f"{_DLQ}group.enable": "true"}
            created = admin.create_topics([NewTopic("dlq.gone", 1, replica_assignment=[[2]], config=config)])
            created["dlq.gone"].result(40)
        _wait_until(lambda: admin.list_topics("dlq.gone", timeout=40).topics["dlq.gone"].partitions[0].leader < 0)
        _reject_some(broker.address, "refused")
        letters = ("--dead-letters", f"kafka://{broker.address}")
        (refused,) = _plan(broker.address, "refused", tmp_path / "refused.json", *letters)
        assert refused["trouble"] == "DLQ_UNUSABLE"
        assert "does not set errors.deadletterqueue.group.enable=true" in refused["sentence"]
        assert [option["action"] for option in refused["options"]] == ["FIX_DLQ"]
        carry_out({**tools, "BOOTSTRAP": broker.address, "DLQ_TOPIC": "dlq.refuses"}, tmp_path / "refused.sh", "1.1")
        # What was archived before is lost; the next rejected records get their dead letters.
        _reject_some(broker.address, "refused")
        _until(lambda: _dead_letters(broker.address, "dlq.refuses") == 3)
        assert not _plan(broker.address, "refused", tmp_path / "fixed.json", *letters)
        # The topic has no leader: each dead letter is tried for a minute.
        _reject_some(broker.address, "waits")
        (waits,) = _plan(broker.address, "waits", tmp_path / "waits.json")
        assert (waits["trouble"], waits["now"]["start_offset"]) == ("ARCHIVING_STUCK", 1)
        option = waits["options"][0]
        # Its leader still has the records in memory; for the plan it may have changed.
        assert (option["action"], option["effect"]["start_offset"]) == ("START_CONSUMERS", 9)
        _until(lambda: _start(broker.address, "waits") == 9)
        _reject_some(broker.address, "restarted")
        (restarted,) = _plan(broker.address, "restarted", tmp_path / "restarted.json")
        assert restarted["now"]["in_flight"]["ARCHIVING"] == 3
        stack.close()
        stack.enter_context(running(first, broker))
        option = next(one for one in restarted["options"] if one["action"] == "RESTART_LEADER")
        stack.enter_context(joined(second, broker))
        # A share-partition is loaded when a consumer fetches.
        _reject_some(broker.address, "restarted")
        _until(lambda: _start(broker.address, "restarted") >= option["effect"]["start_offset"] == 9)


def _dead_letters(address: str, topic: str) -> int:
    reader = Consumer({"bootstrap.servers": address, "group.id": "reader", "log_level": 0})
    _, end = reader.get_watermark_offsets(TopicPartition(topic, 0))
    reader.close()
    return end


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(1)
