"""Jobs under spark-submit on one machine: a catalog in Hive's metastore, `--grouped`, and the kernels of `setup`."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyspark
from deltalake import DeltaTable

import share_state
from share_state.delta.committed import CommittedTables
from share_state.sources import jars
from tests.profiles import nightly
from tests.truth import DATA

HOME = Path(__file__).parents[2]
HAPPY = DATA / "4.3.1/happy"


def _submit(folder: Path, *job: str | Path, **conf: str) -> subprocess.CompletedProcess[str]:
    settings = {"spark.jars": ",".join(map(str, jars.jars(jars.DELTA))), "spark.ui.enabled": "false", **conf}
    command = [str(Path(pyspark.__file__).parent / "bin/spark-submit"), "--master", "local[2]"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    # As of an operator, whose environment names no CPU.
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CPU_NAME"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(HOME)}
    return subprocess.run(
        [*command, *map(str, job)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@nightly("spark-submit")
def test_a_catalog_of_hive_brings_no_warnings_of_hive(tmp_path: Path):
    job, out = HOME / "jobs/reconstruct.py", "spark_catalog.default"
    done = _submit(tmp_path, job, HAPPY, "--out", out, **{"spark.sql.catalogImplementation": "hive"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "metastore_db").is_dir()
    warnings = [line for line in done.stderr.splitlines() if " WARN " in line]
    assert [line for line in warnings if "hive" in line.lower() or "SessionState" in line] == []
    tables = CommittedTables(str(tmp_path / "spark-warehouse"))
    assert len(tables.read("share_partition_state")) == len(share_state.reconstruct(HAPPY).share_partition_state)


@nightly("spark-submit")
def test_grouped_writes_the_tables_of_a_reconstruct(tmp_path: Path):
    done = _submit(tmp_path, HOME / "jobs/reconstruct.py", HAPPY, "--out", "lake", "--grouped")
    assert done.returncode in (0, 1), done.stderr[-3000:]
    tables = share_state.reconstruct(HAPPY)
    for name in ("share_partition_state", "in_flight"):
        expected = getattr(tables, name)
        if name == "share_partition_state":
            # The records alone show no end of a topic.
            expected = expected.drop_columns("topic_end_offset")
        written = pa.table(DeltaTable(tmp_path / "lake" / name).scan()).select(expected.column_names)
        rows = [sorted(map(repr, one.to_pylist())) for one in (written.cast(expected.schema), expected)]
        assert rows[0] == rows[1]
        assert rows[0]


@nightly("spark-submit")
def test_workers_use_the_kernels_of_setup(tmp_path: Path):
    (tmp_path / "cpu.py").write_text(
        "from share_state.jit.portable import compile_for_every_cpu\n"
        "compile_for_every_cpu()\n"
        "from share_state.spark.session import start\n"
        "def cpu(_):\n"
        "    import numba\n"
        "    return numba.config.CPU_NAME\n"
        "print('of a worker:', start().sparkContext.parallelize([1], 1).map(cpu).first())\n"
    )
    assert "of a worker: generic\n" in _submit(tmp_path, "cpu.py").stdout
    own = _submit(tmp_path, "cpu.py", **{"spark.executorEnv.NUMBA_CPU_NAME": "x86-64-v2"})
    assert "of a worker: x86-64-v2\n" in own.stdout
