"""A running cluster as a Python data source: one partition of the state topic a task, folded where it is read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from share_state.live.address import FORM
from share_state.wire.log_folder import LogPartition

NAME = "share_state_kafka"

Fold = Callable[[LogPartition], Iterator[pa.RecordBatch]]
"""What a task makes of one log partition."""


@dataclass
class _OneLog(InputPartition):
    log: LogPartition


def is_live(logs: Sequence[LogPartition]) -> bool:
    """Whether these are the log partitions of a running cluster."""
    return bool(logs) and all(log.source is not None and log.source.form == FORM for log in logs)


def live_frame(spark: SparkSession, logs: Sequence[LogPartition], fold: Fold, schema: StructType) -> DataFrame:
    """What the tasks make of the partitions of a running cluster, each read by a task of its own.

    The settings of the cluster travel inside the data source, not as its options: Spark shows options in its plans.

    Args:
        spark: a session.
        logs: of `share_state.live.logs.live_logs`.
        fold: reads a log partition and yields batches of `schema`.
        schema: of the result.
    """

    class LiveLogs(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> StructType:
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return reader

    reader = _Reader(logs, fold)
    spark.dataSource.register(LiveLogs)
    return spark.read.format(NAME).load()


class _Reader(DataSourceReader):
    def __init__(self, logs: Sequence[LogPartition], fold: Fold) -> None:
        self.logs, self.fold = logs, fold

    def partitions(self) -> Sequence[InputPartition]:
        return [_OneLog(log) for log in self.logs]

    def read(self, partition: _OneLog) -> Iterator[pa.RecordBatch]:  # type: ignore[override]  one of its own
        return self.fold(partition.log)
