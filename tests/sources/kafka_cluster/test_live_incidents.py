"""Incidents of groups on a broker of 4.4.0: `why` names the cause, and the commands of its first option mend it."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from share_state.cli.main import run
from share_state.repairs.commands import KafkaTools
from tests.profiles import nightly
from tests.sources.kafka_cluster.broker import free_ports, running, skip_without_broker
from tests.sources.kafka_cluster.test_live_repair import Cluster, Group, fail_record
from tests.sources.kafka_cluster.workload import Workload

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def cluster(tools: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    skip_without_broker()
    with running(tmp_path_factory.mktemp("broker"), share_version=2) as broker:
        yield Cluster(broker.address, broker, {**tools, "BOOTSTRAP": broker.address})


def _accept(group: Group) -> None:
    """Everything is accepted, up to the last record."""
    group.consume(None, lambda seen: (group.end - 1) in seen)


def _leave_records(group: Group) -> None:
    """Some records are accepted, more are produced, and the consumers are gone."""
    group.consume(None, bool)
    group.produce(group.records)


def _fail_again(group: Group) -> None:
    """At the limit of before, this delivery would have been the last one."""
    group.consume(5, lambda seen: 5 in seen)
    group.consume(None, lambda seen: 5 in seen)


def _fill_window(group: Group) -> None:
    """The first record is released, and the others fill the window."""
    group.consume(0, lambda seen: len(set(seen)) >= 100)


def _pass_full_window(group: Group) -> None:
    """While the first record still fails, the others are delivered up to the last one."""
    group.consume(0, lambda seen: (group.records - 1) in seen)
    group.consume(None, lambda seen: 0 in seen)


def _reset(group: Group) -> None:
    _accept(group)
    _bash(group.cluster, KafkaTools(group.cluster.address).reset_to_offset(group.name, group.topic, 0, 5))


def _bash(cluster: Cluster, command: str) -> None:
    """Run commands as they are printed; Kafka's tools exit with 0 even if they fail."""
    words = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(words, env=cluster.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stdout + done.stderr


@dataclass(frozen=True)
class Incident:
    """One incident.

    Attributes:
        trouble, cause: what the first two lines say.
        action: the option that mends it.
        bring: what happens.
        then: what consumers do once the commands of the option ran.
        records, configs: of the topic and the group.
        limits: given to `why`.
    """

    trouble: str
    cause: str
    action: str
    bring: Callable[[Group], None]
    then: Callable[[Group], None] = _accept
    records: int = 20
    configs: Mapping[str, int] | None = None
    limits: tuple[str, ...] = ()


INCIDENTS = {
    "dead-consumers": Incident(
        "STOP", "records wait, and no consumer has changed the state", "START_CONSUMERS", _leave_records,
        limits=("--limit", "stall_minutes=0.001"),
    ),
    "poison": Incident(
        "POISON_RECORDS", "record 5 failed 2 of 3 deliveries: poison", "RAISE_DELIVERY_COUNT_LIMIT",
        fail_record(5, 2), _fail_again, configs={"share_delivery_count_limit": 3},
    ),
    "full-window": Incident(
        "IN_FLIGHT_LIMIT", "the in-flight window is full, and it waits for record 0",
        "RAISE_PARTITION_MAX_RECORD_LOCKS", _fill_window, _pass_full_window, 150,
        {"share_partition_max_record_locks": 100, "share_delivery_count_limit": 10},
    ),
    "reset": Incident(
        "REWIND", "15 offsets back: SPSO went from 20 to 5; its offsets were reset", "START_CONSUMERS", _reset,
    ),
}  # fmt: skip


def _why(capfd: pytest.CaptureFixture[str], group: str, address: str, *options: str) -> str:
    capfd.readouterr()
    assert run(["why", group, f"kafka://{address}", "--quiet", *options]) == 0
    return capfd.readouterr().out


@nightly("a broker of 4.4.0, and a group and a repair for each")
@pytest.mark.parametrize("name", INCIDENTS)
def test_why_names_the_cause_and_its_first_option_mends_it(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    incident = INCIDENTS[name]
    group = Group(cluster, name, f"topic.{name}", incident.records)
    group.create(**incident.configs or {})
    incident.bring(group)
    said = _why(capfd, name, cluster.address, *incident.limits).splitlines()
    first = " ".join(line.strip() for line in said[:2])
    assert first.startswith(f"{incident.trouble}: {name} topic.{name}-0: ")
    assert incident.cause in first
    assert max(len(line) for line in said if not line.startswith("  ")) <= 80
    found = json.loads(_why(capfd, name, cluster.address, *incident.limits, "--json"))
    option = found["option"]
    assert option["action"] == incident.action
    assert option["effect"]["skipped"] == []
    _bash(cluster, option["command"])
    incident.then(group)
    after = json.loads(_why(capfd, name, cluster.address, *incident.limits, "--json"))
    # A reset cannot be told from one that consumers have caught up with by its log alone.
    assert after["trouble"] in (None, "REWIND")
    assert after["effective_start_offset"] == group.end
    assert after["lag"] == 0
    assert after["last_hour"]["given_up"] == 0


@nightly("three start-ups of Java")
def test_why_asks_a_running_cluster(worked: Workload, capfd: pytest.CaptureFixture[str]) -> None:
    address = worked.broker.address
    said = _why(capfd, "pickërs", address).splitlines()
    assert said[0].startswith("NO_MEMBERS: pickërs ")
    found = json.loads(_why(capfd, "pickërs", address, "--json"))
    assert found["option"]["action"] == "START_CONSUMERS"
    assert f"--bootstrap-server {address} --describe" in found["option"]["command"]
    assert found["history"]
    capfd.readouterr()
    assert run(["why", "pickers", f"kafka://{address}", "--quiet"]) == 2
    refused = capfd.readouterr()
    assert refused.out == ""
    assert refused.err.startswith("share-state: group pickers: not found")
    assert "pickërs" in refused.err


def test_why_without_a_broker_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    assert run(["why", "orders", f"kafka://127.0.0.1:{port}", "--quiet"]) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"share-state: kafka://127.0.0.1:{port}: no broker answers")
    assert said.err.count("\n") == 1
