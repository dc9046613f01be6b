"""`share_state.reconstruct` and `share_state.cutoff`: logs, folded."""

from collections.abc import Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from share_state.api.asked import Paths, TopicsGiven, listed, severities_of, work_of
from share_state.api.tables import RESULTS, Tables
from share_state.api.warehouse import written, written_of_frame
from share_state.as_of import AsOf
from share_state.errors import InputError, ShareStateError
from share_state.inputs import AUTO

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def reconstruct(
    paths: "Paths | DataFrame",
    *,
    spark: "SparkSession | None" = None,
    warehouse: str | PathLike[str] | None = None,
    as_of: AsOf | None = None,
    topics: TopicsGiven = None,
    dialect: str = AUTO,
    rules: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Tables:
    """What the share coordinator would hold after loading the logs, and what is wrong in them.

    Args:
        paths: what to read; or a DataFrame of records with the columns of Spark's Kafka source (key, value, partition,
            offset, maybe topic and timestamp), which wants a `warehouse`.
        spark: a session; without one the logs are folded here.
        warehouse: a folder for Delta tables, as `share-state reconstruct --out` writes them; wants a session with Delta
            (`share_state.session()`).
        as_of: a datetime, or log partition -> offset; later records are left out.
        topics: names and end offsets of topics: a JSON file as `--topics` takes it, or `Topics`.
        dialect: auto, share_group_state or control_records.
        rules: rule -> error, warning, info or off.
        columns: of a DataFrame: key, value, partition, offset, topic or timestamp -> what it is called there.
    Returns:
        Four tables with the columns of schemas/tables: offsets and counts in records, times in UTC. DataFrames are of
        one fold that Spark keeps (`spark.catalog.clearCache()` drops it), or of the Delta versions that this run wrote.
    Raises:
        InputError: if a path is missing, holds no such log, or nothing in it is a record batch (lazy DataFrames are
            then empty).
        WarehouseError: if the warehouse cannot be written.
        ShareStateError: if an argument cannot be used.
    Source: Kafka CoordinatorLoaderImpl, ShareCoordinatorShard.replay.
    """
    if hasattr(paths, "sparkSession"):
        if warehouse is None:
            raise ShareStateError("reconstruct: a DataFrame is folded into a warehouse; give warehouse=FOLDER too")
        return written_of_frame(
            cast("DataFrame", paths), fspath(warehouse), topics, severities_of(rules or {}), columns
        )
    named = cast("Paths", paths)
    work = work_of(named, as_of, topics, dialect, rules)
    if warehouse is not None:
        if spark is None:
            raise ShareStateError("reconstruct: a warehouse is written by Spark; give spark=share_state.session() too")
        return written(spark, work, fspath(warehouse), listed(named), as_of, rules)
    if spark is not None:
        from share_state.spark.plan import fold_all, result_table  # noqa: PLC0415
        from share_state.task import RESULTS as FROM_TASKS  # noqa: PLC0415
        from share_state.task import Wanted  # noqa: PLC0415

        results = fold_all(spark, work, Wanted(sent=FROM_TASKS)).cache()
        return Tables(**{name: result_table(results, name) for name in RESULTS})
    folded = [work.fold(log) for log in work.logs]
    if not any(one.has_whole_batches or one.log.size == 0 for one in folded):
        raise InputError(f"{folded[0].log.name}: nothing in it is a record batch; give a folder of real segments")
    return Tables(
        share_partition_state=pa.concat_tables([one.states for one in folded]),
        in_flight=pa.concat_tables([one.in_flight for one in folded]),
        findings=pa.concat_tables([work.judge(one) for one in folded]),
        cutoff=_in_order([one.cutoff for one in folded]),
    )


def cutoff(
    paths: Paths, *, spark: "SparkSession | None" = None, as_of: AsOf | None = None, dialect: str = AUTO
) -> "pa.Table | DataFrame":
    """The offset of each log below which every record is redundant, and whether to trust it.

    Args:
        paths: what to read.
        spark: a session; without one the logs are folded here.
        as_of: a datetime, or log partition -> offset; later records are left out.
        dialect: auto, share_group_state or control_records.
    Returns:
        One row a log partition, columns of schemas/tables/cutoff.yaml: offsets and counts in records of the log, sizes
        in bytes. Clean only where `safe` is true; `share-state cutoff --verify` proves that the state stays the same.
    Raises:
        InputError: if a path is missing or holds no such log.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorOffsetsManager.lastRedundantOffset; KIP-932 draft, ESO.
    """
    if spark is not None:
        return reconstruct(paths, spark=spark, as_of=as_of, dialect=dialect).cutoff
    work = work_of(paths, as_of, None, dialect)
    return _in_order([work.fold(log).cutoff for log in work.logs])


def _in_order(limits: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(limits).sort_by([("topic", "ascending"), ("partition", "ascending")])
