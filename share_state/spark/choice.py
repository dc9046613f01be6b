"""Which executor runs a plan: threads of this process, or Spark.

Imports no Spark itself, so commands start quickly.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from share_state.delta.warehouse_place import check_warehouse_path
from share_state.errors import require
from share_state.pipeline.executor import Executor
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.progress import Progress
from share_state.sources.formats import RowSorter
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.spark.masters import LOCAL_MASTER, is_under_spark_submit

if TYPE_CHECKING:
    from share_state.sources.kafka_source import KafkaSource

IN_PROCESS_LIMIT = 128 << 20
"""Bytes of other formats than segments: Python reads texts on one core. Threads fold segments of any size in less
time and memory than local Spark."""

IN_PROCESS_RECORDS = 1_000_000
"""Records of a cluster that one process consumes in about the time that Spark takes to start."""


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """Which executor the caller requested: the Spark master and settings, if any, and whether Spark logs.

    `schema` is that of the catalog in which Spark names the tables that it writes, if any; `open_place` sets
    it.

    Raises:
        SetupError: if Spark is requested and not installed.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    verbose: bool = False
    schema: str | None = None

    def __post_init__(self) -> None:
        if self.requests_spark:
            require("pyspark", "pandas")

    @property
    def requests_spark(self) -> bool:
        """Whether a master or a setting is given."""
        return self.master is not None or bool(self.conf)


@contextmanager
def open_executor(
    choice: ExecutorChoice, plan: FoldPlan, progress: Progress, *, writes_tables: bool = True
) -> Iterator[Executor[Any]]:
    """Yield the executor that runs a plan.

    Spark, if the caller requested a master or a setting, a session is active, or the input exceeds
    `IN_PROCESS_LIMIT` bytes of other formats than segments, or `IN_PROCESS_RECORDS` records of a cluster;
    threads of this process otherwise.

    Args:
        choice, plan, progress: the request, the log partitions, and what shows the start of Spark.
        writes_tables: False if only a summary is returned; threads are then as fast for any input.
    Raises:
        ShareStateError: if Spark does not know the master.
        SetupError: if Spark is needed and Java or the jars are missing.
    """
    if not is_on_spark(choice) and (not writes_tables or _fits_in_process(plan)):
        yield LocalExecutor()
        return
    from share_state.spark.session import session  # noqa: PLC0415
    from share_state.spark.spark_executor import SparkExecutor  # noqa: PLC0415  imports Spark

    master = choice.master or LOCAL_MASTER
    with session(
        master, choice.conf, verbose=choice.verbose, progress=progress, delta=writes_tables
    ) as spark:
        yield SparkExecutor(spark, choice.schema)


@contextmanager
def open_place(
    choice: ExecutorChoice, warehouse: str, progress: Progress | None = None
) -> Iterator[tuple[ExecutorChoice, str]]:
    """Find the folder or address of a warehouse that may be named as a schema of Spark's catalogs.

    Args:
        choice: the request; without Spark every name is that of a folder.
        warehouse: a folder, an address, or `catalog.schema`, unless there is a folder of this name.
        progress: shows the start of a session.
    Yields:
        The request with the schema, if any, whose session stays active meanwhile; where its tables are.
    Raises:
        WarehouseError: if Spark does not know the schema.
    """
    if not names_schema(warehouse) or not is_on_spark(choice):
        check_warehouse_path(warehouse)
        yield choice, warehouse
        return
    from share_state.spark.delta_writer import schema_location  # noqa: PLC0415
    from share_state.spark.session import session  # noqa: PLC0415  imports Spark

    master, how = choice.master or LOCAL_MASTER, {"verbose": choice.verbose, "progress": progress}
    with session(master, choice.conf, **how, delta=True) as spark:
        yield replace(choice, schema=warehouse), schema_location(spark, warehouse)


def is_on_spark(choice: ExecutorChoice) -> bool:
    """Whether Spark runs a command of any size: the caller requested it, or a session is active."""
    return choice.requests_spark or _is_spark_active()


def names_schema(warehouse: str) -> bool:
    """Whether a warehouse may be a `catalog.schema`: there is no file or folder of this name."""
    return re.fullmatch(r"\w+(\.\w+)+", warehouse) is not None and not Path(warehouse).exists()


def _fits_in_process(plan: FoldPlan) -> bool:
    """Whether the logs are read sooner than Spark starts; of a cluster's logs only the offsets are known."""
    records = 0
    for log in plan.logs:
        if log.source is not None and not log.segments:
            if log.source.form != KAFKA_FORM:
                return False
            records += cast("KafkaSource", log.source).end_offset - log.log_start_offset
    if records > IN_PROCESS_RECORDS:
        return False
    return sum(log.size for log in plan.logs if log.source is not None) <= IN_PROCESS_LIMIT


def _is_spark_active() -> bool:
    if is_under_spark_submit():
        return True
    pyspark = sys.modules.get("pyspark.sql")
    return pyspark is not None and pyspark.SparkSession.getActiveSession() is not None


@contextmanager
def open_sorter(choice: ExecutorChoice) -> Iterator[RowSorter]:
    """Yield a sorter of table rows that starts Spark when it is first used, and stops it on exit.

    The session stays active in between, so an executor that is opened meanwhile uses it too.
    """
    with ExitStack() as opened:

        class LazySorter:
            def __getattr__(self, name: str) -> Any:
                from share_state.spark.session import session  # noqa: PLC0415
                from share_state.spark.sorted_tables import SparkSorter  # noqa: PLC0415  imports Spark

                master = choice.master or LOCAL_MASTER
                spark = opened.enter_context(session(master, choice.conf, verbose=choice.verbose, delta=True))
                return getattr(SparkSorter(spark), name)

        yield cast(RowSorter, LazySorter())
