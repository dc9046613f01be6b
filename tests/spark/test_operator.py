"""The settings of whoever runs Spark win, and nothing on the driver's machine is taken for shared. One JVM for all."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import share_state
from share_state.sources.discovery import find_logs
from tests.profiles import nightly
from tests.sources.formats.tables import shuffled, table_of
from tests.sources.object_stores.test_s3_forms import json_lines
from tests.truth import DATA

EXPORT = DATA / "4.3.1/happy"

SCRIPT = """
import json, os, sys
from pathlib import Path
import share_state
from share_state.spark.session import start

spark = start("local[2]", {"spark.sql.shuffle.partitions": "7"})
conf = spark.sparkContext.getConf()
told = {name: spark.conf.get(name) for name in ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")}
told |= {name: conf.get(name) for name in ("spark.app.name", "spark.ui.enabled")}
told["default"] = spark._jsc.hadoopConfiguration().get("fs.defaultFS")
told["python"] = spark.sparkContext.parallelize([0]).map(lambda _: sys.executable).collect()
frame = spark.read.json("file://" + os.path.abspath("rows.json")).cache()
os.chdir(sys.argv[1])
tables = {"frame": share_state.reconstruct(frame),
          "warehouse": share_state.reconstruct("rows.json", spark=spark, warehouse="lake"),
          "segments": share_state.reconstruct("logs", spark=spark)}
told["states"] = {name: one.share_partition_state.count() for name, one in tables.items()}
described = spark._jsc.sc().statusStore().jobsList(None)
told["jobs"] = sorted({described.apply(n).description().get() for n in range(described.size())
                       if described.apply(n).description().isDefined()})
spark.stop()
spark = start("local[1]", {"spark.pyspark.python": sys.argv[2]})
told["python"] += spark.sparkContext.parallelize([0]).map(lambda _: sys.executable).collect()
print(json.dumps(told))
"""


@nightly("two sessions of its own, and three ways to read in the first")
def test_settings_of_the_operator_win_on_a_cluster_whose_file_system_is_elsewhere(tmp_path: Path):
    conf, work, jvm = tmp_path / "conf", tmp_path / "work", tmp_path / "jvm"
    for folder in (conf, work, jvm):
        folder.mkdir()
    json_lines(shuffled(table_of(find_logs([str(EXPORT)]))), work / "rows.json")
    shutil.copy(work / "rows.json", jvm)
    shutil.copytree(EXPORT, work / "logs")
    pythons = [str(tmp_path / name / Path(sys.executable).relative_to(sys.prefix)) for name in ("theirs", "named")]
    for name in ("theirs", "named"):
        (tmp_path / name).symlink_to(sys.prefix)
    (conf / "spark-defaults.conf").write_text(
        "# as an administrator writes it\n"
        "spark.app.name  night shift\n"
        "spark.sql.session.timeZone=Asia/Tokyo\n"
        "spark.sql.shuffle.partitions 99\n"
        "spark.ui.enabled: true\n"
        "spark.ui.port 0\n"
        f"spark.hadoop.fs.defaultFS viewfs://lake/\nspark.hadoop.fs.viewfs.mounttable.lake.link./data file://{conf}\n"
        f"spark.sql.warehouse.dir file://{conf}/tables\n"
    )
    environment = os.environ | {"SPARK_CONF_DIR": str(conf), "PYSPARK_PYTHON": pythons[0]}
    # The JVM, and with it the workers, start in another folder than the one that paths are relative to.
    command = [sys.executable, "-c", SCRIPT, str(work), pythons[1]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=jvm)
    assert done.returncode == 0, done.stderr[-3000:]
    told, states = json.loads(done.stdout), len(share_state.reconstruct(EXPORT).share_partition_state)
    jobs = told.pop("jobs")
    assert {f"share_state: find the log partitions of {name}" for name in ("the DataFrame", "rows.json")} <= {*jobs}
    assert "share_state: read and fold log partitions" in jobs
    assert told == {
        "spark.app.name": "night shift",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.ui.enabled": "true",
        "spark.sql.shuffle.partitions": "7",
        "default": "viewfs://lake/",
        "python": pythons,
        "states": dict.fromkeys(("frame", "warehouse", "segments"), states),
    }
