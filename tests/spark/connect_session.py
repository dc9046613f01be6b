"""Every call on a session of Spark Connect; run as a process of its own, since a process has one kind of session.

`python -m tests.spark.connect_session FOLDER` prints one line per call whose tables equal those of this process.
"""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

from share_state.jit.portable import compile_for_every_cpu

compile_for_every_cpu()

import pyarrow as pa  # noqa: E402  numba reads its settings when it is imported
from pyspark.sql import SparkSession  # noqa: E402

import share_state  # noqa: E402
from share_state.errors import ShareStateError  # noqa: E402
from share_state.sources import jars  # noqa: E402
from share_state.sources.discovery import find_logs  # noqa: E402
from share_state.spark.session import _DELTA  # noqa: E402
from tests.sources.formats.tables import table_of, write  # noqa: E402
from tests.truth import DATA  # noqa: E402

CHAOS = DATA / "4.3.1/chaos"


def connect() -> SparkSession:
    """A session of pyspark's own server on loopback, with Delta."""
    settings = {
        "spark.jars": ",".join(map(str, jars.jars(jars.DELTA))),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        **_DELTA,
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.remote("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    # It warns of settings that a running server cannot change.
    with warnings.catch_warnings(action="ignore"):
        return builder.getOrCreate()


def rows(table: Any) -> list[dict[str, Any]]:
    """The rows of an Arrow table or a DataFrame, in one order."""
    arrow = table if isinstance(table, pa.Table) else table.toArrow()
    return sorted(arrow.to_pylist(), key=repr)


def say(line: str) -> None:
    """Write a line to stdout."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def compare(name: str, found: Any, expected: Any) -> None:
    """Print the name of a call if its tables are equal."""
    if found is None and expected is None:
        return
    assert rows(expected), name
    if (one := rows(found)) != (other := rows(expected)):
        different = [pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]]
        raise AssertionError(f"{name}: {len(one)} and {len(other)} rows, such as {different[:1]}")
    say(name)


def run(folder: Path) -> None:
    """Call everything."""
    spark, here = connect(), share_state.reconstruct(CHAOS)
    tables = ("share_partition_state", "in_flight", "cutoff")
    paths = share_state.reconstruct(CHAOS, spark=spark)
    for name in (*tables, "findings", "share_groups"):
        compare(f"path {name}", getattr(paths, name), getattr(here, name))
    exported = write(table_of(find_logs([str(CHAOS)])), folder / "export/records.parquet")
    frames, of_file = share_state.reconstruct(spark.read.parquet(str(exported))), share_state.reconstruct(exported)
    for name in tables:
        compare(f"frame {name}", getattr(frames, name), getattr(of_file, name))
    records = share_state.read(CHAOS, spark)
    grouped = records.groupBy("group_id", "topic_id", "partition").applyInArrow(
        share_state.fold_group, share_state.FOLD_GROUP_SCHEMA
    )
    assert len(rows(grouped)) == len(here.share_partition_state)
    say("grouped")
    compare("fold_records", share_state.fold_records(records).in_flight, here.in_flight)
    compare("cutoff", share_state.cutoff(CHAOS, spark=spark), share_state.cutoff(CHAOS))
    group = here.share_partition_state["group_id"][0].as_py()
    compare("timeline", share_state.timeline(CHAOS, group, spark=spark), share_state.timeline(CHAOS, group))
    written = share_state.reconstruct(CHAOS, spark=spark, warehouse=folder / "w")
    for name in tables:
        compare(f"warehouse {name}", getattr(written, name), getattr(here, name))
    share_state.register(spark)
    loaded = spark.read.format("share_group_state").option("table", "share_partition_state").load(str(CHAOS))
    assert len(rows(loaded)) == len(here.share_partition_state)
    say("data source")
    spark.stop()
    try:
        share_state.reconstruct(CHAOS, spark=spark)
    except ShareStateError as error:
        say(str(error))


if __name__ == "__main__":
    run(Path(sys.argv[1]))
