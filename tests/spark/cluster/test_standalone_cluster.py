"""The command on a cluster: the wheel travels with the job, and kernels are compiled once."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

import share_state
from bench.standalone_cluster import QUICK_JAVA, SPARK
from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.jit.compile import SHIPPED
from share_state.pipeline.task import RESULTS
from share_state.schema.declarations import table_schema
from share_state.spark.session import UNPACKED, package_settings
from tests.profiles import nightly
from tests.spark.cluster.conftest import CHECKOUT, EXPORT, Cluster, Installed

DEMO = ("export", "--topics", "export/topics.json")


def in_wheel(installed: Installed, tmp_path: Path, *arguments: str) -> str:
    """What an interpreter prints that finds the package where the wheel was installed, and not in the checkout."""
    environment = os.environ | {"PYTHONPATH": str(installed.folder)} | QUICK_JAVA
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def options(cluster: Cluster) -> list[str]:
    """Settings of both jobs, as pairs."""
    return [f"spark.executorEnv.NUMBA_CACHE_DIR={cluster.kernels}", "spark.executor.memory=512m"]


def rows(warehouse: Path) -> dict[str, list[dict]]:
    tables = CommittedTables(str(warehouse))
    return {name: sorted(tables.read(name).to_pylist(), key=repr) for name in (*RESULTS, "cutoff")}


def plain(table: pa.Table, left_out: set[str]) -> list[dict]:
    return sorted(table.drop_columns(list(left_out)).to_pylist(), key=repr)


def compiled(cluster: Cluster) -> dict[Path, int]:
    """The indexes of compiled kernels, with when they were written."""
    return {file: file.stat().st_mtime_ns for file in cluster.kernels.rglob("*.nbi")}


def held(archive: Path) -> dict[str, bytes]:
    """The package in a wheel or in what is shipped: every file with its bytes."""
    with zipfile.ZipFile(archive) as packed:
        names = [name for name in packed.namelist() if not name.split("/")[0].endswith(".dist-info")]
        return {name: packed.read(name) for name in names}


def unpacked(cluster: Cluster) -> set[Path]:
    """Where executors unpacked what jobs brought."""
    return set(cluster.work.glob(f"worker-*/app-*/*/{UNPACKED}"))


def files(folder: Path) -> dict[str, bytes]:
    """Every file but what Python compiled of it."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def submitted(cluster: Cluster, installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The wheel as `--py-files`, the demo's export as a relative input, a name: the warehouse; what the job printed."""
    folder = tmp_path_factory.mktemp("submit")
    (folder / "export").symlink_to(EXPORT)
    submit = [str(SPARK / "bin/spark-submit"), "--master", cluster.address, "--name", "night shift"]
    submit += [part for setting in options(cluster) for part in ("--conf", setting)]
    submit += ["--py-files", str(installed.wheel), str(CHECKOUT / "jobs/reconstruct.py"), *DEMO, "--out", "lake"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYSPARK_PYTHON": sys.executable} | QUICK_JAVA
    done = subprocess.run(submit, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "lake", done.stdout


@nightly("a cluster of its own, with kernels to compile")
def test_spark_submit_with_only_the_wheel_writes_the_tables_of_make_demo(
    cluster: Cluster, submitted: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, no_session: None
):
    del no_session
    lake, printed = submitted
    monkeypatch.chdir(lake.parent)
    assert run(["reconstruct", *DEMO, "--out", "demo", "--quiet"]) == 0
    tables, demo = CommittedTables(str(lake)), CommittedTables("demo")
    assert {*tables.versions} == {*demo.versions} > {*RESULTS, "cutoff", "share_groups"}
    for name in demo.versions:
        written, expected = (sorted(map(repr, one.read(name).to_pylist())) for one in (tables, demo))
        assert written == expected
    assert tables.run["progress"] == demo.run["progress"]
    assert tables.run["run_id"] == demo.run["run_id"]
    assert f"{len(demo.read('share_partition_state'))} live share-partitions" in printed
    assert "night shift" in (cluster.work / "master.log").read_text()


@nightly("a second job")
def test_a_job_runs_the_shipped_wheel_and_compiles_nothing_again(
    cluster: Cluster, installed: Installed, submitted: tuple[Path, str], tmp_path: Path
):
    del submitted
    found = in_wheel(installed, tmp_path, "-c", "import share_state; print(share_state.__file__)")
    assert Path(found.strip()) == installed.folder / "share_state/__init__.py"
    before, of_submitted = compiled(cluster), unpacked(cluster)
    assert cluster.missing
    assert cluster.missing & before.keys()
    command = ["-m", "share_state", "reconstruct", str(EXPORT), "--out", str(tmp_path / "all"), "--json"]
    command += ["--master", cluster.address]
    command += [part for setting in options(cluster) for part in ("--spark-conf", setting)]
    said = json.loads(in_wheel(installed, tmp_path, *command))
    seconds = said.pop("seconds")
    assert compiled(cluster) == before
    folders = unpacked(cluster) - of_submitted
    assert len({path.parts[-4] for path in folders}) == 2
    for folder in folders:
        assert files(folder) == held(installed.wheel)
    # What a worker imports it compiles beside it.
    assert any(folder.glob("share_state/__pycache__/task.*.pyc") for folder in folders)
    written, folded = rows(tmp_path / "all"), share_state.reconstruct(str(EXPORT))
    for name, of_it in written.items():
        told = {"run_id"} & {*table_schema(name).names}
        assert [{k: v for k, v in row.items() if k not in told} for row in of_it] == plain(getattr(folded, name), told)
    assert said["share_partitions"] == len(folded.share_partition_state)
    assert {"start Spark", "read and fold", "commit"} <= set(seconds)
    assert all(took >= 0 for took in seconds.values())


@nightly("builds an archive")
def test_a_checkout_ships_what_its_wheel_holds(installed: Installed):
    archive = urlsplit(package_settings({})["spark.archives"])
    assert archive.fragment == UNPACKED
    # And the kernels that this machine has compiled.
    kernels = f"share_state/{SHIPPED}/"
    sent = {name: data for name, data in held(Path(archive.path)).items() if not name.startswith(kernels)}
    assert sent == held(installed.wheel)
