"""The command on a cluster: the package travels with the job, and every worker compiles kernels once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from share_state.committed import CommittedTables
from share_state.task import RESULTS
from tests.cluster.conftest import Cluster
from tests.truth import DATA

EXPORT = DATA / "4.3.1/chaos"


def reconstructed(out: Path, *options: str) -> tuple[dict, dict[str, float]]:
    """What the command says as JSON, and the seconds of its phases."""
    command = [str(Path(sys.executable).parent / "share-state"), "reconstruct", str(EXPORT), "--out", str(out)]
    phases = out.with_suffix(".phases")
    done = subprocess.run(
        [*command, "--json", *options],
        env=os.environ | {"SHARE_STATE_PHASES": str(phases)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), json.loads(phases.read_text())


def rows(warehouse: Path) -> dict[str, list[dict]]:
    tables = CommittedTables(str(warehouse))
    return {name: sorted(tables.read(name).to_pylist(), key=repr) for name in (*RESULTS, "cutoff")}


@pytest.fixture(scope="module")
def on_the_cluster(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, dict[str, float]]:
    out = tmp_path_factory.mktemp("lake") / "w"
    return out, *reconstructed(out, *options(cluster))


def options(cluster: Cluster) -> list[str]:
    kept = f"spark.executorEnv.NUMBA_CACHE_DIR={cluster.kernels}"
    return ["--master", cluster.address, "--spark-conf", kept, "--spark-conf", "spark.executor.memory=512m"]


def compiled(cluster: Cluster) -> set[str]:
    return {file.name for file in cluster.kernels.rglob("*.nbc")}


def test_the_tables_are_those_of_a_local_run(on_the_cluster: tuple[Path, dict, dict[str, float]], tmp_path: Path):
    out, said, seconds = on_the_cluster
    here, _ = reconstructed(tmp_path / "w", "--master", "local[2]")
    assert rows(out) == rows(tmp_path / "w")
    assert said | {"warehouse": None} == here | {"warehouse": None}
    assert {"start Spark", "read and fold", "commit"} <= set(seconds)
    assert all(took >= 0 for took in seconds.values())


def test_workers_run_the_package_that_was_shipped(
    on_the_cluster: tuple[Path, dict, dict[str, float]], cluster: Cluster
):
    unpacked = [
        place.parents[1] for place in cluster.work.glob("worker-*/app-*/*/share_state_package/share_state/task.py")
    ]
    assert unpacked
    # Numba names the folder of a kernel after the folder of its source, and hides where that lay behind a digest.
    assert compiled(cluster)


def test_the_next_job_compiles_nothing(
    on_the_cluster: tuple[Path, dict, dict[str, float]], cluster: Cluster, tmp_path: Path
):
    before = compiled(cluster)
    reconstructed(tmp_path / "w", *options(cluster))
    assert compiled(cluster) == before
