"""A Spark standalone cluster on this machine: a master and workers, each a process, for measurements and tests."""

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from bench.kafka_baseline import BenchError

SPARK = Path(pyspark.__file__).parent
QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"}
"""For the JVMs of the cluster and their drivers: most of what they compute is their start."""
_PATIENCE = 60


@contextmanager
def standalone_cluster(folder: Path, environments: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Start a cluster and yield the address of its master; it ends on exit.

    Args:
        folder: for logs, and a folder per worker, and in those one per executor.
        environments: variables of each worker, which has one core and 1 GB, and of its executors.
    Raises:
        BenchError: if a process does not start.
    """
    port, host = _free_port(), "127.0.0.1"
    master = ("--port", str(port), "--webui-port", "0")
    started = [_start(folder, "master", host, {}, "deploy.master.Master", *master)]
    try:
        _wait_for(folder / "master.log", "I have been elected leader")
        for number, environment in enumerate(environments):
            where = str(folder / f"worker-{number}")
            options = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", where)
            # Spark runs no copy of a slow task on the host of the task.
            own_host, address = f"127.0.0.{number + 1}", f"spark://{host}:{port}"
            worker = ("deploy.worker.Worker", *options, address)
            started.append(_start(folder, f"worker-{number}", own_host, environment, *worker))
        for number in range(len(environments)):
            _wait_for(folder / f"worker-{number}.log", "Successfully registered with master")
        yield f"spark://{host}:{port}"
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(_PATIENCE)


def _start(
    folder: Path, name: str, host: str, environment: Mapping[str, str], main: str, *options: str
) -> subprocess.Popen[bytes]:
    variables = os.environ | {"SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": host, "SPARK_NO_DAEMONIZE": "1"}
    variables |= QUICK_JAVA
    # What is on the caller's own path must not reach the workers: they run what is sent to them.
    for variable in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        variables.pop(variable, None)
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.{main}", "--host", host, *options]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, env=variables | environment, stdout=log, stderr=log)


def _wait_for(log: Path, said: str) -> None:
    until = time.monotonic() + _PATIENCE
    while not re.search(said, log.read_text(errors="replace")):
        if time.monotonic() > until:
            end = log.read_text(errors="replace")[-2000:]
            raise BenchError(f"{log.name}: never said {said!r}: {end}")
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
