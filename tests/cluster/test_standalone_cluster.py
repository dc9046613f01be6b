"""The command on a cluster: the package travels with the job, and every worker compiles kernels once."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import share_state
from share_state.committed import CommittedTables
from share_state.declarations import table_schema
from share_state.task import RESULTS
from tests.cluster.conftest import Cluster
from tests.truth import DATA

EXPORT = DATA / "4.3.1/chaos"


def reconstructed(out: Path, *options: str) -> tuple[dict, dict[str, float]]:
    """What the command says as JSON, its times apart."""
    command = [str(Path(sys.executable).parent / "share-state"), "reconstruct", str(EXPORT), "--out", str(out)]
    done = subprocess.run([*command, "--json", *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    return said, said.pop("seconds")


def rows(warehouse: Path) -> dict[str, list[dict]]:
    tables = CommittedTables(str(warehouse))
    return {name: sorted(tables.read(name).to_pylist(), key=repr) for name in (*RESULTS, "cutoff")}


def plain(table: pa.Table, left_out: set[str]) -> list[dict]:
    return sorted(table.drop_columns(list(left_out)).to_pylist(), key=repr)


@pytest.fixture(scope="module")
def on_the_cluster(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, dict[str, float]]:
    out = tmp_path_factory.mktemp("lake") / "w"
    return out, *reconstructed(out, *options(cluster))


def options(cluster: Cluster) -> list[str]:
    kept = f"spark.executorEnv.NUMBA_CACHE_DIR={cluster.kernels}"
    return ["--master", cluster.address, "--spark-conf", kept, "--spark-conf", "spark.executor.memory=512m"]


def compiled(cluster: Cluster) -> set[str]:
    return {file.name for file in cluster.kernels.rglob("*.nbc")}


def test_the_tables_are_those_of_a_fold_without_spark(on_the_cluster: tuple[Path, dict, dict[str, float]]):
    out, said, seconds = on_the_cluster
    written, folded = rows(out), share_state.reconstruct(str(EXPORT))
    for name, of_it in written.items():
        told = {"run_id"} & {*table_schema(name).names}
        assert [{k: v for k, v in row.items() if k not in told} for row in of_it] == plain(getattr(folded, name), told)
    assert said["share_partitions"] == len(folded.share_partition_state)
    assert {"start Spark", "read and fold", "commit"} <= set(seconds)
    assert all(took >= 0 for took in seconds.values())


def test_workers_run_the_package_that_was_shipped(
    on_the_cluster: tuple[Path, dict, dict[str, float]], cluster: Cluster
):
    assert [*cluster.work.glob("worker-*/app-*/*/share_state_package/share_state/task.py")]
    # Numba names the folder of a kernel after the folder of its source, and hides where that lay behind a digest.
    assert compiled(cluster)


def test_the_next_job_compiles_nothing(
    on_the_cluster: tuple[Path, dict, dict[str, float]], cluster: Cluster, tmp_path: Path
):
    before = compiled(cluster)
    reconstructed(tmp_path / "w", *options(cluster))
    assert compiled(cluster) == before
