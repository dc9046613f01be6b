"""A stream of a cluster while share groups write: its tables become those of a reconstruct, whatever happens."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from share_state.cli.main import run
from share_state.config.input_spec import OPTIONS, input_spec
from share_state.delta.committed import CommittedTables
from share_state.errors import WarehouseError
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.planning import build_plan
from share_state.pipeline.reconstruct import run_reconstruct
from share_state.sources.log_partition import STATE_TOPIC
from share_state.spark.data_source import register
from tests.present import present
from tests.processes import die_with_parent
from tests.profiles import EXECUTORS, HERE, IN_SPARK, nightly
from tests.report.test_stream_metrics import scraped
from tests.sources.kafka_cluster.broker import free_ports, joined, running, source_of
from tests.sources.kafka_cluster.workload import (
    A_PARTITION,
    ACCEPT,
    Workload,
    consume,
    read_from_the_earliest,
    share_consumers_at_work,
    working_on,
)
from tests.streams import is_torn, on_each_engine, own_process, places, wait_within_a_commit
from tests.warm_commands import running_command

pytestmark = pytest.mark.broker
_PATIENCE = 120.0
RECREATED = "LOG_BEGUN_AGAIN"
TABLES = ("share_partition_state", "in_flight", "cutoff", "findings")


def _tables(lake: Path) -> dict[str, list[str]]:
    """What only the state topic says; a reconstruct also reads the groups."""
    found = CommittedTables(str(lake))
    rows = {name: found.read(name).to_pylist() for name in TABLES}
    rows["findings"] = [
        row | {"run_id": ""}
        for row in rows["findings"]
        if row["state_partition"] is not None and row["rule"] != RECREATED
    ]
    return {name: sorted(map(str, of_table)) for name, of_table in rows.items()}


def _await_equal(address: str, folder: Path, what: str) -> None:
    deadline, expected, seen = time.monotonic() + _PATIENCE, None, None
    while expected is None or seen != expected:
        assert time.monotonic() < deadline, what
        run(["reconstruct", f"kafka://{address}", "--out", str(folder / "truth"), "--quiet"])
        try:
            expected, seen = _tables(folder / "truth"), _tables(folder / "lake")
        except WarehouseError:
            # The broker pruned while the first reconstruct read it, or the stream has not begun.
            time.sleep(1)


def _await_pruning(lake: Path) -> None:
    """Wait until the coordinator has deleted records, and the stream knows."""
    deadline = time.monotonic() + _PATIENCE
    while not any(row["log_start_offset"] for row in CommittedTables(str(lake)).read("cutoff").to_pylist()):
        assert time.monotonic() < deadline
        time.sleep(1)


@contextmanager
def _streaming(engine: str, address: str, folder: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "share_state", "stream", f"kafka://{address}", "--trigger", "1s", *more]
    command += [*places(engine, folder), *own_process(engine)]
    with (
        (folder / "stderr").open("ab") as errors,
        subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            preexec_fn=die_with_parent,  # noqa: PLW1509
        ) as stream,
    ):
        try:
            yield stream
        finally:
            stream.send_signal(signal.SIGTERM)


def _write_undecodable(address: str) -> None:
    """Write a value that ends early to the state topic, as only a client of this name may."""
    producer = Producer({"bootstrap.servers": address, "client.id": "__admin_client", "log_level": 0})
    plan = build_plan(input_spec(OPTIONS, sources=[{"path": f"kafka://{address}"}]), OPTIONS)
    log = next(one for one in plan.logs if source_of(one).end_offset > one.log_start_offset)
    *_, batch = source_of(log).batches(log)
    producer.produce(STATE_TOPIC, key=batch["key"][-1].as_py(), value=b"\0\0\1", partition=present(log.partition))
    assert producer.flush(_PATIENCE) == 0


@pytest.mark.parametrize("engine", EXECUTORS, indirect=True)  # on Spark it takes a minute
def test_a_stream_of_a_cluster_leaves_the_tables_of_a_reconstruct(engine: str, worked: Workload, tmp_path: Path):
    address, lake = f"kafka://{worked.broker.address}", tmp_path / "lake"
    found, truth = dict[str, list[str]](), dict[str, list[str]]()
    for _ in range(3):
        assert run(["stream", address, *places(engine, tmp_path), "--once", "--quiet"]) in (0, 1)
        plan = build_plan(input_spec(OPTIONS, sources=[{"path": address}], judge="all"), OPTIONS)
        run_reconstruct(LocalExecutor(), plan, str(tmp_path / "truth"))
        found, truth = _tables(lake), _tables(tmp_path / "truth")
        # The broker may prune its log between the two.
        if found == truth:
            break
    assert found == truth != {}


@nightly("a broker, and a stream for each kill")
@pytest.mark.usefixtures("can_run_broker")
@on_each_engine
def test_a_killed_stream_of_a_cluster_leaves_the_tables_of_a_reconstruct(engine: str, tmp_path: Path):
    (place := tmp_path / "broker").mkdir()
    kills, drawn, lake = 3 if engine == IN_SPARK else 50, Random(engine), tmp_path / "lake"
    with (
        # Of a pruned log a reconstruct does not know how many deliveries failed before.
        running(place, share_coordinator_state_topic_prune_interval_ms=3_600_000) as broker,
        share_consumers_at_work(broker),
    ):
        command = ["stream", f"kafka://{broker.address}", *places(engine, tmp_path), *own_process(engine), "--quiet"]
        torn = 0
        for begin in range(0, kills, 10):
            with working_on(broker):
                for _ in range(begin, min(begin + 10, kills)):
                    with running_command([*command, "--trigger", "0ms"]) as stream:
                        wait_within_a_commit(lake, stream, drawn, _PATIENCE)
                        time.sleep(drawn.choice([0.0, drawn.random()]))
                    torn += is_torn(lake)
            with running_command([*command, "--trigger", "1s"]):
                _await_equal(broker.address, tmp_path, f"{begin + 10} kills")
    assert torn or engine == IN_SPARK


@nightly("a broker and a stream of its own, and minutes of waiting")
@pytest.mark.usefixtures("can_run_broker")
@on_each_engine
def test_a_stream_follows_share_groups_through_pruning_restart_and_recreation(engine: str, tmp_path: Path):
    place = tmp_path / "broker"
    place.mkdir()
    with ExitStack() as first, ExitStack() as at_work:
        broker = first.enter_context(running(place, share_coordinator_state_topic_prune_interval_ms=5000))
        (port,) = free_ports(1)
        with (
            share_consumers_at_work(broker),
            _streaming(engine, broker.address, tmp_path, "--prometheus-port", str(port)) as stream,
        ):
            kafka = {"bootstrap.servers": broker.address, "log_level": 0}
            _await_equal(broker.address, tmp_path, "a workload")
            admin = AdminClient(kafka)
            read_from_the_earliest(admin, "late", "later", "latest")
            with ExitStack() as more:
                consume(kafka, more, "late", ["orders"], A_PARTITION, lambda _: ACCEPT)
            _await_equal(broker.address, tmp_path, "a group that is new")
            _await_pruning(tmp_path / "lake")
            _await_equal(broker.address, tmp_path, "pruning")
            first.close()
            at_work.enter_context(running(place, broker))
            with ExitStack() as more:
                consume(kafka, more, "later", ["orders"], A_PARTITION, lambda _: ACCEPT)
            _await_equal(broker.address, tmp_path, "a restart of the broker")
            for future in admin.delete_topics([STATE_TOPIC]).values():
                future.result()
            with ExitStack() as more:
                consume(kafka, more, "latest", ["orders"], A_PARTITION, lambda _: ACCEPT)
            _await_equal(broker.address, tmp_path, "a topic that was recreated")
            _write_undecodable(broker.address)
            _await_equal(broker.address, tmp_path, "a record that cannot be decoded")
            rules = CommittedTables(str(tmp_path / "lake")).read("findings")["rule"].to_pylist()
            assert {RECREATED, "VALUE_MALFORMED"} <= {*rules}
            metrics = scraped(port)
            assert metrics["stream_behind_records"] == {"": 0}
            assert metrics["group_in_flight_records"].keys() >= {"latest"}
            assert stream.poll() is None
        assert stream.wait(_PATIENCE) == -signal.SIGTERM or stream.returncode == 143


def _leaders(admin: AdminClient) -> set[int]:
    """The brokers that lead partitions of the state topic."""
    topic = admin.list_topics(STATE_TOPIC, timeout=10).topics[STATE_TOPIC]
    return {partition.leader for partition in topic.partitions.values()}


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.5)


@nightly("two brokers")
@pytest.mark.usefixtures("can_run_broker")
def test_a_stream_follows_the_state_topic_to_another_leader(tmp_path: Path):
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    twice = ("offsets_topic_replication_factor", "share_coordinator_state_topic_replication_factor")
    with running(folders[0], **dict.fromkeys(twice, 2)) as broker, ExitStack() as other:
        other.enter_context(joined(folders[1], broker))
        kafka = {"bootstrap.servers": broker.address, "log_level": 0}
        admin = AdminClient(kafka)
        _wait_until(lambda: len(admin.list_topics(timeout=10).brokers) == 2)
        for future in admin.create_topics([NewTopic("orders", 4, 2)]).values():
            future.result()
        read_from_the_earliest(admin, "before", "after")
        producer = Producer(kafka)
        for number in range(4 * A_PARTITION):
            producer.produce("orders", f"{number}", partition=number % 4)
        assert producer.flush(_PATIENCE) == 0
        with _streaming(HERE, broker.address, tmp_path) as stream:
            with ExitStack() as more:
                consume(kafka, more, "before", ["orders"], A_PARTITION, lambda _: ACCEPT)
            _await_equal(broker.address, tmp_path, "two leaders")
            assert _leaders(admin) == {1, 2}
            other.close()
            _wait_until(lambda: _leaders(admin) == {1})
            with ExitStack() as more:
                consume(kafka, more, "after", ["orders"], A_PARTITION, lambda _: ACCEPT)
            _await_equal(broker.address, tmp_path, "one leader")
            groups = CommittedTables(str(tmp_path / "lake")).read("share_partition_state")["group_id"].to_pylist()
            assert {*groups} == {"before", "after"}
            assert stream.poll() is None


@nightly("two queries; the stream command reads the same source")
@pytest.mark.parametrize("table", ["decoded_records", "records"])
def test_a_query_of_ones_own_reads_the_records_of_a_cluster(
    spark: SparkSession, worked: Workload, table: str, tmp_path: Path
):
    register(spark)
    reader = spark.readStream.format("share_group_state").option("table", table).option("max_records", 20)
    stream = reader.load(f"kafka://{worked.broker.address}")
    query = stream.writeStream.format("memory").queryName(table).option("checkpointLocation", str(tmp_path / "cp"))
    query.trigger(availableNow=True).start().awaitTermination()
    seen = spark.table(table).select("offset", "value" if table == "records" else "kind").toArrow().to_pylist()
    whole = spark.read.format("share_group_state").load(f"kafka://{worked.broker.address}").toArrow()
    assert sorted(row["offset"] for row in seen) == sorted(whole["offset"].to_pylist())
    if table == "decoded_records":
        assert sorted(row["kind"] for row in seen) == sorted(whole["kind"].to_pylist())
