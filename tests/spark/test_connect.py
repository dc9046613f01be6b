"""The Python calls on a session of Spark Connect give what they give in this process."""

import subprocess
import sys
from pathlib import Path

from tests.profiles import nightly

HOME = Path(__file__).parents[2]
TABLES = ("share_partition_state", "in_flight", "cutoff")


@nightly("a server of Spark Connect, and a job per call")
def test_every_call_runs_on_spark_connect(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_session", tmp_path],
        cwd=HOME,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        *(f"path {name}" for name in (*TABLES, "findings", "share_groups")),
        *(f"frame {name}" for name in TABLES),
        "grouped",
        "fold_records",
        "cutoff",
        "timeline",
        *(f"warehouse {name}" for name in TABLES),
        "data source",
        "the Spark session is stopped; open another one",
    ]
