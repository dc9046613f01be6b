"""A stream of Spark's own Kafka connector past whose checkpoint the broker has pruned stops, unless told to go on."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.profiles import nightly
from tests.sources.kafka_cluster.test_live_connector import CONNECTOR
from tests.sources.kafka_cluster.test_live_pruning import PruningBroker, ordered, pruning_broker

pytestmark = pytest.mark.broker

_PATIENCE = 60.0

SCRIPT = """
import json, sys
from share_state.jit.portable import compile_for_every_cpu
compile_for_every_cpu()
import share_state
address, package, folder, *tries = sys.argv[1:]
settings = {"spark.jars.packages": package, "spark.sql.streaming.kafka.useDeprecatedOffsetFetching": "true"}
spark = share_state.session("local[2]", settings)
said = []
for fails in tries:
    options = {"kafka.bootstrap.servers": address, "subscribe": "__share_group_state", "startingOffsets": "earliest"}
    options |= {"failOnDataLoss": "false"} if fails == "goes on" else {}
    rows = spark.readStream.format("kafka").options(**options).load().drop("timestampType")
    sink = rows.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    try:
        sink.trigger(availableNow=True).start(f"{folder}/rows").awaitTermination()
        said.append("")
    except Exception as error:
        said.append(str(error))
rows = spark.read.parquet(f"{folder}/rows")
ends = {row[0]: row[1] + 1 for row in rows.groupBy("partition").agg({"offset": "max"}).collect()}
states = share_state.fold_records(rows).share_partition_state.drop("topic").toArrow()
print(json.dumps({"said": said, "ends": ends, "states": states.to_pylist()}, default=str))
"""


def run_stream(address: str, folder: Path, *tries: str) -> dict[str, Any]:
    command = [sys.executable, "-c", SCRIPT, address, CONNECTOR, str(folder), *tries]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def prune_past(pruning: PruningBroker, ends: dict[str, int]) -> None:
    """Let the broker delete records that a reader up to these offsets has not read."""
    for group in pruning.consumers:
        pruning.write_snapshots(group)
    deadline = time.monotonic() + _PATIENCE
    while any(start <= ends[str(number)] for number, start in pruning.starts().items()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@nightly("a broker that prunes, and two sessions of Spark with the connector")
def test_a_stream_stops_where_the_broker_has_pruned_unless_told_to_go_on(can_run_broker: None, tmp_path: Path):
    del can_run_broker
    for name in ("stream", "broker"):
        (tmp_path / name).mkdir()
    with pruning_broker(tmp_path / "broker") as pruning:
        first = run_stream(pruning.broker.address, tmp_path / "stream", "stops")
        assert first["said"] == [""]
        prune_past(pruning, first["ends"])
        second = run_stream(pruning.broker.address, tmp_path / "stream", "stops", "stops", "goes on")
        *stopped, went_on = second["said"]
        # It stops again at each start.
        assert all("failOnDataLoss" in error for error in stopped)
        assert went_on == ""
        truth = pruning.truth()
    # What was deleted lies before snapshots, so the states are those of the broker.
    states = pa.Table.from_pylist(second["states"])
    assert ordered(states).to_pylist() == ordered(truth).to_pylist() != []
