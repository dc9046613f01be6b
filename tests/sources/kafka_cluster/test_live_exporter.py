"""The metrics of `share-state stream --no-tables` beside a broker: what its own tool describes and clients counted."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from share_state.sources.log_partition import STATE_TOPIC
from tests.processes import die_with_parent
from tests.profiles import nightly
from tests.sources.kafka_cluster.broker import free_ports, running
from tests.sources.kafka_cluster.workload import ACCEPT, REJECT, RELEASE, consume, read_from_the_earliest

pytestmark = pytest.mark.broker
_PATIENCE = 150.0
_GROUPS = ("acceptors", "pickers", "newcomers")
_OUTCOMES = {ACCEPT: "acknowledged", REJECT: "rejected", RELEASE: "released"}

Offsets = dict[tuple[str, str, str], tuple[int, int]]
"""Group, topic and partition -> start offset and lag."""


@contextmanager
def _exporter(address: str, port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "share_state", "stream", f"kafka://{address}", "--no-tables", "--trigger", "1s"]
    command += ["--prometheus-port", str(port), "--checkpoint", str(folder / "state")]
    with subprocess.Popen(command, preexec_fn=die_with_parent) as process:  # noqa: PLW1509
        try:
            yield process
        finally:
            process.kill()


def _samples(port: int, name: str, *labels: str) -> dict[tuple[str, ...], int]:
    """Values of these labels -> value of a metric, of what is scraped now."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        families = text_string_to_metric_families(response.read().decode())
    return {
        tuple(sample.labels[label] for label in labels): int(sample.value)
        for family in families
        for sample in family.samples
        if sample.name == f"share_state_group_{name}"
    }


def _shown(port: int) -> Offsets:
    labels = ("group_id", "topic_name", "partition_id")
    starts, lags = (_samples(port, f"topic_partition_{name}", *labels) for name in ("start_offset", "lag"))
    return {(group, topic, number): (starts[group, topic, number], lag) for (group, topic, number), lag in lags.items()}


def _described(address: str, group: str, tools: Mapping[str, str]) -> Offsets:
    """What `kafka-share-groups.sh --describe --offsets` prints."""
    command = ["kafka-share-groups.sh", "--bootstrap-server", address, "--describe", "--group", group, "--offsets"]
    done = subprocess.run(command, env=dict(tools), capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
    head = next(row for row in rows if row[0] == "GROUP")
    named = [dict(zip(head, row, strict=True)) for row in rows if row[0] == group]
    return {(row["GROUP"], row["TOPIC"], row["PARTITION"]): (int(row["START-OFFSET"]), int(row["LAG"]))
            for row in named if row["START-OFFSET"] != "-"}  # fmt: skip


def _await_described(address: str, group: str, port: int, tools: Mapping[str, str]) -> None:
    deadline, seen, expected = time.monotonic() + _PATIENCE, Offsets(), Offsets()
    while not expected or seen != expected:
        assert time.monotonic() < deadline, (group, seen, expected)
        expected = _described(address, group, tools)
        time.sleep(2)
        try:
            seen = {key: value for key, value in _shown(port).items() if key in expected}
        except OSError:
            continue


class _Counted:
    """Acknowledges records and counts how."""

    def __init__(self, kinds: tuple[AcknowledgeType, ...]) -> None:
        self._kinds = kinds
        self.counts = Counter[str]()

    def __call__(self, one: Message) -> AcknowledgeType:
        kind = self._kinds[(one.offset() or 0) % len(self._kinds)]
        self.counts[_OUTCOMES[kind]] += 1
        return kind


def _work(address: str, group: str, records: int, *kinds: AcknowledgeType) -> Counter[str]:
    """Produce records and let a group acknowledge as many; how it did."""
    kafka = {"bootstrap.servers": address, "log_level": 0}
    producer, counted = Producer(kafka), _Counted(kinds)
    for number in range(records):
        producer.produce("orders", f"{number}", partition=number % 2)
    assert producer.flush(_PATIENCE) == 0
    with ExitStack() as stack:
        consume(kafka, stack, group, ["orders"], records, counted)
    return counted.counts


def _await_outcomes(port: int, group: str, expected: Counter[str]) -> None:
    deadline, seen = time.monotonic() + _PATIENCE, Counter[str]()
    while seen != expected:
        assert time.monotonic() < deadline, (seen, expected)
        time.sleep(1)
        totals = _samples(port, "outcomes_total", "group_id", "outcome")
        seen = Counter({outcome: count for (of, outcome), count in totals.items() if of == group and count})


@nightly("a broker of its own, and minutes of waiting")
@pytest.mark.usefixtures("can_run_broker")
def test_metrics_are_what_the_broker_describes_and_clients_acknowledged(tools: Mapping[str, str], tmp_path: Path):
    place, (port,) = tmp_path / "broker", free_ports(1)
    place.mkdir()
    with ExitStack() as first, ExitStack() as at_work:
        broker = first.enter_context(running(place))
        address = broker.address
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result()
        read_from_the_earliest(admin, *_GROUPS)
        with _exporter(address, port, tmp_path) as exporter:
            totals = _work(address, "acceptors", 200, ACCEPT)
            _await_described(address, "acceptors", port, tools)
            _await_outcomes(port, "acceptors", totals)
            counted = _work(address, "pickers", 100, ACCEPT, REJECT, ACCEPT)
            _await_described(address, "pickers", port, tools)
            _await_outcomes(port, "pickers", counted)
            first.close()
            at_work.enter_context(running(place, broker))
            counted += _work(address, "pickers", 80, ACCEPT)
            _await_described(address, "pickers", port, tools)
            _await_outcomes(port, "pickers", counted)
            for future in admin.delete_topics([STATE_TOPIC]).values():
                future.result()
            # Brokers initialize the state of new groups only.
            _work(address, "newcomers", 40, ACCEPT)
            _await_described(address, "newcomers", port, tools)
            assert exporter.poll() is None
