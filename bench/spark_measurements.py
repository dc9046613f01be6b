"""What each way to use share_state in Spark costs, in one warm session."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic

import psutil
from pyspark.sql import DataFrame, SparkSession

import share_state
from bench.inputs import generate, parquet_of
from bench.kafka_baseline import DATA
from bench.process_tree import cpu_seconds
from bench.report import Item, Table
from bench.runner import IN_SPARK, Settings, by_turns
from share_state.spark.session import session

_JAVA_AS_USUAL = {"spark.driver.extraJavaOptions": ""}
"""Commands start a JVM whose compiler is quick; a session of a notebook or a job has Java's own."""
_WARM_UP = 3
"""Rounds until that JVM has compiled what it uses."""


def spark_shapes(settings: Settings) -> Iterator[Item]:
    """Fold one export in each way, by turns; CPU seconds are of the driver, the JVM and the workers."""
    export = generate(settings.log)
    folder, records = str(export.folder), f"{parquet_of(export)}/*.parquet"
    with session(IN_SPARK[1], _JAVA_AS_USUAL, delta=True) as spark, TemporaryDirectory(dir=DATA) as scratch:
        spark.sparkContext.setLogLevel("OFF")
        share_state.register(spark)
        lake = Path(scratch, "lake")
        source = spark.read.format("share_group_state").option("table", "share_partition_state")
        share_state.read(folder, spark).write.mode("overwrite").parquet(f"{scratch}/decoded")
        decoded = spark.read.parquet(f"{scratch}/decoded")
        ways: dict[str, Callable[[], DataFrame | None]] = {
            "reconstruct(path, warehouse)": lambda: (
                share_state.reconstruct(folder, spark=spark, warehouse=lake) and None
            ),
            "reconstruct(frame)": lambda: (
                share_state.reconstruct(spark.read.parquet(records)).share_partition_state
            ),
            "format('share_group_state')": lambda: source.load(folder),
            "fold_records, with decoding": lambda: (
                share_state.fold_records(spark.read.parquet(records)).share_partition_state
            ),
            "fold_records": lambda: share_state.fold_records(decoded).share_partition_state,
            "applyInArrow(fold_group)": lambda: (
                share_state.read(folder, spark)
                .groupBy("group_id", "topic_id", "partition")
                .applyInArrow(share_state.fold_group, share_state.FOLD_GROUP_SCHEMA)
            ),
        }
        calls = [partial(_seconds, spark, way) for way in ways.values()]
        # One call per share-partition takes long enough to be warm.
        by_turns(calls[:-1], _WARM_UP)
        sides = by_turns(calls, settings.runs)
    rows, sizes = list[tuple[str | float, ...]](), (export.shape.records, export.shape.keys)
    for way, side in zip(ways, sides, strict=True):
        spent = tuple(map(median, zip(*side, strict=True)))
        rows.append((way, *spent, *(size / seconds for size in sizes for seconds in spent)))
    columns = ["way", "wall s|.1f", "CPU s|.1f"]
    columns += [
        f"{heading}|,.0f" for what in ("records/s", "share-partitions/s") for heading in (what, "per CPU s")
    ]
    title = f"share_state in a Spark session, median of {settings.runs} by turns: {export.title}"
    yield Table(title, columns, rows, sides)


def _seconds(spark: SparkSession, way: Callable[[], DataFrame | None]) -> tuple[float, float]:
    """Wall and CPU seconds until every row is computed."""
    own = psutil.Process()
    begun, cpu_s = monotonic(), cpu_seconds(own).total()
    if (frame := way()) is not None:
        frame.write.format("noop").mode("overwrite").save()
    spent = monotonic() - begun, cpu_seconds(own).total() - cpu_s
    spark.catalog.clearCache()
    return spent
