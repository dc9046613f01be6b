"""A Spark standalone cluster on this machine, a master and two workers, each a process; and the package as a wheel."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

import share_state
from share_state.jit import compile as compile_module
from tests.truth import DATA

SPARK = Path(pyspark.__file__).parent
CHECKOUT = Path(__file__).parents[3]
EXPORT = DATA / "4.3.1/chaos"
QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"}
"""For the JVMs of the cluster and their drivers: most of what they compute is their start."""
_PATIENCE = 60


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster.

    Attributes:
        address: of its master.
        work: the folder with a folder a worker, and in those one an executor.
        kernels: where executors are told to keep compiled kernels.
        missing: those that the tests' own process has compiled, and executors must compile.
    """

    address: str
    work: Path
    kernels: Path
    missing: frozenset[Path]


@dataclass(frozen=True, slots=True)
class Installed:
    """The package, installed from a wheel of this checkout.

    Attributes:
        wheel: the file.
        folder: where what it holds lies, and nothing else.
    """

    wheel: Path
    folder: Path


@pytest.fixture(scope="package")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    _pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder), str(CHECKOUT))
    (wheel,) = folder.glob("share_state-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return Installed(wheel, folder / "installed")


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    port = _free_port()
    host, master = "127.0.0.1", ("--port", str(port), "--webui-port", "0")
    started = [_started(folder, "master", host, "deploy.master.Master", *master)]
    try:
        _wait_for(folder / "master.log", "I have been elected leader")
        for number in range(2):
            where = str(folder / f"worker-{number}")
            options = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", where)
            # Spark runs no copy of a slow task on the host of the task.
            options = (f"127.0.0.{number + 1}", "deploy.worker.Worker", *options, f"spark://{host}:{port}")
            started.append(_started(folder, f"worker-{number}", *options))
        for number in range(2):
            _wait_for(folder / f"worker-{number}.log", "Successfully registered with master")
        yield Cluster(f"spark://127.0.0.1:{port}", folder, folder / "kernels", _seeded(folder / "kernels"))
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(_PATIENCE)


def _seeded(kernels: Path) -> frozenset[Path]:
    """Copy the kernels of this process, so that a job takes seconds, but for those of one module: their paths."""
    share_state.reconstruct(EXPORT)
    compiled = compile_module._kernel_folder()
    assert compiled is not None
    found = set[Path]()

    def left_out(folder: str, names: list[str]) -> list[str]:
        out = [name for name in names if name.startswith("share_partition_keys.")]
        found.update(kernels / "share-state/kernels" / Path(folder, name).relative_to(compiled.parent) for name in out)
        return out

    shutil.copytree(compiled, kernels / "share-state/kernels" / compiled.name, ignore=left_out)
    return frozenset(path for path in found if path.suffix == ".nbi")


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _started(folder: Path, name: str, host: str, main: str, *options: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": host, "SPARK_NO_DAEMONIZE": "1"}
    environment |= QUICK_JAVA
    # What is on the tests' own path must not reach the workers: they are to run what was shipped, and to show it.
    for variable in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(variable, None)
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.{main}", "--host", host, *options]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def _wait_for(log: Path, said: str) -> None:
    until = time.monotonic() + _PATIENCE
    while not re.search(said, log.read_text(errors="replace")):
        if time.monotonic() > until:
            pytest.fail(f"{log.name}: never said {said!r}: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
