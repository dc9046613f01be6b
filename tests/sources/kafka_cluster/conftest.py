"""One broker for the tests of a run, with what share consumers left on it; skipped with a reason where none can run."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from share_state.errors import SetupError
from share_state.fold.fold_options import FoldOptions
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.reconstruct import run_reconstruct
from share_state.sources import jars
from share_state.sources.kafka_source import read_cluster
from share_state.sources.partition_count import PartitionCount
from share_state.spark.spark_executor import SparkExecutor
from tests.profiles import by_profile
from tests.sources.kafka_cluster.broker import Broker, properties_of, running, skip_without_broker
from tests.sources.kafka_cluster.workload import Workload, share_consumers_at_work

_TOOLS = {
    "kafka-console-share-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-share-groups.sh": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-configs.sh": "org.apache.kafka.tools.ConfigCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
_TOOLS_OF_4_3 = _TOOLS | {"kafka-configs.sh": "kafka.admin.ConfigCommand"}
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


@pytest.fixture(scope="session")
def can_run_broker() -> None:
    """Skips what needs a broker where none can run."""
    skip_without_broker()


@pytest.fixture(scope="session")
def broker(can_run_broker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker without any topic of ours."""
    del can_run_broker
    with running(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture(scope="session")
def worked(broker: Broker) -> Iterator[Workload]:
    """The broker with share-group state of every kind; some records are in flight until the run ends."""
    with share_consumers_at_work(broker) as workload:
        yield workload


@pytest.fixture(scope="session")
def warehouse(request: pytest.FixtureRequest, worked: Workload, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tables of the broker, read over its secured listener, at night by Spark."""
    tasks = by_profile(LocalExecutor, lambda: SparkExecutor(request.getfixturevalue("spark")))()
    folder = tmp_path_factory.mktemp("lake")
    live = read_cluster(f"kafka://{worked.broker.secured}", properties_of(worked.broker, "auditor", folder))
    assert live.topics is not None
    options = FoldOptions(topics=live.topics, partition_count=PartitionCount(live.state_partitions))
    work = FoldPlan(logs=live.logs, options=options)
    run_reconstruct(tasks, work, str(folder / "live"))
    return str(folder / "live")


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a shell that finds Kafka's tools."""
    return _environment(tmp_path_factory.mktemp("tools"), _TOOLS, jars.KAFKA_TOOLS)


@pytest.fixture(scope="session")
def tools_of_4_3(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a shell that finds the tools of 4.3.1, which set no offsets."""
    sets = jars.BROKER_BEFORE_DEAD_LETTERS, jars.TOOLS_BEFORE_RESETS
    return _environment(tmp_path_factory.mktemp("tools"), _TOOLS_OF_4_3, *sets)


def _environment(folder: Path, tools: Mapping[str, str], *sets: str) -> Mapping[str, str]:
    """The environment of a shell that finds Kafka's tools (name -> class) in a folder, with sets of jars."""
    if shutil.which("jshell") is None:
        pytest.skip("no `jshell` on the PATH: a JDK has it")
    try:
        needed = [jar for name in sets for jar in jars.jars(name)]
    except SetupError as error:
        pytest.skip(str(error))
    class_path = os.pathsep.join(map(str, needed))
    for name, main in tools.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec java {_JAVA_OPTIONS} -cp "{class_path}" {main} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    # The JVM takes the encoding of arguments from the locale.
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    return environment | {"KAFKA_LIBS": str(needed[0].parent), "HOME": str(folder)}
