"""What a notebook calls: a DataFrame with the columns of Spark's Kafka source, reconstructed into a warehouse."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from share_state.errors import SetupError
from share_state.inputs import state_partitions_found
from share_state.topics_file import read_topics
from share_state.warehouse_lock import locked
from share_state.warehouse_place import check_place
from share_state.wire.table_rows import Columns
from share_state.work import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from share_state.outcome import Outcome


def reconstruct_frame(
    rows: "DataFrame",
    *,
    out: str,
    columns: Mapping[str, str] | None = None,
    topics: str | None = None,
    state_partitions: int | None = None,
    rules: Mapping[str, str] | None = None,
) -> "Outcome":
    """Fold the records of `__share_group_state` in a DataFrame and write the tables of a warehouse.

    Args:
        rows: columns key, value (binary or base64), partition, offset, and where there are topic and timestamp; any
            order, several topics, repeated rows. It is read once, into scratch files in offset order.
        out: folder of the tables.
        columns: one of these names -> the column's name in `rows`.
        topics: JSON file of topic names and end offsets.
        state_partitions: how many partitions the state topic has, where known.
        rules: code -> severity or "off".
    Returns:
        What the run found; the tables are read with `spark.read.format("delta").load(f"{out}/share_partition_state")`.
    Raises:
        InputError: if a column is missing or wrong, or no row is of the state topic.
        WarehouseError: if the folder holds something else.
        SetupError: if the session knows no Delta.
    """
    from share_state.spark import reconstruct as job  # noqa: PLC0415  importing share_state must not import Spark
    from share_state.table_input import logs_of_frame  # noqa: PLC0415

    spark = rows.sparkSession
    if "io.delta" not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise SetupError("this Spark session has no Delta; open it with share_state.spark.session.start()")
    check_place(out)
    logs, _ = logs_of_frame(rows, Columns.named(columns or {}))
    work = Work(
        logs=logs,
        topics=read_topics(topics),
        state_partitions=state_partitions or state_partitions_found(logs),
        severities=rules or {},
    )
    with locked(out, "reconstruct"):
        return job.reconstruct(spark, work, out, inputs=("DataFrame",))
