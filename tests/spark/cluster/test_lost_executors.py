"""Executors that are killed while their tasks run, and tasks that run twice: the tables are those of a quiet run."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from deltalake import DeltaTable

from bench.standalone_cluster import QUICK_JAVA
from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse import Warehouse
from tests.profiles import nightly
from tests.spark.cluster.conftest import Cluster
from tests.truth import DATA

EXPORT = DATA / "4.4.0/fifty"
KILLED_IN = ("share_state: read and fold log partitions", "share_state: write ")

SCRIPT = """
import json, random, signal, sys, threading, time
import psutil
from share_state.cli.main import run
from share_state.spark.session import start

master, command, killed_in, seed = sys.argv[1], *map(json.loads, sys.argv[2:])
speculation = {"interval": "10ms", "multiplier": "0.01", "quantile": "0.1", "minTaskRuntime": "0ms",
               "efficiency.enabled": "false", "task.duration.threshold": "1ms"}
conf = {"spark.speculation": "true"} | {f"spark.speculation.{name}": value for name, value in speculation.items()}
spark = start(master, conf | {"spark.executor.memory": "512m"})
context, draw, killed = spark.sparkContext, random.Random(seed), set()
store = context._jsc.sc().statusStore()

def items(found):
    return [found.apply(place) for place in range(found.size())]

def is_running(description):
    return any(one.description().isDefined() and one.description().get().startswith(description)
               and one.numActiveTasks() for one in items(store.activeStages()))

def kill():
    for description in killed_in:
        while not is_running(description):
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 1))
        busy = []
        while not busy:
            busy = [one.id() for one in items(store.executorList(True)) if one.activeTasks() and one.id() != "driver"]
        victim = ["--executor-id", draw.choice(busy), "--app-id", context.applicationId]
        for process in psutil.process_iter(["cmdline"]):
            if {*victim} <= {*(process.info["cmdline"] or ())}:
                process.send_signal(signal.SIGKILL)
                killed.add(victim[1])

killer = threading.Thread(target=kill, daemon=True)
killer.start()
code = run(command)
killer.join(10)
lost = [one.id() for one in items(store.executorList(False)) if not one.isActive()]
jobs = items(store.jobsList(None))
stages = {stage for job in jobs for stage in items(job.stageIds())}
twice = sum(task.speculative() for stage in stages for task in items(store.taskList(stage, 0, 1000)))
spark.stop()
print(json.dumps({"code": code, "killed": [*killed], "lost": lost, "speculative": twice}))
"""


@nightly("takes 30 s and more")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("command", ["audit", "reconstruct"])
@pytest.mark.usefixtures("no_session")
def test_lost_executors_and_speculation_leave_the_tables_of_a_quiet_run(
    cluster: Cluster, command: str, seed: int, tmp_path: Path
):
    given = [command, str(EXPORT), "--fail-on", "off", "--quiet", "--out"]
    assert run([*given, str(tmp_path / "quiet")]) == 0
    disturbed = [json.dumps(one) for one in ([*given, str(tmp_path / "lake")], KILLED_IN, seed)]
    script = [sys.executable, "-c", SCRIPT, cluster.address, *disturbed]
    done = subprocess.run(script, capture_output=True, text=True, check=False, env=os.environ | QUICK_JAVA)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["code"] == 0, done.stderr[-3000:]
    assert len(told["killed"]) == len(KILLED_IN)
    assert {*told["killed"]} <= {*told["lost"]}
    assert told["speculative"]
    found, expected = (CommittedTables(str(tmp_path / name)) for name in ("lake", "quiet"))
    assert found.run["run_id"] == expected.run["run_id"]
    assert found.versions.keys() == expected.versions.keys()
    committed = dict[str, set[str]]()
    for name in expected.versions:
        one, other = (sorted(map(repr, tables.read(name).to_pylist())) for tables in (found, expected))
        assert one == other, name
    assert len(found.runs) == 1
    for name in (*expected.versions, "runs"):
        # No other write has been committed, before or after; an audit's run is then marked as reported.
        writes = 2 if (command, name) == ("audit", "runs") else 1
        table = DeltaTable(str(tmp_path / "lake" / name))
        assert [entry["operation"] for entry in table.history()] == [*["WRITE"] * writes, "CREATE TABLE"]
        versions = (DeltaTable(str(tmp_path / "lake" / name), version) for version in range(table.version() + 1))
        committed[name] = {unquote(urlsplit(uri).path) for one in versions for uri in one.file_uris()}
    # Attempts that were lost may have left files that no version names, in the folders of the tables alone.
    written = {path for path in (tmp_path / "lake").rglob("*.parquet") if "_delta_log" not in path.parts}
    assert {path.parent.name for path in written} <= committed.keys()
    for path in (tmp_path / "lake").rglob("*"):
        old = time.time() - 8 * 86_400
        os.utime(path, (old, old))
    with Warehouse(str(tmp_path / "lake")) as tables:
        tables.maintain(days=7)
    left = {str(path) for path in written if path.exists()}
    assert left == set().union(*committed.values())
