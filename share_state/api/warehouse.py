"""Tables that a call leaves in a warehouse, and reads back."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from share_state.api.tables import Tables
from share_state.as_of import AsOf
from share_state.errors import SetupError
from share_state.work import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from share_state.runs.tasks import Tasks


def written(
    spark: "SparkSession | None",
    work: Work,
    warehouse: str,
    inputs: Sequence[str],
    as_of: AsOf | None = None,
    rules: Mapping[str, str] | None = None,
) -> Tables:
    """Fold logs into a warehouse.

    Args:
        spark: a session with Delta; without one the logs are folded here.
        work: the log partitions, and how they are folded.
        warehouse: folder of the tables.
        inputs: what the person named, for the table `runs`.
        as_of: the moment that is meant, for the table `runs`.
        rules: rule -> severity or "off", for the table `runs`.
    Returns:
        DataFrames of the Delta versions that this run wrote, or their rows in Arrow where there is no session.
    Raises:
        WarehouseError: if the folder holds something else, or cannot be written.
    """
    from share_state.runs.reconstruct import reconstruct as job  # noqa: PLC0415  Delta is slow to import
    from share_state.warehouse_lock import locked  # noqa: PLC0415

    options = {"as_of": str(as_of or ""), "rules": ",".join(f"{k}={v}" for k, v in (rules or {}).items())}
    with locked(warehouse, "reconstruct"):
        job(_tasks(spark), work, warehouse, inputs=tuple(inputs), options=options)
    return _committed(spark, warehouse)


def check_writable(session: "SparkSession | None", warehouse: str) -> None:
    """Refuse what cannot be written before rows are read, which may take long.

    Raises:
        SetupError: if the session knows no Delta, which reads a warehouse in a folder back.
        WarehouseError: if the folder holds something else.
    """
    from share_state.warehouse_place import check_place  # noqa: PLC0415

    in_folder = session is not None and "://" not in warehouse
    if in_folder and "io.delta" not in (session.conf.get("spark.sql.extensions", "") or ""):
        raise SetupError("this Spark session has no Delta; open it with share_state.session()")
    check_place(warehouse)


def _tasks(spark: "SparkSession | None") -> "Tasks":
    if spark is None:
        from share_state.runs.here import TasksHere  # noqa: PLC0415

        return TasksHere()
    from share_state.spark.spark_tasks import SparkTasks  # noqa: PLC0415  Spark only where it is used

    return SparkTasks(spark)


def _committed(spark: "SparkSession | None", warehouse: str) -> Tables:
    from share_state.committed import CommittedTables  # noqa: PLC0415

    tables = CommittedTables(warehouse)
    names = [one.name for one in fields(Tables) if tables.holds(one.name)]
    if spark is None:
        return Tables(**{name: tables.read(name) for name in names})
    from share_state.spark.committed_frame import committed_frame  # noqa: PLC0415

    return Tables(**{name: committed_frame(spark, tables, name) for name in names})
