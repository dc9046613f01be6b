"""Kafka's own tool of 4.4.0 sets start offsets as a plan or a backup says, on a broker of 4.4.0."""

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from share_state.cli.main import run
from share_state.kafka.releases import LATEST
from share_state.repairs.commands import KafkaTools
from tests.profiles import nightly
from tests.sources.kafka_cluster.broker import carry_out, running, skip_without_broker
from tests.sources.kafka_cluster.test_live_repair import Cluster, Group, fail_record

pytestmark = [pytest.mark.broker, nightly("a broker of 4.4.0, and a dozen start-ups of Java")]


@pytest.fixture(scope="module")
def cluster(tools: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    skip_without_broker()
    with running(tmp_path_factory.mktemp("broker"), share_version=2) as broker:
        yield Cluster(broker.address, broker, {**tools, "BOOTSTRAP": broker.address})


def _bash(cluster: Cluster, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euc", command], env=cluster.environment, capture_output=True, text=True, check=False
    )


def test_a_plan_for_4_4_moves_the_start_by_kafkas_tool(cluster: Cluster, tmp_path: Path) -> None:
    group = Group(cluster, '-it\'s "g" \té', "topic.moved", 20)
    group.create(share_delivery_count_limit=3)
    fail_record(5, 2)(group)
    plan = tmp_path / "plan.json"
    for out in (plan, plan.with_suffix(".sh")):
        words = ["repair", f"kafka://{cluster.address}", f"--group={group.name}", "--release=4.4", "--quiet"]
        assert run([*words, f"--out={out}"]) == 0
    (found,) = json.loads(plan.read_text(encoding="utf-8"))["share_partitions"]
    place, option = next((n, one) for n, one in enumerate(found["options"], 1) if one["action"] == "MOVE_START")
    assert "--to-offset" in option["command"]
    carry_out(cluster.environment, plan.with_suffix(".sh"), f"1.{place}")
    state, in_flight, _ = group.state()
    assert state is not None
    assert (state["effective_start_offset"], in_flight) == (option["effect"]["start_offset"], {})
    # The tool moves an offset that the topic does not have to its end, and exits with 0.
    done = _bash(cluster, KafkaTools(cluster.address).reset_to_offset(group.name, group.topic, 0, 100))
    assert done.returncode == 1
    assert "the start offset is 20, not 100" in done.stderr
    later, _, _ = group.state()
    assert later is not None
    assert later["effective_start_offset"] == 20
    # A second reset of an empty group keeps the state epoch, as the table of releases says.
    assert later["snapshot_epoch"] > state["snapshot_epoch"]
    assert (later["state_epoch"] > state["state_epoch"]) == LATEST.reset_raises_epoch


def test_groups_are_restored_from_a_file_of_any_moment(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    groups = [Group(cluster, 'a, "b" c', "topic.first", 12), Group(cluster, "plain", "topic.second", 12)]
    for group in groups:
        group.create()
        fail_record(4, 1)(group)
    moment = datetime.now(UTC)
    time.sleep(0.1)
    for group in groups:
        group.consume(None, lambda seen: 4 in seen)
    capfd.readouterr()
    out = tmp_path / "offsets.csv"
    words = [f"--as-of-time={moment.isoformat()}", f"--out={out}", "--json", "--quiet"]
    words += [f"--group={group.name}" for group in groups]
    assert run(["offsets", f"kafka://{cluster.address}", *words]) == 0
    said = json.loads(capfd.readouterr().out)
    assert out.read_text() == '"a, ""b"" c",topic.first,0,4\nplain,topic.second,0,4\n'
    assert [one["delivered_again"] for one in said["offsets"]] == [[[4, 11]], [[4, 11]]]
    for group in groups:
        done = _bash(cluster, said["restore"][group.name])
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Error" not in done.stdout
        state, in_flight, _ = group.state()
        assert state is not None
        assert (state["effective_start_offset"], in_flight) == (4, {})
        group.consume(None, lambda seen: set(seen) == set(range(4, 12)))
    # What the check of a restore that did nothing finds.
    out.write_text(out.read_text().replace("second,0,4", "second,0,3"))
    check = said["restore"]["plain"].partition("\n")[2]
    done = _bash(cluster, check)
    assert (done.returncode, "topic.second 0: the start offset is 4, not 3" in done.stderr) == (1, True), done.stderr
