"""The command on a cluster: the package travels with the job, and every worker compiles kernels once."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

import share_state
from share_state.committed import CommittedTables
from share_state.declarations import table_schema
from share_state.task import RESULTS
from tests.cluster.conftest import Cluster
from tests.truth import DATA

EXPORT = DATA / "4.3.1/chaos"


def reconstructed(cluster: Cluster, export: Path, out: Path) -> tuple[dict, dict[str, float]]:
    """What the command says as JSON, its times apart."""
    command = [str(Path(sys.executable).parent / "share-state"), "reconstruct", str(export), "--out", str(out)]
    command += ["--json", "--master", cluster.address]
    for setting in (f"spark.executorEnv.NUMBA_CACHE_DIR={cluster.kernels}", "spark.executor.memory=512m"):
        command += ["--spark-conf", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    return said, said.pop("seconds")


def rows(warehouse: Path) -> dict[str, list[dict]]:
    tables = CommittedTables(str(warehouse))
    return {name: sorted(tables.read(name).to_pylist(), key=repr) for name in (*RESULTS, "cutoff")}


def plain(table: pa.Table, left_out: set[str]) -> list[dict]:
    return sorted(table.drop_columns(list(left_out)).to_pylist(), key=repr)


def compiled(cluster: Cluster) -> set[str]:
    """Numba names a kernel's folder after that of its source, and hides where that lay behind a digest."""
    return {file.name for file in cluster.kernels.rglob("*.nbc")}


def test_a_job_runs_what_was_shipped_and_the_next_one_compiles_nothing(cluster: Cluster, tmp_path: Path):
    reconstructed(cluster, EXPORT / "__share_group_state-0", tmp_path / "one")
    before = compiled(cluster)
    assert before
    said, seconds = reconstructed(cluster, EXPORT, tmp_path / "all")
    assert compiled(cluster) == before
    unpacked = cluster.work.glob("worker-*/app-*/*/share_state_package/share_state/task.py")
    assert len({path.parts[-6] for path in unpacked}) == 2
    written, folded = rows(tmp_path / "all"), share_state.reconstruct(str(EXPORT))
    for name, of_it in written.items():
        told = {"run_id"} & {*table_schema(name).names}
        assert [{k: v for k, v in row.items() if k not in told} for row in of_it] == plain(getattr(folded, name), told)
    assert said["share_partitions"] == len(folded.share_partition_state)
    assert {"start Spark", "read and fold", "commit"} <= set(seconds)
    assert all(took >= 0 for took in seconds.values())
