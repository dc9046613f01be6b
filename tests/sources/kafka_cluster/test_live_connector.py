"""Frames of Spark's own Kafka connector are inputs: their tables are those of our reader of the same cluster."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import share_state
from share_state.sources.kafka_source import read_cluster
from share_state.sources.log_partition import STATE_TOPIC
from tests.profiles import nightly
from tests.sources.kafka_cluster.workload import Workload

pytestmark = pytest.mark.broker

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"

UNKNOWN = ["topic", "topic_end_offset", "redundant_retained", "unfinished_offsets"]
"""Columns that only the cluster or whole logs show."""

SCRIPT = """
import json, sys
from share_state.jit.portable import compile_for_every_cpu
compile_for_every_cpu()
import share_state
address, package, unknown = sys.argv[1:]
spark = share_state.session("local[2]", {"spark.jars.packages": package})

def read():
    options = {"kafka.bootstrap.servers": address, "subscribe": "__share_group_state", "failOnDataLoss": "false"}
    return spark.read.format("kafka").options(**options).load()

found = {"by default": read().count()}
try:
    share_state.reconstruct(read())
except share_state.errors.ShareStateError as error:
    found["error"] = str(error)
spark.conf.set("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "true")
# The workload goes on meanwhile.
records = read().localCheckpoint()
found["records"] = records.count()
found["ends"] = {row[0]: row[1] + 1 for row in records.groupBy("partition").agg({"offset": "max"}).collect()}
folded = {"logs": share_state.reconstruct(records, groups=()), "grouped": share_state.fold_records(records)}
for name, tables in folded.items():
    states = tables.share_partition_state.drop(*unknown.split()).toArrow()
    found[name] = sorted(map(repr, states.to_pylist()))
    found[f"{name} ranges"] = sorted(map(repr, tables.in_flight.drop("topic").toArrow().to_pylist()))
print(json.dumps(found))
"""


@nightly("fetches the connector, and starts Spark with it")
def test_frames_of_sparks_connector_give_the_tables_of_the_cluster(worked: Workload, tmp_path: Path):
    command = [sys.executable, "-c", SCRIPT, worked.broker.address, CONNECTOR, " ".join(UNKNOWN)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    # If a later connector reads internal topics by default, the advice can go.
    assert found["by default"] == 0
    assert "useDeprecatedOffsetFetching=true" in found["error"]
    assert found["records"] > 0
    live = read_cluster(f"kafka://{worked.broker.address}")
    assert {log.partition for log in live.logs if log.topic == STATE_TOPIC} >= {int(number) for number in found["ends"]}
    until: dict[int | str, int] = {int(number): end for number, end in found["ends"].items()}
    expected = share_state.reconstruct(f"kafka://{worked.broker.address}", groups=(), as_of=until)
    states = sorted(map(repr, expected.share_partition_state.drop_columns(UNKNOWN).to_pylist()))
    assert found["logs"] == found["grouped"] == states != []
    ranges = sorted(map(repr, expected.in_flight.drop_columns("topic").to_pylist()))
    assert found["logs ranges"] == found["grouped ranges"] == ranges != []
