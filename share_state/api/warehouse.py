"""Tables that a call leaves in a warehouse, from logs or from a DataFrame of records, and reads back."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from share_state.api.asked import TopicsGiven, known_topics
from share_state.api.tables import RESULTS, Tables
from share_state.as_of import AsOf
from share_state.errors import SetupError
from share_state.inputs import state_partitions_found
from share_state.work import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def written(
    spark: "SparkSession",
    work: Work,
    warehouse: str,
    inputs: Sequence[str],
    as_of: AsOf | None = None,
    rules: Mapping[str, str] | None = None,
) -> Tables:
    """Fold logs into a warehouse.

    Args:
        spark: a session with Delta.
        work: the log partitions, and how they are folded.
        warehouse: folder of the tables.
        inputs: what the person named, for the table `runs`.
        as_of: the moment that is meant, for the table `runs`.
        rules: rule -> severity or "off", for the table `runs`.
    Returns:
        DataFrames of the Delta versions that this run wrote.
    Raises:
        WarehouseError: if the folder holds something else, or cannot be written.
    """
    from share_state.spark.reconstruct import reconstruct as job  # noqa: PLC0415  Spark only where it is used
    from share_state.warehouse_lock import locked  # noqa: PLC0415
    from share_state.warehouse_place import check_place  # noqa: PLC0415

    check_place(warehouse)
    options = {"as_of": str(as_of or ""), "rules": ",".join(f"{k}={v}" for k, v in (rules or {}).items())}
    with locked(warehouse, "reconstruct"):
        job(spark, work, warehouse, inputs=tuple(inputs), options=options)
    return _committed(spark, warehouse)


def written_of_frame(
    rows: "DataFrame",
    warehouse: str,
    topics: TopicsGiven,
    severities: Mapping[str, str],
    columns: Mapping[str, str] | None,
) -> Tables:
    """Fold the records of `__share_group_state` in a DataFrame into a warehouse.

    Args:
        rows: columns key, value (binary or base64), partition, offset, and where there are topic and timestamp; any
            order, several topics, repeated rows. It is read once, into scratch files in offset order.
        warehouse: folder of the tables.
        topics: names and end offsets.
        severities: rule -> severity or "off".
        columns: one of these names -> the column's name in `rows`.
    Returns:
        DataFrames of the Delta versions that this run wrote.
    Raises:
        InputError: if a column is missing or wrong, or no row is of the state topic.
        WarehouseError: if the folder holds something else, or cannot be written.
        SetupError: if the session knows no Delta.
    """
    from share_state.table_input import logs_of_frame  # noqa: PLC0415  Spark only where it is used
    from share_state.warehouse_place import check_place  # noqa: PLC0415
    from share_state.wire.table_rows import Columns  # noqa: PLC0415

    spark = rows.sparkSession
    if "io.delta" not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise SetupError("this Spark session has no Delta; open it with share_state.session()")
    # Before the rows are read, which may take long.
    check_place(warehouse)
    logs, _ = logs_of_frame(rows, Columns.named(columns or {}))
    work = Work(
        logs=logs,
        topics=known_topics(topics),
        state_partitions=state_partitions_found(logs),
        severities=severities,
    )
    return written(spark, work, warehouse, ("DataFrame",), rules=severities)


def _committed(spark: "SparkSession", warehouse: str) -> Tables:
    from share_state.committed import CommittedTables  # noqa: PLC0415
    from share_state.spark.committed_frame import committed_frame  # noqa: PLC0415

    tables = CommittedTables(warehouse)
    return Tables(**{name: committed_frame(spark, tables, name) for name in RESULTS})
