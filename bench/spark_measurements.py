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
from bench.report import Item, Table
from bench.runner import IN_SPARK, Settings, by_turns
from share_state.spark.session import session


def spark_shapes(settings: Settings) -> Iterator[Item]:
    """Fold one export in each way, by turns; CPU seconds are of the driver, the JVM and the workers."""
    export = generate(settings.log)
    folder, records = str(export.folder), f"{parquet_of(export)}/*.parquet"
    with session(IN_SPARK[1], {}, delta=True) as spark, TemporaryDirectory(dir=DATA) as scratch:
        share_state.register(spark)
        lake = Path(scratch, "lake")
        source = spark.read.format("share_group_state").option("table", "share_partition_state")
        ways: dict[str, Callable[[], DataFrame | None]] = {
            "reconstruct(path, warehouse)": lambda: (
                share_state.reconstruct(folder, spark=spark, warehouse=lake) and None
            ),
            "reconstruct(frame)": lambda: share_state.reconstruct(spark.read.parquet(records)).share_partition_state,
            "format('share_group_state')": lambda: source.load(folder),
            "applyInArrow(fold_group)": lambda: _grouped(spark, folder),
        }
        calls = [partial(_seconds, spark, way) for way in ways.values()]
        by_turns(calls, 1)
        sides = by_turns(calls, settings.runs)
    rows = list[tuple[str | float, ...]]()
    for way, side in zip(ways, sides, strict=True):
        wall_s, cpu_s = map(median, zip(*side, strict=True))
        rows.append(
            (way, wall_s, cpu_s, *(n / s for n in (export.shape.records, export.shape.keys) for s in (wall_s, cpu_s)))
        )
    columns = (
        "way",
        "wall s|.1f",
        "CPU s|.1f",
        "records/s|,.0f",
        "per CPU s|,.0f",
        "share-partitions/s|,.0f",
        "per CPU s|,.0f",
    )
    yield Table(
        f"share_state in a Spark session, median of {settings.runs} by turns: {export.title}", columns, rows, sides
    )


def _grouped(spark: SparkSession, folder: str) -> DataFrame:
    grouped = share_state.read(spark, folder).groupBy("group_id", "topic_id", "partition")
    return grouped.applyInArrow(share_state.fold_group, share_state.FOLD_GROUP_SCHEMA)


def _seconds(spark: SparkSession, way: Callable[[], DataFrame | None]) -> tuple[float, float]:
    """Wall and CPU seconds until every row is there."""
    begun, cpu_s = monotonic(), _cpu_seconds()
    if (frame := way()) is not None:
        frame.write.format("noop").mode("overwrite").save()
    spent = monotonic() - begun, _cpu_seconds() - cpu_s
    spark.catalog.clearCache()
    return spent


def _cpu_seconds() -> float:
    """Of this process and all below it; those that have ended count with their parents."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in (own, *own.children(recursive=True)))
