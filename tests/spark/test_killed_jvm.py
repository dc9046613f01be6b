"""A JVM of Spark that ends while a command needs it: exit code 3 and one line, whenever that happens."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.profiles import by_profile, nightly
from tests.sources.formats.tables import found, table_of, write
from tests.truth import DATA

SECONDS = by_profile([6.0], [0.2, 0.5, *(random.Random(3).uniform(1, 20) for _ in range(38))])
"""After the start of the JVM: while Spark starts, and while it folds and writes."""

ENDED = "share-state: Spark's JVM ended; out of memory? give it more: --spark-conf spark.driver.memory=4g"
NOISE = "WARNING: Using incubator modules: jdk.incubator.vector"


def jvm_of(process: subprocess.Popen[str]) -> int | None:
    """The JVM that a command has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return next((int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "java\n"), None)


def killed(command: list[str], seconds: float) -> tuple[int, list[str]]:
    """Exit code and stderr of a command whose JVM is killed."""
    call = [sys.executable, "-m", "share_state", *command, "--quiet", "--master", "local[1]"]
    with subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as victim:
        while (jvm := jvm_of(victim)) is None and victim.poll() is None:
            time.sleep(0.01)
        assert jvm is not None
        time.sleep(seconds)
        if victim.poll() is None:
            os.kill(jvm, signal.SIGKILL)
        _, said = victim.communicate(timeout=120)
    return victim.returncode, [line for line in said.splitlines() if line != NOISE]


@nightly("Spark in a process of its own")
@pytest.mark.parametrize("seconds", SECONDS)
def test_a_killed_jvm_is_one_line_and_exit_code_3(tmp_path: Path, seconds: float):
    code, said = killed(["reconstruct", str(DATA / "4.3.1/chaos"), "--out", str(tmp_path / "w")], seconds)
    if code != 0:
        assert (code, len(said)) == (3, 1), said
        # The run is committed where the JVM ends while the warehouse is tidied.
        assert said[0].startswith(ENDED)


@nightly("as for reconstruct, a process of Spark each")
@pytest.mark.parametrize("seconds", [2.0, 5.0, 8.0, 12.0, 16.0])
def test_a_stream_whose_jvm_is_killed_is_one_line_and_exit_code_3(tmp_path: Path, seconds: float):
    write(table_of(found(DATA / "4.4.0/chaos")), tmp_path / "in/a.parquet")
    places = ["--out", str(tmp_path / "lake"), "--checkpoint", str(tmp_path / "cp"), "--trigger", "0ms"]
    code, said = killed(["stream", str(tmp_path / "in"), *places], seconds)
    assert (code, len(said)) == (3, 1), said
    assert said[0].startswith(ENDED)


@nightly("a process with Spark")
def test_a_jvm_without_memory_is_one_line(tmp_path: Path):
    script = tmp_path / "full.py"
    script.write_text(
        "import sys\n"
        "from share_state.cli import main, reconstruct\n"
        "def fill(*_, **_more):\n"
        "    from pyspark.sql import SparkSession\n"
        "    jvm = SparkSession.getActiveSession()._jvm\n"
        "    jvm.java.nio.ByteBuffer.allocate(2**31 - 1)\n"
        "reconstruct.run_reconstruct = fill\n"
        "main.main(sys.argv[1:])\n"
    )
    command = ["reconstruct", str(DATA / "4.3.1/happy"), "--out", str(tmp_path / "w"), "--quiet"]
    setting = ["--spark-conf", "spark.driver.memory=512m"]
    made = subprocess.run([sys.executable, script, *command, *setting], capture_output=True, text=True, check=False)
    said = [line for line in made.stderr.splitlines() if line != NOISE]
    expected = "share-state: Spark's JVM is out of memory; give it more: --spark-conf spark.driver.memory=4g"
    assert (made.returncode, said) == (3, [expected])
