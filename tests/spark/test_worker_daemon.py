"""The process that Spark forks a stream's Python workers from."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from share_state.spark.jvm_errors import reason
from share_state.spark.worker_daemon import with_imports

# A function of the main module travels by value, so a worker imports nothing for it.
WORKERS = """
import sys
from share_state.spark.session import session
from share_state.spark.worker_daemon import with_imports

def imported(rows):
    return iter([sorted(name for name in sys.modules if name == "share_state.spark.streaming")])

with session("local[1]", {}, defaults=with_imports("local[1]")) as spark:
    print(spark.sparkContext.parallelize([1], 1).mapPartitions(imported).collect())
"""


def test_workers_start_with_what_a_stream_imports(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", WORKERS], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "[['share_state.spark.streaming']]\n"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]"])
def test_workers_of_a_cluster_have_the_daemon_of_spark(master: str):
    assert with_imports(master) == {}
    assert list(with_imports("local[*]")) == ["spark.python.daemon.module"]


def test_workers_of_spark_submit_have_the_daemon_of_spark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert with_imports("local[*]") == {}


def test_an_error_of_a_worker_names_what_was_raised():
    frames = ['  File "serializers.py", line 459, in loads', "    return cloudpickle.loads(obj)"]
    raised = "ModuleNotFoundError: No module named 'share_state'"
    text = "\n".join(["Failed. Cause: Traceback (most recent call last):", *frames, raised, "", "\tat org.apache"])
    assert reason(PySparkException(text)) == f"Failed. Cause: {raised}"
    assert reason(PySparkException("Failed.\n\tat org.apache")) == "Failed."
